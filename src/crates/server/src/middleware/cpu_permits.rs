//! Limits CPU-heavy work, such as ranges over many keys and large messages, so that it cannot starve the runtime. The
//! runtime has one worker thread per core. Without a limit, a client that keeps requesting such work would occupy all
//! worker threads, and lease renewals and health checks would have to wait. Heavy work therefore runs in
//! `block_in_place`, which moves the other tasks of the worker thread to another thread.
//!
//! At most one piece of heavy work per core runs at a time. Otherwise hundreds of threads would compete for the cores.
//! Further work waits for a permit. Each connection also has a limit of its own, so that one connection cannot take
//! all permits.
//!
//! Taking a permit costs a few microseconds, so work that is nearly always short does not take one.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::block_in_place;
use tonic::body::Body;

use crate::calls::poll_own_task;
use crate::middleware::body::polled_body;

/// Size from which a message counts as large, in bytes.
pub(crate) const LARGE_BYTES: usize = 1 << 20;

/// Size from which JSON counts as large, in bytes. JSON is slower to encode and decode than protobuf.
pub(crate) const LARGE_JSON_BYTES: usize = 64 << 10;

/// Marks a response with a large message.
#[derive(Clone, Copy)]
pub(crate) struct LargeResponse;

/// Permits for heavy work: those of one connection, and those that all connections share.
#[derive(Clone, Debug)]
pub(crate) struct CpuPermits {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    /// Number of permits in each semaphore.
    count: usize,
}

/// A permit, held until dropped.
struct CpuPermit {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl CpuPermits {
    /// Returns one permit per core.
    pub(crate) fn new() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn of(count: usize) -> Self {
        let permits = || Arc::new(Semaphore::new(count));
        Self { own: permits(), all: permits(), count }
    }

    /// Returns permits for another connection, sharing the global ones.
    pub(crate) fn for_connection(&self) -> Self {
        let (all, count) = (Arc::clone(&self.all), self.count);
        Self { own: Arc::new(Semaphore::new(count)), all, count }
    }

    async fn take(self) -> Option<CpuPermit> {
        // The semaphores are never closed.
        let own = self.own.acquire_owned().await.ok()?;
        let all = self.all.acquire_owned().await.ok()?;
        Some(CpuPermit { _own: own, _all: all })
    }

    /// Runs a future. If `is_long`, each poll runs in `block_in_place` under a permit. While the future is pending, no
    /// permit is held.
    pub(crate) async fn run<F: Future>(&self, is_long: bool, future: F) -> F::Output {
        let (mut future, mut next) = (pin!(future), Next::new(self));
        std::future::poll_fn(|context| match is_long {
            true => {
                let _permit = ready!(next.poll(context));
                block_in_place(|| future.as_mut().poll(context))
            }
            false => future.as_mut().poll(context),
        })
        .await
    }
}

/// Waits for one permit per poll.
struct Next {
    permits: CpuPermits,
    asked: Option<Pin<Box<dyn Future<Output = Option<CpuPermit>> + Send>>>,
}

impl Next {
    fn new(permits: &CpuPermits) -> Self {
        Self { permits: permits.clone(), asked: None }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<CpuPermit>> {
        ready!(poll_own_task());
        let permits = &self.permits;
        let asked = self.asked.get_or_insert_with(|| Box::pin(permits.clone().take()));
        let permit = ready!(asked.as_mut().poll(context));
        self.asked = None;
        Poll::Ready(permit)
    }
}

/// Runs work on JSON of the given size, in `block_in_place` if it is large. For streams, which process one message at a
/// time.
pub(crate) fn json_aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes >= LARGE_JSON_BYTES { block_in_place(work) } else { work() }
}

/// Returns a body whose messages are encoded under a permit.
pub(super) fn encoded_under_permit(body: Body, permits: &CpuPermits) -> Body {
    let mut next = Next::new(permits);
    polled_body(body, move |body, context| {
        let _permit = ready!(next.poll(context));
        block_in_place(|| Pin::new(body).poll_frame(context))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use http_body::{Body as HttpBody, Frame};
    use http_body_util::BodyExt as _;
    use tokio::runtime::Builder;
    use tokio::task::JoinSet;
    use tonic::Status;

    use super::*;

    /// A body that blocks its thread until it is notified.
    struct Holds(Receiver<()>);

    impl HttpBody for Holds {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let signal = self.0.recv_timeout(Duration::from_secs(20));
            Poll::Ready(signal.err().map(|_| Err(Status::internal("no other task ran"))))
        }
    }

    /// Runs a future that blocks the only worker thread until another task has run.
    fn beside(
        holds: impl Future<Output = Result<(), Status>> + Send + 'static,
        sender: impl Fn() + Send + 'static,
    ) {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        runtime.block_on(async {
            let held = tokio::spawn(async move {
                tokio::spawn(async move { sender() });
                holds.await
            });
            held.await.unwrap().unwrap();
        });
    }

    #[test]
    fn other_tasks_run_during_long_work() {
        let (sender, signal) = channel();
        let holds = async move {
            let signal = signal.recv_timeout(Duration::from_secs(20));
            signal.map_err(|_| Status::internal("no other task ran"))
        };
        beside(async { CpuPermits::new().run(true, holds).await }, move || {
            sender.send(()).unwrap()
        });
        let (sender, signal) = channel();
        let body = encoded_under_permit(Body::new(Holds(signal)), &CpuPermits::new());
        beside(async move { body.collect().await.map(drop) }, move || sender.send(()).unwrap());
    }

    /// Returns the maximum number of tasks that ran concurrently under these permits.
    fn most_of(permits: Vec<CpuPermits>) -> usize {
        let most = Arc::new(Mutex::new((0, 0)));
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        runtime.block_on(async {
            let mut all = JoinSet::new();
            for permits in permits {
                let most = Arc::clone(&most);
                all.spawn(async move {
                    let works = async {
                        let (now, before) = &mut *most.lock().unwrap();
                        *now += 1;
                        *before = *now.max(before);
                    };
                    let rests = async {
                        std::thread::sleep(Duration::from_millis(2));
                        most.lock().unwrap().0 -= 1;
                    };
                    permits.run(true, async { (works.await, rests.await) }).await;
                    // The future waits once, so that it needs a second permit.
                    permits.run(true, tokio::time::sleep(Duration::from_millis(5))).await;
                });
            }
            all.join_all().await;
        });
        most.lock().unwrap().1
    }

    #[test]
    fn cpu_permits_bound_concurrency_and_all_tasks_finish() {
        for count in [1, 2, 3] {
            let permits = CpuPermits::of(count);
            assert_eq!(most_of(vec![permits; 60]), count);
        }
    }

    /// This holds even if many requests wait on another connection.
    #[test]
    fn request_on_another_connection_runs_next() {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let permits = CpuPermits::of(1);
        let other = permits.for_connection();
        let done = Arc::new(Mutex::new(Vec::new()));
        let (first, begun) = channel::<()>();
        runtime.block_on(async {
            let mut all = JoinSet::new();
            let own = permits.clone();
            all.spawn(async move {
                own.run(true, async move { begun.recv().unwrap() }).await;
            });
            let begun = Instant::now();
            let has_taken = |permits: &Semaphore| {
                assert!(begun.elapsed() < Duration::from_secs(20), "no task runs");
                permits.available_permits() == 0
            };
            while !has_taken(&permits.all) {
                tokio::task::yield_now().await;
            }
            for (who, permits) in
                std::iter::repeat_n(("many", &permits), 50).chain([("other", &other)])
            {
                let (permits, done) = (permits.clone(), Arc::clone(&done));
                all.spawn(async move {
                    permits.run(true, async { done.lock().unwrap().push(who) }).await;
                });
                tokio::task::yield_now().await;
            }
            while !has_taken(&other.own) {
                tokio::task::yield_now().await;
            }
            first.send(()).unwrap();
            all.join_all().await;
        });
        let at = done.lock().unwrap().iter().position(|who| *who == "other").unwrap();
        assert!(at <= 1, "after {at} of the others");
    }
}

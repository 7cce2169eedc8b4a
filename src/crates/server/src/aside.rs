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

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::block_in_place;
use tonic::body::Body;
use tonic::{Request, Status};

/// Size from which a message counts as large, in bytes.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// Size from which JSON counts as large, in bytes. JSON is slower to encode and decode than protobuf.
pub(super) const LARGE_JSON_BYTES: usize = 64 << 10;

/// Marks a response with a large message.
#[derive(Clone, Copy)]
pub(super) struct Large;

/// Permits for heavy work: those of one connection, and those that all connections share.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    /// Number of permits in each semaphore.
    count: usize,
}

/// A permit, held until dropped.
struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Turns {
    /// Returns one permit per core.
    pub(super) fn new() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn of(count: usize) -> Self {
        let turns = || Arc::new(Semaphore::new(count));
        Self { own: turns(), all: turns(), count }
    }

    /// Returns permits for another connection, sharing the global ones.
    pub(super) fn of_another(&self) -> Self {
        let (all, count) = (Arc::clone(&self.all), self.count);
        Self { own: Arc::new(Semaphore::new(count)), all, count }
    }

    /// Returns the permits of the connection on which a request arrived.
    pub(super) fn in_request<T>(request: &Request<T>) -> Self {
        request.extensions().get().cloned().unwrap_or_else(Self::new)
    }

    async fn take(self) -> Option<Turn> {
        // The semaphores are never closed.
        let own = self.own.acquire_owned().await.ok()?;
        let all = self.all.acquire_owned().await.ok()?;
        Some(Turn { _own: own, _all: all })
    }

    /// Runs a future. If `is_long`, each poll runs in `block_in_place` under a permit. While the future is pending, no
    /// permit is held.
    pub(super) async fn aside<F: Future>(&self, is_long: bool, future: F) -> F::Output {
        let (mut future, mut next) = (pin!(future), Next::new(self));
        std::future::poll_fn(|context| match is_long {
            true => {
                let _turn = ready!(next.poll(context));
                block_in_place(|| future.as_mut().poll(context))
            }
            false => future.as_mut().poll(context),
        })
        .await
    }
}

/// Waits for one permit per poll.
struct Next {
    turns: Turns,
    asked: Option<Pin<Box<dyn Future<Output = Option<Turn>> + Send>>>,
}

impl Next {
    fn new(turns: &Turns) -> Self {
        Self { turns: turns.clone(), asked: None }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Turn>> {
        let turns = &self.turns;
        let asked = self.asked.get_or_insert_with(|| Box::pin(turns.clone().take()));
        let turn = ready!(asked.as_mut().poll(context));
        self.asked = None;
        Poll::Ready(turn)
    }
}

/// Runs work on JSON of the given size, in `block_in_place` if it is large. For streams, which process one message at a
/// time.
pub(super) fn json_aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes >= LARGE_JSON_BYTES { block_in_place(work) } else { work() }
}

/// A body whose messages are encoded under a permit.
pub(super) struct Aside {
    body: Body,
    next: Next,
}

impl Aside {
    pub(super) fn new(body: Body, turns: &Turns) -> Self {
        Self { body, next: Next::new(turns) }
    }
}

impl HttpBody for Aside {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let _turn = ready!(this.next.poll(context));
        block_in_place(|| Pin::new(&mut this.body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use http_body_util::BodyExt as _;
    use tokio::runtime::Builder;
    use tokio::task::JoinSet;

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
            let told = self.0.recv_timeout(Duration::from_secs(20));
            Poll::Ready(told.err().map(|_| Err(Status::internal("no other task ran"))))
        }
    }

    /// Runs a future that blocks the only worker thread until another task has run.
    fn beside(
        holds: impl Future<Output = Result<(), Status>> + Send + 'static,
        says: impl Fn() + Send + 'static,
    ) {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        runtime.block_on(async {
            let held = tokio::spawn(async move {
                tokio::spawn(async move { says() });
                holds.await
            });
            held.await.unwrap().unwrap();
        });
    }

    #[test]
    fn other_tasks_run_during_long_work() {
        let (says, told) = channel();
        let holds = async move {
            let told = told.recv_timeout(Duration::from_secs(20));
            told.map_err(|_| Status::internal("no other task ran"))
        };
        beside(async { Turns::new().aside(true, holds).await }, move || says.send(()).unwrap());
        let (says, told) = channel();
        let body = Aside::new(Body::new(Holds(told)), &Turns::new());
        beside(async move { body.collect().await.map(drop) }, move || says.send(()).unwrap());
    }

    /// Returns the maximum number of tasks that ran concurrently under these permits.
    fn most_of(turns: Vec<Turns>) -> usize {
        let most = Arc::new(Mutex::new((0, 0)));
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        runtime.block_on(async {
            let mut all = JoinSet::new();
            for turns in turns {
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
                    turns.aside(true, async { (works.await, rests.await) }).await;
                    // The future waits once, so that it needs a second permit.
                    turns.aside(true, tokio::time::sleep(Duration::from_millis(5))).await;
                });
            }
            all.join_all().await;
        });
        most.lock().unwrap().1
    }

    #[test]
    fn cpu_permits_bound_concurrency_and_all_tasks_finish() {
        for count in [1, 2, 3] {
            let turns = Turns::of(count);
            assert_eq!(most_of(vec![turns; 60]), count);
        }
    }

    /// Even if many requests wait on another connection.
    #[test]
    fn request_on_another_connection_runs_next() {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let turns = Turns::of(1);
        let other = turns.of_another();
        let done = Arc::new(Mutex::new(Vec::new()));
        let (first, begun) = channel::<()>();
        runtime.block_on(async {
            let mut all = JoinSet::new();
            let own = turns.clone();
            all.spawn(async move {
                own.aside(true, async move { begun.recv().unwrap() }).await;
            });
            let begun = Instant::now();
            let has_taken = |turns: &Semaphore| {
                assert!(begun.elapsed() < Duration::from_secs(20), "no task runs");
                turns.available_permits() == 0
            };
            while !has_taken(&turns.all) {
                tokio::task::yield_now().await;
            }
            for (who, turns) in std::iter::repeat_n(("many", &turns), 50).chain([("other", &other)])
            {
                let (turns, done) = (turns.clone(), Arc::clone(&done));
                all.spawn(async move {
                    turns.aside(true, async { done.lock().unwrap().push(who) }).await;
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

//! Work that may take long without waiting for anything: ranges over many keys, and large messages. There are as many
//! threads as processors, and who asks for such things again and again would have them all: renewals of leases and questions
//! about health would wait. Here another thread goes on with what else this one has to do.
//!
//! As many at a time as there are processors, or it would be hundreds of threads that have them all. Who comes later waits
//! for its turn, behind no more of another connection's than can have theirs at a time.
//!
//! That costs some microseconds, and so is not for what is nearly always short.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::block_in_place;
use tonic::body::Body;
use tonic::{Request, Status};

/// From how many bytes on a message is large.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// From how many bytes on it is aside that JSON is read and written, which takes longer by far.
pub(super) const LARGE_JSON_BYTES: usize = 64 << 10;

/// What an answer carries whose message is large.
#[derive(Clone, Copy)]
pub(super) struct Large;

/// The turns of one connection, and those of all.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    /// How many there are, of each.
    count: usize,
}

/// A turn, until it is dropped.
struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Turns {
    /// As many as there are processors.
    pub(super) fn new() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn of(count: usize) -> Self {
        let turns = || Arc::new(Semaphore::new(count));
        Self { own: turns(), all: turns(), count }
    }

    /// The same for another connection.
    pub(super) fn of_another(&self) -> Self {
        let (all, count) = (Arc::clone(&self.all), self.count);
        Self { own: Arc::new(Semaphore::new(count)), all, count }
    }

    /// Those of the connection that a request has come by.
    pub(super) fn in_request<T>(request: &Request<T>) -> Self {
        request.extensions().get().cloned().unwrap_or_else(Self::new)
    }

    async fn take(self) -> Option<Turn> {
        // Nobody closes them.
        let own = self.own.acquire_owned().await.ok()?;
        let all = self.all.acquire_owned().await.ok()?;
        Some(Turn { _own: own, _all: all })
    }

    /// A future, aside where its steps may take long, in a turn for each of them: none is kept while it waits.
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

/// Waits for a turn, and then for the next.
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

/// What takes long if it is about so many bytes of JSON, of a stream, which has one at a time.
pub(super) fn json_aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes >= LARGE_JSON_BYTES { block_in_place(work) } else { work() }
}

/// A body whose messages are made aside.
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

    /// A body that holds its thread until it is told to end.
    struct Holds(Receiver<()>);

    impl HttpBody for Holds {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let told = self.0.recv_timeout(Duration::from_secs(20));
            Poll::Ready(told.err().map(|_| Err(Status::internal("nobody else had a turn"))))
        }
    }

    /// What holds the only thread until another task has had its turn.
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
    fn others_have_their_turn_beside_what_takes_long() {
        let (says, told) = channel();
        let holds = async move {
            let told = told.recv_timeout(Duration::from_secs(20));
            told.map_err(|_| Status::internal("nobody else had a turn"))
        };
        beside(async { Turns::new().aside(true, holds).await }, move || says.send(()).unwrap());
        let (says, told) = channel();
        let body = Aside::new(Body::new(Holds(told)), &Turns::new());
        beside(async move { body.collect().await.map(drop) }, move || says.send(()).unwrap());
    }

    /// The most that there were at a time, of some that have their turn by these.
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
                    // It waits for something, and has another step then.
                    turns.aside(true, tokio::time::sleep(Duration::from_millis(5))).await;
                });
            }
            all.join_all().await;
        });
        most.lock().unwrap().1
    }

    #[test]
    fn as_many_have_their_turn_as_there_are_and_all_have_it_at_last() {
        for count in [1, 2, 3] {
            let turns = Turns::of(count);
            assert_eq!(most_of(vec![turns; 60]), count);
        }
    }

    /// However many wait on another connection.
    #[test]
    fn who_comes_by_another_connection_is_the_next() {
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
                assert!(begun.elapsed() < Duration::from_secs(20), "nobody takes a turn");
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
        assert!(at <= 1, "behind {at} of the others");
    }
}

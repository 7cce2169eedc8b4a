//! Runs the calls of a connection in the connection's task. A call that can answer at once needs no task of its own,
//! and all responses that are ready are written with one system call.
//!
//! A call moves to a task of its own before heavy work, so that it delays neither the connection nor its other calls.
//! So does each further call of a connection with many calls, so that the calls of one connection can use all cores.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt as _;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use tokio::task::coop::{has_budget_remaining, unconstrained};

/// Maximum number of calls in the task of a connection.
const SHARED_MAX: usize = 32;

/// Maximum number of turns in one poll, so that a busy connection lets other tasks run.
const TURNS_MAX: usize = 4;

type CallFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::OwnTask) };
}

/// The task in which the current thread runs a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a task of its own, or no call at all.
    OwnTask,
    /// In the task of its connection.
    Shared,
    /// In the task of its connection, and the call has asked for a task of its own.
    Moving,
}

/// Completes if the call has a task of its own. Otherwise, moves the call to one, and completes there. Called before heavy
/// work. A call that moves is polled again without a wake-up, so a combinator that polls only woken futures, such as
/// `FuturesUnordered`, must not be between this function and the task.
pub(crate) fn poll_own_task() -> Poll<()> {
    if PLACE.get() == Place::OwnTask {
        return Poll::Ready(());
    }
    // The task that continues the call polls it at once, so nothing needs to be woken.
    PLACE.set(Place::Moving);
    Poll::Pending
}

/// Moves the call to a task of its own before heavy work, as [`poll_own_task`] does.
pub(crate) async fn own_task() {
    std::future::poll_fn(|_| poll_own_task()).await;
}

/// A call in the task of its connection.
struct SharedCall(Option<CallFuture>);

impl Future for SharedCall {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !has_budget_remaining() {
            // If tokio woke the waiting calls, it would do so in reverse order, and a call between busy ones would never run.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(call) = &mut self.0 else { return Poll::Ready(()) };
        PLACE.set(Place::Shared);
        // As in a task of its own, a panic ends only the call. The panic hook reports it.
        let mut polled = AssertUnwindSafe(call).catch_unwind();
        let polled = polled.poll_unpin(context).map(drop);
        if PLACE.replace(Place::OwnTask) == Place::Moving && polled.is_pending() {
            self.0.take().map(tokio::spawn);
            return Poll::Ready(());
        }
        polled
    }
}

/// The new calls of a connection, as hyper hands them over.
#[derive(Clone, Default)]
pub(crate) struct NewCalls(Arc<Mutex<Vec<CallFuture>>>);

impl NewCalls {
    fn lock(&self) -> MutexGuard<'_, Vec<CallFuture>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for NewCalls {
    fn execute(&self, call: F) {
        self.lock().push(Box::pin(call));
    }
}

/// The output of a connection.
pub(crate) trait Output {
    /// Collects the output from now on.
    fn hold(&self);

    /// Writes the collected output, and ends the collecting.
    fn poll_release(&self, context: &mut Context<'_>) -> Poll<()>;
}

/// The calls of a connection.
pub(crate) struct Calls<O> {
    new: NewCalls,
    output: O,
    running: FuturesUnordered<SharedCall>,
    wake_up: Arc<WakeUp>,
    /// Whether the connection has used up the budget of the last poll, so that the next begins with the calls.
    calls_are_due: bool,
}

impl<O: Output> Calls<O> {
    pub(crate) fn new(new: NewCalls, output: O) -> Self {
        let (running, wake_up) = (FuturesUnordered::new(), Arc::default());
        Self { new, output, running, wake_up, calls_are_due: false }
    }

    /// Runs a connection and its calls until the connection ends.
    pub(crate) async fn run<C: Future>(&mut self, mut connection: Pin<&mut C>) -> C::Output {
        std::future::poll_fn(|context| self.poll(connection.as_mut(), context)).await
    }

    fn poll<C: Future>(
        &mut self,
        mut connection: Pin<&mut C>,
        context: &mut Context<'_>,
    ) -> Poll<C::Output> {
        self.wake_up.set_task(context.waker());
        let waker = Waker::from(Arc::clone(&self.wake_up));
        let inner = &mut Context::from_waker(&waker);
        self.output.hold();
        let mut ended = Poll::Pending;
        for turn in 1..=TURNS_MAX {
            self.wake_up.begin_turn();
            let calls_are_due = std::mem::take(&mut self.calls_are_due);
            if !calls_are_due {
                ended = connection.as_mut().poll(inner);
                if ended.is_ready() {
                    break;
                }
                self.calls_are_due = !has_budget_remaining();
            }
            self.start_new();
            while let Poll::Ready(Some(())) = self.running.poll_next_unpin(inner) {}
            let is_idle = self.wake_up.end_turn();
            if turn == TURNS_MAX || !has_budget_remaining() {
                context.waker().wake_by_ref();
                break;
            }
            if is_idle && !calls_are_due {
                break;
            }
        }
        // The rest is written when the connection is writable again.
        let _: Poll<()> = self.poll_release(inner);
        ended
    }

    /// Writes the collected output, also when the budget of the task is used up.
    fn poll_release(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let release = std::future::poll_fn(|context| self.output.poll_release(context));
        pin!(unconstrained(release)).poll(context)
    }

    /// Waits until the collected output is written.
    pub(crate) async fn released(&mut self) {
        std::future::poll_fn(|context| self.poll_release(context)).await;
    }

    fn start_new(&mut self) {
        for call in self.new.lock().drain(..) {
            if self.running.len() < SHARED_MAX {
                self.running.push(SharedCall(Some(call)));
            } else {
                tokio::spawn(call);
            }
        }
    }
}

/// Wakes the task of a connection, except during a turn, which is then followed by another.
#[derive(Default)]
struct WakeUp {
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

const IDLE: u8 = 0;
const IN_TURN: u8 = 1;
const WOKEN: u8 = 2;

impl WakeUp {
    fn task(&self) -> MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_task(&self, waker: &Waker) {
        match &mut *self.task() {
            Some(task) => task.clone_from(waker),
            task => *task = Some(waker.clone()),
        }
    }

    fn begin_turn(&self) {
        self.state.store(IN_TURN, Ordering::SeqCst);
    }

    /// Returns false if something was woken during the turn.
    fn end_turn(&self) -> bool {
        let ended = self.state.compare_exchange(IN_TURN, IDLE, Ordering::SeqCst, Ordering::SeqCst);
        ended.is_ok()
    }
}

impl Wake for WakeUp {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::SeqCst) == IDLE
            && let Some(task) = &*self.task()
        {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::{mpsc, oneshot};
    use tokio::task;

    use super::*;

    /// Output of a connection without I/O.
    struct NoOutput;

    impl Output for NoOutput {
        fn hold(&self) {}

        fn poll_release(&self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Ready(())
        }
    }

    /// A connection without I/O, to which calls can be added from outside.
    struct Connection {
        calls: mpsc::UnboundedSender<CallFuture>,
        task: task::JoinHandle<()>,
    }

    impl Connection {
        fn new() -> Self {
            let (calls, mut arriving) = mpsc::unbounded_channel::<CallFuture>();
            let task = tokio::spawn(async move {
                let new = NewCalls::default();
                let mut running = Calls::new(new.clone(), NoOutput);
                let connection = async move {
                    while let Some(call) = arriving.recv().await {
                        new.execute(call);
                    }
                };
                running.run(pin!(connection)).await;
            });
            Self { calls, task }
        }

        /// Starts a call. Returns a receiver of its result.
        fn call<T: Send + 'static>(
            &self,
            call: impl Future<Output = T> + Send + 'static,
        ) -> oneshot::Receiver<T> {
            let (sender, result) = oneshot::channel();
            let call = async move { drop(sender.send(call.await)) };
            assert!(self.calls.send(Box::pin(call)).is_ok());
            result
        }
    }

    async fn result<T>(of: oneshot::Receiver<T>) -> T {
        let result = tokio::time::timeout(Duration::from_secs(20), of).await;
        result.expect("the call ends").expect("the call has a result")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn call_runs_in_the_task_of_its_connection_until_heavy_work() {
        let connection = Connection::new();
        let own = connection.task.id();
        let ids = connection.call(async {
            let before = task::id();
            own_task().await;
            own_task().await;
            (before, task::id())
        });
        let (before, during) = result(ids).await;
        assert_eq!(before, own);
        assert_ne!(during, own);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn calls_beyond_the_limit_run_in_tasks_of_their_own() {
        let connection = Connection::new();
        let own = connection.task.id();
        let (end, ended) = tokio::sync::watch::channel(false);
        let mut calls = Vec::new();
        for _ in 0..SHARED_MAX + 3 {
            let mut ended = ended.clone();
            let call = async move {
                drop(ended.wait_for(|ended| *ended).await);
                task::id()
            };
            calls.push(connection.call(call));
        }
        // This call starts after the others.
        let last = connection.call(async { task::id() });
        assert_ne!(result(last).await, own);
        end.send_replace(true);
        let mut shared = 0;
        for call in calls {
            shared += usize::from(result(call).await == own);
        }
        assert_eq!(shared, SHARED_MAX);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn panic_ends_only_the_call() {
        let connection = Connection::new();
        let (start, started) = oneshot::channel();
        let other = connection.call(started);
        let panicking = connection.call(async { panic!("expected by this test") });
        assert!(panicking.await.is_err());
        start.send(1).unwrap();
        assert_eq!(result(other).await, Ok(1));
        assert_eq!(result(connection.call(async { 2 })).await, 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn calls_end_with_their_connection() {
        let connection = Connection::new();
        let call = connection.call(std::future::pending::<()>());
        let Connection { calls, task } = connection;
        drop(calls);
        task.await.unwrap();
        assert!(call.await.is_err());
    }

    /// Without an order of their own, the calls between two busy ones would never run.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn busy_calls_do_not_starve_others() {
        let connection = Connection::new();
        let (end, ended) = tokio::sync::watch::channel(false);
        let busy = || {
            let ended = ended.clone();
            let (sender, mut messages) = mpsc::unbounded_channel();
            connection.call(async move {
                while !*ended.borrow() {
                    // A message is always ready, so only the budget of the task ends a turn.
                    sender.send(()).unwrap();
                    messages.recv().await;
                }
            })
        };
        let (there, mut arriving) = mpsc::unbounded_channel();
        let (back, mut returned) = mpsc::unbounded_channel();
        let first = busy();
        let echo = connection.call(async move {
            while let Some(step) = arriving.recv().await {
                back.send(step).unwrap();
            }
        });
        let last = busy();
        for step in 0..100 {
            there.send(step).unwrap();
            let wait = tokio::time::timeout(Duration::from_secs(5), returned.recv());
            assert_eq!(wait.await.expect("the call gets its turn"), Some(step));
        }
        end.send_replace(true);
        drop(there);
        for call in [first, echo, last] {
            result(call).await;
        }
    }

    /// A connection that always has something to read leaves the calls a part of the budget.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn busy_connection_does_not_starve_its_calls() {
        let (answered, mut answer) = oneshot::channel();
        let serve = async move {
            let new = NewCalls::default();
            let (sender, mut ready) = mpsc::unbounded_channel();
            let starting = new.clone();
            let connection = async move {
                starting.execute(async move {
                    for _ in 0..10 {
                        tokio::task::yield_now().await;
                    }
                    assert!(answered.send(()).is_ok());
                });
                while answer.try_recv().is_err() {
                    sender.send(()).unwrap();
                    ready.recv().await;
                }
            };
            Calls::new(new, NoOutput).run(pin!(connection)).await;
        };
        let served = tokio::time::timeout(Duration::from_secs(20), tokio::spawn(serve)).await;
        served.expect("the call gets its turn").unwrap();
    }

    /// Calls that other threads wake at any time, also during a turn of the connection.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_up_is_lost() {
        const CALLS: usize = 8;
        const STEPS: usize = 5_000;
        let connection = Connection::new();
        let (mut senders, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..CALLS {
            let (there, mut arriving) = mpsc::unbounded_channel();
            let (back, returned) = mpsc::unbounded_channel();
            calls.push(connection.call(async move {
                while let Some(step) = arriving.recv().await {
                    back.send(step).unwrap();
                }
            }));
            senders.push((there, returned));
        }
        let threads: Vec<_> = senders
            .into_iter()
            .map(|(there, mut returned)| {
                task::spawn(async move {
                    for step in 0..STEPS {
                        there.send(step).unwrap();
                        let wait = tokio::time::timeout(Duration::from_secs(20), returned.recv());
                        assert_eq!(wait.await.expect("the call is woken"), Some(step));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.await.unwrap();
        }
        for call in calls {
            result(call).await;
        }
    }
}

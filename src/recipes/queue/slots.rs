//! [`Slots`]: futures that run concurrently in one task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Futures that run concurrently in the task that polls them. A wake-up polls only the futures that
/// were woken, so many waiting futures cost nothing.
pub(super) struct Slots<F> {
    /// The futures that have not ended.
    running: Vec<Slot<F>>,
    task: Arc<Mutex<Option<Waker>>>,
}

struct Slot<F> {
    future: Pin<Box<F>>,
    waker: Arc<SlotWaker>,
}

/// Records that a future was woken, and wakes the task.
struct SlotWaker {
    is_due: AtomicBool,
    task: Arc<Mutex<Option<Waker>>>,
}

impl<F: Future<Output = ()>> Slots<F> {
    pub(super) fn new(futures: impl IntoIterator<Item = F>) -> Self {
        let task = Arc::default();
        let slot = |future| {
            let waker = SlotWaker { is_due: AtomicBool::new(true), task: Arc::clone(&task) };
            Slot { future: Box::pin(future), waker: Arc::new(waker) }
        };
        Self { running: futures.into_iter().map(slot).collect(), task }
    }

    /// Runs the futures until all of them have ended.
    pub(super) async fn all_ended(&mut self) {
        poll_fn(|context| self.poll_ended(context)).await;
    }

    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Register first, so that wake-ups from now on wake this task.
        let waker = Some(context.waker().clone());
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = waker;
        // All futures share the task's budget of tokio. Begin with another one each time, so that a
        // future that uses up the budget does not starve the same others.
        let others = usize::from(!self.running.is_empty());
        self.running.rotate_left(others);
        self.running.retain_mut(|Slot { future, waker }| {
            if !waker.is_due.swap(false, Ordering::SeqCst) {
                return true;
            }
            let waker = Waker::from(Arc::clone(waker));
            future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()
        });
        if self.running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.is_due.store(true, Ordering::SeqCst);
        // Wake without the lock, because the woken task may poll at once.
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn wake_up_polls_only_the_woken_future() {
        let polls = [0, 1, 2].map(|_| Cell::new(0));
        let wakers = [(); 3].map(|()| Cell::new(None));
        let mut slots = Slots::new(polls.iter().zip(&wakers).map(|(polls, waker)| {
            poll_fn(|context| {
                polls.set(polls.get() + 1);
                waker.set(Some(context.waker().clone()));
                if polls.get() == 3 { Poll::Ready(()) } else { Poll::Pending }
            })
        }));
        let mut context = Context::from_waker(Waker::noop());
        let polled = || polls.each_ref().map(Cell::get);
        assert!(slots.poll_ended(&mut context).is_pending());
        assert_eq!(polled(), [1, 1, 1]);
        assert!(slots.poll_ended(&mut context).is_pending());
        assert_eq!(polled(), [1, 1, 1], "none was woken");
        for expected in [[1, 2, 1], [1, 3, 1]] {
            wakers[1].take().expect("it was polled").wake();
            assert!(slots.poll_ended(&mut context).is_pending());
            assert_eq!(polled(), expected);
        }
        for ready in [false, true] {
            wakers.iter().filter_map(Cell::take).for_each(Waker::wake);
            assert_eq!(slots.poll_ended(&mut context).is_ready(), ready);
        }
        assert_eq!(polled(), [3, 3, 3], "an ended future is not polled again");
    }
}

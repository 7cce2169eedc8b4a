//! Parks a thread until shared state contains work for it. While the thread is awake, a
//! notification costs no system call. A condition variable alone would make a system call for each
//! notification.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// The locked state in which a thread that waits on a [`Parker`] looks for work.
pub(crate) trait Sleeper {
    /// Returns whether there is no work.
    fn is_idle(&self) -> bool;

    /// Whether a thread is parked. Written only by [`Parker`]; initially false.
    fn waits(&mut self) -> &mut bool;
}

/// A condition variable for one waiting thread.
#[derive(Default)]
pub(crate) struct Parker {
    condition: Condvar,
    wakeups: AtomicU64,
}

impl Parker {
    /// Wakes the waiting thread, if there is one. `state` is the locked state that was changed.
    pub(crate) fn unpark<S: Sleeper>(&self, state: &mut S) {
        if std::mem::take(state.waits()) {
            self.wakeups.fetch_add(1, Ordering::Relaxed);
            self.condition.notify_one();
        }
    }

    /// Returns how often the thread was woken.
    pub(crate) fn wakeups(&self) -> u64 {
        self.wakeups.load(Ordering::Relaxed)
    }

    /// Waits while there is no work, but at most for `at_most`.
    pub(crate) fn wait<'a, S: Sleeper>(
        &self,
        mut state: MutexGuard<'a, S>,
        at_most: Option<Duration>,
    ) -> MutexGuard<'a, S> {
        // Set the flag again before each wait, because each notification clears it.
        let idle = |state: &mut S| {
            *state.waits() = state.is_idle();
            *state.waits()
        };
        state = match at_most {
            None => self.condition.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner),
            Some(at_most) => {
                let waited = self.condition.wait_timeout_while(state, at_most, idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        *state.waits() = false;
        state
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    #[derive(Default)]
    struct Basket {
        apples: u64,
        closed: bool,
        waits: bool,
    }

    impl Sleeper for Basket {
        fn is_idle(&self) -> bool {
            self.apples == 0 && !self.closed
        }

        fn waits(&mut self) -> &mut bool {
            &mut self.waits
        }
    }

    #[test]
    fn no_wakeup_is_lost() {
        let shared: Arc<(Mutex<Basket>, Parker)> = Arc::default();
        let eater = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut eaten = 0;
                loop {
                    let mut basket = shared.1.wait(shared.0.lock().unwrap(), None);
                    eaten += std::mem::take(&mut basket.apples);
                    if basket.closed {
                        return eaten;
                    }
                }
            })
        };
        const PICKERS: u64 = 4;
        const EACH: u64 = 5_000;
        thread::scope(|scope| {
            for _ in 0..PICKERS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let mut basket = shared.0.lock().unwrap();
                        basket.apples += 1;
                        shared.1.unpark(&mut *basket);
                    }
                });
            }
        });
        let mut basket = shared.0.lock().unwrap();
        basket.closed = true;
        shared.1.unpark(&mut *basket);
        drop(basket);
        assert_eq!(eater.join().unwrap(), PICKERS * EACH);
    }

    #[test]
    fn parked_thread_wakes_at_its_deadline() {
        let (lock, parker) = (Mutex::new(Basket::default()), Parker::default());
        let basket = parker.wait(lock.lock().unwrap(), Some(Duration::from_millis(1)));
        assert!(basket.is_idle() && !basket.waits);
    }
}

//! Blocks on a future with a time limit.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks until the future is ready. If that takes longer than the limit, drops the future and returns `None`.
pub fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let begun = Instant::now();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
        thread::park_timeout(left);
    }
}

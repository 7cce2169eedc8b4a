//! [`Blocking`]: blocking calls for programs without async.

use std::cell::Cell;
use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::Handle;

thread_local! {
    /// Whether this thread runs the simulator.
    static SIMULATES: Cell<bool> = const { Cell::new(false) };
}

/// Runs the simulator. Meanwhile, [`Blocking::block`] panics on this thread: the simulator has only
/// this thread, so the call would never complete.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn simulate<T>(run: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            SIMULATES.set(self.0);
        }
    }
    let _restore = Restore(SIMULATES.replace(true));
    run()
}

/// Blocks the calling thread until a call has completed. Implemented for every awaitable type.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use bowline::{Blocking, Config, Node};
/// # let dir = tempfile::tempdir()?;
/// # let data = dir.path();
/// let node = Node::start(Config::new(data, "solo")).block()?;
/// let kv = node.client();
/// kv.put("greeting", "hello").block()?;
/// assert_eq!(kv.get("greeting").block()?.unwrap().value, "hello");
/// node.shutdown().block();
/// # Ok(())
/// # }
/// ```
pub trait Blocking: IntoFuture + Sized {
    /// Blocks until the call has completed, and returns its result.
    ///
    /// # Panics
    /// Panics in an async task on a thread of a tokio runtime, because blocking would also stop the
    /// other tasks of that thread. In async code, await the call or use
    /// `tokio::task::spawn_blocking`. Also panics in a program in the simulator. Other executors are
    /// not detected.
    #[track_caller]
    fn block(self) -> Self::Output {
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        assert!(
            !SIMULATES.get(),
            "`block()` would never return in the simulator, which has one thread: use `.await` instead"
        );
        // `Handle::block_on` panics if this thread runs async tasks. `Handle::block_on` does not
        // panic on a thread of `spawn_blocking`.
        if let Ok(runtime) = Handle::try_current() {
            return runtime.block_on(self.into_future());
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(self.into_future());
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                // If the waker ran after the poll, `park` returns at once.
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl<F: IntoFuture> Blocking for F {}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn block_panics_in_an_async_task_and_works_in_spawn_blocking() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let caught = catch_unwind(AssertUnwindSafe(|| async { 1 }.block())).unwrap_err();
            let text = caught.downcast_ref::<String>().cloned();
            let text = text.or_else(|| caught.downcast_ref::<&str>().map(|&text| text.to_owned()));
            assert!(text.unwrap().contains("Cannot start a runtime from within a runtime"));
            let blocking = tokio::task::spawn_blocking(|| async { 2 }.block());
            assert_eq!(blocking.await.unwrap(), 2);
        });
        assert_eq!(async { 3 }.block(), 3);
    }
}

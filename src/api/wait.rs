//! For programs without async: blocks a thread on a call.

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Blocks the calling thread until a call has its answer. For everything in this crate that can be
/// awaited.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use bowline::{Config, Node, Wait};
/// # let dir = tempfile::tempdir()?;
/// # let data = dir.path();
/// let node = Node::start(Config::new(data, "solo")).wait()?;
/// let kv = node.client();
/// kv.put("greeting", "hello").wait()?;
/// assert_eq!(kv.get("greeting").wait()?.unwrap().value, "hello");
/// node.shutdown().wait();
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// Not by itself, but it must not be called on a thread that runs an async executor: it would block
/// all of that thread's tasks.
pub trait Wait: IntoFuture + Sized {
    /// Blocks until the answer is there.
    fn wait(self) -> Self::Output {
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(self.into_future());
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                // A wake-up between the poll and here makes the park return at once.
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl<F: IntoFuture> Wait for F {}

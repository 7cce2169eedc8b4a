//! The network threads. All nodes of a process share a small number of threads.
//!
//! The network does not run on the async runtime of the host program. If that runtime hangs, the
//! node must still keep its leases alive.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

pub(super) const THREAD_NAME: &str = "bowline-net";
/// Maximum number of threads for blocking calls. Each name that is being resolved occupies a
/// thread, and so does reading certificate files.
const WAITING_THREADS_MAX: usize = 32;
/// Maximum time to wait for such a thread on shutdown.
const SHUTDOWN_WAIT_MAX: Duration = Duration::from_millis(500);

static SHARED: Mutex<Weak<NetRuntime>> = Mutex::new(Weak::new());

/// The runtime, which is shut down when the last reference is dropped.
pub(super) struct NetRuntime {
    runtime: Option<Runtime>,
}

impl NetRuntime {
    /// Returns the runtime of this process.
    pub(super) fn shared() -> io::Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = shared.upgrade() {
            return Ok(runtime);
        }
        // On a machine with two cores, the driver and the log need one core, and a second network
        // thread would only add wake-ups.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let runtime = Builder::new_multi_thread()
            .worker_threads(if cores > 2 { 2 } else { 1 })
            .max_blocking_threads(WAITING_THREADS_MAX)
            .thread_name(THREAD_NAME)
            .enable_io()
            .enable_time()
            .build()?;
        let runtime = Arc::new(Self { runtime: Some(runtime) });
        *shared = Arc::downgrade(&runtime);
        Ok(runtime)
    }

    pub(super) fn handle(&self) -> &Handle {
        self.runtime.as_ref().expect("taken only when dropped").handle()
    }
}

impl Drop for NetRuntime {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // The caller's thread may run tasks of another runtime, and such a thread must not shut a
        // runtime down. Therefore a separate thread shuts the runtime down, and this thread waits
        // for it.
        let ended = std::thread::Builder::new()
            .name("bowline-net-end".to_owned())
            .spawn(move || runtime.shutdown_timeout(SHUTDOWN_WAIT_MAX));
        if let Ok(ended) = ended {
            let _ = ended.join();
        }
    }
}

//! The threads that serve sockets: few, and shared by all nodes of a process.
//!
//! Not the host's runtime: a host whose executor hangs must not lose its leases because of it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

/// The name of each of the threads.
pub(super) const THREAD_NAME: &str = "bowline-net";
/// Threads that may wait for the name service, one a name, or for files with certificates, at a time.
const WAITING_THREADS_MAX: usize = 32;
/// How long the end waits for a thread that hangs there.
const SHUTDOWN_WAIT_MAX: Duration = Duration::from_millis(500);

static SHARED: Mutex<Weak<NetRuntime>> = Mutex::new(Weak::new());

/// The runtime, alive as long as somebody holds it.
pub(super) struct NetRuntime {
    runtime: Option<Runtime>,
}

impl NetRuntime {
    /// The one of this process.
    pub(super) fn shared() -> io::Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = shared.upgrade() {
            return Ok(runtime);
        }
        // Where there are two cores, driver and log need one of them: a second thread would only
        // add wake-ups.
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
        // A runtime must not be waited for on a thread that runs tasks of another one, which the
        // caller's may be. So a thread of its own waits, and is waited for.
        let ended = std::thread::Builder::new()
            .name("bowline-net-end".to_owned())
            .spawn(move || runtime.shutdown_timeout(SHUTDOWN_WAIT_MAX));
        if let Ok(ended) = ended {
            let _ = ended.join();
        }
    }
}

//! Runs the parts of a node on separate threads. So if the async executor of the embedding program
//! hangs, the node keeps its leadership and its leases.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::warm;

use crate::node::assembly::Assembled;
use crate::node::driver::{Driver, Next};
use crate::node::requests::answer::StopReason;
use crate::node::requests::inbox::Input;
use crate::node::shared::Shared;
use crate::node::snapshots::backups::BackupWorker;
use crate::node::snapshots::snapshot_worker::SnapshotWorker;
use crate::node::threads::log_worker::LogWorker;

/// Maximum time that a shutdown waits for the threads.
const SHUTDOWN_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Running {
    shared: Arc<Shared>,
    threads: Arc<Threads>,
}

/// The result of a shutdown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShutdownReport {
    /// The threads that had not ended, because the disk blocks them.
    pub(crate) hanging: Vec<&'static str>,
}

const DRIVER: &str = "bowline-driver";
const LOG: &str = "bowline-log";
const SNAPSHOTS: &str = "bowline-snapshots";
const BACKUPS: &str = "bowline-backups";
const WARM: &str = "bowline-warm";

#[derive(Default)]
struct Threads {
    state: Mutex<ThreadState>,
    changed: Condvar,
}

#[derive(Default)]
struct ThreadState {
    alive: Vec<&'static str>,
    paused: bool,
}

impl Threads {
    fn lock(&self) -> std::sync::MutexGuard<'_, ThreadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self, name: &'static str) {
        self.lock().alive.retain(|alive| *alive != name);
        self.changed.notify_all();
    }

    /// Waits while the node is paused.
    fn pass(&self) {
        let state = self.lock();
        drop(
            self.changed
                .wait_while(state, |state| state.paused)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

impl Running {
    /// Starts the threads.
    ///
    /// # Errors
    /// Fails if the operating system could not start a thread. In this case the threads that were
    /// already started end, and the directory is released.
    pub(crate) fn start(node: Assembled) -> io::Result<Self> {
        let Assembled {
            mut driver,
            mut log_worker,
            mut snapshot_worker,
            backup_worker,
            warm_worker,
            shared,
        } = node;
        let threads = Arc::new(Threads::default());
        let running = Self { shared: Arc::clone(&shared), threads: Arc::clone(&threads) };
        // The driver comes first, because it ends the other threads.
        running.spawn(DRIVER, {
            let shared = Arc::clone(&shared);
            move || run_driver(&mut driver, &shared, &threads)
        })?;
        let others = || {
            let of_log = Arc::clone(&shared);
            running.spawn(LOG, move || run_log(&mut log_worker, &of_log))?;
            running.spawn(SNAPSHOTS, move || run_snapshots(&mut snapshot_worker, &shared))?;
            running.spawn(BACKUPS, move || run_backups(&backup_worker))?;
            match warm_worker {
                Some(mut worker) => running.spawn(WARM, move || run_warm(&mut worker)),
                None => Ok(()),
            }
        };
        if let Err(error) = others() {
            running.abort();
            return Err(error);
        }
        Ok(running)
    }

    /// Stops the node in an orderly way: it closes its session and transfers leadership. A paused
    /// node is resumed first, because it could not be resumed later.
    pub(crate) fn stop(&self) {
        drop(self.shared.inbox.push(Input::Stop));
        self.resume();
    }

    /// Stops the node as a crash would, without a transfer or a message to peers.
    pub(crate) fn abort(&self) {
        drop(self.shared.inbox.push(Input::Abort));
        self.resume();
    }

    /// Pauses the driver, as if the process were stopped.
    #[cfg_attr(not(any(test, feature = "testing")), allow(dead_code, reason = "for `testing`"))]
    pub(crate) fn pause(&self) {
        self.threads.lock().paused = true;
    }

    /// Resumes a paused driver.
    pub(crate) fn resume(&self) {
        self.threads.lock().paused = false;
        self.threads.changed.notify_all();
    }

    /// Waits at most one second for the threads to end.
    pub(crate) async fn ended(&self) -> ShutdownReport {
        let (sender, receiver) = oneshot::channel();
        let threads = Arc::clone(&self.threads);
        // The wait needs a timer, and must not depend on an async runtime. So a separate thread
        // waits.
        let waiter = thread::Builder::new().name("bowline-shutdown".into()).spawn(move || {
            let state = threads.lock();
            let (state, _) = threads
                .changed
                .wait_timeout_while(state, SHUTDOWN_MAX, |state| !state.alive.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            let report = ShutdownReport { hanging: state.alive.clone() };
            drop(state);
            drop(sender.send(report));
        });
        if waiter.is_err() {
            return ShutdownReport { hanging: self.threads.lock().alive.clone() };
        }
        receiver.await.expect("the waiter reports before it ends")
    }

    fn spawn(&self, name: &'static str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let threads = Arc::clone(&self.threads);
        self.threads.lock().alive.push(name);
        let spawned = thread::Builder::new().name(name.into()).spawn(move || {
            work();
            threads.ended(name);
        });
        if spawned.is_err() {
            self.threads.ended(name);
        }
        spawned.map(drop)
    }
}

fn run_driver(driver: &mut Driver, shared: &Shared, threads: &Threads) {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        while let Next::At(moment) = driver.turn() {
            shared.inbox.wait(moment.since(shared.now()));
            threads.pass();
        }
    }));
    if let Err(panic) = ended {
        // The driver may have stopped in the middle of a change, and must not run again.
        let reason = StopReason::failed(format!("the driver panicked: {}", panic_message(&*panic)));
        shared.stop(reason.clone());
        driver.abandon(&reason);
    }
}

fn run_log(worker: &mut LogWorker, shared: &Shared) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run())) {
        let why = format!("the log thread panicked: {}", panic_message(&*panic));
        drop(shared.inbox.push(Input::LogFailed(why)));
    }
}

fn run_snapshots(worker: &mut SnapshotWorker, shared: &Shared) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run())) {
        let why = format!("the snapshot thread panicked: {}", panic_message(&*panic));
        drop(shared.inbox.push(Input::LogFailed(why)));
    }
}

fn run_backups(worker: &BackupWorker) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run())) {
        // The node continues without backups.
        tracing::error!(
            why = panic_message(&*panic),
            "backup thread panicked, backups are disabled"
        );
        worker.fail_after_panic();
    }
}

fn run_warm(worker: &mut warm::Worker) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run())) {
        // The node continues without its warm copy.
        tracing::error!(
            why = panic_message(&*panic),
            "thread of the copy on disk (warm copy) panicked, continuing without the copy"
        );
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()))
        .unwrap_or_else(|| "no message".to_owned())
}

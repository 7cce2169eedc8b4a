//! Writes backups on a separate thread, because the destination is outside the data directory and
//! may hang, for instance on a network disk. No other part of the node waits for this thread. The
//! driver measures how long each step takes. If a step takes too long, the driver reports an error
//! to the callers and releases the state that the backup pins.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::env::Clock;
use crate::machine::{Image, ImageRelease};
use crate::model::{DiskId, Moment, SnapshotId};
use crate::snapshot::Folder;

use crate::node::requests::answer::{CallError, ReplyTo, StopReason};
use crate::node::requests::writing::{PART_BYTES, Writing, Written};

/// Maximum number of backups that wait for the running one. Further backups are rejected as busy,
/// because each waiting backup pins a state.
const BACKUPS_MAX: usize = 4;

/// Maximum pause between two steps.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Time after which a disk that has not responded counts as hung.
const STEP_MAX: Duration = Duration::from_secs(30);

/// A backup to be written, with its state.
struct Backup {
    image: Image,
    /// Path of the backup. An existing file is replaced once the new file is complete.
    path: PathBuf,
    reply: ReplyTo<SnapshotId>,
}

/// The driver's handle to the backup thread.
pub(crate) struct Backups(Arc<BackupQueue>);

/// The part that runs on the backup thread.
pub(crate) struct BackupWorker {
    desk: Arc<BackupQueue>,
    folder: Folder,
    /// The id of this member's disk.
    disk: DiskId,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct BackupQueue {
    state: Mutex<BackupsState>,
    changed: Condvar,
}

#[derive(Default)]
struct BackupsState {
    waiting: VecDeque<Backup>,
    running: Option<BackupsRunning>,
    /// Set once no more backups are written: the error for new requests.
    over: Option<CallError>,
}

/// The backup that is being written.
struct BackupsRunning {
    path: PathBuf,
    release: ImageRelease,
    /// Time at which the last step of the backup began.
    step_began: Moment,
    /// The caller. `None` if the caller was already answered, because the disk hung or the node has
    /// stopped.
    reply: Option<ReplyTo<SnapshotId>>,
}

impl BackupQueue {
    fn lock(&self) -> MutexGuard<'_, BackupsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops accepting backups and reports the reason to all callers that wait.
    fn end(&self, why: &CallError) {
        let mut state = self.lock();
        state.over = Some(why.clone());
        let replies = state.replies();
        drop(state);
        self.changed.notify_all();
        replies.into_iter().for_each(|reply| reply.send(Err(why.clone())));
    }
}

impl BackupsState {
    /// Takes the callers of the running backup and of the waiting backups.
    fn replies(&mut self) -> Vec<ReplyTo<SnapshotId>> {
        let running = self.running.as_mut().and_then(|running| running.reply.take());
        running.into_iter().chain(self.waiting.drain(..).map(|backup| backup.reply)).collect()
    }
}

impl Backups {
    /// Returns the handle and its worker.
    pub(crate) fn new(
        folder: Folder,
        disk: DiskId,
        clock: Arc<dyn Clock>,
    ) -> (Backups, BackupWorker) {
        let desk = Arc::<BackupQueue>::default();
        (Backups(Arc::clone(&desk)), BackupWorker { desk, folder, disk, clock })
    }

    /// Queues a backup to `path`. Calls `image` only if the queue has room and the disk does not hang.
    pub(crate) fn add(
        &self,
        path: PathBuf,
        reply: ReplyTo<SnapshotId>,
        image: impl FnOnce() -> Image,
    ) {
        let mut state = self.0.lock();
        let rejection = match (&state.over, &state.running) {
            (Some(why), _) => why.clone(),
            (None, Some(BackupsRunning { path, reply: None, .. })) => hangs(path),
            _ if state.waiting.len() >= BACKUPS_MAX => CallError::Busy,
            _ => {
                state.waiting.push_back(Backup { image: image(), path, reply });
                drop(state);
                return self.0.changed.notify_all();
            }
        };
        drop(state);
        reply.send(Err(rejection));
    }

    /// If the disk hangs, fails the running backup and the waiting backups.
    pub(crate) fn look(&self, now: Moment) {
        let mut state = self.0.lock();
        let Some(running) = &state.running else { return };
        if now.since(running.step_began) < STEP_MAX || running.reply.is_none() {
            return;
        }
        running.release.release_image();
        let why = hangs(&running.path);
        let replies = state.replies();
        drop(state);
        tracing::error!(%why, "backup failed");
        replies.into_iter().for_each(|reply| reply.send(Err(why.clone())));
    }

    /// Stops the worker after its current step. An incomplete file is not finished.
    pub(crate) fn close(&self, reason: &StopReason) {
        let reason = reason.clone();
        self.0.end(&CallError::Stopped { reason, maybe_applied: false });
    }
}

fn hangs(path: &std::path::Path) -> CallError {
    let (path, most) = (path.display(), STEP_MAX.as_secs());
    let why =
        format!("{path}: the disk has not responded for {most} s; check that it is available");
    CallError::Backup(why.to_string().into())
}

impl BackupWorker {
    /// Fails all backups after the worker has panicked.
    pub(crate) fn fail_after_panic(&self) {
        let why = "the backup thread panicked (see the log of this node); restart the node";
        self.desk.end(&CallError::Backup(why.to_string().into()));
    }

    /// Writes backups until the node stops.
    pub(crate) fn run(&self) {
        while let Some((writing, path)) = self.next() {
            let result = self.write(writing, &path);
            let running = self.desk.lock().running.take();
            if let (Some(result), Some(reply)) = (result, running.and_then(|running| running.reply))
            {
                reply.send(result);
            }
        }
    }

    /// Waits for the next backup. Returns `None` when the node stops.
    fn next(&self) -> Option<(Writing, PathBuf)> {
        let idle = |state: &mut BackupsState| state.waiting.is_empty() && state.over.is_none();
        let state = self.desk.changed.wait_while(self.desk.lock(), idle);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let Backup { image, path, reply } = state.waiting.pop_front()?;
        let (release, step_began, reply) = (image.release(), self.clock.now(), Some(reply));
        state.running = Some(BackupsRunning { path: path.clone(), release, step_began, reply });
        Some((Writing::Waiting(image), path))
    }

    /// Writes one backup. Returns `None` if the caller was already answered, because the disk hung or the node has
    /// stopped. An incomplete file is removed.
    fn write(
        &self,
        mut writing: Writing,
        path: &std::path::Path,
    ) -> Option<Result<SnapshotId, CallError>> {
        let mut pause = Duration::ZERO;
        loop {
            let began = self.pause(pause)?;
            match writing.step(PART_BYTES, |head| self.folder.begin_at(path, self.disk, head)) {
                Ok(Written::On(next)) => writing = next,
                Ok(Written::Done(id)) => return Some(Ok(id)),
                Err(why) => return Some(Err(CallError::Backup(why.to_string().into()))),
            }
            // Pause for as long as the step took, to leave half of the disk time to other work.
            pause = self.clock.now().since(began).min(PAUSE_MAX);
        }
    }

    /// Waits for `time` and returns the time at which the next step begins. Returns `None` if the caller was already
    /// answered.
    fn pause(&self, time: Duration) -> Option<Moment> {
        let open = |state: &mut BackupsState| state.over.is_none();
        let waited = self.desk.changed.wait_timeout_while(self.desk.lock(), time, open);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let (running, now) = (state.running.as_mut()?, self.clock.now());
        running.reply.as_ref()?;
        running.step_began = now;
        Some(now)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use tokio::sync::oneshot;

    use super::*;
    use crate::env::Disk;
    use crate::machine::{Machine, MachineOptions};
    use crate::model::ClusterId;
    use crate::node::CallResult;
    use crate::sim::SimDisk;

    /// A clock that never advances.
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Moment {
            at(0)
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    type Answer = oneshot::Receiver<CallResult<SnapshotId>>;

    fn ask(backups: &Backups, path: &str) -> Answer {
        let (sender, answer) = oneshot::channel();
        let image = || Machine::new(MachineOptions::default()).image();
        backups.add(path.into(), ReplyTo::Waiting(sender), image);
        answer
    }

    /// Polls until `look` returns a value, for at most 60 seconds.
    fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn hanging_backup_is_abandoned_with_those_queued_after_it() {
        let disk = Arc::new(SimDisk::new(7));
        for dir in ["/data", "/away"] {
            disk.create_dir(Path::new(dir)).unwrap();
        }
        // Every access to one directory blocks.
        let is_back = Arc::new((Mutex::new(false), Condvar::new()));
        let back = Arc::clone(&is_back);
        let away: Arc<dyn Disk> = Arc::new(disk.hooked(move |path, _| {
            if path.starts_with("/away") {
                let (is_back, comes) = &*back;
                drop(comes.wait_while(is_back.lock().unwrap(), |is_back| !*is_back).unwrap());
            }
        }));
        let folder = Folder::open(&away, Path::new("/data"), ClusterId(7)).unwrap();
        let (backups, worker) = Backups::new(folder, DiskId(9), Arc::new(Still));
        let desk = Arc::clone(&backups.0);
        let runs = std::thread::spawn(move || worker.run());
        let mut hanging = ask(&backups, "/away/one");
        until("nothing is begun", || desk.lock().running.as_ref().map(drop));
        let mut behind = ask(&backups, "/data/two");
        backups.look(at(29));
        assert!(hanging.try_recv().is_err() && behind.try_recv().is_err());
        backups.look(at(30));
        let late = ask(&backups, "/data/three");
        for mut answer in [hanging, behind, late] {
            let why = format!("{:?}", answer.try_recv().unwrap().unwrap_err());
            assert!(why.contains("/away/one: the disk has not responded for 30 s"), "{why}");
        }
        // The directory responds again: the failed backups leave no files behind, and the next
        // backup is written.
        *is_back.0.lock().unwrap() = true;
        is_back.1.notify_all();
        until("it goes on forever", || desk.lock().running.is_none().then_some(()));
        assert_eq!(away.list(Path::new("/away")).unwrap(), [""; 0]);
        let mut next = ask(&backups, "/data/four");
        until("it is not written", || next.try_recv().ok()).unwrap();
        backups.close(&StopReason::Shutdown);
        runs.join().unwrap();
        let late = ask(&backups, "/data/five").try_recv().unwrap();
        assert!(matches!(late, Err(CallError::Stopped { .. })), "{late:?}");
    }

    #[test]
    fn failed_backup_worker_fails_all_waiting_backups() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(7));
        disk.create_dir(Path::new("/data")).unwrap();
        let folder = Folder::open(&disk, Path::new("/data"), ClusterId(7)).unwrap();
        let (backups, worker) = Backups::new(folder, DiskId(9), Arc::new(Still));
        let (one, two) = (ask(&backups, "/data/one"), ask(&backups, "/data/two"));
        // The worker panics in the middle of the first backup.
        worker.next().unwrap();
        worker.fail_after_panic();
        for mut answer in [one, two, ask(&backups, "/data/three")] {
            let why = format!("{:?}", answer.try_recv().unwrap().unwrap_err());
            assert!(why.contains("panicked"), "{why}");
        }
        backups.look(at(60));
    }
}

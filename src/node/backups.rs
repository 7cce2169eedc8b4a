//! The backups' own thread: writes a state to a file outside of the data directory. Where that is, a disk may hang for
//! ever, one of the network's for instance. Nothing waits for it: the driver looks at how long a step takes, lets go of
//! the states that are kept for what hangs, and tells who asked.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::env::Clock;
use crate::machine::{Image, ImageRelease};
use crate::model::{DiskId, Moment, SnapshotId};
use crate::snapshot::Folder;

use super::answer::{CallError, ReplyTo, StopReason};
use super::writing::{Writing, Written};

/// How many may wait for the one that is being written; more are refused as busy. Each holds on to a state of its own.
const BACKUPS_MAX: usize = 4;

/// The longest pause between two steps, after one that took longer.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A disk that has not answered for so long hangs.
const STEP_MAX: Duration = Duration::from_secs(30);

/// A state to write down.
pub(crate) struct Backup {
    /// What.
    pub(crate) image: Image,
    /// Where; what is there is replaced once the new one is whole.
    pub(crate) path: PathBuf,
    /// Who wants to know what was written.
    pub(crate) reply: ReplyTo<SnapshotId>,
}

/// The driver's side.
pub(crate) struct Backups(Arc<Desk>);

/// What the thread does.
pub(crate) struct BackupWorker {
    desk: Arc<Desk>,
    folder: Folder,
    /// This member's, by its id.
    disk: DiskId,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Backup>,
    running: Option<Running>,
    is_closed: bool,
}

/// The one that is being written.
struct Running {
    path: PathBuf,
    release: ImageRelease,
    /// When its last step began.
    step_began: Moment,
    /// Taken when it is answered before its end: it hangs, or the node has stopped.
    reply: Option<ReplyTo<SnapshotId>>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backups {
    /// The driver's side, and the worker.
    pub(crate) fn new(
        folder: Folder,
        disk: DiskId,
        clock: Arc<dyn Clock>,
    ) -> (Backups, BackupWorker) {
        let desk = Arc::<Desk>::default();
        (Backups(Arc::clone(&desk)), BackupWorker { desk, folder, disk, clock })
    }

    /// Has a backup written, if there are not too many already and none hangs.
    pub(crate) fn add(&self, backup: Backup) {
        let mut state = self.0.lock();
        if let Some(Running { path, reply: None, .. }) = &state.running {
            let why = hangs(path);
            drop(state);
            return backup.reply.send(Err(why));
        }
        if state.waiting.len() >= BACKUPS_MAX {
            drop(state);
            return backup.reply.send(Err(CallError::Busy));
        }
        state.waiting.push_back(backup);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Lets go of what hangs.
    pub(crate) fn look(&self, now: Moment) {
        let mut state = self.0.lock();
        let Some(running) = &mut state.running else { return };
        if now.since(running.step_began) < STEP_MAX {
            return;
        }
        let Some(reply) = running.reply.take() else { return };
        running.release.let_go();
        let why = hangs(&running.path);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        tracing::error!(%why, "a backup is given up");
        for reply in std::iter::once(reply).chain(waiting.into_iter().map(|backup| backup.reply)) {
            reply.send(Err(why.clone()));
        }
    }

    /// The worker ends after the step that it is at. What is not whole by then is left as it is.
    pub(crate) fn close(&self, reason: &StopReason) {
        let mut state = self.0.lock();
        state.is_closed = true;
        let running = state.running.as_mut().and_then(|running| running.reply.take());
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.0.changed.notify_all();
        for reply in running.into_iter().chain(waiting.into_iter().map(|backup| backup.reply)) {
            let reason = reason.clone();
            reply.send(Err(CallError::Stopped { reason, maybe_applied: false }));
        }
    }
}

fn hangs(path: &std::path::Path) -> CallError {
    let (path, most) = (path.display(), STEP_MAX.as_secs());
    let why = format!("{path}: the disk has not answered for {most} s; look whether it is there");
    CallError::Backup(why.into())
}

impl BackupWorker {
    /// Works until it is closed.
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

    /// The next one; `None` when it is closed.
    fn next(&self) -> Option<(Writing, PathBuf)> {
        let idle = |state: &mut State| state.waiting.is_empty() && !state.is_closed;
        let state = self.desk.changed.wait_while(self.desk.lock(), idle);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let Backup { image, path, reply } = state.waiting.pop_front()?;
        let (release, step_began, reply) = (image.release(), self.clock.now(), Some(reply));
        state.running = Some(Running { path: path.clone(), release, step_began, reply });
        Some((Writing::Waiting(image), path))
    }

    /// `None` if nobody waits for it any more: it hung, or the node has stopped. What is not whole goes.
    fn write(
        &self,
        mut writing: Writing,
        path: &std::path::Path,
    ) -> Option<Result<SnapshotId, CallError>> {
        let mut pause = Duration::ZERO;
        loop {
            let began = self.pause(pause)?;
            match writing.step(|head| self.folder.begin_at(path, self.disk, head)) {
                Ok(Written::On(next)) => writing = next,
                Ok(Written::Done(id)) => return Some(Ok(id)),
                Err(why) => return Some(Err(CallError::Backup(why.into()))),
            }
            // As long as it has worked: there is no hurry.
            pause = self.clock.now().since(began).min(PAUSE_MAX);
        }
    }

    /// Waits that long before a step, and says when that begins; `None` if nobody waits for it any more.
    fn pause(&self, time: Duration) -> Option<Moment> {
        let open = |state: &mut State| !state.is_closed;
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
    use std::io;
    use std::path::Path;
    use std::time::Instant;

    use tokio::sync::oneshot;

    use super::*;
    use crate::env::{Disk, DiskLock, File, OpenMode};
    use crate::machine::{Machine, MachineOptions};
    use crate::model::ClusterId;
    use crate::node::CallResult;
    use crate::sim::SimDisk;

    /// A clock that stands still.
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Moment {
            at(0)
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    /// A disk of which one directory is away: whoever wants something of it waits.
    struct Away {
        disk: Arc<SimDisk>,
        is_back: (Mutex<bool>, Condvar),
    }

    impl Disk for Away {
        fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
            if path.starts_with("/away") {
                let (is_back, comes) = &self.is_back;
                drop(comes.wait_while(is_back.lock().unwrap(), |is_back| !*is_back).unwrap());
            }
            self.disk.open(path, mode)
        }
        fn create_dir(&self, dir: &Path) -> io::Result<()> {
            self.disk.create_dir(dir)
        }
        fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
            self.disk.list(dir)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.disk.rename(from, to)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            self.disk.remove(path)
        }
        fn remove_dir(&self, dir: &Path) -> io::Result<()> {
            self.disk.remove_dir(dir)
        }
        fn sync_dir(&self, dir: &Path) -> io::Result<()> {
            self.disk.sync_dir(dir)
        }
        fn lock(&self, path: &Path) -> io::Result<DiskLock> {
            self.disk.lock(path)
        }
    }

    type Answer = oneshot::Receiver<CallResult<SnapshotId>>;

    fn ask(backups: &Backups, path: &str) -> Answer {
        let (sender, answer) = oneshot::channel();
        let image = Machine::new(MachineOptions::default()).image();
        backups.add(Backup { image, path: path.into(), reply: ReplyTo::Waiting(sender) });
        answer
    }

    /// Looks again and again, and not for ever.
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
    fn what_hangs_is_given_up_and_so_is_what_waits_behind_it() {
        let disk = Arc::new(SimDisk::new(7));
        for dir in ["/data", "/away"] {
            disk.create_dir(Path::new(dir)).unwrap();
        }
        let away = Arc::new(Away { disk, is_back: Default::default() });
        let as_disk: Arc<dyn Disk> = away.clone();
        let folder = Folder::open(&as_disk, Path::new("/data"), ClusterId(7)).unwrap();
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
            assert!(why.contains("/away/one: the disk has not answered for 30 s"), "{why}");
        }
        // It is back: nothing is left of what was given up, and the next is written.
        *away.is_back.0.lock().unwrap() = true;
        away.is_back.1.notify_all();
        until("it goes on for ever", || desk.lock().running.is_none().then_some(()));
        assert_eq!(away.list(Path::new("/away")).unwrap(), [""; 0]);
        let mut next = ask(&backups, "/data/four");
        until("it is not written", || next.try_recv().ok()).unwrap();
        let reason = StopReason::Shutdown;
        backups.close(&reason);
        runs.join().unwrap();
    }
}

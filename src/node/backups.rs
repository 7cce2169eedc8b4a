//! The backups' own thread: writes a state to a file outside of the data directory. Where that is, a disk may hang for
//! ever, one of the network's for instance: nothing but other backups waits for it.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::env::Clock;
use crate::machine::Image;
use crate::model::{DiskId, SnapshotId};
use crate::snapshot::Folder;

use super::answer::{CallError, ReplyTo};
use super::writing::{Writing, Written};

/// How many may wait for the one that is being written; more are refused as busy. Each holds on to a state of its own.
const BACKUPS_MAX: usize = 4;

/// The longest pause between two steps, after one that took longer.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A state to write down.
pub(crate) struct Backup {
    /// What.
    pub(crate) image: Image,
    /// Where; what is there is replaced once the new one is whole.
    pub(crate) path: PathBuf,
    /// Who wants to know what was written.
    pub(crate) reply: ReplyTo<SnapshotId>,
}

/// The way to the thread.
pub(crate) struct Backups {
    sender: SyncSender<Backup>,
    end: Arc<End>,
}

/// What the thread does.
pub(crate) struct BackupWorker {
    receiver: Receiver<Backup>,
    end: Arc<End>,
    folder: Folder,
    /// This member's, by its id.
    disk: DiskId,
    clock: Arc<dyn Clock>,
}

impl Backups {
    /// The way to a worker, and the worker.
    pub(crate) fn new(
        folder: Folder,
        disk: DiskId,
        clock: Arc<dyn Clock>,
    ) -> (Backups, BackupWorker) {
        let (sender, receiver) = sync_channel(BACKUPS_MAX);
        let end = Arc::<End>::default();
        let backups = Backups { sender, end: Arc::clone(&end) };
        (backups, BackupWorker { receiver, end, folder, disk, clock })
    }

    /// Has a backup written, if there are not too many already.
    pub(crate) fn add(&self, backup: Backup) {
        match self.sender.try_send(backup) {
            Ok(()) => {}
            Err(TrySendError::Full(backup)) => backup.reply.send(Err(CallError::Busy)),
            Err(TrySendError::Disconnected(backup)) => {
                let why =
                    "the thread that writes backups has fallen; the log of this node says why";
                backup.reply.send(Err(CallError::Backup(why.into())));
            }
        }
    }

    /// The worker ends after the step that it is at. What is not whole by then is left as it is.
    pub(crate) fn close(&self) {
        self.end.come();
    }
}

impl Drop for Backups {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether the worker is to end.
#[derive(Default)]
struct End {
    has_come: Mutex<bool>,
    comes: Condvar,
}

impl End {
    fn come(&self) {
        *self.has_come.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.comes.notify_all();
    }

    /// Waits for it, no longer than that. Whether it has come.
    fn comes_within(&self, time: Duration) -> bool {
        let has_come = self.has_come.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.comes.wait_timeout_while(has_come, time, |has_come| !*has_come);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl BackupWorker {
    /// Works until the way to it is closed and gone.
    pub(crate) fn run(&self) {
        while let Ok(Backup { image, path, reply }) = self.receiver.recv() {
            let (mut writing, mut pause) = (Writing::Waiting(image), Duration::ZERO);
            let result = loop {
                if self.end.comes_within(pause) {
                    return;
                }
                let began = self.clock.now();
                match writing.step(|head| self.folder.begin_at(&path, self.disk, head)) {
                    Ok(Written::On(next)) => writing = next,
                    Ok(Written::Done(id)) => break Ok(id),
                    Err(why) => break Err(CallError::Backup(why.into())),
                }
                // As long as it has worked: there is no hurry.
                pause = self.clock.now().since(began).min(PAUSE_MAX);
            };
            reply.send(result);
        }
    }
}

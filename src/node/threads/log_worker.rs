//! The thread that owns the log. The thread takes all groups that were queued during the last sync,
//! writes and syncs them together, and reports the result.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::env::Clock;
use crate::metrics::Meters;
use crate::model::LogIndex;
use crate::wal;

use crate::node::requests::inbox::{Inbox, Input};
use crate::node::threads::parker::{Parker, Sleeper};

/// Idle time after which the log writes a watermark, a record that proves that the last records
/// were synced.
const IDLE_AFTER: Duration = Duration::from_millis(20);

/// Time between two attempts to write while the disk is full.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The queue of groups for the log.
pub(crate) struct LogQueue {
    state: Mutex<LogWorkerState>,
    parker: Parker,
    on_push: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct LogWorkerState {
    groups: Vec<wal::Group>,
    /// The index up to which the log can be truncated at its front.
    cut: Option<LogIndex>,
    closed: bool,
    waits: bool,
}

impl Sleeper for LogWorkerState {
    fn is_idle(&self) -> bool {
        self.groups.is_empty() && self.cut.is_none() && !self.closed
    }

    fn waits(&mut self) -> &mut bool {
        &mut self.waits
    }
}

impl LogWorkerState {
    fn take(&mut self) -> Option<(Vec<wal::Group>, Option<LogIndex>)> {
        if self.closed && self.groups.is_empty() {
            return None;
        }
        Some((std::mem::take(&mut self.groups), self.cut.take()))
    }
}

impl LogQueue {
    /// Returns an empty queue. `on_push` is called after each group, for a harness that runs the worker without
    /// blocking.
    pub(crate) fn new(on_push: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { state: Mutex::default(), parker: Parker::default(), on_push }
    }

    pub(crate) fn push(&self, group: wal::Group) {
        self.change(|state| state.groups.push(group));
    }

    /// Returns how often the log thread was woken.
    pub(crate) fn wakeups(&self) -> u64 {
        self.parker.wakeups()
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).groups.len()
    }

    /// Allows the log to discard the entries up to `up_to`, which a durable snapshot covers.
    pub(crate) fn cut(&self, up_to: LogIndex) {
        self.change(|state| state.cut = state.cut.max(Some(up_to)));
    }

    /// Closes the queue. The worker writes what is queued and then ends.
    pub(crate) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Changes the state and wakes the worker.
    fn change(&self, change: impl FnOnce(&mut LogWorkerState)) {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut state);
            self.parker.unpark(&mut *state);
        }
        (self.on_push)();
    }

    /// Waits for groups or for a cut, at most for `at_most`, and takes them. Returns `None` when the queue is closed
    /// and empty.
    fn take(&self, at_most: Option<Duration>) -> Option<(Vec<wal::Group>, Option<LogIndex>)> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.parker.wait(state, at_most).take()
    }

    /// Returns whether groups or a cut are queued.
    #[cfg(any(test, feature = "sim"))]
    fn is_filled(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        !state.groups.is_empty() || state.cut.is_some()
    }

    /// Like [`LogQueue::take`], without waiting.
    #[cfg(any(test, feature = "sim"))]
    fn take_now(&self) -> Option<(Vec<wal::Group>, Option<LogIndex>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The part that runs on the log thread.
pub(crate) struct LogWorker {
    writer: wal::LogWriter,
    queue: Arc<LogQueue>,
    inbox: Arc<Inbox>,
    /// Groups that were taken from the queue and do not fit on the disk.
    waiting: Vec<wal::Group>,
    /// Jobs that [`LogWorker::begin`] took for the next turn.
    #[cfg(any(test, feature = "sim"))]
    begun: (Vec<wal::Group>, Option<LogIndex>),
    /// The last state of the disk space that was reported to the driver.
    space: wal::Space,
    clock: Arc<dyn Clock>,
    meters: Arc<Meters>,
}

/// The worker's next step after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogTurn {
    /// The worker wrote something.
    Wrote,
    /// There was nothing to write.
    Idle,
    /// The disk has no space for the groups or for the next segment. Try again later.
    Full,
    /// The queue is closed or the log has failed: no more turns.
    Ended,
}

impl LogWorker {
    /// Returns a worker that takes from `queue` and reports to `inbox`.
    pub(crate) fn new(
        writer: wal::LogWriter,
        queue: Arc<LogQueue>,
        inbox: Arc<Inbox>,
        clock: Arc<dyn Clock>,
        meters: Arc<Meters>,
    ) -> Self {
        let (waiting, space) = (Vec::new(), wal::Space::Plenty);
        Self {
            writer,
            queue,
            inbox,
            waiting,
            #[cfg(any(test, feature = "sim"))]
            begun: Default::default(),
            space,
            clock,
            meters,
        }
    }

    /// Takes the queued jobs for the next turn. Jobs that are queued later wait for the following
    /// turn, like jobs that are queued while the thread of a real log writes.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn begin(&mut self) {
        if let Some((groups, cut)) = self.queue.take_now() {
            self.begun.0.extend(groups);
            self.begun.1 = self.begun.1.max(cut);
        }
    }

    /// Returns whether jobs are queued for another turn.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn is_wanted(&self) -> bool {
        self.queue.is_filled()
    }

    /// Writes the jobs that [`LogWorker::begin`] took or, without these, the queued jobs. Does not
    /// wait. For a harness that schedules the parts of a node itself.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn turn(&mut self) -> LogTurn {
        let (groups, cut) = std::mem::take(&mut self.begun);
        if !groups.is_empty() || cut.is_some() {
            return self.write(groups, cut);
        }
        match self.queue.take_now() {
            None => LogTurn::Ended,
            Some((groups, cut)) => self.write(groups, cut),
        }
    }

    /// Runs until the queue is closed or the log fails.
    pub(crate) fn run(&mut self) {
        let mut patience = None;
        while let Some((groups, cut)) = self.queue.take(patience) {
            patience = match self.write(groups, cut) {
                LogTurn::Wrote => Some(IDLE_AFTER),
                LogTurn::Idle => None,
                LogTurn::Full => Some(RETRY_DELAY),
                LogTurn::Ended => return,
            };
        }
    }

    fn measure(&self, groups: &[wal::Group], took: Duration) {
        let entries = || groups.iter().flat_map(|group| &group.entries);
        self.meters.log_sync_seconds.add(took);
        self.meters.log_sync_groups.add(groups.len());
        self.meters.log_entries_total.add(entries().count() as u64);
        self.meters.log_bytes_total.add(entries().map(|entry| entry.data.len() as u64).sum());
    }

    fn write(&mut self, groups: Vec<wal::Group>, cut: Option<LogIndex>) -> LogTurn {
        self.waiting.extend(groups);
        let turn = self.write_waiting();
        match cut {
            // Write the groups before truncating, because callers wait for the groups.
            Some(up_to) if turn != LogTurn::Ended => self.cut(up_to),
            _ => turn,
        }
    }

    fn cut(&mut self, up_to: LogIndex) -> LogTurn {
        match self.writer.cut(up_to) {
            Ok(()) => {
                drop(self.inbox.push(Input::LogCut));
                LogTurn::Wrote
            }
            Err(error) => {
                drop(self.inbox.push(Input::LogFailed(error.to_string())));
                LogTurn::Ended
            }
        }
    }

    fn write_waiting(&mut self) -> LogTurn {
        let result = if self.waiting.is_empty() {
            self.writer.idle().map(|more| (more, None))
        } else {
            let began = self.clock.now();
            let committed = self.writer.commit(&self.waiting);
            let took = self.clock.now().since(began);
            let waiting = committed.as_ref().map_or(0, |committed| committed.waiting);
            self.measure(&self.waiting[..self.waiting.len() - waiting], took);
            committed.map(|committed| {
                self.waiting.drain(..self.waiting.len() - committed.waiting);
                (self.waiting.is_empty(), committed.proof)
            })
        };
        let (wrote, proof) = match result {
            Ok(result) => result,
            Err(error) => {
                drop(self.inbox.push(Input::LogFailed(error.to_string())));
                return LogTurn::Ended;
            }
        };
        if let Some(proof) = proof {
            drop(self.inbox.push(Input::Durable(proof, self.clock.now())));
        }
        let space = self.writer.space();
        if space != self.space {
            self.space = space;
            drop(self.inbox.push(Input::Space(space)));
        }
        match space {
            _ if wrote => LogTurn::Wrote,
            wal::Space::Plenty => LogTurn::Idle,
            wal::Space::Low => LogTurn::Full,
        }
    }
}

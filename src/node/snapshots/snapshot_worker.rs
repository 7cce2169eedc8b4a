//! The thread for snapshots: writes snapshots, reads them for peers, receives them, and loads
//! received snapshots into machines. All work is done in small steps, with possible pauses between
//! them.
//!
//! ```text
//!   Take     image ──▶ write ... write ──▶ check ... check ──▶ Taken
//!   Receive  ──▶ Received ──▶ Append ──▶ Received ──▶ ... ──▶ load ... load ──▶ Loaded
//!   Read     ──▶ (from its beginning: verify ... verify) ──▶ Part
//! ```
//!
//! A file may be damaged on disk after it was written. When a peer asks for the first part of a
//! snapshot, the worker first verifies the whole file again, unless the file was verified recently.
//! So damaged files are not sent. This node also learns of the damage while it still has the state
//! in memory.
//!
//! A received file gets its final name only after a machine was loaded from it. If the process dies
//! while loading, usually for lack of memory, one unfinished file remains, and the next attempt
//! continues with this file.
//!
//! Received snapshots have priority. Verifying for peers and writing this node's own snapshots alternate, and use at
//! most half of a core. Parts that arrive twice or out of order are ignored, and the receiver asks for them again.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::env::Env;
use crate::machine::{Image, Machine, MachineOptions, Restore};
use crate::model::{Members, Moment, NodeId, SnapshotId};
use crate::snapshot::{Appended, Check, Folder, Partial, SnapshotError, SnapshotReader};

use crate::node::requests::inbox::{Inbox, Input};
use crate::node::requests::writing::{Writing, Written};
use crate::node::snapshots::news::{News, ReceiveError};
use crate::node::threads::parker::{Parker, Sleeper};

/// Maximum number of parts that peers may wait for, and of bytes of parts that may wait to be
/// written. Further requests and parts are dropped and repeated later. The limits are several times
/// the amount that peers normally have in flight.
const READS_MAX: usize = 128;
const APPEND_BYTES_MAX: usize = 16 << 20;

/// Time for which a verified snapshot counts as sound, so that it is not verified again for each
/// peer. The receiver verifies the snapshot in any case.
const PROOF_VALIDITY: Duration = Duration::from_secs(10);

/// A job of the worker.
pub(crate) enum Job {
    /// Write this state to a snapshot.
    Take(Box<Image>),
    /// Read a part for a peer.
    Read { to: NodeId, id: SnapshotId, offset: u64 },
    /// Start to receive a snapshot, or continue with the partial file on the disk.
    Receive(SnapshotId),
    /// A part of a snapshot has arrived.
    Append { id: SnapshotId, offset: u64, data: Bytes },
    /// Discard the partial file of a snapshot.
    Discard(SnapshotId),
    /// This snapshot is sound and durable: remove older ones.
    Keep {
        newest: SnapshotId,
        /// Older snapshots that peers are still fetching.
        served: Vec<SnapshotId>,
    },
    /// Drop a state on this thread, because that may take long.
    Forget(Box<Machine>),
}

/// The queue of jobs for the worker.
pub(crate) struct SnapshotQueue {
    state: Mutex<SnapshotWorkerState>,
    parker: Parker,
    on_push: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct SnapshotWorkerState {
    jobs: VecDeque<Job>,
    /// Number of queued reads for peers.
    reads: usize,
    /// Bytes of queued parts.
    append_bytes: usize,
    closed: bool,
    waits: bool,
}

impl Sleeper for SnapshotWorkerState {
    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && !self.closed
    }

    fn waits(&mut self) -> &mut bool {
        &mut self.waits
    }
}

impl SnapshotWorkerState {
    /// Counts a job, and returns whether it exceeds the limits. Only jobs that peers cause are
    /// limited here. The driver limits the other jobs.
    fn is_full_for(&mut self, job: &Job) -> bool {
        match job {
            Job::Read { .. } => {
                self.reads += 1;
                self.reads > READS_MAX
            }
            Job::Append { data, .. } => {
                self.append_bytes += data.len();
                self.append_bytes > APPEND_BYTES_MAX
            }
            _ => false,
        }
    }
}

impl SnapshotQueue {
    /// Returns an empty queue. `on_push` is called after each job, for a harness that runs the worker without
    /// blocking.
    pub(crate) fn new(on_push: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { state: Mutex::default(), parker: Parker::default(), on_push }
    }

    /// Queues a job, unless too many of its kind are queued. The driver takes and fetches one snapshot at a time, but
    /// peers may request and send parts at any rate.
    pub(crate) fn push(&self, job: Job) {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.is_full_for(&job) {
                return;
            }
            state.jobs.push_back(job);
            self.parker.unpark(&mut *state);
        }
        (self.on_push)();
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).jobs.len()
    }

    /// Closes the queue and ends the worker. Queued jobs are not done.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.closed = true;
            self.parker.unpark(&mut *state);
        }
        (self.on_push)();
    }

    /// Waits for jobs, at most for `at_most`, and takes them. Returns `None` when the queue is closed.
    fn take(&self, at_most: Option<Duration>) -> Option<VecDeque<Job>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.parker.wait(state, at_most);
        (state.reads, state.append_bytes) = (0, 0);
        (!state.closed).then(|| std::mem::take(&mut state.jobs))
    }
}

/// The part that runs on the snapshot thread.
pub(crate) struct SnapshotWorker {
    env: Env,
    folder: Folder,
    options: MachineOptions,
    part_bytes: usize,
    queue: Arc<SnapshotQueue>,
    inbox: Arc<Inbox>,
    writing: Option<Own>,
    receiving: Option<Receiving>,
    proving: Option<Proving>,
    /// The last snapshot that was verified, and the time.
    proven: Option<(SnapshotId, Moment)>,
    /// Whether the next step writes this node's own snapshot.
    writes_next: bool,
}

/// A snapshot of this node's state that is being written.
struct Own {
    writing: Writing,
    members: Members,
    began: Moment,
}

/// A snapshot that is being received and loaded into a machine.
struct Receiving {
    id: SnapshotId,
    stage: ReceivingStage,
}

#[allow(clippy::large_enum_variant, reason = "there is one, which moves once a part")]
enum ReceivingStage {
    Parts(Partial),
    Loading { check: Check, restore: Restore },
}

/// A snapshot that is being verified before it is sent.
struct Proving {
    id: SnapshotId,
    reader: SnapshotReader,
    /// The parts that peers wait for.
    asks: BTreeSet<(NodeId, u64)>,
}

/// The worker's next step after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SnapshotTurn {
    Worked,
    Idle,
}

impl SnapshotWorker {
    /// Returns a worker for the snapshots of `folder`. The worker writes and sends snapshots in
    /// parts of `part_bytes`.
    pub(crate) fn new(
        env: Env,
        folder: Folder,
        options: MachineOptions,
        part_bytes: usize,
        queue: Arc<SnapshotQueue>,
        inbox: Arc<Inbox>,
    ) -> Self {
        Self {
            env,
            folder,
            options,
            part_bytes,
            queue,
            inbox,
            writing: None,
            receiving: None,
            proving: None,
            proven: None,
            writes_next: false,
        }
    }

    /// Runs until the queue is closed.
    pub(crate) fn run(&mut self) {
        let mut patience = None;
        while let Some(jobs) = self.queue.take(patience) {
            let began = self.env.clock.now();
            patience = match self.work(jobs) {
                // Pause for as long as the step took.
                SnapshotTurn::Worked if self.receiving.is_none() => {
                    Some(self.env.clock.now().since(began))
                }
                SnapshotTurn::Worked => Some(Duration::ZERO),
                SnapshotTurn::Idle => None,
            };
        }
    }

    /// Does one step without waiting, for a harness that schedules the parts of a node itself.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn turn(&mut self) -> SnapshotTurn {
        match self.queue.take(Some(Duration::ZERO)) {
            None => SnapshotTurn::Idle,
            Some(jobs) => self.work(jobs),
        }
    }

    fn work(&mut self, jobs: VecDeque<Job>) -> SnapshotTurn {
        for job in jobs {
            self.take(job);
        }
        self.writes_next = !self.writes_next;
        let worked = self.receive_on()
            || match self.writes_next {
                true => self.write_on() || self.prove_on(),
                false => self.prove_on() || self.write_on(),
            };
        if worked { SnapshotTurn::Worked } else { SnapshotTurn::Idle }
    }

    fn report(&self, news: News) {
        drop(self.inbox.push(Input::Snapshot(news)));
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Take(image) => {
                // The driver takes one snapshot at a time.
                let (members, began) = (image.head().members.clone(), self.env.clock.now());
                self.writing = Some(Own { writing: Writing::Waiting(*image), members, began });
            }
            Job::Read { to, id, offset } => self.read(to, id, offset),
            Job::Receive(id) => self.receive(id),
            Job::Append { id, offset, data } => self.append(id, offset, &data),
            Job::Discard(id) => self.discard(id),
            Job::Keep { newest, served } => {
                if let Err(error) = self.folder.remove_older(newest, &served) {
                    tracing::warn!(%error, "cannot remove an older snapshot");
                }
            }
            Job::Forget(machine) => drop(machine),
        }
    }

    // ---- writing ----------------------------------------------------------------------------------

    /// Does a step of writing. Returns whether there was anything to do.
    fn write_on(&mut self) -> bool {
        let Some(Own { writing, members, began }) = self.writing.take() else { return false };
        match writing.step(self.part_bytes, |head| self.folder.begin(head)) {
            Ok(Written::On(writing)) => self.writing = Some(Own { writing, members, began }),
            Ok(Written::Done(id)) => {
                let took = self.env.clock.now().since(began);
                self.report(News::Taken { id, members, took });
            }
            Err(why) => self.report(News::NotTaken { why }),
        }
        true
    }

    // ---- sending ----------------------------------------------------------------------------------

    /// Sends a part to a peer. If the peer requests the first part of a snapshot that must be
    /// verified, the part is sent after the verification.
    fn read(&mut self, to: NodeId, id: SnapshotId, offset: u64) {
        let now = self.env.clock.now();
        let is_proven =
            self.proven.is_some_and(|(same, at)| same == id && now.since(at) < PROOF_VALIDITY);
        match &mut self.proving {
            Some(Proving { id: same, asks, .. }) if *same == id => {
                let waits = asks.range((to, 0)..=(to, u64::MAX)).next().is_some();
                if offset == 0 || waits {
                    // If too many requests wait, drop this request, which the peer repeats.
                    if asks.len() < READS_MAX {
                        asks.insert((to, offset));
                    }
                    return;
                }
            }
            _ if is_proven => {}
            // Another snapshot is being verified, so drop the request, which the peer repeats.
            Some(_) if offset == 0 => return,
            None if offset == 0 => match self.folder.open_id(id) {
                Ok(reader) => {
                    self.proving = Some(Proving { id, reader, asks: [(to, offset)].into() });
                    return;
                }
                Err(error) => return self.cannot_send([(to, offset)].into(), id, &error),
            },
            _ => {}
        }
        self.send(to, id, offset);
    }

    fn send(&self, to: NodeId, id: SnapshotId, offset: u64) {
        let source = self.folder.source(id);
        match source.and_then(|source| source.part(offset, self.part_bytes)) {
            Ok(data) => self.report(News::Part { to, id, offset, data: Ok(data) }),
            Err(error) => self.cannot_send([(to, offset)].into(), id, &error),
        }
    }

    fn cannot_send(&self, asks: BTreeSet<(NodeId, u64)>, id: SnapshotId, error: &SnapshotError) {
        for (to, offset) in asks {
            self.report(News::Part { to, id, offset, data: Err(error.to_string()) });
        }
    }

    /// Does a step of verifying. Returns whether there was anything to do.
    fn prove_on(&mut self) -> bool {
        let Some(Proving { id, mut reader, asks }) = self.proving.take() else { return false };
        let whole = match reader.pass() {
            Ok(true) => {
                self.proving = Some(Proving { id, reader, asks });
                return true;
            }
            Ok(false) => reader.expect_id(id),
            Err(error) => Err(error),
        };
        match whole {
            Ok(()) => {
                self.proven = Some((id, self.env.clock.now()));
                asks.into_iter().for_each(|(to, offset)| self.send(to, id, offset));
            }
            Err(error) => self.cannot_send(asks, id, &error),
        }
        true
    }

    // ---- receiving --------------------------------------------------------------------------------

    fn receive(&mut self, id: SnapshotId) {
        match &self.receiving {
            Some(Receiving { stage: ReceivingStage::Parts(partial), id: same }) if *same == id => {
                let bytes = partial.length();
                return self.report(News::Received { id, bytes });
            }
            // The whole snapshot is already on the disk. The result of loading the snapshot will be
            // reported.
            Some(receiving) if receiving.id == id => return,
            _ => self.receiving = None,
        }
        match self.folder.receive(id) {
            Ok(partial) => self.parts(id, partial),
            Err(error) => self.not_received(id, error),
        }
    }

    fn append(&mut self, id: SnapshotId, offset: u64, data: &[u8]) {
        let Some(receiving) = self.receiving.take_if(|receiving| receiving.id == id) else {
            return;
        };
        let ReceivingStage::Parts(mut partial) = receiving.stage else {
            self.receiving = Some(receiving);
            return;
        };
        match partial.append(offset, data) {
            Ok(Appended::Written) => return self.parts(id, partial),
            // The part is a duplicate or too early. The driver learns from `Received` how many
            // bytes are on disk.
            Ok(Appended::Elsewhere) => {}
            // The driver requests this part again later. The bytes that are already on the disk
            // stay and are not checked again.
            Ok(Appended::NoRoom) => tracing::warn!(
                index = %id.index,
                "no disk space for the rest of a snapshot, retrying"
            ),
            Err(error) => return self.not_received(id, error),
        }
        self.receiving = Some(Receiving { id, stage: ReceivingStage::Parts(partial) });
    }

    fn discard(&mut self, id: SnapshotId) {
        match self.receiving.take_if(|receiving| receiving.id == id) {
            Some(Receiving { stage: ReceivingStage::Parts(partial), .. }) => partial.discard(),
            // Dropping the value also drops the partly loaded machine.
            Some(_) => {}
            None => {
                if let Err(error) = self.folder.forget(id) {
                    tracing::warn!(%error, "cannot remove a partial snapshot");
                }
            }
        }
    }

    fn parts(&mut self, id: SnapshotId, partial: Partial) {
        let bytes = partial.length();
        let stage = if partial.is_complete() {
            match self.load(partial) {
                Ok(stage) => stage,
                Err(why) => return self.not_received(id, why),
            }
        } else {
            ReceivingStage::Parts(partial)
        };
        self.receiving = Some(Receiving { id, stage });
        self.report(News::Received { id, bytes });
    }

    /// Starts to load the complete file into a machine.
    fn load(&self, partial: Partial) -> Result<ReceivingStage, ReceiveError> {
        let check = partial.seal()?;
        let restore = Restore::new(self.options.clone(), check.head().clone())?;
        Ok(ReceivingStage::Loading { check, restore })
    }

    fn not_received(&mut self, id: SnapshotId, why: impl Into<ReceiveError>) {
        self.receiving = None;
        self.report(News::NotReceived { id, why: why.into() });
    }

    /// Does a step of loading. Returns whether there was anything to do.
    fn receive_on(&mut self) -> bool {
        let Some(Receiving { id, stage }) = self.receiving.take() else { return false };
        let stage = match stage {
            stage @ ReceivingStage::Parts(_) => {
                self.receiving = Some(Receiving { id, stage });
                return false;
            }
            ReceivingStage::Loading { check, restore } => self.load_step(id, check, restore),
        };
        match stage {
            Ok(stage) => self.receiving = stage.map(|stage| Receiving { id, stage }),
            Err(why) => self.not_received(id, why),
        }
        true
    }

    fn load_step(
        &self,
        id: SnapshotId,
        mut check: Check,
        mut restore: Restore,
    ) -> Result<Option<ReceivingStage>, ReceiveError> {
        if let Some(piece) = check.next()? {
            restore.add(piece)?;
            return Ok(Some(ReceivingStage::Loading { check, restore }));
        }
        let machine = Box::new(restore.finish()?);
        check.publish()?;
        self.report(News::Loaded { id, machine });
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::*;
    use crate::env::{Clock, Disk, NoPoints, OsEntropy};
    use crate::metrics::Meters;
    use crate::model::{ClusterId, LogIndex, Term};
    use crate::node::requests::writing::PART_BYTES;
    use crate::sim::SimDisk;

    /// A clock that the test advances, in seconds.
    #[derive(Default)]
    struct HeldClock(AtomicU64);

    impl Clock for HeldClock {
        fn now(&self) -> Moment {
            Moment::since_boot(Duration::from_secs(self.0.load(Ordering::Relaxed)))
        }
    }

    /// A worker that a test runs step by step, on a disk that counts how often a file is opened.
    struct Bench {
        disk: Arc<SimDisk>,
        clock: Arc<HeldClock>,
        opened: Arc<AtomicUsize>,
        worker: SnapshotWorker,
        queue: Arc<SnapshotQueue>,
        inbox: Arc<Inbox>,
    }

    impl Bench {
        fn new() -> Self {
            let (opened, clock) = (Arc::new(AtomicUsize::new(0)), Arc::new(HeldClock::default()));
            let disk = Arc::new(SimDisk::new(7));
            disk.create_dir(Path::new("/data")).unwrap();
            let count = Arc::clone(&opened);
            let hooked: Arc<dyn Disk> = Arc::new(disk.hooked(move |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            }));
            let env = Env {
                clock: clock.clone(),
                entropy: Arc::new(OsEntropy),
                disk: Arc::clone(&hooked),
                points: Arc::new(NoPoints),
            };
            let folder = Folder::open(&hooked, Path::new("/data"), ClusterId(7)).unwrap();
            let queue = Arc::new(SnapshotQueue::new(Box::new(|| {})));
            let inbox = Arc::new(Inbox::new(1 << 20, Arc::new(Meters::default()), Box::new(|| {})));
            let (jobs, news) = (Arc::clone(&queue), Arc::clone(&inbox));
            let worker =
                SnapshotWorker::new(env, folder, MachineOptions::default(), PART_BYTES, jobs, news);
            Self { disk, clock, opened, worker, queue, inbox }
        }

        /// Runs a job. Returns how often a file was opened, and the results.
        fn does(&mut self, job: Job) -> (usize, Vec<News>) {
            let before = self.opened.load(Ordering::Relaxed);
            self.queue.push(job);
            while self.worker.turn() == SnapshotTurn::Worked {}
            let news = self.inbox.take(Vec::new()).into_iter().filter_map(|input| match input {
                Input::Snapshot(news) => Some(news),
                _ => None,
            });
            (self.opened.load(Ordering::Relaxed) - before, news.collect())
        }
    }

    #[test]
    fn transfer_waits_for_disk_space_without_a_restart() {
        let (mut source, mut bench) = (Bench::new(), Bench::new());
        let image = Machine::new(MachineOptions::default()).image();
        let (_, taken) = source.does(Job::Take(Box::new(image)));
        let [News::Taken { id, .. }] = taken[..] else { panic!("it is not written") };
        let bytes = source.worker.folder.source(id).unwrap().part(0, PART_BYTES).unwrap();
        assert!(bytes.len() as u64 == id.bytes, "it is one part");
        let (_, began) = bench.does(Job::Receive(id));
        assert!(matches!(began[..], [News::Received { bytes: 0, .. }]));
        bench.disk.limit(Some(bench.disk.used() + 10));
        let part = || Job::Append { id, offset: 0, data: bytes.clone() };
        for _ in 0..3 {
            let (opened, news) = bench.does(part());
            assert!(opened == 0 && news.is_empty(), "it is neither read through nor given up");
        }
        bench.disk.limit(None);
        let (_, news) = bench.does(part());
        assert!(matches!(&news[..], [News::Received { .. }, News::Loaded { .. }]));
    }

    #[test]
    fn received_snapshot_is_named_only_after_a_successful_load() {
        for is_sound in [true, false] {
            let (source, mut bench) = (Bench::new(), Bench::new());
            let mut image = Machine::new(MachineOptions::default()).image();
            let mut head = image.head().clone();
            head.digest ^= u64::from(!is_sound);
            let mut writer = source.worker.folder.begin(&head).unwrap();
            while let Some(piece) = image.next(PART_BYTES).unwrap() {
                writer.write(&piece).unwrap();
            }
            let mut check = writer.seal().unwrap();
            let id = loop {
                if let Some(id) = check.step().unwrap() {
                    break id;
                }
            };
            let data = source.worker.folder.source(id).unwrap().part(0, PART_BYTES).unwrap();
            bench.queue.push(Job::Receive(id));
            bench.queue.push(Job::Append { id, offset: 0, data });
            let named = |bench: &Bench| bench.worker.folder.list().unwrap().len();
            let mut received = Vec::new();
            while received.len() < 3 {
                bench.worker.turn();
                received.extend(bench.inbox.take(Vec::new()));
                assert_eq!(named(&bench), usize::from(is_sound && received.len() == 3));
            }
            let Some(Input::Snapshot(last)) = received.pop() else { panic!("news") };
            let failed = matches!(last, News::NotReceived { why: ReceiveError::State(_), .. });
            assert!(failed != is_sound && matches!(last, News::Loaded { .. }) == is_sound);
            assert_eq!(bench.worker.folder.unfinished().unwrap(), None);
        }
    }

    #[test]
    fn snapshot_is_verified_again_only_after_a_pause() {
        let mut bench = Bench::new();
        let image = Machine::new(MachineOptions::default()).image();
        let (_, taken) = bench.does(Job::Take(Box::new(image)));
        let [News::Taken { id, .. }] = taken[..] else { panic!("it is not written") };
        let to = NodeId::new(2).unwrap();
        let mut asks = |at: u64| {
            bench.clock.0.store(at, Ordering::Relaxed);
            let (opened, parts) = bench.does(Job::Read { to, id, offset: 0 });
            assert!(matches!(&parts[..], [News::Part { offset: 0, data: Ok(_), .. }]));
            opened
        };
        let (once, twice) = (1, 2);
        assert_eq!([0, 1, 9].map(&mut asks), [twice, once, once], "read through, and sent");
        assert_eq!([10, 15, 30].map(asks), [twice, once, twice]);
    }

    #[test]
    fn peers_cannot_fill_the_snapshot_queue() {
        let queue = SnapshotQueue::new(Box::new(|| {}));
        let id = SnapshotId { index: LogIndex(7), term: Term(2), bytes: 1 << 40, checksum: 7 };
        let to = NodeId::new(2).unwrap();
        let jobs = |queue: &SnapshotQueue| queue.take(Some(Duration::ZERO)).unwrap();
        for offset in 0..10_000 {
            queue.push(Job::Read { to, id, offset });
            queue.push(Job::Append { id, offset, data: Bytes::from_static(&[0; PART_BYTES]) });
        }
        queue.push(Job::Keep { newest: id, served: Vec::new() });
        let waiting = jobs(&queue);
        let appends = APPEND_BYTES_MAX / PART_BYTES;
        assert_eq!(waiting.len(), READS_MAX + appends + 1, "its own jobs are never dropped");
        queue.push(Job::Read { to, id, offset: 0 });
        assert_eq!(jobs(&queue).len(), 1, "there is room again");
    }
}

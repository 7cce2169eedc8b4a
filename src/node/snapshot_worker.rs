//! The snapshots' own thread: writes them, reads them for others, receives theirs, and makes machines of
//! them, one small step at a time, so that it can pause between any two.
//!
//! ```text
//!   Take     image ──▶ write ... write ──▶ check ... check ──▶ Taken
//!   Receive  ──▶ Received ──▶ Append ──▶ Received ──▶ ... ──▶ load ... load ──▶ Loaded
//!   Read     ──▶ (from its beginning: read through ... read through) ──▶ Part
//! ```
//!
//! A snapshot was sound when it was written. Whoever asks for one from its beginning waits until it was read
//! through once more, unless that was just done: what has rotted meanwhile is not sent, and this node hears of it
//! as long as it has the state in memory.
//!
//! What is received gets its name once a machine was made of it: a process that dies on the way, for want of memory as
//! a rule, leaves one file behind, which it takes up again, however often that happens.
//!
//! What is received goes first; then what is read through and what is written of this node's own take turns, at half
//! of a core at most. What is received twice, or out of order, is asked for again by whoever gave it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use crate::env::Env;
use crate::machine::{Image, Machine, MachineOptions, Restore, RestoreError};
use crate::model::{Members, Moment, NodeId, SnapshotId};
use crate::snapshot::{Appended, Check, Folder, Partial, Reader, SnapshotError};

use super::inbox::{Inbox, Input};
use super::parker::{Parker, Sleeper};
use super::writing::{WriteError, Writing, Written};

/// How many parts may be waited for by peers, and how many bytes of parts may wait to be written; more are
/// dropped, and asked for again. As many as peers have under way at once, several times over.
const READS_MAX: usize = 128;
const APPEND_BYTES_MAX: usize = 16 << 20;

/// How long a snapshot that was read through counts as sound: whoever asks again, or comes late, does not have it read
/// again. Whoever receives it looks for itself.
const PROVEN_FOR: Duration = Duration::from_secs(10);

/// Something to do.
pub(crate) enum Job {
    /// Write this state down.
    Take(Box<Image>),
    /// Read a part for a peer.
    Read { to: NodeId, id: SnapshotId, offset: u64 },
    /// Begin to receive a snapshot, or go on with what is here of it.
    Receive(SnapshotId),
    /// A part of it has come.
    Append { id: SnapshotId, offset: u64, data: Bytes },
    /// Nobody needs it any more, however much of it is here.
    Discard(SnapshotId),
    /// This one is sound and durable: what is older can go.
    Keep {
        /// Which.
        newest: SnapshotId,
        /// Older ones that peers still fetch.
        served: Vec<SnapshotId>,
    },
    /// Let go of a state that nobody needs, where nobody waits for that.
    Forget(Box<Machine>),
}

/// What came of it.
pub(crate) enum News {
    /// A snapshot was written, and is durable.
    Taken { id: SnapshotId, members: Members, took: Duration },
    /// It was not; what is there stays.
    NotTaken { why: WriteError },
    /// A part for a peer; or why that snapshot cannot be sent.
    Part { to: NodeId, id: SnapshotId, offset: u64, data: Result<Bytes, String> },
    /// So many bytes of a snapshot are here.
    Received { id: SnapshotId, bytes: u64 },
    /// All of it is here, durable, and this is what it holds.
    Loaded { id: SnapshotId, machine: Box<Machine> },
    /// It cannot be received now.
    NotReceived { id: SnapshotId, why: ReceiveError },
}

/// Why a snapshot cannot be received.
#[derive(Debug, Error)]
pub(crate) enum ReceiveError {
    /// The file.
    #[error(transparent)]
    File(#[from] SnapshotError),
    /// No machine can be made of what it holds.
    #[error(transparent)]
    State(#[from] RestoreError),
}

impl ReceiveError {
    /// Whether only a newer build can read it: to fetch it again is of no use.
    pub(crate) fn needs_upgrade(&self) -> bool {
        matches!(self, Self::File(SnapshotError::Newer { .. }))
            || matches!(self, Self::State(RestoreError::Outgrown(_)))
    }
}

/// Jobs on their way to the worker.
pub(crate) struct SnapshotQueue {
    state: Mutex<State>,
    parker: Parker,
    on_push: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// How many of them are reads for peers.
    reads: usize,
    /// What those hold that append.
    append_bytes: usize,
    closed: bool,
    waits: bool,
}

impl Sleeper for State {
    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && !self.closed
    }

    fn waits(&mut self) -> &mut bool {
        &mut self.waits
    }
}

impl State {
    /// Whether a job is one too many: peers must not fill the memory. All others are the driver's own,
    /// which bounds them.
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
    /// An empty queue. `on_push` is called after each job, for whoever runs the worker without waiting.
    pub(crate) fn new(on_push: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { state: Mutex::default(), parker: Parker::default(), on_push }
    }

    /// Queues a job, unless too many of its kind wait: one snapshot at a time is the driver's to see to,
    /// but peers ask for parts, and send them, as often as they like.
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

    /// How many jobs wait.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).jobs.len()
    }

    /// The worker ends; what is not done is left as it is.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.closed = true;
            self.parker.unpark(&mut *state);
        }
        (self.on_push)();
    }

    /// Waits for a job; `None` when the queue is closed. Empty after `at_most`.
    fn take(&self, at_most: Option<Duration>) -> Option<VecDeque<Job>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.parker.wait(state, at_most);
        (state.reads, state.append_bytes) = (0, 0);
        (!state.closed).then(|| std::mem::take(&mut state.jobs))
    }
}

/// See the module.
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
    /// The last one that was read through, and when.
    proven: Option<(SnapshotId, Moment)>,
    /// Whether it is the turn of what is written.
    writes_next: bool,
}

/// A snapshot of this node's own on its way to the disk.
struct Own {
    writing: Writing,
    members: Members,
    began: Moment,
}

/// A snapshot on its way from a peer into a machine.
struct Receiving {
    id: SnapshotId,
    stage: ReceivingStage,
}

#[allow(clippy::large_enum_variant, reason = "there is one, which moves once a part")]
enum ReceivingStage {
    Parts(Partial),
    Loading { check: Check, restore: Restore },
}

/// A snapshot that is read through before it is sent.
struct Proving {
    id: SnapshotId,
    reader: Reader,
    /// Who waits for which parts of it.
    asks: BTreeSet<(NodeId, u64)>,
}

/// What a worker should do after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SnapshotTurn {
    /// There is more to do.
    Worked,
    /// There is nothing to do.
    Idle,
}

impl SnapshotWorker {
    /// A worker on the snapshots of `folder`, which writes and sends them in parts of so many bytes.
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

    /// Works until the queue is closed.
    pub(crate) fn run(&mut self) {
        let mut patience = None;
        while let Some(jobs) = self.queue.take(patience) {
            let began = self.env.clock.now();
            patience = match self.work(jobs) {
                // As long a pause as it has worked.
                SnapshotTurn::Worked if self.receiving.is_none() => {
                    Some(self.env.clock.now().since(began))
                }
                SnapshotTurn::Worked => Some(Duration::ZERO),
                SnapshotTurn::Idle => None,
            };
        }
    }

    /// Does a step, without waiting: for whoever runs a node by hand.
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

    fn tell(&self, news: News) {
        drop(self.inbox.push(Input::Snapshot(news)));
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Take(image) => {
                // The driver has one under way at a time.
                let (members, began) = (image.head().members.clone(), self.env.clock.now());
                self.writing = Some(Own { writing: Writing::Waiting(*image), members, began });
            }
            Job::Read { to, id, offset } => self.read(to, id, offset),
            Job::Receive(id) => self.receive(id),
            Job::Append { id, offset, data } => self.append(id, offset, &data),
            Job::Discard(id) => self.discard(id),
            Job::Keep { newest, served } => {
                if let Err(error) = self.folder.remove_older(newest, &served) {
                    tracing::warn!(%error, "an older snapshot cannot be removed now");
                }
            }
            Job::Forget(machine) => drop(machine),
        }
    }

    // ---- writing ----------------------------------------------------------------------------------

    /// A step of what is to be written. Whether there was anything to do.
    fn write_on(&mut self) -> bool {
        let Some(Own { writing, members, began }) = self.writing.take() else { return false };
        match writing.step(self.part_bytes, |head| self.folder.begin(head)) {
            Ok(Written::On(writing)) => self.writing = Some(Own { writing, members, began }),
            Ok(Written::Done(id)) => {
                let took = self.env.clock.now().since(began);
                self.tell(News::Taken { id, members, took });
            }
            Err(why) => self.tell(News::NotTaken { why }),
        }
        true
    }

    // ---- sending ----------------------------------------------------------------------------------

    /// A part for a peer: at once, unless that peer begins with this snapshot.
    fn read(&mut self, to: NodeId, id: SnapshotId, offset: u64) {
        let now = self.env.clock.now();
        let is_proven =
            self.proven.is_some_and(|(same, at)| same == id && now.since(at) < PROVEN_FOR);
        match &mut self.proving {
            Some(Proving { id: same, asks, .. }) if *same == id => {
                let waits = asks.range((to, 0)..=(to, u64::MAX)).next().is_some();
                if offset == 0 || waits {
                    // One too many is asked for again.
                    if asks.len() < READS_MAX {
                        asks.insert((to, offset));
                    }
                    return;
                }
            }
            _ if is_proven => {}
            // Another one first. It is asked for again.
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
            Ok(data) => self.tell(News::Part { to, id, offset, data: Ok(data) }),
            Err(error) => self.cannot_send([(to, offset)].into(), id, &error),
        }
    }

    fn cannot_send(&self, asks: BTreeSet<(NodeId, u64)>, id: SnapshotId, error: &SnapshotError) {
        for (to, offset) in asks {
            self.tell(News::Part { to, id, offset, data: Err(error.to_string()) });
        }
    }

    /// Reads on in what is to be sent. Whether there was anything to do.
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
                return self.tell(News::Received { id, bytes });
            }
            // It is all here, and will be told.
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
            // Doubled or too early: whoever asks knows how far it is.
            Ok(Appended::Elsewhere) => {}
            // Asked for again after a while. What is here stays, and is not read through anew.
            Ok(Appended::NoRoom) => tracing::warn!(
                index = %id.index,
                "there is no room on the disk for the rest of a snapshot; it is tried again"
            ),
            Err(error) => return self.not_received(id, error),
        }
        self.receiving = Some(Receiving { id, stage: ReceivingStage::Parts(partial) });
    }

    fn discard(&mut self, id: SnapshotId) {
        match self.receiving.take_if(|receiving| receiving.id == id) {
            Some(Receiving { stage: ReceivingStage::Parts(partial), .. }) => partial.discard(),
            // What is being loaded goes with it.
            Some(_) => {}
            None => {
                if let Err(error) = self.folder.forget(id) {
                    tracing::warn!(%error, "what was received of a snapshot cannot be removed now");
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
        self.tell(News::Received { id, bytes });
    }

    /// Begins to make a machine of what is here.
    fn load(&self, partial: Partial) -> Result<ReceivingStage, ReceiveError> {
        let check = partial.seal()?;
        let restore = Restore::new(self.options.clone(), check.head().clone())?;
        Ok(ReceivingStage::Loading { check, restore })
    }

    fn not_received(&mut self, id: SnapshotId, why: impl Into<ReceiveError>) {
        self.receiving = None;
        self.tell(News::NotReceived { id, why: why.into() });
    }

    /// A step of what is being received and needs no further part. Whether there was anything to do.
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
        self.tell(News::Loaded { id, machine });
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::super::writing::PART_BYTES;
    use super::*;
    use crate::env::{Clock, Disk, NoPoints, OsEntropy};
    use crate::metrics::Meters;
    use crate::model::{ClusterId, LogIndex, Term};
    use crate::sim::{HookedDisk, SimDisk};

    /// A clock that a test moves, in seconds.
    #[derive(Default)]
    struct HeldClock(AtomicU64);

    impl Clock for HeldClock {
        fn now(&self) -> Moment {
            Moment::since_boot(Duration::from_secs(self.0.load(Ordering::Relaxed)))
        }
    }

    /// A worker that a test runs by hand, on a disk that counts how often a file is opened.
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
            let hooked: Arc<dyn Disk> = Arc::new(HookedDisk::new(disk.clone(), move |_, _| {
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

        /// How often a file was opened for a job, and what came of it.
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
    fn a_transfer_waits_for_room_on_the_disk_without_beginning_anew() {
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
    fn what_is_received_has_its_name_when_a_machine_was_made_of_it_and_leaves_nothing_else() {
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
            let mut told = Vec::new();
            while told.len() < 3 {
                bench.worker.turn();
                told.extend(bench.inbox.take(Vec::new()));
                assert_eq!(named(&bench), usize::from(is_sound && told.len() == 3));
            }
            let Some(Input::Snapshot(last)) = told.pop() else { panic!("news") };
            let failed = matches!(last, News::NotReceived { why: ReceiveError::State(_), .. });
            assert!(failed != is_sound && matches!(last, News::Loaded { .. }) == is_sound);
            assert_eq!(bench.worker.folder.unfinished().unwrap(), None);
        }
    }

    #[test]
    fn who_asks_late_does_not_have_a_snapshot_read_through_again_but_later_it_is() {
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
    fn peers_cannot_fill_the_queue() {
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

//! Tests of the warm copy: a machine, its copy, and a simulated process that is killed and
//! restarted.

mod doubt;
#[cfg(feature = "warm")]
mod files;
mod histories;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::memory::{MemoryShelf, StoreFault};
use super::worker::WarmTurn;
use super::*;
use crate::env::{BootId, Clock, Disk, NoPoints, OsEntropy};
use crate::machine::Image;
use crate::model::samples::node;
use crate::model::{
    AckWindow, ClusterId, Command, Delete, DiskId, Incarnation, Item, KeyRange, LeaseId, Members,
    Moment, Op, Outcome, Proposal, Put, PutLease, Reply, Revision, SnapshotRecord, StateHead, Txn,
};
use crate::sim::SimDisk;

const DATA: &str = "/data";

/// A clock that advances only on request, on a machine that reboots on request.
#[derive(Default)]
struct StillClock {
    now: Mutex<Duration>,
    boot: Mutex<Option<BootId>>,
}

impl Clock for StillClock {
    fn now(&self) -> Moment {
        Moment::since_boot(*self.now.lock().unwrap())
    }

    fn boot(&self) -> Option<BootId> {
        *self.boot.lock().unwrap()
    }
}

/// A complete state for comparisons.
type Whole = (StateHead, Vec<SnapshotRecord>);

fn whole(machine: &Machine) -> Whole {
    records(machine.image())
}

fn records(mut image: Image) -> Whole {
    let head = image.head().clone();
    let mut records = Vec::new();
    while let Some(record) = image.next(1 << 20).unwrap() {
        records.push(record);
    }
    (head, records)
}

/// A data directory on a machine, with a log that outlives every process on it.
struct World {
    clock: Arc<StillClock>,
    disk: Arc<dyn Disk>,
    store: Arc<dyn CopyStore>,
    data: PathBuf,
    origin: CopyRestoredFrom,
    sizes: CopySizes,
    /// The applied entries, from index 2 on.
    log: Vec<Vec<Item>>,
    /// The state after each entry.
    states: BTreeMap<LogIndex, Whole>,
    seq: u64,
    process: Option<Process>,
}

/// The parts that are lost with the process.
struct Process {
    machine: Machine,
    post: Arc<WriteBehindQueue>,
    worker: Option<Worker>,
}

impl World {
    /// Creates a test fixture with an in-memory store, in which a few rows make a record.
    fn new() -> (Self, MemoryShelf) {
        let store = MemoryShelf::default();
        let disk = Arc::new(SimDisk::new(1));
        let sizes = CopySizes { record_bytes: 150, batch_bytes: 400, growth_bytes: 2000 };
        (Self::on(disk, Arc::new(store.clone()), Path::new(DATA), sizes), store)
    }

    fn on(disk: Arc<dyn Disk>, store: Arc<dyn CopyStore>, data: &Path, sizes: CopySizes) -> Self {
        let clock = Arc::new(StillClock::default());
        *clock.boot.lock().unwrap() = Some(BootId(1));
        Self {
            clock,
            disk,
            store,
            data: data.to_owned(),
            origin: origin(1),
            sizes,
            log: Vec::new(),
            states: BTreeMap::new(),
            seq: 0,
            process: None,
        }
    }

    fn env(&self) -> Env {
        Env {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            entropy: Arc::new(OsEntropy),
            disk: Arc::clone(&self.disk),
            points: Arc::new(NoPoints),
        }
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the process runs")
    }

    fn machine(&mut self) -> &mut Machine {
        &mut self.process().machine
    }

    /// Starts the process from the copy, if possible, and the later log entries. Returns the log
    /// index of the copy.
    fn start(&mut self) -> Option<LogIndex> {
        self.start_after(LogIndex(1))
    }

    /// Starts the process with a log that begins after `base`. A snapshot covers the earlier
    /// entries.
    fn start_after(&mut self, base: LogIndex) -> Option<LogIndex> {
        assert!(self.process.is_none(), "one process at a time");
        let copy = WarmCopy::OnShelf(Arc::clone(&self.store));
        let mut opened = open(&self.env(), &copy, &self.data, self.origin);
        opened.sizes = self.sizes;
        let last = LogIndex(self.log.len() as u64 + 1);
        let fits = move |index, term| index >= base && index <= last && term == Term(1);
        let machine = opened.load(MachineOptions::default(), fits);
        let loaded = machine.as_ref().map(Machine::applied);
        if let Some(machine) = &machine {
            assert_eq!(whole(machine), self.states[&machine.applied()], "not what was copied");
        }
        let mut machine = machine.unwrap_or_else(|| {
            let mut machine = Machine::new(MachineOptions::default());
            machine.found(founders());
            self.states.insert(machine.applied(), whole(&machine));
            machine
        });
        for items in &self.log[machine.applied().get() as usize - 1..] {
            machine.apply(machine.applied().next(), Term(1), items.clone()).unwrap();
        }
        machine.publish();
        let post = WriteBehindQueue::new();
        let worker = opened.worker(machine.reader(), Arc::clone(&post));
        self.process = Some(Process { machine, post, worker });
        loaded
    }

    fn entry(&mut self, items: Vec<Item>) -> Vec<Outcome> {
        self.log.push(items.clone());
        let machine = self.machine();
        let index = machine.applied().next();
        let applied = machine.apply(index, Term(1), items).unwrap();
        machine.publish();
        let state = whole(machine);
        self.states.insert(index, state);
        applied.outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn run(&mut self, command: Command) -> Outcome {
        self.seq += 1;
        let window = AckWindow { frontier: self.seq.saturating_sub(3), open: Vec::new() };
        let requests = vec![(self.seq, command)];
        let (node, incarnation) = (node(1), Incarnation(1));
        let proposal = Proposal { node, incarnation, window, requests };
        self.entry(vec![Item::Proposal(proposal)]).remove(0)
    }

    fn put(&mut self, key: &str, value: &str) {
        self.run(Command::Put(Put::new(key.to_owned(), value.to_owned()))).unwrap();
    }

    fn compact(&mut self) {
        let at = self.machine().revision();
        self.run(Command::Compact(at)).unwrap();
    }

    /// Lets the worker run one turn, and advances the clock by the pause after the turn. Returns
    /// false if there was nothing to do.
    fn turn(&mut self) -> bool {
        let process = self.process.as_mut().expect("the process runs");
        let Some(worker) = &mut process.worker else { return false };
        let WarmTurn::Rest(rest) = worker.turn() else { panic!("the worker ended by itself") };
        *self.clock.now.lock().unwrap() += rest;
        let wants = process.post.wants(process.machine.applied());
        if wants {
            process.post.deliver(process.machine.image());
        }
        wants || rest < worker::ROUND_INTERVAL
    }

    /// Lets the worker run until there is nothing to do.
    fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..100_000 {
            idle = if self.turn() { 0 } else { idle + 1 };
            if idle == 2 {
                return;
            }
        }
        panic!("the worker never rests");
    }

    fn kill(&mut self) {
        let process = self.process.take().expect("the process runs");
        process.post.abandon();
    }

    fn stop(&mut self) {
        let Process { machine, post, worker, .. } = self.process.take().expect("the process runs");
        post.stop(machine.image());
        if let Some(mut worker) = worker {
            assert_eq!(worker.turn(), WarmTurn::Ended);
        }
    }

    /// Reboots the machine, as after a power cut. The test decides which data the machine's disk
    /// keeps.
    fn boot(&self) {
        let mut boot = self.clock.boot.lock().unwrap();
        *boot = boot.map(|boot| BootId(boot.0 + 1));
    }

    fn dir(&self) -> PathBuf {
        self.data.join(DIR)
    }

    /// Returns the directories of the existing copies.
    fn copies(&self) -> Vec<PathBuf> {
        let mut dirs = self.store.list(&self.dir()).unwrap();
        dirs.retain(|dir| dir.file_name().unwrap().to_str().unwrap().starts_with("copy-"));
        dirs
    }
}

fn origin(id: u64) -> CopyRestoredFrom {
    CopyRestoredFrom { cluster: ClusterId(7), node: node(id), disk: DiskId(id.into()) }
}

fn founders() -> Members {
    Members::founded(&(1..=3).map(|id| (node(id), DiskId(id.into()))).collect())
}

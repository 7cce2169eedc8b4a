//! Tests of the hub with a real state machine: scripted runs, random runs that are compared with a
//! simple model, and runs with real threads.

mod random;
mod scripts;
mod threads;

use std::sync::{Arc, Mutex, MutexGuard};

use super::{Compacted, Hub, WatchHistory, WatchLimits};
use crate::machine::{Change, HistoryPage, Machine, MachineOptions, Reader};
use crate::model::{
    AckWindow, Command, Incarnation, Item, KeyRange, LogIndex, NodeId, Op, Proposal, Revision,
    Term, Txn,
};

/// A machine, the hub of its watches, and a complete record of its changes.
struct World {
    hub: Arc<Hub>,
    store: Arc<Mutex<Store>>,
    /// The action to run at the end of each read of history.
    meanwhile: Meanwhile,
}

type Meanwhile = Arc<Mutex<Option<Box<dyn FnMut() + Send>>>>;

/// The part that the driver owns.
struct Store {
    machine: Machine,
    seq: u64,
    /// All changes ever made.
    log: Vec<Change>,
    /// Number of changes that the hub has published.
    published: usize,
    compacted: Revision,
}

/// A reader during which another action runs.
struct Beside {
    reader: Reader,
    meanwhile: Meanwhile,
}

impl WatchHistory for Beside {
    fn revision(&self) -> Revision {
        self.reader.revision()
    }

    fn events(
        &self,
        range: &KeyRange,
        from: Revision,
        bytes_max: usize,
    ) -> Result<HistoryPage, Compacted> {
        let page = WatchHistory::events(&self.reader, range, from, bytes_max);
        if let Some(act) = &mut *self.meanwhile.lock().unwrap() {
            act();
        }
        page
    }
}

impl World {
    fn new(limits: WatchLimits) -> Self {
        let machine = Machine::new(MachineOptions::default());
        let meanwhile = Meanwhile::default();
        let beside = Beside { reader: machine.reader(), meanwhile: Arc::clone(&meanwhile) };
        let hub = Hub::new(beside, limits);
        let (seq, log, published, compacted) = (0, Vec::new(), 0, Revision(0));
        let store = Arc::new(Mutex::new(Store { machine, seq, log, published, compacted }));
        Self { hub, store, meanwhile }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// Makes changes and publishes them.
    fn change(&self, ops: Vec<Op>) {
        let mut store = self.store();
        store.apply(ops);
        store.publish(&self.hub);
    }
}

impl Store {
    /// Applies one transaction and shows it to readers, but not to the hub.
    fn apply(&mut self, ops: Vec<Op>) {
        self.command(Command::Txn(Txn { success: ops, ..Txn::default() }));
    }

    fn compact(&mut self, at: Revision) {
        self.command(Command::Compact(at));
        self.compacted = self.compacted.max(at);
    }

    fn command(&mut self, command: Command) {
        self.seq += 1;
        let window = AckWindow { frontier: self.seq, open: Vec::new() };
        let (node, incarnation) = (NodeId::new(1).unwrap(), Incarnation(1));
        let requests = vec![(self.seq, command)];
        let item = Item::Proposal(Proposal { node, incarnation, window, requests });
        let index = LogIndex(self.seq + 1);
        let applied = self.machine.apply(index, Term(1), vec![item]).unwrap();
        for (_, outcome) in &applied.outcomes {
            assert!(outcome.is_ok(), "{outcome:?}");
        }
        self.log.extend(applied.changes);
        self.machine.publish();
    }

    /// Installs the state that another replica has after these commands. Their changes are shown to
    /// readers but not published.
    fn install(&mut self, commands: impl FnOnce(&mut Self)) {
        let mut image = self.machine.image();
        let head = image.head().clone();
        let pieces = std::iter::from_fn(|| image.next(1000).unwrap());
        let mut other = Machine::restore(MachineOptions::default(), head, pieces).unwrap();
        std::mem::swap(&mut self.machine, &mut other);
        commands(self);
        std::mem::swap(&mut self.machine, &mut other);
        self.machine.install(other).unwrap();
    }

    fn installed(&mut self, hub: &Hub) {
        hub.installed(self.newest());
        self.published = self.log.len();
    }

    fn publish(&mut self, hub: &Hub) {
        hub.publish(&self.log[self.published..], self.newest());
        self.published = self.log.len();
    }

    fn newest(&self) -> Revision {
        self.log.last().map_or(Revision::FIRST, |change| change.revision())
    }

    fn visible(&self) -> Revision {
        Revision(Revision::FIRST.0 + self.published as u64)
    }
}

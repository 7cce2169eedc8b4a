//! The state machine: what the log means.
//!
//! Log entries go in, in order; what comes out is the answer to each request in them, what changed,
//! and a state that readers in other threads see. It is the same on every replica, to the bit: apply
//! knows no clock, no entropy, no node of its own and no map whose order is left to chance. A
//! [digest](Machine::digest) of everything says so in one number.
//!
//! ```text
//!    entry = items
//!      |
//!      v
//!   [apply] --- [answers]   was this request applied before?        exactly once
//!      |
//!      +------- [access]    may whoever asks do this?              by the users and roles of the state
//!      |
//!      +------- [alarms]    does an alarm stand that forbids it?    (a table of the model)
//!      |
//!      +------- [txn]       which branch, and may it?               decided before the first write
//!      |
//!      +------- [store]     key -> versions, revision -> changes    index, history, sweep
//!      |
//!      +------- [lease]     which exist, which keys they hold       no deadlines here
//!      |
//!      v
//!   Applied: outcomes, changes, leases          publish -> [reader]
//! ```
//!
//! `store` and `lease` do not know each other: a put that binds a key, and an end of a lease that
//! deletes keys, are made here.
//!
//! # Revisions
//! The store begins at revision 1 with nothing in it. A request that changes at least one key takes
//! exactly one revision, however many keys it changes; a request that changes none takes none. A
//! refusal has no effect at all.
//!
//! # Time
//! There is none. A lease ends because the log says so: an expiry is an item like any other, and void
//! if the leader that counted is not the one whose entry it stands in.
//!
//! # What is forgotten
//! Compaction at R makes reads before R refusals. What a read at R sees stays, and so do the changes
//! made at R itself, deletions too. The answer and the digest know only the number R; memory is given
//! back piece by piece behind it (see `store`).

mod access;
mod dedup_table;
mod digest;
mod execute;
mod follow;
mod history;
mod image;
mod index;
mod lease;
mod page;
mod range_set;
mod read;
mod reader;
mod recount;
mod reseed;
mod restore;
mod row;
mod shared;
mod store;
mod txn;

use std::sync::Arc;
use std::time::Duration;

pub use follow::{ChangesPage, RowsPage};
pub use image::{Image, ImageError, ImageRelease};
pub use lease::{BOUND_KEY_BYTES, LEASE_BYTES, LeaseHead, LeaseInfo, SessionOf};
pub use reader::{HistoryPage, Reader};
pub use reseed::{RESEEDED_AT, RESEEDED_REVISION_MAX, REVISION_JUMP, Reseed};
pub use restore::{Restore, RestoreError};
pub use txn::{is_wide, only_reads};

use dedup_table::{DedupTable, DedupVerdict};
use digest::Parts;
use execute::{Stop, Turn};
use shared::Hold;
use store::Store;

use crate::model::{
    Access, Alarms, ClusterVersion, Event, Fault, Incarnation, Item, LeaseId, LogIndex,
    MemberChange, Members, NodeId, Outcome, Proposal, Rejection, RequestId, Revision, SessionInfo,
    SnapshotRecord, StateHead, Term,
};
use crate::mutant::{self, Mutant};

/// How the machine treats its own memory. Nothing here changes what anybody can observe, so members
/// may differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineOptions {
    /// After each entry, memory of about so many compacted versions is given back, and of two for
    /// each version that the entry wrote, so that the sweep cannot fall behind. Default 64.
    pub sweep_rows: usize,
    /// The newest cluster version that this machine understands: a later one is a fault. Default
    /// [`ClusterVersion::NEWEST`]; less, for tests of upgrades.
    pub known: ClusterVersion,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self { sweep_rows: 64, known: ClusterVersion::NEWEST }
    }
}

/// The replicated state and its one writer.
pub struct Machine {
    options: MachineOptions,
    applied: LogIndex,
    /// The term of the last entry applied.
    term: Term,
    store: Store,
    dedup: DedupTable,
    members: Arc<Members>,
    access: Arc<Access>,
    alarms: Arc<Alarms>,
    version: ClusterVersion,
    /// What members, users, alarms and version add to the digest.
    configuration: u64,
    /// Whose answers are wanted whole; everybody's if nobody was named. No part of the state.
    asker: Option<(NodeId, Incarnation)>,
}

/// What came of one log entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// What became of each request in it, in order; of those that [others](Machine::answer_only) have made without
    /// rows.
    pub outcomes: Vec<(RequestId, Outcome)>,
    /// What changed, by revision.
    pub changes: Vec<Change>,
    /// Which leases came and went, in order.
    pub leases: Vec<LeaseChange>,
    /// The last revision that was compacted at, if one was.
    pub compacted: Option<Revision>,
    /// The members after it, if it changed anything about them.
    pub members: Option<Arc<Members>>,
    /// How much was done for it.
    pub tally: Tally,
}

/// How many operations were carried out, in and outside of transactions. Of no consequence for the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Ranges in the log: in transactions that write.
    pub ranges: u64,
    /// Puts.
    pub puts: u64,
    /// The bytes of their keys and values.
    pub put_bytes: u64,
    /// Deletes, however many keys each has deleted; also of the keys of leases that have ended.
    pub deletes: u64,
    /// Transactions with more than one operation.
    pub txns: u64,
}

impl Tally {
    fn operations(&self) -> u64 {
        self.ranges + self.puts + self.deletes
    }
}

/// What one revision changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Which revision.
    pub revision: Revision,
    /// Its changes in the order in which the request made them, with the rows before them.
    pub events: Arc<[Event]>,
}

/// A lease that came or went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseChange {
    /// It exists from now on.
    Granted {
        /// Which.
        id: LeaseId,
        /// How long it lives without renewal.
        ttl: Duration,
        /// Whose session it is, if it is one.
        session: Option<(NodeId, Incarnation, SessionInfo)>,
    },
    /// It was revoked or has expired; its keys are gone.
    Ended {
        /// Which.
        id: LeaseId,
    },
}

impl Machine {
    /// A state in which nothing has happened, with the synthetic first log entry applied. It has no
    /// members until they are [found](Machine::found).
    pub fn new(options: MachineOptions) -> Self {
        let (store, dedup) = (Store::new(), DedupTable::default());
        let mut machine = Self {
            options,
            applied: LogIndex(1),
            term: Term(1),
            store,
            dedup,
            members: Arc::default(),
            access: Arc::default(),
            alarms: Arc::default(),
            version: ClusterVersion::FIRST,
            configuration: 0,
            asker: None,
        };
        machine.set_members(Members::default());
        machine
    }

    /// Says who founds the cluster.
    ///
    /// # Panics
    /// If an entry has been applied or members are known: the founders are the same on all members,
    /// before anything is.
    pub fn found(&mut self, members: Members) {
        assert!(self.applied <= RESEEDED_AT.0, "members are found before the first entry");
        assert!(*self.members == Members::default(), "members are found once");
        self.set_members(members);
    }

    /// From now on only the requests of this life of a node are answered whole. Of what became of others' nobody here
    /// is told more than that they were applied, and at which revision, so that the rows of many are not in memory at
    /// once. What is applied and what is remembered is the same.
    pub fn answer_only(&mut self, node: NodeId, incarnation: Incarnation) {
        self.asker = Some((node, incarnation));
    }

    /// Applies the next log entry. An entry without items only counts as applied. Readers see
    /// nothing of it before [`Machine::publish`].
    ///
    /// # Errors
    /// A [`Fault`]: the state can no longer be trusted and must not be published.
    pub fn apply(
        &mut self,
        index: LogIndex,
        term: Term,
        items: Vec<Item>,
    ) -> Result<Applied, Fault> {
        self.expect_next(index)?;
        let shared = Arc::clone(self.store.shared());
        let mut turn = Turn { hold: Hold::new(&shared), done: Applied::default() };
        for item in items {
            match item {
                Item::Proposal(proposal) => self.apply_proposal(proposal, &mut turn)?,
                Item::Expire { term: counted, leases } if counted == term => {
                    turn.hold.begin(false);
                    for id in leases {
                        self.end_lease(id, &mut turn)?;
                    }
                }
                Item::Expire { .. } => {}
            }
        }
        let Turn { hold, done } = turn;
        drop(hold);
        (self.applied, self.term) = (index, term);
        let written: usize = done.changes.iter().map(|change| change.events.len()).sum();
        self.store.sweep(self.options.sweep_rows + 2 * written);
        Ok(done)
    }

    fn expect_next(&self, index: LogIndex) -> Result<(), Fault> {
        let applied = self.applied;
        if applied.get().checked_add(1) == Some(index.get()) {
            return Ok(());
        }
        Err(Fault::OutOfOrder { found: index, applied })
    }

    /// Applies the next log entry, which is one step of the membership. One that the members are not
    /// in a position to take is void, and `None` stands for one that the consensus has made void: it
    /// only counts as applied.
    ///
    /// # Errors
    /// A [`Fault`]: the state can no longer be trusted and must not be published.
    pub fn apply_member(
        &mut self,
        index: LogIndex,
        term: Term,
        change: Option<&MemberChange>,
    ) -> Result<Applied, Fault> {
        self.expect_next(index)?;
        let mut done = Applied::default();
        if let Some(change) = change
            && self.members.judge(change).is_ok()
        {
            let mut members = Members::clone(&self.members);
            members.apply(index, change);
            // Their requests would find no answers any more: they are closed from now on.
            for node in self.dedup.nodes().filter(|id| members.is_removed(*id)).collect::<Vec<_>>()
            {
                self.dedup.forget(node);
            }
            self.set_members(members);
            done.members = Some(Arc::clone(&self.members));
        }
        (self.applied, self.term) = (index, term);
        Ok(done)
    }

    fn set_members(&mut self, members: Members) {
        self.members = Arc::new(members);
        self.store.shared().set_members(Arc::clone(&self.members));
        self.set_configuration();
    }

    pub(super) fn set_access(&mut self, access: Arc<Access>) {
        self.store.shared().set_access(Arc::clone(&access));
        self.access = access;
        self.set_configuration();
    }

    pub(super) fn set_alarms(&mut self, alarms: Arc<Alarms>) {
        self.store.shared().set_alarms(Arc::clone(&alarms));
        self.alarms = alarms;
        self.set_configuration();
    }

    fn set_configuration(&mut self) {
        self.configuration =
            digest::configuration(&self.members, &self.access, &self.alarms, self.version);
    }

    fn apply_proposal(&mut self, proposal: Proposal, turn: &mut Turn<'_>) -> Result<(), Fault> {
        let Proposal { node, incarnation, window, requests } = proposal;
        let is_asked_here = self.asker.is_none_or(|asker| asker == (node, incarnation));
        // Of a removed member no answers are kept, so that none of its requests may be executed: it
        // could have been before.
        if !self.members.is_removed(node) {
            self.dedup.hear(node, incarnation, &window);
        }
        for (seq, command) in requests {
            let id = RequestId { node, incarnation, seq };
            let outcome = match self.dedup.judge(id) {
                DedupVerdict::Closed => Err(Rejection::Closed),
                DedupVerdict::Answered(outcome) => outcome,
                DedupVerdict::New => {
                    let outcome = match self.execute(id, command, turn) {
                        Ok(reply) => Ok(reply),
                        Err(Stop::Refused(refusal)) => Err(refusal),
                        Err(Stop::Fault(fault)) => return Err(fault),
                    };
                    self.dedup.remember(id, &outcome);
                    outcome
                }
            };
            let told = if is_asked_here { outcome } else { dedup_table::without_rows(&outcome) };
            turn.done.outcomes.push((id, told));
        }
        Ok(())
    }

    /// Lets readers see everything applied so far.
    pub fn publish(&mut self) {
        self.store.publish();
    }

    /// One number for everything applied: equal on all replicas that have applied the same entries,
    /// whatever each has swept. Costs the same however large the state is.
    pub fn digest(&self) -> u64 {
        let parts = Parts {
            applied: self.applied,
            rows: self.store.fingerprint(),
            revision: self.store.revision(),
            compacted: self.store.compacted(),
            leases: self.store.shared().leases().fingerprint(),
            dedup: self.dedup.fingerprint(),
            configuration: self.configuration,
        };
        parts.digest()
    }

    /// Changes a lease in memory, and nothing that would tell.
    #[cfg(test)]
    pub(crate) fn rot_lease(&mut self) {
        assert!(self.store.shared().leases_mut().rot(), "there is a lease");
    }

    /// The whole state as of the last entry applied, to be read later, from any thread. What has
    /// been applied and not published belongs to it.
    pub fn image(&self) -> Image {
        let (shared, digest) = (self.store.shared(), self.digest());
        let leases = shared.leases();
        let without = |part: Mutant| mutant::is(part);
        let head = StateHead {
            version: self.version,
            index: self.applied,
            term: self.term,
            revision: self.store.revision(),
            compacted: self.store.compacted().filter(|_| !without(Mutant::M18c)),
            past: self.store.past(),
            next_lease: if without(Mutant::M18b) { 1 } else { leases.next() },
            members: Members::clone(&self.members),
            access: Access::clone(&self.access),
            alarms: Alarms::clone(&self.alarms),
            digest,
        };
        let copy = if without(Mutant::M18a) { Default::default() } else { leases.copy() };
        drop(leases);
        let dedup = if without(Mutant::M16) { Default::default() } else { self.dedup.copy() };
        Image::new(head, shared, copy, dedup)
    }

    /// A machine made of the parts of another one, with everything published.
    ///
    /// # Errors
    /// They are not the parts of a state, or not of the one that `head` tells of.
    pub fn restore(
        options: MachineOptions,
        head: StateHead,
        pieces: impl IntoIterator<Item = SnapshotRecord>,
    ) -> Result<Self, RestoreError> {
        let mut restore = Restore::new(options, head)?;
        pieces.into_iter().try_for_each(|piece| restore.add(piece))?;
        restore.finish()
    }

    /// Takes over the state of `later`, a machine that has applied more of the same log, and
    /// publishes it. Readers go on, and see it at once. Gives back the old state, to be dropped
    /// where nobody waits for it. Images of it cannot be read on.
    ///
    /// # Errors
    /// A [`Fault`]: the other one is not later, or was not fed the same log. Nothing has changed.
    pub fn install(&mut self, mut later: Machine) -> Result<Machine, Fault> {
        let (applied, found) = (self.applied, later.applied);
        if found < applied {
            return Err(Fault::OutOfOrder { found, applied });
        }
        let (ours, theirs) = (self.newest(), later.newest());
        if theirs.revision < ours.revision || theirs.compacted < ours.compacted {
            let (found, revision) = (theirs.revision, ours.revision);
            return Err(Fault::Backwards { found, revision });
        }
        later.publish();
        self.store.swap(&mut later.store);
        std::mem::swap(&mut self.dedup, &mut later.dedup);
        std::mem::swap(&mut self.members, &mut later.members);
        std::mem::swap(&mut self.access, &mut later.access);
        std::mem::swap(&mut self.alarms, &mut later.alarms);
        (later.applied, self.applied) = (self.applied, later.applied);
        (later.term, self.term) = (self.term, later.term);
        (later.version, self.version) = (self.version, later.version);
        (later.configuration, self.configuration) = (self.configuration, later.configuration);
        Ok(later)
    }

    /// Who belongs to the cluster, as of the last entry applied.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// What all members understand, as of the last entry applied.
    pub fn version(&self) -> ClusterVersion {
        self.version
    }

    /// The term of the last entry applied.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The last entry applied.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// The newest revision, published or not.
    pub fn revision(&self) -> Revision {
        self.store.revision()
    }

    /// What the table of answers knows of a request: what became of it; [`Rejection::Closed`], if it
    /// is too late to say and it will not be applied any more; or nothing.
    pub fn answer(&self, id: RequestId) -> Option<Outcome> {
        if self.members.is_removed(id.node) {
            return Some(Err(Rejection::Closed));
        }
        self.dedup.answer(id)
    }

    /// Checks the next `rows` versions in memory against their checksums, round and round.
    ///
    /// # Errors
    /// [`Fault::Rotten`], for one that has changed.
    pub fn scrub(&mut self, rows: usize) -> Result<(), Fault> {
        self.store.scrub(rows)
    }

    /// Gives back the memory of about `rows` compacted versions, beside what every
    /// [`Machine::apply`] does. True if there is more to do.
    pub fn sweep(&mut self, rows: usize) -> bool {
        self.store.sweep(rows)
    }

    /// Whether nothing that is compacted takes memory any more.
    pub fn is_swept(&self) -> bool {
        self.store.is_swept()
    }

    /// Every lease with its time to live, by id.
    pub fn leases(&self) -> Vec<(LeaseId, Duration)> {
        self.store.shared().leases().ids().collect()
    }

    /// The leases of the own sessions that lives of `node` before `incarnation` have left behind.
    pub fn left_behind(&self, node: NodeId, incarnation: Incarnation) -> Vec<LeaseId> {
        self.store.shared().leases().left_behind(node, incarnation)
    }

    /// A reader of what is published.
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(self.store.shared()))
    }

    /// Flips one bit of the newest version of `key` in memory, as a failing memory would. True if
    /// there is such a key.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn rot(&mut self, key: &[u8]) -> bool {
        self.store.rot(key)
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("applied", &self.applied)
            .field("revision", &self.store.revision())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

//! The state machine, which interprets the log.
//!
//! It takes log entries in order. Its results are the reply to each request in them, the changes,
//! and a state that readers on other threads see. The result is identical on every replica:
//! applying an entry uses no clock, no randomness, no node-specific data, and no map with a random
//! order. A [digest](Machine::digest) of the whole state verifies this with one number.
//!
//! ```text
//!    entry = items
//!      |
//!      v
//!   [apply] --- [answers]   was this request applied before?         exactly once
//!      |
//!      +------- [access]    may the caller do this?                  by the users and roles of the state
//!      |
//!      +------- [alarms]    does an active alarm forbid it?          (a table of the model)
//!      |
//!      +------- [txn]       which branch, and is it valid?           decided before the first write
//!      |
//!      +------- [store]     key -> versions, revision -> changes     index, history, sweep
//!      |
//!      +------- [lease]     existing leases and their keys           no deadlines here
//!      |
//!      v
//!   Applied: outcomes, changes, leases          publish -> [reader]
//! ```
//!
//! `store` and `lease` do not depend on each other. This module connects them: a put that attaches
//! a key, and an ended lease whose keys are deleted.
//!
//! # Revisions
//! The store begins empty at revision 1. A request that changes at least one key increases the
//! revision by exactly one, however many keys it changes. A request that changes no key does not
//! increase it. A rejected request has no effect at all.
//!
//! # Time
//! The machine has no notion of time. A lease ends because the log contains its expiry, an item
//! like any other. The item is ignored if its term differs from that of its entry, that is, if the
//! leader that measured the time is not the leader that appended the entry.
//!
//! # Compaction
//! After a compaction at R, reads before R are rejected. Everything that a read at R sees is kept,
//! and so are the changes made at R itself, including deletions. Replies and the digest depend only
//! on the number R. The memory is freed gradually afterwards (see `store`).

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
use digest::DigestParts;
use execute::{ApplyTurn, Stop};
use shared::ReadHold;
use store::RowStore;

use crate::model::{
    Access, Alarms, ClusterVersion, Event, Fault, Incarnation, Item, LeaseId, LogIndex,
    MemberChange, Members, NodeId, Outcome, Proposal, Rejection, RequestId, Revision, SessionInfo,
    SnapshotRecord, StateHead, Term,
};
use crate::mutant::{self, Mutant};

/// Options for the memory management of the machine. They have no observable effect, so members may
/// differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineOptions {
    /// Number of compacted versions that are freed after each entry. Two more are freed for each
    /// version that the entry wrote, so that the sweep cannot fall behind. Default: 64.
    pub sweep_rows: usize,
    /// The newest cluster version that this machine supports. A later version is a fault. Default:
    /// [`ClusterVersion::NEWEST`]. Tests of upgrades use a lower one.
    pub known: ClusterVersion,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self { sweep_rows: 64, known: ClusterVersion::NEWEST }
    }
}

/// The replicated state and its single writer.
pub struct Machine {
    options: MachineOptions,
    applied: LogIndex,
    /// Term of the last applied entry.
    term: Term,
    store: RowStore,
    dedup: DedupTable,
    members: Arc<Members>,
    access: Arc<Access>,
    alarms: Arc<Alarms>,
    version: ClusterVersion,
    /// Contribution of members, users, alarms and version to the digest.
    configuration: u64,
    /// The node whose requests get complete replies; all nodes if `None`. Not part of the state.
    asker: Option<(NodeId, Incarnation)>,
}

/// The result of one log entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// The outcome of each request in order. Outcomes for [other nodes](Machine::answer_only) have
    /// no rows.
    pub outcomes: Vec<(RequestId, Outcome)>,
    /// The changes, by revision.
    pub changes: Vec<Change>,
    /// The leases that were granted or ended, in order.
    pub leases: Vec<LeaseChange>,
    /// The last compacted revision, if there was a compaction.
    pub compacted: Option<Revision>,
    /// The members after the entry, if it changed the members or their attributes.
    pub members: Option<Arc<Members>>,
    /// Counts of the work done.
    pub tally: Tally,
}

/// Number of executed operations, inside and outside of transactions. Not part of the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Ranges in the log, that is, in transactions that write.
    pub ranges: u64,
    /// Puts.
    pub puts: u64,
    /// Bytes of their keys and values.
    pub put_bytes: u64,
    /// Deletes, however many keys each has deleted, and deletions of the keys of ended leases.
    pub deletes: u64,
    /// Transactions with more than one operation.
    pub txns: u64,
}

impl Tally {
    fn operations(&self) -> u64 {
        self.ranges + self.puts + self.deletes
    }
}

/// The changes of one revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The revision.
    pub revision: Revision,
    /// Its changes in the order in which the request made them, with the previous rows.
    pub events: Arc<[Event]>,
}

/// A lease that was granted or ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseChange {
    /// The lease was granted.
    Granted {
        /// Id of the lease.
        id: LeaseId,
        /// TTL of the lease.
        ttl: Duration,
        /// The session that the lease belongs to, if any.
        session: Option<(NodeId, Incarnation, SessionInfo)>,
    },
    /// The lease was revoked or has expired. Its keys are deleted.
    Ended {
        /// Id of the lease.
        id: LeaseId,
    },
}

impl Machine {
    /// Creates an empty state with the synthetic first log entry applied. It has no members until
    /// [`found`](Machine::found) is called.
    pub fn new(options: MachineOptions) -> Self {
        let (store, dedup) = (RowStore::new(), DedupTable::default());
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

    /// Sets the founders of the cluster.
    ///
    /// # Panics
    /// Panics if an entry has been applied or members are set already: all members must have the
    /// same founders before the first entry.
    pub fn found(&mut self, members: Members) {
        assert!(self.applied <= RESEEDED_AT.0, "members are found before the first entry");
        assert!(*self.members == Members::default(), "members are found once");
        self.set_members(members);
    }

    /// Restricts complete replies to the requests of this incarnation of a node. For other nodes,
    /// `apply` returns only that a request was applied, and the revision, so that the rows of many
    /// replies are not in memory at once. The state and the dedup table are not affected.
    pub fn answer_only(&mut self, node: NodeId, incarnation: Incarnation) {
        self.asker = Some((node, incarnation));
    }

    /// Applies the next log entry. An entry without items only advances the applied index. Readers
    /// see nothing of it before [`Machine::publish`].
    ///
    /// # Errors
    /// Returns a [`Fault`]. The state can no longer be trusted and must not be published.
    pub fn apply(
        &mut self,
        index: LogIndex,
        term: Term,
        items: Vec<Item>,
    ) -> Result<Applied, Fault> {
        self.expect_next(index)?;
        let shared = Arc::clone(self.store.shared());
        let mut turn = ApplyTurn { hold: ReadHold::new(&shared), done: Applied::default() };
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
        let ApplyTurn { hold, done } = turn;
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

    /// Applies the next log entry, which is a membership change. An invalid change has no effect.
    /// `None` stands for a change that the consensus has discarded. In both cases only the applied
    /// index advances.
    ///
    /// # Errors
    /// Returns a [`Fault`]. The state can no longer be trusted and must not be published.
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
            // From now on all requests of removed members count as completed, because their replies
            // are removed.
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

    fn apply_proposal(
        &mut self,
        proposal: Proposal,
        turn: &mut ApplyTurn<'_>,
    ) -> Result<(), Fault> {
        let Proposal { node, incarnation, window, requests } = proposal;
        let is_asked_here = self.asker.is_none_or(|asker| asker == (node, incarnation));
        // The replies for a removed member are gone. None of its requests may be executed, because
        // it may have been executed before.
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
                        Err(Stop::Refused(rejection)) => Err(rejection),
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

    /// Makes everything applied so far visible to readers.
    pub fn publish(&mut self) {
        self.store.publish();
    }

    /// Returns the digest of everything applied. It is equal on all replicas that have applied the
    /// same entries, regardless of what each has swept. The cost does not depend on the size of the
    /// state.
    pub fn digest(&self) -> u64 {
        let parts = DigestParts {
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

    /// Corrupts a lease in memory without updating the sums.
    #[cfg(test)]
    pub(crate) fn rot_lease(&mut self) {
        assert!(self.store.shared().leases_mut().rot(), "there is a lease");
    }

    /// Takes an image of the whole state as of the last applied entry, to be read later on any
    /// thread. It includes changes that are applied but not published.
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

    /// Rebuilds a machine from the pieces of another one, with everything published.
    ///
    /// # Errors
    /// Fails if the pieces are invalid, or do not belong to the state that `head` describes.
    pub fn restore(
        options: MachineOptions,
        head: StateHead,
        pieces: impl IntoIterator<Item = SnapshotRecord>,
    ) -> Result<Self, RestoreError> {
        let mut restore = Restore::new(options, head)?;
        pieces.into_iter().try_for_each(|piece| restore.add(piece))?;
        restore.finish()
    }

    /// Installs the state of `later`, a machine that has applied more of the same log, and
    /// publishes it. Existing readers see it at once. Returns the old state, so that the caller can
    /// drop it where it delays no other work. Images of the old state cannot be read further.
    ///
    /// # Errors
    /// Returns a [`Fault`] if the other machine is not later, or does not stem from the same log.
    /// Nothing has changed in that case.
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

    /// Returns the members as of the last applied entry.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Returns the cluster version as of the last applied entry.
    pub fn version(&self) -> ClusterVersion {
        self.version
    }

    /// Returns the term of the last applied entry.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Returns the index of the last applied entry.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Returns the newest revision, published or not.
    pub fn revision(&self) -> Revision {
        self.store.revision()
    }

    /// Returns what the dedup table knows of a request: its outcome, or [`Rejection::Closed`] if the
    /// outcome is no longer known and the request will not be applied any more. Returns `None` if
    /// the request is unknown.
    pub fn answer(&self, id: RequestId) -> Option<Outcome> {
        if self.members.is_removed(id.node) {
            return Some(Err(Rejection::Closed));
        }
        self.dedup.answer(id)
    }

    /// Verifies the checksums of the next `rows` versions in memory, cyclically.
    ///
    /// # Errors
    /// Returns [`Fault::Rotten`] for a version that has changed.
    pub fn scrub(&mut self, rows: usize) -> Result<(), Fault> {
        self.store.scrub(rows)
    }

    /// Frees the memory of about `rows` compacted versions, in addition to what each
    /// [`Machine::apply`] frees. Returns true if there is more to free.
    pub fn sweep(&mut self, rows: usize) -> bool {
        self.store.sweep(rows)
    }

    /// Returns whether all memory of compacted versions is freed.
    pub fn is_swept(&self) -> bool {
        self.store.is_swept()
    }

    /// Returns every lease with its TTL, in the order of their ids.
    pub fn leases(&self) -> Vec<(LeaseId, Duration)> {
        self.store.shared().leases().ids().collect()
    }

    /// Returns the leases of the own sessions that incarnations of `node` before `incarnation` have
    /// left behind.
    pub fn left_behind(&self, node: NodeId, incarnation: Incarnation) -> Vec<LeaseId> {
        self.store.shared().leases().left_behind(node, incarnation)
    }

    /// Returns a reader of the published state.
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(self.store.shared()))
    }

    /// Flips one bit of the newest version of `key` in memory, as failing memory would. Returns
    /// true if the key exists.
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

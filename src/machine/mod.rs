//! The state machine, which interprets the log.
//!
//! The machine takes log entries in order. For each entry it returns the replies to the requests in
//! the entry, and the changes of rows. Readers on other threads see the resulting state. The state
//! is identical on every replica, because applying an entry uses no clock, no randomness, no
//! node-specific data, and no map with a random order. To verify that the states are equal,
//! replicas compare a [digest](Machine::digest) of the whole state.
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
//! `store` and `lease` do not depend on each other. This module connects the store and the leases:
//! a put can attach a key to a lease, and when a lease ends, its keys are deleted.
//!
//! # Revisions
//! The store begins empty at revision 1. A request that changes at least one key increases the
//! revision by exactly one, however many keys it changes. A request that changes no key does not
//! increase the revision. A rejected request has no effect at all.
//!
//! # Time
//! The machine has no notion of time. A lease expires when the leader appends an expiry of the
//! lease to the log. The expiry contains the term of the leader that measured the time. If this
//! term differs from the term of the log entry, another leader has appended the entry, and the
//! expiry is ignored.
//!
//! # Compaction
//! After a compaction at R, reads before R are rejected. All rows that a read at R sees are kept,
//! and so are the changes made at R itself, including deletions. The older versions are freed
//! gradually in the background (see `store`). How much was freed affects neither replies nor the
//! digest; they depend only on the number R.

mod access;
mod change;
mod dedup_table;
mod digest;
mod execute;
mod follow;
mod history;
mod image;
mod index;
#[cfg(any(test, feature = "sim"))]
mod inspect;
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

pub use change::Change;
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
    Access, Alarms, ClusterVersion, Fault, Incarnation, Item, LeaseId, LogIndex, MemberChange,
    Members, NodeId, Outcome, Proposal, Rejection, RequestId, Revision, SessionInfo,
    SnapshotRecord, StateHead, Term,
};

/// Options for the memory management of the machine. The options do not affect results, so members
/// may have different options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineOptions {
    /// Number of compacted versions that are freed after each entry. For each version that the
    /// entry wrote, two more versions are freed, so that the sweep cannot fall behind. Default: 64.
    pub sweep_rows: usize,
    /// The newest cluster version that this machine supports. If the log raises the cluster version
    /// above this version, the machine reports a fault. Default: [`ClusterVersion::NEWEST`]. Tests
    /// of upgrades use a lower version.
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
    /// The node whose requests get complete replies. If `None`, the requests of all nodes get
    /// complete replies. Not part of the state.
    requester: Option<(NodeId, Incarnation)>,
}

/// The result of one log entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// The outcome of each request in order. Outcomes of requests of [other
    /// nodes](Machine::answer_only) contain no rows.
    pub outcomes: Vec<(RequestId, Outcome)>,
    /// The changes, grouped by revision.
    pub changes: Vec<Change>,
    /// The leases that were granted or ended, in order.
    pub leases: Vec<LeaseChange>,
    /// The last compacted revision, if there was a compaction.
    pub compacted: Option<Revision>,
    /// The members after the entry, if it changed the members or their attributes.
    pub members: Option<Arc<Members>>,
    /// Numbers of operations that the entry has executed.
    pub tally: Tally,
}

/// Number of executed operations, inside and outside of transactions. Not part of the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Ranges that were read by commands in the log, that is, by transactions that write.
    pub ranges: u64,
    /// Puts.
    pub puts: u64,
    /// Bytes of the keys and values of all puts.
    pub put_bytes: u64,
    /// Number of delete operations, each counted once for any number of keys, plus the deletions of
    /// the keys of ended leases.
    pub deletes: u64,
    /// Transactions with more than one operation.
    pub txns: u64,
}

impl Tally {
    fn operations(&self) -> u64 {
        self.ranges + self.puts + self.deletes
    }
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
    /// Creates an empty state with the synthetic first log entry applied. The new state has no
    /// members until [`found`](Machine::found) is called.
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
            requester: None,
        };
        machine.set_members(Members::default());
        machine
    }

    /// Sets the founders of the cluster.
    ///
    /// # Panics
    /// Panics if an entry was applied or members were set before, because all members must have the
    /// same founders before the first entry.
    pub fn found(&mut self, members: Members) {
        assert!(self.applied <= RESEEDED_AT.0, "members are found before the first entry");
        assert!(*self.members == Members::default(), "members are found once");
        self.set_members(members);
    }

    /// Restricts complete replies to the requests of this incarnation of a node. For other nodes,
    /// `apply` returns only that a request was applied, and the revision. This saves the memory for
    /// the rows of the other replies. The state and the dedup table are not affected.
    pub fn answer_only(&mut self, node: NodeId, incarnation: Incarnation) {
        self.requester = Some((node, incarnation));
    }

    /// Applies the next log entry. An entry without items only advances the applied index. Readers
    /// see the result only after [`Machine::publish`].
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
        let written: usize = done.changes.iter().map(Change::row_count).sum();
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
    /// `None` stands for a change that the consensus has discarded. An invalid or discarded change
    /// only advances the applied index.
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
            && self.members.validate(change).is_ok()
        {
            let mut members = Members::clone(&self.members);
            members.apply(index, change);
            // The replies to removed members are dropped, so all requests of removed members count
            // as completed from now on.
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
        let is_asked_here = self.requester.is_none_or(|requester| requester == (node, incarnation));
        // The replies to a removed member were dropped. Requests of a removed member must not be
        // executed, because they may have been executed before.
        if !self.members.is_removed(node) {
            self.dedup.record_window(node, incarnation, &window);
        }
        turn.done.outcomes.reserve(requests.len());
        turn.done.changes.reserve(requests.len());
        for (seq, command) in requests {
            let id = RequestId { node, incarnation, seq };
            let outcome = match self.dedup.check(id) {
                DedupVerdict::Closed => Err(Rejection::Closed),
                DedupVerdict::Answered(outcome) => outcome,
                DedupVerdict::New => {
                    let outcome = match self.execute(id, command, turn) {
                        Ok(reply) => Ok(reply),
                        Err(Stop::Refused(rejection)) => Err(rejection),
                        Err(Stop::Fault(fault)) => return Err(fault),
                    };
                    self.dedup.record_reply(id, &outcome);
                    outcome
                }
            };
            let reported =
                if is_asked_here { outcome } else { dedup_table::without_rows(&outcome) };
            turn.done.outcomes.push((id, reported));
        }
        Ok(())
    }

    /// Makes everything applied so far visible to readers.
    pub fn publish(&mut self) {
        self.store.publish();
    }

    /// Returns the digest of everything applied. The digest is equal on all replicas that have
    /// applied the same entries, even if they have freed different compacted versions. Computing
    /// the digest takes the same time for a small and for a large state.
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

    /// Takes an image of the whole state as of the last applied entry. The image can be read later,
    /// on any thread. An image includes changes that are applied but not published.
    pub fn image(&self) -> Image {
        let (shared, digest) = (self.store.shared(), self.digest());
        let leases = shared.leases();
        let mut head = StateHead {
            version: self.version,
            index: self.applied,
            term: self.term,
            revision: self.store.revision(),
            compacted: self.store.compacted(),
            past: self.store.past(),
            next_lease: leases.next(),
            members: Members::clone(&self.members),
            access: Access::clone(&self.access),
            alarms: Alarms::clone(&self.alarms),
            digest,
        };
        mutant!(M18b, head.next_lease = 1);
        mutant!(M18c, head.compacted = None);
        let mut copy = leases.copy();
        mutant!(M18a, copy = Default::default());
        drop(leases);
        let mut dedup = self.dedup.copy();
        mutant!(M16, dedup = Default::default());
        Image::new(head, shared, copy, dedup)
    }

    /// Rebuilds a machine from the pieces of another machine, and publishes its whole state.
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

    /// Installs and publishes the state of `later`, a machine that has applied more entries of the
    /// same log. Existing readers see the new state at once. Returns the old state, so that the
    /// caller can drop it at a time when this delays no other work. Images of the old state cannot
    /// be read any further.
    ///
    /// # Errors
    /// Returns a [`Fault`] and changes nothing if `later` is not a later state, or does not come
    /// from the same log.
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

    /// Returns the newest applied revision, even if it is not visible to readers yet.
    pub fn revision(&self) -> Revision {
        self.store.revision()
    }

    /// Looks a request up in the dedup table. Returns its outcome, or [`Rejection::Closed`] if the
    /// request is completed, its outcome is no longer stored, and it will never be applied. Returns
    /// `None` if the request is unknown.
    pub fn answer(&self, id: RequestId) -> Option<Outcome> {
        if self.members.is_removed(id.node) {
            return Some(Err(Rejection::Closed));
        }
        self.dedup.answer(id)
    }

    /// Verifies the checksums of the next `rows` versions in memory. After the last version, the
    /// next call begins again with the first.
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

    /// Returns the leases of the node sessions that earlier incarnations of `node` than
    /// `incarnation` have left behind.
    pub fn left_behind(&self, node: NodeId, incarnation: Incarnation) -> Vec<LeaseId> {
        self.store.shared().leases().left_behind(node, incarnation)
    }

    /// Returns a reader of the published state.
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(self.store.shared()))
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

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
mod answers;
mod digest;
mod follow;
mod history;
mod image;
mod index;
mod lease;
mod page;
mod range_set;
mod read;
mod reader;
mod reseed;
mod restore;
mod row;
mod shared;
mod store;
mod txn;

use std::sync::Arc;
use std::time::Duration;

pub use follow::{ChangesPage, RowsPage};
pub use image::{Image, ImageError};
pub use lease::{LeaseInfo, SessionOf};
pub use reader::{HistoryPage, Reader};
pub use reseed::{RESEEDED_AT, REVISION_JUMP, Reseed};
pub use restore::{Restore, RestoreError};
pub use txn::only_reads;

use answers::{Answers, Verdict};
use digest::Fingerprint;
use read::resolve;
use row::RowRef;
use shared::{Hold, Published, Replaced, Scan};
use store::{Mutation, Store};
use txn::{Path, Unfit, check_put, is_wide};

use crate::model::{
    Access, Alarms, ClusterVersion, Command, Delete, DeleteReply, Event, Fault, GrantReply,
    Incarnation, Introduction, Item, LeaseId, Limits, LogIndex, MemberChange, Members, NodeId, Op,
    Outcome, Piece, Proposal, Put, PutLease, PutReply, PutValue, Refusal, Reply, RequestId,
    Revision, RevokeReply, SessionInfo, StateHead, Term, Txn, TxnReply, TxnResult,
};
use crate::mutant::{self, Mutant};

/// What every command must satisfy to be executed, whatever limits the members are configured with:
/// keys are not empty, no key is written twice, and nesting ends before the stack does. The sizes
/// are beyond what an entry can hold, and small enough to be added up.
const STRUCTURE: Limits = Limits {
    key_bytes_max: usize::MAX / 4,
    value_bytes_max: usize::MAX / 4,
    request_bytes_max: usize::MAX / 2,
    txn_ops_max: 1 << 14,
    txn_depth_max: Limits::TXN_DEPTH_CEILING,
};

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
    answers: Answers,
    members: Arc<Members>,
    access: Arc<Access>,
    alarms: Arc<Alarms>,
    version: ClusterVersion,
    /// What members, users, alarms and version add to the digest.
    configuration: u64,
}

/// What came of one log entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// What became of each request in it, in order.
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

/// One entry on its way through the machine.
struct Turn<'a> {
    hold: Hold<'a>,
    done: Applied,
}

/// Why a command was not executed to its end.
enum Stop {
    /// It had no effect.
    Refused(Refusal),
    /// The node must stop.
    Fault(Fault),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Stop::Refused(refusal)
    }
}

impl From<Unfit> for Stop {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Refused(refusal) => Stop::Refused(refusal),
            Unfit::Replaced => Replaced.into(),
        }
    }
}

impl From<Replaced> for Stop {
    fn from(_: Replaced) -> Self {
        unreachable!("the writer's content is replaced by the writer, between two entries")
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Stop::Fault(fault)
    }
}

impl Machine {
    /// A state in which nothing has happened, with the synthetic first log entry applied. It has no
    /// members until they are [found](Machine::found).
    pub fn new(options: MachineOptions) -> Self {
        let (store, answers) = (Store::new(), Answers::default());
        let mut machine = Self {
            options,
            applied: LogIndex(1),
            term: Term(1),
            store,
            answers,
            members: Arc::default(),
            access: Arc::default(),
            alarms: Arc::default(),
            version: ClusterVersion::FIRST,
            configuration: 0,
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
            for node in
                self.answers.nodes().filter(|id| members.is_removed(*id)).collect::<Vec<_>>()
            {
                self.answers.forget(node);
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
        let print = Fingerprint::default().members(&self.members).access(&self.access);
        let print = print.alarms(&self.alarms);
        self.configuration = print.number(self.version.get()).finish();
    }

    fn apply_proposal(&mut self, proposal: Proposal, turn: &mut Turn<'_>) -> Result<(), Fault> {
        let Proposal { node, incarnation, window, requests } = proposal;
        // Of a removed member no answers are kept, so that none of its requests may be executed: it
        // could have been before.
        if !self.members.is_removed(node) {
            self.answers.hear(node, incarnation, &window);
        }
        for (seq, command) in requests {
            let id = RequestId { node, incarnation, seq };
            let outcome = match self.answers.judge(id) {
                Verdict::Closed => Err(Refusal::Closed),
                Verdict::Answered(outcome) => outcome,
                Verdict::New => {
                    let outcome = match self.execute(id, command, turn) {
                        Ok(reply) => Ok(reply),
                        Err(Stop::Refused(refusal)) => Err(refusal),
                        Err(Stop::Fault(fault)) => return Err(fault),
                    };
                    self.answers.remember(id, &outcome);
                    outcome
                }
            };
            turn.done.outcomes.push((id, outcome));
        }
        Ok(())
    }

    fn execute(
        &mut self,
        by: RequestId,
        command: Command,
        turn: &mut Turn<'_>,
    ) -> Result<Reply, Stop> {
        STRUCTURE.check(&command)?;
        let (command, is_acting) = match command {
            Command::As(caller, command) => {
                let leases = self.store.shared().leases();
                access::judge(&self.access, &caller, &command, &leases).map_err(Refusal::from)?;
                (*command, true)
            }
            command => (command, false),
        };
        self.alarms.judge(&command, is_acting)?;
        turn.hold.begin(is_wide(&command));
        let newest = self.newest();
        match command {
            Command::Put(put) => {
                check_put(&put, &turn.hold.snapshot(newest.revision))?;
                let mut mutation = self.store.begin();
                let reply = self.put(turn, &mut mutation, &put)?;
                self.commit(turn, mutation);
                Ok(Reply::Put(reply))
            }
            Command::Delete(delete) => {
                let mut mutation = self.store.begin();
                let reply = self.delete(turn, &mut mutation, &delete)?;
                self.commit(turn, mutation);
                Ok(Reply::Delete(reply))
            }
            Command::Txn(txn) => {
                let before = turn.hold.snapshot(newest.revision);
                let path = Path::judge(&txn, &before)?;
                path.check(&txn, &before, newest)?;
                let mut mutation = self.store.begin();
                let operations = turn.done.tally.operations();
                let reply = self.txn(turn, &mut mutation, &txn, &path)?;
                let operations = turn.done.tally.operations() - operations;
                turn.done.tally.txns += u64::from(operations > 1);
                self.commit(turn, mutation);
                Ok(Reply::Txn(reply))
            }
            Command::Compact(at) => self.compact(at, turn),
            Command::Grant { id, ttl, session } => {
                let session = session.map(|info| (by.node, by.incarnation, info));
                self.grant(id, ttl, session, turn)
            }
            Command::Revoke(id) => {
                let Some(deleted) = self.end_lease(id, turn)? else {
                    return Err(Refusal::LeaseNotFound(id).into());
                };
                Ok(Reply::Revoke(RevokeReply { revision: self.store.revision(), deleted }))
            }
            Command::Announce(introduction) => self.announce(by.node, &introduction, turn),
            Command::Raise(version) => self.raise(version),
            Command::Access(change) => {
                let mut access = Access::clone(&self.access);
                access.apply(change).map_err(Refusal::from)?;
                self.set_access(Arc::new(access));
                Ok(Reply::Noted { revision: self.store.revision() })
            }
            Command::Alarm(change) => {
                let mut alarms = Alarms::clone(&self.alarms);
                let answer = alarms.apply(&change)?;
                if alarms != *self.alarms {
                    self.set_alarms(Arc::new(alarms));
                }
                Ok(Reply::Alarms { revision: self.store.revision(), alarms: answer })
            }
            Command::As(..) => unreachable!("no caller's caller is decoded, and none is proposed"),
        }
    }

    /// The node that asks is called so, and is there.
    fn announce(
        &mut self,
        node: NodeId,
        introduction: &Introduction,
        turn: &mut Turn<'_>,
    ) -> Result<Reply, Stop> {
        let mut members = Members::clone(&self.members);
        if !members.announce(node, introduction) {
            return Err(Refusal::NotMember(node).into());
        }
        if members != *self.members {
            self.set_members(members);
            turn.done.members = Some(Arc::clone(&self.members));
        }
        Ok(Reply::Noted { revision: self.store.revision() })
    }

    /// What all members understand rises to `version`, if it is not there yet.
    fn raise(&mut self, version: ClusterVersion) -> Result<Reply, Stop> {
        let known = self.options.known;
        if version > known {
            return Err(Fault::Outgrown { version, known }.into());
        }
        self.version = self.version.max(version);
        self.set_configuration();
        Ok(Reply::Noted { revision: self.store.revision() })
    }

    /// What a read in the log may ask for: published or not makes no difference there.
    fn newest(&self) -> Published {
        Published { revision: self.store.revision(), compacted: self.store.compacted() }
    }

    fn commit(&mut self, turn: &mut Turn<'_>, mutation: Mutation) {
        turn.done.changes.extend(self.store.commit(&mut turn.hold, mutation));
    }

    /// A put that has been checked.
    fn put(
        &mut self,
        turn: &mut Turn<'_>,
        mutation: &mut Mutation,
        put: &Put,
    ) -> Result<PutReply, Stop> {
        let before = match (&put.value, put.lease) {
            (PutValue::Set(_), PutLease::None | PutLease::Attach(_)) => None,
            (PutValue::Keep, _) | (_, PutLease::Keep) => {
                turn.hold.snapshot(mutation.revision()).get(&put.key)?
            }
        };
        let before = before.as_ref().map(row::Row::view);
        let value = match &put.value {
            PutValue::Set(value) => value.clone(),
            PutValue::Keep => before.map(RowRef::shared_value).unwrap_or_default(),
        };
        let lease = match put.lease {
            PutLease::None => None,
            PutLease::Attach(lease) => Some(lease),
            PutLease::Keep => before.and_then(|row| row.meta().lease),
        };
        let event = self.store.put(&mut turn.hold, mutation, &put.key, &value, lease)?;
        let prev = event.prev.as_ref();
        let lease_before = prev.and_then(|kv| kv.lease);
        let reply = PutReply {
            revision: event.revision(),
            prev: if put.prev_kv { prev.cloned() } else { None },
        };
        self.attach(&put.key, lease_before, lease);
        turn.done.tally.puts += 1;
        turn.done.tally.put_bytes += (put.key.len() + value.len()) as u64;
        Ok(reply)
    }

    fn delete(
        &mut self,
        turn: &mut Turn<'_>,
        mutation: &mut Mutation,
        delete: &Delete,
    ) -> Result<DeleteReply, Stop> {
        turn.done.tally.deletes += 1;
        let mut keys = Vec::new();
        turn.hold.snapshot(mutation.revision()).scan(&delete.range, |row| {
            keys.push(row.to_row());
            Scan::On
        })?;
        let mut prev_kvs = Vec::new();
        let mut deleted = 0;
        for row in &keys {
            let key = row.view().key();
            let event = self
                .store
                .delete(&mut turn.hold, mutation, key)?
                .expect("a row that was just seen");
            let prev = event.prev.as_ref().expect("a deletion of something");
            let lease = prev.lease;
            if delete.prev_kv {
                prev_kvs.push(prev.clone());
            }
            deleted += 1;
            self.attach(key, lease, None);
        }
        Ok(DeleteReply { revision: self.store.revision_in(mutation), deleted, prev_kvs })
    }

    fn attach(&mut self, key: &[u8], before: Option<LeaseId>, now: Option<LeaseId>) {
        if before != now {
            self.store.shared().leases_mut().attach(key, before, now);
        }
    }

    /// A transaction that has been checked along its path.
    fn txn(
        &mut self,
        turn: &mut Turn<'_>,
        mutation: &mut Mutation,
        txn: &Txn,
        path: &Path,
    ) -> Result<TxnReply, Stop> {
        let mut nested = path.nested.iter();
        let mut results = Vec::new();
        for op in path.branch(txn) {
            results.push(match op {
                Op::Range(range) => {
                    let revision = self.store.revision_in(mutation);
                    let mut snapshot = turn.hold.snapshot(mutation.revision());
                    if range.revision.is_some_and(|asked| asked > Revision(0)) {
                        snapshot = snapshot.at(resolve(range.revision, self.newest())?);
                    }
                    turn.done.tally.ranges += 1;
                    TxnResult::Range(snapshot.range(range, revision)?)
                }
                Op::Put(put) => TxnResult::Put(self.put(turn, mutation, put)?),
                Op::Delete(delete) => TxnResult::Delete(self.delete(turn, mutation, delete)?),
                Op::Txn(txn) => {
                    let path = nested.next().expect("a path for each nested transaction");
                    TxnResult::Txn(self.txn(turn, mutation, txn, path)?)
                }
            });
        }
        let revision = self.store.revision_in(mutation);
        Ok(TxnReply { revision, succeeded: path.succeeded, results })
    }

    fn compact(&mut self, at: Revision, turn: &mut Turn<'_>) -> Result<Reply, Stop> {
        let newest = self.store.revision();
        if at > newest {
            return Err(Refusal::Future { asked: at, newest }.into());
        }
        if let Some(compacted) = self.store.compacted()
            && at <= compacted
        {
            return Err(Refusal::Compacted { asked: at, compacted }.into());
        }
        self.store.compact(at);
        turn.done.compacted = Some(at);
        Ok(Reply::Compacted { revision: newest })
    }

    fn grant(
        &mut self,
        id: Option<LeaseId>,
        ttl: Duration,
        session: Option<(NodeId, Incarnation, SessionInfo)>,
        turn: &mut Turn<'_>,
    ) -> Result<Reply, Stop> {
        let shared = Arc::clone(self.store.shared());
        if let Some(id) = id
            && shared.leases().contains(id)
        {
            return Err(Refusal::LeaseExists(id).into());
        }
        if let Some((node, incarnation, SessionInfo { own: true, .. })) = session {
            let ghosts = shared.leases().left_behind(node, incarnation);
            for ghost in ghosts {
                self.end_lease(ghost, turn)?;
            }
        }
        let mut leases = shared.leases_mut();
        let id = match id {
            Some(id) => {
                leases.choose(id);
                id
            }
            None => leases.mint(),
        };
        leases.grant(id, ttl, session.clone());
        turn.done.leases.push(LeaseChange::Granted { id, ttl, session });
        Ok(Reply::Grant(GrantReply { revision: self.store.revision(), id, ttl }))
    }

    /// Ends a lease and deletes its keys, in key order, in one revision. Tells how many keys, or
    /// that there was no such lease.
    fn end_lease(&mut self, id: LeaseId, turn: &mut Turn<'_>) -> Result<Option<u64>, Fault> {
        let ended = self.store.shared().leases_mut().end(id);
        let Some(keys) = ended else { return Ok(None) };
        let mut mutation = self.store.begin();
        let mut deleted = 0;
        for key in &keys {
            let event = self.store.delete(&mut turn.hold, &mut mutation, key)?;
            let prev = event.and_then(|event| event.prev.as_ref());
            assert!(prev.is_some_and(|kv| kv.lease == Some(id)), "lease {id} held a foreign key");
            deleted += 1;
        }
        turn.done.tally.deletes += deleted;
        self.commit(turn, mutation);
        if mutant::is(Mutant::M28) {
            turn.done.changes.pop();
        }
        turn.done.leases.push(LeaseChange::Ended { id });
        Ok(Some(deleted))
    }

    /// Lets readers see everything applied so far.
    pub fn publish(&mut self) {
        self.store.publish();
    }

    /// One number for everything applied: equal on all replicas that have applied the same entries,
    /// whatever each has swept. Costs the same however large the state is.
    pub fn digest(&self) -> u64 {
        let print = Fingerprint::default().number(self.applied.get());
        let print = self.store.fingerprint().into_iter().fold(print, Fingerprint::number);
        let leases = self.store.shared().leases().fingerprint();
        let print = leases.into_iter().fold(print, Fingerprint::number);
        print.number(self.answers.fingerprint()).number(self.configuration).finish()
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
        let answers = if without(Mutant::M16) { Default::default() } else { self.answers.copy() };
        Image::new(head, shared, copy, answers)
    }

    /// A machine made of the parts of another one, with everything published.
    ///
    /// # Errors
    /// They are not the parts of a state, or not of the one that `head` tells of.
    pub fn restore(
        options: MachineOptions,
        head: StateHead,
        pieces: impl IntoIterator<Item = Piece>,
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
        std::mem::swap(&mut self.answers, &mut later.answers);
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

    /// What the table of answers knows of a request: what became of it; [`Refusal::Closed`], if it
    /// is too late to say and it will not be applied any more; or nothing.
    pub fn answer(&self, id: RequestId) -> Option<Outcome> {
        if self.members.is_removed(id.node) {
            return Some(Err(Refusal::Closed));
        }
        self.answers.answer(id)
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

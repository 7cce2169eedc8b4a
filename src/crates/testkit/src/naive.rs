//! A store that is obviously correct: the reference for the state machine.
//!
//! The model keeps a complete copy of every past state, and scans all rows for every request. It
//! has no limits, digests or memory accounting, and is slow. It follows the documentation of etcd
//! and `bowline::model`, and shares no code with `bowline::machine`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bowline::model::{
    AckWindow, Alarm, AlarmChange, Command, Delete, Event, GrantReply, Incarnation, Item, KeyRange,
    KeyValue, LeaseId, NodeId, Op, Outcome, Proposal, Put, PutLease, PutValue, Range, RangeReply,
    Rejection, Reply, RequestId, Revision, RevokeReply, SessionInfo, Term, Txn, TxnReply,
    TxnResult,
};
use bowline::sim::plain::{Draft, Path, PlainStep, State, asked, read};
use bytes::Bytes;

use crate::subject::{Applied, Lease, LeaseNews, Subject};

/// If a caller chooses a lease id above this limit, the id does not affect the ids that the store
/// assigns. (The scripts and the histories choose ids far from this limit.)
const MINTED_MAX: u64 = 1 << 31;

/// Above this size, an answer that is kept for repeated requests is kept without its rows.
const ANSWER_BYTES_MAX: usize = 1 << 10;

/// Overhead in bytes of a row, or of the result of an operation, in the size of an answer.
const PART_BYTES: usize = 96;

/// The requests of one node in its newest incarnation.
#[derive(Clone)]
struct Life {
    incarnation: Incarnation,
    /// All windows that the node sent in this incarnation.
    windows: Vec<AckWindow>,
    answers: BTreeMap<u64, Outcome>,
}

impl Life {
    fn is_closed(&self, seq: u64) -> bool {
        // Requests are numbered from 1.
        let is_closed_in = |window: &AckWindow| {
            seq < window.frontier && !window.open.iter().any(|open| open.contains(&seq))
        };
        seq == 0 || self.windows.iter().any(is_closed_in)
    }
}

#[derive(Clone)]
pub struct Naive {
    /// `states[n]` is the store at revision n + 1.
    states: Vec<State>,
    /// `events[n]` are the events of revision n + 1.
    events: Vec<Vec<Event>>,
    compacted: Option<Revision>,
    leases: BTreeMap<LeaseId, Lease>,
    /// Every id that a lease ever had.
    lease_ids: BTreeSet<LeaseId>,
    /// The revision that is visible to readers, and the compacted one.
    shown: (Revision, Option<Revision>),
    lives: BTreeMap<NodeId, Life>,
    alarms: BTreeSet<Alarm>,
    applied: Applied,
}

impl Default for Naive {
    fn default() -> Self {
        Self::new()
    }
}

impl Naive {
    pub fn new() -> Self {
        Self {
            states: vec![State::new()],
            events: vec![Vec::new()],
            compacted: None,
            leases: BTreeMap::new(),
            lease_ids: BTreeSet::new(),
            shown: (Revision::FIRST, None),
            lives: BTreeMap::new(),
            alarms: BTreeSet::new(),
            applied: Applied::default(),
        }
    }

    // ---- requests ----

    fn proposal(&mut self, proposal: &Proposal) {
        let fresh = || Life {
            incarnation: proposal.incarnation,
            windows: Vec::new(),
            answers: BTreeMap::new(),
        };
        let life = self.lives.entry(proposal.node).or_insert_with(fresh);
        if life.incarnation < proposal.incarnation {
            *life = fresh();
        }
        let outdated = life.incarnation > proposal.incarnation;
        if !outdated {
            life.windows.push(proposal.window.clone());
        }
        for (seq, command) in &proposal.requests {
            let life = &self.lives[&proposal.node];
            let outcome = if outdated || life.is_closed(*seq) {
                Err(Rejection::Closed)
            } else if let Some(answer) = life.answers.get(seq) {
                answer.clone()
            } else {
                let outcome = self.execute(proposal, command);
                let life = self.lives.get_mut(&proposal.node).expect("made above");
                life.answers.insert(*seq, kept(&outcome));
                outcome
            };
            let (node, incarnation) = (proposal.node, proposal.incarnation);
            self.applied.outcomes.push((RequestId { node, incarnation, seq: *seq }, outcome));
        }
    }

    fn execute(&mut self, proposal: &Proposal, command: &Command) -> Outcome {
        let kinds = self.alarms.iter().map(|alarm| alarm.kind);
        if let Some(kind) = kinds.max().filter(|_| adds(command)) {
            return Err(Rejection::Alarm(kind));
        }
        match command {
            Command::Put(put) => {
                self.check_put(put)?;
                let mut draft = self.draft();
                let reply = draft.put(put);
                self.keep(draft);
                Ok(Reply::Put(reply))
            }
            Command::Delete(delete) => {
                let mut draft = self.draft();
                let reply = draft.delete(delete);
                self.keep(draft);
                Ok(Reply::Delete(reply))
            }
            Command::Txn(txn) => {
                let path = Path::choose(txn, self.now());
                self.check_path(&path, (self.now_revision(), self.compacted))?;
                let mut draft = self.draft();
                let reply = draft.txn(&path, &|revision| self.at(revision).clone());
                self.keep(draft);
                Ok(Reply::Txn(reply))
            }
            Command::Compact(at) => {
                if let Some(compacted) = self.compacted.filter(|compacted| at <= compacted) {
                    return Err(Rejection::Compacted { asked: *at, compacted });
                }
                if *at > self.now_revision() {
                    return Err(Rejection::Future { asked: *at, newest: self.now_revision() });
                }
                self.compacted = Some(*at);
                self.applied.compacted = Some(*at);
                Ok(Reply::Compacted { revision: self.now_revision() })
            }
            Command::Announce { .. } => Err(Rejection::NotMember(proposal.node)),
            Command::Move { member, .. } => Err(Rejection::NotMember(*member)),
            Command::Access(_) | Command::As(..) => unreachable!("histories have no users"),
            Command::Alarm(change) => {
                let all = || self.alarms.iter().copied();
                let gone: Vec<Alarm> = match change {
                    AlarmChange::Raise(_) => Vec::new(),
                    AlarmChange::End(alarm) => all().filter(|other| other == alarm).collect(),
                    AlarmChange::EndAllOf(member) => {
                        all().filter(|other| other.member == Some(*member)).collect()
                    }
                    AlarmChange::EndAll => all().collect(),
                };
                self.alarms.retain(|alarm| !gone.contains(alarm));
                let raised = match change {
                    AlarmChange::Raise(alarm) => Some(*alarm),
                    _ => None,
                };
                self.alarms.extend(raised);
                let alarms = raised.into_iter().chain(gone).collect();
                Ok(Reply::Alarms { revision: self.now_revision(), alarms })
            }
            Command::Raise(_) => Ok(Reply::Noted { revision: self.now_revision() }),
            Command::Grant { id, ttl, session } => {
                self.grant(proposal, *id, *ttl, session.as_ref())
            }
            Command::Revoke(id) => {
                if !self.leases.contains_key(id) {
                    return Err(Rejection::LeaseNotFound(*id));
                }
                let deleted = self.end(*id);
                Ok(Reply::Revoke(RevokeReply { revision: self.now_revision(), deleted }))
            }
        }
    }

    fn grant(
        &mut self,
        proposal: &Proposal,
        id: Option<LeaseId>,
        ttl: Duration,
        session: Option<&SessionInfo>,
    ) -> Outcome {
        let id = match id {
            Some(id) if self.leases.contains_key(&id) => return Err(Rejection::LeaseExists(id)),
            Some(id) => id,
            None => self.mint(),
        };
        if session.is_some_and(|session| session.own) {
            let left_behind = |lease: &Lease| {
                lease.session.as_ref().is_some_and(|(node, incarnation, info)| {
                    *node == proposal.node && *incarnation < proposal.incarnation && info.own
                })
            };
            let ghosts = self.leases.iter().filter(|(_, lease)| left_behind(lease));
            let life =
                |lease: &Lease| lease.session.as_ref().map(|(_, incarnation, _)| *incarnation);
            let mut ghosts: Vec<_> = ghosts.map(|(id, lease)| (life(lease), *id)).collect();
            // Sort by incarnation, oldest first.
            ghosts.sort();
            for (_, ghost) in ghosts {
                self.end(ghost);
            }
        }
        self.lease_ids.insert(id);
        let session = session.map(|info| (proposal.node, proposal.incarnation, info.clone()));
        let lease = Lease { ttl, session };
        self.leases.insert(id, lease.clone());
        self.applied.leases.push(LeaseNews::Granted(id, lease));
        Ok(Reply::Grant(GrantReply { revision: self.now_revision(), id, ttl }))
    }

    /// Returns the next id that the store assigns: a small number that was never used, in increasing order.
    fn mint(&self) -> LeaseId {
        let small = self.lease_ids.iter().map(|id| id.get()).filter(|id| *id <= MINTED_MAX);
        LeaseId::new(small.max().unwrap_or(0) + 1).expect("not 0")
    }

    /// Ends an existing lease. Its keys are deleted in key order, in one revision.
    fn end(&mut self, id: LeaseId) -> u64 {
        let (_, keys) = self.lease(id).expect("checked by the caller");
        let mut draft = self.draft();
        for key in &keys {
            draft.delete(&Delete::new(KeyRange::key(key.clone())));
        }
        self.keep(draft);
        self.leases.remove(&id);
        self.applied.leases.push(LeaseNews::Ended(id));
        keys.len() as u64
    }

    // ---- checks before anything is written ----

    fn check_put(&self, put: &Put) -> Result<(), Rejection> {
        self.check_lease(put)?;
        self.check_kept(put)
    }

    fn check_lease(&self, put: &Put) -> Result<(), Rejection> {
        match put.lease {
            PutLease::Attach(id) if !self.leases.contains_key(&id) => {
                Err(Rejection::LeaseNotFound(id))
            }
            _ => Ok(()),
        }
    }

    fn check_kept(&self, put: &Put) -> Result<(), Rejection> {
        let keeps = put.value == PutValue::Keep || put.lease == PutLease::Keep;
        if keeps && !self.now().contains_key(&put.key) {
            return Err(Rejection::KeyNotFound);
        }
        Ok(())
    }

    /// Checks all operations in order. For each put, checks first whether the value or lease that
    /// it keeps exists. etcd checks in the same order.
    fn check_path(
        &self,
        path: &Path<'_>,
        now: (Revision, Option<Revision>),
    ) -> Result<(), Rejection> {
        path.flat().iter().try_for_each(|step| match step {
            PlainStep::Put(put) => {
                self.check_kept(put)?;
                self.check_lease(put)
            }
            PlainStep::Range(range) => check_revision(range, now),
            _ => Ok(()),
        })
    }

    // ---- states ----

    fn now(&self) -> &State {
        self.states.last().expect("there is always a state")
    }

    fn now_revision(&self) -> Revision {
        Revision(self.states.len() as u64)
    }

    fn at(&self, revision: Revision) -> &State {
        &self.states[revision.get() as usize - 1]
    }

    fn state_at<'a>(&'a self, range: &Range, newest: &'a State) -> &'a State {
        asked(range).map_or(newest, |revision| self.at(revision))
    }

    fn draft(&self) -> Draft {
        Draft::new(self.now_revision(), self.now().clone())
    }

    /// Appends the revision that a request made, if it changed anything.
    fn keep(&mut self, draft: Draft) {
        if !draft.events.is_empty() {
            self.applied.changes.push((draft.now(), draft.events.clone()));
            self.states.push(draft.state);
            self.events.push(draft.events);
        }
    }
}

/// Returns whether a command adds keys or leases in any branch.
fn adds(command: &Command) -> bool {
    let puts = |ops: &[Op]| {
        ops.iter().any(|op| match op {
            Op::Put(_) => true,
            Op::Txn(txn) => adds(&Command::Txn(txn.clone())),
            Op::Range(_) | Op::Delete(_) => false,
        })
    };
    match command {
        Command::Put(_) | Command::Grant { .. } => true,
        Command::Txn(txn) => puts(&txn.success) || puts(&txn.failure),
        _ => false,
    }
}

impl Subject for Naive {
    fn apply(&mut self, term: Term, items: &[Item]) -> Applied {
        for item in items {
            match item {
                Item::Proposal(proposal) => self.proposal(proposal),
                Item::Expire { term: counted, leases } if *counted == term => {
                    for id in leases {
                        if self.leases.contains_key(id) {
                            self.end(*id);
                        }
                    }
                }
                Item::Expire { .. } => {}
            }
        }
        std::mem::take(&mut self.applied)
    }

    fn publish(&mut self) {
        self.shown = (self.now_revision(), self.compacted);
    }

    fn revision(&self) -> Revision {
        self.shown.0
    }

    fn compacted(&self) -> Revision {
        self.shown.1.unwrap_or_default()
    }

    fn range(&self, range: &Range) -> Result<RangeReply, Rejection> {
        check_revision(range, self.shown)?;
        Ok(read(self.state_at(range, self.at(self.shown.0)), range, self.shown.0))
    }

    fn read_txn(&self, txn: &Txn) -> Result<TxnReply, Rejection> {
        let state = self.at(self.shown.0);
        let path = Path::choose(txn, state);
        self.check_path(&path, self.shown)?;
        let mut draft = Draft::new(self.shown.0, state.clone());
        let reply = draft.txn(&path, &|revision| self.at(revision).clone());
        assert!(draft.events.is_empty(), "a transaction that only reads");
        Ok(reply)
    }

    fn events(&self, range: &KeyRange, from: Revision) -> Result<Vec<Event>, Rejection> {
        let (newest, compacted) = self.shown;
        if let Some(compacted) = compacted.filter(|compacted| from < *compacted) {
            return Err(Rejection::Compacted { asked: from, compacted });
        }
        let seen = self.events.iter().flatten().filter(|event| {
            (from..=newest).contains(&event.revision()) && range.contains(&event.kv.key)
        });
        let mut events: Vec<Event> = seen.cloned().collect();
        for event in &mut events {
            // The row before the change belongs to the previous revision, which may be compacted.
            if compacted.is_some_and(|compacted| event.revision() <= compacted) {
                event.prev = None;
            }
        }
        Ok(events)
    }

    fn lease(&self, id: LeaseId) -> Option<(Lease, Vec<Bytes>)> {
        let lease = self.leases.get(&id)?.clone();
        let keys = self.now().values().filter(|row| row.lease == Some(id));
        Some((lease, keys.map(|row| row.key.clone()).collect()))
    }

    fn leases(&self) -> Vec<LeaseId> {
        self.leases.keys().copied().collect()
    }

    fn alarms(&self) -> Vec<Alarm> {
        self.alarms.iter().copied().collect()
    }

    fn answer(&self, id: RequestId) -> Option<Outcome> {
        let life = self.lives.get(&id.node).filter(|life| life.incarnation >= id.incarnation)?;
        if life.incarnation > id.incarnation || life.is_closed(id.seq) {
            return Some(Err(Rejection::Closed));
        }
        life.answers.get(&id.seq).cloned()
    }
}

/// Returns the part of an answer that is kept.
fn kept(outcome: &Outcome) -> Outcome {
    fn rows<'a>(kvs: impl IntoIterator<Item = &'a KeyValue>) -> usize {
        kvs.into_iter().map(|kv| PART_BYTES + kv.key.len() + kv.value.len()).sum()
    }
    fn results(txn: &TxnReply) -> usize {
        let bytes = txn.results.iter().map(|result| match result {
            TxnResult::Range(range) => rows(&range.kvs),
            TxnResult::Put(put) => rows(&put.prev),
            TxnResult::Delete(delete) => rows(&delete.prev_kvs),
            TxnResult::Txn(txn) => results(txn),
        });
        bytes.map(|bytes| PART_BYTES + bytes).sum()
    }
    let bytes = match outcome {
        Ok(Reply::Put(put)) => rows(&put.prev),
        Ok(Reply::Delete(delete)) => rows(&delete.prev_kvs),
        Ok(Reply::Txn(txn)) => results(txn),
        _ => 0,
    };
    match outcome {
        Ok(reply) if bytes > ANSWER_BYTES_MAX => {
            Ok(Reply::AppliedBefore { revision: reply.revision() })
        }
        _ => outcome.clone(),
    }
}

/// Checks that the revision of a range is readable, given the newest and the compacted revision.
fn check_revision(
    range: &Range,
    (newest, compacted): (Revision, Option<Revision>),
) -> Result<(), Rejection> {
    let Some(asked) = asked(range) else { return Ok(()) };
    if asked > newest {
        return Err(Rejection::Future { asked, newest });
    }
    match compacted.filter(|compacted| asked < *compacted) {
        Some(compacted) => Err(Rejection::Compacted { asked, compacted }),
        None => Ok(()),
    }
}

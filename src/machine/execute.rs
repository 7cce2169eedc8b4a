//! Executes commands that the dedup table has found to be new.

use std::sync::Arc;
use std::time::Duration;

use super::change::WrittenRow;
use super::read::resolve;
use super::row::{RowRef, StoredRow};
use super::shared::{Published, ReadHold, Replaced, Scan};
use super::store::Mutation;
use super::txn::{TxnPath, Unfit, check_put, is_wide};
use super::{Applied, LeaseChange, Machine, access};
use crate::model::{
    Access, Alarms, ClusterVersion, Command, Delete, DeleteReply, Fault, GrantReply, Incarnation,
    LeaseId, Limits, Members, NodeId, Op, Put, PutLease, PutReply, PutValue, Rejection, Reply,
    RequestId, Revision, RevokeReply, SessionInfo, Txn, TxnReply, TxnResult,
};

/// The limits that the state machine itself checks, whatever limits are configured. Keys are not
/// empty, no key is written twice, and the nesting depth cannot overflow the stack. The size limits
/// here are larger than any entry, so they never apply, but small enough that sums do not overflow.
pub(super) const STRUCTURE: Limits = Limits {
    key_bytes_max: usize::MAX / 4,
    value_bytes_max: usize::MAX / 4,
    request_bytes_max: usize::MAX / 2,
    txn_ops_max: 1 << 14,
    txn_depth_max: Limits::TXN_DEPTH_CEILING,
    txn_keys_max: usize::MAX,
};

/// The application of one entry.
pub(super) struct ApplyTurn<'a> {
    pub(super) hold: ReadHold<'a>,
    pub(super) done: Applied,
}

/// The reason why a command was not executed completely.
pub(super) enum Stop {
    /// The command was rejected and had no effect.
    Refused(Rejection),
    /// The node must stop.
    Fault(Fault),
}

impl From<Rejection> for Stop {
    fn from(rejection: Rejection) -> Self {
        Stop::Refused(rejection)
    }
}

impl From<Unfit> for Stop {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Refused(rejection) => Stop::Refused(rejection),
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
    /// Executes a command, or rejects it without any effect.
    pub(super) fn execute(
        &mut self,
        by: RequestId,
        command: Command,
        turn: &mut ApplyTurn<'_>,
    ) -> Result<Reply, Stop> {
        STRUCTURE.check(&command)?;
        let (command, is_acting) = match command {
            Command::As(caller, command) => {
                let leases = self.store.shared().leases();
                access::authorize(&self.access, &caller, &command, &leases)
                    .map_err(Rejection::from)?;
                (*command, true)
            }
            command => (command, false),
        };
        self.alarms.check(&command, is_acting)?;
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
                let path = TxnPath::evaluate(&txn, &before)?;
                if !mutant!(B60) {
                    path.check(&txn, &before, newest)?;
                }
                let mut mutation = self.store.begin();
                let operations = turn.done.tally.operations();
                let reply = self.txn(turn, &mut mutation, &txn, &path);
                if mutant!(B60) && reply.is_err() {
                    self.commit(turn, mutation);
                    return reply.map(Reply::Txn);
                }
                let reply = reply?;
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
                    return Err(Rejection::LeaseNotFound(id).into());
                };
                Ok(Reply::Revoke(RevokeReply { revision: self.store.revision(), deleted }))
            }
            Command::Announce(attributes) => self.change_members(turn, |members| {
                let is_member = members.announce(by.node, &attributes);
                is_member.then_some(()).ok_or(Rejection::NotMember(by.node))
            }),
            Command::Move { member, address } => {
                self.change_members(turn, |members| members.move_to(member, &address))
            }
            Command::Raise(version) => self.raise(version),
            Command::Access(change) => {
                let mut access = Access::clone(&self.access);
                access.apply(change).map_err(Rejection::from)?;
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

    /// Changes the attributes of a member, but not the membership.
    fn change_members(
        &mut self,
        turn: &mut ApplyTurn<'_>,
        change: impl FnOnce(&mut Members) -> Result<(), Rejection>,
    ) -> Result<Reply, Stop> {
        let mut members = Members::clone(&self.members);
        change(&mut members)?;
        if members != *self.members {
            self.set_members(members);
            turn.done.members = Some(Arc::clone(&self.members));
        }
        Ok(Reply::Noted { revision: self.store.revision() })
    }

    /// Raises the cluster version to `version` if it is lower.
    fn raise(&mut self, version: ClusterVersion) -> Result<Reply, Stop> {
        let known = self.options.known;
        if version > known {
            return Err(Fault::Outgrown { version, known }.into());
        }
        self.version = self.version.max(version);
        self.set_configuration();
        Ok(Reply::Noted { revision: self.store.revision() })
    }

    /// Returns the range of revisions that reads of commands in the log may use. The range includes
    /// revisions that are not published yet.
    pub(super) fn newest(&self) -> Published {
        Published { revision: self.store.revision(), compacted: self.store.compacted() }
    }

    fn commit(&mut self, turn: &mut ApplyTurn<'_>, mutation: Mutation) {
        turn.done.changes.extend(self.store.commit(&mut turn.hold, mutation));
    }

    /// Executes a put that was checked.
    fn put(
        &mut self,
        turn: &mut ApplyTurn<'_>,
        mutation: &mut Mutation,
        put: &Put,
    ) -> Result<PutReply, Stop> {
        let before = match (&put.value, put.lease) {
            (PutValue::Set(_), PutLease::None | PutLease::Attach(_)) => None,
            (PutValue::Keep, _) | (_, PutLease::Keep) => {
                turn.hold.snapshot(mutation.revision()).get(&put.key)?
            }
        };
        let before = before.as_ref().map(StoredRow::view);
        let value = match &put.value {
            PutValue::Set(value) => value.clone(),
            PutValue::Keep => before.map(RowRef::shared_value).unwrap_or_default(),
        };
        let lease = match put.lease {
            PutLease::None => None,
            PutLease::Attach(lease) => Some(lease),
            PutLease::Keep => before.and_then(|row| row.meta().lease),
        };
        let written = self.store.put(&mut turn.hold, mutation, &put.key, &value, lease)?;
        let lease_before = written.lease_before();
        let prev = written.prev.as_ref().filter(|_| put.prev_kv);
        let reply = PutReply {
            revision: written.row.view().modified(),
            prev: prev.map(|prev| prev.view().key_value()),
        };
        self.attach(&put.key, lease_before, lease);
        turn.done.tally.puts += 1;
        turn.done.tally.put_bytes += (put.key.len() + value.len()) as u64;
        Ok(reply)
    }

    fn delete(
        &mut self,
        turn: &mut ApplyTurn<'_>,
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
            let deleted_row = self.store.delete(&mut turn.hold, mutation, key)?;
            let lease = deleted_row.expect("a row that was just seen").lease_before();
            if delete.prev_kv {
                prev_kvs.push(row.view().key_value());
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

    /// Executes a checked transaction along its path, the branches that it takes.
    fn txn(
        &mut self,
        turn: &mut ApplyTurn<'_>,
        mutation: &mut Mutation,
        txn: &Txn,
        path: &TxnPath,
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
                Op::Put(put) => {
                    mutant!(B60, check_put(put, &turn.hold.snapshot(mutation.revision()))?);
                    TxnResult::Put(self.put(turn, mutation, put)?)
                }
                Op::Delete(delete) => TxnResult::Delete(self.delete(turn, mutation, delete)?),
                Op::Txn(txn) => {
                    let path = nested.next().expect("a path for each nested transaction");
                    let mut late = None;
                    mutant!(B58, {
                        let now = turn.hold.snapshot(mutation.revision());
                        late = Some(TxnPath::evaluate(txn, &now)?);
                    });
                    let path = late.as_ref().unwrap_or(path);
                    TxnResult::Txn(self.txn(turn, mutation, txn, path)?)
                }
            });
        }
        let revision = self.store.revision_in(mutation);
        Ok(TxnReply { revision, succeeded: path.succeeded, results })
    }

    fn compact(&mut self, at: Revision, turn: &mut ApplyTurn<'_>) -> Result<Reply, Stop> {
        let newest = self.store.revision();
        if at > newest {
            return Err(Rejection::Future { asked: at, newest }.into());
        }
        if let Some(compacted) = self.store.compacted()
            && at <= compacted
        {
            return Err(Rejection::Compacted { asked: at, compacted }.into());
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
        turn: &mut ApplyTurn<'_>,
    ) -> Result<Reply, Stop> {
        let shared = Arc::clone(self.store.shared());
        if let Some(id) = id
            && shared.leases().contains(id)
        {
            return Err(Rejection::LeaseExists(id).into());
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

    /// Ends a lease and deletes its keys in key order, in one revision. Returns the number of
    /// deleted keys, or an error if there is no such lease.
    pub(super) fn end_lease(
        &mut self,
        id: LeaseId,
        turn: &mut ApplyTurn<'_>,
    ) -> Result<Option<u64>, Fault> {
        let ended = self.store.shared().leases_mut().end(id);
        let Some(keys) = ended else { return Ok(None) };
        let mut mutation = self.store.begin();
        let mut deleted = 0;
        for key in &keys {
            let deleted_row = self.store.delete(&mut turn.hold, &mut mutation, key)?;
            let lease = deleted_row.and_then(WrittenRow::lease_before);
            assert!(lease == Some(id), "lease {id} held a foreign key");
            deleted += 1;
        }
        turn.done.tally.deletes += deleted;
        self.commit(turn, mutation);
        mutant!(M28, drop(turn.done.changes.pop()));
        turn.done.leases.push(LeaseChange::Ended { id });
        Ok(Some(deleted))
    }
}

//! Authorization of commands. The rights of the caller are checked when a command is applied, so
//! that every replica uses the same table of users and the same leases.
//!
//! Both branches of a transaction are checked, at every depth of nesting, although only one of them
//! is executed. If only the executed branch were checked, a rejection would reveal the result of
//! the compares. A command that returns a row needs the right to read that row. A command that
//! attaches a key to a lease or revokes a lease affects all keys of the lease. So the caller must
//! have the right to write all these keys.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;

use super::lease::LeaseTable;
use crate::model::{
    Access, AuthError, Caller, Command, Delete, KeyRange, LeaseId, Op, OpenKeys, Put, PutLease,
    Right, Txn,
};

/// Checks whether the caller may execute a command.
pub(super) fn authorize(
    access: &Access,
    caller: &Caller,
    command: &Command,
    leases: &LeaseTable,
) -> Result<(), AuthError> {
    if access.is_root(caller).is_ok() {
        return Ok(());
    }
    let authorizer = Authorizer {
        access,
        caller,
        leases,
        asked: Cell::new(0),
        readable: OnceCell::new(),
        writable: OnceCell::new(),
        checked_leases: RefCell::default(),
    };
    match command {
        Command::Put(put) => authorizer.put(put),
        Command::Delete(delete) => authorizer.delete(delete),
        Command::Txn(txn) => authorizer.txn(txn),
        Command::Grant { .. } => access.is_user(caller),
        Command::Revoke(lease) => access.is_user(caller).and_then(|()| authorizer.lease(*lease)),
        Command::Compact(_)
        | Command::Announce(_)
        | Command::Move { .. }
        | Command::Raise(_)
        | Command::Access(_)
        | Command::Alarm(_)
        | Command::As(..) => access.is_root(caller),
    }
}

/// Returns the leases whose keys the caller must have rights to, each once.
pub(super) fn leases_of(command: &Command) -> BTreeSet<LeaseId> {
    fn attached(txn: &Txn, into: &mut BTreeSet<LeaseId>) {
        for op in txn.success.iter().chain(&txn.failure) {
            match op {
                Op::Put(Put { lease: PutLease::Attach(lease), .. }) => into.extend([*lease]),
                Op::Txn(nested) => attached(nested, into),
                Op::Range(_) | Op::Put(_) | Op::Delete(_) => {}
            }
        }
    }
    let mut leases = BTreeSet::new();
    match command {
        Command::Put(Put { lease: PutLease::Attach(lease), .. }) | Command::Revoke(lease) => {
            leases.extend([*lease]);
        }
        Command::Txn(txn) => attached(txn, &mut leases),
        _ => {}
    }
    leases
}

/// Number of checks after which the rights of the caller are merged into one set.
const CHECKS_BEFORE_MERGE: u32 = 4;

struct Authorizer<'a> {
    access: &'a Access,
    caller: &'a Caller,
    leases: &'a LeaseTable,
    /// Number of checks so far.
    asked: Cell<u32>,
    /// The merged ranges that the caller may read and write, computed after several checks.
    readable: OnceCell<Result<OpenKeys, AuthError>>,
    writable: OnceCell<Result<OpenKeys, AuthError>>,
    /// Leases that were already checked: the caller may write all their keys. Each lease is checked
    /// only once per command.
    checked_leases: RefCell<BTreeSet<LeaseId>>,
}

impl Authorizer<'_> {
    fn open(&self, right: Right) -> Result<&OpenKeys, AuthError> {
        let open = match right {
            Right::Read => &self.readable,
            Right::Write => &self.writable,
        };
        open.get_or_init(|| self.access.open(self.caller, right)).as_ref().map_err(|why| *why)
    }

    fn may(&self, right: Right, keys: &KeyRange) -> Result<(), AuthError> {
        let asked = self.asked.replace(self.asked.get() + 1);
        // Merging the rights pays off only after several checks.
        if asked < CHECKS_BEFORE_MERGE {
            return self.access.may(self.caller, right, keys);
        }
        if self.open(right)?.hold(keys) { Ok(()) } else { Err(AuthError::Denied) }
    }

    fn read(&self, keys: &KeyRange) -> Result<(), AuthError> {
        self.may(Right::Read, keys)
    }

    fn write(&self, keys: &KeyRange) -> Result<(), AuthError> {
        self.may(Right::Write, keys)
    }

    /// Checks that the caller may write all keys of a lease, because attaching a key to the lease
    /// or revoking it affects all of them.
    fn lease(&self, lease: LeaseId) -> Result<(), AuthError> {
        let open = self.open(Right::Write)?;
        let is_new = self.checked_leases.borrow_mut().insert(lease);
        if is_new && !self.leases.keys(lease).all(|key| open.has(key)) {
            return Err(AuthError::Denied);
        }
        Ok(())
    }

    fn put(&self, put: &Put) -> Result<(), AuthError> {
        let key = KeyRange::key(put.key.clone());
        self.write(&key)?;
        if put.prev_kv {
            self.read(&key)?;
        }
        match put.lease {
            PutLease::Attach(lease) => self.lease(lease),
            PutLease::None | PutLease::Keep => Ok(()),
        }
    }

    fn delete(&self, delete: &Delete) -> Result<(), AuthError> {
        self.write(&delete.range)?;
        if delete.prev_kv { self.read(&delete.range) } else { Ok(()) }
    }

    fn txn(&self, txn: &Txn) -> Result<(), AuthError> {
        // An empty transaction still needs a valid user.
        self.access.is_user(self.caller)?;
        txn.compares.iter().try_for_each(|compare| self.read(&compare.range))?;
        txn.success.iter().chain(&txn.failure).try_for_each(|op| match op {
            Op::Range(range) => self.read(&range.range),
            Op::Put(put) => self.put(put),
            Op::Delete(delete) => self.delete(delete),
            Op::Txn(nested) => self.txn(nested),
        })
    }
}

//! Reads of the state. Any number of readers on any thread can read while the single writer applies
//! entries.
//!
//! Each read happens at one revision, which is at most the published revision, and sees a
//! consistent state. The lock is held for at most a few hundred keys at a time, so that neither
//! side waits long for the other. If the whole state is replaced during a read, the read starts
//! again. The read is rejected if the new state no longer contains the requested revision.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::lease::{LeaseHead, LeaseInfo, SessionOf};
use super::read::{Collector, resolve};
use super::row::{RowRef, StoredRow};
use super::shared::{HOLD_KEYS, MachineShared, Published, Replaced, Snapshot};
use super::txn::{TxnPath, Unfit, only_reads, ranges};
use super::{Change, access};
use crate::model::{
    Access, Alarms, AuthError, Caller, Command, KeyRange, KeyValue, LeaseId, Members, NodeId, Op,
    Range, RangeReply, Rejection, Revision, Txn, TxnReply, TxnResult,
};

/// Maximum number of row changes that one page of history visits. A single revision may have more.
const PAGE_ROWS: usize = 1024;

#[cfg(test)]
thread_local! {
    /// The highest number of rows of history that this thread has visited during one hold of the
    /// lock.
    pub(super) static MOST_HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A reader of the published state. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    shared: Arc<MachineShared>,
}

/// A page of history. See [`Reader::events`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryPage {
    /// The revisions that changed keys of the range, oldest first, each with all its changes in the
    /// range.
    pub changes: Vec<Change>,
    /// The first revision of the next page. After the last page, this is greater than the published
    /// revision.
    pub next: Revision,
}

impl Reader {
    pub(super) fn new(shared: Arc<MachineShared>) -> Self {
        Self { shared }
    }

    pub(super) fn shared(&self) -> &MachineShared {
        &self.shared
    }

    /// Returns the newest revision that can be read.
    pub fn revision(&self) -> Revision {
        self.shared.revision()
    }

    /// Returns the oldest revision that can be read, or 0 if nothing was compacted yet.
    pub fn compacted(&self) -> Revision {
        self.shared.state().published.compacted.unwrap_or_default()
    }

    /// Returns the newest row of a key, and the revision at which it was read.
    pub fn get(&self, key: &[u8]) -> (Option<KeyValue>, Revision) {
        let state = self.shared.state();
        let at = state.published.revision;
        let row = state.index.get(key).and_then(|rows| rows.live(at)).map(RowRef::to_row);
        drop(state);
        (row.map(|row| row.view().key_value()), at)
    }

    /// Returns the length of the newest value of a key in bytes, or 0 if the key does not exist.
    pub fn value_len(&self, key: &[u8]) -> u64 {
        let state = self.shared.state();
        let row = state.index.get(key).and_then(|rows| rows.live(state.published.revision));
        row.map_or(0, |row| row.value().len() as u64)
    }

    /// Reads a range.
    ///
    /// # Errors
    /// Returns [`Rejection::Future`] or [`Rejection::Compacted`] if the requested revision cannot be
    /// read.
    pub fn range(&self, range: &Range) -> Result<RangeReply, Rejection> {
        self.answer(range, |snapshot, range, newest| snapshot.range(range, newest))
    }

    /// Reads a range without visiting the keys after the limit or after about `bytes_max` bytes, if
    /// the rows are in key order and not filtered by revision. The count then covers only the
    /// visited rows.
    ///
    /// # Errors
    /// Same as [`Reader::range`].
    pub fn page(&self, range: &Range, bytes_max: u64) -> Result<RangeReply, Rejection> {
        self.answer(range, |snapshot, range, newest| snapshot.page(range, newest, bytes_max))
    }

    fn answer(
        &self,
        range: &Range,
        read: impl Fn(&Snapshot<'_>, &Range, Revision) -> Result<RangeReply, Replaced>,
    ) -> Result<RangeReply, Rejection> {
        loop {
            let state = self.shared.state();
            let newest = state.published.revision;
            let at = resolve(range.revision, state.published)?;
            if let Some(key) = range.range.as_single() {
                let mut collector = Collector::new(range);
                if let Some(row) = state.index.get(key).and_then(|rows| rows.live(at)) {
                    collector.visit(row);
                }
                drop(state);
                return Ok(collector.finish(newest));
            }
            let generation = state.generation();
            let _kept = self.shared.register(&state, at);
            drop(state);
            let reply = read(&Snapshot::new(&self.shared, generation, at), range, newest);
            if let Ok(reply) = reply {
                return Ok(reply);
            }
        }
    }

    /// Executes a transaction that [only reads](only_reads). All reads of the transaction see the
    /// state at one revision.
    ///
    /// # Errors
    /// Returns [`Rejection::Future`] or [`Rejection::Compacted`] if the requested revision of a range
    /// cannot be read.
    ///
    /// # Panics
    /// Panics if the transaction writes: a transaction that writes must go through the log.
    pub fn read_txn(&self, txn: &Txn) -> Result<TxnReply, Rejection> {
        assert!(only_reads(txn), "a transaction that writes goes through the log");
        loop {
            match self.try_txn(txn) {
                Ok(reply) => return Ok(reply),
                Err(Unfit::Refused(rejection)) => return Err(rejection),
                Err(Unfit::Replaced) => {}
            }
        }
    }

    fn try_txn(&self, txn: &Txn) -> Result<TxnReply, Unfit> {
        let state = self.shared.state();
        let (published, generation) = (state.published, state.generation());
        // The ranges of the transaction may read old revisions, down to the compacted one.
        let oldest = published.compacted.unwrap_or(Revision::FIRST);
        let _kept = self.shared.register(&state, oldest);
        drop(state);
        let now = Snapshot::new(&self.shared, generation, published.revision);
        let path = TxnPath::evaluate(txn, &now)?;
        path.check(txn, &now, published)?;
        read_path(txn, &path, now, published)
    }

    /// Returns the number of keys that the ranges of a transaction visit in all its branches,
    /// counted up to `max`. This number is the cost of executing the transaction. Deleted keys that
    /// are not swept count too.
    pub fn visited_keys(&self, txn: &Txn, max: usize) -> usize {
        let mut passed = 0;
        for range in ranges(txn) {
            passed += self.visited_keys_of_range(range, max - passed);
            if passed >= max {
                break;
            }
        }
        passed
    }

    /// Returns the number of keys that one range visits, or 0 for a single key.
    pub fn visited_keys_of_range(&self, range: &KeyRange, max: usize) -> usize {
        if range.as_single().is_some() { 0 } else { self.shared.width(range, max) }
    }

    /// Returns a page of the changes of keys in `range` from revision `from` on. The page consists
    /// of complete revisions: about `bytes_max` bytes of rows, but at least one revision. Events
    /// include the previous rows, which count towards `bytes_max`. At the compacted revision
    /// itself, the previous rows are no longer available.
    ///
    /// # Errors
    /// Returns [`Rejection::Compacted`] if `from` is before the compacted revision.
    pub fn events(
        &self,
        range: &KeyRange,
        from: Revision,
        bytes_max: usize,
    ) -> Result<HistoryPage, Rejection> {
        loop {
            match self.try_events(range, from, bytes_max) {
                Ok(page) => return Ok(page),
                Err(Unfit::Refused(rejection)) => return Err(rejection),
                Err(Unfit::Replaced) => {}
            }
        }
    }

    fn try_events(
        &self,
        range: &KeyRange,
        from: Revision,
        bytes_max: usize,
    ) -> Result<HistoryPage, Unfit> {
        let mut state = self.shared.state();
        let Published { revision: newest, compacted } = state.published;
        if let Some(compacted) = compacted
            && from < compacted
        {
            return Err(Rejection::Compacted { asked: from, compacted }.into());
        }
        // The registration makes the sweep keep everything that is not compacted yet. Versions that
        // are compacted during this read are kept until the read ends.
        let oldest = compacted.unwrap_or(Revision::FIRST);
        let generation = state.generation();
        let _kept = self.shared.register(&state, oldest);
        // Revision 1 is the empty store, which has no changes.
        let mut next = from.max(Revision::FIRST.next());
        let mut found: Vec<(Revision, Vec<StoredRow>)> = Vec::new();
        let (mut looked, mut bytes, mut held) = (0, 0, 0);
        while next <= newest && looked < PAGE_ROWS && bytes < bytes_max.max(1) {
            // A revision may have more rows than the reader may visit while it holds the lock once.
            let (mut rows, mut at): (Vec<StoredRow>, _) = (Vec::new(), 0);
            loop {
                if held == HOLD_KEYS {
                    drop(state);
                    state = self.shared.state();
                    state.expect(generation)?;
                    held = 0;
                }
                let all = state.history.get(next).expect("kept from the sweep");
                let until = all.len().min(at + HOLD_KEYS - held);
                let some = (at..until).map(|at| all.get(at));
                let some = some.filter(|row| range.contains(row.key()));
                let some = some.inspect(|row| bytes += row.key().len() + row.value().len());
                rows.extend(some.map(RowRef::to_row));
                held += until - at;
                #[cfg(test)]
                MOST_HELD.set(held.max(MOST_HELD.get()));
                (at, looked) = (until, looked + until - at);
                if at == all.len() {
                    break;
                }
            }
            if !rows.is_empty() {
                found.push((next, rows));
            }
            next = next.next();
        }
        drop(state);
        let mut changes = Vec::with_capacity(found.len());
        for (revision, rows) in found {
            // Previous rows count too: the rows that were deleted may be much larger than the
            // deletions.
            if bytes >= bytes_max && !changes.is_empty() {
                return Ok(HistoryPage { changes, next: revision });
            }
            let mut events = Vec::with_capacity(rows.len());
            for rows in rows.chunks(HOLD_KEYS) {
                let prevs = self.rows_before(rows, oldest, generation)?;
                let prev_bytes =
                    |prev: &StoredRow| prev.view().key().len() + prev.view().value().len();
                bytes += prevs.iter().flatten().map(prev_bytes).sum::<usize>();
                events.extend(
                    rows.iter().zip(prevs).map(|(row, prev)| {
                        row.view().event(prev.map(|prev| prev.view().key_value()))
                    }),
                );
            }
            changes.push(Change::of_events(revision, events.into()));
        }
        Ok(HistoryPage { changes, next })
    }

    fn rows_before(
        &self,
        rows: &[StoredRow],
        oldest: Revision,
        generation: u64,
    ) -> Result<Vec<Option<StoredRow>>, Replaced> {
        let state = self.shared.state();
        state.expect(generation)?;
        let before = |row: &StoredRow| {
            let row = row.view();
            let before = Revision(row.modified().get() - 1);
            if before < oldest {
                return None;
            }
            Some(state.index.get(row.key())?.live(before)?.to_row())
        };
        Ok(rows.iter().map(before).collect())
    }

    /// Returns the information about a lease as of the last applied entry, without its keys. The
    /// cost does not depend on the number of keys.
    pub fn lease_head(&self, id: LeaseId) -> Option<LeaseHead> {
        self.shared.leases().head(id)
    }

    /// Returns whether all keys of a lease satisfy `is`, or `None` if the lease does not exist.
    pub fn are_lease_keys(&self, id: LeaseId, is: impl Fn(&[u8]) -> bool) -> Option<bool> {
        let leases = self.shared.leases();
        leases.contains(id).then(|| leases.keys(id).all(is))
    }

    /// Returns the number of lease keys copied for readers.
    #[cfg(test)]
    pub(crate) fn lease_keys_copied(&self) -> usize {
        self.shared.leases().copied()
    }

    /// Returns the information about a lease as of the last applied entry. The keys of the lease
    /// are copied while the writer waits.
    pub fn lease(&self, id: LeaseId) -> Option<LeaseInfo> {
        self.shared.leases().info(id)
    }

    /// Returns whether the lease exists as of the last applied entry.
    pub fn has_lease(&self, id: LeaseId) -> bool {
        self.shared.leases().contains(id)
    }

    /// Returns every lease with its TTL as of the last applied entry, in the order of their ids.
    pub fn leases(&self) -> Vec<(LeaseId, Duration)> {
        self.shared.leases().ids().collect()
    }

    /// Returns the memory of the stored versions of all keys and of the leases, in bytes. A
    /// snapshot of these versions and leases has about the same size. Compacted versions count
    /// until the sweep has freed them.
    pub fn bytes(&self) -> u64 {
        let rows = self.shared.state().bytes;
        rows + self.shared.leases().bytes()
    }

    /// Returns the part of [`Reader::bytes`] that belongs to old versions, which only reads and
    /// watches of the history need.
    pub fn history_bytes(&self) -> u64 {
        let state = self.shared.state();
        state.bytes - state.live.bytes
    }

    /// Returns every lease of a session as of the last applied entry, with its TTL and session, in
    /// the order of their ids.
    pub fn sessions(&self) -> Vec<(LeaseId, Duration, SessionOf)> {
        self.shared.leases().sessions().collect()
    }

    /// Returns the node of a session. Returns `None` if no session has this lease.
    pub fn session_node(&self, lease: LeaseId) -> Option<NodeId> {
        self.shared.leases().session_node(lease)
    }

    /// Returns the number of keys as of the last applied entry.
    pub fn keys(&self) -> u64 {
        self.shared.state().live.keys
    }

    /// Returns the number of existing keys and of deleted keys that are not swept yet.
    pub fn kept_keys(&self) -> usize {
        self.shared.state().index.len()
    }

    /// Returns the number of leases as of the last applied entry.
    pub fn lease_count(&self) -> usize {
        self.shared.leases().len()
    }

    /// Checks whether a caller may execute a command, by users, roles and leases as of the last
    /// applied entry.
    ///
    /// # Errors
    /// Returns an [`AuthError`] if the caller lacks the right.
    pub fn authorize(&self, caller: &Caller, command: &Command) -> Result<(), AuthError> {
        access::authorize(&self.access(), caller, command, &self.shared.leases())
    }

    /// Returns the number of lease keys for which the caller's rights must be checked before this
    /// command is executed. The number counts the keys of the leases that the command revokes or
    /// attaches keys to. Returns 0 for a caller with all rights.
    pub fn keys_to_authorize(&self, caller: &Caller, command: &Command) -> usize {
        let attached = access::leases_of(command);
        if attached.is_empty() || self.access().is_root(caller).is_ok() {
            return 0;
        }
        let leases = self.shared.leases();
        attached.into_iter().map(|lease| leases.keys_of(lease)).sum()
    }

    /// Returns users and roles as of the last applied entry.
    pub fn access(&self) -> Arc<Access> {
        self.shared.access()
    }

    /// Returns the active alarms as of the last applied entry.
    pub fn alarms(&self) -> Arc<Alarms> {
        self.shared.alarms()
    }

    /// Returns the members as of the last applied entry.
    pub fn members(&self) -> Arc<Members> {
        self.shared.members()
    }
}

fn read_path(
    txn: &Txn,
    path: &TxnPath,
    now: Snapshot<'_>,
    published: Published,
) -> Result<TxnReply, Unfit> {
    let mut nested = path.nested.iter();
    let mut results = Vec::new();
    for op in path.branch(txn) {
        results.push(match op {
            Op::Range(range) => {
                let at = resolve(range.revision, published)?;
                TxnResult::Range(now.at(at).range(range, published.revision)?)
            }
            Op::Txn(txn) => {
                let path = nested.next().expect("a path for each nested transaction");
                TxnResult::Txn(read_path(txn, path, now, published)?)
            }
            Op::Put(_) | Op::Delete(_) => unreachable!("it only reads"),
        });
    }
    Ok(TxnReply { revision: published.revision, succeeded: path.succeeded, results })
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("revision", &self.revision()).finish_non_exhaustive()
    }
}

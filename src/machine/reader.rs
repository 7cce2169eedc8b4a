//! The readers' side of the machine: any number of them, in any thread, beside the one writer.
//!
//! Each read happens at one revision, at most the published one, and is never torn. The lock is held
//! for a few hundred keys at most, then let go, so that neither side waits long for the other. A read
//! that finds the whole content replaced in between begins anew, and is then refused if what it asks
//! for has gone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::lease::{LeaseHead, LeaseInfo, SessionOf};
use super::read::{Collector, resolve};
use super::row::{Row, RowRef};
use super::shared::{HOLD_KEYS, Published, Replaced, Shared, Snapshot};
use super::txn::{Path, Unfit, only_reads, ranges};
use super::{Change, access};
use crate::model::{
    Access, Alarms, AuthError, Caller, Command, KeyRange, KeyValue, LeaseId, Members, Op, Range,
    RangeReply, Rejection, Revision, Txn, TxnReply, TxnResult,
};

/// The most changes of rows that one page of history looks at, unless one revision has more.
const PAGE_ROWS: usize = 1024;

#[cfg(test)]
thread_local! {
    /// The most rows of history that this thread has passed in one hold.
    pub(super) static MOST_HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Reads the state that the machine has published. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    shared: Arc<Shared>,
}

/// A piece of history. See [`Reader::events`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryPage {
    /// The revisions that changed keys of the range, oldest first, each whole as far as the range
    /// goes.
    pub changes: Vec<Change>,
    /// Everything before this revision has been looked at: where the next page starts. Above the
    /// published revision if there was nothing left.
    pub next: Revision,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The newest revision that can be read.
    pub fn revision(&self) -> Revision {
        self.shared.revision()
    }

    /// The oldest revision that can be read; 0 if nothing was compacted yet.
    pub fn compacted(&self) -> Revision {
        self.shared.state().published.compacted.unwrap_or_default()
    }

    /// The newest row of a key, and the revision at which it was looked up.
    pub fn get(&self, key: &[u8]) -> (Option<KeyValue>, Revision) {
        let state = self.shared.state();
        let at = state.published.revision;
        let row = state.index.get(key).and_then(|rows| rows.live(at)).map(RowRef::to_row);
        drop(state);
        (row.map(|row| row.view().key_value()), at)
    }

    /// How long the newest value of a key is, in bytes; 0 if there is no such key.
    pub fn value_len(&self, key: &[u8]) -> u64 {
        let state = self.shared.state();
        let row = state.index.get(key).and_then(|rows| rows.live(state.published.revision));
        row.map_or(0, |row| row.value().len() as u64)
    }

    /// Answers a range.
    ///
    /// # Errors
    /// [`Rejection::Future`] or [`Rejection::Compacted`], if it asks for such a revision.
    pub fn range(&self, range: &Range) -> Result<RangeReply, Rejection> {
        self.answer(range, |snapshot, range, newest| snapshot.range(range, newest))
    }

    /// The same, without looking at what lies behind the limit, if rows come in the order of their keys and are not
    /// chosen by their revisions: the count is that of the rows that were looked at.
    ///
    /// # Errors
    /// As there.
    pub fn page(&self, range: &Range) -> Result<RangeReply, Rejection> {
        self.answer(range, |snapshot, range, newest| snapshot.page(range, newest))
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

    /// Answers a transaction that [only reads](only_reads), at one revision.
    ///
    /// # Errors
    /// [`Rejection::Future`] or [`Rejection::Compacted`], if a range of it asks for such a revision.
    ///
    /// # Panics
    /// If the transaction writes: that is for the log to do.
    pub fn read_txn(&self, txn: &Txn) -> Result<TxnReply, Rejection> {
        assert!(only_reads(txn), "a transaction that writes goes through the log");
        loop {
            match self.try_txn(txn) {
                Ok(reply) => return Ok(reply),
                Err(Unfit::Refused(refusal)) => return Err(refusal),
                Err(Unfit::Replaced) => {}
            }
        }
    }

    fn try_txn(&self, txn: &Txn) -> Result<TxnReply, Unfit> {
        let state = self.shared.state();
        let (published, generation) = (state.published, state.generation());
        // Ranges may look back as far as the compacted revision.
        let oldest = published.compacted.unwrap_or(Revision::FIRST);
        let _kept = self.shared.register(&state, oldest);
        drop(state);
        let now = Snapshot::new(&self.shared, generation, published.revision);
        let path = Path::judge(txn, &now)?;
        path.check(txn, &now, published)?;
        read_path(txn, &path, now, published)
    }

    /// Over how many keys the ranges of a transaction pass, whichever branches it takes, counted up to `max`: what
    /// it costs to carry it out. Keys that are dead and not swept count.
    pub fn passed_over(&self, txn: &Txn, max: usize) -> usize {
        let mut passed = 0;
        for range in ranges(txn) {
            passed += self.passed_over_by(range, max - passed);
            if passed >= max {
                break;
            }
        }
        passed
    }

    /// The same for one range; none, if that is a single key.
    pub fn passed_over_by(&self, range: &KeyRange, max: usize) -> usize {
        if range.as_single().is_some() { 0 } else { self.shared.width(range, max) }
    }

    /// What changed the keys of `range`, from revision `from` on, as far as one page goes: about
    /// `bytes_max` of rows, but at least one revision, and revisions always whole. The rows before
    /// the changes come along and count, except at the compacted revision itself, where they are gone.
    ///
    /// # Errors
    /// [`Rejection::Compacted`], if `from` lies before the compacted revision.
    pub fn events(
        &self,
        range: &KeyRange,
        from: Revision,
        bytes_max: usize,
    ) -> Result<HistoryPage, Rejection> {
        loop {
            match self.try_events(range, from, bytes_max) {
                Ok(page) => return Ok(page),
                Err(Unfit::Refused(refusal)) => return Err(refusal),
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
        // From here on nothing that is not compacted now is swept, whatever is compacted meanwhile.
        let oldest = compacted.unwrap_or(Revision::FIRST);
        let generation = state.generation();
        let _kept = self.shared.register(&state, oldest);
        // Nothing happened at revision 1.
        let mut next = from.max(Revision::FIRST.next());
        let mut found: Vec<(Revision, Vec<Row>)> = Vec::new();
        let (mut looked, mut bytes, mut held) = (0, 0, 0);
        while next <= newest && looked < PAGE_ROWS && bytes < bytes_max.max(1) {
            // A revision may have more rows than are passed in one hold.
            let (mut rows, mut at): (Vec<Row>, _) = (Vec::new(), 0);
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
            // What a page of deletions deleted may be much more than they are themselves.
            if bytes >= bytes_max && !changes.is_empty() {
                return Ok(HistoryPage { changes, next: revision });
            }
            let mut events = Vec::with_capacity(rows.len());
            for rows in rows.chunks(HOLD_KEYS) {
                let prevs = self.rows_before(rows, oldest, generation)?;
                let prev_bytes = |prev: &Row| prev.view().key().len() + prev.view().value().len();
                bytes += prevs.iter().flatten().map(prev_bytes).sum::<usize>();
                events.extend(
                    rows.iter().zip(prevs).map(|(row, prev)| {
                        row.view().event(prev.map(|prev| prev.view().key_value()))
                    }),
                );
            }
            changes.push(Change { revision, events: events.into() });
        }
        Ok(HistoryPage { changes, next })
    }

    fn rows_before(
        &self,
        rows: &[Row],
        oldest: Revision,
        generation: u64,
    ) -> Result<Vec<Option<Row>>, Replaced> {
        let state = self.shared.state();
        state.expect(generation)?;
        let before = |row: &Row| {
            let row = row.view();
            let before = Revision(row.modified().get() - 1);
            if before < oldest {
                return None;
            }
            Some(state.index.get(row.key())?.live(before)?.to_row())
        };
        Ok(rows.iter().map(before).collect())
    }

    /// What is known of a lease, as of the last entry applied, without its keys: costs the same however many it has.
    pub fn lease_head(&self, id: LeaseId) -> Option<LeaseHead> {
        self.shared.leases().head(id)
    }

    /// Whether all keys of a lease are such ones; `None` if there is no such lease.
    pub fn are_lease_keys(&self, id: LeaseId, is: impl Fn(&[u8]) -> bool) -> Option<bool> {
        let leases = self.shared.leases();
        leases.contains(id).then(|| leases.keys(id).all(is))
    }

    /// How many keys of leases were copied for readers.
    #[cfg(test)]
    pub(crate) fn lease_keys_copied(&self) -> usize {
        self.shared.leases().copied()
    }

    /// What is known of a lease, as of the last entry applied. Copies its keys, while what is applied has to wait.
    pub fn lease(&self, id: LeaseId) -> Option<LeaseInfo> {
        self.shared.leases().info(id)
    }

    /// Whether there is such a lease, as of the last entry applied.
    pub fn has_lease(&self, id: LeaseId) -> bool {
        self.shared.leases().contains(id)
    }

    /// Every lease with its time to live, by id, as of the last entry applied.
    pub fn leases(&self) -> Vec<(LeaseId, Duration)> {
        self.shared.leases().ids().collect()
    }

    /// What says, nearly always, whether the leases and what is bound to them are others than before.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn leases_fingerprint(&self) -> [u64; 2] {
        self.shared.leases().fingerprint()
    }

    /// What the kept versions of all keys, and the leases, take in memory, in bytes. On disk they take about
    /// as much. What is compacted counts until it is swept.
    pub fn bytes(&self) -> u64 {
        let rows = self.shared.state().bytes;
        rows + self.shared.leases().bytes()
    }

    /// As [`Reader::bytes`], for those versions that only history needs.
    pub fn history_bytes(&self) -> u64 {
        let state = self.shared.state();
        state.bytes - state.live.bytes
    }

    /// Every lease that is a session's, with its time to live and whose it is, by id, as of the last
    /// entry applied.
    pub fn sessions(&self) -> Vec<(LeaseId, Duration, SessionOf)> {
        self.shared.leases().sessions().collect()
    }

    /// How many keys exist, as of the last entry applied.
    pub fn keys(&self) -> u64 {
        self.shared.state().live.keys
    }

    /// How many keys there are or were, and are not swept yet.
    pub fn kept_keys(&self) -> usize {
        self.shared.state().index.len()
    }

    /// How many leases there are, as of the last entry applied.
    pub fn lease_count(&self) -> usize {
        self.shared.leases().len()
    }

    /// Whether a caller may have a command executed, by users, roles and leases as of the last entry applied.
    ///
    /// # Errors
    /// See [`AuthError`].
    pub fn judge(&self, caller: &Caller, command: &Command) -> Result<(), AuthError> {
        access::judge(&self.access(), caller, command, &self.shared.leases())
    }

    /// How many keys the caller of a command is judged by before it is carried out, for the leases that it attaches or
    /// ends; none, of who may do everything.
    pub fn judged_by(&self, caller: &Caller, command: &Command) -> usize {
        let attached = access::leases_of(command);
        if attached.is_empty() || self.access().is_root(caller).is_ok() {
            return 0;
        }
        let leases = self.shared.leases();
        attached.into_iter().map(|lease| leases.keys_of(lease)).sum()
    }

    /// Who may do what, as of the last entry applied.
    pub fn access(&self) -> Arc<Access> {
        self.shared.access()
    }

    /// Which alarms stand, as of the last entry applied.
    pub fn alarms(&self) -> Arc<Alarms> {
        self.shared.alarms()
    }

    /// The members, as of the last entry applied.
    pub fn members(&self) -> Arc<Members> {
        self.shared.members()
    }
}

fn read_path(
    txn: &Txn,
    path: &Path,
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

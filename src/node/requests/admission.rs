//! Admission: decides whether a call of this node may begin, by the limits of open calls, the quota and the disk.
//!
//! An admitted write is counted until [`Admission::release`], an admitted read until its [`OpenRead`] is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::codec::encoded_len_hint;
use crate::machine::{Reader, is_wide};
use crate::model::{Command, Limits, Op, Rejection, Txn};

use crate::node::requests::answer::{CallError, CallResult};
use crate::node::requests::quota::{self, growth};
use crate::node::settings::Settings;

/// Maximum size of a proposed command, in bytes: the encoded size of the largest request that a
/// configuration allows, plus the operations that a lock may add.
pub(in crate::node) const COMMAND_BYTES_MAX: usize = 7 << 19;

/// Bytes that a command is charged for each scanned key. They count towards the limit of open
/// writes. Keys are scanned by the command itself, or by the check of the caller's rights. The
/// value is the size of a row in an answer, without the value of the row, which is shared.
const KEY_VISIT_BYTES: usize = 160;

/// A value that counts as one open read until it is dropped.
#[derive(Default)]
pub(crate) struct OpenRead(Arc<AtomicUsize>);

impl Drop for OpenRead {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Adds operations that are applied after a transaction in the same entry. The limits for callers
/// do not apply to these operations.
pub(in crate::node) fn follow_up(command: &mut Command, leaving: Vec<Op>) -> Result<(), Rejection> {
    let Command::Txn(txn) = &mut *command else { return Ok(()) };
    if leaving.is_empty() {
        return Ok(());
    }
    txn.success.extend(leaving);
    Limits::check_written(txn)?;
    fits(command)
}

/// Checks that a command fits into an entry, whatever its origin.
pub(in crate::node) fn fits(command: &Command) -> Result<(), Rejection> {
    let (bytes, max) = (encoded_len_hint(command), COMMAND_BYTES_MAX);
    if bytes > max {
        return Err(Rejection::RequestTooLarge { bytes, max });
    }
    Ok(())
}

/// The limits of a node's calls, and the open calls.
#[derive(Debug)]
pub(in crate::node) struct Admission {
    writes_max: usize,
    bytes_max: usize,
    reads_max: usize,
    txn_keys_max: usize,
    quota_bytes: u64,
    open_writes: AtomicUsize,
    open_bytes: AtomicUsize,
    open_reads: Arc<AtomicUsize>,
    /// Whether this node's disk is full.
    disk_full: AtomicBool,
}

impl Admission {
    pub(in crate::node) fn new(settings: &Settings) -> Self {
        Self {
            writes_max: settings.open_writes_max,
            bytes_max: settings.open_bytes_max,
            reads_max: settings.open_reads_max,
            txn_keys_max: settings.limits.txn_keys_max,
            quota_bytes: settings.quota_bytes,
            open_writes: AtomicUsize::new(0),
            open_bytes: AtomicUsize::new(0),
            open_reads: Arc::default(),
            disk_full: AtomicBool::new(false),
        }
    }

    /// Admits a command that is within the limits of requests. Returns the number of bytes that the
    /// command uses of the limit of open writes.
    pub(in crate::node) fn admit_write(
        &self,
        command: &Command,
        reader: &Reader,
    ) -> CallResult<usize> {
        let is_wide = is_wide(command);
        // If the limit is already reached, avoid the cost of counting keys.
        if is_wide && self.open_bytes() >= self.bytes_max {
            return Err(CallError::Busy);
        }
        let mut keys = if is_wide { self.scanned_keys(command, reader)? } else { 0 };
        if let Command::As(caller, inner) = command {
            // Each replica scans all of these keys before it knows whether the caller has the
            // rights.
            keys += reader.keys_to_authorize(caller, inner);
        }
        if let Some(more) = growth(command, &|key| reader.value_len(key)) {
            self.check_growth(more, reader)?;
        }
        let bytes = encoded_len_hint(command);
        // Cap the bytes that are charged for scanned keys, so that even the largest scan can be
        // admitted while other commands are open.
        let looked =
            keys.saturating_mul(KEY_VISIT_BYTES).min(self.look_bytes_max().saturating_sub(bytes));
        let bytes = bytes + looked;
        let most = self.bytes_max;
        // An eighth of the limit is reserved for commands on single keys.
        self.count(bytes, if looked > 0 { most - most / 8 } else { most })?;
        Ok(bytes)
    }

    /// Returns the maximum number of bytes that one command is charged for its scanned keys. Two
    /// commands with this maximum may be open at once.
    fn look_bytes_max(&self) -> usize {
        self.bytes_max / 8 * 3
    }

    /// Checks whether this replica may grow by `more` bytes. Commands in flight are not counted
    /// here. The limit of open writes and consensus bound the commands in flight.
    fn check_growth(&self, more: u64, reader: &Reader) -> CallResult<()> {
        let (bytes, quota) = (reader.bytes(), self.quota_bytes);
        match quota::rejection(self.disk_full.load(Ordering::Relaxed), bytes, more, quota) {
            Some(why) => Err(CallError::of_growth(why, bytes, quota)),
            None => Ok(()),
        }
    }

    /// Checks whether a command may scan as many keys as its ranges contain, and returns their
    /// number. For a deletion, counting stops where a higher number makes no difference. If the
    /// caller has no rights to the keys, their number is not revealed. Such a command is rejected
    /// later, when its rights are checked.
    fn scanned_keys(&self, command: &Command, reader: &Reader) -> Result<usize, Rejection> {
        if let Command::As(caller, inner) = command
            && reader.authorize(caller, inner).is_err()
        {
            return Ok(0);
        }
        match command.inner() {
            Command::Txn(txn) => self.keys_of_txn(txn, reader),
            Command::Delete(delete) => {
                let max = self.look_bytes_max() / KEY_VISIT_BYTES + 1;
                Ok(reader.visited_keys_of_range(&delete.range, max))
            }
            _ => Ok(0),
        }
    }

    /// Checks whether a transaction may scan as many keys as its ranges contain, and returns their
    /// number.
    pub(in crate::node) fn keys_of_txn(
        &self,
        txn: &Txn,
        reader: &Reader,
    ) -> Result<usize, Rejection> {
        let max = self.txn_keys_max;
        let count = |max: usize| reader.visited_keys(txn, max.saturating_add(1));
        let keys = count(max);
        if keys <= max {
            return Ok(keys);
        }
        let max = max.max(reader.kept_keys().saturating_mul(4));
        let keys = count(max);
        if keys > max { Err(Rejection::TooManyKeys { max }) } else { Ok(keys) }
    }

    pub(in crate::node) fn set_disk_full(&self, full: bool) {
        self.disk_full.store(full, Ordering::Relaxed);
    }

    /// Returns the bytes that are counted for unanswered writes.
    pub(in crate::node) fn open_bytes(&self) -> usize {
        self.open_bytes.load(Ordering::Relaxed)
    }

    /// Counts a write, unless the open writes would then exceed `most` bytes.
    fn count(&self, bytes: usize, most: usize) -> CallResult<()> {
        assert!(bytes > 0, "a command of no bytes");
        let writes = self.open_writes.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.open_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if writes > self.writes_max || total > most {
            self.release(bytes);
            return Err(CallError::Busy);
        }
        Ok(())
    }

    /// Removes a write that has ended from the counts of open writes.
    pub(in crate::node) fn release(&self, bytes: usize) {
        if bytes > 0 {
            self.open_writes.fetch_sub(1, Ordering::Relaxed);
            self.open_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a read as open until the returned value is dropped.
    pub(in crate::node) fn admit_read(&self) -> CallResult<OpenRead> {
        let reads = self.open_reads.fetch_add(1, Ordering::Relaxed) + 1;
        let open = OpenRead(Arc::clone(&self.open_reads));
        if reads > self.reads_max {
            return Err(CallError::Busy);
        }
        Ok(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Machine, MachineOptions};
    use crate::model::{Delete, Put};

    fn admission(writes_max: usize, bytes_max: usize, quota_bytes: u64) -> Admission {
        Admission {
            writes_max,
            bytes_max,
            reads_max: 2,
            txn_keys_max: 10,
            quota_bytes,
            open_writes: AtomicUsize::new(0),
            open_bytes: AtomicUsize::new(0),
            open_reads: Arc::default(),
            disk_full: AtomicBool::new(false),
        }
    }

    fn put(bytes: usize) -> Command {
        Command::Put(Put::new("k", vec![b'v'; bytes]))
    }

    #[test]
    fn open_writes_are_bounded_in_number_and_bytes() {
        let reader = Machine::new(MachineOptions::default()).reader();
        let few = admission(2, 1 << 20, 1 << 30);
        let first = few.admit_write(&put(10), &reader).unwrap();
        few.admit_write(&put(10), &reader).unwrap();
        assert_eq!(few.admit_write(&put(10), &reader), Err(CallError::Busy));
        few.release(first);
        few.admit_write(&put(10), &reader).unwrap();
        let small = admission(100, 1_000, 1 << 30);
        let bytes = small.admit_write(&put(600), &reader).unwrap();
        assert_eq!(small.open_bytes(), bytes);
        assert_eq!(small.admit_write(&put(600), &reader), Err(CallError::Busy));
        assert_eq!(small.open_bytes(), bytes, "a rejected write counts for nothing");
    }

    #[test]
    fn growth_is_rejected_by_the_quota_and_by_a_full_disk() {
        let reader = Machine::new(MachineOptions::default()).reader();
        let delete = Command::Delete(Delete::new("k"));
        let full = admission(10, 1 << 20, 100);
        let error = full.admit_write(&put(200), &reader).unwrap_err();
        assert!(matches!(error, CallError::QuotaExceeded { quota: 100, .. }), "{error:?}");
        full.admit_write(&delete, &reader).unwrap();
        let no_space = admission(10, 1 << 20, 1 << 30);
        no_space.set_disk_full(true);
        assert_eq!(no_space.admit_write(&put(10), &reader), Err(CallError::NoSpace));
        no_space.admit_write(&delete, &reader).unwrap();
        no_space.set_disk_full(false);
        no_space.admit_write(&put(10), &reader).unwrap();
    }

    #[test]
    fn read_is_open_until_it_is_dropped() {
        let admission = admission(1, 1, 1);
        let (first, _second) = (admission.admit_read().unwrap(), admission.admit_read().unwrap());
        assert!(admission.admit_read().is_err());
        drop(first);
        assert!(admission.admit_read().is_ok());
    }
}

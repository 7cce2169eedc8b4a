//! The write-ahead log: the durable state of a member.
//!
//! Everything that a member must not forget is a record in the log. The records contain the
//! consensus entries, the term, vote and commit index, the founders of the cluster, and the
//! member's number of starts. The log is append-only. An entry whose index already exists replaces
//! the earlier entries from that index on. The bytes of the replaced entries stay in the file.
//!
//! ```text
//! consensus --Group--> LogWriter::commit --Durable--> consensus
//!                          |
//!  (truncated)  0000000003.log  0000000004.log  0000000005.log (zeros, ready)  reserve (zeros)
//!                          |
//!                      LogReader --Entry--> lagging peers, replay at start
//!
//! a segment:  | header | State | group | group ... | Roll |
//!                        complete state of the log so far, except for the entries
//! ```
//!
//! A group is the unit of durability: after a crash it is present completely or not at all. A group
//! never spans two segments. Groups that arrive together are written together and synced once. The
//! file of a segment is filled with zeros and synced before it is used, so that a sync does not
//! have to allocate blocks.
//!
//! **Distinguishing a torn tail from damage.** Each record contains the position up to which the
//! log was synced when the record was written. If the log ends in invalid bytes that no later
//! record proves to have been synced, a crash has interrupted the write of an unacknowledged group.
//! The log truncates these bytes. All other invalid bytes are damage. In case of damage the log
//! refuses to open, because the member may have voted or acknowledged entries based on the lost
//! data. The last group is an exception: until the next group is synced, or [`LogWriter::idle`]
//! runs, no record proves that it was synced. If the last group is damaged before that, it is
//! mistaken for a torn tail. If the last segment and the disk are both full, no such record can be
//! written until there is free space.
//!
//! The log makes the assumptions about the disk that `env::disk` lists, and two more. First, a
//! write changes only the sectors that it overlaps. Second, if a write stores the same value in a
//! byte again, that byte does not change, even if the write is interrupted.
//!
//! **Truncation.** Once a durable snapshot covers the oldest entries, [`LogWriter::cut`] removes whole
//! segments, oldest first. The log thereby discards nothing but entries, because every segment
//! begins with a State record. Before the first file is removed, the log durably records the first
//! segment that it still needs. Therefore a segment that is missing for any other reason is
//! reported as damage. Entries up to the [`Base`] can no longer be read. Installing a snapshot sets
//! a base too ([`Group::base`]). The log may then have to drop entries that contradict the
//! snapshot.
//!
//! The log cannot detect one fault: the disk reverts the last segment as a whole to its contents
//! after an earlier group. This disk contains no evidence of the fault. The other members can
//! detect such a fault.
//!
//! **A full disk** is noticed when the log prepares the next segment, before any group depends on
//! that segment. A group that does not fit waits, and none of its bytes are written
//! ([`Committed`]). A reserve file provides space for groups that help to free disk space. Writing
//! a group overwrites zeros that are already allocated, so the write needs no free space. On a
//! copy-on-write file system the write may need free space, and then it can fail like any other
//! write.

mod cut;
mod error;
mod format;
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(crate) mod fuzz;
mod index;
mod open;
mod reader;
mod recover;
mod scan;
mod segment;
mod state;
mod stock;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;

pub(crate) use error::LogError;
pub(crate) use open::LOCK;
pub(crate) use reader::LogReader;
pub(crate) use writer::LogWriter;

use crate::env::{DiskLock, Env};
use crate::model::{ClusterId, DiskId, Incarnation, LogIndex, NodeId, Term};

/// A consensus entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) index: LogIndex,
    pub(crate) term: Term,
    pub(crate) kind: EntryKind,
    pub(crate) data: Bytes,
}

/// The purpose of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    /// A command for the state machine.
    Data,
    /// A membership change for the consensus.
    Membership,
}

/// The state that a Raft member must not forget, in addition to the entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HardState {
    pub(crate) term: Term,
    pub(crate) vote: Option<NodeId>,
    /// The durable commit index. The durable index may be lower than the commit index in memory,
    /// and is at most the index of the last entry.
    pub(crate) commit: LogIndex,
}

impl Default for HardState {
    /// Every member starts as if the synthetic entry (index 1, term 1) were committed.
    fn default() -> Self {
        Self { term: Term(1), vote: None, commit: LogIndex(1) }
    }
}

/// The founders of the cluster, each with the id of its disk.
pub(crate) type Founding = BTreeMap<NodeId, DiskId>;

/// The point after which the entries of a log begin. A durable snapshot covers everything up to and
/// including `index`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Base {
    pub(crate) index: LogIndex,
    /// Term of the entry at `index`.
    pub(crate) term: Term,
}

impl Default for Base {
    /// Every log starts after the synthetic entry: index 1, term 1.
    fn default() -> Self {
        Self { index: LogIndex(1), term: Term(1) }
    }
}

/// Data that must become durable together.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Group {
    /// Number of the group. Never decreases from group to group.
    pub(crate) number: u64,
    pub(crate) hard_state: Option<HardState>,
    /// A durable snapshot covers everything up to this base, which is therefore committed. If the
    /// log does not contain this entry with this term, all entries of the log are dropped, and the
    /// log continues after the base.
    pub(crate) base: Option<Base>,
    /// Consecutive entries. If the first index already exists, the new entries replace the old ones
    /// from there on.
    pub(crate) entries: Vec<Entry>,
    pub(crate) founding: Option<Founding>,
}

/// The proof that every group up to a number is durable. Only this module can create one.
#[derive(Debug)]
#[must_use = "messages that wait for the group are released by its proof"]
pub(crate) struct Durable {
    number: u64,
}

impl Durable {
    /// Returns the number of the last group that is proven durable.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Creates a proof without a write, for tests of code that waits for proofs.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn for_test(number: u64) -> Self {
        Self { number }
    }
}

/// The result of a commit.
#[derive(Debug)]
#[must_use = "waiting groups must be committed again"]
pub(crate) struct Committed {
    /// The proof for the groups that are durable now, or `None` if none of the given groups is
    /// durable.
    pub(crate) proof: Option<Durable>,
    /// The number of groups at the end of the list for which the disk has no space. None of the
    /// bytes of these groups were written. The caller must commit these groups again in the same
    /// order.
    pub(crate) waiting: usize,
}

impl Committed {
    /// Returns the proof that all groups are durable.
    ///
    /// # Panics
    /// Panics if some groups wait for room.
    #[cfg(test)]
    pub(crate) fn whole(self) -> Durable {
        assert_eq!(self.waiting, 0, "groups wait for room");
        self.proof.expect("no group waits")
    }
}

/// The free space of the log's disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// The disk has enough space, as far as the log knows.
    Plenty,
    /// The disk is full. The log can only use files that it has prepared earlier. The log uses the
    /// reserve file last.
    Low,
}

/// The owner of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
}

/// Options for the log's use of its disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogOptions {
    /// Length of a segment's file in bytes. A larger group gets a longer segment. The log uses at
    /// least twice this size, plus the reserve. Default: 16 MiB. Values are clamped to the range
    /// from 2 KiB to 1 GiB.
    pub(crate) segment_bytes: u64,
    /// Length in bytes of the reserve file, which becomes a segment when the disk is full. 0 means
    /// no reserve. Other values are raised to at least the size of a segment. Default: 16 MiB.
    pub(crate) reserve_bytes: u64,
    /// The disk's id, if it was chosen before the log is created. A log that exists already must
    /// have this id.
    pub(crate) disk: Option<DiskId>,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: 16 << 20, reserve_bytes: 16 << 20, disk: None }
    }
}

/// An open log: its writer, its reader, and its recovered contents.
pub(crate) struct Opened {
    pub(crate) writer: LogWriter,
    pub(crate) reader: LogReader,
    pub(crate) recovered: Recovered,
}

/// A log that was read without changes. The log stays locked against writers as long as this value
/// exists.
pub(crate) struct Examined {
    pub(crate) identity: Identity,
    pub(crate) reader: LogReader,
    /// Same as [`Opened::recovered`], with two differences: the incarnation is that of the last
    /// start, and a torn tail was not truncated.
    pub(crate) recovered: Recovered,
    _lock: DiskLock,
}

/// The contents of the log when it was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Recovered {
    /// The disk id, which was chosen when the log was created.
    pub(crate) disk: DiskId,
    /// The incarnation of this start: higher than all earlier ones, and durable.
    pub(crate) incarnation: Incarnation,
    pub(crate) founding: Option<Founding>,
    pub(crate) hard_state: HardState,
    /// Entries up to this base were removed or never existed.
    pub(crate) base: Base,
    /// Index of the last entry, or of the base if there are no entries.
    pub(crate) last: LogIndex,
    /// The truncated tail, if a crash had left an incomplete group.
    pub(crate) torn: Option<TornTail>,
}

/// The remains of a group that was never acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TornTail {
    pub(crate) segment: PathBuf,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Opens the log in `dir`, creates it if necessary, and starts a new incarnation.
///
/// When this function returns, all contents of the log are durable.
///
/// # Errors
/// Returns a [`LogError`]. Apart from the truncation of a torn tail, the contents of the log have
/// not changed.
pub(crate) fn open(
    env: &Env,
    dir: &Path,
    identity: Identity,
    options: LogOptions,
) -> Result<Opened, LogError> {
    LogWriter::open(env, dir, identity, options)
}

/// Reads the log in `dir` without changing anything. Returns `None` if there is no log. No node may
/// run on the directory meanwhile.
///
/// # Errors
/// Returns a [`LogError`].
pub(crate) fn examine(env: &Env, dir: &Path) -> Result<Option<Examined>, LogError> {
    open::examine(env, dir)
}

/// Locks the existing directory `dir` in the same way as an open log.
///
/// # Errors
/// Returns [`LogError::Locked`], or an error of the disk.
pub(crate) fn lock(env: &Env, dir: &Path) -> Result<DiskLock, LogError> {
    open::lock(env, dir)
}

/// Returns the owner of the log in `dir` and the id of its disk without opening the log. Returns
/// `None` if there is no log.
///
/// # Errors
/// Returns a [`LogError`] if the log cannot be read.
pub(crate) fn peek(env: &Env, dir: &Path) -> Result<Option<(Identity, DiskId)>, LogError> {
    recover::peek(&segment::SegmentFolder::new(env, dir))
}

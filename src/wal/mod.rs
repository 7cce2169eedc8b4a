//! The log: the durable truth of a member.
//!
//! Everything that a member must not forget is a record here: the entries of consensus, its term,
//! vote and commit index, who founded the cluster, how often the member was started. The log is only
//! ever appended to. An entry whose index is not the next one replaces, by that, the entries from its
//! index on; their bytes stay where they are.
//!
//! ```text
//! consensus --Group--> Writer::commit --Durable--> consensus
//!                          |
//!   (cut off)  0000000003.log  0000000004.log  0000000005.log (zeros, ready)  reserve (zeros)
//!                          |
//!                      LogReader --Entry--> lagging peers, replay at start
//!
//! a segment:  | header | State | group | group ... | Roll |
//!                        all that the log has said so far, but for the entries
//! ```
//!
//! A group is the unit: after a crash it is there whole or not at all. It never spans two segments.
//! Groups that arrive together are written together and synced once. A segment's file is filled with
//! zeros and synced before it is used, so that a sync has no blocks to allocate.
//!
//! **A torn tail or a damaged log?** Each record carries the position up to which the log was synced
//! when it was written. Bytes that make no sense, with nothing behind them that knows of their having
//! been synced, are what a crash leaves of an unacknowledged group: they are cut. All else that makes
//! no sense is damage: the member may have voted or acknowledged on the strength of what is lost, so
//! the log refuses to open. What remains is a window: between a group's sync and the next group's, or
//! [`Writer::idle`], nothing vouches for that group; if it rots within that time, it is taken for a
//! torn tail. On a disk that is full to the last segment's end the window lasts until there is room.
//!
//! Assumptions about the disk: those of `env::disk`; a write changes no sector that it does not touch,
//! and of the sectors that it touches, bytes written again with the same value stay the same.
//!
//! **The front** is cut off once a durable snapshot covers it ([`Writer::cut`]): whole segments, from
//! the oldest. Nothing but entries is lost by that, as every segment begins with the State. The log
//! itself says, durably and before the first file goes, which segment is the first that is needed, so
//! that a segment that is missing for any other reason is damage. Entries up to the [`Base`] cannot be
//! read any more; a base also comes with a snapshot that was installed ([`Group::base`]), and then the
//! log may have to drop entries that contradict it.
//!
//! What the log cannot notice: that its last segment as a whole went back in time, to what it was after
//! an earlier group. Nothing else on this disk knows better; other members do.
//!
//! **A full disk** is met where the next segment is made, while nothing relies on it. A group for which
//! there is none waits, with nothing of it written ([`Committed`]); a reserve is kept for those that
//! make room. Writing a group overwrites zeros that have their place on the disk already, and needs no
//! room; on a file system that copies on write it may, and then it fails like any other write.

mod cut;
mod error;
mod format;
#[cfg(feature = "fuzzing")]
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
pub(crate) use writer::Writer;

use crate::env::{DiskLock, Env};
use crate::model::{ClusterId, DiskId, Incarnation, LogIndex, NodeId, Term};

/// One entry of consensus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) index: LogIndex,
    pub(crate) term: Term,
    pub(crate) kind: EntryKind,
    pub(crate) data: Bytes,
}

/// What an entry is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    /// For the state machine.
    Data,
    /// For consensus itself.
    Membership,
}

/// What a member of a Raft group must not forget, beside the entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HardState {
    pub(crate) term: Term,
    pub(crate) vote: Option<NodeId>,
    /// May lag behind what the member knows; never ahead of the last entry.
    pub(crate) commit: LogIndex,
}

impl Default for HardState {
    /// Every member starts as if the synthetic entry (index 1, term 1) were committed.
    fn default() -> Self {
        Self { term: Term(1), vote: None, commit: LogIndex(1) }
    }
}

/// Who founded the cluster, each with the disk that it had.
pub(crate) type Founding = BTreeMap<NodeId, DiskId>;

/// Where the entries of a log begin: a durable snapshot covers everything up to and with `index`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Base {
    pub(crate) index: LogIndex,
    /// Of the entry at `index`.
    pub(crate) term: Term,
}

impl Default for Base {
    /// Every log starts behind the synthetic entry: index 1, term 1.
    fn default() -> Self {
        Self { index: LogIndex(1), term: Term(1) }
    }
}

/// What must become durable together.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Group {
    /// Never falls from group to group.
    pub(crate) number: u64,
    pub(crate) hard_state: Option<HardState>,
    /// A durable snapshot covers everything up to here, which is committed by that. If the log does
    /// not have this entry in this term, all its entries are dropped, and it goes on behind the base.
    pub(crate) base: Option<Base>,
    /// Consecutive. The first may be one that the log already has: it and what follows it is replaced.
    pub(crate) entries: Vec<Entry>,
    pub(crate) founding: Option<Founding>,
}

/// The proof that every group up to a number is durable. Only this module can make one.
#[derive(Debug)]
#[must_use = "what waits for the group is opened by its proof"]
pub(crate) struct Durable {
    number: u64,
}

impl Durable {
    /// The number of the last group that is proven durable.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A proof of nothing, for tests of those who wait for proofs.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn for_test(number: u64) -> Self {
        Self { number }
    }
}

/// What came of a commit.
#[derive(Debug)]
#[must_use = "groups that wait for room must be given again"]
pub(crate) struct Committed {
    /// Proves the groups that are durable now; `None` if none of those that were given is.
    pub(crate) proof: Option<Durable>,
    /// How many of the groups that were given, counted from the last, found no room on the disk.
    /// Nothing of them was written. They are to be given again, in the same order.
    pub(crate) waiting: usize,
}

impl Committed {
    /// The proof of all groups.
    ///
    /// # Panics
    /// Some wait for room.
    #[cfg(test)]
    pub(crate) fn whole(self) -> Durable {
        assert_eq!(self.waiting, 0, "groups wait for room");
        self.proof.expect("no group waits")
    }
}

/// How much room the log finds on its disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// Enough, as far as it knows.
    Plenty,
    /// The disk is full: what is left is what had been made ready before, the reserve last.
    Low,
}

/// Whose log it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
}

/// How the log uses its disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogOptions {
    /// The length of a segment's file in bytes; a group that is larger gets a longer one. Twice this
    /// is in use at least, and the reserve. Default 16 MiB; what lies outside 2 KiB to 1 GiB is taken as the nearest.
    pub(crate) segment_bytes: u64,
    /// The length of a file that is kept ready for when the disk is full. It becomes a segment then.
    /// 0 for none; otherwise not less than a segment. Default 16 MiB.
    pub(crate) reserve_bytes: u64,
    /// The disk's id, if it was drawn before there was a log. A log that exists must have it.
    pub(crate) disk: Option<DiskId>,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: 16 << 20, reserve_bytes: 16 << 20, disk: None }
    }
}

/// An open log: one end to write, one to read, and what was in it.
pub(crate) struct Opened {
    pub(crate) writer: Writer,
    pub(crate) reader: LogReader,
    pub(crate) recovered: Recovered,
}

/// A log that was read as it is, and is written by nobody as long as this is there.
pub(crate) struct Examined {
    pub(crate) identity: Identity,
    pub(crate) reader: LogReader,
    /// As [`Opened::recovered`], but for the incarnation, which is that of the last start; a torn tail
    /// was seen and not cut.
    pub(crate) recovered: Recovered,
    _lock: DiskLock,
}

/// What the log knew when it was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Recovered {
    /// Drawn when the log was made.
    pub(crate) disk: DiskId,
    /// Of this start: one more than ever before, and durable.
    pub(crate) incarnation: Incarnation,
    pub(crate) founding: Option<Founding>,
    pub(crate) hard_state: HardState,
    /// Entries up to here are gone, or were never there.
    pub(crate) base: Base,
    /// The last entry; the base if there is none.
    pub(crate) last: LogIndex,
    /// What was cut off, if a crash had left half a group.
    pub(crate) torn: Option<TornTail>,
}

/// The remains of a group that was never acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TornTail {
    pub(crate) segment: PathBuf,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Opens the log in `dir`, making it if there is none, and starts a new incarnation.
///
/// When this returns, everything that the log holds is durable.
///
/// # Errors
/// [`LogError`]; but for a torn tail cut off, nothing that the log held has changed.
pub(crate) fn open(
    env: &Env,
    dir: &Path,
    identity: Identity,
    options: LogOptions,
) -> Result<Opened, LogError> {
    Writer::open(env, dir, identity, options)
}

/// Reads the log in `dir`, changing nothing; `None` if there is none. No node runs on it meanwhile.
///
/// # Errors
/// [`LogError`].
pub(crate) fn examine(env: &Env, dir: &Path) -> Result<Option<Examined>, LogError> {
    open::examine(env, dir)
}

/// Takes the directory `dir`, which exists, as an open log does.
///
/// # Errors
/// [`LogError::Locked`]; what the disk says.
pub(crate) fn lock(env: &Env, dir: &Path) -> Result<DiskLock, LogError> {
    open::lock(env, dir)
}

/// Whose log is in `dir`, and the id of its disk, without opening it; `None` if there is none.
///
/// # Errors
/// [`LogError`], if what is there cannot be read.
pub(crate) fn peek(env: &Env, dir: &Path) -> Result<Option<(Identity, DiskId)>, LogError> {
    recover::peek(&segment::Folder::new(env, dir))
}

//! Snapshots: a complete state in one file, which replaces the log entries that led to it.
//!
//! ```text
//!    Image --pieces--> Writer --seal--> Check --done--> snap-<index>-<term>.snapshot
//!                        |                |                 |            |
//!                  one chunk a call   reads it back,        |            v
//!                                     renames, syncs dir    |        Source --parts--> another member
//!                                                           v
//!    machine <---pieces---------------------------------- SnapshotReader
//!
//!    parts of another member's --> Partial --seal--> Check --pieces--> machine, then
//!                                                      |
//!                                                      +--done--> snap-<index>-<term>.snapshot
//! ```
//!
//! # The file
//! ```text
//!   0        8        12               28       32
//!   +--------+--------+----------------+--------+
//!   | magic  | format | cluster        | crc32  |    header: magic "bowlsnap", numbers little-endian
//!   +--------+--------+----------------+--------+
//!   +----------+--------+------+---------------------+
//!   | bytes    | crc32  | kind | body                |    chunk: `bytes` counts kind and body
//!   | u32      | u32    | u8   |                     |
//!   +----------+--------+------+---------------------+
//!     kind 1   the head of the state, first
//!     kind 2   a piece of the state, any number of times
//!     kind 3   the footer, last: counts of everything | chunks before | bytes before u64 | checksum u64
//! ```
//!
//! The checksum of a chunk covers the checksum of the previous chunk, and the length and content of
//! this one. Therefore a missing, duplicated or moved chunk is detected. The checksum in the footer
//! covers every byte before the footer. No byte of the file depends on the node that wrote it.
//! Therefore members at the same index write identical files, and a transfer that began from one
//! member can continue from another.
//!
//! A backup file has the same format. A backup that was downloaded over the etcd API ends like an
//! etcd snapshot, with two additions: zeros up to a multiple of 512 bytes, and a 32-byte hash. This
//! module ignores the zeros and the hash.
//!
//! # Durability
//! A file with the final name is complete: it was synced, read back and verified before it was
//! renamed. A received file was verified by building a state machine from it. After the rename, the
//! directory is synced. Only then is the log truncated and the older snapshot removed. Files with
//! other names are unfinished. At the next start, an unfinished file of a writer is removed, and an
//! unfinished transfer continues after its last complete chunk.
//!
//! Invariant: this module does not depend on the state machine, the network or the log. Every call
//! does a bounded amount of work, so that the caller may pause between any two calls.

mod error;
mod folder;
mod format;
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(crate) mod fuzz;
mod partial;
mod reader;
mod writer;

#[cfg(test)]
use format::Chunks;
#[cfg(test)]
mod tests;

pub(crate) use error::SnapshotError;
pub(crate) use folder::{Folder, Found};
pub(crate) use partial::{Appended, Partial};
pub(crate) use reader::{Check, SnapshotReader};
pub(crate) use writer::Writer;

//! Snapshots: a whole state in one file, which replaces the log that made it.
//!
//! ```text
//!    Image --pieces--> Writer --seal--> Check --done--> snap-<index>-<term>.snapshot
//!                        |                |                 |            |
//!                  one chunk a call   reads it back,        |            v
//!                                     renames, syncs dir    |        Source --parts--> another member
//!                                                           v
//!    machine <---pieces---------------------------------- Reader
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
//! A chunk's checksum covers the checksum before it, its length and its content, so that no chunk can
//! be left out, doubled or moved. The checksum in the footer covers every byte before the footer. No
//! byte depends on the node that wrote the file: members that are at one index write the same file, and
//! a transfer that began with one of them may go on with another. A backup is such a file; one that has come over
//! the network as etcd's snapshots do has zeros up to a multiple of 512 bytes and 32 bytes of a hash behind it,
//! which nothing here looks at.
//!
//! # Durable
//! A file with the final name is whole: it was synced, read back and verified before it was renamed, one that was
//! received by making a machine of it, and whoever cuts the log waits for the directory's sync after that. The older one is removed only then.
//! Everything else in the folder is a leftover: of a writer, removed at the next start, or of a
//! transfer, taken up again as far as its chunks are whole.
//!
//! Invariant: knows nothing about machines, peers or logs. Every call does a bounded piece of work, so
//! that its caller may pause between any two.

mod error;
mod folder;
mod format;
#[cfg(feature = "fuzzing")]
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
pub(crate) use reader::{Check, Reader};
pub(crate) use writer::Writer;

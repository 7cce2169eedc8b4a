//! The layout of a warm copy in its key-value store.
//!
//! ```text
//! record   key = kind u8 | number u64, big-endian     value = body | crc32 of key and body, u32
//!
//! 'c' n    changes since and including the base revision, in the order in which they were made
//! 'h' 0    the head: written last of its round, in the same batch as the data that it describes
//! 'r' n    rows live at the base revision, in key order
//! 't' n    leases, incarnations and the dedup table, as of the head
//!
//! head     = version u8 | cluster u128 | member | disk u128 | base revision | number of 'r' | number
//!          of 'c' | the revision after those in 'c' | list of the checksums of 't' | bytes of 'r' and
//!          'c' | state head
//! ```
//!
//! The bodies of `c`, `r` and `t` are the records of a snapshot, as `codec` encodes them. The
//! records of `c` and `r` are written once and numbered without gaps. Therefore the two counts in
//! the head and the checksum of each record reveal every missing, stale or damaged record. The
//! records of `t` are overwritten in each round, so the head contains their checksums.
//!
//! Records with numbers beyond the counts in the head are ignored: they were written in a round
//! that was not completed.

use bytes::Bytes;
use thiserror::Error;

use crate::codec::{
    CodecError, Decode, Decoder, Encode, Encoder, decode_head, decode_piece, encode_head,
    encode_piece, record,
};
use crate::model::{ClusterId, DiskId, NodeId, Revision, SnapshotRecord, StateHead};

/// The format version that this build writes, and the newest version that it reads.
const VERSION: u8 = 1;

const CRC_BYTES: usize = 4;

/// The owner of a copied state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyRestoredFrom {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
    pub(crate) disk: DiskId,
}

record!(CopyRestoredFrom, 33, { cluster, node, disk });

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum CopyKind {
    Changes = b'c',
    Head = b'h',
    Rows = b'r',
    Table = b't',
}

/// The head of a copy, which describes its contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CopyHead {
    pub(super) origin: CopyRestoredFrom,
    /// The base revision: the rows are live at this revision, and the changes begin with it. 0
    /// means that there are no rows.
    pub(super) base: Revision,
    pub(super) rows: u64,
    pub(super) changes: u64,
    /// The revision after the last change in the copy. This revision may be greater than the
    /// revision of the state.
    pub(super) next: Revision,
    pub(super) tables: Vec<u32>,
    /// Encoded size of the rows and changes in bytes.
    pub(super) bytes: u64,
    pub(super) state: StateHead,
}

/// A record that is missing or damaged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum RecordError {
    #[error("warm copy: record {number} of kind {kind:?} is missing")]
    Missing { kind: CopyKind, number: u64 },
    #[error("warm copy: record {number} of kind {kind:?} is damaged")]
    Damaged { kind: CopyKind, number: u64 },
    #[error(transparent)]
    Codec(#[from] CodecError),
}

pub(super) fn key(kind: CopyKind, number: u64) -> Vec<u8> {
    let mut key = vec![kind as u8];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Returns the record of a piece, and its checksum.
pub(super) fn seal_piece(kind: CopyKind, number: u64, record: &SnapshotRecord) -> (Vec<u8>, u32) {
    let mut body = Vec::new();
    encode_piece(record, &mut body);
    seal(kind, number, body)
}

pub(super) fn seal_head(head: &CopyHead) -> Vec<u8> {
    let CopyHead { origin, base, rows, changes, next, tables, bytes, state } = head;
    let mut body = Vec::new();
    let to = &mut Encoder::new(&mut body);
    to.byte(VERSION);
    origin.encode(to);
    to.number(base.get());
    to.number(*rows);
    to.number(*changes);
    to.number(next.get());
    to.number(tables.len() as u64);
    for &sum in tables {
        to.number(sum.into());
    }
    to.number(*bytes);
    encode_head(state, &mut body);
    seal(CopyKind::Head, 0, body).0
}

fn seal(kind: CopyKind, number: u64, mut body: Vec<u8>) -> (Vec<u8>, u32) {
    let sum = checksum(kind, number, &body);
    body.extend_from_slice(&sum.to_le_bytes());
    (body, sum)
}

fn checksum(kind: CopyKind, number: u64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&key(kind, number));
    hasher.update(body);
    hasher.finalize()
}

/// Returns the body of a record, and its checksum.
fn open(kind: CopyKind, number: u64, record: &[u8]) -> Result<(Bytes, u32), RecordError> {
    let damaged = RecordError::Damaged { kind, number };
    let Some((body, sum)) = record.split_last_chunk::<CRC_BYTES>() else { return Err(damaged) };
    let sum = u32::from_le_bytes(*sum);
    if sum != checksum(kind, number, body) {
        return Err(damaged);
    }
    Ok((Bytes::copy_from_slice(body), sum))
}

pub(super) fn open_piece(
    kind: CopyKind,
    number: u64,
    record: &[u8],
) -> Result<(SnapshotRecord, u32), RecordError> {
    let (body, sum) = open(kind, number, record)?;
    Ok((decode_piece(body)?, sum))
}

pub(super) fn open_head(record: &[u8]) -> Result<CopyHead, RecordError> {
    let (body, _) = open(CopyKind::Head, 0, record)?;
    let mut from = Decoder::new("warm copy", body);
    from.version(VERSION)?;
    let origin = CopyRestoredFrom::decode(&mut from)?;
    let (base, rows, changes) = (Revision(from.number()?), from.number()?, from.number()?);
    let next = Revision(from.number()?);
    let mut tables = Vec::new();
    for _ in 0..from.count(1)? {
        let sum = u32::try_from(from.number()?);
        tables.push(sum.map_err(|_| from.malformed("a checksum has more than 32 bits"))?);
    }
    let bytes = from.number()?;
    let state = decode_head(from.rest())?;
    Ok(CopyHead { origin, base, rows, changes, next, tables, bytes, state })
}

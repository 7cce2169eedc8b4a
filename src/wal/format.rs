//! The byte format of a segment: its header and its records.
//!
//! All numbers are little-endian. A segment is a file of a fixed length. Bytes that were not
//! written yet are zeros.
//!
//! ```text
//! segment:  | header 72 | State | record | record | ... | Roll | zeros |
//!
//! header    0 | "BOWLINE\n"                          8
//!           8 | format version                       4
//!          12 | segment number, from 1               4
//!          16 | cluster                             16
//!          32 | disk                                16
//!          48 | node                                 8
//!          56 | length of the file                   4
//!          60 | chain at the end of the last segment 4   (0 in the first)
//!          64 | zero                                 4
//!          68 | crc of 0..68                         4   = the chain that this segment starts with
//!
//! record    0 | "BLr\x01"                            4
//!           4 | crc of 8..48, seeded                 4   seed: crc of disk and segment number
//!           8 | length of the payload                4
//!          12 | kind 1 | flags 1 | zero 2            4   flags: 1 = the last record of its group
//!          16 | durable: segment 4 (high), offset 4  8   all before it was synced when this was written
//!          24 | term                                 8
//!          32 | index                                8
//!          40 | the record's own offset              4
//!          44 | chain: crc of 8..44, payload, zeros  4   starts from the chain of the record before
//!          48 | payload, zeros up to a multiple of 8
//!
//! State     0 | incarnation                          8    (payload)
//!           8 | term                                 8
//!          16 | vote, 0 for none                     8
//!          24 | commit                               8
//!          32 | base: index 8, term 8               16
//!          48 | last entry                           8
//!          56 | first segment that is needed         4
//!          60 | number of runs                       4
//!          64 | run: first index 8, term 8          16   each; the first begins with commit
//!             | founder: node 8, disk 16            24   each; none before the founding
//! ```
//!
//! The two checksums have different purposes. The chain proves that a record directly follows the
//! previous record. The chain of a record that an earlier incarnation left behind, or of a record
//! at a wrong offset, never matches. The seeded checksum can be verified without the preceding
//! records. Therefore a valid record found after damage is a witness: its `durable` position proves
//! that the damaged bytes had been synced.
//!
//! The layout of the header never changes. If the format changes, the version number in the header
//! changes, and only the bytes after the header may have another layout.

use crc32fast::Hasher;

use super::Identity;
use crate::model::{ClusterId, DiskId, NodeId};

/// The format version that this code writes, and the newest that it reads.
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 72;
pub(super) const RECORD_BYTES: usize = 48;

const HEADER_MAGIC: [u8; 8] = *b"BOWLINE\n";
const RECORD_MAGIC: [u8; 4] = *b"BLr\x01";
const GROUP_END: u8 = 1;

/// A position in the log. The order is the order of writing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Position {
    pub(super) segment: u32,
    pub(super) offset: u32,
}

impl Position {
    fn to_u64(self) -> u64 {
        u64::from(self.segment) << 32 | u64::from(self.offset)
    }

    fn from_u64(packed: u64) -> Self {
        Self { segment: (packed >> 32) as u32, offset: packed as u32 }
    }
}

/// The header at the start of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) segment: u32,
    pub(super) identity: Identity,
    pub(super) disk: DiskId,
    /// Length of the whole file in bytes. A shorter file has lost data.
    pub(super) length: u32,
    /// The chain at the end of the previous segment.
    pub(super) chain: u32,
}

impl Header {
    /// Returns the encoded header, and the chain that the first record starts from.
    pub(super) fn encode(&self) -> ([u8; HEADER_BYTES], u32) {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&HEADER_MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.segment.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.identity.cluster.0.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.disk.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.identity.node.get().to_le_bytes());
        bytes[56..60].copy_from_slice(&self.length.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.chain.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..68]);
        bytes[68..72].copy_from_slice(&crc.to_le_bytes());
        (bytes, crc)
    }

    /// Decodes a header and returns it with the chain that it starts. Returns `None` if the bytes
    /// are not a valid header.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<(Self, u32)> {
        let crc = u32_at(bytes, 68);
        if bytes[..8] != HEADER_MAGIC || crc32fast::hash(&bytes[..68]) != crc {
            return None;
        }
        let header = Self {
            version: u32_at(bytes, 8),
            segment: u32_at(bytes, 12),
            identity: Identity {
                cluster: ClusterId(u128_at(bytes, 16)),
                node: NodeId::new(u64_at(bytes, 48))?,
            },
            disk: DiskId(u128_at(bytes, 32)),
            length: u32_at(bytes, 56),
            chain: u32_at(bytes, 60),
        };
        Some((header, crc))
    }
}

/// The kind of a record. The numbers are stored on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum RecordKind {
    /// A start of the member. The payload is the incarnation.
    Boot = 1,
    /// The payload lists the founders.
    Founding = 2,
    /// The term is in `term`, the commit index in `index`, and the payload is the vote (0 for
    /// none).
    HardState = 3,
    /// A command of the state machine.
    Data = 4,
    /// A membership change.
    Membership = 5,
    /// A record that only states its `durable` position.
    Watermark = 6,
    /// The last record of its segment: the log continues in the next segment.
    Roll = 7,
    /// The first record of its segment: the complete state of the log except for the entries.
    State = 8,
    /// Entries up to `index` are no longer needed. The log contains the entry at `index` with this
    /// `term`. The payload is the number of the first segment that is still needed.
    Keep = 9,
    /// Like `Keep`, but the log does not contain that entry. Therefore none of the log's entries is
    /// needed.
    Reset = 10,
}

impl RecordKind {
    fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Boot,
            2 => Self::Founding,
            3 => Self::HardState,
            4 => Self::Data,
            5 => Self::Membership,
            6 => Self::Watermark,
            7 => Self::Roll,
            8 => Self::State,
            9 => Self::Keep,
            10 => Self::Reset,
            _ => return None,
        })
    }
}

/// The fixed-size part of a record, before its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) kind: RecordKind,
    /// Whether this is the last record of its group.
    pub(super) ends_group: bool,
    /// Everything before this position was synced when the record was written.
    pub(super) durable: Position,
    pub(super) term: u64,
    pub(super) index: u64,
    /// Offset of this record in the segment.
    pub(super) offset: u32,
    /// Length of the payload in bytes.
    pub(super) length: u32,
    /// Checksum of everything in the segment up to and including this record.
    pub(super) chain: u32,
}

impl Record {
    /// Returns the size of a record with a payload of `length` bytes.
    pub(super) const fn bytes(length: usize) -> usize {
        RECORD_BYTES + length.next_multiple_of(8)
    }

    /// Decodes a record that was written at `offset` of the segment with this seed. Checks neither
    /// the payload nor whether the record follows the previous record.
    pub(super) fn decode(bytes: &[u8; RECORD_BYTES], seed: u32, offset: u32) -> Option<Self> {
        if bytes[..4] != RECORD_MAGIC || crc(seed, &bytes[8..]) != u32_at(bytes, 4) {
            return None;
        }
        let record = Self {
            kind: RecordKind::from_u8(bytes[12])?,
            ends_group: bytes[13] == GROUP_END,
            durable: Position::from_u64(u64_at(bytes, 16)),
            term: u64_at(bytes, 24),
            index: u64_at(bytes, 32),
            offset: u32_at(bytes, 40),
            length: u32_at(bytes, 8),
            chain: u32_at(bytes, 44),
        };
        (record.offset == offset).then_some(record)
    }

    /// Returns whether the record follows a record with the chain `before`, and whether `bytes` and
    /// `payload`, including padding, are the bytes of this record.
    pub(super) fn follows(&self, bytes: &[u8; RECORD_BYTES], payload: &[u8], before: u32) -> bool {
        let mut hasher = Hasher::new_with_initial(before);
        hasher.update(&bytes[8..44]);
        hasher.update(payload);
        hasher.finalize() == self.chain || mutant!(M21)
    }
}

/// A record to be written.
pub(super) struct RecordDraft<'a> {
    pub(super) kind: RecordKind,
    pub(super) ends_group: bool,
    pub(super) durable: Position,
    pub(super) term: u64,
    pub(super) index: u64,
    pub(super) payload: &'a [u8],
}

impl RecordDraft<'_> {
    /// Appends the bytes of the record to `buffer`. The record will be at `offset` of the segment
    /// with this seed, after a record with the chain `before`. Returns the record's chain.
    pub(super) fn encode(&self, buffer: &mut Vec<u8>, seed: u32, offset: u32, before: u32) -> u32 {
        let start = buffer.len();
        let length = u32::try_from(self.payload.len()).expect("groups are limited to 1 GiB");
        buffer.extend_from_slice(&RECORD_MAGIC);
        buffer.extend_from_slice(&[0; 4]);
        buffer.extend_from_slice(&length.to_le_bytes());
        buffer.push(self.kind as u8);
        buffer.push(if self.ends_group { GROUP_END } else { 0 });
        buffer.extend_from_slice(&[0; 2]);
        buffer.extend_from_slice(&self.durable.to_u64().to_le_bytes());
        buffer.extend_from_slice(&self.term.to_le_bytes());
        buffer.extend_from_slice(&self.index.to_le_bytes());
        buffer.extend_from_slice(&offset.to_le_bytes());
        buffer.extend_from_slice(&[0; 4]);
        buffer.extend_from_slice(self.payload);
        buffer.resize(start + Record::bytes(self.payload.len()), 0);

        let record = &mut buffer[start..];
        let mut hasher = Hasher::new_with_initial(before);
        hasher.update(&record[8..44]);
        hasher.update(&record[RECORD_BYTES..]);
        let chain = hasher.finalize();
        record[44..48].copy_from_slice(&chain.to_le_bytes());
        let own = crc(seed, &record[8..RECORD_BYTES]);
        record[4..8].copy_from_slice(&own.to_le_bytes());
        chain
    }
}

/// Returns the initial value of the record checksums of a segment.
pub(super) fn seed(disk: DiskId, segment: u32) -> u32 {
    crc(crc32fast::hash(&disk.0.to_le_bytes()), &segment.to_le_bytes())
}

fn crc(seed: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed);
    hasher.update(bytes);
    hasher.finalize()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Decodes a payload of eight bytes as a number.
pub(super) fn decode_u64(payload: &[u8]) -> Option<u64> {
    payload.try_into().ok().map(u64::from_le_bytes)
}

/// Encodes the founders: a node and its disk, 24 bytes each, in the order of the nodes.
pub(super) fn encode_founding(founding: &super::Founding) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(founding.len() * 24);
    for (node, disk) in founding {
        bytes.extend_from_slice(&node.get().to_le_bytes());
        bytes.extend_from_slice(&disk.0.to_le_bytes());
    }
    bytes
}

pub(super) fn decode_founding(payload: &[u8]) -> Option<super::Founding> {
    if !payload.len().is_multiple_of(24) {
        return None;
    }
    payload
        .chunks_exact(24)
        .map(|pair| Some((NodeId::new(u64_at(pair, 0))?, DiskId(u128_at(pair, 8)))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            version: VERSION,
            segment: 3,
            identity: Identity { cluster: ClusterId(7), node: NodeId::new(2).unwrap() },
            disk: DiskId(99),
            length: 4096,
            chain: 0xabcd,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn header_and_record_bytes_are_frozen() {
        let (bytes, chain) = header().encode();
        assert_eq!(
            hex(&bytes),
            "424f574c494e450a01000000030000000700000000000000000000000000000063000000000000000000000000000000020000000000000000100000cdab000000000000c913f8d8"
        );
        let mut record = Vec::new();
        let draft = RecordDraft {
            kind: RecordKind::Data,
            ends_group: true,
            durable: Position { segment: 2, offset: 72 },
            term: 5,
            index: 6,
            payload: b"abc",
        };
        draft.encode(&mut record, seed(DiskId(99), 3), 72, chain);
        assert_eq!(
            hex(&record),
            "424c72010b74d67f0300000004010000480000000200000005000000000000000600000000000000480000000ab8d9306162630000000000"
        );
    }

    #[test]
    fn header_with_a_flipped_bit_is_invalid() {
        let (bytes, chain) = header().encode();
        assert_eq!(Header::decode(&bytes), Some((header(), chain)));
        for bit in 0..HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn record_is_valid_only_on_its_disk_segment_and_offset() {
        let mut bytes = Vec::new();
        let draft = RecordDraft {
            kind: RecordKind::Data,
            ends_group: false,
            durable: Position { segment: 1, offset: 0 },
            term: 1,
            index: 2,
            payload: b"payload",
        };
        draft.encode(&mut bytes, seed(DiskId(1), 1), 72, 55);
        let head: &[u8; RECORD_BYTES] = bytes.first_chunk().unwrap();
        let record = Record::decode(head, seed(DiskId(1), 1), 72).unwrap();
        assert!(record.follows(head, &bytes[RECORD_BYTES..], 55));
        assert!(!record.follows(head, &bytes[RECORD_BYTES..], 56));
        assert_eq!(Record::decode(head, seed(DiskId(2), 1), 72), None);
        assert_eq!(Record::decode(head, seed(DiskId(1), 2), 72), None);
        assert_eq!(Record::decode(head, seed(DiskId(1), 1), 80), None);
    }

    #[test]
    fn founding_record_round_trips() {
        let founding: super::super::Founding =
            (1..=3).map(|n| (NodeId::new(n).unwrap(), DiskId(u128::from(n) << 70))).collect();
        let bytes = encode_founding(&founding);
        assert_eq!(decode_founding(&bytes), Some(founding));
        assert_eq!(decode_founding(&bytes[1..]), None);
    }
}

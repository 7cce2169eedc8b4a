//! Encodes and decodes the byte format of a snapshot file, without file access. The [module
//! page](super) shows the layout.

use bytes::Bytes;

use crate::codec::{
    CodecError, Decode, Decoder, Encode, Encoder, encode_head, encode_piece, record,
};
use crate::model::{ClusterId, PieceCounts, SnapshotId, SnapshotRecord, StateHead};

const MAGIC: [u8; 8] = *b"bowlsnap";

/// The file format that this build writes, and the newest format that it reads.
const FORMAT: u32 = 1;

/// Length of the header.
pub(super) const HEADER_BYTES: usize = 32;

/// Length of a chunk's prefix: its length and its checksum.
pub(super) const CHUNK_HEAD_BYTES: usize = 8;

pub(super) mod kind {
    pub(in crate::snapshot) const HEAD: u8 = 1;
    pub(in crate::snapshot) const PIECE: u8 = 2;
    pub(in crate::snapshot) const FOOTER: u8 = 3;
}

/// Encodes a state as a snapshot file, chunk by chunk, for a destination other than a local file.
/// For a local file see [`Writer`](super::Writer).
pub(crate) struct Chunks {
    sums: Sums,
    counts: PieceCounts,
    id: SnapshotId,
}

impl Chunks {
    /// Returns the start of the file: its header, and the head of the state.
    pub(crate) fn begin(cluster: ClusterId, head: &StateHead) -> (Self, Vec<u8>) {
        let mut bytes = header(cluster);
        let id = SnapshotId { index: head.index, term: head.term, bytes: 0, checksum: 0 };
        let mut chunks = Self { sums: Sums::begin(&bytes), counts: PieceCounts::default(), id };
        chunks.chunk(kind::HEAD, &mut bytes, |body| encode_head(head, body));
        (chunks, bytes)
    }

    /// Encodes the next piece.
    pub(crate) fn record(&mut self, record: &SnapshotRecord) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.counts.add(record);
        self.chunk(kind::PIECE, &mut bytes, |body| encode_piece(record, body));
        bytes
    }

    /// Returns the end of the file, and the id of the complete file.
    pub(crate) fn end(&mut self) -> (Vec<u8>, SnapshotId) {
        let footer = self.sums.footer(self.counts);
        let mut bytes = Vec::new();
        self.chunk(kind::FOOTER, &mut bytes, |body| footer.encode(&mut Encoder::new(body)));
        (bytes, SnapshotId { bytes: self.sums.bytes, checksum: footer.checksum, ..self.id })
    }

    fn chunk(&mut self, kind: u8, bytes: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
        let start = bytes.len();
        bytes.extend_from_slice(&[0; CHUNK_HEAD_BYTES]);
        bytes.push(kind);
        body(bytes);
        let (head, content) = bytes[start..].split_at_mut(CHUNK_HEAD_BYTES);
        let length = u32::try_from(content.len()).expect("a record has the size of a few entries");
        head[..4].copy_from_slice(&length.to_le_bytes());
        let crc = self.sums.next(length, content);
        head[4..].copy_from_slice(&crc.to_le_bytes());
        self.sums.pass(&bytes[start..], crc);
    }
}

/// The running checksums and counts of a file that is written or read.
pub(super) struct Sums {
    /// The checksum of the previous chunk.
    chain: u32,
    whole: crc32fast::Hasher,
    pub(super) bytes: u64,
    chunks: u64,
}

impl Sums {
    /// Creates the state after a valid header.
    pub(super) fn begin(header: &[u8]) -> Self {
        let mut whole = crc32fast::Hasher::new();
        whole.update(header);
        Self { chain: crc32fast::hash(header), whole, bytes: header.len() as u64, chunks: 0 }
    }

    /// Returns the checksum that the next chunk must have if it has this length and content.
    pub(super) fn next(&self, length: u32, content: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.chain.to_le_bytes());
        hasher.update(&length.to_le_bytes());
        hasher.update(content);
        hasher.finalize()
    }

    /// Advances past a chunk.
    pub(super) fn pass(&mut self, chunk: &[u8], crc: u32) {
        self.chain = crc;
        self.whole.update(chunk);
        self.bytes += chunk.len() as u64;
        self.chunks += 1;
    }

    /// Returns the footer for the current position.
    pub(super) fn footer(&self, counts: PieceCounts) -> Footer {
        let whole = u64::from(self.whole.clone().finalize());
        let checksum = whole << 32 | u64::from(self.chain);
        Footer { counts, chunks: self.chunks, bytes: self.bytes, checksum }
    }
}

/// The contents of the last chunk, which describe the chunks before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Footer {
    pub(super) counts: PieceCounts,
    pub(super) chunks: u64,
    pub(super) bytes: u64,
    pub(super) checksum: u64,
}

record!(Footer, 22, { counts, chunks, bytes as fixed, checksum as fixed });

impl Footer {
    /// Returns the encoded footer.
    #[cfg(any(test, fuzzing))]
    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut Encoder::new(&mut bytes));
        bytes
    }

    pub(super) fn decoded(content: Bytes) -> Result<Self, CodecError> {
        let mut from = Decoder::new("footer", content);
        let footer = Self::decode(&mut from)?;
        from.finish()?;
        Ok(footer)
    }
}

fn header(cluster: ClusterId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&cluster.0.to_le_bytes());
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// The reason why a header is invalid.
pub(super) enum BadHeader {
    Damaged(&'static str),
    Newer(u32),
}

/// Parses a header and returns the cluster of the file.
pub(super) fn parse_header(bytes: &[u8; HEADER_BYTES]) -> Result<ClusterId, BadHeader> {
    let (magic, rest) = bytes.split_first_chunk::<8>().expect("32 bytes");
    let (format, rest) = rest.split_first_chunk::<4>().expect("24 bytes");
    let (cluster, crc) = rest.split_first_chunk::<16>().expect("20 bytes");
    if *magic != MAGIC {
        return Err(BadHeader::Damaged("not a Bowline snapshot"));
    }
    // Check the version first, because the remaining layout of a newer format is unknown.
    match u32::from_le_bytes(*format) {
        0 => return Err(BadHeader::Damaged("format 0")),
        format if format > FORMAT => return Err(BadHeader::Newer(format)),
        _ => {}
    }
    if crc32fast::hash(&bytes[..HEADER_BYTES - 4]).to_le_bytes() != *crc {
        return Err(BadHeader::Damaged("the header's checksum does not match"));
    }
    Ok(ClusterId(u128::from_le_bytes(*cluster)))
}

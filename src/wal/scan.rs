//! Reads the records of a segment one after the other along the chain. After damage, searches for
//! witnesses: later records which prove that the damaged bytes had been synced.

use std::io;

use super::format::{Position, RECORD_BYTES, Record};
use crate::env::File;

/// Maximum number of bytes in one read.
pub(super) const CHUNK_BYTES: u64 = 128 << 10;

/// Number of bytes in the first read. Each later read is twice as large as the one before.
/// Therefore a caller that needs few entries reads few bytes.
pub(super) const FIRST_CHUNK_BYTES: u64 = 8 << 10;

/// A cursor over the records of one segment.
pub(super) struct Cursor {
    file: Box<dyn File>,
    file_bytes: u64,
    seed: u32,
    /// The bytes from offset `window_at` on.
    window: Vec<u8>,
    window_at: u64,
    /// Size of the next read.
    chunk: u64,
    offset: u64,
    chain: u32,
}

/// A valid record at the position of the cursor.
pub(super) struct ScanFound<'a> {
    pub(super) record: Record,
    pub(super) payload: &'a [u8],
    /// The chain before this record.
    pub(super) before: u32,
}

impl Cursor {
    /// Creates a cursor at `offset` of a segment, after a record or header with this chain.
    pub(super) fn new(file: Box<dyn File>, seed: u32, offset: u64, chain: u32) -> io::Result<Self> {
        let file_bytes = file.len()?;
        Ok(Self {
            file,
            file_bytes,
            seed,
            window: Vec::new(),
            window_at: offset,
            chunk: FIRST_CHUNK_BYTES,
            offset,
            chain,
        })
    }

    /// Moves the cursor to another offset of the same segment.
    pub(super) fn seek(&mut self, offset: u64, chain: u32) {
        if offset < self.window_at {
            self.window.clear();
            self.window_at = offset;
        }
        self.offset = offset;
        self.chain = chain;
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn chain(&self) -> u32 {
        self.chain
    }

    pub(super) fn into_file(self) -> Box<dyn File> {
        self.file
    }

    /// Returns the next record. If there is none, returns the reason and does not move the cursor.
    pub(super) fn next(&mut self) -> io::Result<Result<ScanFound<'_>, &'static str>> {
        if !self.load(RECORD_BYTES as u64)? {
            return Ok(Err("the file ends where a record should be"));
        }
        let Ok(offset) = u32::try_from(self.offset) else {
            return Ok(Err("the file is longer than any segment"));
        };
        let start = self.window_start();
        let head = *self.window[start..].first_chunk::<RECORD_BYTES>().expect("just loaded");
        let Some(record) = Record::decode(&head, self.seed, offset) else {
            return Ok(Err("there is no valid record at this position"));
        };
        let bytes = Record::bytes(record.length as usize);
        if !self.load(bytes as u64)? {
            return Ok(Err("the record extends beyond the end of the file"));
        }
        let start = self.window_start();
        let body = &self.window[start + RECORD_BYTES..start + bytes];
        if !record.follows(&head, body, self.chain) {
            return Ok(Err(
                "the record's checksum does not match its contents and the records before it",
            ));
        }
        let before = std::mem::replace(&mut self.chain, record.chain);
        self.offset += bytes as u64;
        Ok(Ok(ScanFound { record, payload: &body[..record.length as usize], before }))
    }

    fn window_start(&self) -> usize {
        usize::try_from(self.offset - self.window_at).expect("the window lies in memory")
    }

    /// Loads `bytes` from the cursor's offset on into the window. Returns `false` if the file is
    /// too short.
    fn load(&mut self, bytes: u64) -> io::Result<bool> {
        let rest = self.file_bytes.saturating_sub(self.offset);
        if rest < bytes {
            return Ok(false);
        }
        let loaded = (self.window_at + self.window.len() as u64).saturating_sub(self.offset);
        if loaded < bytes {
            let passed = self.window_start().min(self.window.len());
            self.window.drain(..passed);
            self.window_at = self.offset;
            let have = self.window.len();
            let want = bytes.max(self.chunk).min(rest);
            self.chunk = (self.chunk * 2).min(CHUNK_BYTES);
            self.window.resize(usize::try_from(want).map_err(io::Error::other)?, 0);
            self.file.read_exact_at(&mut self.window[have..], self.window_at + have as u64)?;
        }
        Ok(true)
    }
}

/// The bytes after the last valid record.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Rest {
    /// End of the bytes that are not zero.
    pub(super) used_until: u64,
    /// The furthest position that a record among these bytes proves to have been synced.
    pub(super) witness: Option<Position>,
}

/// Searches a segment from `offset`, a multiple of 8, to its end.
pub(super) fn search(file: &dyn File, seed: u32, offset: u64) -> io::Result<Rest> {
    let file_bytes = file.len()?;
    let mut rest = Rest { used_until: offset, witness: None };
    let mut window = Vec::new();
    let mut at = offset;
    while at < file_bytes {
        // Windows overlap by the size of a record's header, so that no header is split between two
        // windows.
        let want = (CHUNK_BYTES + RECORD_BYTES as u64).min(file_bytes - at);
        window.resize(usize::try_from(want).map_err(io::Error::other)?, 0);
        file.read_exact_at(&mut window, at)?;
        let used = used(&window);
        if used > 0 {
            rest.used_until = at + used as u64;
            for start in (0..window.len()).step_by(8) {
                let Some(head) = window[start..].first_chunk::<RECORD_BYTES>() else { break };
                let Ok(place) = u32::try_from(at + start as u64) else { break };
                if let Some(record) = Record::decode(head, seed, place) {
                    rest.witness = rest.witness.max(Some(record.durable));
                }
            }
        }
        at += CHUNK_BYTES;
    }
    Ok(rest)
}

/// Returns the end of the bytes that are not zero. Compares whole chunks, because nearly all bytes
/// are zeros.
fn used(mut bytes: &[u8]) -> usize {
    const ZEROS: &[u8] = &[0; 512];
    while let Some(before) = bytes.strip_suffix(ZEROS) {
        bytes = before;
    }
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::used;

    #[test]
    fn used_length_ends_at_the_last_nonzero_byte() {
        for length in [0, 1, 511, 512, 513, 1023, 1024, 1025, 4096] {
            let mut bytes = vec![0; length];
            assert_eq!(used(&bytes), 0, "of {length}");
            for at in 0..length {
                bytes[at] = 1;
                assert_eq!(used(&bytes), at + 1, "of {length}");
            }
        }
    }
}

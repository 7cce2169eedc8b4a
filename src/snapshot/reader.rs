//! The reader of a snapshot file, one chunk per call. No data is used before its checksum is
//! verified.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::SnapshotError;
use super::format::{BadHeader, CHUNK_HEAD_BYTES, Footer, HEADER_BYTES, Sums, kind, parse_header};
use super::writer::Temporary;
use crate::codec::{decode_head, decode_piece};
use crate::env::{Disk, File, OpenMode};
use crate::model::{ClusterId, PieceCounts, SnapshotId, SnapshotRecord, StateHead};

/// A snapshot file that is read from start to end.
pub(crate) struct SnapshotReader {
    path: PathBuf,
    file: Box<dyn File>,
    len: u64,
    cluster: ClusterId,
    head: StateHead,
    sums: Sums,
    counts: PieceCounts,
    /// Whether some pieces were skipped. Skipped pieces are not counted.
    passes: bool,
    /// Id of the snapshot, once the footer has been read.
    id: Option<SnapshotId>,
    /// Whether a [tail](TAIL_BYTES) may follow the footer.
    may_have_tail: bool,
}

/// A backup that was downloaded over the etcd API ends like an etcd snapshot. Zeros up to a
/// multiple of this number of bytes are followed by a hash of the contents.
const TAIL_ALIGN: u64 = 512;
const TAIL_BYTES: u64 = 32;

/// The decoded form of a chunk.
enum Chunk {
    Head(Bytes),
    SnapshotRecord(Bytes),
    Footer(SnapshotId, PieceCounts),
}

impl SnapshotReader {
    /// Opens a file and reads its head.
    ///
    /// # Errors
    /// Fails if the file does not exist or is not a snapshot, or if the disk returns an error.
    pub(crate) fn open(disk: &Arc<dyn Disk>, path: &Path) -> Result<Self, SnapshotError> {
        let file = disk.open(path, OpenMode::Read).map_err(SnapshotError::io("open", path))?;
        let len = file.len().map_err(SnapshotError::io("measure", path))?;
        let damaged = |why: &str| {
            let (path, why) = (path.to_owned(), why.to_owned());
            SnapshotError::Damaged { path, offset: 0, why }
        };
        if len < HEADER_BYTES as u64 {
            return Err(damaged("the header is truncated"));
        }
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(SnapshotError::io("read", path))?;
        let cluster = parse_header(&header).map_err(|bad| match bad {
            BadHeader::Damaged(why) => damaged(why),
            BadHeader::Newer(found) => {
                let (path, why) = (
                    path.to_owned(),
                    format!(
                        "snapshot format {found} is newer than this build \
                                                             supports"
                    ),
                );
                SnapshotError::Newer { path, offset: 0, why }
            }
        })?;
        let (path, mut sums) = (path.to_owned(), Sums::begin(&header));
        let offset = sums.bytes;
        let head = match next_chunk(&path, &*file, len, None, &mut sums)? {
            Chunk::Head(body) => decode_head(body).map_err(SnapshotError::codec(&path, offset))?,
            Chunk::SnapshotRecord(_) | Chunk::Footer(..) => {
                let why = "the first chunk is not a state head".to_owned();
                return Err(SnapshotError::Damaged { path, offset, why });
            }
        };
        let counts = PieceCounts::default();
        let (passes, may_have_tail) = (false, false);
        Ok(Self { path, file, len, cluster, head, sums, counts, passes, id: None, may_have_tail })
    }

    /// Opens a file that may have been downloaded over the etcd API, and reads its head.
    ///
    /// # Errors
    /// Same as [`SnapshotReader::open`].
    pub(crate) fn open_received(disk: &Arc<dyn Disk>, path: &Path) -> Result<Self, SnapshotError> {
        Ok(Self { may_have_tail: true, ..Self::open(disk, path)? })
    }

    /// Returns the cluster that the file belongs to.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Checks that the file belongs to this cluster.
    ///
    /// # Errors
    /// Fails if the file belongs to another cluster.
    pub(crate) fn expect_cluster(&self, expected: ClusterId) -> Result<(), SnapshotError> {
        if self.cluster == expected {
            return Ok(());
        }
        let (path, found) = (self.path.clone(), self.cluster);
        Err(SnapshotError::Foreign { path, found, expected })
    }

    pub(crate) fn head(&self) -> &StateHead {
        &self.head
    }

    /// Returns the next piece, or `None` once the whole file was read and verified.
    ///
    /// # Errors
    /// Fails if the disk returns an error or the file is damaged.
    pub(crate) fn next(&mut self) -> Result<Option<SnapshotRecord>, SnapshotError> {
        let offset = self.sums.bytes;
        let Some(body) = self.body()? else {
            return Ok(None);
        };
        let record = decode_piece(body).map_err(SnapshotError::codec(&self.path, offset))?;
        self.counts.add(&record);
        Ok(Some(record))
    }

    /// Skips the next piece and verifies its checksum. Returns false at the end.
    ///
    /// # Errors
    /// Fails if the disk returns an error or the file is damaged.
    pub(crate) fn pass(&mut self) -> Result<bool, SnapshotError> {
        self.passes = true;
        Ok(self.body()?.is_some())
    }

    /// Returns the number of bytes that were read and verified.
    pub(crate) fn sound(&self) -> u64 {
        self.sums.bytes
    }

    /// Returns the length of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.len
    }

    /// Checks that the file has this id, after it was read to its end.
    ///
    /// # Errors
    /// Fails if the file has another id.
    pub(crate) fn expect_id(&self, expected: SnapshotId) -> Result<(), SnapshotError> {
        if self.id == Some(expected) {
            return Ok(());
        }
        let (path, offset) = (self.path.clone(), 0);
        let why = format!("the snapshot id is {:?}, expected {expected:?}", self.id);
        Err(SnapshotError::Damaged { path, offset, why })
    }

    /// Returns the id of the file, once it was read to its end.
    pub(crate) fn id(&self) -> Option<SnapshotId> {
        self.id
    }

    fn body(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        if self.id.is_some() {
            return Ok(None);
        }
        let offset = self.sums.bytes;
        let damaged = |why: &str| {
            let (path, why) = (self.path.clone(), why.to_owned());
            SnapshotError::Damaged { path, offset, why }
        };
        let head = Some(&self.head);
        match next_chunk(&self.path, &*self.file, self.len, head, &mut self.sums)? {
            Chunk::SnapshotRecord(body) => Ok(Some(body)),
            Chunk::Head(_) => Err(damaged("there is a second head")),
            Chunk::Footer(id, counts) => {
                if !self.passes && self.counts != counts {
                    return Err(damaged("the counts in the footer do not match the records"));
                }
                let end = self.sums.bytes;
                if end != self.len && !(self.may_have_tail && self.is_tail_from(end)?) {
                    return Err(damaged("there are bytes after the footer"));
                }
                self.id = Some(id);
                Ok(None)
            }
        }
    }
}

impl SnapshotReader {
    /// Returns whether the rest of the file from `end` on is only a tail: padding and a hash.
    fn is_tail_from(&self, end: u64) -> Result<bool, SnapshotError> {
        let padded = end.next_multiple_of(TAIL_ALIGN);
        if self.len != padded + TAIL_BYTES {
            return Ok(false);
        }
        let mut padding = vec![0; (padded - end) as usize];
        let read = self.file.read_exact_at(&mut padding, end);
        read.map_err(SnapshotError::io("read", &self.path))?;
        Ok(padding.iter().all(|byte| *byte == 0))
    }
}

/// Reads the chunk at `sums.bytes`.
fn next_chunk(
    path: &Path,
    file: &dyn File,
    len: u64,
    head: Option<&StateHead>,
    sums: &mut Sums,
) -> Result<Chunk, SnapshotError> {
    let offset = sums.bytes;
    let damaged = |why: &str| {
        let (path, why) = (path.to_owned(), why.to_owned());
        SnapshotError::Damaged { path, offset, why }
    };
    let left = len - offset;
    if left < CHUNK_HEAD_BYTES as u64 {
        return Err(damaged("the file ends before its footer"));
    }
    let mut start = [0; CHUNK_HEAD_BYTES];
    file.read_exact_at(&mut start, offset).map_err(SnapshotError::io("read", path))?;
    let length = u32::from_le_bytes(start[..4].try_into().expect("four bytes"));
    let crc = u32::from_le_bytes(start[4..].try_into().expect("four bytes"));
    if u64::from(length) > left - CHUNK_HEAD_BYTES as u64 {
        return Err(damaged("the chunk extends beyond the end of the file"));
    }
    let mut chunk = vec![0; CHUNK_HEAD_BYTES + length as usize];
    chunk[..CHUNK_HEAD_BYTES].copy_from_slice(&start);
    let content = &mut chunk[CHUNK_HEAD_BYTES..];
    file.read_exact_at(content, offset + CHUNK_HEAD_BYTES as u64)
        .map_err(SnapshotError::io("read", path))?;
    if sums.next(length, content) != crc {
        return Err(damaged("the chunk's checksum does not match"));
    }
    let Some(&kind) = content.first() else {
        return Err(damaged("a chunk is empty"));
    };
    let before = Sums::footer(sums, PieceCounts::default());
    sums.pass(&chunk, crc);
    let mut body = Bytes::from(chunk);
    body.advance(CHUNK_HEAD_BYTES + 1);
    match (kind, head) {
        (kind::HEAD, _) => Ok(Chunk::Head(body)),
        (kind::PIECE, _) => Ok(Chunk::SnapshotRecord(body)),
        (kind::FOOTER, Some(head)) => {
            let footer = Footer::decoded(body).map_err(SnapshotError::codec(path, offset))?;
            let counts = footer.counts;
            if (Footer { counts, ..before }) != footer {
                return Err(damaged("the footer does not match the file"));
            }
            let (index, term, bytes) = (head.index, head.term, sums.bytes);
            let id = SnapshotId { index, term, bytes, checksum: footer.checksum };
            Ok(Chunk::Footer(id, counts))
        }
        (kind::FOOTER, None) => Err(damaged("there is a footer without a head")),
        (found, _) => {
            let (path, why) = (path.to_owned(), format!("unknown chunk kind {found}"));
            Err(SnapshotError::Newer { path, offset, why })
        }
    }
}

/// The last step before a complete and synced file gets its final name. The file is read back, one
/// chunk per call, and renamed, and the directory is synced. If the value is dropped before that,
/// or if the file is damaged, the file is removed. A file that this node has written is only
/// [verified](Self::step). From a received file, a state is also [built](Self::next). Therefore a
/// file with a final name can always be loaded.
pub(crate) struct Check {
    temporary: Temporary,
    path: PathBuf,
    reader: SnapshotReader,
    expected: SnapshotId,
}

impl Check {
    pub(super) fn begin(
        temporary: Temporary,
        path: PathBuf,
        expected: SnapshotId,
    ) -> Result<Self, SnapshotError> {
        let reader = SnapshotReader::open(&temporary.disk, &temporary.path)?;
        Ok(Self { temporary, path, reader, expected })
    }

    /// Checks that the file belongs to this cluster.
    pub(super) fn expect_cluster(&self, expected: ClusterId) -> Result<(), SnapshotError> {
        self.reader.expect_cluster(expected)
    }

    /// Verifies the next chunk. Returns `Some` when the whole file is verified and durable under
    /// its final name.
    ///
    /// # Errors
    /// Fails if the disk returns an error, or if the data read back differs from what was written.
    pub(crate) fn step(&mut self) -> Result<Option<SnapshotId>, SnapshotError> {
        if self.reader.pass()? {
            return Ok(None);
        }
        self.reader.expect_id(self.expected)?;
        self.publish().map(Some)
    }

    pub(crate) fn head(&self) -> &StateHead {
        self.reader.head()
    }

    /// Returns the next piece, or `None` once the whole file was read and has the expected id.
    ///
    /// # Errors
    /// Fails if the disk returns an error or the file is damaged.
    pub(crate) fn next(&mut self) -> Result<Option<SnapshotRecord>, SnapshotError> {
        let record = self.reader.next()?;
        if record.is_none() {
            self.reader.expect_id(self.expected)?;
        }
        Ok(record)
    }

    /// Renames the file to its final name and makes the rename durable, after the file was read to
    /// its end.
    ///
    /// # Errors
    /// Returns an error of the disk.
    pub(crate) fn publish(&mut self) -> Result<SnapshotId, SnapshotError> {
        debug_assert!(self.reader.id().is_some(), "it was read to its end");
        let Temporary { disk, path, armed } = &mut self.temporary;
        disk.rename(path, &self.path).map_err(SnapshotError::io("rename", path))?;
        *armed = false;
        // The path of a backup may be a bare file name.
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let dir = parent.unwrap_or(Path::new("."));
        disk.sync_dir(dir).map_err(SnapshotError::io("sync", dir))?;
        Ok(self.expected)
    }
}

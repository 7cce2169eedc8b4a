//! Reading a snapshot file, one chunk a call. Nothing is believed before its checksum was compared.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::SnapshotError;
use super::format::{BadHeader, CHUNK_HEAD_BYTES, Footer, HEADER_BYTES, Sums, kind, parse_header};
use super::writer::Temporary;
use crate::codec::{decode_head, decode_piece};
use crate::env::{Disk, File, OpenMode};
use crate::model::{ClusterId, PieceCounts, SnapshotId, SnapshotRecord, StateHead};

/// A snapshot file, from its front to its end.
pub(crate) struct Reader {
    path: PathBuf,
    file: Box<dyn File>,
    len: u64,
    cluster: ClusterId,
    head: StateHead,
    sums: Sums,
    counts: PieceCounts,
    /// Pieces were passed over, and not counted.
    passes: bool,
    /// Known once the footer has been read.
    id: Option<SnapshotId>,
    /// Whether a [tail](TAIL_BYTES) may stand after the footer.
    may_have_tail: bool,
}

/// What comes over the network as etcd's snapshots do ends like them: zeros up to a multiple of one number, then a
/// hash of so many bytes, for whoever receives it.
const TAIL_ALIGN: u64 = 512;
const TAIL_BYTES: u64 = 32;

/// What a chunk turned out to be.
enum Chunk {
    Head(Bytes),
    SnapshotRecord(Bytes),
    Footer(SnapshotId, PieceCounts),
}

impl Reader {
    /// Opens a file and reads its head.
    ///
    /// # Errors
    /// There is none, the disk refuses, or it is not a snapshot.
    pub(crate) fn open(disk: &Arc<dyn Disk>, path: &Path) -> Result<Self, SnapshotError> {
        let file = disk.open(path, OpenMode::Read).map_err(SnapshotError::io("open", path))?;
        let len = file.len().map_err(SnapshotError::io("measure", path))?;
        let damaged = |why: &str| {
            let (path, why) = (path.to_owned(), why.to_owned());
            SnapshotError::Damaged { path, offset: 0, why }
        };
        if len < HEADER_BYTES as u64 {
            return Err(damaged("it ends in its header"));
        }
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(SnapshotError::io("read", path))?;
        let cluster = parse_header(&header).map_err(|bad| match bad {
            BadHeader::Damaged(why) => damaged(why),
            BadHeader::Newer(found) => {
                let (path, why) = (path.to_owned(), format!("snapshot in format {found}"));
                SnapshotError::Newer { path, offset: 0, why }
            }
        })?;
        let (path, mut sums) = (path.to_owned(), Sums::begin(&header));
        let offset = sums.bytes;
        let head = match next_chunk(&path, &*file, len, None, &mut sums)? {
            Chunk::Head(body) => decode_head(body).map_err(SnapshotError::codec(&path, offset))?,
            Chunk::SnapshotRecord(_) | Chunk::Footer(..) => {
                let why = "it does not begin with the head of a state".to_owned();
                return Err(SnapshotError::Damaged { path, offset, why });
            }
        };
        let counts = PieceCounts::default();
        let (passes, may_have_tail) = (false, false);
        Ok(Self { path, file, len, cluster, head, sums, counts, passes, id: None, may_have_tail })
    }

    /// The same for a file that may have come as etcd's snapshots do.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub(crate) fn open_received(disk: &Arc<dyn Disk>, path: &Path) -> Result<Self, SnapshotError> {
        Ok(Self { may_have_tail: true, ..Self::open(disk, path)? })
    }

    /// Whose it is.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Sees to it that it is this cluster's.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn expect_cluster(&self, expected: ClusterId) -> Result<(), SnapshotError> {
        if self.cluster == expected {
            return Ok(());
        }
        let (path, found) = (self.path.clone(), self.cluster);
        Err(SnapshotError::Foreign { path, found, expected })
    }

    /// The head of the state.
    pub(crate) fn head(&self) -> &StateHead {
        &self.head
    }

    /// The next piece; `None` once everything was read and is what was written.
    ///
    /// # Errors
    /// The disk refuses, or the file is damaged.
    pub(crate) fn next(&mut self) -> Result<Option<SnapshotRecord>, SnapshotError> {
        let offset = self.sums.bytes;
        let Some(body) = self.body()? else {
            return Ok(None);
        };
        let record = decode_piece(body).map_err(SnapshotError::codec(&self.path, offset))?;
        self.counts.add(&record);
        Ok(Some(record))
    }

    /// Passes over the next piece and compares its checksum. False at the end.
    ///
    /// # Errors
    /// The disk refuses, or the file is damaged.
    pub(crate) fn pass(&mut self) -> Result<bool, SnapshotError> {
        self.passes = true;
        Ok(self.body()?.is_some())
    }

    /// Up to which byte the file was read, and is what was written.
    pub(crate) fn sound(&self) -> u64 {
        self.sums.bytes
    }

    /// How many bytes the file has.
    pub(crate) fn bytes(&self) -> u64 {
        self.len
    }

    /// Sees to it that it is this one, once it was read to its end.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn expect_id(&self, expected: SnapshotId) -> Result<(), SnapshotError> {
        if self.id == Some(expected) {
            return Ok(());
        }
        let (path, offset) = (self.path.clone(), 0);
        let why = format!("it is {:?}, expected was {expected:?}", self.id);
        Err(SnapshotError::Damaged { path, offset, why })
    }

    /// What names the file, once it was read to its end.
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
            Chunk::Head(_) => Err(damaged("a second head")),
            Chunk::Footer(id, counts) => {
                if !self.passes && self.counts != counts {
                    return Err(damaged("the footer counts other records"));
                }
                let end = self.sums.bytes;
                if end != self.len && !(self.may_have_tail && self.is_tail_from(end)?) {
                    return Err(damaged("bytes after the footer"));
                }
                self.id = Some(id);
                Ok(None)
            }
        }
    }
}

impl Reader {
    /// Whether nothing but a tail follows.
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
        return Err(damaged("the chunk is longer than what is left of the file"));
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
        return Err(damaged("a chunk without content"));
    };
    let before = Sums::footer(sums, PieceCounts::default());
    sums.pass(&chunk, crc);
    let mut body = Bytes::from(chunk);
    body.advance(CHUNK_HEAD_BYTES + 1);
    match (kind, head) {
        (kind::HEAD, _) => Ok(Chunk::Head(body)),
        (kind::PIECE, _) => Ok(Chunk::SnapshotRecord(body)),
        (kind::FOOTER, Some(head)) => {
            let footer = Footer::decode(body).map_err(SnapshotError::codec(path, offset))?;
            let counts = footer.counts;
            if (Footer { counts, ..before }) != footer {
                return Err(damaged("the footer is of another file"));
            }
            let (index, term, bytes) = (head.index, head.term, sums.bytes);
            let id = SnapshotId { index, term, bytes, checksum: footer.checksum };
            Ok(Chunk::Footer(id, counts))
        }
        (kind::FOOTER, None) => Err(damaged("a footer without a head")),
        (found, _) => {
            let (path, why) = (path.to_owned(), format!("a chunk of unknown kind {found}"));
            Err(SnapshotError::Newer { path, offset, why })
        }
    }
}

/// A file that is complete and synced, on its way to its name: read back, one chunk a call, then
/// renamed, and the renaming made durable. Dropped before, or found damaged, the file is removed.
/// One that was written here is [passed over](Self::step), of one that was received a state is
/// [made](Self::next) before it gets its name: with that name it is one that can be loaded.
pub(crate) struct Check {
    temporary: Temporary,
    path: PathBuf,
    reader: Reader,
    expected: SnapshotId,
}

impl Check {
    pub(super) fn begin(
        temporary: Temporary,
        path: PathBuf,
        expected: SnapshotId,
    ) -> Result<Self, SnapshotError> {
        let reader = Reader::open(&temporary.disk, &temporary.path)?;
        Ok(Self { temporary, path, reader, expected })
    }

    /// Sees to it that the file is this cluster's.
    pub(super) fn expect_cluster(&self, expected: ClusterId) -> Result<(), SnapshotError> {
        self.reader.expect_cluster(expected)
    }

    /// Does a part of the work. `Some` when the file is whole and durable under its name.
    ///
    /// # Errors
    /// The disk refuses, or what was read is not what was written.
    pub(crate) fn step(&mut self) -> Result<Option<SnapshotId>, SnapshotError> {
        if self.reader.pass()? {
            return Ok(None);
        }
        self.reader.expect_id(self.expected)?;
        self.publish().map(Some)
    }

    /// The head of the state.
    pub(crate) fn head(&self) -> &StateHead {
        self.reader.head()
    }

    /// The next piece; `None` once everything was read and is what was expected.
    ///
    /// # Errors
    /// The disk refuses, or the file is damaged.
    pub(crate) fn next(&mut self) -> Result<Option<SnapshotRecord>, SnapshotError> {
        let record = self.reader.next()?;
        if record.is_none() {
            self.reader.expect_id(self.expected)?;
        }
        Ok(record)
    }

    /// Gives the file its name, durably, once it was read to its end.
    ///
    /// # Errors
    /// The disk refuses.
    pub(crate) fn publish(&mut self) -> Result<SnapshotId, SnapshotError> {
        debug_assert!(self.reader.id().is_some(), "it was read to its end");
        let Temporary { disk, path, armed } = &mut self.temporary;
        disk.rename(path, &self.path).map_err(SnapshotError::io("rename", path))?;
        *armed = false;
        // A backup may be asked for by its bare name.
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let dir = parent.unwrap_or(Path::new("."));
        disk.sync_dir(dir).map_err(SnapshotError::io("sync", dir))?;
        Ok(self.expected)
    }
}

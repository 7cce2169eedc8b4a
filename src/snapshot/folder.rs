//! Finds, opens and removes the snapshot files in a data directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::{Partial, SnapshotError, SnapshotReader, Writer};
use crate::env::{Disk, File, OpenMode};
use crate::model::{ClusterId, DiskId, LogIndex, SnapshotId, StateHead, Term};

/// The snapshots of one member. The directory may contain other files too.
#[derive(Clone)]
pub(crate) struct Folder {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    cluster: ClusterId,
}

/// A file with the name of a complete snapshot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Found {
    /// Index of the last log entry that the snapshot covers.
    pub(crate) index: LogIndex,
    /// Term of the last log entry that the snapshot covers.
    pub(crate) term: Term,
    /// Path of the file.
    pub(crate) path: PathBuf,
}

impl Folder {
    /// Opens the existing directory `dir`, and removes files that interrupted writers have left
    /// behind.
    ///
    /// # Errors
    /// Returns an error of the disk.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        cluster: ClusterId,
    ) -> Result<Self, SnapshotError> {
        let folder = Self { disk: Arc::clone(disk), dir: dir.to_owned(), cluster };
        for name in folder.names()? {
            if name.starts_with(PREFIX) && name.ends_with(".writing") {
                folder.remove(&name)?;
            }
        }
        Ok(folder)
    }

    /// Opens the directory `dir` for reading only.
    pub(crate) fn look(disk: &Arc<dyn Disk>, dir: &Path, cluster: ClusterId) -> Self {
        Self { disk: Arc::clone(disk), dir: dir.to_owned(), cluster }
    }

    /// Returns the snapshots according to their names, newest first. Their contents are not
    /// verified.
    ///
    /// # Errors
    /// Returns an error of the disk.
    pub(crate) fn list(&self) -> Result<Vec<Found>, SnapshotError> {
        let mut found: Vec<Found> = self
            .names()?
            .iter()
            .filter_map(|name| {
                let (index, term) = parse(name)?;
                Some(Found { index, term, path: self.dir.join(name) })
            })
            .collect();
        found.sort();
        found.reverse();
        Ok(found)
    }

    /// Opens a snapshot for reading.
    ///
    /// # Errors
    /// Fails if the disk returns an error, or if the file is damaged or belongs to another cluster.
    pub(crate) fn read(&self, found: &Found) -> Result<SnapshotReader, SnapshotError> {
        let reader = SnapshotReader::open(&self.disk, &found.path)?;
        reader.expect_cluster(self.cluster)?;
        let head = reader.head();
        if (head.index, head.term) != (found.index, found.term) {
            let (path, offset) = (found.path.clone(), 0);
            let why = format!(
                "the snapshot covers entry {} of term {}, but the file name states another entry",
                head.index, head.term
            );
            return Err(SnapshotError::Damaged { path, offset, why });
        }
        Ok(reader)
    }

    /// Returns the newest snapshot that is undamaged, and the errors of newer ones.
    ///
    /// # Errors
    /// Returns an error of the disk.
    #[cfg(test)]
    pub(crate) fn newest(&self) -> Result<(Option<SnapshotId>, Vec<SnapshotError>), SnapshotError> {
        let mut wrong = Vec::new();
        for found in self.list()? {
            let read = || {
                let mut reader = self.read(&found)?;
                while reader.pass()? {}
                Ok(reader.id())
            };
            match read() {
                Ok(id) => return Ok((id, wrong)),
                Err(error @ SnapshotError::Io { .. }) => return Err(error),
                Err(error) => wrong.push(error),
            }
        }
        Ok((None, wrong))
    }

    /// Opens the existing snapshot with this id.
    ///
    /// # Errors
    /// Fails if the disk returns an error, or if the file is damaged or belongs to another cluster.
    pub(crate) fn open_id(&self, id: SnapshotId) -> Result<SnapshotReader, SnapshotError> {
        let path = self.dir.join(name(id.index, id.term));
        self.read(&Found { index: id.index, term: id.term, path })
    }

    /// Starts to write a snapshot.
    ///
    /// # Errors
    /// Fails if the disk returns an error or is full.
    pub(crate) fn begin(&self, head: &StateHead) -> Result<Writer, SnapshotError> {
        let path = self.dir.join(name(head.index, head.term));
        Writer::create(&self.disk, &path, "", self.cluster, head)
    }

    /// Starts to write a snapshot outside this directory, for a backup. Other members may write to
    /// the same path at the same time. Therefore the name of the incomplete file contains this
    /// member's disk id. Only the member itself replaces an incomplete file with this name, and it
    /// writes one backup at a time.
    ///
    /// # Errors
    /// Fails if the disk returns an error or is full.
    pub(crate) fn begin_at(
        &self,
        path: &Path,
        own: DiskId,
        head: &StateHead,
    ) -> Result<Writer, SnapshotError> {
        let ending = format!(".{:016x}", own.0 as u64);
        Writer::create(&self.disk, path, &ending, self.cluster, head)
    }

    /// Starts or continues to receive a snapshot from another member. Incomplete files of other
    /// snapshots are removed.
    ///
    /// # Errors
    /// Returns an error of the disk.
    pub(crate) fn receive(&self, id: SnapshotId) -> Result<Partial, SnapshotError> {
        let ours = partial_name(id);
        for name in self.names()? {
            if name.starts_with(PREFIX) && name.ends_with(".partial") && name != ours {
                self.remove(&name)?;
            }
        }
        let path = self.dir.join(name(id.index, id.term));
        Partial::open(&self.disk, self.dir.join(ours), path, self.cluster, id)
    }

    /// Returns the snapshot that was being received when the process ended, if any.
    ///
    /// # Errors
    /// Returns an error of the disk.
    pub(crate) fn unfinished(&self) -> Result<Option<SnapshotId>, SnapshotError> {
        Ok(self.names()?.iter().find_map(|name| parse_partial(name)))
    }

    /// Removes the incomplete file of a snapshot that is no longer being received.
    ///
    /// # Errors
    /// Returns an error of the disk.
    pub(crate) fn forget(&self, id: SnapshotId) -> Result<(), SnapshotError> {
        let ours = partial_name(id);
        match self.names()?.contains(&ours) {
            true => self.remove(&ours),
            false => Ok(()),
        }
    }

    /// Opens a snapshot for sending. The snapshot can be sent completely even if its file is
    /// removed meanwhile.
    ///
    /// # Errors
    /// Fails if the file does not exist or has another length, or if the disk returns an error.
    pub(crate) fn source(&self, id: SnapshotId) -> Result<Source, SnapshotError> {
        let path = self.dir.join(name(id.index, id.term));
        let opened = self.disk.open(&path, OpenMode::Read);
        let file = opened.map_err(SnapshotError::io("open", &path))?;
        let len = file.len().map_err(SnapshotError::io("measure", &path))?;
        if len == id.bytes {
            return Ok(Source { file, path, id });
        }
        let why = format!("the file has {len} bytes, expected {}", id.bytes);
        Err(SnapshotError::Damaged { path, offset: 0, why })
    }

    /// Removes all snapshots and incomplete files that are older than `kept`, except for those in
    /// `served`. The snapshot `kept` must be undamaged and durable. Returns the number of removed
    /// snapshots.
    ///
    /// # Errors
    /// Returns an error of the disk. The caller retries after the next snapshot.
    pub(crate) fn remove_older(
        &self,
        kept: SnapshotId,
        served: &[SnapshotId],
    ) -> Result<usize, SnapshotError> {
        let kept = (kept.index, kept.term);
        let served: Vec<_> = served.iter().map(|id| (id.index, id.term)).collect();
        let mut removed = 0;
        for name in self.names()? {
            let partial = parse_partial(&name).map(|id| (id.index, id.term));
            let partial = partial.filter(|id| *id <= kept);
            let older = parse(&name).filter(|id| *id < kept && !served.contains(id));
            if partial.or(older).is_some() {
                self.remove(&name)?;
            }
            removed += usize::from(older.is_some());
        }
        self.disk.sync_dir(&self.dir).map_err(SnapshotError::io("sync", &self.dir))?;
        Ok(removed)
    }

    /// Removes an unusable snapshot.
    ///
    /// # Errors
    /// Returns an error of the disk.
    #[cfg(test)]
    pub(crate) fn discard(&self, found: &Found) -> Result<(), SnapshotError> {
        self.disk.remove(&found.path).map_err(SnapshotError::io("remove", &found.path))?;
        self.disk.sync_dir(&self.dir).map_err(SnapshotError::io("sync", &self.dir))
    }

    fn names(&self) -> Result<Vec<String>, SnapshotError> {
        self.disk.list(&self.dir).map_err(SnapshotError::io("list", &self.dir))
    }

    fn remove(&self, name: &str) -> Result<(), SnapshotError> {
        let path = self.dir.join(name);
        self.disk.remove(&path).map_err(SnapshotError::io("remove", &path))
    }
}

/// A snapshot that is being sent.
pub(crate) struct Source {
    file: Box<dyn File>,
    path: PathBuf,
    id: SnapshotId,
}

impl Source {
    #[cfg(test)]
    pub(crate) fn id(&self) -> SnapshotId {
        self.id
    }

    /// Returns at most `bytes_max` bytes from `offset` on, or none at and after the end.
    ///
    /// # Errors
    /// Returns an error of the disk.
    pub(crate) fn part(&self, offset: u64, bytes_max: usize) -> Result<Bytes, SnapshotError> {
        let left = self.id.bytes.saturating_sub(offset);
        let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(bytes_max);
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        let mut part = vec![0; bytes];
        self.file
            .read_exact_at(&mut part, offset)
            .map_err(SnapshotError::io("read", &self.path))?;
        Ok(part.into())
    }
}

const PREFIX: &str = "snap-";

fn name(index: LogIndex, term: Term) -> String {
    format!("{PREFIX}{:016x}-{:016x}.snapshot", index.get(), term.get())
}

fn partial_name(id: SnapshotId) -> String {
    let SnapshotId { index, term, bytes, checksum } = id;
    let (index, term) = (index.get(), term.get());
    format!("{PREFIX}{index:016x}-{term:016x}-{bytes:016x}-{checksum:016x}.partial")
}

fn parse(name: &str) -> Option<(LogIndex, Term)> {
    let (index, term) = name.strip_prefix(PREFIX)?.strip_suffix(".snapshot")?.split_once('-')?;
    Some((LogIndex(hex(index)?), Term(hex(term)?)))
}

fn parse_partial(name: &str) -> Option<SnapshotId> {
    let mut parts = name.strip_prefix(PREFIX)?.strip_suffix(".partial")?.split('-');
    let (index, term) = (hex(parts.next()?)?, hex(parts.next()?)?);
    let (bytes, checksum) = (hex(parts.next()?)?, hex(parts.next()?)?);
    let id = SnapshotId { index: LogIndex(index), term: Term(term), bytes, checksum };
    parts.next().is_none().then_some(id)
}

fn hex(text: &str) -> Option<u64> {
    let plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

//! Reads, changes and restores the files of a member, and starts the clusters for these tests.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use bowline::testing::{self, Cluster, ClusterOptions};
use bowline::{Blocking, Config, KeyRange, Node};

/// Time limit for calls, unless a test sets another.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The minimum size of a segment.
pub(crate) const SEGMENT_BYTES: usize = 64 << 10;

/// Offset of the first record, after the header of the segment.
pub(crate) const HEADER_BYTES: usize = 72;

/// The files of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Files(pub(crate) BTreeMap<String, Vec<u8>>);

impl Files {
    /// Reads all files in a directory and below it, by relative path. A running node may remove some in the meantime.
    pub(crate) fn of(dir: &Path) -> Self {
        let mut files = Self(BTreeMap::new());
        files.take(dir, "");
        files
    }

    fn take(&mut self, dir: &Path, before: &str) {
        for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
            let name = format!("{before}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                self.take(&entry.path(), &format!("{name}/"));
            } else {
                match fs::read(entry.path()) {
                    Ok(bytes) => drop(self.0.insert(name, bytes)),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{name}: {error}"),
                }
            }
        }
    }

    /// Returns the sorted names of the files in a directory.
    pub(crate) fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    /// Replaces the content of a directory by these files.
    pub(crate) fn put(&self, dir: &Path) {
        if dir.exists() {
            fs::remove_dir_all(dir).unwrap();
        }
        for (name, bytes) in &self.0 {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }

    /// Returns a copy with one segment changed.
    pub(crate) fn with(&self, segment: usize, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut files = self.clone();
        change(files.0.get_mut(&name_of(segment)).unwrap());
        files
    }

    pub(crate) fn segment(&self, number: usize) -> &[u8] {
        &self.0[&name_of(number)]
    }

    /// Returns the last segment with a header.
    pub(crate) fn last(&self) -> usize {
        let used = |number: &usize| {
            self.0.get(&name_of(*number)).is_some_and(|bytes| bytes.starts_with(b"BOWLINE"))
        };
        (1..).take_while(used).last().unwrap()
    }
}

pub(crate) fn name_of(segment: usize) -> String {
    format!("{segment:010}.log")
}

/// Facts from the records of a segment, read by the layout in `src/wal/format.rs`.
pub(crate) struct Records {
    /// The end of the last record.
    pub(crate) end: usize,
    /// Offset up to which the log records prove that everything was synced.
    pub(crate) vouched: usize,
}

impl Records {
    pub(crate) fn of(number: usize, segment: &[u8]) -> Self {
        let number_at =
            |at: usize| u32::from_le_bytes(segment[at..at + 4].try_into().unwrap()) as usize;
        let (mut end, mut vouched) = (HEADER_BYTES, 0);
        while segment[end..].starts_with(b"BLr\x01") {
            if number_at(end + 20) == number {
                vouched = number_at(end + 16);
            }
            end += 48 + number_at(end + 8).next_multiple_of(8);
        }
        Self { end, vouched }
    }
}

pub(crate) fn config(dir: &Path) -> Config {
    Config::new(dir, "solo")
        .heartbeat(Duration::from_millis(20))
        .election_timeout(Duration::from_millis(100))
        .call_deadline(SOON)
        .log_segment_bytes(SEGMENT_BYTES as u64)
}

/// Returns the directory and the files of a single node that has written `values` values, was shut
/// down, was started again, and has crashed. The log records prove that all acknowledged writes
/// were synced.
pub(crate) fn solo(values: usize, value_bytes: usize) -> (tempfile::TempDir, Files) {
    let dir = tempfile::tempdir().unwrap();
    for life in 0..2 {
        let node = Node::start(config(dir.path())).block().unwrap();
        for i in 0..values * (1 - life) {
            node.client().put(format!("k{i:04}"), vec![b'v'; value_bytes]).block().unwrap();
        }
        // The start has written the first entry of the new term.
        assert_eq!(count(&node), values as u64);
        assert!(testing::shutdown(node).block().hanging.is_empty());
    }
    let files = Files::of(dir.path());
    (dir, files)
}

pub(crate) fn count(node: &Node) -> u64 {
    node.client().range(KeyRange::all()).count_only().block().unwrap().count
}

/// Returns a cluster of three with small segments.
pub(crate) fn three() -> Cluster {
    three_with(|config| config)
}

/// Like [`three`], with additional configuration for each member.
pub(crate) fn three_with(with: impl Fn(Config) -> Config + Send + Sync + 'static) -> Cluster {
    let options = ClusterOptions::new(3).configure(move |config| {
        let config = config
            .heartbeat(Duration::from_millis(20))
            .election_timeout(Duration::from_millis(150))
            .call_deadline(SOON)
            .log_segment_bytes(SEGMENT_BYTES as u64);
        with(config)
    });
    options.start().block().unwrap()
}

/// Checks that these members each accept a write and read all keys.
pub(crate) fn has_everything(
    cluster: &Cluster,
    members: impl Iterator<Item = usize> + Clone,
    keys: &mut usize,
    after: &str,
) {
    for member in members.clone() {
        let put = cluster.node(member).client().put(format!("k{keys:04}"), "v").block();
        assert!(put.is_ok(), "m{member}, after {after}: {put:?}");
        *keys += 1;
    }
    for member in members {
        assert_eq!(count(cluster.node(member)), *keys as u64, "m{member}, after {after}");
    }
}

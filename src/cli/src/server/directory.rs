//! Checks the content of the data directory before the first start.

use std::fs;
use std::path::{Path, PathBuf};

use bowline::Config;
use thiserror::Error;

use super::flags::Options;

/// Files that are not Bowline's are reported from this size on, in bytes.
const FOREIGN_BYTES_MIN: u64 = 1 << 20;

/// Why a member does not begin in a directory without data of its own.
#[derive(Debug, Error)]
pub(super) enum DirectoryError {
    /// The directory is etcd's.
    #[error(
        "{} holds the data of etcd, which this server does not read: start etcd on it and copy its keys with \
         `bowline import`, into a server with another --data-dir; or pass --ignore-etcd-data to start empty", .0.display()
    )]
    OfEtcd(PathBuf),
    /// The member is to join, and no member is named.
    #[error(
        "--initial-cluster-state existing: {} holds no data of a member, so name the other members too, with \
         --initial-cluster", .0.display()
    )]
    NothingToJoin(PathBuf),
    /// The directory cannot be read.
    #[error("the member does not start: {0}")]
    Unreadable(#[from] bowline::StartError),
}

/// Checks a directory in which no member has run yet: a member that begins there would pass over what it holds.
///
/// # Errors
/// The member must not begin there.
pub(super) fn check(options: &Options, config: &Config) -> Result<(), DirectoryError> {
    let dir = &options.data_dir;
    if config.has_data()? {
        return Ok(());
    }
    let is_etcds = ["wal", "snap"].iter().any(|part| dir.join("member").join(part).is_dir());
    if is_etcds && !options.ignore_etcd_data {
        return Err(DirectoryError::OfEtcd(dir.clone()));
    }
    if options.joins_no_other() {
        return Err(DirectoryError::NothingToJoin(dir.clone()));
    }
    let bytes = bytes_below(dir);
    if bytes >= FOREIGN_BYTES_MIN {
        tracing::warn!(dir = %dir.display(), bytes, "the data directory holds files that are not Bowline's; starting empty");
    }
    Ok(())
}

/// The size of all files below a directory. Links are not followed; what cannot be read counts nothing.
fn bytes_below(dir: &Path) -> u64 {
    let (mut bytes, mut open) = (0, vec![dir.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => open.push(entry.path()),
                Ok(found) => bytes += found.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

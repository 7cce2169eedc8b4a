//! Checks the contents of the data directory before the server starts for the first time.

use std::fs;
use std::path::{Path, PathBuf};

use bowline::Config;
use thiserror::Error;

use super::flags::Options;

/// Size from which foreign files are reported, in bytes.
const FOREIGN_BYTES_MIN: u64 = 1 << 20;

/// Reason why a member does not start in a directory without data of its own.
#[derive(Debug, Error)]
pub(super) enum DirectoryError {
    /// The directory contains etcd's data.
    #[error(
        "{} holds data of etcd, which this server cannot read: run etcd with it and copy its keys with `bowline \
         import` into a server with another --data-dir, or pass --ignore-etcd-data to start empty", .0.display()
    )]
    OfEtcd(PathBuf),
    /// The member is to join a cluster, but no other member is named.
    #[error(
        "--initial-cluster-state existing: {} holds no data of a member: name the other members, too, with \
         --initial-cluster", .0.display()
    )]
    NothingToJoin(PathBuf),
    #[error("cannot start the member: {0}")]
    Unreadable(#[from] bowline::StartError),
}

/// Checks a directory in which no member has run yet, because a new member would ignore its contents.
///
/// # Errors
/// Fails if the member must not start there.
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

/// Returns the total size of the files in a directory tree. Links are not followed, and unreadable files count as
/// empty.
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

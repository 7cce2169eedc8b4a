//! Backups, and offline operations on the files of stopped members.
//!
//! ```text
//!                    Node::backup
//!   a running member ─────────────▶ backup file ──verify──▶ BackupInfo
//!                                    ▲       │
//!             recover                │       │ restore, once for each founding member
//!   a stopped member's directory ────┘       ▼
//!         │                             directories of a new cluster ──Node::start──▶
//!         └─inspect──▶ DirectoryInfo
//! ```
//!
//! # A new cluster
//! A restore always creates a new cluster, with the members of the configuration on new disks. The
//! new cluster id is derived from the token, the members' names, the id of the backup and the
//! revision jump. Therefore the new members talk neither to members of the old cluster nor to
//! members restored from another backup.
//!
//! The first revision of the new cluster is far above every revision that the old cluster can have
//! reached, and all earlier revisions are compacted. Therefore fencing tokens never repeat, and a
//! watch from an earlier revision fails with an error. All leases are revoked and their keys
//! deleted, so no lock of the old cluster remains held. The alarms of the old cluster are cleared
//! too.
//!
//! # Recovery
//! While a majority of the members still has its disks, no restore is necessary: replace the lost
//! members. If the majority is lost permanently, [`recover`] turns the state of one remaining
//! member into a backup. The returned [warning](LossWarning) describes the writes that may be lost.
//!
//! ```
//! use bowline::{Blocking, Config, Node, backup};
//! # let place = tempfile::tempdir().unwrap();
//! # let (data, file, new_data) =
//! #     (place.path().join("old"), place.path().join("backup"), place.path().join("new"));
//! let node = Node::start(Config::new(&data, "solo")).block()?;
//! node.client().put("greeting", "hello").block()?;
//! node.backup(&file).block()?;
//! node.shutdown().block();
//!
//! assert_eq!(backup::verify(&file)?.keys, 1);
//! let config = Config::new(&new_data, "solo");
//! backup::restore(&file, &config, &backup::RestoreOptions::default())?;
//! let node = Node::start(config).block()?;
//! assert_eq!(node.client().get("greeting").block()?.unwrap().value, "hello");
//! # node.shutdown().block();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod inspect;
mod recover;
mod restore;
mod verify;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::api::ConfigError;
use crate::machine::RESEEDED_REVISION_MAX;
use crate::node::{OfflineError, OriginError};

pub use inspect::{DirectoryInfo, FromBackup, SnapshotFile, inspect, inspect_with};
pub use recover::{LossWarning, Recovered, recover, recover_with};
pub use restore::{RestoreOptions, Restored, restore, restore_with};
pub use verify::{BackupInfo, verify, verify_with};

/// A callback that regularly receives the progress of a long operation as the pair (done, total).
/// The unit may differ between the stages of an operation. Each stage starts at 0.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// The reason why an operation on backups or directories failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackupError {
    /// A file cannot be read, is damaged, is not a backup, or has a newer version. The text names
    /// the file and the reason. Nothing was changed.
    #[error("{0}")]
    Unreadable(String),
    /// The configuration is invalid. Nothing was changed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration joins an existing cluster. Nothing was changed.
    #[error(
        "cannot restore a member that joins an existing cluster: restore the founding members of the new \
         cluster, each with the same list of members"
    )]
    Joins,
    /// The revision jump is 0, or is so high that too few revisions remain for the new cluster.
    /// Half of all revisions, which are below 2^63, must remain. Nothing was changed.
    #[error(
        "cannot raise the revision {revision} of the backup by {jump}: the jump must be at least 1, and the \
         result at most {RESEEDED_REVISION_MAX}, so that enough revisions are left"
    )]
    Jump {
        /// The backup's revision.
        revision: u64,
        /// The requested revision jump.
        jump: u64,
    },
    /// The directory is not empty. Nothing was changed.
    #[error(
        "{dir} is not empty: it contains {found:?}; restore into a new directory", dir = dir.display()
    )]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// The name of one file in the directory.
        found: String,
    },
    /// An earlier restore into the directory was interrupted. Nothing was changed.
    #[error("an earlier restore into {dir} was interrupted: remove the directory and restore again", dir = dir.display())]
    Interrupted {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory does not contain the data of a member. Nothing was changed.
    #[error("{dir} contains no data of a member", dir = dir.display())]
    NoMember {
        /// The directory.
        dir: PathBuf,
    },
    /// The output file exists already. Nothing was changed.
    #[error("{file} already exists: choose another file", file = file.display())]
    Exists {
        /// The file.
        file: PathBuf,
    },
    /// Writing a file failed. The text names the file and the reason. The output is unusable.
    #[error("{0}")]
    Unwritten(String),
}

impl BackupError {
    fn written(error: &dyn std::fmt::Display) -> Self {
        Self::Unwritten(error.to_string())
    }

    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |error| Self::Unwritten(format!("cannot {what} {path}: {error}"))
    }
}

impl From<OfflineError> for BackupError {
    fn from(error: OfflineError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<OriginError> for BackupError {
    fn from(error: OriginError) -> Self {
        match error {
            OriginError::Interrupted { dir } => Self::Interrupted { dir },
            error => Self::Unreadable(error.to_string()),
        }
    }
}

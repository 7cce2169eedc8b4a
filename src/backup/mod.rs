//! Backups, and what can be done with files while no node runs on them.
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
//! What is restored is never the old cluster. Its members are those of the configuration, on new disks;
//! its id is made of the token, their names, and what names the backup and the jump, so that its members
//! talk neither to those of the old cluster nor to those made from another backup. Revisions go on far
//! above all that the old one can have reached, and everything before is compacted, so that fencing
//! tokens never repeat and a watch from before is told. All leases have ended, and their keys are deleted:
//! no lock of the old cluster is held. Its alarms have ended too.
//!
//! # Recovery
//! While a majority of the members has its disks, nothing needs to be restored: members that are lost
//! are replaced. When the majority is lost for ever, the state of one that is left becomes a backup
//! ([`recover`]), with a [warning](LossWarning) that says what nobody can know.
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

/// Told, now and then, how far a long piece of work is: so many of so many. What is counted changes from
/// stage to stage, and each begins anew.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Why nothing came of it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackupError {
    /// A file cannot be read, is damaged, not a backup, or of a newer version; in words that say which.
    /// Nothing was changed.
    #[error("{0}")]
    Unreadable(String),
    /// The configuration makes no sense. Nothing was changed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration joins a cluster. Nothing was changed.
    #[error(
        "a node that joins a cluster gets its state from it: restore the members that found the new \
         cluster, each with the same list of members"
    )]
    Joins,
    /// The jump is 0, or leaves the new cluster too few revisions to write at: of the 2^63 that clients can read, half are
    /// its own. Nothing was changed.
    #[error(
        "the revision of the backup is {revision}, and it cannot be raised by {jump}: by 1 or more, and to no more than \
         {RESEEDED_REVISION_MAX}, so that there are revisions left to write at"
    )]
    Jump {
        /// The backup's revision.
        revision: u64,
        /// By how much it was to be raised.
        jump: u64,
    },
    /// There is something in the directory. Nothing was changed.
    #[error(
        "{dir} is not empty: there is {found:?} in it. A backup is restored into a directory of its own, \
         and never over what a member has", dir = dir.display()
    )]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// One of the things in it.
        found: String,
    },
    /// An earlier restore into the directory did not come to its end. Nothing was changed.
    #[error("a restore into {dir} was interrupted: remove the directory, and restore again", dir = dir.display())]
    Interrupted {
        /// The directory.
        dir: PathBuf,
    },
    /// There is no member's data in the directory. Nothing was changed.
    #[error("there is no data of a member in {dir}", dir = dir.display())]
    NoMember {
        /// The directory.
        dir: PathBuf,
    },
    /// The file to be written is there already. Nothing was changed.
    #[error("{file} is there already: name a file that is not", file = file.display())]
    Exists {
        /// The file.
        file: PathBuf,
    },
    /// Writing has failed, in words that say where. What was being written is of no use.
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

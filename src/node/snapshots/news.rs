//! The results of the jobs of the snapshot worker.

use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use crate::machine::{Machine, RestoreError};
use crate::model::{Members, NodeId, SnapshotId};
use crate::snapshot::SnapshotError;

use crate::node::requests::writing::WriteError;

/// The result of a job.
pub(crate) enum News {
    /// A snapshot was written and is durable.
    Taken { id: SnapshotId, members: Members, took: Duration },
    /// The snapshot could not be written. Existing snapshots stay.
    NotTaken { why: WriteError },
    /// A part for a peer, or the reason for which the snapshot cannot be sent.
    Part { to: NodeId, id: SnapshotId, offset: u64, data: Result<Bytes, String> },
    /// Number of bytes of a snapshot that are on the disk.
    Received { id: SnapshotId, bytes: u64 },
    /// The snapshot is complete and durable, and was loaded into this machine.
    Loaded { id: SnapshotId, machine: Box<Machine> },
    /// The snapshot cannot be received now.
    NotReceived { id: SnapshotId, why: ReceiveError },
}

/// The reasons for which a snapshot cannot be received.
#[derive(Debug, Error)]
pub(crate) enum ReceiveError {
    #[error(transparent)]
    File(#[from] SnapshotError),
    /// The content is not a valid state.
    #[error(transparent)]
    State(#[from] RestoreError),
}

impl ReceiveError {
    /// Returns whether only a newer build can read the snapshot, so that fetching it again is useless.
    pub(crate) fn needs_upgrade(&self) -> bool {
        matches!(self, Self::File(SnapshotError::Newer { .. }))
            || matches!(self, Self::State(RestoreError::Outgrown(_)))
    }
}

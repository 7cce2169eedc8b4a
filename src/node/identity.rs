//! Who this node is, and how it says so.

use std::sync::{Mutex, PoisonError};

use crate::model::{
    ClusterId, ClusterVersion, DiskId, Hello, Incarnation, LogIndex, NodeId, Standing,
};
use crate::wal;

/// Who this node is. Only its standing ever changes, once.
#[derive(Debug)]
pub(crate) struct Identity {
    cluster: ClusterId,
    node: NodeId,
    disk: DiskId,
    incarnation: Incarnation,
    standing: Mutex<Standing>,
}

impl Identity {
    /// A node in its present life. `founders` is known unless its disk is new.
    pub(crate) fn new(
        cluster: ClusterId,
        node: NodeId,
        disk: DiskId,
        incarnation: Incarnation,
        founders: Option<wal::Founding>,
    ) -> Self {
        let standing = Mutex::new(founders.map_or(Standing::Blank, Standing::Founded));
        Self { cluster, node, disk, incarnation, standing }
    }

    /// Its disk.
    pub(crate) fn disk(&self) -> DiskId {
        self.disk
    }

    /// Which life this is.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The list of founders is on its disk.
    pub(crate) fn founded(&self, founders: wal::Founding) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = Standing::Founded(founders);
    }

    /// What it says to another member before anything else.
    pub(crate) fn hello(&self, to: NodeId) -> Hello {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Self { cluster, node: from, disk, incarnation, .. } = *self;
        Hello {
            cluster,
            from,
            to,
            disk,
            incarnation,
            standing,
            since: LogIndex(1),
            address: String::new(),
            speaks: ClusterVersion::NEWEST,
        }
    }
}

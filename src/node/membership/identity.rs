//! The identity of this node, and the introduction that it sends to peers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::{
    ClusterId, ClusterVersion, DiskId, FoundingState, Hello, Incarnation, LogIndex, Members, NodeId,
};
use crate::transport::{self, Introducer};
use crate::wal;

use crate::node::settings::{Contact, Settings};

/// The identity of this node. Only the fields for the founders and the known members change.
#[derive(Debug)]
pub(crate) struct Identity {
    cluster: ClusterId,
    node: NodeId,
    disk: DiskId,
    incarnation: Incarnation,
    address: String,
    supported_version: ClusterVersion,
    /// The configured founding members, for a cluster that does not exist yet.
    founders: BTreeMap<NodeId, Contact>,
    known: Mutex<KnownIdentity>,
}

#[derive(Debug)]
struct KnownIdentity {
    standing: FoundingState,
    members: Arc<Members>,
    /// Whether other members may still need connections to a removed member.
    unsettled: bool,
}

impl Identity {
    /// Returns the identity of a node in its present incarnation, on this disk. `founders` is `None` only if the disk
    /// is new.
    pub(crate) fn new(
        settings: &Settings,
        disk: DiskId,
        incarnation: Incarnation,
        founders: Option<wal::Founding>,
    ) -> Self {
        let standing = founders.map_or(FoundingState::Blank, FoundingState::Founded);
        Self {
            cluster: settings.cluster,
            node: settings.node,
            disk,
            incarnation,
            address: settings.contact.address.clone(),
            supported_version: settings.supported_version,
            founders: settings.members.clone(),
            known: Mutex::new(KnownIdentity {
                standing,
                members: Arc::default(),
                unsettled: false,
            }),
        }
    }

    pub(crate) fn disk(&self) -> DiskId {
        self.disk
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn known(&self) -> MutexGuard<'_, KnownIdentity> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the list of founders is on the disk.
    pub(crate) fn founded(&self, founders: wal::Founding) {
        self.known().standing = FoundingState::Founded(founders);
    }

    /// Returns the founders of the cluster. Empty before the cluster is founded.
    pub(crate) fn founders(&self) -> wal::Founding {
        match &self.known().standing {
            FoundingState::Blank => wal::Founding::new(),
            FoundingState::Founded(founders) => founders.clone(),
        }
    }

    /// Updates the members after this replica has applied a change, or has learned that the change
    /// is settled.
    pub(crate) fn knows(&self, members: Arc<Members>, unsettled: bool) {
        let mut known = self.known();
        (known.members, known.unsettled) = (members, unsettled);
    }

    /// Returns the introduction that is sent first on a connection to another member.
    pub(crate) fn hello(&self, to: NodeId) -> Hello {
        let known = self.known();
        let (standing, row) = (known.standing.clone(), known.members.get(self.node));
        // A member that has not applied its own joining yet states the highest index, so that it
        // counts as joined after everything that other members have applied.
        let since = match (&standing, row) {
            (_, Some(member)) => member.since,
            (FoundingState::Founded(founders), None) if founders.contains_key(&self.node) => {
                LogIndex(1)
            }
            (FoundingState::Blank, None) => LogIndex(1),
            (FoundingState::Founded(_), None) => LogIndex(u64::MAX),
        };
        let Self { cluster, node: from, disk, incarnation, .. } = *self;
        let (address, supported_version) = (self.address.clone(), self.supported_version);
        Hello { cluster, from, to, disk, incarnation, standing, since, address, supported_version }
    }
}

impl Introducer for Identity {
    fn hello(&self, to: NodeId) -> Hello {
        Identity::hello(self, to)
    }

    fn known(&self) -> transport::Known {
        let known = self.known();
        match &known.standing {
            FoundingState::Blank => {
                transport::Known::Founders(self.founders.keys().copied().collect())
            }
            // No entry has been applied yet.
            FoundingState::Founded(founders) if known.members.rows().is_empty() => {
                transport::Known::Members(Arc::new(Members::founded(founders)))
            }
            FoundingState::Founded(_) if known.unsettled => {
                transport::Known::Unsettled(Arc::clone(&known.members))
            }
            FoundingState::Founded(_) => transport::Known::Members(Arc::clone(&known.members)),
        }
    }

    fn name(&self, of: NodeId) -> Option<String> {
        let known = self.known();
        let announced = known.members.get(of).map(|member| &member.name);
        // Until a founder has announced its name, use the configured one.
        let founds = match &known.standing {
            FoundingState::Blank => true,
            FoundingState::Founded(founders) => founders.contains_key(&of),
        };
        let configured = || self.founders.get(&of).filter(|_| founds).map(|contact| &contact.name);
        announced.filter(|name| !name.is_empty()).or_else(configured).cloned()
    }
}

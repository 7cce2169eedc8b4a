//! Facts about the peers of this node: their digests, their disk space, and which requests and connections were
//! rejected.

use std::time::Duration;

use crate::model::{Members, Moment, NodeId};
use crate::node::health::digests::Digests;
use crate::node::health::space::SpaceTable;
use crate::node::membership::peer_rejections::PeerRejections;
use crate::node::requests::rejected_requests::RejectedRequests;

/// The facts about the peers of a driver.
pub(super) struct Peers {
    pub(super) digests: Digests,
    pub(super) space: SpaceTable,
    /// Connections that this node or the peer has rejected.
    pub(super) rejections: PeerRejections,
    /// Requests of peers that this node has rejected as the leader.
    pub(super) rejected_requests: RejectedRequests,
}

impl Peers {
    pub(super) fn new(
        me: NodeId,
        election_timeout: Duration,
        election_ticks: u32,
        now: Moment,
    ) -> Self {
        Self {
            digests: Digests::new(me, election_ticks),
            space: SpaceTable::new(me, election_timeout, now),
            rejections: PeerRejections::default(),
            rejected_requests: RejectedRequests::new(election_timeout * 2),
        }
    }

    /// Returns whether requests that grow the state cannot be stored now: this node's disk is full,
    /// or the voters with disk space are no quorum.
    pub(super) fn has_no_space(&self, members: &Members) -> bool {
        let quorum = self.space.quorum_has_room(members.voters())
            && self.space.quorum_has_room(members.outgoing().iter().copied());
        self.space.is_low() || !quorum
    }
}

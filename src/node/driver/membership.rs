//! The members as known to the driver, the versions that connected members support, and whether the
//! last membership change is settled (durable on a quorum).

use std::collections::BTreeMap;

use crate::model::{ClusterVersion, Members, NodeId};
use crate::node::membership::roster::Roster;
use crate::node::settings::Contact;

/// The membership part of a driver.
pub(super) struct Membership {
    me: NodeId,
    pub(super) roster: Roster,
    /// The newest cluster version that each connected member has reported as supported.
    peer_versions: BTreeMap<NodeId, ClusterVersion>,
    settlement: Settlement,
    /// Whether this node has announced its name and addresses.
    pub(super) has_announced: bool,
}

/// Whether the membership change that this node applied last is settled: whether a quorum of the new members has
/// durably recorded that it is committed.
///
/// The disk records the commit of the change only with the next entry. If all members stopped
/// before that, they would restart with the old members, and might need the vote of a removed
/// member. So the change is reported to the caller and to a removed member only after a later entry
/// is committed whose proposer had applied the change. This later entry has no requests: only a
/// leader that has applied all earlier changes proposes entries without requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Settlement {
    Settled,
    /// The leader has to propose the settling entry.
    ToPropose,
    /// This node has proposed the settling entry.
    Proposed,
}

impl Membership {
    pub(super) fn new(me: NodeId, hints: BTreeMap<NodeId, Contact>) -> Self {
        Self {
            me,
            roster: Roster::new(me, hints),
            peer_versions: BTreeMap::new(),
            settlement: Settlement::Settled,
            has_announced: false,
        }
    }

    // ---- connected members ------------------------------------------------------------------------

    /// Records a connection to a peer. Returns whether there was none before.
    pub(super) fn connected(&mut self, peer: NodeId, version: ClusterVersion) -> bool {
        self.peer_versions.insert(peer, version).is_none()
    }

    pub(super) fn disconnected(&mut self, peer: NodeId) {
        self.peer_versions.remove(&peer);
    }

    pub(super) fn is_connected(&self, peer: NodeId) -> bool {
        self.peer_versions.contains_key(&peer)
    }

    /// Returns whether this member and its connected peers are a majority of the voters.
    pub(super) fn is_connected_to_quorum(&self, members: &Members) -> bool {
        let is_there = |id: &NodeId| *id == self.me || self.is_connected(*id);
        let (voters, there) = (members.voters().count(), members.voters().filter(is_there).count());
        there > voters / 2
    }

    /// Returns the newest cluster version that all members support. `own` is the version that this
    /// member supports. Returns `None` if a member is not connected: it may come back with another
    /// build.
    pub(super) fn version_of_all(
        &self,
        members: &Members,
        own: ClusterVersion,
    ) -> Option<ClusterVersion> {
        let version = |id: &NodeId| match *id == self.me {
            true => Some(own),
            false => self.peer_versions.get(id).copied(),
        };
        let taken = members.rows().iter().filter(|(_, member)| member.is_taken());
        let all: Option<Vec<_>> = taken.map(|(id, _)| version(id)).collect();
        all?.into_iter().min()
    }

    // ---- settling a change ------------------------------------------------------------------------

    /// Records that this replica has applied a membership change.
    pub(super) fn changed(&mut self) {
        self.settlement = Settlement::ToPropose;
    }

    /// Records that the members were taken from a state that this node received or loaded. The node
    /// does not know whether the last change is settled. If any member was ever removed, a new
    /// entry settles it.
    pub(super) fn founded(&mut self, has_removed: bool) {
        self.settlement = if has_removed { Settlement::ToPropose } else { Settlement::Settled };
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settlement == Settlement::Settled
    }

    /// Returns whether the leader has to propose the settling entry.
    pub(super) fn needs_settling_entry(&self) -> bool {
        self.settlement == Settlement::ToPropose
    }

    pub(super) fn settling_entry_proposed(&mut self) {
        self.settlement = Settlement::Proposed;
    }

    /// Records that this node no longer leads. The next leader has to propose the settling entry.
    pub(super) fn stopped_leading(&mut self) {
        if self.settlement == Settlement::Proposed {
            self.settlement = Settlement::ToPropose;
        }
    }

    /// Processes an applied entry without requests. Returns whether the entry has settled a change.
    pub(super) fn settle(&mut self) -> bool {
        std::mem::replace(&mut self.settlement, Settlement::Settled) != Settlement::Settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DiskId;
    use crate::model::samples::node;

    fn membership() -> Membership {
        Membership::new(node(1), BTreeMap::new())
    }

    fn three_members() -> Members {
        let founders = (1..=3).map(|number| (node(number), DiskId(number.into())));
        Members::founded(&founders.collect())
    }

    #[test]
    fn change_is_settled_by_an_entry_of_a_leader_that_stays() {
        let mut membership = membership();
        assert!(membership.is_settled() && !membership.settle());
        membership.changed();
        assert!(membership.needs_settling_entry());
        membership.settling_entry_proposed();
        assert!(!membership.needs_settling_entry() && !membership.is_settled());
        membership.stopped_leading();
        assert!(membership.needs_settling_entry(), "the entry may be lost");
        assert!(membership.settle());
        assert!(membership.is_settled());
        membership.stopped_leading();
        assert!(membership.is_settled());
    }

    #[test]
    fn version_of_all_needs_every_member_to_be_connected() {
        let (mut membership, members) = (membership(), three_members());
        let [old, new] = [1, 2].map(ClusterVersion);
        assert!(membership.connected(node(2), old));
        assert_eq!(membership.version_of_all(&members, new), None);
        assert!(membership.is_connected_to_quorum(&members));
        assert!(membership.connected(node(3), new));
        assert_eq!(membership.version_of_all(&members, new), Some(old));
        assert!(!membership.connected(node(3), new), "it was connected before");
        membership.disconnected(node(2));
        membership.disconnected(node(3));
        assert_eq!(membership.version_of_all(&members, new), None);
        assert!(!membership.is_connected_to_quorum(&members));
    }
}

//! The membership of the cluster: a part of the replicated state, changed one step at a time.
//!
//! ```text
//!            Add                Promote
//!   (new) ─────────▶ learner ───────────▶ voter
//!     └───────▶ reserved ─▲ Take            │
//!      Add, no disk  │  │                   │
//!                       │ Remove            │ Remove
//!                       ▼                   ▼
//!                    (removed: its id is never used again)
//!
//!   A reserved member is a learner that has an id and an address, but no disk yet. The first process that
//!   joins with this address claims it.
//!
//!   Replace { old, new }: the learner `new` becomes a voter and `old` stops being one, in one step. Until
//!   LeaveJoint, both the voters before and the voters after must agree to everything (joint consensus).
//! ```
//!
//! Ids are assigned in ascending order. Therefore an id below the next one that has no row belongs
//! to a removed member.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use thiserror::Error;

use super::{DiskId, JoinAsk, LogIndex, NodeId, Rejection, Term};

/// The role of a member in the consensus.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum MemberRole {
    /// Votes, can become leader, and counts towards a quorum.
    Voter,
    /// Replicates the log and serves the program that embeds it, like any member, but does not
    /// vote.
    Learner,
}

/// A member as recorded in the replicated state.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Member {
    /// Id of the data directory that the member's id is bound to. [`DiskId::NONE`] for a reserved
    /// member that no process has claimed.
    pub disk: DiskId,
    /// Name of the member. Empty until the member has announced its name.
    pub name: String,
    /// Address (`host:port`) at which the other members reach this member. Empty until the member
    /// has announced its address.
    pub address: String,
    /// New address of the member, `host:port`, set by
    /// [`Node::move_member`](crate::Node::move_member). The other members try both addresses until
    /// the member announces an address other than `address`.
    pub moves_to: Option<String>,
    /// Addresses at which the program that embeds this member serves its own clients. The program
    /// chooses the format: see [`Config::endpoints`](crate::Config::endpoints).
    pub endpoints: Vec<String>,
    /// Role of the member.
    pub role: MemberRole,
    /// Set if this learner becomes a voter once it has caught up with the log. If the value is the
    /// learner's own id, the learner becomes an additional voter. Otherwise the learner replaces
    /// the voter with this id.
    pub replaces: Option<NodeId>,
    /// Index of the log entry that added the member; 1 for the founders.
    pub since: LogIndex,
}

impl Member {
    /// Returns whether a process has claimed this member. A member that no process has claimed is a
    /// reserved member.
    pub fn is_taken(&self) -> bool {
        self.disk != DiskId::NONE
    }

    /// Returns the future address of the member: `moves_to` if it is set, and `address` otherwise.
    pub fn destination(&self) -> &str {
        self.moves_to.as_ref().unwrap_or(&self.address)
    }
}

/// Returns whether the text is a valid address: an IP address or a host name, with a port.
pub(crate) fn is_address(address: &str) -> bool {
    let is_name = |(host, port): (&str, &str)| {
        !host.is_empty() && !host.contains(':') && port.parse::<u16>().is_ok()
    };
    address.len() <= JoinAsk::TEXT_BYTES_MAX
        && (address.parse::<SocketAddr>().is_ok() || address.rsplit_once(':').is_some_and(is_name))
}

/// Maximum number of addresses of one member.
const ADDRESSES_MAX: usize = 8;

/// Splits a member's address into its comma-separated addresses, which are tried in turn.
pub(crate) fn addresses(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
}

/// Returns whether each of these addresses can be dialed.
pub(crate) fn are_addresses(list: &str) -> bool {
    list.len() <= JoinAsk::TEXT_BYTES_MAX
        && addresses(list).count() <= ADDRESSES_MAX
        && addresses(list).all(is_address)
}

/// Returns whether the address is only meaningful for listening: it has port 0, or is the address
/// of all interfaces.
pub(crate) fn is_nowhere(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(at) => at.port() == 0 || at.ip().is_unspecified(),
        Err(_) => address.rsplit_once(':').is_some_and(|(_, port)| port.parse() == Ok(0_u16)),
    }
}

/// The attributes that a member announces.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberAttributes {
    /// Name of the member.
    pub name: String,
    /// Address (`host:port`) at which the other members reach the member.
    pub address: String,
    /// Addresses at which the program that embeds the member serves its own clients, usually URLs.
    /// The library replicates these addresses to all members but does not use them. At most
    /// [`MemberAttributes::ENDPOINTS_MAX`].
    pub endpoints: Vec<String>,
}

impl MemberAttributes {
    /// Maximum number of endpoints.
    pub const ENDPOINTS_MAX: usize = 16;

    /// Maximum length of an endpoint in bytes.
    pub const ENDPOINT_BYTES_MAX: usize = 512;
}

/// The table of all members, as it is after a log entry was applied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Members {
    rows: BTreeMap<NodeId, Member>,
    outgoing: BTreeSet<NodeId>,
    next: u64,
}

/// A membership change. Each change is a log entry of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberChange {
    /// Adds a member as a learner, with an id that was never used before.
    Add {
        /// Id of the member. If this is not the next id, the change has no effect.
        id: NodeId,
        /// Id of its data directory, or [`DiskId::NONE`] for a reserved member.
        disk: DiskId,
        /// Name of the member.
        name: String,
        /// Address of the member.
        address: String,
        /// The voter that the member will replace, or its own id: see [`Member::replaces`].
        replaces: Option<NodeId>,
    },
    /// Records that a process has claimed a reserved member.
    Take {
        /// Id of the reserved member.
        id: NodeId,
        /// Data directory of the process.
        disk: DiskId,
        /// Name of the member.
        name: String,
        /// Address of the member.
        address: String,
    },
    /// Promotes a learner to a voter.
    Promote(NodeId),
    /// Removes a member.
    Remove(NodeId),
    /// Replaces a voter by a learner.
    Replace {
        /// The voter to remove.
        old: NodeId,
        /// The learner to promote.
        new: NodeId,
    },
    /// Completes a `Replace`: from this entry on, only the new voters decide.
    LeaveJoint,
}

/// A membership change requested from the leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipRequest {
    /// Adds a member ([`MemberChange::Add`]), or claims the member that is reserved at the address
    /// ([`MemberChange::Take`]). The leader assigns the id. If the disk already belongs to a
    /// member, the request changes nothing.
    Add {
        /// Data directory of the new member.
        disk: DiskId,
        /// Name of the new member.
        name: String,
        /// Address of the new member.
        address: String,
        /// The voter to replace, if any.
        replaces: Option<NodeId>,
    },
    /// Reserves a member for the process that will join with an address. If a member is already
    /// reserved at the address, the request changes nothing.
    Keep {
        /// The address.
        address: String,
        /// Whether the member becomes a voter once it has caught up.
        votes: bool,
    },
    /// Same as [`MemberChange::Promote`].
    Promote(NodeId),
    /// Same as [`MemberChange::Remove`].
    Remove(NodeId),
}

/// The reason why a membership change is rejected. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// No such member exists.
    #[error("there is no member {0}")]
    Unknown(NodeId),
    /// The member is a voter already.
    #[error("member {0} is already a voter")]
    Voter(NodeId),
    /// The member to replace is not a voter.
    #[error("member {0} is not a voter: only a voter can be replaced")]
    NotVoter(NodeId),
    /// Another member has this name.
    #[error(
        "a member named {0:?} already exists: choose another name, or replace the old member by the new one"
    )]
    NameTaken(String),
    /// The maximum number of members is reached.
    #[error("the cluster has the maximum of {0} members: remove one first")]
    TooMany(usize),
    /// The maximum number of voters is reached.
    #[error("the cluster has the maximum of {0} voters: remove one first")]
    TooManyVoters(usize),
    /// The cluster would have no voters left.
    #[error("member {0} is the last voter: add and promote another member before removing it")]
    LastVoter(NodeId),
    /// Another membership change is in progress.
    #[error("another membership change is in progress: retry when it has completed")]
    Pending,
    /// Too few of the voters after the change are active.
    #[error(
        "the change would lose the quorum: only {active} of the {voters} voters after it are active, {needed} \
         are needed; restore the others first"
    )]
    LosesQuorum {
        /// Number of voters after the change that are active: the leader has received a message
        /// from them within an election timeout.
        active: usize,
        /// Number of voters after the change.
        voters: usize,
        /// Number of voters that a quorum needs.
        needed: usize,
    },
    /// The learner does not have the newest entries yet.
    #[error("member {0} has not caught up with the log yet: retry later")]
    NotCaughtUp(NodeId),
    /// The id is not the next one, because another change was applied first. Occurs only when an
    /// entry of the log is applied.
    #[error("member id {0} is not the next id")]
    NotNext(NodeId),
    /// The address for a reserved member is invalid.
    #[error("invalid address {0:?}: must be host:port, at most 512 bytes")]
    BadAddress(String),
    /// There is no joint configuration to leave. Occurs only when an entry of the log is applied.
    #[error("no replacement is in progress")]
    NotJoint,
}

impl Members {
    /// Maximum number of voters.
    pub const VOTERS_MAX: usize = 7;

    /// Maximum number of members, including learners.
    pub const MEMBERS_MAX: usize = 64;

    /// Creates the membership of a new cluster, in which all founders are voters.
    pub fn founded(founders: &BTreeMap<NodeId, DiskId>) -> Self {
        let rows: BTreeMap<NodeId, Member> = founders
            .iter()
            .map(|(id, disk)| {
                let member = Member {
                    disk: *disk,
                    name: String::new(),
                    address: String::new(),
                    moves_to: None,
                    endpoints: Vec::new(),
                    role: MemberRole::Voter,
                    replaces: None,
                    since: LogIndex(1),
                };
                (*id, member)
            })
            .collect();
        let next = rows.last_key_value().map_or(1, |(id, _)| id.get() + 1);
        Self { rows, outgoing: BTreeSet::new(), next }
    }

    /// Builds the membership from its decoded parts. Returns `None` if the parts contradict each
    /// other.
    pub fn from_parts(
        rows: BTreeMap<NodeId, Member>,
        outgoing: BTreeSet<NodeId>,
        next: u64,
    ) -> Option<Self> {
        let minted = rows.keys().chain(&outgoing).all(|id| id.get() < next);
        minted.then_some(Self { rows, outgoing, next })
    }

    /// Returns all members by id.
    pub fn rows(&self) -> &BTreeMap<NodeId, Member> {
        &self.rows
    }

    /// Returns a member.
    pub fn get(&self, id: NodeId) -> Option<&Member> {
        self.rows.get(&id)
    }

    /// Returns the member with this name.
    pub fn named(&self, name: &str) -> Option<NodeId> {
        self.rows.iter().find(|(_, member)| member.name == name).map(|(id, _)| *id)
    }

    /// Returns the member that is reserved at an address.
    pub fn kept_at(&self, address: &str) -> Option<NodeId> {
        let is_kept = |member: &Member| !member.is_taken() && member.address == address;
        self.rows.iter().find(|(_, member)| is_kept(member)).map(|(id, _)| *id)
    }

    /// Returns the voters.
    pub fn voters(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.with_role(MemberRole::Voter)
    }

    /// Returns the learners.
    pub fn learners(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.with_role(MemberRole::Learner)
    }

    fn with_role(&self, role: MemberRole) -> impl Iterator<Item = NodeId> + '_ {
        self.rows.iter().filter(move |(_, member)| member.role == role).map(|(id, _)| *id)
    }

    /// Returns whether the member is a voter, in the configuration before or after a replacement in
    /// progress.
    pub fn is_voter(&self, id: NodeId) -> bool {
        self.outgoing.contains(&id)
            || self.get(id).is_some_and(|member| member.role == MemberRole::Voter)
    }

    /// Returns the voters before a replacement in progress, or an empty set. The voter that is
    /// being replaced is in this set but has no row any more.
    pub fn outgoing(&self) -> &BTreeSet<NodeId> {
        &self.outgoing
    }

    /// Returns whether a replacement is in progress.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns the next id to assign, or 0 if no member is known.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns whether this is the id of a current or former member.
    pub fn has_minted(&self, id: NodeId) -> bool {
        id.get() < self.next
    }

    /// Returns whether this is the id of a former member. A voter that is being replaced does not
    /// count as a former member yet.
    pub fn is_removed(&self, id: NodeId) -> bool {
        self.has_minted(id) && !self.rows.contains_key(&id) && !self.outgoing.contains(&id)
    }

    /// Returns whether any member was ever removed.
    pub fn has_removed(&self) -> bool {
        (1..self.next).any(|id| self.is_removed(NodeId::new(id).expect("ids begin with 1")))
    }

    /// Checks whether a change is valid. Does not check for a quorum.
    ///
    /// # Errors
    /// Returns the reason why it is not.
    #[doc(hidden)]
    pub fn validate(&self, change: &MemberChange) -> Result<(), MembershipError> {
        let known = |id: &NodeId| match self.get(*id) {
            Some(member) => Ok(member),
            // The id belongs to the voter that is being replaced.
            None if self.outgoing.contains(id) => Err(MembershipError::Pending),
            None => Err(MembershipError::Unknown(*id)),
        };
        let voter = |id: &NodeId| match known(id)?.role {
            MemberRole::Voter => Ok(()),
            MemberRole::Learner => Err(MembershipError::NotVoter(*id)),
        };
        let learner = |id: &NodeId| match known(id)?.role {
            MemberRole::Learner => Ok(()),
            MemberRole::Voter => Err(MembershipError::Voter(*id)),
        };
        let nameless = |name: &String, replaces: Option<NodeId>| {
            let namesake = self.named(name).filter(|_| !name.is_empty());
            match namesake.is_some_and(|namesake| Some(namesake) != replaces) {
                true => Err(MembershipError::NameTaken(name.clone())),
                false => Ok(()),
            }
        };
        // If a change is invalid for another reason, that reason is reported even while another
        // change is in progress.
        match change {
            MemberChange::Add { id, name, replaces, .. } => {
                if id.get() != self.next {
                    return Err(MembershipError::NotNext(*id));
                }
                if let Some(old) = replaces.filter(|old| old != id) {
                    voter(&old)?;
                }
                nameless(name, *replaces)?;
                if self.rows.len() >= Self::MEMBERS_MAX {
                    return Err(MembershipError::TooMany(self.rows.len()));
                }
            }
            MemberChange::Take { id, name, .. } => {
                if known(id)?.is_taken() {
                    return Err(MembershipError::Unknown(*id));
                }
                nameless(name, None)?;
            }
            MemberChange::Promote(id) => {
                learner(id)?;
                let voters = self.voters().count();
                if voters >= Self::VOTERS_MAX {
                    return Err(MembershipError::TooManyVoters(voters));
                }
            }
            MemberChange::Remove(id) => {
                known(id)?;
                if self.voters().eq([*id]) {
                    return Err(MembershipError::LastVoter(*id));
                }
            }
            MemberChange::Replace { old, new } => {
                voter(old)?;
                learner(new)?;
            }
            MemberChange::LeaveJoint if self.is_joint() => return Ok(()),
            MemberChange::LeaveJoint => return Err(MembershipError::NotJoint),
        }
        match self.is_joint() {
            true => Err(MembershipError::Pending),
            false => Ok(()),
        }
    }

    /// Applies a change that was checked.
    ///
    /// # Panics
    /// Panics if the change is invalid.
    #[doc(hidden)]
    pub fn apply(&mut self, index: LogIndex, change: &MemberChange) {
        assert_eq!(self.validate(change), Ok(()), "a step was taken that may not be");
        match change.clone() {
            MemberChange::Add { id, disk, name, address, replaces } => {
                let member = Member {
                    disk,
                    name,
                    address,
                    moves_to: None,
                    endpoints: Vec::new(),
                    role: MemberRole::Learner,
                    replaces,
                    since: index,
                };
                self.rows.insert(id, member);
                self.next = id.get() + 1;
            }
            MemberChange::Take { id, disk, name, address } => {
                let member = self.rows.get_mut(&id).expect("validated");
                *member = Member { disk, name, address, since: index, ..member.clone() };
            }
            MemberChange::Promote(id) => self.promote(id),
            MemberChange::Remove(id) => drop(self.rows.remove(&id)),
            MemberChange::Replace { old, new } => {
                self.outgoing = self.voters().collect();
                self.rows.remove(&old);
                self.promote(new);
            }
            MemberChange::LeaveJoint => self.outgoing.clear(),
        }
        // If a voter that a learner should replace is removed, the learner has nothing left to
        // replace.
        let rows = self.rows.keys().copied().collect::<BTreeSet<_>>();
        for member in self.rows.values_mut() {
            member.replaces = member.replaces.filter(|old| rows.contains(old));
        }
    }

    fn promote(&mut self, id: NodeId) {
        let member = self.rows.get_mut(&id).expect("validated");
        member.role = MemberRole::Voter;
        member.replaces = None;
    }

    /// Records the attributes that a member announces. Returns false if there is no such member.
    #[doc(hidden)]
    pub fn announce(&mut self, id: NodeId, attributes: &MemberAttributes) -> bool {
        let Some(member) = self.rows.get_mut(&id) else { return false };
        let MemberAttributes { name, address, endpoints } = attributes.clone();
        // The member has moved only if it announces itself from another address.
        let moves_to = member.moves_to.take().filter(|_| address == member.address);
        *member = Member { name, address, moves_to, endpoints, ..member.clone() };
        true
    }

    /// Records a new address of a member. For a reserved member, which has no process yet, this
    /// replaces its address.
    ///
    /// # Errors
    /// Fails if there is no such member, or if this is the current or future address of another
    /// member.
    pub fn move_to(&mut self, id: NodeId, address: &str) -> Result<(), Rejection> {
        let is_there =
            |member: &Member| member.address == address || member.destination() == address;
        let other = self.rows.iter().find(|(other, member)| **other != id && is_there(member));
        let other = other.map(|(other, _)| *other);
        let member = self.rows.get_mut(&id).ok_or(Rejection::NotMember(id))?;
        if let Some(other) = other {
            return Err(Rejection::AddressTaken(other));
        }
        if !member.is_taken() {
            address.clone_into(&mut member.address);
        }
        member.moves_to = (member.address != address).then(|| address.to_owned());
        Ok(())
    }
}

/// The id of one snapshot file: two files with the same id have the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub struct SnapshotId {
    /// Index of the last log entry that the snapshot covers.
    pub index: LogIndex,
    /// Term of the last log entry that the snapshot covers.
    pub term: Term,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Checksum of the whole file.
    pub checksum: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::node;

    fn attributes(name: &str, address: &str) -> MemberAttributes {
        MemberAttributes {
            name: name.to_owned(),
            address: address.to_owned(),
            ..MemberAttributes::default()
        }
    }

    fn three() -> Members {
        Members::founded(&(1..=3).map(|n| (node(n), DiskId(n.into()))).collect())
    }

    fn add(number: u64, replaces: Option<u64>) -> MemberChange {
        MemberChange::Add {
            id: node(number),
            disk: DiskId(number.into()),
            name: format!("m{number}"),
            address: String::new(),
            replaces: replaces.map(node),
        }
    }

    fn voters(members: &Members) -> Vec<u64> {
        members.voters().map(NodeId::get).collect()
    }

    #[test]
    fn member_joins_as_learner_votes_and_leaves_for_good() {
        let mut members = three();
        members.apply(LogIndex(7), &add(4, None));
        assert_eq!(members.get(node(4)).unwrap().since, LogIndex(7));
        assert_eq!(members.learners().collect::<Vec<_>>(), [node(4)]);
        members.apply(LogIndex(8), &MemberChange::Promote(node(4)));
        assert_eq!(voters(&members), [1, 2, 3, 4]);
        members.apply(LogIndex(9), &MemberChange::Remove(node(4)));
        assert!(members.is_removed(node(4)) && !members.is_removed(node(5)));
        assert_eq!(members.validate(&add(4, None)), Err(MembershipError::NotNext(node(4))));
        assert_eq!(members.validate(&add(5, None)), Ok(()));
    }

    #[test]
    fn reserved_member_is_claimed_once() {
        let mut members = three();
        let keep = |number: u64| MemberChange::Add {
            id: node(number),
            disk: DiskId::NONE,
            name: String::new(),
            address: format!("h:{number}"),
            replaces: Some(node(number)),
        };
        let take = |number: u64, name: &str| MemberChange::Take {
            id: node(number),
            disk: DiskId(77),
            name: name.to_owned(),
            address: format!("h:{number}"),
        };
        members.apply(LogIndex(7), &keep(4));
        members.apply(LogIndex(8), &keep(5));
        assert_eq!(voters(&members), [1, 2, 3], "it does not count before it is there");
        assert_eq!((members.kept_at("h:4"), members.kept_at("h:1")), (Some(node(4)), None));
        members.announce(node(1), &attributes("a", "h:1"));
        assert_eq!(
            members.validate(&take(4, "a")),
            Err(MembershipError::NameTaken("a".to_owned()))
        );
        members.apply(LogIndex(9), &take(4, "d"));
        let taken = members.get(node(4)).unwrap();
        assert_eq!(
            (taken.disk, taken.since, taken.replaces),
            (DiskId(77), LogIndex(9), Some(node(4)))
        );
        assert_eq!((members.kept_at("h:4"), members.named("d")), (None, Some(node(4))));
        for gone in [4, 1, 9] {
            assert_eq!(
                members.validate(&take(gone, "e")),
                Err(MembershipError::Unknown(node(gone)))
            );
        }
        members.apply(LogIndex(10), &MemberChange::Promote(node(4)));
        assert_eq!(
            (voters(&members), members.get(node(4)).unwrap().replaces),
            (vec![1, 2, 3, 4], None)
        );
        members.apply(LogIndex(11), &MemberChange::Remove(node(5)));
        assert!(members.is_removed(node(5)) && members.kept_at("h:5").is_none());
    }

    #[test]
    fn moving_member_has_both_addresses_until_it_announces() {
        let mut members = three();
        for number in 1..=3 {
            members.announce(node(number), &attributes("", &format!("h:{number}")));
        }
        let moves_to = |members: &Members| members.get(node(1)).unwrap().moves_to.clone();
        assert_eq!(members.move_to(node(9), "h:9"), Err(Rejection::NotMember(node(9))));
        assert_eq!(members.move_to(node(1), "h:2"), Err(Rejection::AddressTaken(node(2))));
        members.move_to(node(1), "h:9").unwrap();
        assert_eq!(members.move_to(node(2), "h:9"), Err(Rejection::AddressTaken(node(1))));
        assert_eq!(members.move_to(node(2), "h:1"), Err(Rejection::AddressTaken(node(1))));
        let row = members.get(node(1)).unwrap();
        assert_eq!((row.address.as_str(), row.destination()), ("h:1", "h:9"));
        members.announce(node(1), &attributes("a", "h:1"));
        assert_eq!(moves_to(&members).as_deref(), Some("h:9"), "it has a name now, and stays");
        members.announce(node(1), &attributes("a", "h:8"));
        assert_eq!(
            (moves_to(&members), members.get(node(1)).unwrap().destination()),
            (None, "h:8")
        );
        members.move_to(node(1), "h:9").unwrap();
        members.move_to(node(1), "h:8").unwrap();
        assert_eq!(moves_to(&members), None, "it is to stay after all");
        let keep = MemberChange::Add {
            id: node(4),
            disk: DiskId::NONE,
            name: String::new(),
            address: "h:4".to_owned(),
            replaces: None,
        };
        members.apply(LogIndex(9), &keep);
        members.move_to(node(4), "h:5").unwrap();
        assert_eq!((members.kept_at("h:4"), members.kept_at("h:5")), (None, Some(node(4))));
        assert_eq!(members.get(node(4)).unwrap().moves_to, None);
    }

    #[test]
    fn replacement_is_joint_until_it_is_left() {
        let mut members = three();
        members.apply(LogIndex(2), &add(4, Some(2)));
        assert_eq!(members.validate(&MemberChange::LeaveJoint), Err(MembershipError::NotJoint));
        members.apply(LogIndex(3), &MemberChange::Replace { old: node(2), new: node(4) });
        assert_eq!(voters(&members), [1, 3, 4]);
        assert_eq!(members.outgoing().iter().map(|id| id.get()).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(members.is_voter(node(2)) && !members.is_removed(node(2)));
        for (change, why) in [
            (MemberChange::Remove(node(1)), MembershipError::Pending),
            (MemberChange::Remove(node(2)), MembershipError::Pending),
            (MemberChange::Promote(node(2)), MembershipError::Pending),
            (MemberChange::Remove(node(9)), MembershipError::Unknown(node(9))),
            (MemberChange::Promote(node(4)), MembershipError::Voter(node(4))),
        ] {
            assert_eq!(members.validate(&change), Err(why), "{change:?}");
        }
        members.apply(LogIndex(4), &MemberChange::LeaveJoint);
        assert!(members.is_removed(node(2)) && !members.is_joint());
    }

    #[test]
    fn invalid_membership_changes_are_rejected() {
        let mut members = three();
        assert!(members.announce(node(1), &attributes("a", "h:1")));
        assert!(!members.announce(node(9), &attributes("z", "")));
        let named = |name: &str| MemberChange::Add {
            id: node(4),
            disk: DiskId(4),
            name: name.to_owned(),
            address: String::new(),
            replaces: None,
        };
        assert_eq!(members.validate(&named("a")), Err(MembershipError::NameTaken("a".to_owned())));
        assert_eq!(members.validate(&named("b")), Ok(()));
        assert_eq!(members.validate(&add(4, Some(9))), Err(MembershipError::Unknown(node(9))));
        let promote = MemberChange::Promote(node(1));
        assert_eq!(members.validate(&promote), Err(MembershipError::Voter(node(1))));
        for gone in [1, 2] {
            members.apply(LogIndex(2), &MemberChange::Remove(node(gone)));
        }
        let last = MemberChange::Remove(node(3));
        assert_eq!(members.validate(&last), Err(MembershipError::LastVoter(node(3))));
        members.apply(LogIndex(3), &add(4, Some(3)));
        members.apply(LogIndex(4), &add(5, None));
        members.apply(LogIndex(5), &MemberChange::Replace { old: node(3), new: node(4) });
        assert_eq!(voters(&members), [4]);
    }
}

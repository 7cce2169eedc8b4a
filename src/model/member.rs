//! Who belongs to the cluster: a part of the replicated state, changed one step at a time.
//!
//! ```text
//!            Add                Promote
//!   (new) ─────────▶ learner ───────────▶ voter
//!     └─────────▶ place ─▲ Take             │
//!      Add, no disk  │  │                   │
//!                       │ Remove            │ Remove
//!                       ▼                   ▼
//!                    (gone: its id is never used again)
//!
//!   A place is a learner that has an id and an address, and no disk yet: kept for a process that is to come, and
//!   taken once, by the first that joins with this address.
//!
//!   Replace { old, new }: the learner `new` votes and `old` does not any more, in one step. Until
//!   LeaveJoint, both the voters before and the voters after must agree to everything (joint consensus).
//! ```
//!
//! Ids are minted upwards, so an id below the next one that has no row was removed, for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use thiserror::Error;

use super::{DiskId, JoinAsk, LogIndex, NodeId, Rejection, Term};

/// A member's part in the consensus.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemberRole {
    /// It votes, may lead, and counts for a quorum.
    Voter,
    /// It follows the log and serves its host like any member, but does not vote.
    Learner,
}

/// A member, as all members know it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Member {
    /// The data directory that its id is bound to; [`DiskId::NONE`] until somebody has taken its place.
    pub disk: DiskId,
    /// Its name; empty until it has announced itself.
    pub name: String,
    /// Where the others reach it, `host:port`; empty until it has announced itself.
    pub address: String,
    /// Where it is going to be, `host:port`, as somebody [has said](crate::Node::move_member): the others look for it in
    /// both places, until it announces itself from another one than `address`.
    pub moves_to: Option<String>,
    /// Where its host serves clients of its own, in the host's words: see [`Config::endpoints`](crate::Config::endpoints).
    pub endpoints: Vec<String>,
    /// Its part.
    pub role: MemberRole,
    /// The voter whose place it is to take, once it has caught up. Itself, if it is to vote then in a place of its
    /// own.
    pub replaces: Option<NodeId>,
    /// The log entry with which it came; 1 for the founders.
    pub since: LogIndex,
}

impl Member {
    /// Whether a process has come for it. Until then it is a place that is kept.
    pub fn is_taken(&self) -> bool {
        self.disk != DiskId::NONE
    }

    /// Where it is to be found from now on: where it moves to, if it does.
    pub fn destination(&self) -> &str {
        self.moves_to.as_ref().unwrap_or(&self.address)
    }
}

/// Whether somebody may be looked for there: a number with its port, or a name with one.
pub(crate) fn is_address(address: &str) -> bool {
    let is_name = |(host, port): (&str, &str)| {
        !host.is_empty() && !host.contains(':') && port.parse::<u16>().is_ok()
    };
    address.len() <= JoinAsk::TEXT_BYTES_MAX
        && (address.parse::<SocketAddr>().is_ok() || address.rsplit_once(':').is_some_and(is_name))
}

/// The most addresses of one member.
const ADDRESSES_MAX: usize = 8;

/// The addresses in a member's address: one, or several with commas between them, which are tried in turn.
pub(crate) fn addresses(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
}

/// Reports whether each of these addresses can be dialed.
pub(crate) fn are_addresses(list: &str) -> bool {
    list.len() <= JoinAsk::TEXT_BYTES_MAX
        && addresses(list).count() <= ADDRESSES_MAX
        && addresses(list).all(is_address)
}

/// Whether it says where to listen only: nobody finds a member at port 0, or at the address of all interfaces.
pub(crate) fn is_nowhere(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(at) => at.port() == 0 || at.ip().is_unspecified(),
        Err(_) => address.rsplit_once(':').is_some_and(|(_, port)| port.parse() == Ok(0_u16)),
    }
}

/// What a member says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberAttributes {
    /// What it is called.
    pub name: String,
    /// Where the others reach it, `host:port`.
    pub address: String,
    /// Where its host serves clients of its own: URLs, as a rule. Told to all members and not used by the library; at
    /// most [`MemberAttributes::ENDPOINTS_MAX`].
    pub endpoints: Vec<String>,
}

impl MemberAttributes {
    /// The most endpoints.
    pub const ENDPOINTS_MAX: usize = 16;

    /// The longest endpoint, in bytes.
    pub const ENDPOINT_BYTES_MAX: usize = 512;
}

/// All members, as of a log index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Members {
    rows: BTreeMap<NodeId, Member>,
    outgoing: BTreeSet<NodeId>,
    next: u64,
}

/// One step. It stands in the log as an entry of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberChange {
    /// A new member, as a learner, under an id that was never used.
    Add {
        /// Its id: the next one, or the step is void.
        id: NodeId,
        /// Its data directory; [`DiskId::NONE`] if its place is kept for whoever comes.
        disk: DiskId,
        /// Its name.
        name: String,
        /// Its address.
        address: String,
        /// The voter whose place it is to take, or itself: see [`Member::replaces`].
        replaces: Option<NodeId>,
    },
    /// The process has come that a place was kept for.
    Take {
        /// The place.
        id: NodeId,
        /// Its data directory.
        disk: DiskId,
        /// Its name.
        name: String,
        /// Its address.
        address: String,
    },
    /// A learner votes from now on.
    Promote(NodeId),
    /// A member is one no more.
    Remove(NodeId),
    /// A learner takes a voter's place.
    Replace {
        /// The voter that goes.
        old: NodeId,
        /// The learner that comes.
        new: NodeId,
    },
    /// The end of a `Replace`: the voters after it decide alone.
    LeaveJoint,
}

/// A step that somebody wants the leader to take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipRequest {
    /// As [`MemberChange::Add`], or [`MemberChange::Take`] if a place is kept at the address; the leader mints the
    /// id. If the disk is a member's, nothing is to do.
    Add {
        /// Its data directory.
        disk: DiskId,
        /// Its name.
        name: String,
        /// Its address.
        address: String,
        /// The voter whose place it is to take.
        replaces: Option<NodeId>,
    },
    /// A place is kept for whoever joins with an address. If one is kept there, nothing is to do.
    Keep {
        /// The address.
        address: String,
        /// Whether who takes it is to vote, once it has caught up.
        votes: bool,
    },
    /// As [`MemberChange::Promote`].
    Promote(NodeId),
    /// As [`MemberChange::Remove`].
    Remove(NodeId),
}

/// Why a step is not taken. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// There is no such member.
    #[error("there is no member {0}")]
    Unknown(NodeId),
    /// It votes already.
    #[error("member {0} is a voter already")]
    Voter(NodeId),
    /// Only a voter's place can be taken.
    #[error("member {0} does not vote: only a voter can be replaced")]
    NotVoter(NodeId),
    /// Another member has the name.
    #[error(
        "there is a member called {0:?}: choose another name, or have the new member replace the old one"
    )]
    NameTaken(String),
    /// As many as there can be.
    #[error("there are {0} members, more are not possible: remove one first")]
    TooMany(usize),
    /// As many voters as there can be.
    #[error("there are {0} voters, more are not possible: remove one first")]
    TooManyVoters(usize),
    /// Without it nobody would vote.
    #[error(
        "member {0} is the last voter: let another one join and promote it, then this one can go"
    )]
    LastVoter(NodeId),
    /// Another step is not finished.
    #[error("another change of the members is under way: try again when it is done")]
    Pending,
    /// Too few of the voters after the step are there.
    #[error(
        "only {active} of the {voters} voters after this change are there, {needed} are needed: bring \
         the others back first"
    )]
    LosesQuorum {
        /// How many of them have been heard of within an election timeout.
        active: usize,
        /// How many there would be.
        voters: usize,
        /// How many must agree.
        needed: usize,
    },
    /// The learner does not have the newest entries yet.
    #[error("member {0} has not caught up yet: try again in a while")]
    NotCaughtUp(NodeId),
    /// The id is not the next one: somebody was quicker. Only in the log.
    #[error("the id {0} is not the next one")]
    NotNext(NodeId),
    /// No place can be kept there.
    #[error("{0:?} is no address: host:port, of at most 512 bytes")]
    BadAddress(String),
    /// There is no joint configuration to leave. Only in the log.
    #[error("no replacement is under way")]
    NotJoint,
}

impl Members {
    /// The most voters.
    pub const VOTERS_MAX: usize = 7;

    /// The most members, learners too.
    pub const MEMBERS_MAX: usize = 64;

    /// The members that found a cluster, all of them voters.
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

    /// What `rows`, `outgoing` and `next` of other members were; for the codec. `None` if they cannot
    /// have been.
    pub fn from_parts(
        rows: BTreeMap<NodeId, Member>,
        outgoing: BTreeSet<NodeId>,
        next: u64,
    ) -> Option<Self> {
        let minted = rows.keys().chain(&outgoing).all(|id| id.get() < next);
        minted.then_some(Self { rows, outgoing, next })
    }

    /// Every member, by id.
    pub fn rows(&self) -> &BTreeMap<NodeId, Member> {
        &self.rows
    }

    /// A member.
    pub fn get(&self, id: NodeId) -> Option<&Member> {
        self.rows.get(&id)
    }

    /// The member with this name.
    pub fn named(&self, name: &str) -> Option<NodeId> {
        self.rows.iter().find(|(_, member)| member.name == name).map(|(id, _)| *id)
    }

    /// The place that is kept at an address.
    pub fn kept_at(&self, address: &str) -> Option<NodeId> {
        let is_kept = |member: &Member| !member.is_taken() && member.address == address;
        self.rows.iter().find(|(_, member)| is_kept(member)).map(|(id, _)| *id)
    }

    /// Those that vote.
    pub fn voters(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.with_role(MemberRole::Voter)
    }

    /// Those that do not.
    pub fn learners(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.with_role(MemberRole::Learner)
    }

    fn with_role(&self, role: MemberRole) -> impl Iterator<Item = NodeId> + '_ {
        self.rows.iter().filter(move |(_, member)| member.role == role).map(|(id, _)| *id)
    }

    /// Whether it votes, in the configuration before or after a replacement that is under way.
    pub fn is_voter(&self, id: NodeId) -> bool {
        self.outgoing.contains(&id)
            || self.get(id).is_some_and(|member| member.role == MemberRole::Voter)
    }

    /// While a replacement is under way: those that voted before it. Else empty. Who goes is here and
    /// has no row any more.
    pub fn outgoing(&self) -> &BTreeSet<NodeId> {
        &self.outgoing
    }

    /// Whether a replacement is under way.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The next id to be minted; 0 if no member is known.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether it is a member, or was one.
    pub fn has_minted(&self, id: NodeId) -> bool {
        id.get() < self.next
    }

    /// Whether it was a member and is none any more. One that is going still counts.
    pub fn is_removed(&self, id: NodeId) -> bool {
        self.has_minted(id) && !self.rows.contains_key(&id) && !self.outgoing.contains(&id)
    }

    /// Whether any that was a member is none any more.
    pub fn has_removed(&self) -> bool {
        (1..self.next).any(|id| self.is_removed(NodeId::new(id).expect("ids begin with 1")))
    }

    /// Whether a step may be taken. Says nothing of quorums.
    ///
    /// # Errors
    /// Why not.
    #[doc(hidden)]
    pub fn judge(&self, change: &MemberChange) -> Result<(), MembershipError> {
        let known = |id: &NodeId| match self.get(*id) {
            Some(member) => Ok(member),
            // It is about to go.
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
        // What is refused for more than another step is told so, whether one is under way or not.
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

    /// Takes a step that was judged.
    ///
    /// # Panics
    /// If it may not be taken.
    #[doc(hidden)]
    pub fn apply(&mut self, index: LogIndex, change: &MemberChange) {
        assert_eq!(self.judge(change), Ok(()), "a step was taken that may not be");
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
                let member = self.rows.get_mut(&id).expect("judged");
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
        // Whose place was to be taken may be gone: then there is nothing to replace.
        let rows = self.rows.keys().copied().collect::<BTreeSet<_>>();
        for member in self.rows.values_mut() {
            member.replaces = member.replaces.filter(|old| rows.contains(old));
        }
    }

    fn promote(&mut self, id: NodeId) {
        let member = self.rows.get_mut(&id).expect("judged");
        member.role = MemberRole::Voter;
        member.replaces = None;
    }

    /// A member says what it is called and where it is. False if there is no such member.
    #[doc(hidden)]
    pub fn announce(&mut self, id: NodeId, attributes: &MemberAttributes) -> bool {
        let Some(member) = self.rows.get_mut(&id) else { return false };
        let MemberAttributes { name, address, endpoints } = attributes.clone();
        // Until it speaks from elsewhere it has not moved.
        let moves_to = member.moves_to.take().filter(|_| address == member.address);
        *member = Member { name, address, moves_to, endpoints, ..member.clone() };
        true
    }

    /// Somebody says where a member is going to be. For a place that is kept, that is where it is.
    ///
    /// # Errors
    /// There is no such member, or another one is there, or is to be.
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

/// Names one snapshot file exactly: two files with the same id have the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SnapshotId {
    /// The last entry that it covers.
    pub index: LogIndex,
    /// The term of that entry.
    pub term: Term,
    /// Its length in bytes.
    pub bytes: u64,
    /// Over the whole file.
    pub checksum: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(name: &str, address: &str) -> MemberAttributes {
        MemberAttributes {
            name: name.to_owned(),
            address: address.to_owned(),
            ..MemberAttributes::default()
        }
    }

    fn id(number: u64) -> NodeId {
        NodeId::new(number).unwrap()
    }

    fn three() -> Members {
        Members::founded(&(1..=3).map(|n| (id(n), DiskId(n.into()))).collect())
    }

    fn add(number: u64, replaces: Option<u64>) -> MemberChange {
        MemberChange::Add {
            id: id(number),
            disk: DiskId(number.into()),
            name: format!("m{number}"),
            address: String::new(),
            replaces: replaces.map(id),
        }
    }

    fn voters(members: &Members) -> Vec<u64> {
        members.voters().map(NodeId::get).collect()
    }

    #[test]
    fn a_member_comes_as_a_learner_votes_and_goes_for_ever() {
        let mut members = three();
        members.apply(LogIndex(7), &add(4, None));
        assert_eq!(members.get(id(4)).unwrap().since, LogIndex(7));
        assert_eq!(members.learners().collect::<Vec<_>>(), [id(4)]);
        members.apply(LogIndex(8), &MemberChange::Promote(id(4)));
        assert_eq!(voters(&members), [1, 2, 3, 4]);
        members.apply(LogIndex(9), &MemberChange::Remove(id(4)));
        assert!(members.is_removed(id(4)) && !members.is_removed(id(5)));
        assert_eq!(members.judge(&add(4, None)), Err(MembershipError::NotNext(id(4))));
        assert_eq!(members.judge(&add(5, None)), Ok(()));
    }

    #[test]
    fn a_place_is_kept_and_taken_once() {
        let mut members = three();
        let keep = |number: u64| MemberChange::Add {
            id: id(number),
            disk: DiskId::NONE,
            name: String::new(),
            address: format!("h:{number}"),
            replaces: Some(id(number)),
        };
        let take = |number: u64, name: &str| MemberChange::Take {
            id: id(number),
            disk: DiskId(77),
            name: name.to_owned(),
            address: format!("h:{number}"),
        };
        members.apply(LogIndex(7), &keep(4));
        members.apply(LogIndex(8), &keep(5));
        assert_eq!(voters(&members), [1, 2, 3], "it does not count before it is there");
        assert_eq!((members.kept_at("h:4"), members.kept_at("h:1")), (Some(id(4)), None));
        members.announce(id(1), &attributes("a", "h:1"));
        assert_eq!(members.judge(&take(4, "a")), Err(MembershipError::NameTaken("a".to_owned())));
        members.apply(LogIndex(9), &take(4, "d"));
        let taken = members.get(id(4)).unwrap();
        assert_eq!(
            (taken.disk, taken.since, taken.replaces),
            (DiskId(77), LogIndex(9), Some(id(4)))
        );
        assert_eq!((members.kept_at("h:4"), members.named("d")), (None, Some(id(4))));
        for gone in [4, 1, 9] {
            assert_eq!(members.judge(&take(gone, "e")), Err(MembershipError::Unknown(id(gone))));
        }
        members.apply(LogIndex(10), &MemberChange::Promote(id(4)));
        assert_eq!(
            (voters(&members), members.get(id(4)).unwrap().replaces),
            (vec![1, 2, 3, 4], None)
        );
        members.apply(LogIndex(11), &MemberChange::Remove(id(5)));
        assert!(members.is_removed(id(5)) && members.kept_at("h:5").is_none());
    }

    #[test]
    fn who_is_to_move_is_in_both_places_until_it_speaks_from_another() {
        let mut members = three();
        for number in 1..=3 {
            members.announce(id(number), &attributes("", &format!("h:{number}")));
        }
        let moves_to = |members: &Members| members.get(id(1)).unwrap().moves_to.clone();
        assert_eq!(members.move_to(id(9), "h:9"), Err(Rejection::NotMember(id(9))));
        assert_eq!(members.move_to(id(1), "h:2"), Err(Rejection::AddressTaken(id(2))));
        members.move_to(id(1), "h:9").unwrap();
        assert_eq!(members.move_to(id(2), "h:9"), Err(Rejection::AddressTaken(id(1))));
        assert_eq!(members.move_to(id(2), "h:1"), Err(Rejection::AddressTaken(id(1))));
        let row = members.get(id(1)).unwrap();
        assert_eq!((row.address.as_str(), row.destination()), ("h:1", "h:9"));
        members.announce(id(1), &attributes("a", "h:1"));
        assert_eq!(moves_to(&members).as_deref(), Some("h:9"), "it has a name now, and stays");
        members.announce(id(1), &attributes("a", "h:8"));
        assert_eq!((moves_to(&members), members.get(id(1)).unwrap().destination()), (None, "h:8"));
        members.move_to(id(1), "h:9").unwrap();
        members.move_to(id(1), "h:8").unwrap();
        assert_eq!(moves_to(&members), None, "it is to stay after all");
        let keep = MemberChange::Add {
            id: id(4),
            disk: DiskId::NONE,
            name: String::new(),
            address: "h:4".to_owned(),
            replaces: None,
        };
        members.apply(LogIndex(9), &keep);
        members.move_to(id(4), "h:5").unwrap();
        assert_eq!((members.kept_at("h:4"), members.kept_at("h:5")), (None, Some(id(4))));
        assert_eq!(members.get(id(4)).unwrap().moves_to, None);
    }

    #[test]
    fn a_replacement_is_one_step_and_joint_until_it_is_left() {
        let mut members = three();
        members.apply(LogIndex(2), &add(4, Some(2)));
        assert_eq!(members.judge(&MemberChange::LeaveJoint), Err(MembershipError::NotJoint));
        members.apply(LogIndex(3), &MemberChange::Replace { old: id(2), new: id(4) });
        assert_eq!(voters(&members), [1, 3, 4]);
        assert_eq!(members.outgoing().iter().map(|id| id.get()).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(members.is_voter(id(2)) && !members.is_removed(id(2)));
        for (change, why) in [
            (MemberChange::Remove(id(1)), MembershipError::Pending),
            (MemberChange::Remove(id(2)), MembershipError::Pending),
            (MemberChange::Promote(id(2)), MembershipError::Pending),
            (MemberChange::Remove(id(9)), MembershipError::Unknown(id(9))),
            (MemberChange::Promote(id(4)), MembershipError::Voter(id(4))),
        ] {
            assert_eq!(members.judge(&change), Err(why), "{change:?}");
        }
        members.apply(LogIndex(4), &MemberChange::LeaveJoint);
        assert!(members.is_removed(id(2)) && !members.is_joint());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut members = three();
        assert!(members.announce(id(1), &attributes("a", "h:1")));
        assert!(!members.announce(id(9), &attributes("z", "")));
        let named = |name: &str| MemberChange::Add {
            id: id(4),
            disk: DiskId(4),
            name: name.to_owned(),
            address: String::new(),
            replaces: None,
        };
        assert_eq!(members.judge(&named("a")), Err(MembershipError::NameTaken("a".to_owned())));
        assert_eq!(members.judge(&named("b")), Ok(()));
        assert_eq!(members.judge(&add(4, Some(9))), Err(MembershipError::Unknown(id(9))));
        let promote = MemberChange::Promote(id(1));
        assert_eq!(members.judge(&promote), Err(MembershipError::Voter(id(1))));
        for gone in [1, 2] {
            members.apply(LogIndex(2), &MemberChange::Remove(id(gone)));
        }
        let last = MemberChange::Remove(id(3));
        assert_eq!(members.judge(&last), Err(MembershipError::LastVoter(id(3))));
        members.apply(LogIndex(3), &add(4, Some(3)));
        members.apply(LogIndex(4), &add(5, None));
        members.apply(LogIndex(5), &MemberChange::Replace { old: id(3), new: id(4) });
        assert_eq!(voters(&members), [4]);
    }
}

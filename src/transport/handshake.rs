//! Checks whether two members may talk to each other, by comparing their hellos. The check is pure
//! logic without sockets or encodings.
//!
//! A peer is rejected if it
//!
//! - belongs to another cluster,
//! - wants to talk to another member,
//! - is not a member, or no longer one,
//! - has lost the disk with which it voted,
//! - expects another disk of this member, or
//! - is an earlier incarnation of a member that has already connected in a later one.
//!
//! An unknown peer is accepted if it claims to have been added by a log entry that this member has
//! not applied yet. Both sides report the error texts, so the texts name the members and never say
//! "I" or "you". The texts show only a few digits of a disk id: enough to compare two ids, too few
//! to forge one. Cluster ids are shown completely, because the ids of similar configurations have
//! many digits in common.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

use super::clusters::{OtherCluster, OtherClusters};
use super::{Introducer, Known, Refused};
use crate::model::{DiskId, FoundingState, Hello, Incarnation, Members, NodeId};

/// Maximum number of members whose last incarnation is remembered. A cluster has fewer members, so
/// only forged ids can displace entries.
const SEEN_MAX: usize = 4 * Members::MEMBERS_MAX;

/// The first digits of a random id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digits(u128);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}..", self.0 >> 96)
    }
}

impl fmt::Debug for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<DiskId> for Digits {
    fn from(disk: DiskId) -> Self {
        Digits(disk.0)
    }
}

/// The reason for which a member rejects the hello of another member.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum HelloRejection {
    /// The two members belong to different clusters: two clusters are connected by mistake, or two
    /// members of one cluster have different configurations.
    #[error("{0}")]
    OtherCluster(OtherCluster),
    /// The other member wanted to reach another member: it has dialed a wrong address.
    #[error("member {them} dialed member {meant} but reached member {me}: an address is wrong")]
    NotForMe {
        /// This member.
        me: NodeId,
        /// The other member.
        them: NodeId,
        /// The member that the other one wants to talk to.
        meant: NodeId,
    },
    /// This member has dialed a wrong address: another member has replied.
    #[error("member {me} dialed member {meant} but reached member {them}: an address is wrong")]
    WrongAnswer {
        /// This member.
        me: NodeId,
        /// The member that this member dialed.
        meant: NodeId,
        /// The member that replied.
        them: NodeId,
    },
    /// The other side has the id of this member: two nodes have the same configuration, or a node
    /// dials itself.
    #[error(
        "both ends claim to be member {me}: two nodes have the same id, or a node dials itself"
    )]
    Myself {
        /// The id.
        me: NodeId,
    },
    /// The other end is not a member.
    #[error("member {them} is unknown to member {me}")]
    UnknownMember {
        /// This member.
        me: NodeId,
        /// The other member.
        them: NodeId,
    },
    /// The other end is a former member.
    #[error(
        "member {member} was removed from the cluster: it can return only as a new member with an empty data \
         directory"
    )]
    Removed {
        /// The removed member.
        member: NodeId,
    },
    /// The member's disk is not the disk with which it became a member. The member's votes on the
    /// old disk are lost, so it must not vote again under this id.
    #[error(
        "member {member} belongs to the cluster with disk {expected} but now has disk {found}: a member that \
         lost its disk cannot return under its old id"
    )]
    ReplacedDisk {
        /// The member with the wrong disk. Either the other member or this member.
        member: NodeId,
        /// The disk that the cluster knows.
        expected: Digits,
        /// The disk that the member has.
        found: Digits,
    },
    /// The lists of founders of the two members differ, or one of them does not contain the other
    /// member.
    #[error("members {me} and {them} have different records of the founders and their disks")]
    OtherFounding {
        /// This member.
        me: NodeId,
        /// The other member.
        them: NodeId,
    },
    /// The certificate belongs to another member.
    #[error("member {them} is named {name:?}, but its certificate is for {proven:?}")]
    OtherName {
        /// The other member.
        them: NodeId,
        /// Name of the other member in the cluster.
        name: String,
        /// The name in the certificate.
        proven: String,
    },
    /// The other side is an earlier incarnation of a member that has already connected in a later
    /// one.
    #[error(
        "member {them} has gone back from incarnation {seen} to {found}: an old process or an old copy of its \
         disk is running"
    )]
    OldIncarnation {
        /// The other member.
        them: NodeId,
        /// The highest incarnation of the other member so far.
        seen: Incarnation,
        /// The incarnation that the other member claims.
        found: Incarnation,
    },
}

/// Checks whether the sender of `theirs` may talk to the sender of `mine`.
///
/// # Errors
/// Returns the first reason for a rejection.
pub(crate) fn check_hello(
    mine: &Hello,
    theirs: &Hello,
    known: &Known,
) -> Result<(), HelloRejection> {
    let (me, them) = (mine.from, theirs.from);
    if theirs.cluster != mine.cluster {
        return Err(HelloRejection::OtherCluster(OtherCluster::new(mine, theirs)));
    }
    if them == me {
        return Err(HelloRejection::Myself { me });
    }
    if theirs.to != me {
        return Err(HelloRejection::NotForMe { me, them, meant: theirs.to });
    }
    if mine.to != them {
        return Err(HelloRejection::WrongAnswer { me, meant: mine.to, them });
    }
    // This member's own log records the founders and their disks. If a peer has a different list,
    // this proves neither a lost disk nor a removed member. Different lists mean that the cluster
    // was founded twice.
    if let (FoundingState::Founded(mine), FoundingState::Founded(theirs)) =
        (&mine.standing, &theirs.standing)
        && mine != theirs
    {
        return Err(HelloRejection::OtherFounding { me, them });
    }
    match known {
        Known::Founders(founders) => {
            if !founders.contains(&them) {
                return Err(HelloRejection::UnknownMember { me, them });
            }
        }
        Known::Members(members) => check_member(theirs, me, members)?,
        Known::Unsettled(members) if members.is_removed(them) => {}
        Known::Unsettled(members) => check_member(theirs, me, members)?,
    }
    match (&mine.standing, &theirs.standing) {
        (FoundingState::Blank, FoundingState::Founded(founding)) => match founding.get(&me) {
            Some(disk) => check_disk(me, *disk, mine.disk),
            None => Err(HelloRejection::OtherFounding { me, them }),
        },
        _ => Ok(()),
    }
}

/// Checks that the sender of `theirs` is a member with its recorded disk.
fn check_member(theirs: &Hello, me: NodeId, members: &Members) -> Result<(), HelloRejection> {
    let them = theirs.from;
    if let Some(member) = members.get(them) {
        // The reserved member may have been claimed in a log entry that this member has not applied
        // yet.
        let comes_later =
            matches!(theirs.standing, FoundingState::Founded(_)) && theirs.since > member.since;
        return match member.is_taken() || !comes_later {
            true => check_disk(them, member.disk, theirs.disk),
            false => Ok(()),
        };
    }
    if members.is_removed(them) {
        return Err(HelloRejection::Removed { member: them });
    }
    // The peer is being replaced. The vote of the peer is needed until the members have agreed on
    // the new configuration.
    if members.outgoing().contains(&them) {
        return Ok(());
    }
    // The peer was added in a log entry that this member has not applied yet, so its id is not
    // known here.
    let newest = members.rows().values().map(|member| member.since).max();
    if matches!(theirs.standing, FoundingState::Founded(_)) && Some(theirs.since) > newest {
        return Ok(());
    }
    Err(HelloRejection::UnknownMember { me, them })
}

fn check_disk(member: NodeId, expected: DiskId, found: DiskId) -> Result<(), HelloRejection> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (expected.into(), found.into());
    Err(HelloRejection::ReplacedDisk { member, expected, found })
}

/// Checks every peer that connects to one member, and remembers the incarnation of each.
pub(super) struct Admission {
    me: NodeId,
    introducer: Arc<dyn Introducer>,
    seen: Mutex<BTreeMap<NodeId, (DiskId, Incarnation)>>,
    other_clusters: OtherClusters,
}

impl Admission {
    pub(super) fn new(me: NodeId, introducer: Arc<dyn Introducer>) -> Self {
        Self { me, introducer, seen: Mutex::default(), other_clusters: OtherClusters::default() }
    }

    pub(super) fn me(&self) -> NodeId {
        self.me
    }

    /// Returns the name of a member, if this one knows it.
    pub(super) fn name(&self, of: NodeId) -> Option<String> {
        self.introducer.name(of)
    }

    fn own_name(&self) -> String {
        self.name(self.me).unwrap_or_else(|| format!("member {}", self.me))
    }

    /// Returns the names of all members that this one knows, including itself.
    fn names(&self, known: &Known) -> Vec<String> {
        let mut ids: BTreeSet<NodeId> = match known {
            Known::Founders(founders) => founders.clone(),
            Known::Members(members) | Known::Unsettled(members) => {
                members.rows().keys().copied().collect()
            }
        };
        ids.insert(self.me);
        ids.into_iter().filter_map(|id| self.name(id)).collect()
    }

    /// If `peer`, which this member has dialed, belongs to another cluster, adds the exact
    /// difference between the two configurations to its rejection. Returns any other rejection
    /// unchanged.
    pub(super) fn explained(&self, peer: NodeId, mut refused: Refused) -> Refused {
        let (mine, known) = (self.hello(peer).cluster, self.introducer.known());
        let (own, names) = (self.own_name(), self.names(&known));
        if let Some(why) = self.other_clusters.explain(&refused.why, mine, &own, &names) {
            refused.why = why;
        }
        refused
    }

    /// Returns the report of a rejection by this member, with the explanation of
    /// [`Self::explained`] if there is one.
    pub(super) fn rejection(&self, rejection: HelloRejection) -> Refused {
        let explained = match &rejection {
            HelloRejection::OtherCluster(other) => self.other_clusters.explained(other.theirs()),
            _ => None,
        };
        let mut refused = Refused::from(rejection);
        if let Some(why) = explained {
            refused.why = why;
        }
        refused
    }

    /// Returns whether `id` is the id of a member.
    pub(super) fn knows(&self, id: NodeId) -> bool {
        self.introducer.known().knows(id)
    }

    /// Returns this member's current hello to `peer`.
    pub(super) fn hello(&self, peer: NodeId) -> Hello {
        let hello = self.introducer.hello(peer);
        assert!(hello.from == self.me && hello.to == peer, "a hello for somebody else");
        hello
    }

    /// Checks whether the sender of `theirs` may talk to this member, which has sent `mine`.
    /// Remembers the incarnation.
    ///
    /// `proven` is the name in the certificate of the other end, if it has shown one.
    pub(super) fn admit(
        &self,
        mine: &Hello,
        theirs: &Hello,
        proven: Option<&str>,
    ) -> Result<(), HelloRejection> {
        let known = self.introducer.known();
        check_hello(mine, theirs, &known).map_err(|rejection| match rejection {
            HelloRejection::OtherCluster(other) => {
                HelloRejection::OtherCluster(other.of(self.own_name(), self.names(&known)))
            }
            other => other,
        })?;
        if let (Some(proven), Some(name)) = (proven, self.introducer.name(theirs.from))
            && name != proven
        {
            let (them, proven) = (theirs.from, proven.to_owned());
            return Err(HelloRejection::OtherName { them, name, proven });
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= SEEN_MAX {
            seen.retain(|id, _| known.knows(*id));
        }
        match seen.get(&theirs.from) {
            // Incarnations are counted for each disk. If the disk differs from the previous one,
            // the cluster was not founded with the previous disk; otherwise the check above would
            // have failed.
            Some((disk, seen)) if *disk == theirs.disk && *seen > theirs.incarnation => {
                let (seen, found) = (*seen, theirs.incarnation);
                Err(HelloRejection::OldIncarnation { them: theirs.from, seen, found })
            }
            _ => {
                seen.insert(theirs.from, (theirs.disk, theirs.incarnation));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::node;
    use crate::model::{ClusterId, ClusterVersion, LogIndex, MemberChange};

    fn blank(from: u64, to: u64) -> Hello {
        Hello {
            cluster: ClusterId(7),
            from: node(from),
            to: node(to),
            disk: disk(from),
            incarnation: Incarnation(1),
            standing: FoundingState::Blank,
            since: LogIndex(1),
            address: String::new(),
            supported_version: ClusterVersion::NEWEST,
        }
    }

    fn disk(id: u64) -> DiskId {
        DiskId(u128::from(id) << 96)
    }

    fn founding() -> BTreeMap<NodeId, DiskId> {
        [1, 2, 3].map(|id| (node(id), disk(id))).into()
    }

    fn founded(from: u64, to: u64) -> Hello {
        Hello { standing: FoundingState::Founded(founding()), ..blank(from, to) }
    }

    fn founders() -> Known {
        Known::Founders([1, 2, 3].map(node).into())
    }

    fn members(members: Members) -> Known {
        Known::Members(Arc::new(members))
    }

    /// Returns the peers that the sender of a hello knows, if no member was added or removed since
    /// the founding.
    fn known_to(hello: &Hello) -> Known {
        match &hello.standing {
            FoundingState::Blank => founders(),
            FoundingState::Founded(founding) => members(Members::founded(founding)),
        }
    }

    struct Fixed(Hello, Known);

    impl Introducer for Fixed {
        fn hello(&self, to: NodeId) -> Hello {
            Hello { to, ..self.0.clone() }
        }

        fn known(&self) -> Known {
            self.1.clone()
        }

        fn name(&self, of: NodeId) -> Option<String> {
            Some(format!("m{of}"))
        }
    }

    #[test]
    fn members_connect_whether_blank_or_founded() {
        for mine in [blank(1, 2), founded(1, 2)] {
            for theirs in [blank(2, 1), founded(2, 1)] {
                assert_eq!(check_hello(&mine, &theirs, &known_to(&mine)), Ok(()));
            }
        }
    }

    #[test]
    fn handshake_follows_joins_and_removals() {
        let mut all = Members::founded(&founding());
        let add = |id: u64, replaces: Option<u64>| MemberChange::Add {
            id: node(id),
            disk: disk(id),
            name: format!("m{id}"),
            address: String::new(),
            replaces: replaces.map(node),
        };
        let added = |id: u64, since| Hello { since: LogIndex(since), ..founded(id, 1) };
        let check = |all: &Members, theirs: &Hello| {
            check_hello(&founded(1, theirs.from.get()), theirs, &members(all.clone()))
        };
        // An unknown peer is accepted, unless the entry that added it has been applied here.
        assert_eq!(check(&all, &added(4, 50)), Ok(()));
        let (me, them) = (node(1), node(4));
        assert_eq!(check(&all, &added(4, 1)), Err(HelloRejection::UnknownMember { me, them }));
        let blank = Hello { since: LogIndex(50), ..blank(4, 1) };
        assert_eq!(check(&all, &blank), Err(HelloRejection::UnknownMember { me, them }));
        all.apply(LogIndex(50), &add(4, Some(2)));
        assert_eq!(check(&all, &added(4, 50)), Ok(()));
        let lost = Hello { disk: disk(9), ..added(4, 50) };
        assert!(matches!(
            check(&all, &lost),
            Err(HelloRejection::ReplacedDisk { member, .. }) if member == node(4)
        ));
        // The peer is a reserved member that was claimed in a log entry which is not applied here
        // yet.
        let mut kept = all.clone();
        let (id, address) = (node(5), "h:5".to_owned());
        let (name, replaces) = (String::new(), Some(id));
        let keep = MemberChange::Add { id, disk: DiskId::NONE, name, address, replaces };
        kept.apply(LogIndex(60), &keep);
        assert_eq!(check(&kept, &added(5, 61)), Ok(()));
        let diskless = Hello { disk: DiskId::NONE, ..added(5, 62) };
        let early = Hello { standing: FoundingState::Blank, ..added(5, 61) };
        for hello in [added(5, 60), early] {
            let refused = check(&kept, &hello);
            assert!(matches!(refused, Err(HelloRejection::ReplacedDisk { .. })), "{refused:?}");
        }
        let (name, address) = ("m5".to_owned(), "h:5".to_owned());
        kept.apply(LogIndex(62), &MemberChange::Take { id, disk: disk(5), name, address });
        assert_eq!(check(&kept, &added(5, 62)), Ok(()));
        assert!(
            check(&kept, &diskless).is_err()
                && check(&kept, &Hello { disk: disk(9), ..added(5, 99) }).is_err()
        );
        all.apply(LogIndex(51), &MemberChange::Replace { old: node(2), new: node(4) });
        assert_eq!(check(&all, &founded(2, 1)), Ok(()), "still needed");
        all.apply(LogIndex(52), &MemberChange::LeaveJoint);
        let gone = Err(HelloRejection::Removed { member: node(2) });
        assert_eq!(check(&all, &founded(2, 1)), gone);
        assert_eq!(check(&all, &Hello { since: LogIndex(999), ..founded(2, 1) }), gone);
        let unsettled = Known::Unsettled(Arc::new(all.clone()));
        assert_eq!(
            check_hello(&founded(1, 2), &founded(2, 1), &unsettled),
            Ok(()),
            "may be needed"
        );
        // A member of another cluster with the same names, whose member 2 was not removed.
        let other = [(node(1), disk(71)), (node(2), disk(72))].into();
        let stranger = Hello { standing: FoundingState::Founded(other), ..founded(2, 1) };
        let refused = check(&all, &stranger);
        assert!(matches!(refused, Err(HelloRejection::OtherFounding { .. })), "{refused:?}");
        let refused = Refused::from(HelloRejection::Removed { member: node(2) });
        assert_eq!((refused.removed, refused.disk_lost), (Some(node(2)), None));
    }

    #[test]
    fn strangers_are_rejected_with_a_reason() {
        let lost = |hello: Hello| Hello { disk: DiskId(0xdead << 112), ..hello };
        let with = |founding: &[(u64, u64)], hello: Hello| Hello {
            standing: FoundingState::Founded(
                founding.iter().map(|(id, of)| (node(*id), disk(*of))).collect(),
            ),
            ..hello
        };
        let other = Hello { cluster: ClusterId(8), ..blank(2, 1) };
        let cases = [
            (
                blank(1, 2),
                other,
                "belongs to cluster 0000000000000007, member 2 to cluster 0000000000000008",
            ),
            (blank(1, 2), blank(1, 1), "both ends claim to be member 1"),
            (blank(1, 2), blank(2, 3), "member 2 dialed member 3 but reached member 1"),
            (blank(1, 2), blank(3, 1), "dialed member 2 but reached member 3"),
            (blank(1, 4), blank(4, 1), "member 4 is unknown to member 1"),
            (
                founded(1, 2),
                lost(blank(2, 1)),
                "member 2 belongs to the cluster with disk 00000002.. but now has disk dead0000..",
            ),
            (founded(1, 2), lost(founded(2, 1)), "member 2 belongs to the cluster with disk"),
            (
                lost(blank(1, 2)),
                founded(2, 1),
                "member 1 belongs to the cluster with disk 00000001.. but now has disk dead0000..",
            ),
            (
                founded(1, 2),
                with(&[(1, 9), (2, 2), (3, 3)], blank(2, 1)),
                "have different records of the founders",
            ),
            (with(&[(1, 1), (3, 3)], blank(1, 4)), blank(4, 1), "member 4 is unknown to member 1"),
            (
                blank(1, 2),
                with(&[(2, 2), (3, 3)], blank(2, 1)),
                "have different records of the founders",
            ),
            (
                founded(1, 2),
                with(&[(1, 1), (2, 2), (3, 9)], blank(2, 1)),
                "have different records of the founders",
            ),
        ];
        for (mine, theirs, words) in cases {
            let rejection = check_hello(&mine, &theirs, &known_to(&mine)).expect_err(words);
            assert!(rejection.to_string().contains(words), "{rejection}");
        }
    }

    #[test]
    fn earlier_incarnation_is_rejected_only_on_the_same_disk() {
        let admission = Admission::new(node(1), Arc::new(Fixed(blank(1, 2), founders())));
        let life = |incarnation, hello| Hello { incarnation: Incarnation(incarnation), ..hello };
        let admit = |theirs: Hello| admission.admit(&admission.hello(theirs.from), &theirs, None);
        assert_eq!(admit(life(5, blank(2, 1))), Ok(()));
        assert_eq!(admit(life(5, blank(2, 1))), Ok(()));
        let (them, seen, found) = (node(2), Incarnation(5), Incarnation(4));
        assert_eq!(
            admit(life(4, blank(2, 1))),
            Err(HelloRejection::OldIncarnation { them, seen, found })
        );
        assert_eq!(admit(life(1, blank(3, 1))), Ok(()), "another member's life");
        let wiped = Hello { disk: DiskId(9), ..blank(2, 1) };
        assert_eq!(admit(wiped), Ok(()), "a new disk before anything was founded");
    }

    #[test]
    fn rejected_peer_leaves_no_trace() {
        let admission = Admission::new(node(1), Arc::new(Fixed(blank(1, 2), founders())));
        let liar =
            Hello { incarnation: Incarnation(u64::MAX), cluster: ClusterId(8), ..blank(2, 1) };
        let admit = |theirs, proven| admission.admit(&admission.hello(node(2)), theirs, proven);
        assert!(admit(&liar, None).is_err());
        let late = Hello { incarnation: Incarnation(9), ..blank(2, 1) };
        let rejection = admit(&late, Some("m3")).expect_err("another member's certificate");
        assert!(rejection.to_string().contains("is named \"m2\""), "{rejection}");
        assert_eq!(admit(&blank(2, 1), Some("m2")), Ok(()));
    }
}

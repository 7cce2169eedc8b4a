//! Who may talk to whom: two hellos compared. Knows no bytes and no sockets.
//!
//! Refused is whoever is of another cluster, was meant for somebody else, is no member, has lost the
//! disk that it voted with, knows another disk of ours, or is an earlier life of a member that has
//! already been met in a later one. The words are read on both sides, so they name members and never
//! say "I" or "you". Of ids that are random they show a few digits: enough to compare, too few to
//! repeat.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use thiserror::Error;

use super::HelloSource;
use crate::model::{ClusterId, DiskId, Hello, Incarnation, NodeId, Standing};

/// The first digits of an id that is a long random number.
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

impl From<ClusterId> for Digits {
    fn from(cluster: ClusterId) -> Self {
        Digits(cluster.0)
    }
}

/// Why two members do not talk.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum HelloRefusal {
    /// Two clusters are wired together.
    #[error("member {me} is of cluster {mine}, but {them} says it is of cluster {theirs}")]
    OtherCluster {
        /// This member.
        me: NodeId,
        /// Its cluster.
        mine: Digits,
        /// The other.
        them: NodeId,
        /// Its cluster.
        theirs: Digits,
    },
    /// An address leads to the wrong member.
    #[error(
        "member {them} wants to talk to member {meant}, but this is member {me}: an address is wrong"
    )]
    NotForMe {
        /// This member.
        me: NodeId,
        /// The other.
        them: NodeId,
        /// Whom the other meant.
        meant: NodeId,
    },
    /// An address leads to the wrong member, seen from the other side.
    #[error(
        "member {me} dialed member {meant}, but member {them} has answered: an address is wrong"
    )]
    WrongAnswer {
        /// This member.
        me: NodeId,
        /// Whom this member dialed.
        meant: NodeId,
        /// Who is there.
        them: NodeId,
    },
    /// The other has this member's id: two configured alike, or one that dials itself.
    #[error("both ends say that they are member {me}: two nodes share an id, or one dials itself")]
    Myself {
        /// The id.
        me: NodeId,
    },
    /// Not one of the members.
    #[error("member {me} knows no member {them}")]
    UnknownMember {
        /// This member.
        me: NodeId,
        /// The other.
        them: NodeId,
    },
    /// The member's disk is not the one that it was founded with: what it promised there is lost, and
    /// it must not vote again under this id.
    #[error(
        "member {member} founded the cluster with disk {expected} and now has disk {found}: a member \
         that lost its disk cannot come back under its old id"
    )]
    ReplacedDisk {
        /// Whose disk: either end's.
        member: NodeId,
        /// The one in the founding map.
        expected: Digits,
        /// The one it has.
        found: Digits,
    },
    /// One end's founding map does not hold the other, or the two maps differ.
    #[error("members {me} and {them} do not agree on who founded the cluster with which disk")]
    OtherFounding {
        /// This member.
        me: NodeId,
        /// The other.
        them: NodeId,
    },
    /// An earlier life of a member that has been met in a later one.
    #[error(
        "member {them} was met in its life {seen} before and now says it is in life {found}: an old process, or an old copy of its disk"
    )]
    OldIncarnation {
        /// The other.
        them: NodeId,
        /// Its highest incarnation so far.
        seen: Incarnation,
        /// The one that it claims.
        found: Incarnation,
    },
}

/// Whether the sender of `theirs` may talk to the sender of `mine`.
///
/// # Errors
/// The first reason against it.
pub(crate) fn judge(
    mine: &Hello,
    theirs: &Hello,
    members: &BTreeSet<NodeId>,
) -> Result<(), HelloRefusal> {
    let (me, them) = (mine.from, theirs.from);
    if theirs.cluster != mine.cluster {
        let (mine, theirs) = (mine.cluster.into(), theirs.cluster.into());
        return Err(HelloRefusal::OtherCluster { me, mine, them, theirs });
    }
    if them == me {
        return Err(HelloRefusal::Myself { me });
    }
    if theirs.to != me {
        return Err(HelloRefusal::NotForMe { me, them, meant: theirs.to });
    }
    if mine.to != them {
        return Err(HelloRefusal::WrongAnswer { me, meant: mine.to, them });
    }
    if !members.contains(&them) {
        return Err(HelloRefusal::UnknownMember { me, them });
    }
    if let Standing::Founded(founding) = &mine.standing {
        judge_disk(founding, theirs, me, them)?;
    }
    match (&mine.standing, &theirs.standing) {
        // This member's own log says who founded with what: another's word does not make its disk a
        // lost one, it makes two foundings.
        (Standing::Founded(mine), Standing::Founded(theirs)) if mine != theirs => {
            Err(HelloRefusal::OtherFounding { me, them })
        }
        (Standing::Blank, Standing::Founded(founding)) => judge_disk(founding, mine, me, them),
        _ => Ok(()),
    }
}

/// Whether the sender of `hello` still has the disk that it founded the cluster with.
fn judge_disk(
    founding: &BTreeMap<NodeId, DiskId>,
    hello: &Hello,
    me: NodeId,
    them: NodeId,
) -> Result<(), HelloRefusal> {
    match founding.get(&hello.from) {
        Some(disk) if *disk == hello.disk => Ok(()),
        Some(disk) => Err(HelloRefusal::ReplacedDisk {
            member: hello.from,
            expected: (*disk).into(),
            found: hello.disk.into(),
        }),
        None => Err(HelloRefusal::OtherFounding { me, them }),
    }
}

/// Judges everyone that one member meets, and remembers in which life each was met.
pub(super) struct Admission {
    me: NodeId,
    members: BTreeSet<NodeId>,
    hello: HelloSource,
    seen: Mutex<BTreeMap<NodeId, (DiskId, Incarnation)>>,
}

impl Admission {
    pub(super) fn new(me: NodeId, members: BTreeSet<NodeId>, hello: HelloSource) -> Self {
        Self { me, members, hello, seen: Mutex::default() }
    }

    pub(super) fn me(&self) -> NodeId {
        self.me
    }

    pub(super) fn is_member(&self, id: NodeId) -> bool {
        self.members.contains(&id)
    }

    /// This member's hello to `peer`, as of now.
    pub(super) fn hello(&self, peer: NodeId) -> Hello {
        let hello = (self.hello)(peer);
        assert!(hello.from == self.me && hello.to == peer, "a hello for somebody else");
        hello
    }

    /// Whether the sender of `theirs` may talk to this member, which has said `mine`. Remembers the
    /// incarnation.
    pub(super) fn admit(&self, mine: &Hello, theirs: &Hello) -> Result<(), HelloRefusal> {
        judge(mine, theirs, &self.members)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.get(&theirs.from) {
            // Incarnations are counted on a disk. Another disk passed the judgement, so nobody has
            // founded anything with the one before.
            Some((disk, seen)) if *disk == theirs.disk && *seen > theirs.incarnation => {
                let (seen, found) = (*seen, theirs.incarnation);
                Err(HelloRefusal::OldIncarnation { them: theirs.from, seen, found })
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
    use crate::model::{ClusterVersion, LogIndex};
    use std::sync::Arc;

    fn node(id: u64) -> NodeId {
        NodeId::new(id).expect("not 0")
    }

    fn blank(from: u64, to: u64) -> Hello {
        Hello {
            cluster: ClusterId(7),
            from: node(from),
            to: node(to),
            disk: disk(from),
            incarnation: Incarnation(1),
            standing: Standing::Blank,
            since: LogIndex(1),
            address: String::new(),
            speaks: ClusterVersion::NEWEST,
        }
    }

    fn disk(id: u64) -> DiskId {
        DiskId(u128::from(id) << 96)
    }

    fn founded(from: u64, to: u64) -> Hello {
        let founding = [1, 2, 3].map(|id| (node(id), disk(id))).into();
        Hello { standing: Standing::Founded(founding), ..blank(from, to) }
    }

    fn members() -> BTreeSet<NodeId> {
        [1, 2, 3].map(node).into()
    }

    #[test]
    fn members_talk_whether_blank_or_founded() {
        for mine in [blank(1, 2), founded(1, 2)] {
            for theirs in [blank(2, 1), founded(2, 1)] {
                assert_eq!(judge(&mine, &theirs, &members()), Ok(()));
            }
        }
    }

    #[test]
    fn strangers_are_refused_and_the_words_say_why() {
        let lost = |hello: Hello| Hello { disk: DiskId(0xdead << 112), ..hello };
        let with = |founding: &[(u64, u64)], hello: Hello| Hello {
            standing: Standing::Founded(
                founding.iter().map(|(id, of)| (node(*id), disk(*of))).collect(),
            ),
            ..hello
        };
        let other = Hello { cluster: ClusterId(8 << 96), ..blank(2, 1) };
        let cases = [
            (
                blank(1, 2),
                other,
                "is of cluster 00000000.., but 2 says it is of cluster 00000008..",
            ),
            (blank(1, 2), blank(1, 1), "both ends say that they are member 1"),
            (blank(1, 2), blank(2, 3), "wants to talk to member 3, but this is member 1"),
            (blank(1, 2), blank(3, 1), "dialed member 2, but member 3 has answered"),
            (blank(1, 4), blank(4, 1), "member 1 knows no member 4"),
            (
                founded(1, 2),
                lost(blank(2, 1)),
                "member 2 founded the cluster with disk 00000002.. and now has disk dead0000..",
            ),
            (founded(1, 2), lost(founded(2, 1)), "member 2 founded"),
            (
                lost(blank(1, 2)),
                founded(2, 1),
                "member 1 founded the cluster with disk 00000001.. and now has disk dead0000..",
            ),
            (
                founded(1, 2),
                with(&[(1, 9), (2, 2), (3, 3)], blank(2, 1)),
                "do not agree on who founded",
            ),
            (with(&[(1, 1), (3, 3)], blank(1, 2)), blank(2, 1), "do not agree on who founded"),
            (blank(1, 2), with(&[(2, 2), (3, 3)], blank(2, 1)), "do not agree on who founded"),
            (
                founded(1, 2),
                with(&[(1, 1), (2, 2), (3, 9)], blank(2, 1)),
                "do not agree on who founded",
            ),
        ];
        for (mine, theirs, words) in cases {
            let refusal = judge(&mine, &theirs, &members()).expect_err(words);
            assert!(refusal.to_string().contains(words), "{refusal}");
        }
    }

    #[test]
    fn an_earlier_life_is_refused_on_the_same_disk_only() {
        let hello: HelloSource = Arc::new(|to| blank(1, to.get()));
        let admission = Admission::new(node(1), members(), hello);
        let life = |incarnation, hello| Hello { incarnation: Incarnation(incarnation), ..hello };
        let admit = |theirs: Hello| admission.admit(&admission.hello(theirs.from), &theirs);
        assert_eq!(admit(life(5, blank(2, 1))), Ok(()));
        assert_eq!(admit(life(5, blank(2, 1))), Ok(()));
        let (them, seen, found) = (node(2), Incarnation(5), Incarnation(4));
        assert_eq!(
            admit(life(4, blank(2, 1))),
            Err(HelloRefusal::OldIncarnation { them, seen, found })
        );
        assert_eq!(admit(life(1, blank(3, 1))), Ok(()), "another member's life");
        let wiped = Hello { disk: DiskId(9), ..blank(2, 1) };
        assert_eq!(admit(wiped), Ok(()), "a new disk before anything was founded");
    }

    #[test]
    fn who_is_refused_leaves_no_trace() {
        let hello: HelloSource = Arc::new(|to| blank(1, to.get()));
        let admission = Admission::new(node(1), members(), hello);
        let liar =
            Hello { incarnation: Incarnation(u64::MAX), cluster: ClusterId(8), ..blank(2, 1) };
        assert!(admission.admit(&admission.hello(node(2)), &liar).is_err());
        assert_eq!(admission.admit(&admission.hello(node(2)), &blank(2, 1)), Ok(()));
    }
}

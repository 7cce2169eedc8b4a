//! Alarms that somebody has raised: what the whole cluster refuses, until somebody ends them.
//!
//! They are etcd's, and made for operators: `NOSPACE` keeps a state from growing before its disks are full, `CORRUPT` keeps
//! clients from what may not be right. Nothing here looks at a disk or at other replicas: what is so by itself (a full disk,
//! replicas that differ) is told elsewhere and ends by itself.

use std::collections::BTreeSet;
use std::collections::btree_set::Iter;
use std::fmt;

use super::{Command, NodeId, Op, Rejection, Txn};

/// What an alarm says, and so what it forbids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AlarmKind {
    /// There is no room: what makes the state grow is refused, which is a put, a grant of a lease, and a transaction with
    /// a put in either branch. Reads, deletions, compaction, and the end and the renewal of leases go on.
    NoSpace,
    /// The copies of the state may differ: that, and whatever [acting clients](crate::Client::as_user) would change, is
    /// refused. Reads go on; and what a program of the cluster takes back itself, so that its locks are released.
    Corrupt,
}

impl fmt::Display for AlarmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AlarmKind::NoSpace => "NOSPACE",
            AlarmKind::Corrupt => "CORRUPT",
        })
    }
}

impl AlarmKind {
    /// Why something is refused while such an alarm stands, and what to do about it.
    pub(crate) fn forbids(self) -> &'static str {
        match self {
            AlarmKind::NoSpace => {
                "database space exceeded: an alarm NOSPACE was raised; delete what is not needed and compact, then end \
                 the alarm, with Client::change_alarms or `bowline alarm disarm`"
            }
            AlarmKind::Corrupt => {
                "corrupt cluster: an alarm CORRUPT was raised; compare the members, then end the alarm, with \
                 Client::change_alarms or `bowline alarm disarm`"
            }
        }
    }
}

/// An alarm that was raised. It holds for the whole cluster, whichever member it names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Alarm {
    /// The member that it is about, if it is about one. Whether there is such a member is not looked at.
    pub member: Option<NodeId>,
    /// What it says.
    pub kind: AlarmKind,
}

/// A change of the table of alarms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AlarmChange {
    /// Raise an alarm, if it is not there.
    Raise(Alarm),
    /// End this one, if it is there.
    End(Alarm),
    /// End all that name this member.
    EndAllOf(NodeId),
    /// End all there are.
    EndAll,
}

/// The alarms that were raised and have not been ended, in order: first those that name no member.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Alarms(BTreeSet<Alarm>);

impl Alarms {
    /// The most alarms: more than there are members, and kinds for each.
    pub const COUNT_MAX: usize = 256;

    /// Puts a table together; `None` if it could not have come to be.
    pub(crate) fn from_parts(alarms: Vec<Alarm>) -> Option<Self> {
        let fits = alarms.len() <= Self::COUNT_MAX && alarms.is_sorted_by(|one, next| one < next);
        fits.then(|| Self(alarms.into_iter().collect()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Each, in order.
    pub fn iter(&self) -> Iter<'_, Alarm> {
        self.0.iter()
    }

    /// Whether this one is there.
    pub fn contains(&self, alarm: &Alarm) -> bool {
        self.0.contains(alarm)
    }

    /// Whether there is one of this kind: then what it forbids is refused.
    pub fn stands(&self, kind: AlarmKind) -> bool {
        self.0.iter().any(|alarm| alarm.kind == kind)
    }

    /// Carries a change out. Answers with the alarm that was raised, or was there already; or with those that have ended.
    ///
    /// # Errors
    /// [`Rejection::TooManyAlarms`]: nothing has changed.
    pub fn apply(&mut self, change: &AlarmChange) -> Result<Vec<Alarm>, Rejection> {
        match change {
            AlarmChange::Raise(alarm) => {
                if self.0.len() >= Self::COUNT_MAX && !self.0.contains(alarm) {
                    return Err(Rejection::TooManyAlarms { max: Self::COUNT_MAX });
                }
                self.0.insert(*alarm);
                Ok(vec![*alarm])
            }
            AlarmChange::End(alarm) => Ok(self.0.take(alarm).into_iter().collect()),
            AlarmChange::EndAllOf(member) => {
                let ends = |alarm: &Alarm| alarm.member == Some(*member);
                let ended = self.0.iter().copied().filter(ends).collect();
                self.0.retain(|alarm| !ends(alarm));
                Ok(ended)
            }
            AlarmChange::EndAll => Ok(std::mem::take(&mut self.0).into_iter().collect()),
        }
    }

    /// Whether a command may be carried out while these stand; `is_acting` says whether somebody else than a program of
    /// the cluster asks for it.
    ///
    /// # Errors
    /// [`Rejection::Alarm`].
    pub(crate) fn judge(&self, command: &Command, is_acting: bool) -> Result<(), Rejection> {
        // As a rule there is none, and nothing is looked at.
        if self.is_empty() {
            return Ok(());
        }
        let drift = Drift::of(command);
        let takes = |kind: AlarmKind| match (kind, drift) {
            (_, Drift::Grows) => true,
            (AlarmKind::Corrupt, Drift::Shrinks) => is_acting,
            (AlarmKind::NoSpace, Drift::Shrinks) | (_, Drift::Stays) => false,
        };
        // As in etcd the graver one is named.
        let why = [AlarmKind::Corrupt, AlarmKind::NoSpace];
        match why.into_iter().find(|kind| takes(*kind) && self.stands(*kind)) {
            None => Ok(()),
            Some(kind) => Err(Rejection::Alarm(kind)),
        }
    }
}

impl<'a> IntoIterator for &'a Alarms {
    type Item = &'a Alarm;
    type IntoIter = Iter<'a, Alarm>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// What a command may do to keys, history and leases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Drift {
    /// It is there to add something.
    Grows,
    /// It takes away only.
    Shrinks,
    /// Neither.
    Stays,
}

impl Drift {
    fn of(command: &Command) -> Self {
        match command.deed() {
            Command::Put(_) | Command::Grant { .. } => Self::Grows,
            Command::Txn(txn) => Self::of_txn(txn),
            Command::Delete(_) | Command::Compact(_) | Command::Revoke(_) => Self::Shrinks,
            Command::Announce(_)
            | Command::Move { .. }
            | Command::Raise(_)
            | Command::Access(_)
            | Command::Alarm(_)
            | Command::As(..) => Self::Stays,
        }
    }

    /// The most that either branch may do, at any depth: which one it will be is not the question, as in etcd.
    fn of_txn(txn: &Txn) -> Self {
        let each = txn.success.iter().chain(&txn.failure).map(|op| match op {
            Op::Put(_) => Self::Grows,
            Op::Delete(_) => Self::Shrinks,
            Op::Range(_) => Self::Stays,
            Op::Txn(nested) => Self::of_txn(nested),
        });
        each.fold(Self::Stays, |most, drift| match (most, drift) {
            (Self::Grows, _) | (_, Self::Grows) => Self::Grows,
            (Self::Shrinks, _) | (_, Self::Shrinks) => Self::Shrinks,
            (Self::Stays, Self::Stays) => Self::Stays,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{AccessChange, Delete, LeaseId, Put, Revision};

    fn alarm(member: u64, kind: AlarmKind) -> Alarm {
        Alarm { member: NodeId::new(member), kind }
    }

    use AlarmKind::{Corrupt, NoSpace};

    fn table(alarms: &[(u64, AlarmKind)]) -> Alarms {
        let mut table = Alarms::default();
        for (member, kind) in alarms {
            table.apply(&AlarmChange::Raise(alarm(*member, *kind))).unwrap();
        }
        table
    }

    #[test]
    fn an_alarm_is_there_once_until_it_is_ended_by_itself_or_with_others() {
        let all = [(0, NoSpace), (0, Corrupt), (7, NoSpace), (7, Corrupt), (8, NoSpace)];
        let mut alarms = table(&all);
        let raised = alarms.apply(&AlarmChange::Raise(alarm(7, NoSpace)));
        assert_eq!((raised, alarms.len()), (Ok(vec![alarm(7, NoSpace)]), 5), "there already");
        let ended = alarms.apply(&AlarmChange::End(alarm(0, NoSpace))).unwrap();
        assert_eq!(ended, [alarm(0, NoSpace)], "and not those of members");
        assert_eq!(alarms.apply(&AlarmChange::End(alarm(0, NoSpace))), Ok(vec![]));
        assert_eq!(alarms.apply(&AlarmChange::EndAllOf(NodeId::new(9).unwrap())), Ok(vec![]));
        let ended = alarms.apply(&AlarmChange::EndAllOf(NodeId::new(7).unwrap())).unwrap();
        assert_eq!(ended, [alarm(7, NoSpace), alarm(7, Corrupt)]);
        assert!(alarms.stands(NoSpace) && alarms.stands(Corrupt));
        let ended = alarms.apply(&AlarmChange::EndAll).unwrap();
        assert_eq!(ended, [alarm(0, Corrupt), alarm(8, NoSpace)]);
        assert_eq!(alarms, Alarms::default());
    }

    #[test]
    fn a_full_table_takes_what_is_in_it_and_no_more() {
        let all: Vec<_> = (1..=Alarms::COUNT_MAX as u64).map(|member| (member, NoSpace)).collect();
        let mut alarms = table(&all);
        let raise = |member| AlarmChange::Raise(alarm(member, NoSpace));
        let full = Err(Rejection::TooManyAlarms { max: Alarms::COUNT_MAX });
        assert_eq!(alarms.apply(&raise(0)), full);
        assert_eq!(alarms.apply(&raise(1)), Ok(vec![alarm(1, NoSpace)]));
        alarms.apply(&AlarmChange::End(alarm(1, NoSpace))).unwrap();
        assert_eq!(alarms.apply(&raise(0)), Ok(vec![alarm(0, NoSpace)]));
        let mut rows: Vec<_> = alarms.iter().copied().collect();
        assert_eq!(Alarms::from_parts(rows.clone()), Some(alarms));
        rows.push(alarm(u64::MAX, Corrupt));
        assert_eq!(Alarms::from_parts(rows), None, "too many");
        assert_eq!(Alarms::from_parts(vec![alarm(2, NoSpace), alarm(1, NoSpace)]), None);
        assert_eq!(Alarms::from_parts(vec![alarm(2, NoSpace); 2]), None);
    }

    #[test]
    fn an_alarm_forbids_what_it_is_there_to_forbid_and_nothing_else() {
        let ttl = Duration::from_secs(1);
        let lease = LeaseId::new(7).unwrap();
        let txn = |success, failure| Command::Txn(Txn { success, failure, ..Txn::default() });
        let nested = |op| vec![Op::Txn(Txn { failure: vec![op], ..Txn::default() })];
        let put = || Op::put("k", "v");
        let grows = [
            Command::Put(Put::new("k", "v")),
            Command::Grant { id: None, ttl, session: None },
            txn(vec![put()], vec![]),
            txn(vec![Op::delete("d")], vec![put()]),
            txn(nested(put()), vec![Op::get("k")]),
        ];
        let shrinks = [
            Command::Delete(Delete::new("k")),
            Command::Compact(Revision(7)),
            Command::Revoke(lease),
            txn(vec![Op::get("k"), Op::delete("k")], vec![]),
            txn(vec![], nested(Op::delete("k"))),
        ];
        let stays = [
            txn(vec![Op::get("k")], vec![]),
            txn(vec![], vec![]),
            Command::Access(AccessChange::Disable),
            Command::Alarm(AlarmChange::EndAll),
        ];
        let (no_space, corrupt) = (table(&[(9, NoSpace)]), table(&[(0, Corrupt)]));
        let both = table(&[(0, NoSpace), (5, Corrupt)]);
        let refused = |kind| Err(Rejection::Alarm(kind));
        for is_acting in [false, true] {
            for command in &grows {
                let judged = |alarms: &Alarms| alarms.judge(command, is_acting);
                assert_eq!(judged(&Alarms::default()), Ok(()), "{command:?}");
                assert_eq!(judged(&no_space), refused(NoSpace), "{command:?}");
                assert_eq!(judged(&corrupt), refused(Corrupt), "{command:?}");
                assert_eq!(judged(&both), refused(Corrupt), "{command:?}");
            }
            for command in &shrinks {
                assert_eq!(no_space.judge(command, is_acting), Ok(()), "{command:?}");
                let due = if is_acting { refused(Corrupt) } else { Ok(()) };
                assert_eq!(corrupt.judge(command, is_acting), due, "{command:?}");
                assert_eq!(both.judge(command, is_acting), due, "{command:?}");
            }
            for command in &stays {
                assert_eq!(both.judge(command, is_acting), Ok(()), "{command:?}");
            }
        }
    }
}

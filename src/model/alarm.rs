//! Alarms that an operator or a client has raised. While an alarm is active, the whole cluster
//! rejects certain commands.
//!
//! The alarms have etcd's semantics. `NOSPACE` stops the growth of the state before the disks are
//! full. `CORRUPT` keeps clients away from data that may be wrong. This module examines neither
//! disks nor replicas. If a node itself detects a full disk or a diverged replica, it reports this
//! condition elsewhere, and the report ends by itself when the condition ends.

use std::collections::BTreeSet;
use std::collections::btree_set::Iter;
use std::fmt;

use super::{Command, NodeId, Op, Rejection, Txn};

/// The kind of an alarm, which decides what it forbids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AlarmKind {
    /// Out of space. Rejects commands that let the state grow: puts, lease grants, and transactions
    /// with a put in either branch. Allows reads, deletions, compaction, and the renewal and
    /// revocation of leases.
    NoSpace,
    /// The replicas may differ. Rejects the commands that [`AlarmKind::NoSpace`] rejects, and all
    /// changes by [clients that act for a user](crate::Client::as_user). Allows reads, and
    /// deletions by the programs that embed a node, so that these programs can release their locks.
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
    /// Returns the reason for rejections while such an alarm is active, and the remedy.
    pub(crate) fn forbids(self) -> &'static str {
        match self {
            AlarmKind::NoSpace => {
                "database space exceeded: alarm NOSPACE is active; delete unneeded keys and compact, then \
                 clear the alarm with Client::change_alarms or `bowline alarm disarm`"
            }
            AlarmKind::Corrupt => {
                "corrupt cluster: alarm CORRUPT is active; compare the members, then clear the alarm with \
                 Client::change_alarms or `bowline alarm disarm`"
            }
        }
    }
}

/// An active alarm. An alarm applies to the whole cluster, even if it names a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Alarm {
    /// The member that the alarm is about, if any. The id need not belong to an existing member.
    pub member: Option<NodeId>,
    /// The kind of the alarm.
    pub kind: AlarmKind,
}

/// A change of the alarm table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AlarmChange {
    /// Raises an alarm if it is not active.
    Raise(Alarm),
    /// Clears this alarm if it is active.
    End(Alarm),
    /// Clears all alarms that name this member.
    EndAllOf(NodeId),
    /// Clears all alarms.
    EndAll,
}

/// The active alarms, ordered by member and kind. Alarms without a member come first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Alarms(BTreeSet<Alarm>);

impl Alarms {
    /// Maximum number of active alarms: enough for every kind of alarm on every member.
    pub const COUNT_MAX: usize = 256;

    /// Builds a table from its alarms. Returns `None` if the alarms are invalid or out of order.
    pub(crate) fn from_parts(alarms: Vec<Alarm>) -> Option<Self> {
        let fits = alarms.len() <= Self::COUNT_MAX && alarms.is_sorted_by(|one, next| one < next);
        fits.then(|| Self(alarms.into_iter().collect()))
    }

    /// Returns whether no alarm is active.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of active alarms.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the active alarms in order.
    pub fn iter(&self) -> Iter<'_, Alarm> {
        self.0.iter()
    }

    /// Returns whether this alarm is active.
    pub fn contains(&self, alarm: &Alarm) -> bool {
        self.0.contains(alarm)
    }

    /// Returns whether an alarm of this kind is active.
    pub fn stands(&self, kind: AlarmKind) -> bool {
        self.0.iter().any(|alarm| alarm.kind == kind)
    }

    /// Applies a change. Returns the alarm that was raised or already active, or the alarms that
    /// were cleared.
    ///
    /// # Errors
    /// Returns [`Rejection::TooManyAlarms`], and changes nothing, if the table is full.
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

    /// Checks that the active alarms allow a command. `is_acting` is true if a client acts for a
    /// user, and false for the embedding program.
    ///
    /// # Errors
    /// Returns [`Rejection::Alarm`] if an alarm forbids the command.
    pub(crate) fn check(&self, command: &Command, is_acting: bool) -> Result<(), Rejection> {
        // In the usual case there is no alarm, so the command need not be examined.
        if self.is_empty() {
            return Ok(());
        }
        let drift = AlarmDrift::of(command);
        let takes = |kind: AlarmKind| match (kind, drift) {
            (_, AlarmDrift::Grows) => true,
            (AlarmKind::Corrupt, AlarmDrift::Shrinks) => is_acting,
            (AlarmKind::NoSpace, AlarmDrift::Shrinks) | (_, AlarmDrift::Stays) => false,
        };
        // As in etcd, the more severe alarm is reported.
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

/// The effect of a command on the size of keys, history and leases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AlarmDrift {
    /// The command adds data.
    Grows,
    /// The command only removes data.
    Shrinks,
    /// The command neither adds nor removes data.
    Stays,
}

impl AlarmDrift {
    fn of(command: &Command) -> Self {
        match command.inner() {
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

    /// Returns the strongest effect of either branch at any depth. As in etcd, the check does not
    /// depend on which branch will run.
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
    fn alarm_exists_once_until_ended_alone_or_with_others() {
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
    fn full_alarm_table_accepts_only_existing_alarms() {
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
    fn alarm_forbids_exactly_the_listed_commands() {
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
                let check = |alarms: &Alarms| alarms.check(command, is_acting);
                assert_eq!(check(&Alarms::default()), Ok(()), "{command:?}");
                assert_eq!(check(&no_space), refused(NoSpace), "{command:?}");
                assert_eq!(check(&corrupt), refused(Corrupt), "{command:?}");
                assert_eq!(check(&both), refused(Corrupt), "{command:?}");
            }
            for command in &shrinks {
                assert_eq!(no_space.check(command, is_acting), Ok(()), "{command:?}");
                let due = if is_acting { refused(Corrupt) } else { Ok(()) };
                assert_eq!(corrupt.check(command, is_acting), due, "{command:?}");
                assert_eq!(both.check(command, is_acting), due, "{command:?}");
            }
            for command in &stays {
                assert_eq!(both.check(command, is_acting), Ok(()), "{command:?}");
            }
        }
    }
}

//! Orders the operations of one store by revision, and checks what needs no state: each revision is one change, and
//! revisions agree with real time.

use super::{Total, facts};
use crate::history::{At, History, Index, Outcome};
use crate::models::{KvCall, KvReply, Seen};
use crate::verdict::{Counterexample, Undecided, Verdict};

pub(super) type Store = History<KvCall, KvReply>;

/// An operation that certainly took effect at this revision: it made the revision, or read the store at it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Placed {
    pub(super) revision: u64,
    /// Whether the operation only reads. The reads of a revision come after the change that made the revision.
    pub(super) only_read: bool,
    pub(super) index: Index,
}

/// A change of unknown outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uncertain {
    pub(super) index: Index,
    /// The lowest revision that it may have made: above those of all operations that had ended when it was called.
    pub(super) first: u64,
    /// The operation that sets this limit, if there is one.
    pub(super) since: Option<Index>,
}

/// The operations of one store.
pub(super) struct TotalOrder<'a> {
    pub(super) history: &'a Store,
    pub(super) object: &'a str,
    /// Sorted by revision.
    pub(super) placed: Vec<Placed>,
    /// Sorted by the time of the call.
    pub(super) uncertain: Vec<Uncertain>,
}

/// Returns the reply of an operation of known outcome.
pub(super) fn reply_of(history: &Store, index: Index) -> &Seen {
    match &history[index].outcome {
        Outcome::Ok { reply, .. } => &reply.seen,
        Outcome::Failed { .. } | Outcome::Unknown { .. } => {
            unreachable!("only what is ok is placed")
        }
    }
}

impl<'a> TotalOrder<'a> {
    /// Orders the operations of one store. The error is a verdict: no such order exists, or a reply has no revision.
    pub(super) fn of(
        rules: &Total,
        history: &'a Store,
        object: &'a str,
        members: &[Index],
    ) -> Result<Self, Verdict> {
        let mut placed = Vec::with_capacity(members.len());
        let mut uncertain = Vec::new();
        let mut silent = None;
        for &index in members {
            let operation = &history[index];
            match &operation.outcome {
                Outcome::Failed { .. } => {}
                Outcome::Unknown { .. } if facts::written(&operation.call).is_none() => {}
                Outcome::Unknown { .. } => {
                    uncertain.push(Uncertain { index, first: rules.first + 1, since: None });
                }
                Outcome::Ok { reply: KvReply { seen, revision: Some(revision) }, .. } => {
                    let only_read = !facts::changed(seen);
                    placed.push(Placed { revision: *revision, only_read, index });
                }
                Outcome::Ok { .. } => silent = silent.or(Some(index)),
            }
        }
        placed.sort_unstable();
        let mut order = Self { history, object, placed, uncertain };
        order.one_revision_one_change(rules)?;
        if !rules.others {
            order.enough_changes(rules, members)?;
        }
        order.in_real_time()?;
        match silent {
            None => Ok(order),
            Some(index) => Err(Verdict::Undecided {
                object: object.to_owned(),
                why: Undecided::Silent(index),
                explored: members.len() as u64,
            }),
        }
    }

    fn violation(
        &self,
        rule: &'static str,
        operations: impl Into<Vec<Index>>,
        why: String,
    ) -> Counterexample {
        Counterexample::new(rule, self.object, operations, why)
    }

    fn one_revision_one_change(&self, rules: &Total) -> Result<(), Verdict> {
        if let Some(Placed { revision, only_read, index }) = self.placed.first().copied()
            && revision < rules.first + u64::from(!only_read)
        {
            let why = format!(
                "#{index} reports revision {revision}, but the store was at {} before the first operation",
                rules.first
            );
            return Err(self.violation("impossible revision", [index], why).into());
        }
        for pair in self.placed.windows(2) {
            let [one, other] = [pair[0], pair[1]];
            if one.revision == other.revision && !one.only_read && !other.only_read {
                let why = format!(
                    "#{} and #{} both report that they made revision {}",
                    one.index, other.index, one.revision
                );
                let operations = [one.index, other.index];
                return Err(self.violation("two changes at one revision", operations, why).into());
            }
        }
        Ok(())
    }

    /// Checks that an operation that had ended when another was called has a lower revision, or the same one if the
    /// later operation only reads.
    fn in_real_time(&mut self) -> Result<(), Verdict> {
        let history = self.history;
        let ended = |place: usize, placed: &[Placed]| {
            history[placed[place].index].ended().expect("what is ok has ended")
        };
        let placed = &self.placed;
        let mut by_end_time: Vec<usize> = (0..placed.len()).collect();
        by_end_time.sort_unstable_by_key(|place| ended(*place, placed));
        let mut by_call: Vec<usize> = (0..placed.len()).collect();
        by_call.sort_unstable_by_key(|place| (history[placed[*place].index].invoked, *place));
        let mut ends = Highest { placed, by_end_time: &by_end_time, highest: None };
        let ended_before = |place: usize, at: At| ended(place, placed) < at;
        for place in by_call {
            let now = placed[place];
            let before = ends.before(|place| ended_before(place, history[now.index].invoked));
            let Some(before) = before else { continue };
            let is_late =
                before.revision > now.revision || before.revision == now.revision && !now.only_read;
            if is_late {
                let (first, second) = (before.index, now.index);
                let verb = if now.only_read { "saw" } else { "made" };
                let why = format!(
                    "#{first} had ended with revision {} before #{second} was called, which {verb} revision {}",
                    before.revision, now.revision
                );
                let order = format!("revision {} before {}", now.revision, before.revision);
                let reason = self
                    .violation("revisions contradict real time", [first, second], why)
                    .link(first, second, "had ended")
                    .link(second, first, order);
                return Err(reason.into());
            }
        }
        let mut ends = Highest { placed, by_end_time: &by_end_time, highest: None };
        self.uncertain
            .sort_unstable_by_key(|uncertain| (history[uncertain.index].invoked, uncertain.index));
        for uncertain in &mut self.uncertain {
            let called = history[uncertain.index].invoked;
            if let Some(before) = ends.before(|place| ended_before(place, called))
                && before.revision >= uncertain.first
            {
                uncertain.first = before.revision + 1;
                uncertain.since = Some(before.index);
            }
        }
        Ok(())
    }

    /// Checks that each revision was reported only after enough changes had been called to reach it.
    fn enough_changes(&self, rules: &Total, members: &[Index]) -> Result<(), Verdict> {
        let may_change = |index: &Index| {
            let operation = &self.history[*index];
            !matches!(operation.outcome, Outcome::Failed { .. })
                && facts::written(&operation.call).is_some()
        };
        let mut called: Vec<At> = members
            .iter()
            .filter(|index| may_change(index))
            .map(|index| self.history[*index].invoked)
            .collect();
        called.sort_unstable();
        for Placed { revision, index, .. } in &self.placed {
            let ended = self.history[*index].ended().expect("what is ok has ended");
            let changes = called.partition_point(|at| *at <= ended) as u64;
            if revision - rules.first > changes {
                let why = format!(
                    "#{index} reports revision {revision}, {} after the first one, but only {changes} changes had \
                     been called",
                    revision - rules.first
                );
                return Err(self.violation("revision without a change", [*index], why).into());
            }
        }
        Ok(())
    }
}

/// The highest revision among the operations that have ended, as time advances.
struct Highest<'o> {
    placed: &'o [Placed],
    by_end_time: &'o [usize],
    highest: Option<Placed>,
}

impl Highest<'_> {
    fn before(&mut self, ended: impl Fn(usize) -> bool) -> Option<Placed> {
        while let Some((place, rest)) = self.by_end_time.split_first() {
            if !ended(*place) {
                break;
            }
            let placed = self.placed[*place];
            if self.highest.is_none_or(|highest| placed.revision > highest.revision) {
                self.highest = Some(placed);
            }
            self.by_end_time = rest;
        }
        self.highest
    }
}

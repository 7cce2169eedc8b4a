//! Judges a counter. Each call adds or sets a unique amount, so that each change of the key identifies its call. No
//! call may take effect twice or after its rejection, and every change must belong to a call.

use std::collections::BTreeMap;

use super::Judge;
use super::toolbox::number;
use crate::model::{Event, EventKind, KeyValue, Revision};

/// Key of the counter.
pub(crate) const COUNTER: &str = "tool/counter";

/// Unit of the values that calls set. The sum of all added amounts in a world stays below this unit, so every multiple
/// of the unit was set.
const SET: u64 = 1_000_000_000_000;

/// Number of consecutive calls whose amounts double. An implementation that wrongly adds half or a quarter of an amount
/// thus adds the amount of another call.
const DOUBLINGS: u64 = 8;

/// The unique amount that a call adds or sets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Amount(u64);

impl Amount {
    /// Returns the amount as the API of the library takes it.
    pub(crate) fn get(self) -> i64 {
        i64::try_from(self.0).expect("few calls")
    }
}

/// The known outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Became {
    /// The call was made; nothing else is known.
    Asked,
    /// The change was made at this revision.
    Made(Revision),
    /// The change was reported as not made.
    Refused,
}

/// The calls on the counter.
#[derive(Default)]
pub(super) struct CounterCounts {
    calls: BTreeMap<Amount, Became>,
    adds: u64,
    sets: u64,
}

impl Judge {
    /// Returns the amount for a new call that adds.
    pub(crate) fn will_add(&mut self) -> Amount {
        let (base, doubled) = (self.counts.adds / DOUBLINGS, self.counts.adds % DOUBLINGS);
        self.counts.adds += 1;
        // Odd numbers times powers of 2, so that each number occurs once.
        self.will_count(Amount((2 * base + 1) << doubled))
    }

    /// Returns the amount for a new call that sets.
    pub(crate) fn will_set(&mut self) -> Amount {
        self.counts.sets += 1;
        self.will_count(Amount(self.counts.sets * SET))
    }

    fn will_count(&mut self, amount: Amount) -> Amount {
        self.counts.calls.insert(amount, Became::Asked);
        amount
    }

    /// Checks the reply of an addition that led to `sum`, after `floor`.
    pub(crate) fn added(&mut self, amount: Amount, sum: i64, floor: Revision) {
        let to = u64::try_from(sum).unwrap_or(u64::MAX);
        self.went(COUNTER, to.wrapping_sub(amount.0), to, floor);
        self.was_made(amount, floor);
    }

    /// Checks the reply that a call has set the counter after `floor`. For a conditional call, the counter must have
    /// had the value `expected` before.
    pub(crate) fn was_set(&mut self, amount: Amount, expected: Option<i64>, floor: Revision) {
        if let Some(from) = expected.and_then(|expected| u64::try_from(expected).ok()) {
            self.went(COUNTER, from, amount.0, floor);
        }
        self.was_made(amount, floor);
        self.count("counter set");
    }

    fn was_made(&mut self, amount: Amount, floor: Revision) {
        let became = self.counts.calls.get(&amount).copied();
        let is_so = matches!(became, Some(Became::Made(at)) if at > floor);
        self.expect(is_so, "T-SUM", || {
            format!("{amount:?} is said to be counted after {floor:?}; it is {became:?}")
        });
    }

    /// Records the reply that nothing was changed.
    pub(crate) fn record_not_counted(&mut self, amount: Amount) {
        let became = self.counts.calls.insert(amount, Became::Refused);
        self.expect(became == Some(Became::Asked), "T-SUM", || {
            format!("{amount:?} is said not to be counted; it is {became:?}")
        });
    }

    /// Checks the reply that the counter differed from `expected` at some time after `floor`.
    pub(crate) fn check_mismatch(&mut self, expected: i64, floor: Revision) {
        let is_it = |row: Option<&KeyValue>| u64::try_from(expected) == Ok(number(row));
        let was_it = self.counter_since(floor).all(is_it);
        self.expect(!was_it, "T-SUM", || {
            format!("the counter is {expected} ever since {floor:?}, and is said to be another")
        });
    }

    /// Checks the value of a read after `floor`.
    pub(crate) fn counter_read(&mut self, value: i64, floor: Revision) {
        let is_it = |row: Option<&KeyValue>| u64::try_from(value) == Ok(number(row));
        let was_it = self.counter_since(floor).any(is_it);
        self.expect(was_it, "T-SUM", || {
            format!("the counter is said to be {value}, which it has never been since {floor:?}")
        });
    }

    /// Returns the row of the counter at a revision, and all its later rows.
    fn counter_since(&self, floor: Revision) -> impl Iterator<Item = Option<&KeyValue>> {
        let changes = self.truth.changes(COUNTER.as_bytes());
        let later = changes.filter(move |(at, _)| *at > floor);
        let then = self.truth.row_at(COUNTER.as_bytes(), floor);
        std::iter::once(then).chain(later.map(|(_, row)| row))
    }

    /// Follows the changes of the counter.
    pub(super) fn follow_counter(&mut self, event: &Event) {
        let revision = event.revision();
        let before = number(self.truth.row_at(&event.kv.key, Revision(revision.get() - 1)));
        let after = match event.kind {
            EventKind::Put => number(Some(&event.kv)),
            EventKind::Delete => 0,
        };
        let is_set = after > 0 && after % SET == 0;
        let amount = Amount(if is_set { after } else { after.wrapping_sub(before) });
        let became = self.counts.calls.get_mut(&amount);
        match became {
            Some(became @ Became::Asked) => *became = Became::Made(revision),
            became => {
                let became = became.copied();
                self.broken("T-SUM", || {
                    format!(
                        "at {revision:?} the counter goes from {before} to {after}: {amount:?}, \
                         which is {became:?}"
                    )
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::clock::Timeline;
    use super::*;

    /// Shows these values of the counter to a judge, at revisions from 2 on, and returns the broken invariant.
    fn judged(judge: &mut Judge, numbers: &[u64]) -> Option<&'static str> {
        for number in numbers {
            let newest = judge.truth.newest();
            let before = judge.truth.row_at(COUNTER.as_bytes(), newest).cloned();
            let revision = newest.next();
            let kv = KeyValue {
                key: COUNTER.into(),
                value: number.to_string().into(),
                create_revision: before.as_ref().map_or(revision, |row| row.create_revision),
                mod_revision: revision,
                version: before.as_ref().map_or(0, |row| row.version) + 1,
                lease: None,
            };
            judge.learn(revision, &[Event { kind: EventKind::Put, kv, prev: before }]);
        }
        judge.violation.as_ref().map(|violation| violation.invariant)
    }

    fn judge() -> Judge {
        Judge::new(Arc::new(Timeline::default()), 1)
    }

    #[test]
    fn added_amounts_are_distinct() {
        let mut judge = judge();
        let amounts: Vec<i64> = (0..20).map(|_| judge.will_add().get()).collect();
        assert_eq!(
            amounts,
            [1, 2, 4, 8, 16, 32, 64, 128, 3, 6, 12, 24, 48, 96, 192, 384, 5, 10, 20, 40]
        );
    }

    #[test]
    fn simulated_unapplied_increment_does_not_hide_a_duplicate() {
        let mut judge = judge();
        let (one, two, _never) = (judge.will_add(), judge.will_add(), judge.will_add());
        assert_eq!(judged(&mut judge, &[1, 3]), None);
        judge.added(one, 1, Revision(1));
        judge.added(two, 3, Revision(2));
        assert!(judge.violation.is_none());
        assert_eq!(judged(&mut judge, &[5]), Some("T-SUM"));
    }

    #[test]
    fn rejected_increment_must_never_be_counted() {
        let mut early = judge();
        let amount = early.will_add();
        assert_eq!(judged(&mut early, &[1]), None);
        early.record_not_counted(amount);
        assert_eq!(judged(&mut early, &[]), Some("T-SUM"));
        let mut late = judge();
        let amount = late.will_add();
        late.record_not_counted(amount);
        assert_eq!(judged(&mut late, &[]), None);
        assert_eq!(judged(&mut late, &[1]), Some("T-SUM"));
    }

    #[test]
    fn set_values_are_distinct_from_increments_and_set_once() {
        let mut judge = judge();
        let (one, first, second) = (judge.will_add(), judge.will_set(), judge.will_set());
        assert_eq!(judged(&mut judge, &[1, SET, 2 * SET]), None);
        judge.added(one, 1, Revision(1));
        judge.was_set(first, Some(1), Revision(2));
        judge.was_set(second, None, Revision(3));
        judge.counter_read(first.get(), Revision(3));
        judge.check_mismatch(1, Revision(3));
        assert!(judge.violation.is_none());
        let mut last = judge;
        assert_eq!(judged(&mut last, &[SET]), Some("T-SUM"));
    }

    #[test]
    fn false_counter_answers_are_detected() {
        let told = |tell: fn(&mut Judge, Amount)| {
            let mut judge = judge();
            let amount = judge.will_add();
            assert_eq!(judged(&mut judge, &[1]), None);
            tell(&mut judge, amount);
            judge.violation.map(|violation| violation.invariant)
        };
        assert_eq!(told(|judge, _| judge.counter_read(0, Revision(1))), None);
        assert_eq!(told(|judge, _| judge.counter_read(0, Revision(2))), Some("T-SUM"));
        assert_eq!(told(|judge, _| judge.check_mismatch(1, Revision(1))), None);
        assert_eq!(told(|judge, _| judge.check_mismatch(1, Revision(2))), Some("T-SUM"));
        assert_eq!(told(|judge, amount| judge.added(amount, 2, Revision(1))), Some("T-SUM"));
        assert_eq!(told(|judge, amount| judge.added(amount, 1, Revision(2))), Some("T-SUM"));
    }
}

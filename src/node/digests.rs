//! Compares this replica with the others: at every [`EVERY`]th entry each member tells the others the
//! digest of what it has applied. Who differs from a majority is wrong and stops. Where there are
//! differences and no majority, and those that have not told do not decide it soon, nobody can say who is
//! right: writes are refused until there is a majority, there or at a later comparison, to which the leader goes on
//! with entries that change nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{LogIndex, NodeId};

/// How many entries apart the comparisons are: a replica that has gone wrong is named within twice as
/// many.
pub const EVERY: u64 = 128;

/// How many comparisons are kept for members that lag.
const KEPT: usize = 64;

/// How many times as long as a difference may be decided there is nothing between two comparisons that found one.
const REST: u32 = 60;

/// See the module.
#[derive(Debug)]
pub(crate) struct Digests {
    me: NodeId,
    /// Whose word counts.
    voters: BTreeSet<NodeId>,
    told: BTreeMap<LogIndex, BTreeMap<NodeId, u64>>,
    undecided: Option<Undecided>,
    patience_ticks: u32,
    /// How long the leader waits before it goes on to another comparison.
    rest_ticks: u32,
}

/// A difference without a majority.
#[derive(Debug)]
struct Undecided {
    index: LogIndex,
    /// How long those that have not told yet may still decide it.
    ticks_left: u32,
}

/// What a comparison came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DigestVerdict {
    /// No reason to worry.
    Fine,
    /// These members differ from a majority that this one is part of.
    Others(Vec<NodeId>),
    /// This member differs from a majority.
    Me,
    /// There are differences and no majority, yet.
    Nobody,
}

impl Digests {
    /// Nothing was told yet. A difference without a majority may be decided for `patience_ticks` by
    /// those that have not told yet; then it counts.
    pub(crate) fn new(me: NodeId, patience_ticks: u32) -> Self {
        let (voters, told) = (BTreeSet::new(), BTreeMap::new());
        Self { me, voters, told, undecided: None, patience_ticks, rest_ticks: 0 }
    }

    /// These vote from now on: a majority is one of theirs. A learner compares itself with them, and
    /// counts for nothing.
    pub(crate) fn set_voters(&mut self, voters: impl IntoIterator<Item = NodeId>) {
        self.voters = voters.into_iter().collect();
        let (voters, me) = (&self.voters, self.me);
        for told in self.told.values_mut() {
            told.retain(|node, _| *node == me || voters.contains(node));
        }
        // Who made the difference may be gone, and nobody will decide it.
        let is_open = |undecided: &Undecided| {
            self.told
                .get(&undecided.index)
                .is_some_and(|told| self.judge(told) == DigestVerdict::Nobody)
        };
        if !self.undecided.as_ref().is_some_and(is_open) {
            self.undecided = None;
        }
    }

    /// Time passes.
    pub(crate) fn tick(&mut self) {
        self.rest_ticks = self.rest_ticks.saturating_sub(1);
        if let Some(undecided) = &mut self.undecided {
            undecided.ticks_left = undecided.ticks_left.saturating_sub(1);
        }
    }

    /// Whether a digest is due after applying `index`.
    pub(crate) fn is_due(index: LogIndex) -> bool {
        index.get().is_multiple_of(EVERY)
    }

    /// Somebody, or this node itself, tells a digest.
    pub(crate) fn tell(&mut self, from: NodeId, index: LogIndex, digest: u64) -> DigestVerdict {
        if !Self::is_due(index) || (from != self.me && !self.voters.contains(&from)) {
            return DigestVerdict::Fine;
        }
        self.told.entry(index).or_default().insert(from, digest);
        // Never forget what decides, and never let somebody fill the table with indexes to come.
        while self.told.len() > KEPT {
            let mine = self.told.iter().find(|(_, told)| !told.contains_key(&self.me));
            let oldest = *self.told.first_key_value().expect("it is not empty").0;
            let victim = mine.map_or(oldest, |(index, _)| *index);
            self.told.remove(&victim);
        }
        let Some(told) = self.told.get(&index) else { return DigestVerdict::Fine };
        let (verdict, agrees) = (self.judge(told), self.is_of_majority(told));
        let is_known = told.contains_key(&self.me);
        if from == self.me && self.undecided.is_some() {
            self.rest_ticks = self.patience_ticks.saturating_mul(REST);
        }
        match verdict {
            DigestVerdict::Nobody => {
                let ticks_left = self.patience_ticks;
                self.undecided.get_or_insert(Undecided { index, ticks_left });
            }
            // A digest is of the whole state: if a majority has the same later on, all is known.
            _ => {
                let decides = |at: LogIndex| (at == index && is_known) || (at < index && agrees);
                self.undecided.take_if(|undecided| decides(undecided.index));
            }
        }
        verdict
    }

    /// Whether writes must be refused.
    pub(crate) fn is_undecided(&self) -> bool {
        self.undecided.as_ref().is_some_and(|undecided| undecided.ticks_left == 0)
    }

    /// Whether the leader should go on to the next comparison, which takes entries: at once, and then again and
    /// again after a while, in which who was away may have come back.
    pub(crate) fn wants_another(&self) -> bool {
        self.is_undecided() && self.rest_ticks == 0
    }

    /// Whether this member told the same as a majority of the voters.
    fn is_of_majority(&self, told: &BTreeMap<NodeId, u64>) -> bool {
        let mine = told.get(&self.me);
        let same = self.voters.iter().filter(|node| mine.is_some() && told.get(node) == mine);
        same.count() > self.voters.len() / 2
    }

    fn judge(&self, told: &BTreeMap<NodeId, u64>) -> DigestVerdict {
        let Some(mine) = told.get(&self.me) else { return DigestVerdict::Fine };
        if told.values().all(|digest| digest == mine) {
            return DigestVerdict::Fine;
        }
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, digest) in told.iter().filter(|(node, _)| self.voters.contains(node)) {
            *counts.entry(*digest).or_default() += 1;
        }
        let quorum = self.voters.len() / 2 + 1;
        match counts.into_iter().find(|(_, count)| *count >= quorum) {
            Some((right, _)) if right == *mine => {
                let wrong = told.iter().filter(|(_, digest)| **digest != right);
                DigestVerdict::Others(wrong.map(|(node, _)| *node).collect())
            }
            Some(_) => DigestVerdict::Me,
            None => DigestVerdict::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u64) -> NodeId {
        NodeId::new(id).unwrap()
    }

    fn among(me: u64, voters: u64, patience_ticks: u32) -> Digests {
        let mut digests = Digests::new(node(me), patience_ticks);
        digests.set_voters((1..=voters).map(node));
        digests
    }

    #[test]
    fn who_differs_from_a_majority_is_wrong() {
        let index = LogIndex(EVERY);
        let mut digests = among(1, 3, 2);
        assert_eq!(digests.tell(node(1), index, 7), DigestVerdict::Fine);
        assert_eq!(digests.tell(node(2), index, 8), DigestVerdict::Nobody);
        digests.tick();
        assert!(!digests.is_undecided(), "the third may be about to tell");
        digests.tick();
        assert!(digests.is_undecided());
        assert_eq!(digests.tell(node(3), index, 7), DigestVerdict::Others(vec![node(2)]));
        assert!(!digests.is_undecided());

        let mut digests = among(2, 3, 2);
        assert_eq!(digests.tell(node(1), index, 7), DigestVerdict::Fine);
        assert_eq!(digests.tell(node(3), index, 7), DigestVerdict::Fine);
        assert_eq!(digests.tell(node(2), index, 8), DigestVerdict::Me);
    }

    #[test]
    fn two_that_differ_decide_nothing_until_a_majority_is_the_same_again() {
        let mut digests = among(1, 3, 1);
        digests.tell(node(1), LogIndex(EVERY), 7);
        assert_eq!(digests.tell(node(2), LogIndex(EVERY), 8), DigestVerdict::Nobody);
        digests.tick();
        digests.tell(node(1), LogIndex(2 * EVERY), 9);
        assert!(digests.is_undecided(), "one alone agrees with nobody");
        assert_eq!(digests.tell(node(2), LogIndex(2 * EVERY), 8), DigestVerdict::Nobody);
        assert!(digests.is_undecided());
        // One that was away when the first question was put.
        assert_eq!(
            digests.tell(node(3), LogIndex(2 * EVERY), 9),
            DigestVerdict::Others(vec![node(2)])
        );
        assert!(!digests.is_undecided());
        // What is told late of an earlier index asks nothing anew.
        digests.tell(node(1), LogIndex(3 * EVERY), 4);
        assert_eq!(digests.tell(node(3), LogIndex(3 * EVERY), 5), DigestVerdict::Nobody);
        digests.tell(node(1), LogIndex(2 * EVERY), 9);
        digests.tick();
        assert!(digests.is_undecided(), "an earlier agreement does not heal a later difference");
    }

    #[test]
    fn a_learner_counts_for_nothing_and_stops_if_the_voters_agree_on_something_else() {
        let index = LogIndex(EVERY);
        let mut learner = among(4, 3, 2);
        assert_eq!(learner.tell(node(4), index, 8), DigestVerdict::Fine);
        assert_eq!(learner.tell(node(1), index, 7), DigestVerdict::Nobody);
        assert_eq!(learner.tell(node(2), index, 7), DigestVerdict::Me);
        let mut voter = among(1, 3, 2);
        voter.tell(node(1), index, 7);
        assert_eq!(voter.tell(node(4), index, 8), DigestVerdict::Fine);
        // The one that differs goes, and with it the question.
        assert_eq!(voter.tell(node(2), index, 8), DigestVerdict::Nobody);
        voter.tick();
        voter.tick();
        assert!(voter.is_undecided());
        voter.set_voters([node(1), node(3)]);
        assert!(!voter.is_undecided());
    }

    #[test]
    fn the_table_stays_small() {
        let mut digests = among(1, 3, 2);
        for i in 1..10_000 {
            digests.tell(node(2), LogIndex(i * EVERY), i);
        }
        assert!(digests.told.len() <= KEPT);
    }
}

//! Compares this replica with the other replicas. At every [`EVERY`]th entry each member sends the
//! digest of its applied state. A replica that differs from a majority is wrong and stops. If
//! digests differ, no majority agrees, and the missing digests do not resolve the difference in
//! time, no replica is known to be right. Writes are then rejected until this comparison or a later
//! one has a majority. To reach the next comparison, the leader proposes entries that change
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{LogIndex, NodeId};

/// Number of entries between two comparisons. A replica that has diverged is detected within twice
/// this number of entries.
pub const EVERY: u64 = 128;

/// Number of comparisons that are kept for members that lag.
const KEPT: usize = 64;

/// Pause before the leader forces another comparison, as a multiple of the time in which a difference may be
/// resolved.
const PAUSE_FACTOR: u32 = 60;

/// The digests that each member has sent, and the verdict on them.
#[derive(Debug)]
pub(crate) struct Digests {
    me: NodeId,
    /// The voters, whose digests count.
    voters: BTreeSet<NodeId>,
    received: BTreeMap<LogIndex, BTreeMap<NodeId, u64>>,
    undecided: Option<UndecidedDigest>,
    patience_ticks: u32,
    /// Number of ticks until the leader may force another comparison.
    rest_ticks: u32,
}

/// A difference without a majority.
#[derive(Debug)]
struct UndecidedDigest {
    index: LogIndex,
    /// Number of remaining ticks in which missing digests may resolve the difference.
    ticks_left: u32,
}

/// The result of a comparison.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DigestVerdict {
    /// No difference was found.
    Fine,
    /// These members differ from a majority that includes this one.
    Others(Vec<NodeId>),
    /// This member differs from a majority.
    Me,
    /// Digests differ, and no majority agrees so far.
    NoMajority,
}

impl Digests {
    /// Returns a table without digests. Missing digests may resolve a difference within
    /// `patience_ticks`.
    pub(crate) fn new(me: NodeId, patience_ticks: u32) -> Self {
        let (voters, received) = (BTreeSet::new(), BTreeMap::new());
        Self { me, voters, received, undecided: None, patience_ticks, rest_ticks: 0 }
    }

    /// Sets the voters. A majority of the voters decides. A learner compares its digest with those
    /// of the voters, but other members do not count the learner's digest.
    pub(crate) fn set_voters(&mut self, voters: impl IntoIterator<Item = NodeId>) {
        self.voters = voters.into_iter().collect();
        let (voters, me) = (&self.voters, self.me);
        for received in self.received.values_mut() {
            received.retain(|node, _| *node == me || voters.contains(node));
        }
        // If the member that caused the difference was removed, no later digest would resolve the
        // difference.
        let is_open = |undecided: &UndecidedDigest| {
            self.received
                .get(&undecided.index)
                .is_some_and(|received| self.compare(received) == DigestVerdict::NoMajority)
        };
        if !self.undecided.as_ref().is_some_and(is_open) {
            self.undecided = None;
        }
    }

    /// Advances the time by one tick.
    pub(crate) fn tick(&mut self) {
        self.rest_ticks = self.rest_ticks.saturating_sub(1);
        if let Some(undecided) = &mut self.undecided {
            undecided.ticks_left = undecided.ticks_left.saturating_sub(1);
        }
    }

    /// Returns whether a digest is due after `index` was applied.
    pub(crate) fn is_due(index: LogIndex) -> bool {
        index.get().is_multiple_of(EVERY)
    }

    /// Records a digest of another member or of this one.
    pub(crate) fn record(&mut self, from: NodeId, index: LogIndex, digest: u64) -> DigestVerdict {
        if !Self::is_due(index) || (from != self.me && !self.voters.contains(&from)) {
            return DigestVerdict::Fine;
        }
        self.received.entry(index).or_default().insert(from, digest);
        // Keep the comparisons in which this member takes part, so that a peer cannot fill the
        // table with future indexes.
        while self.received.len() > KEPT {
            let mine = self.received.iter().find(|(_, received)| !received.contains_key(&self.me));
            let oldest = *self.received.first_key_value().expect("it is not empty").0;
            let victim = mine.map_or(oldest, |(index, _)| *index);
            self.received.remove(&victim);
        }
        let Some(received) = self.received.get(&index) else { return DigestVerdict::Fine };
        let (verdict, agrees) = (self.compare(received), self.is_of_majority(received));
        let is_known = received.contains_key(&self.me);
        if from == self.me && self.undecided.is_some() {
            self.rest_ticks = self.patience_ticks.saturating_mul(PAUSE_FACTOR);
        }
        match verdict {
            DigestVerdict::NoMajority => {
                let ticks_left = self.patience_ticks;
                self.undecided.get_or_insert(UndecidedDigest { index, ticks_left });
            }
            // A digest covers the whole state. If a majority agrees later on, the earlier difference is resolved.
            _ => {
                let decides = |at: LogIndex| (at == index && is_known) || (at < index && agrees);
                self.undecided.take_if(|undecided| decides(undecided.index));
            }
        }
        verdict
    }

    /// Returns whether writes must be rejected.
    pub(crate) fn is_undecided(&self) -> bool {
        self.undecided.as_ref().is_some_and(|undecided| undecided.ticks_left == 0)
    }

    /// Returns whether the leader should propose entries to reach the next comparison. A comparison
    /// is due at once, and then after each pause, because a disconnected member may have come back.
    pub(crate) fn wants_another(&self) -> bool {
        self.is_undecided() && self.rest_ticks == 0
    }

    /// Returns whether this member's digest equals that of a majority of the voters.
    fn is_of_majority(&self, received: &BTreeMap<NodeId, u64>) -> bool {
        let mine = received.get(&self.me);
        let same = self.voters.iter().filter(|node| mine.is_some() && received.get(node) == mine);
        same.count() > self.voters.len() / 2
    }

    fn compare(&self, received: &BTreeMap<NodeId, u64>) -> DigestVerdict {
        let Some(mine) = received.get(&self.me) else { return DigestVerdict::Fine };
        if received.values().all(|digest| digest == mine) {
            return DigestVerdict::Fine;
        }
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, digest) in received.iter().filter(|(node, _)| self.voters.contains(node)) {
            *counts.entry(*digest).or_default() += 1;
        }
        let quorum = self.voters.len() / 2 + 1;
        match counts.into_iter().find(|(_, count)| *count >= quorum) {
            Some((right, _)) if right == *mine => {
                let wrong = received.iter().filter(|(_, digest)| **digest != right);
                DigestVerdict::Others(wrong.map(|(node, _)| *node).collect())
            }
            Some(_) => DigestVerdict::Me,
            None => DigestVerdict::NoMajority,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::node;

    fn among(me: u64, voters: u64, patience_ticks: u32) -> Digests {
        let mut digests = Digests::new(node(me), patience_ticks);
        digests.set_voters((1..=voters).map(node));
        digests
    }

    #[test]
    fn replica_that_differs_from_a_majority_is_wrong() {
        let index = LogIndex(EVERY);
        let mut digests = among(1, 3, 2);
        assert_eq!(digests.record(node(1), index, 7), DigestVerdict::Fine);
        assert_eq!(digests.record(node(2), index, 8), DigestVerdict::NoMajority);
        digests.tick();
        assert!(!digests.is_undecided(), "the third digest may still arrive");
        digests.tick();
        assert!(digests.is_undecided());
        assert_eq!(digests.record(node(3), index, 7), DigestVerdict::Others(vec![node(2)]));
        assert!(!digests.is_undecided());

        let mut digests = among(2, 3, 2);
        assert_eq!(digests.record(node(1), index, 7), DigestVerdict::Fine);
        assert_eq!(digests.record(node(3), index, 7), DigestVerdict::Fine);
        assert_eq!(digests.record(node(2), index, 8), DigestVerdict::Me);
    }

    #[test]
    fn two_differing_replicas_are_undecided_until_a_majority_agrees() {
        let mut digests = among(1, 3, 1);
        digests.record(node(1), LogIndex(EVERY), 7);
        assert_eq!(digests.record(node(2), LogIndex(EVERY), 8), DigestVerdict::NoMajority);
        digests.tick();
        digests.record(node(1), LogIndex(2 * EVERY), 9);
        assert!(digests.is_undecided(), "one alone agrees with nobody");
        assert_eq!(digests.record(node(2), LogIndex(2 * EVERY), 8), DigestVerdict::NoMajority);
        assert!(digests.is_undecided());
        // This member was away at the first comparison.
        assert_eq!(
            digests.record(node(3), LogIndex(2 * EVERY), 9),
            DigestVerdict::Others(vec![node(2)])
        );
        assert!(!digests.is_undecided());
        // A late digest for an earlier index does not reopen that comparison.
        digests.record(node(1), LogIndex(3 * EVERY), 4);
        assert_eq!(digests.record(node(3), LogIndex(3 * EVERY), 5), DigestVerdict::NoMajority);
        digests.record(node(1), LogIndex(2 * EVERY), 9);
        digests.tick();
        assert!(digests.is_undecided(), "an earlier agreement does not heal a later difference");
    }

    #[test]
    fn learner_has_no_say_and_stops_if_voters_agree_otherwise() {
        let index = LogIndex(EVERY);
        let mut learner = among(4, 3, 2);
        assert_eq!(learner.record(node(4), index, 8), DigestVerdict::Fine);
        assert_eq!(learner.record(node(1), index, 7), DigestVerdict::NoMajority);
        assert_eq!(learner.record(node(2), index, 7), DigestVerdict::Me);
        let mut voter = among(1, 3, 2);
        voter.record(node(1), index, 7);
        assert_eq!(voter.record(node(4), index, 8), DigestVerdict::Fine);
        // The member that differs is removed, and the difference is resolved.
        assert_eq!(voter.record(node(2), index, 8), DigestVerdict::NoMajority);
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
            digests.record(node(2), LogIndex(i * EVERY), i);
        }
        assert!(digests.received.len() <= KEPT);
    }
}

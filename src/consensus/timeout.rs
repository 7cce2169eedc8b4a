//! The election timeout of a member.
//!
//! Whenever the raft crate resets its state, it draws a new election timeout from its own random
//! source. A timeout from that source could not be replayed from a seed. Therefore this module
//! computes the timeout from the fields of [`ElectionTimeouts`] alone. The engine sets this timeout
//! again after every call of the crate.

use crate::model::{NodeId, SplitMix64, Term};

/// Generates election timeouts between T and 2 T.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElectionTimeouts {
    /// A random number that is drawn once, at the start.
    seed: u64,
    node: NodeId,
    /// T in ticks.
    ticks_min: u64,
    /// Number of campaigns so far, so that two members that collided draw new numbers.
    attempts: u64,
    /// The last timeout and its term, stored because the timeout is needed after every call of
    /// raft.
    drawn: Option<(Term, usize)>,
}

impl ElectionTimeouts {
    pub(super) fn new(seed: u64, node: NodeId, ticks_min: usize) -> Self {
        assert!(ticks_min > 0, "an election timeout of no ticks");
        Self { seed, node, ticks_min: ticks_min as u64, attempts: 0, drawn: None }
    }

    /// Records that a campaign has begun.
    pub(super) fn attempted(&mut self) {
        self.attempts += 1;
        self.drawn = None;
    }

    /// Returns the timeout for this term in ticks: at least T, and less than 2 T.
    pub(super) fn ticks(&mut self, term: Term) -> usize {
        match self.drawn {
            Some((of, ticks)) if of == term => ticks,
            _ => self.drawn.insert((term, self.draw(term))).1,
        }
    }

    fn draw(&self, term: Term) -> usize {
        let mix = |number| SplitMix64::new(number).next_u64();
        let mixed = [self.node.get(), term.get(), self.attempts]
            .into_iter()
            .fold(self.seed, |mixed, number| mix(mixed ^ mix(number)));
        (self.ticks_min + mixed % self.ticks_min) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn election_timeouts_cover_the_range_from_t_to_2t() {
        let mut timeouts = ElectionTimeouts::new(7, NodeId::new(1).unwrap(), 10);
        let mut seen = BTreeSet::new();
        for _ in 0..500 {
            seen.insert(timeouts.ticks(Term(3)));
            timeouts.attempted();
        }
        assert_eq!(seen, (10..20).collect());
    }

    #[test]
    fn election_timeout_depends_only_on_seed_node_term_and_attempt() {
        let mut a = ElectionTimeouts::new(7, NodeId::new(1).unwrap(), 1_000_000);
        let mut again = a;
        assert_eq!(a.ticks(Term(3)), again.ticks(Term(3)));
        assert_ne!(a.ticks(Term(3)), a.ticks(Term(4)));
        again.attempted();
        assert_ne!(a.ticks(Term(3)), again.ticks(Term(3)));
        let mut other_node = ElectionTimeouts::new(7, NodeId::new(2).unwrap(), 1_000_000);
        assert_ne!(a.ticks(Term(3)), other_node.ticks(Term(3)));
        let mut other_seed = ElectionTimeouts::new(8, NodeId::new(1).unwrap(), 1_000_000);
        assert_ne!(a.ticks(Term(3)), other_seed.ticks(Term(3)));
    }
}

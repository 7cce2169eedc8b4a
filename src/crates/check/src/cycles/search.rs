//! Searches for a short cycle in a graph of transactions.
//!
//! One pass finds the strongly connected components (Tarjan, "Depth-first search and linear graph algorithms", 1972).
//! In each component, a breadth-first search from each transaction finds the shortest cycle.
//!
//! Snapshot isolation allows cycles in which two read-write edges follow each other. For levels that allow such cycles,
//! each node exists twice, so that the search does not find them: `2n + 1` is node `n` reached by a read-write edge,
//! and has no outgoing read-write edges (Cerone and Gotsman, "Analysing Snapshot Isolation", 2016).

use std::collections::VecDeque;

use super::graph::{Arrow, EdgeKind, Graph, Key, Kinds, Node};

/// Maximum number of edges that the search visits in order to find a shorter cycle. At this limit, the search returns
/// the shortest cycle that it has found.
const ARROWS_MAX: u64 = 10_000_000;

/// One edge of a cycle, from one transaction to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CycleStep {
    pub(super) from: Node,
    pub(super) to: Node,
    pub(super) kind: EdgeKind,
    pub(super) key: Key,
}

/// A graph with a filter for its edges.
#[derive(Clone, Copy, Debug)]
pub(super) struct GraphView<'a> {
    pub(super) graph: &'a Graph,
    pub(super) kinds: Kinds,
    /// Whether two edges of kind [`EdgeKind::Rw`] must not follow each other.
    pub(super) apart: bool,
}

impl GraphView<'_> {
    fn places(&self) -> usize {
        self.graph.nodes() as usize * self.copies()
    }

    fn copies(&self) -> usize {
        if self.apart { 2 } else { 1 }
    }

    fn node(&self, place: usize) -> Node {
        (place / self.copies()) as Node
    }

    fn arrows(&self, place: usize) -> &[Arrow] {
        self.graph.arrows(self.node(place))
    }

    /// Returns the place that an edge leads to, or `None` if the filter excludes it.
    fn follow(&self, place: usize, arrow: &Arrow) -> Option<usize> {
        if !self.kinds.has(arrow.kind) {
            return None;
        }
        let to = arrow.to as usize;
        if !self.apart {
            return Some(to);
        }
        let reached = place % 2;
        match arrow.kind {
            EdgeKind::On => Some(2 * to + reached),
            EdgeKind::Rw | EdgeKind::RwByTime => (reached == 0).then_some(2 * to + 1),
            EdgeKind::Ww | EdgeKind::Wr | EdgeKind::Time => Some(2 * to),
        }
    }

    /// Returns whether there is no cycle.
    pub(super) fn is_acyclic(&self) -> bool {
        self.parts().is_empty()
    }

    /// Returns a shortest cycle, or a short one if the search limit is reached. Returns `None` if no cycle has at
    /// most `most` transactions.
    pub(super) fn cycle(&self, most: usize) -> Option<Vec<CycleStep>> {
        let parts = self.parts();
        let mut part_of = vec![usize::MAX; self.places()];
        // Small components come first, because the errors in them are easier to understand.
        let mut starts: Vec<(usize, usize)> = Vec::new();
        for (part, places) in parts.iter().enumerate() {
            for place in places {
                part_of[*place] = part;
                if self.node(*place) < self.graph.txns() {
                    starts.push((places.len(), *place));
                }
            }
        }
        starts.sort_unstable();
        let mut walk = Walk::new(self.places());
        let mut best: Option<Vec<CycleStep>> = None;
        for (_, start) in starts {
            let most = best.as_ref().map_or(most, |best| best.len() - 1);
            best = self.cycle_from(start, most, &part_of, &mut walk).or(best);
            let is_short = best.as_ref().is_some_and(|best| best.len() <= 2);
            let is_limited = best.is_some() || most < usize::MAX;
            if is_short || (walk.arrows > ARROWS_MAX && is_limited) {
                break;
            }
        }
        best
    }

    /// Returns the shortest cycle through `start` with at most `most` transactions.
    fn cycle_from(
        &self,
        start: usize,
        most: usize,
        part_of: &[usize],
        walk: &mut Walk,
    ) -> Option<Vec<CycleStep>> {
        walk.begin();
        let mut queue = VecDeque::from([(0, start)]);
        let mut back: Option<Reached> = None;
        while let Some((length, place)) = queue.pop_front() {
            if back.is_some_and(|back| back.length <= length) {
                break;
            }
            if place != start && walk.get(place).is_some_and(|by| by.length < length) {
                continue;
            }
            for arrow in self.arrows(place) {
                walk.arrows += 1;
                let Some(to) = self.follow(place, arrow) else { continue };
                let by = Reached {
                    length: length + usize::from(arrow.kind != EdgeKind::On),
                    from: place,
                    arrow: *arrow,
                };
                if part_of[to] != part_of[start] || by.length > most {
                    continue;
                }
                let before = if to == start { back } else { walk.get(to) };
                if before.is_some_and(|before| before.length <= by.length) {
                    continue;
                }
                if to == start {
                    back = Some(by);
                    continue;
                }
                walk.set(to, by);
                match arrow.kind {
                    EdgeKind::On => queue.push_front((by.length, to)),
                    _ => queue.push_back((by.length, to)),
                }
            }
        }
        back.map(|back| self.steps(start, back, walk))
    }

    /// Returns the steps of the path that led back to `start`.
    fn steps(&self, start: usize, back: Reached, walk: &Walk) -> Vec<CycleStep> {
        let mut steps = Vec::new();
        let mut to = self.node(start);
        let mut by = back;
        loop {
            if by.arrow.kind != EdgeKind::On {
                // An edge into a joint starts at a transaction, like every other edge that has a cost.
                let from = self.node(by.from);
                steps.push(CycleStep { from, to, kind: by.arrow.kind, key: by.arrow.key });
                to = from;
            }
            if by.from == start {
                steps.reverse();
                return steps;
            }
            by = walk.get(by.from).expect("it was reached");
        }
    }

    /// Returns the strongly connected components with more than one place.
    fn parts(&self) -> Vec<Vec<usize>> {
        const NEW: usize = usize::MAX;
        let places = self.places();
        let mut number = vec![NEW; places];
        let mut lowest = vec![0; places];
        let mut waits = vec![false; places];
        let mut waiting = Vec::new();
        let mut path: Vec<(usize, usize)> = Vec::new();
        let mut count = 0;
        let mut parts = Vec::new();
        for root in 0..places {
            if number[root] != NEW {
                continue;
            }
            path.push((root, 0));
            while let Some((place, next)) = path.last_mut() {
                let place = *place;
                if number[place] == NEW {
                    number[place] = count;
                    lowest[place] = count;
                    count += 1;
                    waiting.push(place);
                    waits[place] = true;
                }
                if let Some(arrow) = self.arrows(place).get(*next) {
                    *next += 1;
                    match self.follow(place, arrow) {
                        Some(to) if number[to] == NEW => path.push((to, 0)),
                        Some(to) if waits[to] => lowest[place] = lowest[place].min(number[to]),
                        _ => {}
                    }
                    continue;
                }
                path.pop();
                if let Some((before, _)) = path.last() {
                    lowest[*before] = lowest[*before].min(lowest[place]);
                }
                if lowest[place] == number[place] {
                    let from = waiting.iter().rposition(|one| *one == place);
                    let part = waiting.split_off(from.expect("it waits"));
                    for one in &part {
                        waits[*one] = false;
                    }
                    if part.len() > 1 {
                        parts.push(part);
                    }
                }
            }
        }
        parts
    }
}

/// How the search reached a place.
#[derive(Clone, Copy)]
struct Reached {
    /// Number of transactions before it on the path.
    length: usize,
    from: usize,
    arrow: Arrow,
}

/// The places that the current search has reached. Entries have the number of their search, so that the list need not
/// be cleared between searches.
struct Walk {
    round: u32,
    reached: Vec<(u32, Reached)>,
    /// Number of edges visited in all searches.
    arrows: u64,
}

impl Walk {
    fn new(places: usize) -> Self {
        let arrow = Arrow { to: 0, kind: EdgeKind::On, key: 0 };
        let nothing = Reached { length: 0, from: 0, arrow };
        Self { round: 0, reached: vec![(0, nothing); places], arrows: 0 }
    }

    fn begin(&mut self) {
        self.round += 1;
    }

    fn get(&self, place: usize) -> Option<Reached> {
        let (round, by) = self.reached[place];
        (round == self.round).then_some(by)
    }

    fn set(&mut self, place: usize, by: Reached) {
        self.reached[place] = (self.round, by);
    }
}

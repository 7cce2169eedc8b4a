//! The graph of transactions. An edge states that one transaction comes before another.
//!
//! Nodes with a number less than [`Graph::txns`] are transactions. The other nodes are joints, which replace many edges
//! by a few. An edge into a joint has a kind. From a joint, a path continues at no cost, perhaps through more joints,
//! to the targets of the replaced edges. Real-time order needs one joint per moment instead of one edge per pair.
//! Another rule is that all transactions that read the end of a list come before all transactions whose append was
//! never read. This rule needs two joints for each transaction whose append was never read.
//!
//! ```text
//! a ──time──▶ (ended by 5) ──▶ (ended by 9) ──▶ d      a and b had ended before d was called,
//!                                  ▲       └──▶ e      and before e was called
//! b ──time─────────────────────────┘
//! ```

use crate::history::At;

/// A transaction or a joint.
pub(super) type Node = u32;

/// A key, by its index in the book.
pub(super) type Key = u32;

/// The reason why the source of an edge comes before its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EdgeKind {
    /// The source wrote a value, and the target overwrote it or appended after it.
    Ww,
    /// The source wrote a value that the target read.
    Wr,
    /// The source read a value, and the target overwrote it or appended after it.
    Rw,
    /// Like `Rw`, but only real-time order shows that the target wrote later.
    RwByTime,
    /// The source had ended before the target was called.
    Time,
    /// An edge out of a joint.
    On,
}

/// A set of edge kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kinds(u8);

impl Kinds {
    pub(super) const WW: Self = Self(1);
    pub(super) const WR: Self = Self(2);
    pub(super) const RW: Self = Self(4);
    pub(super) const BY_TIME: Self = Self(8 | 16);

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn has(self, kind: EdgeKind) -> bool {
        let bit = match kind {
            EdgeKind::Ww => 1,
            EdgeKind::Wr => 2,
            EdgeKind::Rw => 4,
            EdgeKind::RwByTime => 8,
            EdgeKind::Time => 16,
            EdgeKind::On => return true,
        };
        self.0 & bit != 0
    }
}

/// An edge, without its source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrow {
    pub(super) to: Node,
    pub(super) kind: EdgeKind,
    /// The key that the edge concerns, or 0 if it concerns no key.
    pub(super) key: Key,
}

/// All edges, grouped by source node.
#[derive(Debug)]
pub(super) struct Graph {
    txns: Node,
    /// Offset of the first edge of each node, followed by the number of edges.
    begins: Vec<usize>,
    arrows: Vec<Arrow>,
}

impl Graph {
    /// Returns the number of transactions.
    pub(super) fn txns(&self) -> Node {
        self.txns
    }

    pub(super) fn nodes(&self) -> Node {
        (self.begins.len() - 1) as Node
    }

    pub(super) fn arrows(&self, from: Node) -> &[Arrow] {
        let from = from as usize;
        &self.arrows[self.begins[from]..self.begins[from + 1]]
    }
}

/// A builder that collects edges in any order.
#[derive(Debug)]
pub(super) struct Arrows {
    txns: Node,
    nodes: Node,
    arrows: Vec<(Node, Arrow)>,
}

/// Maximum number of edges that a fan draws directly, without joints.
const PLAIN_FAN_ARROWS: usize = 16;

impl Arrows {
    pub(super) fn new(txns: usize) -> Self {
        let txns = Node::try_from(txns).expect("a history has less than 2^32 transactions");
        Self { txns, nodes: txns, arrows: Vec::new() }
    }

    /// Adds an edge between two nodes. Does nothing if they are the same node.
    pub(super) fn add(&mut self, from: Node, to: Node, kind: EdgeKind, key: Key) {
        if from != to {
            self.arrows.push((from, Arrow { to, kind, key }));
        }
    }

    fn joint(&mut self) -> Node {
        self.nodes += 1;
        self.nodes - 1
    }

    fn on(&mut self, from: Node, to: Node) {
        self.add(from, to, EdgeKind::On, 0);
    }

    /// Adds edges from each of `from` to each of `to`, except from a node to itself. `to` must be sorted.
    pub(super) fn fan(&mut self, from: &[(Node, EdgeKind)], to: &[Node], key: Key) {
        debug_assert!(to.is_sorted());
        if from.len() * to.len() <= PLAIN_FAN_ARROWS {
            for (from, kind) in from {
                for to in to {
                    self.add(*from, *to, *kind, key);
                }
            }
            return;
        }
        // The first chain leads from its entry to all earlier nodes, the second to all later ones. A source that is
        // also a target enters both chains next to its own position, so that it gets no edge to itself.
        let first: Vec<Node> = to.iter().map(|_| self.joint()).collect();
        let second: Vec<Node> = to.iter().map(|_| self.joint()).collect();
        for (place, to) in to.iter().enumerate() {
            self.on(first[place], *to);
            self.on(second[place], *to);
            if place > 0 {
                self.on(first[place], first[place - 1]);
                self.on(second[place - 1], second[place]);
            }
        }
        let last = to.len() - 1;
        for (from, kind) in from {
            let mut enter = |joint: Node| self.add(*from, joint, *kind, key);
            match to.binary_search(from) {
                Err(_) => enter(first[last]),
                Ok(place) => {
                    if place > 0 {
                        enter(first[place - 1]);
                    }
                    if place < last {
                        enter(second[place + 1]);
                    }
                }
            }
        }
    }

    /// Adds an edge from each transaction that had ended to each one that was called later.
    pub(super) fn time(&mut self, of: &[(Node, At, Option<At>)]) {
        let mut ends: Vec<(At, Node)> =
            of.iter().filter_map(|(node, _, ended)| Some(((*ended)?, *node))).collect();
        ends.sort_unstable();
        let mut moments: Vec<(At, Node)> = Vec::new();
        for (ended, node) in ends {
            let joint = match moments.last().copied() {
                Some((moment, joint)) if moment == ended => joint,
                before => {
                    let joint = self.joint();
                    moments.push((ended, joint));
                    if let Some((_, before)) = before {
                        self.on(before, joint);
                    }
                    joint
                }
            };
            self.add(node, joint, EdgeKind::Time, 0);
        }
        for (node, invoked, _) in of {
            let earlier = moments.partition_point(|(moment, _)| moment < invoked);
            if earlier > 0 {
                self.on(moments[earlier - 1].1, *node);
            }
        }
    }

    /// Groups the edges by source node.
    pub(super) fn graph(self) -> Graph {
        let Self { txns, nodes, arrows } = self;
        let mut begins = vec![0; nodes as usize + 1];
        for (from, _) in &arrows {
            begins[*from as usize + 1] += 1;
        }
        for node in 0..nodes as usize {
            begins[node + 1] += begins[node];
        }
        let mut free = begins.clone();
        let nothing = Arrow { to: 0, kind: EdgeKind::On, key: 0 };
        let mut sorted = vec![nothing; arrows.len()];
        for (from, arrow) in arrows {
            sorted[free[from as usize]] = arrow;
            free[from as usize] += 1;
        }
        Graph { txns, begins, arrows: sorted }
    }
}

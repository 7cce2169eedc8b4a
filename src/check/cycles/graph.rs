//! Who comes before whom, as a graph: transactions, and between them what one arrow each would take too many.
//!
//! Numbers below [`Graph::txns`] are transactions. The others are joints: an arrow into a joint has a kind, and from
//! there it goes on for nothing, perhaps through more joints, to each transaction that it is meant for. Time
//! needs one joint a moment instead of an arrow for each pair; "all who read the end of the list come before
//! all whose append nobody saw" needs two for each of the latter.
//!
//! ```text
//! a ──time──▶ (ended by 5) ──▶ (ended by 9) ──▶ d      a and b had ended when d was called,
//!                                  ▲       └──▶ e      and when e was
//! b ──time─────────────────────────┘
//! ```

use crate::check::history::At;

/// A transaction, or a joint.
pub(super) type Node = u32;

/// A key, by its place in the book.
pub(super) type Key = u32;

/// Why one comes before another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// It wrote what the other wrote over, or appended to.
    Ww,
    /// It wrote what the other read.
    Wr,
    /// It read what the other wrote over, or appended to.
    Rw,
    /// The same; but that the other wrote later is only known by time.
    RwByTime,
    /// It had ended when the other was called.
    Time,
    /// From a joint on.
    On,
}

/// Some kinds.
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

    pub(super) fn has(self, kind: Kind) -> bool {
        let bit = match kind {
            Kind::Ww => 1,
            Kind::Wr => 2,
            Kind::Rw => 4,
            Kind::RwByTime => 8,
            Kind::Time => 16,
            Kind::On => return true,
        };
        self.0 & bit != 0
    }
}

/// An arrow from a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrow {
    pub(super) to: Node,
    pub(super) kind: Kind,
    /// Of which key; 0 where it is of none.
    pub(super) key: Key,
}

/// The arrows, by the node from which they go.
#[derive(Debug)]
pub(super) struct Graph {
    txns: Node,
    /// Where the arrows of each node begin, and at last where all end.
    begins: Vec<usize>,
    arrows: Vec<Arrow>,
}

impl Graph {
    /// How many transactions there are.
    pub(super) fn txns(&self) -> Node {
        self.txns
    }

    /// How many nodes there are.
    pub(super) fn nodes(&self) -> Node {
        (self.begins.len() - 1) as Node
    }

    pub(super) fn arrows(&self, from: Node) -> &[Arrow] {
        let from = from as usize;
        &self.arrows[self.begins[from]..self.begins[from + 1]]
    }
}

/// Arrows, while they are gathered.
#[derive(Debug)]
pub(super) struct Arrows {
    txns: Node,
    nodes: Node,
    arrows: Vec<(Node, Arrow)>,
}

/// Up to so many arrows a fan is drawn without joints.
const PLAIN_FAN_ARROWS: usize = 16;

impl Arrows {
    pub(super) fn new(txns: usize) -> Self {
        let txns = Node::try_from(txns).expect("a history has less than 2^32 transactions");
        Self { txns, nodes: txns, arrows: Vec::new() }
    }

    /// An arrow between two nodes; none from one to itself.
    pub(super) fn add(&mut self, from: Node, to: Node, kind: Kind, key: Key) {
        if from != to {
            self.arrows.push((from, Arrow { to, kind, key }));
        }
    }

    fn joint(&mut self) -> Node {
        self.nodes += 1;
        self.nodes - 1
    }

    fn on(&mut self, from: Node, to: Node) {
        self.add(from, to, Kind::On, 0);
    }

    /// From each of `from` to each of `to`, which are in order, but for itself.
    pub(super) fn fan(&mut self, from: &[(Node, Kind)], to: &[Node], key: Key) {
        debug_assert!(to.is_sorted());
        if from.len() * to.len() <= PLAIN_FAN_ARROWS {
            for (from, kind) in from {
                for to in to {
                    self.add(*from, *to, *kind, key);
                }
            }
            return;
        }
        // Down the first chain go those before its entry, down the second those behind: who is among them enters
        // both beside itself.
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

    /// From each that had ended to each that was called at a later moment.
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
            self.add(node, joint, Kind::Time, 0);
        }
        for (node, invoked, _) in of {
            let earlier = moments.partition_point(|(moment, _)| moment < invoked);
            if earlier > 0 {
                self.on(moments[earlier - 1].1, *node);
            }
        }
    }

    /// The same, by the node from which they go.
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
        let nothing = Arrow { to: 0, kind: Kind::On, key: 0 };
        let mut sorted = vec![nothing; arrows.len()];
        for (from, arrow) in arrows {
            sorted[free[from as usize]] = arrow;
            free[from as usize] += 1;
        }
        Graph { txns, begins, arrows: sorted }
    }
}

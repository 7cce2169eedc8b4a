//! Nemeses that cut links between members. A link is cut either silently, or by closing its connections so that both
//! ends notice. The set of cut links has one of these shapes, which have caused failures in similar systems:
//!
//! ```text
//!   halves      0 1 ╳ 2 3 4         every link between two random groups is cut
//!   minority    0 ╳ 1 2             a minority, which often contains the leader, is isolated
//!   leader      L ╳ everyone        the leader is isolated
//!   one-way     L ─╳▶ everyone      only the messages from the leader, or only the messages to it, are lost
//!   bridge      0 1 ─ 2 ─ 3 4       two groups are separated, but one member reaches both
//!   ring        each member reaches only its two neighbors, so that each sees a different majority
//! ```

use super::targets::shuffle;
use super::{Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::{Fleet, ProcessState, Setup};
use crate::links::{Cut, Rule};
use crate::process::HarnessError;

pub(super) const HALVES: Kind = Kind {
    name: "partition-halves",
    about: "two random halves of the members are cut off from each other",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Partition::of(Shape::Halves)),
};

pub(super) const MINORITY: Kind = Kind {
    name: "partition-minority",
    about: "the largest minority, often with the leader, is cut off from the others",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Partition::of(Shape::Minority)),
};

pub(super) const LEADER: Kind = Kind {
    name: "partition-leader",
    about: "the leader is isolated",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Partition::of(Shape::Leader)),
};

pub(super) const ONE_WAY: Kind = Kind {
    name: "partition-one-way",
    about: "the messages of the leader, or those to it, are lost",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Partition::of(Shape::OneWay)),
};

pub(super) const BRIDGE: Kind = Kind {
    name: "partition-bridge",
    about: "two parts are cut off from each other, except for one member that reaches both",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Partition::of(Shape::Bridge)),
};

pub(super) const RING: Kind = Kind {
    name: "partition-ring",
    about: "each member reaches its two neighbors in a random ring, so that each sees a different majority",
    wants: Wants { members_min: 5, ..Wants::QUORUM_STAYS },
    alone: false,
    possible: anywhere,
    make: || Box::new(Partition::of(Shape::Ring)),
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Halves,
    Minority,
    Leader,
    OneWay,
    Bridge,
    Ring,
}

impl Shape {
    /// Returns the links to cut and a short description.
    fn draw(self, mut all: Vec<usize>, leader: usize, dice: &mut Dice) -> (Cuts, String) {
        let quorum = all.len() / 2 + 1;
        shuffle(&mut all, dice);
        match self {
            Shape::Halves => {
                let (some, others) = all.split_at(1 + dice.one_of(all.len() - 1));
                (between(some, others), format!("{} | {}", names(some), names(others)))
            }
            Shape::Minority => {
                if dice.below(2) == 0 {
                    all.sort_by_key(|member| *member != leader);
                }
                let (some, others) = all.split_at(all.len() - quorum);
                (between(some, others), format!("{} | {}", names(some), names(others)))
            }
            Shape::Leader => {
                let (some, others): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|member| *member == leader);
                let said = format!("{} (leader) | {}", names(&some), names(&others));
                (between(&some, &others), said)
            }
            Shape::OneWay => {
                let others: Vec<usize> =
                    all.into_iter().filter(|member| *member != leader).collect();
                let is_heard = dice.below(2) == 0;
                let cuts = others
                    .iter()
                    .map(|other| if is_heard { (*other, leader) } else { (leader, *other) });
                let what = if is_heard { "receives nothing" } else { "cannot send" };
                (cuts.collect(), format!("m{leader} (leader) {what}"))
            }
            Shape::Bridge => {
                let (bridge, rest) = all.split_at(1);
                let (some, others) = rest.split_at(rest.len() / 2);
                let said = format!("{} - {} - {}", names(some), names(bridge), names(others));
                (between(some, others), said)
            }
            Shape::Ring => {
                let many = all.len();
                let apart = |a: usize, b: usize| a.abs_diff(b).min(many - a.abs_diff(b));
                let pairs = (0..many).flat_map(|a| (0..many).map(move |b| (a, b)));
                let cuts = pairs.filter(|(a, b)| apart(*a, *b) > 1).map(|(a, b)| (all[a], all[b]));
                (cuts.collect(), format!("the ring {}", names(&all)))
            }
        }
    }
}

/// Pairs of members, from sender to receiver.
type Cuts = Vec<(usize, usize)>;

fn between(some: &[usize], others: &[usize]) -> Cuts {
    let pairs = some.iter().flat_map(|a| others.iter().map(move |b| (*a, *b)));
    pairs.flat_map(|(a, b)| [(a, b), (b, a)]).collect()
}

fn names(members: &[usize]) -> String {
    let names: Vec<String> = members.iter().map(|member| format!("m{member}")).collect();
    names.join(" ")
}

struct Partition {
    shape: Shape,
    cuts: Cuts,
    struck: u64,
}

impl Partition {
    fn of(shape: Shape) -> Self {
        Self { shape, cuts: Vec::new(), struck: 0 }
    }
}

impl Nemesis for Partition {
    fn prepare(&self, setup: &mut Setup) {
        setup.proxied = true;
    }

    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        // Members that are down or have not joined are included, because they may start during the window.
        let all: Vec<usize> = (0..fleet.places()).collect();
        let leader =
            fleet.leader().map_or_else(|| dice.one_of(fleet.members()), |(leader, _)| leader);
        let how = if dice.below(2) == 0 { Cut::Silent } else { Cut::Refused };
        let (cuts, said) = self.shape.draw(all, leader, dice);
        for (from, to) in &cuts {
            fleet.links().cut_so(*from, *to, how);
        }
        // Count only links between members that are running: cutting other links has no effect.
        let is_there = |member: usize| fleet.being(member) != ProcessState::Down;
        let struck = cuts.iter().filter(|(from, to)| is_there(*from) && is_there(*to));
        self.struck += struck.count() as u64;
        self.cuts = cuts;
        Ok(format!("cuts {said}, {how:?}"))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        for (from, to) in self.cuts.drain(..) {
            let rule = fleet.links().rule(from, to);
            fleet.links().set(from, to, Rule { cut: None, ..rule });
        }
        Ok(())
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Answer;
    use crate::fleet::tests::{answers, per_order, shells};
    use std::collections::BTreeSet;

    /// Returns the members that each member reaches in both directions, including itself.
    fn reached(shape: Shape, members: usize, seed: u64) -> Vec<BTreeSet<usize>> {
        let (cuts, _) = shape.draw((0..members).collect(), 0, &mut Dice::new(seed));
        let whole = |a: usize, b: usize| !cuts.contains(&(a, b)) && !cuts.contains(&(b, a));
        (0..members).map(|a| (0..members).filter(|b| whole(a, *b)).collect()).collect()
    }

    #[test]
    fn each_partition_shape_cuts_the_expected_links() {
        for seed in 0..50 {
            for members in [3, 5] {
                let quorum = members / 2 + 1;
                let halves = reached(Shape::Halves, members, seed);
                let parts: BTreeSet<_> = halves.iter().collect();
                assert_eq!(parts.len(), 2, "{halves:?}");
                let minority = reached(Shape::Minority, members, seed);
                assert!(minority.iter().any(|part| part.len() == members - quorum));
                assert!(minority.iter().any(|part| part.len() == quorum));
                let leader = reached(Shape::Leader, members, seed);
                assert!(leader[0].len() == 1 && leader[1].len() == members - 1);
                let bridge = reached(Shape::Bridge, members, seed);
                assert_eq!(bridge.iter().filter(|part| part.len() == members).count(), 1);
                assert_eq!(bridge.iter().filter(|part| part.len() == quorum).count(), members - 1);
            }
            let ring = reached(Shape::Ring, 5, seed);
            assert!(ring.iter().all(|part| part.len() == 3));
            assert_eq!(
                ring.iter().collect::<BTreeSet<_>>().len(),
                5,
                "all majorities differ: {ring:?}"
            );
        }
    }

    #[test]
    fn one_way_partition_cuts_one_direction() {
        let mut ways = BTreeSet::new();
        for seed in 0..50 {
            let (cuts, _) = Shape::OneWay.draw(vec![0, 1, 2], 1, &mut Dice::new(seed));
            ways.insert(cuts.into_iter().collect::<BTreeSet<_>>());
        }
        let expected = [BTreeSet::from([(0, 1), (2, 1)]), BTreeSet::from([(1, 0), (1, 2)])];
        assert_eq!(ways, expected.into());
    }

    #[test]
    fn absent_member_is_not_partitioned() {
        let follower = answers(&Answer::Status { leads: false, term: 1, leader: None });
        let fleet = shells(&per_order(&follower), 3, 1);
        (0..3).for_each(|member| fleet.restart(member).unwrap());
        let mut is_alone = BTreeSet::new();
        for seed in 0..30 {
            let mut partition = Partition::of(Shape::Minority);
            partition.begin(&fleet, &mut Dice::new(seed)).unwrap();
            let empty = partition.cuts.iter().filter(|(from, _)| *from == 3).count();
            assert_eq!(partition.struck, if empty == 3 { 0 } else { 4 }, "{:?}", partition.cuts);
            is_alone.insert(empty == 3);
        }
        assert_eq!(is_alone.len(), 2, "it is isolated in some of them");
    }
}

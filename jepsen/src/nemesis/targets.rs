//! Selects the members that a fault affects.

use crate::dice::Dice;
use crate::fleet::Fleet;

/// The number of affected members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Targets {
    /// One member, which is the leader with probability 1/2.
    One,
    /// The largest minority.
    Minority,
    /// The smallest majority.
    Majority,
    /// All members.
    All,
}

impl Targets {
    /// Draws targets among the running founders. If too few founders run, returns fewer targets.
    pub(super) fn draw(self, fleet: &Fleet, dice: &mut Dice) -> Vec<usize> {
        let leader = fleet.leader().map(|(leader, _)| leader);
        let founders = fleet.up().into_iter().filter(|member| *member < fleet.members());
        self.draw_of(fleet.members(), founders.collect(), leader, dice)
    }

    fn draw_of(
        self,
        members: usize,
        mut up: Vec<usize>,
        leader: Option<usize>,
        dice: &mut Dice,
    ) -> Vec<usize> {
        let many = match self {
            Targets::One => 1,
            Targets::Minority => ((members - 1) / 2).max(1),
            Targets::Majority => members / 2 + 1,
            Targets::All => up.len(),
        };
        shuffle(&mut up, dice);
        if let Some(leader) = leader.filter(|_| dice.below(2) == 0) {
            // The sort is stable, so the other members keep their random order.
            up.sort_by_key(|member| *member != leader);
        }
        up.truncate(many);
        up
    }
}

/// Shuffles the members.
pub(super) fn shuffle(members: &mut [usize], dice: &mut Dice) {
    for at in (1..members.len()).rev() {
        members.swap(at, dice.one_of(at + 1));
    }
}

/// Returns the names of members with their current roles: `m1, m2`.
pub(super) fn names(fleet: &Fleet, members: &[usize]) -> String {
    if members.is_empty() {
        return "no member".to_owned();
    }
    let names: Vec<String> = members.iter().map(|member| super::called(fleet, *member)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_the_requested_size_and_often_include_the_leader() {
        let mut dice = Dice::new(7);
        for (members, whom, many) in [
            (3, Targets::One, 1),
            (3, Targets::Minority, 1),
            (5, Targets::Minority, 2),
            (3, Targets::Majority, 2),
            (5, Targets::Majority, 3),
            (5, Targets::All, 5),
            (1, Targets::Minority, 1),
        ] {
            let drawn = whom.draw_of(members, (0..members).collect(), None, &mut dice);
            assert_eq!(drawn.len(), many, "{whom:?} of {members}");
            assert!((1..drawn.len()).all(|at| !drawn[..at].contains(&drawn[at])));
        }
        let hits_leader =
            |_: &i32| Targets::One.draw_of(3, vec![0, 1, 2], Some(2), &mut dice) == [2];
        let hits = (0..600).filter(hits_leader).count();
        assert!((300..500).contains(&hits), "{hits} of 600");
    }
}

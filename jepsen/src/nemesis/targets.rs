//! Targets a fault hits.

use crate::dice::Dice;
use crate::fleet::Fleet;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Targets {
    /// One member, the leader half of the time.
    One,
    /// As many as may fail.
    Minority,
    /// One more than may fail.
    Majority,
    /// Everybody.
    All,
}

impl Targets {
    /// Draws them among the founders that run; fewer if not so many do.
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
            // Stable: the others stay in their random order.
            up.sort_by_key(|member| *member != leader);
        }
        up.truncate(many);
        up
    }
}

/// Puts them into a random order.
pub(super) fn shuffle(members: &mut [usize], dice: &mut Dice) {
    for at in (1..members.len()).rev() {
        members.swap(at, dice.one_of(at + 1));
    }
}

/// `m1, m2`, each with what it is right now.
pub(super) fn names(fleet: &Fleet, members: &[usize]) -> String {
    if members.is_empty() {
        return "nobody".to_owned();
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

//! Nemeses that degrade links without cutting them: by delay, loss, duplication, corruption or low bandwidth. These
//! nemeses affect all links, or the links of one member.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::{Fleet, Setup};
use crate::links::{Rule, Traffic};
use crate::process::HarnessError;

pub(super) const DELAY: Kind = Kind {
    name: "delay",
    about: "messages are delayed by up to 80 ms, plus a random delay of up to the same length",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Weather::of(&SLOW)),
};

pub(super) const LOSS: Kind = Kind {
    name: "loss",
    about: "messages are lost or held up, and connections break in the middle of a message",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Weather::of(&LOSSY)),
};

pub(super) const DUPLICATES: Kind = Kind {
    name: "duplicates",
    about: "messages are duplicated",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Weather::of(&DOUBLING)),
};

pub(super) const CORRUPTION: Kind = Kind {
    name: "corruption",
    about: "bits of messages are flipped, and some of their bytes are repeated",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Weather::of(&DAMAGING)),
};

pub(super) const NARROW: Kind = Kind {
    name: "slow-link",
    about: "links are limited to 8 to 64 KiB per second",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Weather::of(&THIN)),
};

/// A way to degrade links.
struct Badness {
    what: &'static str,
    /// Draws a rule with only this kind of fault.
    draw: fn(&mut Dice) -> Rule,
    /// Copies this kind of fault from one rule to another.
    copy: fn(&mut Rule, &Rule),
    /// Returns how much of the traffic was affected.
    felt: fn(&Traffic) -> u64,
}

const SLOW: Badness = Badness {
    what: "slow",
    draw: |dice| {
        let [delay, jitter] = [(); 2].map(|()| Duration::from_millis(1 + dice.below(80)));
        Rule { delay, jitter, ..Rule::default() }
    },
    copy: |to, from| (to.delay, to.jitter) = (from.delay, from.jitter),
    felt: |traffic| traffic.frames,
};

const LOSSY: Badness = Badness {
    what: "lossy",
    draw: |dice| Rule {
        lose_permille: chance(dice, 150),
        hold_permille: chance(dice, 30),
        hold: Duration::from_millis(200 + dice.below(400)),
        break_permille: chance(dice, 5),
        ..Rule::default()
    },
    copy: |to, from| {
        (to.lose_permille, to.break_permille) = (from.lose_permille, from.break_permille);
        (to.hold_permille, to.hold) = (from.hold_permille, from.hold);
    },
    felt: |traffic| traffic.lost + traffic.broken,
};

const DOUBLING: Badness = Badness {
    what: "duplicating",
    draw: |dice| Rule { double_permille: chance(dice, 500), ..Rule::default() },
    copy: |to, from| to.double_permille = from.double_permille,
    felt: |traffic| traffic.doubled,
};

const DAMAGING: Badness = Badness {
    what: "corrupting",
    draw: |dice| Rule {
        flip_permille: chance(dice, 20),
        stutter_permille: chance(dice, 10),
        ..Rule::default()
    },
    copy: |to, from| {
        (to.flip_permille, to.stutter_permille) = (from.flip_permille, from.stutter_permille);
    },
    felt: |traffic| traffic.spoiled,
};

const THIN: Badness = Badness {
    what: "narrow",
    draw: |dice| {
        let kib = 8_u32 << dice.below(4);
        Rule { bytes_per_second: NonZeroU32::new(kib << 10), ..Rule::default() }
    },
    copy: |to, from| to.bytes_per_second = from.bytes_per_second,
    felt: |traffic| traffic.frames,
};

/// Returns a random probability of at least a tenth of the maximum, so that every window has an effect.
fn chance(dice: &mut Dice, most_permille: u16) -> u16 {
    let least = most_permille.div_ceil(10);
    let more = dice.below(u64::from(most_permille - least) + 1);
    least + u16::try_from(more).expect("it is below a u16")
}

struct Weather {
    badness: &'static Badness,
    links: Vec<(usize, usize)>,
    /// The affected traffic when the window began.
    felt_before: u64,
    struck: u64,
}

impl Weather {
    fn of(badness: &'static Badness) -> Self {
        Self { badness, links: Vec::new(), felt_before: 0, struck: 0 }
    }

    fn felt(&self, fleet: &Fleet) -> u64 {
        let felt =
            |(from, to): &(usize, usize)| (self.badness.felt)(&fleet.links().traffic(*from, *to));
        self.links.iter().map(felt).sum()
    }

    fn set(&self, fleet: &Fleet, said: &Rule) {
        for (from, to) in &self.links {
            let mut rule = fleet.links().rule(*from, *to);
            (self.badness.copy)(&mut rule, said);
            fleet.links().set(*from, *to, rule);
        }
    }
}

impl Nemesis for Weather {
    fn prepare(&self, setup: &mut Setup) {
        setup.proxied = true;
    }

    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        let many = fleet.places();
        let only = (dice.below(2) == 0).then(|| dice.one_of(fleet.members()));
        let is_meant = |(from, to): &(usize, usize)| {
            from != to && only.is_none_or(|member| [*from, *to].contains(&member))
        };
        let pairs = (0..many).flat_map(|from| (0..many).map(move |to| (from, to)));
        self.links = pairs.filter(is_meant).collect();
        let rule = (self.badness.draw)(dice);
        self.felt_before = self.felt(fleet);
        self.set(fleet, &rule);
        let whose = only.map_or("all links".to_owned(), |member| format!("m{member}'s links"));
        Ok(format!("makes {whose} {}", self.badness.what))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        self.set(fleet, &Rule::default());
        self.struck += self.felt(fleet).saturating_sub(self.felt_before);
        self.links.clear();
        Ok(())
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_fault_sets_and_clears_only_its_own_fields() {
        let mut dice = Dice::new(1);
        for badness in [SLOW, LOSSY, DOUBLING, DAMAGING, THIN] {
            for _ in 0..100 {
                let drawn = (badness.draw)(&mut dice);
                assert_ne!(drawn, Rule::default(), "{}", badness.what);
                let mut rule = Rule::default();
                (badness.copy)(&mut rule, &drawn);
                assert_eq!(rule, drawn, "{}", badness.what);
                (badness.copy)(&mut rule, &Rule::default());
                assert_eq!(rule, Rule::default(), "{}", badness.what);
            }
        }
    }
}

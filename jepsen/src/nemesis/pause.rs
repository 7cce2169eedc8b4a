//! Nemeses that pause members (SIGSTOP) and resume them. A pause either outlasts the session TTL, or is shorter than
//! an election timeout and is repeated.

use std::time::Duration;

use super::targets::{Targets, names};
use super::{Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::process::HarnessError;

pub(super) const ONE: Kind = Kind {
    name: "pause",
    about: "one member, mostly the leader, is paused for the whole window",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Pause::of(Targets::One)),
};

pub(super) const ALL: Kind = Kind {
    name: "pause-all",
    about: "all members are paused for the whole window and resume one after the other",
    wants: Wants::ALL_STOP,
    alone: false,
    possible: anywhere,
    make: || Box::new(Pause::of(Targets::All)),
};

pub(super) const SHORT: Kind = Kind {
    name: "pause-short",
    about: "a member is paused for less than a second, repeatedly",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Short { paused: None, struck: 0 }),
};

struct Pause {
    whom: Targets,
    paused: Vec<usize>,
    struck: u64,
}

impl Pause {
    fn of(whom: Targets) -> Self {
        Self { whom, paused: Vec::new(), struck: 0 }
    }
}

impl Nemesis for Pause {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        self.paused = self.whom.draw(fleet, dice);
        let whom = names(fleet, &self.paused);
        self.paused.iter().try_for_each(|member| fleet.pause(*member))?;
        self.struck += self.paused.len() as u64;
        Ok(format!("pauses {whom}"))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        self.paused.drain(..).try_for_each(|member| fleet.resume(member))
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

/// Maximum length of a short pause, and maximum time between two of them, in milliseconds.
const SHORT_MS: u64 = 900;

struct Short {
    paused: Option<usize>,
    struck: u64,
}

impl Nemesis for Short {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, HarnessError> {
        Ok("pauses members repeatedly".to_owned())
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, HarnessError> {
        match self.paused.take() {
            Some(member) => fleet.resume(member)?,
            None => {
                self.paused = Targets::One.draw(fleet, dice).pop();
                self.paused.map_or(Ok(()), |member| fleet.pause(member))?;
                self.struck += u64::from(self.paused.is_some());
            }
        }
        Ok(Duration::from_millis(dice.below(SHORT_MS)))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        self.paused.take().map_or(Ok(()), |member| fleet.resume(member))
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

//! Nemeses that kill processes with SIGKILL and restart them. The nemeses kill one member, a minority, a majority, or
//! all members.

use super::targets::{Targets, names};
use super::{Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::process::HarnessError;

pub(super) const ONE: Kind = Kind {
    name: "kill",
    about: "one member, mostly the leader, is killed and restarted",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Kill::of(Targets::One)),
};

pub(super) const MINORITY: Kind = Kind {
    name: "kill-minority",
    about: "the largest minority is killed at once and restarted",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Kill::of(Targets::Minority)),
};

pub(super) const MAJORITY: Kind = Kind {
    name: "kill-majority",
    about: "the smallest majority is killed at once and restarted",
    wants: Wants::ALL_STOP,
    alone: false,
    possible: anywhere,
    make: || Box::new(Kill::of(Targets::Majority)),
};

pub(super) const ALL: Kind = Kind {
    name: "kill-all",
    about: "all members are killed at once and restarted",
    wants: Wants::ALL_STOP,
    alone: false,
    possible: anywhere,
    make: || Box::new(Kill::of(Targets::All)),
};

struct Kill {
    whom: Targets,
    down: Vec<usize>,
    struck: u64,
}

impl Kill {
    fn of(whom: Targets) -> Self {
        Self { whom, down: Vec::new(), struck: 0 }
    }
}

impl Nemesis for Kill {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        self.down = self.whom.draw(fleet, dice);
        let whom = names(fleet, &self.down);
        self.down.iter().try_for_each(|member| fleet.kill(*member))?;
        self.struck += self.down.len() as u64;
        Ok(format!("kills {whom}"))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        self.down.iter().try_for_each(|member| fleet.spawn(*member))?;
        self.down.drain(..).try_for_each(|member| fleet.await_ready(member))
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

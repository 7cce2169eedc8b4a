//! Clocks that run at other rates than the machine's, inside the drift bound, and clocks that jump ahead.
//!
//! A node reads one clock, which counts from the machine's start; no wall clock is ever read, so there is
//! none to set. Ahead is the only way in which that clock can jump: a machine that was suspended does that.

use std::time::Duration;

use super::targets::Targets;
use super::{Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::process::HarnessError;

pub(super) const RATES: Kind = Kind {
    name: "clock-rates",
    about: "every member's clock runs at a rate of its own, up to 9 % off: inside the drift bound",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Rates { bent: Vec::new(), struck: 0 }),
};

pub(super) const JUMPS: Kind = Kind {
    name: "clock-jumps",
    about: "somebody's clock jumps ahead by up to ten seconds, every two seconds or so",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Jumps { struck: 0 }),
};

/// By how much a rate is off at most, in thousandths; the drift bound is 100.
const OFF_PERMILLE: u64 = 90;

struct Rates {
    bent: Vec<usize>,
    struck: u64,
}

impl Nemesis for Rates {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        let mut said = Vec::new();
        self.bent = fleet.up();
        for member in &self.bent {
            // The ends of the bound are where it hurts.
            let off = [0, OFF_PERMILLE, dice.below(OFF_PERMILLE)][dice.one_of(3)];
            let rate = if dice.below(2) == 0 { 1000 + off } else { 1000 - off };
            let is_set = fleet.door(*member, &format!("clock-rate {rate}"))?;
            self.struck += u64::from(is_set && rate != 1000);
            said.push(format!("m{member} {rate}"));
        }
        Ok(format!("lets clocks run at other rates, in thousandths: {}", said.join(", ")))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        fleet.doors(&std::mem::take(&mut self.bent), "clock-rate 1000").map(drop)
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

/// How far a clock jumps at most, in milliseconds.
const JUMP_MS: u64 = 10_000;

/// What lies between two jumps at least, and by how much more at most. Of a jump a leader counts
/// 100 ms against the leases: more often than this, and that would be outside the drift bound.
const JUMPS_APART_MS: u64 = 2000;
const JUMPS_APART_MORE_MS: u64 = 1000;

struct Jumps {
    struck: u64,
}

impl Nemesis for Jumps {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, HarnessError> {
        Ok("lets clocks jump ahead".to_owned())
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, HarnessError> {
        if let Some(member) = Targets::One.draw(fleet, dice).pop() {
            let by_ms = dice.below(JUMP_MS);
            let has_jumped = fleet.door(member, &format!("clock-jump {by_ms}"))?;
            self.struck += u64::from(has_jumped);
        }
        Ok(Duration::from_millis(JUMPS_APART_MS + dice.below(JUMPS_APART_MORE_MS)))
    }

    fn end(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        Ok(())
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

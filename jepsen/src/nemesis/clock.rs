//! Nemeses for clocks. Each nemesis makes a member's clock run too fast or too slow within the drift bound, or jump
//! ahead.
//!
//! A node reads only the boot-time clock and never the wall clock, so this nemesis does not change the time of day.
//! The boot-time clock of a real machine can jump ahead, for example when the machine resumes from suspension. A
//! boot-time clock never jumps back.

use std::time::Duration;

use super::targets::Targets;
use super::{Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::process::HarnessError;

pub(super) const RATES: Kind = Kind {
    name: "clock-rates",
    about: "the clock of each member runs at its own rate, up to 9 % off, within the drift bound",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Rates { bent: Vec::new(), struck: 0 }),
};

pub(super) const JUMPS: Kind = Kind {
    name: "clock-jumps",
    about: "the clock of one member jumps ahead by up to ten seconds, about every two seconds",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Jumps { struck: 0 }),
};

/// Maximum rate error, in thousandths. The drift bound is 100.
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
            // The extremes of the allowed range find the most errors.
            let off = [0, OFF_PERMILLE, dice.below(OFF_PERMILLE)][dice.one_of(3)];
            let rate = if dice.below(2) == 0 { 1000 + off } else { 1000 - off };
            let is_set = fleet.door(*member, &format!("clock-rate {rate}"))?;
            self.struck += u64::from(is_set && rate != 1000);
            said.push(format!("m{member} {rate}"));
        }
        Ok(format!("changes the rates of clocks, in thousandths: {}", said.join(", ")))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        fleet.doors(&std::mem::take(&mut self.bent), "clock-rate 1000").map(drop)
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

/// Maximum length of a jump, in milliseconds.
const JUMP_MS: u64 = 10_000;

/// Minimum time between two jumps, and maximum random time that is added to this minimum. A leader counts up to 100 ms
/// of a jump as elapsed lease time, so more frequent jumps would exceed the drift bound.
const JUMPS_APART_MS: u64 = 2000;
const JUMPS_APART_MORE_MS: u64 = 1000;

struct Jumps {
    struck: u64,
}

impl Nemesis for Jumps {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, HarnessError> {
        Ok("makes clocks jump ahead".to_owned())
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, HarnessError> {
        if let Some(member) = Targets::One.draw(fleet, dice).pop() {
            let by_ms = dice.below(JUMP_MS);
            let has_jumped = fleet.door(member, &format!("clock-jump {by_ms}"))?;
            self.struck += u64::from(has_jumped);
        }
        Ok(Duration::from_millis(JUMPS_APART_MS + dice.below(JUMPS_APART_MORE_MS)))
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

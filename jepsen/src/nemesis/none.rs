//! A nemesis without faults, as the baseline for all others.

use super::{Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::process::HarnessError;

pub(super) const KIND: Kind = Kind {
    name: "none",
    about: "no faults",
    wants: Wants { leader_change: false, progress_inside: true, members_min: 1 },
    alone: true,
    possible: anywhere,
    make: || Box::new(Nothing { struck: 0 }),
};

struct Nothing {
    /// Number of windows, each of which counts as affected.
    struck: u64,
}

impl Nemesis for Nothing {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, HarnessError> {
        self.struck += 1;
        Ok("nothing".to_owned())
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

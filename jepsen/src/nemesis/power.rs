//! The power of members fails: their file systems keep what was synced and forget the rest.
//!
//! Each member has a small file system of its own ([`volume`](crate::volume)) that is cut off without being
//! flushed. Needs root, loop devices and perl.

use std::thread;
use std::time::Duration;

use super::targets::{Targets, names};
use super::{Kind, Nemesis, Wants};
use crate::dice::Dice;
use crate::fleet::{Fleet, Setup};
use crate::process::HarnessError;
use crate::volume::{Medium, Volumes};

pub(super) const ONE: Kind = Kind {
    name: "power-one",
    about: "one member loses its power",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: Volumes::possible,
    make: || Box::new(Power::of(Targets::One)),
};

pub(super) const MOST: Kind = Kind {
    name: "power-most",
    about: "one member more than may fail loses its power, all at once",
    wants: Wants::ALL_STOP,
    alone: false,
    possible: Volumes::possible,
    make: || Box::new(Power::of(Targets::Majority)),
};

pub(super) const ALL: Kind = Kind {
    name: "power-all",
    about: "all members lose their power at once",
    wants: Wants::ALL_STOP,
    alone: false,
    possible: Volumes::possible,
    make: || Box::new(Power::of(Targets::All)),
};

/// A member's file system: on a disk that forgets what was not flushed.
const VOLUME_BYTES: u64 = 320 << 20;

/// How long a process lives on at most, in milliseconds, beside a disk without power.
const LINGERS_MS: u64 = 200;

struct Power {
    whom: Targets,
    down: Vec<usize>,
    struck: u64,
}

impl Power {
    fn of(whom: Targets) -> Self {
        Self { whom, down: Vec::new(), struck: 0 }
    }
}

impl Nemesis for Power {
    fn prepare(&self, setup: &mut Setup) {
        setup.volumes = Some((vec![Medium::Cached], VOLUME_BYTES));
    }

    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        self.down = self.whom.draw(fleet, dice);
        let whom = names(fleet, &self.down);
        // Who stops from here on may have noticed; who did so before may not have.
        self.down.iter().try_for_each(|member| fleet.must_run(*member))?;
        if let Some(volumes) = fleet.volumes() {
            volumes.switch(&self.down)?.cut()?;
        }
        thread::sleep(Duration::from_millis(dice.below(LINGERS_MS)));
        for member in &self.down {
            // Whether it has noticed before its end is luck.
            fleet.bury_however(*member)?;
            self.struck += 1;
        }
        Ok(format!("cuts the power of {whom}"))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        if let Some(mut volumes) = fleet.volumes() {
            volumes.again(&self.down)?;
        }
        self.down.iter().try_for_each(|member| fleet.spawn(*member))?;
        self.down.drain(..).try_for_each(|member| fleet.await_ready(member))
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::tests::shell;

    #[test]
    fn node_that_stopped_before_the_power_cut_is_reported() {
        // Who is asked who leads answers nothing; or says that it has stopped.
        let cut = |does: &str| Power::of(Targets::All).begin(&shell(does), &mut Dice::new(1));
        assert!(cut("true").is_ok());
        let stopped = cut("echo stopped of grief");
        assert!(matches!(stopped, Err(HarnessError::Stopped(_))), "{stopped:?}");
    }
}

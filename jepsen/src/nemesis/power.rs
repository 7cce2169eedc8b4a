//! Nemeses that cut the power of members: their file systems keep synced data and lose the rest.
//!
//! Each member has its own small file system ([`volume`](crate::volume)), which is shut down without flushing. Needs
//! root, loop devices and perl.

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
    about: "one member loses power",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: Volumes::possible,
    make: || Box::new(Power::of(Targets::One)),
};

pub(super) const MOST: Kind = Kind {
    name: "power-most",
    about: "the smallest majority loses power at once",
    wants: Wants::ALL_STOP,
    alone: false,
    possible: Volumes::possible,
    make: || Box::new(Power::of(Targets::Majority)),
};

pub(super) const ALL: Kind = Kind {
    name: "power-all",
    about: "all members lose power at once",
    wants: Wants::ALL_STOP,
    alone: false,
    possible: Volumes::possible,
    make: || Box::new(Power::of(Targets::All)),
};

/// Size of the file system of a member, whose disk loses unflushed data.
const VOLUME_BYTES: u64 = 320 << 20;

/// Maximum time that a process keeps running with a disk without power, in milliseconds.
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
        // From here on a node may notice the power cut and stop. It must not have stopped before.
        self.down.iter().try_for_each(|member| fleet.must_run(*member))?;
        if let Some(volumes) = fleet.volumes() {
            volumes.switch(&self.down)?.cut()?;
        }
        thread::sleep(Duration::from_millis(dice.below(LINGERS_MS)));
        for member in &self.down {
            // It may or may not have noticed before its end.
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
        // The member does not answer when asked for the leader, or reports that it has stopped.
        let cut = |does: &str| Power::of(Targets::All).begin(&shell(does), &mut Dice::new(1));
        assert!(cut("true").is_ok());
        let stopped = cut("echo stopped of grief");
        assert!(matches!(stopped, Err(HarnessError::Stopped(_))), "{stopped:?}");
    }
}

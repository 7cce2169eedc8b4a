//! Nemeses that cut the power of members. After a power cut, a member's file system contains only the data that was
//! synced.
//!
//! Each member has its own small file system ([`volume`](crate::volume)). A power cut shuts that file system down
//! without flushing. These nemeses need root, loop devices and perl.

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

/// Size of the file system of a member, in bytes. The disk of the member loses unflushed data.
const VOLUME_BYTES: u64 = 320 << 20;

/// Maximum time between the power cut of a disk and the kill of the process that uses it, in milliseconds.
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
        // From now on a node may notice the power cut and stop. The node must not have stopped before.
        self.down.iter().try_for_each(|member| fleet.must_run(*member))?;
        if let Some(volumes) = fleet.volumes() {
            volumes.switch(&self.down)?.cut()?;
        }
        thread::sleep(Duration::from_millis(dice.below(LINGERS_MS)));
        for member in &self.down {
            // The node may or may not have noticed the power cut before its process was killed.
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
    use crate::fleet::tests::{says, shell};
    use crate::wire::Message;

    #[test]
    fn node_that_stopped_before_the_power_cut_is_reported() {
        // In this test, the member does not answer when asked for the leader, or reports that it has stopped.
        let cut = |does: &str| Power::of(Targets::All).begin(&shell(does), &mut Dice::new(1));
        assert!(cut("true").is_ok());
        let stopped = cut(&says(&Message::Stopped("of grief".to_owned())));
        assert!(matches!(stopped, Err(HarnessError::Stopped(_))), "{stopped:?}");
    }
}

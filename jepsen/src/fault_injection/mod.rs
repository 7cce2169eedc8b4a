//! Fault injection inside the process of a node: its disk and its clock. The harness controls the faults by
//! [`Order::Fault`](crate::Order::Fault).
//!
//! | order | effect |
//! |---|---|
//! | `close` | ends all faults; a clock that is ahead stays ahead |
//! | `slow-sync 20` | every sync takes 20 ms longer |
//! | `slow-write 20` | every write takes 20 ms longer |
//! | `full` | no file can grow or be created |
//! | `room` | ends `full`: files can grow again |
//! | `no-sync` | every sync reports success without syncing |
//! | `fail-sync` | every sync fails |
//! | `fail-write` | every write fails |
//! | `failures` | injects no fault; returns the number of failed writes and syncs of the log |
//! | `clock-rate 1080` | the node's clock advances by 1080 ms per second of the machine's clock |
//! | `clock-jump 2000` | the node's clock jumps forward by 2000 ms; the clock never goes back |
//!
//! These faults need no privileges on the machine. Faults that need a real file system, such as the loss of unsynced
//! data, are in [`volume`](crate::volume).

mod clock;
mod disk;

use std::sync::Arc;
use std::time::Duration;

use bowline::env::{Env, Points};

use clock::BentClock;
use disk::FaultyDisk;

/// The fault injection of a node. At first, no fault is active.
#[derive(Debug, Default)]
pub struct FaultInjection {
    clock: Arc<BentClock>,
    disk: Arc<disk::Faults>,
}

impl FaultInjection {
    /// Returns the environment of the node with these faults.
    pub fn env(self: &Arc<Self>, points: Arc<dyn Points>) -> Env {
        let disk = Arc::new(FaultyDisk::new(Arc::clone(&self.disk)));
        Env { points, disk, clock: Arc::clone(&self.clock) as _, ..Env::real() }
    }

    /// Runs an order of the harness and returns the answer, if the order has one.
    ///
    /// # Errors
    ///
    /// Returns an error if the order is unknown.
    pub fn order(&self, words: &str) -> Result<Option<u64>, String> {
        let nonsense = || format!("unknown fault order {words:?}");
        let (door, number) = match words.split(' ').collect::<Vec<_>>()[..] {
            [door] => (door, 0),
            [door, number] => (door, number.parse().map_err(|_| nonsense())?),
            _ => return Err(nonsense()),
        };
        let span = Duration::from_millis(number);
        match door {
            "close" => {
                self.disk.set(disk::State::default());
                self.clock.rate(1000);
            }
            "slow-sync" => self.disk.change(|state| state.sync_takes = span),
            "slow-write" => self.disk.change(|state| state.write_takes = span),
            "full" => self.disk.change(|state| state.full = true),
            "room" => self.disk.change(|state| state.full = false),
            "no-sync" => self.disk.change(|state| state.syncs_lie = true),
            "fail-sync" => self.disk.change(|state| state.syncs_fail = true),
            "fail-write" => self.disk.change(|state| state.writes_fail = true),
            "clock-rate" => self.clock.rate(u32::try_from(number).map_err(|_| nonsense())?),
            "clock-jump" => self.clock.jump(span),
            "failures" => return Ok(Some(self.disk.failed())),
            _ => return Err(nonsense()),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_fault_commands_are_rejected() {
        let doors = FaultInjection::default();
        for words in [
            "close",
            "slow-sync 20",
            "no-sync",
            "full",
            "room",
            "clock-rate 900",
            "clock-jump 5",
            "close",
        ] {
            assert_eq!(doors.order(words), Ok(None), "{words}");
        }
        assert_eq!(doors.order("failures"), Ok(Some(0)));
        for words in ["", "slow-sync x", "slow-sync 1 2", "clock-rate -1", "window"] {
            assert!(doors.order(words).is_err(), "{words}");
        }
    }
}

//! Nemeses for slow, full and dead disks. These nemeses use the fault injection inside the processes
//! ([`fault_injection`](crate::fault_injection)) and need no privileges.

use std::thread;
use std::time::{Duration, Instant};

use super::targets::{Targets, names};
use super::{Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::driver::FAILURES;
use crate::fleet::Fleet;
use crate::process::HarnessError;
use crate::wire::Order;

pub(super) const SLOW: Kind = Kind {
    name: "disk-slow",
    about: "every sync takes 20 to 1000 ms longer, on some or all disks",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Slow { slow: Vec::new(), struck: 0 }),
};

pub(super) const FULL: Kind = Kind {
    name: "disk-full",
    about: "no file can grow, on one disk or on those of the largest minority",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Full { full: Vec::new(), struck: 0 }),
};

pub(super) const DEAD: Kind = Kind {
    name: "disk-dead",
    about: "every write or every sync of one member fails: its node must stop by itself, and is restarted later",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Dead::new()),
};

/// Maximum and minimum additional time of a slow sync, in milliseconds.
const SLOW_MS: u64 = 1000;
const SLOW_MS_MIN: u64 = 20;

struct Slow {
    slow: Vec<usize>,
    struck: u64,
}

impl Nemesis for Slow {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        let whom = [Targets::One, Targets::Minority, Targets::All][dice.one_of(3)];
        self.slow = whom.draw(fleet, dice);
        let takes_ms = SLOW_MS_MIN + dice.below(SLOW_MS - SLOW_MS_MIN);
        self.struck += fleet.doors(&self.slow, &format!("slow-sync {takes_ms}"))?;
        let whose = names(fleet, &self.slow);
        Ok(format!("makes the syncs of {whose} {takes_ms} ms slower"))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        fleet.doors(&std::mem::take(&mut self.slow), "slow-sync 0").map(drop)
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

struct Full {
    full: Vec<usize>,
    struck: u64,
}

impl Nemesis for Full {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        let whom = [Targets::One, Targets::Minority][dice.one_of(2)];
        self.full = whom.draw(fleet, dice);
        self.struck += fleet.doors(&self.full, "full")?;
        Ok(format!("fills the disks of {}", names(fleet, &self.full)))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        fleet.doors(&std::mem::take(&mut self.full), "room").map(drop)
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

/// Maximum time to wait for a disk call that fails. A node that writes nothing does not notice the fault.
const FAILS_WITHIN: Duration = Duration::from_secs(3);

/// Maximum time from a failed disk call until the node has stopped. On an idle machine the node stops at once.
const STOPS_WITHIN: Duration = Duration::from_secs(20);

/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Beginning of the message of a node that stops because of its disk.
const LAST_WORDS: &str = "disk error: cannot";

/// Maximum number of failed log calls of a node that stops: the first, and one that was in flight at the same time.
const FAILURES_MAX: u64 = 2;

/// Key of a row that the nemesis itself writes if no client writes.
const SCRAP: &str = "scrap/disk-dead";

struct Dead {
    down: Option<usize>,
    struck: u64,
    fails_within: Duration,
    stops_within: Duration,
}

impl Dead {
    fn new() -> Self {
        let (fails_within, stops_within) = (FAILS_WITHIN, STOPS_WITHIN);
        Self { down: None, struck: 0, fails_within, stops_within }
    }

    /// Waits until a node with a failing disk has stopped, if a failed call requires that it stop. Returns the number
    /// of failed calls, or `None` if the process of the node has ended.
    fn await_its_stop(&self, fleet: &Fleet, member: usize) -> Result<Option<u64>, HarnessError> {
        let continues = || fleet.process(member).is_some_and(|process| !process.is_over());
        for limit in [self.fails_within, self.stops_within] {
            let begun = Instant::now();
            while continues() && begun.elapsed() < limit {
                thread::sleep(CHECK_INTERVAL);
            }
            if !continues() || fleet.disk_failures(member)? == Some(0) {
                break;
            }
        }
        fleet.disk_failures(member)
    }

    fn strike(
        &mut self,
        fleet: &Fleet,
        member: usize,
        door: &str,
    ) -> Result<&'static str, HarnessError> {
        fleet.must_run(member)?;
        fleet.door(member, door)?;
        self.down = Some(member);
        let mut failed = self.await_its_stop(fleet, member)?;
        if failed == Some(0) {
            // The node has not used its disk during the fault yet, so make it write. The write succeeds only if the
            // other members are reachable.
            drop(fleet.process(member).map(|process| process.ask(&Order::Put(SCRAP.to_owned()))));
            failed = self.await_its_stop(fleet, member)?;
        }
        match (fleet.reap(member)?, failed) {
            (Some(why), _) if !why.contains(LAST_WORDS) => {
                Err(HarnessError::Stopped(format!("m{member} with a dead disk: {why}")))
            }
            (Some(why), _) => {
                let failures = why.split_once(FAILURES).and_then(|(_, count)| count.parse().ok());
                if failures.is_some_and(|failures: u64| failures > FAILURES_MAX) {
                    let why = format!(
                        "m{member} continued with a dead disk ({door}) before it stopped: {why}"
                    );
                    return Err(HarnessError::Stopped(why));
                }
                self.struck += 1;
                Ok("its node has stopped")
            }
            (None, Some(0)) => Ok("nothing was written"),
            (None, failed) => Err(HarnessError::Stopped(format!(
                "m{member} did not stop by itself, although its disk was dead ({door}) and {} calls of its log had \
                 failed",
                failed.map_or_else(|| "some".to_owned(), |failed| failed.to_string())
            ))),
        }
    }
}

impl Nemesis for Dead {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        let Some(member) = Targets::One.draw(fleet, dice).pop() else {
            return Ok("no member available".to_owned());
        };
        let whose = names(fleet, &[member]);
        let door = ["fail-sync", "fail-write"][dice.one_of(2)];
        let came = self.strike(fleet, member, door)?;
        Ok(format!("kills the disk of {whose} ({door}); {came}"))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        self.down.take().map_or(Ok(()), |member| fleet.restart(member))
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::tests::{answers, says, shell};
    use crate::wire::{Answer, Message};

    /// Runs the dead-disk fault on a member that reports this number of failures and answers `opened` to the fault
    /// order.
    fn dead(failures: u64, opened: &str) -> Result<&'static str, HarnessError> {
        let counted = answers(&Answer::Done(failures));
        let armed = answers(&Answer::Armed);
        let does = format!("case $order in *failures*) {counted};; *) {armed}; {opened};; esac");
        let short = Duration::from_millis(100);
        let mut dead = Dead { fails_within: short, stops_within: short, ..Dead::new() };
        dead.strike(&shell(&does), 0, "fail-sync")
    }

    #[test]
    fn node_that_survives_a_failed_disk_is_detected() {
        let continues = dead(3, "true");
        assert!(
            matches!(&continues, Err(HarnessError::Stopped(why)) if why.contains("3 calls")),
            "{continues:?}"
        );
        assert_eq!(dead(0, "true").unwrap(), "nothing was written");
        let stopped = |why: &str| says(&Message::Stopped(why.to_owned()));
        let why = "disk error: cannot sync 0000000001.log";
        assert_eq!(dead(3, &stopped(why)).unwrap(), "its node has stopped");
        let after = |failures: u64| dead(failures, &stopped(&format!("{why}{FAILURES}{failures}")));
        assert_eq!(after(FAILURES_MAX).unwrap(), "its node has stopped");
        let later = after(FAILURES_MAX + 1);
        assert!(matches!(later, Err(HarnessError::Stopped(_))), "{later:?}");
        let otherwise = dead(3, &stopped("of grief"));
        assert!(matches!(otherwise, Err(HarnessError::Stopped(_))), "{otherwise:?}");
        let without_a_word = dead(3, "exit 0");
        assert!(matches!(without_a_word, Err(HarnessError::Ended(_))), "{without_a_word:?}");
    }
}

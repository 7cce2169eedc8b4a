//! Disks that are slow, full or dead, through the [`doors`](crate::doors) of the processes: no rights needed.

use std::thread;
use std::time::{Duration, Instant};

use super::whom::{Whom, names};
use super::{Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::process::Trouble;

pub(super) const SLOW: Kind = Kind {
    name: "disk-slow",
    about: "every sync takes 20 to 1000 ms longer, on some of the disks or on all",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Slow { slow: Vec::new() }),
};

pub(super) const FULL: Kind = Kind {
    name: "disk-full",
    about: "nothing grows any more, on one of the disks or on as many as may fail",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Full { full: Vec::new() }),
};

pub(super) const DEAD: Kind = Kind {
    name: "disk-dead",
    about: "every write or every sync of one member fails: its node must stop by itself, and starts again later",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Dead { down: None }),
};

/// What a slow sync takes at most, in milliseconds, and at least.
const SLOW_MS: u64 = 1000;
const SLOW_MS_MIN: u64 = 20;

struct Slow {
    slow: Vec<usize>,
}

impl Nemesis for Slow {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, Trouble> {
        let whom = [Whom::One, Whom::Minority, Whom::All][dice.one_of(3)];
        self.slow = whom.draw(fleet, dice);
        let takes_ms = SLOW_MS_MIN + dice.below(SLOW_MS - SLOW_MS_MIN);
        for member in &self.slow {
            fleet.door(*member, &format!("slow-sync {takes_ms}"))?;
        }
        let whose = names(fleet, &self.slow);
        Ok(format!("makes the syncs of {whose} {takes_ms} ms slower"))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), Trouble> {
        self.slow.drain(..).try_for_each(|member| fleet.door(member, "slow-sync 0"))
    }
}

struct Full {
    full: Vec<usize>,
}

impl Nemesis for Full {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, Trouble> {
        let whom = [Whom::One, Whom::Minority][dice.one_of(2)];
        self.full = whom.draw(fleet, dice);
        self.full.iter().try_for_each(|member| fleet.door(*member, "full"))?;
        Ok(format!("fills the disks of {}", names(fleet, &self.full)))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), Trouble> {
        self.full.drain(..).try_for_each(|member| fleet.door(member, "room"))
    }
}

/// How long a node may go on whose disk fails: it finds out when it writes the next time.
const FOUND_OUT_WITHIN: Duration = Duration::from_secs(3);

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a node says that stops for its disk.
const LAST_WORDS: &str = "the disk failed to";

struct Dead {
    down: Option<usize>,
}

impl Nemesis for Dead {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, Trouble> {
        let Some(member) = Whom::One.draw(fleet, dice).pop() else {
            return Ok("finds nobody".to_owned());
        };
        let whose = names(fleet, &[member]);
        let door = ["fail-sync", "fail-write"][dice.one_of(2)];
        fleet.door(member, door)?;
        let begun = Instant::now();
        let goes_on = || fleet.process(member).is_some_and(|process| !process.is_over());
        while goes_on() && begun.elapsed() < FOUND_OUT_WITHIN {
            thread::sleep(LOOK_EVERY);
        }
        self.down = Some(member);
        match fleet.bury_however(member)? {
            Some(why) if !why.contains(LAST_WORDS) => {
                Err(Trouble::Stopped(format!("m{member}, whose disk is dead: {why}")))
            }
            Some(_) => Ok(format!("lets the disk of {whose} die ({door}); its node has stopped")),
            None => Ok(format!("lets the disk of {whose} die ({door}); nothing was written")),
        }
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), Trouble> {
        self.down.take().map_or(Ok(()), |member| fleet.restart(member))
    }
}

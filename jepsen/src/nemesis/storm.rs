//! Things that an operator does now and then, done all the time: handing over the leadership, compaction,
//! backups, snapshots for members that lag, restarts in good order one after the other.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bowline::backup;

use super::whom::Whom;
use super::{Kind, Nemesis, Wants, anywhere};
use crate::calls::Call;
use crate::dice::Dice;
use crate::fleet::{Fleet, Setup};
use crate::links::{Cut, Rule};
use crate::over::Over;
use crate::process::Trouble;
use crate::wire::{Answer, Order};

pub(super) const TRANSFER: Kind = Kind {
    name: "transfer",
    about: "the leader hands over, again and again",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Transfer),
};

pub(super) const COMPACTION: Kind = Kind {
    name: "compaction",
    about: "history is compacted up to the present, many times a second",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Compaction),
};

pub(super) const SNAPSHOTS: Kind = Kind {
    name: "snapshots",
    about: "one member after the other is cut off until the log does not reach it, and backups are taken meanwhile",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Snapshots { cut_off: None }),
};

pub(super) const ROLLING: Kind = Kind {
    name: "rolling-restart",
    about: "one member after the other is stopped in good order and started again",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Rolling { next: 0 }),
};

/// How long a call of a nemesis may take: an answer that does not come is none of its business.
const CALL_LIMIT: Duration = Duration::from_millis(800);

/// What lies between two of them at most, in milliseconds.
const TRANSFER_EVERY_MS: u64 = 700;
const COMPACT_EVERY_MS: u64 = 60;
const SNAPSHOT_EVERY_MS: u64 = 800;
const RESTART_EVERY_MS: u64 = 400;

fn up_to(dice: &mut Dice, most_ms: u64) -> Duration {
    Duration::from_millis(1 + dice.below(most_ms))
}

struct Transfer;

impl Nemesis for Transfer {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, Trouble> {
        Ok("hands over, again and again".to_owned())
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, Trouble> {
        if let Some((leader, _)) = fleet.leader() {
            // It may refuse: nobody has caught up, or it leads no more.
            drop(fleet.ask(leader, &Order::Call(Box::new(Call::Transfer)), CALL_LIMIT));
        }
        Ok(up_to(dice, TRANSFER_EVERY_MS))
    }

    fn end(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<(), Trouble> {
        Ok(())
    }
}

struct Compaction;

impl Nemesis for Compaction {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, Trouble> {
        Ok("compacts all the time".to_owned())
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, Trouble> {
        if let Some(member) = Whom::One.draw(fleet, dice).pop() {
            let keep = dice.below(3);
            // It may be down, or have nobody to ask.
            let _is_done = fleet.compact(member, keep, CALL_LIMIT);
        }
        Ok(up_to(dice, COMPACT_EVERY_MS))
    }

    fn end(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<(), Trouble> {
        Ok(())
    }
}

struct Snapshots {
    cut_off: Option<usize>,
}

impl Snapshots {
    fn join(&mut self, fleet: &Fleet) {
        if let Some(member) = self.cut_off.take() {
            set_cut(fleet, member, None);
        }
    }
}

impl Nemesis for Snapshots {
    fn prepare(&self, setup: &mut Setup) {
        setup.proxied = true;
    }

    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, Trouble> {
        Ok("lets members lag behind the log, and takes backups".to_owned())
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, Trouble> {
        if self.cut_off.is_some() {
            self.join(fleet);
        } else if let Some(member) = Whom::One.draw(fleet, dice).pop() {
            set_cut(fleet, member, Some(Cut::Refused));
            self.cut_off = Some(member);
        }
        if let Some(member) = Whom::One.draw(fleet, dice).pop() {
            back_up(fleet, member)?;
        }
        Ok(up_to(dice, SNAPSHOT_EVERY_MS))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), Trouble> {
        self.join(fleet);
        Ok(())
    }
}

/// Cuts a member off from all others, or joins it with them again.
fn set_cut(fleet: &Fleet, member: usize, cut: Option<Cut>) {
    for other in (0..fleet.places()).filter(|other| *other != member) {
        for (from, to) in [(member, other), (other, member)] {
            let rule = fleet.links().rule(from, to);
            fleet.links().set(from, to, Rule { cut, ..rule });
        }
    }
}

/// Takes a backup of a member that runs. What it says that it has written must be sound.
fn back_up(fleet: &Fleet, member: usize) -> Result<(), Trouble> {
    let file = fleet.dir(member).with_extension("backup");
    let call = Call::Backup { file: file.to_string_lossy().into_owned() };
    let answer = fleet.ask(member, &Order::Call(Box::new(call)), CALL_LIMIT);
    if let Some(Answer::Came(_)) = answer {
        let is_sound = match fleet.setup().over {
            Over::Embedded => backup::verify(&file).map(drop).map_err(|why| why.to_string()),
            Over::Server => is_sound(fleet, &file)?,
        };
        is_sound.map_err(|why| Trouble::Backup(format!("m{member}'s: {why}")))?;
    }
    Ok(())
}

/// What the server's own program says of a snapshot, which ends with a hash as etcd's do.
fn is_sound(fleet: &Fleet, file: &Path) -> Result<Result<(), String>, Trouble> {
    let said = Command::new(fleet.program()).args(["snapshot", "status"]).arg(file).output();
    let said = said.map_err(|source| Trouble::System { what: "looking at a snapshot", source })?;
    Ok(match said.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&said.stderr).into_owned()),
    })
}

struct Rolling {
    next: usize,
}

impl Nemesis for Rolling {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, Trouble> {
        Ok("restarts one after the other".to_owned())
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, Trouble> {
        let up = fleet.up();
        if let Some(member) = up.get(self.next % up.len().max(1)) {
            self.next += 1;
            fleet.stop(*member)?;
            fleet.restart(*member)?;
        }
        Ok(up_to(dice, RESTART_EVERY_MS))
    }

    fn end(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<(), Trouble> {
        Ok(())
    }
}

//! Nemeses that constantly repeat operations that operators normally do occasionally: leadership transfers,
//! compactions, backups, snapshots for lagging members, and rolling restarts.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bowline::backup;

use super::targets::Targets;
use super::{Kind, Nemesis, Wants, anywhere};
use crate::calls::Call;
use crate::dice::Dice;
use crate::fleet::{Fleet, ProcessState, Setup};
use crate::links::{Cut, Links, Rule};
use crate::over::Over;
use crate::process::HarnessError;

pub(super) const TRANSFER: Kind = Kind {
    name: "transfer",
    about: "leadership is transferred repeatedly",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Transfer { struck: 0 }),
};

pub(super) const COMPACTION: Kind = Kind {
    name: "compaction",
    about: "history is compacted up to the present many times a second",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Compaction { struck: 0 }),
};

pub(super) const SNAPSHOTS: Kind = Kind {
    name: "snapshots",
    about: "one member after the other is cut off until it needs a snapshot, while backups are taken",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Snapshots::default()),
};

pub(super) const ROLLING: Kind = Kind {
    name: "rolling-restart",
    about: "one member after the other is shut down gracefully and restarted",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    alone: false,
    possible: anywhere,
    make: || Box::new(Rolling { next: 0, struck: 0 }),
};

/// Deadline of a call of a nemesis. The nemesis ignores missing replies.
const CALL_LIMIT: Duration = Duration::from_millis(800);

/// Maximum pause between two transfers, in milliseconds.
const TRANSFER_EVERY_MS: u64 = 700;
const COMPACT_EVERY_MS: u64 = 60;
const SNAPSHOT_EVERY_MS: u64 = 800;
const RESTART_EVERY_MS: u64 = 400;

fn up_to(dice: &mut Dice, most_ms: u64) -> Duration {
    Duration::from_millis(1 + dice.below(most_ms))
}

struct Transfer {
    struck: u64,
}

impl Nemesis for Transfer {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, HarnessError> {
        Ok("transfers leadership repeatedly".to_owned())
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, HarnessError> {
        if let Some((leader, _)) = fleet.leader() {
            // The leader may reject the transfer because no member has caught up, or because it no longer leads.
            let moved = fleet.call(leader, Call::Transfer, CALL_LIMIT).is_some();
            self.struck += u64::from(moved);
        }
        Ok(up_to(dice, TRANSFER_EVERY_MS))
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

struct Compaction {
    struck: u64,
}

impl Nemesis for Compaction {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, HarnessError> {
        Ok("compacts repeatedly".to_owned())
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, HarnessError> {
        if let Some(member) = Targets::One.draw(fleet, dice).pop() {
            let keep = dice.below(3);
            // The member may be down or have no connection to a quorum.
            self.struck += u64::from(fleet.compact(member, keep, CALL_LIMIT));
        }
        Ok(up_to(dice, COMPACT_EVERY_MS))
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

#[derive(Default)]
struct Snapshots {
    /// The links that this nemesis has cut.
    cut: Vec<(usize, usize)>,
    /// Number of times that a member was cut off.
    lags: u64,
    /// Number of backups that were taken and verified.
    backups: u64,
}

impl Snapshots {
    /// Cuts a member off from all others, except where links are already cut.
    fn cut_off(&mut self, links: &Links, member: usize, places: usize) {
        for other in (0..places).filter(|other| *other != member) {
            for (from, to) in [(member, other), (other, member)] {
                if links.rule(from, to).cut.is_none() {
                    links.cut_so(from, to, Cut::Refused);
                    self.cut.push((from, to));
                }
            }
        }
        self.lags += 1;
    }

    /// Restores the links that this nemesis has cut, and no others.
    fn join(&mut self, links: &Links) {
        for (from, to) in self.cut.drain(..) {
            links.set(from, to, Rule { cut: None, ..links.rule(from, to) });
        }
    }
}

impl Nemesis for Snapshots {
    fn prepare(&self, setup: &mut Setup) {
        setup.proxied = true;
    }

    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, HarnessError> {
        Ok(format!("makes members lag and takes backups ({} so far)", self.backups))
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, HarnessError> {
        if !self.cut.is_empty() {
            self.join(fleet.links());
        } else if let Some(member) = Targets::One.draw(fleet, dice).pop() {
            self.cut_off(fleet.links(), member, fleet.places());
        }
        if let Some(member) = Targets::One.draw(fleet, dice).pop() {
            self.backups += u64::from(back_up(fleet, member)?);
        }
        Ok(up_to(dice, SNAPSHOT_EVERY_MS))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        self.join(fleet.links());
        Ok(())
    }

    /// Returns zero unless both parts of the nemesis had an effect.
    fn struck(&self) -> u64 {
        self.lags.min(self.backups)
    }
}

/// Makes a backup of a running member. If the member confirms the backup, verifies it. Returns whether the member
/// confirmed.
fn back_up(fleet: &Fleet, member: usize) -> Result<bool, HarnessError> {
    let file = fleet.dir(member).with_extension("backup");
    let call = Call::Backup { file: file.to_string_lossy().into_owned() };
    if fleet.call(member, call, CALL_LIMIT).is_none() {
        return Ok(false);
    }
    let is_sound = match fleet.setup().over {
        Over::Embedded => backup::verify(&file).map(drop).map_err(|why| why.to_string()),
        Over::Server => is_sound(fleet, &file)?,
    };
    is_sound.map_err(|why| HarnessError::Backup(format!("m{member}: {why}")))?;
    Ok(true)
}

/// Verifies a snapshot with the server program. The snapshot ends with a hash, like a snapshot of etcd.
fn is_sound(fleet: &Fleet, file: &Path) -> Result<Result<(), String>, HarnessError> {
    let said = Command::new(fleet.program()).args(["snapshot", "status"]).arg(file).output();
    let said = said.map_err(HarnessError::system("cannot verify a snapshot"))?;
    Ok(match said.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&said.stderr).into_owned()),
    })
}

struct Rolling {
    next: usize,
    struck: u64,
}

impl Nemesis for Rolling {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, HarnessError> {
        Ok("restarts members one after the other".to_owned())
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, HarnessError> {
        let up = fleet.up();
        if let Some(member) = up.get(self.next % up.len().max(1)) {
            self.next += 1;
            // The operator of the workload may be stopping an additional member, or may just have stopped it.
            let held = fleet.try_hold(*member).filter(|_| fleet.being(*member) == ProcessState::Up);
            let Some(_held) = held else { return Ok(up_to(dice, RESTART_EVERY_MS)) };
            fleet.stop(*member)?;
            fleet.spawn(*member)?;
            self.struck += 1;
            // A joining member is admitted by a quorum, which another fault may prevent.
            if *member < fleet.members() {
                fleet.await_ready(*member)?;
            }
        }
        Ok(up_to(dice, RESTART_EVERY_MS))
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Answer;
    use crate::fleet::tests::{answers, per_order, shells};

    #[test]
    fn snapshot_nemesis_heals_only_its_own_cuts() {
        let (links, mut snapshots) = (Links::default(), Snapshots::default());
        links.part(&[2], &[0, 1]);
        snapshots.cut_off(&links, 0, 3);
        let cut = |from, to| links.rule(from, to).cut;
        assert_eq!((cut(0, 1), cut(1, 0)), (Some(Cut::Refused), Some(Cut::Refused)));
        assert_eq!((cut(0, 2), cut(2, 0)), (Some(Cut::Silent), Some(Cut::Silent)));
        snapshots.join(&links);
        assert_eq!((cut(0, 1), cut(1, 0)), (None, None));
        for (from, to) in [(0, 2), (2, 0), (1, 2), (2, 1)] {
            assert_eq!(cut(from, to), Some(Cut::Silent), "{from} {to}");
        }
    }

    #[test]
    fn failed_backups_do_not_count() {
        let mut snapshots = Snapshots { lags: 5, ..Snapshots::default() };
        assert_eq!(snapshots.struck(), 0);
        snapshots.backups = 2;
        assert_eq!(snapshots.struck(), 2);
    }

    #[test]
    fn rolling_restart_skips_a_member_held_by_another_nemesis() {
        let follower = answers(&Answer::Status { leads: false, term: 1, leader: None });
        let fleet = shells(&per_order(&follower), 1, 0);
        fleet.restart(0).unwrap();
        let (mut rolling, mut dice) = (Rolling { next: 0, struck: 0 }, Dice::new(1));
        let held = fleet.hold(0);
        rolling.step(&fleet, &mut dice).unwrap();
        assert_eq!(rolling.struck(), 0);
        drop(held);
        rolling.step(&fleet, &mut dice).unwrap();
        assert_eq!(rolling.struck(), 1);
    }
}

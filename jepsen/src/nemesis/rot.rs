//! Nemeses that flip bits in the files of a stopped member: in its log, its snapshots, or its warm copy.
//!
//! `docs/operating/disks.md` describes how a member must react to damage. Either the member starts with complete data,
//! and fetches from the leader what was damaged. Or the member refuses to start, or stops later when the leader finds
//! the damage, and reports that its data is damaged. In that case its directory is discarded and a new member replaces
//! it.
//!
//! Damage affects only a minority of the members, and only while another member that has all data leads. A concurrent
//! fault could destroy the last intact copy, so this nemesis is never mixed with others.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::targets::{Targets, names};
use super::{Kind, Nemesis, Wants, anywhere};
use crate::calls::Call;
use crate::dice::Dice;
use crate::fleet::{Fleet, Setup};
use crate::process::{HarnessError, LIMIT};
use crate::wire::{Answer, Order};

pub(super) const LOG: Kind = Kind {
    name: "rot-log",
    about: "bits flip in the logs of the largest minority while it is down",
    wants: Wants::QUORUM_STAYS,
    alone: true,
    possible: anywhere,
    make: || Box::new(Rot::of(What::Log)),
};

pub(super) const SNAPSHOT: Kind = Kind {
    name: "rot-snapshot",
    about: "bits flip in the snapshots of the largest minority while it is down",
    wants: Wants::QUORUM_STAYS,
    alone: true,
    possible: anywhere,
    make: || Box::new(Rot::of(What::Snapshot)),
};

pub(super) const WARM: Kind = Kind {
    name: "rot-warm",
    about: "bits flip in the warm copies of the largest minority while it is down",
    wants: Wants::QUORUM_STAYS,
    alone: true,
    possible: anywhere,
    make: || Box::new(Rot::of(What::Warm)),
};

/// Environment variable that makes a node process keep a warm copy.
pub const WARM_COPY: &str = "JEPSEN_WARM_COPY";

/// Maximum time to wait for snapshots, maximum time to wait for one of the writes that make snapshots due, and number
/// of concurrent writes.
const TAKEN_WITHIN: Duration = Duration::from_secs(8);
const PUT_WITHIN: Duration = Duration::from_millis(800);
const PUTS_AT_ONCE: usize = 4;
const PUT_BYTES: usize = 8 << 10;

/// Maximum number of flipped bits.
const BITS: u64 = 16;

/// Texts in the messages of a member that has stopped because damage was found, at its start or by the leader.
const LAST_WORDS: [&str; 2] = ["log damaged at byte", "synced entries are lost"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Log,
    Snapshot,
    Warm,
}

impl What {
    fn is(self, file: &Path) -> bool {
        let ends = |end: &str| file.extension().is_some_and(|extension| extension == end);
        match self {
            What::Log => ends("log"),
            What::Snapshot => ends("snapshot"),
            What::Warm => file.components().any(|part| part.as_os_str() == "warm"),
        }
    }

    /// Flips bits in the files of this kind in a directory. Returns the number of flipped bits.
    fn rot(self, dir: &Path, dice: &mut Dice) -> Result<u64, HarnessError> {
        let system = HarnessError::system("cannot flip bits");
        let mut files = Vec::new();
        find(dir, &mut files).map_err(system)?;
        files.retain(|file| self.is(file));
        files.sort();
        if files.is_empty() {
            return Ok(0);
        }
        let mut flipped = 0;
        for _ in 0..=dice.below(BITS) {
            let file = &files[dice.one_of(files.len())];
            let mut bytes = fs::read(file).map_err(system)?;
            if !bytes.is_empty() {
                let at = dice.one_of(bytes.len());
                bytes[at] ^= 1 << dice.below(8);
                fs::write(file, bytes).map_err(system)?;
                flipped += 1;
            }
        }
        Ok(flipped)
    }
}

/// Makes each of these members take a snapshot, if that is possible within some seconds. When clients write little,
/// members would otherwise take no snapshot for a long time.
fn have_snapshots_taken(fleet: &Fleet, members: &[usize]) {
    let begun = Instant::now();
    // A snapshot is due when the log exceeds a share of the state. Small values add more to the state than to the
    // log.
    let (key, value) = ("scrap/rot".to_owned(), "x".repeat(PUT_BYTES));
    let put = Call::Put { key, value, lease: None };
    let has_one = |member: &usize| {
        let mut files = Vec::new();
        // A file that appears or disappears during this search is noticed by the next one.
        drop(find(fleet.dir(*member), &mut files));
        files.iter().any(|file| What::Snapshot.is(file))
    };
    while !members.iter().all(has_one) && begun.elapsed() < TAKEN_WITHIN {
        let leader = fleet.leader().and_then(|(leader, _)| fleet.process(leader));
        let puts = (0..PUTS_AT_ONCE).filter_map(|_| {
            leader.as_ref().map(|leader| leader.ask(&Order::Call(Box::new(put.clone()))))
        });
        // The outcomes of these writes do not matter.
        puts.collect::<Vec<_>>().into_iter().for_each(|put| drop(put.recv_timeout(PUT_WITHIN)));
    }
}

/// Collects all files below a directory.
fn find(dir: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), found)?;
        } else {
            found.push(entry.path());
        }
    }
    Ok(())
}

struct Rot {
    what: What,
    damaged: Vec<usize>,
    struck: u64,
}

impl Rot {
    fn of(what: What) -> Self {
        Self { what, damaged: Vec::new(), struck: 0 }
    }
}

impl Nemesis for Rot {
    fn prepare(&self, setup: &mut Setup) {
        if self.what == What::Warm {
            setup.variables.push((WARM_COPY.to_owned(), "1".to_owned()));
        }
    }

    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        self.damaged = Targets::Minority.draw(fleet, dice);
        let whose = names(fleet, &self.damaged);
        if self.what == What::Snapshot {
            have_snapshots_taken(fleet, &self.damaged);
        }
        self.damaged.iter().try_for_each(|member| fleet.kill(*member))?;
        fleet.await_leader(LIMIT)?;
        let mut bits = 0;
        for member in &self.damaged {
            bits += self.what.rot(fleet.dir(*member), dice)?;
            fleet.spawn(*member)?;
        }
        self.struck += bits;
        Ok(format!("flips {bits} bits of {whose} ({:?})", self.what))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        for member in self.damaged.drain(..) {
            let Some(process) = fleet.process(member) else { continue };
            // A successful linearizable read shows that the member has caught up, so the leader has found no damage. A
            // member with damage never catches up.
            let has_all = process.ready()?
                && matches!(process.answer(&Order::Status)?, Some(Answer::Status { .. }));
            if has_all && !process.is_over() {
                continue;
            }
            match fleet.reap(member)? {
                Some(why) if LAST_WORDS.iter().any(|words| why.contains(words)) => {
                    fleet.spawn_replacing(member)?;
                    fleet.await_replaced(member)?;
                }
                Some(why) => {
                    return Err(HarnessError::Stopped(format!(
                        "m{member} with flipped bits: {why}"
                    )));
                }
                // The member could not answer the read, for example because there was no leader.
                None => fleet.restart(member)?,
            }
        }
        Ok(())
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_rot_flips_bits_only_in_the_selected_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("warm/copy-1")).unwrap();
        let files = ["0000000001.log", "0000000001-1.snapshot", "warm/copy-1/db", "reserve"];
        let write = || files.map(|file| fs::write(dir.path().join(file), [0; 100]).unwrap());
        let flipped = |file: &str| fs::read(dir.path().join(file)).unwrap() != [0; 100];
        let mut dice = Dice::new(3);
        for (at, what) in [What::Log, What::Snapshot, What::Warm].into_iter().enumerate() {
            write();
            assert!((1..=BITS).contains(&what.rot(dir.path(), &mut dice).unwrap()));
            for (other, file) in files.iter().enumerate() {
                assert_eq!(flipped(file), other == at, "{file}, {what:?}");
            }
        }
        fs::remove_file(dir.path().join(files[0])).unwrap();
        assert_eq!(What::Log.rot(dir.path(), &mut dice).unwrap(), 0);
    }
}

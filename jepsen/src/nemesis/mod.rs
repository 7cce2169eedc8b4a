//! Faults, each by its name: what goes wrong, when it begins and how it ends.
//!
//! ```text
//!   warm up │ begin ─ window ─ end │ rest │ begin ─ window ─ end │ rest │ ... │ heal │ final reads, judges
//! ```
//!
//! A nemesis is told when a window begins and when it ends; the length of both is the run's ([`Pace`]). It does what it does
//! through the [`Fleet`] and draws from the [`Dice`] it is given, so that a seed says whom it hits. Whatever
//! it does it undoes in [`Nemesis::end`]; after the last window the fleet heals what is left.
//!
//! A fault that is many small ones does them in [`Nemesis::step`], inside the window.
//!
//! To write one: a file here with a type, one line in [`ALL`]. `kill.rs` is the shortest. What each of them does, what
//! must hold and what it needs of the machine stands in `docs/assurance/harness.md`.

mod none;

mod kill;
mod pause;
mod power;

mod partition;
mod weather;

mod clock;
mod disk;
mod rot;

mod churn;
mod storm;

mod mixed;

mod targets;

use std::thread;
use std::time::{Duration, Instant};

use crate::dice::Dice;
use crate::fleet::{Fleet, Setup};
use crate::process::HarnessError;

pub use mixed::Mixed;
pub use rot::WARM_COPY;

/// A fault. One value lives through one run.
pub trait Nemesis: Send {
    /// What it needs of the members, before they are started: a door between them, volumes, variables.
    fn prepare(&self, _setup: &mut Setup) {}

    /// Begins a window. Says what it did, and to whom, in a few words for the report.
    ///
    /// # Errors
    /// The harness cannot go on, or a member did what no member may.
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError>;

    /// Inside a window, again and again: does the next of many small things, and says how long to wait before
    /// the one after it. By default there is nothing to do. Takes no longer than some seconds.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn step(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<Duration, HarnessError> {
        Ok(Duration::MAX)
    }

    /// Ends it: whatever [`begin`](Self::begin) and [`step`](Self::step) did is undone, as far as it can be.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn end(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<(), HarnessError>;

    /// How often it has struck until now: members, links, messages, whatever it does things to. What came to nothing does not
    /// count; a run in which nothing was struck says nothing.
    fn struck(&self) -> u64;
}

/// A nemesis in the list of all.
pub struct Kind {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub about: &'static str,
    /// What a run must show for it to have meant something.
    pub wants: Wants,
    /// Whether it is never mixed with others: together they could be more than a cluster promises to bear.
    pub alone: bool,
    /// Whether this machine can do it; else why not. Asked once, before anything is started.
    pub possible: fn() -> Result<(), String>,
    /// A new one.
    pub make: fn() -> Box<dyn Nemesis>,
}

impl Kind {
    /// Whether its windows are any different from the rests.
    pub fn disturbs(&self) -> bool {
        self.name != none::KIND.name
    }
}

/// What a run with a nemesis must show, or it is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wants {
    /// At least one change of the leader, since that is whom it aims at.
    pub leader_change: bool,
    /// At least one operation that ends well inside each of its windows: what it does leaves a quorum.
    pub progress_inside: bool,
    /// The fewest members with which it does anything.
    pub members_min: usize,
}

impl Wants {
    /// Of a fault that leaves a quorum of three at work.
    pub const QUORUM_STAYS: Self =
        Self { leader_change: false, progress_inside: true, members_min: 3 };
    /// Of one that stops everything for a while.
    pub const ALL_STOP: Self =
        Self { leader_change: false, progress_inside: false, members_min: 1 };

    /// The same, and leadership changes.
    pub const fn and_leader_change(self) -> Self {
        Self { leader_change: true, ..self }
    }
}

/// How long windows and rests are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// From begin to end.
    pub window: Duration,
    /// From end to begin.
    pub rest: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { window: Duration::from_secs(4), rest: Duration::from_secs(4) }
    }
}

/// Lets a window of a nemesis that has begun pass, with everything that it does in it.
///
/// # Errors
/// Those of [`Nemesis::step`].
pub fn pass(
    nemesis: &mut dyn Nemesis,
    fleet: &Fleet,
    dice: &mut Dice,
    window: Duration,
) -> Result<(), HarnessError> {
    let begun = Instant::now();
    while let Some(left) = window.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        let wait = nemesis.step(fleet, dice)?;
        thread::sleep(wait.min(left));
    }
    Ok(())
}

/// Any machine can.
pub fn anywhere() -> Result<(), String> {
    Ok(())
}

/// Every nemesis there is.
pub const ALL: &[Kind] = &[
    none::KIND,
    kill::ONE,
    kill::MINORITY,
    kill::MAJORITY,
    kill::ALL,
    pause::ONE,
    pause::SHORT,
    pause::ALL,
    power::ONE,
    power::MOST,
    power::ALL,
    partition::HALVES,
    partition::MINORITY,
    partition::LEADER,
    partition::ONE_WAY,
    partition::BRIDGE,
    partition::RING,
    weather::DELAY,
    weather::LOSS,
    weather::DUPLICATES,
    weather::CORRUPTION,
    weather::NARROW,
    clock::RATES,
    clock::JUMPS,
    disk::SLOW,
    disk::FULL,
    disk::DEAD,
    rot::LOG,
    rot::SNAPSHOT,
    rot::WARM,
    churn::KIND,
    storm::TRANSFER,
    storm::COMPACTION,
    storm::SNAPSHOTS,
    storm::ROLLING,
    mixed::KIND,
];

/// The one of this name.
pub fn named(name: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| kind.name == name)
}

/// A member with what it is right now: `m1 (leader)`.
pub fn called(fleet: &Fleet, member: usize) -> String {
    match fleet.leader() {
        Some((leader, _)) if leader == member => format!("m{member} (leader)"),
        _ => format!("m{member}"),
    }
}

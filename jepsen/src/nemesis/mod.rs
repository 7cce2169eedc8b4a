//! The faults by name. A nemesis implements one kind of fault: how the fault begins and how it ends.
//!
//! ```text
//!   warm up │ begin ─ window ─ end │ rest │ begin ─ window ─ end │ rest │ ... │ heal │ final reads, checks
//! ```
//!
//! A *window* is a period with an active fault, and a *rest* is a period without faults. The run determines their
//! lengths ([`Pace`]) and calls the nemesis at the beginning and at the end of each window. The nemesis breaks members
//! through the [`Fleet`] and chooses its targets with the given [`Dice`], so that the seed determines the targets. A
//! nemesis undoes its fault in [`Nemesis::end`]. After the last window, the fleet ends all remaining faults.
//!
//! To write a nemesis, copy `kill.rs`. Register it here with `mod` and an entry in [`ALL`]. [`Kind`] states what must
//! happen in a valid run (`wants`) and whether this machine can inject the fault (`possible`).
//!
//! - `begin` injects the fault and `end` removes it. `step` performs one small action of many (`storm.rs`). `prepare`
//!   runs before the members start. `struck` counts the members that were affected.
//! - The [`Fleet`] can kill, stop, pause and restart members, change links (`links()`), clocks and disks (`door`), cut
//!   power (`volumes()`), and change the files of a stopped member (`dir`).
//! - Any member may be down, paused or isolated by another fault. Before you stop a member that a workload may also
//!   stop, call `try_hold`.
//!
//! Add a test to `jepsen/tests/processes/faults.rs` and a row to the table in `docs/assurance/harness.md`. Tests fail
//! until both exist. `jepsen/tests/proxy.rs` tests each rule of the proxy.

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

/// A fault. One value is used for the whole of a run.
pub trait Nemesis: Send {
    /// Changes the setup of the members before they are started, for example to use a proxy or separate file systems.
    fn prepare(&self, _setup: &mut Setup) {}

    /// Begins a window. Returns a short description with the targets, for the report.
    ///
    /// # Errors
    /// Returns an error if the harness cannot continue, or if a member did something that no member may do.
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError>;

    /// Injects the next of many small faults inside a window. Returns the pause until the next step. Must return
    /// within a few seconds. The default does nothing.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`begin`](Self::begin).
    fn step(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<Duration, HarnessError> {
        Ok(Duration::MAX)
    }

    /// Ends a window: undoes the effects of [`begin`](Self::begin) and [`step`](Self::step) as far as possible. The
    /// default does nothing, for faults that leave nothing to undo.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`begin`](Self::begin).
    fn end(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        Ok(())
    }

    /// Returns the number of targets affected so far: members, links or messages. Faults without effect do not count.
    /// A run in which no target was affected is invalid.
    fn struck(&self) -> u64;
}

/// An entry in the list of nemeses.
pub struct Kind {
    /// Name on the command line.
    pub name: &'static str,
    /// One sentence on the effect of the nemesis.
    pub about: &'static str,
    /// The requirements that a run with the nemesis must meet to be valid.
    pub wants: Wants,
    /// Whether the nemesis must not be combined with others, because together they could exceed the failures that a
    /// cluster tolerates.
    pub alone: bool,
    /// Checks whether this machine supports the nemesis. If not, returns the reason. Called once, before any member is
    /// started.
    pub possible: fn() -> Result<(), String>,
    /// Creates the nemesis.
    pub make: fn() -> Box<dyn Nemesis>,
}

impl Kind {
    /// Returns whether a window of the nemesis differs from a rest.
    pub fn disturbs(&self) -> bool {
        self.name != none::KIND.name
    }
}

/// The requirements that a run with a nemesis must meet to be valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wants {
    /// Whether leadership must change at least once. Set for nemeses that target the leader.
    pub leader_change: bool,
    /// Whether at least one operation must succeed inside each window. Set for nemeses that leave a quorum.
    pub progress_inside: bool,
    /// Minimum number of members with which the nemesis has an effect.
    pub members_min: usize,
}

impl Wants {
    /// The requirements of a fault that leaves a quorum. Such a fault needs at least three members.
    pub const QUORUM_STAYS: Self =
        Self { leader_change: false, progress_inside: true, members_min: 3 };
    /// The requirements of a fault that may prevent the whole cluster from serving requests until it ends.
    pub const ALL_STOP: Self =
        Self { leader_change: false, progress_inside: false, members_min: 1 };

    /// Returns these requirements, and additionally requires a leader change.
    pub const fn and_leader_change(self) -> Self {
        Self { leader_change: true, ..self }
    }
}

/// The lengths of windows (with a fault) and rests (without a fault).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Time from the beginning of a window to its end.
    pub window: Duration,
    /// Time from the end of a window to the beginning of the next.
    pub rest: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { window: Duration::from_secs(4), rest: Duration::from_secs(4) }
    }
}

/// Waits for the length of a window of a nemesis, and runs the steps of the nemesis meanwhile.
///
/// # Errors
///
/// Returns the errors of [`Nemesis::step`].
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

/// Returns `Ok`: the implementation of `possible` for a nemesis that every machine supports.
pub fn anywhere() -> Result<(), String> {
    Ok(())
}

/// Every nemesis.
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

/// Returns the nemesis with this name.
pub fn named(name: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| kind.name == name)
}

/// Returns the name of a member with its current role: `m1 (leader)`.
pub fn called(fleet: &Fleet, member: usize) -> String {
    match fleet.leader() {
        Some((leader, _)) if leader == member => format!("m{member} (leader)"),
        _ => format!("m{member}"),
    }
}

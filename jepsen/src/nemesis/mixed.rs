//! A nemesis that combines other nemeses: in each window it injects one or two randomly chosen faults. Nemeses that
//! must run alone are excluded.

use std::time::{Duration, Instant};

use super::{ALL, Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::{Fleet, Setup};
use crate::over::{self, Over};
use crate::process::HarnessError;

pub(super) const KIND: Kind = Kind {
    name: "mixed",
    about: "one or two of the other nemeses at a time, drawn for each window",
    // A run has only a few windows. A run is valid even if no fault affects the leader, or if every fault leaves the
    // cluster without a quorum.
    wants: Wants { members_min: 3, ..Wants::ALL_STOP },
    alone: true,
    possible: anywhere,
    make: || Box::new(Mixed::of_all()),
};

/// Longer than any window.
const LONG: Duration = Duration::from_secs(3600);

/// One in this many windows has two concurrent faults.
const TWO_IN: u64 = 3;

/// The combination of other nemeses.
pub struct Mixed {
    parts: Vec<(&'static str, Box<dyn Nemesis>)>,
    /// The active nemeses, each with the time of its next step.
    active: Vec<(usize, Instant)>,
}

impl Mixed {
    fn of_all() -> Self {
        Self::of(ALL.iter().filter(|kind| !kind.alone && (kind.possible)().is_ok()))
    }

    /// Returns the nemeses that can be applied to these members.
    fn possible(&self, over: Over) -> Vec<usize> {
        let is_possible =
            |at: &usize| over == Over::Embedded || !over::is_refused(self.parts[*at].0);
        (0..self.parts.len()).filter(is_possible).collect()
    }

    /// Returns a combination of these nemeses.
    pub fn of<'a>(kinds: impl IntoIterator<Item = &'a Kind>) -> Self {
        let parts = kinds.into_iter().map(|kind| (kind.name, (kind.make)())).collect();
        Self { parts, active: Vec::new() }
    }
}

impl Nemesis for Mixed {
    fn prepare(&self, setup: &mut Setup) {
        for at in self.possible(setup.over) {
            self.parts[at].1.prepare(setup);
        }
    }

    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        let possible = self.possible(fleet.setup().over);
        let first = possible[dice.one_of(possible.len())];
        let mut drawn = vec![first];
        // A server is ready only once it knows a leader. A second fault might isolate a restarting server, and the
        // harness would wait for the server until its time limit.
        if fleet.setup().over == Over::Embedded && dice.below(TWO_IN) == 0 {
            let second = possible[dice.one_of(possible.len())];
            drawn.extend(Some(second).filter(|second| *second != first));
        }
        let mut said = Vec::new();
        for at in drawn {
            let (name, part) = &mut self.parts[at];
            said.push(format!("{name}: {}", part.begin(fleet, dice)?));
            self.active.push((at, Instant::now()));
        }
        Ok(said.join("; "))
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, HarnessError> {
        for (at, next) in &mut self.active {
            if *next <= Instant::now() {
                let wait = self.parts[*at].1.step(fleet, dice)?.min(LONG);
                *next = Instant::now() + wait;
            }
        }
        let next = self.active.iter().map(|(_, next)| *next).min();
        Ok(next.map_or(LONG, |next| next.saturating_duration_since(Instant::now())))
    }

    fn end(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<(), HarnessError> {
        // The faults end in the reverse order of their beginning.
        while let Some((at, _)) = self.active.pop() {
            self.parts[at].1.end(fleet, dice)?;
        }
        Ok(())
    }

    fn struck(&self) -> u64 {
        self.parts.iter().map(|(_, part)| part.struck()).sum()
    }
}

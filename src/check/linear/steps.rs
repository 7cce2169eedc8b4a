//! What a search has used up of its budget.

use super::Budget;
use crate::check::verdict::Undecided;

/// How many steps there are between two questions to [`Budget::stop`].
const STEPS_PER_QUESTION: u64 = 4096;

/// Counts a search's steps and configurations.
pub(super) struct Meter<'a> {
    budget: Budget<'a>,
    steps: u64,
    configurations: usize,
}

impl<'a> Meter<'a> {
    pub(super) fn new(budget: Budget<'a>) -> Self {
        Self { budget, steps: 0, configurations: 0 }
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// One step of the model.
    pub(super) fn step(&mut self) -> Result<(), Undecided> {
        if self.steps >= self.budget.steps {
            return Err(Undecided::Steps);
        }
        self.steps += 1;
        let asked = self.steps.is_multiple_of(STEPS_PER_QUESTION);
        match self.budget.stop {
            Some(stop) if asked && stop() => Err(Undecided::Stopped),
            _ => Ok(()),
        }
    }

    /// One more configuration to remember.
    pub(super) fn configuration(&mut self) -> Result<(), Undecided> {
        if self.configurations >= self.budget.configurations {
            return Err(Undecided::Configurations);
        }
        self.configurations += 1;
        Ok(())
    }
}

//! Counts how much of its budget a search has used.

use super::Budget;
use crate::verdict::Undecided;

/// Number of steps between two calls of [`Budget::stop`].
const STEPS_PER_QUESTION: u64 = 4096;

/// A counter for the steps and configurations of a search.
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

    /// Counts one step of the model.
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

    /// Counts one remembered configuration.
    pub(super) fn configuration(&mut self) -> Result<(), Undecided> {
        if self.configurations >= self.budget.configurations {
            return Err(Undecided::Configurations);
        }
        self.configurations += 1;
        Ok(())
    }
}

//! A broken invariant: its name and what was seen.

use std::fmt;

/// A promise that was broken in a simulated world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The short name of the invariant; `docs/assurance/invariants.md` lists them.
    pub invariant: &'static str,
    /// What was seen.
    pub detail: String,
}

impl Violation {
    pub(crate) fn new(invariant: &'static str, detail: impl Into<String>) -> Self {
        Self { invariant, detail: detail.into() }
    }

    pub(crate) fn found<T>(invariant: &'static str, detail: impl Into<String>) -> Result<T, Self> {
        Err(Self::new(invariant, detail))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken: {}", self.invariant, self.detail)
    }
}

impl std::error::Error for Violation {}

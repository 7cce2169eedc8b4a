//! A broken invariant: its name and the observation.

use std::fmt;

/// A broken invariant in a simulated world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The short name of the invariant; `docs/assurance/invariants.md` lists them.
    pub invariant: &'static str,
    /// A description of the observation.
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

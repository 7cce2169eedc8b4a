//! What a checker says of a history. There are three answers, and only one of them is a pass.

use super::history::Index;
use std::fmt;

/// What a checker says of a history.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// There is an explanation.
    Ok,
    /// There is none, and this is why.
    Violation(Box<Counterexample>),
    /// The budget ended before an answer was found. It is not a pass.
    Undecided {
        /// The object that is undecided.
        object: String,
        /// What ended.
        why: Undecided,
        /// How many steps of the model had been tried.
        explored: u64,
    },
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undecided {
    /// [`Budget::steps`](super::Budget::steps) were taken.
    Steps,
    /// [`Budget::configurations`](super::Budget::configurations) were kept.
    Configurations,
    /// The caller's own [`Budget::stop`](super::Budget::stop) said so.
    Stopped,
}

/// A few operations that no order explains, whatever the rest of the history did.
///
/// Nothing was left out to make it small: all other operations of the object were let off, which means that
/// each may take effect at any moment after its call, or never, and have any reply. If that does
/// not help, nothing does. So a read of what nobody wrote is a counterexample alone, and a stale read
/// comes with the write that it missed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counterexample {
    /// The object.
    pub object: String,
    /// The operations that cannot all be true, by their call.
    pub operations: Vec<Index>,
    /// Whether each of them is needed. Else the budget ended before that was known of some.
    pub is_minimal: bool,
    /// How many operations of the object were let off.
    pub let_off: usize,
    /// The longest order that was found, for as many of them as possible; with those let off that help.
    pub order: Vec<Index>,
    /// What the object holds after that order.
    pub state: String,
    /// Those of which one had to be next, and none could.
    pub stuck: Vec<Index>,
}

impl Verdict {
    /// Whether there is an explanation. Undecided is none.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Ok)
    }

    /// Why there is no explanation, if that is certain.
    pub fn violation(&self) -> Option<&Counterexample> {
        match self {
            Self::Violation(counterexample) => Some(counterexample),
            Self::Ok | Self::Undecided { .. } => None,
        }
    }
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Steps => "the budget of steps ended",
            Self::Configurations => "the budget of configurations ended",
            Self::Stopped => "it was stopped",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => write!(f, "ok"),
            Self::Violation(counterexample) => write!(f, "violation: {counterexample}"),
            Self::Undecided { object, why, explored } => {
                write!(f, "undecided: object {object:?}: {why} after {explored} steps")
            }
        }
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, operations, is_minimal, let_off, order, state, stuck } = self;
        let perhaps = if *is_minimal { "" } else { " (perhaps fewer would do)" };
        write!(
            f,
            "object {object:?}: operations {operations:?} fit in no order{perhaps}, whatever the other \
             {let_off} did; after {order:?} the object holds {state}, and none of {stuck:?} can be next"
        )
    }
}

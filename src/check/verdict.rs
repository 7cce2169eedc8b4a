//! What a checker says of a history. There are three answers, and only one of them is a pass.
//!
//! All checkers give this one answer, so that whoever shows it (a line, a page with a picture) needs to know none of
//! them: a [`Counterexample`] names operations by their places in the history that was judged, draws arrows between
//! them, and says why in words.

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
    /// There is no answer. It is not a pass.
    Undecided {
        /// The object that is undecided.
        object: String,
        /// What ended, or is missing.
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
    /// This operation's reply does not say what the checker needs: a revision.
    Silent(Index),
    /// These two transactions wrote the same value to the same key, so that nobody knows who was read.
    Repeated(Index, Index),
    /// Several operations of unknown outcome may have done the same, and what was tried first led nowhere.
    Ambiguous,
    /// No operation was answered: there is nothing that could be wrong.
    Nothing,
    /// No read was answered, by which alone others are judged.
    Unread,
}

/// A few operations that contradict each other.
///
/// Where [`is_minimal`](Self::is_minimal) is true, nothing was left out to make it small: all other operations of
/// the object were let off, which means that each may take effect at any moment after its call, or never,
/// and have any reply. If that does not help, nothing does. So a read of what nobody wrote is a counterexample
/// alone, and a stale read comes with the write that it missed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counterexample {
    /// What is broken, in a few words that are the same for all violations of this kind.
    pub rule: &'static str,
    /// The object.
    pub object: String,
    /// The operations that cannot all be true. [`linear`](super::linear) has them by their calls' moments, others
    /// as [`why`](Self::why) names them.
    pub operations: Vec<Index>,
    /// Whether they contradict each other whatever all others did, and each of them is needed. Else they are where
    /// it was seen that the history has no explanation: fewer may do, or others may belong to it.
    pub is_minimal: bool,
    /// Why, as a sentence in which `#3` is the operation at place 3 of the history, from 0.
    pub why: String,
    /// Arrows from one operation to another, if they make it clearer; where all go one way, there is no order.
    pub links: Vec<Link>,
    /// Where a search for an order got stuck, if there was a search.
    pub dead_end: Option<DeadEnd>,
}

/// One operation comes before another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// What comes first.
    pub before: Index,
    /// What comes later.
    pub after: Index,
    /// Why, in a few words: "had ended", "revision 5 < 7".
    pub why: String,
}

/// Where a search for an order got stuck.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeadEnd {
    /// How many operations of the object were let off.
    pub let_off: usize,
    /// The longest order that was found, for as many operations as possible; with those let off that help.
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

    /// The worse of two verdicts, of parts of one history: a violation, else what is undecided. Of equal ones, this.
    pub fn and(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Violation(_), _)
            | (_, Self::Ok)
            | (Self::Undecided { .. }, Self::Undecided { .. }) => self,
            _ => other,
        }
    }
}

impl Counterexample {
    /// A minimal one, with words.
    pub(super) fn new(
        rule: &'static str,
        object: &str,
        operations: impl Into<Vec<Index>>,
        why: String,
    ) -> Self {
        let (object, operations) = (object.to_owned(), operations.into());
        Self { rule, object, operations, is_minimal: true, why, ..Self::default() }
    }

    /// The same, in which what others did may matter.
    pub(super) fn perhaps(self, is_minimal: bool) -> Self {
        Self { is_minimal, ..self }
    }

    /// The same with an arrow.
    pub(super) fn link(mut self, before: Index, after: Index, why: impl Into<String>) -> Self {
        self.links.push(Link { before, after, why: why.into() });
        self
    }
}

impl From<Counterexample> for Verdict {
    fn from(counterexample: Counterexample) -> Self {
        Self::Violation(Box::new(counterexample))
    }
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps => write!(f, "the budget of steps ended"),
            Self::Configurations => write!(f, "the budget of configurations ended"),
            Self::Stopped => write!(f, "it was stopped"),
            Self::Silent(index) => write!(f, "the reply of #{index} has no revision"),
            Self::Repeated(one, other) => {
                write!(
                    f,
                    "#{one} and #{other} write one value to one key, so that nobody knows who was read"
                )
            }
            Self::Ambiguous => write!(f, "operations of unknown outcome explain too much"),
            Self::Nothing => write!(f, "no operation was answered"),
            Self::Unread => write!(f, "no read was answered"),
        }
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
        let Self { rule, object, operations, is_minimal, why, links: _, dead_end } = self;
        let perhaps = if *is_minimal { "" } else { " (perhaps fewer would do)" };
        write!(f, "object {object:?}: {rule}: operations {operations:?}{perhaps}: {why}")?;
        if let Some(DeadEnd { let_off, order, state, stuck }) = dead_end {
            write!(
                f,
                "; with the other {let_off} let off: after {order:?} the object holds {state}, and none \
                 of {stuck:?} can be next"
            )?;
        }
        Ok(())
    }
}

//! The result of a checker. Of the three verdicts, only [`Verdict::Ok`] is a pass.
//!
//! All checkers share these types, so that a program that shows a result need not know the checker. A
//! [`Counterexample`] names operations by their indices in the history, connects them with arrows, and gives the
//! reason as a sentence.

use super::history::Index;
use std::fmt;

/// The result of a checker.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// Some order explains the history. This includes a history without replies, which any object explains. So a test
    /// must also check that enough operations were [answered](super::Operation::is_answered).
    Ok,
    /// No order explains the history.
    Violation(Box<Counterexample>),
    /// The checker has no result. This is not a pass.
    Undecided {
        /// The object that is undecided.
        object: String,
        /// The reason.
        why: Undecided,
        /// Number of steps of the model that were tried.
        explored: u64,
    },
}

/// A reason for an undecided verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undecided {
    /// The search reached [`Budget::steps`](super::Budget::steps).
    Steps,
    /// The search reached [`Budget::configurations`](super::Budget::configurations).
    Configurations,
    /// [`Budget::stop`](super::Budget::stop) ended the search.
    Stopped,
    /// The reply of this operation lacks the revision, which the checker needs.
    Silent(Index),
    /// These two transactions wrote the same value to the same key, so that reads cannot be matched with writers.
    Repeated(Index, Index),
    /// Several operations of unknown outcome may have had the same effect, and the first choice led to a
    /// contradiction.
    Ambiguous,
    /// No operation has a reply, so there is nothing to check.
    Nothing,
    /// No read has a reply, and only reads can show a violation.
    Unread,
}

/// A few operations that contradict each other.
///
/// If [`is_minimal`](Self::is_minimal) is true, the operations contradict each other even if the outcome of every other
/// operation of the object is treated as unknown. An operation with an unknown outcome may take effect at any time
/// after its call, or never. Since the other operations are not removed, their writes still explain reads. Therefore a
/// read of a value that was never written is a counterexample on its own. The counterexample of a stale read contains
/// the read and the write that it missed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counterexample {
    /// The broken rule, as a short constant text.
    pub rule: &'static str,
    /// The object.
    pub object: String,
    /// The operations that contradict each other. [`linear`](super::linear) sorts them by the time of their calls,
    /// other checkers in the order of [`why`](Self::why).
    pub operations: Vec<Index>,
    /// Whether the operations contradict each other regardless of all others, and each of them is needed. If false,
    /// the operations show where the history has no explanation: fewer operations may be enough, or other
    /// operations may be part of the contradiction.
    pub is_minimal: bool,
    /// The reason, as a sentence in which `#3` is the operation with index 3 in the history.
    pub why: String,
    /// Arrows between operations that illustrate the reason. If they form a cycle, no order exists.
    pub links: Vec<Link>,
    /// The point where the search for an order got stuck, if there was a search.
    pub dead_end: Option<DeadEnd>,
}

/// An arrow: one operation comes before another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The earlier operation.
    pub before: Index,
    /// The later operation.
    pub after: Index,
    /// The reason, in a few words: "had ended", "revision 5 < 7".
    pub why: String,
}

/// The point where a search for an order got stuck.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeadEnd {
    /// Number of operations of the object that were relaxed, that is, treated as if their outcome were unknown.
    pub let_off: usize,
    /// The longest order that was found. The order contains relaxed operations only where they are
    /// needed.
    pub order: Vec<Index>,
    /// The state of the object after that order.
    pub state: String,
    /// The candidates for the next operation, none of which was possible.
    pub blocked: Vec<Index>,
}

impl Verdict {
    /// Returns whether the history has an explanation. False if undecided.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Ok)
    }

    /// Returns whether no order explains the history. False if undecided.
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Violation(_))
    }

    /// Returns the violation, if there is one.
    pub fn violation(&self) -> Option<&Counterexample> {
        match self {
            Self::Violation(counterexample) => Some(counterexample),
            Self::Ok | Self::Undecided { .. } => None,
        }
    }

    /// Combines the verdicts of two parts of one history: a violation is worse than undecided, and undecided is worse
    /// than ok. If both are equally bad, returns `self`.
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
    /// Returns a minimal counterexample.
    pub(super) fn new(
        rule: &'static str,
        object: &str,
        operations: impl Into<Vec<Index>>,
        why: String,
    ) -> Self {
        let (object, operations) = (object.to_owned(), operations.into());
        Self { rule, object, operations, is_minimal: true, why, ..Self::default() }
    }

    /// Sets whether the counterexample is minimal.
    pub(super) fn with_minimality(self, is_minimal: bool) -> Self {
        Self { is_minimal, ..self }
    }

    /// Adds an arrow.
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
            Self::Steps => write!(f, "the step budget is exhausted"),
            Self::Configurations => write!(f, "the configuration budget is exhausted"),
            Self::Stopped => write!(f, "stopped by the caller"),
            Self::Silent(index) => write!(f, "the reply of #{index} has no revision"),
            Self::Repeated(one, other) => {
                write!(
                    f,
                    "#{one} and #{other} write the same value to the same key, so reads cannot be matched with writers"
                )
            }
            Self::Ambiguous => {
                write!(f, "several operations of unknown outcome could explain the replies")
            }
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
        let note = if *is_minimal { "" } else { " (may not be minimal)" };
        let operations = Shortened(operations);
        write!(f, "object {object:?}: {rule}: operations {operations}{note}: {why}")?;
        if let Some(DeadEnd { let_off, order, state, blocked }) = dead_end {
            let (order, blocked) = (Shortened(order), Shortened(blocked));
            write!(
                f,
                "; with the other {let_off} operations relaxed: after {order} the object holds {state}, and none of \
                 {blocked} can be next"
            )?;
        }
        Ok(())
    }
}

/// Maximum number of operations in a text. The fields of the counterexample contain all of them.
const SHOWN_MAX: usize = 40;

/// A list of operations as text. A long list is cut to its last operations, where the search got stuck.
struct Shortened<'a>(&'a [Index]);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len().saturating_sub(SHOWN_MAX) {
            0 => write!(f, "{:?}", self.0),
            hidden => write!(f, "{hidden} others and {:?}", &self.0[hidden..]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undecided_verdict_is_neither_ok_nor_a_violation() {
        let why = Undecided::Nothing;
        let undecided = Verdict::Undecided { object: "x".to_owned(), why, explored: 0 };
        let violation = Verdict::from(Counterexample::default());
        let answers = [Verdict::Ok, violation, undecided].map(|it| (it.is_ok(), it.is_violation()));
        assert_eq!(answers, [(true, false), (false, true), (false, false)]);
    }

    #[test]
    fn text_of_a_long_counterexample_shows_its_last_operations() {
        let text = |length| Shortened(&(0..length).collect::<Vec<_>>()).to_string();
        assert_eq!(text(3), "[0, 1, 2]");
        let long = text(4_000);
        assert!(long.starts_with("3960 others and [3960, ") && long.ends_with("3999]"), "{long}");
        assert!(long.len() < 400);
    }
}

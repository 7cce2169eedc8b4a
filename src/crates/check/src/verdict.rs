//! The result of a checker. Of the three verdicts, only [`Verdict::Ok`] is a pass.
//!
//! All checkers share these types, so that a program that shows a result need not know the checker. A
//! [`Counterexample`] names operations by their indices in the history, connects them with arrows, and gives the
//! reason as a sentence.

use std::fmt;

use super::history::Index;
use super::page::shortened;
use super::table::{self, OperationText};

/// The result of a checker.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// Some order explains the history. This includes a history without replies, which any object explains. So a test
    /// must also check that enough operations were [answered](super::Operation::is_answered). `bowline check` does so
    /// itself, with [`Undecided::Nothing`].
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
    /// No operation has a reply, so there is nothing to check. Only `bowline check` reports this; for the functions of
    /// this crate, such a history is [`Verdict::Ok`].
    Nothing,
    /// No read has a reply, and only reads can show a violation. Only `bowline check` reports this; for the functions
    /// of this crate, such a history is [`Verdict::Ok`].
    Unread,
}

/// Operations that contradict each other, few if possible.
///
/// The operations keep their times and replies. All other operations are relaxed, in one of two ways:
///
/// - The operation is *let off*: it may take effect at any time after its call, or never, as if its outcome were unknown.
///   Since it is not removed, its write still explains reads. Therefore a read of a value that was never written is a
///   counterexample on its own. A stale read needs at least the write that it missed as well.
/// - The operation is *silenced*: its reply is ignored, but it takes effect between its call and its end, unless the
///   reply says that it changed nothing. [`linear`](super::linear) does so only if letting off is too expensive or
///   leaves many operations, and says so in [`why`](Self::why): "whatever the other operations returned". Then a stale
///   read is a counterexample on its own, and [`DeadEnd::state`] is what it should have seen.
///
/// An order of the whole history would also be an order of the relaxed history. So the violation is certain in any case.
/// But if minimizing takes too long, it ends early: then [`is_minimal`](Self::is_minimal) is false, and there can be
/// many operations.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counterexample {
    /// The broken rule, as a short constant text.
    pub rule: &'static str,
    /// The object.
    pub object: String,
    /// The operations that contradict each other. [`linear`](super::linear) sorts them by the time of their calls,
    /// other checkers in the order of [`why`](Self::why).
    pub operations: Vec<Index>,
    /// Whether the operations contradict each other if all others are relaxed, and each of them is needed. If false,
    /// the operations show where the history has no explanation: fewer operations may be enough. In the results of
    /// checkers other than [`linear`](super::linear), other operations may also be part of the contradiction.
    pub is_minimal: bool,
    /// The reason, as a sentence in which `#3` is the operation with index 3 in the history.
    pub why: String,
    /// The last [`OPERATIONS_SHOWN`](super::OPERATIONS_SHOWN) of the operations as text.
    pub shown: Vec<OperationText>,
    /// Arrows between operations that illustrate the reason. If they form a cycle, no order exists. The arrows of
    /// [`linear`](super::linear) say which operations had ended when others were called. Large counterexamples have
    /// none.
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
    /// Number of operations of the object that were let off, that is, treated as if their outcome were unknown.
    pub let_off: usize,
    /// Number of operations of the object whose replies were ignored. They took effect between their calls and their
    /// ends, unless their replies say that they changed nothing.
    pub silenced: usize,
    /// The longest order that was found. The order contains operations that were let off only where they are needed.
    pub order: Vec<Index>,
    /// The operations of the order that were let off or whose outcome is unknown. They may be placed long after they
    /// had ended.
    pub relaxed: Vec<Index>,
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

/// The first line names the object and the reason. Then each operation has a line with its times, its call and its
/// reply. The text has at most about 60 lines, even if the counterexample is large.
impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, object, operations, is_minimal, why, shown, links, dead_end } = self;
        let note = if *is_minimal { "" } else { " (may not be minimal)" };
        write!(f, "object {object:?}: {rule}{note}: {why}")?;
        match operations.len().saturating_sub(shown.len()) {
            0 => {}
            _ if shown.is_empty() => write!(f, "\n  operations {}", Shortened(operations, &[]))?,
            hidden => write!(f, "\n  {hidden} others, and the last {}:", shown.len())?,
        }
        table::write(f, shown)?;
        for Link { before, after, why } in links.iter().take(LINKS_MAX) {
            write!(f, "\n  #{before} before #{after}: {why}")?;
        }
        if links.len() > LINKS_MAX {
            write!(f, "\n  and {} others", links.len() - LINKS_MAX)?;
        }
        dead_end.as_ref().map_or(Ok(()), |dead_end| write!(f, "{dead_end}"))
    }
}

impl fmt::Display for DeadEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { let_off, silenced, order, relaxed, state, blocked } = self;
        if *silenced > 0 {
            write!(f, "\n  {silenced} other operations may have returned anything")?;
        }
        if *let_off > 0 {
            write!(
                f,
                "\n  {let_off} other operations may take effect at any time after their calls, or never (relaxed)"
            )?;
        }
        match order.len() {
            0 => write!(f, "\n  at first")?,
            _ => write!(f, "\n  after {}", Shortened(order, relaxed))?,
        }
        let state = shortened(state, STATE_CHARS_MAX);
        write!(f, " the object holds {state}, and {}", Blocked(blocked))
    }
}

/// The candidates for the next operation, as a sentence that says that none of them is possible.
struct Blocked<'a>(&'a [Index]);

impl fmt::Display for Blocked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => write!(f, "no operation can be next"),
            [one] => write!(f, "#{one} cannot be next"),
            several => write!(f, "none of {} can be next", Shortened(several, &[])),
        }
    }
}

/// Maximum number of operations in a list. The fields of the counterexample contain all of them.
const LISTED_MAX: usize = 10;

/// Maximum number of arrows in a text.
const LINKS_MAX: usize = 32;

/// Maximum length of a state in a text, in characters.
const STATE_CHARS_MAX: usize = 300;

/// A list of operations as text, in which some are marked as relaxed. A long list is cut to its last operations, where
/// the search got stuck.
struct Shortened<'a>(&'a [Index], &'a [Index]);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(all, relaxed) = self;
        let hidden = all.len().saturating_sub(LISTED_MAX);
        let names = all[hidden..].iter().map(|index| match relaxed.contains(index) {
            true => format!("#{index} (relaxed)"),
            false => format!("#{index}"),
        });
        let names = names.collect::<Vec<_>>().join(", ");
        match hidden {
            0 => write!(f, "{names}"),
            hidden => write!(f, "{hidden} others and {names}"),
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
    fn dead_end_says_which_operations_cannot_be_next() {
        let text = |blocked: &[Index]| {
            let state = "nothing".to_owned();
            DeadEnd { state, blocked: blocked.to_vec(), ..DeadEnd::default() }.to_string()
        };
        assert_eq!(text(&[9]), "\n  at first the object holds nothing, and #9 cannot be next");
        assert!(text(&[4, 7]).ends_with("holds nothing, and none of #4, #7 can be next"));
    }

    #[test]
    fn text_of_a_long_counterexample_shows_its_last_operations() {
        let text = |length| Shortened(&(0..length).collect::<Vec<_>>(), &[1]).to_string();
        assert_eq!(text(3), "#0, #1 (relaxed), #2");
        let long = text(4_000);
        assert!(long.starts_with("3990 others and #3990, ") && long.ends_with("#3999"), "{long}");
        assert!(long.len() < 400);
        let operations = (0..4_000).collect();
        let why = Counterexample { operations, ..Counterexample::default() };
        assert!(why.to_string().len() < 400, "{why}");
    }
}

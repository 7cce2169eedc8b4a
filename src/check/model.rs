//! What an object is, for a checker: its states, and what each call may do and say in each of them.

use std::fmt::Debug;
use std::hash::Hash;

use super::value::Value;

/// A sequential object: what one caller after the other would see.
///
/// A model says what is allowed, not what is likely; it may have several next states for a call of which
/// nobody knows what came back. It must be a pure function of its arguments.
pub trait Model {
    /// What is asked for.
    type Call: Clone + Eq + Hash;
    /// What comes back.
    type Reply: Clone;
    /// What the object holds. Equal states are interchangeable.
    type State: Clone + Eq + Hash + Debug;

    /// What the object holds before the first operation.
    fn initial(&self) -> Self::State;

    /// Adds to `next` each state that the object may be in after `call`, if `reply` came back; with `None`,
    /// whatever came back. Adds nothing if `reply` is impossible in `state`.
    fn step(
        &self,
        state: &Self::State,
        call: &Self::Call,
        reply: Option<&Self::Reply>,
        next: &mut Vec<Self::State>,
    );

    /// Whether `call` with this reply leaves every state that allows it as it is. It need not be known; where
    /// it is, the search is shorter. That it is true is asserted in each step.
    fn observes(&self, _call: &Self::Call, _reply: Option<&Self::Reply>) -> bool {
        false
    }

    /// What this operation can only have if another one gives it; `None` as reply: it may never take effect. It
    /// need not be known: [`Needs::Anything`] is always true.
    fn needs(&self, _call: &Self::Call, _reply: Option<&Self::Reply>) -> Needs {
        Needs::Anything
    }

    /// The one value that `call` gives to others, if that is all that it can do for them. Where nobody needs that
    /// value, an operation that may never have taken effect need not be tried.
    fn gives(&self, _call: &Self::Call) -> Option<Value> {
        None
    }
}

/// What an operation can only have if another one gives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Needs {
    /// It cannot be said.
    Anything,
    /// This value.
    Value(Value),
    /// Nothing.
    Nothing,
}

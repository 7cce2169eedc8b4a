//! The interface of a model: the states of an object, and the possible effects and replies of each call.

use std::fmt::Debug;
use std::hash::Hash;

use super::value::Value;

/// A sequential object, as a single caller would see it.
///
/// A model returns every allowed next state. For a call of unknown outcome it may return several next states.
/// The step must be a pure function of its arguments.
pub trait Model {
    /// A call on the object.
    type Call: Clone + Eq + Hash + Debug;
    /// The reply to a call.
    type Reply: Clone + Debug;
    /// The state of the object. Equal states are interchangeable.
    type State: Clone + Eq + Hash + Debug;

    /// Returns the state before the first operation.
    fn initial(&self) -> Self::State;

    /// Adds to `next` each possible state after `call` returned `reply`, or after any reply if `reply` is `None`.
    /// Adds nothing if `reply` is impossible in `state`.
    fn step(
        &self,
        state: &Self::State,
        call: &Self::Call,
        reply: Option<&Self::Reply>,
        next: &mut Vec<Self::State>,
    );

    /// Returns whether `call` with this reply changes no state that allows it. Returning false is always correct;
    /// returning true makes the search shorter. Each step asserts that a true result is right.
    fn observes(&self, _call: &Self::Call, _reply: Option<&Self::Reply>) -> bool {
        false
    }

    /// Returns what this operation needs from another operation so that it can return this reply. If `reply` is `None`,
    /// the outcome is unknown, and the operation may never have taken effect. Returning [`Needs::Anything`] is always
    /// correct.
    fn needs(&self, _call: &Self::Call, _reply: Option<&Self::Reply>) -> Needs {
        Needs::Anything
    }

    /// Returns the one value that `call` provides to other operations, if it can affect them in no other way. If no
    /// operation needs that value, the search need not try this one when its outcome is unknown.
    fn gives(&self, _call: &Self::Call) -> Option<Value> {
        None
    }

    /// Returns a call as text, for the report of a violation.
    fn call_text(&self, call: &Self::Call) -> String {
        format!("{call:?}")
    }

    /// Returns a reply as text, for the report of a violation.
    fn reply_text(&self, _call: &Self::Call, reply: &Self::Reply) -> String {
        format!("{reply:?}")
    }

    /// Returns a state as text, for the report of a violation.
    fn state_text(&self, state: &Self::State) -> String {
        format!("{state:?}")
    }
}

/// A requirement of an operation on other operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Needs {
    /// The requirement is not known.
    Anything,
    /// Another operation must provide this value.
    Value(Value),
    /// The operation needs no other one.
    Nothing,
}

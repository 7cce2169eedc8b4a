//! A model of a first-in, first-out queue.

use std::collections::VecDeque;

use crate::lines::{FieldError, Fields, Written};
use crate::model::{Model, Needs};
use crate::value::Value;

/// An unbounded queue, empty at first. `take` removes the value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QueueModel;

/// A call on a queue.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `put` | `value`: a value | |
/// | `take` | | `result`: the value, or null if the queue was empty |
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum QueueCall {
    /// Appends a value.
    Put(Value),
    /// Removes the first value, if there is one.
    Take,
}

/// The reply of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueueReply {
    /// The value was appended.
    Put,
    /// The value that was removed, or `None` if the queue was empty.
    Taken(Option<Value>),
}

impl Model for QueueModel {
    type Call = QueueCall;
    type Reply = QueueReply;
    type State = VecDeque<Value>;

    fn initial(&self) -> Self::State {
        VecDeque::new()
    }

    fn step(
        &self,
        state: &Self::State,
        call: &QueueCall,
        reply: Option<&QueueReply>,
        next: &mut Vec<Self::State>,
    ) {
        match (call, reply) {
            (QueueCall::Put(value), None | Some(QueueReply::Put)) => {
                let mut after = state.clone();
                after.push_back(value.clone());
                next.push(after);
            }
            (QueueCall::Take, None) => {
                next.push(state.iter().skip(1).cloned().collect());
            }
            (QueueCall::Take, Some(QueueReply::Taken(taken)))
                if taken.as_ref() == state.front() =>
            {
                next.push(state.iter().skip(1).cloned().collect());
            }
            _ => {}
        }
    }

    fn observes(&self, _call: &QueueCall, reply: Option<&QueueReply>) -> bool {
        reply == Some(&QueueReply::Taken(None))
    }

    fn needs(&self, _call: &QueueCall, reply: Option<&QueueReply>) -> Needs {
        match reply {
            Some(QueueReply::Taken(Some(value))) => Needs::Value(value.clone()),
            _ => Needs::Nothing,
        }
    }

    fn gives(&self, call: &QueueCall) -> Option<Value> {
        match call {
            QueueCall::Put(value) => Some(value.clone()),
            QueueCall::Take => None,
        }
    }

    texts_as_written!();
}

impl Written for QueueCall {
    type Reply = QueueReply;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        Ok(Some(match name {
            "put" => Self::Put(fields.value("value")?),
            "take" => Self::Take,
            _ => return Ok(None),
        }))
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<QueueReply, FieldError> {
        Ok(match self {
            Self::Put(_) => QueueReply::Put,
            Self::Take => QueueReply::Taken(fields.value_or_null("result")?),
        })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        match self {
            Self::Put(value) => {
                fields.put_value("value", Some(value));
                "put"
            }
            Self::Take => "take",
        }
    }

    fn write_reply(&self, reply: &QueueReply, fields: &mut Fields) {
        if let QueueReply::Taken(value) = reply {
            fields.put_value("result", value.as_ref());
        }
    }
}

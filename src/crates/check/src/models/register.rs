//! A model of a register with read, write and compare-and-set.

use crate::lines::{FieldError, Fields, Written};
use crate::model::{Model, Needs};
use crate::value::Value;

/// A register with compare-and-set. By default the register is empty at first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Register {
    /// The value before the first operation.
    pub first: Option<Value>,
}

/// A call on a register.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `read` | | `result`: a value, or null if the register is empty |
/// | `write` | `value`: a value, or null to empty the register | |
/// | `cas` | `expect` and `value`: values or null | `swapped`: true or false |
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RegisterCall {
    /// Reads the value.
    Read,
    /// Writes a value.
    Write(Option<Value>),
    /// Writes `value` if the current value is `expect`.
    CompareAndSet {
        /// The expected value.
        expect: Option<Value>,
        /// The new value.
        value: Option<Value>,
    },
}

/// The reply of a register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegisterReply {
    /// The value that was read.
    Read(Option<Value>),
    /// The value was written.
    Written,
    /// The result of a compare-and-set.
    Compared {
        /// Whether the register had the expected value and was changed.
        swapped: bool,
    },
}

impl Model for Register {
    type Call = RegisterCall;
    type Reply = RegisterReply;
    type State = Option<Value>;

    fn initial(&self) -> Self::State {
        self.first.clone()
    }

    fn step(
        &self,
        state: &Self::State,
        call: &RegisterCall,
        reply: Option<&RegisterReply>,
        next: &mut Vec<Self::State>,
    ) {
        let (said, after) = match call {
            RegisterCall::Read => (RegisterReply::Read(state.clone()), state),
            RegisterCall::Write(value) => (RegisterReply::Written, value),
            RegisterCall::CompareAndSet { expect, value } => {
                let swapped = expect == state;
                (RegisterReply::Compared { swapped }, if swapped { value } else { state })
            }
        };
        if reply.is_none_or(|reply| *reply == said) {
            next.push(after.clone());
        }
    }

    fn observes(&self, call: &RegisterCall, reply: Option<&RegisterReply>) -> bool {
        *call == RegisterCall::Read || reply == Some(&RegisterReply::Compared { swapped: false })
    }

    fn needs(&self, call: &RegisterCall, reply: Option<&RegisterReply>) -> Needs {
        let value = match (call, reply) {
            (_, Some(RegisterReply::Read(value))) => value,
            // The comparison failed, so the register had any value except the expected one.
            (_, Some(RegisterReply::Compared { swapped: false })) => return Needs::Anything,
            (RegisterCall::CompareAndSet { expect, .. }, _) => expect,
            (RegisterCall::Read | RegisterCall::Write(_), _) => &None,
        };
        value.clone().map_or(Needs::Nothing, Needs::Value)
    }

    fn gives(&self, call: &RegisterCall) -> Option<Value> {
        match call {
            RegisterCall::Read => None,
            RegisterCall::Write(value) | RegisterCall::CompareAndSet { value, .. } => value.clone(),
        }
    }

    texts_as_written!();

    fn state_text(&self, state: &Self::State) -> String {
        state.as_ref().map_or_else(|| "nothing".to_owned(), Value::to_string)
    }
}

impl Written for RegisterCall {
    type Reply = RegisterReply;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        Ok(Some(match name {
            "read" => Self::Read,
            "write" => Self::Write(fields.value_or_null("value")?),
            "cas" => Self::CompareAndSet {
                expect: fields.value_or_null("expect")?,
                value: fields.value_or_null("value")?,
            },
            _ => return Ok(None),
        }))
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<RegisterReply, FieldError> {
        Ok(match self {
            Self::Read => RegisterReply::Read(fields.value_or_null("result")?),
            Self::Write(_) => RegisterReply::Written,
            Self::CompareAndSet { .. } => {
                let swapped = fields.flag("swapped")?;
                RegisterReply::Compared { swapped: swapped.ok_or(FieldError::Missing("swapped"))? }
            }
        })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write(value) => {
                fields.put_value("value", value.as_ref());
                "write"
            }
            Self::CompareAndSet { expect, value } => {
                fields.put_value("expect", expect.as_ref());
                fields.put_value("value", value.as_ref());
                "cas"
            }
        }
    }

    fn write_reply(&self, reply: &RegisterReply, fields: &mut Fields) {
        match reply {
            RegisterReply::Read(value) => fields.put_value("result", value.as_ref()),
            RegisterReply::Written => {}
            RegisterReply::Compared { swapped } => fields.put("swapped", *swapped),
        }
    }
}

//! The values in a history: integers and strings, which are never equal to each other.

use std::fmt;
use std::sync::Arc;

/// A value of a register, a row or a queue, or the name of an owner: an integer or a string.
///
/// In a line of a history it is a JSON number without a fraction, or a JSON string. `7` and `"7"` differ.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// An integer.
    Number(i64),
    /// A string.
    Text(Arc<str>),
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

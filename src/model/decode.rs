//! [`DecodeError`]: a row that is not what the reader expects.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use thiserror::Error;

/// A row whose key or value cannot be decoded, for example because it is not text or not a number.
/// Holds the row, so that a program can log, repair or delete it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Error)]
#[error("cannot decode the row \"{}\": {why}", key.escape_ascii())]
#[non_exhaustive]
pub struct DecodeError {
    /// Key of the row.
    pub key: Bytes,
    /// Value of the row.
    pub value: Bytes,
    /// Why the row cannot be decoded.
    pub why: String,
}

impl DecodeError {
    /// Creates the error for a row.
    pub(crate) fn new(key: &Bytes, value: &Bytes, why: impl fmt::Display) -> Self {
        Self { key: key.clone(), value: value.clone(), why: why.to_string() }
    }
}

/// Returns the value of a row as text.
pub(crate) fn text<'a>(key: &Bytes, value: &'a Bytes) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(value).map_err(|error| not_text("value", key, value, error))
}

/// Returns the key of a row as text.
pub(crate) fn key_text<'a>(key: &'a Bytes, value: &Bytes) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(key).map_err(|error| not_text("key", key, value, error))
}

/// Parses the value of a row, which is text.
pub(crate) fn parse<T>(key: &Bytes, value: &Bytes) -> Result<T, DecodeError>
where
    T: FromStr<Err: fmt::Display>,
{
    text(key, value)?.parse().map_err(|why| DecodeError::new(key, value, why))
}

fn not_text(what: &str, key: &Bytes, value: &Bytes, error: std::str::Utf8Error) -> DecodeError {
    let at = error.valid_up_to();
    DecodeError::new(key, value, format!("the {what} is not UTF-8 text: invalid byte at {at}"))
}

/// Implements `text` and `parse` for a type with a key and a value.
macro_rules! readable {
    ($key:ident, $value:ident) => {
        /// Returns the value as text.
        ///
        /// # Errors
        /// If the value is not UTF-8 text, returns an error with the key and the value.
        pub fn text(&self) -> Result<&str, $crate::model::DecodeError> {
            $crate::model::decode_text(&self.$key, &self.$value)
        }

        /// Parses the value, which must be text, for example a decimal number.
        ///
        /// # Errors
        /// If the value is not UTF-8 text or cannot be parsed, returns an error with the key and
        /// the value.
        pub fn parse<T>(&self) -> Result<T, $crate::model::DecodeError>
        where
            T: ::std::str::FromStr<Err: ::std::fmt::Display>,
        {
            $crate::model::decode_parse(&self.$key, &self.$value)
        }
    };
}

pub(crate) use readable;

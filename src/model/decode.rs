//! [`DecodeError`]: a row that is not what the reader expects.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use thiserror::Error;

use super::Revision;

/// A row whose key or value cannot be decoded, for example because it is not text or not a number.
/// The error contains the row, so that a program can log, repair or delete the row.
///
/// The text of the error names the [full key](DecodeError::full_key). This example deletes a row
/// that another program wrote, unless it has been repaired meanwhile:
///
/// ```
/// # use bowline::{Blocking, Config, Error, Node};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # let kv = node.client();
/// let rates = kv.typed::<u32>("rates/");
/// kv.put("rates/eu", "fast").block()?;
/// let Err(Error::Decode(bad)) = rates.get("eu").block() else { panic!("it is not a number") };
/// assert!(bad.to_string().starts_with(r#"cannot decode the row "rates/eu": "#));
/// assert_eq!((&bad.key[..], &bad.value[..]), (&b"eu"[..], &b"fast"[..]));
/// let seen = bad.mod_revision.expect("a row has one");
/// assert!(rates.client().compare_and_delete(&bad.key, seen).block()?.is_done());
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Error)]
#[error("cannot decode the row \"{}\": {why}", self.full_key().escape_ascii())]
#[non_exhaustive]
pub struct DecodeError {
    /// Key of the row, without the prefix of the client or of the folder that read it. Use this key
    /// in calls of that client.
    pub key: Bytes,
    /// Value of the row.
    pub value: Bytes,
    /// Revision of the last put of the row, for
    /// [`compare_and_delete`](crate::Client::compare_and_delete) and `compare_and_set`. `None` if
    /// the error is about something other than a row, for example an item of a queue or a member of
    /// a group.
    pub mod_revision: Option<Revision>,
    /// Why the row cannot be decoded.
    pub why: String,
    /// The prefix of folder and client, which `key` lacks.
    prefix: Box<[u8]>,
}

impl DecodeError {
    /// Creates the error for a row.
    pub(crate) fn new(key: &Bytes, value: &Bytes, why: impl fmt::Display) -> Self {
        let (key, value, why) = (key.clone(), value.clone(), why.to_string());
        Self { key, value, mod_revision: None, why, prefix: Box::default() }
    }

    pub(crate) fn at(self, revision: Revision) -> Self {
        Self { mod_revision: Some(revision), ..self }
    }

    /// Sets the prefix of folder and client, which the key lacks.
    pub(crate) fn below(self, prefix: &[u8]) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// Returns the key in the store: with the prefixes of the folder and of its client.
    ///
    /// For the error of a method such as [`KeyValue::parse`](crate::KeyValue::parse), returns the
    /// key of the row. A row does not contain the prefix of its client
    /// ([`Client::with_prefix`](crate::Client::with_prefix)).
    pub fn full_key(&self) -> Bytes {
        if self.prefix.is_empty() {
            return self.key.clone();
        }
        [&self.prefix, &self.key[..]].concat().into()
    }
}

pub(crate) fn text<'a>(key: &Bytes, value: &'a Bytes) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(value).map_err(|error| not_text("value", key, value, error))
}

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

/// Implements `text` and `parse` for a type with a key and a value, and possibly the revision of the
/// last put.
macro_rules! readable {
    ($key:ident, $value:ident $(, $revision:ident)?) => {
        /// Returns the value as text.
        ///
        /// # Errors
        /// If the value is not UTF-8 text, returns an error with the key and the value.
        pub fn text(&self) -> Result<&str, $crate::model::DecodeError> {
            $crate::model::decode_text(&self.$key, &self.$value)
                $(.map_err(|error| error.at(self.$revision)))?
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
                $(.map_err(|error| error.at(self.$revision)))?
        }
    };
}

pub(crate) use readable;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::KeyValue;

    #[test]
    fn error_names_the_full_key_and_holds_the_row() {
        let row = KeyValue {
            key: "bad".into(),
            value: "x".into(),
            mod_revision: Revision(7),
            ..KeyValue::default()
        };
        let error = row.parse::<u32>().unwrap_err();
        assert_eq!((&error.key, &error.value), (&row.key, &row.value));
        assert_eq!((error.full_key(), error.mod_revision), ("bad".into(), Some(Revision(7))));
        let below = error.clone().below(b"config/limits/");
        assert_eq!((&below.key[..], below.full_key()), (&b"bad"[..], "config/limits/bad".into()));
        let text = below.to_string();
        assert!(text.starts_with("cannot decode the row \"config/limits/bad\": "), "{text}");
        let binary = KeyValue { key: vec![0xff].into(), value: vec![0xff].into(), ..row };
        for error in [binary.text().unwrap_err(), binary.key_text().unwrap_err()] {
            assert_eq!(error.mod_revision, Some(Revision(7)), "{error}");
        }
        assert_eq!(DecodeError::new(&row.key, &row.value, "").mod_revision, None);
    }
}

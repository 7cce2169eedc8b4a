//! JSON as Go's etcdctl writes it: fields in the protocol's order, zero values omitted by default, integers as numbers,
//! bytes as base64.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::client::quote;

/// A JSON object under construction.
#[derive(Debug, Default)]
pub(crate) struct Object(String);

impl Object {
    /// Adds a field whose value is JSON already.
    pub(crate) fn raw(mut self, name: &str, json: impl std::fmt::Display) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(&format!("\"{name}\":{json}"));
        self
    }

    /// Adds a number, unless it is zero.
    pub(crate) fn number(self, name: &str, number: impl Into<i128>) -> Self {
        let number = number.into();
        if number == 0 { self } else { self.raw(name, number) }
    }

    /// Adds a boolean, unless it is false.
    pub(crate) fn flag(self, name: &str, flag: bool) -> Self {
        if flag { self.raw(name, true) } else { self }
    }

    /// Adds a string, unless it is empty.
    pub(crate) fn text(self, name: &str, text: &str) -> Self {
        if text.is_empty() { self } else { self.raw(name, quote::json(text)) }
    }

    /// Adds bytes, unless they are empty.
    pub(crate) fn bytes(self, name: &str, bytes: &[u8]) -> Self {
        if bytes.is_empty() { self } else { self.raw(name, base64(bytes)) }
    }

    /// Adds an object, if there is one.
    pub(crate) fn object(self, name: &str, object: Option<Object>) -> Self {
        match object {
            Some(object) => self.raw(name, object.end()),
            None => self,
        }
    }

    /// Adds a list, unless it is empty.
    pub(crate) fn list(self, name: &str, items: impl IntoIterator<Item = String>) -> Self {
        let list = list(items);
        if list == "[]" { self } else { self.raw(name, list) }
    }

    /// Returns the finished object.
    pub(crate) fn end(self) -> String {
        format!("{{{}}}", self.0)
    }
}

/// Formats a JSON list.
pub(crate) fn list(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<_> = items.into_iter().collect();
    format!("[{}]", items.join(","))
}

/// Encodes bytes as base64, in quotes.
pub(crate) fn base64(bytes: &[u8]) -> String {
    format!("\"{}\"", BASE64_STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_fields_are_omitted_from_json() {
        let object =
            Object::default().number("a", 0).text("b", "").bytes("c", b"x").flag("d", false);
        assert_eq!(object.number("e", -1).list("f", []).end(), r#"{"c":"eA==","e":-1}"#);
    }
}

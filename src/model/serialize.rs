//! Serialization with [serde](https://docs.rs/serde), behind the feature `serde`.
//!
//! In formats for people, such as JSON, a key or value is text if it is UTF-8: `"jobs/1"`. Any
//! other key or value is an object with the bytes in hexadecimal: `{"hex": "ff00"}`. In binary
//! formats, keys and values are bytes. Types with a text form, such as lease ids and tokens, are
//! text. Names of states are in lower case with underscores: `"no_quorum"`. Durations are numbers
//! of seconds.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq, Serializer};

/// Implements serialization as text for types with `Display` and `FromStr`.
macro_rules! serialize_as_text {
    ($($name:ty),*) => {$(
        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <::std::borrow::Cow<'de, str>>::deserialize(from)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }
    )*};
}

pub(crate) use serialize_as_text;

/// A key or value.
struct Readable<'a>(&'a [u8]);

impl serde::Serialize for Readable<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if !to.is_human_readable() {
            return to.serialize_bytes(self.0);
        }
        if let Ok(text) = std::str::from_utf8(self.0) {
            return to.serialize_str(text);
        }
        let mut object = to.serialize_map(Some(1))?;
        object.serialize_entry("hex", &hex(self.0))?;
        object.end()
    }
}

/// Serializes a key or value.
pub(crate) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&Readable(bytes), to)
}

/// Deserializes a key or value.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    match from.is_human_readable() {
        true => from.deserialize_any(BytesVisitor),
        false => from.deserialize_byte_buf(BytesVisitor),
    }
}

/// Serializes a duration as a number of seconds.
pub(crate) fn seconds<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}

/// Serializes an optional duration as a number of seconds.
pub(crate) fn seconds_option<S: Serializer>(
    duration: &Option<Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&duration.map(|duration| duration.as_secs_f64()), to)
}

pub(crate) fn serialize_list<S: Serializer>(list: &[Bytes], to: S) -> Result<S::Ok, S::Error> {
    let mut sequence = to.serialize_seq(Some(list.len()))?;
    for bytes in list {
        sequence.serialize_element(&Readable(bytes))?;
    }
    sequence.end()
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, bytes, or an object {\"hex\": \"..\"}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
        Ok(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Bytes, E> {
        Ok(text.into())
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
        Ok(Bytes::copy_from_slice(bytes))
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
        Ok(bytes.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Bytes, A::Error> {
        let Some((name, text)) = object.next_entry::<String, String>()? else {
            return Err(A::Error::missing_field("hex"));
        };
        if name != "hex" {
            return Err(A::Error::unknown_field(&name, &["hex"]));
        }
        if object.next_key::<String>()?.is_some() {
            return Err(A::Error::custom("an object with bytes has the field hex only"));
        }
        let bytes = from_hex(&text);
        bytes.ok_or_else(|| A::Error::custom("the field hex is not an even number of hex digits"))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Bytes> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    rest.is_empty().then(|| pairs.iter().map(byte).collect::<Option<Vec<u8>>>())?.map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_str, json, to_value};

    use crate::model::{Event, EventKind, KeyValue, LeaseId, Revision};

    fn row(key: &'static [u8], value: &'static [u8]) -> KeyValue {
        KeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: Revision(3),
            mod_revision: Revision(7),
            version: 2,
            lease: LeaseId::new(0x2a),
        }
    }

    #[test]
    fn rows_are_readable_and_read_back() {
        let row = row(b"jobs/1", b"\xff\x00");
        let event = Event { kind: EventKind::Put, kv: row.clone(), prev: None };
        let written = to_value(&event).unwrap();
        let expected = json!({
            "kind": "put",
            "kv": {
                "key": "jobs/1", "value": {"hex": "ff00"}, "create_revision": 3,
                "mod_revision": 7, "version": 2, "lease": "2a",
            },
            "prev": null,
        });
        assert_eq!(written, expected);
        assert_eq!(from_str::<Event>(&written.to_string()).unwrap(), event);
    }

    #[test]
    fn text_that_looks_like_an_object_stays_text() {
        let row = row(b"k", br#"{"hex": "00"}"#);
        let written = to_value(&row).unwrap();
        assert_eq!(written["value"], Value::from(r#"{"hex": "00"}"#));
        assert_eq!(from_str::<KeyValue>(&written.to_string()).unwrap(), row);
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        for (value, why) in [
            (r#"{"hex": "f"}"#, "even number"),
            (r#"{"hex": "fg"}"#, "even number"),
            (r#"{"hex": "é0"}"#, "even number"),
            (r#"{"base64": ""}"#, "unknown field"),
            (r#"{"hex": "00", "more": 1}"#, "only"),
            ("{}", "missing field"),
            ("7", "expected text, bytes"),
        ] {
            let row = format!(
                r#"{{"key": "k", "value": {value}, "create_revision": 1, "mod_revision": 1, "version": 1, "lease": null}}"#
            );
            let error = from_str::<KeyValue>(&row).unwrap_err().to_string();
            assert!(error.contains(why), "{value}: {error}");
        }
    }
}

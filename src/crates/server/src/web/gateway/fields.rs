//! Reads the fields of a message in JSON. A field may be given once, under either of its two names.

use std::collections::HashSet;
use std::fmt;

use prost_reflect::{Kind, MessageDescriptor};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A reader for the JSON of a message of this type, or of a list of them. Skips unknown fields, and does not check
/// types.
///
/// # Errors
/// Fails if a field is given twice, or two fields of a `oneof`. JSON parsers disagree on which of two values counts, so
/// a deletion could mean two ranges.
pub(crate) struct Fields(pub(crate) MessageDescriptor);

impl<'de> DeserializeSeed<'de> for Fields {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Fields {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the fields of {}", self.0.full_name())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut given: A) -> Result<Value, A::Error> {
        let (mut seen, mut chosen, mut fields) = (HashSet::new(), HashSet::new(), Map::new());
        while let Some(name) = given.next_key::<String>()? {
            let field = self.0.get_field_by_name(&name);
            let Some(field) = field.or_else(|| self.0.get_field_by_json_name(&name)) else {
                given.next_value::<IgnoredAny>()?;
                continue;
            };
            if !seen.insert(field.number()) {
                return Err(A::Error::custom(format_args!("duplicate field {name:?}")));
            }
            let value = match field.kind() {
                Kind::Message(inner) => given.next_value_seed(Fields(inner))?,
                _ => given.next_value()?,
            };
            // `null` sets nothing.
            if let Some(one) = field.containing_oneof().filter(|_| !value.is_null())
                && !chosen.insert(one.name().to_owned())
            {
                let one = one.full_name();
                return Err(A::Error::custom(format_args!(
                    "error parsing {name:?}, oneof {one} is already set"
                )));
            }
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut given: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = given.next_element_seed(Fields(self.0.clone()))? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
}

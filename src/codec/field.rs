//! Encodings of single fields that differ from the usual encoding of their type. The macros of
//! [`declare`](super::declare) refer to these modules by name.

/// Eight bytes in little-endian order. Used for hashes, which would take ten bytes as a varint.
pub(crate) mod fixed {
    use crate::codec::{CodecError, Decoder, Encoder, Sink};

    pub(crate) fn encode<S: Sink>(number: &u64, to: &mut Encoder<'_, S>) {
        to.fixed_u64(*number);
    }

    pub(crate) fn decode(from: &mut Decoder) -> Result<u64, CodecError> {
        from.fixed_u64()
    }
}

/// Whole milliseconds.
pub(crate) mod millis {
    use std::time::Duration;

    use crate::codec::{CodecError, Decoder, Encoder, Sink};

    /// Writes at most `u64::MAX`. `Limits` rejects TTLs that are anywhere near this value.
    pub(crate) fn encode<S: Sink>(time: &Duration, to: &mut Encoder<'_, S>) {
        to.number(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    }

    pub(crate) fn decode(from: &mut Decoder) -> Result<Duration, CodecError> {
        from.number().map(Duration::from_millis)
    }
}

/// An id, or 0 if there is none.
pub(crate) mod or_zero {
    use crate::codec::{CodecError, Decode, Decoder, Encode, Encoder, Sink};

    pub(crate) fn encode<T: Encode, S: Sink>(id: &Option<T>, to: &mut Encoder<'_, S>) {
        match id {
            None => to.number(0),
            Some(id) => id.encode(to),
        }
    }

    pub(crate) fn decode<T: Decode>(from: &mut Decoder) -> Result<Option<T>, CodecError> {
        if from.next_is(0) { from.byte().map(|_| None) } else { T::decode(from).map(Some) }
    }
}

/// A text that is never empty, or an empty text if there is none.
pub(crate) mod or_empty {
    use crate::codec::{CodecError, Decoder, Encoder, Sink};

    pub(crate) fn encode<S: Sink>(text: &Option<String>, to: &mut Encoder<'_, S>) {
        to.bytes(text.as_deref().unwrap_or_default().as_bytes());
    }

    pub(crate) fn decode(from: &mut Decoder) -> Result<Option<String>, CodecError> {
        Ok(Some(from.text()?).filter(|text| !text.is_empty()))
    }
}

/// Encodes no bytes: the number of the variant shows that there is no value.
pub(crate) mod none {
    use crate::codec::{CodecError, Decoder, Encoder, Sink};

    pub(crate) fn encode<T, S: Sink>(_: &Option<T>, _: &mut Encoder<'_, S>) {}

    pub(crate) fn decode<T>(_: &mut Decoder) -> Result<Option<T>, CodecError> {
        Ok(None)
    }
}

/// Encodes only the value: the number of the variant shows that there is one.
pub(crate) mod some {
    use crate::codec::{CodecError, Decode, Decoder, Encode, Encoder, Sink};

    pub(crate) fn encode<T: Encode, S: Sink>(value: &Option<T>, to: &mut Encoder<'_, S>) {
        if let Some(value) = value {
            value.encode(to);
        }
    }

    pub(crate) fn decode<T: Decode>(from: &mut Decoder) -> Result<Option<T>, CodecError> {
        T::decode(from).map(Some)
    }
}

/// All bytes to the end of the encoding, without a length.
pub(crate) mod rest {
    use bytes::Bytes;

    use crate::codec::{CodecError, Decoder, Encoder, Sink};

    pub(crate) fn encode<S: Sink>(bytes: &Bytes, to: &mut Encoder<'_, S>) {
        to.rest(bytes);
    }

    pub(crate) fn decode(from: &mut Decoder) -> Result<Bytes, CodecError> {
        Ok(from.rest())
    }
}

/// Short bytes, copied so that they do not keep the whole input buffer alive.
pub(crate) mod copied {
    use bytes::Bytes;

    use crate::codec::{CodecError, Decoder, Encoder, Sink};

    pub(crate) fn encode<S: Sink>(bytes: &Bytes, to: &mut Encoder<'_, S>) {
        to.bytes(bytes);
    }

    pub(crate) fn decode(from: &mut Decoder) -> Result<Bytes, CodecError> {
        Ok(Bytes::copy_from_slice(&from.bytes()?))
    }
}

/// A range of keys, copied so that it does not keep the whole input buffer alive.
pub(crate) mod copied_range {
    use bytes::Bytes;

    use crate::codec::{CodecError, Decode, Decoder, Encode, Encoder, Sink};
    use crate::model::{KeyRange, RangeEnd};

    pub(crate) fn encode<S: Sink>(range: &KeyRange, to: &mut Encoder<'_, S>) {
        range.encode(to);
    }

    pub(crate) fn decode(from: &mut Decoder) -> Result<KeyRange, CodecError> {
        let range = KeyRange::decode(from)?;
        let start = Bytes::copy_from_slice(range.start());
        let end = match range.end() {
            RangeEnd::Before(end) => RangeEnd::Before(Bytes::copy_from_slice(end)),
            end @ (RangeEnd::Single | RangeEnd::Unbounded) => end.clone(),
        };
        Ok(KeyRange::from_parts(start, end))
    }
}

/// A requested name or address. Its length is checked, because otherwise the leader could propose a
/// change that other members cannot decode.
pub(crate) mod limited {
    use crate::codec::{CodecError, Decoder, Encoder, Sink};
    use crate::model::JoinAsk;

    pub(crate) fn encode<S: Sink>(text: &str, to: &mut Encoder<'_, S>) {
        to.bytes(text.as_bytes());
    }

    pub(crate) fn decode(from: &mut Decoder) -> Result<String, CodecError> {
        let text = from.text()?;
        match text.len() <= JoinAsk::TEXT_BYTES_MAX {
            true => Ok(text),
            false => Err(from.malformed("a name or an address is too long")),
        }
    }
}

/// A transaction or its reply, one nesting level deeper.
pub(crate) mod nested {
    use crate::codec::{CodecError, Decode, Decoder, Encode, Encoder, Sink};

    pub(crate) fn encode<T: Encode, S: Sink>(value: &T, to: &mut Encoder<'_, S>) {
        value.encode(to);
    }

    pub(crate) fn decode<T: Decode>(from: &mut Decoder) -> Result<T, CodecError> {
        from.nested(T::decode)
    }
}

/// A list of endpoints that is not empty.
pub(crate) mod endpoints {
    use crate::codec::{CodecError, Decoder, Encoder, Sink};
    use crate::model::MemberAttributes;

    pub(crate) fn encode<S: Sink>(endpoints: &[String], to: &mut Encoder<'_, S>) {
        to.list(endpoints);
    }

    pub(crate) fn decode(from: &mut Decoder) -> Result<Vec<String>, CodecError> {
        let endpoints: Vec<String> = from.list()?;
        if endpoints.is_empty() || endpoints.len() > MemberAttributes::ENDPOINTS_MAX {
            return Err(from.malformed("there are no endpoints, or too many"));
        }
        if endpoints.iter().any(|text| text.len() > MemberAttributes::ENDPOINT_BYTES_MAX) {
            return Err(from.malformed("an endpoint is too long"));
        }
        Ok(endpoints)
    }
}

//! Encodings of numbers, texts, ids and collections.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink};
use crate::model::{
    ClusterId, ClusterVersion, DiskId, Incarnation, LeaseId, LogIndex, NodeId, Revision, Term,
};

/// Implements the encoding of a type in terms of the methods of `Encoder` and `Decoder`.
macro_rules! value {
    ($($type:ty, $bytes_min:literal, |$value:ident, $to:ident| $encode:expr, |$from:ident| $decode:expr;)+) => {
        $(
            impl Encode for $type {
                fn encode<S: Sink>(&self, $to: &mut Encoder<'_, S>) {
                    let $value = self;
                    $encode;
                }
            }

            impl Decode for $type {
                const BYTES_MIN: usize = $bytes_min;

                fn decode($from: &mut Decoder) -> Result<Self, CodecError> {
                    $decode
                }
            }
        )+
    };
}

value! {
    u64, 1, |number, to| to.number(*number), |from| from.number();
    usize, 1, |size, to| to.number(*size as u64), |from| {
        let size = from.number()?;
        usize::try_from(size).map_err(|_| from.malformed("a size exceeds the address space"))
    };
    bool, 1, |yes, to| to.byte(u8::from(*yes)), |from| match from.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(from.malformed("a boolean is neither 0 nor 1")),
    };
    Bytes, 1, |bytes, to| to.bytes(bytes), |from| from.bytes();
    String, 1, |text, to| to.bytes(text.as_bytes()), |from| from.text();
    Duration, 2, |time, to| {
        to.number(time.as_secs());
        to.number(time.subsec_nanos().into());
    }, |from| {
        let (seconds, nanos) = (from.number()?, from.number()?);
        match u32::try_from(nanos) {
            Ok(nanos) if nanos < 1_000_000_000 => Ok(Duration::new(seconds, nanos)),
            _ => Err(from.malformed("nanoseconds are out of range")),
        }
    };
    Revision, 1, |revision, to| to.number(revision.get()), |from| from.number().map(Self);
    Term, 1, |term, to| to.number(term.get()), |from| from.number().map(Self);
    LogIndex, 1, |index, to| to.number(index.get()), |from| from.number().map(Self);
    Incarnation, 1, |number, to| to.number(number.get()), |from| from.number().map(Self);
    ClusterVersion, 1, |version, to| to.number(version.get()), |from| from.number().map(Self);
    NodeId, 1, |id, to| to.number(id.get()),
        |from| Self::new(from.number()?).ok_or_else(|| from.malformed("member 0"));
    LeaseId, 1, |id, to| to.number(id.get()),
        |from| Self::new(from.number()?).ok_or_else(|| from.malformed("lease 0"));
    DiskId, 16, |id, to| to.fixed_u128(id.0), |from| from.fixed_u128().map(Self);
    ClusterId, 16, |id, to| to.fixed_u128(id.0), |from| from.fixed_u128().map(Self);
}

impl<T: Encode> Encode for Vec<T> {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.list(self);
    }
}

impl<T: Decode> Decode for Vec<T> {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        from.list()
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        self.is_some().encode(to);
        if let Some(value) = self {
            value.encode(to);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        if bool::decode(from)? { T::decode(from).map(Some) } else { Ok(None) }
    }
}

macro_rules! tuple {
    ($($part:ident $at:tt),+) => {
        impl<$($part: Encode),+> Encode for ($($part),+) {
            fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
                $(self.$at.encode(to);)+
            }
        }

        impl<$($part: Decode),+> Decode for ($($part),+) {
            const BYTES_MIN: usize = 0 $(+ $part::BYTES_MIN)+;

            fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
                Ok(($($part::decode(from)?),+))
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);

impl<K: Encode, V: Encode> Encode for BTreeMap<K, V> {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(self.len() as u64);
        for (key, value) in self {
            key.encode(to);
            value.encode(to);
        }
    }
}

/// The keys must be in order and without duplicates, so that each map has only one encoding.
impl<K: Decode + Ord, V: Decode> Decode for BTreeMap<K, V> {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let mut map = BTreeMap::new();
        for _ in 0..from.count(<(K, V)>::BYTES_MIN)? {
            let (key, value) = Decode::decode(from)?;
            if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(from.malformed("the keys of a table are out of order"));
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}

impl<T: Encode> Encode for BTreeSet<T> {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(self.len() as u64);
        for item in self {
            item.encode(to);
        }
    }
}

/// The items must be in order and without duplicates, so that each set has only one encoding.
impl<T: Decode + Ord> Decode for BTreeSet<T> {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let mut set = BTreeSet::new();
        for _ in 0..from.count(T::BYTES_MIN)? {
            let item = T::decode(from)?;
            if set.last().is_some_and(|last| *last >= item) {
                return Err(from.malformed("the items of a set are out of order"));
            }
            set.insert(item);
        }
        Ok(set)
    }
}

/// A secret is short and long-lived, so it is copied and does not keep the whole input buffer
/// alive.
impl Decode for crate::model::Secret {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(Self::new(Bytes::copy_from_slice(&from.bytes()?)))
    }
}

impl Encode for crate::model::Secret {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.bytes(self.expose());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_their_nanoseconds() {
        for time in [Duration::ZERO, Duration::new(7, 999_999_999), Duration::MAX] {
            let mut bytes = Vec::new();
            time.encode(&mut Encoder::new(&mut bytes));
            assert_eq!(Duration::decode(&mut Decoder::new("time", bytes.into())), Ok(time));
        }
        let over = b"\x01\x80\x94\xeb\xdc\x03";
        assert!(Duration::decode(&mut Decoder::new("time", Bytes::from_static(over))).is_err());
    }
}

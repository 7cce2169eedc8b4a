//! Macros that declare the encoding of a struct or an enum.
//!
//! One declaration implements [`Encode`](super::Encode) and [`Decode`](super::Decode), and for
//! tests also the drawing of random values (`sample::Draw`). Each field has the encoding of its
//! type, except if the declaration names another one, as in `checksum as fixed`. Such an encoding
//! is a module in [`field`](super::field).
//!
//! ```text
//! record!(SnapshotId, 11, { index, term, bytes, checksum as fixed });
//!
//! choice!(AlarmChange, "kind of alarm change", 1, {
//!     1 => Raise(alarm),
//!     2 => End(alarm),
//! });
//! ```
//!
//! The number after the name or text is the minimum encoded size (`Decode::BYTES_MIN`). `choice!`
//! writes the number of the variant as the first byte. Its text describes the type in the error
//! about an unknown variant number.

/// Declares the encoding of a struct: its fields, in the order of the declaration.
macro_rules! record {
    ($name:ident, $bytes_min:expr, { $($field:ident $(as $form:ident)?),+ $(,)? }) => {
        impl $crate::codec::Encode for $name {
            fn encode<S: $crate::codec::Sink>(&self, to: &mut $crate::codec::Encoder<'_, S>) {
                let Self { $($field),+ } = self;
                $($crate::codec::declare::part!(encode to $field $($form)?);)+
            }
        }

        impl $crate::codec::Decode for $name {
            const BYTES_MIN: usize = $bytes_min;

            fn decode(
                from: &mut $crate::codec::Decoder,
            ) -> Result<Self, $crate::codec::CodecError> {
                Ok(Self { $($field: $crate::codec::declare::part!(decode from $field $($form)?)),+ })
            }
        }

        #[cfg(any(test, fuzzing))]
        impl $crate::codec::sample::Draw for $name {
            fn draw(sample: &mut $crate::codec::sample::Sample) -> Self {
                Self { $($field: sample.draw()),+ }
            }
        }
    };
}

/// Declares the encoding of an enum: a number for the variant, then its fields. A variant with two
/// numbers has a condition on the value that gets the first one.
macro_rules! choice {
    ($name:ident, $what:literal, $bytes_min:expr, {
        $($kind:literal => $variant:ident
            $(($($item:ident $(as $item_form:ident)?),+))?
            $({ $($field:ident $(as $form:ident)?),+ })?
            $(if $condition:expr)?),+ $(,)?
    }) => {
        impl $crate::codec::Encode for $name {
            fn encode<S: $crate::codec::Sink>(&self, to: &mut $crate::codec::Encoder<'_, S>) {
                match self {
                    $($name::$variant $(($($item),+))? $({ $($field),+ })?
                        $(if $condition)? => {
                        to.byte($kind);
                        $($($crate::codec::declare::part!(encode to $item $($item_form)?);)+)?
                        $($($crate::codec::declare::part!(encode to $field $($form)?);)+)?
                    })+
                }
            }
        }

        impl $crate::codec::Decode for $name {
            const BYTES_MIN: usize = $bytes_min;

            fn decode(
                from: &mut $crate::codec::Decoder,
            ) -> Result<Self, $crate::codec::CodecError> {
                Ok(match from.byte()? {
                    $($kind => $name::$variant
                        $(($($crate::codec::declare::part!(decode from $item $($item_form)?)),+))?
                        $({ $($field: $crate::codec::declare::part!(decode from $field $($form)?)),+ })?,)+
                    found => {
                        let found = found.into();
                        return Err($crate::codec::CodecError::Newer { what: $what, found });
                    }
                })
            }
        }

        #[cfg(any(test, fuzzing))]
        impl $crate::codec::sample::Draw for $name {
            fn draw(sample: &mut $crate::codec::sample::Sample) -> Self {
                const KINDS: &[u8] = &[$($kind),+];
                match KINDS[sample.below(KINDS.len() as u64) as usize] {
                    $($kind => $name::$variant
                        $(($($crate::codec::declare::part!(draw sample $item)),+))?
                        $({ $($field: sample.draw()),+ })?,)+
                    kind => unreachable!("no variant has the number {kind}"),
                }
            }
        }
    };
}

/// Encodes, decodes or draws one field.
macro_rules! part {
    (encode $to:ident $field:ident) => {
        $crate::codec::Encode::encode($field, $to)
    };
    (encode $to:ident $field:ident $form:ident) => {
        $crate::codec::field::$form::encode($field, $to)
    };
    (decode $from:ident $field:ident) => {
        $crate::codec::Decode::decode($from)?
    };
    (decode $from:ident $field:ident $form:ident) => {
        $crate::codec::field::$form::decode($from)?
    };
    (draw $sample:ident $field:ident) => {
        $sample.draw()
    };
}

pub(super) use choice;
pub(crate) use {part, record};

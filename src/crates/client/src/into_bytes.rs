//! [`IntoBytes`]: the types that calls accept as keys, values and names.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

/// Text or bytes that a call accepts as a key, a value or a name, as in the crate `bowline`.
///
/// Implemented for `&str`, `String`, `&[u8]`, `Vec<u8>`, `[u8; N]`, [`Bytes`], references to them,
/// and a few related types. Owned text and [`Bytes`] are passed on without a copy. Borrowed data is
/// copied, except `&Bytes`, which shares its buffer. Implement the trait for key types of your own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key, value or name",
    label = "expected text or bytes: `&str`, `String`, `&[u8]`, `Vec<u8>`, `[u8; N]` or `Bytes`",
    note = "pass a number as text, `n.to_string()`, or as bytes, `n.to_be_bytes()`"
)]
pub trait IntoBytes {
    /// Converts the value to bytes.
    fn into_bytes(self) -> Bytes;
}

/// Implements the trait for types that own their bytes.
macro_rules! owned {
    ($($owned:ty),*) => {$(
        impl IntoBytes for $owned {
            fn into_bytes(self) -> Bytes {
                self.into()
            }
        }
    )*};
}

owned!(Bytes, BytesMut, String, Vec<u8>, Box<[u8]>);

/// Implements the trait for types whose bytes are copied.
macro_rules! copied {
    ($([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> IntoBytes for $type {
            fn into_bytes(self) -> Bytes {
                let bytes: &[u8] = self.as_ref();
                Bytes::copy_from_slice(bytes)
            }
        }
    )*};
}

copied!(
    [] &str, [] &String, [] &[u8], [] &Vec<u8>, [] &Box<[u8]>, [] &BytesMut,
    [const N: usize] [u8; N], [const N: usize] &[u8; N]
);

impl IntoBytes for &Bytes {
    fn into_bytes(self) -> Bytes {
        self.clone()
    }
}

impl IntoBytes for Box<str> {
    fn into_bytes(self) -> Bytes {
        self.into_string().into()
    }
}

impl IntoBytes for &Box<str> {
    fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }
}

impl IntoBytes for Cow<'_, str> {
    fn into_bytes(self) -> Bytes {
        self.into_owned().into()
    }
}

impl IntoBytes for &Cow<'_, str> {
    fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }
}

impl IntoBytes for Cow<'_, [u8]> {
    fn into_bytes(self) -> Bytes {
        self.into_owned().into()
    }
}

impl IntoBytes for &Cow<'_, [u8]> {
    fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self)
    }
}

/// For example, an item of an iterator over `[&str]`.
impl<'a, T: ?Sized> IntoBytes for &&'a T
where
    &'a T: IntoBytes,
{
    fn into_bytes(self) -> Bytes {
        (*self).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_of_every_form_are_the_same_key() {
        let text = String::from("key");
        let bytes = Bytes::from("key");
        let (owned, cow) = (Vec::from("key"), Cow::Borrowed(&b"key"[..]));
        let all = [
            "key".into_bytes(),
            IntoBytes::into_bytes(&text),
            IntoBytes::into_bytes(text.clone()),
            (&"key").into_bytes(),
            text.as_bytes().into_bytes(),
            IntoBytes::into_bytes(&owned),
            (*b"key").into_bytes(),
            b"key".into_bytes(),
            (&bytes).into_bytes(),
            BytesMut::from("key").into_bytes(),
            IntoBytes::into_bytes(Cow::Borrowed("key")),
            IntoBytes::into_bytes(&cow),
            IntoBytes::into_bytes(Box::<str>::from("key")),
        ];
        for converted in all {
            assert_eq!(converted, "key");
        }
        assert_eq!((&bytes).into_bytes().as_ptr(), bytes.as_ptr(), "shared");
    }
}

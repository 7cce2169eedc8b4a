//! [`IntoBytes`]: the types that calls accept as keys, values and names.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

/// Text or bytes that a call accepts as a key, a value or a name.
///
/// Implemented for `&str`, `String`, `&[u8]`, `Vec<u8>`, `[u8; N]`, [`Bytes`], references to them,
/// and a few related types. Owned text and [`Bytes`] are passed on without a copy. Borrowed data is
/// copied, except `&Bytes`, which shares its buffer. To pass a large constant without a copy, wrap
/// it in [`Bytes::from_static`].
///
/// ```
/// # use bowline::{Blocking, Bytes, Config, Node};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # let kv = node.client();
/// let name = String::from("orders/42");
/// kv.put(&name, "paid").block()?;
/// kv.put(format!("{name}/total"), 1999_u64.to_be_bytes()).block()?;
/// kv.put(b"raw", vec![0xff, 0x00]).block()?;
/// let row = kv.get(&name).block()?.unwrap();
/// kv.put("copy", &row.value).block()?; // shares the buffer
/// kv.put("page", Bytes::from_static(b"<html>")).block()?; // not copied
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The trait is not implemented for numbers, because their encoding is the program's choice: use
/// `n.to_string()`, or `n.to_be_bytes()` for keys that sort like the numbers. Implement the trait
/// for key types of your own:
///
/// ```
/// use bowline::{Bytes, IntoBytes};
///
/// struct OrderId(u64);
///
/// impl IntoBytes for &OrderId {
///     fn into_bytes(self) -> Bytes {
///         format!("orders/{}", self.0).into()
///     }
/// }
///
/// assert_eq!(bowline::KeyRange::key(&OrderId(42)), "orders/42".into());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key, value or name",
    label = "expected text or bytes: `&str`, `String`, `&[u8]`, `Vec<u8>`, `[u8; N]` or `Bytes`",
    note = "pass a number as text, `n.to_string()`, or as bytes, `n.to_be_bytes()`",
    note = "pass another type as bytes that you have encoded, or implement `bowline::IntoBytes` for it"
)]
pub trait IntoBytes {
    /// Converts the value to bytes.
    fn into_bytes(self) -> Bytes;
}

impl IntoBytes for Bytes {
    fn into_bytes(self) -> Bytes {
        self
    }
}

impl IntoBytes for &Bytes {
    fn into_bytes(self) -> Bytes {
        self.clone()
    }
}

impl<const N: usize> IntoBytes for [u8; N] {
    fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self)
    }
}

impl<const N: usize> IntoBytes for &[u8; N] {
    fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self)
    }
}

impl IntoBytes for Cow<'_, str> {
    fn into_bytes(self) -> Bytes {
        self.into_owned().into()
    }
}

impl IntoBytes for Cow<'_, [u8]> {
    fn into_bytes(self) -> Bytes {
        self.into_owned().into()
    }
}

impl IntoBytes for BytesMut {
    fn into_bytes(self) -> Bytes {
        self.freeze()
    }
}

impl IntoBytes for Box<str> {
    fn into_bytes(self) -> Bytes {
        self.into_string().into()
    }
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

owned!(String, Vec<u8>, Box<[u8]>);

/// Implements the trait for references, whose bytes are copied.
macro_rules! borrowed {
    ($($borrowed:ty),*) => {$(
        impl IntoBytes for &$borrowed {
            fn into_bytes(self) -> Bytes {
                Bytes::copy_from_slice(<$borrowed as AsRef<[u8]>>::as_ref(self))
            }
        }
    )*};
}

borrowed!(str, String, [u8], Vec<u8>, Box<[u8]>, Cow<'_, [u8]>, BytesMut);

impl IntoBytes for &Box<str> {
    fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }
}

impl IntoBytes for &Cow<'_, str> {
    fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
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
    use crate::model::KeyRange;

    #[test]
    fn text_and_bytes_of_every_form_name_the_same_key() {
        let text = String::from("key");
        let bytes = Bytes::from("key");
        let all = [
            "key".into_bytes(),
            text.as_str().into_bytes(),
            IntoBytes::into_bytes(&text),
            IntoBytes::into_bytes(text.clone()),
            (&"key").into_bytes(),
            text.as_bytes().into_bytes(),
            text.clone().into_bytes().into_bytes(),
            (&text.clone().into_bytes()).into_bytes(),
            (*b"key").into_bytes(),
            b"key".into_bytes(),
            (&bytes).into_bytes(),
            bytes.clone().into_bytes(),
            BytesMut::from("key").into_bytes(),
            IntoBytes::into_bytes(Cow::Borrowed("key")),
            IntoBytes::into_bytes(Cow::Borrowed(&b"key"[..])),
            IntoBytes::into_bytes(Box::<str>::from("key")),
            IntoBytes::into_bytes(Box::<[u8]>::from(&b"key"[..])),
        ];
        for converted in all {
            assert_eq!(converted, "key");
        }
    }

    #[test]
    fn shared_and_owned_buffers_are_not_copied() {
        let bytes = Bytes::from(vec![7; 100]);
        assert_eq!((&bytes).into_bytes().as_ptr(), bytes.as_ptr());
        assert_eq!(KeyRange::key(&bytes).start().as_ptr(), bytes.as_ptr());
        let owned = vec![7; 100];
        let before = owned.as_ptr();
        assert_eq!(owned.into_bytes().as_ptr(), before);
        let constant = Bytes::from_static(b"constant");
        assert_eq!(constant.clone().into_bytes().as_ptr(), constant.as_ptr());
    }
}

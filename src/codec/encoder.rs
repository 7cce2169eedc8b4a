//! The encoder: writes numbers, bytes and lists to a buffer, or only counts their length.

use bytes::BytesMut;

/// A destination of encoded bytes.
pub(crate) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Sink for BytesMut {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A sink that only counts bytes.
#[derive(Default)]
pub(crate) struct Length(pub(crate) usize);

impl Sink for Length {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// A value that can be encoded. [`Decode`](super::Decode) is the counterpart.
pub(crate) trait Encode {
    /// Appends the encoding of this value.
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>);
}

/// A writer of the primitive encodings.
pub(crate) struct Encoder<'a, S> {
    sink: &'a mut S,
}

impl<'a, S: Sink> Encoder<'a, S> {
    /// Creates an encoder that appends to `sink`.
    pub(crate) fn new(sink: &'a mut S) -> Self {
        Self { sink }
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.sink.put(&[byte]);
    }

    /// Writes a number in one to ten bytes.
    pub(crate) fn number(&mut self, mut number: u64) {
        let mut bytes = [0; 10];
        let mut len = 0;
        while number >= 0x80 {
            bytes[len] = number as u8 | 0x80;
            number >>= 7;
            len += 1;
        }
        bytes[len] = number as u8;
        self.sink.put(&bytes[..=len]);
    }

    /// Writes eight bytes in little-endian order. Used for hashes, which would take ten bytes as a
    /// varint.
    pub(crate) fn fixed_u64(&mut self, number: u64) {
        self.sink.put(&number.to_le_bytes());
    }

    /// Writes sixteen bytes in little-endian order.
    pub(crate) fn fixed_u128(&mut self, number: u128) {
        self.sink.put(&number.to_le_bytes());
    }

    /// Writes length-prefixed bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.sink.put(bytes);
    }

    /// Writes bytes without a length. The bytes reach to the end of the encoding, so nothing can
    /// follow them.
    pub(crate) fn rest(&mut self, bytes: &[u8]) {
        self.sink.put(bytes);
    }

    /// Writes the number of a variant and its contents.
    pub(super) fn variant(&mut self, kind: u8, contents: &impl Encode) {
        self.byte(kind);
        contents.encode(self);
    }

    /// Writes a length-prefixed list.
    pub(crate) fn list<T: Encode>(&mut self, items: &[T]) {
        self.number(items.len() as u64);
        for item in items {
            item.encode(self);
        }
    }
}

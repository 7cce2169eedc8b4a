//! Writing: numbers, bytes and lists into a buffer, or into nothing to learn their length.

use bytes::{Bytes, BytesMut};

/// Where encoded bytes go.
pub(crate) trait Sink {
    /// Appends `bytes`.
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

/// A sink that only counts.
#[derive(Default)]
pub(crate) struct Length(pub(crate) usize);

impl Sink for Length {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// What can be written. [`Decode`](super::Decode) reads it back.
pub(crate) trait Encode {
    /// Writes it.
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>);
}

/// Writes the parts that everything else is made of.
pub(crate) struct Encoder<'a, S> {
    sink: &'a mut S,
}

impl<'a, S: Sink> Encoder<'a, S> {
    /// Appends to `sink`.
    pub(crate) fn new(sink: &'a mut S) -> Self {
        Self { sink }
    }

    /// One byte.
    pub(crate) fn byte(&mut self, byte: u8) {
        self.sink.put(&[byte]);
    }

    /// A number, in one to ten bytes.
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

    /// Eight bytes, the least significant first: for hashes, where a number would take ten.
    pub(crate) fn fixed_u64(&mut self, number: u64) {
        self.sink.put(&number.to_le_bytes());
    }

    /// Sixteen bytes, the least significant first.
    pub(crate) fn fixed_u128(&mut self, number: u128) {
        self.sink.put(&number.to_le_bytes());
    }

    /// Bytes behind their length.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.sink.put(bytes);
    }

    /// Bytes that reach to the end, so that nothing can follow them.
    pub(crate) fn rest(&mut self, bytes: &[u8]) {
        self.sink.put(bytes);
    }

    /// A list behind its length.
    pub(crate) fn list<T: Encode>(&mut self, items: &[T]) {
        self.number(items.len() as u64);
        for item in items {
            item.encode(self);
        }
    }
}

impl Encode for u64 {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(*self);
    }
}

impl Encode for Bytes {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.bytes(self);
    }
}

//! The decoder: reads numbers, bytes and lists from untrusted bytes, and checks all of them.
//!
//! Each method returns either a value that lies completely inside the input, or an error. A length
//! or a count is compared with the remaining bytes before anything is allocated for it.

use bytes::Bytes;

use super::CodecError;
use crate::model::Limits;

/// A value that can be decoded. [`Encode`](super::Encode) is the counterpart.
pub(crate) trait Decode: Sized {
    /// Minimum encoded size of any value. Limits the number of items that a list can claim to have.
    const BYTES_MIN: usize;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError>;
}

/// Decodes a version byte, which must be between 1 and `known`, and one value that reaches to the
/// end of the bytes.
pub(super) fn decode_versioned<T: Decode>(
    what: &'static str,
    known: u8,
    bytes: Bytes,
) -> Result<T, CodecError> {
    let mut from = Decoder::new(what, bytes);
    from.version(known)?;
    let value = T::decode(&mut from)?;
    from.finish()?;
    Ok(value)
}

/// A reader of the primitive encodings, from front to back.
pub(crate) struct Decoder {
    input: Bytes,
    at: usize,
    depth: usize,
    what: &'static str,
}

impl Decoder {
    /// Creates a decoder of `input`, which errors refer to as `what`.
    pub(crate) fn new(what: &'static str, input: Bytes) -> Self {
        Self { input, at: 0, depth: 0, what }
    }

    /// Returns the number of unread bytes.
    pub(crate) fn left(&self) -> usize {
        self.input.len() - self.at
    }

    /// Returns whether the next byte is `byte`, without reading it.
    pub(super) fn next_is(&self, byte: u8) -> bool {
        self.input.get(self.at) == Some(&byte)
    }

    /// Reads the version byte, which must be between 1 and `known`.
    pub(crate) fn version(&mut self, known: u8) -> Result<u8, CodecError> {
        match self.byte()? {
            0 => Err(self.malformed("version 0")),
            found if found > known => {
                Err(CodecError::NewerVersion { what: self.what, found, known })
            }
            found => Ok(found),
        }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, CodecError> {
        let byte = *self.input.get(self.at).ok_or_else(|| self.cut_short(1))?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn number(&mut self) -> Result<u64, CodecError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(self.malformed("a number has more than 64 bits"));
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(self.malformed("a number has an overlong encoding"));
                }
                return Ok(number);
            }
        }
        Err(self.malformed("a number has more than 64 bits"))
    }

    /// Reads flags, all of which must be among `known`.
    pub(crate) fn flags(&mut self, what: &'static str, known: u64) -> Result<u64, CodecError> {
        let found = self.number()?;
        if found & !known == 0 { Ok(found) } else { Err(CodecError::Newer { what, found }) }
    }

    /// Reads eight bytes as a little-endian number.
    pub(crate) fn fixed_u64(&mut self) -> Result<u64, CodecError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads sixteen bytes as a little-endian number.
    pub(crate) fn fixed_u128(&mut self) -> Result<u128, CodecError> {
        self.array().map(u128::from_le_bytes)
    }

    /// Reads length-prefixed bytes. The result is a slice of the input, not a copy.
    pub(crate) fn bytes(&mut self) -> Result<Bytes, CodecError> {
        let len = self.number()?;
        if len > self.left() as u64 {
            return Err(self.cut_short(len));
        }
        let bytes = self.input.slice(self.at..self.at + len as usize);
        self.at += len as usize;
        Ok(bytes)
    }

    pub(crate) fn rest(&mut self) -> Bytes {
        let bytes = self.input.slice(self.at..);
        self.at = self.input.len();
        bytes
    }

    /// Reads length-prefixed UTF-8 text.
    pub(crate) fn text(&mut self) -> Result<String, CodecError> {
        let bytes = self.bytes()?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.malformed("a text is not valid UTF-8")),
        }
    }

    /// Reads a length-prefixed list.
    pub(crate) fn list<T: Decode>(&mut self) -> Result<Vec<T>, CodecError> {
        let count = self.count(T::BYTES_MIN)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(T::decode(self)?);
        }
        Ok(items)
    }

    /// Reads the number of items of a list whose items take at least `bytes_min` bytes each. Fails
    /// if the remaining bytes cannot hold that many items.
    pub(crate) fn count(&mut self, bytes_min: usize) -> Result<usize, CodecError> {
        assert!(bytes_min > 0, "items of no bytes could be claimed without limit");
        let count = self.number()?;
        if count > (self.left() / bytes_min) as u64 {
            return Err(self.cut_short(count.saturating_mul(bytes_min as u64)));
        }
        Ok(count as usize)
    }

    /// Reads a part of a transaction, one nesting level deeper.
    pub(crate) fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, CodecError>,
    ) -> Result<T, CodecError> {
        if self.depth == Limits::TXN_DEPTH_CEILING {
            return Err(CodecError::TooDeep { max: Limits::TXN_DEPTH_CEILING });
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// Checks that no bytes remain.
    pub(crate) fn finish(self) -> Result<(), CodecError> {
        match self.left() {
            0 => Ok(()),
            bytes => Err(CodecError::Trailing { what: self.what, bytes }),
        }
    }

    /// Creates an error about the value being read.
    pub(crate) fn malformed(&self, why: &'static str) -> CodecError {
        CodecError::Malformed { what: self.what, why }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let Some(bytes) = self.input[self.at..].first_chunk::<N>() else {
            return Err(self.cut_short(N as u64));
        };
        self.at += N;
        Ok(*bytes)
    }

    fn cut_short(&self, needed: u64) -> CodecError {
        CodecError::CutShort { what: self.what, needed, left: self.left() }
    }
}

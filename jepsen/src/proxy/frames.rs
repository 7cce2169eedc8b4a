//! The part of the peer protocol that the proxy must parse in order to drop whole messages: the boundaries of frames
//! and the identity of the member that dialed.
//!
//! ```text
//!   preface: 16 bytes; the 13th byte is the lane (the kind of connection) | frame | frame | ...
//!   frame:   length u32 | two checksums u32 | body of that length
//! ```

/// Length of the preface, in bytes. Both sides send a preface first.
pub(super) const PREFACE_BYTES: usize = 16;

/// Offset of the lane in the preface.
const LANE_AT: usize = 12;

/// The lane (kind of connection) of a node that asks to join. Such a node does not identify itself at first.
const JOIN_LANE: u8 = 255;

/// Size of the length and the checksums of a frame, in bytes.
const HEADER_BYTES: usize = 12;

/// Maximum length of a frame. A receiver closes the connection when a frame is longer, so the proxy forwards the rest
/// of the stream unchanged.
const FRAME_BYTES_MAX: usize = 32 << 20;

/// A stream that is divided into frames.
#[derive(Default)]
pub(super) struct Frames {
    buffer: Vec<u8>,
    /// Number of frames taken so far.
    taken: u64,
}

impl Frames {
    /// Returns the buffer for received data.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Returns the next whole frame. The first one is the preface.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        let end = self.end()?;
        let rest = self.buffer.split_off(end);
        self.taken += 1;
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    /// Returns the remaining data at the end of the stream.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Returns whether the next frame belongs to the handshake, which consists of the preface and one or two frames.
    pub(super) fn greets(&self) -> bool {
        self.taken < 3
    }

    fn end(&self) -> Option<usize> {
        let end = if self.taken == 0 {
            PREFACE_BYTES
        } else {
            let length = u32::from_le_bytes(*self.buffer.first_chunk()?);
            match usize::try_from(length).unwrap_or(usize::MAX) {
                bytes if bytes <= FRAME_BYTES_MAX => HEADER_BYTES + bytes,
                _ => self.buffer.len(),
            }
        };
        (end > 0 && end <= self.buffer.len()).then_some(end)
    }
}

/// The caller of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Caller {
    /// The member with this number.
    Member(usize),
    /// Another caller, such as a node that asks to join, or a probe.
    Stranger,
}

impl Caller {
    /// Identifies the caller by the first bytes of a connection. Returns `None` if more bytes are needed. The
    /// handshake of a member contains the member's own address, which is unique among `members`.
    pub(super) fn of(bytes: &[u8], members: &[String]) -> Option<Self> {
        if *bytes.get(LANE_AT)? == JOIN_LANE {
            return Some(Caller::Stranger);
        }
        let header = bytes.get(PREFACE_BYTES..)?.first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
        if length > FRAME_BYTES_MAX {
            return Some(Caller::Stranger);
        }
        let body = PREFACE_BYTES + HEADER_BYTES;
        let greeting = bytes.get(body..body + length)?;
        let names = |address: &String| {
            greeting.windows(address.len()).any(|window| window == address.as_bytes())
        };
        Some(members.iter().position(names).map_or(Caller::Stranger, Caller::Member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap();
        [&length.to_le_bytes()[..], &[1, 2, 3, 4, 5, 6, 7, 8], body].concat()
    }

    fn preface(lane: u8) -> Vec<u8> {
        let mut bytes = vec![7; PREFACE_BYTES];
        bytes[LANE_AT] = lane;
        bytes
    }

    #[test]
    fn stream_is_split_into_preface_and_frames_for_any_chunking() {
        let whole = [preface(0), frame(b"hello"), frame(b""), frame(&[9; 3000])];
        let bytes = whole.concat();
        for step in [1, 7, 24, bytes.len()] {
            let (mut frames, mut got) = (Frames::default(), Vec::new());
            for piece in bytes.chunks(step) {
                frames.buffer().extend_from_slice(piece);
                got.extend(std::iter::from_fn(|| frames.next()));
            }
            assert_eq!(got, whole, "{step} bytes at a time");
            assert!(frames.rest().is_empty());
        }
    }

    #[test]
    fn oversized_frame_length_passes_bytes_through() {
        let mut frames = Frames::default();
        frames.buffer().extend(preface(0));
        frames.buffer().extend([0xff; 20]);
        assert_eq!(frames.next(), Some(preface(0)));
        assert_eq!(frames.next(), Some(vec![0xff; 20]));
        assert_eq!(frames.next(), None);
    }

    #[test]
    fn proxy_identifies_the_caller_by_its_advertised_address() {
        let members = ["127.0.0.1:40001".to_owned(), "127.0.0.1:40002".to_owned()];
        let greeting = [preface(1), frame(b"\x01\x01...\x0f127.0.0.1:40002\x05")].concat();
        for length in 0..greeting.len() {
            assert_eq!(Caller::of(&greeting[..length], &members), None);
        }
        assert_eq!(Caller::of(&greeting, &members), Some(Caller::Member(1)));
        let other = [preface(0), frame(b"127.0.0.1:40003")].concat();
        assert_eq!(Caller::of(&other, &members), Some(Caller::Stranger));
        assert_eq!(Caller::of(&preface(JOIN_LANE), &members), Some(Caller::Stranger));
    }
}

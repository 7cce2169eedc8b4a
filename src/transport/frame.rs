//! Frames: the units into which a byte stream is split, with checksums.
//!
//! ```text
//!  0         4         8         12     13
//! +---------+---------+---------+------+----------------+
//! | length  | crc32   | crc32   | kind | body           |      numbers least significant byte first
//! +---------+---------+---------+------+----------------+
//!  \_______/ of this   \_________\_____/________________/
//!                       of these  \____ length counts these
//! ```
//!
//! The length is checked against its own checksum and the lane's limit before anything is allocated
//! for it. The buffer grows with the data that has arrived, not with the announced length. Without
//! the first checksum, a corrupted length could make the receiver treat the following frames as
//! part of the current body. These frames include keepalives, so the connection would seem alive.
//! The second checksum covers kind and body, and is checked before either is interpreted. The
//! checksums detect accidental damage, not attacks.
//!
//! A small body is copied out of the read buffer, so that a key of ten bytes does not keep a buffer
//! of 64 KiB in memory. A large body is a slice of the buffer.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

use crate::model::Lane;

/// Maximum size of a body on the control lane.
pub(super) const CONTROL_BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a body on the bulk lane.
pub(super) const BULK_BODY_BYTES_MAX: usize = 16 << 20;
/// Maximum size of a body on the snapshot lane.
pub(super) const SNAPSHOT_BODY_BYTES_MAX: usize = 4 << 20;
/// Maximum size of a hello: enough for the founding map of about 900 members.
pub(super) const HELLO_BODY_BYTES_MAX: usize = 16 << 10;
/// Maximum size of a join request.
pub(super) const JOIN_ASK_BODY_BYTES_MAX: usize = 4 << 10;
/// Maximum size of the reply to a join request: enough for all members.
pub(super) const JOIN_ANSWER_BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum size of the reason of a rejection.
pub(super) const REFUSED_BODY_BYTES_MAX: usize = 1 << 10;

/// Size of the header: the length, its checksum, and the checksum of kind and body.
pub(super) const HEADER_BYTES: usize = 12;
/// Free space in the buffer before each read.
const READ_BYTES: usize = 64 << 10;
/// Bodies up to this size are copied out of the read buffer.
const COPIED_BODY_BYTES_MAX: usize = 16 << 10;

/// Returns the maximum size of a body on `lane`.
pub(super) fn body_bytes_max(lane: Lane) -> usize {
    match lane {
        Lane::Control => CONTROL_BODY_BYTES_MAX,
        Lane::Bulk => BULK_BODY_BYTES_MAX,
        Lane::Snapshot => SNAPSHOT_BODY_BYTES_MAX,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameKind {
    /// A hello, encoded as a message.
    Hello,
    /// Text with the reason why the connection is about to be closed.
    Refused,
    /// A message.
    Message,
    /// An empty keepalive.
    Alive,
    /// A permanent rejection: the receiver was removed from the cluster. Like `Refused`, the frame
    /// contains the reason as text.
    Removed,
    /// A number with which a joining process proves that it knows the token.
    Challenge,
    /// A join request.
    JoinAsk,
    /// The reply to a join request.
    JoinAnswer,
}

impl FrameKind {
    const fn byte(self) -> u8 {
        match self {
            FrameKind::Hello => 1,
            FrameKind::Refused => 2,
            FrameKind::Message => 3,
            FrameKind::Alive => 4,
            FrameKind::Removed => 5,
            FrameKind::Challenge => 6,
            FrameKind::JoinAsk => 7,
            FrameKind::JoinAnswer => 8,
        }
    }

    fn of(byte: u8) -> Result<Self, FrameError> {
        [
            FrameKind::Hello,
            FrameKind::Refused,
            FrameKind::Message,
            FrameKind::Alive,
            FrameKind::Removed,
            FrameKind::Challenge,
            FrameKind::JoinAsk,
            FrameKind::JoinAnswer,
        ]
        .into_iter()
        .find(|kind| kind.byte() == byte)
        .ok_or(FrameError::Kind(byte))
    }

    /// Returns whether a frame of this kind is always the last frame of its connection.
    pub(super) fn refuses(self) -> bool {
        matches!(self, FrameKind::Refused | FrameKind::Removed)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub(super) kind: FrameKind,
    pub(super) body: Bytes,
}

/// An invalid frame. The rest of the stream cannot be trusted, so the connection must be closed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum FrameError {
    #[error("invalid frame length {bytes}: must be 1 to {max} bytes")]
    Length { bytes: usize, max: usize },
    #[error("frame checksum mismatch")]
    Checksum,
    #[error("unknown frame kind {0}")]
    Kind(u8),
}

/// Appends a frame to `out`. `body` appends the body.
pub(super) fn put_frame(out: &mut Vec<u8>, kind: FrameKind, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    out.push(kind.byte());
    body(out);
    let (header, checked) = out[start..].split_at_mut(HEADER_BYTES);
    let length = u32::try_from(checked.len()).expect("no lane allows a body of 4 GiB");
    let length = length.to_le_bytes();
    header[..4].copy_from_slice(&length);
    header[4..8].copy_from_slice(&crc32fast::hash(&length).to_le_bytes());
    header[8..].copy_from_slice(&crc32fast::hash(checked).to_le_bytes());
}

/// Returns the length of kind and body that a header announces, and checks that it is within
/// `body_bytes_max`.
pub(super) fn announced(
    header: [u8; HEADER_BYTES],
    body_bytes_max: usize,
) -> Result<usize, FrameError> {
    let [length, of_length, _] = numbers(header);
    let (bytes, max) = (length as usize, body_bytes_max + 1);
    if bytes == 0 || bytes > max {
        return Err(FrameError::Length { bytes, max });
    }
    if crc32fast::hash(&length.to_le_bytes()) != of_length {
        return Err(FrameError::Checksum);
    }
    Ok(bytes)
}

/// Checks kind and body against the header and returns the kind.
pub(super) fn check(header: [u8; HEADER_BYTES], checked: &[u8]) -> Result<FrameKind, FrameError> {
    let [_, _, of_checked] = numbers(header);
    if crc32fast::hash(checked) != of_checked {
        return Err(FrameError::Checksum);
    }
    FrameKind::of(checked[0])
}

fn numbers(header: [u8; HEADER_BYTES]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = header;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_le_bytes)
}

/// Splits the received bytes into frames.
pub(super) struct FrameReader {
    buffer: BytesMut,
    body_bytes_max: usize,
}

impl FrameReader {
    pub(super) fn new(body_bytes_max: usize) -> Self {
        Self { buffer: BytesMut::new(), body_bytes_max }
    }

    /// Returns the buffer for the next bytes, with free space.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        self.buffer.reserve(READ_BYTES);
        &mut self.buffer
    }

    /// Releases the memory of the buffer if it is empty.
    pub(super) fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Returns the next frame if it has arrived completely.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(&header) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let end = HEADER_BYTES + announced(header, self.body_bytes_max)?;
        let Some(checked) = self.buffer.get(HEADER_BYTES..end) else { return Ok(None) };
        let kind = check(header, checked)?;
        let body = if checked.len() <= COPIED_BODY_BYTES_MAX {
            let body = Bytes::copy_from_slice(&checked[1..]);
            self.buffer.advance(end);
            body
        } else {
            self.buffer.split_to(end).freeze().slice(HEADER_BYTES + 1..)
        };
        Ok(Some(Frame { kind, body }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_frame(&mut out, kind, |out| out.extend_from_slice(body));
        out
    }

    fn read(bytes: &[u8], body_bytes_max: usize) -> Result<Option<Frame>, FrameError> {
        let mut reader = FrameReader::new(body_bytes_max);
        reader.buffer().extend_from_slice(bytes);
        reader.next()
    }

    #[test]
    fn frame_format_is_frozen() {
        let bytes = frame(FrameKind::Message, b"123456789");
        assert_eq!(
            bytes, b"\x0a\0\0\0\x78\x3f\xf9\x4e\xfd\xfe\x40\x25\x03123456789",
            "{bytes:02x?}"
        );
        for (kind, byte) in [(FrameKind::Hello, 1), (FrameKind::Refused, 2), (FrameKind::Alive, 4)]
        {
            assert_eq!(frame(kind, b"")[HEADER_BYTES], byte);
        }
    }

    #[test]
    fn frames_are_found_for_any_chunking() {
        let bodies: [Vec<u8>; 4] = [vec![], vec![1; 10], vec![2; 40_000], vec![3; 300]];
        let stream: Vec<u8> =
            bodies.iter().flat_map(|body| frame(FrameKind::Message, body)).collect();
        for step in [1, 7, 8, 9, 1000, 39_999, stream.len()] {
            let mut reader = FrameReader::new(40_000);
            let mut found = Vec::new();
            for piece in stream.chunks(step) {
                reader.buffer().extend_from_slice(piece);
                while let Some(frame) = reader.next().expect("whole frames") {
                    found.push(frame.body.to_vec());
                }
            }
            assert_eq!(found, bodies, "in steps of {step}");
        }
    }

    #[test]
    fn oversized_length_is_rejected_from_its_header() {
        let max = 1000;
        assert!(read(&frame(FrameKind::Message, &[0; 1000]), max).is_ok_and(|one| one.is_some()));
        let header = &frame(FrameKind::Message, &[0; 1001])[..HEADER_BYTES];
        assert_eq!(read(header, max), Err(FrameError::Length { bytes: 1002, max: 1001 }));
        assert_eq!(read(&[0xff; 12], max).map_err(|_| ()), Err(()));
        assert_eq!(read(&[0; 12], max), Err(FrameError::Length { bytes: 0, max: 1001 }));
    }

    #[test]
    fn announced_length_allocates_no_memory() {
        let mut reader = FrameReader::new(BULK_BODY_BYTES_MAX);
        let header = &frame(FrameKind::Message, &vec![0; BULK_BODY_BYTES_MAX])[..HEADER_BYTES];
        reader.buffer().extend_from_slice(header);
        assert_eq!(reader.next(), Ok(None));
        assert!(reader.buffer().capacity() <= 2 * READ_BYTES + HEADER_BYTES);
    }

    #[test]
    fn flipped_bit_in_a_frame_is_detected() {
        let whole = frame(FrameKind::Message, b"some message");
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A damaged length is detected at once, without waiting for more bytes.
            assert!(read(&damaged, 1000).is_err(), "bit {bit}");
            if bit / 8 < HEADER_BYTES - 4 {
                assert!(read(&damaged[..HEADER_BYTES], 1000).is_err(), "bit {bit}, by its header");
            }
        }
    }

    #[test]
    fn small_body_is_copied_and_large_body_is_not() {
        let mut reader = FrameReader::new(BULK_BODY_BYTES_MAX);
        let small = frame(FrameKind::Message, &[1; 100]);
        let large = frame(FrameKind::Message, &[2; COPIED_BODY_BYTES_MAX + 1]);
        reader.buffer().extend_from_slice(&small);
        reader.buffer().extend_from_slice(&large);
        let range = reader.buffer().as_ptr_range();
        let small = reader.next().expect("whole").expect("there");
        assert!(!range.contains(&small.body.as_ptr()));
        let large = reader.next().expect("whole").expect("there");
        assert!(range.contains(&large.body.as_ptr()));
    }
}

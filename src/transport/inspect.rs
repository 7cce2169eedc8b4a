//! The parts that the simulated network shares with the real one: the frames of messages, the lanes,
//! and the answer to a hello.

use bytes::Bytes;

use super::frame::{FrameKind, FrameReader, body_bytes_max, put_frame};
pub(crate) use super::handshake::check_hello;
pub(crate) use super::peers::LANES;
use crate::codec::encode_message;
use crate::model::{Lane, PeerMessage};

/// Returns a message in a frame, as it is sent.
pub(crate) fn framed(message: &PeerMessage) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, FrameKind::Message, |out| encode_message(message, out));
    out
}

/// Returns the body of the message in a frame, or `None` if the frame is invalid or incomplete.
pub(crate) fn unframed(bytes: &[u8], lane: Lane) -> Option<Bytes> {
    let mut reader = FrameReader::new(body_bytes_max(lane));
    reader.buffer().extend_from_slice(bytes);
    let frame = reader.next().ok()??;
    (frame.kind == FrameKind::Message).then_some(frame.body)
}

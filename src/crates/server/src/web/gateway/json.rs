//! Converts messages between JSON and gRPC frames.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
use serde::de::{DeserializeSeed as _, IgnoredAny};
use serde_json::{Deserializer, Serializer, Value};
use tonic::Status;

use crate::web::gateway::fields::Fields;

/// Size of a gRPC frame's prefix: a compression flag and the length.
const PREFIX_BYTES: usize = 5;

/// Parses the first value of a text as a message, and returns it with its length in bytes. Returns `None` for an empty
/// text. Skips unknown fields, as etcd does.
///
/// # Errors
/// Fails if the text is not JSON or contains a duplicate field. `is_eof` is true for an incomplete text.
pub(crate) fn first(
    of: &MessageDescriptor,
    text: &[u8],
) -> Result<Option<(Value, usize)>, serde_json::Error> {
    // Only the stream deserializer reports how far it has read, but it accepts no seed. The text is therefore parsed
    // twice.
    let mut values = Deserializer::from_slice(text).into_iter::<IgnoredAny>();
    if values.next().transpose()?.is_none() {
        return Ok(None);
    }
    let bytes = values.byte_offset();
    let value = Fields(of.clone()).deserialize(&mut Deserializer::from_slice(&text[..bytes]))?;
    Ok(Some((value, bytes)))
}

/// Encodes a message as a frame.
///
/// # Errors
/// Fails if the value does not match the message type.
pub(crate) fn framed(of: &MessageDescriptor, value: Value) -> Result<Bytes, Status> {
    let message = DynamicMessage::deserialize(of.clone(), value)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(length as u32);
    frame.extend_from_slice(&message.encode_to_vec());
    Ok(frame.freeze())
}

/// Returns the length of the next frame's message if the frame is complete.
fn length(read: &[u8]) -> Option<usize> {
    let length = read.get(1..PREFIX_BYTES)?;
    let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
    (read.len() >= PREFIX_BYTES + length).then_some(length)
}

/// Removes and returns the message of the next frame if it is complete.
pub(crate) fn unframed(read: &mut BytesMut) -> Option<Bytes> {
    let length = length(read)?;
    read.advance(PREFIX_BYTES);
    Some(read.split_to(length).freeze())
}

/// Returns the message of the only frame, or an empty message without one.
pub(crate) fn only(read: &Bytes) -> Bytes {
    length(read).map_or_else(Bytes::new, |length| read.slice(PREFIX_BYTES..PREFIX_BYTES + length))
}

/// Converts a message to JSON.
///
/// # Errors
/// Fails if the bytes do not match the message type.
pub(crate) fn written(of: &MessageDescriptor, message: Bytes) -> Result<Vec<u8>, Status> {
    let message = DynamicMessage::decode(of.clone(), message)
        .map_err(|error| Status::internal(format!("bowline: {error}")))?;
    let mut json = Serializer::new(Vec::new());
    let options = SerializeOptions::new().use_proto_field_name(true);
    message
        .serialize_with_options(&mut json, &options)
        .map_err(|error| Status::internal(format!("bowline: {error}")))?;
    Ok(json.into_inner())
}

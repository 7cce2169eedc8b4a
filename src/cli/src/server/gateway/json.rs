//! Messages: between JSON and the frames of gRPC.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
use serde::de::{DeserializeSeed as _, IgnoredAny};
use serde_json::{Deserializer, Serializer, Value};
use tonic::Status;

use super::fields::Fields;

/// What comes before a message of gRPC: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// Parses the first value of a text as a message, and returns it with its length in bytes. Returns `None` for an empty
/// text. Leaves out unknown fields, as etcd does.
///
/// # Errors
/// If the text is not JSON, or gives a field twice. `is_eof` is true for a text that breaks off.
pub(super) fn first(
    of: &MessageDescriptor,
    text: &[u8],
) -> Result<Option<(Value, usize)>, serde_json::Error> {
    // Only the stream of values reports how far it has read, and it takes no seed: the text is read twice.
    let mut values = Deserializer::from_slice(text).into_iter::<IgnoredAny>();
    if values.next().transpose()?.is_none() {
        return Ok(None);
    }
    let bytes = values.byte_offset();
    let value = Fields(of.clone()).deserialize(&mut Deserializer::from_slice(&text[..bytes]))?;
    Ok(Some((value, bytes)))
}

/// A message in a frame.
///
/// # Errors
/// It is not of this kind.
pub(super) fn framed(of: &MessageDescriptor, value: Value) -> Result<Bytes, Status> {
    let message = DynamicMessage::deserialize(of.clone(), value)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(length as u32);
    frame.extend_from_slice(&message.encode_to_vec());
    Ok(frame.freeze())
}

/// How long the message of the next frame is, if all of it is there.
fn length(read: &[u8]) -> Option<usize> {
    let length = read.get(1..PREFIX_BYTES)?;
    let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
    (read.len() >= PREFIX_BYTES + length).then_some(length)
}

/// The message of the next frame, if all of it is there.
pub(super) fn unframed(read: &mut BytesMut) -> Option<Bytes> {
    let length = length(read)?;
    read.advance(PREFIX_BYTES);
    Some(read.split_to(length).freeze())
}

/// The message of the only frame; an empty one, if there is none.
pub(super) fn only(read: &Bytes) -> Bytes {
    length(read).map_or_else(Bytes::new, |length| read.slice(PREFIX_BYTES..PREFIX_BYTES + length))
}

/// A message as JSON.
///
/// # Errors
/// It is not of this kind.
pub(super) fn written(of: &MessageDescriptor, message: Bytes) -> Result<Vec<u8>, Status> {
    let message = DynamicMessage::decode(of.clone(), message)
        .map_err(|error| Status::internal(format!("bowline: {error}")))?;
    let mut json = Serializer::new(Vec::new());
    let options = SerializeOptions::new().use_proto_field_name(true);
    message
        .serialize_with_options(&mut json, &options)
        .map_err(|error| Status::internal(format!("bowline: {error}")))?;
    Ok(json.into_inner())
}

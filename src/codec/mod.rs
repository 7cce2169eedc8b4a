//! The encoding of the types in `model`, for log entries and for messages between members.
//!
//! The model knows no encoding, and this folder knows nothing else: it opens no file and no socket.
//! Three things are encoded, and each begins with a version byte of its own:
//!
//! ```text
//! log entry  = version u8 | list of Item                    encode_items     decode_items
//! message    = version u8 | kind u8 | body                  encode_message   decode_message
//! membership = version u8 | MemberChange                    encode_member_change  decode_member_change
//! ```
//!
//! The primitives are the same everywhere:
//!
//! ```text
//! number     a varint: seven bits a byte, the least significant first, never longer than needed
//! bytes      number of bytes | the bytes
//! list       number of items | the items
//! choice     kind u8 | the contents of that kind
//! flags      a number whose bits tell which optional parts follow
//! ```
//!
//! **Versions.** An unknown version, kind or flag is an error ([`CodecError::NewerVersion`] or
//! [`CodecError::Newer`]). It is never skipped, because a replica that skipped a command would
//! diverge from the others. Golden bytes in `tests/golden/codec.txt` freeze the encoding; cases are
//! only ever added to that file.
//!
//! **Untrusted bytes.** Decoding never panics. A length or a count is compared with the remaining
//! bytes before anything is allocated. Transactions nest at most [`Limits::TXN_DEPTH_CEILING`]
//! deep, so input cannot overflow the stack. Bytes after the end are an error. Each value has
//! exactly one encoding, and only that one is accepted, so equal values have equal bytes. A decoded
//! value can be larger than its input, because an empty operation takes four bytes encoded and more
//! in memory. A test states this ratio, and the frame limit of the lane bounds the total size.
//!
//! **Copies.** Decoding takes [`Bytes`](bytes::Bytes) and returns slices of it. Keys and values are
//! not copied, and they keep the input buffer alive.
//!
//! [`Limits::TXN_DEPTH_CEILING`]: crate::model::Limits::TXN_DEPTH_CEILING

mod access;
mod alarm;
mod command;
mod decoder;
mod encoder;
mod error;
mod item;
mod join;
mod member;
mod message;
mod outcome;
mod snapshot_record;

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "tests draw more than fuzzers begin with"))]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

pub(crate) use command::encoded_len_hint;
pub(crate) use decoder::{Decode, Decoder};
pub(crate) use encoder::{Encode, Encoder, Length, Sink};
pub(crate) use error::CodecError;
pub(crate) use item::{are_no_items, decode_items, encode_items, proposal_len};
pub(crate) use join::{decode_join_answer, decode_join_ask, encode_join_answer, encode_join_ask};
pub(crate) use member::{decode_member_change, encode_member_change};
pub(crate) use message::{decode_message, encode_message, message_len};
pub(crate) use snapshot_record::{decode_head, decode_piece, encode_head, encode_piece};

//! The encoding of the types in `model`, for log entries and for messages between members.
//!
//! The types in `model` do not depend on their encoding. This folder only encodes and decodes; it
//! opens no file and no socket. The encodings of three kinds of values each begin with a version
//! byte:
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
//! optional   0 | 1 the value
//! flags      a number whose bits tell which optional parts follow
//! ```
//!
//! **Versions.** An unknown version, kind or flag is an error ([`CodecError::NewerVersion`] or
//! [`CodecError::Newer`]). Unknown data is never skipped, because a replica that skipped a command
//! would diverge from the other replicas. The file `tests/golden/codec.txt` contains values with
//! their frozen encodings. Cases may be added to that file, but never changed or removed.
//!
//! **Untrusted bytes.** Decoding never panics. A length or a count is compared with the remaining
//! bytes before anything is allocated. Transactions nest at most [`Limits::TXN_DEPTH_CEILING`]
//! deep, so input cannot overflow the stack. Extra bytes after the end of a value are an error.
//! Each value has exactly one valid encoding, so equal values have equal bytes. A decoded value can
//! be larger in memory than its encoding: an empty operation, for example, takes only four bytes
//! encoded. A test bounds this ratio, and the size limit of message frames bounds the total.
//!
//! **Declarations.** The macros in [`declare`] declare most encodings, with one line for each
//! variant. Values with flags for their optional parts have handwritten encodings.
//!
//! **Copies.** Decoding takes [`Bytes`](bytes::Bytes) and returns slices of this buffer. Keys and
//! values are not copied, so they keep the whole input buffer in memory.
//!
//! [`Limits::TXN_DEPTH_CEILING`]: crate::model::Limits::TXN_DEPTH_CEILING

mod access;
mod alarm;
mod command;
pub(crate) mod declare;
mod decoder;
mod encoder;
mod error;
pub(crate) mod field;
mod item;
mod join;
mod member;
mod message;
mod outcome;
mod snapshot_record;
mod value;

#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(crate) mod fuzz;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), allow(dead_code, reason = "tests draw more than fuzzers begin with"))]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

pub(crate) use command::encoded_len_hint;
use declare::choice;
pub(crate) use declare::record;
use decoder::decode_versioned;
pub(crate) use decoder::{Decode, Decoder};
pub(crate) use encoder::{Encode, Encoder, Length, Sink};
pub(crate) use error::CodecError;
pub(crate) use item::{are_no_items, decode_items, encode_items, proposal_len};
pub(crate) use join::{decode_join_answer, decode_join_ask, encode_join_answer, encode_join_ask};
pub(crate) use member::{decode_member_change, encode_member_change};
pub(crate) use message::{decode_message, encode_message, message_len};
pub(crate) use snapshot_record::{decode_head, decode_piece, encode_head, encode_piece};

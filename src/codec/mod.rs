//! Bytes: how the nouns of `model` stand in a log entry and in a message between members.
//!
//! The model knows no encoding; this folder knows nothing else. It opens no file and no socket. Three
//! things are encoded, and each begins with a version byte of its own:
//!
//! ```text
//! log entry  = version u8 | list of Item                    encode_items     decode_items
//! message    = version u8 | kind u8 | body                  encode_message   decode_message
//! membership = version u8 | MemberChange                    encode_member_change  decode_member_change
//! ```
//!
//! The parts are the same everywhere:
//!
//! ```text
//! number     a varint: seven bits a byte, the least significant first, never longer than needed
//! bytes      number of bytes | the bytes
//! list       number of items | the items
//! choice     kind u8 | what belongs to that kind
//! flags      a number whose bits say what follows
//! ```
//!
//! **Versions.** A version, a kind or a flag that this build does not know is
//! [`CodecError::NewerVersion`] or [`CodecError::Newer`], never a guess and never skipped: a replica
//! that passed over a command would no longer be one. Golden bytes in `tests/golden/codec.txt` freeze
//! what is written; they are only ever added to.
//!
//! **Hostile bytes.** Decoding never panics. A length or a count is compared with the bytes that are
//! left before anything is allocated; transactions nest at most [`Limits::TXN_DEPTH_CEILING`] deep, so
//! bytes cannot use up the stack; bytes after the end are an error. There is one way to write a value
//! and only that one is read, so equal values have equal bytes. What is decoded can be larger than its
//! bytes by the ratio of an empty operation in memory to the four bytes that it takes, which a test
//! states; the frame limit of the lane bounds the whole.
//!
//! **Copies.** Decoding takes [`Bytes`](bytes::Bytes) and hands out slices of it: keys and values are
//! not copied, and keep the buffer that they came in alive.
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

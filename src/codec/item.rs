//! Encoding of items, the contents of a log entry.
//!
//! ```text
//! entry    = version u8 | list of item
//! item     = 1 proposal | 2 term, list of lease (expire)
//! proposal = member | incarnation | window | list of (number, command)
//! window   = frontier | list of (gap after the last end, length)
//! ```

use bytes::Bytes;

use super::{
    CodecError, Decode, Decoder, Encode, Encoder, Length, Sink, choice, decode_versioned, record,
};
use crate::model::{AckWindow, Item, Proposal};

/// The format version of log entries that this build writes, and the newest version that it reads.
const VERSION: u8 = 1;

/// Encodes the payload of a log entry.
pub(crate) fn encode_items(items: &[Item]) -> Vec<u8> {
    let mut length = Length::default();
    Encoder::new(&mut length).list(items);
    let mut bytes = Vec::with_capacity(1 + length.0);
    bytes.push(VERSION);
    Encoder::new(&mut bytes).list(items);
    bytes
}

/// Returns whether `entry` encodes an empty list of items.
pub(crate) fn are_no_items(entry: &[u8]) -> bool {
    entry == [VERSION, 0]
}

/// Returns the encoded size of a proposal in a log entry, with its window.
pub(crate) fn proposal_len(proposal: &Proposal) -> usize {
    const KIND_BYTES: usize = 1;
    let mut length = Length::default();
    proposal.encode(&mut Encoder::new(&mut length));
    KIND_BYTES + length.0
}

/// Decodes the payload of a log entry. Keys and values are slices of `bytes`.
pub(crate) fn decode_items(bytes: Bytes) -> Result<Vec<Item>, CodecError> {
    decode_versioned("log entry", VERSION, bytes)
}

choice!(Item, "log item", 3, {
    1 => Proposal(proposal),
    2 => Expire { term, leases },
});

record!(Proposal, 5, { node, incarnation, window, requests });

impl Encode for AckWindow {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(self.frontier);
        to.number(self.open.len() as u64);
        let mut last_end = 0;
        for (place, span) in self.open.iter().enumerate() {
            assert!(span.start < span.end && span.end <= self.frontier, "an empty or future span");
            assert!(place == 0 || span.start > last_end, "open spans out of order or adjacent");
            to.number(span.start - last_end);
            to.number(span.end - span.start);
            last_end = span.end;
        }
    }
}

impl Decode for AckWindow {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let frontier = from.number()?;
        let count = from.count(2)?;
        let mut open = Vec::with_capacity(count);
        let mut last_end = 0u64;
        for place in 0..count {
            let (gap, len) = (from.number()?, from.number()?);
            if len == 0 || (gap == 0 && place > 0) {
                return Err(from.malformed("spans of open requests are empty or adjacent"));
            }
            let start = last_end.checked_add(gap);
            let end = start.and_then(|start| start.checked_add(len));
            let (Some(start), Some(end)) = (start, end.filter(|end| *end <= frontier)) else {
                return Err(from.malformed("open requests are above the frontier"));
            };
            open.push(start..end);
            last_end = end;
        }
        Ok(AckWindow { frontier, open })
    }
}

//! Raft's messages as bytes.
//!
//! On the wire they are what the raft crate's own protobuf types write. Reading is another matter:
//! protobuf takes missing bytes for an empty field, keeps what it does not know, and makes a hundred
//! bytes of memory out of two on the wire. So a frame is walked by hand before protobuf sees it, and
//! measured again afterwards: what is accepted is exactly what an honest member writes.

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};
use thiserror::Error;

use super::config::ENTRY_BYTES_MAX;

/// The largest message that is read, in bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 8 << 20;

/// The most entries in one message.
const ENTRIES_MAX: usize = 4096;

/// The most bytes of entries that are written into one message, except for a larger entry alone.
const APPEND_BYTES_MAX: usize = 1 << 20;

/// Why bytes are not a message.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub(crate) enum WireError {
    /// Longer than any message.
    #[error("{bytes} bytes, at most {FRAME_BYTES_MAX}")]
    TooLong {
        /// How long.
        bytes: usize,
    },
    /// More entries than any message carries.
    #[error("more than {ENTRIES_MAX} entries")]
    TooManyEntries,
    /// An entry that no member proposes.
    #[error("an entry of {bytes} bytes, at most {ENTRY_BYTES_MAX}")]
    EntryTooLong {
        /// How long.
        bytes: usize,
    },
    /// The bytes end inside a field.
    #[error("ends inside a field")]
    Truncated,
    /// A field that this version does not know, or knows as something else.
    #[error("field {field} of wire type {wire_type} in {part}")]
    Field {
        /// Of what.
        part: &'static str,
        /// Its number.
        field: u64,
        /// Its encoding.
        wire_type: u8,
    },
    /// A number of more than 64 bits.
    #[error("a number of more than 64 bits")]
    Overlong,
    /// A kind of message or entry that this version does not know.
    #[error("{part} of kind {kind}")]
    Kind {
        /// Message or entry.
        part: &'static str,
        /// The number.
        kind: u64,
    },
    /// Protobuf cannot read it, although it was walked without trouble.
    #[error("unreadable: {0}")]
    Protobuf(String),
    /// Not what this message looks like when it is written.
    #[error("{found} bytes make a message of {canonical}")]
    NotCanonical {
        /// What came.
        found: usize,
        /// What it would be written as.
        canonical: usize,
    },
}

/// A message as bytes.
pub(super) fn encode(message: &Message) -> Bytes {
    let bytes = message.write_to_bytes().expect("every field of a message is optional");
    assert!(bytes.len() <= FRAME_BYTES_MAX, "a message of {} bytes", bytes.len());
    bytes.into()
}

/// Bytes as a message. The data of its entries are slices of `bytes`.
pub(super) fn decode(bytes: &Bytes) -> Result<Message, WireError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(WireError::TooLong { bytes: bytes.len() });
    }
    walk_message(bytes)?;
    let message = Message::parse_from_carllerche_bytes(bytes)
        .map_err(|error| WireError::Protobuf(error.to_string()))?;
    let canonical = message.compute_size() as usize;
    if canonical != bytes.len() {
        return Err(WireError::NotCanonical { found: bytes.len(), canonical });
    }
    Ok(message)
}

/// Cuts a message with too many entries into several, which say the same one after the other.
pub(super) fn split(mut message: Message) -> Vec<Message> {
    if message.get_msg_type() != MessageType::MsgAppend {
        return vec![message];
    }
    let mut entries = message.take_entries().into_iter().peekable();
    let mut messages = Vec::new();
    loop {
        let mut part = message.clone();
        let mut bytes = 0;
        while let Some(entry) = entries.peek()
            && (part.entries.is_empty()
                || (bytes + entry.data.len() <= APPEND_BYTES_MAX
                    && part.entries.len() < ENTRIES_MAX))
        {
            bytes += entry.data.len();
            part.mut_entries().extend(entries.next());
        }
        if let Some(last) = part.entries.last() {
            (message.index, message.log_term) = (last.index, last.term);
        }
        messages.push(part);
        if entries.peek().is_none() {
            return messages;
        }
    }
}

/// How a field is encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Number,
    Bytes,
}

/// The fields of a message, from number 1 on. Snapshots (9) do not exist yet.
const MESSAGE: [Option<Shape>; 16] = {
    const N: Option<Shape> = Some(Shape::Number);
    const B: Option<Shape> = Some(Shape::Bytes);
    [N, N, N, N, N, N, B, N, None, N, N, B, N, N, N, N]
};
const MESSAGE_KIND: u64 = 1;
const MESSAGE_ENTRIES: u64 = 7;
/// Kinds of messages are 0 to 18.
const MESSAGE_KIND_MAX: u64 = 18;

/// The fields of an entry, from number 1 on. We do not use its context (6) and the deprecated
/// `sync_log` (5), and the log has no place for them.
const ENTRY: [Option<Shape>; 4] =
    [Some(Shape::Number), Some(Shape::Number), Some(Shape::Number), Some(Shape::Bytes)];
const ENTRY_KIND: u64 = 1;

fn walk_message(bytes: &[u8]) -> Result<(), WireError> {
    let mut entries = 0;
    let mut walk = Walk { part: "a message", fields: &MESSAGE, rest: bytes };
    while let Some((field, value)) = walk.next()? {
        match (field, value) {
            (MESSAGE_KIND, Value::Number(kind)) if kind > MESSAGE_KIND_MAX => {
                return Err(WireError::Kind { part: "a message", kind });
            }
            (MESSAGE_ENTRIES, Value::Bytes(entry)) => {
                entries += 1;
                if entries > ENTRIES_MAX {
                    return Err(WireError::TooManyEntries);
                }
                walk_entry(entry)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn walk_entry(bytes: &[u8]) -> Result<(), WireError> {
    let mut walk = Walk { part: "an entry", fields: &ENTRY, rest: bytes };
    while let Some((field, value)) = walk.next()? {
        match (field, value) {
            // Members are static: no entry changes them. Data is kind 0, which is not written at all.
            (ENTRY_KIND, Value::Number(kind)) => {
                return Err(WireError::Kind { part: "an entry", kind });
            }
            // It must still fit into a message when this member sends it on.
            (_, Value::Bytes(data)) if data.len() > ENTRY_BYTES_MAX => {
                return Err(WireError::EntryTooLong { bytes: data.len() });
            }
            _ => {}
        }
    }
    Ok(())
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Goes from field to field without making anything of them.
struct Walk<'a> {
    part: &'static str,
    fields: &'static [Option<Shape>],
    rest: &'a [u8],
}

impl<'a> Walk<'a> {
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.number()?;
        let (field, wire_type) = (tag >> 3, (tag & 7) as u8);
        let place = usize::try_from(field).ok().and_then(|field| field.checked_sub(1));
        let shape = place.and_then(|place| *self.fields.get(place)?);
        match (shape, wire_type) {
            (Some(Shape::Number), 0) => Ok(Some((field, Value::Number(self.number()?)))),
            (Some(Shape::Bytes), 2) => {
                let len = usize::try_from(self.number()?).map_err(|_| WireError::Truncated)?;
                let (value, rest) = self.rest.split_at_checked(len).ok_or(WireError::Truncated)?;
                self.rest = rest;
                Ok(Some((field, Value::Bytes(value))))
            }
            _ => Err(WireError::Field { part: self.part, field, wire_type }),
        }
    }

    fn number(&mut self) -> Result<u64, WireError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(WireError::Truncated)?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(WireError::Overlong);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(WireError::Overlong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raft::eraftpb::{Entry, EntryType};

    fn entry(index: u64, data: &[u8]) -> Entry {
        Entry { index, term: 2, data: Bytes::copy_from_slice(data), ..Entry::default() }
    }

    fn append(entries: Vec<Entry>) -> Message {
        let mut message = Message { to: 1, from: 2, term: 3, ..Message::default() };
        message.set_msg_type(MessageType::MsgAppend);
        message.index = entries.first().map_or(9, |entry| entry.index - 1);
        message.log_term = 2;
        message.commit = 4;
        message.set_entries(entries.into());
        message
    }

    fn refused(bytes: Vec<u8>) -> WireError {
        decode(&Bytes::from(bytes)).expect_err("refused")
    }

    #[test]
    fn a_message_reads_back_as_it_was_written_without_copying_its_entries() {
        let message = append(vec![entry(10, b"some data"), entry(11, b"")]);
        let bytes = encode(&message);
        let read = decode(&bytes).unwrap();
        assert_eq!(read, message);
        let (frame, data) = (bytes.as_ptr_range(), read.entries[0].data.as_ptr());
        assert!(frame.contains(&data), "the data is a slice of the frame");
    }

    #[test]
    fn an_entry_whose_length_runs_past_the_frame_is_refused_where_protobuf_would_make_it_empty() {
        let bytes = vec![0x3a, 0xff, 0xff, 0xff, 0xff, 0x07];
        assert_eq!(refused(bytes), WireError::Truncated);
    }

    #[test]
    fn a_context_of_an_impossible_length_is_refused() {
        let mut bytes = vec![0x62];
        bytes.extend([0xff; 8]);
        bytes.push(0x0f);
        assert_eq!(refused(bytes), WireError::Truncated);
    }

    #[test]
    fn groups_however_deep_are_refused_at_the_first() {
        let error = refused(vec![0x0b; 1 << 20]);
        assert_eq!(error, WireError::Field { part: "a message", field: 1, wire_type: 3 });
        let error = refused(vec![0x9b, 0x06, 0x9c, 0x06]);
        assert_eq!(error, WireError::Field { part: "a message", field: 99, wire_type: 3 });
    }

    #[test]
    fn unknown_fields_are_refused_and_not_kept() {
        let mut bytes = encode(&append(Vec::new())).to_vec();
        bytes.extend([0x98, 0x06, 0x01]);
        assert_eq!(refused(bytes), WireError::Field { part: "a message", field: 99, wire_type: 0 });
    }

    #[test]
    fn a_million_empty_entries_are_refused_before_they_take_memory() {
        assert_eq!(refused([0x3a, 0x00].repeat(1_000_000)), WireError::TooManyEntries);
    }

    #[test]
    fn every_frame_that_is_cut_or_continued_is_refused() {
        let whole = encode(&append(vec![entry(10, b"abc"), entry(11, b"defg")])).to_vec();
        for len in 0..whole.len() {
            // A cut between two fields leaves a shorter message, which is one: the frame's length
            // and checksum, one floor below, tell that. Inside a field it is refused.
            if let Ok(message) = decode(&Bytes::copy_from_slice(&whole[..len])) {
                assert_eq!(encode(&message), whole[..len]);
            }
        }
        assert_eq!(
            refused([whole.as_slice(), &[0]].concat()),
            WireError::Field { part: "a message", field: 0, wire_type: 0 }
        );
        let twice = [whole.as_slice(), &whole].concat();
        assert!(matches!(refused(twice), WireError::NotCanonical { .. }));
    }

    #[test]
    fn numbers_written_in_more_bytes_than_needed_are_refused() {
        assert!(matches!(refused(vec![0x10, 0x81, 0x00]), WireError::NotCanonical { .. }));
        assert!(matches!(refused(vec![0x10, 0x00]), WireError::NotCanonical { .. }));
        let mut bytes = vec![0x10];
        bytes.extend([0xff; 10]);
        assert_eq!(refused(bytes), WireError::Overlong);
    }

    #[test]
    fn kinds_from_another_version_are_refused() {
        assert_eq!(refused(vec![0x08, 19]), WireError::Kind { part: "a message", kind: 19 });
        let mut change = entry(10, b"");
        change.set_entry_type(EntryType::EntryConfChangeV2);
        let bytes = encode(&append(vec![change])).to_vec();
        assert_eq!(refused(bytes), WireError::Kind { part: "an entry", kind: 2 });
    }

    #[test]
    fn an_entry_with_a_context_is_refused_since_the_log_could_not_keep_it() {
        let mut with = entry(10, b"");
        with.context = Bytes::from_static(b"x");
        let error = refused(encode(&append(vec![with])).to_vec());
        assert_eq!(error, WireError::Field { part: "an entry", field: 6, wire_type: 2 });
    }

    #[test]
    fn an_entry_that_could_not_be_sent_on_is_refused() {
        let bytes = encode(&append(vec![entry(10, &vec![7; ENTRY_BYTES_MAX])]));
        assert_eq!(decode(&bytes).unwrap().entries.len(), 1);
        let error =
            refused(encode(&append(vec![entry(10, &vec![7; ENTRY_BYTES_MAX + 1])])).to_vec());
        assert_eq!(error, WireError::EntryTooLong { bytes: ENTRY_BYTES_MAX + 1 });
    }

    #[test]
    fn a_snapshot_is_refused_until_there_are_snapshots() {
        let mut message = append(Vec::new());
        message.set_snapshot(raft::eraftpb::Snapshot::default());
        let error = refused(encode(&message).to_vec());
        assert_eq!(error, WireError::Field { part: "a message", field: 9, wire_type: 2 });
    }

    #[test]
    fn a_frame_above_the_cap_is_refused_unread() {
        let error = refused(vec![0; FRAME_BYTES_MAX + 1]);
        assert_eq!(error, WireError::TooLong { bytes: FRAME_BYTES_MAX + 1 });
    }

    #[test]
    fn a_message_with_many_entries_is_cut_into_messages_that_follow_each_other() {
        let big = vec![7; 400 << 10];
        let entries: Vec<_> = (10..20).map(|index| entry(index, &big)).collect();
        let parts = split(append(entries.clone()));
        assert_eq!(parts.len(), 5);
        let mut prev = (9, 2);
        for part in &parts {
            assert_eq!((part.index, part.log_term), prev);
            assert!(part.compute_size() as usize <= APPEND_BYTES_MAX + 1024);
            assert_eq!((part.term, part.commit), (3, 4));
            prev = part.entries.last().map(|last| (last.index, last.term)).unwrap();
        }
        let all: Vec<_> = parts.into_iter().flat_map(|part| part.entries.into_iter()).collect();
        assert_eq!(all, entries);

        let small: Vec<_> = (10..10 + 2 * ENTRIES_MAX as u64 + 1).map(|i| entry(i, b"")).collect();
        let counts: Vec<_> = split(append(small)).iter().map(|part| part.entries.len()).collect();
        assert_eq!(counts, [ENTRIES_MAX, ENTRIES_MAX, 1]);
        assert_eq!(split(append(Vec::new())).len(), 1, "an empty one stays as it is");
    }
}

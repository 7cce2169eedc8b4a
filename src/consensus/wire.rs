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
use super::membership::{self, ChangeError};

/// The largest message that is read, in bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 8 << 20;

/// The most entries in one message.
const ENTRIES_MAX: usize = 4096;

/// The longest snapshot of raft's, in bytes: it names a file, and the members.
const SNAPSHOT_BYTES_MAX: usize = 4 << 10;

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
    /// An entry that changes the members in no way that a member does.
    #[error("a change of the members: {0}")]
    Change(#[from] ChangeError),
    /// A snapshot that holds more than a name.
    #[error("a snapshot of {bytes} bytes, at most {SNAPSHOT_BYTES_MAX}")]
    SnapshotTooLong {
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
pub(super) fn split(mut message: Message, mut each: impl FnMut(Message)) {
    let bytes: usize = message.entries.iter().map(|entry| entry.data.len()).sum();
    let fits = message.entries.len() <= ENTRIES_MAX && bytes <= APPEND_BYTES_MAX;
    if fits || message.get_msg_type() != MessageType::MsgAppend {
        return each(message);
    }
    let mut entries = message.take_entries().into_iter().peekable();
    while entries.peek().is_some() {
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
        each(part);
    }
}

/// How a field is encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Number,
    Bytes,
}

const N: Option<Shape> = Some(Shape::Number);
const B: Option<Shape> = Some(Shape::Bytes);

/// The fields of a message, from number 1 on.
const MESSAGE: [Option<Shape>; 16] = [N, N, N, N, N, N, B, N, B, N, N, B, N, N, N, N];
const MESSAGE_KIND: u64 = 1;
const MESSAGE_ENTRIES: u64 = 7;
const MESSAGE_SNAPSHOT: u64 = 9;
/// Kinds of messages are 0 to 18.
const MESSAGE_KIND_MAX: u64 = 18;

/// The fields of an entry, from number 1 on. We do not use its context (6) and the deprecated
/// `sync_log` (5), and the log has no place for them.
const ENTRY: [Option<Shape>; 4] = [N, N, N, B];
const ENTRY_KIND: u64 = 1;
const ENTRY_DATA: u64 = 4;
/// Data is kind 0, which is not written at all; kind 1 is an older way to change the members.
const ENTRY_KIND_CHANGE: u64 = 2;

/// A snapshot, what it says of itself, and the configuration there.
const SNAPSHOT: [Option<Shape>; 2] = [B, B];
const SNAPSHOT_METADATA: u64 = 2;
const METADATA: [Option<Shape>; 3] = [B, N, N];
const METADATA_CONFIGURATION: u64 = 1;
const CONFIGURATION: [Option<Shape>; 5] = [N, N, N, N, N];

fn walk_message(bytes: &Bytes) -> Result<(), WireError> {
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
                walk_entry(bytes, entry)?;
            }
            (MESSAGE_SNAPSHOT, Value::Bytes(snapshot)) => walk_snapshot(snapshot)?,
            _ => {}
        }
    }
    Ok(())
}

fn walk_entry(message: &Bytes, bytes: &[u8]) -> Result<(), WireError> {
    let (mut changes_members, mut data) = (false, &[][..]);
    let mut walk = Walk { part: "an entry", fields: &ENTRY, rest: bytes };
    while let Some((field, value)) = walk.next()? {
        match (field, value) {
            (ENTRY_KIND, Value::Number(ENTRY_KIND_CHANGE)) => changes_members = true,
            (ENTRY_KIND, Value::Number(kind)) => {
                return Err(WireError::Kind { part: "an entry", kind });
            }
            // It must still fit into a message when this member sends it on.
            (ENTRY_DATA, Value::Bytes(found)) if found.len() > ENTRY_BYTES_MAX => {
                return Err(WireError::EntryTooLong { bytes: found.len() });
            }
            (ENTRY_DATA, Value::Bytes(found)) => data = found,
            _ => {}
        }
    }
    if changes_members {
        membership::read_change(&message.slice_ref(data))?;
    }
    Ok(())
}

fn walk_snapshot(bytes: &[u8]) -> Result<(), WireError> {
    if bytes.len() > SNAPSHOT_BYTES_MAX {
        return Err(WireError::SnapshotTooLong { bytes: bytes.len() });
    }
    let mut walk = Walk { part: "a snapshot", fields: &SNAPSHOT, rest: bytes };
    while let Some((field, value)) = walk.next()? {
        let (SNAPSHOT_METADATA, Value::Bytes(metadata)) = (field, value) else { continue };
        let mut walk = Walk { part: "a snapshot's metadata", fields: &METADATA, rest: metadata };
        while let Some((field, value)) = walk.next()? {
            let (METADATA_CONFIGURATION, Value::Bytes(rest)) = (field, value) else { continue };
            let mut walk = Walk { part: "a configuration", fields: &CONFIGURATION, rest };
            while walk.next()?.is_some() {}
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
        for kind in [1, 3] {
            let entry = vec![0x3a, 0x02, 0x08, kind];
            let kind = kind.into();
            assert_eq!(refused(entry), WireError::Kind { part: "an entry", kind });
        }
    }

    #[test]
    fn an_entry_that_changes_the_members_is_let_in_as_a_member_writes_it_and_no_other() {
        let change = crate::model::MemberChange::Remove(crate::model::NodeId::new(3).unwrap());
        let mut data = membership::write_change(&change);
        let with = |data: &[u8]| {
            let mut entry = entry(10, data);
            entry.set_entry_type(EntryType::EntryConfChangeV2);
            encode(&append(vec![entry]))
        };
        assert_eq!(decode(&with(&data)).unwrap().entries[0].data, data);
        assert_eq!(decode(&with(b"")).unwrap().entries[0].data.len(), 0, "the end of joint");
        *data.last_mut().unwrap() = 4;
        let error = WireError::Change(ChangeError::NotCanonical);
        assert_eq!(refused(with(&data).to_vec()), error);
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
    fn a_snapshot_names_a_file_and_the_members_and_brings_nothing_else() {
        let mut message = append(Vec::new());
        message.mut_snapshot().data = Bytes::from_static(&[7; 16]);
        message.mut_snapshot().mut_metadata().mut_conf_state().voters = vec![1, 2, 3];
        assert_eq!(decode(&encode(&message)).unwrap(), message);
        let bytes = vec![0x4a, 0x06, 0x12, 0x04, 0x0a, 0x02, 0x30, 0x01];
        let error = WireError::Field { part: "a configuration", field: 6, wire_type: 0 };
        assert_eq!(refused(bytes), error);
        let bytes = vec![0x4a, 0x04, 0x0a, 0x7f, 0x00, 0x00];
        assert_eq!(refused(bytes), WireError::Truncated);
        message.mut_snapshot().data = vec![7; SNAPSHOT_BYTES_MAX].into();
        let error = refused(encode(&message).to_vec());
        assert!(matches!(error, WireError::SnapshotTooLong { .. }));
    }

    #[test]
    fn a_frame_above_the_cap_is_refused_unread() {
        let error = refused(vec![0; FRAME_BYTES_MAX + 1]);
        assert_eq!(error, WireError::TooLong { bytes: FRAME_BYTES_MAX + 1 });
    }

    fn split(message: Message) -> Vec<Message> {
        let mut parts = Vec::new();
        super::split(message, |part| parts.push(part));
        parts
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

//! The encoding of Raft messages.
//!
//! Messages are encoded by the raft crate's own protobuf types. A protobuf decoder takes missing
//! bytes for an empty field, keeps unknown fields, and can allocate a hundred bytes of memory for
//! two bytes of input. Therefore this module has its own, stricter decoder. The decoder accepts
//! exactly the fields that a correct member writes, in any order, and no other bytes.

use bytes::Bytes;
use protobuf::{Message as _, ProtobufEnum};
use raft::eraftpb::{
    ConfState, Entry, EntryType, Message, MessageType, Snapshot, SnapshotMetadata,
};
use thiserror::Error;

use super::config::ENTRY_BYTES_MAX;
use super::membership::{self, ChangeError};

/// Maximum size of a message in bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 8 << 20;

/// Maximum number of entries in one message.
const ENTRIES_MAX: usize = 4096;

/// Maximum size of raft's snapshot in bytes: it contains the id of a file, and the members.
const SNAPSHOT_BYTES_MAX: usize = 4 << 10;

/// Maximum size of the entries that are written into one message, in bytes. A larger entry is sent
/// alone.
const APPEND_BYTES_MAX: usize = 1 << 20;

/// The reason why bytes are not a message.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub(crate) enum WireError {
    /// The input is longer than any message.
    #[error("message of {bytes} bytes exceeds the limit of {FRAME_BYTES_MAX} bytes")]
    TooLong {
        /// Length in bytes.
        bytes: usize,
    },
    /// More entries than any message contains.
    #[error("message has more than {ENTRIES_MAX} entries")]
    TooManyEntries,
    /// An entry is longer than any that a member proposes.
    #[error("entry of {bytes} bytes exceeds the limit of {ENTRY_BYTES_MAX} bytes")]
    EntryTooLong {
        /// Length in bytes.
        bytes: usize,
    },
    /// An invalid membership change.
    #[error("invalid membership change: {0}")]
    Change(#[from] ChangeError),
    /// A snapshot is longer than any that a member sends.
    #[error("snapshot of {bytes} bytes exceeds the limit of {SNAPSHOT_BYTES_MAX} bytes")]
    SnapshotTooLong {
        /// Length in bytes.
        bytes: usize,
    },
    /// The input ends inside a field.
    #[error("message ends inside a field")]
    Truncated,
    /// A field that this version does not know, or that has another type.
    #[error("unexpected field {field} of wire type {wire_type} in {part}")]
    Field {
        /// The part that contains the field.
        part: &'static str,
        /// Number of the field.
        field: u64,
        /// Wire type of the field.
        wire_type: u8,
    },
    /// A number of more than 64 bits.
    #[error("message contains a number of more than 64 bits")]
    Overlong,
    /// A kind of message or entry that this version does not know.
    #[error("message contains a {part} of the unknown kind {kind}")]
    Kind {
        /// The part: a message or an entry.
        part: &'static str,
        /// Number of the kind.
        kind: u64,
    },
    /// A field is empty, occurs twice, or is encoded in more bytes than necessary.
    #[error("field {field} of the {part} in a message is empty, repeated or overlong")]
    NotCanonical {
        /// The part that contains the field.
        part: &'static str,
        /// Number of the field, or of the one before it.
        field: u64,
    },
}

pub(super) fn encode(message: &Message) -> Bytes {
    let bytes = message.write_to_bytes().expect("every field of a message is optional");
    assert!(bytes.len() <= FRAME_BYTES_MAX, "a message of {} bytes", bytes.len());
    bytes.into()
}

/// Decodes a message. The data of the decoded entries are slices of `bytes`.
pub(super) fn decode(bytes: &Bytes) -> Result<Message, WireError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(WireError::TooLong { bytes: bytes.len() });
    }
    read_message(bytes)
}

/// Splits a message with too many entries into several with the same meaning.
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

fn read_message(bytes: &Bytes) -> Result<Message, WireError> {
    let mut message = Message::default();
    let mut fields = WireFields::new("a message", bytes).repeated(MESSAGE_ENTRIES);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, WireValue::Number(kind)) => message.msg_type = fields.kind(kind)?,
            (2, WireValue::Number(to)) => message.to = to,
            (3, WireValue::Number(from)) => message.from = from,
            (4, WireValue::Number(term)) => message.term = term,
            (5, WireValue::Number(term)) => message.log_term = term,
            (6, WireValue::Number(index)) => message.index = index,
            (MESSAGE_ENTRIES, WireValue::Bytes(_)) if message.entries.len() == ENTRIES_MAX => {
                return Err(WireError::TooManyEntries);
            }
            (MESSAGE_ENTRIES, WireValue::Bytes(entry)) => {
                message.entries.push(read_entry(bytes, entry)?);
            }
            (8, WireValue::Number(commit)) => message.commit = commit,
            (9, WireValue::Bytes(snapshot)) => {
                message.snapshot = Some(read_snapshot(bytes, snapshot)?).into();
            }
            (10, WireValue::Number(reject)) => message.reject = fields.yes(reject)?,
            (11, WireValue::Number(hint)) => message.reject_hint = hint,
            (12, WireValue::Bytes(context)) => message.context = fields.data(bytes, context)?,
            (13, WireValue::Number(index)) => message.request_snapshot = index,
            (14, WireValue::Number(priority)) => message.deprecated_priority = priority,
            (15, WireValue::Number(term)) => message.commit_term = term,
            (16, WireValue::Number(priority)) => message.priority = priority.cast_signed(),
            (_, value) => return Err(fields.unknown(value)),
        }
    }
    Ok(message)
}

/// Decodes an entry. Rejects the fields for the context (6) and the deprecated `sync_log` (5),
/// which are not used and which the log cannot store.
fn read_entry(frame: &Bytes, bytes: &[u8]) -> Result<Entry, WireError> {
    let mut entry = Entry::default();
    let mut fields = WireFields::new("an entry", bytes);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, WireValue::Number(kind)) => {
                entry.entry_type = fields.kind(kind)?;
                // Reject the old encoding of membership changes, which no member writes.
                if entry.entry_type == EntryType::EntryConfChange {
                    return Err(WireError::Kind { part: fields.part, kind });
                }
            }
            (2, WireValue::Number(term)) => entry.term = term,
            (3, WireValue::Number(index)) => entry.index = index,
            // The entry must still fit into a message when this member forwards it.
            (4, WireValue::Bytes(data)) if data.len() > ENTRY_BYTES_MAX => {
                return Err(WireError::EntryTooLong { bytes: data.len() });
            }
            (4, WireValue::Bytes(data)) => entry.data = fields.data(frame, data)?,
            (_, value) => return Err(fields.unknown(value)),
        }
    }
    if entry.entry_type == EntryType::EntryConfChangeV2 {
        membership::read_change(&entry.data)?;
    }
    Ok(entry)
}

fn read_snapshot(frame: &Bytes, bytes: &[u8]) -> Result<Snapshot, WireError> {
    if bytes.len() > SNAPSHOT_BYTES_MAX {
        return Err(WireError::SnapshotTooLong { bytes: bytes.len() });
    }
    let mut snapshot = Snapshot::default();
    let mut fields = WireFields::new("a snapshot", bytes);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, WireValue::Bytes(data)) => snapshot.data = fields.data(frame, data)?,
            (2, WireValue::Bytes(metadata)) => {
                snapshot.metadata = Some(read_metadata(metadata)?).into()
            }
            (_, value) => return Err(fields.unknown(value)),
        }
    }
    Ok(snapshot)
}

fn read_metadata(bytes: &[u8]) -> Result<SnapshotMetadata, WireError> {
    let mut metadata = SnapshotMetadata::default();
    let mut fields = WireFields::new("a snapshot's metadata", bytes);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, WireValue::Bytes(members)) => {
                metadata.conf_state = Some(read_configuration(members)?).into();
            }
            (2, WireValue::Number(index)) => metadata.index = index,
            (3, WireValue::Number(term)) => metadata.term = term,
            (_, value) => return Err(fields.unknown(value)),
        }
    }
    Ok(metadata)
}

fn read_configuration(bytes: &[u8]) -> Result<ConfState, WireError> {
    let mut members = ConfState::default();
    let mut fields = WireFields::new("a configuration", bytes);
    for list in 1..=4 {
        fields = fields.repeated(list);
    }
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, WireValue::Number(id)) => members.voters.push(id),
            (2, WireValue::Number(id)) => members.learners.push(id),
            (3, WireValue::Number(id)) => members.voters_outgoing.push(id),
            (4, WireValue::Number(id)) => members.learners_next.push(id),
            (5, WireValue::Number(leaves)) => members.auto_leave = fields.yes(leaves)?,
            (_, value) => return Err(fields.unknown(value)),
        }
    }
    Ok(members)
}

const MESSAGE_ENTRIES: u64 = 7;

enum WireValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// An iterator over the fields of one part. Each field occurs at most once, and never with its
/// default value: zero numbers and empty data are not written.
struct WireFields<'a> {
    part: &'static str,
    rest: &'a [u8],
    /// The field that was read last.
    field: u64,
    /// `seen` is the bit set of the fields that were read, and `lists` is the bit set of the fields
    /// that may be repeated.
    seen: u64,
    lists: u64,
}

impl<'a> WireFields<'a> {
    fn new(part: &'static str, rest: &'a [u8]) -> Self {
        Self { part, rest, field: 0, seen: 0, lists: 0 }
    }

    /// Allows `field` to occur more than once.
    fn repeated(mut self, field: u64) -> Self {
        self.lists |= 1 << field;
        self
    }

    fn next(&mut self) -> Result<Option<(u64, WireValue<'a>)>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.number()?;
        let wire_type = (tag & 7) as u8;
        self.field = tag >> 3;
        let value = match wire_type {
            0 => WireValue::Number(self.number()?),
            2 => {
                let len = usize::try_from(self.number()?).map_err(|_| WireError::Truncated)?;
                let (value, rest) = self.rest.split_at_checked(len).ok_or(WireError::Truncated)?;
                self.rest = rest;
                WireValue::Bytes(value)
            }
            _ => return Err(self.field(wire_type)),
        };
        let bit = 1_u64.checked_shl(self.field.try_into().unwrap_or(u32::MAX)).unwrap_or_default();
        if self.seen & bit & !self.lists != 0 || matches!(value, WireValue::Number(0)) {
            return Err(self.not_canonical());
        }
        self.seen |= bit;
        Ok(Some((self.field, value)))
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
                return if byte == 0 && shift > 0 { Err(self.not_canonical()) } else { Ok(number) };
            }
        }
        Err(WireError::Overlong)
    }

    /// Decodes the value of an enumeration field.
    fn kind<T: ProtobufEnum>(&self, kind: u64) -> Result<T, WireError> {
        let known = i32::try_from(kind).ok().and_then(T::from_i32);
        known.ok_or(WireError::Kind { part: self.part, kind })
    }

    /// Decodes the value of a boolean field, which is true or absent.
    fn yes(&self, value: u64) -> Result<bool, WireError> {
        if value == 1 { Ok(true) } else { Err(self.not_canonical()) }
    }

    /// Returns the value of a data field as a slice of `frame`.
    fn data(&self, frame: &Bytes, value: &[u8]) -> Result<Bytes, WireError> {
        if value.is_empty() { Err(self.not_canonical()) } else { Ok(frame.slice_ref(value)) }
    }

    fn unknown(&self, value: WireValue<'_>) -> WireError {
        self.field(match value {
            WireValue::Number(_) => 0,
            WireValue::Bytes(_) => 2,
        })
    }

    fn field(&self, wire_type: u8) -> WireError {
        WireError::Field { part: self.part, field: self.field, wire_type }
    }

    fn not_canonical(&self) -> WireError {
        WireError::NotCanonical { part: self.part, field: self.field }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn message_round_trips_without_copying_its_entries() {
        let message = append(vec![entry(10, b"some data"), entry(11, b"")]);
        let bytes = encode(&message);
        let read = decode(&bytes).unwrap();
        assert_eq!(read, message);
        let (frame, data) = (bytes.as_ptr_range(), read.entries[0].data.as_ptr());
        assert!(frame.contains(&data), "the data is a slice of the frame");
    }

    #[test]
    fn entry_length_beyond_the_frame_is_rejected() {
        let bytes = vec![0x3a, 0xff, 0xff, 0xff, 0xff, 0x07];
        assert_eq!(refused(bytes), WireError::Truncated);
    }

    #[test]
    fn impossible_context_length_is_rejected() {
        let mut bytes = vec![0x62];
        bytes.extend([0xff; 8]);
        bytes.push(0x0f);
        assert_eq!(refused(bytes), WireError::Truncated);
    }

    #[test]
    fn protobuf_groups_are_rejected() {
        let error = refused(vec![0x0b; 1 << 20]);
        assert_eq!(error, WireError::Field { part: "a message", field: 1, wire_type: 3 });
        let error = refused(vec![0x9b, 0x06, 0x9c, 0x06]);
        assert_eq!(error, WireError::Field { part: "a message", field: 99, wire_type: 3 });
    }

    #[test]
    fn unknown_fields_are_rejected() {
        let mut bytes = encode(&append(Vec::new())).to_vec();
        bytes.extend([0x98, 0x06, 0x01]);
        assert_eq!(refused(bytes), WireError::Field { part: "a message", field: 99, wire_type: 0 });
    }

    #[test]
    fn million_empty_entries_are_rejected_before_allocation() {
        assert_eq!(refused([0x3a, 0x00].repeat(1_000_000)), WireError::TooManyEntries);
    }

    #[test]
    fn truncated_or_extended_frames_are_rejected() {
        let whole = encode(&append(vec![entry(10, b"abc"), entry(11, b"defg")])).to_vec();
        for len in 0..whole.len() {
            // Input that ends between two fields is a valid shorter message; the length and
            // checksum of the frame detect that. Input that ends inside a field is rejected.
            if let Ok(message) = decode(&Bytes::copy_from_slice(&whole[..len])) {
                assert_eq!(encode(&message), whole[..len]);
            }
        }
        assert_eq!(refused([whole.as_slice(), &[0]].concat()), WireError::Truncated);
        assert_eq!(
            refused([whole.as_slice(), &[0, 1]].concat()),
            WireError::Field { part: "a message", field: 0, wire_type: 0 }
        );
        let twice = [whole.as_slice(), &whole].concat();
        assert_eq!(refused(twice), WireError::NotCanonical { part: "a message", field: 1 });
    }

    #[test]
    fn overlong_number_encodings_are_rejected() {
        for bytes in [&[0x10, 0x81, 0x00][..], &[0x10, 0x00], &[0x50, 0x02], &[0x62, 0x00]] {
            assert!(matches!(refused(bytes.to_vec()), WireError::NotCanonical { .. }), "{bytes:?}");
        }
        let mut bytes = vec![0x10];
        bytes.extend([0xff; 10]);
        assert_eq!(refused(bytes), WireError::Overlong);
    }

    #[test]
    fn every_field_round_trips() {
        let mut message = append(vec![entry(10, b"data"), entry(11, b"")]);
        (message.reject, message.reject_hint, message.request_snapshot) = (true, 1 << 63, 7);
        (message.deprecated_priority, message.commit_term, message.priority) = (8, 9, -10);
        message.context = Bytes::from_static(b"context");
        let snapshot = message.mut_snapshot();
        snapshot.data = Bytes::from_static(b"name");
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (u64::MAX, 2);
        let members = metadata.mut_conf_state();
        (members.voters, members.learners) = (vec![1, 2, u64::MAX], vec![4]);
        (members.voters_outgoing, members.learners_next) = (vec![1, 1], vec![6]);
        members.auto_leave = true;
        assert_eq!(decode(&encode(&message)).unwrap(), message);
        for kind in MessageType::values() {
            message.set_msg_type(*kind);
            assert_eq!(decode(&encode(&message)).unwrap(), message);
        }
    }

    #[test]
    fn damaged_frames_decode_as_in_protobuf_or_not_at_all() {
        let mut message = append(vec![entry(10, b"abc"), entry(11, b"d")]);
        message.context = Bytes::from_static(&[1, 2]);
        message.mut_snapshot().mut_metadata().mut_conf_state().voters = vec![1, 2, 300];
        let whole = encode(&message);
        let mut read = 0;
        for at in 0..whole.len() {
            for value in 0..=u8::MAX {
                let mut bytes = whole.to_vec();
                bytes[at] = value;
                let bytes = Bytes::from(bytes);
                let Ok(message) = decode(&bytes) else { continue };
                read += 1;
                assert_eq!(Message::parse_from_bytes(&bytes).unwrap(), message);
                assert_eq!(message.compute_size() as usize, bytes.len());
            }
        }
        assert!(read > 3_000, "{read} of {}", whole.len() * 256);
    }

    #[test]
    fn unknown_message_kinds_are_rejected() {
        assert_eq!(refused(vec![0x08, 19]), WireError::Kind { part: "a message", kind: 19 });
        for kind in [1, 3] {
            let entry = vec![0x3a, 0x02, 0x08, kind];
            let kind = kind.into();
            assert_eq!(refused(entry), WireError::Kind { part: "an entry", kind });
        }
    }

    #[test]
    fn membership_entry_is_accepted_only_in_canonical_form() {
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
    fn entry_with_a_context_is_rejected() {
        let mut with = entry(10, b"");
        with.context = Bytes::from_static(b"x");
        let error = refused(encode(&append(vec![with])).to_vec());
        assert_eq!(error, WireError::Field { part: "an entry", field: 6, wire_type: 2 });
    }

    #[test]
    fn oversized_entry_is_rejected() {
        let bytes = encode(&append(vec![entry(10, &vec![7; ENTRY_BYTES_MAX])]));
        assert_eq!(decode(&bytes).unwrap().entries.len(), 1);
        let error =
            refused(encode(&append(vec![entry(10, &vec![7; ENTRY_BYTES_MAX + 1])])).to_vec());
        assert_eq!(error, WireError::EntryTooLong { bytes: ENTRY_BYTES_MAX + 1 });
    }

    #[test]
    fn snapshot_message_carries_only_the_file_id_and_members() {
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
    fn oversized_frame_is_rejected_unread() {
        let error = refused(vec![0; FRAME_BYTES_MAX + 1]);
        assert_eq!(error, WireError::TooLong { bytes: FRAME_BYTES_MAX + 1 });
    }

    fn split(message: Message) -> Vec<Message> {
        let mut parts = Vec::new();
        super::split(message, |part| parts.push(part));
        parts
    }

    #[test]
    fn large_append_is_split_into_consecutive_messages() {
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

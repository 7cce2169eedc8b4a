//! Encoding of commands, the operations that a request proposes.
//!
//! ```text
//! command = 1 put | 2 delete | 3 txn | 4 revision (compact) | 5 grant | 6 lease (revoke)
//!         | 7 name bytes, address bytes (announce) | 8 cluster version (raise)
//!         | 9 change of access | 10 caller, command (one of the others)
//!         | 11 name bytes, address bytes, list of bytes (announce, with endpoints) | 12 change of alarms
//!         | 13 id, address bytes (move)
//! op      = 1 put | 2 delete | 3 txn | 4 range
//! put     = flags | key bytes | [value bytes] | [lease]
//! delete  = flags | keys
//! txn     = list of compare | list of op | list of op
//! compare = operator + 4 * target, u8 | keys | number or bytes
//! range   = flags | keys | [revision] | [limit] | [least and greatest mod, create revision]
//! grant   = flags | milliseconds | [lease] | [label bytes]
//! keys    = 0 start bytes | 1 start bytes, end bytes | 2 start bytes
//! ```

use std::time::Duration;

use super::field::{endpoints, millis, nested};
use super::{CodecError, Decode, Decoder, Encode, Encoder, Length, Sink, choice, record};
use crate::model::{
    Command, Compare, CompareOp, CompareTarget, Delete, KeyRange, LeaseId, MemberAttributes, Op,
    Put, PutLease, PutValue, Range, RangeEnd, Revision, RevisionBounds, SessionInfo, Sort,
    SortOrder, SortTarget, Txn,
};

/// Returns the encoded size of a command in a log entry. Visits the operations of the command
/// without copying them.
pub(crate) fn encoded_len_hint(command: &Command) -> usize {
    let mut length = Length::default();
    command.encode(&mut Encoder::new(&mut length));
    length.0
}

/// The number of [`Command::As`].
const AS: u8 = 10;

impl Encode for Command {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            Command::Put(put) => to.variant(1, put),
            Command::Delete(delete) => to.variant(2, delete),
            Command::Txn(txn) => to.variant(3, txn),
            Command::Compact(revision) => to.variant(4, revision),
            Command::Grant { id, ttl, session } => {
                to.byte(5);
                encode_grant(*id, ttl, session.as_ref(), to);
            }
            Command::Revoke(lease) => to.variant(6, lease),
            Command::Announce(attributes) if attributes.endpoints.is_empty() => {
                to.byte(7);
                encode_addresses(attributes, to);
            }
            Command::Raise(version) => to.variant(8, version),
            Command::Access(change) => to.variant(9, change),
            Command::As(caller, command) => {
                to.variant(AS, caller);
                command.encode(to);
            }
            Command::Announce(attributes) => {
                to.byte(11);
                encode_addresses(attributes, to);
                endpoints::encode(&attributes.endpoints, to);
            }
            Command::Alarm(change) => to.variant(12, change),
            Command::Move { member, address } => {
                to.variant(13, member);
                address.encode(to);
            }
        }
    }
}

impl Decode for Command {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            1 => Command::Put(Decode::decode(from)?),
            2 => Command::Delete(Decode::decode(from)?),
            3 => Command::Txn(nested::decode(from)?),
            4 => Command::Compact(Decode::decode(from)?),
            5 => decode_grant(from)?,
            6 => Command::Revoke(Decode::decode(from)?),
            7 => Command::Announce(decode_addresses(from)?),
            8 => Command::Raise(Decode::decode(from)?),
            9 => Command::Access(Decode::decode(from)?),
            AS => {
                let caller = Decode::decode(from)?;
                if from.next_is(AS) {
                    return Err(from.malformed("a caller is nested in a caller"));
                }
                Command::As(caller, Box::new(Command::decode(from)?))
            }
            11 => {
                let attributes = decode_addresses(from)?;
                let endpoints = endpoints::decode(from)?;
                Command::Announce(MemberAttributes { endpoints, ..attributes })
            }
            12 => Command::Alarm(Decode::decode(from)?),
            13 => Command::Move { member: Decode::decode(from)?, address: from.text()? },
            found => return Err(CodecError::Newer { what: "command", found: found.into() }),
        })
    }
}

fn encode_addresses<S: Sink>(attributes: &MemberAttributes, to: &mut Encoder<'_, S>) {
    attributes.name.encode(to);
    attributes.address.encode(to);
}

fn decode_addresses(from: &mut Decoder) -> Result<MemberAttributes, CodecError> {
    let (name, address) = (from.text()?, from.text()?);
    Ok(MemberAttributes { name, address, endpoints: Vec::new() })
}

mod grant_flag {
    pub(super) const ID: u64 = 1;
    pub(super) const SESSION: u64 = 2;
    pub(super) const OWN: u64 = 4;
}

fn encode_grant<S: Sink>(
    id: Option<LeaseId>,
    ttl: &Duration,
    session: Option<&SessionInfo>,
    to: &mut Encoder<'_, S>,
) {
    let mut flags = 0;
    if id.is_some() {
        flags |= grant_flag::ID;
    }
    if let Some(session) = session {
        flags |= grant_flag::SESSION;
        if session.own {
            flags |= grant_flag::OWN;
        }
    }
    to.number(flags);
    millis::encode(ttl, to);
    if let Some(id) = id {
        to.number(id.get());
    }
    if let Some(session) = session {
        to.bytes(session.label.as_bytes());
    }
}

fn decode_grant(from: &mut Decoder) -> Result<Command, CodecError> {
    use grant_flag::{ID, OWN, SESSION};
    let flags = from.flags("grant", ID | SESSION | OWN)?;
    if flags & (SESSION | OWN) == OWN {
        return Err(from.malformed("a lease without a session is marked as an own session"));
    }
    let ttl = millis::decode(from)?;
    let id = if flags & ID != 0 { Some(LeaseId::decode(from)?) } else { None };
    let session = if flags & SESSION != 0 {
        Some(SessionInfo { label: from.text()?, own: flags & OWN != 0 })
    } else {
        None
    };
    Ok(Command::Grant { id, ttl, session })
}

impl Encode for KeyRange {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self.end() {
            RangeEnd::Single => {
                to.byte(0);
                to.bytes(self.start());
            }
            RangeEnd::Before(end) => {
                to.byte(1);
                to.bytes(self.start());
                to.bytes(end);
            }
            RangeEnd::Unbounded => {
                to.byte(2);
                to.bytes(self.start());
            }
        }
    }
}

impl Decode for KeyRange {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let kind = from.byte()?;
        if kind > 2 {
            return Err(CodecError::Newer { what: "key range", found: kind.into() });
        }
        let start = from.bytes()?;
        let end = match kind {
            0 => RangeEnd::Single,
            1 => RangeEnd::Before(from.bytes()?),
            _ => RangeEnd::Unbounded,
        };
        // An empty start stays empty, so that every member rejects it, whatever its version.
        Ok(KeyRange::from_parts(start, end))
    }
}

mod put_flag {
    pub(super) const PREV: u64 = 1;
    pub(super) const KEEP_VALUE: u64 = 2;
    pub(super) const LEASE: u64 = 4;
    pub(super) const KEEP_LEASE: u64 = 8;
}

impl Encode for Put {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        let mut flags = 0;
        if self.prev_kv {
            flags |= put_flag::PREV;
        }
        if self.value == PutValue::Keep {
            flags |= put_flag::KEEP_VALUE;
        }
        flags |= match self.lease {
            PutLease::None => 0,
            PutLease::Attach(_) => put_flag::LEASE,
            PutLease::Keep => put_flag::KEEP_LEASE,
        };
        to.number(flags);
        to.bytes(&self.key);
        if let PutValue::Set(value) = &self.value {
            to.bytes(value);
        }
        if let PutLease::Attach(lease) = self.lease {
            to.number(lease.get());
        }
    }
}

impl Decode for Put {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        use put_flag::{KEEP_LEASE, KEEP_VALUE, LEASE, PREV};
        let flags = from.flags("put", PREV | KEEP_VALUE | LEASE | KEEP_LEASE)?;
        let key = from.bytes()?;
        let value =
            if flags & KEEP_VALUE != 0 { PutValue::Keep } else { PutValue::Set(from.bytes()?) };
        let lease = match (flags & LEASE != 0, flags & KEEP_LEASE != 0) {
            (false, false) => PutLease::None,
            (true, false) => PutLease::Attach(LeaseId::decode(from)?),
            (false, true) => PutLease::Keep,
            (true, true) => return Err(from.malformed("a lease is both kept and set")),
        };
        Ok(Put { key, value, lease, prev_kv: flags & PREV != 0 })
    }
}

mod delete_flag {
    pub(super) const PREV: u64 = 1;
}

impl Encode for Delete {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(if self.prev_kv { delete_flag::PREV } else { 0 });
        self.range.encode(to);
    }
}

impl Decode for Delete {
    const BYTES_MIN: usize = 3;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let flags = from.flags("delete", delete_flag::PREV)?;
        let range = KeyRange::decode(from)?;
        Ok(Delete { range, prev_kv: flags & delete_flag::PREV != 0 })
    }
}

record!(Txn, 3, { compares, success, failure });

choice!(Op, "operation", 3, {
    1 => Put(put),
    2 => Delete(delete),
    3 => Txn(txn as nested),
    4 => Range(range),
});

impl Encode for Compare {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        let op = match self.op {
            CompareOp::Equal => 0,
            CompareOp::NotEqual => 1,
            CompareOp::Greater => 2,
            CompareOp::Less => 3,
        };
        let target = match &self.target {
            CompareTarget::Version(_) => 0,
            CompareTarget::Create(_) => 1,
            CompareTarget::Mod(_) => 2,
            CompareTarget::Value(_) => 3,
            CompareTarget::Lease(_) => 4,
        };
        to.byte(op | target << 2);
        self.range.encode(to);
        match &self.target {
            CompareTarget::Version(number) | CompareTarget::Lease(number) => to.number(*number),
            CompareTarget::Create(revision) | CompareTarget::Mod(revision) => {
                to.number(revision.get());
            }
            CompareTarget::Value(value) => to.bytes(value),
        }
    }
}

impl Decode for Compare {
    const BYTES_MIN: usize = 4;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let kind = from.byte()?;
        let op = match kind & 3 {
            0 => CompareOp::Equal,
            1 => CompareOp::NotEqual,
            2 => CompareOp::Greater,
            _ => CompareOp::Less,
        };
        if kind >> 2 > 4 {
            return Err(CodecError::Newer { what: "compare", found: kind.into() });
        }
        let range = KeyRange::decode(from)?;
        let target = match kind >> 2 {
            0 => CompareTarget::Version(from.number()?),
            1 => CompareTarget::Create(Revision(from.number()?)),
            2 => CompareTarget::Mod(Revision(from.number()?)),
            3 => CompareTarget::Value(from.bytes()?),
            _ => CompareTarget::Lease(from.number()?),
        };
        Ok(Compare { range, target, op })
    }
}

mod range_flag {
    pub(super) const REVISION: u64 = 1;
    pub(super) const LIMIT: u64 = 1 << 1;
    pub(super) const KEYS_ONLY: u64 = 1 << 2;
    pub(super) const COUNT_ONLY: u64 = 1 << 3;
    pub(super) const DESCEND: u64 = 1 << 4;
    /// Position of the sort target, which takes three bits.
    pub(super) const SORT_SHIFT: u32 = 5;
    pub(super) const MOD_MIN: u64 = 1 << 8;
    pub(super) const MOD_MAX: u64 = 1 << 9;
    pub(super) const CREATE_MIN: u64 = 1 << 10;
    pub(super) const CREATE_MAX: u64 = 1 << 11;
    pub(super) const ALL: u64 = (1 << 12) - 1;
}

impl Encode for Range {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        let target = match self.sort.target {
            SortTarget::Key => 0,
            SortTarget::Version => 1,
            SortTarget::Create => 2,
            SortTarget::Mod => 3,
            SortTarget::Value => 4,
        };
        let RevisionBounds { mod_min, mod_max, create_min, create_max } = self.bounds;
        let flags = [
            (self.revision.is_some(), range_flag::REVISION),
            (self.limit.is_some(), range_flag::LIMIT),
            (self.keys_only, range_flag::KEYS_ONLY),
            (self.count_only, range_flag::COUNT_ONLY),
            (self.sort.order == SortOrder::Descend, range_flag::DESCEND),
            (mod_min.is_some(), range_flag::MOD_MIN),
            (mod_max.is_some(), range_flag::MOD_MAX),
            (create_min.is_some(), range_flag::CREATE_MIN),
            (create_max.is_some(), range_flag::CREATE_MAX),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag);
        to.number(flags | target << range_flag::SORT_SHIFT);
        self.range.encode(to);
        let numbers = [
            self.revision.map(Revision::get),
            self.limit,
            mod_min.map(Revision::get),
            mod_max.map(Revision::get),
            create_min.map(Revision::get),
            create_max.map(Revision::get),
        ];
        for number in numbers.into_iter().flatten() {
            to.number(number);
        }
    }
}

impl Decode for Range {
    const BYTES_MIN: usize = 3;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let flags = from.flags("range", range_flag::ALL)?;
        let target = match flags >> range_flag::SORT_SHIFT & 7 {
            0 => SortTarget::Key,
            1 => SortTarget::Version,
            2 => SortTarget::Create,
            3 => SortTarget::Mod,
            4 => SortTarget::Value,
            _ => return Err(CodecError::Newer { what: "sort target", found: flags }),
        };
        let order =
            if flags & range_flag::DESCEND != 0 { SortOrder::Descend } else { SortOrder::Ascend };
        let range = KeyRange::decode(from)?;
        let number =
            |flag: u64, from: &mut Decoder| (flags & flag != 0).then(|| from.number()).transpose();
        let revision = |flag, from: &mut Decoder| Ok(number(flag, from)?.map(Revision));
        Ok(Range {
            range,
            revision: revision(range_flag::REVISION, from)?,
            limit: number(range_flag::LIMIT, from)?,
            sort: Sort { target, order },
            keys_only: flags & range_flag::KEYS_ONLY != 0,
            count_only: flags & range_flag::COUNT_ONLY != 0,
            bounds: RevisionBounds {
                mod_min: revision(range_flag::MOD_MIN, from)?,
                mod_max: revision(range_flag::MOD_MAX, from)?,
                create_min: revision(range_flag::CREATE_MIN, from)?,
                create_max: revision(range_flag::CREATE_MAX, from)?,
            },
        })
    }
}

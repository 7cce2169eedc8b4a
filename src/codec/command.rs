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

use super::member::{put_endpoints, take_endpoints};
use super::{CodecError, Decode, Decoder, Encode, Encoder, Length, Sink};
use crate::model::{
    AccessChange, AlarmChange, Caller, ClusterVersion, Command, Compare, CompareOp, CompareTarget,
    Delete, KeyRange, LeaseId, MemberAttributes, NodeId, Op, Put, PutLease, PutValue, Range,
    RangeEnd, Revision, RevisionBounds, SessionInfo, Sort, SortOrder, SortTarget, Txn,
};

/// Returns the encoded size of a command in a log entry. Visits the operations without copying
/// them.
pub(crate) fn encoded_len_hint(command: &Command) -> usize {
    let mut length = Length::default();
    command.encode(&mut Encoder::new(&mut length));
    length.0
}

mod kind {
    pub(super) const PUT: u8 = 1;
    pub(super) const DELETE: u8 = 2;
    pub(super) const TXN: u8 = 3;
    pub(super) const COMPACT: u8 = 4;
    pub(super) const GRANT: u8 = 5;
    pub(super) const REVOKE: u8 = 6;
    pub(super) const ANNOUNCE: u8 = 7;
    pub(super) const RAISE: u8 = 8;
    pub(super) const ACCESS: u8 = 9;
    pub(super) const AS: u8 = 10;
    /// Like [`ANNOUNCE`], but with endpoints.
    pub(super) const ANNOUNCE_ENDPOINTS: u8 = 11;
    pub(super) const ALARM: u8 = 12;
    pub(super) const MOVE: u8 = 13;
    /// Only valid inside a transaction.
    pub(super) const RANGE: u8 = 4;
}

impl Encode for Command {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            Command::Put(put) => {
                to.byte(kind::PUT);
                put.encode(to);
            }
            Command::Delete(delete) => {
                to.byte(kind::DELETE);
                delete.encode(to);
            }
            Command::Txn(txn) => {
                to.byte(kind::TXN);
                txn.encode(to);
            }
            Command::Compact(revision) => {
                to.byte(kind::COMPACT);
                to.number(revision.get());
            }
            Command::Grant { id, ttl, session } => {
                to.byte(kind::GRANT);
                encode_grant(*id, *ttl, session.as_ref(), to);
            }
            Command::Revoke(lease) => {
                to.byte(kind::REVOKE);
                to.number(lease.get());
            }
            Command::Announce(MemberAttributes { name, address, endpoints }) => {
                let has_endpoints = !endpoints.is_empty();
                to.byte(if has_endpoints { kind::ANNOUNCE_ENDPOINTS } else { kind::ANNOUNCE });
                to.bytes(name.as_bytes());
                to.bytes(address.as_bytes());
                if has_endpoints {
                    put_endpoints(endpoints, to);
                }
            }
            Command::Move { member, address } => {
                to.byte(kind::MOVE);
                to.number(member.get());
                to.bytes(address.as_bytes());
            }
            Command::Raise(version) => {
                to.byte(kind::RAISE);
                to.number(version.get());
            }
            Command::Access(change) => {
                to.byte(kind::ACCESS);
                change.encode(to);
            }
            Command::Alarm(change) => {
                to.byte(kind::ALARM);
                change.encode(to);
            }
            Command::As(caller, command) => {
                to.byte(kind::AS);
                caller.encode(to);
                command.encode(to);
            }
        }
    }
}

impl Decode for Command {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        match from.byte()? {
            kind::AS => {
                let caller = Caller::decode(from)?;
                let kind = from.byte()?;
                Ok(Command::As(caller, Box::new(decode_deed(kind, from)?)))
            }
            kind => decode_deed(kind, from),
        }
    }
}

/// Reads a command without a caller.
fn decode_deed(kind: u8, from: &mut Decoder) -> Result<Command, CodecError> {
    Ok(match kind {
        kind::PUT => Command::Put(Put::decode(from)?),
        kind::DELETE => Command::Delete(Delete::decode(from)?),
        kind::TXN => Command::Txn(Txn::decode(from)?),
        kind::COMPACT => Command::Compact(Revision(from.number()?)),
        kind::GRANT => decode_grant(from)?,
        kind::REVOKE => Command::Revoke(LeaseId::decode(from)?),
        kind::ANNOUNCE => Command::Announce(MemberAttributes {
            name: from.text()?,
            address: from.text()?,
            endpoints: Vec::new(),
        }),
        kind::ANNOUNCE_ENDPOINTS => Command::Announce(MemberAttributes {
            name: from.text()?,
            address: from.text()?,
            endpoints: take_endpoints(from)?,
        }),
        kind::RAISE => Command::Raise(ClusterVersion(from.number()?)),
        kind::ACCESS => Command::Access(AccessChange::decode(from)?),
        kind::ALARM => Command::Alarm(AlarmChange::decode(from)?),
        kind::MOVE => Command::Move { member: NodeId::decode(from)?, address: from.text()? },
        kind::AS => return Err(from.malformed("a caller is nested in a caller")),
        found => return Err(CodecError::Newer { what: "command", found: found.into() }),
    })
}

mod grant_flag {
    pub(super) const ID: u64 = 1;
    pub(super) const SESSION: u64 = 2;
    pub(super) const OWN: u64 = 4;
}

fn encode_grant<S: Sink>(
    id: Option<LeaseId>,
    ttl: Duration,
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
    // `Limits` rejects TTLs that are anywhere near this value.
    to.number(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
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
    let ttl = Duration::from_millis(from.number()?);
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
        Ok(match kind {
            0 => KeyRange::key(start),
            1 => KeyRange::between(start, from.bytes()?),
            _ => KeyRange::starting_at(start),
        })
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

impl Encode for Txn {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.list(&self.compares);
        to.list(&self.success);
        to.list(&self.failure);
    }
}

impl Decode for Txn {
    const BYTES_MIN: usize = 3;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        from.nested(|from| {
            Ok(Txn { compares: from.list()?, success: from.list()?, failure: from.list()? })
        })
    }
}

impl Encode for Op {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            Op::Put(put) => {
                to.byte(kind::PUT);
                put.encode(to);
            }
            Op::Delete(delete) => {
                to.byte(kind::DELETE);
                delete.encode(to);
            }
            Op::Txn(txn) => {
                to.byte(kind::TXN);
                txn.encode(to);
            }
            Op::Range(range) => {
                to.byte(kind::RANGE);
                range.encode(to);
            }
        }
    }
}

impl Decode for Op {
    const BYTES_MIN: usize = 3;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            kind::PUT => Op::Put(Put::decode(from)?),
            kind::DELETE => Op::Delete(Delete::decode(from)?),
            kind::TXN => Op::Txn(Txn::decode(from)?),
            kind::RANGE => Op::Range(Range::decode(from)?),
            found => return Err(CodecError::Newer { what: "operation", found: found.into() }),
        })
    }
}

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
    /// The sort target takes three bits.
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

//! Encoding of the table of members, and of membership changes.
//!
//! ```text
//! membership = version u8 | change
//! change     = 1 id, disk u128, name bytes, address bytes, id or 0 | 2 id | 3 id | 4 old, new | 5
//!            | 6 id, disk u128, name bytes, address bytes
//! members    = next | list of (id, member) | list of id
//! member     = disk u128 | name bytes | address bytes | kind u8 | id or 0 | since
//!            | [list of bytes: endpoints] | [address bytes: where it moves to]
//! ```

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink};
use crate::model::{
    DiskId, JoinAsk, LogIndex, Member, MemberAnswer, MemberAttributes, MemberChange, MemberRole,
    Members, MembershipError, MembershipRequest, NodeId, SnapshotId, Term,
};

/// The format version of membership changes that this build writes. It is also the newest version
/// that this build reads.
const VERSION: u8 = 1;

/// Encodes the payload of a log entry that changes the membership.
pub(crate) fn encode_member_change(change: &MemberChange) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    change.encode(&mut Encoder::new(&mut bytes));
    bytes
}

/// Decodes the payload of a log entry that changes the membership.
pub(crate) fn decode_member_change(bytes: Bytes) -> Result<MemberChange, CodecError> {
    let mut from = Decoder::new("membership change", bytes);
    from.version(VERSION)?;
    let change = MemberChange::decode(&mut from)?;
    from.finish()?;
    Ok(change)
}

fn put_optional<S: Sink>(id: Option<NodeId>, to: &mut Encoder<'_, S>) {
    to.number(id.map_or(0, NodeId::get));
}

fn take_optional(from: &mut Decoder) -> Result<Option<NodeId>, CodecError> {
    Ok(NodeId::new(from.number()?))
}

impl Encode for MemberChange {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            MemberChange::Add { id, disk, name, address, replaces } => {
                to.byte(1);
                to.number(id.get());
                to.fixed_u128(disk.0);
                to.bytes(name.as_bytes());
                to.bytes(address.as_bytes());
                put_optional(*replaces, to);
            }
            MemberChange::Promote(id) => {
                to.byte(2);
                to.number(id.get());
            }
            MemberChange::Remove(id) => {
                to.byte(3);
                to.number(id.get());
            }
            MemberChange::Replace { old, new } => {
                to.byte(4);
                to.number(old.get());
                to.number(new.get());
            }
            MemberChange::LeaveJoint => to.byte(5),
            MemberChange::Take { id, disk, name, address } => {
                to.byte(6);
                to.number(id.get());
                to.fixed_u128(disk.0);
                to.bytes(name.as_bytes());
                to.bytes(address.as_bytes());
            }
        }
    }
}

impl Decode for MemberChange {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            1 => MemberChange::Add {
                id: NodeId::decode(from)?,
                disk: DiskId(from.fixed_u128()?),
                name: from.text()?,
                address: from.text()?,
                replaces: take_optional(from)?,
            },
            2 => MemberChange::Promote(NodeId::decode(from)?),
            3 => MemberChange::Remove(NodeId::decode(from)?),
            4 => MemberChange::Replace { old: NodeId::decode(from)?, new: NodeId::decode(from)? },
            5 => MemberChange::LeaveJoint,
            6 => MemberChange::Take {
                id: NodeId::decode(from)?,
                disk: DiskId(from.fixed_u128()?),
                name: from.text()?,
                address: from.text()?,
            },
            found => return Err(CodecError::Newer { what: "member change", found: found.into() }),
        })
    }
}

impl Encode for MembershipRequest {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            MembershipRequest::Add { disk, name, address, replaces } => {
                to.byte(1);
                to.fixed_u128(disk.0);
                to.bytes(name.as_bytes());
                to.bytes(address.as_bytes());
                put_optional(*replaces, to);
            }
            MembershipRequest::Promote(id) => {
                to.byte(2);
                to.number(id.get());
            }
            MembershipRequest::Remove(id) => {
                to.byte(3);
                to.number(id.get());
            }
            MembershipRequest::Keep { address, votes } => {
                to.byte(4);
                to.bytes(address.as_bytes());
                to.number((*votes).into());
            }
        }
    }
}

impl Decode for MembershipRequest {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            1 => MembershipRequest::Add {
                disk: DiskId(from.fixed_u128()?),
                name: limited_text(from)?,
                address: limited_text(from)?,
                replaces: take_optional(from)?,
            },
            2 => MembershipRequest::Promote(NodeId::decode(from)?),
            3 => MembershipRequest::Remove(NodeId::decode(from)?),
            4 => MembershipRequest::Keep {
                address: limited_text(from)?,
                votes: from.flags("kept place", 1)? == 1,
            },
            found => {
                return Err(CodecError::Newer {
                    what: "member membership_request",
                    found: found.into(),
                });
            }
        })
    }
}

/// Reads a requested name or address and checks its length. Without the check, the leader could
/// propose a change that other members cannot decode.
fn limited_text(from: &mut Decoder) -> Result<String, CodecError> {
    let text = from.text()?;
    match text.len() <= JoinAsk::TEXT_BYTES_MAX {
        true => Ok(text),
        false => Err(from.malformed("a name or an address is too long")),
    }
}

impl Encode for MemberAnswer {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            MemberAnswer::Done { id, index } => {
                to.byte(1);
                to.number(id.get());
                to.number(index.get());
            }
            MemberAnswer::NotLeader(leader) => {
                to.byte(2);
                put_optional(*leader, to);
            }
            MemberAnswer::Refused(rejection) => {
                to.byte(3);
                rejection.encode(to);
            }
        }
    }
}

impl Decode for MemberAnswer {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            1 => MemberAnswer::Done { id: NodeId::decode(from)?, index: LogIndex(from.number()?) },
            2 => MemberAnswer::NotLeader(take_optional(from)?),
            3 => MemberAnswer::Refused(MembershipError::decode(from)?),
            found => return Err(CodecError::Newer { what: "member answer", found: found.into() }),
        })
    }
}

impl Encode for MembershipError {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        let mut id = |kind: u8, id: &NodeId| {
            to.byte(kind);
            to.number(id.get());
        };
        match self {
            MembershipError::Unknown(node) => id(1, node),
            MembershipError::Voter(node) => id(2, node),
            MembershipError::NotVoter(node) => id(3, node),
            MembershipError::LastVoter(node) => id(4, node),
            MembershipError::NotCaughtUp(node) => id(5, node),
            MembershipError::NotNext(node) => id(6, node),
            MembershipError::NameTaken(name) => {
                to.byte(7);
                to.bytes(name.as_bytes());
            }
            MembershipError::TooMany(count) => {
                to.byte(8);
                to.number(*count as u64);
            }
            MembershipError::TooManyVoters(count) => {
                to.byte(9);
                to.number(*count as u64);
            }
            MembershipError::Pending => to.byte(10),
            MembershipError::LosesQuorum { active, voters, needed } => {
                to.byte(11);
                for count in [active, voters, needed] {
                    to.number(*count as u64);
                }
            }
            MembershipError::NotJoint => to.byte(12),
            MembershipError::BadAddress(address) => {
                to.byte(13);
                to.bytes(address.as_bytes());
            }
        }
    }
}

impl Decode for MembershipError {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let count = |from: &mut Decoder| from.number().map(|count| count as usize);
        Ok(match from.byte()? {
            1 => MembershipError::Unknown(NodeId::decode(from)?),
            2 => MembershipError::Voter(NodeId::decode(from)?),
            3 => MembershipError::NotVoter(NodeId::decode(from)?),
            4 => MembershipError::LastVoter(NodeId::decode(from)?),
            5 => MembershipError::NotCaughtUp(NodeId::decode(from)?),
            6 => MembershipError::NotNext(NodeId::decode(from)?),
            7 => MembershipError::NameTaken(from.text()?),
            8 => MembershipError::TooMany(count(from)?),
            9 => MembershipError::TooManyVoters(count(from)?),
            10 => MembershipError::Pending,
            11 => MembershipError::LosesQuorum {
                active: count(from)?,
                voters: count(from)?,
                needed: count(from)?,
            },
            12 => MembershipError::NotJoint,
            13 => MembershipError::BadAddress(from.text()?),
            found => {
                return Err(CodecError::Newer { what: "member rejection", found: found.into() });
            }
        })
    }
}

impl Encode for Members {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(self.next());
        to.number(self.rows().len() as u64);
        for (id, member) in self.rows() {
            to.number(id.get());
            member.encode(to);
        }
        to.number(self.outgoing().len() as u64);
        for id in self.outgoing() {
            to.number(id.get());
        }
    }
}

impl Decode for Members {
    const BYTES_MIN: usize = 3;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let next = from.number()?;
        let mut rows = BTreeMap::new();
        for _ in 0..from.count(1 + Member::BYTES_MIN)? {
            let id = NodeId::decode(from)?;
            if rows.last_key_value().is_some_and(|(last, _)| *last >= id) {
                return Err(from.malformed("members are out of order"));
            }
            rows.insert(id, Member::decode(from)?);
        }
        let mut outgoing = BTreeSet::new();
        for _ in 0..from.count(1)? {
            let id = NodeId::decode(from)?;
            if outgoing.last().is_some_and(|last| *last >= id) {
                return Err(from.malformed("outgoing voters are out of order"));
            }
            outgoing.insert(id);
        }
        Members::from_parts(rows, outgoing, next)
            .ok_or_else(|| from.malformed("a member has an unassigned id"))
    }
}

/// Writes a non-empty list of endpoints.
pub(super) fn put_endpoints<S: Sink>(endpoints: &[String], to: &mut Encoder<'_, S>) {
    to.number(endpoints.len() as u64);
    for endpoint in endpoints {
        to.bytes(endpoint.as_bytes());
    }
}

pub(super) fn take_endpoints(from: &mut Decoder) -> Result<Vec<String>, CodecError> {
    let count = from.count(1)?;
    if count == 0 || count > MemberAttributes::ENDPOINTS_MAX {
        return Err(from.malformed("there are no endpoints, or too many"));
    }
    let endpoint = |from: &mut Decoder| match from.text()? {
        endpoint if endpoint.len() > MemberAttributes::ENDPOINT_BYTES_MAX => {
            Err(from.malformed("an endpoint is too long"))
        }
        endpoint => Ok(endpoint),
    };
    (0..count).map(|_| endpoint(from)).collect()
}

impl Encode for Member {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.fixed_u128(self.disk.0);
        to.bytes(self.name.as_bytes());
        to.bytes(self.address.as_bytes());
        let has_endpoints = !self.endpoints.is_empty();
        let learns = u8::from(self.role == MemberRole::Learner);
        to.byte(1 + learns + 2 * u8::from(has_endpoints) + 4 * u8::from(self.moves_to.is_some()));
        put_optional(self.replaces, to);
        to.number(self.since.get());
        if has_endpoints {
            put_endpoints(&self.endpoints, to);
        }
        if let Some(address) = &self.moves_to {
            to.bytes(address.as_bytes());
        }
    }
}

impl Decode for Member {
    const BYTES_MIN: usize = 21;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let (disk, name, address) = (DiskId(from.fixed_u128()?), from.text()?, from.text()?);
        let kind = match from.byte()? {
            kind @ 1..=8 => kind - 1,
            found => {
                return Err(CodecError::Newer { what: "role of a member", found: found.into() });
            }
        };
        let role = if kind & 1 == 0 { MemberRole::Voter } else { MemberRole::Learner };
        let (has_endpoints, moves) = (kind & 2 != 0, kind & 4 != 0);
        let (replaces, since) = (take_optional(from)?, LogIndex(from.number()?));
        let endpoints = if has_endpoints { take_endpoints(from)? } else { Vec::new() };
        let moves_to = if moves { Some(from.text()?) } else { None };
        Ok(Member { disk, name, address, moves_to, endpoints, role, replaces, since })
    }
}

impl Encode for SnapshotId {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(self.index.get());
        to.number(self.term.get());
        to.number(self.bytes);
        to.fixed_u64(self.checksum);
    }
}

impl Decode for SnapshotId {
    const BYTES_MIN: usize = 11;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(SnapshotId {
            index: LogIndex(from.number()?),
            term: Term(from.number()?),
            bytes: from.number()?,
            checksum: from.fixed_u64()?,
        })
    }
}

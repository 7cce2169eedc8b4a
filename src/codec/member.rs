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

use bytes::Bytes;

use super::field::{endpoints, or_zero};
use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink, choice, decode_versioned, record};
use crate::model::{
    DiskId, LogIndex, Member, MemberAnswer, MemberChange, MemberRole, Members, MembershipError,
    MembershipRequest, SnapshotId,
};

/// The format version of membership changes that this build writes, and the newest version that it
/// reads.
const VERSION: u8 = 1;

/// Encodes the payload of a log entry that changes the membership.
pub(crate) fn encode_member_change(change: &MemberChange) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    change.encode(&mut Encoder::new(&mut bytes));
    bytes
}

/// Decodes the payload of a log entry that changes the membership.
pub(crate) fn decode_member_change(bytes: Bytes) -> Result<MemberChange, CodecError> {
    decode_versioned("membership change", VERSION, bytes)
}

choice!(MemberChange, "member change", 1, {
    1 => Add { id, disk, name, address, replaces as or_zero },
    2 => Promote(id),
    3 => Remove(id),
    4 => Replace { old, new },
    5 => LeaveJoint,
    6 => Take { id, disk, name, address },
});

choice!(MembershipRequest, "member membership_request", 2, {
    1 => Add { disk, name as limited, address as limited, replaces as or_zero },
    2 => Promote(id),
    3 => Remove(id),
    4 => Keep { address as limited, votes },
});

choice!(MemberAnswer, "member answer", 2, {
    1 => Done { id, index },
    2 => NotLeader(leader as or_zero),
    3 => Refused(rejection),
});

choice!(MembershipError, "member rejection", 1, {
    1 => Unknown(node),
    2 => Voter(node),
    3 => NotVoter(node),
    4 => LastVoter(node),
    5 => NotCaughtUp(node),
    6 => NotNext(node),
    7 => NameTaken(name),
    8 => TooMany(count),
    9 => TooManyVoters(count),
    10 => Pending,
    11 => LosesQuorum { active, voters, needed },
    12 => NotJoint,
    13 => BadAddress(address),
});

record!(SnapshotId, 11, { index, term, bytes, checksum as fixed });

impl Encode for Members {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        self.next().encode(to);
        self.rows().encode(to);
        self.outgoing().encode(to);
    }
}

impl Decode for Members {
    const BYTES_MIN: usize = 3;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let next = from.number()?;
        Members::from_parts(Decode::decode(from)?, Decode::decode(from)?, next)
            .ok_or_else(|| from.malformed("a member has an unassigned id"))
    }
}

impl Encode for Member {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        self.disk.encode(to);
        to.bytes(self.name.as_bytes());
        to.bytes(self.address.as_bytes());
        let has_endpoints = !self.endpoints.is_empty();
        let learns = u8::from(self.role == MemberRole::Learner);
        to.byte(1 + learns + 2 * u8::from(has_endpoints) + 4 * u8::from(self.moves_to.is_some()));
        or_zero::encode(&self.replaces, to);
        to.number(self.since.get());
        if has_endpoints {
            endpoints::encode(&self.endpoints, to);
        }
        if let Some(address) = &self.moves_to {
            to.bytes(address.as_bytes());
        }
    }
}

impl Decode for Member {
    const BYTES_MIN: usize = 21;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let (disk, name, address) = (DiskId::decode(from)?, from.text()?, from.text()?);
        let kind = match from.byte()? {
            kind @ 1..=8 => kind - 1,
            found => {
                return Err(CodecError::Newer { what: "role of a member", found: found.into() });
            }
        };
        let role = if kind & 1 == 0 { MemberRole::Voter } else { MemberRole::Learner };
        let (has_endpoints, moves) = (kind & 2 != 0, kind & 4 != 0);
        let (replaces, since) = (or_zero::decode(from)?, LogIndex::decode(from)?);
        let endpoints = if has_endpoints { endpoints::decode(from)? } else { Vec::new() };
        let moves_to = if moves { Some(from.text()?) } else { None };
        Ok(Member { disk, name, address, moves_to, endpoints, role, replaces, since })
    }
}

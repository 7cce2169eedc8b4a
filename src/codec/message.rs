//! Encoding of messages between members. One frame holds one message.
//!
//! ```text
//! message  = version u8 | kind u8 | body
//! hello    = cluster u128 | from | to | disk u128 | incarnation | standing | since | address bytes | speaks
//! standing = 0 (blank) | 1 list of (member, disk u128)
//! snapshot = index | term | bytes | checksum u64
//! raft     = the consensus' own bytes, to the end
//! ```
//!
//! The body of every other message consists of its fields, in the order of their declaration in
//! `model`. The encoding of the hello may change with the protocol version, because the handshake
//! negotiates that version before it reads the hello. A member that does not support the version
//! rejects the connection with a clear error.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

use super::{CodecError, Decode, Decoder, Encode, Encoder, Length, Sink};
use crate::model::{
    ClusterId, ClusterVersion, DiskId, FoundingState, Hello, Incarnation, LeaseId, LeaseLife,
    LogIndex, MemberAnswer, MembershipRequest, NodeId, PeerMessage, Proposal, ProposeRejection,
    SnapshotId,
};

/// The format version of messages that this build writes. It is also the newest version that this
/// build reads.
const VERSION: u8 = 1;

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const RAFT: u8 = 2;
    pub(super) const PROPOSE: u8 = 3;
    pub(super) const PROPOSE_REFUSED: u8 = 4;
    pub(super) const READ_ASK: u8 = 5;
    pub(super) const READ_ANSWER: u8 = 6;
    pub(super) const RENEW: u8 = 7;
    pub(super) const RENEWED: u8 = 8;
    pub(super) const DIGEST: u8 = 9;
    pub(super) const SNAPSHOT_ASK: u8 = 10;
    pub(super) const SNAPSHOT_PART: u8 = 11;
    pub(super) const SNAPSHOT_GONE: u8 = 12;
    pub(super) const SNAPSHOT_WANTED: u8 = 13;
    pub(super) const SNAPSHOT_HERE: u8 = 14;
    pub(super) const MEMBER_ASK: u8 = 15;
    pub(super) const MEMBER_ANSWER: u8 = 16;
    pub(super) const SPACE: u8 = 17;
    pub(super) const LEASE_ASK: u8 = 18;
    pub(super) const LEASE_ANSWER: u8 = 19;
}

/// Appends the encoding of a message to `sink`.
pub(crate) fn encode_message(message: &PeerMessage, sink: &mut impl Sink) {
    let mut to = Encoder::new(sink);
    to.byte(VERSION);
    message.encode(&mut to);
}

/// Returns the number of bytes that [`encode_message`] would append.
pub(crate) fn message_len(message: &PeerMessage) -> usize {
    let mut length = Length::default();
    encode_message(message, &mut length);
    length.0
}

/// Decodes one message. Keys and values in it are slices of `bytes`.
pub(crate) fn decode_message(bytes: Bytes) -> Result<PeerMessage, CodecError> {
    let mut from = Decoder::new("message", bytes);
    from.version(VERSION)?;
    let message = PeerMessage::decode(&mut from)?;
    from.finish()?;
    Ok(message)
}

impl Encode for PeerMessage {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            PeerMessage::Hello(hello) => {
                to.byte(kind::HELLO);
                hello.encode(to);
            }
            PeerMessage::Raft(bytes) => {
                to.byte(kind::RAFT);
                to.rest(bytes);
            }
            PeerMessage::Propose(proposal) => {
                to.byte(kind::PROPOSE);
                proposal.encode(to);
            }
            PeerMessage::ProposeRejected { incarnation, seqs, why } => {
                to.byte(kind::PROPOSE_REFUSED);
                to.number(incarnation.get());
                to.list(seqs);
                why.encode(to);
            }
            PeerMessage::ReadAsk { round, incarnation } => {
                to.byte(kind::READ_ASK);
                to.number(*round);
                to.number(incarnation.get());
            }
            PeerMessage::ReadAnswer { round, incarnation, index } => {
                to.byte(kind::READ_ANSWER);
                to.number(*round);
                to.number(incarnation.get());
                match index {
                    None => to.byte(0),
                    Some(index) => {
                        to.byte(1);
                        to.number(index.get());
                    }
                }
            }
            PeerMessage::Renew { round, incarnation, leases } => {
                to.byte(kind::RENEW);
                to.number(*round);
                to.number(incarnation.get());
                to.list(leases);
            }
            PeerMessage::Renewed { round, incarnation, renewed, gone } => {
                to.byte(kind::RENEWED);
                to.number(*round);
                to.number(incarnation.get());
                to.list(renewed);
                to.list(gone);
            }
            PeerMessage::Digest { index, digest } => {
                to.byte(kind::DIGEST);
                to.number(index.get());
                to.fixed_u64(*digest);
            }
            PeerMessage::SnapshotAsk { id, offset } => {
                to.byte(kind::SNAPSHOT_ASK);
                id.encode(to);
                to.number(*offset);
            }
            PeerMessage::SnapshotPart { id, offset, data } => {
                to.byte(kind::SNAPSHOT_PART);
                id.encode(to);
                to.number(*offset);
                to.rest(data);
            }
            PeerMessage::SnapshotGone { id } => {
                to.byte(kind::SNAPSHOT_GONE);
                id.encode(to);
            }
            PeerMessage::SnapshotWanted { least } => {
                to.byte(kind::SNAPSHOT_WANTED);
                to.number(least.get());
            }
            PeerMessage::SnapshotHere { id } => {
                to.byte(kind::SNAPSHOT_HERE);
                id.encode(to);
            }
            PeerMessage::MemberAsk { round, incarnation, membership_request } => {
                to.byte(kind::MEMBER_ASK);
                to.number(*round);
                to.number(incarnation.get());
                membership_request.encode(to);
            }
            PeerMessage::MemberAnswer { round, incarnation, answer } => {
                to.byte(kind::MEMBER_ANSWER);
                to.number(*round);
                to.number(incarnation.get());
                answer.encode(to);
            }
            PeerMessage::Space { low } => {
                to.byte(kind::SPACE);
                to.byte(u8::from(*low));
            }
            PeerMessage::LeaseAsk { round, incarnation, renew, look } => {
                to.byte(kind::LEASE_ASK);
                to.number(*round);
                to.number(incarnation.get());
                to.list(renew);
                to.list(look);
            }
            PeerMessage::LeaseAnswer { round, incarnation, living, gone } => {
                to.byte(kind::LEASE_ANSWER);
                to.number(*round);
                to.number(incarnation.get());
                to.list(living);
                to.list(gone);
            }
        }
    }
}

impl Decode for PeerMessage {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            kind::HELLO => PeerMessage::Hello(Hello::decode(from)?),
            kind::RAFT => PeerMessage::Raft(from.rest()),
            kind::PROPOSE => PeerMessage::Propose(Proposal::decode(from)?),
            kind::PROPOSE_REFUSED => PeerMessage::ProposeRejected {
                incarnation: Incarnation(from.number()?),
                seqs: from.list()?,
                why: ProposeRejection::decode(from)?,
            },
            kind::READ_ASK => PeerMessage::ReadAsk {
                round: from.number()?,
                incarnation: Incarnation(from.number()?),
            },
            kind::READ_ANSWER => PeerMessage::ReadAnswer {
                round: from.number()?,
                incarnation: Incarnation(from.number()?),
                index: match from.byte()? {
                    0 => None,
                    1 => Some(LogIndex(from.number()?)),
                    found => {
                        return Err(CodecError::Newer { what: "read answer", found: found.into() });
                    }
                },
            },
            kind::RENEW => PeerMessage::Renew {
                round: from.number()?,
                incarnation: Incarnation(from.number()?),
                leases: from.list()?,
            },
            kind::RENEWED => PeerMessage::Renewed {
                round: from.number()?,
                incarnation: Incarnation(from.number()?),
                renewed: from.list()?,
                gone: from.list()?,
            },
            kind::DIGEST => {
                PeerMessage::Digest { index: LogIndex(from.number()?), digest: from.fixed_u64()? }
            }
            kind::SNAPSHOT_ASK => {
                PeerMessage::SnapshotAsk { id: SnapshotId::decode(from)?, offset: from.number()? }
            }
            kind::SNAPSHOT_PART => PeerMessage::SnapshotPart {
                id: SnapshotId::decode(from)?,
                offset: from.number()?,
                data: from.rest(),
            },
            kind::SNAPSHOT_GONE => PeerMessage::SnapshotGone { id: SnapshotId::decode(from)? },
            kind::SNAPSHOT_WANTED => {
                PeerMessage::SnapshotWanted { least: LogIndex(from.number()?) }
            }
            kind::SNAPSHOT_HERE => PeerMessage::SnapshotHere { id: SnapshotId::decode(from)? },
            kind::MEMBER_ASK => PeerMessage::MemberAsk {
                round: from.number()?,
                incarnation: Incarnation(from.number()?),
                membership_request: MembershipRequest::decode(from)?,
            },
            kind::MEMBER_ANSWER => PeerMessage::MemberAnswer {
                round: from.number()?,
                incarnation: Incarnation(from.number()?),
                answer: MemberAnswer::decode(from)?,
            },
            kind::SPACE => PeerMessage::Space { low: from.flags("space", 1)? == 1 },
            kind::LEASE_ASK => PeerMessage::LeaseAsk {
                round: from.number()?,
                incarnation: Incarnation(from.number()?),
                renew: from.list()?,
                look: from.list()?,
            },
            kind::LEASE_ANSWER => PeerMessage::LeaseAnswer {
                round: from.number()?,
                incarnation: Incarnation(from.number()?),
                living: from.list()?,
                gone: from.list()?,
            },
            found => return Err(CodecError::Newer { what: "message", found: found.into() }),
        })
    }
}

impl Encode for Hello {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.fixed_u128(self.cluster.0);
        to.number(self.from.get());
        to.number(self.to.get());
        to.fixed_u128(self.disk.0);
        to.number(self.incarnation.get());
        match &self.standing {
            FoundingState::Blank => to.byte(0),
            FoundingState::Founded(founding) => {
                to.byte(1);
                encode_founding(founding, to);
            }
        }
        to.number(self.since.get());
        to.bytes(self.address.as_bytes());
        to.number(self.supported_version.get());
    }
}

impl Decode for Hello {
    const BYTES_MIN: usize = 39;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(Hello {
            cluster: ClusterId(from.fixed_u128()?),
            from: NodeId::decode(from)?,
            to: NodeId::decode(from)?,
            disk: DiskId(from.fixed_u128()?),
            incarnation: Incarnation(from.number()?),
            standing: match from.byte()? {
                0 => FoundingState::Blank,
                1 => FoundingState::Founded(decode_founding(from)?),
                found => return Err(CodecError::Newer { what: "standing", found: found.into() }),
            },
            since: LogIndex(from.number()?),
            address: from.text()?,
            supported_version: ClusterVersion(from.number()?),
        })
    }
}

impl Encode for LeaseLife {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        self.lease.encode(to);
        to.number(u64::try_from(self.left.as_millis()).unwrap_or(u64::MAX));
    }
}

impl Decode for LeaseLife {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let lease = LeaseId::decode(from)?;
        Ok(LeaseLife { lease, left: Duration::from_millis(from.number()?) })
    }
}

pub(super) fn encode_founding<S: Sink>(
    founding: &BTreeMap<NodeId, DiskId>,
    to: &mut Encoder<'_, S>,
) {
    to.number(founding.len() as u64);
    for (member, disk) in founding {
        to.number(member.get());
        to.fixed_u128(disk.0);
    }
}

pub(super) fn decode_founding(from: &mut Decoder) -> Result<BTreeMap<NodeId, DiskId>, CodecError> {
    let mut founding = BTreeMap::new();
    for _ in 0..from.count(17)? {
        let member = NodeId::decode(from)?;
        if founding.last_key_value().is_some_and(|(last, _)| *last >= member) {
            return Err(from.malformed("founding members are out of order"));
        }
        founding.insert(member, DiskId(from.fixed_u128()?));
    }
    Ok(founding)
}

impl Encode for ProposeRejection {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            ProposeRejection::NotLeader(None) => to.byte(0),
            ProposeRejection::NotLeader(Some(leader)) => {
                to.byte(1);
                to.number(leader.get());
            }
            ProposeRejection::Busy => to.byte(2),
            ProposeRejection::Diverged => to.byte(3),
            ProposeRejection::QuotaExceeded => to.byte(4),
            ProposeRejection::NoSpace => to.byte(5),
        }
    }
}

impl Decode for ProposeRejection {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            0 => ProposeRejection::NotLeader(None),
            1 => ProposeRejection::NotLeader(Some(NodeId::decode(from)?)),
            2 => ProposeRejection::Busy,
            3 => ProposeRejection::Diverged,
            4 => ProposeRejection::QuotaExceeded,
            5 => ProposeRejection::NoSpace,
            found => return Err(CodecError::Newer { what: "rejection", found: found.into() }),
        })
    }
}

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

use super::{CodecError, Encode, Encoder, Length, Sink, choice, decode_versioned, record};
use crate::model::{FoundingState, Hello, LeaseLife, PeerMessage, ProposeRejection};

/// The format version of messages that this build writes, and the newest version that it reads.
const VERSION: u8 = 1;

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

/// Decodes one message. Keys and values in the message are slices of `bytes`.
pub(crate) fn decode_message(bytes: Bytes) -> Result<PeerMessage, CodecError> {
    decode_versioned("message", VERSION, bytes)
}

choice!(PeerMessage, "message", 1, {
    1 => Hello(hello),
    2 => Raft(bytes as rest),
    3 => Propose(proposal),
    4 => ProposeRejected { incarnation, seqs, why },
    5 => ReadAsk { round, incarnation },
    6 => ReadAnswer { round, incarnation, index },
    7 => Renew { round, incarnation, leases },
    8 => Renewed { round, incarnation, renewed, gone },
    9 => Digest { index, digest as fixed },
    10 => SnapshotAsk { id, offset },
    11 => SnapshotPart { id, offset, data as rest },
    12 => SnapshotGone { id },
    13 => SnapshotWanted { least },
    14 => SnapshotHere { id },
    15 => MemberAsk { round, incarnation, membership_request },
    16 => MemberAnswer { round, incarnation, answer },
    17 => Space { low },
    18 => LeaseAsk { round, incarnation, renew, look },
    19 => LeaseAnswer { round, incarnation, living, gone },
});

record!(Hello, 39, {
    cluster, from, to, disk, incarnation, standing, since, address, supported_version
});

choice!(FoundingState, "standing", 1, {
    0 => Blank,
    1 => Founded(founding),
});

record!(LeaseLife, 2, { lease, left as millis });

choice!(ProposeRejection, "rejection", 1, {
    0 => NotLeader(leader as none) if leader.is_none(),
    1 => NotLeader(leader as some),
    2 => Busy,
    3 => Diverged,
    4 => QuotaExceeded,
    5 => NoSpace,
});

//! The data types that all parts of the library share: keys, revisions, requests, outcomes and
//! members.
//!
//! The types have no encoding (that is in `codec`), use no clock and no thread, and depend on no
//! other module.

mod access;
mod alarm;
mod command;
mod decode;
mod id;
mod into_bytes;
mod join;
mod key_set;
mod kv;
mod limits;
mod member;
mod message;
mod moment;
mod outcome;
mod random;
mod range;
mod request;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(feature = "serde")]
pub(crate) mod serialize;
mod snapshot_record;
mod written;

pub(crate) use access::Right;
pub use access::{
    Access, AccessChange, AccessGrant, AuthError, Caller, ROOT, Rights, Role as AccessRole, Secret,
    User,
};
pub use alarm::{Alarm, AlarmChange, AlarmKind, Alarms};
pub use command::{AckWindow, Command, Item, Proposal, RequestId, SessionInfo};
pub use decode::DecodeError;
pub(crate) use decode::{
    key_text as decode_key_text, parse as decode_parse, readable, text as decode_text,
};
pub use id::{
    ClusterId, ClusterVersion, DiskId, Incarnation, LeaseId, LogIndex, NodeId, ParseLeaseIdError,
    Revision, Term,
};
pub use into_bytes::IntoBytes;
pub use join::{JoinAnswer, JoinAsk, Joined};
pub(crate) use key_set::OpenKeys;
pub use kv::{Event, EventKind, KeyValue};
pub use limits::Limits;
pub use member::{
    Member, MemberAttributes, MemberChange, MemberRole, Members, MembershipError,
    MembershipRequest, SnapshotId,
};
pub(crate) use member::{addresses, are_addresses, is_address, is_nowhere};
pub use message::{
    FoundingState, Hello, Lane, LeaseLife, MemberAnswer, PeerMessage, ProposeRejection,
};
pub use moment::Moment;
pub use outcome::{
    DeleteReply, Fault, GrantReply, Outcome, PutReply, RangeReply, Rejection, Reply, RevokeReply,
    TxnReply, TxnResult,
};
pub use random::SplitMix64;
pub(crate) use random::{SPLIT_MIX_STEP, finalize};
pub use range::{KeyRange, RangeEnd};
pub use request::{
    Compare, CompareBuilder, CompareOp, CompareTarget, CompareWith, Delete, Op, Put, PutLease,
    PutValue, Range, RevisionBounds, Sort, SortOrder, SortTarget, Txn,
};
pub use snapshot_record::{LeaseRow, LifeRow, PieceCounts, RowChange, SnapshotRecord, StateHead};

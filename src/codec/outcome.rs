//! Encoding of outcomes and rejections, as the dedup table stores them in a snapshot.
//!
//! ```text
//! outcome  = 1 put | 2 delete | 3 txn | 4 revision (compacted) | 5 grant | 6 revision, deleted (revoke)
//!          | 7 revision (applied before) | 8 revision (noted) | 9 revision, list of alarm (alarms)
//!          | 64 rejection
//! put      = revision | list of row, at most one
//! delete   = revision | deleted | list of row
//! txn      = revision | succeeded u8 | list of result
//! result   = 1 put | 2 delete | 3 txn | 4 range
//! range    = revision | list of row | more u8 | count
//! grant    = revision | lease | time
//! row      = key bytes | value bytes | create revision | mod revision | version | lease or 0
//! time     = seconds | nanoseconds
//! rejection = kind u8 | its fields, in the order of their declaration
//! ```

use std::time::Duration;

use bytes::Bytes;

use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink};
use crate::model::{
    AlarmKind, AuthError, DeleteReply, GrantReply, KeyValue, LeaseId, NodeId, Outcome, PutReply,
    RangeReply, Rejection, Reply, Revision, RevokeReply, TxnReply, TxnResult,
};

mod kind {
    pub(super) const PUT: u8 = 1;
    pub(super) const DELETE: u8 = 2;
    pub(super) const TXN: u8 = 3;
    pub(super) const COMPACTED: u8 = 4;
    pub(super) const GRANT: u8 = 5;
    pub(super) const REVOKE: u8 = 6;
    pub(super) const APPLIED_BEFORE: u8 = 7;
    pub(super) const NOTED: u8 = 8;
    pub(super) const ALARMS: u8 = 9;
    pub(super) const REFUSAL: u8 = 64;
    /// Only valid inside a transaction.
    pub(super) const RANGE: u8 = 4;
}

impl Encode for Outcome {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        let (kind, revision) = match self {
            Ok(Reply::Put(reply)) => {
                to.byte(kind::PUT);
                return reply.encode(to);
            }
            Ok(Reply::Delete(reply)) => {
                to.byte(kind::DELETE);
                return reply.encode(to);
            }
            Ok(Reply::Txn(reply)) => {
                to.byte(kind::TXN);
                return reply.encode(to);
            }
            Ok(Reply::Grant(GrantReply { revision, id, ttl })) => {
                to.byte(kind::GRANT);
                revision.encode(to);
                id.encode(to);
                return ttl.encode(to);
            }
            Ok(Reply::Revoke(RevokeReply { revision, deleted })) => {
                to.byte(kind::REVOKE);
                revision.encode(to);
                return to.number(*deleted);
            }
            Ok(Reply::Alarms { revision, alarms }) => {
                to.byte(kind::ALARMS);
                revision.encode(to);
                return to.list(alarms);
            }
            Err(rejection) => {
                to.byte(kind::REFUSAL);
                return rejection.encode(to);
            }
            Ok(Reply::Compacted { revision }) => (kind::COMPACTED, revision),
            Ok(Reply::AppliedBefore { revision }) => (kind::APPLIED_BEFORE, revision),
            Ok(Reply::Noted { revision }) => (kind::NOTED, revision),
        };
        to.byte(kind);
        revision.encode(to);
    }
}

impl Decode for Outcome {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(Ok(match from.byte()? {
            kind::PUT => Reply::Put(PutReply::decode(from)?),
            kind::DELETE => Reply::Delete(DeleteReply::decode(from)?),
            kind::TXN => Reply::Txn(TxnReply::decode(from)?),
            kind::COMPACTED => Reply::Compacted { revision: Revision::decode(from)? },
            kind::GRANT => Reply::Grant(GrantReply {
                revision: Revision::decode(from)?,
                id: LeaseId::decode(from)?,
                ttl: Duration::decode(from)?,
            }),
            kind::REVOKE => Reply::Revoke(RevokeReply {
                revision: Revision::decode(from)?,
                deleted: from.number()?,
            }),
            kind::APPLIED_BEFORE => Reply::AppliedBefore { revision: Revision::decode(from)? },
            kind::NOTED => Reply::Noted { revision: Revision::decode(from)? },
            kind::ALARMS => {
                Reply::Alarms { revision: Revision::decode(from)?, alarms: from.list()? }
            }
            kind::REFUSAL => return Ok(Err(Rejection::decode(from)?)),
            found => return Err(CodecError::Newer { what: "answer", found: found.into() }),
        }))
    }
}

impl Encode for PutReply {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        self.revision.encode(to);
        to.list(self.prev.as_slice());
    }
}

impl Decode for PutReply {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let revision = Revision::decode(from)?;
        let mut rows: Vec<KeyValue> = from.list()?;
        if rows.len() > 1 {
            return Err(from.malformed("a put has several previous rows"));
        }
        Ok(PutReply { revision, prev: rows.pop() })
    }
}

impl Encode for DeleteReply {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        self.revision.encode(to);
        to.number(self.deleted);
        to.list(&self.prev_kvs);
    }
}

impl Decode for DeleteReply {
    const BYTES_MIN: usize = 3;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(DeleteReply {
            revision: Revision::decode(from)?,
            deleted: from.number()?,
            prev_kvs: from.list()?,
        })
    }
}

impl Encode for TxnReply {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        self.revision.encode(to);
        to.byte(u8::from(self.succeeded));
        to.list(&self.results);
    }
}

impl Decode for TxnReply {
    const BYTES_MIN: usize = 3;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        from.nested(|from| {
            Ok(TxnReply {
                revision: Revision::decode(from)?,
                succeeded: yes_or_no(from)?,
                results: from.list()?,
            })
        })
    }
}

impl Encode for TxnResult {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            TxnResult::Put(reply) => {
                to.byte(kind::PUT);
                reply.encode(to);
            }
            TxnResult::Delete(reply) => {
                to.byte(kind::DELETE);
                reply.encode(to);
            }
            TxnResult::Txn(reply) => {
                to.byte(kind::TXN);
                reply.encode(to);
            }
            TxnResult::Range(RangeReply { revision, kvs, more, count }) => {
                to.byte(kind::RANGE);
                revision.encode(to);
                to.list(kvs);
                to.byte(u8::from(*more));
                to.number(*count);
            }
        }
    }
}

impl Decode for TxnResult {
    const BYTES_MIN: usize = 3;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            kind::PUT => TxnResult::Put(PutReply::decode(from)?),
            kind::DELETE => TxnResult::Delete(DeleteReply::decode(from)?),
            kind::TXN => TxnResult::Txn(TxnReply::decode(from)?),
            kind::RANGE => TxnResult::Range(RangeReply {
                revision: Revision::decode(from)?,
                kvs: from.list()?,
                more: yes_or_no(from)?,
                count: from.number()?,
            }),
            found => return Err(CodecError::Newer { what: "result", found: found.into() }),
        })
    }
}

impl Encode for KeyValue {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.bytes(&self.key);
        to.bytes(&self.value);
        self.create_revision.encode(to);
        self.mod_revision.encode(to);
        to.number(self.version);
        to.number(self.lease.map_or(0, LeaseId::get));
    }
}

impl Decode for KeyValue {
    const BYTES_MIN: usize = 6;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(KeyValue {
            key: from.bytes()?,
            value: from.bytes()?,
            create_revision: Revision::decode(from)?,
            mod_revision: Revision::decode(from)?,
            version: from.number()?,
            lease: LeaseId::new(from.number()?),
        })
    }
}

mod rejection {
    pub(super) const EMPTY_KEY: u8 = 1;
    pub(super) const KEY_NOT_FOUND: u8 = 2;
    pub(super) const COMPACTED: u8 = 3;
    pub(super) const FUTURE: u8 = 4;
    pub(super) const LEASE_NOT_FOUND: u8 = 5;
    pub(super) const LEASE_EXISTS: u8 = 6;
    pub(super) const LEASE_TTL: u8 = 7;
    pub(super) const DUPLICATE_KEY: u8 = 8;
    pub(super) const TOO_MANY_OPS: u8 = 9;
    pub(super) const TOO_DEEP: u8 = 10;
    pub(super) const KEY_TOO_LARGE: u8 = 11;
    pub(super) const VALUE_TOO_LARGE: u8 = 12;
    pub(super) const REQUEST_TOO_LARGE: u8 = 13;
    pub(super) const CLOSED: u8 = 14;
    pub(super) const NOT_MEMBER: u8 = 15;
    pub(super) const ACCESS: u8 = 16;
    pub(super) const ALARM: u8 = 17;
    pub(super) const TOO_MANY_ALARMS: u8 = 18;
    pub(super) const TOO_MANY_KEYS: u8 = 19;
    pub(super) const ADDRESS_TAKEN: u8 = 20;
}

impl Encode for Rejection {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        let (kind, figures) = match self {
            Rejection::EmptyKey => (rejection::EMPTY_KEY, vec![]),
            Rejection::KeyNotFound => (rejection::KEY_NOT_FOUND, vec![]),
            Rejection::Compacted { asked, compacted } => {
                (rejection::COMPACTED, vec![asked.get(), compacted.get()])
            }
            Rejection::Future { asked, newest } => {
                (rejection::FUTURE, vec![asked.get(), newest.get()])
            }
            Rejection::LeaseNotFound(lease) => (rejection::LEASE_NOT_FOUND, vec![lease.get()]),
            Rejection::LeaseExists(lease) => (rejection::LEASE_EXISTS, vec![lease.get()]),
            Rejection::LeaseTtl { asked, max } => {
                to.byte(rejection::LEASE_TTL);
                asked.encode(to);
                return max.encode(to);
            }
            Rejection::DuplicateKey(key) => {
                to.byte(rejection::DUPLICATE_KEY);
                return to.bytes(key);
            }
            Rejection::TooManyOps { count, max } => {
                (rejection::TOO_MANY_OPS, sizes([*count, *max]))
            }
            Rejection::TooDeep { max } => (rejection::TOO_DEEP, sizes([*max])),
            Rejection::TooManyKeys { max } => (rejection::TOO_MANY_KEYS, sizes([*max])),
            Rejection::KeyTooLarge { bytes, max } => {
                (rejection::KEY_TOO_LARGE, sizes([*bytes, *max]))
            }
            Rejection::ValueTooLarge { bytes, max } => {
                (rejection::VALUE_TOO_LARGE, sizes([*bytes, *max]))
            }
            Rejection::RequestTooLarge { bytes, max } => {
                (rejection::REQUEST_TOO_LARGE, sizes([*bytes, *max]))
            }
            Rejection::Closed => (rejection::CLOSED, vec![]),
            Rejection::NotMember(node) => (rejection::NOT_MEMBER, vec![node.get()]),
            Rejection::AddressTaken(node) => (rejection::ADDRESS_TAKEN, vec![node.get()]),
            Rejection::Access(why) => {
                to.byte(rejection::ACCESS);
                return why.encode(to);
            }
            Rejection::Alarm(kind) => {
                to.byte(rejection::ALARM);
                return kind.encode(to);
            }
            Rejection::TooManyAlarms { max } => (rejection::TOO_MANY_ALARMS, sizes([*max])),
        };
        to.byte(kind);
        for figure in figures {
            to.number(figure);
        }
    }
}

impl Decode for Rejection {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            rejection::EMPTY_KEY => Rejection::EmptyKey,
            rejection::KEY_NOT_FOUND => Rejection::KeyNotFound,
            rejection::COMPACTED => Rejection::Compacted {
                asked: Revision::decode(from)?,
                compacted: Revision::decode(from)?,
            },
            rejection::FUTURE => Rejection::Future {
                asked: Revision::decode(from)?,
                newest: Revision::decode(from)?,
            },
            rejection::LEASE_NOT_FOUND => Rejection::LeaseNotFound(LeaseId::decode(from)?),
            rejection::LEASE_EXISTS => Rejection::LeaseExists(LeaseId::decode(from)?),
            rejection::LEASE_TTL => {
                Rejection::LeaseTtl { asked: Duration::decode(from)?, max: Duration::decode(from)? }
            }
            // The key in a rejection is short. Copy it, so that it does not keep the input buffer
            // alive.
            rejection::DUPLICATE_KEY => {
                Rejection::DuplicateKey(Bytes::copy_from_slice(&from.bytes()?))
            }
            rejection::TOO_MANY_OPS => {
                Rejection::TooManyOps { count: size(from)?, max: size(from)? }
            }
            rejection::TOO_DEEP => Rejection::TooDeep { max: size(from)? },
            rejection::TOO_MANY_KEYS => Rejection::TooManyKeys { max: size(from)? },
            rejection::KEY_TOO_LARGE => {
                Rejection::KeyTooLarge { bytes: size(from)?, max: size(from)? }
            }
            rejection::VALUE_TOO_LARGE => {
                Rejection::ValueTooLarge { bytes: size(from)?, max: size(from)? }
            }
            rejection::REQUEST_TOO_LARGE => {
                Rejection::RequestTooLarge { bytes: size(from)?, max: size(from)? }
            }
            rejection::CLOSED => Rejection::Closed,
            rejection::NOT_MEMBER => Rejection::NotMember(NodeId::decode(from)?),
            rejection::ADDRESS_TAKEN => Rejection::AddressTaken(NodeId::decode(from)?),
            rejection::ACCESS => Rejection::Access(AuthError::decode(from)?),
            rejection::ALARM => Rejection::Alarm(AlarmKind::decode(from)?),
            rejection::TOO_MANY_ALARMS => Rejection::TooManyAlarms { max: size(from)? },
            found => return Err(CodecError::Newer { what: "rejection", found: found.into() }),
        })
    }
}

fn sizes<const N: usize>(sizes: [usize; N]) -> Vec<u64> {
    sizes.map(|size| size as u64).to_vec()
}

fn size(from: &mut Decoder) -> Result<usize, CodecError> {
    let size = from.number()?;
    usize::try_from(size).map_err(|_| from.malformed("a size exceeds the address space"))
}

pub(super) fn yes_or_no(from: &mut Decoder) -> Result<bool, CodecError> {
    match from.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(from.malformed("a boolean is neither 0 nor 1")),
    }
}

impl Encode for Revision {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(self.get());
    }
}

impl Decode for Revision {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        from.number().map(Revision)
    }
}

impl Encode for Duration {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(self.as_secs());
        to.number(self.subsec_nanos().into());
    }
}

impl Decode for Duration {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let (seconds, nanos) = (from.number()?, from.number()?);
        match u32::try_from(nanos) {
            Ok(nanos) if nanos < 1_000_000_000 => Ok(Duration::new(seconds, nanos)),
            _ => Err(from.malformed("nanoseconds are out of range")),
        }
    }
}

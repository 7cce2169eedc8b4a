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

use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink, choice, record};
use crate::model::{
    DeleteReply, GrantReply, KeyValue, Outcome, PutReply, RangeReply, Rejection, Reply,
    RevokeReply, TxnReply, TxnResult,
};

/// The variant number that marks a rejection instead of a reply.
const REJECTED: u8 = 64;

impl Encode for Outcome {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            Ok(reply) => reply.encode(to),
            Err(rejection) => {
                to.byte(REJECTED);
                rejection.encode(to);
            }
        }
    }
}

impl Decode for Outcome {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        if from.next_is(REJECTED) {
            from.byte()?;
            return Rejection::decode(from).map(Err);
        }
        Reply::decode(from).map(Ok)
    }
}

choice!(Reply, "answer", 2, {
    1 => Put(reply),
    2 => Delete(reply),
    3 => Txn(reply as nested),
    4 => Compacted { revision },
    5 => Grant(reply),
    6 => Revoke(reply),
    7 => AppliedBefore { revision },
    8 => Noted { revision },
    9 => Alarms { revision, alarms },
});

choice!(TxnResult, "result", 3, {
    1 => Put(reply),
    2 => Delete(reply),
    3 => Txn(reply as nested),
    4 => Range(reply),
});

record!(PutReply, 2, { revision, prev });
record!(DeleteReply, 3, { revision, deleted, prev_kvs });
record!(TxnReply, 3, { revision, succeeded, results });
record!(RangeReply, 4, { revision, kvs, more, count });
record!(GrantReply, 4, { revision, id, ttl });
record!(RevokeReply, 2, { revision, deleted });

record!(KeyValue, 6, { key, value, create_revision, mod_revision, version, lease as or_zero });

choice!(Rejection, "rejection", 1, {
    1 => EmptyKey,
    2 => KeyNotFound,
    3 => Compacted { asked, compacted },
    4 => Future { asked, newest },
    5 => LeaseNotFound(lease),
    6 => LeaseExists(lease),
    7 => LeaseTtl { asked, max },
    8 => DuplicateKey(key as copied),
    9 => TooManyOps { count, max },
    10 => TooDeep { max },
    11 => KeyTooLarge { bytes, max },
    12 => ValueTooLarge { bytes, max },
    13 => RequestTooLarge { bytes, max },
    14 => Closed,
    15 => NotMember(node),
    16 => Access(why),
    17 => Alarm(kind),
    18 => TooManyAlarms { max },
    19 => TooManyKeys { max },
    20 => AddressTaken(node),
});

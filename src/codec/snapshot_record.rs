//! Encoding of the records of a snapshot: its head and the pieces of the state.
//!
//! ```text
//! head     = version u8 | cluster version | index | term | revision | compacted + 1 or 0 | past u64
//!          | next lease | members | digest u64 | [access] | [alarms]
//!                                    version 2: the table of users has changed; 3: alarms are active
//! piece    = version u8 | kind u8 | list            1 rows, 2 changes, 3 leases, 4 lives, 5 answers
//! change   = 1 row (put) | 2 revision, key bytes (delete)
//! lease    = id | time | 0 | 1 member, incarnation, own u8, label bytes
//! life     = member | incarnation | window
//! answer   = member | incarnation | number | outcome
//! counts   = rows | changes | leases | lives | answers
//! ```

use bytes::Bytes;

use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink, choice, decode_versioned, record};
use crate::model::{
    Access, Alarms, ClusterVersion, LeaseRow, LifeRow, LogIndex, Members, PieceCounts, RequestId,
    Revision, RowChange, SessionInfo, SnapshotRecord, StateHead, Term,
};

/// The format version of pieces that this build writes, and the newest version that it reads.
const VERSION: u8 = 1;

/// The version of heads with users and roles. Written if users or roles have ever existed.
const HEAD_WITH_ACCESS: u8 = 2;

/// The newest version of heads, which adds alarms. Written if any alarms are active, with or
/// without users.
const HEAD_WITH_ALARMS: u8 = 3;

/// Appends the encoding of the head of a state to `sink`.
pub(crate) fn encode_head(head: &StateHead, sink: &mut impl Sink) {
    let to = &mut Encoder::new(sink);
    let version = match (head.access == Access::default(), head.alarms.is_empty()) {
        (_, false) => HEAD_WITH_ALARMS,
        (false, true) => HEAD_WITH_ACCESS,
        (true, true) => VERSION,
    };
    to.byte(version);
    to.number(head.version.get());
    to.number(head.index.get());
    to.number(head.term.get());
    head.revision.encode(to);
    to.number(head.compacted.map_or(0, |compacted| compacted.get().saturating_add(1)));
    to.fixed_u64(head.past);
    to.number(head.next_lease);
    head.members.encode(to);
    to.fixed_u64(head.digest);
    if version >= HEAD_WITH_ACCESS {
        head.access.encode(to);
    }
    if version >= HEAD_WITH_ALARMS {
        head.alarms.encode(to);
    }
}

pub(crate) fn decode_head(bytes: Bytes) -> Result<StateHead, CodecError> {
    let mut from = Decoder::new("state head", bytes);
    let format = from.version(HEAD_WITH_ALARMS)?;
    let mut head = StateHead {
        version: ClusterVersion(from.number()?),
        index: LogIndex(from.number()?),
        term: Term(from.number()?),
        revision: Revision::decode(&mut from)?,
        compacted: from.number()?.checked_sub(1).map(Revision),
        past: from.fixed_u64()?,
        next_lease: from.number()?,
        members: Members::decode(&mut from)?,
        digest: from.fixed_u64()?,
        access: Access::default(),
        alarms: Alarms::default(),
    };
    if format >= HEAD_WITH_ACCESS {
        head.access = Access::decode(&mut from)?;
        if format == HEAD_WITH_ACCESS && head.access == Access::default() {
            return Err(from.malformed("users and roles are encoded although there are none"));
        }
    }
    if format >= HEAD_WITH_ALARMS {
        head.alarms = Alarms::decode(&mut from)?;
        if head.alarms.is_empty() {
            return Err(from.malformed("alarms are encoded although there are none"));
        }
    }
    from.finish()?;
    Ok(head)
}

/// Appends the encoding of a piece of a state to `sink`.
pub(crate) fn encode_piece(record: &SnapshotRecord, sink: &mut impl Sink) {
    let to = &mut Encoder::new(sink);
    to.byte(VERSION);
    record.encode(to);
}

/// Decodes a piece of a state. Keys and values are slices of `bytes`.
pub(crate) fn decode_piece(bytes: Bytes) -> Result<SnapshotRecord, CodecError> {
    decode_versioned("state record", VERSION, bytes)
}

choice!(SnapshotRecord, "state record", 2, {
    1 => Rows(rows),
    2 => Changes(changes),
    3 => Leases(leases),
    4 => Lives(lives),
    5 => DedupTable(answers),
});

choice!(RowChange, "change", 3, {
    1 => Put(kv),
    2 => Delete { revision, key },
});

record!(LeaseRow, 4, { id, ttl, session });
record!(SessionInfo, 2, { own, label });
record!(LifeRow, 4, { node, incarnation, window });
record!(RequestId, 3, { node, incarnation, seq });
record!(PieceCounts, 5, { rows, changes, leases, lives, answers });

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::time::Duration;

    use super::super::sample::Sample;
    use super::*;
    use crate::model::samples::{lease, node};
    use crate::model::{
        AccessChange, AccessGrant, AckWindow, Alarm, AlarmKind, AuthError, DeleteReply, GrantReply,
        Incarnation, KeyRange, KeyValue, Member, MemberRole, Outcome, PutReply, ROOT, RangeReply,
        Rejection, Reply, RevokeReply, Rights, Secret, TxnReply, TxnResult,
    };

    /// One case per line: a description, then the bytes. Lines are added but never changed, because
    /// released versions have written these bytes.
    const GOLDEN: &str = include_str!("../../tests/golden/states.txt");

    fn row() -> KeyValue {
        KeyValue {
            key: Bytes::from_static(b"key"),
            value: Bytes::from_static(b"value"),
            create_revision: Revision(3),
            mod_revision: Revision(300),
            version: 2,
            lease: Some(lease(16)),
        }
    }

    fn written_head(head: &StateHead) -> Bytes {
        let mut bytes = Vec::new();
        encode_head(head, &mut bytes);
        bytes.into()
    }

    fn written(record: &SnapshotRecord) -> Bytes {
        let mut bytes = Vec::new();
        encode_piece(record, &mut bytes);
        bytes.into()
    }

    fn golden_heads() -> Vec<(&'static str, StateHead)> {
        let first = StateHead {
            version: ClusterVersion::FIRST,
            index: LogIndex(1),
            term: Term(1),
            revision: Revision::FIRST,
            compacted: None,
            past: 0,
            next_lease: 1,
            members: Members::default(),
            access: Access::default(),
            alarms: Alarms::default(),
            digest: 0x0102_0304_0506_0708,
        };
        let voter = Member {
            disk: crate::model::DiskId(0xaabb),
            name: "a".to_owned(),
            address: "h:1".to_owned(),
            moves_to: None,
            endpoints: Vec::new(),
            role: MemberRole::Voter,
            replaces: None,
            since: LogIndex(1),
        };
        let role = MemberRole::Learner;
        let learner =
            Member { role, replaces: Some(node(2)), since: LogIndex(400), ..voter.clone() };
        let rows = [(node(1), voter), (node(4), learner)].into();
        let members = Members::from_parts(rows, [node(1), node(2)].into(), 5).expect("minted");
        let later = StateHead {
            index: LogIndex(1000),
            term: Term(7),
            revision: Revision(500),
            compacted: Some(Revision(300)),
            past: u64::MAX,
            next_lease: 17,
            members,
            ..first.clone()
        };
        let serving =
            |member: &Member| Member { endpoints: vec!["u:1".to_owned()], ..member.clone() };
        let rows = later.members.rows().iter().map(|(id, member)| (*id, serving(member))).collect();
        let members = Members::from_parts(rows, [].into(), 5).expect("minted");
        let serving = StateHead { members, ..first.clone() };
        let moving =
            |member: &Member| Member { moves_to: Some("g:2".to_owned()), ..member.clone() };
        let rows = [&later, &serving].into_iter().zip([0, 4]).flat_map(|(head, past)| {
            let rows = head.members.rows().iter();
            rows.map(move |(id, member)| (node(id.get() + past), moving(member)))
        });
        let members = Members::from_parts(rows.collect(), [].into(), 9).expect("minted");
        let moving = StateHead { members, ..first.clone() };
        let guarded = StateHead { access: guarded(), ..first.clone() };
        let with_alarms = StateHead { alarms: alarmed(), ..first.clone() };
        let both = StateHead { alarms: alarmed(), ..guarded.clone() };
        vec![
            ("the head of an empty state", first),
            ("the head of a state", later),
            ("the head of a state with users and roles", guarded),
            ("the head of a state whose members have endpoints", serving),
            ("the head of a state with alarms", with_alarms),
            ("the head of a state with users, roles and alarms", both),
            ("the head of a state whose members are to move", moving),
        ]
    }

    fn alarms() -> Vec<Alarm> {
        let (no_space, corrupt) = (AlarmKind::NoSpace, AlarmKind::Corrupt);
        let alarm = |member, kind| Alarm { member, kind };
        vec![
            alarm(None, no_space),
            alarm(Some(node(300)), no_space),
            alarm(Some(node(300)), corrupt),
        ]
    }

    fn alarmed() -> Alarms {
        Alarms::from_parts(alarms()).expect("in order")
    }

    fn guarded() -> Access {
        let mut access = Access::default();
        let grant = |range, rights| AccessGrant { range, rights };
        for change in [
            AccessChange::AddUser { user: ROOT.to_owned(), password: Some(Secret::new("hash")) },
            AccessChange::GrantRole { user: ROOT.to_owned(), role: ROOT.to_owned() },
            AccessChange::AddRole("r".to_owned()),
            AccessChange::Grant { role: "r".to_owned(), grant: grant("k".into(), Rights::Read) },
            AccessChange::Grant {
                role: "r".to_owned(),
                grant: grant(KeyRange::prefix("k"), Rights::Write),
            },
            AccessChange::AddUser { user: "ann".to_owned(), password: None },
            AccessChange::GrantRole { user: "ann".to_owned(), role: "r".to_owned() },
            AccessChange::Enable { secret: Secret::new("key") },
        ] {
            access.apply(change).expect("a change that makes sense");
        }
        access
    }

    fn golden_pieces() -> Vec<(&'static str, SnapshotRecord)> {
        let delete = RowChange::Delete { revision: Revision(301), key: Bytes::from_static(b"k") };
        let ttl = Duration::from_millis(5500);
        let info = SessionInfo { label: "host ü".to_owned(), own: true };
        let session = Some((node(2), Incarnation(3), info));
        let window = AckWindow { frontier: 300, open: vec![5..6, 200..300] };
        let revision = Revision(300);
        let put = PutReply { revision, prev: Some(row()) };
        let range = RangeReply { revision, kvs: vec![row()], more: true, count: 7 };
        let delete_reply = DeleteReply { revision, deleted: 1, prev_kvs: vec![row()] };
        let nested = TxnReply { revision, succeeded: false, results: vec![] };
        let results = vec![
            TxnResult::Range(range),
            TxnResult::Put(PutReply { revision, prev: None }),
            TxnResult::Delete(delete_reply.clone()),
            TxnResult::Txn(nested),
        ];
        let answers: Vec<Outcome> = vec![
            Ok(Reply::Put(put)),
            Ok(Reply::Delete(delete_reply)),
            Ok(Reply::Txn(TxnReply { revision, succeeded: true, results })),
            Ok(Reply::Compacted { revision }),
            Ok(Reply::Grant(GrantReply { revision, id: lease(16), ttl })),
            Ok(Reply::Revoke(RevokeReply { revision, deleted: 2 })),
            Ok(Reply::Noted { revision }),
            Ok(Reply::AppliedBefore { revision }),
        ];
        let rejections = vec![
            Rejection::EmptyKey,
            Rejection::KeyNotFound,
            Rejection::Compacted { asked: Revision(1), compacted: Revision(2) },
            Rejection::Future { asked: Revision(9), newest: Revision(8) },
            Rejection::LeaseNotFound(lease(16)),
            Rejection::LeaseExists(lease(16)),
            Rejection::LeaseTtl { asked: Duration::ZERO, max: ttl },
            Rejection::DuplicateKey(Bytes::from_static(b"k")),
            Rejection::TooManyOps { count: 200, max: 128 },
            Rejection::TooDeep { max: 16 },
            Rejection::KeyTooLarge { bytes: 5000, max: 4096 },
            Rejection::ValueTooLarge { bytes: 5000, max: 4096 },
            Rejection::RequestTooLarge { bytes: 5000, max: 4096 },
            Rejection::Closed,
            Rejection::NotMember(node(2)),
        ];
        let numbered = |outcomes: Vec<Outcome>| {
            let id = |seq| RequestId { node: node(2), incarnation: Incarnation(3), seq };
            let numbered = outcomes.into_iter().zip(200..).map(|(outcome, seq)| (id(seq), outcome));
            SnapshotRecord::DedupTable(numbered.collect())
        };
        let of_access = AuthError::ALL.map(|rejection| Err(Rejection::Access(rejection))).to_vec();
        let of_alarms = vec![
            Ok(Reply::Alarms { revision, alarms: alarms() }),
            Err(Rejection::Alarm(AlarmKind::NoSpace)),
            Err(Rejection::Alarm(AlarmKind::Corrupt)),
            Err(Rejection::TooManyAlarms { max: 256 }),
        ];
        vec![
            ("rows", SnapshotRecord::Rows(vec![row(), KeyValue { lease: None, ..row() }])),
            ("changes", SnapshotRecord::Changes(vec![RowChange::Put(row()), delete])),
            (
                "leases",
                SnapshotRecord::Leases(vec![
                    LeaseRow { id: lease(1), ttl, session: None },
                    LeaseRow { id: lease(16), ttl, session },
                ]),
            ),
            (
                "lives",
                SnapshotRecord::Lives(vec![LifeRow {
                    node: node(2),
                    incarnation: Incarnation(3),
                    window,
                }]),
            ),
            ("answers", numbered(answers)),
            ("rejections", numbered(rejections.into_iter().map(Err).collect())),
            ("rejections of access", numbered(of_access)),
            ("answers to changes of alarms, and rejections for them", numbered(of_alarms)),
            (
                "a rejection for too many keys",
                numbered(vec![Err(Rejection::TooManyKeys { max: 262_144 })]),
            ),
            (
                "a rejection for an address that is another's",
                numbered(vec![Err(Rejection::AddressTaken(node(2)))]),
            ),
        ]
    }

    #[test]
    fn snapshot_record_format_is_frozen() {
        let mut lines = String::new();
        let mut line = |name: &str, bytes: &Bytes| {
            let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            writeln!(lines, "{name}: {hex}").expect("a string takes everything");
        };
        for (name, head) in golden_heads() {
            let bytes = written_head(&head);
            line(name, &bytes);
            assert_eq!(decode_head(bytes), Ok(head), "{name}");
        }
        for (name, record) in golden_pieces() {
            let bytes = written(&record);
            line(name, &bytes);
            assert_eq!(decode_piece(bytes), Ok(record), "{name}");
        }
        assert!(lines == GOLDEN, "tests/golden/states.txt differs from what is written:\n{lines}");
    }

    #[test]
    fn snapshot_records_round_trip_and_truncated_ones_are_errors() {
        for seed in 0..2000 {
            let (head, record) =
                (Sample::new(seed).draw::<StateHead>(), Sample::new(seed).draw::<SnapshotRecord>());
            let (head_bytes, piece_bytes) = (written_head(&head), written(&record));
            if seed % 20 == 0 {
                for end in 0..head_bytes.len() {
                    assert!(decode_head(head_bytes.slice(..end)).is_err(), "seed {seed}, {end}");
                }
                for end in 0..piece_bytes.len() {
                    assert!(decode_piece(piece_bytes.slice(..end)).is_err(), "seed {seed}, {end}");
                }
            }
            assert_eq!(decode_head(head_bytes), Ok(head), "seed {seed}");
            assert_eq!(decode_piece(piece_bytes), Ok(record), "seed {seed}");
        }
    }

    #[test]
    fn damaged_snapshot_records_never_panic() {
        for seed in 0..4000 {
            let mut sample = Sample::new(seed);
            let mut head = written_head(&sample.draw()).to_vec();
            let mut record = written(&sample.draw()).to_vec();
            for bytes in [&mut head, &mut record] {
                for _ in 0..1 + sample.below(4) {
                    let at = sample.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << sample.below(8);
                }
            }
            // Each value has one encoding: if the damaged bytes still decode, they must encode to
            // the same bytes.
            if let Ok(read) = decode_head(head.clone().into()) {
                assert_eq!(written_head(&read), head, "seed {seed}");
            }
            if let Ok(read) = decode_piece(record.clone().into()) {
                assert_eq!(written(&read), record, "seed {seed}");
            }
        }
    }
}

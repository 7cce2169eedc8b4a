//! Tests of the encodings: every value decodes to itself, encodings never change, and damaged bytes
//! cause an error.

use bytes::Bytes;
use std::fmt::Write;
use std::time::Duration;

use super::sample::Sample;
use super::*;
use crate::model::samples::{lease, node};
use crate::model::*;

/// One case per line: a description, then the bytes. Lines are added but never changed, because
/// released versions have written these bytes.
const GOLDEN: &str = include_str!("../../tests/golden/codec.txt");

fn message_bytes(message: &PeerMessage) -> Bytes {
    let mut bytes = Vec::new();
    encode_message(message, &mut bytes);
    bytes.into()
}

/// Returns an entry with one command of member 2, incarnation 3, request 300.
fn entry(command: Command) -> Vec<Item> {
    let window = AckWindow { frontier: 300, open: vec![5..6, 200..300] };
    let (node, incarnation) = (node(2), Incarnation(3));
    vec![Item::Proposal(Proposal { node, incarnation, window, requests: vec![(300, command)] })]
}

fn golden_entries() -> Vec<(&'static str, Vec<Item>)> {
    let put = Put {
        lease: PutLease::Attach(lease(0x1234_5678_9abc_def0)),
        prev_kv: true,
        ..Put::new("k", "value")
    };
    let keep = Put { value: PutValue::Keep, lease: PutLease::Keep, ..Put::new("k", "") };
    let range = Range {
        revision: Some(Revision(9)),
        limit: Some(100),
        sort: Sort { target: SortTarget::Value, order: SortOrder::Descend },
        keys_only: true,
        count_only: true,
        bounds: RevisionBounds {
            mod_min: Some(Revision(1)),
            mod_max: Some(Revision(2)),
            create_min: Some(Revision(3)),
            create_max: Some(Revision(4)),
        },
        ..Range::new(KeyRange::prefix("a/"))
    };
    let txn = Txn {
        compares: vec![
            Compare::version("k").eq(1u64),
            Compare::create_revision("k").ne(2),
            Compare::mod_revision("k").gt(3),
            Compare::value(KeyRange::starting_at("k")).lt("v"),
            Compare::lease(KeyRange::all()).eq(4u64),
        ],
        success: vec![range.into(), Op::get("k"), Op::Txn(Txn::default())],
        failure: vec![Op::delete(KeyRange::between("a", "b")), Op::put("k", "v")],
    };
    let get = || Range::new("k");
    let sorted = |target, order| Range { sort: Sort { target, order }, ..get() };
    let bound = |bounds| Range { bounds, ..get() };
    let (bounds, at) = (RevisionBounds::default(), Some(Revision(5)));
    let ranges = [
        Range { revision: at, ..get() },
        Range { limit: Some(5), ..get() },
        Range { keys_only: true, ..get() },
        Range { count_only: true, ..get() },
        sorted(SortTarget::Key, SortOrder::Descend),
        sorted(SortTarget::Version, SortOrder::Ascend),
        sorted(SortTarget::Create, SortOrder::Ascend),
        sorted(SortTarget::Mod, SortOrder::Ascend),
        sorted(SortTarget::Value, SortOrder::Ascend),
        bound(RevisionBounds { mod_min: at, ..bounds }),
        bound(RevisionBounds { mod_max: at, ..bounds }),
        bound(RevisionBounds { create_min: at, ..bounds }),
        bound(RevisionBounds { create_max: at, ..bounds }),
    ];
    let ranges = Txn { success: ranges.into_iter().map(Op::from).collect(), ..Txn::default() };
    let session = SessionInfo { label: "host ü".to_owned(), own: true };
    let ttl = Duration::from_millis(5000);
    vec![
        ("an entry with nothing in it", vec![]),
        (
            "leases that have run out",
            vec![Item::Expire { term: Term(7), leases: vec![lease(1), lease(u64::MAX)] }],
        ),
        ("a put", entry(Command::Put(Put::new("k", "value")))),
        ("a put that binds a lease and asks for the row before", entry(Command::Put(put))),
        ("a put that keeps value and lease", entry(Command::Put(keep))),
        ("a delete of a prefix", entry(Command::Delete(Delete::new(KeyRange::prefix("a/"))))),
        ("a transaction with everything in it", entry(Command::Txn(txn))),
        ("ranges that each ask for one thing more", entry(Command::Txn(ranges))),
        (
            "compares with each operator",
            entry(Command::Txn(Txn {
                compares: vec![
                    Compare::version("k").eq(1u64),
                    Compare::version("k").ne(1u64),
                    Compare::version("k").gt(1u64),
                    Compare::version("k").lt(1u64),
                ],
                ..Txn::default()
            })),
        ),
        (
            "puts that each ask for one thing more",
            entry(Command::Txn(Txn {
                success: vec![
                    Put { prev_kv: true, ..Put::new("k", "v") }.into(),
                    Put { value: PutValue::Keep, ..Put::new("k", "") }.into(),
                    Put { lease: PutLease::Keep, ..Put::new("k", "v") }.into(),
                    Delete { prev_kv: true, ..Delete::new("k") }.into(),
                ],
                ..Txn::default()
            })),
        ),
        (
            "a grant of a session that is not the node's own",
            entry(Command::Grant {
                id: None,
                ttl,
                session: Some(SessionInfo { label: "x".to_owned(), own: false }),
            }),
        ),
        ("a compaction", entry(Command::Compact(Revision(1 << 40)))),
        ("a grant", entry(Command::Grant { id: None, ttl, session: None })),
        (
            "a grant of a session under a chosen id",
            entry(Command::Grant { id: Some(lease(16)), ttl, session: Some(session) }),
        ),
        ("a revocation", entry(Command::Revoke(lease(16)))),
        ("changes of users and roles", access_changes()),
        ("a put for a user", entry(put_for(Some("ann")))),
        ("a put for nobody", entry(put_for(None))),
        ("attributes of a member", entry(announce(&[]))),
        ("attributes of a member with endpoints", entry(announce(&["http://a:1", "b"]))),
        ("changes of alarms", alarm_changes()),
        ("a move", entry(Command::Move { member: node(300), address: "h:1".to_owned() })),
    ]
}

fn alarm_changes() -> Vec<Item> {
    let alarm = |member, kind| Alarm { member: NodeId::new(member), kind };
    let changes = vec![
        AlarmChange::Raise(alarm(0, AlarmKind::NoSpace)),
        AlarmChange::Raise(alarm(300, AlarmKind::Corrupt)),
        AlarmChange::End(alarm(300, AlarmKind::NoSpace)),
        AlarmChange::EndAllOf(NodeId::new(300).expect("not 0")),
        AlarmChange::EndAll,
    ];
    let items = changes.into_iter().map(|change| entry(Command::Alarm(change)));
    items.flatten().collect()
}

fn announce(endpoints: &[&str]) -> Command {
    let endpoints = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
    Command::Announce(MemberAttributes {
        name: "n".to_owned(),
        address: "h:1".to_owned(),
        endpoints,
    })
}

fn put_for(user: Option<&str>) -> Command {
    let caller = Caller { user: user.map(str::to_owned), revision: 300 };
    Command::As(caller, Box::new(Command::Put(Put::new("k", "v"))))
}

fn access_changes() -> Vec<Item> {
    let (user, role) = (|| "ann".to_owned(), || "r".to_owned());
    let grant = |rights| AccessGrant { range: KeyRange::prefix("k"), rights };
    let changes = vec![
        AccessChange::Enable { secret: Secret::new("key") },
        AccessChange::Disable,
        AccessChange::AddUser { user: user(), password: Some(Secret::new("hash")) },
        AccessChange::AddUser { user: user(), password: None },
        AccessChange::DeleteUser(user()),
        AccessChange::SetPassword { user: user(), password: None },
        AccessChange::GrantRole { user: user(), role: role() },
        AccessChange::RevokeRole { user: user(), role: role() },
        AccessChange::AddRole(role()),
        AccessChange::DeleteRole(role()),
        AccessChange::Grant { role: role(), grant: grant(Rights::Read) },
        AccessChange::Grant { role: role(), grant: grant(Rights::Write) },
        AccessChange::Grant { role: role(), grant: grant(Rights::ReadWrite) },
        AccessChange::Revoke { role: role(), range: "k".into() },
    ];
    let items = changes.into_iter().map(|change| entry(Command::Access(change)));
    items.flatten().collect()
}

fn golden_messages() -> Vec<(&'static str, PeerMessage)> {
    let incarnation = Incarnation(3);
    let hello = Hello {
        cluster: ClusterId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        from: node(1),
        to: node(2),
        disk: DiskId(0xaabb),
        incarnation,
        standing: FoundingState::Blank,
        since: LogIndex(1),
        address: String::new(),
        supported_version: ClusterVersion::NEWEST,
    };
    let founding = [(node(1), DiskId(0xaabb)), (node(2), DiskId(u128::MAX))].into();
    let founded = Hello { standing: FoundingState::Founded(founding), ..hello.clone() };
    let Some(Item::Proposal(proposal)) = entry(Command::Put(Put::new("k", "v"))).pop() else {
        unreachable!("an entry of one proposal");
    };
    let refused = |why| PeerMessage::ProposeRejected { incarnation, seqs: vec![1, 300], why };
    let answer = |index| PeerMessage::ReadAnswer { round: 4, incarnation, index };
    let id = SnapshotId { index: LogIndex(1000), term: Term(7), bytes: 5000, checksum: 0xaabb };
    let add = MembershipRequest::Add {
        disk: DiskId(0xaabb),
        name: "d".to_owned(),
        address: "h:1".to_owned(),
        replaces: Some(node(2)),
    };
    let membership_request = MembershipRequest::Remove(node(2));
    let done = |answer| PeerMessage::MemberAnswer { round: 4, incarnation, answer };
    let rejection = MembershipError::LosesQuorum { active: 1, voters: 4, needed: 3 };
    vec![
        ("the hello of a blank member", PeerMessage::Hello(hello)),
        ("the hello of a founded member", PeerMessage::Hello(founded)),
        ("a message of the consensus", PeerMessage::Raft(Bytes::from_static(b"raft"))),
        ("a proposal", PeerMessage::Propose(proposal)),
        ("refused: nobody leads", refused(ProposeRejection::NotLeader(None))),
        ("refused: another leads", refused(ProposeRejection::NotLeader(Some(node(3))))),
        ("refused: busy", refused(ProposeRejection::Busy)),
        ("refused: diverged", refused(ProposeRejection::Diverged)),
        ("a question for the read index", PeerMessage::ReadAsk { round: 4, incarnation }),
        ("the read index", answer(Some(LogIndex(1000)))),
        ("no read index here", answer(None)),
        (
            "a renewal",
            PeerMessage::Renew { round: 4, incarnation, leases: vec![lease(1), lease(200)] },
        ),
        (
            "an answer to a renewal",
            PeerMessage::Renewed {
                round: 4,
                incarnation,
                renewed: vec![lease(1)],
                gone: vec![lease(200)],
            },
        ),
        ("a digest", PeerMessage::Digest { index: LogIndex(1000), digest: 0x0102_0304_0506_0708 }),
        ("a question for a part of a snapshot", PeerMessage::SnapshotAsk { id, offset: 4096 }),
        (
            "a part of a snapshot",
            PeerMessage::SnapshotPart { id, offset: 4096, data: Bytes::from_static(b"part") },
        ),
        ("a snapshot that is gone", PeerMessage::SnapshotGone { id }),
        ("any snapshot is wanted", PeerMessage::SnapshotWanted { least: LogIndex(1000) }),
        ("here is one", PeerMessage::SnapshotHere { id }),
        (
            "a member is to be added",
            PeerMessage::MemberAsk { round: 4, incarnation, membership_request: add },
        ),
        (
            "a member is to be removed",
            PeerMessage::MemberAsk { round: 4, incarnation, membership_request },
        ),
        ("a member was added", done(MemberAnswer::Done { id: node(4), index: LogIndex(1000) })),
        ("no quorum would be left", done(MemberAnswer::Refused(rejection))),
        ("the disk is full", PeerMessage::Space { low: true }),
        (
            "a question about leases",
            PeerMessage::LeaseAsk {
                round: 4,
                incarnation,
                renew: vec![lease(1)],
                look: vec![lease(200), lease(3)],
            },
        ),
        (
            "an answer about leases",
            PeerMessage::LeaseAnswer {
                round: 4,
                incarnation,
                living: vec![LeaseLife { lease: lease(200), left: Duration::from_millis(1500) }],
                gone: vec![lease(3)],
            },
        ),
    ]
}

#[test]
fn codec_formats_are_frozen() {
    let mut written = String::new();
    for (name, items) in golden_entries() {
        let bytes = encode_items(&items);
        writeln!(written, "{name}: {}", hex(&bytes)).expect("a string takes everything");
        assert_eq!(decode_items(bytes.into()).as_ref(), Ok(&items), "{name}");
    }
    for (name, message) in golden_messages() {
        let bytes = message_bytes(&message);
        writeln!(written, "{name}: {}", hex(&bytes)).expect("a string takes everything");
        assert_eq!(decode_message(bytes).as_ref(), Ok(&message), "{name}");
    }
    assert!(written == GOLDEN, "tests/golden/codec.txt differs from what is written:\n{written}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn entries_and_messages_round_trip() {
    for seed in 0..3000 {
        let mut sample = Sample::new(seed);
        let items = sample.draw::<Vec<Item>>();
        assert_eq!(decode_items(encode_items(&items).into()).as_ref(), Ok(&items), "seed {seed}");
        let message = sample.draw::<PeerMessage>();
        let bytes = message_bytes(&message);
        assert_eq!(message_len(&message), bytes.len(), "seed {seed}");
        assert_eq!(decode_message(bytes).as_ref(), Ok(&message), "seed {seed}");
    }
}

#[test]
fn empty_range_start_survives_encoding() {
    // Members of earlier versions reject such a command, so this version must reject it too.
    for end in [RangeEnd::Single, RangeEnd::Before("z".into()), RangeEnd::Unbounded] {
        let delete = Delete::new(KeyRange::from_parts("", end));
        let items = entry(Command::Delete(delete));
        assert_eq!(decode_items(encode_items(&items).into()).as_ref(), Ok(&items));
    }
}

#[test]
fn command_length_is_known_before_encoding() {
    for seed in 0..500 {
        let command = Sample::new(seed).draw::<Command>();
        let mut bytes = Vec::new();
        command.encode(&mut Encoder::new(&mut bytes));
        assert_eq!(encoded_len_hint(&command), bytes.len(), "seed {seed}");
    }
}

#[test]
fn truncated_bytes_are_an_error() {
    for seed in 0..300 {
        let mut sample = Sample::new(seed);
        let entry = Bytes::from(encode_items(&sample.draw::<Vec<Item>>()));
        for len in 0..entry.len() {
            assert!(decode_items(entry.slice(..len)).is_err(), "seed {seed}, {len} bytes");
        }
        let message = sample.draw::<PeerMessage>();
        let bytes = message_bytes(&message);
        for len in 0..bytes.len() {
            let cut = decode_message(bytes.slice(..len));
            // If the last field of a message reaches to the end of the bytes, its consumer
            // validates the field, not the codec.
            let expected = match &message {
                PeerMessage::Raft(_) => len >= 2,
                PeerMessage::SnapshotPart { data, .. } => len >= bytes.len() - data.len(),
                _ => false,
            };
            assert_eq!(cut.is_ok(), expected, "seed {seed}, {len} bytes");
        }
    }
}

#[test]
fn damaged_bytes_never_panic() {
    for seed in 0..4000 {
        let mut sample = Sample::new(seed);
        let mut entry = encode_items(&sample.draw::<Vec<Item>>());
        let mut message = message_bytes(&sample.draw::<PeerMessage>()).to_vec();
        for bytes in [&mut entry, &mut message] {
            for _ in 0..1 + sample.below(4) {
                let at = sample.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << sample.below(8);
            }
        }
        // Each value has one encoding: if the damaged bytes still decode, they must encode to the
        // same bytes.
        if let Ok(items) = decode_items(entry.clone().into()) {
            assert_eq!(encode_items(&items), entry, "seed {seed}");
        }
        if let Ok(read) = decode_message(message.clone().into()) {
            assert_eq!(message_bytes(&read), message, "seed {seed}");
        }
    }
}

#[test]
fn random_bytes_are_never_a_panic() {
    for seed in 0..20_000 {
        let mut sample = Sample::new(seed);
        let mut bytes = sample.draw::<Bytes>().to_vec();
        if let Some(first) = bytes.first_mut() {
            *first = 1;
        }
        let _ = decode_items(bytes.clone().into());
        let _ = decode_message(bytes.into());
    }
}

#[test]
fn trailing_bytes_are_an_error() {
    let mut entry = encode_items(&[]);
    entry.push(0);
    let trailing = |what| CodecError::Trailing { what, bytes: 1 };
    assert_eq!(decode_items(entry.into()), Err(trailing("log entry")));
    let mut message =
        message_bytes(&PeerMessage::Digest { index: LogIndex(1), digest: 1 }).to_vec();
    message.push(0);
    assert_eq!(decode_message(message.into()), Err(trailing("message")));
}

#[test]
fn values_of_a_newer_version_are_named_as_such() {
    let cases: [(&str, &[u8]); 6] = [
        ("version", b"\x02"),
        ("item", b"\x01\x01\x09\x00\x00"),
        ("command", b"\x01\x01\x01\x01\x01\x00\x00\x01\x01\x63\x00"),
        ("flag of a put", b"\x01\x01\x01\x01\x01\x00\x00\x01\x01\x01\x10\x00"),
        ("kind of keys", b"\x01\x01\x01\x01\x01\x00\x00\x01\x01\x02\x00\x03\x00"),
        ("operation", b"\x01\x01\x01\x01\x01\x00\x00\x01\x01\x03\x00\x01\x07\x00\x00"),
    ];
    for (what, bytes) in cases {
        let error = decode_items(Bytes::from_static(bytes)).expect_err(what);
        assert!(error.to_string().contains("newer"), "{what}: {error}");
    }
    for bytes in [b"\x07\x01", b"\x01\x63"] {
        let error = decode_message(Bytes::from_static(bytes)).expect_err("unknown");
        assert!(error.to_string().contains("newer"), "{error}");
    }
}

#[test]
fn claimed_length_is_checked_against_the_remaining_bytes() {
    // These inputs claim to have 2^63 items, 2^63 leases, or a key of 2^63 bytes. The decoder must
    // not allocate that much memory.
    let huge = b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01";
    let lists: [&[u8]; 4] = [
        b"\x01",
        b"\x01\x01\x02\x01",
        b"\x01\x01\x01\x01\x01\x00\x00\x01\x01\x01\x00",
        b"\x01\x01\x01\x01\x01\x00",
    ];
    for start in lists {
        let bytes = [start, huge, b"\x00\x00\x00\x00"].concat();
        let error = decode_items(bytes.into()).expect_err("too large");
        assert!(matches!(error, CodecError::CutShort { .. }), "{error}");
    }
}

#[test]
fn a_decoded_list_is_not_much_larger_than_its_bytes() {
    let ratio = |item: usize, bytes_min: usize| item / bytes_min;
    assert!(ratio(size_of::<Op>(), <Op as Decode>::BYTES_MIN) <= 64);
    assert!(ratio(size_of::<Compare>(), <Compare as Decode>::BYTES_MIN) <= 64);
    assert!(ratio(size_of::<Item>(), <Item as Decode>::BYTES_MIN) <= 64);
    assert!(ratio(size_of::<(u64, Command)>(), 1 + <Command as Decode>::BYTES_MIN) <= 64);
    // Checks the declared minimum sizes: no value may have a shorter encoding.
    for seed in 0..2000 {
        let command = Sample::new(seed).draw::<Command>();
        assert!(encoded_len_hint(&command) >= <Command as Decode>::BYTES_MIN);
    }
}

#[test]
fn transactions_nest_up_to_the_ceiling() {
    let nested = |depth: usize| {
        let mut txn = Txn::default();
        for _ in 1..depth {
            txn = Txn { success: vec![Op::Txn(txn)], ..Txn::default() };
        }
        entry(Command::Txn(txn))
    };
    let deepest = nested(Limits::TXN_DEPTH_CEILING);
    assert_eq!(decode_items(encode_items(&deepest).into()), Ok(deepest));
    let max = Limits::TXN_DEPTH_CEILING;
    let deeper = encode_items(&nested(max + 1));
    assert_eq!(decode_items(deeper.into()), Err(CodecError::TooDeep { max }));
    // A transaction that is nested far too deeply for any stack. Each level has no compares and one
    // operation, which is the next transaction.
    let mut bytes = b"\x01\x01\x01\x01\x01\x00\x00\x01\x01\x03".to_vec();
    for _ in 0..1_000_000 {
        bytes.extend_from_slice(b"\x00\x01\x03");
    }
    bytes.extend_from_slice(&[0; 3_000_000]);
    assert_eq!(decode_items(bytes.into()), Err(CodecError::TooDeep { max }));
}

#[test]
fn each_number_has_one_encoding() {
    let read = |bytes: &'static [u8]| Decoder::new("number", Bytes::from_static(bytes)).number();
    assert_eq!(read(b"\x00"), Ok(0));
    assert_eq!(read(b"\x7f"), Ok(127));
    assert_eq!(read(b"\x80\x01"), Ok(128));
    assert_eq!(read(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Ok(u64::MAX));
    let malformed: [&[u8]; 3] = [
        b"\x80\x00",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    ];
    for bytes in malformed {
        assert!(matches!(read(bytes), Err(CodecError::Malformed { .. })), "{bytes:?}");
    }
}

#[test]
fn invalid_ids_are_malformed() {
    let cases: [(&str, &[u8]); 5] = [
        ("member 0", b"\x01\x01\x01\x00\x01\x00\x00\x00"),
        ("lease 0", b"\x01\x01\x02\x01\x01\x00"),
        ("an empty open span", b"\x01\x01\x01\x01\x01\x05\x01\x01\x00\x00"),
        ("adjacent open spans", b"\x01\x01\x01\x01\x01\x05\x02\x01\x01\x00\x01\x00"),
        ("an open span above the frontier", b"\x01\x01\x01\x01\x01\x05\x01\x04\x02\x00"),
    ];
    for (what, bytes) in cases {
        let read = decode_items(Bytes::from_static(bytes));
        assert!(matches!(read, Err(CodecError::Malformed { .. })), "{what}: {read:?}");
    }
}

#[test]
fn decoded_keys_and_values_are_slices_of_the_input() {
    let value = Bytes::from(vec![7; 5000]);
    let bytes = Bytes::from(encode_items(&entry(Command::Put(Put::new("key", value)))));
    let items = decode_items(bytes.clone()).expect("just written");
    let [Item::Proposal(Proposal { requests, .. })] = &items[..] else { panic!("{items:?}") };
    let (_, Command::Put(Put { key, value: PutValue::Set(value), .. })) = &requests[0] else {
        panic!("{requests:?}")
    };
    for part in [key, value] {
        assert!(bytes.as_ptr_range().contains(&part.as_ptr()), "copied");
    }
}

#[test]
fn membership_changes_round_trip() {
    for seed in 0..300 {
        let change = Sample::new(seed).draw::<MemberChange>();
        let bytes = encode_member_change(&change);
        assert_eq!(decode_member_change(bytes.clone().into()), Ok(change));
        for end in 0..bytes.len() {
            assert!(decode_member_change(Bytes::copy_from_slice(&bytes[..end])).is_err());
        }
    }
}

#[test]
fn requests_longer_than_a_membership_change_are_rejected() {
    let long = || "x".repeat(JoinAsk::TEXT_BYTES_MAX + 1);
    let (disk, replaces) = (DiskId(9), None);
    let add = |name, address| MembershipRequest::Add { disk, name, address, replaces };
    let keep = MembershipRequest::Keep { address: long(), votes: false };
    for membership_request in [add(long(), String::new()), add(String::new(), long()), keep] {
        let message =
            PeerMessage::MemberAsk { round: 1, incarnation: Incarnation(1), membership_request };
        let error = decode_message(message_bytes(&message)).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }
}

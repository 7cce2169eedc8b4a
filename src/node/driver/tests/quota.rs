//! Tests of requests that are rejected before they are proposed, because they exceed the quota or
//! scan too many keys. Requests that shrink the state are accepted at the quota.

use super::*;
use crate::model::{
    AccessChange, AccessGrant, AuthError, Caller, KeyRange, Op, ROOT, Range, Rejection, Revision,
    Rights, Secret, Txn,
};

fn txn(ops: Vec<Op>) -> Command {
    Command::Txn(Txn { success: ops, ..Txn::default() })
}

fn grant() -> Command {
    Command::Grant { id: None, ttl: Duration::from_secs(60), session: None }
}

/// Fills the store up to its quota of 1 MiB.
fn full() -> Three {
    let mut three = Three::new(|_, settings| settings.quota_bytes = 1 << 20);
    for round in 0..20 {
        if is_quota(&three.put(0, &format!("k{round:02}"), 100_000)) {
            return three;
        }
    }
    panic!("two megabytes went into one");
}

#[test]
fn quota_rejects_growth_on_every_node_and_nothing_else() {
    let mut three = full();
    three.pass(500);
    for node in 0..3 {
        assert!(is_quota(&three.put(node, "more", 100_000)), "a put on {node}");
        assert!(is_quota(&three.write(node, txn(vec![Op::put("more", vec![b'v'; 100_000])]))));
        let bytes = three.shared(node).reader.bytes();
        assert!((900_000..=1 << 20).contains(&bytes), "{bytes} bytes are kept on {node}");
        three.write(node, txn(vec![Op::get("k00")])).unwrap();
        three.write(node, txn(vec![Op::delete("absent")])).unwrap();
    }
    // A deletion adds to the history, but is allowed, because a compaction after it makes room.
    three.delete(1, "k00").unwrap();
    assert!(is_quota(&three.put(0, "more", 100_000)), "its history is still there");
    let revision = three.shared(1).reader.revision();
    three.write(2, Command::Compact(revision)).unwrap();
    three.until("what is compacted is not given back", |three| {
        (0..3).all(|node| three.shared(node).reader.bytes() < 950_000)
    });
    three.put(0, "more", 50_000).unwrap();
}

#[test]
fn a_grant_counts_as_growth_and_a_revocation_does_not() {
    let mut three = Three::new(|_, settings| settings.quota_bytes = 1 << 20);
    let lease = match three.write(0, grant()) {
        Ok(Reply::Grant(grant)) => grant.id,
        other => panic!("{other:?}"),
    };
    // Fill the store up to the last byte.
    for bytes in [500_000, 400_000, 100_000, 10_000, 1_000, 100, 10, 1] {
        for round in 0.. {
            if is_quota(&three.put(0, &format!("k{bytes}-{round}"), bytes)) {
                break;
            }
        }
    }
    assert!(is_quota(&three.write(0, grant())));
    three.write(0, Command::Revoke(lease)).unwrap();
}

/// Returns nodes whose leader has a small quota that is nearly reached. The quotas of the other
/// nodes are larger.
fn nearly_full() -> Three {
    let mut three = Three::led_by(0, |node, settings| {
        settings.quota_bytes = if node == 0 { 1 << 20 } else { 1 << 30 };
    });
    for round in 0..10 {
        three.put(1, &format!("k{round}"), 100_000).unwrap();
    }
    three
}

#[test]
fn leader_rejects_growth_admitted_by_a_node_with_another_quota() {
    let mut three = nearly_full();
    let before = three.clock.now();
    assert!(is_quota(&three.put(1, "more", 100_000)), "rejected, and not left to wait");
    assert!(three.clock.now().since(before) < Duration::from_millis(100));
    three.delete(1, "k1").unwrap();
    assert_eq!(three.shared(1).reader.get(b"more").0, None);
}

/// Makes a call whose first message is lost and which is sent again.
fn unheard_of(three: &mut Three, call: impl FnOnce(&mut Three)) {
    three.hub.cut(id(1), id(0));
    call(three);
    three.pass(50);
    three.hub.heal_all();
}

/// Growth is rejected in requests with a deadline, and in internal requests without one. Internal
/// requests must not wait for space either, because they would block the requests that free space.
#[test]
fn retried_growth_is_rejected_once_no_attempt_can_apply() {
    let mut three = nearly_full();
    let mut call = None;
    unheard_of(&mut three, |three| call = Some(three.call(1, put("more", 100_000), 2_000)));
    assert!(is_quota(&three.finish(call.unwrap())));
    let (sender, mut answer) = tokio::sync::oneshot::channel();
    let handed = txn(vec![Op::delete("k1"), Op::put("more", vec![b'v'; 100_000])]);
    unheard_of(&mut three, |three| {
        three.shared(1).propose_until_applied(handed, crate::node::ReplyTo::Waiting(sender));
    });
    three.pass(2_000);
    assert!(is_quota(&answer.try_recv().unwrap()));
    assert!(three.shared(1).reader.get(b"k1").0.is_some());
    three.delete(1, "k1").unwrap();
}

/// The leader has the entry in its log, does not know yet whether it is committed, and has no quota
/// left for it.
#[test]
fn logged_growth_is_reported_as_applied_despite_a_full_quota() {
    let mut three = nearly_full();
    three.lead(2);
    let before = three.shared(0).reader.revision();
    // Node 2, the next leader, receives the entry. The current leader receives no acknowledgement,
    // and node 1, which made the request, does not receive the entry.
    three.hub.cut(id(0), id(2));
    three.hub.cut(id(2), id(1));
    let (sender, mut answer) = tokio::sync::oneshot::channel();
    let handed = put("more", 100_000);
    three.shared(1).propose_until_applied(handed, crate::node::ReplyTo::Waiting(sender));
    three.pass(50);
    assert_eq!(three.shared(2).reader.revision(), before, "nobody has decided it");
    three.hub.cut(id(2), id(0));
    three.hub.cut(id(1), id(2));
    let leads = |three: &Three| three.shared(0).state.status.borrow().role == Role::Leader;
    for _ in 0..6_000 {
        if leads(&three) {
            break;
        }
        three.step();
    }
    // While the log of node 1 does not respond, the entry is not committed, and the request is sent
    // to the new leader again.
    (0..20).for_each(|_| three.step_without_log(Some(1)));
    assert!(leads(&three) && answer.try_recv().is_err());
    three.pass(500);
    assert_eq!(answer.try_recv().unwrap().unwrap().revision(), before.next());
    assert!(three.shared(1).reader.get(b"more").0.is_some());
}

#[test]
fn leases_count_towards_the_quota() {
    let mut three = Three::new(|_, settings| settings.quota_bytes = 64 << 10);
    let mut granted = Vec::new();
    let refused = loop {
        match three.write(granted.len() % 3, grant()) {
            Ok(Reply::Grant(grant)) => granted.push(grant.id),
            other => break other,
        }
    };
    assert!(is_quota(&refused), "{refused:?}");
    assert!((200..=256).contains(&granted.len()), "{} leases", granted.len());
    for id in granted.drain(..100) {
        three.write(0, Command::Revoke(id)).unwrap();
    }
    three.write(0, grant()).unwrap();
}

#[test]
fn history_beyond_its_share_is_compacted_repeatedly() {
    let mut three = Three::new(|_, settings| {
        settings.quota_bytes = 4 << 20;
        settings.history = History::keep_all().quota_percent(25);
    });
    let mut last = Revision(0);
    for round in 0..200 {
        last = three.put(round % 3, "k", 50_000).unwrap().revision();
        three.pass(25);
        let bytes = three.shared(0).reader.bytes();
        assert!(bytes < 3 << 20, "{bytes} bytes after {round} rounds");
    }
    assert_eq!(last, Revision(201));
}

/// Every replica would run the transaction, and again at each start. So the transaction is rejected
/// before it reaches the log.
#[test]
fn transaction_with_an_excessive_scan_is_never_proposed() {
    let mut three = Three::new(|_, settings| settings.limits.txn_keys_max = 100);
    for key in 0..25 {
        three.put(0, &format!("k{key:02}"), 1).unwrap();
    }
    let looks = |times| Txn {
        success: vec![Op::Range(Range::new(KeyRange::all())); times],
        failure: vec![Op::delete("x")],
        ..Txn::default()
    };
    let nested = Txn { success: vec![Op::Txn(looks(1)); 5], ..Txn::default() };
    three.write(0, Command::Txn(looks(4))).unwrap();
    for txn in [looks(5), nested] {
        let refused = three.write(1, Command::Txn(txn.clone()));
        let limit = Err(CallError::Rejected(Rejection::TooManyKeys { max: 100 }));
        assert_eq!(refused, limit);
        let reads = Txn { failure: vec![], ..txn };
        if crate::machine::only_reads(&reads) {
            assert_eq!(
                three.shared(1).read_txn(&reads).unwrap_err(),
                Rejection::TooManyKeys { max: 100 }
            );
        }
    }
    // A scan of four times the number of stored keys is always allowed, even if most of these keys
    // are deleted.
    for key in 25..40 {
        three.put(0, &format!("k{key:02}"), 1).unwrap();
    }
    for key in 10..40 {
        three.delete(0, &format!("k{key:02}")).unwrap();
    }
    three.write(1, Command::Txn(looks(4))).unwrap();
    let refused = three.write(1, Command::Txn(looks(5)));
    assert_eq!(refused, Err(CallError::Rejected(Rejection::TooManyKeys { max: 160 })));
}

/// Writes `keys` keys, in as few calls as possible.
fn fill(three: &mut Three, keys: usize) {
    let all: Vec<usize> = (0..keys).collect();
    for some in all.chunks(100) {
        let puts = some.iter().map(|key| Op::put(format!("k{key:05}"), "v")).collect();
        three.write(0, txn(puts)).unwrap();
    }
}

/// The answers to all requests of one entry are in memory at once, so admission counts them in advance.
#[test]
fn scanning_transaction_counts_its_keys_until_answered() {
    let mut three = Three::led_by(0, |_, settings| settings.open_writes_max = 16_384);
    fill(&mut three, 1_000);
    let all = || Range::new(KeyRange::all());
    let wide = [
        txn(vec![Op::Range(all()), Op::put("x", "")]),
        Command::Delete(Delete { range: KeyRange::prefix("j"), prev_kv: false }),
        Command::Delete(Delete { range: KeyRange::prefix("k"), prev_kv: false }),
    ];
    for (command, admitted) in wide.into_iter().zip([350..400, 5_000..5_001, 350..400]) {
        let calls: Vec<Call> = (0..5_000).map(|_| three.call(0, command.clone(), 5_000)).collect();
        assert!(three.shared(0).admission.open_bytes() <= 64 << 20);
        let results: Vec<_> = calls.into_iter().map(|call| three.finish(call)).collect();
        let done = results.iter().filter(|result| result.is_ok()).count();
        assert!(admitted.contains(&done), "{done} of {command:?}");
        let is_fine =
            |result: &CallResult<Reply>| !matches!(result, Err(why) if *why != CallError::Busy);
        assert!(results.iter().all(is_fine));
        assert_eq!(three.shared(0).admission.open_bytes(), 0, "everything is given back");
    }
}

/// Attaching a key to a lease requires rights to all keys of that lease. Each replica checks these
/// rights, even if the request is then denied.
#[test]
fn attaching_a_lease_counts_all_its_keys() {
    let mut three = Three::led_by(0, |_, settings| settings.open_writes_max = 16_384);
    let Ok(Reply::Grant(granted)) = three.write(0, grant()) else { panic!("no lease") };
    let lease = granted.id;
    let text = |text: &str| text.to_owned();
    let own = AccessGrant { range: KeyRange::prefix("k"), rights: Rights::Write };
    for change in [
        AccessChange::AddUser { user: text(ROOT), password: None },
        AccessChange::GrantRole { user: text(ROOT), role: text(ROOT) },
        AccessChange::AddUser { user: text("ann"), password: None },
        AccessChange::AddRole(text("r")),
        AccessChange::GrantRole { user: text("ann"), role: text("r") },
        AccessChange::Grant { role: text("r"), grant: own },
        AccessChange::Enable { secret: Secret::new("s") },
    ] {
        three.write(0, Command::Access(change)).unwrap();
    }
    let revision = three.shared(0).reader.access().revision();
    let by = |user: &str, put: Put| {
        let caller = Caller { user: Some(text(user)), revision };
        Command::As(caller, Box::new(Command::Put(put)))
    };
    for key in 0..1_000 {
        three.write(0, Command::Put(Put::new(format!("k{key:03}"), "").lease(lease))).unwrap();
    }
    let mut admitted = |command: Command| {
        let calls: Vec<Call> = (0..2_000).map(|_| three.call(0, command.clone(), 5_000)).collect();
        let results: Vec<_> = calls.into_iter().map(|call| three.finish(call)).collect();
        assert_eq!(three.shared(0).admission.open_bytes(), 0, "everything is given back");
        results.iter().filter(|result| **result != Err(CallError::Busy)).count()
    };
    let put = |key| Put::new(key, "").lease(lease);
    for (what, command, expected) in [
        ("hers", by("ann", put("k000")), 350..400),
        (
            "in a transaction",
            {
                let ops = (0..3).map(|key| Op::Put(put(["k000", "k001", "k002"][key]))).collect();
                let caller = Caller { user: Some(text("ann")), revision };
                Command::As(caller, Box::new(txn(ops)))
            },
            350..400,
        ),
        ("without it", by("ann", Put::new("k000", "")), 2_000..2_001),
        ("by root, whose rights are not checked", by(ROOT, put("k000")), 2_000..2_001),
    ] {
        let count = admitted(command);
        assert!(expected.contains(&count), "{what}: {count}");
    }
    // Only root may access one of the keys. The request is denied, but its keys are counted as in
    // the earlier requests.
    three.write(0, Command::Put(Put::new("x", "").lease(lease))).unwrap();
    let refused = three.call(0, by("ann", put("k000")), 5_000);
    assert!(three.shared(0).admission.open_bytes() > 1_000 * 160);
    let refused = three.finish(refused).unwrap_err();
    assert_eq!(refused, CallError::Rejected(AuthError::Denied.into()));
}

/// The keys of the store count for more than the limit of open requests. A command that scans all
/// keys is still admitted, and so is another command on a single key.
#[test]
fn full_scan_is_admitted_alongside_requests_without_scans() {
    let mut three = Three::led_by(0, |_, settings| settings.open_bytes_max = 1 << 20);
    fill(&mut three, 10_000);
    let wide = || Command::Delete(Delete { range: KeyRange::all(), prev_kv: false });
    let wides = [0; 2].map(|node| three.call(node, wide(), 5_000));
    assert_eq!(three.write(0, wide()), Err(CallError::Busy));
    let small = three.call(0, put("x", 100_000), 5_000);
    assert_eq!(three.write(0, wide()), Err(CallError::Busy));
    three.finish(small).unwrap();
    wides.into_iter().for_each(|wide| drop(three.finish(wide).unwrap()));
    three.write(0, wide()).unwrap();
}

/// A put that keeps the value of a key stores another version with that value.
#[test]
fn kept_and_unapplied_values_count_towards_growth() {
    for (caller, longest) in [(0, 100_000), (1, 100_000), (0, 1)] {
        let mut three = Three::led_by(0, |_, settings| settings.quota_bytes = 1 << 20);
        for key in 0..5 {
            three.put(0, &format!("k{key}"), longest).unwrap();
        }
        // If a put keeps a value that is still in flight, it is counted with the length of that
        // value.
        let coming = three.call(caller, put("k0", 100_000), 5_000);
        let keep = |key: usize| {
            let value = crate::model::PutValue::Keep;
            Command::Put(Put { value, ..Put::new(format!("k{}", key % 5), "") })
        };
        let only = if longest > 1 { 5 } else { 1 };
        let keeps = |call: usize| keep(call % only);
        let calls: Vec<Call> =
            (0..200).map(|call| three.call(caller, keeps(call), 5_000)).collect();
        three.finish(coming).unwrap();
        let results: Vec<_> = calls.into_iter().map(|call| three.finish(call)).collect();
        let done = results.iter().filter(|result| result.is_ok()).count();
        assert!((3..=9).contains(&done), "{done} were done");
        assert!(results.iter().all(|result| result.is_ok() || is_quota(result)));
        let bytes = three.shared(0).reader.bytes();
        assert!(bytes <= 1 << 20, "{bytes} bytes");
    }
}

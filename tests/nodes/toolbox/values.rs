//! Tests of cells and conditional writes.

use std::collections::BTreeSet;
use std::task::Poll;
use std::time::Duration;

use bowline::{
    Blocking, Client, Error, EventKind, LeaseId, Rejection, Revision,
    coordination::{CasOutcome, CellUpdate, Expected},
};

use super::{LONG, begin_to_wait, on_all, poll, quick};
use crate::stage::until_true;

#[test]
fn cell_compare_and_set_needs_the_latest_version() {
    let cluster = quick(3);
    let cell = |member| cluster.node(member).client().cell("c");
    assert_eq!(cell(0).get().block(), Ok(None));
    let first = cell(0).compare_and_set(Expected::Missing, "a").block().unwrap();
    assert!(first.is_done());
    let seen = cell(1).get().block().unwrap().unwrap();
    assert!(cell(1).compare_and_set(seen.version, "b").block().unwrap().is_done());
    let late = cell(2).compare_and_set(seen.version, "c").block().unwrap();
    assert!(matches!(&late, CasOutcome::Lost { row: Some(row) } if row.value == "b"), "{late:?}");

    cell(0).set("").block().unwrap();
    let written = on_all(&cluster, 2, |node, task| {
        let cell = node.client().cell("c");
        let update = |_| {
            let mut tries = 0;
            let name = format!("{}{task}", node.status().name);
            let call = cell.update(|old| {
                tries += 1;
                [old.unwrap(), name.as_bytes(), b" "].concat()
            });
            let written = call.deadline(LONG).block().unwrap();
            assert!(tries > 0);
            written.version
        };
        (0..8).map(update).collect()
    });
    let distinct: BTreeSet<Revision> = written.iter().copied().collect();
    let value = cell(1).get().block().unwrap().unwrap();
    assert_eq!((distinct.len(), Some(&value.version)), (48, distinct.last()));
    assert_eq!(value.value.split(|byte| *byte == b' ').count(), 48 + 1);
}

#[test]
fn try_update_writes_only_if_its_closure_decides_so() {
    let cluster = quick(3);
    let tokens = |member| cluster.node(member).client().with_prefix("app/").cell("tokens");
    let none = tokens(0).try_update(|old| CellUpdate::<&str, _>::Keep(old.is_none()));
    assert_eq!(none.block(), Ok(true));
    let kv = cluster.node(0).client();
    assert_eq!(kv.get("app/tokens").block(), Ok(None));
    let set = tokens(0).set("20").block().unwrap();
    // On a replica that has not reached this revision, the closure would see no value.
    cluster.all_at(set).block().unwrap();
    // 48 callers compete for 20 tokens.
    let wins = on_all(&cluster, 2, |node, _| {
        let tokens = node.client().with_prefix("app/").cell("tokens");
        let take = |_| {
            let call = tokens.try_update(|old| {
                let left: u32 = std::str::from_utf8(old.unwrap()).unwrap().parse().unwrap();
                match left.checked_sub(1) {
                    Some(rest) => CellUpdate::Put(rest.to_string(), true),
                    None => CellUpdate::Keep(false),
                }
            });
            call.deadline(LONG).block().unwrap()
        };
        (0..8).map(take).collect::<Vec<bool>>()
    });
    assert_eq!(wins.iter().filter(|won| **won).count(), 20);
    let row = kv.get("app/tokens").block().unwrap().unwrap();
    assert_eq!((&row.value[..], row.version), (&b"0"[..], 21), "one put per token");
}

#[test]
fn try_update_does_not_decide_on_a_stale_value() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let away = (leader + 1) % 3;
    let old = cluster.node(leader).client().put("c", "old").block().unwrap().revision;
    cluster.all_at(old).block().unwrap();
    cluster.partition(&[away]);
    cluster.node(leader).client().put("c", "new").block().unwrap();
    let cell = cluster.node(away).client().cell("c");
    let mut seen = Vec::new();
    let call = cell.try_update(|value| {
        seen.push(value.unwrap().to_vec());
        CellUpdate::<&str, _>::Keep(value.unwrap().to_vec())
    });
    let mut call = Box::pin(call.deadline(LONG).into_future());
    assert!(matches!(poll(&mut call), Poll::Pending), "the replica cannot know that it is current");
    cluster.heal();
    assert_eq!(call.block().unwrap(), b"new");
    assert_eq!(seen, [b"old", b"new"]);
}

#[test]
fn changed_returns_the_change_of_a_cell() {
    let cluster = quick(3);
    let cell = |member| cluster.node(member).client().cell("c");
    let version = cell(0).set("old").block().unwrap();
    let waiting = begin_to_wait(cluster.node(1), cell(1).changed(version).deadline(LONG));
    cell(0).set("new").block().unwrap();
    assert_eq!(waiting.block().unwrap().unwrap().value, "new");
    let none = cell(2).changed(Revision(0)).block().unwrap();
    assert_eq!(none.unwrap().value, "new", "at once, if it is another one already");
}

#[test]
fn one_put_if_absent_wins_and_the_others_leave_no_lease() {
    let cluster = quick(3);
    let ttl = Duration::from_secs(3600);
    let wins = on_all(&cluster, 4, |node, task| {
        let call = node.client().put_if_absent("k", format!("{task}")).ttl(ttl);
        vec![call.deadline(LONG).block().unwrap().is_done()]
    });
    assert_eq!(wins.iter().filter(|won| **won).count(), 1);
    let kv = cluster.node(0).client();
    let row = kv.get("k").block().unwrap().unwrap();
    // The lease is revoked in the background, after earlier requests.
    let mut watch = kv.watch("mark").block().unwrap();
    cluster.running().for_each(|(_, node)| {
        node.client().put("mark", "").block().unwrap();
    });
    while kv.leases() != [row.lease.unwrap()] {
        watch.request_progress();
        watch.next().block().unwrap().unwrap();
    }
    let unleased = kv.put_if_absent("other", "v").block().unwrap();
    assert!(unleased.is_done());
    assert_eq!(kv.get("other").block().unwrap().unwrap().lease, None);
    assert!(kv.delete("k").block().unwrap().deleted == 1);
    assert!(kv.put_if_absent("k", "again").lease(row.lease.unwrap()).block().unwrap().is_done());
}

#[test]
fn a_put_if_absent_that_is_dropped_leaves_neither_key_nor_lease() {
    let cluster = quick(3);
    let kv = cluster.node(1).client();
    let mut watch = kv.watch("mark").block().unwrap();
    for polls in 1..40 {
        let call = kv.put_if_absent("k", "v").ttl(Duration::from_secs(3600));
        let mut future = Box::pin(call.into_future());
        let mut is_done = false;
        for _ in 0..polls {
            if let Poll::Ready(result) = poll(&mut future) {
                assert!(result.unwrap().is_done());
                assert!(
                    kv.compare_and_delete("k", Expected::value("v")).block().unwrap().is_done()
                );
                let lease = kv.leases().into_iter().next().expect("it has a lease");
                kv.revoke(lease).block().unwrap();
                is_done = true;
                break;
            }
            // Let the node make progress, by a write that needs a commit.
            kv.put("mark", "").block().unwrap();
            watch.next().block().unwrap().unwrap();
        }
        drop(future);
        if is_done {
            assert!(polls > 2, "a grant and a put take some");
            return;
        }
        while !kv.leases().is_empty() || kv.get("k").local().block().unwrap().is_some() {
            kv.put("mark", "").block().unwrap();
            watch.next().block().unwrap().unwrap();
        }
    }
    panic!("it is never done");
}

#[test]
fn conditional_change_applies_only_to_the_expected_state() {
    let cluster = quick(1);
    let (kv, node) = (cluster.node(0).client().with_prefix("app/"), cluster.node(0));
    let lease = node.session().block().unwrap().lease();
    let put = kv.put("k", "v").lease(lease).block().unwrap().revision;
    for expected in
        [Expected::Missing, Expected::Version(2), Expected::value("w"), put.next().into()]
    {
        let lost = kv.compare_and_set("k", expected.clone(), "x").block().unwrap();
        let CasOutcome::Lost { row: Some(row) } = lost else {
            panic!("{expected:?} does not hold")
        };
        assert_eq!((row.key, row.value), ("k".into(), "v".into()));
        assert!(!kv.compare_and_delete("k", expected).block().unwrap().is_done());
    }
    assert!(kv.compare_and_set("k", Expected::Version(1), "w").block().unwrap().is_done());
    let row = kv.get("k").block().unwrap().unwrap();
    assert_eq!((&row.value[..], row.lease), (&b"w"[..], Some(lease)), "its lease stays");
    assert!(kv.compare_and_delete("k", row.mod_revision).block().unwrap().is_done());
    assert!(kv.compare_and_set("k", Revision(0), "new").block().unwrap().is_done());
    assert_eq!(node.client().get("app/k").block().unwrap().unwrap().value, "new");
}

/// Returns the lease of the key `k`.
fn lease_of(kv: &Client) -> Option<LeaseId> {
    kv.get("k").block().unwrap().expect("it is there").lease
}

#[test]
fn update_keeps_the_lease_and_set_removes_it() {
    let cluster = quick(1);
    let (kv, hour) = (cluster.node(0).client(), Duration::from_secs(3600));
    assert!(kv.put_if_absent("k", "3").ttl(hour).block().unwrap().is_done());
    let lease = lease_of(&kv);
    assert!(lease.is_some());
    kv.cell("k").update(|old| [&b"1"[..], old.unwrap()].concat()).block().unwrap();
    assert_eq!(lease_of(&kv), lease, "of Cell::update");
    assert_eq!(kv.counter("k").increment().block(), Ok(14));
    assert_eq!(lease_of(&kv), lease, "of Counter::add");
    kv.counter("k").compare_and_set(14, 3).block().unwrap();
    assert_eq!(lease_of(&kv), lease, "of Counter::compare_and_set");
    assert_eq!(kv.latch("k").count_down().block(), Ok(2));
    assert_eq!(lease_of(&kv), lease, "of Latch::count_down");
    kv.cell("k").set("5").block().unwrap();
    assert_eq!(lease_of(&kv), None, "of Cell::set");

    // A key that does not exist yet is created without a lease.
    kv.delete("k").block().unwrap();
    kv.cell("k").update(|_| "5").block().unwrap();
    assert_eq!(lease_of(&kv), None);
    kv.delete("k").block().unwrap();
    assert_eq!(kv.counter("k").compare_and_set(0, 3).block(), Ok(()));
    kv.delete("k").block().unwrap();
    assert_eq!(kv.counter("k").add(2).block(), Ok(2));
}

#[test]
fn conditional_change_with_a_ttl_leaves_no_lease_on_failure() {
    let cluster = quick(1);
    let (kv, node, hour) = (cluster.node(0).client(), cluster.node(0), Duration::from_secs(3600));
    kv.put("k", "mine").block().unwrap();
    let longer = |expected: &'static str| {
        kv.compare_and_set("k", Expected::value(expected), "mine").ttl(hour).block()
    };
    assert!(longer("mine").unwrap().is_done());
    let lease = lease_of(&kv).expect("it has one now");
    assert_eq!(kv.lease_info(lease).block().unwrap().unwrap().ttl, hour);
    assert!(!longer("other").unwrap().is_done());
    let zero = kv.compare_and_set("k", Expected::value("mine"), "mine").ttl(Duration::ZERO);
    assert!(matches!(zero.block(), Err(Error::Rejected(Rejection::LeaseTtl { .. }))));
    let long = "k".repeat(1 << 20);
    let refused = kv.compare_and_set(long, Expected::Missing, "mine").ttl(hour).block();
    assert!(matches!(refused, Err(Error::Rejected(Rejection::KeyTooLarge { .. }))), "{refused:?}");
    until_true(node, "the leases of those that were not made are ended", || {
        kv.put("mark", "").block().unwrap();
        kv.leases() == [lease]
    });
    assert_eq!(lease_of(&kv), Some(lease));
}

#[test]
fn a_put_with_a_ttl_expires_and_a_rejected_one_leaves_no_lease() {
    let cluster = quick(1);
    let (kv, node, hour) = (cluster.node(0).client(), cluster.node(0), Duration::from_secs(3600));
    let put = kv.put("k", "v").ttl(Duration::from_millis(300)).block().unwrap();
    assert!(lease_of(&kv).is_some());
    let mut watch = kv.watch("k").after(put.revision).block().unwrap();
    let event = watch.next().block().unwrap().unwrap().events.remove(0);
    assert_eq!((event.kind, event.kv.key), (EventKind::Delete, "k".into()));

    let prev = kv.put("k", "v").ttl(hour).prev_kv().block().unwrap().prev;
    assert_eq!(prev, None);
    let lease = lease_of(&kv).unwrap();
    assert_eq!(kv.lease_info(lease).block().unwrap().unwrap().ttl, hour);
    let zero = kv.put("k", "v").ttl(Duration::ZERO).block();
    assert!(matches!(zero, Err(Error::Rejected(Rejection::LeaseTtl { .. }))), "{zero:?}");
    let long = kv.put("k".repeat(1 << 20), "v").ttl(hour).block();
    assert!(matches!(long, Err(Error::Rejected(Rejection::KeyTooLarge { .. }))), "{long:?}");
    assert_eq!(kv.leases(), [lease], "an invalid request is granted none");
    let missing = kv.put("missing", "").keep_value().ttl(hour).block();
    assert!(matches!(missing, Err(Error::Rejected(_))), "{missing:?}");
    until_true(node, "the lease of the rejected put is revoked", || {
        kv.put("mark", "").block().unwrap();
        kv.leases() == [lease]
    });
    // A later option replaces the TTL.
    kv.put("k", "w").ttl(hour).keep_lease().block().unwrap();
    assert_eq!((lease_of(&kv), kv.leases().len()), (Some(lease), 1));
}

#[test]
fn timeout_is_another_name_for_deadline() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    let short = Duration::from_millis(1);
    let far = kv.get("k").at_least(Revision(1_000_000)).timeout(short).block();
    assert!(matches!(far, Err(Error::Deadline { .. })), "{far:?}");
    let never = kv.latch("never");
    never.try_set(1).block().unwrap();
    assert!(never.wait().timeout(short).block().is_err());
}

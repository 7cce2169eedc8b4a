//! Tests of cached views of a prefix.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use bowline::testing::Cluster;
use bowline::{
    Blocking, Compare, Config, Error, KeyRange, Node, Op, Revision, coordination::Cached,
};

use futures_core::Stream;

use crate::stage;

fn quick(members: usize) -> Cluster {
    stage::with(members, |config| {
        config
            .heartbeat(Duration::from_millis(20))
            .election_timeout(Duration::from_millis(150))
            .session_ttl(Duration::from_millis(900))
            .call_deadline(Duration::from_secs(20))
    })
}

fn values(cached: &Cached) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let view = cached.view().unwrap();
    view.iter().map(|(key, row)| (text(key), text(&row.value))).collect()
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[test]
fn cached_prefix_shows_the_initial_state_and_all_later_changes() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    kv.put("c/a", "1").block().unwrap();
    kv.put("other", "1").block().unwrap();
    let cached = kv.cached_prefix("c/").block().unwrap();
    assert_eq!(values(&cached), [pair("c/a", "1")]);
    kv.put("c/b", "2").block().unwrap();
    kv.put("other", "2").block().unwrap();
    kv.delete("c/a").block().unwrap();
    assert_eq!(values(&cached), [pair("c/b", "2")]);
    assert_eq!(cached.get("c/a").unwrap(), None);
    assert_eq!(cached.get("c/b").unwrap().unwrap().version, 1);
}

#[test]
fn cached_prefix_includes_own_writes_and_reports_its_revision() {
    let cluster = quick(3);
    for (_, node) in cluster.running() {
        let kv = node.client();
        let cached = kv.cached_prefix("c/").block().unwrap();
        for i in 0..50 {
            let put = kv.put("c/k", i.to_string()).block().unwrap();
            let view = cached.view().unwrap();
            assert!(view.revision() >= put.revision);
            assert_eq!(view.get("c/k").unwrap().value, i.to_string());
            let elsewhere = kv.put("elsewhere", "").block().unwrap();
            assert!(cached.revision().unwrap() >= elsewhere.revision);
        }
    }
}

#[test]
fn cached_prefix_on_another_node_can_wait_for_a_revision() {
    let cluster = quick(3);
    let views: Vec<Cached> = cluster
        .running()
        .map(|(_, node)| node.client().cached_prefix("c/").block().unwrap())
        .collect();
    for i in 0..50 {
        let kv = cluster.node(i % 3).client();
        let put = kv.put("c/k", i.to_string()).block().unwrap();
        for cached in &views {
            let view = cached.wait_for(put.revision).block().unwrap();
            assert!(view.revision() >= put.revision);
            assert_eq!(view.get("c/k").unwrap().value, i.to_string());
        }
        let other = kv.put("elsewhere", "").block().unwrap();
        for cached in &views {
            assert!(cached.wait_for(other.revision).block().unwrap().revision() >= other.revision);
        }
    }
}

#[test]
fn kept_view_never_changes_and_never_shows_a_partial_transaction() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    let both = |i: u64| {
        let (a, b) = (Op::put("c/a", i.to_string()), Op::put("c/b", i.to_string()));
        kv.txn().then(a).then(b).commit().block().unwrap().revision
    };
    both(0);
    let cached = kv.cached_prefix("c/").block().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let (cached, done) = (cached.clone(), Arc::clone(&done));
        move || {
            let (mut last, mut looks) = (Revision(0), 0_u64);
            while !done.load(Ordering::Relaxed) {
                let view = cached.view().unwrap();
                assert_eq!(view.get("c/a").unwrap().value, view.get("c/b").unwrap().value);
                assert!(view.revision() >= last, "it goes back");
                last = view.revision();
                looks += 1;
            }
            looks
        }
    });
    let first = cached.view().unwrap();
    for i in 1..300 {
        both(i);
    }
    done.store(true, Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
    assert_eq!(first.get("c/a").unwrap().value, "0");
    assert_eq!(cached.get("c/a").unwrap().unwrap().value, "299");
}

#[test]
fn changed_waits_for_the_next_change_and_wakes_all_waiters() {
    let cluster = Arc::new(quick(1));
    let kv = cluster.node(0).client();
    let cached = kv.cached_prefix("c/").block().unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (mut cached, seen) = (cached.clone(), Arc::clone(&seen));
            std::thread::spawn(move || {
                loop {
                    let view = cached.changed().block().unwrap();
                    seen.fetch_add(1, Ordering::Relaxed);
                    if view.get("c/last").is_some() {
                        return view.len();
                    }
                }
            })
        })
        .collect();
    for i in 0..20 {
        kv.put("elsewhere", "").block().unwrap();
        kv.put(format!("c/{i:02}"), "").block().unwrap();
    }
    kv.put("c/last", "").block().unwrap();
    for thread in waiting {
        assert_eq!(thread.join().unwrap(), 21);
    }
    assert!(seen.load(Ordering::Relaxed) <= 4 * 21, "no change is told twice");
}

#[test]
fn change_outside_the_prefix_is_not_reported() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    let mut cached = kv.cached_prefix("c/").block().unwrap();
    kv.put("elsewhere", "").block().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(cached.changed()).poll(&mut context).is_pending());
    kv.put("c/here", "").block().unwrap();
    assert!(pin!(cached.changed()).poll(&mut context).is_ready());
    assert!(pin!(cached.changed()).poll(&mut context).is_pending());
}

#[test]
fn each_handle_reports_a_change_independently() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    let mut one = kv.cached_prefix("c/").block().unwrap();
    let mut two = one.clone();
    kv.put("c/k", "v").block().unwrap();
    assert_eq!(one.changed().block().unwrap().len(), 1);
    assert_eq!(one.view().unwrap().len(), 1);
    assert_eq!(two.changed().block().unwrap().len(), 1);
}

#[test]
fn compacted_changes_are_reread_and_the_view_never_goes_back() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    kv.put("c/gone", "").block().unwrap();
    let mut cached = kv.cached_prefix("c/").block().unwrap();
    let before = cached.view().unwrap();
    kv.delete("c/gone").block().unwrap();
    // Write more events than a watch buffers.
    for i in 0..600 {
        kv.put(format!("c/{}", i % 7), i.to_string()).block().unwrap();
    }
    let revision = kv.revision();
    kv.compact(revision).block().unwrap();
    let view = cached.changed().block().unwrap();
    assert!(view.revision() >= revision && revision > before.revision());
    let truth = kv.range(KeyRange::prefix("c/")).block().unwrap().kvs;
    assert!(view.iter().map(|(_, row)| row).eq(&truth));
    // The view continues from the new snapshot.
    kv.put("c/new", "").block().unwrap();
    assert!(cached.changed().block().unwrap().get("c/new").is_some());
}

#[test]
fn partitioned_member_shows_old_rows_until_healed() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let away = (leader + 1) % 3;
    let kv = cluster.node(leader).client();
    let put = kv.put("c/k", "old").block().unwrap();
    cluster.all_at(put.revision).block().unwrap();
    let mut cached = cluster.node(away).client().cached_prefix("c/").block().unwrap();
    cluster.partition(&[away]);
    let put = kv.put("c/k", "new").block().unwrap();
    assert_eq!(cached.get("c/k").unwrap().unwrap().value, "old");
    cluster.heal();
    assert_eq!(cached.changed().block().unwrap().get("c/k").unwrap().value, "new");
    assert!(cached.revision().unwrap() >= put.revision);
}

#[test]
fn cached_prefix_of_a_stopped_node_returns_stopped() {
    let mut cluster = quick(1);
    let mut cached = cluster.node(0).client().cached_prefix("c/").block().unwrap();
    let mut waits = cached.clone();
    let waiting = std::thread::spawn(move || waits.changed().block().unwrap_err());
    cluster.shutdown(0).block();
    let stopped = |error: Error| assert!(matches!(error, Error::Stopped { .. }), "{error:?}");
    stopped(waiting.join().unwrap());
    stopped(cached.view().unwrap_err());
    stopped(cached.get("c/k").unwrap_err());
    stopped(cached.changed().block().unwrap_err());
    stopped(cached.wait_for(Revision(1)).block().unwrap_err());
}

#[test]
fn cached_prefix_of_a_scoped_client_hides_the_scope() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    let app = kv.with_prefix("app/");
    kv.put("app/c/a", "1").block().unwrap();
    kv.put("c/b", "2").block().unwrap();
    let cached = app.cached_prefix("c/").block().unwrap();
    app.put("c/x", "3").block().unwrap();
    assert_eq!(values(&cached), [pair("c/a", "1"), pair("c/x", "3")]);
    for _ in 0..600 {
        app.put("c/x", "4").block().unwrap();
    }
    kv.compact(kv.revision()).block().unwrap();
    assert_eq!(values(&cached), [pair("c/a", "1"), pair("c/x", "4")]);
    assert_eq!(cached.view().unwrap().prefix(b"c/x").count(), 1);
    // Keys are as the client sees them: they include the prefix of the view, but not the prefix of the client.
    assert!(cached.get("c/x").unwrap().is_some() && cached.view().unwrap().get("c/x").is_some());
    assert!(cached.get("app/c/x").unwrap().is_none() && cached.get("x").unwrap().is_none());
}

#[test]
fn each_row_is_parsed_once_and_a_parser_panic_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    let kv = node.client();
    let (parsed, falls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let parser = {
        let (parsed, falls) = (Arc::clone(&parsed), Arc::clone(&falls));
        move |row: &bowline::KeyValue| {
            parsed.fetch_add(1, Ordering::Relaxed);
            assert!(!falls.load(Ordering::Relaxed), "it falls");
            row.value.len()
        }
    };
    let cached = kv.cached_prefix_with("c/", parser).block().unwrap();
    kv.txn().then(Op::put("c/a", "1")).then(Op::put("c/b", "22")).commit().block().unwrap();
    for _ in 0..10 {
        assert_eq!(cached.view().unwrap().len(), 2);
    }
    assert_eq!(parsed.load(Ordering::Relaxed), 2);

    falls.store(true, Ordering::Relaxed);
    let change = kv.txn().when(Compare::exists("c/a")).then(Op::put("c/a", "333"));
    change.then(Op::delete("c/b")).commit().block().unwrap();
    let look = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cached.view()));
    assert!(look().is_err());
    falls.store(false, Ordering::Relaxed);
    let view = look().unwrap().unwrap();
    assert_eq!(view.iter().map(|(_, len)| *len).collect::<Vec<_>>(), [3]);
    node.shutdown().block();
}

#[test]
fn stream_of_a_view_yields_each_new_view_and_ends_with_the_node() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    let mut cached = kv.cached_prefix("c/").block().unwrap();
    let (views, received) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        while let Some(view) =
            std::future::poll_fn(|context| Pin::new(&mut cached).poll_next(context)).block()
        {
            views.send(view.map(|view| view.len())).unwrap();
        }
    });
    for count in 1..=3 {
        kv.put(format!("c/{count}"), "").block().unwrap();
        assert_eq!(received.recv_timeout(Duration::from_secs(20)).unwrap(), Ok(count));
    }
    drop(cluster);
    let last = received.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(matches!(last, Err(Error::Stopped { .. })), "{last:?}");
    reader.join().unwrap();
    assert!(received.try_recv().is_err(), "the stream has ended");
}

//! Tests of what programs and operators can observe of a node: spans, log lines about slow requests, metrics, health
//! and status.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use bowline::testing::{Cluster, ClusterOptions};
use bowline::{
    Blocking, Config, Effect, Error, HealthStatus, KeyRange, Node, NodeStatus, Op, Role,
    cluster::{MemberRole, MemberStatus},
    metrics::{Ending, RequestKind},
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Records every event and span as a line.
#[derive(Default)]
struct Lines {
    spans: AtomicU64,
    lines: Mutex<Vec<String>>,
}

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Lines {
    fn line(&self, metadata: &Metadata<'_>, record: impl FnOnce(&mut Words<'_>)) {
        if !metadata.target().starts_with("bowline") {
            return;
        }
        let mut line = format!("{} {}", metadata.level(), metadata.name());
        record(&mut Words(&mut line));
        self.lines.lock().unwrap().push(line);
    }
}

impl Subscriber for &'static Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1);
        self.line(span.metadata(), |words| {
            write!(words.0, " span={}", id.into_u64()).unwrap();
            span.record(words);
        });
        id
    }

    fn record(&self, id: &Id, record: &Record<'_>) {
        let mut line = format!("RECORD of={}", id.into_u64());
        record.record(&mut Words(&mut line));
        self.lines.lock().unwrap().push(line);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.line(event.metadata(), |words| {
            if let Some(parent) = event.parent() {
                write!(words.0, " parent={}", parent.into_u64()).unwrap();
            }
            event.record(words);
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Returns all lines so far. The tests of this file share them, because they share a process.
fn lines() -> &'static Lines {
    static LINES: OnceLock<&'static Lines> = OnceLock::new();
    LINES.get_or_init(|| {
        let lines: &'static Lines = Box::leak(Box::default());
        tracing::subscriber::set_global_default(lines).expect("nobody else wants it");
        lines
    })
}

fn found(all: &[&str]) -> Option<String> {
    let lines = lines().lines.lock().unwrap();
    lines.iter().find(|line| all.iter().all(|words| line.contains(words))).cloned()
}

/// Starts a cluster whose leader stays the leader on a busy machine too, because these tests observe one member.
fn quick(members: usize, configure: fn(Config) -> Config) -> Cluster {
    ClusterOptions::new(members)
        .configure(move |config| {
            configure(
                config
                    .heartbeat(Duration::from_millis(20))
                    .election_timeout(Duration::from_secs(2))
                    .session_ttl(Duration::from_secs(3))
                    .call_deadline(Duration::from_secs(20)),
            )
        })
        .start()
        .block()
        .expect("the cluster starts")
}

#[test]
fn trace_follows_a_write_from_call_to_reply() {
    lines();
    let cluster = quick(3, |config| config);
    let leader = cluster.leader().block().unwrap();
    // No other test deletes keys on its cluster.
    cluster.node(leader).client().delete("traced").block().unwrap();
    let span = found(&["DEBUG write", "kind=\"delete\""]).expect("a span for the call");
    let number = span.split("span=").nth(1).unwrap().split(' ').next().unwrap();
    let parent = format!("parent={number} ");
    for words in ["admitted", "numbered", "sent to the leader", "decided", "answered"] {
        assert!(found(&[&parent, words]).is_some(), "no {words} below {span}");
    }
    let request = found(&[&format!("RECORD of={number} "), "request="]).expect("its number");
    let request = request.split("request=").nth(1).unwrap();
    let proposed = found(&["appended to an entry", &format!("request={request} ")]);
    assert!(proposed.is_some(), "the leader says which entry it went into");
    for words in ["proposed", "synced", "applied"] {
        assert!(found(&["TRACE", words]).is_some(), "no {words}");
    }
}

#[test]
fn trace_follows_a_read_from_call_to_reply() {
    lines();
    let cluster = quick(3, |config| config);
    let follower = (cluster.leader().block().unwrap() + 1) % 3;
    cluster.node(follower).client().get("traced").block().unwrap();
    let lines: Vec<String> = lines().lines.lock().unwrap().clone();
    let spans = lines.iter().filter(|line| line.starts_with("DEBUG read"));
    let is_whole = |span: &String| {
        let number = span.split("span=").nth(1).unwrap();
        let parent = format!("parent={number} ");
        let has = |words| lines.iter().any(|line| line.contains(&parent) && line.contains(words));
        ["read sent to the leader", "confirmed by the leader", "answered"].into_iter().all(has)
    };
    assert!(spans.clone().any(is_whole), "{:?}", spans.collect::<Vec<_>>());
}

#[test]
fn slow_request_is_logged_with_its_stages() {
    lines();
    let dir = tempfile::tempdir().unwrap();
    let config = Config::new(dir.path(), "sluggish").slow_request(Duration::ZERO);
    let node = Node::start(config).block().unwrap();
    node.wait_for(|status| status.leader.is_some()).block();
    node.client().put("k", "v").block().unwrap();
    let line = found(&["WARN", "slow request", "node=\"sluggish\""]).expect("a line");
    for field in ["took=", "waiting=", "logging=", "replicating=", "applying=", "notifying="] {
        assert!(line.contains(field), "{field} in {line}");
    }
    assert!(line.contains(": took") && line.contains("outcome=\"ok\""), "{line}");
    for _ in 0..100 {
        node.client().put("k", "v").block().unwrap();
    }
    let slow = node.metrics().snapshot().slow_requests_total;
    assert!(slow >= 101, "{slow}");
    let all = lines().lines.lock().unwrap();
    let about =
        all.iter().filter(|line| line.contains("sluggish") && line.contains("slow request"));
    let count = about.count();
    assert!(count < 30, "{count} lines: one a second at most");
    drop(all);
    node.shutdown().block();
}

#[test]
fn metrics_count_the_operations_of_a_program() {
    let cluster = quick(3, |config| config);
    let leader = cluster.leader().block().unwrap();
    let kv = cluster.node(leader).client();
    for i in 0..20 {
        kv.put(format!("k{i}"), "v").block().unwrap();
        kv.get("k0").block().unwrap();
    }
    kv.delete("k0").block().unwrap();
    kv.revoke(bowline::LeaseId::new(77).unwrap()).block().unwrap_err();
    let _watch = kv.watch(bowline::KeyRange::all()).block().unwrap();
    let metrics = cluster.node(leader).metrics();
    let ended = |kind, end| {
        let snapshot = metrics.snapshot();
        let (_, ends) = snapshot.requests_total.iter().find(|(each, _)| *each == kind).unwrap();
        ends.iter().find(|(each, _)| *each == end).unwrap().1
    };
    assert_eq!(ended(RequestKind::Put, Ending::Ok), 20);
    assert_eq!(ended(RequestKind::Read, Ending::Ok), 20);
    assert_eq!(ended(RequestKind::Delete, Ending::Ok), 1);
    assert_eq!(ended(RequestKind::Revoke, Ending::Refused), 1);
    // The gauges of the state include every answered request. The driver updates its own gauges at its next tick.
    assert_eq!((metrics.snapshot().keys, metrics.snapshot().watchers), (19, 1));
    cluster
        .wait_until("gauges do not follow", |_| {
            // Writing causes the node to publish its status.
            kv.put("k1", "again").block().unwrap();
            let now = metrics.snapshot();
            now.keys == 19
                && now.watchers == 1
                && now.is_leader == 1
                && now.peer_lag_entries.len() == 2
                && now.peer_lag_entries.iter().all(|lag| lag.entries <= 2)
        })
        .block()
        .unwrap();
    let now = metrics.snapshot();
    assert!(now.state_bytes > 0 && now.history_bytes < now.state_bytes);
    assert!(now.log_sync_seconds.count() >= 21 && now.log_bytes_total > 0);
    assert!(now.write_stage_seconds.iter().all(|(_, stage)| stage.count() >= 21));
    assert!(now.read_rounds_total > 0 && now.read_round_seconds.count() > 0);
    assert!(now.entry_commit_seconds.count() > 0);
}

/// A program or a client that reads the metrics after its own change must see that change.
#[test]
fn metrics_include_every_request_that_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    let (kv, metrics) = (node.client(), node.metrics());
    let first = kv.put("a", "1").block().unwrap().revision;
    for count in 1..=50_u64 {
        let before = metrics.snapshot();
        kv.put(format!("key-{count}"), vec![0_u8; 1 << 10]).block().unwrap();
        let after = metrics.snapshot();
        assert_eq!((after.keys, after.revision), (before.keys + 1, before.revision + 1));
        assert!(after.state_bytes > before.state_bytes + (1 << 10));
    }
    let mut past = kv.watch("a").from(first).block().unwrap();
    let now = kv.watch("a").block().unwrap();
    let open = || (metrics.snapshot().watchers, metrics.snapshot().watchers_behind);
    assert_eq!(open(), (2, 1), "a watcher of the past has not read anything yet");
    past.request_progress();
    while past.next().block().unwrap().unwrap().revision < metrics.snapshot().revision.into() {}
    assert_eq!(open(), (2, 0));
    drop(past);
    drop(now);
    assert_eq!(open(), (0, 0));
    node.shutdown().block();
    assert_eq!(metrics.snapshot().keys, 51, "metrics can still be read when the node has stopped");
}

#[test]
fn store_operations_are_counted_inside_and_outside_of_transactions() {
    let cluster = quick(1, |config| config);
    let (kv, metrics) = (cluster.node(0).client(), cluster.node(0).metrics());
    let before = metrics.snapshot();
    kv.put("a", "12").block().unwrap();
    kv.put("b", "12").block().unwrap();
    kv.get("a").block().unwrap();
    kv.range(KeyRange::all()).local().block().unwrap();
    kv.txn()
        .then(Op::put("c", "1"))
        .then(Op::get("a"))
        .then(Op::delete("a"))
        .commit()
        .block()
        .unwrap();
    kv.txn().then(Op::get("b")).then(Op::get("c")).commit().block().unwrap();
    kv.txn().then(Op::put("d", "1")).commit().block().unwrap();
    kv.delete(KeyRange::all()).block().unwrap();
    let lease = kv.grant(Duration::from_secs(60)).block().unwrap();
    kv.put("leased", "").lease(lease.id).block().unwrap();
    kv.renew(lease.id).block().unwrap();
    kv.revoke(lease.id).block().unwrap();
    let now = metrics.snapshot();
    assert_eq!(now.puts_total - before.puts_total, 5);
    assert_eq!(now.put_bytes_total - before.put_bytes_total, 3 + 3 + 2 + 2 + 6);
    assert_eq!(now.deletes_total - before.deletes_total, 3, "one of a lease's keys");
    assert_eq!(now.ranges_total - before.ranges_total, 5);
    assert_eq!(now.txns_total - before.txns_total, 2, "of more than one operation");
    assert_eq!(now.lease_grants_total - before.lease_grants_total, 1);
    assert_eq!(now.lease_ends_total - before.lease_ends_total, 1);
    let margins = now.lease_margin_seconds.since(&before.lease_margin_seconds);
    assert_eq!(margins.count(), 1);
    assert!(margins.sum() > 30.0, "renewed at once: {}", margins.sum());
}

#[test]
fn holds_and_waiters_are_counted_and_handoffs_timed() {
    let cluster = quick(1, |config| config);
    let (node, metrics) = (cluster.node(0), cluster.node(0).metrics());
    let kv = node.client();
    let becomes = |held, waiting| {
        let otherwise = format!("{held} do not hold, or {waiting} do not wait");
        cluster
            .wait_until(&otherwise, |_| {
                // Writing causes the node to publish its status.
                kv.put("k", "again").block().unwrap();
                let now = metrics.snapshot();
                (now.locks_held, now.lock_waiters) == (held, waiting)
            })
            .block()
            .unwrap();
    };
    let handed = || metrics.snapshot().lock_handoff_seconds.count();
    let was_handed = |times: u64| {
        let seen = |_: &[NodeStatus]| {
            kv.put("k", "again").block().unwrap();
            handed() == times
        };
        cluster.wait_until(&format!("not handed over {times} times"), seen).block().unwrap();
    };
    let one = node.open_session().block().unwrap();
    let other = node.open_session().block().unwrap();
    let guard = one.mutex("m").lock().block().unwrap();
    becomes(1, 0);
    assert_eq!(handed(), 0, "it was free");
    let wait = || {
        let session = other.clone();
        std::thread::spawn(move || session.mutex("m").lock().block().unwrap())
    };
    // Hand the lock from session to session, through the lock queue of the cluster.
    let waiter = wait();
    becomes(1, 1);
    // A task waits before its session has a key in the queue. A lock that is released in between is not handed over.
    let are_queued =
        |_: &[NodeStatus]| kv.range(KeyRange::prefix("m/")).local().block().unwrap().count == 2;
    cluster.wait_until("two sessions are not in the queue", are_queued).block().unwrap();
    guard.release().block().unwrap();
    let guard = waiter.join().unwrap();
    was_handed(1);
    becomes(1, 0);
    // Hand the lock from task to task of one session, inside the process.
    let waiter = wait();
    becomes(1, 1);
    drop(guard);
    let guard = waiter.join().unwrap();
    was_handed(2);
    // A request that was given up is not counted as a waiter, and a session that has ended is not
    // counted as a holder.
    let late = one.mutex("m").lock().deadline(Duration::from_millis(50)).block();
    assert!(late.is_err());
    becomes(1, 0);
    other.clone().close().block().unwrap();
    becomes(0, 0);
    assert!(!guard.is_held());
    assert_eq!(handed(), 2);
    cluster
        .wait_until("no session is renewed", |_| {
            kv.put("k", "again").block().unwrap();
            metrics.snapshot().session_margin_seconds.count() > 0
        })
        .block()
        .unwrap();
    let margins = metrics.snapshot().session_margin_seconds;
    assert!(margins.quantile(1.0).unwrap() < 3.6, "a session of three seconds");
}

#[test]
fn requests_beyond_the_limit_of_waiters_are_counted() {
    let cluster = quick(1, |config| config.lock_waiters_max(1));
    let node = cluster.node(0);
    let [one, other] = [(); 2].map(|()| node.open_session().block().unwrap());
    let full = || node.metrics().snapshot().lock_queue_full_total;
    let _guard = one.mutex("m").lock().block().unwrap();
    let _waits = other.mutex("m").lock().enqueue().unwrap();
    assert_eq!(full(), 0, "the limit is not exceeded");
    // The first request would share the entry of the holder. The others would have their own entries.
    assert!(one.mutex("m").lock().block().is_err());
    assert!(other.mutex("m").lock().reason("report").block().is_err());
    assert!(one.election("m").campaign("n1").block().is_err());
    assert_eq!(full(), 3);
    assert!(other.mutex("another").lock().block().is_ok());
    let text = node.metrics().to_prometheus();
    let line = r#"bowline_lock_queue_full_total{node="m0"} 3"#;
    assert!(text.lines().any(|each| each == line), "{line} in\n{text}");
}

#[test]
fn status_and_health_report_members_and_progress() {
    let mut cluster = quick(3, |config| config);
    let leader = cluster.leader().block().unwrap();
    let put = cluster.node(leader).client().put("k", "v").block().unwrap();
    cluster.all_at(put.revision).block().unwrap();
    let all_well = || {
        let active = |member: &MemberStatus| member.progress.is_some_and(|p| p.active);
        cluster.running().all(|(_, node)| node.health().status == HealthStatus::Healthy)
            && cluster.node(leader).status().members.iter().all(active)
    };
    cluster.wait_until("not healthy", |_| all_well()).block().unwrap();
    let status = cluster.node(leader).status();
    assert_eq!(status.members.len(), 3);
    assert!(status.members.iter().all(|member| member.role == MemberRole::Voter));
    assert!(status.last >= status.commit && status.commit >= status.applied);
    let follower = (leader + 1) % 3;
    let seen = cluster.node(follower).status();
    assert!(seen.members.iter().all(|member| member.progress.is_none()), "it does not lead");
    let gone = (leader + 2) % 3;
    cluster.kill(gone).block();
    let name = format!("m{gone}");
    cluster
        .wait_until("the leader does not miss it", |_| {
            let status = cluster.node(leader).status();
            let gone = status.members.iter().find(|member| member.name == name).unwrap();
            gone.progress.is_some_and(|progress| !progress.active)
        })
        .block()
        .unwrap();
    let is_well = || cluster.node(leader).health().status == HealthStatus::Healthy;
    cluster.wait_until("two of three are no quorum", |_| is_well()).block().unwrap();
    cluster.partition(&[leader]);
    let lost =
        |health: bowline::Health| health.status == HealthStatus::NoQuorum && health.is_alive();
    // The status changes only because time passes, and no update is published for this.
    let begun = Instant::now();
    while !lost(cluster.node(leader).health()) {
        assert!(begun.elapsed() < Duration::from_secs(30), "a node alone is healthy");
        std::thread::yield_now();
    }
    assert_ne!(cluster.node(leader).status().role, Role::Stopped);
}

#[test]
fn excess_reads_and_waits_are_rejected_as_busy() {
    let cluster = quick(3, |config| config.open_reads_max(10));
    let leader = cluster.leader().block().unwrap();
    cluster.partition(&[leader]);
    let node = cluster.node(leader);
    let never = bowline::Revision(1_000_000);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut waiting = tokio::task::JoinSet::new();
        for i in 0..10 {
            let kv = node.client();
            let short = Duration::from_secs(3);
            waiting.spawn(async move {
                match i % 2 {
                    0 => kv.get("k").at_least(never).deadline(short).await,
                    _ => kv.get("k").deadline(short).await,
                }
            });
        }
        tokio::task::yield_now().await;
        assert_eq!(node.client().get("k").await, Err(Error::Busy));
        assert_eq!(node.client().get("k").at_least(never).await, Err(Error::Busy));
        assert_eq!(node.client().get("k").local().await, Ok(None), "it waits for nobody");
        while let Some(result) = waiting.join_next().await {
            let late = Error::Deadline { effect: Effect::NotApplied };
            assert_eq!(result.unwrap(), Err(late));
        }
        let short = Duration::from_millis(50);
        let late = node.client().get("k").deadline(short).await;
        assert!(matches!(late, Err(Error::Deadline { .. })), "there is room again: {late:?}");
    });
}

#[test]
fn unreachable_member_is_logged_once_a_minute_with_its_address() {
    lines();
    let dir = tempfile::tempdir().unwrap();
    let lost = [("named", "nowhere.invalid:1"), ("refusing", "127.0.0.1:1")];
    let members = [("lonely", "127.0.0.1:9"), lost[0], lost[1]];
    let config = Config::new(dir.path(), "lonely").members(members).insecure_peers(true);
    let config = config.listen("127.0.0.1:0");
    let node = Node::start(config).block().unwrap();
    let about = |level: &str, (name, address): (&str, &str)| {
        let all = lines().lines.lock().unwrap();
        let words = match level {
            "WARN" => format!("name={name:?} address={address:?}"),
            _ => format!("address={address:?}"),
        };
        let is_about =
            |line: &&String| line.contains("cannot reach member") && line.contains(&words);
        all.iter().filter(|line| line.starts_with(level)).filter(is_about).count()
    };
    let begun = node.now();
    for peer in lost {
        while about("WARN", peer) + about("DEBUG", peer) < 5 {
            assert!(node.now().since(begun) < Duration::from_secs(50), "{peer:?} is not dialed");
            std::thread::yield_now();
        }
        assert_eq!(about("WARN", peer), 1, "{peer:?}");
    }
    let links = node.metrics().snapshot().peer_connected;
    assert!(links.len() == 2 && links.iter().all(|link| !link.connected), "{links:?}");
    let _ = node.shutdown().block();
}

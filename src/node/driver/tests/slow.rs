//! Tests of the log lines about slow requests: they name the cause, appear at most once a second, and never appear
//! for fast requests.

use std::fmt::{self, Write};
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;
use crate::model::{KeyRange, Range};

/// Records each warning as a line.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => write!(self.0, "{value:?}").unwrap(),
            name => write!(self.0, " {name}={value:?}").unwrap(),
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("bowline")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut Words(&mut line));
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs three nodes, led by the first, with a threshold of 100 ms. Returns the lines that the nodes
/// log about slow requests.
fn slow_lines(act: impl FnOnce(&mut Three)) -> Vec<String> {
    let slow = |_: usize, settings: &mut Settings| {
        settings.slow_request = Duration::from_millis(100);
        settings.slow_apply = Duration::from_millis(100);
    };
    let mut three = Three::led_by(0, slow);
    three.pass(2_000);
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || act(&mut three));
    let lines = warnings.0.lock().unwrap();
    lines.iter().filter(|line| line.starts_with("slow ")).cloned().collect()
}

/// Puts a key on a node, while the disk of node `slow` first stalls for `ms`.
fn put_beside_a_slow_disk(three: &mut Three, on: usize, slow: usize, ms: u64) {
    let call = three.call(on, put("k", 10), 5_000);
    (0..ms / 5).for_each(|_| three.step_without_log(Some(slow)));
    three.finish(call).unwrap();
}

fn slow_requests(three: &Three, node: usize) -> u64 {
    let text = crate::metrics::Metrics::new("", Arc::clone(&three.shared(node).meters));
    text.snapshot().slow_requests_total
}

#[test]
fn slow_request_names_the_local_disk() {
    for node in [0, 1] {
        let lines = slow_lines(|three| put_beside_a_slow_disk(three, node, node, 300));
        let [line] = &lines[..] else { panic!("one line: {lines:?}") };
        let words = "slow request (put): took 3";
        assert!(line.starts_with(words), "{line}");
        assert!(line.contains("mostly writing this node's log"), "{line}");
        assert!(line.contains(&format!(" node=\"m{node}\"")), "{line}");
        for field in ["waiting=", "forwarding=", "replicating=", "applying=", "suppressed=0"] {
            assert!(line.contains(field), "{field} in {line}");
        }
        assert!(["logging=2", "logging=3"].iter().any(|most| line.contains(most)), "{line}");
    }
}

#[test]
fn slow_request_names_the_disks_of_the_peers() {
    let lines = slow_lines(|three| {
        let call = three.call(0, put("k", 10), 5_000);
        for _ in 0..60 {
            three.clock.0.fetch_add(5, Ordering::Relaxed);
            for node in &mut three.nodes {
                node.driver.turn();
            }
            three.nodes[0].log_worker.turn();
        }
        three.finish(call).unwrap();
    });
    let [line] = &lines[..] else { panic!("one line: {lines:?}") };
    assert!(line.contains("mostly replicating to the logs of the other members"), "{line}");
}

#[test]
fn slow_request_without_a_leader_is_reported_as_waiting() {
    let lines = slow_lines(|three| {
        for peer in [1, 2] {
            three.hub.cut(id(peer), id(0));
            three.hub.cut(id(0), id(peer));
        }
        // The leader has noticed that it has no followers.
        three.pass(3_000);
        let call = three.call(0, put("k", 10), 500);
        let late = three.finish(call).unwrap_err();
        assert!(matches!(late, CallError::Deadline { .. }), "{late:?}");
    });
    let [line] = &lines[..] else { panic!("one line: {lines:?}") };
    assert!(line.contains("given up after 5"), "{line}");
    assert!(line.contains("waiting for a leader"), "{line}");
    assert!(line.contains("at=\"waiting\""), "{line}");
}

#[test]
fn abandoned_request_names_the_hanging_disk() {
    let lines = slow_lines(|three| {
        let mut call = three.call(0, put("k", 10), 300);
        for _ in 0..80 {
            if let Poll::Ready(result) = poll(&mut call) {
                assert_eq!(result, Err(CallError::Deadline { maybe_applied: true }));
                return;
            }
            three.step_without_log(Some(0));
        }
        panic!("it is not given up");
    });
    let [line] = &lines[..] else { panic!("one line: {lines:?}") };
    assert!(line.contains("given up after 30"), "{line}");
    assert!(line.contains("writing this node's log"), "{line}");
}

#[test]
fn fast_requests_are_not_logged() {
    let lines = slow_lines(|three| {
        let all = |three: &Three| (0..3).map(|node| slow_requests(three, node)).sum::<u64>();
        // Count the slow requests made before the first election.
        let before = all(three);
        for node in 0..3 {
            three.put(node, "k", 10).unwrap();
        }
        three.shared(0).range(&Range::new(KeyRange::all()), None).unwrap();
        assert_eq!(all(three), before);
    });
    assert_eq!(lines, [""; 0]);
}

#[test]
fn burst_of_slow_requests_logs_one_counted_line_per_second() {
    let lines = slow_lines(|three| {
        let before = slow_requests(three, 0);
        for round in 0..2 {
            let calls: Vec<Call> = (0..500)
                .map(|at| three.call(0, put(&format!("{round}/{at}"), 10), 5_000))
                .collect();
            (0..60).for_each(|_| three.step_without_log(Some(0)));
            for call in calls {
                three.finish(call).unwrap();
            }
            three.pass(1_000);
        }
        assert_eq!(slow_requests(three, 0) - before, 1_000);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("suppressed=0"), "{lines:?}");
    assert!(lines[1].contains("suppressed=499"), "{lines:?}");
}

pub(super) type Read = Pin<Box<dyn Future<Output = CallResult<()>>>>;

pub(super) fn begin_read(three: &Three, node: usize) -> Read {
    let shared = Arc::clone(three.shared(node));
    let deadline = shared.now() + Duration::from_secs(5);
    let mut read: Read = Box::pin(async move { shared.read_barrier(deadline).await });
    assert!(look(&mut read).is_pending());
    read
}

pub(super) fn look(read: &mut Read) -> Poll<CallResult<()>> {
    read.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn end_read(three: &mut Three, mut read: Read) {
    for _ in 0..1_000 {
        if let Poll::Ready(result) = look(&mut read) {
            return result.unwrap();
        }
        three.step();
    }
    panic!("a read does not end");
}

#[test]
fn slow_read_names_the_leader_or_this_replica() {
    let lines = slow_lines(|three| {
        let read = begin_read(three, 1);
        three.hub.cut(id(0), id(1));
        three.pass(300);
        three.hub.heal_all();
        end_read(three, read);
    });
    let [line] = &lines[..] else { panic!("one line: {lines:?}") };
    assert!(line.contains("mostly asking the leader"), "{line}");
    // The write before the read is committed, but node 1 has neither written nor applied it.
    let lines = slow_lines(|three| {
        let write = three.call(0, put("k", 10), 5_000);
        (0..6).for_each(|_| three.step_without_log(Some(1)));
        let read = begin_read(three, 1);
        (0..60).for_each(|_| three.step_without_log(Some(1)));
        end_read(three, read);
        three.finish(write).unwrap();
    });
    let [line] = &lines[..] else { panic!("one line: {lines:?}") };
    assert!(line.contains("mostly waiting until this node had applied"), "{line}");
}

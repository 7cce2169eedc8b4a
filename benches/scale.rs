//! Measures whether the cost of a request grows with the size of the store, with watchers, with
//! waiters for a lock, or with the history of a key. The cluster has one member, and one caller
//! makes one call after another.
//!
//! Run `cargo bench --bench scale`, or add `-- --quick` for small sizes only. Each situation runs
//! in a separate process, because the allocator may keep freed memory. Compared with the smallest
//! situation of its kind, a situation may cost more by a logarithmic factor and by cache misses,
//! but not by more. On a machine with other load, compare the fastest tenth, because half of the
//! calls have waited for a core.

#![allow(clippy::print_stdout, reason = "a benchmark prints its report")]

use std::process::Command;
use std::time::{Duration, Instant};

use bowline::{Blocking, Client, Compare, Config, Guard, KeyRange, LockError, Node, Op, Watch};
use bowline_testkit::crew::resident_bytes;
use hdrhistogram::Histogram;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const VALUE_BYTES: usize = 256;

/// Number of keys in situations that do not vary the number of keys.
const SOME_KEYS: u64 = 1_000;

/// Number of puts in a transaction that fills the store.
const FILL_AT_ONCE: u64 = 100;

/// Number of handoffs that are timed.
const TURNS: u64 = 200;

/// The situations with their sizes. A quick run uses the first two.
const SITUATIONS: &[(&str, &[u64])] = &[
    ("keys", &[1_000, 10_000, 100_000, 1_000_000]),
    ("watchers", &[0, 1_000, 100_000]),
    ("waiters", &[0, 1_000, 10_000]),
    ("versions", &[1, 1_000, 100_000]),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [situation, size, calls] = &args[..]
        && let (Ok(size), Ok(calls)) = (size.parse(), calls.parse())
    {
        return measure(situation, size, calls);
    }
    // `cargo bench` passes this option. Without it, only check that the benchmark runs.
    let quick = !args.iter().any(|arg| arg == "--bench") || args.iter().any(|arg| arg == "--quick");
    println!(
        "one member, one caller, values of {VALUE_BYTES} bytes; microseconds: a tenth within / half / 99 of 100\n"
    );
    println!("| situation | put | local get | linearizable get | transaction | besides |");
    println!("|---|---|---|---|---|---|");
    let program = std::env::current_exe().expect("the path of this program");
    for (situation, sizes) in SITUATIONS {
        for size in sizes.iter().take(if quick { 2 } else { sizes.len() }) {
            let calls = if quick { 200_u64 } else { 4_000 };
            let args = [situation.to_string(), size.to_string(), calls.to_string()];
            let done = Command::new(&program).args(args).status();
            assert!(done.expect("a process for each").success(), "{size} {situation}");
        }
    }
}

fn measure(situation: &str, size: u64, calls: u64) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let config = || Config::new(dir.path(), "solo").call_deadline(Duration::from_secs(60));
    let runtime = Runtime::new().expect("a runtime");
    let before = resident_bytes();
    let node = Node::start(config()).block().expect("the node starts");
    let name = format!("{size} {situation}");
    match situation {
        "keys" => {
            fill(&node, size);
            let bytes = resident_bytes().saturating_sub(before) / size;
            let row = all_calls(&node.client(), size, calls);
            assert!(node.shutdown().block().hanging.is_empty(), "it stops in good order");
            let begun = Instant::now();
            let node = Node::start(config()).block().expect("the node starts again");
            node.client().put(key(0), value()).block().expect("the first put");
            let restart = begun.elapsed().as_millis();
            let besides = format!("{bytes} bytes a key; restart to first put {restart} ms");
            report(&name, &row, &besides);
            node.shutdown().block();
        }
        "watchers" => {
            fill(&node, SOME_KEYS);
            let mut watches: Vec<Watch> = (0..size)
                .map(|n| node.client().watch(format!("w/{n}")).block().expect("a watch"))
                .collect();
            let row = all_calls(&node.client(), SOME_KEYS, calls);
            let besides = match watches.last_mut() {
                Some(watch) => {
                    let name = format!("w/{}", size - 1);
                    format!("watched put to its event {}", received(&node, &name, watch, calls))
                }
                None => String::new(),
            };
            report(&name, &row, &besides);
        }
        "waiters" => {
            fill(&node, SOME_KEYS);
            let mut line = Line::of(&runtime, &node, size);
            let row = all_calls(&node.client(), SOME_KEYS, calls);
            let turns = line.turns(&runtime, TURNS.min(size));
            let besides = format!("release to next holder {turns}");
            report(&name, &row, if size > 0 { &besides } else { "" });
            line.all.abort_all();
        }
        "versions" => {
            let kv = node.client();
            let filling = |_| kv.put(key(0), value());
            runtime.block_on(async {
                for at in (0..size).step_by(FILL_AT_ONCE as usize) {
                    let mut puts = JoinSet::new();
                    (at..size.min(at + FILL_AT_ONCE)).map(filling).for_each(|put| {
                        puts.spawn(put.into_future());
                    });
                    while let Some(put) = puts.join_next().await {
                        put.expect("a task").expect("a put");
                    }
                }
            });
            report(&name, &all_calls(&kv, 1, calls), "");
        }
        other => panic!("no situation is called {other:?}"),
    }
}

/// Puts the first `keys` keys.
fn fill(node: &Node, keys: u64) {
    for at in (0..keys).step_by(FILL_AT_ONCE as usize) {
        let txn = node.client().txn();
        let end = keys.min(at + FILL_AT_ONCE);
        let txn = (at..end).fold(txn, |txn, n| txn.then(Op::put(key(n), value())));
        txn.commit().block().expect("a transaction that fills");
    }
}

/// Measures the four calls on scattered keys.
fn all_calls(kv: &Client, keys: u64, calls: u64) -> [Latencies; 4] {
    let each = |call: &dyn Fn(String)| {
        let mut latencies = Latencies::new();
        for n in 0..calls {
            let key = key(n * 7_654_321 % keys);
            latencies.time(|| call(key));
        }
        latencies
    };
    let txn = |key: String| {
        let txn = kv.txn().when(Compare::exists(key.clone())).then(Op::put(key.clone(), value()));
        assert!(txn.or_else(Op::get(key)).commit().block().expect("a transaction").succeeded);
    };
    [
        each(&|key| drop(kv.put(key, value()).block().expect("a put"))),
        each(&|key| assert!(kv.get(key).local().block().expect("a get").is_some())),
        each(&|key| assert!(kv.get(key).block().expect("a get").is_some())),
        each(&txn),
    ]
}

/// Measures the time from a put of a watched key to its event.
fn received(node: &Node, name: &str, watch: &mut Watch, calls: u64) -> Latencies {
    let (kv, mut latencies) = (node.client(), Latencies::new());
    for _ in 0..calls {
        latencies.time(|| {
            kv.put(name.to_owned(), value()).block().expect("a put");
            watch.next().block().expect("the watch yields a batch").expect("nothing is compacted");
        });
    }
    latencies
}

/// Many waiters for one lock.
struct Line {
    all: JoinSet<()>,
    holds: mpsc::UnboundedReceiver<Guard>,
    head: Option<Guard>,
}

impl Line {
    fn of(runtime: &Runtime, node: &Node, waiters: u64) -> Self {
        let session = node.session().block().expect("a session");
        let mutex = session.mutex("line");
        let head = mutex.lock().block().expect("the first in line");
        let (report, holds) = mpsc::unbounded_channel();
        let mut all = JoinSet::new();
        let _on = runtime.enter();
        for _ in 0..waiters {
            let (mutex, report) = (mutex.clone(), report.clone());
            all.spawn(async move {
                // A request with a reason has its own key. Otherwise the tasks of a session share
                // one key.
                match mutex.lock().reason("to be counted").await {
                    Ok(guard) => drop(report.send(guard)),
                    Err(LockError::SessionEnded(_) | LockError::NodeStopped(_)) => {}
                    Err(error) => panic!("a lock: {error}"),
                }
            });
        }
        let standing = || node.client().range(KeyRange::prefix("line/")).count_only().block();
        while standing().expect("a count").count <= waiters {}
        Self { all, holds, head: Some(head) }
    }

    /// Measures the time from a release to the next holder, `turns` times.
    fn turns(&mut self, runtime: &Runtime, turns: u64) -> Latencies {
        let mut latencies = Latencies::new();
        for _ in 0..turns {
            let head = self.head.take().expect("somebody holds");
            latencies.time(|| {
                drop(head);
                self.head = runtime.block_on(self.holds.recv());
            });
        }
        latencies
    }
}

struct Latencies(Histogram<u64>);

impl Latencies {
    fn new() -> Self {
        Self(Histogram::new(3).expect("three digits are few"))
    }

    fn time(&mut self, work: impl FnOnce()) {
        let begun = Instant::now();
        work();
        let nanos = u64::try_from(begun.elapsed().as_nanos()).expect("not centuries");
        self.0.record(nanos).expect("it grows by itself");
    }
}

impl std::fmt::Display for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |quantile| self.0.value_at_quantile(quantile) as f64 / 1_000.0;
        write!(f, "{:.1} / {:.1} / {:.1}", micros(0.1), micros(0.5), micros(0.99))
    }
}

fn report(name: &str, [put, local, get, txn]: &[Latencies; 4], besides: &str) {
    println!("| {name} | {put} | {local} | {get} | {txn} | {besides} |");
}

fn key(number: u64) -> String {
    format!("k/{number:016}")
}

fn value() -> Vec<u8> {
    vec![b'v'; VALUE_BYTES]
}

//! Measures the state machine: memory of a key, and time of a request at three sizes of the store, each with and
//! without a long history.
//!
//! Run `cargo bench --bench machine`, or add `-- 1000000` for one size only. Each size runs in a
//! separate process, because the allocator may keep freed memory.

#![allow(clippy::print_stdout, reason = "a benchmark prints its report")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bowline::machine::{Machine, MachineOptions, Reader};
use bowline::model::{
    AckWindow, Command, Incarnation, Item, KeyRange, LogIndex, NodeId, Proposal, Put, Range,
    SessionInfo, Term,
};
use bowline_testkit::crew::resident_bytes;
use bytes::{Bytes, BytesMut};

const VALUE_BYTES: usize = 256;
const BATCH: u64 = 64;

/// Bytes of an image that are read at a time.
const PIECE_BYTES: usize = 256 << 10;

fn main() {
    let asked: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    if let [keys] = asked[..] {
        return measure(keys);
    }
    // `cargo bench` passes this option. `cargo test` only checks that the benchmark runs.
    let sizes = match std::env::args().any(|arg| arg == "--bench") {
        true if asked.is_empty() => vec![1_000, 100_000, 1_000_000],
        false if asked.is_empty() => vec![1_000],
        _ => asked,
    };
    let program = std::env::current_exe().expect("the path of this program");
    for keys in sizes {
        let done = std::process::Command::new(&program).arg(keys.to_string()).status();
        assert!(done.expect("a process for each size").success(), "{keys} keys");
    }
}

fn measure(keys: u64) {
    println!("{keys} keys of 20 bytes with values of {VALUE_BYTES}");
    let before = resident_bytes();
    let mut writer = Writer { machine: Machine::new(MachineOptions::default()), seq: 0 };
    report("  load, scattered", keys, || writer.put_all(keys, 1));
    let bytes = resident_bytes().saturating_sub(before);
    println!(
        "  memory, nothing compacted {:>9.1} MiB  {:>6} bytes a key",
        mib(bytes),
        bytes / keys
    );
    writer.compact();
    let bytes = resident_bytes().saturating_sub(before);
    println!(
        "  memory, compacted         {:>9.1} MiB  {:>6} bytes a key",
        mib(bytes),
        bytes / keys
    );
    let ops = keys.clamp(100_000, 300_000);
    for history in ["short", "long"] {
        let reader = writer.machine.reader();
        println!("  with a {history} history:");
        report("    overwrite", ops, || writer.put_all(ops, keys));
        report("    get", ops, || gets(&reader, ops, keys));
        report("    range of ten", ops / 10, || ranges(&reader, ops / 10, keys));
        let rounds = 10_000_000 / keys.max(100_000) / 10 + 1;
        report("    count, each key", rounds * keys, || count(&reader, rounds));
        if history == "short" {
            report("    (making history)", 2 * ops, || writer.put_all(2 * ops, keys.min(1000)));
        }
    }
    beside(&mut writer, ops, keys);
    let versions = writer.machine.revision().get();
    report("  sweep, each version", versions, || writer.compact());
    report("  scrub, each row", keys, || writer.machine.scrub(keys as usize).expect("sound rows"));
    travel(&mut writer, keys);
}

/// Measures an image: the cost of taking the image for the writer, of reading it for a worker, and
/// of restoring a machine from it.
fn travel(writer: &mut Writer, keys: u64) {
    let leases = keys / 10;
    for number in 0..leases {
        let info = SessionInfo { label: format!("worker-{number}"), own: false };
        let ttl = Duration::from_secs(5);
        writer.seq += 1;
        let grant = Command::Grant { id: None, ttl, session: Some(info) };
        writer.apply(writer.seq, vec![(writer.seq, grant)]);
    }
    let began = Instant::now();
    let mut image = writer.machine.image();
    println!("  image, with {leases} leases   {:>9.2} ms for the writer", millis(began.elapsed()));
    let head = image.head().clone();
    let mut pieces = Vec::new();
    report("  image, each row read", keys, || {
        pieces.extend(std::iter::from_fn(|| image.next(PIECE_BYTES).expect("a sound image")));
    });
    let mut restored = None;
    report("  restore, each row", keys, || {
        let machine = Machine::restore(MachineOptions::default(), head, pieces);
        restored = Some(machine.expect("what was taken"));
    });
    let machine = restored.expect("just restored");
    assert_eq!(machine.digest(), writer.machine.digest());
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

struct Writer {
    machine: Machine,
    seq: u64,
}

impl Writer {
    /// Puts `count` keys, scattered over the first `among` keys. If `among` is 1, over `count` keys.
    fn put_all(&mut self, count: u64, among: u64) {
        let among = if among == 1 { count } else { among };
        for batch in 0..count.div_ceil(BATCH) {
            let numbers = batch * BATCH..(batch * BATCH + BATCH).min(count);
            // The data of an entry shares one buffer, as when it comes from the log.
            let mut entry = BytesMut::new();
            for number in numbers.clone() {
                entry.extend_from_slice(&key(scatter(number, among)));
                entry.extend_from_slice(&[number as u8; VALUE_BYTES]);
            }
            let entry = entry.freeze();
            let frontier = self.seq + 1;
            let puts = entry.len() / (20 + VALUE_BYTES);
            let requests = (0..puts).map(|at| {
                let row = entry.slice(at * (20 + VALUE_BYTES)..(at + 1) * (20 + VALUE_BYTES));
                self.seq += 1;
                (self.seq, Command::Put(Put::new(row.slice(..20), row.slice(20..))))
            });
            let requests = requests.collect();
            self.apply(frontier, requests);
        }
    }

    fn compact(&mut self) {
        self.seq += 1;
        let compact = Command::Compact(self.machine.revision());
        self.apply(self.seq, vec![(self.seq, compact)]);
        while self.machine.sweep(10_000) {}
    }

    fn apply(&mut self, frontier: u64, requests: Vec<(u64, Command)>) {
        let proposal = Proposal {
            node: NodeId::new(1).expect("not 0"),
            incarnation: Incarnation(1),
            window: AckWindow { frontier, open: Vec::new() },
            requests,
        };
        let index = LogIndex(self.machine.applied().get() + 1);
        let applied = self.machine.apply(index, Term(1), vec![Item::Proposal(proposal)]);
        let applied = black_box(applied.expect("a sound entry"));
        assert!(applied.outcomes.iter().all(|(_, outcome)| outcome.is_ok()));
        self.machine.publish();
    }
}

fn gets(reader: &Reader, count: u64, keys: u64) {
    for number in 0..count {
        let row = reader.get(&key(scatter(number, keys)));
        assert!(black_box(row).0.is_some());
    }
}

fn ranges(reader: &Reader, count: u64, keys: u64) {
    for number in 0..count {
        let from = key(scatter(number, keys));
        let range = Range { limit: Some(10), ..Range::new(KeyRange::prefix(from[..19].to_vec())) };
        assert!(!black_box(reader.range(&range)).expect("the newest").kvs.is_empty());
    }
}

/// Measures a reader in a second thread while the writer writes without a pause.
fn beside(writer: &mut Writer, ops: u64, keys: u64) {
    let reader = writer.machine.reader();
    let done = AtomicBool::new(false);
    let mut waits = std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            let mut waits = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let started = Instant::now();
                gets(&reader, 1, keys);
                waits.push(started.elapsed());
            }
            waits
        });
        report("  overwrite, one reader", ops, || writer.put_all(ops, keys));
        done.store(true, Ordering::Relaxed);
        look.join().expect("the reader")
    });
    waits.sort_unstable();
    let at = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize];
    println!(
        "  {} gets beside it: half within {:?}, 99 of 100 within {:?}, all within {:?}",
        waits.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn count(reader: &Reader, rounds: u64) {
    for _ in 0..rounds {
        let range = Range { limit: Some(10), ..Range::new(KeyRange::all()) };
        black_box(reader.range(&range)).expect("the newest");
    }
}

fn key(number: u64) -> Bytes {
    format!("k/{number:018}").into()
}

/// Visits the numbers below `among` in a scattered order, each once in `among` steps.
fn scatter(number: u64, among: u64) -> u64 {
    // The step has no common factor with any of the sizes.
    (number % among) * 7_654_321 % among
}

fn report(what: &str, count: u64, work: impl FnOnce()) {
    let started = Instant::now();
    work();
    let took = started.elapsed().max(Duration::from_nanos(1));
    let each = took.as_nanos() as f64 / count as f64;
    let rate = count as f64 / took.as_secs_f64();
    println!("{what:<28}{rate:>12.0} a second {each:>9.0} ns each");
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

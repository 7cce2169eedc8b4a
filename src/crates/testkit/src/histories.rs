//! Random histories: log entries and queries, generated from a seed.
//!
//! There are few keys, leases, nodes and values, so that requests conflict. A wide history has many
//! more keys, so that scans are long. The content of a step depends on the step's seed and on the
//! state before the step, so that a step stays meaningful when a history is shortened.

use std::ops::Range as Span;
use std::time::Duration;

use bowline::model::{
    AckWindow, Alarm, AlarmChange, AlarmKind, Command, Compare, CompareOp, CompareTarget, Delete,
    Incarnation, Item, KeyRange, LeaseId, Limits, NodeId, Op, Proposal, Put, PutLease, PutValue,
    Range, RequestId, Revision, RevisionBounds, SessionInfo, Sort, SortOrder, SortTarget,
    SplitMix64, Term, Txn,
};
use bytes::Bytes;

pub const TERM: Term = Term(7);

/// Maximum depth of nested transactions.
const DEPTH_MAX: u64 = 3;

/// A small random number generator (splitmix64). A generator with the bytes of a fuzzer ([`Random::fed`]) returns these
/// bytes first.
#[derive(Clone)]
pub struct Random {
    random: SplitMix64,
    is_wide: bool,
    /// The remaining bytes of a fuzzer, in reverse order.
    bytes: Vec<u8>,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { random: SplitMix64::new(seed), is_wide: false, bytes: Vec::new() }
    }

    /// Returns a generator for a wide history, which has 700 additional keys (`WIDE_KEYS`).
    pub fn wide(seed: u64) -> Self {
        Self { is_wide: true, ..Self::new(seed) }
    }

    /// Returns a generator that first returns these bytes, each as a number.
    pub fn fed(bytes: &[u8]) -> Self {
        Self { bytes: bytes.iter().rev().copied().collect(), ..Self::new(0) }
    }

    /// Returns whether the bytes of the fuzzer are used up.
    pub fn is_exhausted(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn number(&mut self) -> u64 {
        if let Some(byte) = self.bytes.pop() {
            return u64::from(byte);
        }
        self.random.next_u64()
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Returns up to `max` values.
    fn some<T>(&mut self, max: u64, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(max + 1)).map(|_| one(self)).collect()
    }
}

/// The current revisions of the store. Random revisions are chosen near them.
#[derive(Clone, Copy)]
pub struct Now {
    pub revision: Revision,
    pub compacted: Revision,
}

/// A node that makes requests, and the requests that it has made.
struct Node {
    id: NodeId,
    incarnation: Incarnation,
    /// Number of the node's next request.
    next: u64,
    /// Numbers that the node has skipped and may still use.
    skipped: Vec<u64>,
    sent: Vec<(RequestId, Command)>,
    windows: Vec<AckWindow>,
}

/// All nodes that make requests.
pub struct Authors {
    nodes: Vec<Node>,
}

impl Default for Authors {
    fn default() -> Self {
        Self::new()
    }
}

impl Authors {
    pub fn new() -> Self {
        let node = |id| Node {
            id: NodeId::new(id).expect("not 0"),
            incarnation: Incarnation(1),
            next: 1,
            skipped: Vec::new(),
            sent: Vec::new(),
            windows: Vec::new(),
        };
        Self { nodes: (1..=3).map(node).collect() }
    }

    /// Returns the items of one log entry.
    pub fn entry(&mut self, random: &mut Random, now: Now) -> Vec<Item> {
        random.some(3, |random| match random.below(20) {
            0 => Item::Expire {
                term: if random.percent(80) { TERM } else { Term(random.below(9)) },
                leases: random.some(2, lease_id),
            },
            _ => {
                let node = random.below(self.nodes.len() as u64) as usize;
                Item::Proposal(self.nodes[node].proposal(random, now))
            }
        })
    }

    /// Returns the id of a request, usually of a request that was made.
    pub fn request_id(&self, random: &mut Random) -> RequestId {
        let node = random.pick(&self.nodes);
        match node.sent.len() as u64 {
            sent if sent > 0 && random.percent(90) => node.sent[random.below(sent) as usize].0,
            _ => RequestId {
                node: node.id,
                incarnation: Incarnation(random.below(4)),
                seq: random.below(9),
            },
        }
    }
}

impl Node {
    fn proposal(&mut self, random: &mut Random, now: Now) -> Proposal {
        if random.percent(3) {
            self.incarnation = Incarnation(self.incarnation.get() + 1 + random.below(2));
            self.next = 1;
            self.skipped.clear();
            self.windows.clear();
        }
        let again = !self.sent.is_empty() && random.percent(25);
        let (incarnation, requests) = if again {
            // Repeat requests of one incarnation in any order. Some of these requests may be completed.
            let (first, _) = random.pick(&self.sent).clone();
            let life: Vec<_> =
                self.sent.iter().filter(|(id, _)| id.incarnation == first.incarnation).collect();
            let newest = life.len().saturating_sub(6);
            let few = if random.percent(70) { &life[newest..] } else { &life[..] };
            let requests = (0..=random.below(2)).map(|_| {
                let (id, command) = random.pick(few);
                (id.seq, command.clone())
            });
            (first.incarnation, requests.collect())
        } else {
            let requests = random.some(3, |random| {
                let seq = self.number(random);
                let command = command(random, now);
                let id = RequestId { node: self.id, incarnation: self.incarnation, seq };
                self.sent.push((id, command.clone()));
                (seq, command)
            });
            (self.incarnation, requests)
        };
        let window = match self.windows.len() as u64 {
            // Use an outdated window.
            old if old > 0 && random.percent(20) => {
                self.windows[random.below(old) as usize].clone()
            }
            _ => self.window(random),
        };
        self.windows.push(window.clone());
        Proposal { node: self.id, incarnation, window, requests }
    }

    /// Returns the number for a new request, usually the next number.
    fn number(&mut self, random: &mut Random) -> u64 {
        if !self.skipped.is_empty() && random.percent(30) {
            let at = random.below(self.skipped.len() as u64) as usize;
            return self.skipped.swap_remove(at);
        }
        for _ in 0..if random.percent(10) { random.below(3) } else { 0 } {
            self.skipped.push(self.next);
            self.next += 1;
        }
        self.next += 1;
        self.next - 1
    }

    /// Returns a window: usually a window that a correct node would send, and sometimes a window
    /// that marks an open request as completed.
    fn window(&self, random: &mut Random) -> AckWindow {
        let frontier = self.next.saturating_sub(random.below(8));
        let lowest = frontier.saturating_sub(8).max(1);
        let mut open: Vec<Span<u64>> = Vec::new();
        for seq in lowest..frontier {
            if random.percent(85) {
                match open.last_mut() {
                    Some(last) if last.end == seq => last.end += 1,
                    _ => open.push(seq..seq + 1),
                }
            }
        }
        AckWindow { frontier, open }
    }
}

/// Returns a command that passes the limits, as all callers ensure.
fn command(random: &mut Random, now: Now) -> Command {
    let limits = Limits::default();
    loop {
        let command = match random.below(100) {
            // Alarms are ended often, because commands are rejected while one is active.
            0..6 => Command::Alarm(match random.below(3) {
                0 => AlarmChange::End(alarm(random)),
                _ => AlarmChange::EndAll,
            }),
            6..40 => Command::Put(put(random, 15)),
            40..55 => Command::Delete(delete(random)),
            55..80 => Command::Txn(txn(random, now, 1, false)),
            80..84 => Command::Compact(compaction(random, now)),
            84 => Command::Alarm(match random.below(4) {
                0 => AlarmChange::EndAllOf(*random.pick(&members())),
                _ => AlarmChange::Raise(alarm(random)),
            }),
            85..96 => Command::Grant {
                id: random.percent(80).then(|| lease_id(random)),
                ttl: Duration::from_millis(1 + random.below(9000)),
                session: random.percent(50).then(|| SessionInfo {
                    label: (*random.pick(&["", "worker", "batch"])).to_owned(),
                    own: random.percent(60),
                }),
            },
            _ => Command::Revoke(lease_id(random)),
        };
        if limits.check(&command).is_ok() {
            return command;
        }
    }
}

fn members() -> [NodeId; 2] {
    [1, 2].map(|id| NodeId::new(id).expect("not 0"))
}

fn alarm(random: &mut Random) -> Alarm {
    let kind = *random.pick(&[AlarmKind::NoSpace, AlarmKind::NoSpace, AlarmKind::Corrupt]);
    Alarm { member: random.percent(50).then(|| *random.pick(&members())), kind }
}

/// Returns a put. With a probability of `keeps` percent the put keeps the value, and with the same
/// probability it keeps the lease. A put that keeps one of them may be rejected.
fn put(random: &mut Random, keeps: u64) -> Put {
    Put {
        key: key(random),
        value: if random.percent(keeps) { PutValue::Keep } else { PutValue::Set(value(random)) },
        lease: match random.below(100) {
            n if n < keeps => PutLease::Keep,
            n if n < 3 * keeps => PutLease::Attach(lease_id(random)),
            _ => PutLease::None,
        },
        prev_kv: random.percent(30),
    }
}

fn delete(random: &mut Random) -> Delete {
    // A history with many keys must not lose all of them at once, so it deletes small ranges.
    let range = if random.is_wide { few_keys(random) } else { keys(random) };
    Delete { range, prev_kv: random.percent(30) }
}

fn few_keys(random: &mut Random) -> KeyRange {
    let first = random.below(WIDE_KEYS);
    KeyRange::between(wide_key(first), wide_key(first + random.below(20)))
}

fn txn(random: &mut Random, now: Now, depth: u64, only_reads: bool) -> Txn {
    let mut op = |random: &mut Random| match random.below(100) {
        0..15 if depth < DEPTH_MAX => Op::Txn(txn(random, now, depth + 1, only_reads)),
        15..60 if !only_reads => Op::Put(put(random, 4)),
        60..75 if !only_reads => Op::Delete(delete(random)),
        _ => Op::Range(range(random, now)),
    };
    Txn {
        compares: random.some(2, |random| compare(random, now)),
        success: random.some(4, &mut op),
        failure: random.some(4, &mut op),
    }
}

/// Returns a transaction that reads without the log.
pub fn read_txn(random: &mut Random, now: Now) -> Txn {
    txn(random, now, 1, true)
}

fn compare(random: &mut Random, now: Now) -> Compare {
    Compare {
        range: keys(random),
        target: match random.below(5) {
            0 => CompareTarget::Version(random.below(4)),
            1 => CompareTarget::Create(revision(random, now)),
            2 => CompareTarget::Mod(revision(random, now)),
            3 => CompareTarget::Value(value(random)),
            _ => CompareTarget::Lease(random.below(5)),
        },
        op: *random.pick(&[
            CompareOp::Equal,
            CompareOp::NotEqual,
            CompareOp::Greater,
            CompareOp::Less,
        ]),
    }
}

/// Returns a range of any kind, at any revision.
pub fn range(random: &mut Random, now: Now) -> Range {
    let bounded = random.percent(25);
    let bound = |random: &mut Random| {
        let bound = (bounded && random.percent(40)).then(|| revision(random, now));
        bound.filter(|revision| *revision > Revision(0))
    };
    Range {
        bounds: RevisionBounds {
            mod_min: bound(random),
            mod_max: bound(random),
            create_min: bound(random),
            create_max: bound(random),
        },
        range: keys(random),
        revision: random.percent(40).then(|| revision(random, now)),
        limit: random.percent(40).then(|| random.below(5)),
        sort: Sort {
            target: *random.pick(&[
                SortTarget::Key,
                SortTarget::Key,
                SortTarget::Key,
                SortTarget::Version,
                SortTarget::Create,
                SortTarget::Mod,
                SortTarget::Value,
            ]),
            order: *random.pick(&[SortOrder::Ascend, SortOrder::Ascend, SortOrder::Descend]),
        },
        keys_only: random.percent(15),
        count_only: random.percent(15),
    }
}

/// Returns a revision: usually a readable revision, and sometimes a revision that is too old or too
/// new.
pub fn revision(random: &mut Random, now: Now) -> Revision {
    let (oldest, newest) = (now.compacted.get(), now.revision.get());
    Revision(match random.below(10) {
        0 => random.below(newest + 3),
        1..4 => newest.saturating_sub(random.below(3)),
        _ => oldest + random.below(newest - oldest + 1),
    })
}

/// Returns a revision for a compaction, usually slightly newer than the last compaction, so that
/// some history stays.
fn compaction(random: &mut Random, now: Now) -> Revision {
    let (oldest, newest) = (now.compacted.get(), now.revision.get());
    Revision(match random.below(10) {
        0 => newest,
        1 => random.below(newest + 3),
        _ => oldest + random.below((newest - oldest) / 2 + 1),
    })
}

/// Keys that are neighbours and prefixes of each other.
const KEYS: [&[u8]; 9] = [b"\0", b"a", b"a\0", b"aa", b"ab", b"b", b"b\xff", b"c", b"\xff"];

fn key(random: &mut Random) -> Bytes {
    if random.is_wide && random.percent(90) {
        return wide_key(random.below(WIDE_KEYS));
    }
    Bytes::from_static(random.pick::<&[u8]>(&KEYS))
}

/// Number of additional keys in a wide history.
const WIDE_KEYS: u64 = 700;

fn wide_key(number: u64) -> Bytes {
    format!("k{number:03}").into()
}

/// Returns the items that put every key of a wide history.
pub fn wide_start() -> Vec<Item> {
    let ops_max = Limits::default().txn_ops_max as u64;
    let txn = |first: u64| Txn {
        success: (first..WIDE_KEYS.min(first + ops_max))
            .map(|n| Op::put(wide_key(n), "0"))
            .collect(),
        ..Txn::default()
    };
    let requests = (0..WIDE_KEYS).step_by(ops_max as usize).map(txn).map(Command::Txn);
    vec![Item::Proposal(Proposal {
        node: NodeId::new(9).expect("not 0"),
        incarnation: Incarnation(1),
        window: AckWindow::default(),
        requests: (1..).zip(requests).collect(),
    })]
}

/// Returns a key range of any kind.
pub fn keys(random: &mut Random) -> KeyRange {
    let start = key(random);
    match random.below(10) {
        0..3 if random.is_wide => few_keys(random),
        0..4 => KeyRange::key(start),
        4..6 => KeyRange::prefix(start),
        6 => KeyRange::starting_at(start),
        7 => KeyRange::all(),
        _ => KeyRange::between(start, key(random)),
    }
}

/// Length of a long value. It is stored separately from its row, and is too long for the dedup table.
pub const LONG_BYTES: usize = 2000;

fn value(random: &mut Random) -> Bytes {
    match random.below(12) {
        0 => vec![b'x'; LONG_BYTES].into(),
        n => Bytes::from_static(["", "1", "2", "10"][n as usize % 4].as_bytes()),
    }
}

/// Returns a lease id: a small id, or one of two large ids.
pub fn lease_id(random: &mut Random) -> LeaseId {
    let id = match random.below(12) {
        0 => u64::MAX,
        1 => 1 << 40,
        small => 1 + small % 5,
    };
    LeaseId::new(id).expect("not 0")
}

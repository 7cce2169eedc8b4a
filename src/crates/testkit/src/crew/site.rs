//! A member that runs the workloads of callers. Each caller is a task that makes one call after another.

use std::future::Future;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bowline::{Client, Compare, KeyRange, LeaseId, Node, Op, Session};
use bowline_fleet::Dice;
use tokio::task::JoinSet;

use super::{Measured, Trace, Trade, together};

const VALUE_BYTES: usize = 256;

/// Number of puts in a transaction that fills the store.
const FILL_AT_ONCE: u64 = 100;

/// Number of watchers in the watch row.
pub const WATCHERS: usize = 100;

/// Number of keys that the callers of compare-and-set share.
const COMPARED_KEYS: u64 = 10_000;

/// A kind of workload. Commands between processes contain [`Work::word`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Puts an initial value for every key; not measured.
    Fill,
    /// A put of a random key.
    Put,
    /// A linearizable get of a random key.
    Get,
    /// A local get of a random key.
    LocalGet,
    /// Puts and linearizable gets alternate.
    Mixed,
    /// A local get, then a transaction that puts if the row is unchanged.
    CompareAndSet,
    /// Puts of watched keys. The time until each watcher has received the event is measured.
    Watch,
    /// Grants of leases, which stay for the next row.
    Grant,
    /// Revocations of the leases that were granted.
    Revoke,
    /// Each caller locks and unlocks its own lock.
    Lock,
    /// All callers on all members lock and unlock the same lock. The wait is measured.
    Handoff,
}

const WORDS: [(&str, Work); 11] = [
    ("fill", Work::Fill),
    ("put", Work::Put),
    ("get", Work::Get),
    ("local-get", Work::LocalGet),
    ("mixed", Work::Mixed),
    ("compare-and-set", Work::CompareAndSet),
    ("watch", Work::Watch),
    ("grant", Work::Grant),
    ("revoke", Work::Revoke),
    ("lock", Work::Lock),
    ("handoff", Work::Handoff),
];

impl Work {
    /// Returns the word of the workload.
    pub fn word(self) -> &'static str {
        WORDS.iter().find(|(_, work)| *work == self).expect("every work has a word").0
    }
}

/// Returns the order for a workload.
pub fn order(work: Work, callers: u64, time: Duration) -> String {
    format!("{} {callers} {}", work.word(), time.as_millis())
}

impl FromStr for Work {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = WORDS.iter().find(|(known, _)| *known == word);
        found.map(|(_, work)| *work).ok_or_else(|| format!("no work is called {word:?}"))
    }
}

/// A member, and the state that its callers share.
pub struct Site {
    node: Node,
    keys: AtomicU64,
    leases: Mutex<Vec<LeaseId>>,
}

impl Trade for Site {
    fn new(node: Node) -> Self {
        Self { node, keys: AtomicU64::new(1), leases: Mutex::default() }
    }

    fn node(&self) -> &Node {
        &self.node
    }

    async fn execute(self: Arc<Self>, order: String) -> String {
        let words: Vec<&str> = order.split(' ').collect();
        match words[..] {
            ["keys", keys] => {
                self.keys.store(keys.parse().expect("a number of keys"), Ordering::Relaxed);
                String::new()
            }
            // Returns the time until the next write is acknowledged, including a possible election.
            ["next-write"] => timed(put_next(&self.node)).await.to_words(),
            ["transfer"] => {
                let transfer = async {
                    self.node.transfer_leadership(None).await.expect("another member takes over");
                    put_next(&self.node).await;
                };
                timed(transfer).await.to_words()
            }
            // Discards the history, so that earlier rows do not affect the next.
            ["compact"] => {
                let kv = self.node.client();
                let revision = kv.put("next", "v").await.expect("a put").revision;
                kv.compact(revision).await.expect("a compaction");
                String::new()
            }
            ["trace", callers, millis] => {
                let callers = callers.parse().expect("a number of callers");
                let time = Duration::from_millis(millis.parse().expect("milliseconds"));
                self.trace(callers, time).await.to_words()
            }
            [work, callers, millis] => {
                let work: Work = work.parse().expect("a kind of work");
                let callers = callers.parse().expect("a number of callers");
                let time = Duration::from_millis(millis.parse().expect("milliseconds"));
                self.run(work, callers, time).await.to_words()
            }
            _ => panic!("no such order: {order:?}"),
        }
    }
}

impl Site {
    /// Runs `callers` callers for `time`.
    async fn run(self: &Arc<Self>, work: Work, callers: u64, time: Duration) -> Measured {
        match work {
            Work::Fill => self.fill(callers).await,
            Work::Watch => self.watch(callers, time).await,
            _ => self.work(work, callers, time).await,
        }
    }

    fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    async fn fill(self: &Arc<Self>, callers: u64) -> Measured {
        let share = self.keys().div_ceil(callers);
        together(callers, |number| {
            let site = Arc::clone(self);
            async move {
                let measured = Measured::new(Duration::ZERO);
                let end = ((number + 1) * share).min(site.keys());
                let mut at = number * share;
                while at < end {
                    let next = (at + FILL_AT_ONCE).min(end);
                    let txn = site.node.client().txn();
                    let filled = (at..next).fold(txn, |t, n| t.then(Op::put(key(n), value())));
                    filled.commit().await.expect("a transaction that fills");
                    at = next;
                }
                measured
            }
        })
        .await
    }

    async fn work(self: &Arc<Self>, work: Work, callers: u64, time: Duration) -> Measured {
        // Open the session before the measurement starts.
        let session = match work {
            Work::Lock | Work::Handoff => Some(self.node.session().await.expect("a session")),
            _ => None,
        };
        together(callers, |number| {
            let (site, session) = (Arc::clone(self), session.clone());
            async move { site.caller(work, number, session, Instant::now() + time).await }
        })
        .await
    }

    async fn caller(
        &self,
        work: Work,
        number: u64,
        session: Option<Session>,
        until: Instant,
    ) -> Measured {
        let mut measured = Measured::new(Duration::ZERO);
        let kv = self.node.client();
        let mut random = Dice::new(number);
        for turn in 0_u64.. {
            let begun = Instant::now();
            if begun >= until {
                break;
            }
            let pick = random.below(self.keys());
            match work {
                Work::Put => put(&kv, pick).await,
                Work::Get => get(&kv, pick).await,
                Work::Mixed if turn % 2 == 0 => put(&kv, pick).await,
                Work::Mixed => get(&kv, pick).await,
                Work::LocalGet => {
                    let row = kv.get(key(pick)).local().await.expect("a local get");
                    assert!(row.is_some(), "every key has a value");
                }
                Work::CompareAndSet => {
                    compare_and_set(&kv, pick % COMPARED_KEYS.min(self.keys())).await;
                }
                Work::Grant => {
                    let lease = kv.grant(Duration::from_secs(600)).await.expect("a grant").id;
                    self.leases().push(lease);
                }
                Work::Revoke => {
                    let Some(lease) = self.leases().pop() else { break };
                    kv.revoke(lease).await.expect("a revocation");
                }
                Work::Lock | Work::Handoff => {
                    let session = session.as_ref().expect("it was opened for this");
                    let name = match work {
                        Work::Lock => format!("lock/{}/{number}", self.node.status().name),
                        _ => "handoff".to_owned(),
                    };
                    let guard = session.mutex(name).lock().await.expect("a lock");
                    if work == Work::Handoff {
                        measured.add(begun.elapsed());
                    }
                    let _ = guard.release().await.expect("a release");
                }
                Work::Fill | Work::Watch => unreachable!("it has a function of its own"),
            }
            if work != Work::Handoff {
                measured.add(begun.elapsed());
            }
            if work == Work::LocalGet && turn % 64 == 63 {
                // A local get never waits, so without this call the loop would block other tasks.
                tokio::task::yield_now().await;
            }
        }
        measured
    }

    async fn watch(self: &Arc<Self>, callers: u64, time: Duration) -> Measured {
        let begun = Instant::now();
        let until = begun + time;
        let mut watchers = JoinSet::new();
        for _ in 0..WATCHERS {
            let range = KeyRange::prefix("watched/");
            let mut watch = self.node.client().watch(range).await.expect("a watch");
            watchers.spawn(async move {
                let mut measured = Measured::new(Duration::ZERO);
                while let Ok(batch) = tokio::time::timeout_at(until.into(), watch.next()).await {
                    let batch =
                        batch.expect("the watch yields a batch").expect("nothing is compacted");
                    let now = begun.elapsed();
                    for event in &batch.events {
                        let sent = event.kv.value[..8].try_into().expect("eight bytes");
                        let sent = Duration::from_nanos(u64::from_le_bytes(sent));
                        measured.add(now.saturating_sub(sent));
                    }
                }
                measured
            });
        }
        let writers = together(callers, |number| {
            let kv = self.node.client();
            async move {
                while Instant::now() < until {
                    let mut value = value();
                    let sent = u64::try_from(begun.elapsed().as_nanos()).expect("not centuries");
                    value[..8].copy_from_slice(&sent.to_le_bytes());
                    kv.put(format!("watched/{number}"), value).await.expect("a put");
                }
                Measured::new(Duration::ZERO)
            }
        });
        let _ = writers.await;
        let mut all = Measured::new(time);
        while let Some(measured) = watchers.join_next().await {
            all.merge(&measured.expect("a watcher"));
        }
        all
    }

    /// Puts random keys for `time`, and records when each put is acknowledged.
    async fn trace(self: &Arc<Self>, callers: u64, time: Duration) -> Trace {
        let until = Instant::now() + time;
        let mut tasks = JoinSet::new();
        for number in 0..callers {
            let site = Arc::clone(self);
            tasks.spawn(async move {
                let (mut trace, mut random) = (Trace::default(), Dice::new(number));
                let kv = site.node.client();
                while Instant::now() < until {
                    put(&kv, random.below(site.keys())).await;
                    trace.add_now();
                }
                trace
            });
        }
        let mut all = Trace::default();
        tasks.join_all().await.iter().for_each(|trace| all.merge(trace));
        all
    }

    fn leases(&self) -> std::sync::MutexGuard<'_, Vec<LeaseId>> {
        self.leases.lock().expect("no caller panicked")
    }
}

async fn put_next(node: &Node) {
    node.client().put("next", "v").await.expect("the next write");
}

async fn timed(work: impl Future<Output = ()>) -> Measured {
    let begun = Instant::now();
    work.await;
    let mut measured = Measured::new(begun.elapsed());
    measured.add(measured.elapsed);
    measured
}

async fn put(kv: &Client, number: u64) {
    kv.put(key(number), value()).await.expect("a put");
}

async fn get(kv: &Client, number: u64) {
    let row = kv.get(key(number)).await.expect("a get");
    assert!(row.is_some(), "every key has a value");
}

async fn compare_and_set(kv: &Client, number: u64) {
    let key = key(number);
    let row = kv.get(key.clone()).local().await.expect("a local get");
    let same = Compare::mod_revision(key.clone()).eq(row.expect("it is there").mod_revision);
    let txn = kv.txn().when(same).then(Op::put(key, value()));
    txn.commit().await.expect("a transaction");
}

fn key(number: u64) -> String {
    format!("k/{number:016}")
}

fn value() -> Vec<u8> {
    vec![b'v'; VALUE_BYTES]
}

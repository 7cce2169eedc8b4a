//! What the demo's parent and its processes say to each other, a JSON object a line: orders go down a
//! process's standard input, reports come up its standard output. The end of the input is the order to
//! end, so that no process outlives its parent.

use std::path::PathBuf;
use std::time::Duration;

use bowline::Token;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment on the clock that all processes of a machine share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Instant(Duration);

impl Instant {
    /// The present moment. std's `Instant` is the same clock, but cannot be told to another process.
    pub(crate) fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0)))
    }

    /// How long this is after `earlier`; zero if it is not.
    pub(crate) fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The name of one increment, unique over all processes and their lives: `n2.1.w1.17` is the 17th
/// attempt of the first worker of `n2` in its first life.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct OpId(pub(crate) String);

impl OpId {
    pub(crate) fn new(worker: &Worker, attempt: u64) -> Self {
        Self(format!("{}.{attempt}", worker.0))
    }
}

impl std::fmt::Display for OpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of one worker in one life of its process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Worker(pub(crate) String);

impl Worker {
    pub(crate) fn new(member: &str, life: u32, number: u32) -> Self {
        Self(format!("{member}.{life}.w{number}"))
    }
}

/// A fencing token as a ledger keeps it: written down and read again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Fence(pub(crate) Token);

impl std::fmt::Display for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Fence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Fence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Fence).map_err(serde::de::Error::custom)
    }
}

/// What a process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// The first: who to be.
    Start(Part),
    /// Whoever of this process is granted the lock next: say so at this point, and stay there.
    Linger { at: Point },
    /// Whoever lingers: go on. If nobody does yet, nobody need.
    GoOn,
    /// Workers: finish what you are at.
    Rest,
    /// Read the store, linearizably, and say what is in it.
    Read,
}

/// A point of an increment, with the lock held and the counter read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Point {
    /// Before anything is written.
    BeforeLedger,
    /// After the ledger has accepted it, before the store is asked.
    BeforeStore,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Point::BeforeLedger => "before the ledger",
            Point::BeforeStore => "between ledger and store",
        })
    }
}

/// The part that a process plays.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Which member it is.
    pub(crate) member: String,
    /// How often it has been started, this time included.
    pub(crate) life: u32,
    /// All members with their addresses.
    pub(crate) members: Vec<(String, String)>,
    /// Its data directory.
    pub(crate) data: PathBuf,
    /// Where the ledger listens.
    pub(crate) ledger: String,
    /// How many workers it has.
    pub(crate) workers: u32,
}

/// What a process has to say.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum Report {
    /// Its node runs.
    Started,
    /// Its node did not start, or has stopped by itself, or the ledger is gone.
    Failed { why: String },
    /// Its node leads, from now on.
    Leads { term: u64 },
    /// Its node leads no more.
    LeadsNoMore { term: u64 },
    /// A worker holds the lock.
    Granted { worker: Worker, op: OpId, token: Fence },
    /// A worker holds the lock and was told to stay: its writes wait for [`Order::GoOn`].
    Lingers { op: OpId, token: Fence },
    /// The ledger refused, because of a later holder.
    LedgerRefused { op: OpId, token: Fence, highest: Fence },
    /// The store carried the increment out, and made the counter `count`. Of earlier tries there was no
    /// telling.
    Acknowledged { op: OpId, count: u64, began: Instant, tries: u32 },
    /// The store refused, because the lock was lost: nothing was changed, unless there is a doubt about
    /// an earlier try.
    StoreRefused { op: OpId, doubt: bool },
    /// No telling whether the store carried it out.
    Unknown { op: OpId, why: String },
    /// A worker has lost, or did not get, its lock: a sentence.
    Lost { worker: Worker, why: String },
    /// All workers rest.
    Resting,
    /// Part of what is in the store.
    Rows { rows: Vec<Row> },
    /// The rest of it.
    Store { count: u64, in_line: Vec<String> },
}

/// An increment as the store has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Which.
    pub(crate) op: OpId,
    /// What it made of the counter.
    pub(crate) count: u64,
    /// The fencing token that it was made under.
    pub(crate) token: Fence,
    /// The revision that it took.
    pub(crate) revision: u64,
    /// How often its key was put.
    pub(crate) version: u64,
}

/// What a worker wants the ledger to keep.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Append {
    pub(crate) op: OpId,
    pub(crate) token: Fence,
}

/// What the ledger says to that.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub(crate) enum Ruling {
    /// It is written down.
    Accepted,
    /// A higher token was seen before.
    Refused { highest: Fence },
}

/// One line, ready to be sent.
pub(crate) fn line<T: Serialize>(message: &T) -> String {
    let mut line = serde_json::to_string(message).expect("plain values become JSON");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let token = Fence("7.3".parse().unwrap());
        let op = OpId::new(&Worker::new("n2", 1, 2), 17);
        assert_eq!(op.to_string(), "n2.1.w2.17");
        let report = Report::Lingers { op, token };
        let line = line(&report);
        assert_eq!(line, "{\"report\":\"lingers\",\"op\":\"n2.1.w2.17\",\"token\":\"7.3\"}\n");
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }
}

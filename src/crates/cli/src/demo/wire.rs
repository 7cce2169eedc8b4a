//! Messages between the demo's parent and its processes, one JSON object per line. Orders are sent to a process's
//! standard input, and reports are read from its standard output. A process ends when its standard input ends, so no
//! process outlives the parent.

use std::path::PathBuf;
use std::time::Duration;

use bowline::Token;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time on the clock that all processes of a machine share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Instant(Duration);

impl Instant {
    /// Returns the current time. std's `Instant` uses the same clock, but cannot be sent to another process.
    pub(crate) fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0)))
    }

    /// Returns the time since `earlier`, or zero if it is later.
    pub(crate) fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Name of an increment, unique over all processes and incarnations: `n2.1.w1.17` is the 17th attempt of the first
/// worker of `n2` in its first incarnation.
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

/// Name of a worker in one incarnation of its process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Worker(pub(crate) String);

impl Worker {
    pub(crate) fn new(member: &str, life: u32, number: u32) -> Self {
        Self(format!("{member}.{life}.w{number}"))
    }
}

/// A fencing token that can be serialized.
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

/// An order to a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// The first order, with the process's parameters.
    Start(Part),
    /// The next worker that gets the lock must report it at this point, and pause there.
    Linger { at: Point },
    /// The paused worker continues. Also cancels a pause that has not happened yet.
    GoOn,
    /// The workers finish their current increment and stop.
    Rest,
    /// Read the store at a linearizable revision, and report its contents.
    Read,
}

/// A point within an increment, with the lock held and the counter read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Point {
    /// Before anything is written.
    BeforeLedger,
    /// After the ledger was written, before the store.
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

/// Parameters of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Name of the member.
    pub(crate) member: String,
    /// Number of starts, including this one.
    pub(crate) life: u32,
    /// Names and addresses of all members.
    pub(crate) members: Vec<(String, String)>,
    pub(crate) data: PathBuf,
    /// Address of the ledger.
    pub(crate) ledger: String,
    /// Number of workers.
    pub(crate) workers: u32,
}

/// A report from a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum Report {
    /// The node is running.
    Started,
    /// The node did not start or has stopped by itself, or the ledger is gone.
    Failed { why: String },
    /// The node has become leader.
    Leads { term: u64 },
    /// The node is no longer leader.
    LeadsNoMore { term: u64 },
    /// A worker holds the lock.
    Granted { worker: Worker, op: OpId, token: Fence },
    /// A worker holds the lock and pauses until [`Order::GoOn`].
    Lingers { op: OpId, token: Fence },
    /// The ledger has rejected a write because of a later holder.
    LedgerRefused { op: OpId, token: Fence, highest: Fence },
    /// The store has applied the increment, with the counter `count`. Earlier attempts had unknown outcomes.
    Acknowledged { op: OpId, count: u64, began: Instant, tries: u32 },
    /// The store has rejected the increment because the lock was lost. Nothing was changed, unless an earlier attempt
    /// had an unknown outcome.
    StoreRefused { op: OpId, doubt: bool },
    /// The outcome is unknown.
    Unknown { op: OpId, why: String },
    /// A worker has lost the lock or failed to acquire it.
    Lost { worker: Worker, why: String },
    /// All workers rest.
    Resting,
    /// A part of the store's contents.
    Rows { rows: Vec<Row> },
    /// The rest of the store's contents.
    Store { count: u64, in_line: Vec<String> },
}

/// An increment in the store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) op: OpId,
    /// Value of the counter that it wrote.
    pub(crate) count: u64,
    /// Its fencing token.
    pub(crate) token: Fence,
    /// Its revision.
    pub(crate) revision: u64,
    /// Number of puts of its key.
    pub(crate) version: u64,
}

/// A worker's request to the ledger.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Append {
    pub(crate) op: OpId,
    pub(crate) token: Fence,
}

/// The ledger's response.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub(crate) enum Ruling {
    /// The request is recorded and accepted.
    Accepted,
    /// A higher token was seen before.
    Refused { highest: Fence },
}

/// Encodes a message as a line.
pub(crate) fn line<T: Serialize>(message: &T) -> String {
    let mut line = serde_json::to_string(message).expect("plain values can be serialized");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_report_round_trips() {
        let token = Fence("7.3".parse().unwrap());
        let op = OpId::new(&Worker::new("n2", 1, 2), 17);
        assert_eq!(op.to_string(), "n2.1.w2.17");
        let report = Report::Lingers { op, token };
        let line = line(&report);
        assert_eq!(line, "{\"report\":\"lingers\",\"op\":\"n2.1.w2.17\",\"token\":\"7.3\"}\n");
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }
}

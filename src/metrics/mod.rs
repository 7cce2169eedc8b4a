//! The metrics of a node: counters, gauges and histograms. Each node has its own metrics, without
//! global variables.
//!
//! ```text
//!   driver, log, callers ──add──▶ Meters (atomics) ──read──▶ MetricsSnapshot ──▶ samples ─┬▶ text for Prometheus
//!                                                                                         └▶ a recorder
//! ```
//!
//! All parts of a node share one [`Meters`] and update it without locks. The only exceptions are the
//! values per peer: the driver replaces them once per tick, under a mutex. [`Metrics`] is the
//! handle for programs. One table lists every metric with its help text. The fields, the snapshot
//! and the Prometheus text are generated from this table, and a test compares the table with
//! `docs/operating/metrics.md`.
//!
//! Invariant: this module uses no clock and no threads. Callers measure the durations and pass them
//! in.

mod cell;
#[cfg(feature = "metrics")]
mod export;
mod samples;
#[cfg(feature = "serde")]
mod serialize;
mod snapshot;
mod text;
mod words;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) use cell::{CounterCell, Gauge, Seconds, Sizes};
pub use snapshot::{Histogram, PeerLag, PeerLink, PeerQueue};
pub use words::{Ending, NodeThread, Refused, RequestKind, Stage};

use cell::{SECONDS_FIRST, SIZES_FIRST};
use samples::{Labels, Show, Sink};
use text::Text;

/// A metric that can be read.
trait MetricRead {
    /// Type of the value read.
    type Value;

    fn read(&self) -> Self::Value;
}

impl MetricRead for CounterCell {
    type Value = u64;

    fn read(&self) -> u64 {
        self.get()
    }
}

impl MetricRead for Gauge {
    type Value = u64;

    fn read(&self) -> u64 {
        self.get()
    }
}

impl MetricRead for Seconds {
    type Value = Histogram;

    fn read(&self) -> Histogram {
        self.histogram()
    }
}

impl Seconds {
    pub(crate) fn histogram(&self) -> Histogram {
        const MICROSECONDS_A_SECOND: f64 = 1e6;
        Histogram::read(&self.0, SECONDS_FIRST, MICROSECONDS_A_SECOND)
    }
}

impl MetricRead for Sizes {
    type Value = Histogram;

    fn read(&self) -> Histogram {
        Histogram::read(&self.0, SIZES_FIRST, 1.0)
    }
}

/// One metric for each value of a label.
pub(crate) struct By<L, M> {
    each: Vec<(L, M)>,
}

/// The values of a metric with a label: a list of label values, each with its metric value.
pub type ByLabel<L, V> = Vec<(L, V)>;

/// A label with a fixed set of values.
pub(crate) trait Label: Copy + Eq + 'static {
    /// Name of the label.
    const NAME: &'static str;
    fn all() -> &'static [Self];
    fn text(self) -> &'static str;
}

macro_rules! label_of {
    ($($type:ident = $name:literal),*) => {
        $(impl Label for $type {
            const NAME: &'static str = $name;
            fn all() -> &'static [Self] {
                Self::ALL
            }
            fn text(self) -> &'static str {
                self.as_str()
            }
        })*
    };
}

label_of!(
    RequestKind = "kind",
    Ending = "outcome",
    Stage = "stage",
    Refused = "reason",
    NodeThread = "thread"
);

impl<L: Label, M: Default> Default for By<L, M> {
    fn default() -> Self {
        Self { each: L::all().iter().map(|label| (*label, M::default())).collect() }
    }
}

impl<L: Label, M> By<L, M> {
    /// Returns the metric of one label value.
    pub(crate) fn at(&self, label: L) -> &M {
        // A label has only a few values, so a linear search is fast enough.
        let found = self.each.iter().find(|(each, _)| *each == label);
        &found.expect("every word has one").1
    }
}

impl<L: Label, M: MetricRead> MetricRead for By<L, M> {
    type Value = ByLabel<L, M::Value>;

    fn read(&self) -> Self::Value {
        self.each.iter().map(|(label, meter)| (*label, meter.read())).collect()
    }
}

/// Values per peer. The driver replaces the whole list once per tick.
pub(crate) struct Reported<T>(Mutex<Vec<T>>);

type Peers = Reported<PeerLag>;
type PeerBytes = Reported<PeerQueue>;
type PeerLinks = Reported<PeerLink>;

impl<T> Default for Reported<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Reported<T> {
    pub(crate) fn set(&self, peers: Vec<T>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    }
}

impl<T: Clone> MetricRead for Reported<T> {
    type Value = Vec<T>;

    fn read(&self) -> Vec<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Generates the fields, the snapshot and the text from one table.
macro_rules! catalogue {
    ($($(#[doc = $help:literal])+ $name:ident: $meter:ty => $value:ty, $kind:literal;)*) => {
        /// All metrics of a node. See the module page.
        #[derive(Default)]
        pub(crate) struct Meters {
            $($(#[doc = $help])+ pub(crate) $name: $meter,)*
        }

        /// The values of all metrics of a node at one moment. Counters and histograms count from
        /// the start of the node. Gauges that only the driver can read show their values at its
        /// last tick.
        #[derive(Clone, PartialEq, Debug)]
        #[non_exhaustive]
        pub struct MetricsSnapshot {
            /// The node's name.
            pub node: String,
            $($(#[doc = $help])+ pub $name: $value,)*
        }

        impl Meters {
            fn read(&self, node: &str) -> MetricsSnapshot {
                MetricsSnapshot { node: node.to_owned(), $($name: self.$name.read(),)* }
            }
        }

        impl MetricsSnapshot {
            /// Returns the Prometheus text format, version 0.0.4. Every sample has the label
            /// `node`.
            pub fn to_prometheus(&self) -> String {
                let mut text = Text::default();
                self.show(&mut text);
                text.finish()
            }

            fn show(&self, sink: &mut impl Sink) {
                let labels = Labels::new("node", &self.node);
                $(
                    let help = concat!($($help),+).trim_ascii();
                    sink.head(concat!("bowline_", stringify!($name)), help, $kind);
                    self.$name.show(sink, &labels);
                )*
            }
        }

        /// An object with a field for each metric, named as here. A value with a label is an object
        /// with a field for each label value.
        #[cfg(feature = "serde")]
        impl serde::Serialize for MetricsSnapshot {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let fields = [$(stringify!($name)),*].len() + 1;
                let mut all = to.serialize_struct("MetricsSnapshot", fields)?;
                all.serialize_field("node", &self.node)?;
                $(all.serialize_field(stringify!($name), &serialize::Value(&self.$name))?;)*
                all.end()
            }
        }

        #[cfg(test)]
        const NAMES: &[&str] = &[$(concat!("bowline_", stringify!($name))),*];
    };
}

catalogue! {
    /// Completed requests made on this node, by kind and outcome.
    requests_total: By<RequestKind, By<Ending, CounterCell>> => ByLabel<RequestKind, ByLabel<Ending, u64>>, "counter";
    /// Time from a request's call to its completion, by kind.
    request_seconds: By<RequestKind, Seconds> => ByLabel<RequestKind, Histogram>, "histogram";
    /// Time that successful writes spent in each stage.
    write_stage_seconds: By<Stage, Seconds> => ByLabel<Stage, Histogram>, "histogram";
    /// Requests that took longer than the slow-request threshold.
    slow_requests_total: CounterCell => u64, "counter";
    /// Batches of entries that took longer to apply than the slow-apply threshold.
    slow_applies_total: CounterCell => u64, "counter";
    /// Requests made on this node that have no reply yet.
    open_requests: Gauge => u64, "gauge";
    /// Open requests that wait to be sent to a leader, for the first time or again.
    unsent_requests: Gauge => u64, "gauge";
    /// Bytes that admission control counts for open writes.
    open_bytes: Gauge => u64, "gauge";
    /// Linearizable reads and waits that have no reply yet.
    open_reads: Gauge => u64, "gauge";
    /// Linearizable reads whose deadline passed before a leader confirmed their read index.
    reads_unconfirmed_total: CounterCell => u64, "counter";
    /// Requests that this node did not propose as the leader, or as the supposed leader, by reason.
    proposals_refused_total: By<Refused, CounterCell> => ByLabel<Refused, u64>, "counter";
    /// Inputs that the driver found at the start of an iteration.
    inbox_inputs: Sizes => Histogram, "histogram";
    /// Highest number of bytes of messages from peers that waited for the driver thread at the same
    /// time.
    inbox_bytes_peak: Gauge => u64, "gauge";
    /// Messages of peers that were dropped because too many bytes waited.
    inbox_dropped_total: CounterCell => u64, "counter";
    /// Time of one iteration of the driver.
    turn_seconds: Seconds => Histogram, "histogram";
    /// How often a thread of the node was woken because it had work.
    wakeups_total: By<NodeThread, CounterCell> => ByLabel<NodeThread, u64>, "counter";
    /// Messages to peers that were dropped because the queue to the peer was full.
    messages_dropped_total: CounterCell => u64, "counter";
    /// Messages to peers that could not be sent because there was no connection.
    messages_unreachable_total: CounterCell => u64, "counter";
    /// Bytes queued for each other member, without the bytes that its sockets have accepted.
    peer_queue_bytes: PeerBytes => Vec<PeerQueue>, "gauge";
    /// 1 for each other member with an open connection in either direction; 0 otherwise.
    peer_connected: PeerLinks => Vec<PeerLink>, "gauge";
    /// Groups that wait for the log's thread.
    log_queue_groups: Gauge => u64, "gauge";
    /// Time to write and sync the groups queued for the log.
    log_sync_seconds: Seconds => Histogram, "histogram";
    /// Bytes of entries written to the log.
    log_bytes_total: CounterCell => u64, "counter";
    /// Entries written to the log.
    log_entries_total: CounterCell => u64, "counter";
    /// Groups written to the log by one sync.
    log_sync_groups: Sizes => Histogram, "histogram";
    /// As the leader: time from an entry's proposal until a quorum has it.
    entry_commit_seconds: Seconds => Histogram, "histogram";
    /// Entries applied in one batch.
    apply_entries: Sizes => Histogram, "histogram";
    /// Time to apply one batch of entries and to send the replies and notifications.
    apply_seconds: Seconds => Histogram, "histogram";
    /// Entries that this node or its leader knows to be committed, but that this node has not
    /// applied yet.
    apply_lag_entries: Gauge => u64, "gauge";
    /// Ranges read from this replica, also by transactions.
    ranges_total: CounterCell => u64, "counter";
    /// Puts applied to this replica, also by transactions.
    puts_total: CounterCell => u64, "counter";
    /// Bytes of the keys and values of all puts applied to this replica.
    put_bytes_total: CounterCell => u64, "counter";
    /// Deletes applied to this replica, also by transactions, and keys deleted with their leases.
    deletes_total: CounterCell => u64, "counter";
    /// Transactions of more than one operation, applied to this replica or read from it.
    txns_total: CounterCell => u64, "counter";
    /// Open watchers.
    watchers: Gauge => u64, "gauge";
    /// Open watchers that read changes from the history, because they started in the past or their
    /// inbox was full.
    watchers_behind: Gauge => u64, "gauge";
    /// Changes handed to the watch hub.
    watch_changes_total: CounterCell => u64, "counter";
    /// Times that a watcher's inbox was full, so that the watcher fell back to the history.
    watch_overflows_total: CounterCell => u64, "counter";
    /// Leases that exist.
    leases: Gauge => u64, "gauge";
    /// Leases granted on this replica.
    lease_grants_total: CounterCell => u64, "counter";
    /// Leases that ended on this replica, revoked or expired.
    lease_ends_total: CounterCell => u64, "counter";
    /// As the leader: expired leases whose revocation was proposed.
    lease_expiries_total: CounterCell => u64, "counter";
    /// As the leader: remaining time of a lease when it was renewed.
    lease_margin_seconds: Seconds => Histogram, "histogram";
    /// Sessions that this node keeps alive.
    sessions: Gauge => u64, "gauge";
    /// Time for which a session of this node was still valid when its renewal was confirmed.
    session_margin_seconds: Seconds => Histogram, "histogram";
    /// Locks and leaderships of all kinds that tasks of this node hold.
    locks_held: Gauge => u64, "gauge";
    /// Tasks of this node that wait in the queue of a lock or an election.
    lock_waiters: Gauge => u64, "gauge";
    /// Requests for a lock or an election that failed because this node already had the maximum
    /// number of waiters for it.
    lock_queue_full_total: CounterCell => u64, "counter";
    /// Time from when this node learned that a waiting task owns a lock until the task received its
    /// guard.
    lock_handoff_seconds: Seconds => Histogram, "histogram";
    /// 1 while this node is the leader.
    is_leader: Gauge => u64, "gauge";
    /// 1 while this node knows a leader.
    has_leader: Gauge => u64, "gauge";
    /// The Raft term.
    term: Gauge => u64, "gauge";
    /// Elections in which this node was a candidate.
    elections_total: CounterCell => u64, "counter";
    /// Times that this node learned of a new leader, or of the same leader after it had known none.
    leader_changes_total: CounterCell => u64, "counter";
    /// As the leader: rounds started to confirm leadership, for reads and renewals.
    read_rounds_total: CounterCell => u64, "counter";
    /// As the leader: time of one round that confirms leadership.
    read_round_seconds: Seconds => Histogram, "histogram";
    /// As the leader: number of entries that each other member lacks.
    peer_lag_entries: Peers => Vec<PeerLag>, "gauge";
    /// The highest log index that this node knows to be committed.
    commit_index: Gauge => u64, "gauge";
    /// The highest log index that this node has applied.
    applied_index: Gauge => u64, "gauge";
    /// The revision that this node's readers see.
    revision: Gauge => u64, "gauge";
    /// The oldest revision that can be read; 0 if nothing was compacted.
    compacted_revision: Gauge => u64, "gauge";
    /// Keys that exist.
    keys: Gauge => u64, "gauge";
    /// Bytes of all stored versions and of the leases, which the quota limits.
    state_bytes: Gauge => u64, "gauge";
    /// Bytes of the versions that only reads of the history need.
    history_bytes: Gauge => u64, "gauge";
    /// The quota of the state, in bytes.
    quota_bytes: Gauge => u64, "gauge";
    /// 1 while this node's disk is full.
    disk_full: Gauge => u64, "gauge";
    /// Active alarms.
    alarms: Gauge => u64, "gauge";
    /// Compactions that this node has proposed automatically as the leader.
    compactions_total: CounterCell => u64, "counter";
    /// Snapshots taken of this replica.
    snapshots_taken_total: CounterCell => u64, "counter";
    /// Time to take a snapshot, during which other work continues.
    snapshot_seconds: Seconds => Histogram, "histogram";
    /// Size of the last snapshot taken, in bytes.
    snapshot_bytes: Gauge => u64, "gauge";
    /// Times that the newest snapshot was found unreadable when another member needed it, so that a
    /// new one was taken.
    snapshots_unsound_total: CounterCell => u64, "counter";
    /// Jobs that wait for the snapshot thread.
    snapshot_queue_jobs: Gauge => u64, "gauge";
    /// Bytes of snapshots sent to other members.
    snapshot_sent_bytes_total: CounterCell => u64, "counter";
    /// Bytes of snapshots received from other members.
    snapshot_received_bytes_total: CounterCell => u64, "counter";
    /// Snapshots of other members that replaced this node's state.
    snapshots_installed_total: CounterCell => u64, "counter";
}

impl Meters {
    pub(crate) fn ended(&self, kind: RequestKind, ending: Ending, took: Duration) {
        self.requests_total.at(kind).at(ending).one();
        self.request_seconds.at(kind).add(took);
    }

    pub(crate) fn snapshot_taken(&self, took: Duration, bytes: u64) {
        self.snapshots_taken_total.one();
        self.snapshot_seconds.add(took);
        self.snapshot_bytes.set(bytes);
    }
}

/// The metrics of one node. See [`Node::metrics`](crate::Node::metrics). Cheap to clone. The
/// metrics can still be read after the node has stopped.
#[derive(Clone)]
pub struct Metrics {
    node: Arc<str>,
    meters: Arc<Meters>,
    /// Updates the gauges that any thread can read.
    refresh: Arc<dyn Fn() + Send + Sync>,
    #[cfg(feature = "metrics")]
    exported: Arc<export::ExportedPeers>,
}

impl Metrics {
    pub(crate) fn new(node: &str, meters: Arc<Meters>) -> Self {
        Self {
            node: node.into(),
            meters,
            refresh: Arc::new(|| {}),
            #[cfg(feature = "metrics")]
            exported: Arc::default(),
        }
    }

    /// Sets `refresh` to be called before each snapshot.
    pub(crate) fn with_refresh(self, refresh: impl Fn() + Send + Sync + 'static) -> Self {
        Self { refresh: Arc::new(refresh), ..self }
    }

    /// Returns the current values. The values are read one after the other, so they may be from
    /// slightly different moments.
    pub fn snapshot(&self) -> MetricsSnapshot {
        (self.refresh)();
        self.meters.read(&self.node)
    }

    /// Returns the current values in the Prometheus text format.
    pub fn to_prometheus(&self) -> String {
        self.snapshot().to_prometheus()
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("node", &self.node).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

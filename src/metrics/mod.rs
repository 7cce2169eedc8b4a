//! What a node measures of itself: counters, gauges and histograms of its own, without globals.
//!
//! ```text
//!   driver, log, callers ──add──▶ Meters (atomics) ──read──▶ MetricsSnapshot ──▶ text for Prometheus
//! ```
//!
//! [`Meters`] is shared by all parts of a node and written without locks; only what is told once a tick
//! by the driver alone (the other members) stands behind one. [`Metrics`] is what a program holds. One
//! list names every measurement once, with its words: the fields, the snapshot and the text come out
//! of it, and a test compares it with `docs/operating/metrics.md`.
//!
//! Invariant: knows nothing about clocks and threads. Durations come from who measures.

mod cell;
mod snapshot;
mod text;
mod words;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) use cell::{Counter, Gauge, Seconds, Sizes};
pub use snapshot::{Histogram, PeerLag, PeerLink, PeerQueue};
pub use words::{Ending, Refused, RequestKind, Stage};

use cell::{SECONDS_FIRST, SIZES_FIRST};
use text::{Labels, Show, Text};

/// Something that can be read off.
trait Read {
    /// What it reads as.
    type Value;

    fn read(&self) -> Self::Value;
}

impl Read for Counter {
    type Value = u64;

    fn read(&self) -> u64 {
        self.get()
    }
}

impl Read for Gauge {
    type Value = u64;

    fn read(&self) -> u64 {
        self.get()
    }
}

impl Read for Seconds {
    type Value = Histogram;

    fn read(&self) -> Histogram {
        self.histogram()
    }
}

impl Seconds {
    /// What it reads as.
    pub(crate) fn histogram(&self) -> Histogram {
        const MICROSECONDS_A_SECOND: f64 = 1e6;
        Histogram::read(&self.0, SECONDS_FIRST, MICROSECONDS_A_SECOND)
    }
}

impl Read for Sizes {
    type Value = Histogram;

    fn read(&self) -> Histogram {
        Histogram::read(&self.0, SIZES_FIRST, 1.0)
    }
}

/// One measurement for each word of a label.
pub(crate) struct By<L, M> {
    each: Vec<(L, M)>,
}

/// What a counter by label reads as: each label with its value.
pub type ByLabel<L, V> = Vec<(L, V)>;

/// A label: a short list of words.
pub(crate) trait Label: Copy + Eq + 'static {
    /// What the label is called.
    const NAME: &'static str;
    /// Every word.
    fn all() -> &'static [Self];
    /// This one's.
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

label_of!(RequestKind = "kind", Ending = "outcome", Stage = "stage", Refused = "reason");

impl<L: Label, M: Default> Default for By<L, M> {
    fn default() -> Self {
        Self { each: L::all().iter().map(|label| (*label, M::default())).collect() }
    }
}

impl<L: Label, M> By<L, M> {
    /// The one of this word.
    pub(crate) fn at(&self, label: L) -> &M {
        // Labels are in the order of their declaration, a handful.
        let found = self.each.iter().find(|(each, _)| *each == label);
        &found.expect("every word has one").1
    }
}

impl<L: Label, M: Read> Read for By<L, M> {
    type Value = ByLabel<L, M::Value>;

    fn read(&self) -> Self::Value {
        self.each.iter().map(|(label, meter)| (*label, meter.read())).collect()
    }
}

/// Something about each other member, told as a whole, once a tick.
pub(crate) struct Told<T>(Mutex<Vec<T>>);

type Peers = Told<PeerLag>;
type PeerBytes = Told<PeerQueue>;
type PeerLinks = Told<PeerLink>;

impl<T> Default for Told<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Told<T> {
    /// They stand so now.
    pub(crate) fn set(&self, peers: Vec<T>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    }
}

impl<T: Clone> Read for Told<T> {
    type Value = Vec<T>;

    fn read(&self) -> Vec<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Makes the fields, the snapshot and the text out of one list.
macro_rules! catalogue {
    ($($(#[doc = $help:literal])+ $name:ident: $meter:ty => $value:ty, $kind:literal;)*) => {
        /// Everything that a node measures. See the module.
        #[derive(Default)]
        pub(crate) struct Meters {
            $($(#[doc = $help])+ pub(crate) $name: $meter,)*
        }

        /// What the measurements of a node were at one moment. Everything that counts has counted
        /// since the node started; gauges are as of the driver's last tick.
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
            /// In the text format of Prometheus, version 0.0.4. Every sample has the label `node`.
            pub fn to_prometheus(&self) -> String {
                let mut text = Text::default();
                let labels = Labels::new("node", &self.node);
                $(
                    text.head(concat!("bowline_", stringify!($name)), concat!($($help),+), $kind);
                    self.$name.show(&mut text, &labels);
                )*
                text.finish()
            }
        }

        #[cfg(test)]
        const NAMES: &[&str] = &[$(concat!("bowline_", stringify!($name))),*];
    };
}

catalogue! {
    /// Requests made on this node that have ended, by kind and by how they ended.
    requests_total: By<RequestKind, By<Ending, Counter>> => ByLabel<RequestKind, ByLabel<Ending, u64>>, "counter";
    /// Time from a request's call to its end, by kind.
    request_seconds: By<RequestKind, Seconds> => ByLabel<RequestKind, Histogram>, "histogram";
    /// Time of the writes that were done, by where it went.
    write_stage_seconds: By<Stage, Seconds> => ByLabel<Stage, Histogram>, "histogram";
    /// Requests that took longer than the threshold for the log of slow ones.
    slow_requests_total: Counter => u64, "counter";
    /// Batches of entries that took longer to apply than the threshold for the log of slow ones.
    slow_applies_total: Counter => u64, "counter";
    /// Requests made on this node that have no answer yet.
    open_requests: Gauge => u64, "gauge";
    /// Of these, those that are to be handed to a leader, again or for the first time.
    unsent_requests: Gauge => u64, "gauge";
    /// What admission counts for the writes that it has let in and that have no answer yet.
    open_bytes: Gauge => u64, "gauge";
    /// Linearizable reads and waits that have no answer yet.
    open_reads: Gauge => u64, "gauge";
    /// Linearizable reads whose time was up before a leader had confirmed how far they must see.
    reads_unconfirmed_total: Counter => u64, "counter";
    /// Requests that this node, as the leader or taken for it, did not propose, by why.
    proposals_refused_total: By<Refused, Counter> => ByLabel<Refused, u64>, "counter";
    /// Things that the driver found at the start of a turn.
    inbox_inputs: Sizes => Histogram, "histogram";
    /// The most bytes of peers' messages that waited for the driver at once.
    inbox_bytes_peak: Gauge => u64, "gauge";
    /// Messages of peers that were dropped because too many bytes waited.
    inbox_dropped_total: Counter => u64, "counter";
    /// Time of a turn of the driver.
    turn_seconds: Seconds => Histogram, "histogram";
    /// Messages to peers that were dropped because the queue to them was full.
    messages_dropped_total: Counter => u64, "counter";
    /// Messages to peers that could not be sent because there was no connection.
    messages_unreachable_total: Counter => u64, "counter";
    /// Bytes that wait on their way to each other member, behind what the sockets have taken.
    peer_queue_bytes: PeerBytes => Vec<PeerQueue>, "gauge";
    /// 1 for each other member with which there is a connection, whoever has dialed; 0 for the others.
    peer_connected: PeerLinks => Vec<PeerLink>, "gauge";
    /// Groups that wait for the log's thread.
    log_queue_groups: Gauge => u64, "gauge";
    /// Time to write and sync what was queued for the log.
    log_sync_seconds: Seconds => Histogram, "histogram";
    /// Bytes of entries written to the log.
    log_bytes_total: Counter => u64, "counter";
    /// Entries written to the log.
    log_entries_total: Counter => u64, "counter";
    /// Groups written to the log by one sync.
    log_sync_groups: Sizes => Histogram, "histogram";
    /// As the leader: time from an entry's proposal until a quorum has it.
    entry_commit_seconds: Seconds => Histogram, "histogram";
    /// Entries applied in one go.
    apply_entries: Sizes => Histogram, "histogram";
    /// Time to apply one batch of entries and to tell everybody.
    apply_seconds: Seconds => Histogram, "histogram";
    /// Entries that this node knows to be committed, from its leader too, and has not applied.
    apply_lag_entries: Gauge => u64, "gauge";
    /// Ranges read from this replica, also by transactions.
    ranges_total: Counter => u64, "counter";
    /// Puts applied to this replica, also by transactions.
    puts_total: Counter => u64, "counter";
    /// Bytes of the keys and values of these puts.
    put_bytes_total: Counter => u64, "counter";
    /// Deletes applied to this replica, also by transactions; and keys that went with their leases.
    deletes_total: Counter => u64, "counter";
    /// Transactions of more than one operation, applied to this replica or read from it.
    txns_total: Counter => u64, "counter";
    /// Open watchers.
    watchers: Gauge => u64, "gauge";
    /// Open watchers that read changes from the history, because they started in the past or their inbox was full.
    watchers_behind: Gauge => u64, "gauge";
    /// Changes handed to the watchers' hub.
    watch_changes_total: Counter => u64, "counter";
    /// Times that a watcher's inbox was full, so that it went on from the history.
    watch_overflows_total: Counter => u64, "counter";
    /// Leases that exist.
    leases: Gauge => u64, "gauge";
    /// Leases granted on this replica.
    lease_grants_total: Counter => u64, "counter";
    /// Leases that have ended on this replica: revoked or run out.
    lease_ends_total: Counter => u64, "counter";
    /// As the leader: leases that have run out, whose end was proposed.
    lease_expiries_total: Counter => u64, "counter";
    /// As the leader: how much of a lease's life was left when it was renewed.
    lease_margin_seconds: Seconds => Histogram, "histogram";
    /// Sessions that this node keeps alive.
    sessions: Gauge => u64, "gauge";
    /// How much longer this node would have believed in a session of its own when a renewal was confirmed.
    session_margin_seconds: Seconds => Histogram, "histogram";
    /// Holds that tasks of this node have, of locks and elections of all kinds.
    locks_held: Gauge => u64, "gauge";
    /// Tasks of this node that wait in the line of a lock or an election.
    lock_waiters: Gauge => u64, "gauge";
    /// Time from when this node knew that a lock was a waiting task's until that task had its guard.
    lock_handoff_seconds: Seconds => Histogram, "histogram";
    /// 1 while this node leads.
    is_leader: Gauge => u64, "gauge";
    /// 1 while this node knows of a leader.
    has_leader: Gauge => u64, "gauge";
    /// The term of the consensus.
    term: Gauge => u64, "gauge";
    /// Times that this node stood for election.
    elections_total: Counter => u64, "counter";
    /// Times that this node learnt of a leader: of another one, or of the same after it had known of none.
    leader_changes_total: Counter => u64, "counter";
    /// As the leader: rounds begun to prove that it leads, for reads and renewals.
    read_rounds_total: Counter => u64, "counter";
    /// As the leader: time of such a round.
    read_round_seconds: Seconds => Histogram, "histogram";
    /// As the leader: how many entries each other member lacks.
    peer_lag_entries: Peers => Vec<PeerLag>, "gauge";
    /// The last log index that this node knows to be committed.
    commit_index: Gauge => u64, "gauge";
    /// The last log index that this node has applied.
    applied_index: Gauge => u64, "gauge";
    /// The revision that this node's readers see.
    revision: Gauge => u64, "gauge";
    /// The oldest revision that can be read; 0 if nothing was compacted.
    compacted_revision: Gauge => u64, "gauge";
    /// Keys that exist.
    keys: Gauge => u64, "gauge";
    /// Bytes of all versions that are kept, and of the leases: what the quota bounds.
    state_bytes: Gauge => u64, "gauge";
    /// Bytes of those versions that only history needs.
    history_bytes: Gauge => u64, "gauge";
    /// The quota of the state, in bytes.
    quota_bytes: Gauge => u64, "gauge";
    /// 1 while this node's disk is full.
    disk_full: Gauge => u64, "gauge";
    /// Alarms that were raised and have not been ended.
    alarms: Gauge => u64, "gauge";
    /// Compactions that this node, as the leader, has proposed by itself.
    compactions_total: Counter => u64, "counter";
    /// Snapshots taken of this replica.
    snapshots_taken_total: Counter => u64, "counter";
    /// Time to take a snapshot, beside other work.
    snapshot_seconds: Seconds => Histogram, "histogram";
    /// The size of the last snapshot taken.
    snapshot_bytes: Gauge => u64, "gauge";
    /// Times that the newest snapshot could not be read any more when another member needed it; another was taken.
    snapshots_unsound_total: Counter => u64, "counter";
    /// Jobs that wait for the thread of the snapshots.
    snapshot_queue_jobs: Gauge => u64, "gauge";
    /// Bytes of snapshots sent to other members.
    snapshot_sent_bytes_total: Counter => u64, "counter";
    /// Bytes of snapshots received from other members.
    snapshot_received_bytes_total: Counter => u64, "counter";
    /// Snapshots of other members that took the place of this node's state.
    snapshots_installed_total: Counter => u64, "counter";
}

impl Meters {
    /// A request has ended.
    pub(crate) fn ended(&self, kind: RequestKind, ending: Ending, took: Duration) {
        self.requests_total.at(kind).at(ending).one();
        self.request_seconds.at(kind).add(took);
    }

    /// A snapshot of this replica was taken.
    pub(crate) fn snapshot_taken(&self, took: Duration, bytes: u64) {
        self.snapshots_taken_total.one();
        self.snapshot_seconds.add(took);
        self.snapshot_bytes.set(bytes);
    }
}

/// The measurements of one node; see [`Node::metrics`](crate::Node::metrics). Cheap to clone; it can
/// still be read when the node has stopped.
#[derive(Clone)]
pub struct Metrics {
    node: Arc<str>,
    meters: Arc<Meters>,
    /// Updates the gauges that any thread can read.
    refresh: Arc<dyn Fn() + Send + Sync>,
}

impl Metrics {
    pub(crate) fn new(node: &str, meters: Arc<Meters>) -> Self {
        Self { node: node.into(), meters, refresh: Arc::new(|| {}) }
    }

    /// Calls `refresh` before each snapshot.
    pub(crate) fn refreshed_by(self, refresh: impl Fn() + Send + Sync + 'static) -> Self {
        Self { refresh: Arc::new(refresh), ..self }
    }

    /// What they are now. Numbers that are read one after the other may be a moment apart.
    pub fn snapshot(&self) -> MetricsSnapshot {
        (self.refresh)();
        self.meters.read(&self.node)
    }

    /// What they are now, in the text format of Prometheus.
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

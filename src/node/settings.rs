//! The validated settings of a node, derived from its `Config`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::machine::MachineOptions;
use crate::model::{ClusterId, ClusterVersion, Limits, NodeId};
use crate::warm::WarmCopy;

use crate::node::leader::retain::History;

/// The settings of a node.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The id of this member.
    pub(crate) node: NodeId,
    /// The name of this member, and the address at which peers reach it.
    pub(crate) contact: Contact,
    /// The addresses at which its program serves clients.
    pub(crate) endpoints: Vec<String>,
    pub(crate) cluster: ClusterId,
    /// The configured members, including this one. These members found the cluster if it does not
    /// exist yet.
    pub(crate) members: BTreeMap<NodeId, Contact>,
    /// Whether this member is one of the founders, and so may found the cluster.
    pub(crate) founds: bool,
    /// If the directory belongs to a cluster with other founders: the configured members, which are
    /// matched by name only.
    pub(crate) listed: Vec<Contact>,
    /// Whether the configured token differs from the one with which the cluster was founded.
    pub(crate) has_other_token: bool,
    /// The newest cluster version that this node reports as supported: that of this build, except
    /// in tests of upgrades.
    pub(crate) supported_version: ClusterVersion,
    /// The data directory.
    pub(crate) dir: PathBuf,
    /// Time between the heartbeats of a leader.
    pub(crate) heartbeat: Duration,
    /// Election timeout. A follower starts an election after a random time without heartbeats,
    /// between this value and twice this value.
    pub(crate) election_timeout: Duration,
    /// Bound for the drift of clocks.
    pub(crate) drift: Drift,
    /// Default TTL of sessions.
    pub(crate) session_ttl: Duration,
    /// Default deadline of calls.
    pub(crate) call_deadline: Duration,
    /// Maximum number of local waiters for one lock.
    pub(crate) lock_waiters_max: usize,
    /// Label of the node's own session.
    pub(crate) label: String,
    /// Size limits of requests.
    pub(crate) limits: Limits,
    /// Maximum number of unanswered writes of local callers.
    pub(crate) open_writes_max: usize,
    /// Maximum number of bytes of all unanswered writes.
    pub(crate) open_bytes_max: usize,
    /// Maximum number of unanswered linearizable reads and waits for revisions.
    pub(crate) open_reads_max: usize,
    /// Maximum size of the state, in bytes.
    pub(crate) quota_bytes: u64,
    /// The history to keep.
    pub(crate) history: History,
    /// Growth of the log after which a snapshot is due, in bytes. If half the size of the state is
    /// larger, that size is used instead.
    pub(crate) snapshot_log_bytes: u64,
    /// Size of a log segment, in bytes.
    pub(crate) log_segment_bytes: u64,
    /// Size of the parts in which snapshots are written and sent, in bytes.
    pub(crate) snapshot_part_bytes: usize,
    /// Location of the warm copy of the state, if there is one.
    pub(crate) warm_copy: Option<WarmCopy>,
    /// Duration from which a request is logged as slow.
    pub(crate) slow_request: Duration,
    /// Duration from which applying a batch of entries is logged as slow.
    pub(crate) slow_apply: Duration,
}

/// The name and address of a member.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Contact {
    pub(crate) name: String,
    /// The address at which peers reach the member, as `host:port`. Empty if the member has none.
    pub(crate) address: String,
}

impl Settings {
    pub(crate) fn machine_options(&self) -> MachineOptions {
        MachineOptions { known: self.supported_version, ..MachineOptions::default() }
    }

    /// Returns the maximum number of bytes of uncommitted entries. The log reserves one segment for
    /// a full disk. Entries that are proposed before the leader learns of the full disk may use at
    /// most half of this segment. The other half stays available for the commands that make room.
    pub(crate) fn uncommitted_bytes_max(&self) -> u64 {
        (self.log_segment_bytes / 2).clamp(1 << 20, 32 << 20)
    }

    /// Returns the time between ticks of the consensus.
    pub(crate) fn tick(&self) -> Duration {
        self.heartbeat / Self::TICKS_PER_HEARTBEAT
    }

    /// Ticks between heartbeats.
    pub(crate) const TICKS_PER_HEARTBEAT: u32 = 4;

    pub(crate) fn election_ticks(&self) -> u32 {
        let ticks = self.election_timeout.as_micros().div_ceil(self.tick().as_micros());
        u32::try_from(ticks).expect("checked when the settings were made")
    }
}

/// A bound for the rate error of a clock, in either direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Drift {
    percent: u32,
}

impl Drift {
    /// Returns a bound of `percent`, which must be below 50.
    pub(crate) fn percent(percent: u32) -> Self {
        assert!(percent < 50, "a drift bound of {percent} percent leaves no time to trust");
        Self { percent }
    }

    /// Returns how long the holder of a lease relies on it, on a clock that may be slow.
    pub(crate) fn trusted_time(self, ttl: Duration) -> Duration {
        mutant!(B39, return ttl / 100 * 100);
        ttl / 100 * (100 - self.percent)
    }

    /// Returns how long the leader waits before it ends a lease, on a clock that may be fast.
    pub(crate) fn wait_for(self, ttl: Duration) -> Duration {
        mutant!(B40, return ttl);
        ttl.saturating_add(ttl / 100 * self.percent)
    }
}

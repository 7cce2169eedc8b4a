//! What a node needs to know, checked. Callers give a `Config`; it becomes this, once, at the edge.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::machine::MachineOptions;
use crate::model::{ClusterId, ClusterVersion, Limits, NodeId};
use crate::mutant::{self, Mutant};
use crate::warm::WarmCopy;

use super::retain::History;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// This member.
    pub(crate) node: NodeId,
    /// What it is called, and where the others reach it.
    pub(crate) contact: Contact,
    /// Where its host serves clients of its own.
    pub(crate) endpoints: Vec<String>,
    /// The cluster.
    pub(crate) cluster: ClusterId,
    /// The members that the configuration names, this one too: those that found the cluster, if it does
    /// not exist yet.
    pub(crate) members: BTreeMap<NodeId, Contact>,
    /// Whether it is their cluster, so that they may found it.
    pub(crate) founds: bool,
    /// The members that the configuration names, if the directory is of a cluster that others founded: by name only.
    pub(crate) listed: Vec<Contact>,
    /// Whether the configuration's token is not the one that the cluster was founded with.
    pub(crate) has_other_token: bool,
    /// The newest cluster version that it says it understands: this build's, but in tests of upgrades.
    pub(crate) supported_version: ClusterVersion,
    /// Where its data is.
    pub(crate) dir: PathBuf,
    /// Time between heartbeats of a leader.
    pub(crate) heartbeat: Duration,
    /// A follower that hears nothing for a time drawn from this to twice this stands for election.
    pub(crate) election_timeout: Duration,
    /// How far clocks may be off.
    pub(crate) drift: Drift,
    /// How long sessions live without renewal, unless they say otherwise.
    pub(crate) session_ttl: Duration,
    /// How long a call may take, unless it says otherwise.
    pub(crate) call_deadline: Duration,
    /// How many wishes of this node may wait for one lock.
    pub(crate) lock_waiters_max: usize,
    /// What people see of the node's session.
    pub(crate) label: String,
    /// How large requests may be.
    pub(crate) limits: Limits,
    /// How many writes of this node's callers may be without an answer.
    pub(crate) open_writes_max: usize,
    /// How many bytes they may have together.
    pub(crate) open_bytes_max: usize,
    /// How many linearizable reads and waits for revisions may be without an answer.
    pub(crate) open_reads_max: usize,
    /// How many bytes the state may take.
    pub(crate) quota_bytes: u64,
    /// How much history is kept.
    pub(crate) history: History,
    /// A snapshot is due when the log has grown by so many bytes, or by half the size of the state, if
    /// that is more.
    pub(crate) snapshot_log_bytes: u64,
    /// The size of a segment of the log, in bytes.
    pub(crate) log_segment_bytes: u64,
    /// How much of a snapshot is written, or sent, at a time, in bytes.
    pub(crate) snapshot_part_bytes: usize,
    /// Where the warm copy of the state is kept, if there is one.
    pub(crate) warm_copy: Option<WarmCopy>,
    /// A request that takes longer is worth a line in the log.
    pub(crate) slow_request: Duration,
    /// A batch of entries that takes longer to apply is, too.
    pub(crate) slow_apply: Duration,
}

/// A member as people name it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Contact {
    /// Its name.
    pub(crate) name: String,
    /// Where the others reach it: `host:port`; empty if nowhere.
    pub(crate) address: String,
}

impl Settings {
    /// How the machine is set up.
    pub(crate) fn machine_options(&self) -> MachineOptions {
        MachineOptions { known: self.supported_version, ..MachineOptions::default() }
    }

    /// How many bytes of entries may be under way. The log keeps a segment's worth of room for when its disk
    /// is full: what was proposed before that was known must leave half of it to what makes room, which comes
    /// behind.
    pub(crate) fn uncommitted_bytes_max(&self) -> u64 {
        (self.log_segment_bytes / 2).clamp(1 << 20, 32 << 20)
    }

    /// How often the driver counts a tick of the consensus.
    pub(crate) fn tick(&self) -> Duration {
        self.heartbeat / Self::TICKS_A_HEARTBEAT
    }

    /// Ticks between heartbeats.
    pub(crate) const TICKS_A_HEARTBEAT: u32 = 4;

    /// Ticks of an election timeout.
    pub(crate) fn election_ticks(&self) -> u32 {
        let ticks = self.election_timeout.as_micros().div_ceil(self.tick().as_micros());
        u32::try_from(ticks).expect("checked when the settings were made")
    }
}

/// How far the rate of a clock may be off true time, either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Drift {
    percent: u32,
}

impl Drift {
    /// So many percent, below 50.
    pub(crate) fn percent(percent: u32) -> Self {
        assert!(percent < 50, "a drift bound of {percent} percent leaves no time to trust");
        Self { percent }
    }

    /// How long the holder of a lease trusts it, on a clock that may be slow.
    pub(crate) fn trust_for(self, ttl: Duration) -> Duration {
        ttl / 100 * (100 - if mutant::is(Mutant::B39) { 0 } else { self.percent })
    }

    /// How long the leader waits before it ends a lease, on a clock that may be fast.
    pub(crate) fn wait_for(self, ttl: Duration) -> Duration {
        ttl.saturating_add(ttl / 100 * if mutant::is(Mutant::B40) { 0 } else { self.percent })
    }
}

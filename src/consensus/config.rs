//! The configuration of the consensus, including its limits.

use std::sync::Arc;

use crate::env::Entropy;
use crate::model::{Members, NodeId};

use super::fault::ConsensusFault;

/// Maximum size of an entry in bytes. The maximum is larger than any request that the settings
/// allow, and small enough that the gate accepts a message with one entry.
pub(crate) const ENTRY_BYTES_MAX: usize = 7 << 20;

/// The configuration of one member's consensus.
#[derive(Clone)]
pub(crate) struct ConsensusConfig {
    /// Id of this member.
    pub(crate) id: NodeId,
    /// The members in the applied state. This member may be missing: it may not have applied its
    /// own addition yet, or it was removed.
    pub(crate) members: Members,
    /// Interval of a leader's heartbeats in ticks. At least 1.
    pub(crate) heartbeat_ticks: usize,
    /// Election timeout T in ticks: a follower waits between T and 2 T for its leader. Must be
    /// larger than `heartbeat_ticks`.
    pub(crate) election_ticks: usize,
    /// Maximum size of the entries in one message, in bytes. A larger entry is sent alone. Default:
    /// 256 KiB.
    pub(crate) append_bytes_max: u64,
    /// Maximum number of messages with entries in flight to one follower. Default: 128.
    pub(crate) inflight_max: usize,
    /// Maximum size of the entries that a leader accepts before a quorum has them, in bytes.
    /// Further proposals are rejected as busy. Default: 32 MiB.
    pub(crate) uncommitted_bytes_max: u64,
    /// Maximum size of the committed entries that one turn returns, in bytes. A larger entry is
    /// returned alone. Default: 4 MiB.
    pub(crate) commit_bytes_max: u64,
    /// Maximum size of the recent entries in memory, in bytes, from which followers are served
    /// without disk reads. Entries that are not durable or not applied yet are kept in any case.
    /// Default: 32 MiB.
    pub(crate) cache_bytes_max: usize,
    /// Maximum size of the entries that wait for this member's disk, in bytes. Further entries from
    /// the leader are dropped, and the leader retransmits them. Default: 64 MiB.
    pub(crate) unpersisted_bytes_max: usize,
    /// Time in ticks without progress after which the leader restarts the snapshot transfer to a
    /// follower. Default: 4 T.
    pub(crate) snapshot_ticks: usize,
    /// Source of randomness, used once, at the start.
    pub(crate) entropy: Arc<dyn Entropy>,
}

impl ConsensusConfig {
    /// Creates a configuration with the default limits.
    pub(crate) fn new(
        id: NodeId,
        members: Members,
        heartbeat_ticks: usize,
        election_ticks: usize,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            id,
            members,
            heartbeat_ticks,
            election_ticks,
            append_bytes_max: 256 << 10,
            inflight_max: 128,
            uncommitted_bytes_max: 32 << 20,
            commit_bytes_max: 4 << 20,
            cache_bytes_max: 32 << 20,
            unpersisted_bytes_max: 64 << 20,
            snapshot_ticks: 4 * election_ticks,
            entropy,
        }
    }

    /// Converts the configuration for the raft crate and checks it.
    pub(super) fn to_raft(&self, applied: u64) -> Result<raft::Config, ConsensusFault> {
        if self.members.voters().next().is_none() {
            return Err(ConsensusFault::Config("there are no voters".to_owned()));
        }
        let mut config = raft::Config {
            id: self.id.get(),
            election_tick: self.election_ticks,
            heartbeat_tick: self.heartbeat_ticks,
            applied,
            max_size_per_msg: self.append_bytes_max,
            max_inflight_msgs: self.inflight_max,
            check_quorum: true,
            pre_vote: true,
            read_only_option: raft::ReadOnlyOption::Safe,
            // Broadcast a new commit index at once, because callers at followers wait for it.
            skip_bcast_commit: false,
            batch_append: true,
            max_uncommitted_size: self.uncommitted_bytes_max,
            max_committed_size_per_ready: self.commit_bytes_max,
            ..raft::Config::default()
        };
        mutant!(M33, config.check_quorum = false);
        mutant!(M34, config.pre_vote = false);
        mutant!(M08, config.read_only_option = raft::ReadOnlyOption::LeaseBased);
        config.validate().map_err(|error| ConsensusFault::Config(error.to_string()))?;
        Ok(config)
    }
}

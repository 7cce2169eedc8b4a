//! What the consensus is told when it starts, every limit with a name and a unit.

use std::sync::Arc;

use crate::env::Entropy;
use crate::model::{Members, NodeId};
use crate::mutant::{self, Mutant};

use super::fault::ConsensusFault;

/// The largest entry, in bytes. Larger than any request that the settings allow, and small enough
/// that a message with one entry passes every gate.
pub(crate) const ENTRY_BYTES_MAX: usize = 7 << 20;

/// How the consensus of one member is set up.
#[derive(Clone)]
pub(crate) struct ConsensusConfig {
    /// This member.
    pub(crate) id: NodeId,
    /// Everybody, as of what is applied. This one may be missing: it has joined and has not heard of
    /// it from the log, or was removed.
    pub(crate) members: Members,
    /// How often a leader speaks, in ticks. At least 1.
    pub(crate) heartbeat_ticks: usize,
    /// T: a follower waits between T and 2 T for its leader, in ticks. More than `heartbeat_ticks`.
    pub(crate) election_ticks: usize,
    /// How many bytes of entries one message carries; a larger entry travels alone. Default 256 KiB.
    pub(crate) append_bytes_max: u64,
    /// How many such messages may be on their way to one follower. Default 128.
    pub(crate) inflight_max: usize,
    /// How many bytes of entries a leader takes before a quorum has them; beyond it, proposals are
    /// refused as busy. Default 32 MiB.
    pub(crate) uncommitted_bytes_max: u64,
    /// How many bytes of committed entries one turn hands out, except for a larger entry alone.
    /// Default 4 MiB.
    pub(crate) commit_bytes_max: u64,
    /// How many bytes of recent entries are kept in memory, so that followers are served without the
    /// disk. What is not yet on disk or not yet applied stays whatever this says. Default 32 MiB.
    pub(crate) cache_bytes_max: usize,
    /// How many bytes of entries may wait for this member's disk; beyond it, entries from the leader
    /// are dropped, and come again. Default 64 MiB.
    pub(crate) unpersisted_bytes_max: usize,
    /// How long a follower that fetches a snapshot may show no progress before the leader begins anew
    /// with it, in ticks. Default 4 T.
    pub(crate) snapshot_ticks: usize,
    /// Where randomness comes from: one number, at the start.
    pub(crate) entropy: Arc<dyn Entropy>,
}

impl ConsensusConfig {
    /// A configuration with every limit at its default.
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

    /// The configuration in raft's words, if it makes sense.
    pub(super) fn to_raft(&self, applied: u64) -> Result<raft::Config, ConsensusFault> {
        if self.members.voters().next().is_none() {
            return Err(ConsensusFault::Config("nobody votes".to_owned()));
        }
        let config = raft::Config {
            id: self.id.get(),
            election_tick: self.election_ticks,
            heartbeat_tick: self.heartbeat_ticks,
            applied,
            max_size_per_msg: self.append_bytes_max,
            max_inflight_msgs: self.inflight_max,
            check_quorum: !mutant::is(Mutant::M33),
            pre_vote: !mutant::is(Mutant::M34),
            read_only_option: match mutant::is(Mutant::M08) {
                false => raft::ReadOnlyOption::Safe,
                true => raft::ReadOnlyOption::LeaseBased,
            },
            // Followers learn of a commit at once: their callers wait for it.
            skip_bcast_commit: false,
            batch_append: true,
            max_uncommitted_size: self.uncommitted_bytes_max,
            max_committed_size_per_ready: self.commit_bytes_max,
            ..raft::Config::default()
        };
        config.validate().map_err(|error| ConsensusFault::Config(error.to_string()))?;
        Ok(config)
    }
}

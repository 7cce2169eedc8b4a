//! Drives one Raft group: makes the calls to raft's node in the order that the raft crate requires.
//!
//! Inputs (messages, ticks, proposals, reads) change raft's state in memory. [`Consensus::turn`]
//! then returns the work that the caller must do. The caller reports completed work with
//! [`Consensus::persisted`] and [`Consensus::applied`], and additionally with
//! [`Consensus::applied_membership`] for membership changes and [`Consensus::installed`] for
//! snapshots. No call waits or reads a clock. The disk is read only to serve a follower that is far
//! behind.

mod contact;
mod early;
mod inputs;
#[cfg(any(test, feature = "sim"))]
mod inspect;
mod membership;
mod miscount;
mod outputs;
mod snapshots;
mod standing;

use std::collections::{BTreeMap, VecDeque};

use raft::RawNode;
use raft::eraftpb;

use crate::model::{Lane, LogIndex, Members, NodeId, PeerMessage, SnapshotId};
use crate::wal;

use super::config::ConsensusConfig;
use super::contacts::Contacts;
use super::drain;
use super::fault::ConsensusFault;
use super::gate::Standpoint;
use super::membership::Configuration;
use super::round::RoundId;
use super::seal::Sealed;
use super::store::{OlderEntries, RaftStore};
use super::timeout::ElectionTimeouts;

/// Maximum number of read rounds in progress. One round serves all waiting reads, so this number is
/// reached only if no quorum replies.
const ROUNDS_MAX: usize = 1024;

/// Maximum number of messages that wait for the disk. If there are more, the oldest message is
/// dropped, which is safe because any message may be lost.
const SEALED_MAX: usize = 4096;

/// A message that may be sent to a peer now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outbound {
    /// The receiver.
    pub(crate) to: NodeId,
    /// The lane: bulk for entries, control for everything else.
    pub(crate) lane: Lane,
    pub(crate) message: PeerMessage,
}

/// The work that the caller must do. The fields may be processed in any order and at any later
/// time. But groups must be passed to the log in order, and entries must be passed to the state
/// machine in order.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Messages to send. The state that the messages depend on is already durable.
    pub(crate) send: Vec<Outbound>,
    /// A group for the log to write. When the group is durable, the caller passes the log's proof
    /// to [`Consensus::persisted`].
    pub(crate) persist: Option<wal::Group>,
    /// A snapshot, accepted by [`Consensus::take_snapshot`], that replaces the state and the log.
    /// The group in `persist` records the snapshot in the log. When that group is proven durable,
    /// the caller must install the state and call [`Consensus::installed`]. Until then, there is no
    /// further turn.
    pub(crate) install: Option<SnapshotId>,
    /// Entries to apply, which are committed and on this member's disk. The caller reports applied
    /// entries with [`Consensus::applied`]. An entry for the state machine without data only
    /// advances the applied index.
    pub(crate) commit: Vec<wal::Entry>,
    /// Rounds that a quorum has confirmed. Once the index is applied, reads that arrived before the
    /// round began can be served.
    pub(crate) rounds: Vec<(RoundId, LogIndex)>,
}

/// A group that was passed to the log and is not known to be durable.
#[derive(Debug)]
struct Pending {
    group: u64,
    /// Number of the newest raft batch that is complete when this group is durable. That is the
    /// batch that created the group, or a later batch without data for the log.
    ready: u64,
    /// The indexes of the first and the last entry in the group.
    entries: Option<(LogIndex, LogIndex)>,
    bytes: usize,
}

/// The consensus of one member.
pub(crate) struct Consensus {
    config: ConsensusConfig,
    raw: RawNode<RaftStore>,
    /// The members as of the newest applied change.
    members: Members,
    /// Raft's configuration. While a snapshot is being installed, the configuration is newer than
    /// `members`. At all other times the two correspond.
    configuration: Configuration,
    timeouts: ElectionTimeouts,
    /// Ticks since the start.
    ticks: u64,
    contacts: Contacts,
    /// Highest index that a leader has reported as committed.
    reported_commit: LogIndex,
    /// Highest committed index that a turn has returned.
    handed: LogIndex,
    /// The hard state in the log, including the groups that are not written yet.
    written: eraftpb::HardState,
    pending: VecDeque<Pending>,
    /// Number of the newest group given to the log; 0 at the start.
    group: u64,
    /// Number of the group that contains the current term and vote.
    term_group: u64,
    /// The newest proof.
    proof: Option<wal::Durable>,
    sealed: VecDeque<Sealed<Outbound>>,
    /// Number of read rounds started.
    rounds: u64,
    /// A snapshot that raft has accepted and that is not installed yet.
    install: Option<Install>,
    /// As the leader: the followers that fetch a snapshot, with the time of their last progress in
    /// ticks since the start.
    fetching: BTreeMap<NodeId, u64>,
    fault: Option<ConsensusFault>,
}

/// A snapshot that is being installed.
#[derive(Debug)]
struct Install {
    id: SnapshotId,
    configuration: Configuration,
    stage: InstallStage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InstallStage {
    /// Raft has accepted the snapshot, but no turn has returned it yet.
    Taken,
    /// The group with this number records the snapshot in the log.
    Logged(u64),
    /// The log has proven that the group is durable. The state must be installed.
    Proven,
}

impl Consensus {
    /// Restores the consensus from the durable state in `older` and `hard_state`. Entries up to
    /// `applied` must be applied, and the members in `config` must be those of the applied state.
    /// The groups for the log are numbered from 1.
    ///
    /// Every member starts from a synthetic entry with index 1 and term 1, which is not stored.
    ///
    /// # Errors
    /// Fails if the configuration is invalid, or if the parts of the state contradict each other.
    pub(crate) fn new(
        config: ConsensusConfig,
        older: impl OlderEntries + 'static,
        hard_state: wal::HardState,
        mut applied: LogIndex,
    ) -> Result<Self, ConsensusFault> {
        mutant!(M15, applied = LogIndex(applied.get() - 1));
        let raft_config = config.to_raft(applied.get())?;
        let last = older.last();
        let first = older.first();
        if applied.next() < first {
            return Err(ConsensusFault::StateLost { first, applied });
        }
        // Applied entries are committed, but a commit index becomes durable only with the next
        // group. Therefore the commit index on disk may be older than `applied`.
        let commit = hard_state.commit.max(applied);
        if commit > last {
            return Err(ConsensusFault::LogLost { promised: commit, last });
        }
        match older.term(last) {
            Some(found) if found > hard_state.term => {
                return Err(ConsensusFault::TermLost { last, found, term: hard_state.term });
            }
            Some(_) => {}
            None => return Err(ConsensusFault::OutOfOrder { asked: last, found: None }),
        }
        let written = eraftpb::HardState {
            term: hard_state.term.get(),
            vote: hard_state.vote.map_or(raft::INVALID_ID, NodeId::get),
            commit: commit.get(),
            ..eraftpb::HardState::default()
        };
        let configuration = Configuration::of(&config.members);
        let state = configuration.to_raft();
        let store =
            RaftStore::new(Box::new(older), written.clone(), state, config.commit_bytes_max)?;
        let raw = RawNode::new(&raft_config, store, &drain::logger())
            .map_err(|error| ConsensusFault::Config(error.to_string()))?;
        let seed = config.entropy.next_u64();
        let mut consensus = Self {
            timeouts: ElectionTimeouts::new(seed, config.id, config.election_ticks),
            members: config.members.clone(),
            configuration,
            config,
            raw,
            ticks: 0,
            contacts: Contacts::default(),
            reported_commit: LogIndex(0),
            handed: applied,
            written,
            pending: VecDeque::new(),
            group: 0,
            term_group: 0,
            proof: None,
            sealed: VecDeque::new(),
            rounds: 0,
            install: None,
            fetching: BTreeMap::new(),
            fault: None,
        };
        consensus.with_raft(|_| ());
        Ok(consensus)
    }

    // ---- helpers for the raft crate
    // ---------------------------------------------------------------

    /// Calls raft, and then sets raft's election timeout. The call may have changed the timeout to
    /// a random number, which could not be replayed from a seed.
    fn with_raft<R>(&mut self, call: impl FnOnce(&mut RawNode<RaftStore>) -> R) -> R {
        let result = call(&mut self.raw);
        let term = self.term();
        let ticks = self.timeouts.ticks(term);
        self.raw.raft.set_randomized_election_timeout(ticks);
        result
    }

    fn draw_again(&mut self) {
        self.timeouts.attempted();
        self.with_raft(|_| ());
    }

    /// Returns whether this member may become leader. All entries must be on disk, and no snapshot
    /// may be in installation. Committed entries that are not applied must be in memory, because
    /// raft will examine them.
    fn may_campaign(&self) -> bool {
        let raft = &self.raw.raft;
        if self.install.is_some() {
            return false;
        }
        let is_on_disk =
            raft.raft_log.unstable_entries().is_empty() && self.oldest_pending().is_none();
        let next = self.applied_index().next();
        is_on_disk && (next > self.commit() || self.raw.store().is_cached(next))
    }

    /// Loads the committed entries that raft will return next if they are not in memory, which
    /// happens after a restart.
    fn prefetch(&mut self) -> Result<(), ConsensusFault> {
        if self.install.is_some() {
            return Ok(());
        }
        let log = &self.raw.raft.raft_log;
        let end = LogIndex(log.committed.min(log.persisted)).next();
        let next = self.handed.next();
        self.raw.mut_store().prefetch(next, end)
    }

    fn evict(&mut self) {
        let on_disk = self.oldest_pending().map_or(self.last(), |first| LogIndex(first.get() - 1));
        let up_to = on_disk.min(self.applied_index());
        let bytes_max = self.config.cache_bytes_max;
        self.raw.mut_store().evict(up_to, bytes_max);
    }

    /// Returns the lowest index of the entries that are being written to the disk.
    fn oldest_pending(&self) -> Option<LogIndex> {
        self.pending.iter().filter_map(|pending| pending.entries).map(|(first, _)| first).min()
    }

    fn unpersisted_bytes(&self) -> usize {
        let pending: usize = self.pending.iter().map(|pending| pending.bytes).sum();
        pending + self.raw.raft.raft_log.unstable.entries_size
    }

    fn check_fault(&mut self) -> Result<(), ConsensusFault> {
        if self.fault.is_none() {
            self.fault = self.raw.mut_store().take_fault();
        }
        match &self.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }
}

//! The driver of one raft group: the raft crate's contract, kept in one place.
//!
//! Inputs (messages, ticks, proposals, reads) change raft's state in memory. [`Consensus::turn`] then
//! says what has to be done about it, and [`Consensus::persisted`] and [`Consensus::applied`] report
//! that it was done; for what changes the members, and for a snapshot that takes the state's place,
//! [`Consensus::applied_membership`] and [`Consensus::installed`] do. Nothing here waits, reads a clock, or touches a disk except to serve a follower
//! that is far behind.

mod contact;
mod inputs;
mod membership;
mod miscount;
mod outputs;
mod snapshots;
mod standing;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use raft::eraftpb::{self, Message, MessageType};
use raft::{RawNode, StateRole};

use crate::model::{
    Lane, LogIndex, MemberChange, MemberRole, Members, MembershipError, NodeId, PeerMessage,
    ProposeRejection, SnapshotId, Term,
};
use crate::mutant::{self, Mutant};
use crate::wal;

use super::cache::entry_bytes;
use super::config::{ConsensusConfig, ENTRY_BYTES_MAX};
use super::drain;
use super::fault::ConsensusFault;
use super::gate::{self, GateRejection, Standpoint};
use super::membership::{self as changes, Configuration};
use super::round::{RoundContext, RoundId};
use super::seal::Sealed;
use super::snapshot::{self, Offer, Stepped, Taken};
#[cfg(test)]
use super::status::Status;
use super::status::{PeerState, PeerStatus, Role};
use super::store::{OlderEntries, RaftStore, to_wal};
use super::timeout::ElectionTimeouts;
use super::wire;

/// How many read rounds may be under way. One serves all questions that wait, so this many mean that
/// no quorum answers.
const ROUNDS_MAX: usize = 1024;

/// How many messages may wait for the disk; the oldest is dropped, as any message may be.
const SEALED_MAX: usize = 4096;

/// A message to a peer, free to leave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outbound {
    /// To whom.
    pub(crate) to: NodeId,
    /// How: entries travel in bulk, everything else is urgent.
    pub(crate) lane: Lane,
    /// What.
    pub(crate) message: PeerMessage,
}

/// What has to be done now. The parts can be done in any order and at any later time; groups go to
/// the log in the order in which they come, and entries to the machine as well.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Messages to send. What they speak of is durable already.
    pub(crate) send: Vec<Outbound>,
    /// A group for the log. [`Consensus::persisted`] takes the proof.
    pub(crate) persist: Option<wal::Group>,
    /// A snapshot that [`Consensus::take_snapshot`] has brought in takes the place of the state and of
    /// the log; `persist` says so to the log, and its proof is the moment from which it holds. Then the
    /// state is put in place, and [`Consensus::installed`] told. Until then no turn comes.
    pub(crate) install: Option<SnapshotId>,
    /// Entries to apply: committed, and on this member's disk. [`Consensus::applied`] is told. An
    /// entry for the state machine without data does nothing but count.
    pub(crate) commit: Vec<wal::Entry>,
    /// Rounds that a quorum has confirmed: when the index is applied, what was asked before the round
    /// began can be answered.
    pub(crate) rounds: Vec<(RoundId, LogIndex)>,
}

/// A group that was handed to the log and is not known to be durable.
#[derive(Debug)]
struct Pending {
    group: u64,
    /// The newest of raft's batches that this group completes: the one that made it, and those after
    /// it that had nothing for the log.
    ready: u64,
    /// The first and the last of its entries.
    entries: Option<(LogIndex, LogIndex)>,
    bytes: usize,
}

/// One member's part in the consensus.
pub(crate) struct Consensus {
    config: ConsensusConfig,
    raw: RawNode<RaftStore>,
    /// Everybody, as of the newest applied change.
    members: Members,
    /// What raft makes of them. It is ahead of `members` while a snapshot is being installed.
    configuration: Configuration,
    timeouts: ElectionTimeouts,
    /// Ticks since the start.
    ticks: u64,
    /// When each peer was last heard of, in ticks since the start.
    heard: BTreeMap<NodeId, u64>,
    /// The newest entry that a leader has said to be committed.
    told_commit: LogIndex,
    /// The newest committed entry that was handed out.
    handed: LogIndex,
    /// What the log has, or will have when it has written its groups.
    written: eraftpb::HardState,
    pending: VecDeque<Pending>,
    /// The newest group handed to the log; 0 at the start.
    group: u64,
    /// The group that carries the current term and vote.
    term_group: u64,
    /// The newest proof.
    proof: Option<wal::Durable>,
    sealed: VecDeque<Sealed<Outbound>>,
    /// Read rounds begun.
    rounds: u64,
    /// A snapshot that raft has taken over and that is not in place yet.
    install: Option<Install>,
    /// As a leader: who fetches a snapshot, and when it last showed progress, in ticks since the start.
    fetching: BTreeMap<NodeId, u64>,
    fault: Option<ConsensusFault>,
}

/// A snapshot on its way into the place of the state.
#[derive(Debug)]
struct Install {
    id: SnapshotId,
    configuration: Configuration,
    stage: InstallStage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InstallStage {
    /// Raft has it; no turn has brought it out yet.
    Taken,
    /// The log is told, by this group.
    Logged(u64),
    /// The log has proven it. The state is to be put in place.
    Proven,
}

impl Consensus {
    /// Takes up what `older` and `hard_state` say was durable, and `applied` of it applied: the members
    /// that `config` names are those of that state. The log's groups count from 1 from here on.
    ///
    /// Every member starts from a synthetic entry at index 1, of term 1, that nobody stores.
    ///
    /// # Errors
    /// The configuration makes no sense, or the parts do not fit together.
    pub(crate) fn new(
        config: ConsensusConfig,
        older: impl OlderEntries + 'static,
        hard_state: wal::HardState,
        applied: LogIndex,
    ) -> Result<Self, ConsensusFault> {
        let applied = LogIndex(applied.get() - u64::from(mutant::is(Mutant::M15)));
        let raft_config = config.to_raft(applied.get())?;
        let last = older.last();
        let first = older.first();
        if applied.next() < first {
            return Err(ConsensusFault::StateLost { first, applied });
        }
        // Only committed entries are applied, and the commit index reaches the disk with the next
        // group only: it may be the older one.
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
            heard: BTreeMap::new(),
            told_commit: LogIndex(0),
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

    // ---- what raft needs --------------------------------------------------------------------------

    /// Calls raft, and sets its election timeout again, which the call may have drawn from a source
    /// that no seed replays.
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

    /// Whether nothing stands against becoming leader: all entries are on disk, no snapshot is being
    /// installed, and what is committed and not applied is in memory, where raft will look it through.
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

    /// Reads the committed entries that raft will hand out next, if they are not in memory: after a
    /// restart.
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

    /// The lowest index that is on its way to the disk.
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

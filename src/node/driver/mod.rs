//! The driver: defines the order of all operations inside a node.
//!
//! The driver works in turns. A turn takes all inputs since the last turn and processes them as far
//! as possible. Messages and proposals are passed to consensus. Consensus emits messages to peers,
//! groups of entries for the log, and committed entries for the state machine. Changes that have
//! become visible are reported first to watchers, then to the lock table, and finally to the
//! callers. A turn never waits for a peer or for a write to disk. The only data that a turn reads
//! from disk are old entries for a follower that lags far behind. A real node runs turns on its own
//! thread. The simulated world schedules the turns itself.
//!
//! ```text
//!   inbox ──▶ take ──▶ hand over ──▶ consensus ──▶ persist ──▶ log worker ──▶ inbox (durable)
//!                                        │  ├────▶ send ─────▶ peers
//!                                        │  └────▶ rounds ───▶ reads, renewals
//!                                        ▼
//!                                     commit ──▶ apply ──▶ publish ──▶ watch ──▶ locks ──▶ callers
//! ```
//!
//! A fault ends the node, but never the process: the driver marks the node as stopped, fails everything that waits,
//! and does not run again.

mod ask;
mod begin;
mod commit;
mod end;
mod growth;
mod intake;
mod lead;
#[cfg(any(test, feature = "sim"))]
mod look;
mod measure;
mod members;
mod retain;
mod sessions;
mod snapshot;

#[cfg(any(test, feature = "sim"))]
pub(crate) use look::Look;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::codec;
use bytes::Bytes;

use crate::consensus::{
    self, Consensus, ConsensusConfig, Offer, Outbound, RoundId, Stepped, Taken,
};
use crate::env::{Network, Point, SendOutcome};
use crate::machine::{Applied, ImageError, LeaseChange, Machine};
use crate::model::{
    ClusterVersion, Command, DiskId, Fault, Incarnation, Item, JoinAnswer, JoinAsk, Joined, Lane,
    LeaseId, LeaseLife, LogIndex, MemberAnswer, MemberAttributes, MemberChange, Members,
    MembershipError, MembershipRequest, Moment, NodeId, PeerMessage, Proposal, ProposeRejection,
    Rejection, Reply, RequestId, Revision, SnapshotId, Term, are_addresses,
};
use crate::transport::{JoinReply, Refused};
use crate::watch::waking;
use crate::{wal, warm};

use crate::node::answer::{CallError, CallResult, ReplyTo, StopReason};
use crate::node::backups::Backups;
use crate::node::digests::{DigestVerdict, Digests};
use crate::node::founding::Founding;
use crate::node::health::RecentSyncs;
use crate::node::identity::Identity;
use crate::node::inbox::{Input, Write};
use crate::node::lease_calls::{LeaseCalls, LeaseQuestion};
use crate::node::lessor::{Lessor, Renewal};
use crate::node::log_times::LogTimes;
use crate::node::log_worker::LogQueue;
use crate::node::peer_rejections::PeerRejections;
use crate::node::proposals::{Batch, Closed, Proposals};
use crate::node::quota::Proposed;
use crate::node::reads::{ReadOrigin, ReadWaiter, Reads, Rounds};
use crate::node::rejected_requests::RejectedRequests;
use crate::node::request_trace::{BatchTimes, RequestTrace};
use crate::node::retain::Retention;
use crate::node::roster::Roster;
use crate::node::session::{Claim, ResumeSessionError};
use crate::node::sessions::{Resumed, SessionOpening, SessionResuming, Sessions};
use crate::node::settings::{Contact, Settings};
use crate::node::shared::{COMMAND_BYTES_MAX, Shared};
use crate::node::snapshot_worker::{Job, News, SnapshotQueue};
use crate::node::snapshots::Snapshots;
use crate::node::space::SpaceTable;
use crate::node::status::{NodeStatus, Role};
use crate::node::steps::Steps;
use crate::node::writing::WriteError;

/// Size to which an entry of several requests grows, in bytes. A larger single request gets an entry of its own.
const ENTRY_BYTES: usize = 256 << 10;

/// Maximum size of a proposal from another node, in bytes. A correct node sends at most
/// [`ENTRY_BYTES`], plus the largest request that a configuration allows, plus a window. A proposal
/// of this size still fits into an entry, together with the requests that are packed before it.
const PROPOSAL_BYTES_MAX: usize = 4 << 20;

const _: () = assert!(COMMAND_BYTES_MAX + ENTRY_BYTES < PROPOSAL_BYTES_MAX);
const _: () = assert!(PROPOSAL_BYTES_MAX + ENTRY_BYTES + (1 << 10) < consensus::ENTRY_BYTES_MAX);

/// Maximum number of leases that one entry ends.
const LEASES_AN_ENTRY: usize = 1_000;

/// Maximum number of lease expiries that are proposed and not applied. Further expiries wait, so
/// that they do not displace writes.
const LEASES_ENDING_MAX: usize = 4_000;

/// Maximum number of callers that wait for a leadership transfer. Further callers are rejected as
/// busy.
const TRANSFERS_MAX: usize = 256;

/// Number of rows whose checksums are verified after each applied entry.
const SCRUB_ROWS: usize = 16;

/// Maximum capacity of the input buffer that is kept from turn to turn.
const INPUT_ROOM_MAX: usize = 1_024;

/// Maximum time for which a stopping node waits until its sessions have ended and another leader is
/// elected.
const FAREWELL: Duration = Duration::from_millis(400);

/// The time of the driver's next turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The next turn runs when an input arrives, or at this time.
    At(Moment),
    /// There is no next turn, because the node has stopped.
    Stopped,
}

/// The reason for which the node must stop, as a text.
type Fatal = String;

use members::{StepAsker, UnderWay, Unsettled};

pub(crate) use commit::apply_entry;

/// The driver of a node.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    identity: Arc<Identity>,
    network: Box<dyn Network>,
    log: Arc<LogQueue>,
    log_reader: wal::LogReader,
    machine: Machine,
    stage: DriverStage,
    /// A buffer that the inbox fills while the driver processes the current inputs.
    input_room: Vec<Input>,
    proposals: Proposals,
    reads: Reads,
    rounds: Rounds,
    sessions: Sessions,
    lease_calls: LeaseCalls,
    digests: Digests,
    space: SpaceTable,
    syncs: RecentSyncs,
    log_times: LogTimes,
    rejected_requests: RejectedRequests,
    peer_rejections: PeerRejections,
    /// Set while this node leads: decides how much history is kept, with the term of the
    /// leadership.
    retention: Option<(Term, Retention)>,
    roster: Roster,
    /// The newest cluster version that each connected member has reported as supported.
    peer_versions: BTreeMap<NodeId, ClusterVersion>,
    steps: Steps,
    snapshots: Snapshots,
    snapshot_queue: Arc<SnapshotQueue>,
    backups: Backups,
    warm: Arc<warm::WriteBehindQueue>,
    /// The leader's offer of a snapshot, while the snapshot is being fetched.
    offer: Option<Offer>,
    /// A snapshot that was fetched, and that consensus has not accepted yet.
    loaded: Option<(SnapshotId, Box<Machine>)>,
    /// A snapshot that consensus has accepted.
    to_install: Option<(SnapshotId, Box<Machine>)>,
    /// The snapshot that is installed once the log has written this group.
    installing: Option<(SnapshotId, u64)>,
    /// Whether this node has announced its name and addresses.
    has_announced: bool,
    /// Set while a quorum may not have recorded yet that the last membership change is committed.
    unsettled: Option<Unsettled>,
    /// The number of the request with which this leader raises the cluster version.
    raising: Option<u64>,
    at_least: BTreeMap<Revision, Vec<ReadWaiter>>,
    /// Set while this node leads.
    leading: Option<LeaderState>,
    /// The term and its leader, as known after the last turn.
    known_leader: (Term, Option<NodeId>),
    /// The last contact with a leader, for the health of the node.
    last_contact: Option<Contacted>,
    /// The last term in which this node was a candidate.
    stood_in: Term,
    /// Time before which no requests are sent to the leader, because the leader has just rejected a
    /// request or was unreachable.
    hold_until: Moment,
    next_tick: Moment,
    next_hello: Moment,
    /// Time since which a request to the log has been unanswered.
    log_owes_since: Option<Moment>,
    /// Leadership transfers that callers wait for: the deadline, the target, the caller.
    transfers: Vec<(Moment, Option<NodeId>, ReplyTo<()>)>,
    stopping: Option<Stopping>,
    /// A peer has reported that this node was removed and that the other members can do without it. The local replica
    /// may already show the removal; only the remaining members know that it is settled.
    removed: bool,
    /// Whether to stop at once, without a message to peers.
    aborted: bool,
    stopped: bool,
}

enum DriverStage {
    /// The disk is new, and the member has to meet the other founders.
    Founding(Founding),
    /// The log is complete, but the state before it is lost and must be fetched.
    Restoring {
        /// The index that the state must cover.
        least: LogIndex,
        /// The hard state in the log.
        hard_state: wal::HardState,
    },
    /// A record must become durable before the member takes part.
    Recording(Recording),
    /// Normal operation.
    Running(Box<Consensus>),
}

/// The record that a member writes before it takes part.
#[derive(Clone)]
enum Recording {
    /// The list of founders.
    Founders(wal::Founding),
    /// The log begins with a state that the member received.
    Base(wal::HardState),
}

/// A contact with a leader. On the leader itself, a contact with a quorum.
#[derive(Clone, Copy)]
struct Contacted {
    leader: NodeId,
    at: Moment,
}

/// The state that only a leader has.
struct LeaderState {
    /// Time of the election.
    since: Moment,
    /// Proposals from other nodes in this turn.
    forwarded: Vec<Proposal>,
    /// Requests that were proposed in this term and are not applied yet. The leader does not
    /// propose these requests again.
    in_log: Proposed,
    /// Counts leases, from the first applied entry of the term.
    lessor: Option<Lessor>,
    /// Leases whose revocation is in unapplied entries, with the last such entry. Their expiry is
    /// not proposed: it would name the lease by its id, and after the revocation the same id may
    /// belong to another lease.
    revoked: BTreeMap<LeaseId, LogIndex>,
    /// Confirmed renewals, by the index that must be applied before they are processed.
    renewals: BTreeMap<LogIndex, Vec<ReadOrigin>>,
    /// The times at which uncommitted entries were proposed. Consensus bounds their number.
    flights: VecDeque<(LogIndex, Moment)>,
    /// The membership change that was proposed and is not applied yet.
    step: Option<UnderWay>,
    /// The origins of requests that wait until the last membership change is settled, each with the
    /// affected member.
    untold: Vec<(StepAsker, NodeId)>,
}

struct Stopping {
    began: Moment,
    transferred: bool,
}

/// The parts of a driver.
pub(crate) struct Parts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) network: Box<dyn Network>,
    pub(crate) log: Arc<LogQueue>,
    pub(crate) log_reader: wal::LogReader,
    pub(crate) machine: Machine,
    pub(crate) hard_state: wal::HardState,
    pub(crate) founded: bool,
    /// If the state before the log is lost, the index that a replacement must cover.
    pub(crate) state_lost: Option<LogIndex>,
    pub(crate) snapshot_queue: Arc<SnapshotQueue>,
    pub(crate) backups: Backups,
    pub(crate) warm: Arc<warm::WriteBehindQueue>,
    /// The newest snapshot on the disk, with its members.
    pub(crate) newest_snapshot: Option<(SnapshotId, Members)>,
    /// A snapshot with a partial file on the disk.
    pub(crate) unfinished_snapshot: Option<SnapshotId>,
    /// Bytes of the entries applied since the newest snapshot.
    pub(crate) log_bytes: u64,
}

impl Driver {
    /// Returns a driver that has not run yet.
    ///
    /// # Errors
    /// Consensus cannot start from the contents of the log.
    pub(crate) fn new(parts: Parts) -> Result<Self, Fatal> {
        let Parts {
            shared,
            identity,
            network,
            log,
            log_reader,
            machine,
            hard_state,
            founded,
            state_lost,
            snapshot_queue,
            backups,
            warm,
            newest_snapshot,
            unfinished_snapshot,
            log_bytes,
        } = parts;
        let settings = &shared.settings;
        let (node, incarnation) = (settings.node, identity.incarnation());
        let (heartbeat, now) = (settings.heartbeat, shared.now());
        let mut driver = Self {
            proposals: Proposals::new(node, incarnation, settings.election_timeout),
            reads: Reads::new(heartbeat * 2),
            // Heartbeats repeat a round, so a round may take as long as an election on a slow
            // network.
            rounds: Rounds::new(node, incarnation, settings.election_timeout),
            sessions: Sessions::new(settings.drift, heartbeat * 2, Arc::clone(&shared.meters)),
            lease_calls: LeaseCalls::new(heartbeat * 2),
            syncs: RecentSyncs::new(shared.meters.log_sync_seconds.histogram(), now),
            log_times: LogTimes::default(),
            space: SpaceTable::new(node, settings.election_timeout, now),
            rejected_requests: RejectedRequests::new(settings.election_timeout * 2),
            peer_rejections: PeerRejections::default(),
            retention: None,
            digests: Digests::new(node, settings.election_ticks()),
            roster: Roster::new(node, settings.members.clone()),
            peer_versions: BTreeMap::new(),
            steps: Steps::new(heartbeat * 2),
            snapshots: Snapshots::new(
                settings.snapshot_log_bytes,
                settings.snapshot_part_bytes as u64,
                settings.election_timeout,
                newest_snapshot,
                unfinished_snapshot,
                log_bytes,
                now,
            ),
            snapshot_queue,
            backups,
            warm,
            offer: None,
            loaded: None,
            to_install: None,
            installing: None,
            has_announced: false,
            unsettled: None,
            raising: None,
            stage: DriverStage::Founding(Founding::new(
                node,
                identity.disk(),
                settings.members.keys().copied().collect(),
            )),
            at_least: BTreeMap::new(),
            input_room: Vec::new(),
            leading: None,
            known_leader: (Term(0), None),
            last_contact: None,
            stood_in: Term(0),
            hold_until: now,
            next_tick: now,
            next_hello: now,
            log_owes_since: None,
            transfers: Vec::new(),
            stopping: None,
            removed: false,
            aborted: false,
            stopped: false,
            shared,
            identity,
            network,
            log,
            log_reader,
            machine,
        };
        if let Some(least) = state_lost {
            driver.stage = DriverStage::Restoring { least, hard_state };
        } else if founded {
            driver.start_consensus(hard_state)?;
        }
        driver.end_own_past();
        Ok(driver)
    }

    /// Processes all inputs as far as possible.
    pub(crate) fn turn(&mut self) -> Next {
        if self.stopped {
            return Next::Stopped;
        }
        let now = self.shared.now();
        let worked = self.work(now);
        self.shared.meters.turn_seconds.add(self.shared.now().since(now));
        match worked {
            Ok(()) if self.aborted => self.stop(StopReason::Killed),
            Ok(()) if self.is_done(now) => self.stop(StopReason::Shutdown),
            Ok(()) if self.removed => self.stop(StopReason::Removed),
            Ok(()) => Next::At(self.next_turn(now)),
            Err(why) => {
                tracing::error!(node = self.my_name(), %why, "node failed, stopping");
                self.stop(StopReason::failed(why))
            }
        }
    }

    /// Returns the time of the next turn if no input arrives: the next tick, or earlier if leases are counted,
    /// because the lessor must read the clock.
    fn next_turn(&self, now: Moment) -> Moment {
        match self.leading.as_ref().and_then(|leading| leading.lessor.as_ref()) {
            Some(_) => self.next_tick.min(now + Lessor::LOOK_EVERY),
            None => self.next_tick,
        }
    }

    fn my_name(&self) -> &str {
        &self.shared.settings.contact.name
    }

    fn work(&mut self, now: Moment) -> Result<(), Fatal> {
        let mut inputs = self.shared.inbox.take(std::mem::take(&mut self.input_room));
        self.shared.meters.inbox_inputs.add(inputs.len());
        for input in inputs.drain(..) {
            self.take(input, now)?;
        }
        inputs.shrink_to(INPUT_ROOM_MAX);
        self.input_room = inputs;
        if self.aborted {
            return Ok(());
        }
        if now >= self.next_tick {
            self.tick(now)?;
        }
        if matches!(self.stage, DriverStage::Running(_)) {
            self.follow_leader(now);
            self.end_leases(now);
            self.propose(now);
            self.settle_members();
            self.forward_requests(now);
            self.ask(now);
            self.start_rounds(now);
            self.ask_for_steps(now);
            self.run_consensus(now)?;
            self.keep_snapshots(now);
        } else {
            self.found(now);
            self.fetch_on(now);
        }
        Ok(())
    }

    fn tick(&mut self, now: Moment) -> Result<(), Fatal> {
        // Make at most one tick in each turn. After a stall, missed ticks are skipped.
        let tick = self.shared.settings.tick();
        let has_stood_still = now.since(self.next_tick) > tick && !mutant!(B44);
        self.next_tick = if has_stood_still { now + tick } else { self.next_tick + tick };
        if let DriverStage::Running(consensus) = &mut self.stage {
            consensus.tick();
        }
        self.proposals.resend(now);
        let expired = self.proposals.expire(now);
        self.tell(expired);
        let unconfirmed = self.reads.expire(now);
        self.shared.meters.reads_unconfirmed_total.add(unconfirmed);
        self.lease_calls.expire(now);
        self.backups.look(now);
        self.digests.tick();
        self.compare_again();
        self.rounds.start_again(now);
        for askers in self.at_least.values_mut() {
            for asking in askers.extract_if(.., |a| a.deadline <= now || a.reply.is_gone()) {
                asking.reply.send(Err(CallError::Deadline { maybe_applied: false }));
            }
        }
        self.at_least.retain(|_, askers| !askers.is_empty());
        self.steps.expire(now);
        self.put_before_consensus();
        self.announce();
        self.raise_version();
        self.replace_voters();
        self.tend_sessions(now);
        self.expire_transfers(now);
        self.hand_over_from_dead_disk(now);
        if let Some(follower) = self.shared.follower.get() {
            Arc::clone(follower).tick(now);
        }
        if !mutant!(B50) {
            self.machine.scrub(SCRUB_ROWS).map_err(|fault| fault.to_string())?;
        }
        self.forget_history(now);
        self.mind_space(now);
        self.read_gauges();
        self.record_sample(now);
        self.publish_status();
        Ok(())
    }

    fn run_consensus(&mut self, now: Moment) -> Result<(), Fatal> {
        loop {
            let DriverStage::Running(consensus) = &mut self.stage else { return Ok(()) };
            let turn = match consensus.turn() {
                Ok(Some(turn)) => turn,
                Ok(None) => return Ok(()),
                Err(fault) => return Err(fault.to_string()),
            };
            self.send_raft(turn.send);
            if let Some(group) = turn.persist {
                self.shared.env.points.reach(Point::DriverBeforePersist);
                self.log_owes_since.get_or_insert(now);
                self.log_times.queued(&group, self.shared.now());
                self.installing = turn.install.map(|id| (id, group.number)).or(self.installing);
                self.log.push(group);
            }
            if !turn.commit.is_empty() {
                self.apply(turn.commit)?;
            }
            for (round, index) in turn.rounds {
                self.confirmed(round, index);
            }
            self.follow_leader(now);
        }
    }

    fn send(&mut self, to: NodeId, message: PeerMessage) {
        let lane = message.lane();
        self.post(to, lane, message);
    }

    /// Sends a message to a peer. All messages go through here.
    fn post(&mut self, to: NodeId, lane: Lane, message: PeerMessage) -> SendOutcome {
        let outcome = self.network.send(to, lane, message);
        match outcome {
            SendOutcome::Queued => {}
            SendOutcome::Full => self.shared.meters.messages_dropped_total.one(),
            SendOutcome::Unreachable => self.shared.meters.messages_unreachable_total.one(),
        }
        outcome
    }

    fn send_raft(&mut self, messages: Vec<Outbound>) {
        for Outbound { to, lane, message } in messages {
            let outcome = self.post(to, lane, message);
            let DriverStage::Running(consensus) = &mut self.stage else { continue };
            match outcome {
                SendOutcome::Queued => {}
                SendOutcome::Full => consensus.not_sent(to),
                SendOutcome::Unreachable => consensus.unreachable(to),
            }
        }
    }

    fn publish_status(&self) {
        let settings = &self.shared.settings;
        let (role, term, leader, commit, unmet) = match &self.stage {
            DriverStage::Running(consensus) => (
                match consensus.role() {
                    consensus::RaftRole::Leader => Role::Leader,
                    consensus::RaftRole::Candidate | consensus::RaftRole::PreCandidate => {
                        Role::Candidate
                    }
                    consensus::RaftRole::Follower => Role::Follower,
                },
                consensus.term(),
                consensus.leader(),
                consensus.commit(),
                Vec::new(),
            ),
            DriverStage::Founding(founding) => {
                (Role::Founding, Term(0), None, LogIndex(1), founding.missing())
            }
            DriverStage::Restoring { .. } => {
                (Role::Restoring, Term(0), None, LogIndex(1), Vec::new())
            }
            DriverStage::Recording(_) => (Role::Founding, Term(0), None, LogIndex(1), Vec::new()),
        };
        let status = NodeStatus {
            id: settings.node,
            name: settings.contact.name.clone(),
            role: if self.stopped { Role::Stopped } else { role },
            version: self.machine.version(),
            term,
            leader,
            revision: self.shared.reader.revision(),
            commit,
            applied: self.machine.applied(),
            last: self.last_index(),
            members: self.member_statuses(),
            open_requests: self.proposals.len(),
            sessions: self.sessions.len(),
            unmet,
            diverged: self.digests.is_undecided(),
            digest: (self.machine.applied(), self.machine.digest()),
        };
        waking(|| {
            self.shared.status.send_if_modified(|old| {
                let news = *old != status;
                *old = status;
                news
            })
        });
    }
}

#[cfg(test)]
mod tests;

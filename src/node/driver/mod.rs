//! The driver: defines the order of all operations inside a node.
//!
//! The driver works in turns. A turn takes all inputs since the last turn and processes them as far
//! as possible. Messages and proposals are passed to consensus. Consensus emits messages to peers,
//! groups of entries for the log, and committed entries for the state machine. Changes that have
//! become visible are reported first to watchers, then to the lock table, and finally to the
//! callers. A turn never waits for a peer or for a write to disk. The only data that a turn reads
//! from disk are old entries for a follower that lags far behind. A real node runs turns on its own
//! thread. The simulator schedules the turns itself.
//!
//! ```text
//!   inbox ──▶ take ──▶ hand over ──▶ consensus ──▶ persist ──▶ log worker ──▶ inbox (durable)
//!                                        │  ├────▶ send ─────▶ peers
//!                                        │  └────▶ rounds ───▶ reads, renewals
//!                                        ▼
//!                                     commit ──▶ apply ──▶ publish ──▶ watch ──▶ locks ──▶ callers
//! ```
//!
//! A fault ends the node, but never the process: the driver marks the node as stopped, fails all
//! waiting calls, and does not run again.

mod ask;
mod commit;
mod contact;
mod early_campaign;
mod input;
#[cfg(any(test, feature = "sim"))]
mod inspect;
mod io;
mod leader;
mod leader_state;
mod leases;
mod lifecycle;
mod members;
mod membership;
mod metrics;
mod peers;
mod quota;
mod retain;
mod sessions;
mod shutdown;
mod snapshot;
mod snapshot_flow;
mod startup;
mod status;
mod timing;
mod to_leader;
mod transfer;

#[cfg(any(test, feature = "sim"))]
pub(crate) use inspect::Look;

use std::sync::Arc;

use crate::consensus::{self, Consensus, Offer, Outbound};
use crate::env::{Point, SendOutcome};
use crate::machine::Machine;
use crate::model::{Lane, LogIndex, Members, Moment, NodeId, PeerMessage, SnapshotId};
use crate::wal;

use crate::node::leader::lessor::Lessor;
use crate::node::leader_queries::rounds::Rounds;
use crate::node::membership::founding::Founding;
use crate::node::membership::identity::Identity;
use crate::node::requests::admission::COMMAND_BYTES_MAX;
use crate::node::requests::answer::StopReason;
use crate::node::sessions::Sessions;
use crate::node::shared::Shared;
use crate::node::snapshots::Snapshots;

use contact::LeaderContact;
use leader_state::LeaderState;
use lifecycle::{Lifecycle, LifecycleAction, LifecycleEvent};
use membership::Membership;
use peers::Peers;
use snapshot_flow::{SnapshotEvent, SnapshotFlow};
use timing::Timing;
use to_leader::ToLeader;

pub(crate) use commit::apply_entry;
pub(crate) use io::Io;

/// Once an entry has this many bytes of requests, further requests go into the next entry. The last
/// request may exceed the limit.
const ENTRY_BYTES: usize = 256 << 10;

/// Maximum size of a proposal from another node, in bytes. A correct node sends at most
/// [`ENTRY_BYTES`], plus the largest request that a configuration allows, plus a window. A proposal
/// of this size still fits into an entry, together with the requests that are packed before it.
const PROPOSAL_BYTES_MAX: usize = 4 << 20;

const _: () = assert!(COMMAND_BYTES_MAX + ENTRY_BYTES < PROPOSAL_BYTES_MAX);
const _: () = assert!(PROPOSAL_BYTES_MAX + ENTRY_BYTES + (1 << 10) < consensus::ENTRY_BYTES_MAX);

/// Number of rows whose checksums are verified after each applied entry.
const SCRUB_ROWS: usize = 16;

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

/// The driver of a node. Each part owns its state and its rules; the driver defines the order of all steps.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    identity: Arc<Identity>,
    io: Io,
    machine: Machine,
    stage: DriverStage,
    /// The unanswered calls of this node.
    to_leader: ToLeader,
    /// The rounds in which this node confirms its leadership.
    rounds: Rounds,
    sessions: Sessions,
    /// Set while this node leads.
    leader: Option<LeaderState>,
    contact: LeaderContact,
    membership: Membership,
    snapshots: SnapshotState,
    peers: Peers,
    timing: Timing,
    lifecycle: Lifecycle,
}

/// The snapshots of this node, and the snapshot of the leader that this node needs.
struct SnapshotState {
    own: Snapshots,
    flow: SnapshotFlow<Offer, Box<Machine>>,
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
    /// A record must become durable before the member takes part in consensus.
    Recording(Recording),
    /// Normal operation.
    Running(Box<Consensus>),
}

/// The record that a member writes before it takes part in consensus.
#[derive(Clone)]
enum Recording {
    /// The list of founders.
    Founders(wal::Founding),
    /// The log begins with a state that the member received.
    Base(wal::HardState),
}

/// The parts of a driver.
pub(crate) struct Parts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) io: Io,
    pub(crate) machine: Machine,
    pub(crate) hard_state: wal::HardState,
    pub(crate) founded: bool,
    /// If the state before the log is lost, the index that a replacement must cover.
    pub(crate) state_lost: Option<LogIndex>,
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
    /// Fails if consensus cannot start from the contents of the log.
    pub(crate) fn new(parts: Parts) -> Result<Self, Fatal> {
        let Parts {
            shared,
            identity,
            io,
            machine,
            hard_state,
            founded,
            state_lost,
            newest_snapshot,
            unfinished_snapshot,
            log_bytes,
        } = parts;
        let settings = &shared.settings;
        let (node, incarnation) = (settings.node, identity.incarnation());
        let (heartbeat, now) = (settings.heartbeat, shared.now());
        let (timeout, ticks) = (settings.election_timeout, settings.election_ticks());
        let snapshots = Snapshots::new(
            settings.snapshot_log_bytes,
            settings.snapshot_part_bytes as u64,
            timeout,
            newest_snapshot,
            unfinished_snapshot,
            log_bytes,
            now,
        );
        let founding =
            Founding::new(node, identity.disk(), settings.members.keys().copied().collect());
        let mut driver = Self {
            to_leader: ToLeader::new(node, incarnation, timeout, heartbeat, now),
            // Heartbeats repeat a round, so a round may take as long as an election on a slow
            // network.
            rounds: Rounds::new(node, incarnation, timeout),
            sessions: Sessions::new(settings.drift, heartbeat * 2, Arc::clone(&shared.meters)),
            leader: None,
            contact: LeaderContact::default(),
            membership: Membership::new(node, settings.members.clone()),
            snapshots: SnapshotState { own: snapshots, flow: SnapshotFlow::Idle },
            peers: Peers::new(node, timeout, ticks, now),
            timing: Timing::new(shared.meters.log_sync_seconds.histogram(), now),
            lifecycle: Lifecycle::default(),
            stage: DriverStage::Founding(founding),
            io,
            shared,
            identity,
            machine,
        };
        if let Some(least) = state_lost {
            driver.stage = DriverStage::Restoring { least, hard_state };
        } else if founded {
            driver.start_consensus(hard_state)?;
        }
        driver.revoke_earlier_leases();
        Ok(driver)
    }

    /// Processes all inputs as far as possible.
    pub(crate) fn turn(&mut self) -> Next {
        if self.lifecycle.is_stopped() {
            return Next::Stopped;
        }
        let now = self.shared.now();
        let worked = self.work(now);
        self.shared.meters.turn_seconds.add(self.shared.now().since(now));
        let event = match worked {
            Ok(()) => LifecycleEvent::TurnEnded { farewell_over: self.is_farewell_over(now) },
            Err(why) => {
                tracing::error!(node = self.my_name(), %why, "node failed, stopping");
                LifecycleEvent::Failed(StopReason::failed(why))
            }
        };
        match self.lifecycle.apply(event) {
            LifecycleAction::Stop(reason) => self.stop(reason),
            LifecycleAction::CloseSessions | LifecycleAction::Nothing => {
                Next::At(self.next_turn(now))
            }
        }
    }

    /// Returns the time of the next turn if no input arrives: the next tick or early campaign.
    /// While leases are counted, the turn comes after at most [`Lessor::CHECK_INTERVAL`], because the
    /// lessor must read the clock.
    fn next_turn(&self, now: Moment) -> Moment {
        let next_tick = self.timing.next_tick();
        let campaign_at = self.contact.campaign_at().filter(|at| *at > now);
        let next_tick = campaign_at.map_or(next_tick, |at| at.min(next_tick));
        match self.shared.lessor.is_counting() {
            true => next_tick.min(now + Lessor::CHECK_INTERVAL),
            false => next_tick,
        }
    }

    fn my_name(&self) -> &str {
        &self.shared.settings.contact.name
    }

    fn work(&mut self, now: Moment) -> Result<(), Fatal> {
        self.take_inputs(now)?;
        if self.lifecycle.is_aborted() {
            return Ok(());
        }
        if self.timing.is_tick_due(now, self.shared.settings.tick()) {
            self.tick(now)?;
        }
        if !matches!(self.stage, DriverStage::Running(_)) {
            self.found(now);
            self.fetch_on(now);
            return Ok(());
        }
        self.campaign_early(now);
        self.follow_leader(now);
        self.end_leases(now);
        self.propose(now);
        self.settle_members();
        self.forward_requests(now);
        self.ask(now);
        self.start_rounds(now);
        self.send_membership_requests(now);
        self.run_consensus(now)?;
        self.keep_snapshots(now);
        Ok(())
    }

    fn tick(&mut self, now: Moment) -> Result<(), Fatal> {
        if let DriverStage::Running(consensus) = &mut self.stage {
            consensus.tick();
        }
        self.expire_calls(now);
        self.io.backups.look(now);
        self.peers.digests.tick();
        self.compare_again();
        self.rounds.start_again(now);
        self.decide_on_loaded(now)?;
        self.announce();
        self.raise_version();
        self.replace_voters();
        self.expire_sessions(now);
        self.to_leader.expire_transfers(now);
        self.hand_over_from_dead_disk(now);
        self.tick_follower(now);
        self.scrub()?;
        self.forget_history(now);
        self.handle_full_disk(now);
        self.read_gauges();
        self.record_sample(now);
        self.publish_status();
        Ok(())
    }

    /// Sends requests again that were not answered, and fails calls whose deadline has passed.
    fn expire_calls(&mut self, now: Moment) {
        self.to_leader.proposals.resend(now);
        let expired = self.to_leader.proposals.expire(now);
        self.answer_callers(expired);
        let unconfirmed = self.to_leader.reads.expire(now);
        self.shared.meters.reads_unconfirmed_total.add(unconfirmed);
        self.to_leader.lease_calls.expire(now);
        self.to_leader.expire_waiting(now);
        self.to_leader.steps.expire(now);
    }

    fn tick_follower(&self, now: Moment) {
        if let Some(follower) = self.shared.follower.get() {
            Arc::clone(follower).tick(now);
        }
    }

    /// Verifies the checksums of some rows, so that a damaged row is found even if it is not read.
    fn scrub(&mut self) -> Result<(), Fatal> {
        mutant!(B50, return Ok(()));
        self.machine.scrub(SCRUB_ROWS).map_err(|fault| fault.to_string())
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
                self.timing.log_owes_since.get_or_insert(now);
                self.timing.log_times.queued(&group, self.shared.now());
                if let Some(id) = turn.install {
                    self.snapshot_event(SnapshotEvent::Writing { id, group: group.number }, now)?;
                }
                self.io.log.push(group);
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

    fn post(&mut self, to: NodeId, lane: Lane, message: PeerMessage) -> SendOutcome {
        self.io.post(to, lane, message, &self.shared.meters)
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
}

#[cfg(test)]
mod tests;

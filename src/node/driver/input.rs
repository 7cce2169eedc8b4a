//! Dispatches inputs to their handlers.

use tracing::Span;

use super::lifecycle::LifecycleEvent;
use super::snapshot_flow::SnapshotEvent;
use super::{Driver, DriverStage, Fatal, PROPOSAL_BYTES_MAX};
use crate::consensus::Stepped;
use crate::env::Point;
use crate::model::{Command, Moment, NodeId, PeerMessage, Proposal, ProposeRejection};
use crate::node::leader_queries::reads::ReadWaiter;
use crate::node::leader_queries::rounds::{Answer, LeaseQuestion, QueryOrigin, Question};
use crate::node::requests::answer::{CallError, StopReason};
use crate::node::requests::inbox::{Input, Write, refuse_all};
use crate::node::requests::proposals::Closed;
use crate::transport::Refused;
use crate::{codec, metrics, wal};

/// The error for a backup of a replica without any state of its cluster.
const NO_STATE: &str = "this node has no state of its cluster yet: wait until its health reports that it is serving, or use another member";

impl Driver {
    /// Processes all inputs since the last turn.
    pub(super) fn take_inputs(&mut self, now: Moment) -> Result<(), Fatal> {
        let mut inputs = self.io.take_inputs(&self.shared.inbox);
        self.shared.meters.inbox_inputs.add(inputs.len());
        let mut rest = inputs.drain(..);
        while let Some(input) = rest.next() {
            if let Err(fault) = self.take(input, now) {
                // Fail the callers of the remaining inputs with the reason of the stop.
                refuse_all(rest.collect(), &StopReason::failed(&fault));
                return Err(fault);
            }
        }
        drop(rest);
        self.io.reuse(inputs);
        Ok(())
    }

    fn take(&mut self, input: Input, now: Moment) -> Result<(), Fatal> {
        match input {
            Input::Peer(from, message) => {
                self.process_ended(from, false, now);
                self.take_message(from, message, now)?;
            }
            Input::Connected(peer, hello) => {
                tracing::debug!(%peer, "peer connected");
                self.process_ended(peer, false, now);
                self.peers.rejections.resolve(&self.membership.roster.name_of(peer));
                self.hear(&hello)?;
                if self.membership.connected(peer, hello.supported_version) {
                    self.settle_for_peer();
                }
                if self.membership.roster.hear(peer, &hello.address) {
                    self.io.network.set_peers(&self.membership.roster.contacts());
                }
            }
            Input::Disconnected(peer) => {
                self.membership.disconnected(peer);
                if let DriverStage::Running(consensus) = &mut self.stage {
                    consensus.unreachable(peer);
                }
            }
            Input::ProcessEnded(peer, has_ended) => self.process_ended(peer, has_ended, now),
            Input::Refused(peer, rejection) => self.connection_rejected(peer, rejection, now)?,
            Input::Durable(proof, synced) => self.take_proof(proof, synced, now)?,
            Input::Space(space) => self.take_space(space, now),
            Input::LogCut => {
                if let DriverStage::Running(consensus) = &mut self.stage {
                    consensus.log_cut().map_err(|fault| fault.to_string())?;
                }
            }
            Input::LogFailed(why) => return Err(format!("the log has failed: {why}")),
            Input::Write(write) => self.take_write(write),
            Input::Read(waiter) => {
                mutant!(M06, {
                    waiter.reply.send(Ok(now));
                    return Ok(());
                });
                self.to_leader.reads.add(waiter);
            }
            Input::AtLeast { revision, deadline, reply } => {
                if self.shared.replica.has_state() && self.shared.reader.revision() >= revision {
                    reply.send(Ok(()));
                } else {
                    let waiter = ReadWaiter { deadline, reply, span: Span::none() };
                    self.to_leader.wait_for(revision, waiter);
                }
            }
            Input::Lease(call) => self.to_leader.lease_calls.add(call),
            Input::OpenSession(opening) => self.open_session(opening),
            Input::SessionGranted(opening, granted) => self.session_granted(opening, granted),
            Input::ResumeSession(resuming) => self.resume_session(resuming, now),
            Input::CloseSession(state, close) => {
                if let Some(lease) = self.sessions.close(&state, close, now) {
                    self.propose_until_applied(Command::Revoke(lease));
                }
            }
            Input::Transfer { to, deadline, reply } => self.transfer(to, deadline, reply),
            Input::Join(ask, reply) => self.take_join(ask, reply, now),
            Input::LetIn(reply, result) => self.answer_join(reply, result),
            Input::Step { membership_request, deadline, reply } => {
                self.to_leader.steps.add(membership_request, deadline, reply, now)
            }
            Input::Snapshot(news) => self.take_news(news, now)?,
            Input::Backup { reply, .. } if !self.shared.replica.has_state() => {
                reply.send(Err(CallError::Backup(NO_STATE.into())));
            }
            Input::Backup { path, reply } => {
                self.io.backups.add(path, reply, || self.machine.image());
            }
            #[cfg(any(test, feature = "sim"))]
            Input::Rot { key, reply } => reply.send(Ok(self.machine.rot(&key))),
            Input::Abort => self.lifecycle_event(LifecycleEvent::Abort, now),
            Input::Stop => self.lifecycle_event(LifecycleEvent::Shutdown(now), now),
        }
        Ok(())
    }

    pub(super) fn take_message(
        &mut self,
        from: NodeId,
        message: PeerMessage,
        now: Moment,
    ) -> Result<(), Fatal> {
        if let PeerMessage::Hello(hello) = &message {
            self.hear(hello)?;
            // If this disk is also new, do not answer: two members with new disks would answer each
            // other endlessly. Members with new disks send a hello at each heartbeat anyway.
            let is_founding = matches!(self.stage, DriverStage::Founding(_));
            if matches!(hello.standing, crate::model::FoundingState::Blank) && !is_founding {
                self.send(from, PeerMessage::Hello(self.identity.hello(from)));
            }
            return Ok(());
        }
        match message {
            // Parts of snapshots are sent and received at every stage.
            PeerMessage::SnapshotAsk { id, offset } => self.serve_part(from, id, offset),
            PeerMessage::SnapshotPart { id, offset, data } => {
                self.receive_part(from, id, offset, data);
            }
            PeerMessage::SnapshotGone { id } => self.end_fetch_of_missing(from, id),
            PeerMessage::SnapshotWanted { least } => self.serve_any(from, least, now),
            PeerMessage::SnapshotHere { id } => self.found_state(from, id, now),
            message => self.take_running(from, message, now)?,
        }
        Ok(())
    }

    /// Processes a message that only a member that takes part in consensus handles. A member on a
    /// new disk does not take part.
    fn take_running(
        &mut self,
        from: NodeId,
        message: PeerMessage,
        now: Moment,
    ) -> Result<(), Fatal> {
        let DriverStage::Running(consensus) = &mut self.stage else { return Ok(()) };
        let mine = self.identity.incarnation();
        let origin = |incarnation, round| QueryOrigin { node: from, incarnation, round };
        match message {
            PeerMessage::Raft(bytes) => match consensus.step(from, bytes) {
                Ok(Stepped::Done) => {}
                Ok(Stepped::Offer(offer)) => self.offered(offer, now),
                Err(rejection) if rejection.is_fatal() => return Err(rejection.to_string()),
                Err(rejection) => {
                    tracing::warn!(%from, %rejection, "rejected raft message");
                }
            },
            PeerMessage::Propose(proposal) => match &mut self.leader {
                _ if proposal.node != from
                    || codec::proposal_len(&proposal) > PROPOSAL_BYTES_MAX =>
                {
                    self.malformed(from, &proposal);
                }
                Some(leading) => leading.forwarded.push(proposal),
                None => {
                    let why = ProposeRejection::NotLeader(consensus.leader());
                    self.reject_forwarded(&proposal, why);
                }
            },
            PeerMessage::ProposeRejected { incarnation, seqs, why } if incarnation == mine => {
                match why {
                    ProposeRejection::QuotaExceeded | ProposeRejection::NoSpace => {
                        self.growth_rejected_by_leader(&seqs, why, now);
                    }
                    _ => {
                        self.to_leader.proposals.queue_again(&seqs);
                        self.to_leader.hold(now);
                    }
                }
            }
            PeerMessage::ReadAsk { round, incarnation } => {
                self.take_question(origin(incarnation, round), Question::Read);
            }
            PeerMessage::Renew { round, incarnation, leases } => {
                self.take_question(origin(incarnation, round), Question::Renew(leases));
            }
            PeerMessage::LeaseAsk { round, incarnation, renew, look } => {
                let question = Question::Leases(LeaseQuestion { renew, look });
                self.take_question(origin(incarnation, round), question);
            }
            PeerMessage::ReadAnswer { round, incarnation, index } if incarnation == mine => {
                self.take_answer(round, Answer::Read(index));
                if index.is_none() {
                    self.to_leader.hold(now);
                }
            }
            PeerMessage::Renewed { round, incarnation, renewed, gone } if incarnation == mine => {
                self.take_answer(round, Answer::Renewed { renewed, gone });
            }
            PeerMessage::LeaseAnswer { round, incarnation, living, gone }
                if incarnation == mine =>
            {
                self.take_answer(round, Answer::Leases { living, gone });
            }
            PeerMessage::Digest { index, digest } => self.compare(from, index, digest)?,
            PeerMessage::MemberAsk { round, incarnation, membership_request } => {
                self.take_step(origin(incarnation, round), membership_request);
            }
            PeerMessage::MemberAnswer { round, incarnation, answer } if incarnation == mine => {
                self.to_leader.steps.answered(round, answer);
                self.to_leader.steps.applied(self.machine.applied());
            }
            // These messages are handled above.
            PeerMessage::Hello(_)
            | PeerMessage::SnapshotAsk { .. }
            | PeerMessage::SnapshotPart { .. }
            | PeerMessage::SnapshotGone { .. }
            | PeerMessage::SnapshotWanted { .. }
            | PeerMessage::SnapshotHere { .. } => {}
            PeerMessage::Space { low } => self.peers.space.hear(from, low, now),
            // The answer is for an earlier incarnation of this node, so ignore it.
            PeerMessage::ProposeRejected { .. }
            | PeerMessage::ReadAnswer { .. }
            | PeerMessage::MemberAnswer { .. }
            | PeerMessage::LeaseAnswer { .. }
            | PeerMessage::Renewed { .. } => {}
        }
        Ok(())
    }

    /// Drops requests that no correct member sends. No caller waits for such requests. Such
    /// requests must not reach the log, because a request that is too large for an entry cannot be
    /// proposed.
    fn malformed(&mut self, from: NodeId, proposal: &Proposal) {
        self.shared.meters.proposals_refused_total.at(metrics::Refused::Malformed).one();
        let (node, bytes) = (proposal.node, codec::proposal_len(proposal));
        tracing::warn!(%from, %node, bytes, "dropped malformed requests of a member");
    }

    pub(super) fn take_write(&mut self, write: Write) {
        // Requests without a deadline are not rejected. Such requests wait until the difference is
        // resolved.
        if self.peers.digests.is_undecided() && write.deadline.is_some() {
            self.answer_callers(vec![Closed::not_accepted(write, CallError::Diverged)]);
        } else {
            self.to_leader.proposals.add(write);
        }
    }

    pub(super) fn take_proof(
        &mut self,
        proof: wal::Durable,
        synced: Moment,
        now: Moment,
    ) -> Result<(), Fatal> {
        match &mut self.stage {
            DriverStage::Running(consensus) => {
                self.shared.env.points.reach(Point::DriverBeforeSend);
                let proven = proof.number();
                tracing::trace!(group = proven, "log group synced");
                self.timing.log_times.durable(proven, synced);
                let opened = consensus.persisted(proof);
                self.timing.log_owes_since = consensus.owes_log().then_some(now);
                self.send_raft(opened);
                self.shared.env.points.reach(Point::DriverAfterSend);
                self.snapshot_event(SnapshotEvent::Durable(proven), now)?;
            }
            DriverStage::Recording(recording) => {
                let recording = recording.clone();
                self.recorded(recording)?;
            }
            DriverStage::Founding(_) | DriverStage::Restoring { .. } => {}
        }
        Ok(())
    }

    /// Processes the rejection of a connection, by this node or by the peer.
    fn connection_rejected(
        &mut self,
        peer: NodeId,
        rejection: Refused,
        now: Moment,
    ) -> Result<(), Fatal> {
        let name = match rejection.at.as_deref().unwrap_or_default() {
            "" => self.membership.roster.name_of(peer),
            address => self.membership.roster.name_at(address),
        };
        if rejection.disk_lost == Some(self.shared.settings.node) {
            return Err(format!("{name} does not accept this member: {}", rejection.why));
        }
        if rejection.removed == Some(self.shared.settings.node) {
            tracing::warn!(
                peer = name,
                "peer reports that this member was removed from the cluster"
            );
            self.lifecycle_event(LifecycleEvent::Removed, now);
        }
        if self.peers.rejections.add(&name, &rejection.why, now) {
            tracing::warn!(peer = name, why = rejection.why, "peer connection rejected");
        }
        Ok(())
    }

    pub(super) fn hear(&mut self, hello: &crate::model::Hello) -> Result<(), Fatal> {
        match &mut self.stage {
            DriverStage::Founding(founding) => founding.hear(hello),
            DriverStage::Recording(_) | DriverStage::Restoring { .. } | DriverStage::Running(_) => {
                Ok(())
            }
        }
    }
}

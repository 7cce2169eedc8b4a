//! The sessions of this node: opening, resuming, renewing and closing them.

use std::sync::Arc;

use super::Driver;
use crate::model::{Command, LeaseId, Moment, Rejection, Reply, SessionInfo};
use crate::node::requests::answer::{CallError, CallResult, ReplyTo, StopReason};
use crate::node::requests::inbox::{Input, Write};
use crate::node::requests::request_trace::RequestTrace;
use crate::node::sessions::resume_error::ResumeSessionError;
use crate::node::sessions::session::Claim;
use crate::node::sessions::{Resumed, SessionOpening, SessionResuming};

impl Driver {
    pub(super) fn open_session(&mut self, opening: SessionOpening) {
        let (deadline, asked) = (Some(opening.deadline), opening.asked);
        let (command, bytes) = (opening.command(), opening.bytes);
        let inbox = Arc::clone(&self.shared.inbox);
        let reply = ReplyTo::Call(Box::new(move |granted| {
            drop(inbox.push(Input::SessionGranted(opening, granted)));
        }));
        let trace = RequestTrace::begin(&command, asked);
        self.take_write(Write { command, deadline, bytes, reply, trace });
    }

    pub(super) fn session_granted(&mut self, opening: SessionOpening, granted: CallResult<Reply>) {
        let lease = match granted {
            Ok(Reply::Grant(grant)) => grant.id,
            Ok(_) => {
                let maybe_applied = true;
                return opening.reply.send(Err(CallError::Deadline { maybe_applied }));
            }
            Err(error) => return opening.reply.send(Err(error)),
        };
        if opening.reply.is_gone() || self.lifecycle.farewell().is_some() {
            self.propose_until_applied(Command::Revoke(lease));
            let (reason, maybe_applied) = (StopReason::Shutdown, true);
            return opening.reply.send(Err(CallError::Stopped { reason, maybe_applied }));
        }
        let state = self.sessions.opened(lease, opening.terms(), opening.asked);
        if self.shared.reader.lease_head(lease).is_none() {
            self.lease_ended(lease);
        }
        opening.reply.send(Ok(Claim::opened(self.shared.clone(), state)));
    }

    /// Resumes a lease, according to this replica. The caller has ensured that the replica is
    /// current.
    pub(super) fn resume_session(&mut self, resuming: SessionResuming, now: Moment) {
        if self.lifecycle.farewell().is_some() {
            let (reason, maybe_applied) = (StopReason::Shutdown, false);
            return resuming.reply.send(Err(CallError::Stopped { reason, maybe_applied }));
        }
        let lease = resuming.lease;
        let Some(info) = self.shared.reader.lease_head(lease) else {
            return resuming.reply.send(Err(Rejection::LeaseNotFound(lease).into()));
        };
        let label = match info.session {
            Some((node, _, SessionInfo { own: true, .. })) => {
                let why = ResumeSessionError::OwnSessionLease { lease, node };
                return resuming.reply.send(Err(CallError::NotResumed(why)));
            }
            Some((_, _, session)) => session.label,
            None => String::new(),
        };
        let answer = self.sessions.resume(resuming, info.ttl, label, now);
        self.answer_resumed(answer);
    }

    fn answer_resumed(&self, resumed: impl IntoIterator<Item = Resumed>) {
        let claim = |state| Claim::resumed(self.shared.clone(), state);
        for (reply, result) in resumed {
            reply.send(result.map(claim));
        }
    }

    /// Processes the leader's answer to a renewal.
    pub(super) fn renewed(&mut self, round: u64, renewed: &[LeaseId], gone: &[LeaseId]) {
        let resumed = self.sessions.renewed(round, renewed, gone, self.shared.now());
        self.answer_resumed(resumed);
    }

    pub(super) fn lease_ended(&mut self, lease: LeaseId) {
        let resumed = self.sessions.lease_ended(lease, self.shared.now());
        self.answer_resumed(resumed);
    }

    /// Ends the sessions that were not renewed in time, and notifies their watchers. Called at each tick.
    pub(super) fn expire_sessions(&mut self, now: Moment) {
        for lease in self.sessions.tick(now) {
            self.propose_until_applied(Command::Revoke(lease));
        }
        let late = self.sessions.give_up(now);
        self.answer_resumed(late);
    }
}

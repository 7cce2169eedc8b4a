//! The state that only a leader has.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{Command, LogIndex, MemberChange, Moment, NodeId, Proposal, RequestId, Term};
use crate::node::leader::retain::Retention;
use crate::node::leader_queries::rounds::{LeaderQuery, QueryOrigin};
use crate::node::requests::quota::Proposed;

/// The state that only a leader has.
#[derive(Default)]
pub(super) struct LeaderState {
    /// Time of the election.
    pub(super) since: Moment,
    /// Proposals from other nodes in this turn.
    pub(super) forwarded: Vec<Proposal>,
    /// Requests of all nodes that may end leases of earlier terms, which a new leader holds back.
    pub(super) held_back: BTreeMap<RequestId, Proposal>,
    /// Requests that were proposed in this term and are not applied yet. The leader does not
    /// propose these requests again.
    pub(super) in_log: Proposed,
    /// Confirmed renewals, by the index that must be applied before they are processed.
    pub(super) renewals: BTreeMap<LogIndex, Vec<LeaderQuery>>,
    /// The times at which uncommitted entries were proposed. Consensus bounds the number of these
    /// entries.
    pub(super) in_flight: VecDeque<(LogIndex, Moment)>,
    /// The membership change that was proposed and is not applied yet.
    pub(super) step: Option<InProgress>,
    /// The origins of requests that wait until the last membership change is settled, each with the
    /// affected member.
    pub(super) unanswered: Vec<(QueryOrigin, NodeId)>,
    /// Decides how much history is kept. `None` until the first entry of the term is applied.
    pub(super) retention: Option<Retention>,
    /// The number of the request with which this leader raises the cluster version.
    pub(super) raising: Option<u64>,
}

impl LeaderState {
    pub(super) fn new(now: Moment) -> Self {
        Self { since: now, ..Self::default() }
    }

    /// Records that a request was proposed in the entry at `index`. `more` is the growth of the
    /// state that the request may cause.
    pub(super) fn proposed(
        &mut self,
        id: RequestId,
        index: LogIndex,
        command: &Command,
        more: u64,
    ) {
        self.in_log.proposed(id, index, command, more);
    }
}

/// A membership change that this node has proposed as the leader.
pub(super) struct InProgress {
    pub(super) term: Term,
    pub(super) index: LogIndex,
    /// The affected member.
    pub(super) id: NodeId,
    pub(super) change: MemberChange,
    pub(super) origins: Vec<QueryOrigin>,
}

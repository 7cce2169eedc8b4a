//! Judges elections that do not wait for the election timeout (R-EVIDENCE).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Judge;
use crate::consensus::TermStatement;
use crate::model::{NodeId, PeerMessage, Term};
use crate::node::Look;

/// A member that has received a message from its leader within this time does not vote for another
/// leader, unless its connections show that the leader's process has ended. This is the minimum
/// election timeout of 500 ms, less late ticks and a fast clock.
const FOLLOWS_MIN: Duration = Duration::from_millis(350);

/// A member that has been connected with its leader for this time has no evidence any more that the
/// leader's process has ended.
const CONNECTED_FOR: Duration = Duration::from_millis(200);

/// The state of the judge for early elections.
#[derive(Default)]
pub(super) struct EarlyJudge {
    followers: BTreeMap<NodeId, Follower>,
    /// The candidates whose leader has asked them to campaign, with the term of the campaign.
    transfers: BTreeSet<(NodeId, Term)>,
}

/// The messages that a node has received from its leader.
#[derive(Default)]
struct Follower {
    /// The highest term of a leader that has sent a message to the node.
    term: Term,
    leader: Option<NodeId>,
    /// Time of the last message of that leader.
    at: Duration,
    /// Time of that message, in the running time of the node.
    running: Duration,
    /// The highest term in any other message. The term of the node may have risen to it.
    others: Term,
    /// Time of the last turn of its driver.
    turned_at: Duration,
}

impl Judge {
    /// Records a message that arrives at a process, for the check of early elections.
    pub(super) fn record_early_message(&mut self, from: NodeId, to: NodeId, message: &PeerMessage) {
        let PeerMessage::Raft(bytes) = message else { return };
        let (now, running) = (self.timeline.now(), self.running_time(to));
        let follower = self.peers.early.followers.entry(to).or_default();
        match TermStatement::in_message(bytes) {
            Some(TermStatement::Leader(term)) if term >= follower.term => {
                let leader = Some(from);
                *follower = Follower { term, leader, at: now, running, ..*follower };
            }
            Some(TermStatement::Transfer { candidate, term }) => {
                self.peers.early.transfers.insert((candidate, term));
            }
            Some(TermStatement::Other(term)) => follower.others = follower.others.max(term),
            Some(TermStatement::Leader(_)) | None => {}
        }
    }

    pub(super) fn forget_leader(&mut self, id: NodeId) {
        self.peers.early.followers.remove(&id);
    }

    /// Checks a vote in a new term after a turn of a driver. `connected` returns since when a node
    /// is connected with another one.
    pub(crate) fn check_early(
        &mut self,
        id: NodeId,
        look: &Look,
        before: Term,
        connected: impl Fn(NodeId) -> Option<Duration>,
    ) {
        let (now, running) = (self.timeline.now(), self.running_time(id));
        let Some(follower) = self.peers.early.followers.get_mut(&id) else { return };
        let turned_at = std::mem::replace(&mut follower.turned_at, now);
        let (Some(vote), Some(leader)) = (look.vote, follower.leader) else { return };
        let is_early = look.term > before
            && follower.term == before
            && vote != leader
            && follower.others < look.term
            && follower.at < turned_at
            && running - follower.running <= FOLLOWS_MIN
            && !self.peers.early.transfers.contains(&(vote, look.term));
        if !is_early {
            return;
        }
        let at = follower.at;
        let since = connected(leader).filter(|since| *since <= at && now - *since >= CONNECTED_FOR);
        self.count("election on evidence");
        self.expect(since.is_none(), "R-EVIDENCE", || {
            format!(
                "{id:?} votes for {vote:?} in {:?}, has heard from {leader:?} at {at:?}, and is connected with it",
                look.term
            )
        });
    }
}

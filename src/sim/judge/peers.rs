//! Judges the messages between nodes: votes, renewals of leases, and the behavior of isolated nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::super::process::SimProcess;
use super::super::world::place;
use super::Judge;
use super::early::EarlyJudge;
use super::members::Deciders;
use crate::consensus::{Durable, Vote};
use crate::model::{Event, Incarnation, LeaseId, LogIndex, Members, NodeId, PeerMessage, Term};
use crate::node::Look;

/// Maximum time for which a leader without contact to a quorum keeps leading, not counting its pauses. The votes that
/// elected it arrived within an election timeout, and it steps down after at most two more of 500 ms, measured in late
/// ticks of a slow clock.
const LEADS_WITHOUT_CONTACT_MAX: Duration = Duration::from_millis(2_000);

/// The state of the judge for the messages between nodes.
#[derive(Default)]
pub(super) struct PeerJudge {
    votes: BTreeMap<(NodeId, Term), NodeId>,
    /// Time at which each renewal first arrived at a leader.
    renewals: BTreeMap<(NodeId, Incarnation, u64), Duration>,
    /// Arrival time of the last acknowledged renewal of each lease.
    renewed: BTreeMap<LeaseId, Duration>,
    /// For each node, the time of the last message from each other node, in its running time.
    received: BTreeMap<NodeId, BTreeMap<NodeId, Duration>>,
    /// The term of a node when it last received a message from any other node. If the entry is missing, the next check
    /// records the current term.
    alone_since: BTreeMap<NodeId, Term>,
    /// The durable state of each node as its messages state it: its term, and up to which index it has the committed
    /// log.
    durable: BTreeMap<NodeId, (Term, LogIndex)>,
    /// Nodes that were restarted and not yet checked since.
    unseen: BTreeSet<NodeId>,
    /// The highest index that a leader has committed, and its term.
    committed: (Term, LogIndex),
    /// Since when a leader leads with the current set of voters, in its running time.
    leads_since: BTreeMap<NodeId, Leads>,
    /// The state of the check of early elections.
    pub(super) early: EarlyJudge,
}

/// A leader and the voters whose messages it needs.
struct Leads {
    term: Term,
    members: Arc<Members>,
    deciders: Deciders,
    since: Duration,
}

impl PeerJudge {
    /// Records that a process has started and has received no messages.
    pub(super) fn started(&mut self, id: NodeId) {
        self.received.remove(&id);
        self.alone_since.remove(&id);
        self.leads_since.remove(&id);
        self.unseen.insert(id);
    }
}

impl PeerJudge {
    /// Records what a message states about the disk of its sender.
    fn says(&mut self, durable: Option<Durable>) {
        let Some(Durable { of, term, has }) = durable else { return };
        let known = self.durable.entry(of).or_default();
        known.0 = known.0.max(term);
        // The leader of this term has all entries that were committed in it and before. A later leader may overwrite
        // all other entries.
        let (of_term, committed) = self.committed;
        if let Some(has) = has.filter(|_| term >= of_term) {
            known.1 = known.1.max(has.min(committed));
        }
    }
}

impl Judge {
    /// Records a message that arrives at a process.
    pub(crate) fn arrives(&mut self, from: NodeId, to: NodeId, message: &PeerMessage) {
        let now = self.running_time(to);
        self.peers.received.entry(to).or_default().insert(from, now);
        self.peers.alone_since.remove(&to);
        self.record_early_message(from, to, message);
        match message {
            PeerMessage::Raft(bytes) => {
                self.votes(Vote::in_message(bytes));
                self.peers.says(Durable::in_message(bytes));
            }
            PeerMessage::Renew { round, incarnation, .. } => {
                let now = self.timeline.now();
                self.peers.renewals.entry((from, *incarnation, *round)).or_insert(now);
            }
            PeerMessage::Renewed { round, incarnation, renewed, .. } => {
                let asked = self.peers.renewals.get(&(to, *incarnation, *round)).copied();
                for (lease, came) in renewed.iter().zip(asked.into_iter().cycle()) {
                    let last = self.peers.renewed.entry(*lease).or_insert(came);
                    *last = came.max(*last);
                }
            }
            _ => {}
        }
    }

    /// Records that the disk of a node is damaged and no longer has what was written.
    pub(crate) fn disk_is_damaged(&mut self, id: NodeId) {
        self.peers.durable.remove(&id);
    }

    /// Checks that a restarted node still has what its messages stated about its disk.
    pub(super) fn check_memory(&mut self, id: NodeId, process: &SimProcess, look: &Look) {
        if look.leads && look.commit > self.peers.committed.1 {
            self.peers.committed = (look.term, look.commit);
        }
        // A node that has received a snapshot and not yet put it into its log has no term.
        if look.term == Term(0) || !self.peers.unseen.remove(&id) {
            return;
        }
        let Some((term, has)) = self.peers.durable.get(&id).copied() else { return };
        if look.term < term {
            self.broken("R-TERM", || {
                format!("{id:?} has answered in {term:?}, and starts in {:?}", look.term)
            });
        }
        let last = process.last();
        if last < has {
            self.broken("R-TERM", || {
                format!("{id:?} has said that it has {has:?}, which is committed, and starts with {last:?}")
            });
        }
        self.count("restart checked against earlier messages");
    }

    fn votes(&mut self, vote: Option<Vote>) {
        let Some(Vote { voter, candidate, term }) = vote else { return };
        let first = *self.peers.votes.entry((voter, term)).or_insert(candidate);
        if first != candidate {
            self.broken("R-VOTE", || {
                format!("in {term:?} {voter:?} votes for {first:?}, and for {candidate:?}")
            });
        }
    }

    /// Checks the end of a lease with this TTL: it must have expired since its last renewal.
    pub(super) fn renewals_counted(&mut self, lease: LeaseId, ttl: Duration, event: &Event) {
        let Some(came) = self.peers.renewed.get(&lease).copied() else { return };
        let lived = self.timeline.now() - came;
        if lived < ttl {
            let revision = event.revision();
            self.broken("L-EPOCH", || {
                format!(
                    "{lease:?} ends at {revision:?}, {lived:?} after the renewal that was \
                     acknowledged last; it lives for {ttl:?}"
                )
            });
        }
    }

    /// Returns how long a node has run, without pauses.
    pub(super) fn running_time(&self, id: NodeId) -> Duration {
        let seen = &self.seen[place(id)];
        seen.paused_since.unwrap_or(self.timeline.now()) - seen.paused
    }

    /// Checks after a turn of a driver that an isolated node stops leading and does not increase its term.
    pub(super) fn check_company(&mut self, id: NodeId, process: &SimProcess, look: &Look) {
        let cast = self.peers.votes.get(&(id, look.term)).copied();
        if cast.is_some() && cast != look.vote {
            self.broken("R-VOTE", || {
                let known = look.vote;
                format!("{id:?} has voted for {cast:?} in {:?}, and knows of {known:?}", look.term)
            });
        }
        let alone_since = *self.peers.alone_since.entry(id).or_insert(look.term);
        // Before the cluster is founded there are no terms.
        if alone_since == Term(0) {
            self.peers.alone_since.remove(&id);
        } else if look.term.get() > alone_since.get() + 1 {
            self.broken("R-PREVOTE", || {
                format!(
                    "{id:?} has heard from nobody since {alone_since:?}, and is in {:?}",
                    look.term
                )
            });
        }
        if !look.leads {
            self.peers.leads_since.remove(&id);
            return;
        }
        let now = self.running_time(id);
        let members = process.members();
        let begins = || Leads {
            term: look.term,
            members: Arc::clone(&members),
            deciders: Deciders::of(&members),
            since: now,
        };
        let leads = self.peers.leads_since.entry(id).or_insert_with(begins);
        if leads.term != look.term {
            *leads = begins();
        } else if !Arc::ptr_eq(&leads.members, &members) {
            // The leader need not have received earlier messages from members that have only just become voters.
            let changed = begins();
            let is_same = leads.deciders == changed.deciders;
            *leads = Leads { since: if is_same { leads.since } else { now }, ..changed };
        }
        let Leads { deciders, since, .. } = &*leads;
        if now - *since < LEADS_WITHOUT_CONTACT_MAX {
            return;
        }
        let received = self.peers.received.get(&id);
        let is_near = |node: NodeId| {
            let at = received.and_then(|received| received.get(&node));
            node == id || at.is_some_and(|at| now - *at < LEADS_WITHOUT_CONTACT_MAX)
        };
        if !deciders.agree(is_near) {
            let detail =
                format!("{id:?} leads {:?} and hears from too few of {deciders:?}", look.term);
            self.broken("R-STEP", || detail);
        }
    }
}

//! A fault that replaces entries of a slow log writer twice, in three steps. Entries reach a follower with a
//! slow disk. Before the follower has written them, another leader replaces them. Then the first leader comes
//! back with the same entries. The write queue of the follower thus contains the entries, their replacements,
//! and the entries again.
//!
//! ```text
//!   step         links                      write queue of the follower
//!   together     leader, follower           5(t2) 6(t2)
//!   another      all but the leader         5(t2) 6(t2) 5(t3)
//!   again        all but the other leader   5(t2) 6(t2) 5(t3) 5(t2) 6(t2) 7(t4)
//! ```

use std::time::Duration;

use super::{Happening, World};
use crate::model::Term;
use crate::node::Look;
use crate::sim::plan::index;
use crate::sim::process::SimProcess;
use crate::transport::ConnectionEnd;

/// Time of a write to the disk of the follower: longer than two elections.
const WRITE: Duration = Duration::from_secs(5);

/// How long the leader is linked to that follower alone.
const TOGETHER: Duration = Duration::from_millis(250);

/// The time at which the fault ends.
const RETURNING_LEADER_MAX: Duration = Duration::from_secs(8);

/// Minimum number of nodes: without the follower and the other leader, the first leader can still win an election.
const NODES_MIN: usize = 5;

/// The current step of the fault.
#[derive(Clone, Copy)]
pub(super) struct ReturningLeader {
    leader: usize,
    follower: usize,
    /// The leader of the second step; before that, the first leader.
    other: usize,
    /// The term of the last leader.
    term: Term,
    act: ReturningLeaderStep,
    /// The partition of the current step. Another partition ends the fault.
    partition: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReturningLeaderStep {
    Together,
    Another,
    Again,
}

impl World {
    pub(super) fn begin_returning_leader(&mut self) {
        let running: Vec<usize> = self.processes().map(|(at, _)| at).collect();
        let leads = |at: &usize| self.nodes[*at].running().is_some_and(SimProcess::leads);
        let Some(leader) = running.iter().copied().rfind(leads) else { return };
        if running.len() < NODES_MIN {
            return;
        }
        let others: Vec<usize> = running.into_iter().filter(|at| *at != leader).collect();
        let follower = others[index(&self.rng, others.len())];
        self.nodes[follower].slow_disk = WRITE;
        self.disk_recovers_in(follower, RETURNING_LEADER_MAX);
        let term = self.nodes[leader].running().expect("it leads").look().term;
        let partition = self.only(|a, b| [a, b].iter().all(|at| [leader, follower].contains(at)));
        self.returning_leader = Some(ReturningLeader {
            leader,
            follower,
            other: leader,
            term,
            act: ReturningLeaderStep::Together,
            partition,
        });
        self.explain(|| {
            let [leader, follower] = [leader, follower].map(|at| self.nodes[at].id);
            format!("the leader {leader:?} reaches only {follower:?}, whose disk is slow")
        });
        self.schedule_in(TOGETHER, Happening::ReturningLeader { partition });
    }

    /// Isolates the leader, so that the other nodes elect another one.
    pub(super) fn isolate_leader(&mut self) {
        let Some(returning_leader) = self.returning_leader else { return };
        let ReturningLeader { leader, .. } = returning_leader;
        let partition = self.only(|a, b| a != leader && b != leader);
        self.returning_leader = Some(ReturningLeader {
            act: ReturningLeaderStep::Another,
            partition,
            ..returning_leader
        });
    }

    /// Checks a node after its turn: if it has begun to lead, starts the next step before any other node learns of it.
    pub(super) fn advance_returning_leader(&mut self, at: usize, look: &Look) {
        let Some(returning_leader) = self.returning_leader else { return };
        let ReturningLeader { leader, follower, other, term, act, partition } = returning_leader;
        if partition != self.partition {
            self.returning_leader = None;
            return;
        }
        if act == ReturningLeaderStep::Together
            || !look.leads
            || look.term <= term
            || at == follower
        {
            return;
        }
        if act == ReturningLeaderStep::Another {
            // The first messages of the new leader reach only the follower.
            let apart = |at: usize, other: usize| [at, follower].contains(&other);
            let partition = self.only(|a, b| apart(at, a) == apart(at, b));
            let (other, term, act) = (at, look.term, ReturningLeaderStep::Again);
            self.returning_leader =
                Some(ReturningLeader { other, term, act, partition, ..returning_leader });
            return;
        }
        self.returning_leader = None;
        if at == leader {
            self.judge.borrow_mut().count("first leader back before its entries were written");
        }
        self.only(|a, b| a != other && b != other);
    }

    /// Cuts all links except these. Messages in flight on the others are lost.
    fn only(&mut self, linked: impl Fn(usize, usize) -> bool) -> u64 {
        self.net.heal();
        self.partition += 1;
        self.counts.partitions += 1;
        for a in 0..self.nodes.len() {
            for b in (0..self.nodes.len()).filter(|b| *b != a && !linked(a, *b)) {
                self.net.cut(self.nodes[a].id, self.nodes[b].id);
                self.disconnect(a, b, ConnectionEnd::Lost);
            }
        }
        let partition = self.partition;
        self.schedule_in(RETURNING_LEADER_MAX, Happening::Heal { partition });
        partition
    }
}

//! A fault in three acts. Entries reach a follower that is slow to write them; before they are written another leader
//! replaces them there; then the first leader comes back, and with it the same entries. So the follower has, on their way
//! to its disk, the entries, what replaces them, and the entries again.
//!
//! ```text
//!   act          who hears whom             what the follower is about to write
//!   together     leader, follower           5(t2) 6(t2)
//!   another      all but the leader         5(t2) 6(t2) 5(t3)
//!   again        all but the other leader   5(t2) 6(t2) 5(t3) 5(t2) 6(t2) 7(t4)
//! ```

use super::*;

/// How long the follower's disk takes for a write: longer than two elections.
const WRITE: Duration = Duration::from_secs(5);

/// How long the leader talks to that follower alone.
const TOGETHER: Duration = Duration::from_millis(250);

/// When everything is over.
const OVER: Duration = Duration::from_secs(8);

/// The least number of nodes: without the follower and the other leader, the first leader still wins an election.
const NODES_MIN: usize = 5;

/// The step of the fault that is under way.
#[derive(Clone, Copy)]
pub(super) struct Seesaw {
    leader: usize,
    follower: usize,
    /// The leader of the second act; before that, the first one.
    other: usize,
    /// The term of the last leader.
    term: Term,
    act: Act,
    /// The partition that the present act is made of: another one ends the fault.
    partition: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Together,
    Another,
    Again,
}

impl World {
    pub(super) fn begin_seesaw(&mut self) {
        let running: Vec<usize> = self.processes().map(|(at, _)| at).collect();
        let leads = |at: &usize| self.nodes[*at].running().is_some_and(Process::leads);
        let Some(leader) = running.iter().copied().rfind(leads) else { return };
        if running.len() < NODES_MIN {
            return;
        }
        let others: Vec<usize> = running.into_iter().filter(|at| *at != leader).collect();
        let follower = others[index(&self.rng, others.len())];
        self.nodes[follower].slow_disk = WRITE;
        self.disk_recovers_in(follower, OVER);
        let term = self.nodes[leader].running().expect("it leads").look().term;
        let partition = self.only(|a, b| [a, b].iter().all(|at| [leader, follower].contains(at)));
        self.seesaw =
            Some(Seesaw { leader, follower, other: leader, term, act: Act::Together, partition });
        self.schedule_in(TOGETHER, Happening::Seesaw { partition });
    }

    /// The leader is alone, and the others elect another one.
    pub(super) fn tilt_seesaw(&mut self) {
        let Some(seesaw) = self.seesaw else { return };
        let Seesaw { leader, .. } = seesaw;
        let partition = self.only(|a, b| a != leader && b != leader);
        self.seesaw = Some(Seesaw { act: Act::Another, partition, ..seesaw });
    }

    /// A node has had a turn: if it has begun to lead, the next act begins before anybody hears of it.
    pub(super) fn follow_seesaw(&mut self, at: usize, look: &Look) {
        let Some(seesaw) = self.seesaw else { return };
        let Seesaw { leader, follower, other, term, act, partition } = seesaw;
        if partition != self.partition {
            self.seesaw = None;
            return;
        }
        if act == Act::Together || !look.leads || look.term <= term || at == follower {
            return;
        }
        if act == Act::Another {
            // Its first messages reach the follower alone.
            let apart = |at: usize, other: usize| [at, follower].contains(&other);
            let partition = self.only(|a, b| apart(at, a) == apart(at, b));
            let (other, term, act) = (at, look.term, Act::Again);
            self.seesaw = Some(Seesaw { other, term, act, partition, ..seesaw });
            return;
        }
        self.seesaw = None;
        if at == leader {
            self.judge.borrow_mut().count("first leader back before its entries were written");
        }
        self.only(|a, b| a != other && b != other);
    }

    /// Connects only these. Messages in flight between others are lost.
    fn only(&mut self, linked: impl Fn(usize, usize) -> bool) -> u64 {
        self.net.heal();
        self.partition += 1;
        self.counts.partitions += 1;
        for a in 0..self.nodes.len() {
            for b in (0..self.nodes.len()).filter(|b| *b != a && !linked(a, *b)) {
                self.net.cut(self.nodes[a].id, self.nodes[b].id);
                self.disconnect(a, b);
            }
        }
        let partition = self.partition;
        self.schedule_in(OVER, Happening::Heal { partition });
        partition
    }
}

//! Runs the turns of the threads of a node: its driver, its log and its snapshots.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use super::{Ending, Happening, World, place, scheduling};
use crate::model::{LogIndex, NodeId, Term};
use crate::node::{Look, StopReason};
use crate::sim::judge::Before;
use crate::sim::plan::between;
use crate::sim::point::CutOff;
use crate::sim::process::TurnEnd;
use crate::sim::violation::Violation;

impl World {
    pub(super) fn driver_by(&mut self, at: usize, due: Duration) {
        let node = &mut self.nodes[at];
        if node.process.is_none() || node.driver_due.is_some_and(|(before, _)| before <= due) {
            return;
        }
        node.driver_due = Some(self.agenda.when(due));
    }

    pub(super) fn log_soon(&mut self, at: usize) {
        let latency = between(&self.rng, self.options.sync_min, self.options.sync_max)
            + self.nodes[at].slow_disk;
        let node = &mut self.nodes[at];
        if node.process.is_none() || node.log_due.is_some() {
            return;
        }
        // Jobs that arrive during this write are written after it.
        if let Some(process) = &mut node.process {
            process.begin_log_turn();
        }
        let (due, life) = (self.timeline.now() + latency, node.life);
        node.log_due = Some(due);
        self.schedule_at(due, Happening::LogTurn { node: at, life });
    }

    pub(super) fn snapshots_soon(&mut self, at: usize) {
        let latency = between(&self.rng, self.options.sync_min, self.options.sync_max)
            + self.nodes[at].slow_disk.max(self.nodes[at].slow_snapshots);
        let node = &mut self.nodes[at];
        if node.process.is_none() || node.snapshots_due.is_some() {
            return;
        }
        let (due, life) = (self.timeline.now() + latency, node.life);
        node.snapshots_due = Some(due);
        self.schedule_at(due, Happening::SnapshotTurn { node: at, life });
    }

    pub(super) fn snapshot_turn(&mut self, at: usize, life: u64) -> Result<(), Violation> {
        let node = &mut self.nodes[at];
        if node.life != life {
            return Ok(());
        }
        node.snapshots_due = None;
        if node.paused {
            return Ok(());
        }
        let Some(process) = &mut node.process else { return Ok(()) };
        match catch_unwind(AssertUnwindSafe(|| process.snapshot_turn())) {
            Ok(more) => {
                let id = node.id;
                self.trace.event(self.timeline.now(), 7, &[id.get(), u64::from(more)], &[]);
                if more {
                    self.snapshots_soon(at);
                }
                Ok(())
            }
            Err(panic) => self.end_unfinished_turn(at, panic),
        }
    }

    pub(super) fn driver_turn(&mut self, at: usize) -> Result<(), Violation> {
        let now = self.timeline.now();
        let node = &mut self.nodes[at];
        node.driver_due = None;
        if node.paused || node.stopped {
            return Ok(());
        }
        let Some(process) = &mut node.process else { return Ok(()) };
        self.counts.turns += 1;
        let turn = catch_unwind(AssertUnwindSafe(|| process.turn()));
        match turn {
            Ok(TurnEnd::Next(moment)) => {
                let due = node.clock.true_time_of(moment) + scheduling(&self.rng);
                let id = node.id;
                let look = process.look();
                self.trace.event(now, 5, &[id.get(), look.applied.get(), look.term.get()], &[]);
                let before = self.judge.borrow_mut().look(id, process, &look);
                self.check_early(at, before, &look);
                if look.leads {
                    self.check_leader(at, before, &look);
                }
                self.driver_by(at, due);
                if !self.transfers.is_empty() {
                    self.check_transfers();
                }
                self.pause_resumer(at);
                self.advance_returning_leader(at, &look);
                Ok(())
            }
            Ok(TurnEnd::Stopped(why)) => self.stopped(at, why.as_ref()),
            Err(panic) => self.end_unfinished_turn(at, panic),
        }
    }

    pub(super) fn log_turn(&mut self, at: usize, life: u64) -> Result<(), Violation> {
        let node = &mut self.nodes[at];
        if node.life != life {
            return Ok(());
        }
        node.log_due = None;
        if node.paused {
            return Ok(());
        }
        let Some(process) = &mut node.process else { return Ok(()) };
        match catch_unwind(AssertUnwindSafe(|| process.log_turn())) {
            Ok(more) => {
                let id = node.id;
                self.trace.event(self.timeline.now(), 6, &[id.get(), u64::from(more)], &[]);
                if more {
                    self.log_soon(at);
                }
                Ok(())
            }
            Err(panic) => self.end_unfinished_turn(at, panic),
        }
    }

    /// Handles a turn that did not end: either a crash was planned at a point that it reached, or the code panicked,
    /// which is always a failure.
    pub(super) fn end_unfinished_turn(
        &mut self,
        at: usize,
        panic: Box<dyn std::any::Any + Send>,
    ) -> Result<(), Violation> {
        if !panic.is::<CutOff>() {
            resume_unwind(panic);
        }
        let down = self.nodes[at].armed_down;
        let id = self.nodes[at].id;
        self.note(7, &[id.get()], || format!("{id:?} comes to its point"));
        self.judge.borrow_mut().count("power lost at a point");
        self.crash(at, Ending::PowerLost);
        self.start_in(at, down);
        Ok(())
    }

    /// Handles a node that has stopped by itself.
    pub(super) fn stopped(&mut self, at: usize, why: Option<&StopReason>) -> Result<(), Violation> {
        let id = self.nodes[at].id;
        let words = why.map_or_else(|| "nobody knows why".to_owned(), ToString::to_string);
        self.note(8, &[id.get()], || format!("{id:?} has stopped: {words}"));
        self.nodes[at].stopped = true;
        if let Some(process) = &self.nodes[at].process {
            self.judge.borrow_mut().last_look(id, process);
        }
        if why == Some(&StopReason::Removed) && self.is_removed(at) {
            self.left(at);
            return Ok(());
        }
        if why == Some(&StopReason::Shutdown) && self.nodes[at].stopping.is_some() {
            return self.stopped_in_order(at);
        }
        if !self.nodes[at].may_stop {
            return Violation::found("C-STOP", format!("{id:?} has stopped by itself: {words}"));
        }
        self.judge.borrow_mut().count("disk failed");
        let down = self.nodes[at].armed_down;
        self.start_in(at, down);
        Ok(())
    }

    /// Checks that an entry that a leader has committed is in the logs of a quorum and of every later leader.
    pub(super) fn check_leader(&self, leader: usize, before: Before, look: &Look) {
        let Some(process) = self.nodes[leader].running() else { return };
        let mut judge = self.judge.borrow_mut();
        judge.check_complete(self.nodes[leader].id, process, look.term);
        let Some(term) = process.term_of(look.commit) else { return };
        let has = |id| self.has(id, look.commit, term);
        judge.check_quorum(self.nodes[leader].id, before, look, term, has);
    }

    /// Returns whether a node has an entry, or had it when its process ended. A process that does not run has either
    /// already acknowledged the entry or never will. Disks that were destroyed since count as well, if the entry was
    /// acknowledged.
    fn has(&self, id: NodeId, index: LogIndex, term: Term) -> bool {
        let Some(node) = self.nodes.get(place(id)) else { return false };
        match (&node.process, &node.left) {
            (Some(process), _) => process.has(index, term),
            (None, Some(left)) => left.has(index, term),
            (None, None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Command, Put};
    use crate::sim::member_config::MemberConfig;
    use crate::sim::net::NetConditions;
    use crate::sim::plan::Who;
    use crate::sim::world::{WorldOptions, WorldRestoredFrom, new_node};

    const MS: Duration = Duration::from_millis(1);

    /// Returns a world in which a leader has appended an entry while the others are down, one of them permanently, and
    /// the index of that leader.
    fn a_leader_that_is_left_alone() -> (World, usize) {
        let net = NetConditions::default();
        let options = WorldOptions {
            nodes: 3,
            net,
            sync_min: MS,
            sync_max: MS * 2,
            config: MemberConfig::default(),
            verbose: false,
        };
        let mut world = World::new(1, options);
        world.start_all().unwrap();
        world.run_until(MS * 3_000).unwrap();
        let leader = world.find(Who::Leader).unwrap();
        world.lose((leader + 1) % 3);
        world.crash((leader + 2) % 3, Ending::PowerLost);
        let caller = world.nodes[leader].running().unwrap().caller();
        world.spawner().spawn(Some(leader), async move {
            drop(caller.write(Command::Put(Put::new("a", "#1"))).await);
        });
        world.run_until(MS * 3_100).unwrap();
        (world, leader)
    }

    #[test]
    fn down_node_counts_only_for_what_it_had() {
        let (world, leader) = a_leader_that_is_left_alone();
        let process = world.nodes[leader].running().unwrap();
        let look = process.look();
        assert!(look.leads && look.commit < process.last());
        // All nodes have the committed entries.
        let Look { commit, applied, .. } = look;
        let term = look.term;
        let before = Before { commit: LogIndex(commit.get() - 1), applied, term };
        world.check_leader(leader, before, &look);
        assert_eq!(world.judge.borrow_mut().verdict(), Ok(()));
        let look = Look { commit: process.last(), ..look };
        world.check_leader(leader, Before { commit, applied, term }, &look);
        assert_eq!(world.judge.borrow_mut().verdict().unwrap_err().invariant, "R-QUORUM");
    }

    #[test]
    fn node_that_never_ran_has_no_entries() {
        let (mut world, leader) = a_leader_that_is_left_alone();
        let process = world.nodes[leader].running().unwrap();
        let (index, id) = (process.look().commit, world.nodes[leader].id);
        let term = process.term_of(index).unwrap();
        let nobody = new_node(4, WorldRestoredFrom::Nobody, &world.timeline, &world.rng);
        world.nodes.push(nobody);
        let has = |id| world.has(NodeId::new(id).unwrap(), index, term);
        assert!(has(id.get()) && !has(4) && !has(5));
    }
}

//! Starts, ends, pauses and resumes processes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{Ending, Happening, STOPS_WITHIN, Started, World, WorldRestoredFrom, drift};
use crate::node::StartError;
use crate::sim::clock::SimClock;
use crate::sim::plan::{between, index, one_in};
use crate::sim::process::{ProcessParts, SimBeginning, SimProcess};
use crate::sim::violation::Violation;
use crate::transport::ConnectionEnd;
use crate::wal::LogError;

impl World {
    /// Starts the process of every node.
    pub(crate) fn start_all(&mut self) -> Result<(), Violation> {
        (0..self.nodes.len()).try_for_each(|at| self.start(at))
    }

    /// Starts a process if none runs there.
    pub(crate) fn start(&mut self, at: usize) -> Result<(), Violation> {
        let node = &self.nodes[at];
        if node.running().is_some() || node.gone {
            return Ok(());
        }
        let start_mode = match node.restored_from.clone() {
            WorldRestoredFrom::Nobody => return Ok(()),
            WorldRestoredFrom::Founder => Some(SimBeginning::Founder { nodes: self.options.nodes }),
            WorldRestoredFrom::Newcomer(contact) => {
                self.end_stopped(at);
                self.begin_again(at, &contact)
            }
        };
        match start_mode {
            Some(start_mode) => self.start_as(at, start_mode),
            None => Ok(()),
        }
    }

    /// Ends a process whose node has stopped.
    fn end_stopped(&mut self, at: usize) {
        if self.nodes[at].stopped {
            self.crash_any(at);
            self.nodes[at].stopped = false;
        }
    }

    /// Starts a process where none runs.
    pub(super) fn start_as(
        &mut self,
        at: usize,
        start_mode: SimBeginning,
    ) -> Result<(), Violation> {
        self.end_stopped(at);
        self.counts.starts += 1;
        // The boot-time clock of a machine that was switched on starts at an arbitrary value.
        let shown = between(&self.rng, Duration::ZERO, Duration::from_secs(1_000_000));
        let drift = drift(&self.rng);
        let node = &mut self.nodes[at];
        node.clock = Arc::new(SimClock::new(self.timeline.clone(), shown, drift));
        node.wakes = Arc::default();
        node.may_stop = false;
        let (id, wakes) = (node.id, node.wakes.clone());
        let (clock, points) = (node.clock.clone(), node.points.clone());
        let node = &self.nodes[at];
        let parts = ProcessParts {
            id,
            config: self.options.config.clone(),
            start_mode,
            env: self.env_of(&node.disk, &node.entropy, clock, points),
            network: self.net.network_of(id),
            wakes,
            judge: Rc::clone(&self.judge),
        };
        if let Some(steps) = self.nodes[at].start_fails_after.take() {
            self.nodes[at].disk.stop_after(steps);
        }
        let started = SimProcess::start(parts);
        if self.nodes[at].disk.has_stopped() {
            drop(started);
            self.note(37, &[id.get()], || format!("{id:?} loses power while it starts"));
            self.judge.borrow_mut().count("power lost while starting");
            self.nodes[at].disk.crash();
            self.start_in(at, Duration::from_millis(200));
            return Ok(());
        }
        let process = match started {
            Ok(process) => process,
            Err(why) => return self.does_not_start(at, &why),
        };
        if self.nodes[at].has_rotten_log() {
            return Violation::found("S-ROT", format!("{id:?} starts, and its log has rotted"));
        }
        self.note(1, &[id.get(), self.nodes[at].life], || format!("{id:?} starts"));
        let now = self.timeline.now();
        self.judge.borrow_mut().started(id);
        if let Some(on_start) = self.on_start.clone() {
            on_start(&Started { place: at, id, process: &process });
        }
        self.nodes[at].process = Some(process);
        self.driver_by(at, now);
        Ok(())
    }

    /// Checks that there is a reason for a node to refuse to start.
    fn does_not_start(&mut self, at: usize, why: &StartError) -> Result<(), Violation> {
        let id = self.nodes[at].id;
        // A node that was removed before it knew that it was admitted has a useless directory.
        if self.is_removed(at) {
            self.nodes[at].gone = true;
            return Ok(());
        }
        match why {
            StartError::Log(LogError::Corrupt { .. }) if self.nodes[at].has_rotten_log() => {
                self.note(36, &[id.get()], || format!("{id:?} finds out: {why}"));
                self.judge.borrow_mut().count("damaged log refused");
                self.nodes[at].gone = true;
                if one_in(&self.rng, 2) {
                    self.arrive_newcomer(Some(at));
                }
                Ok(())
            }
            StartError::Log(LogError::NoRoom { .. }) if self.nodes[at].full => {
                self.judge.borrow_mut().count("no room to start");
                self.start_in(at, Duration::from_millis(500));
                Ok(())
            }
            _ => Violation::found("S-REOPEN", format!("{id:?} does not start: {why}")),
        }
    }

    /// Ends a process by a kill or a power loss.
    pub(super) fn crash_any(&mut self, at: usize) {
        let ending = [Ending::Killed, Ending::PowerLost][index(&self.rng, 2)];
        self.crash(at, ending);
    }

    /// Ends a process.
    pub(crate) fn crash(&mut self, at: usize, ending: Ending) {
        let node = &mut self.nodes[at];
        let Some(process) = node.process.take() else { return };
        let id = node.id;
        node.left = Some(process.durable());
        node.life += 1;
        node.paused = false;
        node.stopping = None;
        node.driver_due = None;
        node.log_due = None;
        node.snapshots_due = None;
        node.points.disarm();
        self.counts.crashes += 1;
        // The disk comes first, so that nothing that the dying process still does can reach it.
        match ending {
            Ending::Killed => node.disk.kill(),
            Ending::PowerLost => node.disk.crash(),
        }
        self.judge.borrow_mut().ended(id);
        // No other node sees effects of the destructors of the dead process.
        drop(catch_unwind(AssertUnwindSafe(|| {
            self.executor.drop_tasks_of(at);
            drop(process);
        })));
        self.nodes[at].wakes.take();
        match ending {
            Ending::Killed => self.connections.killed.insert(at),
            _ => self.connections.killed.remove(&at),
        };
        drop(self.net.take_outgoing());
        // The operating system closes the connections of a dead process, but not those of a dead machine.
        for other in 0..self.nodes.len() {
            if other == at {
                continue;
            }
            self.connections.evidence.remove(&(at, other));
            if ending == Ending::Killed {
                self.disconnect(at, other, ConnectionEnd::ByPeer);
                self.redial_soon(at, other);
            } else if one_in(&self.rng, 2) {
                self.disconnect(at, other, ConnectionEnd::Lost);
            }
        }
        self.note(2, &[id.get(), ending as u64], || format!("{id:?} ends: {ending:?}"));
    }

    pub(super) fn start_in(&mut self, at: usize, wait: Duration) {
        let life = self.nodes[at].life;
        self.schedule_in(wait, Happening::Start { node: at, life });
    }

    /// Ends the programs. Their nodes keep running.
    pub(crate) fn end_programs(&mut self) {
        for at in 0..self.nodes.len() {
            self.executor.drop_tasks_of(at);
        }
    }

    /// Shuts a node down gracefully: its sessions end and it transfers leadership.
    pub(super) fn stop(&mut self, at: usize, down: Duration) {
        let Some(process) = self.nodes[at].running() else { return };
        let (id, now) = (self.nodes[at].id, self.timeline.now());
        let awake = {
            let mut judge = self.judge.borrow_mut();
            judge.count("stopped in order");
            judge.stops_in_order(id, &process.leases_kept());
            now - judge.paused_time(id)
        };
        process.stop();
        self.note(13, &[id.get()], || format!("{id:?} is shut down"));
        let node = &mut self.nodes[at];
        node.stopping = Some(awake);
        node.armed_down = down;
    }

    /// Checks that a node that was shut down has stopped within about a second, by its own clock.
    pub(super) fn stopped_in_order(&mut self, at: usize) -> Result<(), Violation> {
        let node = &mut self.nodes[at];
        let Some(since) = node.stopping.take() else { return Ok(()) };
        let (id, down) = (node.id, node.armed_down);
        let took = self.timeline.now() - self.judge.borrow().paused_time(id) - since;
        if took > STOPS_WITHIN {
            return Violation::found("C-CLOSE", format!("{id:?} took {took:?} to shut down"));
        }
        self.crash(at, Ending::Killed);
        self.start_in(at, down);
        Ok(())
    }

    pub(super) fn pause(&mut self, at: usize, time: Duration) {
        if self.nodes[at].process.is_none() || self.nodes[at].paused {
            return;
        }
        let (id, life) = (self.nodes[at].id, self.nodes[at].life);
        self.nodes[at].paused = true;
        self.counts.pauses += 1;
        self.judge.borrow_mut().paused(id);
        self.note(3, &[id.get()], || format!("{id:?} stands still for {time:?}"));
        self.schedule_in(time, Happening::Resume { node: at, life });
    }

    pub(super) fn resume(&mut self, at: usize) {
        if !self.nodes[at].paused {
            return;
        }
        let id = self.nodes[at].id;
        self.nodes[at].paused = false;
        self.judge.borrow_mut().resumed(id);
        self.note(4, &[id.get()], || format!("{id:?} goes on"));
        let now = self.timeline.now();
        self.driver_by(at, now);
        self.log_soon(at);
        self.snapshots_soon(at);
    }
}

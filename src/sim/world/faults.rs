//! Starts and ends faults.

use std::path::Path;
use std::time::Duration;

use tokio::sync::oneshot::error::TryRecvError;

use super::{DIR, Ending, Happening, Transfer, World, drift, place};
use crate::env::Entropy;
use crate::model::NodeId;
use crate::node::CallError;
use crate::sim::net::NetConditions;
use crate::sim::plan::{PlanFault, Split, Who, between, index, one_in};
use crate::sim::process::SimProcess;
use crate::sim::rot::Rot;
use crate::sim::script::{FaultTarget, ScriptedFault};
use crate::sim::violation::Violation;

/// Maximum number of disk changes and syncs after which a machine loses power again during its start.
const STEPS_OF_STARTS: u64 = 10;

impl World {
    /// Starts a fault.
    pub(crate) fn inject(&mut self, fault: PlanFault) {
        self.note(11, &[], || format!("fault: {fault:?}"));
        self.strike(fault);
    }

    /// Kills a process in the calm phase: a holder of a lock, if the judge knows one.
    pub(crate) fn crash_after_storm(&mut self, down: Duration) {
        self.note(11, &[], || {
            format!("crash after the storm: a process is killed, and starts again after {down:?}")
        });
        self.strike(PlanFault::Kill { who: Who::Holder, down });
    }

    fn strike(&mut self, fault: PlanFault) {
        self.judge.borrow_mut().count(fault.name());
        match fault {
            PlanFault::Kill { who, down } => self.down(who, Ending::Killed, down),
            PlanFault::PowerLoss { who, down } => self.down(who, Ending::PowerLost, down),
            PlanFault::Blackout { down } => {
                for at in 0..self.nodes.len() {
                    self.crash(at, Ending::PowerLost);
                    let wait = between(&self.rng, Duration::ZERO, down);
                    self.start_in(at, wait);
                }
            }
            PlanFault::PointCrash { who, point, down } => {
                let Some(at) = self.hit(who) else { return };
                self.nodes[at].armed_down = down;
                self.nodes[at].points.arm(point);
                let life = self.nodes[at].life;
                let patience = Duration::from_secs(10);
                self.schedule_in(patience, Happening::ArmedTooLong { node: at, life });
            }
            PlanFault::Pause { who, time } => {
                if let Some(at) = self.find(who) {
                    self.pause(at, time);
                }
            }
            PlanFault::PauseThenIsolation { who, still, alone } => {
                if let Some(at) = self.find(who) {
                    self.pause_then_isolate(at, still, alone);
                }
            }
            PlanFault::ResumePauseThenIsolation { still, alone } => {
                self.resumer_pause = Some((still, alone))
            }
            PlanFault::PauseAll { time } => {
                for at in 0..self.nodes.len() {
                    let time = between(&self.rng, time / 2, time);
                    self.pause(at, time);
                }
            }
            PlanFault::Partition { split, time } => self.part(split, time),
            PlanFault::Clog { time } => {
                let many = self.nodes.len();
                if many > 1 {
                    // A node has no link to itself.
                    let from = index(&self.rng, many);
                    let to = (from + 1 + index(&self.rng, many - 1)) % many;
                    let until = self.timeline.now() + time;
                    let (from, to) = (self.nodes[from].id, self.nodes[to].id);
                    self.explain(|| format!("messages from {from:?} to {to:?} are delayed"));
                    self.net.delay_messages(from, to, until);
                }
            }
            PlanFault::SlowDisk { who, extra, time } => {
                let Some(at) = self.hit(who) else { return };
                self.nodes[at].slow_disk = extra;
                self.disk_recovers_in(at, time);
            }
            PlanFault::SlowSnapshots { who, extra, time } => {
                let Some(at) = self.hit(who) else { return };
                self.nodes[at].slow_snapshots = extra;
                self.disk_recovers_in(at, time);
            }
            PlanFault::DiskError { who, down } => {
                let Some(at) = self.hit(who) else { return };
                self.nodes[at].armed_down = down;
                self.nodes[at].may_stop = true;
                let disk = &self.nodes[at].disk;
                match one_in(&self.rng, 3) {
                    true => disk.fail_writes(),
                    false => disk.fail_next_sync(),
                }
            }
            PlanFault::ClockDrift => {
                for node in &self.nodes {
                    node.clock.set_drift(drift(&self.rng));
                }
            }
            PlanFault::Reset { who, reach, time } => self.reset(who, reach, time),
            PlanFault::ReturningLeader => self.begin_returning_leader(),
            PlanFault::Transfer => {
                if let Some(at) = self.hit(Who::Leader) {
                    self.transfer(at);
                }
            }
            PlanFault::Rot { who, what, down } => {
                if let Some(at) = self.find(who) {
                    self.rot(at, what, down);
                }
            }
            PlanFault::Full { who, room_bytes, time } => {
                let Some(at) = self.hit(who) else { return };
                let node = &mut self.nodes[at];
                node.disk.limit(Some(node.disk.used() + room_bytes));
                node.full = true;
                self.disk_recovers_in(at, time);
            }
            PlanFault::Stop { who, down } => {
                if let Some(at) = self.find(who) {
                    self.stop(at, down);
                }
            }
            PlanFault::Rolling { down, every } => {
                for at in 0..self.nodes.len() {
                    let wait = every * u32::try_from(at).expect("few");
                    let storm = self.storm;
                    self.schedule_in(wait, Happening::Stop { node: at, down, storm });
                }
            }
            PlanFault::Join => self.arrive_newcomer(None),
            PlanFault::Replace { lost } => self.replace(lost),
            PlanFault::Promote => self.promote(),
            PlanFault::Remove => self.remove(),
        }
    }

    /// Starts a fault that a scenario has set. Unlike a drawn fault, it has no random parts.
    pub(crate) fn strike_scripted(&mut self, fault: ScriptedFault) {
        self.note(40, &[], || format!("scripted fault: {fault:?}"));
        let target = match fault.target() {
            FaultTarget::Leader => self.find(Who::Leader),
            FaultTarget::Node(id) => {
                let mut running = self.processes().map(|(at, _)| at);
                running.find(|at| self.nodes[*at].id.get() == id)
            }
        };
        let Some(at) = target else { return };
        let name = match fault {
            ScriptedFault::Kill { down, .. } => {
                self.crash(at, Ending::Killed);
                self.start_in(at, down);
                "fault: kill"
            }
            ScriptedFault::PowerLoss { down, .. } => {
                self.crash(at, Ending::PowerLost);
                self.start_in(at, down);
                "fault: power loss"
            }
            ScriptedFault::Pause { time, .. } => {
                self.pause(at, time);
                "fault: pause"
            }
            ScriptedFault::Isolate { time, .. } => {
                self.partition += 1;
                self.counts.partitions += 1;
                self.block_links(|a, b| a == at || b == at);
                self.explain(|| format!("{:?} is isolated", self.nodes[at].id));
                let partition = self.partition;
                self.schedule_in(time, Happening::Heal { partition });
                "fault: partition"
            }
        };
        self.judge.borrow_mut().count(name);
    }

    /// Pauses a process and isolates it just before it resumes.
    fn pause_then_isolate(&mut self, at: usize, still: Duration, alone: Duration) {
        let life = self.nodes[at].life;
        self.schedule_in(still, Happening::CutOff { node: at, life, time: alone });
        self.pause(at, still);
    }

    /// Pauses a node that has just requested the renewal of a session that it resumes, if this fault is due.
    pub(super) fn pause_resumer(&mut self, at: usize) {
        let Some((still, alone)) = self.resumer_pause else { return };
        let id = self.nodes[at].id;
        if !self.judge.borrow().is_called(id, "resume session") {
            return;
        }
        self.resumer_pause = None;
        self.note(38, &[id.get()], || format!("{id:?} stands still while it resumes a session"));
        self.judge.borrow_mut().count("pause during a resume");
        self.pause_then_isolate(at, still, alone);
    }

    pub(super) fn disk_recovers_in(&mut self, at: usize, time: Duration) {
        self.nodes[at].outage += 1;
        let outage = self.nodes[at].outage;
        self.schedule_in(time, Happening::DiskRecovers { node: at, outage });
    }

    /// Requests a transfer of leadership on behalf of a program on a node, which waits for the reply.
    fn transfer(&mut self, at: usize) {
        let Some(process) = &self.nodes[at].process else { return };
        let (answer, may_take) = (process.transfer_leadership(), process.caller().deadline());
        let look = process.look();
        let led = look.leads.then_some(look.term);
        let call = self.judge.borrow_mut().call(self.nodes[at].id, "transfer", may_take);
        self.transfers.push(Transfer { call, at, led, answer });
    }

    /// Checks the replies to transfers of leadership.
    pub(super) fn check_transfers(&mut self) {
        let (mut judge, nodes) = (self.judge.borrow_mut(), &self.nodes);
        self.transfers.retain_mut(|Transfer { call, at, led, answer }| {
            let answer = match answer.try_recv() {
                Err(TryRecvError::Empty) => return true,
                answer => answer,
            };
            judge.returned(*call);
            match (answer, *led) {
                (Ok(Ok(())), Some(term)) => {
                    judge.count("leadership moved");
                    let look = nodes[*at].running().map(SimProcess::look);
                    let leads = look.is_some_and(|look| look.leads && look.term == term);
                    judge.expect(!leads, "R-TRANSFER", || {
                        let id = nodes[*at].id;
                        format!("{id:?} has handed leadership over, and still leads {term:?}")
                    });
                }
                (Ok(Err(CallError::Deadline { .. })), _) => judge.count("leadership did not move"),
                _ => {}
            }
            false
        });
    }

    /// Takes a machine down and damages its disk meanwhile, or damages the disk of a running process.
    fn rot(&mut self, at: usize, what: Rot, down: Duration) {
        if !self.can_lose(at) {
            return;
        }
        if what.is_while_down() {
            self.crash_any(at);
        }
        if let Some(path) = what.inject(&self.nodes[at].disk, Path::new(DIR), &self.rng) {
            let id = self.nodes[at].id;
            self.note(35, &[id.get()], || format!("{what:?} of {id:?} rots"));
            self.judge.borrow_mut().count(match what {
                Rot::LogBit => "log bit flipped",
                Rot::LogSector => "log sector misdirected",
                Rot::SnapshotBit => "snapshot bit flipped",
                Rot::SnapshotMeanwhile => "snapshot rotten meanwhile",
            });
            self.nodes[at].rotten = Some((what, path));
            self.judge.borrow_mut().disk_is_damaged(id);
        }
        if what.is_while_down() {
            self.start_in(at, down);
        }
    }

    /// Restores the speed and the space of a disk.
    pub(super) fn disk_recovers(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.slow_disk = Duration::ZERO;
        node.slow_snapshots = Duration::ZERO;
        node.full = false;
        if node.disk.has_been_full() {
            self.judge.borrow_mut().count("disk was full");
        }
        node.disk.limit(None);
        // Writes that failed for lack of space are retried.
        self.log_soon(at);
        self.snapshots_soon(at);
    }

    pub(super) fn down(&mut self, who: Who, ending: Ending, down: Duration) {
        if let Some(at) = self.find(who) {
            self.crash(at, ending);
            if one_in(&self.rng, 3) {
                self.nodes[at].start_fails_after = Some(self.rng.below(STEPS_OF_STARTS));
            }
            self.start_in(at, down);
        }
    }

    pub(super) fn part(&mut self, split: Split, time: Duration) {
        let count = self.nodes.len();
        // Sometimes a partition begins during another one; the end of the last one ends both.
        if !one_in(&self.rng, 3) {
            self.net.heal();
        }
        self.partition += 1;
        self.counts.partitions += 1;
        let (cut_out, cut_in): (Vec<usize>, Vec<usize>) = match split {
            Split::Halves => {
                let sides: Vec<bool> = (0..count).map(|_| one_in(&self.rng, 2)).collect();
                self.block_links(|a, b| sides[a] != sides[b]);
                self.explain(|| {
                    let [one, other] = self.sides(&sides, None);
                    format!("{one:?} and {other:?} are separated")
                });
                (Vec::new(), Vec::new())
            }
            Split::Isolate(who) => {
                let at: Vec<usize> = self.find(who).into_iter().collect();
                (at.clone(), at)
            }
            Split::Alone(at) => (vec![at], vec![at]),
            Split::Mute(who) => (self.find(who).into_iter().collect(), Vec::new()),
            Split::Deaf(who) => (Vec::new(), self.find(who).into_iter().collect()),
            Split::Bridge => {
                let bridge = index(&self.rng, count);
                let sides: Vec<bool> = (0..count).map(|_| one_in(&self.rng, 2)).collect();
                self.block_links(|a, b| a != bridge && b != bridge && sides[a] != sides[b]);
                self.explain(|| {
                    let [one, other] = self.sides(&sides, Some(bridge));
                    let bridge = self.nodes[bridge].id;
                    format!("{one:?} and {other:?} are separated, and {bridge:?} reaches both")
                });
                (Vec::new(), Vec::new())
            }
            Split::Random => {
                let cuts: Vec<bool> = (0..count * count).map(|_| one_in(&self.rng, 3)).collect();
                self.block_links(|a, b| cuts[a * count + b]);
                self.explain(|| {
                    let id = |at: usize| self.nodes[at].id;
                    let links =
                        (0..count * count).filter(|at| cuts[*at] && at / count != at % count);
                    let links =
                        links.map(|at| format!("{:?} to {:?}", id(at / count), id(at % count)));
                    match links.collect::<Vec<_>>().as_slice() {
                        [] => "no link is cut".to_owned(),
                        links => format!("cut links: {}", links.join(", ")),
                    }
                });
                (Vec::new(), Vec::new())
            }
        };
        self.block_links(|a, b| cut_out.contains(&a) || cut_in.contains(&b));
        if let Some(at) = cut_out.first().or(cut_in.first()) {
            let id = self.nodes[*at].id;
            self.explain(|| match (cut_out.is_empty(), cut_in.is_empty()) {
                (false, false) => format!("{id:?} is isolated"),
                (false, true) => format!("messages from {id:?} are lost"),
                _ => format!("messages to {id:?} are lost"),
            });
        }
        let partition = self.partition;
        self.schedule_in(time, Happening::Heal { partition });
    }

    /// Returns the ids of the nodes of each side of a partition, without the node that reaches both.
    fn sides(&self, sides: &[bool], bridge: Option<usize>) -> [Vec<NodeId>; 2] {
        [true, false].map(|side| {
            let places = (0..sides.len()).filter(|at| sides[*at] == side && Some(*at) != bridge);
            self.ids(&places.collect::<Vec<_>>())
        })
    }

    /// Finds the node that a fault affects, and names it in the timeline. Not needed for faults whose effect adds a line
    /// with the node.
    pub(super) fn hit(&self, who: Who) -> Option<usize> {
        let at = self.find(who)?;
        self.explain(|| format!("the fault affects {:?}", self.nodes[at].id));
        Some(at)
    }

    /// Adds a line that explains the last fault to the timeline. The trace hash does not change.
    pub(super) fn explain(&self, line: impl FnOnce() -> String) {
        self.trace.line(self.timeline.now(), line);
    }

    pub(super) fn block_links(&self, cut: impl Fn(usize, usize) -> bool) {
        for a in 0..self.nodes.len() {
            for b in (0..self.nodes.len()).filter(|b| *b != a && cut(a, *b)) {
                self.net.cut(self.nodes[a].id, self.nodes[b].id);
            }
        }
    }

    /// Ends all faults: the network and the disks work normally and paused processes resume. The nodes of `core` run;
    /// the others stay as they are.
    pub(crate) fn heal(&mut self, core: &[usize]) -> Result<(), Violation> {
        let ids = self.ids(core);
        self.note(12, &[], || format!("everything heals around {ids:?}"));
        self.remove_newcomers();
        self.partition += 1;
        self.storm += 1;
        self.resumer_pause = None;
        self.returning_leader = None;
        self.net.heal();
        self.net.set_conditions(NetConditions::default());
        for at in 0..self.nodes.len() {
            self.disk_recovers(at);
            self.nodes[at].points.disarm();
            // A node whose disk has failed has stopped and must be restarted, or is about to stop.
            self.nodes[at].may_stop = self.nodes[at].disk.has_failed();
            self.nodes[at].disk.clear_faults();
            self.nodes[at].start_fails_after = None;
            self.resume(at);
        }
        for &at in core {
            // A node that is shutting down restarts as soon as it has stopped.
            self.nodes[at].armed_down = Duration::ZERO;
            self.start(at)?;
        }
        Ok(())
    }

    /// Returns the index of the node that the fault affects, or `None` if no node runs.
    pub(super) fn find(&self, who: Who) -> Option<usize> {
        let running: Vec<usize> = self.processes().map(|(at, _)| at).collect();
        if running.is_empty() {
            return None;
        }
        let leader =
            self.processes().filter(|(_, process)| process.leads()).map(|(at, _)| at).last();
        let holder = self.judge.borrow().some_holder().map(place);
        match who {
            Who::Leader if leader.is_some() => leader,
            Who::Holder if holder.is_some_and(|at| running.contains(&at)) => holder,
            Who::Leader | Who::Holder | Who::Any => Some(running[index(&self.rng, running.len())]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::member_config::MemberConfig;
    use crate::sim::world::WorldOptions;

    #[test]
    fn timeline_names_the_nodes_that_a_fault_affects() {
        let second = Duration::from_secs(1);
        let options = WorldOptions {
            nodes: 3,
            net: NetConditions::default(),
            sync_min: second / 1_000,
            sync_max: second / 500,
            config: MemberConfig::default(),
            verbose: true,
        };
        let mut world = World::new(1, options);
        world.start_all().unwrap();
        world.run_until(second * 3).unwrap();
        let leader = world.nodes[world.find(Who::Leader).unwrap()].id;
        let mut line = |fault| {
            world.inject(fault);
            let text = world.trace().to_string();
            text.lines().last().unwrap().split_once("3.000000 ").unwrap().1.to_owned()
        };
        let mut cut = |split| line(PlanFault::Partition { split, time: second });
        assert_eq!(cut(Split::Isolate(Who::Leader)), format!("{leader:?} is isolated"));
        assert_eq!(cut(Split::Mute(Who::Leader)), format!("messages from {leader:?} are lost"));
        assert_eq!(cut(Split::Deaf(Who::Leader)), format!("messages to {leader:?} are lost"));
        assert!(cut(Split::Halves).ends_with(" are separated"));
        assert!(cut(Split::Bridge).ends_with(" reaches both"));
        assert!(cut(Split::Random).starts_with("cut links: n"));
        let slow = line(PlanFault::SlowDisk { who: Who::Leader, extra: second, time: second });
        assert_eq!(slow, format!("the fault affects {leader:?}"));
        assert!(line(PlanFault::Clog { time: second }).starts_with("messages from n"));
    }
}

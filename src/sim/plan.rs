//! The plan of a seed: the number of nodes, the network, the disks, and the faults. Every seed switches off some
//! kinds of faults completely, so that rare combinations become more likely (swarm testing).
//!
//! To add a fault, for example a short pause:
//!
//! 1. Add a variant of [`PlanFault`] (`Yawn { who: Who }`) and its `name` (`"fault: yawn"`), a variant of `PlanKind`,
//!    its frequency in `MENU` (`(PlanKind::Yawn, 4)`), and in `draw` `PlanKind::Yawn => PlanFault::Yawn { who }`.
//! 2. In `inject` of `src/sim/world/faults.rs`, inject the fault with `self.pause(at, Duration::from_millis(20))`. A
//!    pause ends by itself. To end another kind of fault, add a variant of `Happening` in `world/mod.rs` and schedule
//!    it with `self.schedule_in(time, ...)`. Reset the state of the fault in `heal`.
//! 3. Add `("fault: yawn", 10)` to `OFTEN` in `tests/simulation.rs`, and the fault to `docs/assurance/simulator.md`.

use std::time::Duration;

use super::locking::Program;
use super::net::NetConditions;
use super::rng::Rng;
use super::rot::Rot;
use crate::env::{Entropy, Point};

/// Cluster sizes, repeated by their frequency.
const SIZES: [u64; 10] = [1, 2, 3, 3, 3, 3, 5, 5, 5, 7];

/// Maximum drift of a clock against true time, in parts per million. It is slightly less than the bound in the
/// configuration of the nodes. That bound is per clock, so two clocks may differ by nearly twice as much.
pub(crate) const DRIFT_PPM_MAX: i64 = 99_000;

/// Time without faults at the start, in which the cluster forms. A world whose nodes never met would test nothing.
pub(crate) const CALM_START: Duration = Duration::from_secs(3);

/// TTL of sessions, short so that many expire.
pub(super) const SESSION_TTL: Duration = Duration::from_millis(2_500);
const SESSION_TTL_SHORT: Duration = Duration::from_millis(900);

/// The node that a fault affects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// The leader, or any node if there is none.
    Leader,
    /// A node that believes that it holds a lock, or any node if none does.
    Holder,
    /// Any running node.
    Any,
}

/// How a partition divides the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Split {
    /// Two random halves.
    Halves,
    /// One node is isolated.
    Isolate(Who),
    /// The node with this index is isolated.
    Alone(usize),
    /// One node receives but its messages are lost.
    Mute(Who),
    /// One node sends but receives nothing.
    Deaf(Who),
    /// Two groups with one node that reaches both.
    Bridge,
    /// Each direction of each link is cut with probability 1/2.
    Random,
}

/// The connections of a node that are reset and then refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ResetReach {
    /// One lane with one other node.
    Lane,
    /// All connections with one other node.
    Peer,
    /// All connections with all other nodes, each for a different time.
    Node,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlanFault {
    /// A process is killed. Its files keep all writes.
    Kill { who: Who, down: Duration },
    /// A machine loses power. Unsynced writes may be lost.
    PowerLoss { who: Who, down: Duration },
    /// All machines lose power at once.
    Blackout { down: Duration },
    /// A machine loses power the next time that it reaches this point of the code.
    PointCrash { who: Who, point: Point, down: Duration },
    /// A process is paused while time advances.
    Pause { who: Who, time: Duration },
    /// A process is paused. When it resumes, it receives the messages that arrived during the pause, and is then
    /// isolated for a while.
    PauseThenIsolation { who: Who, still: Duration, alone: Duration },
    /// Like `PauseThenIsolation`, for the node that next requests the renewal of a session that it resumes, right after that
    /// request.
    ResumePauseThenIsolation { still: Duration, alone: Duration },
    /// All processes are paused.
    PauseAll { time: Duration },
    /// Some links are cut.
    Partition { split: Split, time: Duration },
    /// One direction of a link delays all messages for `time`, and then delivers them.
    Clog { time: Duration },
    /// Connections of a node that runs are reset, and new ones are refused for a while, as by a proxy.
    Reset { who: Who, reach: ResetReach, time: Duration },
    /// Syncs take this much longer.
    SlowDisk { who: Who, extra: Duration, time: Duration },
    /// Each step of writing a snapshot takes this much longer, while the log has its normal speed.
    SlowSnapshots { who: Who, extra: Duration, time: Duration },
    /// A sync fails, or all writes do. The node must stop and is restarted.
    DiskError { who: Who, down: Duration },
    /// All clocks change their rates.
    ClockDrift,
    /// A follower with a slow disk gets entries, their replacements by another leader, and the first entries again.
    ReturningLeader,
    /// The leader is asked to transfer leadership.
    Transfer,
    /// A machine is down while its disk rots, or its snapshot rots while it runs. The other machines still form a
    /// quorum.
    Rot { who: Who, what: Rot, down: Duration },
    /// The free space of a disk is limited for a while.
    Full { who: Who, room_bytes: usize, time: Duration },
    /// A program shuts its node down gracefully and restarts it.
    Stop { who: Who, down: Duration },
    /// All nodes are restarted one after the other.
    Rolling { down: Duration, every: Duration },
    /// A new machine asks to become a member.
    Join,
    /// A new machine replaces a voter. The machine and disk of that voter are lost before (`lost`), or the voter keeps
    /// running.
    Replace { lost: bool },
    /// A learner is promoted.
    Promote,
    /// A member is removed.
    Remove,
}

impl PlanFault {
    /// Returns the name under which a run counts the fault.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            PlanFault::Kill { .. } => "fault: kill",
            PlanFault::PowerLoss { .. } => "fault: power loss",
            PlanFault::Blackout { .. } => "fault: power loss of all",
            PlanFault::PointCrash { .. } => "fault: power loss at a point",
            PlanFault::Pause { .. } => "fault: pause",
            PlanFault::PauseThenIsolation { .. } => "fault: pause, then isolation",
            PlanFault::ResumePauseThenIsolation { .. } => {
                "fault: pause during a resume, then isolation"
            }
            PlanFault::PauseAll { .. } => "fault: pause of all",
            PlanFault::Partition { split: Split::Mute(_) | Split::Deaf(_), .. } => {
                "fault: one-way partition"
            }
            PlanFault::Partition { .. } => "fault: partition",
            PlanFault::Clog { .. } => "fault: clogged link",
            PlanFault::Reset { .. } => "fault: reset connections",
            PlanFault::SlowDisk { .. } => "fault: slow disk",
            PlanFault::SlowSnapshots { .. } => "fault: slow snapshots",
            PlanFault::DiskError { .. } => "fault: failing disk",
            PlanFault::ClockDrift => "fault: clock drift",
            PlanFault::ReturningLeader => "fault: returning leader",
            PlanFault::Transfer => "fault: leadership transfer",
            PlanFault::Rot { .. } => "fault: damaged log",
            PlanFault::Full { .. } => "fault: full disk",
            PlanFault::Stop { .. } => "fault: stop in order",
            PlanFault::Rolling { .. } => "fault: rolling restart",
            PlanFault::Join => "fault: newcomer",
            PlanFault::Replace { .. } => "fault: replacement",
            PlanFault::Promote => "fault: promotion",
            PlanFault::Remove => "fault: removal",
        }
    }
}

/// Membership changes with their weights, for seeds in which the members change.
const MEMBERS_MENU: [(PlanKind, u64); 4] =
    [(PlanKind::Join, 6), (PlanKind::Promote, 6), (PlanKind::Replace, 4), (PlanKind::Remove, 4)];

/// Kinds of faults with their weights.
const MENU: [(PlanKind, u64); 22] = [
    (PlanKind::Kill, 6),
    (PlanKind::PowerLoss, 6),
    (PlanKind::Blackout, 2),
    (PlanKind::PointCrash, 6),
    (PlanKind::Pause, 5),
    (PlanKind::PauseThenIsolation, 3),
    (PlanKind::ResumePauseThenIsolation, 3),
    (PlanKind::PauseAll, 2),
    (PlanKind::Partition, 8),
    (PlanKind::OneWay, 4),
    (PlanKind::Clog, 4),
    (PlanKind::Reset, 5),
    (PlanKind::SlowDisk, 4),
    (PlanKind::SlowSnapshots, 4),
    (PlanKind::DiskError, 2),
    (PlanKind::ClockDrift, 3),
    (PlanKind::ReturningLeader, 3),
    (PlanKind::Transfer, 2),
    (PlanKind::Stop, 3),
    (PlanKind::Rolling, 2),
    (PlanKind::Rot, 3),
    (PlanKind::Full, 2),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PlanKind {
    Kill,
    PowerLoss,
    Blackout,
    PointCrash,
    Pause,
    PauseThenIsolation,
    ResumePauseThenIsolation,
    PauseAll,
    Partition,
    OneWay,
    Clog,
    Reset,
    SlowDisk,
    SlowSnapshots,
    DiskError,
    ClockDrift,
    ReturningLeader,
    Transfer,
    Stop,
    Rolling,
    Rot,
    Full,
    Join,
    Replace,
    Promote,
    Remove,
}

/// The plan of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: u64,
    /// The network in the absence of faults.
    pub(crate) net: NetConditions,
    /// Minimum time of a sync.
    pub(crate) sync_min: Duration,
    /// Maximum time of a sync in the absence of faults.
    pub(crate) sync_max: Duration,
    /// The faults and their times.
    pub(crate) faults: Vec<(Duration, PlanFault)>,
    /// The time of the last fault before some were left out, so that a run without them lasts as long.
    pub(crate) storm_end: Duration,
    /// Number of clients on each node.
    pub(crate) clients: u64,
    /// Maximum pause of a client between two operations.
    pub(crate) think_max: Duration,
    /// The lock programs.
    pub(crate) programs: Vec<Program>,
    /// TTL of the sessions of lock programs. In some seeds the TTL is hardly longer than an election.
    pub(crate) session_ttl: Duration,
    pub(crate) members_change: bool,
}

impl Plan {
    /// Draws a plan.
    pub(crate) fn draw(rng: &Rng, storm: Duration) -> Self {
        let nodes = SIZES[index(rng, SIZES.len())];
        let quick = Duration::from_micros(100);
        let delay_max = [1, 2, 5, 20, 50][index(rng, 5)];
        let mut net = NetConditions {
            delay_min: quick,
            delay_max: Duration::from_millis(delay_max),
            ..NetConditions::default()
        };
        if one_in(rng, 2) {
            net.loss_ppm = rng.below(30_000);
        }
        if one_in(rng, 2) {
            net.duplicate_ppm = rng.below(50_000);
        }
        if one_in(rng, 2) {
            net.hold_up_ppm = rng.below(20_000);
            net.hold_up_max = Duration::from_millis(rng.below(2_000));
        }
        if one_in(rng, 3) {
            net.damage_ppm = rng.below(3_000);
        }
        net.reorder = one_in(rng, 3);
        let mut menu: Vec<_> = MENU.into_iter().filter(|_| !one_in(rng, 3)).collect();
        if menu.is_empty() {
            menu.extend(MENU);
        }
        let members_change = one_in(rng, 2);
        if members_change {
            menu.extend(MEMBERS_MENU);
        }
        let every = Duration::from_millis(1_000 + rng.below(5_000));
        let faults = draw_faults(rng, storm, every, &menu);
        let programs = draw_programs(rng);
        // About eight clients in total, regardless of the number of nodes.
        let clients = 1 + 6 / nodes;
        Self {
            nodes,
            net,
            sync_min: quick,
            sync_max: Duration::from_millis(1 + rng.below(12)),
            faults,
            storm_end: Duration::ZERO,
            clients,
            think_max: Duration::from_millis(120 + rng.below(400)),
            programs,
            session_ttl: [SESSION_TTL, SESSION_TTL, SESSION_TTL_SHORT][index(rng, 3)],
            members_change,
        }
    }

    /// Returns a plan for measuring the speed of the simulator: three nodes, about a hundred operations a second, and
    /// a fault of any kind except membership changes about every twenty seconds.
    pub(crate) fn steady(rng: &Rng, storm: Duration) -> Self {
        // Bit rot may destroy a machine permanently, and then fewer than three nodes would be measured.
        let menu: Vec<_> = MENU.into_iter().filter(|(kind, _)| *kind != PlanKind::Rot).collect();
        let faults = draw_faults(rng, storm, Duration::from_secs(20), &menu);
        Self {
            nodes: 3,
            net: NetConditions::default(),
            sync_min: Duration::from_micros(100),
            sync_max: Duration::from_millis(4),
            faults,
            storm_end: Duration::ZERO,
            clients: 4,
            think_max: Duration::from_millis(245),
            programs: Vec::new(),
            session_ttl: SESSION_TTL,
            members_change: false,
        }
    }

    /// Describes the faults.
    pub(crate) fn fault_parts(&self) -> impl Iterator<Item = String> + '_ {
        self.faults.iter().map(|(at, fault)| format!("{:>6.2} s {fault:?}", at.as_secs_f64()))
    }

    /// Describes the parts that can be left out of a run: the faults, then the programs.
    pub(crate) fn parts(&self) -> Vec<String> {
        let programs = self.programs.iter().map(|program| format!("program {program:?}"));
        self.fault_parts().chain(programs).collect()
    }

    /// Leaves out the parts with these numbers.
    pub(crate) fn leave_out(&mut self, without: &[usize]) {
        if !without.is_empty() {
            self.storm_end = self.faults.iter().map(|(at, _)| *at).max().unwrap_or_default();
        }
        let faults = self.faults.len();
        let mut number = 0..;
        let mut stays = || !without.contains(&number.next().expect("there is no last number"));
        self.faults.retain(|_| stays());
        let mut number = faults..;
        let mut stays = || !without.contains(&number.next().expect("there is no last number"));
        self.programs.retain(|_| stays());
    }
}

/// Draws the faults of a storm. At least one leader is killed.
fn draw_faults(
    rng: &Rng,
    storm: Duration,
    every: Duration,
    menu: &[(PlanKind, u64)],
) -> Vec<(Duration, PlanFault)> {
    let death = between(rng, storm / 4, storm * 3 / 4);
    let (who, down) = (Who::Leader, Duration::from_millis(800 + rng.below(2_000)));
    let sure = match one_in(rng, 2) {
        true => PlanFault::Kill { who, down },
        false => PlanFault::PowerLoss { who, down },
    };
    let mut faults = vec![(death, sure)];
    let mut at = CALM_START;
    while at < storm {
        at += between(rng, every / 4, every * 7 / 4);
        faults.push((at, draw(draw_kind(rng, menu), rng)));
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}

fn draw_kind(rng: &Rng, menu: &[(PlanKind, u64)]) -> PlanKind {
    let total = menu.iter().map(|(_, weight)| weight).sum();
    let mut left = rng.below(total);
    for &(kind, weight) in menu {
        if left < weight {
            return kind;
        }
        left -= weight;
    }
    unreachable!("the weights of the menu sum to {total}")
}

/// Draws one program and on average about one more. With fewer programs, each of them does more.
fn draw_programs(rng: &Rng) -> Vec<Program> {
    let count = Program::ALL.len();
    let first = index(rng, count);
    let is_drawn = |at| at == first || one_in(rng, count as u64);
    (0..count).filter(|at| is_drawn(*at)).map(|at| Program::ALL[at]).collect()
}

fn draw(kind: PlanKind, rng: &Rng) -> PlanFault {
    let who = [Who::Leader, Who::Leader, Who::Holder, Who::Any][index(rng, 4)];
    let ms = |least, most| between(rng, Duration::from_millis(least), Duration::from_millis(most));
    let down = if one_in(rng, 4) { ms(2_000, 12_000) } else { ms(1, 2_000) };
    match kind {
        PlanKind::Kill => PlanFault::Kill { who, down },
        PlanKind::PowerLoss => PlanFault::PowerLoss { who, down },
        PlanKind::Blackout => PlanFault::Blackout { down: down.min(Duration::from_secs(4)) },
        PlanKind::PointCrash => {
            PlanFault::PointCrash { who, point: Point::ALL[index(rng, Point::ALL.len())], down }
        }
        PlanKind::Pause => PlanFault::Pause {
            who,
            time: if one_in(rng, 3) { ms(5_000, 9_000) } else { ms(50, 3_000) },
        },
        PlanKind::PauseThenIsolation => {
            PlanFault::PauseThenIsolation { who, still: ms(500, 2_200), alone: ms(2_000, 8_000) }
        }
        PlanKind::ResumePauseThenIsolation => {
            PlanFault::ResumePauseThenIsolation { still: ms(300, 2_000), alone: ms(2_000, 8_000) }
        }
        PlanKind::PauseAll => PlanFault::PauseAll { time: ms(100, 4_000) },
        PlanKind::Partition => {
            let splits = [Split::Halves, Split::Isolate(who), Split::Bridge, Split::Random];
            PlanFault::Partition { split: splits[index(rng, 4)], time: ms(200, 10_000) }
        }
        PlanKind::OneWay => {
            let split = if one_in(rng, 2) { Split::Mute(who) } else { Split::Deaf(who) };
            PlanFault::Partition { split, time: ms(200, 10_000) }
        }
        PlanKind::Clog => PlanFault::Clog { time: ms(100, 5_000) },
        PlanKind::Reset => {
            let reach = [ResetReach::Lane, ResetReach::Peer, ResetReach::Node][index(rng, 3)];
            PlanFault::Reset { who, reach, time: ms(1, 4_000) }
        }
        PlanKind::SlowDisk => {
            PlanFault::SlowDisk { who, extra: ms(20, 2_000), time: ms(500, 8_000) }
        }
        PlanKind::SlowSnapshots => {
            // Mostly the leader, because it alone knows the progress of the others.
            let who = if one_in(rng, 4) { who } else { Who::Leader };
            PlanFault::SlowSnapshots { who, extra: ms(500, 4_000), time: ms(4_000, 12_000) }
        }
        PlanKind::DiskError => PlanFault::DiskError { who, down },
        PlanKind::ClockDrift => PlanFault::ClockDrift,
        PlanKind::ReturningLeader => PlanFault::ReturningLeader,
        PlanKind::Transfer => PlanFault::Transfer,
        PlanKind::Stop => PlanFault::Stop { who, down },
        PlanKind::Rolling => PlanFault::Rolling { down: ms(1, 1_000), every: ms(500, 4_000) },
        PlanKind::Rot => {
            let what = Rot::WHILE_DOWN[index(rng, Rot::WHILE_DOWN.len())];
            PlanFault::Rot { who, what, down }
        }
        PlanKind::Full => {
            let room_bytes = index(rng, 64 << 10);
            PlanFault::Full { who, room_bytes, time: ms(1_000, 8_000) }
        }
        PlanKind::Join => PlanFault::Join,
        PlanKind::Replace => PlanFault::Replace { lost: one_in(rng, 2) },
        PlanKind::Promote => PlanFault::Promote,
        PlanKind::Remove => PlanFault::Remove,
    }
}

pub(crate) fn index(rng: &Rng, length: usize) -> usize {
    usize::try_from(rng.below(length as u64)).expect("below a length")
}

pub(crate) fn one_in(rng: &Rng, count: u64) -> bool {
    rng.below(count) == 0
}

pub(crate) fn between(rng: &Rng, least: Duration, most: Duration) -> Duration {
    let span = u64::try_from(most.saturating_sub(least).as_nanos()).expect("a short time");
    least + Duration::from_nanos(rng.below(span + 1))
}

//! What one seed does: how many nodes, which network, which disks, which faults how often. Every seed
//! switches some kinds of faults off altogether, so that rare combinations get room (swarm testing).

use std::time::Duration;

use super::locking::Program;
use super::net::NetConditions;
use super::rng::Rng;
use crate::env::{Entropy, Point};

/// The sizes of clusters, as often as they are drawn.
const SIZES: [u64; 10] = [1, 2, 3, 3, 3, 3, 5, 5, 5, 7];

/// The drift that clocks stay inside of, against true time, in parts per million. Half the drift
/// bound that nodes are configured with, because two clocks may differ in opposite directions.
pub(crate) const DRIFT_PPM_MAX: i64 = 47_000;

/// Which node a fault strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// The leader, or any node if there is none.
    Leader,
    /// A node that believes to hold a lock, or any node if none does.
    Holder,
    /// Any node that runs.
    Any,
}

/// How a partition divides the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Split {
    /// Two halves, drawn.
    Halves,
    /// One node alone.
    Isolate(Who),
    /// One node is not heard, but hears.
    Mute(Who),
    /// One node hears nobody, but is heard.
    Deaf(Who),
    /// Two groups that only one node can talk to.
    Bridge,
    /// Each direction of each link is cut or not, by the toss of a coin.
    Random,
}

/// One thing that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// A process dies; its files stay as the operating system has them.
    Kill { who: Who, down: Duration },
    /// A machine loses power: what was not synced may be lost.
    PowerLoss { who: Who, down: Duration },
    /// All machines lose power at once.
    Blackout { down: Duration },
    /// A machine loses power the next time that the code comes to this point.
    PointCrash { who: Who, point: Point, down: Duration },
    /// A process stands still while time goes on.
    Pause { who: Who, time: Duration },
    /// All processes stand still.
    PauseAll { time: Duration },
    /// Some messages do not pass.
    Partition { split: Split, time: Duration },
    /// One direction of a link holds everything up, then lets it through.
    Clog { time: Duration },
    /// Syncs take this much longer.
    SlowDisk { who: Who, extra: Duration, time: Duration },
    /// A sync fails; the node must stop, and is started again.
    DiskError { who: Who, down: Duration },
    /// All clocks run at other rates.
    Drift,
    /// The leader is asked to hand over.
    Transfer,
}

/// Kinds of faults, each with how often it is drawn where it is not switched off.
const MENU: [(Kind, u64); 13] = [
    (Kind::Kill, 6),
    (Kind::PowerLoss, 6),
    (Kind::Blackout, 2),
    (Kind::PointCrash, 6),
    (Kind::Pause, 5),
    (Kind::PauseAll, 1),
    (Kind::Partition, 8),
    (Kind::OneWay, 4),
    (Kind::Clog, 4),
    (Kind::SlowDisk, 4),
    (Kind::DiskError, 2),
    (Kind::Drift, 3),
    (Kind::Transfer, 2),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Kill,
    PowerLoss,
    Blackout,
    PointCrash,
    Pause,
    PauseAll,
    Partition,
    OneWay,
    Clog,
    SlowDisk,
    DiskError,
    Drift,
    Transfer,
}

/// The plan of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// How many nodes.
    pub(crate) nodes: u64,
    /// How long faults go on.
    pub(crate) storm: Duration,
    /// The network outside of faults.
    pub(crate) net: NetConditions,
    /// A sync takes at least this long.
    pub(crate) sync_min: Duration,
    /// And at most this long, outside of slow spells.
    pub(crate) sync_max: Duration,
    /// The mean time between faults.
    fault_every: Duration,
    /// How many clients work on each node.
    pub(crate) clients: u64,
    /// How long a client thinks between two operations, at most.
    pub(crate) think_max: Duration,
    /// What is done with locks.
    pub(crate) programs: Vec<Program>,
    menu: Vec<(Kind, u64)>,
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
            net.straggle_ppm = rng.below(20_000);
            net.straggle_max = Duration::from_millis(rng.below(2_000));
        }
        net.reorder = one_in(rng, 3);
        let mut menu: Vec<_> = MENU.into_iter().filter(|_| !one_in(rng, 3)).collect();
        if menu.is_empty() {
            menu.extend(MENU);
        }
        let programs = draw_programs(rng);
        // Eight or so all together, however many nodes they are spread over.
        let clients = 1 + 6 / nodes;
        Self {
            nodes,
            storm,
            net,
            sync_min: quick,
            sync_max: Duration::from_millis(1 + rng.below(12)),
            fault_every: Duration::from_millis(1_000 + rng.below(5_000)),
            clients,
            think_max: Duration::from_millis(300 + rng.below(900)),
            programs,
            menu,
        }
    }

    /// How long until the next fault.
    pub(crate) fn next_fault_in(&self, rng: &Rng) -> Duration {
        between(rng, self.fault_every / 4, self.fault_every * 7 / 4)
    }

    /// The next fault.
    pub(crate) fn next_fault(&self, rng: &Rng) -> Fault {
        let total = self.menu.iter().map(|(_, weight)| weight).sum();
        let mut left = rng.below(total);
        for &(kind, weight) in &self.menu {
            if left < weight {
                return draw(kind, rng);
            }
            left -= weight;
        }
        unreachable!("the weights of the menu sum to {total}")
    }
}

/// One program, and about one more: each gets more room where there are not all of them.
fn draw_programs(rng: &Rng) -> Vec<Program> {
    let count = Program::ALL.len();
    let first = index(rng, count);
    let is_drawn = |at| at == first || one_in(rng, count as u64);
    (0..count).filter(|at| is_drawn(*at)).map(|at| Program::ALL[at]).collect()
}

fn draw(kind: Kind, rng: &Rng) -> Fault {
    let who = [Who::Leader, Who::Leader, Who::Holder, Who::Any][index(rng, 4)];
    let ms = |least, most| between(rng, Duration::from_millis(least), Duration::from_millis(most));
    let down = if one_in(rng, 4) { ms(2_000, 12_000) } else { ms(1, 2_000) };
    match kind {
        Kind::Kill => Fault::Kill { who, down },
        Kind::PowerLoss => Fault::PowerLoss { who, down },
        Kind::Blackout => Fault::Blackout { down: down.min(Duration::from_secs(4)) },
        Kind::PointCrash => {
            Fault::PointCrash { who, point: Point::ALL[index(rng, Point::ALL.len())], down }
        }
        Kind::Pause => Fault::Pause {
            who,
            time: if one_in(rng, 3) { ms(5_000, 9_000) } else { ms(50, 3_000) },
        },
        Kind::PauseAll => Fault::PauseAll { time: ms(100, 4_000) },
        Kind::Partition => {
            let splits = [Split::Halves, Split::Isolate(who), Split::Bridge, Split::Random];
            Fault::Partition { split: splits[index(rng, 4)], time: ms(200, 10_000) }
        }
        Kind::OneWay => {
            let split = if one_in(rng, 2) { Split::Mute(who) } else { Split::Deaf(who) };
            Fault::Partition { split, time: ms(200, 10_000) }
        }
        Kind::Clog => Fault::Clog { time: ms(100, 5_000) },
        Kind::SlowDisk => Fault::SlowDisk { who, extra: ms(20, 2_000), time: ms(500, 8_000) },
        Kind::DiskError => Fault::DiskError { who, down },
        Kind::Drift => Fault::Drift,
        Kind::Transfer => Fault::Transfer,
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

//! The judge of what nobody asks a node for: that it counts its ticks as they come, ends leases when their time is
//! up, and does not lead on with a disk that does not answer.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::process::Process;
use super::Judge;
use crate::model::NodeId;
use crate::node::Look;

/// How often a node of the world ticks, by its own clock.
const TICK: Duration = Duration::from_millis(25);

/// The most ticks that come at once, by a clock that may be fast: one that is late, and the one after it.
const TICKS_AT_ONCE: u32 = 3;

/// How long a leader's disk may owe an answer before the leader hands over: it does after two election timeouts of
/// 500 ms by a clock that may be slow.
const DISK_PATIENCE: Duration = Duration::from_millis(1_200);

/// And how long it may then do neither that nor have nobody to hand over to.
const CLINGS_MAX: Duration = Duration::from_millis(200);

/// How often the leases of a leader are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long the end of a lease takes at most, from the moment at which its leader counts it as due: the leader may be
/// about to lose a quorum, its disk slow, and leadership about to move, again and again.
const ENDS_WITHIN: Duration = Duration::from_secs(12);

/// How long it takes where nothing goes wrong.
const ENDS_IN_QUIET_WITHIN: Duration = Duration::from_secs(2);

/// What the judge has seen of the nodes.
#[derive(Default)]
pub(super) struct Diligence {
    nodes: BTreeMap<NodeId, Worker>,
}

/// What it has seen of one, in this life.
#[derive(Default)]
struct Worker {
    ticks: u64,
    /// When it had counted so many.
    ticked: Duration,
    /// By how much these are ahead of the time that has passed.
    ahead: Duration,
    /// Since when its log has owed it an answer, and how often it had worked before.
    owed: Option<(u64, Duration)>,
    /// Since when it leads with a disk that hangs, and could hand over.
    clings: Option<Duration>,
    next_look: Duration,
}

impl Diligence {
    /// A process has started.
    pub(super) fn started(&mut self, id: NodeId) {
        self.nodes.remove(&id);
    }
}

impl Judge {
    /// A driver has had a turn.
    pub(super) fn check_diligence(&mut self, id: NodeId, process: &Process, look: &Look) {
        self.check_ticks(id, look);
        self.check_disk(id, process, look);
        if look.leads {
            self.check_ends(id, process);
        }
    }

    /// Time in which it stood still is not made up for.
    fn check_ticks(&mut self, id: NodeId, look: &Look) {
        let now = self.timeline.now();
        let worker = self.diligence.nodes.entry(id).or_default();
        let Some(ticks) = look.ticks.checked_sub(worker.ticks).filter(|ticks| *ticks > 0) else {
            return;
        };
        // A fast clock inside the bound is a tenth ahead.
        let passed = (now - worker.ticked) * 11 / 10;
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
        worker.ahead = worker.ahead.saturating_sub(passed) + TICK * ticks;
        (worker.ticks, worker.ticked) = (look.ticks, now);
        let ahead = worker.ahead;
        self.expect(ahead <= TICK * TICKS_AT_ONCE, "C-TICK", || {
            format!("{id:?} has counted ticks for {ahead:?} in no time")
        });
    }

    /// A leader whose disk does not answer hands over, if there is somebody.
    fn check_disk(&mut self, id: NodeId, process: &Process, look: &Look) {
        let now = self.timeline.now();
        let worker = self.diligence.nodes.entry(id).or_default();
        let Some(log_turns) = process.log_debt() else {
            (worker.owed, worker.clings) = (None, None);
            return;
        };
        let since = match worker.owed {
            Some((before, since)) if before == log_turns => since,
            _ => worker.owed.insert((log_turns, now)).1,
        };
        let hangs = look.leads && now - since > DISK_PATIENCE;
        if !hangs || process.gives_way() {
            worker.clings = None;
            return;
        }
        let clings = now - *worker.clings.get_or_insert(now);
        self.expect(clings <= CLINGS_MAX, "R-DISK", || {
            format!("{id:?} leads on, and its disk has owed it an answer since {since:?}")
        });
    }

    /// A leader ends the leases whose time is up.
    fn check_ends(&mut self, id: NodeId, process: &Process) {
        let Some(lessor) = process.lessor() else { return };
        // Its end is in an entry, or it was not proposed.
        let in_no_entry = lessor.expiring() > 0 && process.has_applied_all();
        self.expect(!in_no_entry, "L-LATE", || {
            format!("{id:?} counts {} leases as ending, and no entry ends them", lessor.expiring())
        });
        let now = self.timeline.now();
        let worker = self.diligence.nodes.entry(id).or_default();
        if now < worker.next_look {
            return;
        }
        worker.next_look = now + LOOK_EVERY;
        self.expect(lessor.counts_rightly(), "L-LATE", || {
            format!("{id:?} counts {} leases as ending, and others are", lessor.expiring())
        });
        let within = match self.leases.quiet_since {
            Some(_) => ENDS_IN_QUIET_WITHIN,
            None => ENDS_WITHIN,
        };
        let Some((lease, overdue)) = lessor.overdue() else { return };
        self.expect(overdue <= within, "L-LATE", || {
            format!("{id:?} leads, and has not ended {lease:?}, whose time was up {overdue:?} ago")
        });
    }
}

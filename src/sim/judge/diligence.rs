//! Judges the duties of a node that no request triggers: the node counts its ticks, expires leases, and does not
//! keep leading while its disk does not respond.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::process::SimProcess;
use super::Judge;
use crate::model::NodeId;
use crate::node::Look;

/// Tick interval of a node, by its own clock.
const TICK: Duration = Duration::from_millis(25);

/// Maximum number of ticks that a node may count at once, in addition to the time that has passed on the fastest clock.
const TICKS_AT_ONCE: u32 = 3;

/// Maximum time that a leader waits for its disk before it transfers leadership: two election timeouts of 500 ms by a
/// slow clock.
const DISK_WAIT_MAX: Duration = Duration::from_millis(1_200);

/// Additional time for which such a leader may neither have begun the transfer nor have found that no member can take
/// over.
const CLINGS_MAX: Duration = Duration::from_millis(200);

/// Interval between two checks of the leases of a leader.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum time from the expiry of a lease, as its leader measures it, to its end. In this time the leader may lose
/// its quorum, its disk may be slow, and leadership may move several times.
const ENDS_WITHIN: Duration = Duration::from_secs(12);

/// Like [`ENDS_WITHIN`], while no faults occur.
const QUIET_END_MAX: Duration = Duration::from_secs(2);

/// The observations of all nodes.
#[derive(Default)]
pub(super) struct Diligence {
    nodes: BTreeMap<NodeId, DiligenceWorker>,
}

/// The observations of one node in this incarnation.
#[derive(Default)]
struct DiligenceWorker {
    ticks: u64,
    /// Time at which that number of ticks was reached.
    ticked: Duration,
    /// Ticks that were counted too early, as the time that they stand for.
    ahead: Duration,
    /// Since when the driver has waited for its log, and the number of log turns at that time.
    waits_since: Option<(u64, Duration)>,
    /// Since when the node leads with a hanging disk although it could transfer leadership.
    stalled_leader_since: Option<Duration>,
    next_look: Duration,
}

impl Diligence {
    /// Records that a process has started.
    pub(super) fn started(&mut self, id: NodeId) {
        self.nodes.remove(&id);
    }
}

impl Judge {
    /// Checks a node after a turn of its driver.
    pub(super) fn check_diligence(&mut self, id: NodeId, process: &SimProcess, look: &Look) {
        self.check_ticks(id, look);
        self.check_disk(id, process, look);
        if look.leads {
            self.check_ends(id, process);
        }
    }

    /// Checks that the node does not count ticks for the time that it was paused.
    fn check_ticks(&mut self, id: NodeId, look: &Look) {
        let now = self.timeline.now();
        let worker = self.diligence.nodes.entry(id).or_default();
        let Some(ticks) = look.ticks.checked_sub(worker.ticks).filter(|ticks| *ticks > 0) else {
            return;
        };
        // The fastest allowed clock gains a tenth.
        let passed = (now - worker.ticked) * 11 / 10;
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
        worker.ahead = worker.ahead.saturating_sub(passed) + TICK * ticks;
        (worker.ticks, worker.ticked) = (look.ticks, now);
        let ahead = worker.ahead;
        self.expect(ahead <= TICK * TICKS_AT_ONCE, "C-TICK", || {
            format!("{id:?} has counted ticks for {ahead:?} in no time")
        });
    }

    /// Checks that a leader whose disk does not respond transfers leadership if another member can take it.
    fn check_disk(&mut self, id: NodeId, process: &SimProcess, look: &Look) {
        let now = self.timeline.now();
        let worker = self.diligence.nodes.entry(id).or_default();
        let Some(log_turns) = process.log_debt() else {
            (worker.waits_since, worker.stalled_leader_since) = (None, None);
            return;
        };
        let since = match worker.waits_since {
            Some((before, since)) if before == log_turns => since,
            _ => worker.waits_since.insert((log_turns, now)).1,
        };
        let hangs = look.leads && now - since > DISK_WAIT_MAX;
        if !hangs || process.is_transferring_or_cannot() {
            worker.stalled_leader_since = None;
            return;
        }
        let stalled = now - *worker.stalled_leader_since.get_or_insert(now);
        self.expect(stalled <= CLINGS_MAX, "R-DISK", || {
            format!("{id:?} leads on, and its disk has owed it an answer since {since:?}")
        });
    }

    /// Checks that a leader ends the leases that have expired.
    fn check_ends(&mut self, id: NodeId, process: &SimProcess) {
        let seen = process
            .lessor()
            .with(|lessor| (lessor.expiring(), lessor.counts_rightly(), lessor.overdue()));
        let Some((expiring, counts_rightly, overdue)) = seen else { return };
        // If the leader counts a lease as expiring, an entry that ends the lease must be in the log and not yet
        // applied.
        let in_no_entry = expiring > 0 && process.has_applied_all();
        self.expect(!in_no_entry, "L-LATE", || {
            format!("{id:?} counts {expiring} leases as ending, and no entry ends them")
        });
        let now = self.timeline.now();
        let worker = self.diligence.nodes.entry(id).or_default();
        if now < worker.next_look {
            return;
        }
        worker.next_look = now + CHECK_INTERVAL;
        self.expect(counts_rightly, "L-LATE", || {
            format!("{id:?} counts {expiring} leases as ending, and others are")
        });
        let within = match self.leases.quiet_since {
            Some(_) => QUIET_END_MAX,
            None => ENDS_WITHIN,
        };
        let Some((lease, overdue)) = overdue else { return };
        self.expect(overdue <= within, "L-LATE", || {
            format!("{id:?} leads, and has not ended {lease:?}, whose time was up {overdue:?} ago")
        });
    }
}

//! The leader's clock for the expiry of leases. The state of this clock is not replicated: a lease
//! ends with a log entry, which the leader proposes after it has counted the full TTL.
//!
//! The lessor keeps its own time. This time follows the clock of the node, but advances by at most
//! [`STEP_MAX`] between two readings. So if a leader is stopped, suspended or starved, at most
//! `STEP_MAX` of the stall counts, and leases live longer by the rest of the stall. A new leader
//! counts the full TTL of every lease, from the time at which it has applied the first entry of its
//! own term. By then the new leader has applied all expiries that earlier leaders proposed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::{LeaseId, Moment};

use crate::node::settings::Drift;

/// Maximum advance of the lessor's time between two readings of the clock.
const STEP_MAX: Duration = Duration::from_millis(100);

/// The leases and their deadlines, in the lessor's own time.
#[derive(Debug)]
pub(crate) struct Lessor {
    drift: Drift,
    /// The lessor's own time.
    time: Duration,
    looked: Moment,
    /// Number of expiries that are proposed and undecided.
    expiring: usize,
    leases: BTreeMap<LeaseId, Counted>,
    deadlines: BTreeSet<(Duration, LeaseId)>,
}

#[derive(Debug)]
struct Counted {
    ttl: Duration,
    deadline: Duration,
    /// Whether the expiry of the lease is proposed. The lease cannot be renewed until the outcome
    /// is known.
    expiring: bool,
}

/// The result of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewal {
    /// The lease lives for another TTL.
    Renewed,
    /// The expiry of the lease is proposed and undecided, so the result is unknown.
    Expiring,
    /// The lease does not exist.
    Gone,
}

impl Lessor {
    /// Maximum time between two readings of the clock. If more time than [`STEP_MAX`] passes
    /// between two readings, only `STEP_MAX` is counted.
    pub(crate) const LOOK_EVERY: Duration = STEP_MAX.checked_div(2).expect("not by zero");

    /// Starts counting. Every lease has its full TTL left.
    pub(crate) fn new(drift: Drift, now: Moment, leases: Vec<(LeaseId, Duration)>) -> Self {
        let mut lessor = Self {
            drift,
            time: Duration::ZERO,
            looked: now,
            expiring: 0,
            leases: BTreeMap::new(),
            deadlines: BTreeSet::new(),
        };
        mutant!(B38, return lessor);
        for (id, ttl) in leases {
            lessor.granted(id, ttl);
        }
        mutant!(M09, lessor.time += Duration::from_secs(2));
        lessor
    }

    /// Reads the clock.
    pub(crate) fn advance(&mut self, now: Moment) {
        self.time += now.since(self.looked).min(STEP_MAX);
        self.looked = self.looked.max(now);
    }

    /// Adds a lease that was granted.
    pub(crate) fn granted(&mut self, id: LeaseId, ttl: Duration) {
        self.ended(id);
        let deadline = self.time.saturating_add(self.drift.wait_for(ttl));
        self.leases.insert(id, Counted { ttl, deadline, expiring: false });
        self.deadlines.insert((deadline, id));
    }

    /// Removes a lease that has ended.
    pub(crate) fn ended(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.remove(&id) {
            self.deadlines.remove(&(lease.deadline, id));
            self.expiring -= usize::from(lease.expiring && !mutant!(B42));
        }
    }

    /// Renews a lease. Call this only after a quorum has confirmed, since the renewal arrived, that this node leads.
    pub(crate) fn renew(&mut self, id: LeaseId) -> Renewal {
        let Some(lease) = self.leases.get_mut(&id) else { return Renewal::Gone };
        if lease.expiring && !mutant!(M10) {
            return Renewal::Expiring;
        }
        self.deadlines.remove(&(lease.deadline, id));
        lease.deadline = self.time.saturating_add(self.drift.wait_for(lease.ttl));
        self.deadlines.insert((lease.deadline, id));
        Renewal::Renewed
    }

    /// Returns the result that a renewal would have, and the remaining TTL. The remaining TTL is
    /// the full TTL right after a renewal, and zero during the extra time that the leader waits
    /// because of clock drift.
    pub(crate) fn look(&self, id: LeaseId) -> (Renewal, Duration) {
        let Some(lease) = self.leases.get(&id) else { return (Renewal::Gone, Duration::ZERO) };
        if lease.expiring {
            return (Renewal::Expiring, Duration::ZERO);
        }
        let beyond = self.drift.wait_for(lease.ttl) - lease.ttl;
        let left = lease.deadline.saturating_sub(self.time).saturating_sub(beyond);
        (Renewal::Renewed, left)
    }

    /// Takes up to `most` expired leases for which `may_end` allows a proposal. The caller must propose their expiry
    /// now, or return them with [`Lessor::not_proposed`].
    pub(crate) fn due(&mut self, most: usize, may_end: impl Fn(LeaseId) -> bool) -> Vec<LeaseId> {
        let up = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= self.time);
        let due: Vec<_> = up.filter(|(_, id)| may_end(*id)).take(most).copied().collect();
        for (deadline, id) in &due {
            self.deadlines.remove(&(*deadline, *id));
            self.leases.get_mut(id).expect("what has a deadline is a lease").expiring = true;
        }
        self.expiring += due.len();
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns leases whose expiry could not be proposed.
    pub(crate) fn not_proposed(&mut self, ids: &[LeaseId]) {
        for id in ids {
            if let Some(lease) = self.leases.get_mut(id) {
                self.expiring -= usize::from(std::mem::replace(&mut lease.expiring, false));
                self.deadlines.insert((lease.deadline, *id));
            }
        }
    }

    /// Returns the number of expiries that are proposed and undecided.
    pub(crate) fn expiring(&self) -> usize {
        self.expiring
    }
}

/// Queries for the checks of the simulated world.
#[cfg(any(test, feature = "sim"))]
impl Lessor {
    /// Returns the lease with the earliest deadline, and the time since that deadline.
    pub(crate) fn overdue(&self) -> Option<(LeaseId, Duration)> {
        let first = self.leases.iter().min_by_key(|(_, lease)| lease.deadline);
        first.map(|(id, lease)| (*id, self.time.saturating_sub(lease.deadline)))
    }

    /// Returns whether the number of undecided expiries is consistent.
    pub(crate) fn counts_rightly(&self) -> bool {
        self.expiring == self.leases.values().filter(|lease| lease.expiring).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: u64) -> LeaseId {
        LeaseId::new(id).unwrap()
    }

    fn at(ms: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(ms))
    }

    fn lessor() -> Lessor {
        let leases = vec![(lease(1), Duration::from_millis(1000))];
        Lessor::new(Drift::percent(10), at(0), leases)
    }

    fn due(lessor: &mut Lessor) -> Vec<LeaseId> {
        lessor.due(10, |_| true)
    }

    fn run(lessor: &mut Lessor, from: u64, to: u64) {
        (from..=to).step_by(10).for_each(|ms| lessor.advance(at(ms)));
    }

    #[test]
    fn a_lease_falls_due_after_its_ttl_and_the_drift_bound() {
        let mut lessor = lessor();
        run(&mut lessor, 0, 1090);
        assert_eq!(due(&mut lessor), []);
        run(&mut lessor, 1100, 1100);
        assert_eq!(due(&mut lessor), [lease(1)]);
        assert_eq!(due(&mut lessor), [], "it is proposed once");
    }

    #[test]
    fn leader_stall_does_not_consume_ttl() {
        let mut lessor = lessor();
        lessor.advance(at(60_000));
        assert_eq!(due(&mut lessor), []);
        run(&mut lessor, 60_010, 60_990);
        assert_eq!(due(&mut lessor), []);
        run(&mut lessor, 61_000, 61_000);
        assert_eq!(due(&mut lessor), [lease(1)]);
    }

    #[test]
    fn renewal_restores_the_full_ttl_until_expiry_is_proposed() {
        let mut lessor = lessor();
        run(&mut lessor, 0, 1000);
        assert_eq!(lessor.renew(lease(1)), Renewal::Renewed);
        run(&mut lessor, 1010, 2090);
        assert_eq!(due(&mut lessor), []);
        run(&mut lessor, 2100, 2100);
        assert_eq!(due(&mut lessor), [lease(1)]);
        assert_eq!(lessor.renew(lease(1)), Renewal::Expiring);
        lessor.not_proposed(&[lease(1)]);
        assert_eq!(lessor.renew(lease(1)), Renewal::Renewed);
        lessor.ended(lease(1));
        assert_eq!(lessor.renew(lease(1)), Renewal::Gone);
    }

    #[test]
    fn blocked_expiry_does_not_block_other_leases() {
        let mut lessor = lessor();
        lessor.granted(lease(2), Duration::from_millis(1000));
        run(&mut lessor, 0, 2000);
        assert_eq!(lessor.due(1, |id| id != lease(1)), [lease(2)]);
        assert_eq!(lessor.renew(lease(1)), Renewal::Renewed, "nothing has been proposed");
        run(&mut lessor, 2010, 4000);
        assert_eq!(due(&mut lessor), [lease(1)]);
        assert!(lessor.counts_rightly());
    }

    #[test]
    fn expiring_lease_is_counted_until_ended_or_not_proposed() {
        let mut lessor = lessor();
        (2..=4).for_each(|id| lessor.granted(lease(id), Duration::from_millis(1000)));
        run(&mut lessor, 0, 2000);
        assert_eq!(lessor.overdue(), Some((lease(1), Duration::from_millis(900))));
        assert_eq!(due(&mut lessor).len(), 4);
        assert_eq!((lessor.expiring(), lessor.counts_rightly()), (4, true));
        lessor.ended(lease(1));
        lessor.not_proposed(&[lease(2)]);
        lessor.granted(lease(3), Duration::from_millis(1000));
        assert_eq!((lessor.expiring(), lessor.counts_rightly()), (1, true));
        assert_eq!(due(&mut lessor), [lease(2)], "it is proposed again");
        [2, 4, 4, 1].into_iter().for_each(|id| lessor.ended(lease(id)));
        assert_eq!((lessor.expiring(), lessor.counts_rightly()), (0, true));
    }
}

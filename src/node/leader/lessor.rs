//! The leader's clock for the expiry of leases. The state of this clock is not replicated: a lease
//! ends with a log entry, which the leader proposes after it has counted the full TTL.
//!
//! The lessor keeps its own time. This time follows the clock of the node, but advances by at most
//! [`STEP_MAX`] between two readings. So if a leader is stopped, suspended or starved, the lessor's
//! time advances by at most `STEP_MAX`, and leases live longer by the rest of the pause. A new
//! leader counts the full TTL of every lease, from the time at which it has applied the first entry
//! of its own term. By then the new leader has applied all expiries that earlier leaders proposed.
//!
//! # The leader lease
//!
//! A renewal is acknowledged only by a node that is still the leader. The leader asks a quorum for
//! this confirmation in a round. After a confirmed round, the leader acknowledges further renewals
//! without a round, until [`LEADER_LEASE`] has passed since the round began. This time is its
//! leader lease.
//!
//! Another leader may be elected in this time. One of the voters of that leader has also confirmed
//! the round, and did so before it voted. So the other leader was elected after the round began,
//! and the leader lease ends at most [`LEADER_LEASE`] after the election. Two rules for every new
//! leader follow:
//!
//! - The new leader adds [`LEADER_LEASE`] to the TTL of every lease that existed before its term,
//!   since the former leader may renew it that long.
//! - The new leader proposes no end of such a lease before [`LEADER_LEASE`] has passed since its
//!   election. So a leader lease never confirms a renewal of a lease that has ended. Entries that
//!   end leases and were proposed before the election need no wait. If the former leader proposed
//!   such an entry, the next paragraph applies. If an earlier leader proposed it, the former leader
//!   had applied it before it began to count. A lease of the new leader's own term is unknown to
//!   the former leader, and can end at once.
//!
//! A leader also ends leases itself, and a follower may apply the end before the leader does. So
//! while such an entry is proposed and not applied, renewals need a round. The leader lease can
//! only confirm that a lease exists. A lease that this node does not know may exist elsewhere.
//!
//! The leader lease is shortened, and the waits of a new leader are extended, by the bound on clock
//! drift. The rules make no other assumption, for example that voters wait before they vote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::model::{Command, LeaseId, LogIndex, Moment, SessionInfo};

use crate::node::settings::Drift;

/// Maximum advance of the lessor's time between two readings of the clock.
const STEP_MAX: Duration = Duration::from_millis(100);

/// Maximum time for which a leader acknowledges renewals without a further round. All members must
/// use the same value, so a larger value needs a new cluster version.
const LEADER_LEASE: Duration = Duration::from_millis(100);

/// The leases and their deadlines, in the lessor's own time.
#[derive(Debug)]
pub(crate) struct Lessor {
    drift: Drift,
    /// The lessor's own time.
    time: Duration,
    updated_at: Moment,
    /// Number of expiries that are proposed and undecided.
    expiring: usize,
    leases: BTreeMap<LeaseId, Counted>,
    deadlines: BTreeSet<(Duration, LeaseId)>,
    /// Leases whose revocation is in unapplied entries, with the last such entry. The expiry of
    /// such a lease is not proposed. An expiry names the lease by its id, and after the revocation
    /// the same id may belong to another lease.
    revoked: BTreeMap<LeaseId, LogIndex>,
    /// The last unapplied entry that ends leases, apart from expiries.
    last_end: Option<LogIndex>,
    /// Time at which the leader lease ends, if a round was confirmed.
    leader_until: Option<Moment>,
}

#[derive(Debug)]
struct Counted {
    ttl: Duration,
    deadline: Duration,
    /// Whether the expiry of the lease is proposed. The lease cannot be renewed until the outcome
    /// is known.
    expiring: bool,
    /// Whether the lease existed before the term of this leader.
    inherited: bool,
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

/// A renewal without a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirectRenewal {
    /// Remaining TTL before the renewal.
    pub(crate) margin: Duration,
    /// TTL after the renewal.
    pub(crate) ttl: Duration,
}

/// Returns whether the command may end leases.
pub(crate) fn ends_leases(command: &Command) -> bool {
    match command.inner() {
        Command::Revoke(_) => true,
        // A node that opens its own session revokes those of its earlier incarnations.
        Command::Grant { session, .. } => {
            matches!(session, Some(SessionInfo { own: true, .. }))
        }
        _ => false,
    }
}

/// Returns how long a new leader must not end leases that existed before its term.
pub(crate) fn lease_grace(drift: Drift) -> Duration {
    mutant!(B76, return Duration::ZERO);
    drift.wait_for(LEADER_LEASE)
}

impl Lessor {
    /// Maximum time between two readings of the clock. If more time than [`STEP_MAX`] passes
    /// between two readings, only `STEP_MAX` is counted.
    pub(crate) const CHECK_INTERVAL: Duration = STEP_MAX.checked_div(2).expect("not by zero");

    /// Starts counting. Every lease has its full TTL left, plus the leader lease of a former leader.
    pub(crate) fn new(drift: Drift, now: Moment, leases: Vec<(LeaseId, Duration)>) -> Self {
        let mut lessor = Self {
            drift,
            time: Duration::ZERO,
            updated_at: now,
            expiring: 0,
            leases: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            revoked: BTreeMap::new(),
            last_end: None,
            leader_until: None,
        };
        mutant!(B38, return lessor);
        let former = if mutant!(B75) { Duration::ZERO } else { LEADER_LEASE };
        for (id, ttl) in leases {
            let deadline = lessor.deadline(ttl.saturating_add(former), now);
            lessor.count(id, Counted { ttl, deadline, expiring: false, inherited: true });
        }
        mutant!(M09, lessor.time += Duration::from_secs(2));
        lessor
    }

    /// Reads the clock.
    pub(crate) fn advance(&mut self, now: Moment) {
        self.time += now.since(self.updated_at).min(STEP_MAX);
        self.updated_at = self.updated_at.max(now);
    }

    /// Returns the deadline of a lease that lives for `ttl` from `now`. The clock may have advanced
    /// since it was last read.
    fn deadline(&self, ttl: Duration, now: Moment) -> Duration {
        let unread = now.since(self.updated_at).min(STEP_MAX);
        self.time.saturating_add(unread).saturating_add(self.drift.wait_for(ttl))
    }

    pub(crate) fn granted(&mut self, id: LeaseId, ttl: Duration, now: Moment) {
        let deadline = self.deadline(ttl, now);
        self.count(id, Counted { ttl, deadline, expiring: false, inherited: false });
    }

    fn count(&mut self, id: LeaseId, lease: Counted) {
        self.ended(id);
        self.deadlines.insert((lease.deadline, id));
        self.leases.insert(id, lease);
    }

    pub(crate) fn ended(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.remove(&id) {
            self.deadlines.remove(&(lease.deadline, id));
            self.expiring -= usize::from(lease.expiring && !mutant!(B42));
        }
    }

    /// Renews a lease. Call this only if a quorum has confirmed, since the renewal arrived, that this node leads, or
    /// while the leader lease lasts.
    pub(crate) fn renew(&mut self, id: LeaseId, now: Moment) -> Renewal {
        let Some(lease) = self.leases.get(&id) else { return Renewal::Gone };
        if lease.expiring && !mutant!(M10) {
            return Renewal::Expiring;
        }
        let (before, deadline) = (lease.deadline, self.deadline(lease.ttl, now));
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.deadline = deadline;
        }
        self.deadlines.remove(&(before, id));
        self.deadlines.insert((deadline, id));
        Renewal::Renewed
    }

    /// Renews a lease without a round, if the leader lease allows this. `now` must have been read
    /// after the renewal arrived.
    pub(crate) fn renew_at_once(&mut self, id: LeaseId, now: Moment) -> Option<DirectRenewal> {
        if self.last_end.is_some() || self.leader_until.is_none_or(|until| now >= until) {
            return None;
        }
        let (_, margin) = self.look(id);
        match self.renew(id, now) {
            Renewal::Renewed => {
                self.leases.get(&id).map(|lease| DirectRenewal { margin, ttl: lease.ttl })
            }
            Renewal::Expiring | Renewal::Gone => None,
        }
    }

    /// Records that a quorum has confirmed a round that this leader began at `began`.
    pub(crate) fn confirmed(&mut self, began: Moment) {
        let mut until = began + self.drift.trusted_time(LEADER_LEASE);
        mutant!(B74, until = began + LEADER_LEASE * 50);
        self.leader_until = self.leader_until.max(Some(until));
    }

    /// Returns whether the command may end a lease that existed before the term of this leader.
    pub(crate) fn may_end_inherited(&self, command: &Command) -> bool {
        match command.inner() {
            Command::Revoke(lease) => self.leases.get(lease).is_some_and(|lease| lease.inherited),
            other => ends_leases(other) && self.leases.values().any(|lease| lease.inherited),
        }
    }

    /// Records that this leader has proposed the command in the entry at `index`.
    pub(crate) fn proposed(&mut self, command: &Command, index: LogIndex) {
        if let Command::Revoke(lease) = command.inner() {
            self.revoked.insert(*lease, index);
        }
        if ends_leases(command) && !mutant!(B77) {
            self.last_end = Some(index);
        }
    }

    /// Forgets the proposed entries up to `index`, which are applied.
    pub(crate) fn applied(&mut self, index: LogIndex) {
        self.revoked.retain(|_, proposed| *proposed > index);
        self.last_end = self.last_end.filter(|proposed| *proposed > index);
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
        (Renewal::Renewed, left.min(lease.ttl))
    }

    /// Takes up to `most` expired leases that are not being revoked. The caller must propose their expiry now, or
    /// return them with [`Lessor::not_proposed`].
    pub(crate) fn due(&mut self, most: usize) -> Vec<LeaseId> {
        let up = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= self.time);
        let up = up.filter(|(_, id)| !self.revoked.contains_key(id));
        let due: Vec<_> = up.take(most).copied().collect();
        for (deadline, id) in &due {
            self.deadlines.remove(&(*deadline, *id));
            self.leases.get_mut(id).expect("what has a deadline is a lease").expiring = true;
        }
        self.expiring += due.len();
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Takes back leases whose expiry could not be proposed, so that they are due again.
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

/// The lessor of a node while it leads. The driver counts with the lessor, and callers on any
/// thread renew leases with it.
#[derive(Debug, Default)]
pub(crate) struct SharedLessor(Mutex<Option<Lessor>>);

impl SharedLessor {
    /// Calls `call` with the lessor, if this node counts leases.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Lessor) -> T) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(call)
    }

    /// Returns whether this node counts leases.
    pub(crate) fn is_counting(&self) -> bool {
        self.with(|_| ()).is_some()
    }

    pub(crate) fn start(&self, lessor: Lessor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(lessor);
    }

    /// Stops counting, since this node does not lead any more.
    pub(crate) fn stop(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Queries for the checks of the simulator.
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
    use crate::model::samples::{at, lease};

    const TTL: Duration = Duration::from_millis(1000);

    fn lessor() -> Lessor {
        let mut lessor = Lessor::new(Drift::percent(10), at(0), Vec::new());
        lessor.granted(lease(1), TTL, at(0));
        lessor
    }

    /// Renews the lease without a round, and returns its TTL.
    fn ttl(lessor: &mut Lessor, at_ms: u64) -> Option<Duration> {
        lessor.renew_at_once(lease(1), at(at_ms)).map(|renewal| renewal.ttl)
    }

    fn due(lessor: &mut Lessor) -> Vec<LeaseId> {
        lessor.due(10)
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
        assert_eq!(lessor.renew(lease(1), at(1000)), Renewal::Renewed);
        run(&mut lessor, 1010, 2090);
        assert_eq!(due(&mut lessor), []);
        run(&mut lessor, 2100, 2100);
        assert_eq!(due(&mut lessor), [lease(1)]);
        assert_eq!(lessor.renew(lease(1), at(2100)), Renewal::Expiring);
        lessor.not_proposed(&[lease(1)]);
        assert_eq!(lessor.renew(lease(1), at(2100)), Renewal::Renewed);
        lessor.ended(lease(1));
        assert_eq!(lessor.renew(lease(1), at(2100)), Renewal::Gone);
    }

    #[test]
    fn blocked_expiry_does_not_block_other_leases() {
        let mut lessor = lessor();
        lessor.granted(lease(2), TTL, at(0));
        lessor.proposed(&Command::Revoke(lease(1)), LogIndex(7));
        run(&mut lessor, 0, 2000);
        assert_eq!(lessor.due(1), [lease(2)]);
        assert_eq!(lessor.renew(lease(1), at(2000)), Renewal::Renewed, "no expiry is proposed");
        lessor.applied(LogIndex(7));
        run(&mut lessor, 2010, 4000);
        assert_eq!(due(&mut lessor), [lease(1)]);
        assert!(lessor.counts_rightly());
    }

    #[test]
    fn expiring_lease_is_counted_until_ended_or_not_proposed() {
        let mut lessor = lessor();
        (2..=4).for_each(|id| lessor.granted(lease(id), TTL, at(0)));
        run(&mut lessor, 0, 2000);
        assert_eq!(lessor.overdue(), Some((lease(1), Duration::from_millis(900))));
        assert_eq!(due(&mut lessor).len(), 4);
        assert_eq!((lessor.expiring(), lessor.counts_rightly()), (4, true));
        lessor.ended(lease(1));
        lessor.not_proposed(&[lease(2)]);
        lessor.granted(lease(3), TTL, at(2000));
        assert_eq!((lessor.expiring(), lessor.counts_rightly()), (1, true));
        assert_eq!(due(&mut lessor), [lease(2)], "it is proposed again");
        [2, 4, 4, 1].into_iter().for_each(|id| lessor.ended(lease(id)));
        assert_eq!((lessor.expiring(), lessor.counts_rightly()), (0, true));
    }

    #[test]
    fn renewal_between_two_readings_of_the_clock_counts_from_its_own_time() {
        let mut lessor = lessor();
        run(&mut lessor, 0, 500);
        assert_eq!(lessor.renew(lease(1), at(540)), Renewal::Renewed);
        run(&mut lessor, 550, 1630);
        assert_eq!(due(&mut lessor), []);
        run(&mut lessor, 1640, 1640);
        assert_eq!(due(&mut lessor), [lease(1)]);
    }

    #[test]
    fn new_leader_adds_the_leader_lease_of_a_former_leader() {
        let mut lessor = Lessor::new(Drift::percent(10), at(0), vec![(lease(1), TTL)]);
        assert_eq!(lessor.look(lease(1)), (Renewal::Renewed, TTL), "callers do not see it");
        run(&mut lessor, 0, 1200);
        assert_eq!(due(&mut lessor), []);
        run(&mut lessor, 1210, 1210);
        assert_eq!(due(&mut lessor), [lease(1)]);
    }

    #[test]
    fn command_that_ends_an_inherited_lease_is_recognised() {
        let own = || Some(SessionInfo { label: String::new(), own: true });
        let grant = |session| Command::Grant { id: None, ttl: TTL, session };
        let mut lessor = Lessor::new(Drift::percent(10), at(0), vec![(lease(1), TTL)]);
        lessor.granted(lease(2), TTL, at(0));
        let ends = |lessor: &Lessor, command| lessor.may_end_inherited(&command);
        assert!(ends(&lessor, Command::Revoke(lease(1))) && ends(&lessor, grant(own())));
        assert!(!ends(&lessor, Command::Revoke(lease(2))) && !ends(&lessor, grant(None)));
        lessor.ended(lease(1));
        assert!(!ends(&lessor, Command::Revoke(lease(1))) && !ends(&lessor, grant(own())));
    }

    #[test]
    fn leader_lease_counts_from_the_beginning_of_a_confirmed_round() {
        let mut lessor = lessor();
        assert_eq!(lessor.renew_at_once(lease(1), at(0)), None, "no round was confirmed");
        lessor.confirmed(at(10));
        lessor.confirmed(at(0));
        assert_eq!(ttl(&mut lessor, 99), Some(TTL));
        assert_eq!(lessor.renew_at_once(lease(1), at(100)), None, "90 ms on this clock are over");
        lessor.confirmed(at(100));
        assert_eq!(lessor.renew_at_once(lease(2), at(101)), None, "it may exist");
        assert_eq!(ttl(&mut lessor, 101), Some(TTL));
    }

    #[test]
    fn leader_lease_renews_nothing_while_the_end_of_a_lease_is_not_applied() {
        let own = || Some(SessionInfo { label: String::new(), own: true });
        let grant = |session| Command::Grant { id: None, ttl: TTL, session };
        let mut lessor = lessor();
        lessor.confirmed(at(0));
        lessor.proposed(&grant(None), LogIndex(3));
        assert_eq!(ttl(&mut lessor, 1), Some(TTL));
        for command in [Command::Revoke(lease(2)), grant(own())] {
            lessor.proposed(&command, LogIndex(4));
            lessor.applied(LogIndex(3));
            assert_eq!(lessor.renew_at_once(lease(1), at(1)), None);
            lessor.applied(LogIndex(4));
            assert_eq!(ttl(&mut lessor, 1), Some(TTL));
        }
        run(&mut lessor, 0, 1200);
        assert_eq!(due(&mut lessor), [lease(1)]);
        lessor.confirmed(at(1200));
        assert_eq!(lessor.renew_at_once(lease(1), at(1200)), None, "its expiry is proposed");
    }
}

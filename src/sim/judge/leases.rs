//! Judges leases: no lease ends early, every lease without a session ends, and the holder of a lease gets
//! correct replies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::process::SimProcess;
use super::Judge;
use crate::model::{Event, LeaseId, LogIndex, NodeId, Rejection, Revision};
use crate::node::SessionEndReason;

/// Number of entries after which the leases are compared even if their fingerprint has not changed.
const CHECK_ENTRIES: u64 = 64;

/// A lease that a program relies on from a moment on for a certain time.
struct CountedOn {
    from: Duration,
    good_for: Duration,
    may_end: bool,
    /// Since when it is known to have ended.
    ended: Option<Duration>,
}

/// The state of the judge for leases.
#[derive(Default)]
pub(super) struct LeaseJudge {
    /// The leases that programs rely on. Each has a key that only its end deletes.
    counted: BTreeMap<LeaseId, CountedOn>,
    /// The TTL of the lease of each session.
    session_ttls: BTreeMap<LeaseId, Duration>,
    /// The leases in the newest state that any replica has reached, with its log index.
    table: (LogIndex, BTreeSet<LeaseId>),
    /// The log index of the last comparison, and the fingerprint of the leases at that time.
    looked: (LogIndex, [u64; 2]),
    /// Leases that must never be granted: the grant with this id was reported as not applied.
    refused: BTreeSet<LeaseId>,
    /// Since when no faults occur.
    pub(super) quiet_since: Option<Duration>,
}

impl Judge {
    /// Records that a lease requested at `sent` with this TTL was granted. Only its end deletes the keys below
    /// `lease/`.
    pub(crate) fn lease_counts(&mut self, lease: LeaseId, sent: Duration, ttl: Duration) {
        if self.count_on(lease, sent, ttl).is_some() {
            self.broken("L-UNIQUE", || format!("{lease:?} was granted twice"));
        }
    }

    /// Checks that a key that was written with a TTL, requested at `sent`, has a lease that lives that long.
    pub(crate) fn written_for(
        &mut self,
        key: &[u8],
        revision: Revision,
        sent: Duration,
        ttl: Duration,
    ) {
        let now = self.timeline.now();
        let lease = self.truth.row_at(key, revision).and_then(|row| row.lease);
        let is_there = lease.filter(|lease| self.leases.table.1.contains(lease));
        self.expect(is_there.is_some() || now >= sent + ttl, "L-EARLY", || {
            format!("{key:?} was written at {revision:?} for {ttl:?}, with {lease:?}, which is not there")
        });
        if let Some(lease) = is_there {
            self.lease_counts(lease, sent, ttl);
            self.count("key with a TTL");
        }
    }

    /// Checks the rejection of a put that would attach a key to a lease on which a program relies. The lease must
    /// have ended before any key was attached.
    pub(crate) fn lease_refused(&mut self, lease: LeaseId, why: &Rejection) {
        let is_so = *why == Rejection::LeaseNotFound(lease);
        self.expect(is_so, "M-TXN", || format!("a put with {lease:?} is refused: {why}"));
        self.lease_is_gone(lease, "is not there for its first key");
        self.count("lease gone before its first key");
    }

    /// Checks that a lease that has ended had expired, or was going to be revoked.
    fn lease_is_gone(&mut self, lease: LeaseId, what: &str) {
        let now = self.timeline.now();
        let Some(counted) = self.leases.counted.get_mut(&lease) else { return };
        counted.ended.get_or_insert(now);
        let (lived, good_for) = (now - counted.from, counted.good_for);
        if !counted.may_end && lived < good_for {
            self.broken("L-EARLY", || {
                format!("{lease:?} {what}, {lived:?} after it was good for {good_for:?}")
            });
        }
    }

    fn count_on(
        &mut self,
        lease: LeaseId,
        from: Duration,
        good_for: Duration,
    ) -> Option<CountedOn> {
        let counted = CountedOn { from, good_for, may_end: false, ended: None };
        self.leases.counted.insert(lease, counted)
    }

    /// Records that a session requested at `sent` was opened, with the TTL of its lease. Only its end deletes its key
    /// below `lease/`.
    pub(crate) fn session_lives(
        &mut self,
        node: NodeId,
        lease: LeaseId,
        sent: Duration,
        ttl: Duration,
    ) {
        self.leases.session_ttls.insert(lease, ttl);
        // The node of the session may have been told to stop before the program received the
        // session.
        let may_end = self.leases.counted.get(&lease).is_some_and(|counted| counted.may_end);
        let may_end = may_end || self.locks.stopping.contains(&node);
        let counted = CountedOn { from: sent, good_for: ttl, may_end, ended: None };
        self.leases.counted.insert(lease, counted);
    }

    /// Records that the closing of a session was reported to its program.
    pub(crate) fn session_closed(&mut self, lease: LeaseId) {
        let is_there = self.leases.table.1.contains(&lease);
        self.expect(!is_there, "L-CLOSE", || format!("{lease:?} was closed, and is there"));
        self.done("close");
    }

    /// Follows the set of leases in the newest state that any replica has reached.
    pub(super) fn follow_leases(&mut self, applied: LogIndex, process: &SimProcess) {
        if applied <= self.leases.table.0 {
            return;
        }
        let (up_to, known) = self.leases.looked;
        let fingerprint = process.leases_fingerprint();
        if fingerprint == known && applied.get() < up_to.get() + CHECK_ENTRIES {
            self.leases.table.0 = applied;
            return;
        }
        self.leases.looked = (applied, fingerprint);
        let there = process.leases();
        let before = std::mem::replace(&mut self.leases.table, (applied, there)).1;
        let refused = self.leases.refused.intersection(&self.leases.table.1).next().copied();
        self.expect(refused.is_none(), "X-UNKNOWN", || {
            format!("the grant of {refused:?} was told as not applied, and it is there")
        });
        for lease in before {
            let counted = self.leases.counted.get(&lease);
            let ended = counted.is_some_and(|counted| counted.ended.is_some());
            if !ended && !self.leases.table.1.contains(&lease) {
                self.lease_is_gone(lease, "has ended");
            }
        }
    }

    /// Checks the end of a session that its holder did not close. A program last relied on it at `believed`.
    pub(crate) fn session_ended(
        &mut self,
        node: NodeId,
        lease: LeaseId,
        believed: Option<Duration>,
        why: SessionEndReason,
    ) {
        match why {
            SessionEndReason::LeaseEnded => {
                let is_so = !self.leases.table.1.contains(&lease);
                self.expect(is_so, "L-KEPT", || {
                    format!("{node:?} is told that {lease:?} has ended, and it is there")
                });
                self.count("session whose lease has ended");
            }
            SessionEndReason::NotRenewed => {
                let quiet = self.leases.quiet_since.filter(|quiet| believed > Some(*quiet));
                self.expect(quiet.is_none(), "L-KEPT", || {
                    format!("nothing goes wrong since {quiet:?}, and {node:?} loses {lease:?}")
                });
                self.count("session not renewed");
            }
            SessionEndReason::Closed
            | SessionEndReason::Detached
            | SessionEndReason::NodeStopped => {}
        }
    }

    /// Records whether faults are absent from now on, so that no session may expire.
    pub(crate) fn quiet(&mut self, is_quiet: bool) {
        self.leases.quiet_since = is_quiet.then(|| self.timeline.now());
    }

    /// Returns a lease in the newest state that is not among `kept`.
    pub(crate) fn unkept_lease(&self, kept: &BTreeSet<LeaseId>) -> Option<LeaseId> {
        self.leases.table.1.difference(kept).next().copied()
    }

    /// Records that a program relies on the lease of its session: it has not ended and will not end for `delay`.
    pub(crate) fn lease_believed(&mut self, lease: LeaseId, delay: Duration) {
        let now = self.timeline.now();
        let Some(counted) = self.leases.counted.get_mut(&lease) else {
            self.count_on(lease, now, delay);
            return;
        };
        if now + delay > counted.from + counted.good_for {
            (counted.from, counted.good_for) = (now, delay);
        }
        if counted.ended.is_some() && !counted.may_end {
            self.broken("L-EARLY", || format!("{lease:?} has ended and is believed in"));
        }
        self.count("session reported valid");
    }

    /// Records that a node is about to be shut down gracefully, which ends its sessions.
    pub(crate) fn stops_in_order(&mut self, id: NodeId, leases: &[LeaseId]) {
        self.locks.stopping.insert(id);
        leases.iter().for_each(|lease| self.lease_may_end(*lease));
    }

    /// Records that a lease is about to be revoked.
    pub(crate) fn lease_may_end(&mut self, lease: LeaseId) {
        // Before this time, perhaps no program relied on the lease.
        let (from, good_for) = (self.timeline.now(), Duration::ZERO);
        let unknown = CountedOn { from, good_for, may_end: false, ended: None };
        self.leases.counted.entry(lease).or_insert(unknown).may_end = true;
    }

    /// Records that the revocation of a lease was not applied: the lease lives for its TTL.
    pub(super) fn lease_may_not_end(&mut self, lease: LeaseId) {
        let Some(counted) = self.leases.counted.get_mut(&lease) else { return };
        counted.may_end = false;
        let (from, good_for) = (counted.from, counted.good_for);
        let early = counted.ended.filter(|ended| *ended - from < good_for);
        self.expect(early.is_none(), "X-UNKNOWN", || {
            format!(
                "the revocation of {lease:?} was told as not applied; it is gone since {early:?}"
            )
        });
    }

    /// Records that the grant of a lease with a unique id was not applied.
    pub(super) fn lease_refused_to_be(&mut self, lease: LeaseId) {
        self.leases.refused.insert(lease);
        let is_there = self.leases.table.1.contains(&lease);
        self.expect(!is_there, "X-UNKNOWN", || {
            format!("the grant of {lease:?} was told as not applied, and it is there")
        });
    }

    /// Records that a lease was renewed by a request made at `sent`. It lives for `ttl` from then on.
    pub(crate) fn lease_renewed(&mut self, lease: LeaseId, sent: Duration, ttl: Duration) {
        let Some(counted) = self.leases.counted.get_mut(&lease) else { return };
        if sent + ttl > counted.from + counted.good_for {
            (counted.from, counted.good_for) = (sent, ttl);
        }
        let early = counted.ended.filter(|ended| !counted.may_end && *ended < sent + ttl);
        self.expect(early.is_none(), "L-EARLY", || {
            format!("{lease:?}, renewed at {sent:?} for {ttl:?}, is gone since {early:?}")
        });
        self.done("lease renewed by its caller");
    }

    /// Checks the reply that a lease to be renewed does not exist.
    pub(crate) fn lease_not_renewed(&mut self, lease: LeaseId) {
        self.lease_is_gone(lease, "is not there to be renewed");
        self.count("lease gone before it was renewed");
    }

    /// Checks the reply to a revocation, which named this revision.
    pub(crate) fn revoked(&mut self, lease: LeaseId, revision: Revision) {
        let found = self.truth.lease_ended(lease, revision);
        self.note(found);
    }

    /// Checks the deletion of a key that only the end of its lease deletes.
    pub(super) fn lease_key_gone(&mut self, event: &Event) {
        let revision = event.revision();
        let before = Revision(revision.get() - 1);
        let row = self.truth.row_at(&event.kv.key, before);
        let Some(lease) = row.and_then(|row| row.lease) else { return };
        let found = self.truth.lease_ended(lease, revision);
        self.note(found);
        let Some(counted) = self.leases.counted.get(&lease) else { return };
        let may_end = counted.may_end;
        if let Some(ttl) = self.leases.session_ttls.get(&lease).copied().filter(|_| !may_end) {
            self.renewals_counted(lease, ttl, event);
        }
        self.lease_is_gone(lease, &format!("ended at {revision:?}"));
        self.count("lease end");
    }
}

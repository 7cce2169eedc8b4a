//! The state of a session: a lease that this node keeps alive, and the time until which the session
//! may rely on it. The users of the session share this state with the driver.
//!
//! A session relies on its lease until `valid_until`. This time is the TTL, shortened by the drift
//! bound, after the last confirmed renewal was *sent*, by this node's clock. The leader counts the
//! TTL from the arrival of the renewal, and extends it by the drift bound, so it ends the lease
//! later. If `valid_until` passes without a renewal, the session is lost permanently, even if the
//! lease still exists. So once a loss was reported to a user, the session never becomes valid
//! again.
//!
//! With a lock delay, the lease is granted for a longer time than the session relies on it:
//!
//! ```text
//!   renewal sent          valid_until                         the earliest end of the lease
//!        ├──── trust (< ttl) ────┤                                          │
//!        ├────────────── ttl ────────────┼──────────── delay ───────────────┤
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::model::{LeaseId, Moment};
use crate::watch::waking;

use crate::node::settings::Drift;

/// The reason for which a session has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum SessionEndReason {
    /// The program closed the session.
    Closed,
    /// No renewal was confirmed in time, so the lease may have expired.
    NotRenewed,
    /// The lease was revoked or has expired.
    LeaseEnded,
    /// The session was detached with [`Session::detach`](crate::Session::detach), so that it can be
    /// resumed later.
    Detached,
    /// The node has stopped or is shutting down.
    NodeStopped,
}

impl std::fmt::Display for SessionEndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SessionEndReason::Closed => "closed",
            SessionEndReason::NotRenewed => "not renewed in time",
            SessionEndReason::LeaseEnded => "lease revoked or expired",
            SessionEndReason::Detached => "detached, to be resumed later",
            SessionEndReason::NodeStopped => "node stopped",
        })
    }
}

/// The state of a session at the time of the call, by this node's clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SessionState {
    /// The lease exists at least until this time.
    Active(Moment),
    /// The lease exists at least until this time, but renewals are overdue: less than a third of
    /// the validity that a renewal gives is left. The state returns to `Active` when a renewal
    /// succeeds.
    RenewalOverdue(Moment),
    /// The session has ended permanently.
    Ended(SessionEndReason),
}

/// The session state that was last reported to watchers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReportedState {
    Active,
    RenewalOverdue,
    Ended(SessionEndReason),
}

/// The options with which a session is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionTerms {
    /// Time for which the session relies on its lease without a renewal.
    pub(crate) ttl: Duration,
    /// Lock delay: additional time for which the lease exists.
    pub(crate) delay: Duration,
    /// Label that other clients can see.
    pub(crate) label: String,
    /// Whether this is the node's own session, which cannot be resumed.
    pub(crate) own: bool,
}

/// A session that its users share with the driver.
#[derive(Debug)]
pub(crate) struct SharedSession {
    pub(crate) lease: LeaseId,
    /// Time for which the session relies on its lease without a renewal.
    pub(crate) ttl: Duration,
    /// Lock delay: additional time for which the lease exists.
    pub(crate) delay: Duration,
    /// Label that other clients can see.
    pub(crate) label: String,
    /// The number that [`SharedSession::next_number`] returned last.
    numbers: AtomicU64,
    belief: Mutex<SessionBelief>,
    reported: watch::Sender<ReportedState>,
}

#[derive(Debug)]
struct SessionBelief {
    valid_until: Moment,
    ended: Option<SessionEndReason>,
}

impl SessionBelief {
    /// Returns the reason for which the session has ended, if it has. A call after `valid_until` ends it.
    fn end(&mut self, now: Moment) -> Option<SessionEndReason> {
        if self.ended.is_none() && now >= self.valid_until {
            self.ended = Some(SessionEndReason::NotRenewed);
        }
        self.ended
    }
}

impl SharedSession {
    pub(in crate::node) fn new(lease: LeaseId, terms: SessionTerms, valid_until: Moment) -> Self {
        let SessionTerms { ttl, delay, label, own: _ } = terms;
        let belief = Mutex::new(SessionBelief { valid_until, ended: None });
        let reported = watch::Sender::new(ReportedState::Active);
        Self { lease, ttl, delay, label, numbers: AtomicU64::new(0), belief, reported }
    }

    /// Returns a session that relies on its lease until `valid_until`, for tests.
    #[cfg(test)]
    pub(crate) fn with_valid_lease(lease: LeaseId, valid_until: Moment) -> Self {
        let (ttl, delay) = (Duration::from_secs(1), Duration::ZERO);
        let terms = SessionTerms { ttl, delay, label: String::new(), own: false };
        Self::new(lease, terms, valid_until)
    }

    /// Returns a number, from 1, that is unique while this node keeps the session. The number
    /// distinguishes the keys of the session.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the time until which the session relies on its lease.
    pub(crate) fn valid_until(&self) -> Moment {
        self.belief.lock().unwrap_or_else(PoisonError::into_inner).valid_until
    }

    /// Returns the reason for which the session has ended, if it has. A call after `valid_until` ends it.
    pub(crate) fn end(&self, now: Moment) -> Option<SessionEndReason> {
        let ended = self.belief.lock().unwrap_or_else(PoisonError::into_inner).end(now);
        if let Some(why) = ended {
            self.report(ReportedState::Ended(why));
        }
        ended
    }

    /// If the end of the session was already recorded, returns the reason. Does not read the clock.
    pub(crate) fn ended(&self) -> Option<SessionEndReason> {
        self.belief.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Returns the state of the session. A call after `valid_until` ends it.
    pub(crate) fn state_at(&self, now: Moment, drift: Drift) -> SessionState {
        if let Some(why) = self.end(now) {
            return SessionState::Ended(why);
        }
        let until = self.valid_until();
        match until.since(now) < drift.trusted_time(self.ttl) / 3 {
            true => SessionState::RenewalOverdue(until),
            false => SessionState::Active(until),
        }
    }

    /// Returns a receiver that is notified when renewals become overdue, when a late renewal
    /// succeeds, and when the session ends. The driver notifies the receiver at its ticks, unless a
    /// user of the session notices the change first.
    pub(crate) fn watch(&self) -> watch::Receiver<ReportedState> {
        self.reported.subscribe()
    }

    /// Ends the session. If the session had already ended, returns the earlier reason.
    pub(crate) fn finish(&self, why: SessionEndReason, now: Moment) -> Option<SessionEndReason> {
        let before = {
            let mut belief = self.belief.lock().unwrap_or_else(PoisonError::into_inner);
            let before = belief.end(now);
            belief.ended.get_or_insert(why);
            before
        };
        self.report(ReportedState::Ended(before.unwrap_or(why)));
        before
    }

    /// Returns the state of the session, and notifies the watchers of a change.
    pub(in crate::node) fn notice(&self, now: Moment, drift: Drift) -> SessionState {
        let state = self.state_at(now, drift);
        self.report(match state {
            SessionState::Active(_) => ReportedState::Active,
            SessionState::RenewalOverdue(_) => ReportedState::RenewalOverdue,
            SessionState::Ended(why) => ReportedState::Ended(why),
        });
        state
    }

    fn report(&self, news: ReportedState) {
        waking(|| {
            self.reported.send_if_modified(|reported| {
                // After the end of the session, watchers are not notified any more.
                let is_news = *reported != news && !matches!(reported, ReportedState::Ended(_));
                if is_news {
                    *reported = news;
                }
                is_news
            });
        });
    }

    /// Extends the time until which the session relies on its lease, unless the session has ended.
    pub(in crate::node) fn renew(&self, valid_until: Moment, now: Moment) {
        let mut belief = self.belief.lock().unwrap_or_else(PoisonError::into_inner);
        if belief.end(now).is_none() {
            belief.valid_until = belief.valid_until.max(valid_until);
        }
    }
}

/// The way in which a user gives up a session, or a claim on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionClose {
    /// The session was closed: it has ended, and its lease must be revoked.
    Closed,
    /// The session was detached: it has ended, and its lease stays.
    Detached,
    /// A claim was dropped. If this was the last claim, the session is closed.
    Dropped,
    /// A claim was dropped before the caller received it. If this was the only claim, the lease is
    /// unchanged.
    Declined,
}

/// The node that keeps a session, as its claims see it.
pub(crate) trait SessionKeeper: Send + Sync {
    fn now(&self) -> Moment;

    fn close_session(&self, session: &Arc<SharedSession>, how: SessionClose);
}

/// A claim on a session of this node. While there is a claim, the lease is kept alive; when the
/// last one is dropped, the session is closed. A [`Follower`](crate::node::shared::Follower) must
/// not hold a claim. That would be a reference cycle, because a claim owns the shared state, which
/// owns the follower.
pub(crate) struct Claim {
    keeper: Arc<dyn SessionKeeper>,
    pub(crate) state: Arc<SharedSession>,
    close: SessionClose,
}

impl Claim {
    /// Returns a claim that closes the session if the caller never receives it.
    pub(in crate::node) fn opened(
        keeper: Arc<dyn SessionKeeper>,
        state: Arc<SharedSession>,
    ) -> Self {
        Self { keeper, state, close: SessionClose::Dropped }
    }

    /// Returns a claim that leaves the lease unchanged if the caller never receives it.
    pub(in crate::node) fn resumed(
        keeper: Arc<dyn SessionKeeper>,
        state: Arc<SharedSession>,
    ) -> Self {
        Self { keeper, state, close: SessionClose::Declined }
    }

    /// Marks the claim as received by its caller.
    pub(crate) fn taken(mut self) -> Self {
        self.close = SessionClose::Dropped;
        self
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A session that has ended was already closed, or its lease expires by itself.
        if self.state.end(self.keeper.now()).is_none() {
            self.keeper.close_session(&self.state, self.close);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::at;

    const DRIFT: u32 = 10;

    /// Returns a session that was opened at 0 ms and relies on its lease until 2,700 ms.
    fn state() -> SharedSession {
        let ttl = Duration::from_millis(3000);
        let terms = SessionTerms { ttl, delay: Duration::ZERO, label: String::new(), own: false };
        let valid_until = at(0) + Drift::percent(DRIFT).trusted_time(ttl);
        SharedSession::new(LeaseId::new(5).unwrap(), terms, valid_until)
    }

    #[test]
    fn renewal_is_overdue_below_a_third_of_the_validity() {
        let (state, drift) = (state(), Drift::percent(DRIFT));
        let until = at(2700);
        let cases = [
            (0, SessionState::Active(until)),
            (1800, SessionState::Active(until)),
            (1801, SessionState::RenewalOverdue(until)),
            (2699, SessionState::RenewalOverdue(until)),
            (2700, SessionState::Ended(SessionEndReason::NotRenewed)),
            (1000, SessionState::Ended(SessionEndReason::NotRenewed)),
        ];
        for (now, state_at) in cases {
            assert_eq!(state.state_at(at(now), drift), state_at, "at {now}");
        }
    }

    #[test]
    fn state_change_is_notified_once_and_the_end_is_final() {
        let (state, drift) = (state(), Drift::percent(DRIFT));
        let mut watch = state.watch();
        let mut notified = |state: &SharedSession, now| {
            state.notice(at(now), drift);
            let news = watch.has_changed().unwrap();
            (news, *watch.borrow_and_update())
        };
        assert_eq!(notified(&state, 1000), (false, ReportedState::Active));
        assert_eq!(notified(&state, 2000), (true, ReportedState::RenewalOverdue));
        assert_eq!(notified(&state, 2100), (false, ReportedState::RenewalOverdue));
        state.renew(at(4000), at(2200));
        assert_eq!(notified(&state, 2200), (true, ReportedState::Active));
        assert_eq!(state.finish(SessionEndReason::Detached, at(2300)), None);
        assert_eq!(
            notified(&state, 2300),
            (true, ReportedState::Ended(SessionEndReason::Detached))
        );
        assert_eq!(
            state.finish(SessionEndReason::Closed, at(9000)),
            Some(SessionEndReason::Detached)
        );
        assert_eq!(
            notified(&state, 9000),
            (false, ReportedState::Ended(SessionEndReason::Detached))
        );
    }

    #[test]
    fn late_close_reports_the_earlier_end() {
        let state = state();
        assert_eq!(
            state.finish(SessionEndReason::Closed, at(2700)),
            Some(SessionEndReason::NotRenewed)
        );
    }

    #[test]
    fn renewal_after_the_end_has_no_effect() {
        let state = state();
        state.renew(at(5000), at(2700));
        assert_eq!(state.valid_until(), at(2700));
        assert_eq!(state.end(at(2701)), Some(SessionEndReason::NotRenewed));
    }
}

//! A session as its holders see it: a lease that this node keeps alive, and how long it is believed in.
//!
//! A session believes in its lease until `valid_until`, counted on this node's own clock from the
//! moment at which the renewal was *sent*, and shortened by the drift bound: the leader, which counts
//! from the moment at which it came and waits longer by the drift bound, ends it later than that.
//! Once `valid_until` has passed without a renewal, the session is lost for good, whatever the leader
//! thinks: nobody who was told "lost" ever sees it come back.
//!
//! Where a lock delay was asked for, the lease is granted for longer than it is believed in:
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

use crate::model::{LeaseId, Moment, NodeId};
use crate::watch::waking;

use super::inbox::Input;
use super::settings::Drift;
use super::shared::Shared;

/// Why a session has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SessionEndReason {
    /// It was closed.
    Closed,
    /// No renewal was confirmed in time: by this node's own clock the lease may have ended.
    NotRenewed,
    /// The lease has ended: it was revoked, or the cluster counted it out.
    LeaseEnded,
    /// It was left to whoever resumes its lease: [`Session::detach`](crate::Session::detach).
    Detached,
    /// The node has stopped, or is being shut down.
    NodeStopped,
}

impl std::fmt::Display for SessionEndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SessionEndReason::Closed => "it was closed",
            SessionEndReason::NotRenewed => "no renewal was confirmed in time",
            SessionEndReason::LeaseEnded => "its lease was revoked or has expired",
            SessionEndReason::Detached => "it was left to whoever resumes its lease",
            SessionEndReason::NodeStopped => "its node has stopped",
        })
    }
}

/// How a session stands, by this node's clock at the moment of the look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionState {
    /// Its lease lives, at least until this moment.
    Active(Moment),
    /// Its lease lives until this moment, but renewals are overdue: less than a third of the time for
    /// which a renewal is trusted is left. It is confirmed again if one comes through.
    RenewalOverdue(Moment),
    /// It is over, for good.
    Ended(SessionEndReason),
}

/// Why a lease is not kept alive as it was asked for. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeSessionError {
    /// It is a node's own session: it ends with that life of its node, and cannot be taken over.
    #[error("lease {lease} is the own session of node {node}, which nobody else can keep")]
    NodesOwn {
        /// The lease.
        lease: LeaseId,
        /// Whose it is.
        node: NodeId,
    },
    /// The lease does not live longer than the lock delay, so that it could never be believed in.
    #[error(
        "the lease lives {lease_ttl:?} without renewal: too short for a lock delay of {delay:?}"
    )]
    DelayTooLong {
        /// How long the lease lives without renewal, the delay included.
        lease_ttl: Duration,
        /// The delay that was asked for.
        delay: Duration,
    },
    /// This node keeps it alive already, with another lock delay.
    #[error(
        "this node keeps the lease already, with a lock delay of {kept:?} and not of {delay:?}"
    )]
    KeptOtherwise {
        /// The delay that it is kept with.
        kept: Duration,
        /// The delay that was asked for.
        delay: Duration,
    },
}

/// What the driver has told last of how a session stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// It is confirmed.
    Active,
    /// Renewals are overdue.
    RenewalOverdue,
    /// It is over.
    Ended(SessionEndReason),
}

/// What a session is opened with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionTerms {
    /// How long it is believed in without renewal.
    pub(crate) ttl: Duration,
    /// How much longer its lease lives.
    pub(crate) delay: Duration,
    /// What others see of it.
    pub(crate) label: String,
    /// Whether it is the node's own, which nobody can resume.
    pub(crate) own: bool,
}

/// A session as its holders see it.
#[derive(Debug)]
pub(crate) struct SharedSession {
    /// The lease.
    pub(crate) lease: LeaseId,
    /// How long it is believed in without renewal.
    pub(crate) ttl: Duration,
    /// How much longer its lease lives.
    pub(crate) delay: Duration,
    /// What others see of it.
    pub(crate) label: String,
    /// Numbers given so far.
    numbers: AtomicU64,
    belief: Mutex<Belief>,
    told: watch::Sender<Told>,
}

#[derive(Debug)]
struct Belief {
    valid_until: Moment,
    ended: Option<SessionEndReason>,
}

impl Belief {
    /// Why it has ended, if it has. Looking after `valid_until` ends it.
    fn end(&mut self, now: Moment) -> Option<SessionEndReason> {
        if self.ended.is_none() && now >= self.valid_until {
            self.ended = Some(SessionEndReason::NotRenewed);
        }
        self.ended
    }
}

impl SharedSession {
    pub(super) fn new(lease: LeaseId, terms: SessionTerms, valid_until: Moment) -> Self {
        let SessionTerms { ttl, delay, label, own: _ } = terms;
        let belief = Mutex::new(Belief { valid_until, ended: None });
        let told = watch::Sender::new(Told::Active);
        Self { lease, ttl, delay, label, numbers: AtomicU64::new(0), belief, told }
    }

    /// A session that believes in its lease until then, for the tests of those who look at sessions.
    #[cfg(test)]
    pub(crate) fn believed_until(lease: LeaseId, valid_until: Moment) -> Self {
        let (ttl, delay) = (Duration::from_secs(1), Duration::ZERO);
        let terms = SessionTerms { ttl, delay, label: String::new(), own: false };
        Self::new(lease, terms, valid_until)
    }

    /// A number that is given once as long as this node keeps the session, from 1: tells its keys apart.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Until when the lease is believed in.
    pub(crate) fn valid_until(&self) -> Moment {
        self.belief.lock().unwrap_or_else(PoisonError::into_inner).valid_until
    }

    /// Why the session has ended, if it has. Looking after `valid_until` ends it.
    pub(crate) fn end(&self, now: Moment) -> Option<SessionEndReason> {
        let ended = self.belief.lock().unwrap_or_else(PoisonError::into_inner).end(now);
        if let Some(why) = ended {
            self.tell(Told::Ended(why));
        }
        ended
    }

    /// Why it has ended, if that was told already: without a look at the clock.
    pub(crate) fn ended(&self) -> Option<SessionEndReason> {
        self.belief.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// How it stands. Looking after `valid_until` ends it.
    pub(crate) fn standing(&self, now: Moment, drift: Drift) -> SessionState {
        if let Some(why) = self.end(now) {
            return SessionState::Ended(why);
        }
        let until = self.valid_until();
        match until.since(now) < drift.trust_for(self.ttl) / 3 {
            true => SessionState::RenewalOverdue(until),
            false => SessionState::Active(until),
        }
    }

    /// Told when renewals become overdue, when one comes through after all, and when the session ends:
    /// by the driver at its ticks, or by whoever looks first.
    pub(crate) fn watch(&self) -> watch::Receiver<Told> {
        self.told.subscribe()
    }

    /// Ends it, and says why it had ended before, if it had.
    pub(crate) fn finish(&self, why: SessionEndReason, now: Moment) -> Option<SessionEndReason> {
        let before = {
            let mut belief = self.belief.lock().unwrap_or_else(PoisonError::into_inner);
            let before = belief.end(now);
            belief.ended.get_or_insert(why);
            before
        };
        self.tell(Told::Ended(before.unwrap_or(why)));
        before
    }

    /// Looks how it stands, and tells whoever waits for a change.
    pub(super) fn notice(&self, now: Moment, drift: Drift) -> SessionState {
        let standing = self.standing(now, drift);
        self.tell(match standing {
            SessionState::Active(_) => Told::Active,
            SessionState::RenewalOverdue(_) => Told::RenewalOverdue,
            SessionState::Ended(why) => Told::Ended(why),
        });
        standing
    }

    fn tell(&self, news: Told) {
        waking(|| {
            self.told.send_if_modified(|told| {
                // The end is told once, and nothing after it.
                let is_news = *told != news && !matches!(told, Told::Ended(_));
                if is_news {
                    *told = news;
                }
                is_news
            });
        });
    }

    /// Believes in the lease until `valid_until`, unless the session has ended.
    pub(super) fn renew(&self, valid_until: Moment, now: Moment) {
        let mut belief = self.belief.lock().unwrap_or_else(PoisonError::into_inner);
        if belief.end(now).is_none() {
            belief.valid_until = belief.valid_until.max(valid_until);
        }
    }
}

/// How a session is parted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parting {
    /// It was closed: the belief in it has ended, its lease is to end.
    Closed,
    /// It was detached: the belief in it has ended, its lease lives on.
    Detached,
    /// A claim on it was dropped: the last one closes it.
    Dropped,
    /// A claim on it was never taken up: if it was the only one, its lease is left as it was.
    Declined,
}

/// A claim on a session of this node: while there is one, the lease is kept alive; when the last one
/// is dropped, the session is closed. What follows the replica must not hold one: it is held by what
/// this holds.
pub(crate) struct Claim {
    /// Where the session is.
    pub(crate) shared: Arc<Shared>,
    /// The session.
    pub(crate) state: Arc<SharedSession>,
    parting: Parting,
}

impl Claim {
    /// A claim that closes the session if nobody takes it up.
    pub(super) fn opened(shared: Arc<Shared>, state: Arc<SharedSession>) -> Self {
        Self { shared, state, parting: Parting::Dropped }
    }

    /// A claim that leaves the lease alone if nobody takes it up.
    pub(super) fn resumed(shared: Arc<Shared>, state: Arc<SharedSession>) -> Self {
        Self { shared, state, parting: Parting::Declined }
    }

    /// Takes it up.
    pub(crate) fn taken(mut self) -> Self {
        self.parting = Parting::Dropped;
        self
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // What has ended was closed already, or runs out by itself.
        if self.state.end(self.shared.now()).is_none() {
            self.shared.push(Input::PartSession(Arc::clone(&self.state), self.parting));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIFT: u32 = 10;

    fn at(ms: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(ms))
    }

    /// One that was asked for at 0 and is believed in until 2,700.
    fn state() -> SharedSession {
        let ttl = Duration::from_millis(3000);
        let terms = SessionTerms { ttl, delay: Duration::ZERO, label: String::new(), own: false };
        let valid_until = at(0) + Drift::percent(DRIFT).trust_for(ttl);
        SharedSession::new(LeaseId::new(5).unwrap(), terms, valid_until)
    }

    #[test]
    fn it_is_overdue_when_less_than_a_third_of_the_trust_is_left() {
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
        for (now, standing) in cases {
            assert_eq!(state.standing(at(now), drift), standing, "at {now}");
        }
    }

    #[test]
    fn a_change_is_told_once_and_nothing_after_the_end() {
        let (state, drift) = (state(), Drift::percent(DRIFT));
        let mut watch = state.watch();
        let mut told = |state: &SharedSession, now| {
            state.notice(at(now), drift);
            let news = watch.has_changed().unwrap();
            (news, *watch.borrow_and_update())
        };
        assert_eq!(told(&state, 1000), (false, Told::Active));
        assert_eq!(told(&state, 2000), (true, Told::RenewalOverdue));
        assert_eq!(told(&state, 2100), (false, Told::RenewalOverdue));
        state.renew(at(4000), at(2200));
        assert_eq!(told(&state, 2200), (true, Told::Active));
        assert_eq!(state.finish(SessionEndReason::Detached, at(2300)), None);
        assert_eq!(told(&state, 2300), (true, Told::Ended(SessionEndReason::Detached)));
        assert_eq!(
            state.finish(SessionEndReason::Closed, at(9000)),
            Some(SessionEndReason::Detached)
        );
        assert_eq!(told(&state, 9000), (false, Told::Ended(SessionEndReason::Detached)));
    }

    #[test]
    fn who_closes_too_late_learns_that_it_had_ended() {
        let state = state();
        assert_eq!(
            state.finish(SessionEndReason::Closed, at(2700)),
            Some(SessionEndReason::NotRenewed)
        );
    }

    #[test]
    fn a_renewal_that_comes_after_the_end_renews_nothing_even_if_nobody_has_looked() {
        let state = state();
        state.renew(at(5000), at(2700));
        assert_eq!(state.valid_until(), at(2700));
        assert_eq!(state.end(at(2701)), Some(SessionEndReason::NotRenewed));
    }
}

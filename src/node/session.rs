//! The holder's side of leases that this node keeps alive.
//!
//! A session believes in its lease until `valid_until`, counted on this node's own clock from the
//! moment at which the renewal was *sent*, and shortened by the drift bound: the leader, which counts
//! from the moment at which it came and waits longer by the drift bound, ends it later than that.
//! Once `valid_until` has passed without a renewal, the session is lost for good, whatever the leader
//! thinks: nobody who was told "lost" ever sees it come back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::model::{LeaseId, Moment, SessionInfo};

use super::answer::ReplyTo;
use super::settings::Drift;

/// Why a session has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SessionEnd {
    /// It was closed.
    Closed,
    /// No renewal was confirmed in time: by this node's own clock the lease may have ended.
    NotRenewed,
    /// The lease has ended: it was revoked, or the cluster counted it out.
    LeaseEnded,
    /// The node has stopped.
    NodeStopped,
}

impl std::fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SessionEnd::Closed => "it was closed",
            SessionEnd::NotRenewed => "no renewal was confirmed in time",
            SessionEnd::LeaseEnded => "its lease was revoked or has expired",
            SessionEnd::NodeStopped => "its node has stopped",
        })
    }
}

/// A wish for a session.
pub(crate) struct SessionOpening {
    /// How long it lives without renewal.
    pub(crate) ttl: Duration,
    /// What others see of it.
    pub(crate) info: SessionInfo,
    /// When it was asked for: the lease is counted from here.
    pub(crate) asked: Moment,
    /// When to give up.
    pub(crate) deadline: Moment,
    /// What admission counted for it, in bytes.
    pub(crate) bytes: usize,
    /// Who wants it.
    pub(crate) reply: ReplyTo<Arc<SessionState>>,
}

/// A session as its holders see it.
#[derive(Debug)]
pub(crate) struct SessionState {
    /// The lease.
    pub(crate) lease: LeaseId,
    /// How long it lives without renewal.
    pub(crate) ttl: Duration,
    belief: Mutex<Belief>,
    ended: watch::Sender<Option<SessionEnd>>,
}

#[derive(Debug)]
struct Belief {
    valid_until: Moment,
    ended: Option<SessionEnd>,
}

impl SessionState {
    fn new(lease: LeaseId, ttl: Duration, valid_until: Moment) -> Self {
        let belief = Mutex::new(Belief { valid_until, ended: None });
        Self { lease, ttl, belief, ended: watch::Sender::new(None) }
    }

    /// Until when the lease is believed in.
    pub(crate) fn valid_until(&self) -> Moment {
        self.belief.lock().unwrap_or_else(PoisonError::into_inner).valid_until
    }

    /// Why the session has ended, if it has. Looking after `valid_until` ends it.
    pub(crate) fn end(&self, now: Moment) -> Option<SessionEnd> {
        let ended = {
            let mut belief = self.belief.lock().unwrap_or_else(PoisonError::into_inner);
            if belief.ended.is_none() && now >= belief.valid_until {
                belief.ended = Some(SessionEnd::NotRenewed);
            }
            belief.ended
        };
        if let Some(why) = ended {
            self.announce(why);
        }
        ended
    }

    /// Told when the session ends; holds why, afterwards.
    pub(crate) fn watch_end(&self) -> watch::Receiver<Option<SessionEnd>> {
        self.ended.subscribe()
    }

    /// Ends it, unless it has ended already.
    pub(crate) fn finish(&self, why: SessionEnd) {
        let why =
            *self.belief.lock().unwrap_or_else(PoisonError::into_inner).ended.get_or_insert(why);
        self.announce(why);
    }

    fn announce(&self, why: SessionEnd) {
        self.ended.send_if_modified(|ended| {
            let news = ended.is_none();
            ended.get_or_insert(why);
            news
        });
    }

    /// Believes in the lease until `valid_until`, unless the session has ended.
    fn renew(&self, valid_until: Moment) {
        let mut belief = self.belief.lock().unwrap_or_else(PoisonError::into_inner);
        if belief.ended.is_none() {
            belief.valid_until = belief.valid_until.max(valid_until);
        }
    }
}

/// The sessions of this node.
#[derive(Debug)]
pub(crate) struct Sessions {
    drift: Drift,
    /// How long to wait for an answer to a renewal before asking again.
    ask_again: Duration,
    sessions: BTreeMap<LeaseId, Kept>,
    /// What was asked, when, by the number of the asking.
    asked: BTreeMap<u64, (Moment, Vec<LeaseId>)>,
    next_round: u64,
}

#[derive(Debug)]
struct Kept {
    state: Arc<SessionState>,
    renew_at: Moment,
}

impl Sessions {
    /// No sessions.
    pub(crate) fn new(drift: Drift, ask_again: Duration) -> Self {
        let (sessions, asked) = (BTreeMap::new(), BTreeMap::new());
        Self { drift, ask_again, sessions, asked, next_round: 1 }
    }

    /// A lease was granted for an opening: keep it alive.
    pub(crate) fn opened(
        &mut self,
        lease: LeaseId,
        ttl: Duration,
        asked: Moment,
    ) -> Arc<SessionState> {
        let state = Arc::new(SessionState::new(lease, ttl, asked + self.drift.trust_for(ttl)));
        let renew_at = asked + ttl / 3;
        self.sessions.insert(lease, Kept { state: Arc::clone(&state), renew_at });
        state
    }

    /// Ends one: it is not kept alive any more. Says whether it was kept.
    pub(crate) fn end(&mut self, lease: LeaseId, why: SessionEnd) -> bool {
        let Some(kept) = self.sessions.remove(&lease) else { return false };
        kept.state.finish(why);
        true
    }

    /// Ends all.
    pub(crate) fn end_all(&mut self, why: SessionEnd) -> Vec<LeaseId> {
        let leases: Vec<LeaseId> = self.sessions.keys().copied().collect();
        for lease in &leases {
            self.end(*lease, why);
        }
        leases
    }

    /// The leases to renew now, with the number of the asking.
    pub(crate) fn due(&mut self, now: Moment) -> Option<(u64, Vec<LeaseId>)> {
        let mut leases = Vec::new();
        for (lease, kept) in &mut self.sessions {
            if kept.renew_at <= now {
                kept.renew_at = now + self.ask_again;
                leases.push(*lease);
            }
        }
        if leases.is_empty() {
            return None;
        }
        let round = self.next_round;
        self.next_round += 1;
        // An answer that takes longer than a TTL is of no use.
        let longest = self.sessions.values().map(|kept| kept.state.ttl).max().unwrap_or_default();
        self.asked.retain(|_, (sent, _)| now.since(*sent) < longest);
        self.asked.insert(round, (now, leases.clone()));
        Some((round, leases))
    }

    /// The leader has answered.
    pub(crate) fn renewed(&mut self, round: u64, renewed: &[LeaseId]) {
        let Some((sent, asked)) = self.asked.remove(&round) else { return };
        for lease in renewed.iter().filter(|lease| asked.contains(lease)) {
            if let Some(kept) = self.sessions.get_mut(lease) {
                kept.state.renew(sent + self.drift.trust_for(kept.state.ttl));
                kept.renew_at = kept.renew_at.max(sent + kept.state.ttl / 3);
            }
        }
    }

    /// Ends those that were not renewed in time, and says which.
    pub(crate) fn expire(&mut self, now: Moment) -> Vec<LeaseId> {
        let lost: Vec<LeaseId> = self
            .sessions
            .iter()
            .filter(|(_, kept)| kept.state.end(now).is_some())
            .map(|(lease, _)| *lease)
            .collect();
        for lease in &lost {
            self.sessions.remove(lease);
        }
        lost
    }

    /// The leases of all of them.
    pub(crate) fn leases(&self) -> Vec<LeaseId> {
        self.sessions.keys().copied().collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(ms))
    }

    fn one() -> (Sessions, Arc<SessionState>) {
        let mut sessions = Sessions::new(Drift::percent(10), Duration::from_millis(200));
        let lease = LeaseId::new(5).unwrap();
        let state = sessions.opened(lease, Duration::from_millis(3000), at(0));
        (sessions, state)
    }

    #[test]
    fn belief_counts_from_the_sending_and_is_shorter_than_the_ttl() {
        let (mut sessions, state) = one();
        assert_eq!(state.valid_until(), at(2700));
        assert_eq!(sessions.due(at(999)), None);
        let (round, leases) = sessions.due(at(1000)).unwrap();
        sessions.renewed(round, &leases);
        assert_eq!(state.valid_until(), at(3700));
    }

    #[test]
    fn an_unanswered_renewal_is_asked_again_under_a_new_number() {
        let (mut sessions, state) = one();
        let (first, leases) = sessions.due(at(1000)).unwrap();
        assert_eq!(sessions.due(at(1199)), None);
        let (second, _) = sessions.due(at(1200)).unwrap();
        assert_ne!(first, second);
        sessions.renewed(first, &leases);
        assert_eq!(state.valid_until(), at(3700), "the first answer counts from the first asking");
    }

    #[test]
    fn a_session_that_was_lost_never_comes_back() {
        let (mut sessions, state) = one();
        let (round, leases) = sessions.due(at(1000)).unwrap();
        assert_eq!(state.end(at(2699)), None);
        assert_eq!(state.end(at(2700)), Some(SessionEnd::NotRenewed));
        sessions.renewed(round, &leases);
        assert_eq!(state.valid_until(), at(2700));
        assert_eq!(sessions.expire(at(2700)).len(), 1);
        assert_eq!(*state.watch_end().borrow(), Some(SessionEnd::NotRenewed));
    }
}

//! The driver's side of the sessions of this node: decides when to renew which lease, processes the
//! answers, and ends sessions.
//!
//! The replicated state records which node opened a lease, but not which nodes keep it alive. The
//! leader renews a lease for any node that asks. So several nodes may keep one lease alive, and all
//! of them may rely on it.
//!
//! ```text
//!   opened ──────────────────────────▶ kept ──▶ closed, dropped      its lease is revoked
//!   resumed ──▶ resuming ── renewed ──▶  │ └──▶ detached             its lease continues
//!                   └── gone, late       └────▶ not renewed          its lease expires; that of the
//!                                                                    node's own session is revoked
//! ```

pub(super) mod resume_error;
pub(super) mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::metrics::Meters;
use crate::model::{Command, LeaseId, Moment, Rejection, SessionInfo};

use crate::node::leader_queries::LeaderQueries;
use crate::node::requests::answer::{CallError, CallResult, ReplyTo};
use crate::node::sessions::resume_error::ResumeSessionError;
use crate::node::sessions::session::{
    Claim, SessionClose, SessionEndReason, SessionState, SessionTerms, SharedSession,
};
use crate::node::settings::Drift;

/// Maximum number of leases in one renewal request. The request and its answer take at most ten
/// bytes for each lease. Request and answer share a lane (a connection for one kind of messages)
/// with the heartbeats, and are small enough not to delay the heartbeats.
pub(super) const QUERIED_LEASES_MAX: usize = 16_384;

/// A request to open a session.
pub(crate) struct SessionOpening {
    /// Time for which the session relies on its lease without a renewal.
    pub(crate) ttl: Duration,
    /// Lock delay: additional time for which the lease exists.
    pub(crate) delay: Duration,
    /// The label, and whether this is the node's own session.
    pub(crate) info: SessionInfo,
    /// Time of the request, from which the validity of the lease is counted.
    pub(crate) asked: Moment,
    pub(crate) deadline: Moment,
    /// Number of bytes that this request uses of the limit of open writes.
    pub(crate) bytes: usize,
    pub(crate) reply: ReplyTo<Claim>,
}

impl SessionOpening {
    /// Returns the command that grants the lease. Its TTL is rounded up to whole milliseconds.
    pub(super) fn command(&self) -> Command {
        let mut delay = self.delay;
        mutant!(B09, delay = Duration::ZERO);
        let millis = self.ttl.saturating_add(delay).as_nanos().div_ceil(1_000_000);
        let ttl = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        Command::Grant { id: None, ttl, session: Some(self.info.clone()) }
    }

    pub(super) fn terms(&self) -> SessionTerms {
        let SessionInfo { label, own } = self.info.clone();
        SessionTerms { ttl: self.ttl, delay: self.delay, label, own }
    }
}

/// A request to resume a session whose lease exists.
pub(crate) struct SessionResuming {
    pub(crate) lease: LeaseId,
    /// Lock delay: the part of the TTL in which the session must not rely on the lease.
    pub(crate) delay: Duration,
    pub(crate) deadline: Moment,
    pub(crate) reply: ReplyTo<Claim>,
}

/// The result of a request to resume.
pub(super) type Resumed = (ReplyTo<Claim>, CallResult<Arc<SharedSession>>);

/// The sessions that this node keeps alive.
pub(crate) struct Sessions {
    drift: Drift,
    /// Time after which an unanswered renewal is sent again.
    repeat_after: Duration,
    sessions: BTreeMap<LeaseId, Kept>,
    resuming: BTreeMap<LeaseId, ResumedLease>,
    /// Renewal requests. Validity is counted from the time of sending, so a repeated renewal is a
    /// new request.
    asked: LeaderQueries<Vec<LeaseId>>,
    /// Time before which no renewal is due.
    quiet_until: Moment,
    meters: Arc<Meters>,
}

struct Kept {
    state: Arc<SharedSession>,
    claims: usize,
    /// Whether this is the node's own session.
    own: bool,
    renew_at: Moment,
}

/// A lease that is to be resumed and has no confirmed renewal yet.
struct ResumedLease {
    /// TTL of the lease, including the delay.
    lease_ttl: Duration,
    label: String,
    ask_at: Moment,
    waiters: Vec<SessionResuming>,
}

impl Sessions {
    pub(crate) fn new(drift: Drift, repeat_after: Duration, meters: Arc<Meters>) -> Self {
        let (sessions, resuming, asked, quiet_until) = Default::default();
        Self { drift, repeat_after, sessions, resuming, asked, quiet_until, meters }
    }

    /// Keeps a newly granted lease alive, with one claim.
    pub(crate) fn opened(
        &mut self,
        lease: LeaseId,
        terms: SessionTerms,
        asked: Moment,
    ) -> Arc<SharedSession> {
        self.keep(lease, terms, asked, 1)
    }

    fn keep(
        &mut self,
        lease: LeaseId,
        terms: SessionTerms,
        sent: Moment,
        claims: usize,
    ) -> Arc<SharedSession> {
        let (ttl, own) = (terms.ttl, terms.own);
        let valid_until = sent + self.drift.trusted_time(ttl);
        let state = Arc::new(SharedSession::new(lease, terms, valid_until));
        let renew_at = sent + ttl / 3;
        self.quiet_until = self.quiet_until.min(renew_at);
        let kept = Kept { state: Arc::clone(&state), claims, own, renew_at };
        self.sessions.insert(lease, kept);
        state
    }

    /// Resumes a lease whose TTL is `lease_ttl`. If this node already keeps the lease alive,
    /// answers at once. Otherwise the session begins with the first confirmed renewal that is sent
    /// from now on.
    pub(crate) fn resume(
        &mut self,
        waiter: SessionResuming,
        lease_ttl: Duration,
        label: String,
        now: Moment,
    ) -> Option<Resumed> {
        let SessionResuming { lease, delay, .. } = waiter;
        if lease_ttl <= delay {
            let rejection = ResumeSessionError::DelayTooLong { lease_ttl, delay };
            return Some((waiter.reply, Err(CallError::NotResumed(rejection))));
        }
        match self.sessions.get_mut(&lease) {
            Some(kept) if kept.state.end(now).is_none() => {
                let answer = kept.claim(delay);
                return Some((waiter.reply, answer));
            }
            // An ended session stays ended for all its users, so create a new session for the same
            // lease.
            Some(_) => drop(self.sessions.remove(&lease)),
            None => {}
        }
        mutant!(B69, return Some(self.resume_unconfirmed(waiter, lease_ttl, label, now)));
        self.quiet_until = self.quiet_until.min(now);
        let wanted = self.resuming.entry(lease).or_insert_with(|| ResumedLease {
            lease_ttl,
            label,
            ask_at: now,
            waiters: Vec::new(),
        });
        wanted.waiters.push(waiter);
        None
    }

    /// Used by a mutant: resumes a lease without a confirmed renewal.
    fn resume_unconfirmed(
        &mut self,
        waiter: SessionResuming,
        lease_ttl: Duration,
        label: String,
        now: Moment,
    ) -> Resumed {
        let SessionResuming { lease, delay, reply, .. } = waiter;
        let terms = SessionTerms { ttl: lease_ttl - delay, delay, label, own: false };
        self.keep(lease, terms, now, 0);
        let kept = self.sessions.get_mut(&lease).expect("it was just put there");
        (reply, kept.claim(delay))
    }

    /// Gives up a session or a claim on it. Returns the lease to revoke, if any.
    pub(crate) fn close(
        &mut self,
        state: &Arc<SharedSession>,
        close: SessionClose,
        now: Moment,
    ) -> Option<LeaseId> {
        let lease = state.lease;
        // Another session of this node may have resumed the lease in the meantime.
        let kept = self.sessions.get_mut(&lease).filter(|kept| Arc::ptr_eq(&kept.state, state));
        let is_kept = kept.is_some();
        let last = kept.is_some_and(|kept| {
            kept.claims -= 1;
            kept.claims == 0
        });
        let (goes, revoke) = match close {
            // `Session::close` has already ended the session, and its caller waits for the revocation.
            SessionClose::Closed => (is_kept, true),
            SessionClose::Detached => (is_kept, false),
            SessionClose::Dropped => {
                (last, last && state.finish(SessionEndReason::Closed, now).is_none())
            }
            SessionClose::Declined => {
                if last {
                    state.finish(SessionEndReason::Detached, now);
                }
                (last, false)
            }
        };
        if goes {
            self.sessions.remove(&lease);
        }
        revoke.then_some(lease)
    }

    /// Ends the session of a lease that has ended, and fails the requests to resume it.
    pub(crate) fn lease_ended(&mut self, lease: LeaseId, now: Moment) -> Vec<Resumed> {
        if let Some(kept) = self.sessions.remove(&lease) {
            kept.state.finish(SessionEndReason::LeaseEnded, now);
        }
        let waiters = self.resuming.remove(&lease).map(|wanted| wanted.waiters).unwrap_or_default();
        let gone = || Err(CallError::Rejected(Rejection::LeaseNotFound(lease)));
        waiters.into_iter().map(|waiter| (waiter.reply, gone())).collect()
    }

    /// Ends all sessions because the node shuts down. Returns the leases to revoke.
    pub(crate) fn close_all(&mut self, now: Moment) -> Vec<LeaseId> {
        let mut revoke = Vec::new();
        for (lease, kept) in std::mem::take(&mut self.sessions) {
            match kept.state.finish(SessionEndReason::NodeStopped, now) {
                None | Some(SessionEndReason::Closed) => revoke.push(lease),
                Some(SessionEndReason::NotRenewed) if kept.own => revoke.push(lease),
                Some(_) => {}
            }
        }
        revoke
    }

    /// Ends all sessions because the node has stopped. Returns the callers that wait for a resumption.
    pub(crate) fn stop(&mut self, now: Moment) -> Vec<ReplyTo<Claim>> {
        for (_, kept) in std::mem::take(&mut self.sessions) {
            kept.state.finish(SessionEndReason::NodeStopped, now);
        }
        let wanted = std::mem::take(&mut self.resuming).into_values();
        wanted.flat_map(|wanted| wanted.waiters).map(|waiter| waiter.reply).collect()
    }

    /// Returns the leases to renew now, and the number of the request. Leases above
    /// [`QUERIED_LEASES_MAX`] are part of the next request.
    pub(crate) fn due(&mut self, now: Moment) -> Option<(u64, Vec<LeaseId>)> {
        if now < self.quiet_until {
            return None;
        }
        let mut leases = Vec::new();
        let kept = self.sessions.iter_mut().map(|(lease, kept)| (lease, &mut kept.renew_at));
        let wanted = self.resuming.iter_mut().map(|(lease, wanted)| (lease, &mut wanted.ask_at));
        let due = kept.chain(wanted).filter(|(_, at)| **at <= now);
        for (lease, at) in due.take(QUERIED_LEASES_MAX) {
            *at = now + self.repeat_after;
            leases.push(*lease);
        }
        if leases.is_empty() {
            let kept = self.sessions.values().map(|kept| kept.renew_at);
            let next = kept.chain(self.resuming.values().map(|wanted| wanted.ask_at)).min();
            self.quiet_until = next.unwrap_or(now + self.repeat_after);
            return None;
        }
        // Forget requests that are older than the longest TTL, because their answers are useless.
        let ttls = self.sessions.values().map(|kept| kept.state.ttl);
        let ttls = ttls.chain(self.resuming.values().map(|wanted| wanted.lease_ttl));
        let longest = ttls.max().unwrap_or_default();
        self.asked.retain(|sent, _| now.since(sent) < longest);
        Some((self.asked.send(leases.clone(), now), leases))
    }

    /// Processes an answer of the leader: the renewed leases, and the leases that do not exist any
    /// more. Returns the results of the requests to resume.
    pub(crate) fn renewed(
        &mut self,
        round: u64,
        renewed: &[LeaseId],
        gone: &[LeaseId],
        now: Moment,
    ) -> Vec<Resumed> {
        let Some((mut sent, asked)) = self.asked.answered(round) else { return Vec::new() };
        mutant!(B21, sent = now);
        let asked: BTreeSet<LeaseId> = asked.into_iter().collect();
        let mut resumed = Vec::new();
        for lease in renewed.iter().filter(|lease| asked.contains(lease)) {
            if let Some(kept) = self.sessions.get_mut(lease) {
                let margin = kept.state.valid_until().since(now);
                self.meters.session_margin_seconds.add(margin);
                kept.state.renew(sent + self.drift.trusted_time(kept.state.ttl), now);
                kept.state.notice(now, self.drift);
                kept.renew_at = kept.renew_at.max(sent + kept.state.ttl / 3);
            } else {
                resumed.extend(self.confirmed(*lease, sent, now));
            }
        }
        for lease in gone.iter().filter(|lease| asked.contains(lease)) {
            resumed.extend(self.lease_ended(*lease, now));
        }
        resumed
    }

    /// Starts the session of a lease that is to be resumed, after a renewal was confirmed.
    fn confirmed(&mut self, lease: LeaseId, mut sent: Moment, now: Moment) -> Vec<Resumed> {
        let Some(wanted) = self.resuming.remove(&lease) else { return Vec::new() };
        mutant!(B70, sent = now);
        let ResumedLease { lease_ttl, label, ask_at, mut waiters } = wanted;
        // If no caller waits any more, the lease is not kept alive.
        waiters.retain(|waiter| !waiter.reply.is_gone());
        let Some(first) = waiters.first() else { return Vec::new() };
        let (delay, own) = (first.delay, false);
        let ttl = lease_ttl - delay;
        if now >= sent + self.drift.trusted_time(ttl) {
            // The confirmation came too late: the session would already have expired. Keep trying.
            self.resuming.insert(lease, ResumedLease { lease_ttl, label, ask_at, waiters });
            return Vec::new();
        }
        self.keep(lease, SessionTerms { ttl, delay, label, own }, sent, 0);
        let kept = self.sessions.get_mut(&lease).expect("it was just put there");
        waiters.into_iter().map(|waiter| (waiter.reply, kept.claim(waiter.delay))).collect()
    }

    /// Ends the sessions that were not renewed in time, and notifies the watchers of changed
    /// sessions. Returns the leases to revoke, which are the leases of the node's own sessions,
    /// because these cannot be resumed. The other leases expire by themselves, or another node has
    /// resumed them.
    pub(crate) fn tick(&mut self, now: Moment) -> Vec<LeaseId> {
        let mut revoke = Vec::new();
        self.sessions.retain(|lease, kept| match kept.state.notice(now, self.drift) {
            SessionState::Ended(why) => {
                let is_own = kept.own || mutant!(B23);
                revoke.extend((is_own && why == SessionEndReason::NotRenewed).then_some(*lease));
                false
            }
            SessionState::Active(_) | SessionState::RenewalOverdue(_) => true,
        });
        revoke
    }

    /// Fails the requests to resume whose deadline has passed.
    pub(crate) fn give_up(&mut self, now: Moment) -> Vec<Resumed> {
        let mut late = Vec::new();
        self.resuming.retain(|_, wanted| {
            let is_over =
                |waiter: &mut SessionResuming| waiter.deadline <= now || waiter.reply.is_gone();
            late.extend(wanted.waiters.extract_if(.., is_over));
            !wanted.waiters.is_empty()
        });
        let error = || Err(CallError::Deadline { maybe_applied: false });
        late.into_iter().map(|waiter| (waiter.reply, error())).collect()
    }

    /// Returns the leases of all sessions, including those that are to be resumed.
    pub(crate) fn leases(&self) -> Vec<LeaseId> {
        self.sessions.keys().chain(self.resuming.keys()).copied().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }
}

impl Kept {
    /// Adds a claim, if the session has the lock delay that the caller requests.
    fn claim(&mut self, delay: Duration) -> CallResult<Arc<SharedSession>> {
        let kept = self.state.delay;
        if kept != delay {
            return Err(CallError::NotResumed(ResumeSessionError::OtherLockDelay { kept, delay }));
        }
        self.claims += 1;
        Ok(Arc::clone(&self.state))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::codec;
    use crate::model::samples::at;
    use crate::model::{Incarnation, PeerMessage};

    const LEASE: LeaseId = match LeaseId::new(5) {
        Some(lease) => lease,
        None => panic!("5 is a lease"),
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn none() -> Sessions {
        Sessions::new(Drift::percent(10), ms(200), Arc::default())
    }

    fn one_with(delay: u64, own: bool) -> (Sessions, Arc<SharedSession>) {
        let mut sessions = none();
        let terms = SessionTerms { ttl: ms(3000), delay: ms(delay), label: String::new(), own };
        let state = sessions.opened(LEASE, terms, at(0));
        (sessions, state)
    }

    fn one() -> (Sessions, Arc<SharedSession>) {
        one_with(0, false)
    }

    type Answer = oneshot::Receiver<CallResult<Claim>>;

    /// Requests to resume the lease, whose TTL is `lease_ttl`. Returns the receiver and the immediate result, if
    /// there is one.
    fn resume(
        sessions: &mut Sessions,
        (lease_ttl, delay): (u64, u64),
        now: u64,
    ) -> (Answer, Option<CallResult<Arc<SharedSession>>>) {
        let (sender, answer) = oneshot::channel();
        let (deadline, reply) = (at(now + 5000), ReplyTo::Waiting(sender));
        let waiter = SessionResuming { lease: LEASE, delay: ms(delay), deadline, reply };
        let resumed = sessions.resume(waiter, ms(lease_ttl), "old".to_owned(), at(now));
        (answer, resumed.map(|(_, result)| result))
    }

    fn only(resumed: Vec<Resumed>) -> CallResult<Arc<SharedSession>> {
        let [(_, result)] = <[Resumed; 1]>::try_from(resumed).ok().expect("one is answered");
        result
    }

    #[test]
    fn validity_counts_from_sending_and_is_shorter_than_the_ttl() {
        let (mut sessions, state) = one();
        assert_eq!(state.valid_until(), at(2700));
        assert_eq!(sessions.due(at(999)), None);
        let (round, leases) = sessions.due(at(1000)).unwrap();
        sessions.renewed(round, &leases, &[], at(1100));
        assert_eq!(state.valid_until(), at(3700));
        let margins = sessions.meters.session_margin_seconds.histogram();
        assert_eq!((margins.count(), margins.sum()), (1, 1.6), "it was believed in until 2700 ms");
    }

    #[test]
    fn lock_delay_extends_the_lease_but_not_the_validity() {
        let (mut sessions, state) = one_with(60_000, false);
        assert_eq!(state.valid_until(), at(2700));
        let (round, leases) = sessions.due(at(1000)).unwrap();
        sessions.renewed(round, &leases, &[], at(1100));
        assert_eq!(state.valid_until(), at(3700));
        assert_eq!(sessions.due(at(1999)), None);
        assert!(sessions.due(at(2000)).is_some(), "renewed by the ttl, not by the lease's");
    }

    #[test]
    fn lease_ttl_is_ttl_plus_delay_rounded_up() {
        let lives = |ttl, delay| {
            let info = SessionInfo { label: String::new(), own: false };
            let (asked, deadline, bytes, reply) = (at(0), at(0), 0, ReplyTo::Discard);
            let opening = SessionOpening { ttl, delay, info, asked, deadline, bytes, reply };
            match opening.command() {
                Command::Grant { ttl, .. } => ttl,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(lives(ms(900), ms(2000)), ms(2900));
        assert_eq!(lives(Duration::from_micros(900_500), Duration::from_micros(600)), ms(902));
        assert!(lives(Duration::MAX, ms(1)) > crate::model::Limits::LEASE_TTL_MAX);
    }

    #[test]
    fn unanswered_renewal_is_retried_with_a_new_number() {
        let (mut sessions, state) = one();
        let (first, leases) = sessions.due(at(1000)).unwrap();
        assert_eq!(sessions.due(at(1199)), None);
        let (second, _) = sessions.due(at(1200)).unwrap();
        assert_ne!(first, second);
        sessions.renewed(first, &leases, &[], at(1300));
        assert_eq!(state.valid_until(), at(3700), "the first answer counts from the first asking");
    }

    #[test]
    fn many_leases_are_renewed_in_several_messages() {
        let mut sessions = none();
        let terms =
            || SessionTerms { ttl: ms(3000), delay: ms(0), label: String::new(), own: false };
        let states: Vec<_> = (0..2 * QUERIED_LEASES_MAX as u64 + 7)
            .map(|nth| sessions.opened(LeaseId::new(u64::MAX - nth).unwrap(), terms(), at(0)))
            .collect();
        let askings: Vec<_> = std::iter::from_fn(|| sessions.due(at(1000))).collect();
        let sizes: Vec<usize> = askings.iter().map(|(_, leases)| leases.len()).collect();
        assert_eq!(sizes, [QUERIED_LEASES_MAX, QUERIED_LEASES_MAX, 7]);
        for (round, leases) in askings {
            let message = PeerMessage::Renew { round, incarnation: Incarnation(u64::MAX), leases };
            let mut bytes = Vec::new();
            codec::encode_message(&message, &mut bytes);
            assert!(bytes.len() < 256 << 10, "{} bytes", bytes.len());
            let PeerMessage::Renew { round, leases, .. } = message else { unreachable!() };
            sessions.renewed(round, &leases, &[], at(1100));
        }
        assert!(states.iter().all(|state| state.valid_until() == at(1000) + ms(2700)));
    }

    #[test]
    fn lost_session_never_becomes_active_again() {
        let (mut sessions, state) = one();
        let (round, leases) = sessions.due(at(1000)).unwrap();
        assert_eq!(state.end(at(2699)), None);
        assert_eq!(state.end(at(2700)), Some(SessionEndReason::NotRenewed));
        sessions.renewed(round, &leases, &[], at(2700));
        assert_eq!(state.valid_until(), at(2700));
        sessions.tick(at(2700));
        assert_eq!(sessions.len(), 0);
    }

    #[test]
    fn only_own_session_is_revoked_after_a_missed_renewal() {
        for (own, revoked) in [(true, vec![LEASE]), (false, vec![])] {
            let (mut sessions, state) = one_with(0, own);
            assert_eq!(sessions.tick(at(2699)), []);
            assert_eq!(sessions.tick(at(2700)), revoked, "own: {own}");
            assert_eq!(sessions.close(&state, SessionClose::Dropped, at(2701)), None);
        }
    }

    #[test]
    fn unnoticed_expiry_is_not_a_clean_close() {
        // The claim is dropped, or the node shut down, after the session has expired but before the
        // tick that reports the expiry.
        let (mut sessions, state) = one_with(10_000, false);
        assert_eq!(sessions.close(&state, SessionClose::Dropped, at(2700)), None);
        let (mut sessions, _) = one_with(10_000, false);
        assert_eq!(sessions.close_all(at(2700)), []);
        let (mut sessions, _) = one_with(10_000, false);
        assert_eq!(sessions.close_all(at(2699)), [LEASE]);
    }

    #[test]
    fn last_dropped_claim_closes_the_session() {
        let (mut sessions, state) = one();
        let (_, again) = resume(&mut sessions, (3000, 0), 100);
        assert!(Arc::ptr_eq(&again.unwrap().unwrap(), &state), "it is kept here already");
        assert_eq!(sessions.close(&state, SessionClose::Dropped, at(200)), None);
        assert_eq!(state.end(at(200)), None);
        assert_eq!(sessions.close(&state, SessionClose::Dropped, at(300)), Some(LEASE));
        assert_eq!(state.end(at(300)), Some(SessionEndReason::Closed));
        assert_eq!(sessions.len(), 0);
    }

    #[test]
    fn detached_session_is_not_revoked_by_its_former_owner() {
        let (mut sessions, state) = one();
        assert_eq!(state.finish(SessionEndReason::Detached, at(100)), None);
        assert_eq!(
            sessions.close_all(at(100)),
            [],
            "not even by a shutdown before the driver hears"
        );
        let (mut sessions, state) = one();
        state.finish(SessionEndReason::Detached, at(100));
        assert_eq!(sessions.close(&state, SessionClose::Detached, at(100)), None);
        assert_eq!(sessions.len(), 0);
        let (_answer, now) = resume(&mut sessions, (3000, 0), 200);
        assert!(now.is_none(), "it is another session");
        let (round, leases) = sessions.due(at(200)).unwrap();
        let second = only(sessions.renewed(round, &leases, &[], at(210))).unwrap();
        for close in [SessionClose::Dropped, SessionClose::Declined, SessionClose::Detached] {
            assert_eq!(sessions.close(&state, close, at(300)), None, "{close:?}");
        }
        assert_eq!((second.end(at(300)), sessions.len()), (None, 1), "the first has no say in it");
    }

    #[test]
    fn resumed_lease_is_active_from_its_first_confirmed_renewal() {
        let mut sessions = none();
        let (_answer, now) = resume(&mut sessions, (10_000, 7000), 0);
        assert!(now.is_none());
        assert_eq!((sessions.len(), sessions.leases()), (0, vec![LEASE]));
        let (first, leases) = sessions.due(at(50)).unwrap();
        assert!(sessions.renewed(first, &[], &[], at(60)).is_empty(), "an expiry is under way");
        assert_eq!(sessions.due(at(249)), None);
        let (second, _) = sessions.due(at(250)).unwrap();
        let state = only(sessions.renewed(second, &leases, &[], at(900))).unwrap();
        assert_eq!(state.valid_until(), at(250) + ms(2700), "the delay is not believed in");
        assert_eq!((state.ttl, state.delay, &*state.label), (ms(3000), ms(7000), "old"));
    }

    #[test]
    fn late_renewal_resumes_nothing() {
        let mut sessions = none();
        let (_answer, _) = resume(&mut sessions, (3000, 0), 0);
        let (first, leases) = sessions.due(at(0)).unwrap();
        assert!(sessions.renewed(first, &leases, &[], at(2700)).is_empty());
        let (second, _) = sessions.due(at(2800)).unwrap();
        let state = only(sessions.renewed(second, &leases, &[], at(2810))).unwrap();
        assert_eq!(state.valid_until(), at(5500));
    }

    /// Few seeds of the simulator reach the situation in which this mutant has an effect.
    #[test]
    fn test_of_late_renewals_fails_under_its_mutant() {
        let _planted = crate::mutant::Mutant::B70.plant();
        assert!(std::panic::catch_unwind(late_renewal_resumes_nothing).is_err());
    }

    #[test]
    fn resume_request_ends_with_its_lease_deadline_or_caller() {
        let mut sessions = none();
        let (_answer, _) = resume(&mut sessions, (3000, 0), 0);
        let gone = only(sessions.lease_ended(LEASE, at(1))).unwrap_err();
        assert_eq!(gone, CallError::Rejected(Rejection::LeaseNotFound(LEASE)));
        let (_answer, _) = resume(&mut sessions, (3000, 0), 0);
        assert!(sessions.give_up(at(4999)).is_empty());
        let late = only(sessions.give_up(at(5000))).unwrap_err();
        assert_eq!(late, CallError::Deadline { maybe_applied: false });
        let (answer, _) = resume(&mut sessions, (3000, 0), 0);
        let (round, leases) = sessions.due(at(0)).unwrap();
        drop(answer);
        assert!(sessions.renewed(round, &leases, &[], at(10)).is_empty());
        assert_eq!((sessions.len(), sessions.leases()), (0, vec![]), "nobody keeps it");
        let (answer, _) = resume(&mut sessions, (3000, 0), 20);
        drop(answer);
        sessions.give_up(at(30));
        assert_eq!(sessions.leases(), [], "nobody asks for it");
    }

    #[test]
    fn declined_resumed_session_leaves_its_lease_unchanged() {
        let mut sessions = none();
        let (_answer, _) = resume(&mut sessions, (3000, 0), 0);
        let (round, leases) = sessions.due(at(0)).unwrap();
        let state = only(sessions.renewed(round, &leases, &[], at(10))).unwrap();
        assert_eq!(sessions.close(&state, SessionClose::Declined, at(20)), None);
        assert_eq!((state.end(at(20)), sessions.len()), (Some(SessionEndReason::Detached), 0));
    }

    #[test]
    fn resume_rejects_another_delay_or_one_as_long_as_the_lease() {
        let refused = |answer: Option<CallResult<Arc<SharedSession>>>| answer.unwrap().unwrap_err();
        let mut sessions = none();
        let (lease_ttl, delay) = (ms(3000), ms(3000));
        let why = ResumeSessionError::DelayTooLong { lease_ttl, delay };
        let (_, answer) = resume(&mut sessions, (3000, 3000), 0);
        assert_eq!(refused(answer), CallError::NotResumed(why));
        let (_one, _) = resume(&mut sessions, (3000, 1000), 0);
        let (_other, _) = resume(&mut sessions, (3000, 0), 0);
        let (round, leases) = sessions.due(at(0)).unwrap();
        let resumed = sessions.renewed(round, &leases, &[], at(10));
        let results: Vec<_> = resumed.into_iter().map(|(_, result)| result).collect();
        assert_eq!(results[0].as_ref().unwrap().valid_until(), at(1800));
        let why = ResumeSessionError::OtherLockDelay { kept: ms(1000), delay: ms(0) };
        assert_eq!(results[1].as_ref().unwrap_err(), &CallError::NotResumed(why));
        assert_eq!(sessions.sessions[&LEASE].claims, 1);
    }
}

//! Tests of sessions whose nodes are cut off, and of leases that move from one node to another.

use super::*;
use crate::model::{LeaseId, PutLease, Rejection, SessionInfo};
use crate::node::sessions::session::ReportedState;
use crate::node::{
    Claim, Next, ResumeSessionError, SessionClose, SessionEndReason, SessionKeeper as _,
    SessionState, SharedSession,
};

const KEY: &str = "bound";

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Three {
    /// Steps until a future is ready.
    fn wait<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = Box::pin(future);
        for _ in 0..6000 {
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(output) => return output,
                Poll::Pending => self.step(),
            }
        }
        panic!("it does not end");
    }

    /// Opens a session and binds a key to it.
    fn open(&mut self, node: usize, ttl_ms: u64, delay_ms: u64, own: bool) -> Claim {
        let shared = Arc::clone(self.shared(node));
        let (info, deadline) =
            (SessionInfo { label: "old".to_owned(), own }, shared.now() + ms(5000));
        let opening =
            async move { shared.open_session(ms(ttl_ms), ms(delay_ms), info, deadline).await };
        let claim = self.wait(opening).unwrap();
        let put = Put::new(KEY, "v");
        let put = Put { lease: PutLease::Attach(claim.state.lease), ..put };
        self.write(node, Command::Put(put)).unwrap();
        claim
    }

    fn resume(&mut self, node: usize, lease: LeaseId, delay_ms: u64) -> CallResult<Claim> {
        let shared = Arc::clone(self.shared(node));
        let deadline = shared.now() + ms(5000);
        self.wait(async move { shared.resume_session(lease, ms(delay_ms), deadline).await })
    }

    /// Returns whether the key exists in a node's replica.
    fn is_bound(&self, node: usize) -> bool {
        self.shared(node).reader.get(KEY.as_bytes()).0.is_some()
    }

    fn state_at(&self, state: &SharedSession) -> SessionState {
        state.state_at(self.clock.now(), Drift::percent(10))
    }

    fn cut_off(&self, node: usize) {
        for peer in (0..3).filter(|peer| *peer != node) {
            self.hub.cut(id(node), id(peer));
            self.hub.cut(id(peer), id(node));
        }
    }

    fn detach(&self, node: usize, claim: Claim) -> LeaseId {
        let state = Arc::clone(&claim.state);
        assert_eq!(state.finish(SessionEndReason::Detached, self.clock.now()), None);
        self.shared(node).close_session(&state, SessionClose::Detached);
        state.lease
    }
}

#[test]
fn keys_of_an_isolated_holder_stay_for_the_lock_delay() {
    for delay in [0, 4000] {
        let mut three = Three::led_by(0, |_, _| {});
        let claim = three.open(1, 3000, delay, false);
        three.pass(5000);
        assert!(three.is_bound(0), "it is renewed");
        three.cut_off(1);
        let state = Arc::clone(&claim.state);
        three.until("it believes forever", |three| {
            matches!(three.state_at(&state), SessionState::Ended(_))
        });
        let ended = three.clock.now();
        assert_eq!(three.state_at(&state), SessionState::Ended(SessionEndReason::NotRenewed));
        // Reconnect the node, and drop the claim on the session.
        three.hub.heal_all();
        drop(claim);
        three.until("its key stays forever", |three| !three.is_bound(0));
        let stayed = three.clock.now().since(ended);
        assert!(stayed >= ms(delay), "{stayed:?} of {delay} ms");
        // The leader adds the drift bound to the TTL and the delay.
        assert!(stayed <= ms(delay) + ms((3000 + delay) / 5 + 300), "{stayed:?} of {delay} ms");
    }
}

#[test]
fn dropped_session_with_a_lock_delay_is_closed_at_once() {
    let mut three = Three::led_by(0, |_, _| {});
    let claim = three.open(1, 3000, 60_000, false);
    drop(claim);
    three.pass(200);
    assert!(!three.is_bound(0));
}

#[test]
fn shutdown_closes_valid_sessions_and_leaves_expired_ones_to_their_delay() {
    for (cut_off, bound) in [(false, false), (true, true)] {
        let mut three = Three::led_by(0, |_, _| {});
        let claim = three.open(1, 3000, 60_000, false);
        if cut_off {
            three.cut_off(1);
            // The session expires, but the node has no tick before it is stopped, and nothing reads
            // the session's state.
            three.clock.0.fetch_add(2_995, Ordering::Relaxed);
            three.hub.heal_all();
        }
        three.push(1, Input::Stop);
        three.pass(2000);
        assert_eq!(three.is_bound(0), bound, "cut off: {cut_off}");
        drop(claim);
    }
}

#[test]
fn overdue_renewal_is_reported_at_a_tick_and_withdrawn_on_renewal() {
    let mut three = Three::led_by(0, |_, _| {});
    let claim = three.open(1, 3000, 0, false);
    let mut states = claim.state.watch();
    three.pass(1500);
    assert!(matches!(three.state_at(&claim.state), SessionState::Active(_)));
    assert!(!states.has_changed().unwrap());
    three.cut_off(1);
    three.until("it is never overdue", |_| states.has_changed().unwrap());
    assert_eq!(*states.borrow_and_update(), ReportedState::RenewalOverdue);
    let SessionState::RenewalOverdue(until) = three.state_at(&claim.state) else {
        panic!("not overdue")
    };
    let left = until.since(three.clock.now());
    // A tick comes every 25 milliseconds.
    assert!(left < ms(900) && left >= ms(870), "{left:?}");
    three.hub.heal_all();
    three.until("it does not recover", |_| states.has_changed().unwrap());
    assert_eq!(*states.borrow_and_update(), ReportedState::Active);
    let SessionState::Active(later) = three.state_at(&claim.state) else { panic!("overdue") };
    assert!(later > until);
}

#[test]
fn detached_lease_survives_at_the_node_that_resumes_it() {
    let mut three = Three::led_by(0, |_, _| {});
    let first = three.open(1, 3000, 0, false);
    let lease = three.detach(1, first);
    three.pass(2000);
    let second = three.resume(2, lease, 0).unwrap();
    three.pass(10_000);
    assert!(three.is_bound(0));
    assert_eq!((&*second.state.label, second.state.ttl), ("old", ms(3000)));
    drop(second);
    three.pass(200);
    assert!(!three.is_bound(0), "who resumed it closes it");
    let error = three.resume(1, lease, 0).err().unwrap();
    assert_eq!(error, CallError::Rejected(Rejection::LeaseNotFound(lease)));
}

#[test]
fn detached_lease_expires_unless_resumed() {
    let mut three = Three::led_by(0, |_, _| {});
    let claim = three.open(1, 3000, 0, false);
    three.detach(1, claim);
    three.pass(2900);
    assert!(three.is_bound(0));
    three.pass(1700);
    assert!(!three.is_bound(0));
}

#[test]
fn returning_holder_does_not_end_a_session_resumed_elsewhere() {
    let mut three = Three::led_by(0, |_, _| {});
    let first = three.open(1, 3000, 2000, false);
    let (state, lease) = (Arc::clone(&first.state), first.state.lease);
    three.cut_off(1);
    let second = three.resume(2, lease, 2000).unwrap();
    three.until("it believes forever", |three| {
        matches!(three.state_at(&state), SessionState::Ended(_))
    });
    three.hub.heal_all();
    three.pass(500);
    drop(first);
    three.pass(10_000);
    assert!(three.is_bound(0));
    assert!(matches!(three.state_at(&second.state), SessionState::Active(_)));
    assert_eq!(second.state.ttl, ms(3000), "the delay is not believed in");
}

#[test]
fn resumed_lease_is_not_active_before_the_leader_confirms() {
    let mut three = Three::led_by(0, |_, _| {});
    let first = three.open(1, 3000, 0, false);
    let lease = three.detach(1, first);
    three.pass(200);
    // All requests of this node are lost: the read barrier, and any renewal.
    three.cut_off(2);
    let shared = Arc::clone(three.shared(2));
    let deadline = shared.now() + ms(1000);
    let error = three.wait(async move { shared.resume_session(lease, ms(0), deadline).await });
    assert_eq!(error.err().unwrap(), CallError::Deadline { maybe_applied: false });
    assert_eq!(three.shared(2).state.status.borrow().sessions, 0);
    three.hub.heal_all();
    three.pass(4000);
    assert!(!three.is_bound(0), "nobody kept it");
}

#[test]
fn lease_shared_by_two_nodes_ends_for_both_when_closed() {
    let mut three = Three::led_by(0, |_, _| {});
    let first = three.open(1, 3000, 0, false);
    let second = three.resume(2, first.state.lease, 0).unwrap();
    three.pass(5000);
    for claim in [&first, &second] {
        assert!(matches!(three.state_at(&claim.state), SessionState::Active(_)));
    }
    drop(first);
    three.pass(200);
    assert!(!three.is_bound(0));
    assert_eq!(three.state_at(&second.state), SessionState::Ended(SessionEndReason::LeaseEnded));
}

#[test]
fn failed_resume_names_the_reason() {
    let mut three = Three::led_by(0, |_, _| {});
    let own = three.open(1, 3000, 0, true);
    let lease = own.state.lease;
    let refused = |three: &mut Three, lease, delay| three.resume(2, lease, delay).err().unwrap();
    let why = ResumeSessionError::OwnSessionLease { lease, node: id(1) };
    assert_eq!(refused(&mut three, lease, 0), CallError::NotResumed(why));
    let unknown = LeaseId::new(77).unwrap();
    let why = CallError::Rejected(Rejection::LeaseNotFound(unknown));
    assert_eq!(refused(&mut three, unknown, 0), why);
    let short = three.open(1, 3000, 0, false);
    let (lease, delay) = (short.state.lease, ms(3000));
    let why = ResumeSessionError::DelayTooLong { lease_ttl: ms(3000), delay };
    assert_eq!(refused(&mut three, lease, 3000), CallError::NotResumed(why));
    let again = three.resume(1, lease, 0).unwrap();
    assert!(Arc::ptr_eq(&again.state, &short.state), "it is kept there already");
    let why = ResumeSessionError::OtherLockDelay { kept: ms(0), delay: ms(1) };
    let error = three.resume(1, lease, 1).err().unwrap();
    assert_eq!(error, CallError::NotResumed(why));
}

#[test]
fn dropped_resume_call_leaves_the_lease_unchanged() {
    let mut three = Three::led_by(0, |_, _| {});
    let first = three.open(1, 3000, 0, false);
    let lease = three.detach(1, first);
    // Drop the call after 0 steps, 1 step, and so on, until it is answered. In one case, the answer
    // has arrived but was not polled.
    let answered = (0..40).find(|steps| {
        let shared = Arc::clone(three.shared(2));
        let deadline = shared.now() + ms(5000);
        let mut call = Box::pin(async move { shared.resume_session(lease, ms(0), deadline).await });
        for _ in 0..*steps {
            let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(claim) = polled {
                three.detach(2, claim.unwrap());
                return true;
            }
            three.step();
        }
        false
    });
    assert!(answered.is_some_and(|steps| steps > 3), "{answered:?}");
    three.pass(100);
    assert!(three.is_bound(0), "it was not revoked");
    three.pass(5000);
    assert!(!three.is_bound(0), "and is not kept");
}

#[test]
fn leader_checks_the_clock_often_enough_for_leases() {
    let mut three = Three::new(|_, settings| {
        settings.heartbeat = Duration::from_secs(1);
        settings.election_timeout = Duration::from_secs(3);
    });
    let leader = three.leader();
    three.pass(3_000);
    let now = three.clock.now();
    let next = three.nodes.iter_mut().map(|node| match node.driver.turn() {
        Next::At(next) => next.since(now),
        Next::Stopped => panic!("it has stopped"),
    });
    let next: Vec<Duration> = next.collect();
    for (node, next) in next.into_iter().enumerate() {
        assert!(next <= Duration::from_millis(if node == leader { 50 } else { 250 }), "{next:?}");
    }
}

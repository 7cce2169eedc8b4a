//! Tests of semaphores.

use std::collections::BTreeSet;

use bowline::{
    Blocking, Compare, Effect, Error, GuardError, KeyRange, LockError, LostReason, Node, Op,
    Semaphore,
    lock::{LockKind, Permit},
};

use crate::stage::{
    Begun, SOON, STEADY, another_session, lasting, mortal, places, roles, session, until,
    until_places, until_true,
};

const NAME: &str = "permits";

type Waits = Begun<Result<Permit, LockError>>;

/// Starts a request, and returns when it is in the queue.
fn waits(semaphore: &Semaphore, node: &Node, permits: u32) -> Waits {
    let before = places(node, NAME);
    let begun = Begun::new(semaphore.acquire_many(permits));
    until(node, NAME, "one more", |count| count > before);
    begun
}

#[test]
fn semaphore_admits_its_limit_and_the_next_waits_for_any_release() {
    let cluster = lasting(3);
    let of = [0, 1, 2].map(|member| session(&cluster, member).semaphore(NAME, 2));
    let one = of[0].acquire().block().unwrap();
    let two = of[1].acquire().block().unwrap();
    assert_eq!(of[1].available_permits(), 0);
    let refused = of[2].try_acquire().block().unwrap_err();
    assert!(matches!(refused, LockError::WouldBlock { .. }), "{refused:?}");
    until_places(cluster.node(0), NAME, 2);
    let mut next = waits(&of[2], cluster.node(2), 1);
    assert!(next.poll().is_none());
    two.release().block().unwrap();
    let next = next.finish().unwrap();
    assert!(one.is_held() && next.is_held());
    assert!(next.token() > one.token());
    drop((one, next));
    until_places(cluster.node(0), NAME, 0);
    assert_eq!(of[0].available_permits(), 2);
}

#[test]
fn request_for_many_permits_is_not_overtaken() {
    let cluster = lasting(3);
    let of = [0, 1, 2].map(|member| session(&cluster, member).semaphore(NAME, 3));
    let small = of[0].acquire().block().unwrap();
    let mut big = waits(&of[1], cluster.node(1), 3);
    let mut late = waits(&of[2], cluster.node(2), 1);
    let refused = of[0].try_acquire().block().unwrap_err();
    assert!(matches!(refused, LockError::WouldBlock { .. }), "{refused:?}");
    assert!(big.poll().is_none() && late.poll().is_none());
    small.release().block().unwrap();
    let big = big.finish().unwrap();
    assert_eq!(big.permits(), 3);
    assert!(late.poll().is_none());
    big.release().block().unwrap();
    assert!(late.finish().unwrap().is_held());
}

#[test]
fn wrong_limit_wrong_kind_and_excess_permits_are_rejected() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let error = mine.semaphore(NAME, 2).acquire_many(3).block().unwrap_err();
    assert_eq!(error, LockError::TooManyPermits { asked: 3, limit: 2 });
    let permit = mine.semaphore(NAME, 2).acquire_many(2).block().unwrap();
    let error = mine.semaphore(NAME, 3).acquire().block().unwrap_err();
    assert_eq!(error, LockError::LimitMismatch { stored: 2, asked: 3 });
    let error = mine.mutex(NAME).lock().block().unwrap_err();
    assert_eq!(error, LockError::KindMismatch { stored: LockKind::Semaphore(2) });
    permit.release().block().unwrap();
    // The queue is empty, so no limit is stored any more.
    until_places(cluster.node(0), NAME, 0);
    assert!(mine.semaphore(NAME, 3).acquire().block().unwrap().is_held());
}

#[test]
fn raised_limit_grants_waiters_and_rejects_the_old_limit() {
    let cluster = lasting(3);
    let of = [0, 1, 2].map(|member| session(&cluster, member).semaphore(NAME, 1));
    let one = of[0].acquire().block().unwrap();
    let two = waits(&of[1], cluster.node(1), 1);
    let mut three = waits(&of[2], cluster.node(2), 1);
    let wider = of[2].resize(2).block().unwrap();
    let two = two.finish().unwrap();
    assert!(one.is_held() && two.is_held() && three.poll().is_none());
    let error = of[0].acquire().block().unwrap_err();
    assert_eq!(error, LockError::LimitMismatch { stored: 2, asked: 1 });
    assert_eq!(wider.limit(), 2);
    assert!(wider.try_acquire().block().is_err());
    one.release().block().unwrap();
    assert!(three.finish().unwrap().is_held());
}

#[test]
fn lowered_limit_waits_for_holders_and_rejects_oversized_waiters() {
    let cluster = lasting(3);
    let of = [0, 1, 2].map(|member| session(&cluster, member).semaphore(NAME, 3));
    let held = [&of[0], &of[1]].map(|of| of.acquire().block().unwrap());
    let big = waits(&of[2], cluster.node(2), 3);
    let fewer = of[0].resize(1).block().unwrap();
    let error = big.finish().unwrap_err();
    assert_eq!(error, LockError::TooManyPermits { asked: 3, limit: 1 });
    until_places(cluster.node(0), NAME, 2);
    assert!(held.iter().all(|permit| permit.is_held()));
    let mut next = waits(&fewer, cluster.node(0), 1);
    let [one, two] = held;
    one.release().block().unwrap();
    assert!(next.poll().is_none());
    two.release().block().unwrap();
    assert!(next.finish().unwrap().is_held());
}

/// Permits stay held when the limit is lowered. Their entries then look like waiting requests, but
/// keep their permits.
#[test]
fn permit_beyond_a_lowered_limit_survives_a_handoff() {
    let cluster = lasting(3);
    let of = [0, 1].map(|member| session(&cluster, member).semaphore(NAME, 2));
    let [one, two] = of.each_ref().map(|of| of.acquire().block().unwrap());
    of[0].resize(1).block().unwrap();
    let locks = cluster.node(0).locks();
    let line = locks.of(NAME).unwrap().queue;
    assert_eq!([&line[0].key, &line[1].key], [one.key(), two.key()]);
    locks.transfer(&line[0], &line[1], "by mistake").deadline(SOON).block().unwrap();
    let written = two.txn().then(Op::put("written", "1")).commit().block();
    assert!(written.is_ok() && two.is_held(), "{written:?}, {:?}", two.state());
    assert!(!one.is_held());
    two.release().block().unwrap();
    until_places(cluster.node(0), NAME, 0);
}

/// A transfer of a permit depends on each entry before the successor. If there are more than
/// `TRANSFERRED_MAX` (64), the permit is released, and the first waiter gets it.
#[test]
fn permit_is_transferred_past_64_entries_but_not_past_65() {
    for (limit, next) in [(63, 1), (64, 0)] {
        let cluster = lasting(1);
        let node = cluster.node(0);
        let [holder, waiter] = [session(&cluster, 0), node.open_session().block().unwrap()];
        let [held, waiting] = [&holder, &waiter].map(|session| session.semaphore(NAME, limit));
        let held: Vec<_> = (0..limit).map(|_| held.acquire().block().unwrap()).collect();
        let mut waiters = [(); 2].map(|()| waits(&waiting, node, 1));
        let locks = node.locks();
        let line = locks.of(NAME).unwrap().queue;
        assert_eq!(line.len(), limit as usize + 2);
        locks.transfer(&line[0], line.last().unwrap(), "").deadline(SOON).block().ok();
        until_places(node, NAME, u64::from(limit) + 1);
        assert!(waiters[1 - next].poll().is_none(), "{limit}");
        let [first, second] = waiters;
        let served = if next == 0 { first } else { second }.finish().unwrap();
        assert!(served.is_held() && !held[0].is_held());
    }
}

#[test]
fn waiter_learning_of_its_entry_and_a_resize_together_is_rejected() {
    let cluster = lasting(3);
    let (leader, far, _) = roles(&cluster);
    let of = [leader, far].map(|member| session(&cluster, member).semaphore(NAME, 3));
    let held = of[0].acquire().block().unwrap();
    // The request arrives, but no answer comes back. While the node is paused, it cannot notice the cut before it has
    // sent the request.
    cluster.pause(far);
    let acquire = Begun::new(of[1].acquire_many(3).deadline(SOON));
    cluster.cut(leader, far);
    cluster.resume(far);
    until_places(cluster.node(leader), NAME, 2);
    of[0].resize(2).block().unwrap();
    cluster.heal();
    let error = acquire.finish().unwrap_err();
    assert_eq!(error, LockError::TooManyPermits { asked: 3, limit: 2 });
    assert!(held.is_held());
    until_places(cluster.node(leader), NAME, 1);
}

#[test]
fn unconfirmed_resize_reports_an_unknown_effect() {
    let cluster = lasting(3);
    let (_, far, other) = roles(&cluster);
    let of = session(&cluster, far).semaphore(NAME, 1);
    let _held = of.acquire().block().unwrap();
    // A paused node answers nothing within a poll.
    cluster.pause(far);
    let mut resize = Begun::new(of.resize(2).deadline(STEADY));
    cluster.resume(far);
    until_true(cluster.node(far), "the line is read", || resize.wakes() >= 1);
    // The resize has read the queue, and is about to rewrite its rows.
    cluster.pause(far);
    assert!(resize.poll().is_none());
    cluster.resume(far);
    until_true(cluster.node(far), "it is rewritten", || resize.wakes() >= 2);
    cluster.partition(&[far]);
    let error = resize.finish().unwrap_err();
    assert_eq!(error, LockError::Store(Error::Deadline { effect: Effect::Unknown }));
    let kind = cluster.node(other).locks().of(NAME).unwrap().queue[0].kind;
    assert_eq!(kind, LockKind::Semaphore(2));
}

#[test]
fn resize_of_a_long_queue_takes_several_entries() {
    let cluster = lasting(1);
    let node = cluster.node(0);
    let of = session(&cluster, 0).semaphore(NAME, 5);
    let mut acquires: Vec<Waits> = Vec::new();
    let held: Vec<Permit> = (0..5).map(|_| of.acquire().block().unwrap()).collect();
    acquires.extend((0..225).map(|_| Begun::new(of.acquire())));
    until_places(node, NAME, 230);
    let wider = of.resize(230).block().unwrap();
    let granted: Vec<Permit> =
        acquires.into_iter().map(|acquire| acquire.finish().unwrap()).collect();
    assert!(held.iter().chain(&granted).all(|permit| permit.is_held()));
    assert_eq!(wider.available_permits(), 0);
    let limits: BTreeSet<_> = of
        .queue()
        .unwrap()
        .into_iter()
        .map(|place| place.kind)
        .map(|kind| format!("{kind:?}"))
        .collect();
    assert_eq!(limits.len(), 1, "{limits:?}");
}

#[test]
fn slots_are_exclusive_and_have_rising_tokens() {
    let cluster = lasting(3);
    let of = [0, 1].map(|member| session(&cluster, member).semaphore(NAME, 3));
    let (one, two) = (of[0].acquire().block().unwrap(), of[1].acquire_many(2).block().unwrap());
    let (a, b) = (one.slots().block().unwrap(), two.slots().block().unwrap());
    assert_eq!(a, one.slots().block().unwrap(), "asked again");
    let numbers: BTreeSet<u32> = a.iter().chain(&b).map(|slot| slot.number).collect();
    assert_eq!(numbers, BTreeSet::from([0, 1, 2]));
    let (number, token) = (a[0].number, a[0].token);
    one.release().block().unwrap();
    assert_eq!(places(cluster.node(0), &format!("{NAME}/slot")), 2);
    let next = of[1].acquire().block().unwrap();
    let again = next.slots().block().unwrap();
    assert_eq!(again[0].number, number);
    assert!(again[0].token > token);
}

#[test]
fn lost_permit_returns_no_slots_despite_remaining_rows() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let permit = mine.semaphore(NAME, 2).acquire().block().unwrap();
    assert_eq!(permit.slots().block().unwrap().len(), 1);
    // The lease and its rows still exist. When the lease ends, the slot becomes free for the next
    // permit.
    mine.detach();
    assert!(!permit.is_held());
    assert_eq!(places(cluster.node(0), &format!("{NAME}/slot")), 1);
    assert_eq!(permit.slots().block().unwrap_err(), GuardError::NotHeld);
}

#[test]
fn permits_of_one_session_claim_slots_concurrently() {
    let cluster = lasting(1);
    let of = session(&cluster, 0).semaphore(NAME, 8);
    let permits: Vec<Permit> = (0..8).map(|_| of.acquire().block().unwrap()).collect();
    let numbers: BTreeSet<u32> = std::thread::scope(|scope| {
        let claim = |permit| scope.spawn(move || Permit::slots(permit).block().unwrap()[0].number);
        let threads: Vec<_> = permits.iter().map(claim).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(numbers.len(), 8);
    // Each slot is freed only by the release of the permit that owns it, even if several permits tried to claim the
    // slot.
    for (gone, permit) in (1..).zip(permits) {
        permit.release().block().unwrap();
        assert_eq!(places(cluster.node(0), &format!("{NAME}/slot")), 8 - gone);
    }
}

#[test]
fn tasks_sharing_a_permit_get_the_same_slots() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    for round in 0..10 {
        let semaphore = sessions[1].semaphore("pool", 8);
        let other = sessions[0].semaphore("pool", 8).acquire_many(2).block().unwrap();
        assert_eq!(other.slots().block().unwrap().len(), 2);
        let permit = semaphore.acquire_many(2).block().unwrap();
        let (one, two) = std::thread::scope(|scope| {
            let ask = || scope.spawn(|| permit.slots().block().unwrap());
            let (one, two) = (ask(), ask());
            // Slots that are released in the meantime must not be claimed in addition.
            other.release().block().unwrap();
            (one.join().unwrap(), two.join().unwrap())
        });
        assert_eq!(one, two, "round {round}");
        until_places(cluster.node(0), "pool/slot", 2);
        drop(permit);
        until_places(cluster.node(0), "pool", 0);
    }
}

#[test]
fn permit_passes_on_after_its_max_hold() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let semaphore = sessions[0].semaphore(NAME, 1);
    let permit = semaphore.acquire().max_hold(STEADY).block().unwrap();
    let next = sessions[1].semaphore(NAME, 1).acquire().block().unwrap();
    assert!(next.is_held());
    assert_eq!(permit.lost().block(), LostReason::HeldTooLong);
}

#[test]
fn key_that_was_not_bound_is_not_deleted_on_release() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let (one, two) =
        (mine.mutex("one").lock().block().unwrap(), mine.mutex("two").lock().block().unwrap());
    let claim = |guard: &bowline::Guard| {
        let txn = guard.txn().when(Compare::missing("desk")).then_while_held("desk", "taken");
        txn.commit().block().unwrap().succeeded
    };
    assert!(claim(&one));
    assert!(!claim(&two));
    two.release().block().unwrap();
    assert!(mine.client().get("desk").block().unwrap().is_some());
    one.release().block().unwrap();
    assert!(mine.client().get("desk").block().unwrap().is_none());
}

#[test]
fn dropped_or_evicted_permit_wait_leaves_nothing() {
    let cluster = lasting(3);
    let of = [0, 1].map(|member| session(&cluster, member).semaphore(NAME, 1));
    let held = of[0].acquire().block().unwrap();
    drop(waits(&of[1], cluster.node(1), 1));
    until_places(cluster.node(0), NAME, 1);
    let waiting = waits(&of[1], cluster.node(1), 1);
    let row = of[1].queue().unwrap().pop().unwrap();
    cluster.node(0).client().delete(row.key).block().unwrap();
    assert_eq!(waiting.finish().unwrap_err(), LockError::Evicted);
    cluster.node(1).client().delete(held.key().clone()).block().unwrap();
    assert_eq!(held.lost().block(), LostReason::KeyDeleted);
    until_places(cluster.node(0), NAME, 0);
}

#[test]
fn permits_and_slots_of_an_ended_session_are_freed() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let held = mortal(&cluster, one).semaphore(NAME, 1).acquire().block().unwrap();
    held.slots().block().unwrap();
    let waiting = another_session(&cluster, two, "next");
    let of = waiting.semaphore(NAME, 1);
    let next = waits_deep(&of, cluster.node(two));
    cluster.partition(&[one]);
    let next = next.finish().unwrap();
    assert!(!held.is_held());
    assert_eq!(next.slots().block().unwrap()[0].number, 0);
}

/// Like [`waits`], for a name with slots below it.
fn waits_deep(semaphore: &Semaphore, node: &Node) -> Waits {
    let begun = Begun::new(semaphore.acquire());
    let below = KeyRange::prefix(format!("{NAME}/"));
    let rows = || node.client().range(below.clone()).local().count_only().block().unwrap().count;
    crate::stage::until_true(node, "in line", || rows() == 3);
    begun
}

#[test]
fn repeated_acquires_reuse_key_names() {
    let cluster = lasting(1);
    let of = session(&cluster, 0).semaphore(NAME, 4);
    // The node keeps its data about the queue while one of its requests is in the queue.
    let _stays = of.acquire().block().unwrap();
    let mut names = BTreeSet::new();
    for _ in 0..20 {
        let held = [(); 3].map(|()| of.acquire().block().unwrap());
        names.extend(held.iter().map(|permit| permit.key().clone()));
        for permit in held {
            permit.release().block().unwrap();
        }
    }
    // The node uses the name of a key again once it knows that the key is deleted, which may take a moment. So only a
    // few names are needed.
    assert!(names.len() <= 6, "{names:?}");
}

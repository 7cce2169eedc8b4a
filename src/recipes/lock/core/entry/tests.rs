//! Tests of queue entries.

use std::sync::atomic::AtomicUsize;
use std::task::{Wake, Waker};
use std::time::Duration;

use super::*;
use crate::lock_format::{AdminAction, AdminRequest};
use crate::model::{LeaseId, Moment};
use crate::recipes::lock::core::waiter::WaiterStage;
use crate::recipes::lock::core::waiter_counts::WaiterCounts;

/// Returns a new entry shared by the tasks of a session, and a waiter
/// for each of `TASKS` tasks.
fn shared_by<const TASKS: usize>() -> (Arc<QueueEntry>, [Arc<Waiter>; TASKS]) {
    let (lease, until) = (LeaseId::new(5).unwrap(), Moment::since_boot(Duration::from_secs(9)));
    let session = Arc::new(SharedSession::with_valid_lease(lease, until));
    let (key, counts) = (Bytes::from_static(b"lock/5"), WaiterCounts::from_iter([]));
    let data = EntryData::new([key].into(), Bytes::new(), counts);
    let entry = QueueEntry::new(1, [Bytes::from_static(b"lock/")].into(), session, true, data);
    let waiters = std::array::from_fn(|_| entry.add_waiter(WaiterOptions::default()));
    (entry, waiters)
}

/// Grants the lock to an entry whose enqueue has just succeeded.
fn grant(entry: &Arc<QueueEntry>, actions: &mut DeferredActions) {
    let outcome = Enqueued::MayHold(Revision(2));
    entry.apply(EntryEvent::Enqueued { since: Revision(2), outcome }, actions);
}

fn is_granted(entry: &QueueEntry, waiter: &Arc<Waiter>) -> bool {
    matches!(waiter.stage(None), WaiterStage::Granted(_))
        && waiter.loss().is_none()
        && entry.is_held_by(waiter)
}

#[test]
fn timed_out_waiter_keeps_a_lock_granted_just_before() {
    let (entry, [first, second, third]) = shared_by();
    let mut actions = DeferredActions::default();
    grant(&entry, &mut actions);
    // The timer sees that the second task waits...
    assert!(matches!(second.stage(None), WaiterStage::Requested));
    // ...then the holder hands off on another thread, and afterwards the timer fails the
    // waiter.
    assert!(entry.hand_off(&first, &mut actions));
    entry.fail_waiter(&second, LockError::TimedOut { before: 1 }, &mut actions);
    assert!(is_granted(&entry, &second) && !is_granted(&entry, &third));
    entry.fail_waiter(&third, LockError::TimedOut { before: 1 }, &mut actions);
    assert!(matches!(third.stage(None), WaiterStage::Failed(LockError::TimedOut { .. })));
    assert!(is_granted(&entry, &second));
}

/// Two threads: one polls while the other settles the waiter, with a slightly different delay
/// each time.
#[test]
fn waiter_is_woken_when_its_poll_races_with_its_grant() {
    const ROUNDS: usize = 20_000;
    let waiters: Vec<Arc<Waiter>> = (0..ROUNDS).map(|_| shared_by::<1>().1[0].clone()).collect();
    let [asked, done] = [const { AtomicUsize::new(0) }; 2];
    let reaches = |counter: &AtomicUsize, round: usize| {
        for spins in 0u64.. {
            if counter.load(Ordering::Acquire) > round {
                return;
            }
            std::hint::spin_loop();
            if spins % 1_000 == 999 {
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (round, waiter) in waiters.iter().enumerate() {
                reaches(&asked, round);
                (0..round % 53).for_each(|_| std::hint::spin_loop());
                let waker = waiter.settle(WaiterStage::Failed(LockError::Unavailable));
                if let Some(waker) = waker {
                    waker.wake();
                }
                done.store(round + 1, Ordering::Release);
            }
        });
        for (round, waiter) in waiters.iter().enumerate() {
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            asked.store(round + 1, Ordering::Release);
            (0..round % 47).for_each(|_| std::hint::spin_loop());
            let waits = matches!(
                waiter.stage(Some(&waker)),
                WaiterStage::Requested | WaiterStage::Waiting(_)
            );
            reaches(&done, round);
            let is_woken = woken.0.load(Ordering::Acquire);
            assert_eq!(is_woken, waits, "round {round}: it waits, or was answered");
        }
    });
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn action_received_before_the_entry_position_is_applied_later() {
    let (entry, [waiter]) = shared_by();
    let (key, row) = (Bytes::from_static(b"lock/5"), Bytes::from_static(b"lock/5/order"));
    let request = ReleaseRequest { by: "ops".to_owned(), reason: "it is due".to_owned() };
    let (action, since) = (AdminAction::RequestRelease, Revision(2));
    let admin = AdminRequest { action, since, request: request.clone() };
    let mut actions = DeferredActions::default();
    entry.apply(EntryEvent::Admin(AdminRow { request: admin, key, row }), &mut actions);
    entry.apply(EntryEvent::PositionKnown, &mut actions);
    assert_eq!(waiter.request(), None);
    grant(&entry, &mut actions);
    entry.apply(EntryEvent::PositionKnown, &mut actions);
    assert_eq!(waiter.request(), Some(request));
    assert_eq!(entry.delete_bound().len(), 1, "the request goes with the hold that it is about");
}

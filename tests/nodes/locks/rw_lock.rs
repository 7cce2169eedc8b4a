//! Tests of read/write locks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use bowline::{
    Blocking, Compare, Effect, Error, GuardError, LockError, LostReason, Node, Op, Rejection,
    Released, Session, SessionEndReason,
    cluster::{Alarm, AlarmChange, AlarmKind},
    lock::{DowngradeError, GuardTxn, LockKind, ReadGuard, Upgrade, UpgradeError, WriteGuard},
};

use crate::stage::{
    Begun, SHORT, SOON, STEADY, another_session, lasting, lasting_with, mortal, places, roles,
    session, until, until_places, until_true,
};

const LOCK: &str = "lock";

type Reads = Begun<Result<ReadGuard, LockError>>;
type Writes = Begun<Result<WriteGuard, LockError>>;

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn read(session: &Session) -> ReadGuard {
    session.rw_lock(LOCK).read().block().unwrap()
}

/// Starts a request, and returns when it is in the queue.
fn reads(session: &Session, node: &Node) -> Reads {
    let before = places(node, LOCK);
    let begun = Begun::new(session.rw_lock(LOCK).read());
    until(node, LOCK, "one more", |count| count > before);
    begun
}

fn writes(session: &Session, node: &Node) -> Writes {
    let before = places(node, LOCK);
    let begun = Begun::new(session.rw_lock(LOCK).write());
    until(node, LOCK, "one more", |count| count > before);
    begun
}

fn upgrades(guard: ReadGuard, node: &Node) -> Begun<Result<WriteGuard, UpgradeError>> {
    let before = places(node, LOCK);
    let begun = Begun::new(guard.upgrade());
    until(node, LOCK, "one more", |count| count > before);
    begun
}

#[test]
fn readers_share_the_lock_and_a_writer_excludes_all() {
    let cluster = lasting(3);
    let sessions = [0, 1, 2].map(|member| session(&cluster, member));
    let readers = sessions.each_ref().map(read);
    assert!(readers.iter().all(|guard| guard.is_held()));
    let refused = sessions[0].rw_lock(LOCK).try_write().block().unwrap_err();
    assert!(matches!(refused, LockError::WouldBlock { .. }), "{refused:?}");
    until_places(cluster.node(0), LOCK, 3);
    let mut writer = writes(&sessions[1], cluster.node(1));
    let newest = readers.iter().map(|guard| guard.token()).max().unwrap();
    let [one, two, three] = readers;
    assert_eq!(one.release().block().unwrap(), Released::Now);
    assert_eq!(two.release().block().unwrap(), Released::Now);
    assert!(writer.poll().is_none(), "one reader is left");
    drop(three);
    let writer = writer.finish().unwrap();
    assert!(writer.token() > newest);
    let refused = sessions[2].rw_lock(LOCK).try_read().block().unwrap_err();
    assert!(matches!(refused, LockError::WouldBlock { .. }), "{refused:?}");
    assert_eq!(writer.release().block().unwrap(), Released::Now);
    until_places(cluster.node(0), LOCK, 0);
}

#[test]
fn reader_never_overtakes_a_waiting_writer() {
    let cluster = lasting(3);
    let sessions = [0, 1, 2].map(|member| session(&cluster, member));
    let first = read(&sessions[0]);
    let writer = writes(&sessions[1], cluster.node(1));
    let mut late = reads(&sessions[2], cluster.node(2));
    let refused = sessions[0].rw_lock(LOCK).try_read().block().unwrap_err();
    assert!(matches!(refused, LockError::WouldBlock { .. }), "{refused:?}");
    assert!(late.poll().is_none());
    first.release().block().unwrap();
    let writer = writer.finish().unwrap();
    assert!(late.poll().is_none());
    writer.release().block().unwrap();
    assert!(late.finish().unwrap().is_held());
}

#[test]
fn readers_are_granted_when_the_waiting_writer_gives_up() {
    let cluster = lasting(3);
    let sessions = [0, 1, 2].map(|member| session(&cluster, member));
    let first = read(&sessions[0]);
    let writer = writes(&sessions[1], cluster.node(1));
    let late = reads(&sessions[2], cluster.node(2));
    drop(writer);
    assert!(late.finish().unwrap().is_held());
    assert!(first.is_held());
}

#[test]
fn downgrade_admits_readers_and_keeps_queue_position_and_token() {
    let cluster = lasting(3);
    let sessions = [0, 1, 2].map(|member| session(&cluster, member));
    let writer = sessions[0].rw_lock(LOCK).write().block().unwrap();
    let (key, since, token) = (writer.key().clone(), writer.since(), writer.token());
    let behind = reads(&sessions[1], cluster.node(1));
    let reader = writer.downgrade().block().unwrap();
    assert_eq!((reader.key(), reader.since(), reader.token()), (&key, since, token));
    assert!(behind.finish().unwrap().is_held());
    assert!(reader.is_held());
    assert!(sessions[2].rw_lock(LOCK).try_write().block().is_err());
    reader.release().block().unwrap();
    assert!(sessions[2].rw_lock(LOCK).write().block().unwrap().is_held());
}

#[test]
fn pending_write_of_a_downgraded_writer_fails() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let kv = cluster.node(two).client();
    let is_done = |conditions: Vec<Compare>| {
        let txn = conditions.into_iter().fold(kv.txn(), |txn, condition| txn.when(condition));
        txn.then(Op::put("row", "late")).commit().block().unwrap().succeeded
    };
    let write = |txn: GuardTxn| txn.then(Op::put("row", "written")).commit().block();
    let writer = session(&cluster, one).rw_lock(LOCK).write().block().unwrap();
    let (late, conditions) = (writer.txn(), writer.still_held());
    let reader = writer.downgrade().block().unwrap();
    let other = read(&session(&cluster, two));
    assert_eq!(write(late), Err(GuardError::NotHeld));
    assert!(!is_done(conditions));
    assert!(other.is_held());
    // The holder continues as a reader.
    write(reader.txn()).unwrap();
    drop(other);
    let (early, conditions) = (reader.txn(), reader.still_held());
    let writer = reader.upgrade().block().unwrap();
    write(writer.txn()).unwrap();
    write(early).unwrap();
    assert!(is_done(conditions) && is_done(writer.still_held()));
}

#[test]
fn writer_may_write_however_it_acquired_the_lock() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let write = |txn: GuardTxn| txn.then(Op::put("row", "written")).commit().block();
    let writer = session(&cluster, one).rw_lock(LOCK).write().reason("first").block().unwrap();
    let successor = writes(&session(&cluster, two), cluster.node(two));
    until_places(cluster.node(one), LOCK, 2);
    let (locks, line) =
        (cluster.node(one).locks(), writer.session().rw_lock(LOCK).queue().unwrap());
    locks.transfer(&line[0], &line[1], "").block().unwrap();
    let handed = successor.finish().unwrap();
    write(handed.txn()).unwrap();
    drop(handed);
    let mine = session(&cluster, one);
    let (owner, lock) = (mine.owner("ann"), mine.rw_lock(LOCK));
    let [first, second] = [(); 2].map(|()| lock.read().owner(&owner).block().unwrap());
    let first = first.upgrade().block().unwrap();
    write(second.txn()).unwrap();
    let second = second.upgrade().block().unwrap();
    assert_eq!(first.token(), second.token());
    let late = [first.txn(), second.txn()];
    write(first.txn()).and(write(second.txn())).unwrap();
    drop(first);
    let reader = second.downgrade().block().unwrap();
    assert_eq!(late.map(write), [(); 2].map(|()| Err(GuardError::NotHeld)));
    let again = lock.read().owner(&owner).block().unwrap();
    write(again.txn()).and(write(reader.txn())).unwrap();
}

#[test]
fn rejected_downgrade_can_be_upgraded_again_once_the_alarm_ends() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let writer = session(&cluster, 0).rw_lock(LOCK).write().block().unwrap();
    let full = Alarm { member: None, kind: AlarmKind::NoSpace };
    let rejection = Error::Rejected(Rejection::Alarm(AlarmKind::NoSpace));
    kv.change_alarms(AlarmChange::Raise(full)).block().unwrap();
    let unconfirmed = writer.downgrade().block().unwrap_err();
    assert_eq!((unconfirmed.effect(), unconfirmed.is_transient()), (Effect::NotApplied, false));
    let DowngradeError::Unconfirmed { guard, error } = unconfirmed else {
        panic!("what puts something is refused");
    };
    assert_eq!(error, rejection);
    let refused = guard.upgrade().deadline(SOON).block().unwrap_err();
    assert_eq!(refused.why, LockError::Store(rejection));
    assert_eq!((refused.effect(), refused.is_transient()), (Effect::NotApplied, false));
    kv.change_alarms(AlarmChange::End(full)).block().unwrap();
    let writer = refused.guard.upgrade().deadline(SOON).block().unwrap();
    writer.txn().then(Op::put("row", "written")).commit().block().unwrap();
    assert!(session(&cluster, 0).rw_lock(LOCK).try_read().block().is_err());
}

#[test]
fn downgrade_of_a_lost_lock_returns_lost() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let writer = mine.rw_lock(LOCK).write().block().unwrap();
    mine.client().delete(writer.key().clone()).block().unwrap();
    let error = writer.downgrade().block().unwrap_err();
    assert!(matches!(error, DowngradeError::Lost(LostReason::KeyDeleted)), "{error:?}");
    assert_eq!((error.effect(), error.is_transient()), (Effect::NotApplied, false));
    until_places(cluster.node(0), LOCK, 0);
}

#[test]
fn unconfirmed_downgrade_reads_and_eventually_admits_readers() {
    let cluster = lasting_with(3, |config| config.call_deadline(STEADY));
    let (leader, one, _) = roles(&cluster);
    let read = session(&cluster, leader).rw_lock(LOCK).read();
    let writer = session(&cluster, one).rw_lock(LOCK).write().block().unwrap();
    cluster.partition(&[one]);
    let error = writer.downgrade().block().unwrap_err();
    assert_eq!((error.effect(), error.is_transient()), (Effect::Unknown, false));
    let DowngradeError::Unconfirmed { guard, .. } = error else { panic!("{error:?}") };
    let beside: Reads = Begun::new(read.deadline(SOON));
    cluster.heal();
    assert!(beside.finish().unwrap().is_held() && guard.is_held());
}

#[test]
fn a_downgrade_that_is_dropped_releases() {
    let cluster = lasting(3);
    let (_, one, _) = roles(&cluster);
    let writer = session(&cluster, one).rw_lock(LOCK).write().block().unwrap();
    cluster.partition(&[one]);
    drop(Begun::new(writer.downgrade()));
    cluster.heal();
    until_places(cluster.node(one), LOCK, 0);
}

#[test]
fn upgrade_waits_for_other_readers_but_not_for_writers() {
    let cluster = lasting(3);
    let sessions = [0, 1, 2].map(|member| session(&cluster, member));
    let (mine, other) = (read(&sessions[0]), read(&sessions[1]));
    let (key, token) = (mine.key().clone(), other.token());
    let mut writer = writes(&sessions[2], cluster.node(2));
    let mut late = reads(&sessions[1], cluster.node(1));
    let mut upgrade = upgrades(mine, cluster.node(0));
    assert!(upgrade.poll().is_none());
    other.release().block().unwrap();
    let upgraded = upgrade.finish().unwrap();
    assert!(upgraded.token() > token);
    assert_eq!(upgraded.key(), &key);
    // There is one row each for the holding writer, the waiting writer, and the waiting reader.
    assert_eq!(places(cluster.node(0), LOCK), 3);
    assert!(writer.poll().is_none() && late.poll().is_none());
    let line = sessions[0].rw_lock(LOCK).queue().unwrap();
    assert_eq!(line.iter().map(|place| place.holds).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(upgraded.release().block().unwrap(), Released::Now);
    writer.finish().unwrap().release().block().unwrap();
    assert!(late.finish().unwrap().is_held());
}

#[test]
fn upgrade_and_a_later_reader_do_not_deadlock() {
    let cluster = lasting(3);
    let sessions = [0, 1, 2].map(|member| session(&cluster, member));
    let (mine, other) = (read(&sessions[0]), read(&sessions[1]));
    let mut upgrade = upgrades(mine, cluster.node(0));
    let mut late = reads(&sessions[2], cluster.node(2));
    assert!(upgrade.poll().is_none());
    other.release().block().unwrap();
    let writer = upgrade.finish().unwrap();
    assert!(late.poll().is_none());
    drop(writer);
    assert!(late.finish().unwrap().is_held());
}

#[test]
fn second_upgrade_is_rejected_and_keeps_reading() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let (one, two) = (read(&sessions[0]), read(&sessions[1]));
    let first = upgrades(one, cluster.node(0));
    let error = two.upgrade().block().unwrap_err();
    assert!(!error.is_transient(), "it is in the way of the other one");
    let UpgradeError { guard, why, .. } = error;
    assert_eq!(why, LockError::UpgradeTaken);
    assert!(guard.is_held());
    guard.release().block().unwrap();
    assert!(first.finish().unwrap().is_held());
}

#[test]
fn failed_try_upgrade_returns_the_read_guard() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let (one, two) = (read(&sessions[0]), read(&sessions[1]));
    let error = one.try_upgrade().block().unwrap_err();
    assert_eq!((error.effect(), error.is_transient()), (Effect::NotApplied, true));
    let LockError::WouldBlock { holder } = &error.why else { panic!("{error:?}") };
    let holder = holder.as_deref().map(|holder| &holder.key);
    assert_eq!(holder, Some(two.key()), "the other reader, and not the one who asks");
    two.release().block().unwrap();
    until_places(cluster.node(0), LOCK, 1);
    let writer = error.guard.try_upgrade().block().unwrap();
    assert!(writer.is_held());
    writer.downgrade().block().unwrap().release().block().unwrap();
    until_places(cluster.node(0), LOCK, 0);
}

#[test]
fn timed_out_upgrade_returns_the_read_guard() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let (one, _two) = (read(&mine), read(&mine));
    let error = one.upgrade().deadline(SHORT).block().unwrap_err();
    assert!(matches!(error.why, LockError::TimedOut { .. }), "{error:?}");
    assert!(error.guard.is_held());
    until_places(cluster.node(0), LOCK, 2);
}

#[test]
fn canceled_upgrade_keeps_reading_and_dropped_upgrade_releases() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let (one, two) = (read(&mine), read(&mine));
    let mut upgrade = one.upgrade();
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut upgrade).poll(&mut context).is_pending());
    until_places(cluster.node(0), LOCK, 3);
    let one = upgrade.give_up().unwrap();
    assert!(one.is_held());
    until_places(cluster.node(0), LOCK, 2);
    drop(upgrades(one, cluster.node(0)));
    until_places(cluster.node(0), LOCK, 1);
    drop(two);
    until_places(cluster.node(0), LOCK, 0);
}

#[test]
fn upgrade_canceled_with_an_unknown_outcome_ends_as_a_reader() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let (mine, other) = (session(&cluster, one), session(&cluster, two));
    let (reader, last) = (read(&mine), read(&other));
    let mut upgrade = reader.upgrade();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let poll = |upgrade: &mut Upgrade| {
        let polled = Pin::new(upgrade).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "{polled:?}");
    };
    poll(&mut upgrade);
    until_places(cluster.node(one), LOCK, 3);
    last.release().block().unwrap();
    until_true(cluster.node(one), "the only reader", || woken.0.load(Ordering::SeqCst));
    // The upgrade could be granted now, but its node cannot reach the cluster.
    cluster.partition(&[one]);
    poll(&mut upgrade);
    let reader = upgrade.give_up().unwrap();
    cluster.heal();
    assert!(other.rw_lock(LOCK).read().block().unwrap().is_held());
    assert!(reader.is_held());
    drop(reader);
    until_places(cluster.node(two), LOCK, 0);
}

#[test]
fn canceled_upgrade_is_not_mistaken_for_a_writer_by_the_next() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let (mine, other) = (session(&cluster, one), session(&cluster, two));
    let (reader, last) = (read(&mine), read(&other));
    let mut upgrade = reader.upgrade();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let poll = |upgrade: &mut Upgrade| {
        let polled = Pin::new(upgrade).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "{polled:?}");
    };
    poll(&mut upgrade);
    until_places(cluster.node(one), LOCK, 2 + 1);
    last.release().block().unwrap();
    until_true(cluster.node(one), "the only reader", || woken.0.load(Ordering::SeqCst));
    // While the node is paused, the first poll gets no answer.
    cluster.pause(one);
    poll(&mut upgrade);
    cluster.resume(one);
    // The upgrade is applied, but its node does not know this yet.
    until_places(cluster.node(one), LOCK, 1);
    cluster.pause(one);
    let reader = upgrade.give_up().unwrap();
    let mut again = reader.upgrade();
    let polled = Pin::new(&mut again).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending(), "its row is about to say that it reads: {polled:?}");
    cluster.resume(one);
    let writer = again.block().unwrap();
    let row = cluster.node(two).locks().of(LOCK).unwrap().queue.remove(0);
    assert!(writer.is_held() && row.holds);
    let mut late = reads(&other, cluster.node(two));
    assert!(late.poll().is_none());
    drop(writer);
    assert!(late.finish().unwrap().is_held());
}

#[test]
fn upgrade_dropped_after_an_undelivered_grant_leaves_a_reader() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let (mine, other) = (session(&cluster, one), session(&cluster, two));
    let owner = mine.owner("two guards");
    let [first, second] =
        [(); 2].map(|()| mine.rw_lock(LOCK).read().owner(&owner).block().unwrap());
    let mut upgrade = Begun::new(first.upgrade());
    until_true(cluster.node(one), "the only reader", || upgrade.wakes() > 0);
    let woken = upgrade.wakes();
    // While the node is paused, the first poll gets no answer.
    cluster.pause(one);
    assert!(upgrade.poll().is_none(), "its entry is on its way");
    cluster.resume(one);
    until_true(cluster.node(one), "the answer", || upgrade.wakes() > woken);
    drop(upgrade);
    assert!(second.is_held());
    let read = other.rw_lock(LOCK).read().deadline(SOON).block();
    assert!(read.unwrap().is_held(), "a reader whose row says that it writes keeps others out");
    let writer = second.upgrade().deadline(SOON).block().unwrap();
    assert!(writer.is_held());
}

#[test]
fn partitioned_upgrade_times_out_and_leaves_a_reader() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let (mine, other) = (session(&cluster, one), session(&cluster, two));
    let reader = read(&mine);
    let last = read(&other);
    // The first poll queues the upgrade. The upgrade waits, because another session holds a read lock.
    let mut upgrade = Begun::new(reader.upgrade().deadline(SOON / 4));
    until_places(cluster.node(one), LOCK, 2 + 1);
    last.release().block().unwrap();
    until_true(cluster.node(one), "the only reader", || upgrade.wakes() > 0);
    cluster.partition(&[one]);
    assert!(upgrade.poll().is_none(), "its entry cannot be answered");
    let begun = cluster.node(one).now();
    let refused = upgrade.finish().unwrap_err();
    assert!(matches!(refused.why, LockError::Unavailable), "{refused:?}");
    assert!(cluster.node(one).now().since(begun) < SOON / 2);
    // The failed upgrade may have created its queue entry. In any case the holder is still a reader, and other readers
    // may acquire the lock.
    cluster.heal();
    assert!(refused.guard.is_held());
    assert!(read(&other).is_held());
}

#[test]
fn upgrade_does_not_overtake_a_reader_blocked_by_a_writer() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let (mine, other) = (session(&cluster, one), session(&cluster, two));
    let reader = read(&mine);
    let writer = writes(&other, cluster.node(two));
    let late = reads(&other, cluster.node(two));
    // The first poll sends the request for the upgrade, which cannot be answered during the partition.
    cluster.partition(&[one]);
    let mut upgrade = Begun::new(reader.upgrade());
    cluster.heal();
    until_places(cluster.node(two), LOCK, 3 + 1);
    // Only the waiting writer keeps the second reader from holding the lock. The upgrade is about
    // to be granted...
    until_true(cluster.node(one), "the only reader", || upgrade.wakes() > 0);
    cluster.partition(&[one]);
    assert!(upgrade.poll().is_none());
    // ...when that writer goes away.
    drop(writer);
    let late = late.finish().unwrap();
    cluster.heal();
    let kv = cluster.node(two).client();
    cluster.all_at(kv.put("any", "").block().unwrap().revision).block().unwrap();
    assert!(upgrade.poll().is_none(), "two hold that exclude each other");
    assert!(late.is_held());
    late.release().block().unwrap();
    let upgraded = upgrade.finish().unwrap();
    assert!(upgraded.is_held());
    upgraded.release().block().unwrap();
    until_places(cluster.node(two), LOCK, 0);
}

#[test]
fn upgrade_fails_if_its_read_lock_is_lost() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let (mine, other) = (read(&sessions[0]), read(&sessions[1]));
    let key = mine.key().clone();
    let upgrade = upgrades(mine, cluster.node(0));
    cluster.node(1).client().delete(key).block().unwrap();
    let error = upgrade.finish().unwrap_err();
    assert_eq!(error.why, LockError::Lost(LostReason::KeyDeleted));
    assert!(!error.guard.is_held());
    until_places(cluster.node(1), LOCK, 1);
    assert!(other.is_held());
}

#[test]
fn upgrade_with_a_deleted_key_returns_the_read_guard() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let (mine, _other) = (read(&sessions[0]), read(&sessions[1]));
    let upgrade = upgrades(mine, cluster.node(0));
    let second = sessions[0].rw_lock(LOCK).queue().unwrap().pop().unwrap();
    cluster.node(1).client().delete(second.key).block().unwrap();
    let error = upgrade.finish().unwrap_err();
    assert_eq!(error.why, LockError::Evicted);
    assert!(error.guard.is_held());
}

#[test]
fn session_end_ends_its_reads_and_upgrades() {
    let cluster = lasting(3);
    let mine = another_session(&cluster, 0, "mine");
    let other = session(&cluster, 1);
    let (one, _two) = (read(&mine), read(&other));
    let upgrade = upgrades(one, cluster.node(0));
    cluster.node(2).client().revoke(mine.lease()).block().unwrap();
    let error = upgrade.finish().unwrap_err();
    let ended = SessionEndReason::LeaseEnded;
    assert!(
        [LockError::SessionEnded(ended), LockError::Lost(LostReason::SessionEnded(ended))]
            .contains(&error.why),
        "{error:?}"
    );
    assert!(!error.guard.is_held());
    until_places(cluster.node(1), LOCK, 1);
}

#[test]
fn partitioned_writer_loses_before_readers_are_granted() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let writer = mortal(&cluster, one).rw_lock(LOCK).write().block().unwrap();
    let behind = reads(&session(&cluster, two), cluster.node(two));
    cluster.partition(&[one]);
    let behind = behind.finish().unwrap();
    assert!(!writer.is_held());
    assert!(behind.is_held());
}

#[test]
fn restarted_node_leaves_no_reader() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let reader = read(&session(&cluster, one));
    let writer = writes(&session(&cluster, two), cluster.node(two));
    cluster.kill(one).block();
    cluster.restart(one).block().unwrap();
    let writing = writer.finish().unwrap();
    assert!(writing.is_held() && !reader.is_held());
    until_places(cluster.node(two), LOCK, 1);
}

#[test]
fn reader_with_a_deleted_key_is_the_only_one_lost() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let (one, two) = (read(&sessions[0]), read(&sessions[1]));
    cluster.node(1).client().delete(one.key().clone()).block().unwrap();
    assert_eq!(one.lost().block(), LostReason::KeyDeleted);
    assert!(two.is_held());
    let waiting = writes(&sessions[0], cluster.node(0));
    let row = sessions[0].rw_lock(LOCK).queue().unwrap().pop().unwrap();
    cluster.node(1).client().delete(row.key).block().unwrap();
    assert_eq!(waiting.finish().unwrap_err(), LockError::Evicted);
}

#[test]
fn rw_lock_name_rejects_another_lock_kind() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let reader = read(&mine);
    let stored = LockKind::ReadWrite;
    let error = mine.mutex(LOCK).lock().block().unwrap_err();
    assert_eq!(error, LockError::KindMismatch { stored });
    let error = mine.semaphore(LOCK, 3).acquire().block().unwrap_err();
    assert_eq!(error, LockError::KindMismatch { stored });
    reader.release().block().unwrap();
    assert!(mine.mutex(LOCK).lock().block().unwrap().is_held());
    until_true(cluster.node(0), "released", || places(cluster.node(0), LOCK) == 0);
}

//! Tests of acquiring several locks at once.

use bowline::{
    Blocking, Config, LockError, LostReason, Node, Released, Session, SessionEndReason,
    lock::MultiGuard,
};

use crate::stage::{
    Begun, LONG, another_session, lasting, mortal, places, roles, session, session_ended, until,
    until_places, with,
};

type Waits = Begun<Result<MultiGuard, LockError>>;

/// Starts a request, and returns when it is in the first queue.
fn waits(session: &Session, node: &Node, names: &[&'static str]) -> Waits {
    let first = names.iter().min().unwrap();
    let before = places(node, first);
    let begun = Begun::new(session.lock_all(names.iter().copied()));
    until(node, first, "one more", |count| count > before);
    begun
}

fn counts(node: &Node, names: [&str; 3]) -> [u64; 3] {
    names.map(|name| places(node, name))
}

#[test]
fn lock_all_takes_all_or_none() {
    let cluster = lasting(3);
    let sessions = [0, 1, 2].map(|member| session(&cluster, member));
    let held = sessions[0].mutex("b").lock().block().unwrap();
    let refused = sessions[1].try_lock_all(["c", "b", "a"]).block().unwrap_err();
    let LockError::WouldBlock { holder } = refused else { panic!("{refused:?}") };
    assert_eq!(&holder.unwrap().key, held.key(), "who is in the way, and not the one who asks");
    for name in ["a", "c"] {
        until_places(cluster.node(0), name, 0);
    }
    let mut all = waits(&sessions[1], cluster.node(1), &["c", "a", "b", "a"]);
    // The request holds no lock yet, but later requests wait behind it.
    assert!(all.poll().is_none());
    assert!(sessions[2].mutex("a").try_lock().block().is_err());
    let token = held.token();
    held.release().block().unwrap();
    let all = all.finish().unwrap();
    assert_eq!(all.keys().len(), 3);
    assert!(all.token() > token);
    let names: Vec<_> = all.keys().iter().map(|key| key[0] as char).collect();
    assert_eq!(names, ['a', 'b', 'c']);
    assert_eq!(all.release().block().unwrap(), Released::Now);
    assert_eq!(counts(cluster.node(0), ["a", "b", "c"]), [0, 0, 0]);
}

#[test]
fn lock_sets_in_any_order_never_deadlock() {
    let cluster = lasting(3);
    let sets = [["a", "b"], ["b", "c"], ["c", "a"]];
    std::thread::scope(|scope| {
        for (member, set) in sets.into_iter().enumerate() {
            let mine = session(&cluster, member);
            scope.spawn(move || {
                for _ in 0..20 {
                    let guard = mine.lock_all(set).block().unwrap();
                    let mut last = guard.token();
                    guard.release().block().unwrap();
                    let guard = mine.lock_all([set[1], set[0]]).block().unwrap();
                    assert!(guard.token() > last);
                    last = guard.token();
                    assert!(last.revision().get() > 0);
                }
            });
        }
    });
    for name in ["a", "b", "c"] {
        until_places(cluster.node(0), name, 0);
    }
}

#[test]
fn deleted_key_in_one_queue_ends_the_whole_multi_lock() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let kv = cluster.node(0).client();
    let first = sessions[0].mutex("c").lock().block().unwrap();
    let waiting = waits(&sessions[1], cluster.node(1), &["a", "b", "c"]);
    until_places(cluster.node(0), "b", 1);
    let key = sessions[0].mutex("b").queue().unwrap()[0].key.clone();
    kv.delete(key).block().unwrap();
    assert_eq!(waiting.finish().unwrap_err(), LockError::Evicted);
    until_places(cluster.node(0), "a", 0);
    until_places(cluster.node(0), "c", 1);
    first.release().block().unwrap();

    let all = sessions[1].lock_all(["a", "b", "c"]).block().unwrap();
    kv.delete(all.keys()[1].clone()).block().unwrap();
    assert_eq!(all.lost().block(), LostReason::KeyDeleted);
    for name in ["a", "b", "c"] {
        until_places(cluster.node(0), name, 0);
    }
    assert_eq!(all.release().block().unwrap(), Released::AlreadyLost(LostReason::KeyDeleted));
}

#[test]
fn session_end_leaves_all_queues() {
    let cluster = lasting(3);
    let first = session(&cluster, 0).mutex("c").lock().block().unwrap();
    let mine = another_session(&cluster, 1, "mine");
    let waiting = waits(&mine, cluster.node(1), &["a", "b", "c"]);
    cluster.node(2).client().revoke(mine.lease()).block().unwrap();
    let error = waiting.finish().unwrap_err();
    assert!(session_ended(&error), "{error:?}");
    assert_eq!(counts(cluster.node(0), ["a", "b", "c"]), [0, 0, 1]);
    first.release().block().unwrap();

    let mine = another_session(&cluster, 1, "mine");
    let all = mine.lock_all(["a", "b", "c"]).block().unwrap();
    cluster.node(2).client().revoke(mine.lease()).block().unwrap();
    assert_eq!(all.lost().block(), LostReason::SessionEnded(SessionEndReason::LeaseEnded));
    assert_eq!(counts(cluster.node(0), ["a", "b", "c"]), [0, 0, 0]);
}

#[test]
fn dropped_multi_lock_wait_leaves_all_queues() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let held = session(&cluster, two).mutex("c").lock().block().unwrap();
    let mine = session(&cluster, one);
    drop(waits(&mine, cluster.node(one), &["a", "b", "c"]));
    for (name, left) in [("a", 0), ("b", 0), ("c", 1)] {
        until_places(cluster.node(two), name, left);
    }
    // The request is dropped before its outcome is known.
    cluster.partition(&[one]);
    drop(Begun::new(mine.lock_all(["a", "b"])));
    cluster.heal();
    let next = session(&cluster, two).lock_all(["a", "b"]).block().unwrap();
    assert!(next.is_held() && held.is_held());
    for name in ["a", "b"] {
        until_places(cluster.node(two), name, 1);
    }
}

#[test]
fn partitioned_holder_of_several_locks_loses_them_before_others_hold() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let all = mortal(&cluster, one).lock_all(["a", "b"]).block().unwrap();
    let waiting = waits(&session(&cluster, two), cluster.node(two), &["b", "c"]);
    cluster.partition(&[one]);
    assert!(waiting.finish().unwrap().is_held());
    assert!(!all.is_held());
}

#[test]
fn restarted_node_leaves_no_multi_lock() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let all = session(&cluster, one).lock_all(["a", "b"]).block().unwrap();
    let waiting = waits(&session(&cluster, two), cluster.node(two), &["a", "b"]);
    cluster.kill(one).block();
    cluster.restart(one).block().unwrap();
    assert!(waiting.finish().unwrap().is_held());
    assert!(!all.is_held());
}

#[test]
fn empty_and_excessive_lock_sets_are_rejected() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let error = mine.lock_all(Vec::<String>::new()).block().unwrap_err();
    assert_eq!(error, LockError::EmptyName);
    let error = mine.lock_all(["a", ""]).block().unwrap_err();
    assert_eq!(error, LockError::EmptyName);
    let error = mine.lock_all((0..31).map(|i| format!("n{i}"))).block().unwrap_err();
    assert_eq!(error, LockError::TooManyNames { asked: 31, max: 30 });
    let guard = mine.lock_all((0..30).map(|i| format!("n{i}"))).block().unwrap();
    guard.txn().then(bowline::Op::put("k", "v")).commit().block().unwrap();
    assert_eq!(guard.release().block().unwrap(), Released::Now);
}

#[test]
fn multi_lock_dropped_with_its_session_leaves_no_entries() {
    let config = |config: Config| config.lock_waiters_max(4).session_ttl(LONG);
    let cluster = with(1, config);
    for _ in 0..20 {
        let mine = another_session(&cluster, 0, "hasty");
        drop(Begun::asked(mine.lock_all(["a", "b"])));
        drop(mine);
    }
    let mine = session(&cluster, 0);
    assert!(mine.lock_all(["a", "b"]).block().unwrap().is_held());
}

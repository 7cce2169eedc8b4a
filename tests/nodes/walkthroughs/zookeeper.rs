//! ZooKeeper recipes and Curator: sequential keys, the herd effect, and persistent keys.

use std::sync::atomic::{AtomicUsize, Ordering};

use bowline::{
    Blocking, Client, Compare, EventKind, KeyRange, LeaseId, Op, Put, Revision, kv::PutLease,
};

use crate::stage::{lasting, mortal, roles, session, until_deleted, until_places};

/// Puts the key `name` followed by the next number, like a POST to etcd's API version 2 or an ephemeral sequential
/// node in ZooKeeper.
fn append(kv: &Client, name: &str, lease: LeaseId) -> String {
    let counter = format!("next of {name}");
    loop {
        let row = kv.get(counter.clone()).block().unwrap();
        let (number, seen) = match &row {
            Some(row) => {
                (std::str::from_utf8(&row.value).unwrap().parse::<u64>().unwrap(), row.mod_revision)
            }
            None => (0, Revision(0)),
        };
        let key = format!("{name}{number:010}");
        let mut put = Put::new(key.clone(), "");
        put.lease = PutLease::Attach(lease);
        let txn = kv
            .txn()
            .when(Compare::mod_revision(counter.clone()).eq(seen))
            .then(Op::put(counter.clone(), (number + 1).to_string()))
            .then(Op::Put(put));
        if txn.commit().block().unwrap().succeeded {
            return key;
        }
    }
}

#[test]
fn sequential_keys_are_dense_and_unique() {
    let cluster = lasting(3);
    let mut keys: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|member| {
                let (kv, session) = (cluster.node(member).client(), session(&cluster, member));
                scope.spawn(move || -> Vec<String> {
                    (0..8).map(|_| append(&kv, "queue/", session.lease())).collect()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    keys.sort();
    let expected: Vec<String> = (0..24).map(|number| format!("queue/{number:010}")).collect();
    assert_eq!(keys, expected);
}

#[test]
fn smallest_child_holds_and_each_waits_on_its_predecessor() {
    let cluster = lasting(3);
    let keys: Vec<String> = (0..4)
        .map(|i| append(&cluster.node(i % 3).client(), "lock/", session(&cluster, i % 3).lease()))
        .collect();
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (mine, key) in keys.iter().enumerate() {
            let (kv, served) = (cluster.node(mine % 3).client(), &served);
            scope.spawn(move || {
                loop {
                    let below = KeyRange::between("lock/", key.clone());
                    let smaller = kv.range(below).block().unwrap();
                    let Some(nearest) = smaller.kvs.last() else { break };
                    let next = Revision(smaller.revision.get() + 1);
                    let mut changes = kv.watch(nearest.key.clone()).from(next).block().unwrap();
                    let batch = changes.next().block().unwrap().unwrap();
                    assert_eq!(batch.events[0].kind, EventKind::Delete);
                }
                assert_eq!(served.fetch_add(1, Ordering::SeqCst), mine);
                kv.delete(key.clone()).block().unwrap();
            });
        }
    });
    assert_eq!(served.into_inner(), 4);
}

#[test]
fn only_a_leased_key_is_freed_after_a_crash() {
    let mut cluster = lasting(3);
    let session = mortal(&cluster, 1);
    let kv = cluster.node(1).client();
    let take = |put: Put| {
        let missing = Compare::missing(put.key.clone());
        let txn = kv.txn().when(missing).then(Op::Put(put));
        assert!(txn.commit().block().unwrap().succeeded);
    };
    take(Put::new("persistent", "mine"));
    let mut ephemeral = Put::new("ephemeral", "mine");
    ephemeral.lease = PutLease::Attach(session.lease());
    take(ephemeral);
    cluster.kill(1).block();
    let kv = cluster.node(0).client();
    until_deleted(&kv, "ephemeral");
    assert!(
        kv.get("persistent").block().unwrap().is_some(),
        "it is there until somebody deletes it"
    );
}

/// Shows why clients should not all wait for one key: all of them wake, and only one succeeds.
#[test]
fn waiters_on_one_key_all_wake_and_one_wins() {
    let cluster = lasting(3);
    let kv = cluster.node(0).client();
    let held = kv.put("node", "holder").block().unwrap().revision;
    let (woken, won) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let ready = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for member in 0..3 {
            let (kv, woken, won, ready) = (cluster.node(member).client(), &woken, &won, &ready);
            scope.spawn(move || {
                let next = Revision(held.get() + 1);
                let mut changes = kv.watch("node").from(next).block().unwrap();
                ready.wait();
                let batch = changes.next().block().unwrap().unwrap();
                assert_eq!(batch.events[0].kind, EventKind::Delete);
                woken.fetch_add(1, Ordering::SeqCst);
                let txn = kv.txn().when(Compare::missing("node")).then(Op::put("node", "next"));
                won.fetch_add(
                    usize::from(txn.commit().block().unwrap().succeeded),
                    Ordering::SeqCst,
                );
            });
        }
        ready.wait();
        kv.delete("node").block().unwrap();
    });
    assert_eq!((woken.into_inner(), won.into_inner()), (3, 1));
}

#[test]
fn sequential_keys_take_one_call_and_die_with_their_session() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let dying = mortal(&cluster, one);
    let bound = dying.client().sequential_prefix("lock/").put_bound("", &dying).block().unwrap();
    assert_eq!((&bound.key[..], bound.number), (&b"lock/0000000000"[..], 0));
    let alive = session(&cluster, two);
    let mine = alive.client().sequential_prefix("lock/").put_bound("", &alive).block().unwrap();
    assert_eq!(mine.number, 1);
    cluster.kill(one).block();
    // The client's key is the first once the smaller key is gone.
    until_deleted(&alive.client(), "lock/0000000000");
    let rows = alive.client().range(KeyRange::prefix("lock/")).block().unwrap().kvs;
    assert_eq!(rows.iter().map(|row| &row.key).collect::<Vec<_>>(), [&mine.key]);
}

/// Curator's SharedCount and DistributedAtomicLong.
#[test]
fn a_shared_counter_counts_each_call_once() {
    let cluster = lasting(3);
    let mut seen: Vec<i64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|member| {
                let counter = cluster.node(member).client().counter("count");
                scope.spawn(move || -> Vec<i64> {
                    (0..10).map(|_| counter.increment().block().unwrap()).collect()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, (1..=30).collect::<Vec<i64>>());
}

/// Curator's PathChildrenCache.
#[test]
fn cached_prefix_follows_changes() {
    let cluster = lasting(3);
    let mut view = cluster.node(1).client().cached_prefix("config/").block().unwrap();
    let rate = cluster.node(0).client().put("config/rate", "100").block().unwrap();
    let seen = loop {
        let now = view.changed().block().unwrap();
        if now.revision() >= rate.revision {
            break now;
        }
    };
    assert_eq!(seen.get("config/rate").unwrap().value, "100");
    cluster.node(0).client().delete("config/rate").block().unwrap();
    while view.changed().block().unwrap().get("config/rate").is_some() {}
    // A view that was taken earlier stays unchanged.
    assert_eq!(seen.get("config/rate").unwrap().value, "100");
}

/// Curator's group membership and persistent ephemeral node.
#[test]
fn group_members_leave_with_their_sessions() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let group = session(&cluster, two).group("workers");
    let stays = group.join("two").block().unwrap();
    let dying = mortal(&cluster, one);
    let goes = dying.group("workers").join("one").block().unwrap();
    let meta = |members: Vec<bowline::coordination::GroupMember>| {
        members.into_iter().map(|member| member.meta).collect::<Vec<_>>()
    };
    assert_eq!(meta(group.members().block().unwrap()), ["two", "one"]);
    cluster.kill(one).block();
    until_places(cluster.node(two), "workers", 1);
    assert_eq!(meta(group.members().block().unwrap()), ["two"]);
    drop(goes);
    assert!(stays.leave().block().unwrap());
}

/// Curator's InterProcessMutex, reentrant by owner and not by thread.
#[test]
fn an_inter_process_mutex_is_re_entrant_for_its_owner_on_any_thread() {
    let cluster = lasting(3);
    let session = session(&cluster, 0);
    let owner = session.owner("work");
    let outer = session.mutex("lock").lock().owner(&owner).block().unwrap();
    let inner = std::thread::scope(|scope| {
        let again = session.mutex("lock").lock().owner(&owner);
        scope.spawn(move || again.block().unwrap()).join().unwrap()
    });
    drop(outer);
    assert!(inner.is_held());
    assert!(session.mutex("lock").try_lock().block().is_err());
    inner.release().block().unwrap();
    assert!(session.mutex("lock").try_lock().block().is_ok());
}

/// Curator's Revocable: a holder is asked to release, and decides itself.
#[test]
fn revocable_lock_notifies_its_holder_of_a_request() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let locks = cluster.node(1).locks();
    cluster.all_at(guard.since()).block().unwrap();
    let holder = locks.of("lock").unwrap().queue.remove(0);
    locks.request_release(&holder, "maintenance").block().unwrap();
    let request = guard.asked_to_release().block();
    assert_eq!(request.reason, "maintenance");
    assert!(guard.is_held());
    guard.release().block().unwrap();
}

/// The double barrier: all participants start together and leave together.
#[test]
fn double_barrier_needs_all_participants() {
    let cluster = lasting(3);
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for member in 0..3 {
            let barrier = session(&cluster, member).double_barrier("step", 3);
            let inside = &inside;
            scope.spawn(move || {
                inside.fetch_add(1, Ordering::SeqCst);
                let mine = barrier.enter().block().unwrap();
                assert_eq!(inside.load(Ordering::SeqCst), 3);
                mine.leave().block().unwrap();
            });
        }
    });
}

/// The distributed queue: an item that was taken and not acknowledged is delivered again.
#[test]
fn item_of_a_dead_consumer_goes_to_another() {
    let mut cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    cluster.node(leader).client().queue("jobs").put("job").block().unwrap();
    let dying = mortal(&cluster, one);
    let item = dying.queue("jobs").take().block().unwrap();
    assert_eq!((&item.value()[..], item.attempt()), (&b"job"[..], 1));
    cluster.kill(one).block();
    let again = session(&cluster, two).queue("jobs").take().block().unwrap();
    assert_eq!((&again.value()[..], again.attempt()), (&b"job"[..], 2));
    again.ack().block().unwrap();
}

/// Curator's InterProcessReadWriteLock.
#[test]
fn read_write_lock_shares_readers_and_excludes_writers() {
    let cluster = lasting(3);
    let lock = |member| session(&cluster, member).rw_lock("page");
    let readers = [0, 1, 2].map(|member| lock(member).read().block().unwrap());
    assert!(lock(1).try_write().block().is_err());
    for reader in readers {
        reader.release().block().unwrap();
    }
    let writer = lock(1).write().block().unwrap();
    assert!(lock(0).try_read().block().is_err());
    writer.release().block().unwrap();
    assert!(lock(0).try_read().block().is_ok());
}

/// Curator's InterProcessSemaphoreV2.
#[test]
fn semaphore_grants_at_most_its_permits() {
    let cluster = lasting(3);
    let permits = [0, 1]
        .map(|member| session(&cluster, member).semaphore("gpu", 2).acquire().block().unwrap());
    let third = session(&cluster, 2).semaphore("gpu", 2);
    assert!(third.try_acquire().block().is_err());
    let [first, _second] = permits;
    first.release().block().unwrap();
    assert!(third.acquire().block().is_ok());
}

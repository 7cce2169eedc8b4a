//! Tests of owners: repeated acquisition, and deadlocks across lock kinds and nodes.

use std::future::IntoFuture;
use std::time::Duration;

use bowline::{
    Blocking, LockError, Node, Owner, Released, Session,
    lock::{DowngradeError, WaitsFor},
};

use crate::stage::{
    Begun, another_session, lasting, places, session, timed_out, until, until_places, until_true,
};

/// Starts a call that waits, and returns when it is in the queue of this lock.
fn begin<T, C>(node: &Node, name: &str, call: C) -> Begun<T>
where
    C: IntoFuture<Output = T>,
    C::IntoFuture: Send + 'static,
{
    let before = places(node, name);
    let begun = Begun::new(call);
    until(node, name, "one more", |count| count > before);
    begun
}

fn owners(sessions: &[Session]) -> Vec<Owner> {
    let names = ["ann", "bob", "cy"];
    sessions.iter().zip(names).map(|(session, name)| session.owner(name)).collect()
}

/// Returns the cycle of a deadlock as pairs of owner and lock.
#[track_caller]
fn circle(error: &LockError) -> Vec<(String, String)> {
    let LockError::Deadlock { cycle } = error else { panic!("{error:?}") };
    let words =
        |step: &WaitsFor| (step.owner.clone(), String::from_utf8(step.lock.to_vec()).unwrap());
    cycle.iter().map(words).collect()
}

fn steps(words: &[(&str, &str)]) -> Vec<(String, String)> {
    words.iter().map(|(owner, lock)| ((*owner).to_owned(), (*lock).to_owned())).collect()
}

#[test]
fn owner_reenters_reads_and_reads_its_own_write_lock() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let (owner, lock) = (mine.owner("ann"), mine.rw_lock("lock"));
    let one = lock.read().owner(&owner).block().unwrap();
    let two = lock.read().owner(&owner).block().unwrap();
    assert_eq!(one.token(), two.token());
    assert_eq!(one.release().block().unwrap(), Released::StillHeld { times: 1 });
    assert_eq!(two.release().block().unwrap(), Released::Now);

    let writer = lock.write().owner(&owner).block().unwrap();
    let again = lock.write().owner(&owner).block().unwrap();
    let reader = lock.read().owner(&owner).block().unwrap();
    assert_eq!(places(cluster.node(0), "lock"), 1);
    drop((writer, again));
    assert!(lock.try_read().block().is_err(), "what was taken for writing writes until its end");
    // The reader can become a writer again.
    let writer = reader.upgrade().block().unwrap();
    assert_eq!(writer.release().block().unwrap(), Released::Now);
    until_places(cluster.node(0), "lock", 0);
}

#[test]
fn owner_reenters_writes_only_while_upgraded() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let (owner, lock) = (mine.owner("ann"), mine.rw_lock("lock"));
    let reader = lock.read().owner(&owner).block().unwrap();
    let writer = reader.upgrade().block().unwrap();
    let again = lock.write().owner(&owner).block().unwrap();
    assert_eq!(again.token(), writer.token());
    let DowngradeError::HeldAgain(writer) = writer.downgrade().block().unwrap_err() else {
        panic!("it is held twice");
    };
    drop(again);
    let reader = writer.downgrade().block().unwrap();
    let error = lock.write().owner(&owner).block().unwrap_err();
    assert_eq!(circle(&error), steps(&[("ann", "lock")]));
    assert!(lock.read().owner(&owner).block().unwrap().is_held());
    assert!(lock.try_read().block().unwrap().is_held());
    drop(reader);
    until_places(cluster.node(0), "lock", 0);
}

#[test]
fn owner_that_reads_and_requests_a_write_deadlocks() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let (owner, lock) = (mine.owner("ann"), mine.rw_lock("lock"));
    let reader = lock.read().owner(&owner).block().unwrap();
    let error = lock.write().owner(&owner).block().unwrap_err();
    assert_eq!(circle(&error), steps(&[("ann", "lock")]));
    until_places(cluster.node(0), "lock", 1);
    assert!(reader.upgrade().block().unwrap().is_held());
}

#[test]
fn released_entry_of_an_owner_closes_no_deadlock() {
    for gives_up in [false, true] {
        let cluster = lasting(1);
        let (node, mine) = (cluster.node(0), session(&cluster, 0));
        let (ann, bob) = (mine.owner("ann"), mine.owner("bob"));
        let (a, b) = (mine.mutex("a"), mine.mutex("b"));
        let mut held = Some(a.lock().owner(&ann).block().unwrap());
        let others = b.lock().owner(&bob).block().unwrap();
        let mut waits = Some(begin(node, "a", a.lock().owner(&bob)));
        // The first poll must come before the node applies the request and finds the deadlock.
        cluster.pause(0);
        let mut acquire = Begun::new(b.lock().owner(&ann));
        cluster.resume(0);
        until_true(node, "it must wait", || acquire.wakes() > 0);
        // While the node is paused, the cancellation cannot reach the cluster.
        cluster.pause(0);
        match gives_up {
            true => drop(waits.take()),
            false => drop(held.take()),
        }
        assert!(acquire.poll().is_none(), "nobody waits for what is given up");
        cluster.resume(0);
        drop(others);
        assert!(acquire.finish().unwrap().is_held());
        drop(held);
        assert!(waits.is_none_or(|waits| waits.finish().unwrap().is_held()));
    }
}

#[test]
fn owner_reenters_several_locks_together_or_singly() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let owner = mine.owner("ann");
    let all = mine.lock_all(["a", "b"]).owner(&owner).block().unwrap();
    let again = mine.lock_all(["b", "a"]).owner(&owner).block().unwrap();
    let each = mine.mutex("b").lock().owner(&owner).block().unwrap();
    assert_eq!(all.token(), again.token());
    assert_eq!(all.token(), each.token());
    let error = mine.lock_all(["b", "c"]).owner(&owner).block().unwrap_err();
    assert_eq!(circle(&error), steps(&[("ann", "b")]));
    drop((all, again));
    assert!(mine.mutex("a").try_lock().block().is_err());
    assert_eq!(each.release().block().unwrap(), Released::Now);
    for name in ["a", "b", "c"] {
        until_places(cluster.node(0), name, 0);
    }
}

#[test]
fn deadlock_of_mutexes_over_three_nodes_is_named() {
    let cluster = lasting(3);
    let sessions = [0, 1, 2].map(|member| session(&cluster, member));
    let owners = owners(&sessions);
    let lock = |member: usize, name: &'static str| {
        sessions[member].mutex(name).lock().owner(&owners[member])
    };
    let held = [lock(0, "a"), lock(1, "b"), lock(2, "c")].map(|call| call.block().unwrap());
    let ann = begin(cluster.node(0), "b", lock(0, "b"));
    let bob = begin(cluster.node(1), "c", lock(1, "c"));
    let error = lock(2, "a").block().unwrap_err();
    assert_eq!(circle(&error), steps(&[("cy", "a"), ("ann", "b"), ("bob", "c")]));
    let [_a, b, c] = held;
    drop(c);
    assert!(bob.finish().unwrap().is_held());
    drop(b);
    assert!(ann.finish().unwrap().is_held());
}

#[test]
fn deadlock_of_readers_and_writers_is_named() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let owners = owners(&sessions);
    let reader = sessions[0].rw_lock("lock").read().owner(&owners[0]).block().unwrap();
    let mutex = sessions[1].mutex("door").lock().owner(&owners[1]).block().unwrap();
    let write = sessions[1].rw_lock("lock").write().owner(&owners[1]);
    let waiting = begin(cluster.node(1), "lock", write);
    let error = sessions[0].mutex("door").lock().owner(&owners[0]).block().unwrap_err();
    assert_eq!(circle(&error), steps(&[("ann", "door"), ("bob", "lock")]));
    drop(reader);
    assert!(waiting.finish().unwrap().is_held() && mutex.is_held());
}

#[test]
fn reader_behind_a_waiting_writer_closes_a_deadlock() {
    let cluster = lasting(3);
    let sessions = [0, 1, 2].map(|member| session(&cluster, member));
    let owners = owners(&sessions);
    // Ann holds `lock` for reading, and Bob waits to write it. Cy holds `window`, and waits behind Bob to read `lock`.
    // Ann then wants `window`, which closes a cycle.
    let ann = sessions[0].rw_lock("lock").read().owner(&owners[0]).block().unwrap();
    let cys = sessions[2].mutex("window").lock().owner(&owners[2]).block().unwrap();
    let write = sessions[1].rw_lock("lock").write().owner(&owners[1]);
    let bob = begin(cluster.node(1), "lock", write);
    let read = sessions[2].rw_lock("lock").read().owner(&owners[2]);
    let cy = begin(cluster.node(2), "lock", read);
    let error = sessions[0].mutex("window").lock().owner(&owners[0]).block().unwrap_err();
    assert_eq!(circle(&error), steps(&[("ann", "window"), ("cy", "lock"), ("bob", "lock")]));
    drop(ann);
    drop(bob.finish().unwrap());
    assert!(cy.finish().unwrap().is_held() && cys.is_held());
}

#[test]
fn deadlock_through_a_multi_lock_is_named() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let owners = owners(&sessions);
    let held = sessions[0].mutex("c").lock().owner(&owners[0]).block().unwrap();
    let call = sessions[1].lock_all(["a", "b", "c"]).owner(&owners[1]);
    let all = begin(cluster.node(1), "a", call);
    // Bob holds nothing, but is before Ann in the queue of b.
    let error = sessions[0].mutex("b").lock().owner(&owners[0]).block().unwrap_err();
    assert_eq!(circle(&error), steps(&[("ann", "b"), ("bob", "c")]));
    drop(held);
    assert!(all.finish().unwrap().is_held());
}

#[test]
fn deadlock_through_an_upgrade_is_named() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let owners = owners(&sessions);
    let ann = sessions[0].rw_lock("lock").read().owner(&owners[0]).block().unwrap();
    let bob = sessions[1].rw_lock("lock").read().owner(&owners[1]).block().unwrap();
    let door = sessions[0].mutex("door").lock().owner(&owners[0]).block().unwrap();
    let upgrade = begin(cluster.node(0), "lock", ann.upgrade());
    let error = sessions[1].mutex("door").lock().owner(&owners[1]).block().unwrap_err();
    assert_eq!(circle(&error), steps(&[("bob", "door"), ("ann", "lock")]));
    drop(bob);
    assert!(upgrade.finish().unwrap().is_held());
    drop(door);

    // Now the upgrade closes the cycle.
    let reads =
        |at: usize| sessions[at].rw_lock("other").read().owner(&owners[at]).block().unwrap();
    let (ann, _bob) = (reads(0), reads(1));
    let door = sessions[0].mutex("door").lock().owner(&owners[0]).block().unwrap();
    let call = sessions[1].mutex("door").lock().owner(&owners[1]);
    let waiting = begin(cluster.node(1), "door", call);
    let error = ann.upgrade().block().unwrap_err();
    assert_eq!(circle(&error.why), steps(&[("ann", "other"), ("bob", "door")]));
    assert!(error.guard.is_held());
    drop(door);
    assert!(waiting.finish().unwrap().is_held());
}

#[test]
fn second_upgrade_of_two_readers_is_rejected() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let owners = owners(&sessions);
    let reads = |at: usize| sessions[at].rw_lock("lock").read().owner(&owners[at]).block().unwrap();
    let (ann, bob) = (reads(0), reads(1));
    let upgrade = begin(cluster.node(0), "lock", ann.upgrade());
    let error = bob.upgrade().block().unwrap_err();
    assert_eq!(error.why, LockError::UpgradeTaken);
    drop(error.guard);
    assert!(upgrade.finish().unwrap().is_held());
}

#[test]
fn semaphores_and_ordered_acquisitions_report_no_deadlock() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| session(&cluster, member));
    let owners = owners(&sessions);
    let acquire = |at: usize, name: &'static str| {
        sessions[at].semaphore(name, 2).acquire().owner(&owners[at])
    };
    // Each owner holds a permit of one semaphore and waits for a permit of the other. A third party
    // holds the remaining permits and may release first, so this is no deadlock.
    let others = ["a", "b"].map(|name| sessions[0].semaphore(name, 2).acquire().block().unwrap());
    let (a, b) = (acquire(0, "a").block().unwrap(), acquire(1, "b").block().unwrap());
    let ann = begin(cluster.node(0), "b", acquire(0, "b"));
    let mut bob = begin(cluster.node(1), "a", acquire(1, "a"));
    assert!(bob.poll().is_none());
    drop(others);
    assert!(ann.finish().unwrap().is_held() && bob.finish().unwrap().is_held());
    drop((a, b));

    std::thread::scope(|scope| {
        for at in 0..2 {
            let (session, owner) = (&sessions[at], &owners[at]);
            scope.spawn(move || {
                for _ in 0..20 {
                    let read = session.rw_lock("1").read().owner(owner).block().unwrap();
                    let door = session.mutex("2").lock().owner(owner).block().unwrap();
                    let all = session.lock_all(["3", "4"]).owner(owner).block().unwrap();
                    let write = session.rw_lock("5").write().owner(owner).block().unwrap();
                    drop((read, door, all, write));
                }
            });
        }
    });
}

#[test]
fn deadlock_search_is_fast_for_an_owner_with_many_tasks() {
    let cluster = lasting(1);
    let (node, mine) = (cluster.node(0), session(&cluster, 0));
    let (ann, bob) = (mine.owner("ann"), mine.owner("bob"));
    let lock = || mine.mutex("lock").lock();
    let held = lock().block().unwrap();
    let begin_for = |owner: &Owner| begin(node, "lock", lock().owner(owner));
    let mut waiting: Vec<_> = (0..40).map(|_| begin_for(&ann)).collect();
    waiting.push(begin_for(&bob));
    // A search along every path from task to task would take about 10^12 steps.
    let last = lock().owner(&ann).deadline(Duration::from_millis(200)).block();
    assert!(last.as_ref().is_err_and(timed_out), "{last:?}");
    drop((waiting, held));
    until_places(node, "lock", 0);
}

#[test]
fn concurrent_tasks_of_one_owner_do_not_wait_for_each_other() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let (owner, lock) = (mine.owner("ann"), mine.mutex("lock"));
    // Both tasks wait before the first one holds the lock.
    cluster.pause(0);
    let one = Begun::new(lock.lock().owner(&owner));
    let mut two = Begun::new(lock.lock().owner(&owner));
    cluster.resume(0);
    // The second task waits behind the first task, which holds the lock but was not polled since.
    until_true(cluster.node(0), "it stands in line", || two.wakes() > 0);
    assert!(two.poll().is_none());
    let before = two.wakes();
    let one = one.finish().unwrap();
    assert!(two.wakes() > before, "what the owner holds it holds at once");
    let two = two.finish().unwrap();
    assert_eq!(one.token(), two.token());
    until_places(cluster.node(0), "lock", 1);
    assert_eq!(one.release().block().unwrap(), Released::StillHeld { times: 1 });
    assert_eq!(two.release().block().unwrap(), Released::Now);
}

#[test]
fn deadlock_between_tasks_of_one_owner_is_reported_once_one_holds() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let (owner, lock) = (mine.owner("ann"), mine.rw_lock("lock"));
    // `holds_max` returns a new owner, which has none of the holds of the original owner.
    let again = owner.clone().holds_max(3);
    for owner_too in [&owner, &again] {
        cluster.pause(0);
        let one = Begun::new(lock.read().owner(&owner));
        let mut two = Begun::new(lock.write().owner(owner_too));
        cluster.resume(0);
        until_true(cluster.node(0), "it stands in line", || two.wakes() > 0);
        assert!(two.poll().is_none());
        let one = one.finish().unwrap();
        let error = two.finish().unwrap_err();
        assert_eq!(circle(&error), steps(&[("ann", "lock")]));
        assert_eq!(one.release().block().unwrap(), Released::Now);
        until_places(cluster.node(0), "lock", 0);
    }
}

#[test]
fn owner_acquires_a_lock_again_up_to_its_limit() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let (owner, lock) = (mine.owner("ann").holds_max(3), mine.mutex("lock"));
    let mut holds: Vec<_> = (0..3).map(|_| lock.lock().owner(&owner).block().unwrap()).collect();
    let refused = lock.lock().owner(&owner).block().unwrap_err();
    assert_eq!(refused, LockError::HoldLimit { limit: 3 });
    // The existing holds stay valid. After a release the owner can acquire the lock again.
    assert!(holds.iter().all(|hold| hold.is_held()));
    drop(holds.pop());
    holds.push(lock.lock().owner(&owner).block().unwrap());
    assert_eq!(places(cluster.node(0), "lock"), 1);
    drop(holds);
    until_places(cluster.node(0), "lock", 0);
}

#[test]
fn owner_of_another_session_is_rejected_without_a_queue_entry() {
    let cluster = lasting(1);
    let (mine, other) = (session(&cluster, 0), another_session(&cluster, 0, "other"));
    let owner = other.owner("ann");
    let rejected = [
        mine.mutex("lock").lock().owner(&owner).block().map(drop),
        mine.rw_lock("lock").read().owner(&owner).block().map(drop),
        mine.rw_lock("lock").write().owner(&owner).block().map(drop),
        mine.semaphore("lock", 2).acquire().owner(&owner).block().map(drop),
        mine.mutex("lock").try_lock().owner(&owner).block().map(drop),
    ];
    for rejected in rejected {
        assert_eq!(rejected, Err(LockError::ForeignOwner));
    }
    assert_eq!(places(cluster.node(0), "lock"), 0);
    assert!(other.mutex("lock").lock().owner(&owner).block().is_ok());
}

//! python-etcd's lock object: a name, and an owner whose saved id finds the lock again. Here the owner is a session,
//! and its id is the lease.

use std::time::Duration;

use bowline::{Blocking, Compare, Error, LeaseId, LockError, LostReason, Rejection, Released};

use crate::stage::{STEADY, another_session, lasting, roles, session, stand_in_line, timed_out};

#[test]
fn saved_lock_id_resumes_the_lock_after_a_restart() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let owner = another_session(&cluster, one, "importer");
    let guard = owner.mutex("lock").lock().block().unwrap();
    // The program saves the lease and the revision of the key.
    let (id, since) = (owner.lease(), guard.since());
    cluster.kill(one).block();
    drop((guard, owner));
    cluster.restart(one).block().unwrap();
    let owner = cluster.node(one).resume_session(id).block().unwrap();
    assert_eq!(owner.label(), "importer");
    // The store confirms that the lock is still held.
    let key = format!("lock/{id}");
    let is_acquired = Compare::create_revision(key.clone()).eq(since);
    assert!(owner.client().txn().when(is_acquired).commit().block().unwrap().succeeded);
    assert!(session(&cluster, two).mutex("lock").try_lock().block().is_err());
    // The resumed session can release the lock by closing the session or deleting its key.
    owner.close().block().unwrap();
    assert!(session(&cluster, two).mutex("lock").lock().block().unwrap().is_held());
}

#[test]
fn unknown_session_id_is_rejected() {
    let cluster = lasting(1);
    let unknown = LeaseId::new(4_711).unwrap();
    let error = cluster.node(0).resume_session(unknown).block().unwrap_err();
    assert_eq!(error, Error::Rejected(Rejection::LeaseNotFound(unknown)));
}

#[test]
fn release_of_a_lost_lock_succeeds() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    cluster.node(1).client().delete(guard.key().clone()).block().unwrap();
    guard.lost().block();
    assert!(matches!(guard.release().block(), Ok(Released::AlreadyLost(_))));
}

/// `with lock:` corresponds to a guard in a scope.
#[test]
fn end_of_scope_releases_the_lock() {
    let cluster = lasting(3);
    let other = session(&cluster, 1);
    let waiting = {
        let _guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
        stand_in_line(&other, cluster.node(1), "lock")
    };
    assert!(waiting.finish().unwrap().is_held());
}

#[test]
fn acquire_tries_once_waits_with_a_deadline_or_blocks() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let other = session(&cluster, 1);
    let tried = other.mutex("lock").try_lock().block();
    assert!(matches!(tried, Err(LockError::WouldBlock { .. })), "{tried:?}");
    let waited = other.mutex("lock").lock().deadline(Duration::from_millis(200)).block();
    assert!(waited.as_ref().is_err_and(timed_out), "{waited:?}");
    let waiting = stand_in_line(&other, cluster.node(1), "lock");
    guard.release().block().unwrap();
    assert!(waiting.finish().unwrap().is_held());
}

/// `lock_ttl` limits the time of a hold. Without it, the hold lasts as long as its owner.
#[test]
fn hold_may_have_its_own_ttl() {
    let cluster = lasting(3);
    let mutex = session(&cluster, 0).mutex("lock");
    let guard = mutex.lock().max_hold(STEADY).block().unwrap();
    assert_eq!(guard.lost().block(), LostReason::HeldTooLong);
    assert!(mutex.lock().block().unwrap().is_held());
}

/// A repeated acquisition by the same owner is the same hold.
#[test]
fn owner_reenters_its_lock() {
    let cluster = lasting(3);
    let session = session(&cluster, 0);
    let owner = session.owner("importer");
    let first = session.mutex("lock").lock().owner(&owner).block().unwrap();
    let again = session.mutex("lock").lock().owner(&owner).block().unwrap();
    assert_eq!((first.key(), first.since()), (again.key(), again.since()));
}

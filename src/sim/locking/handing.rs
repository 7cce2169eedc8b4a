//! Programs that hold permits of a semaphore and read locks, which operators transfer from holder to waiter. At the
//! same time waiters are evicted, locks are broken or released, the limit changes, and readers upgrade to writers.
//! The number of holders must never exceed the limit.

use super::super::plan::{index, one_in};
use super::orders::wait_limited;
use super::{Player, permits, reading};
use crate::recipes::{LockAdminError, LockEntry};

/// Number of tasks per node for each of the two locks.
const TASKS: usize = 2;

/// Starts the holders and the operators of both locks.
pub(super) fn start(player: &Player, semaphore: &'static str, rw_lock: &'static str) {
    for _ in 0..TASKS {
        player.spawn(permits::live(player.again(), semaphore));
        player.spawn(reading::live(player.again(), rw_lock));
    }
    for lock in [semaphore, rw_lock] {
        player.spawn(operate(player.again(), lock));
    }
}

/// Transfers holds of a lock to any waiter, as soon as both exist.
async fn operate(player: Player, lock: &'static str) {
    let locks = player.caller.locks();
    while !player.is_closing() {
        player.think().await;
        let Ok(info) = locks.of(lock) else { continue };
        let (holders, waiters): (Vec<LockEntry>, Vec<LockEntry>) =
            info.queue.into_iter().partition(|entry| entry.holds);
        if holders.is_empty() || waiters.is_empty() {
            continue;
        }
        let holder = &holders[index(&player.rng, holders.len())];
        let successor = &waiters[index(&player.rng, waiters.len())];
        if one_in(&player.rng, 4) {
            let other = if one_in(&player.rng, 2) { holder } else { successor };
            player.evict_soon(other.clone());
        }
        let order = locks.transfer(holder, successor, "it is urgent");
        let answer = wait_limited(&player, order).await;
        let mut judge = player.scene.judge.borrow_mut();
        match answer {
            Some(Ok(())) => judge.count("hold of several handed over by an order"),
            Some(Err(LockAdminError::Gone | LockAdminError::NoSuccessor { .. })) => {
                judge.count("no order given")
            }
            Some(Err(LockAdminError::Store(_))) | None => {}
            Some(Err(error)) => judge.expect(false, "K-ORDER", || {
                format!("an order about {lock}, which only sessions want, is refused: {error}")
            }),
        }
    }
}

//! A program that repeatedly acquires one lock, with or without waiting.

use std::time::Duration;

use super::{GaveUp, Holding, Player, WAIT_MAX, resuming};
use crate::api::Session;
use crate::model::LeaseId;
use crate::recipes::{Guard, LockError};

use super::super::plan::{between, index, one_in};

/// Bounds of a short hold or a short wait.
const SHORT: Duration = Duration::from_millis(300);
const SHORTEST: Duration = Duration::from_millis(1);

/// Starts the program.
pub(super) fn start(player: Player, lock: &'static str) {
    let scene = player.scene.clone();
    let at = player.at;
    scene.spawner.spawn(Some(at), live(player, lock));
}

async fn live(player: Player, lock: &'static str) {
    while !player.is_closing() {
        player.think().await;
        let Some(session) = player.session().await else { continue };
        let (mut left, mut lonely) = (MutexLeft::Free, None);
        match resuming::saved(&player, lock) {
            Some(ticket) => {
                if let Some(holding) = resuming::take_up(&player, &session, lock, ticket).await {
                    left = hold(&player, holding).await;
                }
            }
            // The key of a released hold may still exist for a while, so `try_lock` is checked only for the first
            // acquisition of a session.
            None => lonely = Some(session.lease()),
        }
        while session.end().is_none() && left == MutexLeft::Free && !player.is_closing() {
            if let Some((what, guard)) = take(&player, &session, lock, lonely.take()).await {
                left = hold(&player, player.report_hold(what, lock, guard)).await;
            }
            player.think().await;
            if one_in(&player.rng, 10) {
                break;
            }
        }
        match left {
            MutexLeft::Free => player.close(&session).await,
            MutexLeft::ToTheNext => drop(session.detach()),
        }
    }
}

/// Acquires and releases the lock once. Returns whether it was acquired.
pub(super) async fn once(player: &Player, session: &Session, lock: &'static str) -> bool {
    let attempt = session.mutex(lock).lock().deadline(WAIT_MAX);
    let Ok(guard) = player.wait(lock, attempt).await else { return false };
    let holding = player.report_hold("lock", lock, guard);
    player.update(&holding).await;
    player.release_hold(holding).await;
    true
}

/// How a hold was given up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MutexLeft {
    /// Released for the next waiter.
    Free,
    /// Left to the next session of the program.
    ToTheNext,
}

async fn hold(player: &Player, holding: Holding<Guard>) -> MutexLeft {
    let lock = holding.lock();
    resuming::save(player, &holding);
    player.scene.timers.sleep(player.while_held()).await;
    player.update_at_last(&holding).await;
    if one_in(&player.rng, 10) {
        resuming::leave(player, holding);
        return MutexLeft::ToTheNext;
    }
    resuming::forget(player, lock);
    player.release_hold(holding).await;
    MutexLeft::Free
}

/// Acquires the lock, with or without waiting. `lonely` is the lease if this is the first acquisition with it.
pub(super) async fn take(
    player: &Player,
    session: &Session,
    lock: &'static str,
    lonely: Option<LeaseId>,
) -> Option<(&'static str, Guard)> {
    let mutex = session.mutex(lock);
    if !one_in(&player.rng, 6) {
        let attempt = mutex.lock();
        let attempt = match index(&player.rng, 8) {
            // Acquires the lock with its own queue entry and a short hold.
            0 => attempt.max_hold(between(&player.rng, SHORTEST, SHORT)).deadline(WAIT_MAX),
            // Acquires the lock with the queue entry that its session shares, and a short deadline.
            1 => attempt.deadline(between(&player.rng, SHORTEST, SHORT)),
            _ => attempt.deadline(WAIT_MAX),
        };
        let guard = player.wait(lock, attempt).await.ok()?;
        return Some(("lock", guard));
    }
    let floor = player.scene.judge.borrow().truth().newest();
    match player.wait(lock, mutex.try_lock()).await {
        Ok(guard) => Some(("lock that was tried", guard)),
        Err(GaveUp::Told(LockError::WouldBlock { .. })) => {
            let mut judge = player.scene.judge.borrow_mut();
            if let Some(lease) = lonely {
                judge.would_block(lock, lease, floor);
            }
            judge.count("held lock not waited for");
            None
        }
        Err(_) => None,
    }
}

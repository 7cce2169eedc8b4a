//! Programs that read and write under one read/write lock: they wait, try without waiting, cancel a wait, upgrade and
//! downgrade. A row that a reader has read must not change until it releases the lock, even if it becomes a writer or
//! was one before.

use std::pin::pin;
use std::time::Duration;

use super::super::plan::one_in;
use super::{GaveUp, Holding, LockingWritten, Player, Program, WAIT_MAX, orders};
use crate::api::Session;
use crate::env::Entropy;
use crate::model::KeyValue;
use crate::recipes::{DowngradeError, LockError, ReadGuard, UpgradeError, WriteGuard};

/// Number of tasks per node.
const TASKS: usize = 2;

/// Number of pauses between two requests of an operator.
const ORDERS_APART: u32 = 4;

/// Starts the tasks.
pub(super) fn start(player: &Player, lock: &'static str) {
    for _ in 0..TASKS {
        player.spawn(live(player.again(), lock));
    }
    // An operator on one node sometimes makes a request during an upgrade or downgrade.
    if player.at == 0 {
        player.spawn(orders::operate(player.again(), lock, ORDERS_APART));
    }
}

pub(super) async fn live(player: Player, lock: &'static str) {
    let turn = async |session: &Session| match one_in(&player.rng, 3) {
        true => write(&player, session, lock).await,
        false => read(&player, session, lock).await,
    };
    player.run_in_sessions(Duration::default, turn).await;
}

/// Acquires the write lock and downgrades it. Returns whether it was acquired.
pub(super) async fn once(player: &Player, session: &Session, lock: &'static str) -> bool {
    let attempt = session.rw_lock(lock).write().deadline(WAIT_MAX);
    let Ok(guard) = player.wait(lock, attempt).await else { return false };
    let writer = player.report_hold("write lock", lock, guard);
    let written = player.update(&writer).await;
    step_down(player, lock, writer, written).await;
    true
}

async fn write(player: &Player, session: &Session, lock: &'static str) {
    let rw_lock = session.rw_lock(lock);
    let attempt = match one_in(&player.rng, 6) {
        true => rw_lock.try_write(),
        false => rw_lock.write().deadline(WAIT_MAX),
    };
    let Ok(guard) = player.wait(lock, attempt).await.inspect_err(|why| told(player, why)) else {
        return;
    };
    let writer = player.report_hold("write lock", lock, guard);
    player.scene.timers.sleep(player.while_held() / 2).await;
    let written = player.update(&writer).await;
    match one_in(&player.rng, 3) {
        true => step_down(player, lock, writer, written).await,
        false => player.release_hold(writer).await,
    }
}

async fn read(player: &Player, session: &Session, lock: &'static str) {
    let rw_lock = session.rw_lock(lock);
    let attempt = match one_in(&player.rng, 6) {
        true => rw_lock.try_read(),
        false => rw_lock.read().deadline(WAIT_MAX),
    };
    let Ok(guard) = player.wait(lock, attempt).await.inspect_err(|why| told(player, why)) else {
        return;
    };
    let reader = player.report_hold("read lock", lock, guard);
    let Some(read) = player.guarded(lock).await else { return };
    player.scene.timers.sleep(player.while_held() / 2).await;
    player.write_other_row(&reader, "write of a reader", read.clone()).await;
    match one_in(&player.rng, 3) {
        true => step_up(player, lock, reader, read).await,
        false => player.release_hold(reader).await,
    }
}

fn told(player: &Player, why: &GaveUp) {
    if let GaveUp::Told(LockError::WouldBlock { .. }) = why {
        player.scene.judge.borrow_mut().count("held read/write lock not waited for");
    }
}

/// Downgrades a write lock. No other program may write in between. If the outcome of a write by this program is
/// unknown, the write is applied before the downgrade or never.
async fn step_down(
    player: &Player,
    lock: &'static str,
    writer: Holding<WriteGuard>,
    written: LockingWritten,
) {
    let Some(read_before) = player.guarded(lock).await else { return };
    let guard = player.report_end_of_hold(writer);
    let may_take = player.caller.deadline();
    let call = player.scene.judge.borrow_mut().call(player.node, "downgrade", may_take);
    let answer = guard.downgrade().await;
    player.scene.judge.borrow_mut().returned(call);
    let (guard, is_confirmed) = match answer {
        Ok(guard) => (guard, true),
        Err(DowngradeError::Unconfirmed { guard, .. }) => (guard, false),
        Err(DowngradeError::Lost(_)) => return,
        Err(DowngradeError::HeldAgain(_)) => unreachable!("it has no owner"),
    };
    player.scene.judge.borrow_mut().count("downgrade");
    let reader = player.report_continued_hold(lock, guard);
    let read = match (written, is_confirmed) {
        (LockingWritten::Decided, _) => Some(read_before),
        (LockingWritten::Perhaps, true) => player.guarded(lock).await,
        (LockingWritten::Perhaps, false) => None,
    };
    player.scene.timers.sleep(player.while_held() / 4).await;
    if let Some(read) = read {
        player.write_other_row(&reader, "write of a reader", read).await;
    }
    player.release_hold(reader).await;
}

/// Upgrades a read lock. The row that it read must be unchanged.
async fn step_up(
    player: &Player,
    lock: &'static str,
    reader: Holding<ReadGuard>,
    read: Option<KeyValue>,
) {
    if one_in(&player.rng, 2) {
        // Evicts a waiting writer, at about the time when this program becomes the only reader.
        let line = player.caller.locks().of(lock).map(|info| info.queue).unwrap_or_default();
        if let Some(writer) = line.into_iter().find(|place| !place.holds) {
            player.evict_soon(writer);
        }
        player.scene.timers.sleep(Duration::from_millis(player.rng.below(20))).await;
    }
    let guard = player.report_end_of_hold(reader);
    match upgraded(player, lock, guard).await {
        Some(Ok(guard)) => {
            let writer = player.report_hold("upgrade", lock, guard);
            player.write_back(&writer, lock, read).await;
            player.release_hold(writer).await;
        }
        Some(Err(guard)) => {
            let reader = player.report_continued_hold(lock, guard);
            player.scene.timers.sleep(player.while_held() / 4).await;
            player.write_other_row(&reader, "write of a reader", read).await;
            player.release_hold(reader).await;
        }
        None => {}
    }
}

/// Waits for an upgrade, sometimes only briefly. If the upgrade fails, the program still holds the read lock, or has
/// lost it.
async fn upgraded(
    player: &Player,
    lock: &'static str,
    guard: ReadGuard,
) -> Option<Result<WriteGuard, ReadGuard>> {
    let mut upgrade = match one_in(&player.rng, 4) {
        true => guard.try_upgrade(),
        false => guard.upgrade().deadline(WAIT_MAX),
    };
    let (call, waiting) = {
        let mut judge = player.scene.judge.borrow_mut();
        let waiting = judge.attempts(lock, Program::group(lock), player.node, None);
        (judge.call(player.node, "upgrade", WAIT_MAX), waiting)
    };
    let answer = player.wait_impatiently(pin!(&mut upgrade), 60, 4).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    judge.gives_up(waiting);
    match answer {
        Some(Ok(guard)) => Some(Ok(guard)),
        Some(Err(UpgradeError { guard, why })) => {
            if why == LockError::UpgradeTaken {
                judge.count("second upgrade refused");
            }
            drop(judge);
            guard.is_held().then_some(Err(guard))
        }
        None if one_in(&player.rng, 2) => {
            judge.count("upgrade dropped");
            drop(judge);
            drop(upgrade);
            None
        }
        None => {
            judge.count("upgrade given up");
            drop(judge);
            upgrade.give_up().filter(|guard| guard.is_held()).map(Err)
        }
    }
}

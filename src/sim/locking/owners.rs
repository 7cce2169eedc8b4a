//! Programs whose lock owners take two locks, and one of these locks twice. Owners that take locks in any order
//! may deadlock. One owner of each deadlock must get an error. Owners that take locks in a fixed order never
//! deadlock and must never get this error.

use std::time::Duration;

use super::super::plan::one_in;
use super::{GaveUp, Player, WAIT_MAX};
use crate::api::Session;
use crate::model::Revision;
use crate::recipes::{LockError, Owner, Released};

/// Starts one program of each kind: one takes the first two locks in any order, the others take theirs in a fixed
/// order.
pub(super) fn start(player: &Player, locks: &'static [&'static str]) {
    player.spawn(live(player.again(), [locks[0], locks[1]], true));
    player.spawn(live(player.again(), [locks[2], locks[3]], false));
}

async fn live(player: Player, locks: [&'static str; 2], any_order: bool) {
    let turn = async |session: &Session| {
        let is_swapped = any_order && one_in(&player.rng, 2);
        let order = if is_swapped { [locks[1], locks[0]] } else { locks };
        work(&player, session, order, any_order).await;
    };
    player.run_in_sessions(Duration::default, turn).await;
}

/// Acquires both locks and releases them.
async fn work(player: &Player, session: &Session, locks: [&'static str; 2], any_order: bool) {
    let owner = session.owner("work");
    let work = player.scene.judge.borrow_mut().next_work_id();
    let attempt = |lock: &'static str| session.mutex(lock).lock().owner(&owner).deadline(WAIT_MAX);
    let Ok(first) = player.wait_as(locks[0], Some(work), attempt(locks[0])).await else { return };
    let first = player.report_hold_as("owner's lock", locks[0], Some(work), first);
    hold_again(player, session, &owner, locks[0], first.held.since()).await;
    player.think().await;
    match player.wait_as(locks[1], Some(work), attempt(locks[1])).await {
        Ok(second) => {
            let second = player.report_hold_as("owner's lock", locks[1], Some(work), second);
            player.scene.timers.sleep(player.while_held() / 4).await;
            player.update(&second).await;
            player.release_hold(second).await;
            player.scene.judge.borrow_mut().count("two locks held");
        }
        Err(GaveUp::Told(LockError::Deadlock { cycle })) => {
            let mut judge = player.scene.judge.borrow_mut();
            judge.count("deadlock");
            judge.expect(any_order, "K-ALARM", || {
                format!("all take {locks:?} in this order, and yet there is {cycle:?}")
            });
        }
        Err(_) => {}
    }
    player.release_hold(first).await;
}

/// Acquires a lock that its owner already holds, which must succeed at once.
async fn hold_again(
    player: &Player,
    session: &Session,
    owner: &Owner,
    lock: &'static str,
    since: Revision,
) {
    if !one_in(&player.rng, 3) {
        return;
    }
    let attempt = session.mutex(lock).lock().owner(owner).deadline(WAIT_MAX);
    let Ok(again) = player.wait(lock, attempt).await else { return };
    // The first hold may have been lost in the meantime.
    if again.since() == since {
        let answer = again.release().await;
        let mut judge = player.scene.judge.borrow_mut();
        judge.count("lock acquired again by its owner");
        judge.expect(!matches!(answer, Ok(Released::Now)), "K-LOCAL", || {
            format!("{lock} is free, and is held still")
        });
    }
}

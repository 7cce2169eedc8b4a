//! Programs that share the permits of a semaphore. Some programs take many permits, some read the slots of their
//! permits, and sometimes a program changes the limit.

use std::time::Duration;

use super::super::plan::one_in;
use super::{GaveUp, Holding, Player, WAIT_MAX};
use crate::api::Session;
use crate::env::Entropy;
use crate::recipes::{LockError, Permit};

/// Number of tasks per node.
const TASKS: usize = 2;

/// Number of permits at first.
const LIMIT: u32 = 3;

/// Highest number of permits.
const LIMIT_MAX: u32 = 5;

/// Maximum number of attempts to take a permit. A failed attempt may return the current limit, which the next attempt
/// uses.
const CHECKS_MAX: usize = 4;

/// Starts the tasks.
pub(super) fn start(player: &Player, lock: &'static str) {
    for _ in 0..TASKS {
        player.spawn(live(player.again(), lock));
    }
}

pub(super) async fn live(player: Player, lock: &'static str) {
    let mut limit = LIMIT;
    let turn = async |session: &Session| {
        turn(&player, session, lock, &mut limit).await;
        if one_in(&player.rng, 12) {
            resize(&player, session, lock, &mut limit).await;
        }
    };
    player.run_in_sessions(Duration::default, turn).await;
}

/// Takes one permit and releases it. Returns whether it was taken.
pub(super) async fn once(player: &Player, session: &Session, lock: &'static str) -> bool {
    let mut limit = LIMIT;
    for _ in 0..CHECKS_MAX {
        if let Some(holding) = take(player, session, lock, &mut limit, 1).await {
            slots(player, &holding).await;
            player.release_hold(holding).await;
            return true;
        }
    }
    false
}

async fn turn(player: &Player, session: &Session, lock: &'static str, limit: &mut u32) {
    let wants = match one_in(&player.rng, 2) {
        true => 1,
        false => 1 + u32::try_from(player.rng.below(u64::from(*limit))).expect("few"),
    };
    let Some(holding) = take(player, session, lock, limit, wants).await else { return };
    if one_in(&player.rng, 2) {
        slots(player, &holding).await;
    }
    player.scene.timers.sleep(player.while_held() / 2).await;
    if one_in(&player.rng, 4) {
        slots(player, &holding).await;
    }
    player.release_hold(holding).await;
}

async fn take(
    player: &Player,
    session: &Session,
    lock: &'static str,
    limit: &mut u32,
    wants: u32,
) -> Option<Holding<Permit>> {
    let semaphore = session.semaphore(lock, *limit);
    let attempt = match one_in(&player.rng, 6) {
        true => semaphore.try_acquire_many(wants.min(*limit)),
        false => semaphore.acquire_many(wants.min(*limit)).deadline(WAIT_MAX),
    };
    match player.wait(lock, attempt).await {
        Ok(permit) => Some(player.report_hold("permits", lock, permit)),
        Err(GaveUp::Told(LockError::LimitMismatch { stored, asked })) => {
            let mut judge = player.scene.judge.borrow_mut();
            judge.expect(asked == *limit && (1..=LIMIT_MAX).contains(&stored), "K-PERMITS", || {
                format!("who asks for one of {limit} is told: not {asked} but {stored}")
            });
            judge.count("semaphore limit refused");
            *limit = stored;
            None
        }
        Err(GaveUp::Told(LockError::TooManyPermits { asked, limit: now })) => {
            let mut judge = player.scene.judge.borrow_mut();
            judge.expect(asked > now, "K-PERMITS", || format!("{asked} of {now} are too many"));
            judge.count("request for too many permits refused");
            None
        }
        Err(_) => None,
    }
}

/// Asks for the slots of its permits.
async fn slots(player: &Player, holding: &Holding<Permit>) {
    let may_take = player.caller.deadline();
    let call = player.scene.judge.borrow_mut().call(player.node, "slots claimed", may_take);
    let answer = holding.held.slots().await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    if let Ok(slots) = answer {
        let slots: Vec<_> = slots.iter().map(|slot| (slot.number, slot.token)).collect();
        let (lock, id) = holding.parts[0];
        judge.has_slots(lock, id, &slots);
    }
}

/// Raises or lowers the limit.
async fn resize(player: &Player, session: &Session, lock: &'static str, limit: &mut u32) {
    let new = 2 + u32::try_from(player.rng.below(u64::from(LIMIT_MAX) - 1)).expect("few");
    let may_take = player.caller.deadline();
    let call = player.scene.judge.borrow_mut().call(player.node, "resize", may_take);
    let answer = session.semaphore(lock, *limit).resize(new).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    if let Ok(semaphore) = answer {
        *limit = semaphore.limit();
        judge.count("resize");
    }
}

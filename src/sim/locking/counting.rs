//! Programs that use one counter: they add, read, and set it, unconditionally or only if it still has the value that
//! they have read. The judge gives each call a unique amount.

use super::super::judge::{Amount, COUNTER};
use super::Player;
use super::toolbox::{begin, may_be};
use crate::env::Entropy;
use crate::model::Revision;
use crate::recipes::CounterError;

/// Makes one call.
pub(super) async fn turn(player: &Player) {
    match player.rng.below(10) {
        0..7 => add(player).await,
        7 => {
            read(player).await;
        }
        8 => set(player).await,
        _ => compare_and_set(player).await,
    }
}

async fn add(player: &Player) {
    let (floor, call) = begin(player, "add");
    let amount = player.scene.judge.borrow_mut().will_add();
    let answer = player.caller.client().counter(COUNTER).add(amount.get()).await;
    player.scene.judge.borrow_mut().returned(call);
    match answer {
        Ok(sum) => player.scene.judge.borrow_mut().added(amount, sum, floor),
        Err(error) => in_vain(player, amount, &error),
    }
}

async fn set(player: &Player) {
    let (floor, call) = begin(player, "set a counter");
    let amount = player.scene.judge.borrow_mut().will_set();
    let answer = player.caller.client().counter(COUNTER).set(amount.get()).await;
    player.scene.judge.borrow_mut().returned(call);
    match answer {
        Ok(()) => player.scene.judge.borrow_mut().was_set(amount, None, floor),
        Err(error) => in_vain(player, amount, &error),
    }
}

/// Sets the counter if it still has the value that was read.
async fn compare_and_set(player: &Player) {
    let Some(expected) = read(player).await else { return };
    let (floor, call) = begin(player, "compare and set a counter");
    let amount = player.scene.judge.borrow_mut().will_set();
    let counter = player.caller.client().counter(COUNTER);
    let answer = counter.compare_and_set(expected, amount.get()).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    match answer {
        Ok(()) => judge.was_set(amount, Some(expected), floor),
        Err(CounterError::Changed { .. }) => {
            judge.record_not_counted(amount);
            judge.check_mismatch(expected, floor);
        }
        Err(error) => {
            drop(judge);
            in_vain(player, amount, &error);
        }
    }
}

async fn read(player: &Player) -> Option<i64> {
    let (floor, call): (Revision, _) = begin(player, "read a counter");
    let answer = player.caller.client().counter(COUNTER).get().await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    let value = answer.ok()?;
    judge.counter_read(value, floor);
    Some(value)
}

fn in_vain(player: &Player, amount: Amount, error: &CounterError) {
    let mut judge = player.scene.judge.borrow_mut();
    match error {
        CounterError::Store(error) if may_be(error) => judge.unknown(),
        _ => judge.record_not_counted(amount),
    }
}

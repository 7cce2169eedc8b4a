//! Programs that acquire several locks at once, all or none, in overlapping sets, while others acquire one of them
//! alone.

use std::time::Duration;

use super::super::plan::{index, one_in};
use super::{GaveUp, Player, WAIT_MAX, mutex};
use crate::api::Session;
use crate::recipes::LockError;

/// Starts a program that takes several locks, and on each node one that takes a single lock.
pub(super) fn start(player: &Player, locks: &'static [&'static str]) {
    player.spawn(live(player.again(), locks));
    mutex::start(player.again(), locks[player.at % locks.len()]);
}

async fn live(player: Player, locks: &'static [&'static str]) {
    let turn = async |session: &Session| turn(&player, session, locks).await;
    player.run_in_sessions(Duration::default, turn).await;
}

async fn turn(player: &Player, session: &Session, locks: &'static [&'static str]) {
    let mut names = locks.to_vec();
    if !one_in(&player.rng, 3) {
        names.remove(index(&player.rng, names.len()));
    }
    // The order of the names must not matter.
    let named = match one_in(&player.rng, 2) {
        true => names.iter().rev().copied().collect(),
        false => names.clone(),
    };
    let attempt = match one_in(&player.rng, 6) {
        true => session.try_lock_all(named),
        false => session.lock_all(named).deadline(WAIT_MAX),
    };
    let guard = match player.wait(names[0], attempt).await {
        Ok(guard) => guard,
        Err(GaveUp::Told(LockError::WouldBlock { .. })) => {
            return player.scene.judge.borrow_mut().count("several locks not waited for");
        }
        Err(_) => return,
    };
    player.scene.judge.borrow_mut().expect(guard.keys().len() == names.len(), "K-ALL", || {
        format!("{names:?} are granted as {:?}", guard.keys())
    });
    let holding = player.report_holds("several locks acquired", &names, None, guard);
    let one = names[index(&player.rng, names.len())];
    let Some(read) = player.guarded(one).await else { return };
    player.scene.timers.sleep(player.while_held() / 2).await;
    player.write_back(&holding, one, read).await;
    player.release_hold(holding).await;
}

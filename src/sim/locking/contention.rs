//! Several tasks of one node share one session and want one lock, while those of the other nodes do
//! too. Each of them must be alone with it, however the lock goes from task to task.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::super::plan::{between, one_in};
use super::{Player, mutex};
use crate::api::Session;

/// How many tasks of a node want the lock.
const TASKS: usize = 3;

/// How long a task holds it, at most.
const HOLD_MAX: Duration = Duration::from_millis(150);

/// The session that the tasks of a node share.
type Desk = Rc<RefCell<Option<Session>>>;

/// Starts them.
pub(super) fn start(player: &Player, lock: &'static str) {
    let desk = Desk::default();
    player.spawn(keep_open(player.again(), desk.clone()));
    for _ in 0..TASKS {
        player.spawn(live(player.again(), desk.clone(), lock));
    }
}

/// Sees to it that there is a session.
async fn keep_open(player: Player, desk: Desk) {
    while !player.is_closing() {
        let Some(session) = player.session().await else { continue };
        *desk.borrow_mut() = Some(session.clone());
        session.ended().await;
    }
}

async fn live(player: Player, desk: Desk, lock: &'static str) {
    while !player.is_closing() {
        player.think().await;
        let session = desk.borrow().clone();
        let Some(session) = session.filter(|session| session.end().is_none()) else { continue };
        // Several times in a row, so that the others of the node wait.
        for _ in 0..3 {
            turn(&player, &session, lock).await;
        }
    }
}

async fn turn(player: &Player, session: &Session, lock: &'static str) {
    let Some((what, guard)) = mutex::take(player, session, lock, None).await else { return };
    let holding = player.believe(what, lock, guard);
    player.scene.timers.sleep(between(&player.rng, Duration::ZERO, HOLD_MAX)).await;
    if one_in(&player.rng, 2) {
        player.update_at_last(&holding).await;
    }
    player.let_go(holding).await;
}

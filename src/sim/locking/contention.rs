//! Programs in which several tasks of one node share a session and compete for one lock with those of other nodes.
//! The lock must be exclusive however it is passed between tasks.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::super::plan::{between, one_in};
use super::{Player, mutex};
use crate::api::Session;

/// Number of tasks per node.
const TASKS: usize = 3;

/// Maximum time that a task holds the lock.
const HOLD_MAX: Duration = Duration::from_millis(150);

/// The session that the tasks of a node share.
type Desk = Rc<RefCell<Option<Session>>>;

/// Starts the tasks.
pub(super) fn start(player: &Player, lock: &'static str) {
    let desk = Desk::default();
    player.spawn(keep_open(player.again(), desk.clone()));
    for _ in 0..TASKS {
        player.spawn(live(player.again(), desk.clone(), lock));
    }
}

/// Keeps a session open for the tasks.
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
        // Acquires the lock several times in a row, so that other tasks of the node must wait.
        for _ in 0..3 {
            turn(&player, &session, lock).await;
        }
    }
}

async fn turn(player: &Player, session: &Session, lock: &'static str) {
    let Some((what, guard)) = mutex::take(player, session, lock, None).await else { return };
    let holding = player.report_hold(what, lock, guard);
    player.scene.timers.sleep(between(&player.rng, Duration::ZERO, HOLD_MAX)).await;
    if one_in(&player.rng, 2) {
        player.update_at_last(&holding).await;
    }
    player.release_hold(holding).await;
}

//! Programs that resume a hold: after a restart of the process, or in a new session after the old one was detached.
//! The saved hold outlives the process.

use std::cell::Cell;

use super::super::plan::one_in;
use super::{Holding, Player};
use crate::api::Session;
use crate::recipes::{Guard, LockError, ResumeError, SavedHold};

/// Saves the hold, as a program does before it begins work that must continue after a crash.
pub(super) fn save(player: &Player, holding: &Holding<Guard>) {
    let saved = (player.node, holding.lock());
    player.scene.tickets.borrow_mut().insert(saved, holding.held.saved_hold());
}

/// Deletes the saved hold, except sometimes: then the program later tries to resume a hold that has ended.
pub(super) fn forget(player: &Player, lock: &'static str) {
    if !one_in(&player.rng, 4) {
        player.scene.tickets.borrow_mut().remove(&(player.node, lock));
    }
}

/// Leaves the hold to the next session: its key stays, and no program believes that it holds the lock. A request may
/// still be in flight.
pub(super) fn leave(player: &Player, holding: Holding<Guard>) {
    let lock = holding.lock();
    let ticket = player.report_end_of_hold(holding).detach();
    player.scene.tickets.borrow_mut().insert((player.node, lock), ticket);
    player.scene.judge.borrow_mut().count("lock left to be resumed");
}

/// Returns the hold that was saved on this node.
pub(super) fn saved(player: &Player, lock: &'static str) -> Option<SavedHold> {
    player.scene.tickets.borrow_mut().remove(&(player.node, lock))
}

/// Resumes the hold.
pub(super) async fn take_up(
    player: &Player,
    session: &Session,
    lock: &'static str,
    ticket: SavedHold,
) -> Option<Holding<Guard>> {
    player.scene.judge.borrow_mut().record_resumption(
        ticket.key(),
        ticket.since(),
        session.lease(),
    );
    let (mutex, refused) = (session.mutex(lock), Cell::new(None));
    let attempt = async {
        mutex.resume(&ticket).await.map_err(|why| match why {
            ResumeError::NotTaken(why) => why,
            why => {
                refused.set(Some(why));
                LockError::Unavailable
            }
        })
    };
    if let Ok(guard) = player.wait(lock, Box::pin(attempt)).await {
        return Some(player.report_hold("lock resumed", lock, guard));
    }
    told(player, lock, ticket, refused.into_inner());
    None
}

fn told(player: &Player, lock: &'static str, ticket: SavedHold, why: Option<ResumeError>) {
    let mut judge = player.scene.judge.borrow_mut();
    match why {
        Some(ResumeError::Over) => {
            judge.is_over(ticket.key(), ticket.since(), ticket.lease());
            judge.count("lock lost before it was resumed");
        }
        // The program may try to resume the hold again.
        Some(ResumeError::Store(_)) => {
            player.scene.tickets.borrow_mut().insert((player.node, lock), ticket);
        }
        Some(why @ (ResumeError::AnotherNode { .. } | ResumeError::AnotherLock { .. })) => {
            judge.expect(false, "K-RESUME", || format!("{ticket} of {lock}: {why}"));
        }
        // The session still relies on its lease, or the hold was given up, or its session has ended.
        Some(_) | None => {}
    }
}

//! Programs that poll a lock acquisition at fixed times instead of when it is woken. Grants, losses and ends of
//! sessions are therefore noticed late. These programs also release a lost lock only some time after the loss.
//! Most sessions of these programs have a lock delay, during which no other program may acquire the lock.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::super::plan::{between, one_in};
use super::{Holding, LockingHeld, Player, WAIT_MAX};
use crate::api::Session;
use crate::recipes::{Guard, LockError};

/// The longest lock delay: long enough for an isolated node to come back before it has passed.
const DELAY_MAX: Duration = Duration::from_secs(3);

/// Maximum time between two polls of an acquisition.
const LATE_MAX: Duration = Duration::from_secs(3);

/// Maximum time between a loss and the release.
const START_DELAY_MAX: Duration = Duration::from_millis(400);

/// Interval and duration of the checks for a loss after the session is at risk.
const LOOK: Duration = Duration::from_millis(1);
const WATCH_TIME: Duration = Duration::from_millis(1_500);

/// Number of tasks per node, each with its own session.
const TASKS: usize = 2;

/// Starts the tasks.
pub(super) fn start(player: &Player, lock: &'static str) {
    for _ in 0..TASKS {
        player.spawn(live(player.again(), lock));
    }
}

async fn live(player: Player, lock: &'static str) {
    let turn = async |session: &Session| turn(&player, session, lock).await;
    player.run_in_sessions(|| player.lock_delay(3, DELAY_MAX), turn).await;
}

async fn turn(player: &Player, session: &Session, lock: &'static str) {
    // The deadline leaves room for the delay of the last poll.
    let attempt = session.mutex(lock).lock().deadline(WAIT_MAX - LATE_MAX);
    let granted = match one_in(&player.rng, 2) {
        true => player.wait(lock, poll_rarely(player, attempt)).await,
        false => player.wait(lock, attempt).await,
    };
    let Ok(guard) = granted else { return };
    let holding = player.report_hold("lock of a rarely polled request", lock, guard);
    hold(player, &holding).await;
    player.release_hold(holding).await;
}

/// Holds the lock for a while, until some time after its loss, or until the loss becomes observable, which may be
/// before the node reports it.
async fn hold(player: &Player, holding: &Holding<Guard>) {
    let (held, timers) = (&holding.held, &player.scene.timers);
    if one_in(&player.rng, 3) {
        drop(player.for_at_most(player.scene.session_ttl * 2, held.at_risk()).await);
        let begun = player.scene.timeline.now();
        while held.loss().is_none() && player.scene.timeline.now() - begun < WATCH_TIME {
            timers.sleep(LOOK).await;
        }
        return;
    }
    drop(player.for_at_most(player.while_held(), held.lost()).await);
    player.update(holding).await;
    if held.loss().is_some() {
        timers.sleep(between(&player.rng, Duration::ZERO, START_DELAY_MAX)).await;
    }
}

/// Polls an acquisition at intervals, regardless of wake-ups.
async fn poll_rarely<H>(
    player: &Player,
    attempt: impl IntoFuture<Output = Result<H, LockError>>,
) -> Result<H, LockError> {
    let mut attempt = pin!(attempt.into_future());
    loop {
        let look = poll_fn(|context| Poll::Ready(attempt.as_mut().poll(context)));
        if let Poll::Ready(answer) = look.await {
            return answer;
        }
        player.scene.timers.sleep(between(&player.rng, Duration::ZERO, LATE_MAX)).await;
    }
}

//! Tasks that come late: they look after a wish when they come round to it, not when they are woken, so that a grant, a
//! loss and the end of a session wait for them; and they let go what they have lost some time after the loss. Most of
//! them have a lock delay, which others must wait for.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::super::plan::{between, one_in};
use super::{Held, Holding, PATIENCE, Player};
use crate::api::Session;
use crate::recipes::{Guard, LockError};

/// The longest lock delay: long enough for a node that was cut off to come back before it is over.
const DELAY_MAX: Duration = Duration::from_secs(3);

/// How late a task looks after its wish, at most.
const LATE_MAX: Duration = Duration::from_secs(3);

/// What a loss waits for, at most, until it is let go.
const SLACK_MAX: Duration = Duration::from_millis(400);

/// How often one who is at risk looks whether it has lost, and for how long.
const LOOK: Duration = Duration::from_millis(1);
const LOOKS_FOR: Duration = Duration::from_millis(1_500);

/// How many tasks of a node want the lock, each with a session of its own.
const TASKS: usize = 2;

/// Starts them.
pub(super) fn start(player: &Player, lock: &'static str) {
    for _ in 0..TASKS {
        player.spawn(live(player.again(), lock));
    }
}

async fn live(player: Player, lock: &'static str) {
    let turn = async |session: &Session| turn(&player, session, lock).await;
    player.live_in_sessions(3, DELAY_MAX, turn).await;
}

async fn turn(player: &Player, session: &Session, lock: &'static str) {
    // It may end so much later than it should.
    let attempt = session.mutex(lock).lock().deadline(PATIENCE - LATE_MAX);
    let granted = match one_in(&player.rng, 2) {
        true => player.wait(lock, seldom(player, attempt)).await,
        false => player.wait(lock, attempt).await,
    };
    let Ok(guard) = granted else { return };
    let holding = player.believe("lock of who comes late", lock, guard);
    hold(player, &holding).await;
    player.let_go(holding).await;
}

/// Holds it for a while, or until some time after its loss; or as soon as it can be seen that it is lost, which may be before
/// its node has told anybody.
async fn hold(player: &Player, holding: &Holding<Guard>) {
    let (held, timers) = (&holding.held, &player.scene.timers);
    if one_in(&player.rng, 3) {
        drop(player.for_at_most(player.scene.session_ttl * 2, held.at_risk()).await);
        let begun = player.scene.timeline.now();
        while held.loss().is_none() && player.scene.timeline.now() - begun < LOOKS_FOR {
            timers.sleep(LOOK).await;
        }
        return;
    }
    drop(player.for_at_most(player.while_held(), held.lost()).await);
    player.update(holding).await;
    if held.loss().is_some() {
        timers.sleep(between(&player.rng, Duration::ZERO, SLACK_MAX)).await;
    }
}

/// A wish that is looked after now and then: whatever wakes it, it is polled when its task comes round.
async fn seldom<H>(
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

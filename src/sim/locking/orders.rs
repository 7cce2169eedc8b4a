//! Programs that hold one lock, with or without a lock delay, and release or transfer it on request. On each node an
//! operator requests releases, breaks holds, evicts waiters and transfers holds. However late a request arrives, the
//! lock must stay exclusive.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::super::plan::{index, one_in};
use super::{GaveUp, Holding, Player, WAIT_MAX};
use crate::api::Session;
use crate::env::Entropy;
use crate::recipes::{Guard, LockAdminError, LockEntry, LockError};

/// The longest lock delay, short enough for the lock to be free in time.
pub(super) const DELAY_MAX: Duration = Duration::from_millis(700);

/// Maximum time that an operator waits for a request to complete.
const ORDER_WAIT_MAX: Duration = Duration::from_secs(3);

/// Number of tasks per node, so that the lock is also transferred within a node.
const TASKS: usize = 2;

/// Starts the holders and the operator.
pub(super) fn start(player: &Player, lock: &'static str) {
    for _ in 0..TASKS {
        player.spawn(live(player.again(), lock));
    }
    player.spawn(operate(player.again(), lock, 1));
}

async fn live(player: Player, lock: &'static str) {
    let turn = async |session: &Session| turn(&player, session, lock).await;
    player.run_in_sessions(|| player.lock_delay(2, DELAY_MAX), turn).await;
}

async fn turn(player: &Player, session: &Session, lock: &'static str) {
    let mutex = session.mutex(lock);
    // An acquisition with a reason gets its own queue entry. The other acquisitions of a session
    // share an entry.
    let attempt = match one_in(&player.rng, 2) {
        true => mutex.lock().reason("to try it").deadline(WAIT_MAX),
        false => mutex.lock().deadline(WAIT_MAX),
    };
    let guard = match player.wait(lock, attempt).await {
        Ok(guard) => guard,
        Err(GaveUp::Told(LockError::Evicted)) => {
            return player.scene.judge.borrow_mut().count("eviction reported");
        }
        Err(_) => return,
    };
    let holding = player.report_hold("lock with orders", lock, guard);
    let asked = hold(player, &holding).await;
    player.update(&holding).await;
    let line = mutex.queue().unwrap_or_default();
    let successors: Vec<&LockEntry> = line.iter().filter(|place| !place.holds).collect();
    match successors.is_empty() || asked || !one_in(&player.rng, 3) {
        true => player.release_hold(holding).await,
        false => transfer(player, holding, successors[index(&player.rng, successors.len())]).await,
    }
}

/// Holds the lock for a while, or until its release is requested. Returns whether it was requested.
async fn hold(player: &Player, holding: &Holding<Guard>) -> bool {
    let mut asked = pin!(holding.held.asked_to_release());
    let mut enough = pin!(player.scene.timers.sleep(player.while_held()));
    let asked = poll_fn(|context| {
        if asked.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        enough.as_mut().poll(context).map(|()| false)
    })
    .await;
    if asked {
        player.scene.judge.borrow_mut().count("holder asked to release");
    } else {
        check_notification(player, holding).await;
    }
    asked
}

/// Checks that the holder is notified of a release request that its node has applied.
async fn check_notification(player: &Player, holding: &Holding<Guard>) {
    let hold = &holding.held;
    let order = [&hold.key()[..], b"/order"].concat();
    let Some((Some(row), _)) = player.caller.get_local(&order).await else { return };
    let asks = format!("bowline:1 ask\n{}\n", hold.since());
    let is_meant =
        row.lease == Some(hold.session().lease()) && row.value.starts_with(asks.as_bytes());
    let is_notified = hold.request().is_some() || !hold.is_held();
    player.scene.judge.borrow_mut().expect(is_notified || !is_meant, "K-ORDER", || {
        format!("{row:?} is here, and who holds by that key is not told")
    });
}

/// Transfers the hold to a waiter.
async fn transfer(player: &Player, holding: Holding<Guard>, successor: &LockEntry) {
    if one_in(&player.rng, 2) {
        player.evict_soon(successor.clone());
        player.scene.timers.sleep(Duration::from_millis(player.rng.below(40))).await;
    }
    let guard = player.report_end_of_hold(holding);
    let (key, since, lease) = (guard.key().clone(), guard.since(), guard.session().lease());
    let may_take = player.caller.deadline();
    let call = player.scene.judge.borrow_mut().call(player.node, "hand over", may_take);
    let answer = guard.transfer(successor).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    match answer {
        Ok(()) => {
            judge.check_release(&key, since, lease);
            judge.count("lock handed over");
        }
        Err(LockAdminError::Store(_)) => judge.unknown(),
        Err(_) => judge.count("not handed over"),
    }
}

/// Makes requests about entries of the lock queue, with `thinks` pauses in between.
pub(super) async fn operate(player: Player, lock: &'static str, thinks: u32) {
    let locks = player.caller.locks();
    while !player.is_closing() {
        for _ in 0..thinks {
            player.think().await;
        }
        let Ok(info) = locks.of(lock) else { continue };
        let line = info.queue;
        let Some(first) = line.first() else { continue };
        let any = &line[index(&player.rng, line.len())];
        let (what, answer) = match index(&player.rng, 4) {
            0 => (
                "release requested",
                wait_limited(&player, locks.request_release(first, "it is due")).await,
            ),
            1 => (
                "lock released by force",
                wait_limited(&player, locks.force_release(first, "it hangs")).await,
            ),
            2 => {
                ("waiter evicted", wait_limited(&player, locks.force_release(any, "not now")).await)
            }
            _ => {
                let order = locks.transfer(first, any, "it is urgent");
                ("lock handed over by an operator", wait_limited(&player, order).await)
            }
        };
        let mut judge = player.scene.judge.borrow_mut();
        match answer {
            Some(Ok(())) => judge.count(what),
            Some(Err(LockAdminError::Gone | LockAdminError::NoSuccessor { .. })) => {
                judge.count("no order given")
            }
            Some(Err(LockAdminError::Store(_))) | None => {}
            Some(Err(error)) => judge.expect(false, "K-ORDER", || {
                format!("of {lock}, where only sessions stand, somebody is told: {error}")
            }),
        }
    }
}

/// Waits for a request for a limited time. Giving up does not cancel the request.
pub(super) async fn wait_limited<T>(
    player: &Player,
    order: impl IntoFuture<Output = T>,
) -> Option<T> {
    player.for_at_most(ORDER_WAIT_MAX, order.into_future()).await
}

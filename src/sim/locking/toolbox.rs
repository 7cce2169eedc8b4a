//! Programs that use the smaller recipes: latches, barriers, double barriers of two, cells, groups, `RunOnce` and
//! cached views.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use super::super::judge::CallId;
use super::super::plan::index;
use super::{Player, counting, numbering, orders, passing};
use crate::api::{Effect, Error, Session};
use crate::model::{KeyRange, KeyValue, Revision};
use crate::node::SessionEndReason;
use crate::recipes::{CasOutcome, Expected, LatchError};

/// The group that programs join and follow.
pub(super) const GROUP: &str = "tool/group";

const LATCH: &str = "tool/latch";
const BARRIER: &str = "tool/barrier";
const CELL: &str = "tool/cell";
const DOUBLE_BARRIER: &str = "tool/meeting";

/// Number of participants of the double barrier.
const PAIR: usize = 2;

/// Number of count-downs of a latch in a round.
const ROUND: u64 = 6;

/// Maximum time to wait for other programs.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// Time for which run-once names are reused.
const ONCE: Duration = Duration::from_secs(4);

/// Interval between two checks of a session.
const LOOK: Duration = Duration::from_millis(25);

/// Number of tasks per node.
const TASKS: usize = 3;

/// Starts the tasks.
pub(super) fn start(player: &Player) {
    for _ in 0..TASKS {
        player.spawn(live(player.again()));
    }
    player.spawn(follow(player.again()));
    player.spawn(look(player.again()));
}

async fn live(player: Player) {
    let turn = async |session: &Session| turn(&player, session).await;
    player.run_in_sessions(|| player.lock_delay(2, orders::DELAY_MAX), turn).await;
}

async fn turn(player: &Player, session: &Session) {
    match index(&player.rng, 14) {
        0 | 1 => counting::turn(player).await,
        2 | 3 => count_down(player).await,
        4 => wait_for_the_latch(player).await,
        5 => hold_or_wait(player, session).await,
        6 => swap(player).await,
        7 => join(player, session).await,
        8 => run_once(player, session).await,
        9 | 10 => numbering::turn(player, session).await,
        11 | 12 => passing::turn(player).await,
        _ => meet(player, session).await,
    }
}

/// Returns whether the request of this error may have been applied.
pub(super) fn may_be(error: &Error) -> bool {
    error.effect() != Effect::NotApplied
}

async fn count_down(player: &Player) {
    let latch = player.caller.client().latch(LATCH);
    let (floor, call) = begin(player, "count down");
    player.scene.judge.borrow_mut().will_step(LATCH, 1);
    let answer = latch.count_down().await;
    player.scene.judge.borrow_mut().returned(call);
    match answer {
        // Nothing was counted down, so a new round begins.
        Ok(0) if !reached_zero(player, floor) => {
            player.scene.judge.borrow_mut().stepped(LATCH, 1, false);
            player.scene.judge.borrow_mut().passed(LATCH, floor);
            let (_, call) = begin(player, "set a latch");
            drop(latch.try_set(ROUND).await);
            player.scene.judge.borrow_mut().returned(call);
        }
        // The latch was already at 0, or the call has counted it down to 0. The reply does not distinguish these cases.
        Ok(0) => {}
        Ok(left) => {
            let mut judge = player.scene.judge.borrow_mut();
            judge.stepped(LATCH, 1, true);
            judge.went(LATCH, left + 1, left, floor);
        }
        Err(LatchError::Store(error)) if may_be(&error) => {
            player.scene.judge.borrow_mut().unknown();
        }
        Err(_) => player.scene.judge.borrow_mut().stepped(LATCH, 1, false),
    }
}

/// Returns whether the latch reached 0 after `floor`.
fn reached_zero(player: &Player, floor: Revision) -> bool {
    let judge = player.scene.judge.borrow();
    judge.truth().was_deleted_after(LATCH.as_bytes(), floor)
}

async fn wait_for_the_latch(player: &Player) {
    let floor = player.scene.judge.borrow().floor();
    let call = player.scene.judge.borrow_mut().call(player.node, "wait for a latch", WAIT_MAX);
    let answer = player.caller.client().latch(LATCH).wait().deadline(WAIT_MAX).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    if answer.is_ok() {
        judge.passed(LATCH, floor);
    }
}

async fn hold_or_wait(player: &Player, session: &Session) {
    let barrier = player.caller.client().barrier(BARRIER);
    if index(&player.rng, 2) == 0 {
        let (_, call) = begin(player, "hold a barrier");
        let held = barrier.hold(session).await;
        player.scene.judge.borrow_mut().returned(call);
        let Ok(held) = held else { return };
        let key = Bytes::from_static(BARRIER.as_bytes());
        player.scene.judge.borrow_mut().is_member(&key, held.since(), true);
        let (since, time) = (held.since(), player.while_held());
        let believed = stay(player, session, time).await;
        let lost = is_lost(session);
        drop(held);
        if lost {
            goes_with_its_lease(player, session, &key, since, believed).await;
        }
        return;
    }
    let floor = player.scene.judge.borrow().floor();
    let call = player.scene.judge.borrow_mut().call(player.node, "wait for a barrier", WAIT_MAX);
    let answer = barrier.wait().deadline(WAIT_MAX).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    if answer.is_ok() {
        judge.passed(BARRIER, floor);
    }
}

/// Writes the cell if it is unchanged since it was read.
async fn swap(player: &Player) {
    let cell = player.caller.client().cell(CELL);
    let (_, call) = begin(player, "read a cell");
    let read = cell.get().await;
    player.scene.judge.borrow_mut().returned(call);
    let Ok(read) = read else { return };
    let version = read.map_or(Revision(0), |read| read.version);
    let value = player.scene.value("swapped");
    let (floor, call) = begin(player, "swap a cell");
    let answer = cell.compare_and_set(Expected::Revision(version), value.clone()).await;
    player.scene.judge.borrow_mut().returned(call);
    let key = Bytes::from_static(CELL.as_bytes());
    swapped(
        player,
        Swapping { what: "compare and swap", key, expected: version, value, floor },
        answer,
    );
}

/// A conditional write of a key.
pub(super) struct Swapping {
    pub(super) what: &'static str,
    pub(super) key: Bytes,
    /// The revision of the expected last write, or 0 if the key must be absent.
    pub(super) expected: Revision,
    pub(super) value: Bytes,
    /// The newest revision known when the call began.
    pub(super) floor: Revision,
}

/// Reports the outcome to the judge. Returns the revision of the write.
pub(super) fn swapped(
    player: &Player,
    swapping: Swapping,
    answer: Result<CasOutcome, Error>,
) -> Option<Revision> {
    let Swapping { what, key, expected, value, floor } = swapping;
    let puts = [(key.clone(), value)];
    let mut judge = player.scene.judge.borrow_mut();
    match answer {
        Ok(CasOutcome::Done { revision }) => {
            judge.wrote(what, floor, revision, &puts);
            let was = judge.truth().row_at(&key, Revision(revision.get() - 1)).cloned();
            let was_it = was.as_ref().map_or(Revision(0), |row| row.mod_revision) == expected;
            judge.expect(was_it, "T-CELL", || {
                format!("{key:?} of {expected:?} was swapped at {revision:?}: there was {was:?}")
            });
            judge.count(what);
            return Some(revision);
        }
        Ok(CasOutcome::Lost { row }) => {
            judge.not_applied(&puts);
            let truth = judge.truth();
            let is_so = match &row {
                Some(row) => {
                    let at = row.mod_revision;
                    at > expected && truth.row_at(&key, at) == Some(row)
                }
                None => truth.was_deleted_after(&key, expected),
            };
            judge.expect(is_so, "T-CELL", || {
                format!("{key:?} of {expected:?} was not swapped for {row:?}, it is said")
            });
        }
        Err(error) if may_be(&error) => judge.unknown(),
        Err(_) => judge.not_applied(&puts),
    }
    None
}

async fn join(player: &Player, session: &Session) {
    let (_, call) = begin(player, "join");
    let joined = session.group(GROUP).join("here").await;
    player.scene.judge.borrow_mut().returned(call);
    let Ok(membership) = joined else { return };
    let (key, since) = (membership.key().clone(), membership.since());
    player.scene.judge.borrow_mut().is_member(&key, since, true);
    let believed = stay(player, session, player.while_held()).await;
    let lost = is_lost(session);
    let (_, call) = begin(player, "leave");
    let left = membership.leave().await;
    player.scene.judge.borrow_mut().returned(call);
    if lost {
        goes_with_its_lease(player, session, &key, since, believed).await;
    } else if left.is_ok() {
        player.scene.judge.borrow_mut().is_member(&key, since, false);
    }
}

fn is_lost(session: &Session) -> bool {
    session.end() == Some(SessionEndReason::NotRenewed)
}

/// Waits for `time`, or until the session ends. Returns the true time at which the session was last active.
async fn stay(player: &Player, session: &Session, time: Duration) -> Option<Duration> {
    let (timeline, mut believed) = (&player.scene.timeline, None);
    let until = timeline.now() + time;
    while session.end().is_none() {
        believed = Some(timeline.now());
        if timeline.now() >= until {
            break;
        }
        player.scene.timers.sleep(LOOK).await;
    }
    believed
}

/// Checks that the key of a lost session exists until the lock delay has passed.
async fn goes_with_its_lease(
    player: &Player,
    session: &Session,
    key: &Bytes,
    since: Revision,
    believed: Option<Duration>,
) {
    let Some(until) = believed.map(|believed| believed + session.lock_delay()) else { return };
    let now = player.scene.timeline.now();
    let Some(left) = until.checked_sub(now + Duration::from_millis(1)) else { return };
    player.scene.timers.sleep(left).await;
    if player.scene.timeline.now() >= until {
        return;
    }
    let mut judge = player.scene.judge.borrow_mut();
    let row = judge.truth().row_at(key, judge.truth().newest()).cloned();
    let is_there = row.as_ref().is_some_and(|row| row.create_revision == since);
    judge.expect(is_there, "K-DELAY", || {
        format!("{key:?} of {since:?} is let go by a lost session until {until:?}: {row:?}")
    });
    judge.count("lock delay beside locks");
}

async fn run_once(player: &Player, session: &Session) {
    let now = player.scene.timeline.now();
    let name = Bytes::from(format!("tool/once/{}", now.as_nanos() / ONCE.as_nanos()));
    let value = player.scene.value("ran");
    let client = player.caller.client().clone();
    let key = Bytes::from([b"ran/", &value[..]].concat());
    let work = {
        let result = value.clone();
        move || async move {
            client.put(key, "").await?;
            Ok::<_, Error>(result)
        }
    };
    let call = player.scene.judge.borrow_mut().call(player.node, "run once", WAIT_MAX);
    let once = player.caller.client().run_once(name.clone(), session);
    let answer = once.run(work).deadline(WAIT_MAX).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    if let Ok(ran) = answer {
        judge.ran_once(&name, &ran.result);
        judge.expect(ran.is_here == (ran.result == value), "T-ONCE", || {
            format!("{value:?} was to come of {name:?}, and it was {ran:?}")
        });
    }
}

/// Enters and leaves a double barrier with one partner.
async fn meet(player: &Player, session: &Session) {
    let barrier = session.double_barrier(DOUBLE_BARRIER, PAIR);
    let call = player.scene.judge.borrow_mut().call(player.node, "enter", WAIT_MAX);
    let inside = barrier.enter().deadline(WAIT_MAX).await;
    player.scene.judge.borrow_mut().returned(call);
    let Ok(inside) = inside else { return };
    let round = inside.round();
    player.scene.judge.borrow_mut().is_inside(DOUBLE_BARRIER, session.lease(), round, PAIR);
    player.scene.timers.sleep(player.while_held() / 4).await;
    let call = player.scene.judge.borrow_mut().call(player.node, "leave together", WAIT_MAX);
    let left = inside.leave().deadline(WAIT_MAX).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    if left.is_ok() {
        judge.all_have_left(DOUBLE_BARRIER, round);
    }
}

/// Begins a call that ends at the default call deadline.
pub(super) fn begin(player: &Player, what: &'static str) -> (Revision, CallId) {
    let mut judge = player.scene.judge.borrow_mut();
    (judge.floor(), judge.call(player.node, what, player.caller.deadline()))
}

/// Follows the group until the process ends.
async fn follow(player: Player) {
    let session = player.session_surely().await;
    let id = player.scene.judge.borrow_mut().follower_begins(player.node, GROUP);
    let mut watch = session.group(GROUP).watch();
    // The follower outlives this session.
    player.close(&session).await;
    while let Some(news) = watch.next().await {
        let members = watch.members().map(|member| (member.key.clone(), member.since));
        let members: BTreeSet<_> = members.collect();
        player.scene.judge.borrow_mut().record_follower_view(id, members);
        if news.is_err() {
            player.think().await;
        }
    }
}

/// Reads a view until the process ends. The view must always equal the state at some revision.
async fn look(player: Player) {
    let range = KeyRange::prefix("tool/");
    loop {
        let Ok(mut cached) = player.caller.client().cached_prefix("tool/").await else {
            player.think().await;
            continue;
        };
        let mut seen = Revision(0);
        while let Ok(view) = cached.changed().await {
            let rows: Vec<KeyValue> = view.iter().map(|(_, row)| row.clone()).collect();
            shown(&player, &range, seen, view.revision(), &rows);
            seen = view.revision();
            player.think().await;
        }
        player.think().await;
    }
}

/// Checks the rows of a view that has shown the revision `seen` before.
fn shown(player: &Player, range: &KeyRange, seen: Revision, revision: Revision, rows: &[KeyValue]) {
    let mut judge = player.scene.judge.borrow_mut();
    judge.viewed(range, revision, rows);
    judge.expect(revision > seen, "T-VIEW", || format!("after {seen:?} a view shows {revision:?}"));
}

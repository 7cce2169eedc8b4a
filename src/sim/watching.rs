//! A program that watches a range, resumes the watch after every end, and checks every batch against the real
//! history.

use std::time::Duration;

use super::caller::SimCaller;
use super::plan::{between, one_in};
use super::rng::Rng;
use super::truth::Fact;
use super::workload::Scene;
use crate::model::{KeyRange, NodeId, Revision};
use crate::watch::{WatchBatch, WatchError};

/// Watches until its node ends.
pub(crate) async fn live(
    scene: Scene,
    caller: SimCaller,
    node: NodeId,
    range: KeyRange,
    slow: bool,
    rng: Rng,
) {
    // Starts at a past revision if there is one, because history and live events must join without a gap.
    let newest = scene.judge.borrow().truth().newest();
    let mut seen = if one_in(&rng, 2) { newest } else { Revision(newest.get() / 2) };
    let id = scene.judge.borrow_mut().watch_begins(node, range.clone(), seen);
    loop {
        let tells_rows_before = one_in(&rng, 2);
        let mut watcher = caller.watch(range.clone(), seen.next(), tells_rows_before);
        loop {
            match watcher.recv().await {
                Some(Ok(batch)) => {
                    seen = judge_batch(&scene, &range, seen, tells_rows_before, &batch);
                    scene.judge.borrow_mut().watched(id, seen, batch.events.len());
                }
                Some(Err(WatchError::Compacted { compacted, .. })) => {
                    seen = judge_compaction(&scene, seen, compacted);
                    scene.judge.borrow_mut().watched(id, seen, 0);
                    break;
                }
                Some(Err(WatchError::Closed { resume, .. })) => {
                    judge_resume(&scene, &range, seen, resume);
                    return;
                }
                Some(Err(WatchError::Denied)) => unreachable!("the node itself watches"),
                None => return,
            }
            if slow {
                // Sometimes the program reads so slowly that the queue of the watch overflows and the
                // watch must read the history.
                let most = if one_in(&rng, 20) { 20_000 } else { 500 };
                scene
                    .timers
                    .sleep(between(&rng, Duration::ZERO, Duration::from_millis(most)))
                    .await;
            }
            // Sometimes resumes the watch at its current position.
            if one_in(&rng, 50) {
                judge_resume(&scene, &range, seen, watcher.resume());
                break;
            }
        }
    }
}

/// Checks that a batch contains exactly the events after `seen` up to its revision, with the previous rows if they
/// were requested.
fn judge_batch(
    scene: &Scene,
    range: &KeyRange,
    seen: Revision,
    tells_rows_before: bool,
    batch: &WatchBatch,
) -> Revision {
    let mut judge = scene.judge.borrow_mut();
    judge.expect(batch.revision > seen, "W-ORDER", || format!("after {seen:?} comes {batch:?}"));
    let newest = judge.truth().newest();
    judge.expect(batch.revision <= newest, "W-DURABLE", || {
        format!("nothing after {newest:?} has happened, and yet {batch:?}")
    });
    let told = batch.events.iter();
    if !judge.truth().are_events(range, (seen, batch.revision), told) {
        let expected: Vec<Fact> =
            judge.truth().events(range, seen, batch.revision).cloned().collect();
        judge.expect(false, "W-RELIABLE", || {
            format!("after {seen:?} in {range:?} comes {expected:?}, and a watch yields {batch:?}")
        });
    }
    for event in &batch.events {
        match &event.prev {
            _ if tells_rows_before => judge.check_previous_row(event),
            Some(_) => judge.expect(false, "W-PREV", || format!("nobody asked for it: {event:?}")),
            None => {}
        }
        if event.prev.is_some() {
            judge.count("watch event with the previous row");
        }
    }
    batch.revision.max(seen)
}

/// Checks that a compaction is reported only if it was requested and the watch needs the discarded history.
fn judge_compaction(scene: &Scene, seen: Revision, compacted: Revision) -> Revision {
    let mut judge = scene.judge.borrow_mut();
    judge.count("watch ended by a compaction");
    judge.compaction_told(compacted);
    let asked = judge.compaction_asked();
    judge.expect(compacted <= asked && seen.next() < compacted, "W-COMPACT", || {
        format!(
            "a watch after {seen:?} is told that {compacted:?} is compacted; {asked:?} was asked"
        )
    });
    compacted.max(seen)
}

/// Checks that a watch that is to be resumed at `resume` has skipped no event.
fn judge_resume(scene: &Scene, range: &KeyRange, seen: Revision, resume: Revision) {
    let mut judge = scene.judge.borrow_mut();
    let before = Revision(resume.get() - 1);
    let missed = judge.truth().events(range, seen, before).next().cloned();
    judge.expect(missed.is_none() && resume > seen, "W-RESUME", || {
        format!("a watch that has yielded {seen:?} is to go on at {resume:?}, past {missed:?}")
    });
}

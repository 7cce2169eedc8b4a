//! Programs that run work while they lead, with the recipe that orders the steps: the work begins after the election,
//! ends before the resignation, and is dropped when leadership is lost.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::super::plan::{between, one_in};
use super::{Holding, LockingHeld, Player, WAIT_MAX};
use crate::api::{OwnSession, Session};
use crate::env::Entropy;
use crate::recipes::{Hold, LeadError, LeaderTask, Leadership, LockError};

/// A share of the leadership, for the work.
struct Led(Arc<Leadership>);

impl Deref for Led {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.0
    }
}

impl LockingHeld for Led {}

/// The running work. When it ends in any way, it tells the judge that it no longer relies on the leadership.
struct LeadingWork<'a> {
    player: &'a Player,
    holding: Option<Holding<Led>>,
}

impl Drop for LeadingWork<'_> {
    fn drop(&mut self) {
        if let Some(holding) = self.holding.take() {
            drop(self.player.report_end_of_hold(holding));
        }
    }
}

/// Campaigns until it has led, or for a limited time.
pub(super) async fn turn(player: &Player, session: &Session, election: &'static str) {
    let leading = session.election(election).leader_task(player.scene.value("leads"));
    drop(run(player, leading, election).await);
}

/// Campaigns again and again with the session of its node, whatever the outcome.
pub(super) async fn campaign_repeatedly(player: Player, election: &'static str) {
    let own = OwnSession::of(player.caller.client().clone());
    while !player.is_closing() {
        // This recipe puts the same value for each campaign, so the value must not count as unique.
        let leading = LeaderTask::by_node(Arc::clone(&own), election.into(), "leads again".into());
        let answer = run(&player, leading, election).await;
        let is_over = matches!(answer, Err(LeadError::NotElected(LockError::SessionEnded(_))));
        player.scene.judge.borrow_mut().expect(!is_over, "K-WORK", || {
            format!("{:?} stands no more with any session: {answer:?}", player.node)
        });
        player.think().await;
    }
}

async fn run(
    player: &Player,
    leading: LeaderTask,
    election: &'static str,
) -> Result<Option<()>, LeadError> {
    let leading = if one_in(&player.rng, 3) { leading.once() } else { leading };
    let patience = between(&player.rng, Duration::ZERO, WAIT_MAX);
    let grace = Duration::from_millis(player.rng.below(100));
    // At its end the recipe resigns and waits until the resignation is durable.
    let may_take = patience + grace + player.caller.deadline();
    let call = player.scene.judge.borrow_mut().call(player.node, "lead", may_take);
    let stop = player.scene.timers.sleep(patience);
    let work = async |leadership| work(player, election, leadership).await;
    let answer = leading.run_until(stop, grace, work).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    judge.count(match &answer {
        Ok(Some(())) => "leader's work done",
        Ok(None) => "leader's work stopped",
        Err(LeadError::Lost(_)) => "leader's work lost",
        Err(LeadError::NotElected(_)) => "leader's work given up",
    });
    answer
}

async fn work(player: &Player, election: &'static str, leadership: Arc<Leadership>) {
    let holding = player.report_hold("leadership for work", election, Led(leadership));
    let work = LeadingWork { player, holding: Some(holding) };
    let holding = work.holding.as_ref().expect("put there a line ago");
    for _ in 0..=player.rng.below(3) {
        player.scene.timers.sleep(player.while_held()).await;
        let loss = holding.held.loss();
        player.scene.judge.borrow_mut().expect(loss.is_none(), "K-WORK", || {
            format!("a leader's work on {:?} runs, and it does not lead: {loss:?}", player.node)
        });
        player.update(holding).await;
    }
}

//! Programs that campaign, proclaim, resign, try to lead longer than they may, and observe the
//! leader.

use std::time::Duration;

use super::super::judge::EntryShare;
use super::super::plan::one_in;
use super::{Holding, Player, WAIT_MAX, leading};
use crate::api::{Effect, Session};
use crate::recipes::{Campaign, GuardError, Leader, LeaderEvent, Leadership};

/// Starts a candidate and an observer. Some nodes get a second candidate, which uses the session of its node.
pub(super) fn start(player: Player, election: &'static str) {
    player.spawn(observe(player.again(), election));
    if one_in(&player.rng, 2) {
        player.spawn(leading::campaign_repeatedly(player.again(), election));
    }
    let scene = player.scene.clone();
    scene.spawner.spawn(Some(player.at), live(player, election));
}

async fn live(player: Player, election: &'static str) {
    let turn = async |session: &Session| match one_in(&player.rng, 3) {
        true => leading::turn(&player, session, election).await,
        false => turn(&player, session, election).await,
    };
    player.run_in_sessions(Duration::default, turn).await;
}

fn campaign(player: &Player, session: &Session, election: &'static str) -> Campaign {
    session.election(election).campaign(player.scene.value("leads")).deadline(WAIT_MAX)
}

/// Campaigns once. Returns whether it became leader.
pub(super) async fn once(player: &Player, session: &Session, election: &'static str) -> bool {
    let attempt = campaign(player, session, election);
    let Ok(leadership) = player.wait(election, attempt).await else { return false };
    let holding = player.report_hold("leadership", election, leadership);
    player.release_hold(holding).await;
    true
}

async fn turn(player: &Player, session: &Session, election: &'static str) {
    let attempt = campaign(player, session, election);
    let Ok(leadership) = player.wait(election, attempt).await else { return };
    let holding = player.report_hold("leadership", election, leadership);
    let mut proclaims = one_in(&player.rng, 2);
    loop {
        player.scene.timers.sleep(player.while_held()).await;
        if !proclaims {
            break;
        }
        proclaim(player, &holding).await;
        proclaims = one_in(&player.rng, 2);
    }
    player.update(&holding).await;
    player.release_hold(holding).await;
}

/// Proclaims a new value, which succeeds only while it leads.
async fn proclaim(player: &Player, holding: &Holding<Leadership>) {
    let value = player.scene.value("proclaims");
    let key = holding.held.key().clone();
    let puts = [(key.clone(), value.clone())];
    let floor = player.scene.judge.borrow().floor();
    let may_take = player.caller.deadline();
    let call = player.scene.judge.borrow_mut().call(player.node, "proclaim", may_take);
    let answer = holding.held.proclaim(value.clone()).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    match answer {
        Ok(()) => {
            let Some(at) = judge.truth().put_at(&value) else {
                return judge.expect(false, "X-LIN", || format!("{value:?} was not proclaimed"));
            };
            judge.wrote("proclaim", floor, at, &puts);
            judge.check_queue_position(
                holding.lock(),
                EntryShare::All,
                &key,
                holding.held.since(),
                at,
            );
        }
        Err(
            GuardError::NotHeld
            | GuardError::ClaimLost
            | GuardError::ForeignGuard
            | GuardError::ReservedValue,
        ) => judge.not_applied(&puts),
        Err(GuardError::Store(error)) => match error.effect() {
            Effect::NotApplied => judge.not_applied(&puts),
            Effect::Unknown | Effect::Applied => judge.unknown(),
        },
    }
}

/// Observes the election until the process ends.
async fn observe(player: Player, election: &'static str) {
    let session = player.session_surely().await;
    let id = player.scene.judge.borrow_mut().observer_begins(player.node, election);
    let mut observer = session.election(election).observe();
    // The observer outlives this session.
    player.close(&session).await;
    loop {
        match observer.next().await {
            Some(Ok(LeaderEvent::Leads(Leader { key, value, since, lease }))) => {
                let leader = Some((&key, since, &value, lease));
                player.scene.judge.borrow_mut().observed(id, leader);
            }
            Some(Ok(LeaderEvent::Vacant)) => player.scene.judge.borrow_mut().observed(id, None),
            Some(Err(_)) => player.think().await,
            None => return,
        }
    }
}

//! Programs that put items into a queue with priorities and delays, and programs that take them. Some consumers
//! acknowledge an item, with or without a result row. Others return the item, forget it, or acknowledge it too late.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::super::judge::{DeliveryId, QueuesTaken};
use super::super::plan::{between, one_in};
use super::Player;
use crate::api::Effect;
use crate::env::Entropy;
use crate::model::Op;
use crate::recipes::{Delivery, QueueError, QueueTaker};

/// Number of takers per node.
const TAKERS: usize = 2;

/// Maximum time that a taker waits for an item.
const TAKE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Number of items at which programs stop putting, so that all items can be taken within seconds at the end.
const WAITING_MAX: usize = 500;

/// The longest delay of an item.
const DELAY_MAX: Duration = Duration::from_secs(3);

/// Starts a program that puts and several that take.
pub(super) fn start(player: &Player, queue: &'static str) {
    player.spawn(put_for_ever(player.again(), queue));
    player.spawn(take_repeatedly(player.again(), queue));
}

async fn put_for_ever(player: Player, queue: &'static str) {
    let _putting = player.scene.putting.enter();
    while !player.is_closing() {
        player.think().await;
        if player.scene.judge.borrow().items_waiting() < WAITING_MAX {
            put(&player, queue).await;
        }
    }
}

async fn put(player: &Player, queue: &'static str) {
    // The prefix marks a value that may be put twice: a claim puts the row of the item again, with the same value.
    let value = Bytes::from([b"item ", &player.scene.value("item")[..]].concat());
    let delay = match one_in(&player.rng, 4) {
        true => between(&player.rng, Duration::from_millis(1), DELAY_MAX),
        false => Duration::ZERO,
    };
    let priority = i16::try_from(player.rng.below(3)).expect("few") - 1;
    player.scene.judge.borrow_mut().puts_item(&value, priority, delay);
    let may_take = player.caller.deadline();
    let call = player.scene.judge.borrow_mut().call(player.node, "put item", may_take);
    let put = player.caller.client().queue(queue).put(value.clone());
    let answer = put.priority(priority).delay(delay).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    match answer {
        Ok(id) => judge.put_item(queue, id.as_bytes(), &value),
        Err(QueueError::Store(error)) if error.effect() != Effect::NotApplied => judge.unknown(),
        Err(_) => judge.refused_item(&value),
    }
}

async fn take_repeatedly(player: Player, queue: &'static str) {
    while !player.is_closing() {
        player.think().await;
        let Some(session) = player.session().await else { continue };
        let taker = session.queue(queue);
        for _ in 0..TAKERS {
            player.spawn(take_until_closed(player.again(), taker.clone(), queue));
        }
        while session.end().is_none() && !player.is_closing() {
            player.think().await;
            if one_in(&player.rng, 40) {
                break;
            }
        }
        player.close(&session).await;
    }
}

async fn take_until_closed(player: Player, taker: QueueTaker, queue: &'static str) {
    while let Some(delivery) = next(&player, &taker, queue).await {
        work(&player, queue, delivery).await;
    }
}

/// Takes repeatedly until it gets an item or the session has ended.
async fn next(player: &Player, taker: &QueueTaker, queue: &'static str) -> Option<Delivery> {
    let waiting_taker = player.scene.judge.borrow_mut().record_waiting_taker(player.node, queue);
    let mut taken = None;
    while taken.is_none() && !player.is_closing() {
        match take(player, taker).await {
            Ok(Some(delivery)) => taken = Some(delivery),
            Err(QueueError::SessionEnded(_)) => break,
            Ok(None) | Err(_) => player.think().await,
        }
    }
    player.scene.judge.borrow_mut().record_served_taker(waiting_taker);
    taken
}

/// Waits for an item, tries without waiting, or cancels a wait.
async fn take(player: &Player, taker: &QueueTaker) -> Result<Option<Delivery>, QueueError> {
    let call = player.scene.judge.borrow_mut().call(player.node, "take", TAKE_WAIT_MAX);
    let only_tries = one_in(&player.rng, 5);
    let taking = async {
        match only_tries {
            true => taker.try_take().await,
            false => taker.take().deadline(TAKE_WAIT_MAX).await.map(Some),
        }
    };
    let mut taking = pin!(taking);
    let answer = player.wait_impatiently(taking.as_mut(), 60, 8).await;
    player.scene.judge.borrow_mut().returned(call);
    answer.unwrap_or(Ok(None))
}

/// Records a delivery in the judge.
fn has(player: &Player, delivery: &Rc<Delivery>) -> DeliveryId {
    let watched = Rc::downgrade(delivery);
    let taken = QueuesTaken {
        node: player.node,
        item: delivery.id().as_bytes().clone(),
        value: delivery.value().clone(),
        attempt: delivery.attempt(),
        taken_at: delivery.taken_at(),
        is_claimed: Box::new(move || {
            watched.upgrade().is_some_and(|delivery| delivery.is_claimed())
        }),
    };
    player.scene.judge.borrow_mut().takes(taken)
}

/// Works on an item and acknowledges it or not.
async fn work(player: &Player, queue: &'static str, delivery: Delivery) {
    let delivery = Rc::new(delivery);
    let id = has(player, &delivery);
    player.scene.timers.sleep(player.while_held() / 2).await;
    let delivery = Rc::into_inner(delivery).expect("the judge has none of it");
    match player.rng.below(8) {
        0 => {
            player.scene.judge.borrow_mut().gives_back(id);
            drop(delivery);
        }
        1 => {
            player.scene.judge.borrow_mut().gives_back(id);
            let may_take = player.caller.deadline();
            let call = player.scene.judge.borrow_mut().call(player.node, "give back", may_take);
            let (item, taken_at) = (delivery.id().as_bytes().clone(), delivery.taken_at());
            let answer = delivery.nack().await;
            let mut judge = player.scene.judge.borrow_mut();
            judge.returned(call);
            if answer.is_ok() {
                judge.check_returned_item(queue, &item, taken_at);
            }
        }
        _ => acknowledge(player, queue, id, delivery).await,
    }
}

async fn acknowledge(player: &Player, queue: &'static str, id: DeliveryId, delivery: Delivery) {
    let (item, taken_at) = (delivery.id().as_bytes().clone(), delivery.taken_at());
    let may_take = player.caller.deadline();
    let floor = player.scene.judge.borrow().floor();
    let call = {
        let mut judge = player.scene.judge.borrow_mut();
        judge.acknowledges(id);
        judge.call(player.node, "acknowledge", may_take)
    };
    let key = Bytes::from([b"done/", &item[..]].concat());
    let value = player.scene.value("done");
    let puts = match one_in(&player.rng, 2) {
        true => vec![(key.clone(), value.clone())],
        false => Vec::new(),
    };
    let ops = puts.iter().map(|(key, value)| Op::put(key.clone(), value.clone()));
    let answer = delivery.ack_with(ops.collect::<Vec<_>>()).await;
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    match answer {
        Ok(reply) => {
            judge.wrote("acknowledgement", floor, reply.revision, &puts);
            judge.was_acknowledged(queue, &item, taken_at, Ok(Some(reply.revision)));
        }
        Err(QueueError::ClaimLost) => {
            judge.not_applied(&puts);
            judge.was_acknowledged(queue, &item, taken_at, Err(()));
        }
        Err(QueueError::Store(error)) if error.effect() != Effect::NotApplied => judge.unknown(),
        Err(_) => {
            judge.not_applied(&puts);
            judge.not_acknowledged(queue, &item, taken_at);
        }
    }
}

/// Takes items until the queue is empty, with retries.
pub(super) async fn drain(player: &Player, queue: &'static str) {
    loop {
        let Some(session) = player.session().await else { continue };
        let taker = session.queue(queue);
        let left = loop {
            match taker.try_take().await {
                Ok(Some(delivery)) => {
                    let delivery = Rc::new(delivery);
                    let id = has(player, &delivery);
                    let delivery = Rc::into_inner(delivery).expect("the judge has none");
                    acknowledge(player, queue, id, delivery).await;
                }
                Ok(None) => match taker.is_empty().await {
                    // The remaining items are delayed or claimed by others.
                    Ok(false) => player.think().await,
                    Ok(true) => break false,
                    Err(_) => break true,
                },
                Err(_) => break true,
            }
        };
        drop(taker);
        player.close(&session).await;
        if !left {
            return;
        }
    }
}

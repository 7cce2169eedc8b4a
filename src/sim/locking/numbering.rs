//! Programs that create sequentially numbered keys and delete them again. Numbers must be consecutive and never
//! reused.

use bytes::Bytes;

use super::super::judge::{CallId, NUMBERED};
use super::Player;
use super::toolbox::{begin, may_be};
use crate::api::Session;
use crate::env::Entropy;
use crate::model::{KeyRange, Revision};
use crate::recipes::{SequenceError, SequentialKey};

/// Creates a key, attached to the session or not. Sometimes deletes all existing ones.
pub(super) async fn turn(player: &Player, session: &Session) {
    let sequence = player.caller.client().sequential_prefix(NUMBERED);
    let value = player.scene.value("numbered");
    let (floor, call) = begin(player, "number a key");
    let making = match player.rng.below(3) {
        0 => sequence.put_bound(value.clone(), session),
        _ => sequence.put(value.clone()),
    };
    let answer = making.await;
    tell(player, call, floor, &value, answer);
    if player.rng.below(6) == 0 {
        let (_, call) = begin(player, "delete numbered keys");
        drop(player.caller.client().delete(KeyRange::prefix(NUMBERED)).await);
        player.scene.judge.borrow_mut().returned(call);
    }
}

fn tell(
    player: &Player,
    call: CallId,
    floor: Revision,
    value: &Bytes,
    answer: Result<SequentialKey, SequenceError>,
) {
    let mut judge = player.scene.judge.borrow_mut();
    judge.returned(call);
    match answer {
        Ok(key) => judge.numbered(floor, &key, value),
        Err(SequenceError::Store(error)) if may_be(&error) => judge.unknown(),
        Err(SequenceError::Store(_)) => judge.not_applied(&[(NUMBERED.into(), value.clone())]),
        Err(why) => judge.expect(false, "T-NUMBER", || format!("a key has no number: {why}")),
    }
}

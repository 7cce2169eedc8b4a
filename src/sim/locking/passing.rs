//! Programs that write a key with a TTL: they put the key if it is absent, rewrite it with another TTL, and delete
//! it if it is unchanged. The key must exist for its TTL unless a program writes or deletes it.

use std::time::Duration;

use bytes::Bytes;

use super::super::plan::between;
use super::Player;
use super::toolbox::{Swapping, begin, swapped};
use crate::env::Entropy;
use crate::model::Revision;
use crate::recipes::Expected;

const KEY: Bytes = Bytes::from_static(b"tool/passing");

/// Bounds of the TTL.
const TTL_MIN: Duration = Duration::from_millis(300);
const TTL_MAX: Duration = Duration::from_secs(4);

/// Puts the key if it is absent. Then rewrites it, deletes it, or leaves it alone.
pub(super) async fn turn(player: &Player) {
    let mut mine = Revision(0);
    for round in 0..=player.rng.below(4) {
        if round > 0 {
            player.think().await;
        }
        let Some(revision) = write(player, mine).await else { return };
        mine = revision;
    }
    if player.rng.below(2) == 0 {
        let (_, call) = begin(player, "compare and delete");
        drop(player.caller.client().compare_and_delete(KEY, Expected::Revision(mine)).await);
        player.scene.judge.borrow_mut().returned(call);
    }
}

/// Writes the key with a TTL if its last write was at `mine`, where 0 means that the key is absent.
async fn write(player: &Player, mine: Revision) -> Option<Revision> {
    let (client, value) = (player.caller.client(), player.scene.value("passing"));
    let ttl = Duration::from_millis(between(&player.rng, TTL_MIN, TTL_MAX).as_millis() as u64);
    let sent = player.scene.timeline.now();
    let what = if mine == Revision(0) { "put for a while" } else { "written again for a while" };
    let (floor, call) = begin(player, what);
    let answer = match mine {
        Revision(0) => client.put_if_absent(KEY, value.clone()).ttl(ttl).await,
        mine => client.compare_and_set(KEY, mine, value.clone()).ttl(ttl).await,
    };
    player.scene.judge.borrow_mut().returned(call);
    let swapping = Swapping { what, key: KEY, expected: mine, value, floor };
    let revision = swapped(player, swapping, answer)?;
    player.scene.judge.borrow_mut().written_for(&KEY, revision, sent, ttl);
    Some(revision)
}

//! Waiting until what is stored says what one waits for: look, and look again at every change.
//!
//! The first look is linearizable: whoever waits must not be content with a past in which everything
//! was as wished. After that this node's replica is enough, since a change that is told by a watch is
//! seen by local reads. A watch that has fallen behind the compaction is begun anew, before the next
//! look, so that no change is missed in between.

use crate::api::{Client, Error};
use crate::model::{KeyRange, KeyValue};

use super::call::Until;

/// Waits until `judge` finds in the rows of `range` what it looks for.
///
/// While the cluster cannot answer, it goes on trying for as long as `until` has it.
pub(crate) async fn look_until<T, E: From<Error>>(
    client: &Client,
    range: KeyRange,
    until: &Until,
    judge: impl FnMut(&[KeyValue]) -> Result<Option<T>, E>,
) -> Result<T, E> {
    be_recent(client, &range, until).await?;
    follow_until(client, range, until, judge).await
}

/// As [`look_until`], for those whose own change was applied on this node just before: its replica is
/// recent enough.
pub(crate) async fn follow_until<T, E: From<Error>>(
    client: &Client,
    range: KeyRange,
    until: &Until,
    mut judge: impl FnMut(&[KeyValue]) -> Result<Option<T>, E>,
) -> Result<T, E> {
    let mut watch = client.watch(range.clone()).await?;
    loop {
        let rows = client.range(range.clone()).local().await?.kvs;
        if let Some(found) = judge(&rows)? {
            return Ok(found);
        }
        if let Some(Err(_)) | None = until.within(watch.next()).await? {
            // Compacted, or the node has stopped; the look will say so.
            watch = client.watch(range.clone()).await?;
        }
    }
}

/// Waits until this node's replica holds what was there when this was called.
async fn be_recent(client: &Client, range: &KeyRange, until: &Until) -> Result<(), Error> {
    loop {
        match client.range(range.clone()).count_only().deadline(until.left()).await {
            Err(error) if error.is_transient() && !until.is_over() => until.pause().await,
            answer => return answer.map(drop),
        }
    }
}

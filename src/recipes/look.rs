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
    mut judge: impl FnMut(&[KeyValue]) -> Result<Option<T>, E>,
) -> Result<T, E> {
    let mut watch = client.watch(range.clone()).await?;
    let mut rows = present(client, &range, until).await?;
    loop {
        if let Some(found) = judge(&rows)? {
            return Ok(found);
        }
        if let Some(Err(_)) | None = until.within(watch.next()).await? {
            // Compacted, or the node has stopped; the look will say so.
            watch = client.watch(range.clone()).await?;
        }
        rows = client.range(range.clone()).local().await?.kvs;
    }
}

/// The rows of `range` now.
async fn present(client: &Client, range: &KeyRange, until: &Until) -> Result<Vec<KeyValue>, Error> {
    loop {
        match client.range(range.clone()).deadline(until.left()).await {
            Err(error) if error.is_transient() && !until.is_over() => until.pause().await,
            answer => return Ok(answer?.kvs),
        }
    }
}

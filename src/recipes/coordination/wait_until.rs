//! Waits until stored data meets a condition: read, then read again after every change.
//!
//! The first read is linearizable, because a stale state that meets the condition must not end the
//! wait. Afterwards the local replica is sufficient: a change that a watch has reported is visible
//! to local reads. If changes were compacted before the watch has delivered them, the watch is
//! restarted before the next read. So no change is missed.

use crate::api::{Client, Error};
use crate::model::{KeyRange, KeyValue};

use crate::recipes::call::Until;

/// Waits until `condition` returns a value for the rows of `range`.
///
/// While the cluster is unavailable, retries until the deadline `until`.
pub(crate) async fn wait_until<T, E: From<Error>>(
    client: &Client,
    range: KeyRange,
    until: &Until,
    condition: impl FnMut(&[KeyValue]) -> Result<Option<T>, E>,
) -> Result<T, E> {
    wait_until_recent(client, &range, until).await?;
    wait_until_local(client, range, until, condition).await
}

/// Like [`wait_until`], for callers whose own change was just applied on this node, so that the
/// local replica is fresh enough.
pub(crate) async fn wait_until_local<T, E: From<Error>>(
    client: &Client,
    range: KeyRange,
    until: &Until,
    mut condition: impl FnMut(&[KeyValue]) -> Result<Option<T>, E>,
) -> Result<T, E> {
    let mut watch = client.watch(range.clone()).await?;
    loop {
        let rows = client.range(range.clone()).local().await?.kvs;
        if let Some(found) = condition(&rows)? {
            return Ok(found);
        }
        if let Some(Err(_)) | None = until.within(watch.next()).await? {
            // The history was compacted, or the node stopped. The next read reports it.
            watch = client.watch(range.clone()).await?;
        }
    }
}

/// Waits until the local replica contains everything that was committed before this call.
async fn wait_until_recent(client: &Client, range: &KeyRange, until: &Until) -> Result<(), Error> {
    loop {
        match client.range(range.clone()).count_only().deadline(until.left()).await {
            Err(error) if error.is_transient() && !until.is_over() => until.pause().await,
            answer => return answer.map(drop),
        }
    }
}

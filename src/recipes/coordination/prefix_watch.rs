//! A stream over a key prefix: a snapshot, then every change. If changes were compacted before they
//! were read, the stream yields a fresh snapshot.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use crate::api::{Client, Error, Watch};
use crate::model::{Event, KeyRange, KeyValue};

/// An item of the stream.
pub(crate) enum PrefixUpdate {
    /// A snapshot. The snapshot replaces everything that was received before.
    Reset(Vec<KeyValue>),
    /// Changes since the last item, with the previous rows.
    Changes(Vec<Event>),
}

/// A stream of snapshots and changes of a key prefix.
pub(crate) struct PrefixWatch {
    client: Client,
    prefix: Bytes,
    /// Whether snapshots are read from the local replica, which may lag behind the cluster.
    is_local: bool,
    state: PrefixWatchState,
}

type Reading = Pin<Box<dyn Future<Output = Result<(Watch, Vec<KeyValue>), Error>> + Send>>;

enum PrefixWatchState {
    Nothing,
    Reading(Reading),
    Watching(Watch),
    Ended,
}

impl PrefixWatch {
    /// Creates the stream. Nothing is sent before the first poll.
    pub(crate) fn new(client: Client, prefix: Bytes) -> Self {
        Self { client, prefix, is_local: false, state: PrefixWatchState::Nothing }
    }

    /// Reads the snapshots from the local replica, without asking the leader.
    pub(crate) fn local(mut self) -> Self {
        self.is_local = true;
        self
    }
}

impl Stream for PrefixWatch {
    /// After an error the stream can be polled again. The error of a stopped node is the last item.
    type Item = Result<PrefixUpdate, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let this = &mut *self;
            match &mut this.state {
                PrefixWatchState::Ended => return Poll::Ready(None),
                PrefixWatchState::Nothing => {
                    let look = look(this.client.clone(), this.prefix.clone(), this.is_local);
                    this.state = PrefixWatchState::Reading(Box::pin(look));
                }
                PrefixWatchState::Reading(reading) => {
                    match ready!(reading.as_mut().poll(context)) {
                        Ok((watch, rows)) => {
                            this.state = PrefixWatchState::Watching(watch);
                            return Poll::Ready(Some(Ok(PrefixUpdate::Reset(rows))));
                        }
                        Err(error) => {
                            this.state = match error {
                                Error::Stopped { .. } => PrefixWatchState::Ended,
                                _ => PrefixWatchState::Nothing,
                            };
                            return Poll::Ready(Some(Err(error)));
                        }
                    }
                }
                PrefixWatchState::Watching(watch) => {
                    match ready!(Pin::new(watch).poll_next(context)) {
                        Some(Ok(batch)) => {
                            return Poll::Ready(Some(Ok(PrefixUpdate::Changes(batch.events))));
                        }
                        // The history was compacted, or the node stopped. The next read distinguishes
                        // these two cases.
                        Some(Err(_)) | None => this.state = PrefixWatchState::Nothing,
                    }
                }
            }
        }
    }
}

/// Reads a snapshot and starts a watch after it.
async fn look(
    client: Client,
    prefix: Bytes,
    is_local: bool,
) -> Result<(Watch, Vec<KeyValue>), Error> {
    let range = KeyRange::prefix(prefix);
    let read = client.range(range.clone());
    let reply = if is_local { read.local() } else { read }.await?;
    let watch = client.watch(range).from(reply.revision.next()).prev_kv().await?;
    Ok((watch, reply.kvs))
}

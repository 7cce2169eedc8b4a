//! Following a prefix for as long as somebody asks: what is the case, then every change, and what is the
//! case again where changes were missed.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use crate::api::{Client, Error, Watch};
use crate::model::{Event, KeyRange, KeyValue};

/// What is new below a prefix.
pub(crate) enum News {
    /// This is the case now, whatever was before.
    Anew(Vec<KeyValue>),
    /// These are the changes since, with the rows before them.
    Changes(Vec<Event>),
}

/// See the module.
pub(crate) struct Following {
    client: Client,
    prefix: Bytes,
    state: State,
}

type Looking = Pin<Box<dyn Future<Output = Result<(Watch, Vec<KeyValue>), Error>> + Send>>;

enum State {
    Nothing,
    Looking(Looking),
    Watching(Watch),
    Ended,
}

impl Following {
    /// Nothing is asked before the first poll.
    pub(crate) fn new(client: Client, prefix: Bytes) -> Self {
        Self { client, prefix, state: State::Nothing }
    }
}

impl Stream for Following {
    /// After an error it may be asked again; that of a node that has stopped is the last.
    type Item = Result<News, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let this = &mut *self;
            match &mut this.state {
                State::Ended => return Poll::Ready(None),
                State::Nothing => {
                    let look = look(this.client.clone(), this.prefix.clone());
                    this.state = State::Looking(Box::pin(look));
                }
                State::Looking(looking) => match ready!(looking.as_mut().poll(context)) {
                    Ok((watch, rows)) => {
                        this.state = State::Watching(watch);
                        return Poll::Ready(Some(Ok(News::Anew(rows))));
                    }
                    Err(error) => {
                        this.state = match error {
                            Error::Stopped { .. } => State::Ended,
                            _ => State::Nothing,
                        };
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                State::Watching(watch) => match ready!(Pin::new(watch).poll_next(context)) {
                    Some(Ok(batch)) => return Poll::Ready(Some(Ok(News::Changes(batch.events)))),
                    // Compacted, or the node has stopped: look again, and hear which.
                    Some(Err(_)) | None => this.state = State::Nothing,
                },
            }
        }
    }
}

/// Reads what is the case, and watches from there.
async fn look(client: Client, prefix: Bytes) -> Result<(Watch, Vec<KeyValue>), Error> {
    let range = KeyRange::prefix(prefix);
    let reply = client.range(range.clone()).await?;
    let watch = client.watch(range).from(reply.revision.next()).prev_kv().await?;
    Ok((watch, reply.kvs))
}

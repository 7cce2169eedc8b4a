//! Watches, each on its own stream, with the guarantees of an etcd client. A response with events proves progress only
//! up to the revision of its last event. A response without events proves that every change up to the revision in its
//! header was sent.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::held::{Holding, empty};
use super::kv::{prefix_end, revision_of, text};
use super::{Clients, Miss, pb};
use crate::calls::{Change, Reply};
use bowline_proto::mvccpb::event::EventType;
use pb::watch_client::WatchClient;

/// Maximum number of responses that are returned at once.
const ANSWERS_MAX: usize = 64;

pub(super) struct Watching {
    answers: Streaming<pb::WatchResponse>,
    /// The start revision of the watch, for the error text if that revision was compacted.
    from: u64,
    /// Sender of the requests. Dropping it ends the stream.
    _requests: mpsc::Sender<pb::WatchRequest>,
}

impl Clients {
    pub(super) async fn watch(&self, slot: String, prefix: &str, from: u64) -> Result<Reply, Miss> {
        let create = pb::WatchCreateRequest {
            key: prefix.to_owned().into(),
            range_end: prefix_end(prefix).into(),
            start_revision: from.cast_signed(),
            progress_notify: true,
            ..Default::default()
        };
        let (requests, stream) = mpsc::channel(1);
        drop(requests.send(create.into()).await);
        let mut client =
            WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        // A watch changes nothing, so a failure has no effect.
        let answer = client.watch(ReceiverStream::new(stream)).await;
        let answers = answer.map_err(|status| Miss::from(status).harmless())?.into_inner();
        let mut watching = Watching { answers, from, _requests: requests };
        let first = watching.answers.message().await;
        match first.map_err(|status| Miss::from(status).harmless())? {
            Some(first) if first.created && !first.canceled => {}
            Some(first) => return Err(ended(&first, from)),
            None => return Err(Miss::Refused("the stream has ended".to_owned())),
        }
        self.slots.put(slot, Holding::Watch(Box::new(watching)));
        Ok(Reply::Done { revision: 0 })
    }

    /// Returns the events of a watch since the last call. If the watch has ended, the end is reported after all
    /// events.
    pub(super) async fn events(&self, slot: String, wait: Duration) -> Result<Reply, Miss> {
        let mut watching = match self.slots.take(&slot) {
            Some(Holding::Watch(watching)) => watching,
            Some(Holding::Over(why)) => return Err(why),
            _ => return Err(empty(&slot)),
        };
        let end = Instant::now() + wait;
        let (mut events, mut until, mut over) = (Vec::new(), 0, None);
        for _ in 0..ANSWERS_MAX {
            let Ok(answer) = timeout_at(end, watching.answers.message()).await else { break };
            let answer = match answer {
                Ok(Some(answer)) if answer.canceled => Err(ended(&answer, watching.from)),
                Ok(Some(answer)) => Ok(answer),
                Ok(None) => Err(Miss::Refused("the stream has ended".to_owned())),
                Err(status) => Err(Miss::from(status).harmless()),
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(why) => {
                    over = Some(why);
                    break;
                }
            };
            if answer.events.is_empty() {
                until = until.max(revision_of(answer.header));
            }
            for event in answer.events {
                let is_put = event.r#type() == EventType::Put;
                let row = event.kv.ok_or_else(|| Miss::incomplete("event row"))?;
                let revision = row.mod_revision.cast_unsigned();
                until = until.max(revision);
                let value = is_put.then(|| text(&row.value));
                events.push(Change { key: text(&row.key), value, revision });
            }
        }
        match over {
            Some(why) if until == 0 => return Err(why),
            // The events that arrived before the end are returned now, and the end is returned by the next call.
            Some(why) => self.slots.put(slot, Holding::Over(why)),
            None => self.slots.put(slot, Holding::Watch(watching)),
        }
        Ok(Reply::Events { events, until })
    }
}

/// Returns the reason for which a watch has ended. If the start revision was compacted, the text is that of the
/// library.
fn ended(answer: &pb::WatchResponse, from: u64) -> Miss {
    Miss::Refused(match answer.compact_revision {
        0 => format!("the watch has ended: {}", answer.cancel_reason),
        oldest => format!("revision {from} has been compacted; the oldest left is {oldest}"),
    })
}

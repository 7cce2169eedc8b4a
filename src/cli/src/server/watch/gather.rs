//! The past of a watch comes from the library in pages. A client is told many of them in one response, as etcd does.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bowline::{Event, KeyValue, Watch, WatchBatch, WatchError};

use super::super::member::Member;
use super::super::room::Held;

/// The number of revisions from which on a response gathers no more. The same in etcd.
const REVISIONS_MAX: usize = 1000;

/// The bytes of keys and values from which on a response gathers no more. etcd has no such limit.
const BYTES_MAX: usize = 16 << 20;

/// What a watch yields next; `None` at its end.
pub(super) type Outcome = Option<Result<WatchBatch, WatchError>>;

/// What one response tells.
pub(super) struct Gathered {
    pub(super) batch: WatchBatch,
    /// What came after it and has no place in it.
    pub(super) next: Option<Outcome>,
    /// Room for it, to be kept until it is encoded.
    pub(super) held: Option<Held>,
}

/// Adds to a batch what is at hand after it, if the watch is behind and there is room for a large response.
pub(super) async fn gather(member: &Member, watch: &mut Watch, batch: WatchBatch) -> Gathered {
    let mut gathered = Gathered { batch, next: None, held: None };
    let batch = &mut gathered.batch;
    if batch.events.is_empty() || batch.revision >= member.client().revision() {
        return gathered;
    }
    let Ok(held) = member.watch_room().keep(BYTES_MAX, None) else { return gathered };
    gathered.held = held;
    let (mut bytes, mut revisions) = size(&batch.events);
    while bytes < BYTES_MAX && revisions < REVISIONS_MAX {
        // Pages are read without waiting: others have their turn between them.
        tokio::task::yield_now().await;
        match at_hand(watch).await {
            None => break,
            Some(Some(Ok(page))) if !page.events.is_empty() => {
                let (more_bytes, more_revisions) = size(&page.events);
                (bytes, revisions) = (bytes + more_bytes, revisions + more_revisions);
                batch.events.extend(page.events);
                batch.revision = page.revision;
            }
            Some(other) => {
                gathered.next = Some(other);
                break;
            }
        }
    }
    // The room for what there is, instead of the room for as much as there could be.
    if let Ok(held) = member.watch_room().keep(bytes, None) {
        gathered.held = held;
    }
    gathered
}

/// What the watch yields without waiting, if anything.
async fn at_hand(watch: &mut Watch) -> Option<Outcome> {
    let mut next = pin!(watch.next());
    poll_fn(|context| match next.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// The bytes of keys and values, and the number of revisions.
fn size(events: &[Event]) -> (usize, usize) {
    let row = |row: &KeyValue| row.key.len() + row.value.len();
    let event = |event: &Event| row(&event.kv) + event.prev.as_ref().map_or(0, row);
    let is_new = |pair: &&[Event]| pair[0].kv.mod_revision != pair[1].kv.mod_revision;
    let bytes = events.iter().map(event).sum();
    (bytes, events.windows(2).filter(is_new).count() + 1)
}

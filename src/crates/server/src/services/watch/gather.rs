//! Combines pages of the history into one response of a watch, as etcd does.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bowline::{Event, KeyValue, Watch, WatchBatch, WatchError};

use crate::member::Member;
use crate::middleware::response_budget::{Reservation, ResponseBudget};

/// Number of revisions at which a response is full, as in etcd.
const REVISIONS_MAX: usize = 1000;

/// Size of keys and values at which a response is full, in bytes. etcd has no such limit.
const BYTES_MAX: usize = 16 << 20;

/// The next item of a watch, or `None` at the end of the watch.
pub(crate) type Outcome = Option<Result<WatchBatch, WatchError>>;

/// The content of one response.
pub(crate) struct Gathered {
    pub(crate) batch: WatchBatch,
    /// The error or the end that was read after the batch.
    pub(crate) next: Option<Outcome>,
    /// Reserved part of the response budget, held until the batch is encoded.
    pub(crate) held: Option<Reservation>,
}

/// Appends further pages of history to a batch, if the watch lags behind the store and the response budget permits a
/// large response. Never waits for new changes.
pub(crate) async fn gather(
    member: &Member,
    budget: &ResponseBudget,
    watch: &mut Watch,
    batch: WatchBatch,
) -> Gathered {
    let mut gathered = Gathered { batch, next: None, held: None };
    let batch = &mut gathered.batch;
    if batch.events.is_empty() || batch.revision >= member.client().revision() {
        return gathered;
    }
    let Ok(held) = budget.keep(BYTES_MAX, None) else { return gathered };
    gathered.held = held;
    let (mut bytes, mut revisions) = size(&batch.events);
    while bytes < BYTES_MAX && revisions < REVISIONS_MAX {
        // Reading a page never waits, so yield explicitly to other tasks.
        tokio::task::yield_now().await;
        match try_next(watch).await {
            None => break,
            Some(Some(Ok(page))) if !page.events.is_empty() => {
                let (more_bytes, more_revisions) = size(&page.events);
                (bytes, revisions) = (bytes + more_bytes, revisions + more_revisions);
                batch.events.extend(page.events);
                batch.revision = page.revision;
            }
            // This is the response to a progress request. It would be outdated when the combined response is sent, so
            // the progress is requested again.
            Some(Some(Ok(_))) => {
                watch.request_progress();
                break;
            }
            Some(end) => {
                gathered.next = Some(end);
                break;
            }
        }
    }
    // The reservation for the largest response is exchanged for a reservation of the size that this response needs.
    if let Ok(held) = budget.keep(bytes, None) {
        gathered.held = held;
    }
    gathered
}

/// Returns the next item if it is available without waiting.
async fn try_next(watch: &mut Watch) -> Option<Outcome> {
    let mut next = pin!(watch.next());
    poll_fn(|context| match next.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Returns the bytes of keys and values, and the number of revisions.
fn size(events: &[Event]) -> (usize, usize) {
    let row = |row: &KeyValue| row.key.len() + row.value.len();
    let event = |event: &Event| row(&event.kv) + event.prev.as_ref().map_or(0, row);
    let is_new = |pair: &&[Event]| pair[0].kv.mod_revision != pair[1].kv.mod_revision;
    let bytes = events.iter().map(event).sum();
    (bytes, events.windows(2).filter(is_new).count() + 1)
}

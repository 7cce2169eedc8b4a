//! A watch that survives the loss of its server: it is opened again at the next server, after the last change or
//! progress notification that was delivered. No change is lost or repeated.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tonic::{Code, Response, Status, Streaming};

use crate::connect::{CallKind, Client, Link};
use crate::error::{Error, is_transient};
use crate::ordered::is_ordered;
use bowline_proto::etcdserverpb as pb;

/// Pause before a reconnect, after no server could be reached or a connection has failed.
const REOPEN_PAUSE: Duration = Duration::from_millis(300);

/// A watch, and its progress.
#[derive(Debug)]
pub struct Watch {
    client: Arc<Client>,
    request: pb::WatchCreateRequest,
    open: Option<Open>,
    was_open: bool,
    /// Whether to ask for a progress notification.
    asks: bool,
    /// Whether to pause before the watch is opened again.
    pauses: bool,
}

/// An open watch stream.
#[derive(Debug)]
struct Open {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
    link: Link,
    /// Whether the server's progress notifications are reliable.
    is_ordered: bool,
}

impl Watch {
    /// Returns a watch that is opened by the first call of [`next`](Self::next).
    pub fn new(client: &Arc<Client>, request: pb::WatchCreateRequest) -> Self {
        let client = Arc::clone(client);
        Self { client, request, open: None, was_open: false, asks: false, pauses: false }
    }

    /// Returns the revision of the next change to deliver. Before the watch was first opened, returns the start
    /// revision of the request, or 0.
    pub fn next_revision(&self) -> i64 {
        self.request.start_revision
    }

    /// Waits for the next changes, or for a progress notification, which has no events. After the watch was first
    /// opened, calls that fail are repeated without limit. If the returned future is dropped, no change is lost.
    ///
    /// # Errors
    /// Returns an error if the watch cannot be opened, if a server rejects it, or if it was canceled, for example
    /// because changes were compacted.
    pub async fn next(&mut self) -> Result<pb::WatchResponse, Error> {
        loop {
            if self.pauses {
                tokio::time::sleep(REOPEN_PAUSE).await;
                self.pauses = false;
            }
            let open = match &mut self.open {
                Some(open) => open,
                None => match self.begin().await {
                    Ok(open) => {
                        self.was_open = true;
                        self.open.insert(open)
                    }
                    Err(error) if self.was_open && error.is_transient() => {
                        self.pauses = true;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            if std::mem::take(&mut self.asks) {
                // If the queue is full, earlier requests are about to be answered.
                drop(open.requests.try_send(pb::WatchProgressRequest {}.into()));
            }
            let status = match open.answers.message().await {
                Ok(Some(answer)) => {
                    let is_ordered = open.is_ordered;
                    match self.received(answer, is_ordered)? {
                        Some(answer) => return Ok(answer),
                        None => continue,
                    }
                }
                Ok(None) => Status::unavailable("the server closed the watch stream"),
                Err(status) => status,
            };
            if let Some(Open { link, .. }) = self.open.take() {
                if status.code() != Code::Ok && !is_transient(&status) {
                    return Err(Error::Refused(status));
                }
                self.pauses = true;
                self.client.leave(&link).await;
            }
        }
    }

    /// Asks the server for a progress notification, when [`next`](Self::next) is called and the watch is open.
    pub fn ask_progress(&mut self) {
        self.asks = true;
    }

    async fn begin(&self) -> Result<Open, Error> {
        let begun = async |link: Link| {
            let (requests, answers) = link.open_watches([self.request.clone()]).await?;
            let is_ordered = is_ordered(&link).await;
            Ok(Response::new(Open { requests, answers, link, is_ordered }))
        };
        self.client.call(CallKind::Repeatable, begun).await
    }

    /// Records the progress of a response. Returns the response if it is for the caller.
    fn received(
        &mut self,
        answer: pb::WatchResponse,
        is_ordered: bool,
    ) -> Result<Option<pb::WatchResponse>, Error> {
        if answer.canceled {
            return Err(Error::Canceled(Box::new(answer)));
        }
        let revision = answer.header.map(|header| header.revision).unwrap_or_default();
        let start = &mut self.request.start_revision;
        if answer.created {
            if *start == 0 {
                *start = revision + 1;
            }
            return Ok(None);
        }
        if answer.events.is_empty() && is_ordered {
            // All changes up to this revision were delivered, so a reopened watch can start after it. An older
            // start revision might be compacted by then.
            *start = (*start).max(revision + 1);
        }
        for row in answer.events.iter().filter_map(|event| event.kv.as_ref()) {
            *start = (*start).max(row.mod_revision + 1);
        }
        Ok(Some(answer))
    }
}

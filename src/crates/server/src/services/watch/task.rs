//! A task that delivers the events of one watch to its stream.

use std::sync::Arc;
use std::time::Duration;

use bowline::{Revision, Watch, WatchBatch, WatchError};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval_at};
use tonic::Status;

use crate::member::Member;
use crate::middleware::response_budget::{Reservation, ResponseBudget};
use crate::services::response_stream::ResponseSender;
use crate::services::watch::batch::{pieces, split, translate};
use crate::services::watch::gather::{Outcome, gather};
use crate::services::watch::progress::Serial;
use crate::services::watch::progress_barrier::ProgressBarrier;
use crate::wire::{Reason, revision};
use bowline_proto::etcdserverpb as pb;

/// Command of the stream to a watch.
pub(crate) enum Command {
    /// Report the progress after everything so far has been sent. There is at most one such command at a time.
    ReportProgress,
    /// End the watch, and send a response about its end.
    Cancel,
}

/// Notification of a watch to the stream.
pub(crate) enum WatchReport {
    /// Answer to [`Command::ReportProgress`]: everything up to this revision is in the queue.
    UpTo { serial: Serial, revision: Revision },
    /// Answer to [`Command::ReportProgress`]: the watch waits for a future revision.
    NotYet { serial: Serial },
    /// The watch has ended by itself.
    Ended {
        serial: Serial,
        /// Id of the watch. Another watch may have the same id by now.
        id: i64,
    },
}

/// The state of a watch task.
pub(crate) struct Task {
    member: Arc<Member>,
    /// Budget for large responses.
    budget: ResponseBudget,
    serial: Serial,
    id: i64,
    answers: ResponseSender<pb::WatchResponse>,
    barrier: Arc<ProgressBarrier>,
    reports: mpsc::UnboundedSender<WatchReport>,
    /// First requested revision; 0 for new changes only.
    start: Revision,
    /// Response that must not be sent before all watches have reached an earlier revision.
    held: Option<Held>,
    /// Whether the client requested regular progress notifications.
    notifies: bool,
    no_puts: bool,
    no_deletes: bool,
    /// Maximum size of a fragment, if the client accepts fragments.
    piece_bytes_max: Option<usize>,
    /// Whether the stream has asked for the progress.
    asked: bool,
    /// Whether a regular progress notification is due.
    due: bool,
    /// Whether nothing was sent since the last tick.
    silent: bool,
}

/// A response that was held back.
struct Held {
    /// Everything up to this revision was sent.
    sent: Revision,
    /// Last revision of the response.
    up_to: Revision,
    rest: pb::WatchResponse,
}

/// Returns the item that was read ahead, or waits for the next one.
async fn next(come: &mut Option<Outcome>, watch: &mut Watch) -> Outcome {
    match come.take() {
        Some(outcome) => outcome,
        None => watch.next().await,
    }
}

/// Whether the watch continues.
enum Next {
    On,
    Ended,
}

impl Task {
    pub(crate) fn new(
        (member, budget): (Arc<Member>, ResponseBudget),
        (serial, id): (Serial, i64),
        request: &pb::WatchCreateRequest,
        (answers, barrier): (ResponseSender<pb::WatchResponse>, Arc<ProgressBarrier>),
        reports: mpsc::UnboundedSender<WatchReport>,
    ) -> Self {
        use pb::watch_create_request::FilterType::{Nodelete, Noput};
        let has = |wanted| request.filters().any(|filter| filter == wanted);
        // This is the maximum message size of etcd's clients.
        let bytes_max = member.settings().request_bytes_max + (512 << 10);
        Self {
            notifies: request.progress_notify,
            no_puts: has(Noput),
            no_deletes: has(Nodelete),
            piece_bytes_max: request.fragment.then_some(bytes_max),
            member,
            budget,
            serial,
            id,
            answers,
            barrier,
            reports,
            start: revision(request.start_revision).unwrap_or_default(),
            held: None,
            asked: false,
            due: false,
            silent: true,
        }
    }

    pub(crate) async fn run(
        mut self,
        mut watch: Watch,
        mut orders: mpsc::UnboundedReceiver<Command>,
    ) {
        let mut ticks = ticks(self.member.settings().progress_interval);
        let mut come = None;
        loop {
            let next = tokio::select! {
                order = orders.recv() => match order {
                    Some(Command::ReportProgress) => {
                        self.handle_progress_request(&mut watch).await;
                        Next::On
                    }
                    Some(Command::Cancel) => {
                        // As in etcd, the header has the newest revision, whatever the watch has delivered.
                        let header = self.member.header_now();
                        self.say(pb::WatchResponse { header, canceled: true, ..self.response() }).await;
                        return;
                    }
                    None => return,
                },
                () = self.may_send_held(), if self.held.is_some() => {
                    self.send_held().await;
                    Next::On
                }
                outcome = next(&mut come, &mut watch), if self.held.is_none() => match outcome {
                    Some(Ok(batch)) => {
                        let gathered = gather(&self.member, &self.budget, &mut watch, batch).await;
                        come = gathered.next;
                        self.deliver(gathered.batch, gathered.held).await
                    }
                    Some(Err(error)) => self.end(error).await,
                    None => Next::Ended,
                },
                _ = ticks.tick(), if self.notifies => {
                    if std::mem::replace(&mut self.silent, true) {
                        self.due = true;
                        watch.request_progress();
                    }
                    Next::On
                }
            };
            if let Next::Ended = next {
                drop(orders);
                drop(self.reports.send(WatchReport::Ended { serial: self.serial, id: self.id }));
                return;
            }
        }
    }

    async fn deliver(&mut self, batch: WatchBatch, reservation: Option<Reservation>) -> Next {
        let revision = batch.revision;
        if batch.events.is_empty() {
            self.report_reached(revision).await;
            return Next::On;
        }
        let mut events = translate(batch.events, self.no_puts, self.no_deletes);
        if let Some(reservation) = reservation
            && let Some(kv) = events.last_mut().and_then(|event| event.kv.as_mut())
        {
            // When the response has been encoded, the value is dropped, which frees its part of the response budget.
            kv.value = reservation.by(std::mem::take(&mut kv.value));
        }
        if events.is_empty() {
            return Next::On;
        }
        self.silent = false;
        self.send_up_to(revision, pb::WatchResponse { events, ..self.response() }).await;
        Next::On
    }

    /// Handles the stream's request for the progress.
    async fn handle_progress_request(&mut self, watch: &mut Watch) {
        self.send_held().await;
        self.asked = true;
        match &self.held {
            Some(held) => self.report_progress(held.sent),
            None => watch.request_progress(),
        }
    }

    /// If the stream has requested the progress, answers that everything up to `revision` was sent. A revision before
    /// the start of the watch is not reported, because a client would resume from it.
    fn report_progress(&mut self, revision: Revision) {
        let serial = self.serial;
        if std::mem::take(&mut self.asked) {
            drop(self.reports.send(match self.start <= revision {
                true => WatchReport::UpTo { serial, revision },
                false => WatchReport::NotYet { serial },
            }));
        }
    }

    /// Reports that everything up to a revision was sent. Reports to the stream and to the client, if they have
    /// requested it.
    async fn report_reached(&mut self, revision: Revision) {
        self.report_progress(revision);
        if std::mem::take(&mut self.due) && self.start <= revision {
            self.send_up_to(revision, self.response()).await;
        }
    }

    /// Waits until the held response, or a part of it, may be sent.
    async fn may_send_held(&self) {
        if let Some(held) = &self.held {
            self.barrier.may_send_after(held.sent).await;
        }
    }

    async fn send_held(&mut self) {
        if let Some(Held { up_to, rest, .. }) = self.held.take() {
            self.send_up_to(up_to, rest).await;
        }
    }

    /// Sends a response that covers everything up to a revision. If only a part may be sent now, holds back the rest.
    async fn send_up_to(&mut self, revision: Revision, whole: pb::WatchResponse) {
        // If the client is gone, the stream and this task are about to be dropped.
        let Ok(slot) = self.answers.slot().await else { return };
        let row = |whole| self.row(revision, whole);
        let Err((sent, whole)) = self.barrier.send(slot, revision, whole, row) else { return };
        let (first, rest) = split(whole, sent);
        self.held = Some(Held { sent, up_to: revision, rest });
        if !first.events.is_empty()
            && let Ok(slot) = self.answers.slot().await
        {
            let row = |first| self.row(sent, first);
            self.barrier.send(slot, sent, first, row).expect("`sent` is not after the stop");
        }
        self.report_progress(sent);
    }

    /// Returns the messages of a response. All of them are sent in one row, because clients lose fragments if another
    /// response is sent between two of them.
    fn row(
        &self,
        revision: Revision,
        whole: pb::WatchResponse,
    ) -> Vec<Result<pb::WatchResponse, Status>> {
        let whole = pb::WatchResponse { header: self.member.header(revision), ..whole };
        match self.piece_bytes_max {
            None => vec![Ok(whole)],
            Some(bytes_max) => pieces(whole, bytes_max).into_iter().map(Ok).collect(),
        }
    }

    async fn end(&mut self, error: WatchError) -> Next {
        match error {
            WatchError::Compacted { compacted, .. } => {
                // As in etcd, the response has no revision and no reason.
                let header = self.member.header(Revision(0));
                let compact_revision = compacted.get() as i64;
                let canceled = true;
                self.say(pb::WatchResponse {
                    header,
                    canceled,
                    compact_revision,
                    ..self.response()
                })
                .await;
            }
            WatchError::Denied => {
                let (header, canceled) = (self.member.header_now(), true);
                let cancel_reason = Reason::Denied.text();
                let denied =
                    pb::WatchResponse { header, canceled, cancel_reason, ..self.response() };
                self.say(denied).await;
            }
            _ => drop(self.answers.send(Err(Reason::Stopped.into())).await),
        }
        Next::Ended
    }

    fn response(&self) -> pb::WatchResponse {
        pb::WatchResponse { watch_id: self.id, ..Default::default() }
    }

    async fn say(&self, response: pb::WatchResponse) {
        // If the client is gone, the stream and this task are about to be dropped.
        drop(self.answers.send(Ok(response)).await);
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval_at(tokio::time::Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

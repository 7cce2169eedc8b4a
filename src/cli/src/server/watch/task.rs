//! One watch: what happens to its keys goes into the queue of its stream.

use std::sync::Arc;
use std::time::Duration;

use bowline::{Revision, Watch, WatchBatch, WatchError};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval_at};

use super::super::driven::Answers;
use super::super::member::Member;
use super::super::wire::Reason;
use super::batch::{pieces, translate};
use super::progress::Serial;
use crate::generated::etcdserverpb as pb;

/// What the stream wants of a watch.
pub(super) enum Command {
    /// Say when everything up to now has been told. It comes once at the most before it is answered.
    Tell,
    /// End, and say so.
    Cancel,
}

/// What a watch lets the stream know.
pub(super) enum Told {
    /// Everything up to a revision is in the queue: the answer to [`Command::Tell`].
    UpTo {
        /// Which watch.
        serial: Serial,
        /// The revision.
        revision: Revision,
    },
    /// It has ended by itself.
    Ended {
        /// Which watch.
        serial: Serial,
        /// Its id, which may be another's by now.
        id: i64,
    },
}

/// See the module.
pub(super) struct Task {
    member: Arc<Member>,
    serial: Serial,
    id: i64,
    answers: Answers<pb::WatchResponse>,
    told: mpsc::UnboundedSender<Told>,
    /// Whether to say now and then how far it is.
    notifies: bool,
    no_puts: bool,
    no_deletes: bool,
    /// The largest piece, if what is larger is to be told in pieces.
    piece_bytes_max: Option<usize>,
    /// Whether the stream has asked how far this watch is.
    asked: bool,
    /// Whether the client is to be told how far this watch is.
    due: bool,
    /// Whether it was told anything since the last look.
    silent: bool,
}

/// Whether the watch goes on.
enum Next {
    On,
    Ended,
}

impl Task {
    pub(super) fn new(
        member: Arc<Member>,
        (serial, id): (Serial, i64),
        request: &pb::WatchCreateRequest,
        answers: Answers<pb::WatchResponse>,
        told: mpsc::UnboundedSender<Told>,
    ) -> Self {
        use pb::watch_create_request::FilterType::{Nodelete, Noput};
        let has = |wanted| request.filters().any(|filter| filter == wanted);
        // As much as a client of etcd is ready to receive.
        let bytes_max = member.options().request_bytes_max + (512 << 10);
        Self {
            notifies: request.progress_notify,
            no_puts: has(Noput),
            no_deletes: has(Nodelete),
            piece_bytes_max: request.fragment.then_some(bytes_max),
            member,
            serial,
            id,
            answers,
            told,
            asked: false,
            due: false,
            silent: true,
        }
    }

    pub(super) async fn run(
        mut self,
        mut watch: Watch,
        mut orders: mpsc::UnboundedReceiver<Command>,
    ) {
        let mut ticks = ticks(self.member.options().progress_interval);
        loop {
            let next = tokio::select! {
                order = orders.recv() => match order {
                    Some(Command::Tell) => {
                        self.asked = true;
                        watch.request_progress();
                        Next::On
                    }
                    Some(Command::Cancel) => {
                        let header = self.member.header_now();
                        self.say(pb::WatchResponse { header, canceled: true, ..self.response() }).await;
                        return;
                    }
                    None => return,
                },
                batch = watch.next() => match batch {
                    Some(Ok(batch)) => self.tell(batch).await,
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
                drop(self.told.send(Told::Ended { serial: self.serial, id: self.id }));
                return;
            }
        }
    }

    async fn tell(&mut self, batch: WatchBatch) -> Next {
        let revision = batch.revision;
        if batch.events.is_empty() {
            if std::mem::take(&mut self.asked) {
                drop(self.told.send(Told::UpTo { serial: self.serial, revision }));
            }
            if std::mem::take(&mut self.due) {
                let header = self.member.header(revision);
                self.say(pb::WatchResponse { header, ..self.response() }).await;
            }
            return Next::On;
        }
        let events = translate(batch.events, self.no_puts, self.no_deletes);
        if events.is_empty() {
            return Next::On;
        }
        self.silent = false;
        let header = self.member.header(revision);
        let whole = pb::WatchResponse { header, events, ..self.response() };
        match self.piece_bytes_max {
            None => self.say(whole).await,
            Some(bytes_max) => {
                // In one row: clients lose those before an answer of another watch, or of the stream.
                drop(self.answers.send_pieces(pieces(whole, bytes_max)).await);
            }
        }
        Next::On
    }

    async fn end(&mut self, error: WatchError) -> Next {
        match error {
            WatchError::Compacted { compacted, .. } => {
                // As etcd says it: no revision, and no reason but this one.
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
        // If nobody listens any more the stream is dropped soon, and this with it.
        drop(self.answers.send(Ok(response)).await);
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval_at(tokio::time::Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

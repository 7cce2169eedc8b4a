//! `etcdserverpb.Watch`: one stream carries many watches.
//!
//! ```text
//!   requests ──▶ StreamHandler ──commands──▶ one task per watch ──▶ the library's watch
//!                     │                           │
//!                     └──────── responses ◀───────┘        one queue, in sending order
//! ```
//!
//! If a client does not read, its watches wait for space in the queue and use no memory for further events. When there
//! is space again, a watch continues by reading the missed events from the history.

mod batch;
mod gather;
mod progress;
mod progress_barrier;
mod task;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use bowline::{Error, Revision};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument as _;

use crate::identity::Identity;
use crate::leader::{Leaderless, needs_leader};
use crate::member::Member;
use crate::middleware::response_budget::ResponseBudget;
use crate::services::response_stream::{ResponseSender, ResponseStream};
use crate::wire::{Reason, key_range, refused, revision};
use batch::filter;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::etcdserverpb::watch_server::Watch;
use pb::watch_request::RequestUnion;
use progress::{Progress, Serial};
use progress_barrier::ProgressBarrier;
use task::{Command, Task};

/// Id in responses that belong to no watch.
const NO_WATCH: i64 = -1;

/// Number of requests of a stream that are handled before other tasks may run.
const REQUESTS_AT_ONCE: usize = 64;

#[derive(Clone)]
pub(crate) struct WatchService {
    pub(crate) member: Arc<Member>,
    pub(crate) budget: ResponseBudget,
    pub(crate) leaderless: Arc<Leaderless>,
}

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<pb::WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.member.may_watch()?;
        let needs_leader = needs_leader(&request);
        let who = Identity::in_request(&request);
        let WatchService { member, budget, leaderless } = self.clone();
        let requests = request.into_inner();
        Ok(Response::new(ResponseStream::by(move |answers| {
            let handler = StreamHandler::new(member, budget, who, answers);
            async move {
                tokio::select! {
                    ended = handler.serve(requests) => ended,
                    status = leaderless.lost(), if needs_leader => Err(status),
                }
            }
        })))
    }
}

struct StreamHandler {
    member: Arc<Member>,
    budget: ResponseBudget,
    who: Identity,
    answers: ResponseSender<pb::WatchResponse>,
    /// Running watches, and those whose end has not been processed yet.
    watches: HashMap<i64, Begun>,
    next_id: i64,
    next_serial: Serial,
    /// Notifications from the watches: each reports its end, and one response per progress request.
    reports: (mpsc::UnboundedSender<task::WatchReport>, mpsc::UnboundedReceiver<task::WatchReport>),
    progress: Progress,
    barrier: Arc<ProgressBarrier>,
}

/// A running watch.
struct Begun {
    serial: Serial,
    /// Channel to the watch. It contains at most one progress request and the cancellation.
    commands: mpsc::UnboundedSender<Command>,
    task: JoinHandle<()>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StreamHandler {
    fn new(
        member: Arc<Member>,
        budget: ResponseBudget,
        who: Identity,
        answers: ResponseSender<pb::WatchResponse>,
    ) -> Self {
        let (watches, progress, barrier) = (HashMap::new(), Progress::default(), Arc::default());
        let (next_id, next_serial, reports) = (0, Serial::default(), mpsc::unbounded_channel());
        Self {
            member,
            budget,
            who,
            answers,
            watches,
            next_id,
            next_serial,
            reports,
            progress,
            barrier,
        }
    }

    /// Handles requests until the client disconnects. A client that has ended its request stream still receives
    /// responses.
    async fn serve(mut self, mut requests: Streaming<pb::WatchRequest>) -> Result<(), Status> {
        let (mut more, mut taken) = (true, 0usize);
        loop {
            tokio::select! {
                request = requests.message(), if more => match request? {
                    Some(request) => {
                        self.take(request).await?;
                        taken += 1;
                        if taken.is_multiple_of(REQUESTS_AT_ONCE) {
                            // The task yields after this many requests, because a hundred thousand requests may be
                            // available at once.
                            tokio::task::yield_now().await;
                        }
                    }
                    None => more = false,
                },
                Some(report) = self.reports.1.recv() => self.receive(report).await,
            }
        }
    }

    async fn take(&mut self, request: pb::WatchRequest) -> Result<(), Status> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => {
                self.cancel(request.watch_id).await;
                Ok(())
            }
            Some(RequestUnion::ProgressRequest(_)) => {
                self.ask();
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, mut request: pb::WatchCreateRequest) -> Result<(), Status> {
        if request.key.is_empty() {
            request.key = bytes::Bytes::from_static(b"\0");
        }
        if request.start_revision < 0 {
            self.refuse(Reason::Compacted.text()).await;
            return Ok(());
        }
        // The credentials may have expired since the stream was opened, or may never have been valid.
        match self.member.again(&self.who) {
            Ok(who) => self.who = who,
            Err(status) => {
                self.refuse(status.message().to_owned()).await;
                return Ok(());
            }
        }
        let end = &request.range_end;
        let empty = !end.is_empty() && end[..] != [0] && request.key >= *end;
        if empty {
            self.refuse("mvcc: watcher range is empty".into()).await;
            return Ok(());
        }
        let id = match request.watch_id {
            0 => {
                while self.watches.contains_key(&self.next_id) {
                    self.next_id += 1;
                }
                self.next_id += 1;
                self.next_id - 1
            }
            taken if self.is_taken(taken) => {
                self.refuse("mvcc: duplicate watch ID provided on the WatchStream".into()).await;
                return Ok(());
            }
            id => id,
        };
        let keys = key_range(request.key.clone(), request.range_end.clone());
        let mut call =
            self.member.client_of_running(&self.who).watch(keys).filter(filter(&request));
        if let Some(revision) = revision(request.start_revision) {
            call = call.from(revision);
        }
        if request.prev_kv {
            call = call.prev_kv();
        }
        let watch = match call.await {
            Ok(watch) => watch,
            // The error has etcd's text and ends only this watch. The other watches of the stream continue.
            Err(error @ Error::Rejected(_)) => {
                self.refuse(refused(error).message().to_owned()).await;
                return Ok(());
            }
            Err(error) => return Err(refused(error)),
        };
        let header = self.member.header(watch.created_at());
        let created =
            pb::WatchResponse { header, watch_id: id, created: true, ..Default::default() };
        self.barrier.begin(watch.created_at());
        self.say(created).await;
        let (commands, orders) = mpsc::unbounded_channel();
        let serial = self.next_serial.take();
        let task = Task::new(
            (Arc::clone(&self.member), self.budget.clone()),
            (serial, id),
            &request,
            (self.answers.clone(), Arc::clone(&self.barrier)),
            self.reports.0.clone(),
        );
        let task = tokio::spawn(task.run(watch, orders).in_current_span());
        let is_asked = self.progress.begun(serial);
        let others_stop = is_asked && self.barrier.resume();
        if is_asked && !others_stop {
            drop(commands.send(Command::ReportProgress));
        }
        self.watches.insert(id, Begun { serial, commands, task });
        if others_stop {
            // The new watch may first have to deliver old events, for which the other watches should not wait.
            self.progress.withdraw();
            self.ask();
        }
        Ok(())
    }

    /// Returns whether a running watch has this id. A watch that has ended by itself has released its id.
    fn is_taken(&self, id: i64) -> bool {
        self.watches.get(&id).is_some_and(|begun| !begun.commands.is_closed())
    }

    async fn refuse(&self, cancel_reason: String) {
        let header = self.member.header_now();
        let (created, canceled) = (true, true);
        let watch_id = NO_WATCH;
        let rejection = pb::WatchResponse {
            header,
            watch_id,
            created,
            canceled,
            cancel_reason,
            ..Default::default()
        };
        self.say(rejection).await;
    }

    async fn cancel(&mut self, id: i64) {
        let Some(mut begun) = self.watches.remove(&id) else { return };
        // The task reports its end after all its other responses.
        drop(begun.commands.send(Command::Cancel));
        drop((&mut begun.task).await);
        let reached = self.progress.ended(begun.serial);
        self.answer(reached).await;
    }

    /// Requests the progress of all watches. If a round is still open, another round follows it.
    fn ask(&mut self) {
        if self.progress.ask(self.watches.values().map(|begun| begun.serial)) {
            for begun in self.watches.values() {
                drop(begun.commands.send(Command::ReportProgress));
            }
        }
    }

    async fn receive(&mut self, report: task::WatchReport) {
        let reached = match report {
            task::WatchReport::UpTo { serial, revision } => {
                self.progress.answered(serial, revision)
            }
            task::WatchReport::NotYet { serial } => {
                self.progress.has_no_answer(serial);
                None
            }
            task::WatchReport::Ended { serial, id } => {
                if self.watches.get(&id).is_some_and(|begun| begun.serial == serial) {
                    self.watches.remove(&id);
                }
                self.progress.ended(serial)
            }
        };
        self.answer(reached).await;
    }

    /// Sends the result of a completed progress round, and starts another round if one was requested.
    async fn answer(&mut self, reached: Option<Revision>) {
        if let Some(revision) = reached {
            let (header, watch_id) = (self.member.header(revision), NO_WATCH);
            let bookmark = pb::WatchResponse { header, watch_id, ..Default::default() };
            // If the client is gone, the stream and this task are about to be dropped.
            let Ok(slot) = self.answers.slot().await else { return };
            if !self.barrier.bookmark(slot, revision, bookmark) {
                self.ask();
            }
        }
        if !self.progress.is_open() {
            self.barrier.resume();
        }
        if self.progress.wants_again() {
            self.ask();
        }
    }

    async fn say(&self, response: pb::WatchResponse) {
        // If the client is gone, the stream and this task are about to be dropped.
        drop(self.answers.send(Ok(response)).await);
    }
}

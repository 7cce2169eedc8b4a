//! `etcdserverpb.Watch`: one stream, many watches.
//!
//! ```text
//!   requests ──▶ Desk ──commands──▶ one task a watch ──▶ the library's watch
//!                 │                       │
//!                 └────── answers ◀───────┘        in one queue, in the order in which they are sent
//! ```
//!
//! A watch whose client does not read waits for room in the queue and costs nobody else anything: it goes on from
//! the history when there is room.

mod batch;
mod task;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bowline::{Error, Refusal, Revision};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument as _;

use super::driven::{Answers, Driven};
use super::identity::Identity;
use super::member::Member;
use super::wire::{Reason, access_refused, key_range, refused, revision};
use crate::generated::etcdserverpb as pb;
use crate::generated::etcdserverpb::watch_server::Watch;
use batch::filter;
use pb::watch_request::RequestUnion;
use task::{Command, Task};

/// The id of no watch.
const NO_WATCH: i64 = -1;

/// How often a stream that requires a leader looks for it.
const LOOK_FOR_LEADER: Duration = Duration::from_millis(100);

/// The service.
#[derive(Clone)]
pub(super) struct WatchService(pub(super) Arc<Member>);

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<pb::WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.0.not_for_learners()?;
        let needs_leader = request.metadata().get("hasleader").is_some_and(|value| value == "true");
        let (member, who) = (Arc::clone(&self.0), Identity::in_request(&request));
        let requests = request.into_inner();
        Ok(Response::new(Driven::by(move |answers| {
            let desk = Desk::new(Arc::clone(&member), who.clone(), answers);
            async move {
                tokio::select! {
                    ended = desk.serve(requests) => ended,
                    status = leader_lost(&member), if needs_leader => Err(status),
                }
            }
        })))
    }
}

/// Ends when there was no leader for too long.
pub(super) async fn leader_lost(member: &Member) -> Status {
    let mut seen = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(LOOK_FOR_LEADER).await;
        if member.has_leader() {
            seen = tokio::time::Instant::now();
        } else if seen.elapsed() >= member.patience() {
            return Reason::NoLeader.into();
        }
    }
}

/// One stream.
struct Desk {
    member: Arc<Member>,
    who: Identity,
    answers: Answers<pb::WatchResponse>,
    watches: HashMap<i64, Begun>,
    next_id: i64,
    /// Which watch has been told everything up to where, as the answer to which question.
    told: (mpsc::UnboundedSender<task::Told>, mpsc::UnboundedReceiver<task::Told>),
    /// The last question, if it is not answered yet.
    asked: Option<Question>,
    questions: u64,
}

/// A watch that has begun.
struct Begun {
    commands: mpsc::UnboundedSender<Command>,
    task: JoinHandle<()>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How far are all watches of the stream?
struct Question {
    number: u64,
    open: Vec<i64>,
    /// The least that was answered.
    revision: Revision,
}

impl Desk {
    fn new(member: Arc<Member>, who: Identity, answers: Answers<pb::WatchResponse>) -> Self {
        let (watches, told) = (HashMap::new(), mpsc::unbounded_channel());
        Self { member, who, answers, watches, next_id: 0, told, asked: None, questions: 0 }
    }

    /// Serves until the client is gone. One that only listens from now on stays.
    async fn serve(mut self, mut requests: Streaming<pb::WatchRequest>) -> Result<(), Status> {
        let mut more = true;
        loop {
            tokio::select! {
                request = requests.message(), if more => match request? {
                    Some(request) => self.take(request).await?,
                    None => more = false,
                },
                Some(told) = self.told.1.recv() => self.hear(told).await,
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
        // The stream may be old, and who opened it nobody any more, or has never been anybody.
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
        let mut call = self.member.acting_still(&self.who).watch(keys).filter(filter(&request));
        if let Some(revision) = revision(request.start_revision) {
            call = call.from(revision);
        }
        if request.prev_kv {
            call = call.prev_kv();
        }
        let watch = match call.await {
            Ok(watch) => watch,
            // In etcd's words, and to this watch only: the others of the stream go on.
            Err(Error::Refused(Refusal::Access(why))) => {
                self.refuse(access_refused(why).message().to_owned()).await;
                return Ok(());
            }
            Err(error) => return Err(refused(error)),
        };
        let header = self.member.header(watch.created_at());
        let created =
            pb::WatchResponse { header, watch_id: id, created: true, ..Default::default() };
        self.say(created).await;
        let (commands, orders) = mpsc::unbounded_channel();
        let task = Task::new(
            Arc::clone(&self.member),
            id,
            &request,
            self.answers.clone(),
            self.told.0.clone(),
        );
        let task = tokio::spawn(task.run(watch, orders).in_current_span());
        self.watches.insert(id, Begun { commands, task });
        Ok(())
    }

    /// Whether a watch with this id goes on. One that has ended by itself has left its id.
    fn is_taken(&self, id: i64) -> bool {
        self.watches.get(&id).is_some_and(|begun| !begun.commands.is_closed())
    }

    async fn refuse(&self, cancel_reason: String) {
        let header = self.member.header_now();
        let (created, canceled) = (true, true);
        let watch_id = NO_WATCH;
        let refusal = pb::WatchResponse {
            header,
            watch_id,
            created,
            canceled,
            cancel_reason,
            ..Default::default()
        };
        self.say(refusal).await;
    }

    async fn cancel(&mut self, id: i64) {
        let Some(mut begun) = self.watches.remove(&id) else { return };
        // The task says that it has ended after everything else that it says.
        drop(begun.commands.send(Command::Cancel));
        drop((&mut begun.task).await);
        self.ended(id).await;
    }

    /// Asks all watches how far they are. A later question takes the place of an earlier one.
    fn ask(&mut self) {
        self.watches.retain(|_, begun| !begun.commands.is_closed());
        self.questions += 1;
        let number = self.questions;
        for begun in self.watches.values() {
            drop(begun.commands.send(Command::Tell(number)));
        }
        let open: Vec<_> = self.watches.keys().copied().collect();
        let revision = Revision(u64::MAX);
        self.asked = (!open.is_empty()).then_some(Question { number, open, revision });
    }

    async fn hear(&mut self, told: task::Told) {
        match told {
            task::Told::UpTo { id, question, revision } => {
                let Some(asked) = self.asked.as_mut().filter(|asked| asked.number <= question)
                else {
                    return;
                };
                asked.open.retain(|open| *open != id);
                asked.revision = asked.revision.min(revision);
                self.conclude().await;
            }
            task::Told::Ended { id } => self.ended(id).await,
        }
    }

    /// A watch has ended: it need not be waited for.
    async fn ended(&mut self, id: i64) {
        if let Some(asked) = &mut self.asked {
            asked.open.retain(|open| *open != id);
            self.conclude().await;
        }
    }

    /// Answers the question when all have.
    async fn conclude(&mut self) {
        let Some(asked) = self.asked.take_if(|asked| asked.open.is_empty()) else { return };
        if asked.revision == Revision(u64::MAX) {
            // All that were asked have ended.
            return;
        }
        let header = self.member.header(asked.revision);
        let watch_id = NO_WATCH;
        self.say(pb::WatchResponse { header, watch_id, ..Default::default() }).await;
    }

    async fn say(&self, response: pb::WatchResponse) {
        // If nobody listens any more the stream is dropped soon, and this with it.
        drop(self.answers.send(Ok(response)).await);
    }
}

//! One stream of watches. What it tells comes when it comes: it is put together for each watch, and compared when
//! everything must have been told.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::unlike;
use crate::generated::etcdserverpb as pb;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;

/// How long to wait for an answer that must come. etcd looks every tenth of a second for who wants to know the past.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The id under which a stream answers for all its watches, or for one that did not begin.
const NO_WATCH: i64 = -1;

/// See the module.
pub(crate) struct Watches {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
    /// What each watch was told since the last look, an event a line, and that it has ended.
    told: BTreeMap<i64, Vec<String>>,
}

impl Watches {
    pub(crate) async fn open(channel: Channel) -> Self {
        let (requests, sent) = mpsc::channel(1);
        // A stream begins to answer when the first request is there.
        let everything = pb::WatchCreateRequest {
            key: "\0".into(),
            range_end: "\0".into(),
            prev_kv: true,
            ..Default::default()
        };
        let everything = RequestUnion::CreateRequest(everything);
        requests.send(pb::WatchRequest { request_union: Some(everything) }).await.unwrap();
        let answers = WatchClient::new(channel).watch(ReceiverStream::new(sent)).await.unwrap();
        let mut watches = Self { requests, answers: answers.into_inner(), told: BTreeMap::new() };
        assert!(watches.answer(|answer| answer.created).await.is_ok());
        watches
    }

    async fn ask(&self, request: RequestUnion) {
        self.requests.send(pb::WatchRequest { request_union: Some(request) }).await.unwrap();
    }

    /// The next answer that is wanted; what else comes is kept.
    async fn answer(
        &mut self,
        wanted: impl Fn(&pb::WatchResponse) -> bool,
    ) -> Result<pb::WatchResponse, &'static str> {
        loop {
            let answer = tokio::time::timeout(PATIENCE, self.answers.message()).await;
            let answer = answer.map_err(|_| "silence")?.unwrap().expect("the stream goes on");
            if wanted(&answer) {
                return Ok(answer);
            }
            self.keep(answer);
        }
    }

    fn keep(&mut self, mut answer: pb::WatchResponse) {
        let told = self.told.entry(answer.watch_id).or_default();
        told.extend(answer.events.drain(..).map(|event| format!("{event:?}")));
        if answer.canceled {
            unlike(&mut answer.header);
            told.push(format!("{answer:?}"));
        }
    }

    /// Begins a watch: the answer, and its id.
    pub(crate) async fn create(&mut self, request: pb::WatchCreateRequest) -> (String, i64) {
        self.ask(RequestUnion::CreateRequest(request)).await;
        let mut answer = self.answer(|answer| answer.created).await.unwrap();
        unlike(&mut answer.header);
        (format!("{answer:?}"), answer.watch_id)
    }

    /// Ends a watch.
    pub(crate) async fn cancel(&mut self, watch_id: i64) -> String {
        self.ask(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id })).await;
        let ended = |answer: &pb::WatchResponse| answer.canceled && answer.watch_id == watch_id;
        let mut answer = self.answer(ended).await.unwrap();
        unlike(&mut answer.header);
        format!("{answer:?}")
    }

    /// Waits until all watches have been told everything up to the newest revision, which the stream says.
    pub(crate) async fn told_all(&mut self, newest: i64) {
        self.ask(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
        let told = |answer: &pb::WatchResponse| answer.watch_id == NO_WATCH && !answer.created;
        let answer = self.answer(told).await.unwrap();
        assert_eq!(answer.header.unwrap().revision, newest, "progress");
    }

    /// Waits until each watch has been told at least as much as another stream's was: the answer to a question of
    /// progress can come too early in etcd 3.4. What was told is given away.
    pub(crate) async fn told_like(&mut self, other: &Self) -> BTreeMap<i64, Vec<String>> {
        let lacks = |own: &Self| {
            let count = |id| own.told.get(id).map_or(0, Vec::len);
            other.told.iter().any(|(id, told)| count(id) < told.len())
        };
        while lacks(self) {
            match self.answer(|_| true).await {
                Ok(answer) => self.keep(answer),
                // It will not come any more: the comparison says what is missing.
                Err(_) => break,
            }
        }
        self.take()
    }

    /// What was told since the last look.
    pub(crate) fn take(&mut self) -> BTreeMap<i64, Vec<String>> {
        let mut told = std::mem::take(&mut self.told);
        told.retain(|_, told| !told.is_empty());
        told
    }
}

//! A watch stream. Responses arrive asynchronously. The test collects the events of each watch, and compares them when
//! every watch must have received all of its events.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::unlike;
use bowline_proto::etcdserverpb as pb;
use pb::watch_client::WatchClient;

/// How long to wait for a response that must arrive. etcd looks every 100 ms for watches that start in the past.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);

/// The watch ID of responses that concern all watches of a stream, or a watch that was not created.
const NO_WATCH: i64 = -1;

pub(crate) struct Watches {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
    /// The events of each watch since the last [`Self::take`], one event a line, and a line when the watch ended.
    received: BTreeMap<i64, Vec<String>>,
}

impl Watches {
    pub(crate) async fn open(channel: Channel) -> Self {
        let (requests, sent) = mpsc::channel(1);
        // A stream responds only after its first request.
        let everything = pb::WatchCreateRequest {
            key: "\0".into(),
            range_end: "\0".into(),
            prev_kv: true,
            ..Default::default()
        };
        requests.send(everything.into()).await.unwrap();
        let answers = WatchClient::new(channel).watch(ReceiverStream::new(sent)).await.unwrap();
        let mut watches =
            Self { requests, answers: answers.into_inner(), received: BTreeMap::new() };
        assert!(watches.answer(|answer| answer.created).await.is_ok());
        watches
    }

    async fn ask(&self, request: impl Into<pb::WatchRequest>) {
        self.requests.send(request.into()).await.unwrap();
    }

    /// Returns the first response that matches. Events in other responses are kept.
    async fn answer(
        &mut self,
        wanted: impl Fn(&pb::WatchResponse) -> bool,
    ) -> Result<pb::WatchResponse, &'static str> {
        loop {
            let answer = tokio::time::timeout(WAIT_MAX, self.answers.message()).await;
            let answer = answer.map_err(|_| "silence")?.unwrap().expect("the stream is open");
            if wanted(&answer) {
                return Ok(answer);
            }
            self.keep(answer);
        }
    }

    fn keep(&mut self, mut answer: pb::WatchResponse) {
        let received = self.received.entry(answer.watch_id).or_default();
        received.extend(answer.events.drain(..).map(|event| format!("{event:?}")));
        if answer.canceled {
            unlike(&mut answer.header);
            received.push(format!("{answer:?}"));
        }
    }

    /// Creates a watch. Returns the response as text, and the watch ID.
    pub(crate) async fn create(&mut self, request: pb::WatchCreateRequest) -> (String, i64) {
        self.ask(request).await;
        let mut answer = self.answer(|answer| answer.created).await.unwrap();
        unlike(&mut answer.header);
        (format!("{answer:?}"), answer.watch_id)
    }

    pub(crate) async fn cancel(&mut self, watch_id: i64) -> String {
        self.ask(pb::WatchCancelRequest { watch_id }).await;
        let ended = |answer: &pb::WatchResponse| answer.canceled && answer.watch_id == watch_id;
        let mut answer = self.answer(ended).await.unwrap();
        unlike(&mut answer.header);
        format!("{answer:?}")
    }

    /// Waits until all watches have received every event up to `newest`, which a progress response confirms.
    pub(crate) async fn receive_all(&mut self, newest: i64) {
        self.ask(pb::WatchProgressRequest {}).await;
        let received = |answer: &pb::WatchResponse| answer.watch_id == NO_WATCH && !answer.created;
        let answer = self.answer(received).await.unwrap();
        assert_eq!(answer.header.unwrap().revision, newest, "progress");
    }

    /// Waits until each watch has received at least as many events as the same watch of another stream: in etcd 3.4,
    /// the response to a progress request can arrive too early. Returns the events.
    pub(crate) async fn receive_like(&mut self, other: &Self) -> BTreeMap<i64, Vec<String>> {
        let lacks = |own: &Self| {
            let count = |id| own.received.get(id).map_or(0, Vec::len);
            other.received.iter().any(|(id, received)| count(id) < received.len())
        };
        while lacks(self) {
            match self.answer(|_| true).await {
                Ok(answer) => self.keep(answer),
                // The events do not arrive any more: the comparison shows which are missing.
                Err(_) => break,
            }
        }
        self.take()
    }

    /// Returns the events since the last call.
    pub(crate) fn take(&mut self) -> BTreeMap<i64, Vec<String>> {
        let mut received = std::mem::take(&mut self.received);
        received.retain(|_, received| !received.is_empty());
        received
    }
}

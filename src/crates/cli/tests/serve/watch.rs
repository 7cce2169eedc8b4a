//! Tests of watches: the events that they receive, the times at which they receive them, and how watches end.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use bowline_proto::{etcdserverpb as pb, mvccpb};
use bowline_testkit::process::Server;
use pb::kv_client::KvClient;
use pb::watch_client::WatchClient;
use pb::watch_create_request::FilterType;

/// A watch stream, open in both directions.
struct Stream {
    requests: mpsc::Sender<pb::WatchRequest>,
    responses: Streaming<pb::WatchResponse>,
}

impl Stream {
    async fn open(channel: Channel, requires_leader: bool) -> Self {
        let (requests, receiver) = mpsc::channel(8);
        let mut request = Request::new(ReceiverStream::new(receiver));
        if requires_leader {
            request.metadata_mut().insert("hasleader", "true".parse().unwrap());
        }
        let responses = taking(channel, usize::MAX).watch(request).await.unwrap().into_inner();
        Self { requests, responses }
    }

    async fn ask(&self, request: impl Into<pb::WatchRequest>) {
        self.requests.send(request.into()).await.unwrap();
    }

    async fn create(&mut self, request: pb::WatchCreateRequest) -> pb::WatchResponse {
        self.ask(request).await;
        let created = self.next().await;
        assert!(created.created, "{created:?}");
        created
    }

    async fn cancel(&self, watch_id: i64) {
        self.ask(pb::WatchCancelRequest { watch_id }).await;
    }

    async fn next(&mut self) -> pb::WatchResponse {
        let next = tokio::time::timeout(Duration::from_secs(60), self.responses.message());
        next.await.expect("a response in time").unwrap().expect("the stream is open")
    }
}

fn on(key: &'static str, end: &'static str) -> pb::WatchCreateRequest {
    pb::WatchCreateRequest { key: key.into(), range_end: end.into(), ..Default::default() }
}

async fn put(kv: &mut KvClient<Channel>, key: &'static str, value: &'static str) -> i64 {
    let request = pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() };
    kv.put(request).await.unwrap().into_inner().header.unwrap().revision
}

fn kinds(response: &pb::WatchResponse) -> Vec<(mvccpb::event::EventType, i64)> {
    let kind = |event: &mvccpb::Event| (event.r#type(), event.kv.as_ref().unwrap().mod_revision);
    response.events.iter().map(kind).collect()
}

use mvccpb::event::EventType::{Delete, Put};

#[tokio::test]
async fn watch_delivers_changes_in_order_until_canceled() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    let mut stream = Stream::open(channel, true).await;
    let created = stream.create(pb::WatchCreateRequest { prev_kv: true, ..on("a", "b") }).await;
    assert_eq!((created.watch_id, created.header.unwrap().revision), (0, 1));

    put(&mut kv, "a1", "x").await;
    put(&mut kv, "b1", "outside").await;
    put(&mut kv, "a1", "y").await;
    let delete = pb::DeleteRangeRequest { key: "a1".into(), ..Default::default() };
    kv.delete_range(delete).await.unwrap();
    let mut events = Vec::new();
    while events.len() < 3 {
        let response = stream.next().await;
        assert!(
            response.header.unwrap().revision
                >= response.events.last().unwrap().kv.as_ref().unwrap().mod_revision
        );
        events.extend(response.events);
    }
    let [first, second, third] = &events[..] else { panic!("{events:?}") };
    assert_eq!((first.r#type(), first.prev_kv.is_none()), (Put, true));
    assert_eq!(second.prev_kv.as_ref().unwrap().value, "x");
    assert_eq!((third.r#type(), &third.prev_kv.as_ref().unwrap().value[..]), (Delete, &b"y"[..]));
    let gone = third.kv.as_ref().unwrap();
    let expected = mvccpb::KeyValue { key: "a1".into(), mod_revision: 5, ..Default::default() };
    assert_eq!(*gone, expected, "a delete event has only the key and the revision");

    stream.cancel(7).await;
    stream.cancel(0).await;
    let cancelled = stream.next().await;
    assert!(cancelled.canceled && cancelled.watch_id == 0 && !cancelled.created);
    put(&mut kv, "a2", "z").await;
    let other = stream.create(on("c", "")).await;
    assert_eq!(other.watch_id, 1, "the first watch received an event after its end");
}

#[tokio::test]
async fn watch_starts_at_any_uncompacted_revision() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    for value in ["1", "2", "3"] {
        put(&mut kv, "k", value).await;
    }
    let mut stream = Stream::open(channel, false).await;
    let from = |start_revision| pb::WatchCreateRequest { start_revision, ..on("k", "") };
    stream.create(from(2)).await;
    assert_eq!(kinds(&stream.next().await), [(Put, 2), (Put, 3), (Put, 4)]);
    stream.cancel(0).await;
    assert!(stream.next().await.canceled);

    kv.compact(pb::CompactionRequest { revision: 3, physical: false }).await.unwrap();
    let created = stream.create(from(2)).await;
    let ended = stream.next().await;
    assert!(ended.canceled && ended.watch_id == created.watch_id);
    let revision = ended.header.unwrap().revision;
    assert_eq!((ended.compact_revision, revision, &*ended.cancel_reason), (3, 0, ""));
    let refused = stream.create(from(-1)).await;
    assert!(refused.canceled && refused.watch_id == -1);
    assert_eq!(refused.cancel_reason, "etcdserver: mvcc: required revision has been compacted");

    // The watch starts at a future revision, so earlier events are not sent.
    stream.create(from(6)).await;
    put(&mut kv, "k", "5").await;
    put(&mut kv, "k", "6").await;
    assert_eq!(kinds(&stream.next().await), [(Put, 6)]);
}

#[tokio::test]
async fn watch_ids_are_chosen_or_given_and_unique() {
    let server = Server::alone(&[]);
    let mut stream = Stream::open(server.channel().await, false).await;
    let named = |watch_id| pb::WatchCreateRequest { watch_id, ..on("k", "") };
    assert_eq!(stream.create(named(0)).await.watch_id, 0);
    assert_eq!(stream.create(named(2)).await.watch_id, 2);
    assert_eq!(stream.create(named(0)).await.watch_id, 1);
    assert_eq!(stream.create(named(0)).await.watch_id, 3);
    let twice = stream.create(named(2)).await;
    assert_eq!((twice.watch_id, twice.canceled), (-1, true));
    assert_eq!(twice.cancel_reason, "mvcc: duplicate watch ID provided on the WatchStream");
    stream.cancel(2).await;
    assert!(stream.next().await.canceled);
    assert_eq!(stream.create(named(2)).await.watch_id, 2);
    let empty = stream.create(on("b", "a")).await;
    assert_eq!((empty.watch_id, &*empty.cancel_reason), (-1, "mvcc: watcher range is empty"));
}

#[tokio::test]
async fn filters_drop_event_kinds_for_a_watch_of_all_keys() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    let mut stream = Stream::open(channel, false).await;
    let filtered = |filters: &[FilterType]| pb::WatchCreateRequest {
        filters: filters.iter().map(|filter| (*filter).into()).collect(),
        ..on("", "\0")
    };
    let no_puts = stream.create(filtered(&[FilterType::Noput])).await.watch_id;
    let no_deletes = stream.create(filtered(&[FilterType::Nodelete])).await.watch_id;
    stream.create(filtered(&[FilterType::Nodelete, FilterType::Noput])).await;
    put(&mut kv, "k", "v").await;
    let delete = pb::DeleteRangeRequest { key: "k".into(), ..Default::default() };
    kv.delete_range(delete).await.unwrap();
    let mut received: Vec<_> = Vec::new();
    for _ in 0..2 {
        let response = stream.next().await;
        received.push((response.watch_id, kinds(&response)));
    }
    received.sort_by_key(|(id, _)| *id);
    assert_eq!(received, [(no_puts, vec![(Delete, 3)]), (no_deletes, vec![(Put, 2)])]);
}

#[tokio::test]
async fn progress_follows_all_earlier_events() {
    let server = Server::alone(&["--watch-progress-notify-interval=100ms"]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    let mut stream = Stream::open(channel, false).await;
    for _ in 0..3 {
        stream.create(on("k", "")).await;
    }
    let mut newest = 0;
    for _ in 0..50 {
        newest = put(&mut kv, "k", "v").await;
    }
    stream.ask(pb::WatchProgressRequest {}).await;
    let mut received = 0;
    loop {
        let response = stream.next().await;
        if response.watch_id == -1 {
            assert!(response.events.is_empty() && response.header.unwrap().revision >= newest);
            break;
        }
        received += response.events.len();
    }
    assert_eq!(received, 150, "all watches had received all events");

    let notified = pb::WatchCreateRequest { progress_notify: true, ..on("other", "") };
    let id = stream.create(notified).await.watch_id;
    put(&mut kv, "elsewhere", "v").await;
    loop {
        let response = stream.next().await;
        assert!(response.events.is_empty() && response.watch_id == id);
        if response.header.unwrap().revision == newest + 1 {
            break;
        }
    }
}

#[tokio::test]
async fn revision_is_delivered_whole_or_in_marked_fragments() {
    let server = Server::alone(&["--max-request-bytes=600000"]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    for key in ["k1", "k2", "k3"] {
        let value = vec![b'x'; 500_000].into();
        let request = pb::PutRequest { key: key.into(), value, ..Default::default() };
        kv.put(request).await.unwrap();
    }
    let mut stream = Stream::open(channel, false).await;
    let past = |fragment| pb::WatchCreateRequest { start_revision: 2, fragment, ..on("k", "l") };
    stream.create(past(true)).await;
    let mut revisions = Vec::new();
    while revisions.len() < 3 {
        let response = stream.next().await;
        assert!(response.events.len() < 3);
        revisions.extend(kinds(&response));
    }
    assert_eq!(revisions, [(Put, 2), (Put, 3), (Put, 4)]);
}

fn row(key: &'static str, bytes: usize) -> pb::PutRequest {
    pb::PutRequest { key: key.into(), value: vec![b'x'; bytes].into(), ..Default::default() }
}

/// etcd's Go client drops what arrives between two fragments of a response, and drops the fragments when a response
/// that is no fragment follows.
#[tokio::test]
async fn fragments_of_a_revision_are_contiguous() {
    let server = Server::alone(&["--max-request-bytes=600000"]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    let mut stream = Stream::open(channel, false).await;
    let in_pieces = pb::WatchCreateRequest { fragment: true, prev_kv: true, ..on("a", "b") };
    let pieces = stream.create(in_pieces).await.watch_id;
    let other = stream.create(on("b", "")).await.watch_id;
    let rounds = 10;
    let mut newest = 0;
    for _ in 0..rounds {
        for key in ["a1", "a2", "a3"] {
            kv.put(row(key, 500_000)).await.unwrap();
        }
        let range_end = "b".into();
        let delete = pb::DeleteRangeRequest { key: "a".into(), range_end, ..Default::default() };
        kv.delete_range(delete).await.unwrap();
        // The events fill several responses, so that one response is always waiting.
        for _ in 0..12 {
            let put = kv.put(row("b", 60_000)).await.unwrap();
            newest = put.into_inner().header.unwrap().revision;
        }
    }
    // The client has read nothing so far.
    stream.ask(pb::WatchProgressRequest {}).await;
    let (mut torn, mut deleted, mut heard_of_b) = (None, 0, 0);
    loop {
        let response = stream.next().await;
        if let Some(id) = torn {
            assert_eq!(response.watch_id, id, "a response between the fragments of another");
        }
        torn = response.fragment.then_some(response.watch_id);
        if response.watch_id == -1 {
            assert!(response.header.unwrap().revision >= newest);
            break;
        }
        let is_delete = |kind: &&(_, i64)| kind.0 == Delete;
        deleted += kinds(&response).iter().filter(is_delete).count();
        heard_of_b += if response.watch_id == other { response.events.len() } else { 0 };
        assert!([pieces, other].contains(&response.watch_id));
    }
    assert_eq!((deleted, heard_of_b), (3 * rounds, 12 * rounds));
}

/// The response is a bookmark for all watches, from which clients resume them on another server.
#[tokio::test]
async fn progress_covers_watches_created_during_the_request() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    // Reading the history takes a while, and longer with the second watch.
    for _ in 0..20 {
        kv.put(row("a", 100_000)).await.unwrap();
    }
    for _ in 0..60 {
        kv.put(row("k", 100_000)).await.unwrap();
    }
    let past = |key| pb::WatchCreateRequest { start_revision: 2, ..on(key, "") };
    let open = async || {
        let stream = Stream::open(channel.clone(), false).await;
        stream.ask(past("a")).await;
        stream.ask(pb::WatchProgressRequest {}).await;
        stream.ask(past("k")).await;
        stream
    };
    let mut stream = open().await;
    let (mut streams, mut created, mut bookmark, mut received) = (1, 0, None, 0);
    while received < 80 || bookmark.is_none() {
        let response = stream.next().await;
        created += usize::from(response.created);
        if response.watch_id == -1 {
            if created == 1 {
                // The first watch had caught up before the second was created, so this attempt proves nothing and is
                // repeated.
                assert!(streams < 20, "the first watch is finished first every time");
                stream = open().await;
                (streams, created, bookmark, received) = (streams + 1, 0, None, 0);
                continue;
            }
            bookmark = Some(response.header.unwrap().revision);
        }
        for (_, revision) in kinds(&response) {
            let is_new = bookmark.is_none_or(|bookmark| revision > bookmark);
            assert!(is_new, "event {revision} after progress up to {bookmark:?}");
            received += 1;
        }
    }
}

/// Such a watch starts at a compacted revision, and ends at once. A client may retry it any number of times.
#[tokio::test]
async fn watches_that_end_by_themselves_leave_nothing() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    for value in ["1", "2", "3"] {
        put(&mut kv, "k", value).await;
    }
    kv.compact(pb::CompactionRequest { revision: 4, physical: false }).await.unwrap();
    let mut stream = Stream::open(channel, false).await;
    let mut memory = [0; 2];
    for (memory, count) in memory.iter_mut().zip([2_000, 16_000]) {
        for _ in 0..count / 8 {
            for _ in 0..8 {
                let past = pb::WatchCreateRequest { start_revision: 2, ..on("k", "") };
                stream.ask(past).await;
            }
            let mut ended = 0;
            while ended < 8 {
                ended += usize::from(stream.next().await.canceled);
            }
        }
        *memory = server.memory_bytes();
    }
    let grown = memory[1].saturating_sub(memory[0]);
    assert!(grown < 12 << 20, "{grown} bytes for watches that have ended");
}

#[tokio::test]
async fn overlong_key_is_rejected_for_its_watch_only() {
    let server = Server::alone(&["--max-request-bytes=100000"]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    let mut stream = Stream::open(channel, false).await;
    let id = stream.create(on("k", "")).await.watch_id;
    // The end of a range may be one byte longer than a key.
    let long = || bytes::Bytes::from(vec![b'z'; 100_002]);
    for request in [
        pb::WatchCreateRequest { key: long(), ..Default::default() },
        pb::WatchCreateRequest { range_end: long(), ..on("a", "") },
    ] {
        let refused = stream.create(request).await;
        assert_eq!((refused.watch_id, refused.canceled), (-1, true));
        assert_eq!(refused.cancel_reason, "etcdserver: request is too large");
    }
    let revision = put(&mut kv, "k", "v").await;
    let received = stream.next().await;
    assert_eq!((received.watch_id, kinds(&received)), (id, vec![(Put, revision)]));
}

#[tokio::test]
async fn a_server_that_stops_ends_its_streams() {
    let server = Server::alone(&[]);
    let mut stream = Stream::open(server.channel().await, false).await;
    stream.create(on("k", "")).await;
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    assert!(log.contains("stopped cleanly"), "{log}");
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.responses.message()).await;
    let ended = ended.expect("the stream is open");
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
}

/// etcd's Go client resumes from the newest progress notification, whichever watch has received more events.
#[tokio::test]
async fn progress_never_precedes_uncovered_events() {
    let server = Server::alone(&["--watch-progress-notify-interval=20ms"]);
    let channel = server.channel().await;
    let mut stream = Stream::open(channel.clone(), false).await;
    for key in ["busy", "busy", "idle", "quiet"] {
        let notified = pb::WatchCreateRequest { progress_notify: true, ..on(key, "") };
        stream.ask(notified).await;
        // Another watch may send progress while this watch is created.
        while !stream.next().await.created {}
    }
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let mut kv = KvClient::new(channel.clone());
        writers.spawn(async move {
            loop {
                put(&mut kv, "busy", "v").await;
            }
        });
    }
    let (mut newest, mut bookmark, mut bookmarks, mut received) = (0, 0, 0, 0);
    // The progress response must arrive no matter how much is written.
    stream.ask(pb::WatchProgressRequest {}).await;
    while bookmarks < 200 || received < 2000 {
        let response = stream.next().await;
        let revision = response.header.unwrap().revision;
        for (_, event) in kinds(&response) {
            assert!(event > bookmark, "event {event} after progress up to {bookmark}");
        }
        received += response.events.len();
        if response.watch_id == -1 {
            assert!(revision >= newest, "progress up to {revision} after event {newest}");
            (bookmark, bookmarks) = (revision, bookmarks + 1);
            stream.ask(pb::WatchProgressRequest {}).await;
        }
        newest = newest.max(revision);
    }
}

#[tokio::test]
async fn watch_with_a_future_start_is_silent_until_then() {
    let server = Server::alone(&["--watch-progress-notify-interval=20ms"]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    let mut stream = Stream::open(channel.clone(), false).await;
    let start = put(&mut kv, "other", "v").await + 5;
    let notified = |key| pb::WatchCreateRequest { progress_notify: true, ..on(key, "") };
    stream.create(pb::WatchCreateRequest { start_revision: start, ..notified("k") }).await;
    // When a watch has caught up, it reports progress at regular intervals.
    let mut begun = Stream::open(channel, false).await;
    begun.create(notified("idle")).await;
    for _ in 0..4 {
        stream.ask(pb::WatchProgressRequest {}).await;
        let reached = put(&mut kv, "k", "too early").await;
        while begun.next().await.header.unwrap().revision < reached {}
    }
    assert_eq!(put(&mut kv, "other", "v").await, start);
    stream.ask(pb::WatchProgressRequest {}).await;
    loop {
        let response = stream.next().await;
        assert!(response.events.is_empty() && response.header.unwrap().revision >= start);
        if response.watch_id == -1 {
            break;
        }
    }
}

/// Returns a client that accepts messages of at most `bytes_max`.
fn taking(channel: Channel, bytes_max: usize) -> WatchClient<Channel> {
    WatchClient::new(channel).max_decoding_message_size(bytes_max)
}

async fn watch_past(
    mut client: WatchClient<Channel>,
    fragment: bool,
) -> Streaming<pb::WatchResponse> {
    let create = pb::WatchCreateRequest { start_revision: 2, fragment, ..on("large/", "large0") };
    // The request stream has ended, but the response stream stays open.
    client.watch(tokio_stream::iter([create.into()])).await.unwrap().into_inner()
}

/// As in etcd: one response, or fragments of it that are no larger than a request may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_history_comes_in_one_response_or_its_fragments() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    for at in 0..10 {
        let key = format!("large/{at}").into();
        let put = pb::PutRequest { key, value: vec![b'a'; 1 << 20].into(), ..Default::default() };
        kv.put(put).await.unwrap();
    }
    let mut whole = watch_past(taking(channel.clone(), usize::MAX), false).await;
    assert!(whole.message().await.unwrap().unwrap().created);
    let received = whole.message().await.unwrap().unwrap();
    assert_eq!((received.events.len(), received.fragment), (10, false));
    assert_eq!(received.header.unwrap().revision, 11);

    let mut fragments = watch_past(taking(channel.clone(), 2 << 20), true).await;
    assert!(fragments.message().await.unwrap().unwrap().created);
    let mut events = 0;
    loop {
        let piece = fragments.message().await.unwrap().unwrap();
        assert_eq!(piece.header.unwrap().revision, 11);
        events += piece.events.len();
        assert_eq!(piece.fragment, events < 10);
        if !piece.fragment {
            break;
        }
    }
    // Without fragments, a client with a smaller limit fails, as with etcd.
    let mut small = watch_past(taking(channel, 2 << 20), false).await;
    assert!(small.message().await.unwrap().unwrap().created);
    assert_eq!(small.message().await.unwrap_err().code(), tonic::Code::OutOfRange);
}

/// Clients that watch from an old revision and do not read the responses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_watch_responses_take_bounded_memory() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    for at in 0..15 {
        let key = format!("large/{at}").into();
        let put = pb::PutRequest { key, value: vec![at; 1 << 20].into(), ..Default::default() };
        kv.put(put).await.unwrap();
    }
    let before = server.peak_memory_bytes();
    let mut streams = Vec::new();
    for _ in 0..60 {
        // Each stream has its own connection, so that the streams do not share a flow-control window.
        streams.push(watch_past(taking(server.channel().await, usize::MAX), false).await);
    }
    // While puts are answered, the server has time to fill all streams.
    for _ in 0..20 {
        put(&mut kv, "other", "v").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut received = Vec::new();
    for stream in &mut streams {
        let mut events = 0;
        while events < 15 {
            let next = tokio::time::timeout(Duration::from_secs(60), stream.message());
            events += next.await.expect("the stream is open").unwrap().unwrap().events.len();
        }
        received.push(events);
    }
    assert_eq!(received, [15; 60]);
    let more = server.peak_memory_growth_bytes(before) >> 20;
    assert!(more < 500, "{more} MiB more: 60 responses of 15 MiB would be 900");
}

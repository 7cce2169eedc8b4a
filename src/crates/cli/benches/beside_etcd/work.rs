//! Runs the clients' work and measures it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Barrier, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::bed::Bed;
use bowline_proto::{etcdserverpb as pb, v3lockpb};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;
use v3lockpb::lock_client::LockClient;

/// Number of keys, and size of their values.
const KEYS: u64 = 10_000;
const VALUE_BYTES: usize = 256;

/// Number of concurrent puts for watchers to receive.
const WRITERS: usize = 8;

/// Fraction of the time, as a divisor, that passes before counting starts.
const WARM: u32 = 5;

/// Longer than any run.
const LEASE_SECONDS: i64 = 3600;

/// The work of a row. Each variant defines one operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A put to one of the keys.
    Put,
    /// A linearizable range of one key.
    Range,
    /// A serializable range of one key.
    SerializableRange,
    /// A transaction: if the key exists, puts it and gets another.
    Txn,
    /// An event at one of the watchers, all of which watch one key.
    Watch,
    /// A renewal; each client has its own stream.
    KeepAlive,
    /// Lock and unlock; each client has its own name.
    Lock,
}

/// In the order of the table.
pub(crate) const ALL: [Work; 7] = [
    Work::Put,
    Work::Range,
    Work::SerializableRange,
    Work::Txn,
    Work::Watch,
    Work::KeepAlive,
    Work::Lock,
];

impl Work {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Range => "range, linearizable",
            Self::SerializableRange => "range, serializable",
            Self::Txn => "transaction",
            Self::Watch => "watch, events",
            Self::KeepAlive => "lease keep-alive",
            Self::Lock => "lock and unlock",
        }
    }
}

/// Result of a measurement.
#[derive(Clone, Default)]
pub(crate) struct Measured {
    /// Operations per second.
    pub(crate) rate: f64,
    /// In microseconds.
    pub(crate) median: f64,
    /// In microseconds.
    pub(crate) p99: f64,
    /// CPU time of the servers per operation, in microseconds.
    pub(crate) cpu: f64,
}

/// The interval in which an operation must start to be counted.
#[derive(Clone, Copy)]
struct Span {
    begin: Instant,
    end: Instant,
}

/// Latencies in nanoseconds.
type Latencies = Vec<u64>;

/// Makes sure that all keys exist.
pub(crate) async fn fill(bed: &Bed) {
    let mut tasks = JoinSet::new();
    let channels = bed.connections(32).await;
    for at in 0..32u64 {
        let mut kv = KvClient::new(channels[at as usize % channels.len()].clone());
        tasks.spawn(async move {
            for number in (at..KEYS).step_by(32) {
                kv.put(put(key(number))).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// Runs one measurement of a row.
pub(crate) async fn run(bed: &Bed, work: Work, clients: usize, time: Duration) -> Measured {
    let channels = bed.connections(clients).await;
    let writers = if work == Work::Watch { WRITERS } else { 0 };
    let ready = Arc::new(Barrier::new(clients + writers + 1));
    let (say, span) = tokio::sync::watch::channel(None);
    let mut tasks = JoinSet::new();
    for at in 0..clients {
        let (channel, ready) = (channels[at % channels.len()].clone(), Arc::clone(&ready));
        let span = span.clone();
        tasks.spawn(client(work, at as u64, channel, ready, span));
    }
    let mut writes = JoinSet::new();
    let writing = bed.connections(writers.max(1)).await;
    let base = Instant::now();
    BASE.get_or_init(|| base);
    for at in 0..writers {
        let (channel, ready) = (writing[at % writing.len()].clone(), Arc::clone(&ready));
        writes.spawn(write(channel, ready));
    }
    ready.wait().await;
    let begin = Instant::now() + time / WARM;
    let set = Span { begin, end: begin + time };
    say.send_replace(Some(set));
    tokio::time::sleep_until(begin.into()).await;
    let cpu = bed.cpu();
    tokio::time::sleep_until(set.end.into()).await;
    let cpu = bed.cpu() - cpu;
    writes.abort_all();
    let mut all = Latencies::new();
    while let Some(found) = tasks.join_next().await {
        all.extend(found.unwrap());
    }
    compact(&channels[0]).await;
    summed(all, time, cpu)
}

fn summed(mut all: Latencies, time: Duration, cpu: Duration) -> Measured {
    all.sort_unstable();
    let at = |share: f64| {
        let last = all.len().saturating_sub(1);
        all.get((last as f64 * share) as usize).map_or(0.0, |nanos| *nanos as f64 / 1e3)
    };
    Measured {
        rate: all.len() as f64 / time.as_secs_f64(),
        median: at(0.5),
        p99: at(0.99),
        cpu: cpu.as_secs_f64() * 1e6 / all.len().max(1) as f64,
    }
}

/// Discards the history, so that earlier rows do not affect the measurement.
async fn compact(channel: &Channel) {
    let mut kv = KvClient::new(channel.clone());
    let any = pb::RangeRequest { key: "any".into(), ..Default::default() };
    let revision = kv.range(any).await.unwrap().into_inner().header.unwrap().revision;
    // The compaction fails if nothing was written since the last one, which does not matter.
    drop(kv.compact(pb::CompactionRequest { revision, physical: false }).await);
}

type WhenTold = tokio::sync::watch::Receiver<Option<Span>>;

async fn client(
    work: Work,
    number: u64,
    channel: Channel,
    ready: Arc<Barrier>,
    mut span: WhenTold,
) -> Latencies {
    let mut own = Own::prepared(work, number, channel).await;
    ready.wait().await;
    let span = span.wait_for(Option::is_some).await.unwrap().unwrap();
    let mut latencies = Latencies::new();
    if let Own::Watch(watch) = &mut own {
        watch_until(watch, span, &mut latencies).await;
        return latencies;
    }
    loop {
        let begun = Instant::now();
        if begun >= span.end {
            return latencies;
        }
        own.once().await.unwrap();
        if begun >= span.begin {
            latencies.push(begun.elapsed().as_nanos() as u64);
        }
    }
}

/// The state of a client.
enum Own {
    Put(KvClient<Channel>, Dice),
    Range(KvClient<Channel>, Dice, bool),
    Txn(KvClient<Channel>, Dice),
    Watch(Streaming<pb::WatchResponse>),
    KeepAlive(mpsc::Sender<pb::LeaseKeepAliveRequest>, Streaming<pb::LeaseKeepAliveResponse>, i64),
    Lock(LockClient<Channel>, String, i64),
}

impl Own {
    async fn prepared(work: Work, number: u64, channel: Channel) -> Self {
        let dice = Dice(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let kv = KvClient::new(channel.clone());
        match work {
            Work::Put => Self::Put(kv, dice),
            Work::Range => Self::Range(kv, dice, false),
            Work::SerializableRange => Self::Range(kv, dice, true),
            Work::Txn => Self::Txn(kv, dice),
            Work::Watch => {
                let (sender, requests) = mpsc::channel(1);
                let create = pb::WatchCreateRequest { key: WATCHED.into(), ..Default::default() };
                let request_union = Some(pb::watch_request::RequestUnion::CreateRequest(create));
                sender.send(pb::WatchRequest { request_union }).await.unwrap();
                let mut watch = WatchClient::new(channel);
                let stream = watch.watch(ReceiverStream::new(requests)).await.unwrap();
                let mut stream = stream.into_inner();
                assert!(stream.message().await.unwrap().unwrap().created);
                // The request stream is kept open, because its end would end the response stream of some servers.
                tokio::spawn(async move { sender.closed().await });
                Self::Watch(stream)
            }
            Work::KeepAlive => {
                let lease = grant(&channel).await;
                let (sender, requests) = mpsc::channel(1);
                sender.send(pb::LeaseKeepAliveRequest { id: lease }).await.unwrap();
                let mut leases = LeaseClient::new(channel);
                let stream = leases.lease_keep_alive(ReceiverStream::new(requests)).await.unwrap();
                let mut stream = stream.into_inner();
                assert!(stream.message().await.unwrap().unwrap().ttl > 0);
                Self::KeepAlive(sender, stream, lease)
            }
            Work::Lock => {
                let lease = grant(&channel).await;
                Self::Lock(LockClient::new(channel), format!("locks/{number}"), lease)
            }
        }
    }

    async fn once(&mut self) -> Result<(), Status> {
        match self {
            Self::Put(kv, dice) => drop(kv.put(put(dice.key())).await?),
            Self::Range(kv, dice, serializable) => {
                let serializable = *serializable;
                let key = dice.key().into();
                let request = pb::RangeRequest { key, serializable, ..Default::default() };
                assert_eq!(kv.range(request).await?.into_inner().kvs.len(), 1);
            }
            Self::Txn(kv, dice) => {
                let reply = kv.txn(txn(dice.key(), dice.key())).await?.into_inner();
                assert!(reply.succeeded);
            }
            Self::Watch(_) => unreachable!("who watches does nothing"),
            Self::KeepAlive(sender, stream, id) => {
                sender.send(pb::LeaseKeepAliveRequest { id: *id }).await.ok();
                let reply = stream.message().await?;
                assert!(reply.is_some_and(|reply| reply.ttl > 0));
            }
            Self::Lock(locks, name, lease) => {
                let request = v3lockpb::LockRequest { name: name.clone().into(), lease: *lease };
                let key = locks.lock(request).await?.into_inner().key;
                locks.unlock(v3lockpb::UnlockRequest { key }).await?;
            }
        }
        Ok(())
    }
}

const WATCHED: &str = "watched";

/// Start of the clock for times in watched values.
static BASE: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

fn since_base() -> u64 {
    BASE.get().map_or(0, |base| base.elapsed().as_nanos() as u64)
}

/// Puts the watched key with the current time until stopped.
async fn write(channel: Channel, ready: Arc<Barrier>) {
    let mut kv = KvClient::new(channel);
    ready.wait().await;
    loop {
        let mut value = vec![b'v'; VALUE_BYTES];
        value[..8].copy_from_slice(&since_base().to_le_bytes());
        let (key, value) = (WATCHED.into(), value.into());
        kv.put(pb::PutRequest { key, value, ..Default::default() }).await.unwrap();
    }
}

async fn watch_until(
    watch: &mut Streaming<pb::WatchResponse>,
    span: Span,
    latencies: &mut Latencies,
) {
    while let Ok(response) = tokio::time::timeout_at(span.end.into(), watch.message()).await {
        let (response, now) = (response.unwrap().unwrap(), since_base());
        if Instant::now() < span.begin {
            continue;
        }
        for event in response.events {
            let value = event.kv.unwrap().value;
            let sent = u64::from_le_bytes(value[..8].try_into().unwrap());
            latencies.push(now - sent);
        }
    }
}

async fn grant(channel: &Channel) -> i64 {
    let request = pb::LeaseGrantRequest { ttl: LEASE_SECONDS, id: 0 };
    LeaseClient::new(channel.clone()).lease_grant(request).await.unwrap().into_inner().id
}

fn key(number: u64) -> String {
    format!("keys/{number:08}")
}

fn put(key: String) -> pb::PutRequest {
    pb::PutRequest { key: key.into(), value: vec![b'v'; VALUE_BYTES].into(), ..Default::default() }
}

/// Returns a transaction that puts one key if it exists, and gets the other.
fn txn(key: String, other: String) -> pb::TxnRequest {
    use pb::compare::{CompareResult, CompareTarget, TargetUnion};
    use pb::request_op::Request;
    let compare = pb::Compare {
        key: key.clone().into(),
        target: CompareTarget::Create as i32,
        result: CompareResult::Greater as i32,
        target_union: Some(TargetUnion::CreateRevision(0)),
        ..Default::default()
    };
    let get = pb::RangeRequest { key: other.into(), ..Default::default() };
    let op = |request| pb::RequestOp { request: Some(request) };
    let success = vec![op(Request::RequestPut(put(key))), op(Request::RequestRange(get))];
    pb::TxnRequest { compare: vec![compare], success, failure: Vec::new() }
}

/// A pseudorandom generator with the same sequence in each run.
struct Dice(u64);

impl Dice {
    fn key(&mut self) -> String {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        key(self.0 % KEYS)
    }
}

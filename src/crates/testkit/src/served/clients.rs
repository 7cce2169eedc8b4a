//! Runs the clients' work and measures it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Barrier, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use bowline_fleet::Dice;
use bowline_proto::{etcdserverpb as pb, v3lockpb};
use pb::compare::{CompareResult, TargetUnion};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;
use v3lockpb::lock_client::LockClient;

use super::Bed;
use super::connection::Connection;
use crate::crew::{Measured, Trace};

const VALUE_BYTES: usize = 256;

/// Fraction of the time, as a divisor, that passes before counting starts.
const WARM: u32 = 5;

/// Interval at which a write is sent again while the leader changes.
const AGAIN: Duration = Duration::from_millis(10);

/// Deadline of a write while the leader changes. A request can be lost in a member that has no leader.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// Number of errors that a client tolerates, for example when the leader changes on a busy machine.
const ERRORS_MAX: usize = 20;

/// Longer than any run.
const LEASE_SECONDS: i64 = 3600;

/// The work of a row. Each variant defines one operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A put to one of the keys.
    Put,
    /// A linearizable range of one key.
    Range,
    /// A serializable range of one key.
    SerializableRange,
    /// A transaction: if the key exists, puts it and gets another.
    Txn,
    /// A serializable range of one key, then a transaction that puts the key if it is unchanged.
    CompareAndSet,
    /// An event at one of the watchers, all of which watch one key.
    Watch,
    /// A renewal; each client has its own stream.
    KeepAlive,
    /// Lock and unlock; each client has its own name.
    Lock,
}

/// A measurement.
#[derive(Clone, Copy)]
pub struct Load {
    pub work: Work,
    pub clients: usize,
    /// Number of concurrent puts for watchers to receive. Only [`Work::Watch`] uses it.
    pub writers: usize,
    /// Number of keys.
    pub keys: u64,
    pub time: Duration,
}

/// The interval in which an operation must start to be counted.
#[derive(Clone, Copy)]
struct Span {
    begin: Instant,
    end: Instant,
}

/// Makes sure that all keys exist.
pub async fn fill(bed: &Bed, keys: u64) {
    let mut tasks = JoinSet::new();
    let channels = bed.connections(32).await;
    for at in 0..32u64 {
        let mut kv = KvClient::new(channels[at as usize % channels.len()].clone());
        tasks.spawn(async move {
            for number in (at..keys).step_by(32) {
                kv.put(put(key(number))).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// Runs one measurement. Returns the latencies, and the CPU time of the servers.
pub async fn run(bed: &Bed, load: Load) -> (Measured, Duration) {
    let Load { work, clients, time, .. } = load;
    let channels = bed.connections(clients).await;
    let writers = if work == Work::Watch { load.writers } else { 0 };
    let ready = Arc::new(Barrier::new(clients + writers + 1));
    let (say, span) = tokio::sync::watch::channel(None);
    let mut tasks = JoinSet::new();
    for at in 0..clients {
        let (channel, ready) = (channels[at % channels.len()].clone(), Arc::clone(&ready));
        tasks.spawn(client(load, at as u64, channel, ready, span.clone()));
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
    let cpu = bed.cpu().saturating_sub(cpu);
    writes.abort_all();
    let mut all = Measured::new(time);
    while let Some(found) = tasks.join_next().await {
        all.merge(&found.unwrap());
    }
    compact(&channels[0]).await;
    (all, cpu)
}

/// Returns the time until the cluster acknowledges a write that is sent now to the members of `channels`. A member can
/// lose a request when the leader changes, so every [`AGAIN`] another copy is sent, and the first reply counts.
pub async fn next_write(channels: &[Connection]) -> Duration {
    let begun = Instant::now();
    let mut attempts = JoinSet::new();
    for at in 0.. {
        let mut kv = KvClient::new(channels[at % channels.len()].clone());
        attempts.spawn(async move { kv.put(put("next".to_owned())).await });
        let again = begun + AGAIN * (u32::try_from(at).unwrap() + 1);
        while let Ok(Some(reply)) =
            tokio::time::timeout_at(again.into(), attempts.join_next()).await
        {
            if reply.unwrap().is_ok() {
                return begun.elapsed();
            }
        }
        tokio::time::sleep_until(again.into()).await;
    }
    unreachable!("the loop has no end");
}

/// Puts random keys for `time`, and records when each put is acknowledged. Attempts that take longer than [`WAIT_MAX`]
/// are abandoned.
pub async fn trace(channels: Vec<Connection>, clients: usize, keys: u64, time: Duration) -> Trace {
    let until = Instant::now() + time;
    let mut tasks = JoinSet::new();
    for at in 0..clients {
        let mut kv = KvClient::new(channels[at % channels.len()].clone());
        tasks.spawn(async move {
            let (mut keys, mut trace) = (Keys::new(at as u64, keys), Trace::default());
            while Instant::now() < until {
                match tokio::time::timeout(WAIT_MAX, kv.put(put(keys.key()))).await {
                    Ok(Ok(_)) => trace.add_now(),
                    // A failed attempt must not turn into a busy loop.
                    Ok(Err(_)) => tokio::time::sleep(AGAIN).await,
                    Err(_) => {}
                }
            }
            trace
        });
    }
    let mut all = Trace::default();
    tasks.join_all().await.iter().for_each(|trace| all.merge(trace));
    all
}

/// Discards the history, so that earlier rows do not affect the measurement.
async fn compact(channel: &Connection) {
    let mut kv = KvClient::new(channel.clone());
    let any = pb::RangeRequest { key: "any".into(), ..Default::default() };
    let revision = kv.range(any).await.unwrap().into_inner().header.unwrap().revision;
    // The compaction fails if nothing was written since the last one, which does not matter.
    drop(kv.compact(pb::CompactionRequest { revision, physical: false }).await);
}

type SpanReceiver = tokio::sync::watch::Receiver<Option<Span>>;

async fn client(
    load: Load,
    number: u64,
    channel: Connection,
    ready: Arc<Barrier>,
    mut span: SpanReceiver,
) -> Measured {
    let mut own = Own::prepared(load, number, channel).await;
    ready.wait().await;
    let span = span.wait_for(Option::is_some).await.unwrap().unwrap();
    let (mut measured, mut errors) = (Measured::new(load.time), 0);
    if let Own::Watch(watch) = &mut own {
        watch_until(watch, span, &mut measured).await;
        return measured;
    }
    loop {
        let begun = Instant::now();
        if begun >= span.end {
            return measured;
        }
        if let Err(error) = own.once().await {
            errors += 1;
            assert!(errors <= ERRORS_MAX, "{error}");
        } else if begun >= span.begin {
            measured.add(begun.elapsed());
        }
    }
}

/// The state of a client.
enum Own {
    Put(KvClient<Connection>, Keys),
    Range(KvClient<Connection>, Keys, bool),
    Txn(KvClient<Connection>, Keys),
    CompareAndSet(KvClient<Connection>, Keys),
    Watch(Streaming<pb::WatchResponse>),
    KeepAlive(mpsc::Sender<pb::LeaseKeepAliveRequest>, Streaming<pb::LeaseKeepAliveResponse>, i64),
    Lock(LockClient<Connection>, String, i64),
}

impl Own {
    async fn prepared(load: Load, number: u64, channel: Connection) -> Self {
        let keys = Keys::new(number, load.keys);
        let kv = KvClient::new(channel.clone());
        match load.work {
            Work::Put => Self::Put(kv, keys),
            Work::Range => Self::Range(kv, keys, false),
            Work::SerializableRange => Self::Range(kv, keys, true),
            Work::Txn => Self::Txn(kv, keys),
            Work::CompareAndSet => Self::CompareAndSet(kv, keys),
            Work::Watch => {
                let (sender, requests) = mpsc::channel(1);
                let create = pb::WatchCreateRequest { key: WATCHED.into(), ..Default::default() };
                sender.send(create.into()).await.unwrap();
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
            Self::Put(kv, keys) => drop(kv.put(put(keys.key())).await?),
            Self::Range(kv, keys, serializable) => {
                let serializable = *serializable;
                let key = keys.key().into();
                let request = pb::RangeRequest { key, serializable, ..Default::default() };
                assert_eq!(kv.range(request).await?.into_inner().kvs.len(), 1);
            }
            Self::Txn(kv, keys) => {
                let reply = kv.txn(txn(keys.key(), keys.key())).await?.into_inner();
                assert!(reply.succeeded);
            }
            Self::CompareAndSet(kv, keys) => {
                let key = keys.key();
                let request = pb::RangeRequest {
                    key: key.clone().into(),
                    serializable: true,
                    ..Default::default()
                };
                let reply = kv.range(request).await?.into_inner();
                let revision = reply.kvs.first().expect("every key exists").mod_revision;
                // Another client may have changed the key meanwhile. That counts as an operation too.
                kv.txn(compare_and_set(key, revision)).await?;
            }
            Self::Watch(_) => unreachable!("a watcher only receives"),
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
async fn write(channel: Connection, ready: Arc<Barrier>) {
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
    measured: &mut Measured,
) {
    while let Ok(response) = tokio::time::timeout_at(span.end.into(), watch.message()).await {
        let (response, now) = (response.unwrap().unwrap(), since_base());
        if Instant::now() < span.begin {
            continue;
        }
        for event in response.events {
            let value = event.kv.unwrap().value;
            let sent = u64::from_le_bytes(value[..8].try_into().unwrap());
            measured.add(Duration::from_nanos(now - sent));
        }
    }
}

async fn grant(channel: &Connection) -> i64 {
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
    let missing = TargetUnion::CreateRevision(0);
    let compare = pb::Compare::new(key.clone(), CompareResult::Greater, missing);
    let get = pb::RangeRequest { key: other.into(), ..Default::default() };
    let success = vec![put(key).into(), get.into()];
    pb::TxnRequest { compare: vec![compare], success, failure: Vec::new() }
}

/// Returns a transaction that puts a key if its revision is this one.
fn compare_and_set(key: String, revision: i64) -> pb::TxnRequest {
    let revision = TargetUnion::ModRevision(revision);
    let compare = pb::Compare::new(key.clone(), CompareResult::Equal, revision);
    pb::TxnRequest { compare: vec![compare], success: vec![put(key).into()], failure: Vec::new() }
}

/// Random keys, the same in each run.
struct Keys {
    dice: Dice,
    keys: u64,
}

impl Keys {
    fn new(client: u64, keys: u64) -> Self {
        Self { dice: Dice::new(client), keys }
    }

    fn key(&mut self) -> String {
        key(self.dice.below(self.keys))
    }
}

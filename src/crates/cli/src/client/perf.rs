//! `bowline check perf`: checks whether a cluster sustains a load, like `etcdctl check perf`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use tokio::sync::{Mutex, mpsc};

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::options::duration;
use super::print::Output;
use crate::data::Bar;
use bowline_client::prefix_end;
use bowline_proto::etcdserverpb as pb;

/// Size of each key and value, as in `etcdctl check perf`.
const KEY_BYTES: usize = 256;
const VALUE_BYTES: usize = 1024;

/// Thresholds below which the check passes.
const SLOWEST_MAX: Duration = Duration::from_millis(500);
const STDDEV_MAX: f64 = 0.1;
const THROUGHPUT_LEAST: f64 = 0.9;

/// Interval at which due puts are handed out.
const TICK: Duration = Duration::from_millis(2);

/// Time limit for deleting the test keys at the end.
const CLEANING: Duration = Duration::from_secs(30);

/// Check whether a cluster sustains a load of puts
///
/// Writes keys of 256 bytes with values of 1024 bytes at the rate of the load level, and deletes them at the end.
/// Prints FAIL and exits with code 1 if less than 90 % of the rate was reached, if a put failed or took more than 0.5
/// s, or if the standard deviation exceeded 0.1 s.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub(crate) struct PerfOptions {
    /// Load level: 150, 1000, 8000 or 15000 puts per second
    #[arg(long, value_enum, default_value = "s")]
    load: Load,

    /// Prefix of the test keys (fails if a key with this prefix exists)
    #[arg(long, value_name = "KEY", default_value = "/bowline-check-perf/")]
    prefix: OsString,

    /// Duration of the test
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    time: Duration,

    #[command(flatten)]
    cleaning: Cleaning,
}

/// Options for the cleanup after a check.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Cleaning {
    /// Compact the history at the end
    #[arg(long)]
    auto_compact: bool,

    /// Defragment the servers at the end, like `bowline defrag`
    #[arg(long)]
    auto_defrag: bool,
}

/// The load levels, as in etcdctl.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(super) enum Load {
    /// Small: 50 clients
    #[value(alias = "small")]
    S,
    /// Medium: 200 clients
    #[value(alias = "medium")]
    M,
    /// Large: 500 clients
    #[value(alias = "large")]
    L,
    /// Very large: 1000 clients
    #[value(alias = "xLarge")]
    Xl,
}

impl Load {
    /// Returns the puts per second and the number of clients.
    fn figures(self) -> (u64, usize) {
        match self {
            Load::S => (150, 50),
            Load::M => (1000, 200),
            Load::L => (8000, 500),
            Load::Xl => (15_000, 1000),
        }
    }
}

/// The latency of each put, or the reason why it failed.
type Times = Vec<Result<Duration, String>>;

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: PerfOptions,
) -> Result<(), Failure> {
    let prefix = Bytes::from(options.prefix.into_vec());
    no_keys(client, &prefix).await?;
    let (rate, clients) = options.load.figures();
    let begun = Instant::now();
    let times = put_all(client, &prefix, rate, clients, options.time).await?;
    let elapsed = begun.elapsed();
    options.cleaning.clean(client, output, &prefix).await?;
    judge(output, &times, rate, elapsed)
}

/// Rejects a prefix under which keys exist.
pub(super) async fn no_keys(client: &Client, prefix: &Bytes) -> Result<(), Failure> {
    let (key, range_end) = (prefix.clone(), prefix_end(prefix));
    let all = pb::RangeRequest { key, range_end, count_only: true, ..Default::default() };
    let call = async |link: Link| link.kv().range(all.clone()).await;
    if client.ask(CallKind::Repeatable, call).await?.count > 0 {
        let why = format!(
            "keys that begin with {} exist already: pass another --prefix",
            prefix.escape_ascii()
        );
        return Err(Failure::Usage(why));
    }
    Ok(())
}

impl Cleaning {
    /// Deletes the test keys, then compacts and defragments if requested.
    pub(super) async fn clean(
        self,
        client: &Client,
        output: Output,
        prefix: &Bytes,
    ) -> Result<(), Failure> {
        let (key, range_end) = (prefix.clone(), prefix_end(prefix));
        let delete = pb::DeleteRangeRequest { key, range_end, prev_kv: false };
        let call = async |link: Link| link.kv().delete_range(delete.clone()).await;
        let deleted = client.ask_for(CLEANING, CallKind::Repeatable, call).await?;
        if self.auto_compact {
            let revision = deleted.header.map(|header| header.revision).unwrap_or_default();
            let request = pb::CompactionRequest { revision, physical: true };
            let call = async |link: Link| link.kv().compact(request).await;
            client.ask_for(CLEANING, CallKind::Repeatable, call).await?;
        }
        if self.auto_defrag {
            super::defrag::each(client, output, client.settings.endpoints.clone()).await?;
        }
        Ok(())
    }
}

/// Puts at a given rate for a given time, from several clients with one connection each.
async fn put_all(
    client: &Client,
    prefix: &Bytes,
    rate: u64,
    clients: usize,
    time: Duration,
) -> Result<Times, Failure> {
    let (hand_out, due) = mpsc::channel::<u64>(clients);
    let due = Arc::new(Mutex::new(due));
    let mut workers = Vec::new();
    for _ in 0..clients {
        let link = client.another().link().await?;
        let (due, prefix) = (Arc::clone(&due), prefix.clone());
        workers.push(tokio::spawn(async move {
            let mut times = Times::new();
            loop {
                // The lock guard is released before the put.
                let next = due.lock().await.recv().await;
                let Some(number) = next else { return times };
                times.push(put(&link, &prefix, number).await);
            }
        }));
    }
    let bar = Bar::begin("puts", false);
    let (begun, mut handed) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let owed = (begun.elapsed().as_secs_f64() * rate as f64) as u64;
        while handed < owed && begun.elapsed() < time {
            // This send waits while all clients are busy.
            if hand_out.send(handed).await.is_err() {
                break;
            }
            handed += 1;
        }
        bar.at(begun.elapsed().as_millis() as u64, time.as_millis() as u64);
        tokio::time::sleep(TICK).await;
    }
    bar.end();
    drop(hand_out);
    let mut times = Times::new();
    for worker in workers {
        times.extend(worker.await.unwrap_or_default());
    }
    Ok(times)
}

async fn put(link: &Link, prefix: &Bytes, number: u64) -> Result<Duration, String> {
    // The multiplication scatters the keys and maps no two numbers to the same key.
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = [&prefix[..], format!("{scattered:016x}").as_bytes()].concat();
    key.resize(prefix.len() + KEY_BYTES, b'.');
    let value = vec![0; VALUE_BYTES].into();
    let request = pb::PutRequest { key: key.into(), value, ..Default::default() };
    let begun = Instant::now();
    match link.kv().put(request).await {
        Ok(_) => Ok(begun.elapsed()),
        Err(status) => Err(status.message().to_owned()),
    }
}

fn judge(output: Output, times: &Times, rate: u64, elapsed: Duration) -> Result<(), Failure> {
    let done: Vec<f64> = times.iter().flatten().map(Duration::as_secs_f64).collect();
    let failed: Vec<_> = times.iter().filter_map(|time| time.as_ref().err()).collect();
    let mut is_well = true;
    let mut say = |holds: bool, good: String, bad: String| {
        is_well &= holds;
        output.say(if holds { format!("PASS: {good}") } else { format!("FAIL: {bad}") })
    };
    if let Some(first) = failed.first() {
        let why = format!("{} puts failed, the first one with: {first}", failed.len());
        say(false, String::new(), why)?;
    }
    let throughput = done.len() as f64 / elapsed.as_secs_f64();
    let words = format!("{} writes/s", throughput.round());
    say(
        throughput > rate as f64 * THROUGHPUT_LEAST,
        format!("Throughput is {words}"),
        format!("Throughput too low: {words}"),
    )?;
    let slowest = done.iter().copied().fold(0.0, f64::max);
    say(
        slowest <= SLOWEST_MAX.as_secs_f64(),
        format!("Slowest request took {slowest:.6}s"),
        format!("Slowest request took too long: {slowest:.6}s"),
    )?;
    let count = done.len().max(1) as f64;
    let mean = done.iter().sum::<f64>() / count;
    let stddev = (done.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count).sqrt();
    say(
        stddev <= STDDEV_MAX,
        format!("Stddev is {stddev:.6}s"),
        format!("Stddev too high: {stddev:.6}s"),
    )?;
    output.say(if is_well { "PASS" } else { "FAIL" })?;
    if is_well { Ok(()) } else { Err(Failure::Exit(1)) }
}

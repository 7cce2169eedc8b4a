//! `bowline check datascale`: measures how much memory a server needs for keys, like `etcdctl check datascale`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use clap::Args;

use super::connect::{Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::perf::{Cleaning, Load, no_keys};
use super::plain_http::measured;
use super::print::Output;
use crate::data::Bar;
use bowline_proto::etcdserverpb::PutRequest;

/// Size of each key and value, as in `etcdctl check datascale`.
const KEY_BYTES: usize = 512;
const VALUE_BYTES: usize = 512;

/// Metric that the server exposes at `/metrics`.
const MEMORY: &str = "process_resident_memory_bytes";

/// Check how much memory a server needs for many keys
///
/// Writes keys of 512 bytes with values of 512 bytes, and deletes them at the end. Prints the growth of the server's
/// memory, read from the first endpoint's /metrics over plain HTTP.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub(crate) struct DatascaleOptions {
    /// Load level: 10000, 100000, 1000000 or 3000000 keys
    #[arg(long, value_enum, default_value = "s")]
    load: Load,

    /// Prefix of the test keys (fails if a key with this prefix exists)
    #[arg(long, value_name = "KEY", default_value = "/bowline-check-datascale/")]
    prefix: OsString,

    /// Number of keys [default: as given by the load level]
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,

    #[command(flatten)]
    cleaning: Cleaning,
}

impl Load {
    /// Returns the number of keys and the number of clients of a load level.
    fn scale(self) -> (u64, usize) {
        match self {
            Load::S => (10_000, 50),
            Load::M => (100_000, 200),
            Load::L => (1_000_000, 500),
            Load::Xl => (3_000_000, 1000),
        }
    }
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: DatascaleOptions,
) -> Result<(), Failure> {
    let prefix = Bytes::from(options.prefix.into_vec());
    no_keys(client, &prefix).await?;
    let (count, clients) = options.load.scale();
    let count = options.count.unwrap_or(count);
    let before = measured(client, MEMORY).await?;
    let bytes = KEY_BYTES + VALUE_BYTES;
    output.say(format!(
        "Start data scale check for work load [{count} key-value pairs, {bytes} bytes per key-value, {clients} \
         concurrent clients]."
    ))?;
    let failed = put_all(client, &prefix, count, clients).await?;
    let after = measured(client, MEMORY).await;
    options.cleaning.clean(client, output, &prefix).await?;
    let after = after?;
    if !failed.is_empty() {
        output.say("FAIL: too many errors")?;
        for (why, count) in failed {
            output.say(format!("FAIL: ERROR({why}) -> {count}"))?;
        }
        return Err(Failure::Exit(1));
    }
    let megabytes = (after - before) / f64::from(1 << 20);
    output.say(format!("PASS: Approximate system memory used : {megabytes:.2} MB."))
}

/// Puts `count` keys from several clients, each with its own connection. Returns the error texts of failed puts, and
/// how often each occurred.
async fn put_all(
    client: &Client,
    prefix: &Bytes,
    count: u64,
    clients: usize,
) -> Result<BTreeMap<String, u64>, Failure> {
    let done = Arc::new(AtomicU64::new(0));
    let mut workers = Vec::new();
    for _ in 0..clients {
        let link = client.another().link().await?;
        workers.push((link, Arc::clone(&done), prefix.clone()));
    }
    let bar = Bar::begin("puts", false);
    let mut under_way = tokio::task::JoinSet::new();
    for (link, done, prefix) in workers {
        under_way.spawn(async move {
            let mut failed = BTreeMap::<String, u64>::new();
            loop {
                let number = done.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return failed;
                }
                if let Err(why) = put(&link, &prefix, number).await {
                    *failed.entry(why).or_default() += 1;
                }
            }
        });
    }
    let mut failed = BTreeMap::<String, u64>::new();
    while !under_way.is_empty() {
        let tick = std::time::Duration::from_millis(100);
        if let Ok(Some(Ok(some))) = tokio::time::timeout(tick, under_way.join_next()).await {
            for (why, count) in some {
                *failed.entry(why).or_default() += count;
            }
        }
        bar.at(done.load(Ordering::Relaxed).min(count), count);
    }
    bar.end();
    Ok(failed)
}

async fn put(link: &Link, prefix: &Bytes, number: u64) -> Result<(), String> {
    // The multiplication scatters the keys and maps no two numbers to the same key.
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = [&prefix[..], format!("{scattered:016x}").as_bytes()].concat();
    key.resize(prefix.len() + KEY_BYTES, b'.');
    let value = vec![0; VALUE_BYTES].into();
    let request = PutRequest { key: key.into(), value, ..Default::default() };
    link.kv().put(request).await.map(drop).map_err(|status| status.message().to_owned())
}

//! Tests of importing and mirroring keys between clusters: between Bowline servers, and from and to etcd where etcd is
//! installed.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use crate::ask::{CliOutput, command_at, run};
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, SingleMember, etcd_command};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;

mod copy;
mod mirror;

/// Time limit for every wait.
const WAIT_MAX: Duration = Duration::from_secs(90);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A server, Bowline's or etcd's, that can be killed and restarted at the same address.
pub(crate) struct Place {
    member: SingleMember,
    is_etcd: bool,
    server: Option<Server>,
    runtime: Runtime,
    channel: Channel,
}

/// Returns a channel that connects on first use.
fn connected(runtime: &Runtime, client: u16) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{client}")).unwrap();
    runtime.block_on(async { endpoint.connect_lazy() })
}

impl Place {
    /// Returns a Bowline server.
    pub(crate) fn ours() -> Self {
        Self::new(false)
    }

    /// Returns an etcd server. Skips the test if etcd is not installed.
    pub(crate) fn etcd() -> Option<Self> {
        etcd_command().map(|_| Self::new(true))
    }

    fn new(is_etcd: bool) -> Self {
        let member = SingleMember::prepare();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let channel = connected(&runtime, member.client);
        let mut place = Self { member, is_etcd, server: None, runtime, channel };
        place.start();
        place
    }

    /// Starts the server, also after a kill.
    pub(crate) fn start(&mut self) {
        self.server = Some(if self.is_etcd {
            let mut command = etcd_command().expect("it is installed");
            command.args(&self.member.flags);
            Server::run(command, self.member.client).ready()
        } else {
            self.member.start(&[])
        });
        // The old channel may not have noticed the disconnect yet.
        self.channel = connected(&self.runtime, self.member.client);
    }

    /// Replaces the server by a new, empty one.
    pub(crate) fn replace(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.member.dir.path()).unwrap();
        self.start();
    }

    pub(crate) fn kill(&mut self) {
        self.server = None;
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.member.client)
    }

    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Runs a transaction.
    pub(crate) fn txn(&self, success: Vec<pb::RequestOp>) {
        let request = pb::TxnRequest { success, ..Default::default() };
        self.runtime.block_on(async { self.kv().txn(request).await }).unwrap();
    }

    /// Puts keys in one transaction.
    pub(crate) fn put(&self, rows: &[(&[u8], &[u8])]) {
        self.txn(rows.iter().map(|(key, value)| put(key, value, 0)).collect());
    }

    /// Deletes all keys with a prefix in one transaction.
    pub(crate) fn delete(&self, prefix: &str) {
        self.txn(vec![delete(prefix, true)]);
    }

    /// Puts numbered keys with numbered values, many per transaction.
    pub(crate) fn fill(&self, prefix: &str, count: usize, bytes: usize) {
        for first in (0..count).step_by(100) {
            let row = |at: usize| {
                let mut value = format!("value {at} ").into_bytes();
                value.resize(value.len().max(bytes), (at % 256) as u8);
                put(format!("{prefix}{at:06}").as_bytes(), &value, 0)
            };
            self.txn((first..(first + 100).min(count)).map(row).collect());
        }
    }

    /// Grants a lease with a TTL in seconds.
    pub(crate) fn lease(&self, ttl: i64) -> i64 {
        let grant = pb::LeaseGrantRequest { ttl, id: 0 };
        let mut leases = LeaseClient::new(self.channel.clone());
        self.runtime.block_on(async { leases.lease_grant(grant).await }).unwrap().into_inner().id
    }

    pub(crate) fn revoke(&self, id: i64) {
        let mut leases = LeaseClient::new(self.channel.clone());
        let request = pb::LeaseRevokeRequest { id };
        self.runtime.block_on(async { leases.lease_revoke(request).await }).unwrap();
    }

    /// Compacts up to the current revision.
    pub(crate) fn compact(&self) {
        let request = pb::CompactionRequest { revision: self.revision(), physical: true };
        self.runtime.block_on(async { self.kv().compact(request).await }).unwrap();
    }

    fn all(&self, prefix: &str, count_only: bool) -> pb::RangeResponse {
        let request = pb::RangeRequest {
            key: if prefix.is_empty() { "\0".into() } else { prefix.to_owned().into() },
            range_end: end(prefix).into(),
            count_only,
            ..Default::default()
        };
        self.runtime.block_on(async { self.kv().range(request).await }).unwrap().into_inner()
    }

    pub(crate) fn revision(&self) -> i64 {
        self.all("", true).header.unwrap().revision
    }

    /// Returns the number of keys.
    pub(crate) fn count(&self) -> i64 {
        self.all("", true).count
    }

    /// Returns all rows with a prefix: key, value and lease.
    pub(crate) fn rows(&self, prefix: &str) -> BTreeMap<Vec<u8>, (Vec<u8>, i64)> {
        let rows = self.all(prefix, false).kvs.into_iter();
        rows.map(|row| (row.key.to_vec(), (row.value.to_vec(), row.lease))).collect()
    }

    /// Returns the value of a key, if it exists.
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        let row = self.rows(key).remove(key.as_bytes())?;
        Some(String::from_utf8(row.0).unwrap())
    }
}

/// Asserts that the rows are equal, with a short message if not.
#[track_caller]
pub(crate) fn assert_equal(
    source: &BTreeMap<Vec<u8>, (Vec<u8>, i64)>,
    target: &BTreeMap<Vec<u8>, (Vec<u8>, i64)>,
) {
    let names = |keys: Vec<&Vec<u8>>| {
        keys.iter().take(5).map(|key| key.escape_ascii().to_string()).collect::<Vec<_>>()
    };
    let missing = names(source.keys().filter(|key| !target.contains_key(*key)).collect());
    let beside = names(target.keys().filter(|key| !source.contains_key(*key)).collect());
    let other = |key: &&Vec<u8>| target.get(*key).is_some_and(|row| row != &source[*key]);
    let differ = names(source.keys().filter(other).collect());
    assert!(
        missing.is_empty() && beside.is_empty() && differ.is_empty(),
        "missing {missing:?}, beside {beside:?}, differ {differ:?}"
    );
}

pub(crate) fn put(key: &[u8], value: &[u8], lease: i64) -> pb::RequestOp {
    let (key, value) = (key.to_vec().into(), value.to_vec().into());
    pb::PutRequest { key, value, lease, ..Default::default() }.into()
}

pub(crate) fn delete(key: &str, is_prefix: bool) -> pb::RequestOp {
    let range_end = if is_prefix { end(key).into() } else { Default::default() };
    let key = key.to_owned().into();
    pb::DeleteRangeRequest { key, range_end, prev_kv: false }.into()
}

fn end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0),
    }
    end
}

pub(crate) fn import(source: &Place, target: &Place, more: &[&str]) -> Command {
    let mut command = command_at(&target.address());
    command.args(["import", "--from", &source.address()]).args(more);
    command
}

/// Runs an import.
pub(crate) fn imported(source: &Place, target: &Place, more: &[&str]) -> CliOutput {
    run(import(source, target, more), b"")
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_MAX, "timed out: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns pairs of source and target: Bowline's always, etcd's where it is installed.
pub(crate) fn pairs() -> Vec<(Place, Place)> {
    let mut pairs = vec![(Place::ours(), Place::ours())];
    if let (Some(source), Some(target)) = (Place::etcd(), Place::etcd()) {
        pairs.push((source, Place::ours()));
        pairs.push((Place::ours(), target));
    }
    pairs
}

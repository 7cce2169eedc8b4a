//! Sends the same random requests to etcd and to Bowline, some of them to the JSON gateways, and compares the responses,
//! the codes and texts of errors, and the events of watches. Cluster ids, member ids and terms are masked. The test uses the etcd binary named by
//! `BOWLINE_ETCD` or Debian's `etcd-server`, and is skipped if neither is installed. `BOWLINE_DIFFERENTIAL` sets the
//! number of requests, and `BOWLINE_SEED` sets the first seed.

mod json;
mod requests;
mod watches;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, http};
use json::JsonAsk;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use requests::Chance;
use watches::{WAIT_MAX, Watches};

/// Default number of requests.
const REQUESTS: u64 = 500;

/// Maximum number of requests between comparisons of the watches.
const CHECK_INTERVAL: u64 = 50;

/// One of so many requests goes to the JSON gateways.
const JSON_SHARE: u64 = 4;

/// Maximum number of watches, in addition to the one of all keys.
const WATCHES_MAX: usize = 5;

/// etcd's metric of watches that have not caught up with the history.
const BEHIND: &str = "etcd_debugging_mvcc_slow_watcher_total";

/// A comparable result: a response as text, or an error.
type Outcome = Result<String, (Code, String)>;

/// A client of one of the two servers.
struct Side {
    address: String,
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    watches: Watches,
}

impl Side {
    async fn connect(address: &str) -> Self {
        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        let channel = channel.connect().await.unwrap();
        let watches = Watches::open(channel.clone()).await;
        let (kv, lease) = (KvClient::new(channel.clone()), LeaseClient::new(channel));
        Self { address: address.to_owned(), kv, lease, watches }
    }

    async fn newest(&mut self) -> i64 {
        let any = pb::RangeRequest { key: "?".into(), ..Default::default() };
        self.kv.range(any).await.unwrap().into_inner().header.unwrap().revision
    }

    /// Returns the first response of a renewal stream.
    async fn renew(&mut self, id: i64) -> Result<Response<pb::LeaseKeepAliveResponse>, Status> {
        let request = tokio_stream::once(pb::LeaseKeepAliveRequest { id });
        let mut answers = self.lease.lease_keep_alive(request).await?.into_inner();
        answers.next().await.expect("an answer").map(Response::new)
    }

    /// Returns the chunks of a stream as one response.
    async fn stream(
        &mut self,
        request: pb::RangeRequest,
    ) -> Result<Response<pb::RangeResponse>, Status> {
        let mut chunks = self.kv.range_stream(request).await?.into_inner();
        let mut all = pb::RangeResponse::default();
        while let Some(chunk) = chunks.message().await? {
            let chunk = chunk.range_response.expect("every message has a chunk");
            assert!(all.header.is_none(), "a chunk follows the last one");
            let kvs = [all.kvs, chunk.kvs].concat();
            all = pb::RangeResponse { kvs, ..chunk };
        }
        assert!(all.header.is_some(), "the last chunk has a header");
        Ok(Response::new(all))
    }

    /// Grants a lease with a short TTL, or with an id that the server chooses, and revokes it.
    async fn grant_and_revoke(
        &mut self,
        request: pb::LeaseGrantRequest,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let asked = Instant::now();
        let granted = self.lease.lease_grant(request).await?;
        let pb::LeaseGrantResponse { id, ttl, .. } = *granted.get_ref();
        assert!(id != 0 && granted.get_ref().error.is_empty());
        match self.lease.lease_revoke(pb::LeaseRevokeRequest { id }).await {
            // The lease may have expired already.
            Err(gone)
                if gone.code() == Code::NotFound && asked.elapsed().as_secs_f64() >= ttl as f64 => {
            }
            revoked => drop(revoked?),
        }
        Ok(granted)
    }
}

/// Masks fields that differ between servers.
fn unlike(header: &mut Option<pb::ResponseHeader>) {
    if let Some(header) = header {
        (header.cluster_id, header.member_id, header.raft_term) = (0, 0, 0);
    }
}

/// Masks the header, and the leases of keys without values, which etcd 3.7 omits.
fn unlike_rows(range: &mut pb::RangeResponse, keys_only: bool) {
    unlike(&mut range.header);
    for row in range.kvs.iter_mut().filter(|_| keys_only) {
        row.lease = 0;
    }
}

fn outcome<T: Debug>(result: Result<Response<T>, Status>, mask: impl FnOnce(&mut T)) -> Outcome {
    match result {
        Ok(response) => {
            let mut response = response.into_inner();
            mask(&mut response);
            Ok(format!("{response:?}"))
        }
        Err(status) => Err((status.code(), status.message().to_owned())),
    }
}

/// A request for both servers.
#[derive(Clone, Debug)]
enum Ask {
    Range(pb::RangeRequest),
    Stream(pb::RangeRequest),
    Put(pb::PutRequest),
    Delete(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compact(pb::CompactionRequest),
    Grant(pb::LeaseGrantRequest),
    GrantAndRevoke(pb::LeaseGrantRequest),
    Revoke(pb::LeaseRevokeRequest),
    ToLive(pb::LeaseTimeToLiveRequest),
    Renew(i64),
    Leases,
}

impl Ask {
    fn any(chance: &mut Chance, newest: i64, streams: bool) -> Self {
        match chance.below(44) {
            0..=4 if streams => Ask::Stream(chance.stream(newest)),
            0..=11 => Ask::Range(chance.range(newest)),
            12..=21 => Ask::Put(chance.put()),
            22..=24 => Ask::Delete(chance.delete()),
            25..=34 => Ask::Txn(chance.txn(newest)),
            35 => Ask::Compact(pb::CompactionRequest {
                revision: chance.revision(newest),
                physical: chance.one_in(2),
            }),
            36 | 37 => Ask::Grant(chance.grant()),
            38 => {
                let (ttl, id) = ([0, -7, 1, 10_000][chance.below(4) as usize], 0);
                Ask::GrantAndRevoke(pb::LeaseGrantRequest { ttl, id })
            }
            39 => Ask::Revoke(pb::LeaseRevokeRequest { id: chance.lease() }),
            40 => Ask::Renew(chance.lease()),
            41 => Ask::Leases,
            _ => {
                let keys = chance.one_in(2);
                Ask::ToLive(pb::LeaseTimeToLiveRequest { id: chance.lease(), keys })
            }
        }
    }

    async fn of(self, side: &mut Side) -> Outcome {
        let Side { kv, lease, .. } = side;
        match self {
            Ask::Range(request) => {
                let keys_only = request.keys_only;
                outcome(kv.range(request).await, |r| unlike_rows(r, keys_only))
            }
            Ask::Stream(request) => {
                let keys_only = request.keys_only;
                outcome(side.stream(request).await, |r| unlike_rows(r, keys_only))
            }
            Ask::Put(request) => outcome(kv.put(request).await, |r| unlike(&mut r.header)),
            Ask::Delete(request) => {
                outcome(kv.delete_range(request).await, |r| unlike(&mut r.header))
            }
            Ask::Txn(request) => outcome(kv.txn(request).await, |r| unlike(&mut r.header)),
            Ask::Compact(request) => outcome(kv.compact(request).await, |r| unlike(&mut r.header)),
            Ask::Grant(request) => {
                outcome(lease.lease_grant(request).await, |r| unlike(&mut r.header))
            }
            Ask::GrantAndRevoke(request) => outcome(side.grant_and_revoke(request).await, |r| {
                unlike(&mut r.header);
                // The server chooses the lease ID, so it differs.
                r.id = 0;
            }),
            Ask::Revoke(request) => {
                outcome(lease.lease_revoke(request).await, |r| unlike(&mut r.header))
            }
            Ask::ToLive(request) => outcome(lease.lease_time_to_live(request).await, |r| {
                unlike(&mut r.header);
                // The leases were granted at different times, so the remaining TTLs differ.
                r.ttl = r.ttl.signum();
                r.keys.sort();
            }),
            Ask::Renew(id) => outcome(side.renew(id).await, |r| unlike(&mut r.header)),
            Ask::Leases => outcome(lease.lease_leases(pb::LeaseLeasesRequest {}).await, |r| {
                unlike(&mut r.header);
                r.leases.sort_by_key(|lease| lease.id);
            }),
        }
    }
}

/// Both clients, and the state of the comparison.
struct Pair {
    theirs: Side,
    ours: Side,
    seed: u64,
    /// Number of requests made.
    made: u64,
    /// Number of successful requests.
    answered: u64,
    /// Greatest revision that was compacted.
    compacted: i64,
    /// Open watches, except the one of all keys.
    open: Vec<i64>,
    /// Greatest start revision of an open watch.
    begins: i64,
    /// Whether this etcd is older than 3.6.
    is_old: bool,
}

impl Pair {
    #[track_caller]
    fn same<T: PartialEq + Debug>(&self, asked: &dyn Debug, theirs: &T, ours: &T) {
        assert!(
            theirs == ours,
            "request {} of seed {}: {asked:#?}\netcd says    {theirs:?}\nBowline says {ours:?}",
            self.made,
            self.seed
        );
    }

    async fn ask(&mut self, ask: Ask, json: Option<JsonAsk>) {
        let (theirs, ours) = match json {
            Some(json) => (json.send(&self.theirs.address), json.send(&self.ours.address)),
            None => tokio::join!(ask.clone().of(&mut self.theirs), ask.clone().of(&mut self.ours)),
        };
        let is_txn = matches!(ask, Ask::Txn(_));
        if !(is_txn && are_both_reasons(&theirs, &ours, self.is_old)) {
            self.same(&ask, &theirs, &ours);
        }
        self.answered += u64::from(ours.is_ok());
        if let (Ask::Compact(request), Ok(_)) = (&ask, &ours) {
            self.compacted = request.revision;
        }
    }

    /// Compares the events of the watches.
    async fn look(&mut self) {
        let mut newest = self.theirs.newest().await;
        // Neither server reports progress while a watch waits for a future revision.
        while newest < self.begins {
            let more = pb::PutRequest { key: "more".into(), ..Default::default() };
            self.ask(Ask::Put(more), None).await;
            newest += 1;
        }
        self.ours.watches.receive_all(newest).await;
        let theirs = self.theirs.watches.receive_like(&self.ours.watches).await;
        let ours = self.ours.watches.take();
        self.same(&"what the watches received", &theirs, &ours);
        let has_ended = |id: &i64| {
            let last = ours.get(id).and_then(|received| received.last());
            last.is_some_and(|received| received.starts_with("WatchResponse"))
        };
        self.open.retain(|id| !has_ended(id));
    }

    /// Waits until no watch of etcd's is behind, including those without events, because a compaction would cancel
    /// them. The number comes from its metrics, because a progress request may never be answered.
    async fn none_behind(&self, etcd: &Server) {
        let begun = Instant::now();
        let none = format!("\n{BEHIND} 0\n");
        while !http(&etcd.address, "GET", "/metrics", "").1.text().contains(&none) {
            assert!(begun.elapsed() < WAIT_MAX, "a watch does not catch up");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Creates a watch, or cancels one if there are enough.
    async fn watch(&mut self, chance: &mut Chance, newest: i64) {
        if self.open.len() < WATCHES_MAX {
            let mut request = chance.watch(newest, self.compacted);
            // The watch id is either in use, or free, or missing, so that the server chooses it.
            request.watch_id = match chance.below(8) {
                0 => self.open.first().copied().unwrap_or_default(),
                1 => 1000 + self.made as i64,
                _ => 0,
            };
            let (theirs, ours) = tokio::join!(
                self.theirs.watches.create(request.clone()),
                self.ours.watches.create(request.clone())
            );
            self.same(&request, &theirs, &ours);
            let (_, id) = ours;
            if id >= 0 {
                self.open.push(id);
                self.begins = self.begins.max(request.start_revision);
            }
        } else {
            self.look().await;
            if self.open.is_empty() {
                return;
            }
            let id = self.open.swap_remove(chance.below(self.open.len() as u64) as usize);
            let (theirs, ours) =
                tokio::join!(self.theirs.watches.cancel(id), self.ours.watches.cancel(id));
            self.same(&("cancel", id), &theirs, &ours);
        }
    }
}

/// Returns whether a transaction with several errors was rejected for different errors. Bowline checks the size before
/// it checks for duplicate keys, and the key of a put before its lease. etcd since 3.7 checks the lease first. etcd
/// before 3.6 checks all puts before any range.
fn are_both_reasons(theirs: &Outcome, ours: &Outcome, is_old: bool) -> bool {
    let why = |outcome: &Outcome, reasons: &[&str]| {
        outcome.as_ref().is_err_and(|(_, text)| reasons.iter().any(|reason| text.ends_with(reason)))
    };
    let are_puts_first = why(theirs, &["key not found", "requested lease not found"])
        && why(ours, &["is a future revision", "has been compacted"]);
    let is_large_first =
        why(theirs, &["duplicate key given in txn request"]) && why(ours, &["is too large"]);
    let is_key_first = why(theirs, &["requested lease not found"]) && why(ours, &["key not found"]);
    is_large_first || is_key_first || (is_old && are_puts_first)
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |number| number.parse().expect(name))
}

#[tokio::test]
async fn etcd_and_bowline_give_the_same_answers() {
    let Some(etcd) = Server::etcd(&[]) else { return };
    let server = Server::alone(&[]);
    let (requests, seed) = (number("BOWLINE_DIFFERENTIAL", REQUESTS), number("BOWLINE_SEED", 1));
    let mut chance = Chance(seed);
    let theirs = Side::connect(&etcd.address).await;
    let ours = Side::connect(&server.address).await;
    let (made, answered, compacted, begins, open) = (0, 0, 0, 0, Vec::new());
    let version = http(&etcd.address, "GET", "/version", "").1.text();
    let is_old =
        ["3.4.", "3.5."].iter().any(|old| version.contains(&format!(r#""etcdserver":"{old}"#)));
    // etcd has RangeStream since 3.7.
    let streams = !is_old && !version.contains(r#""etcdserver":"3.6."#);
    let mut pair = Pair { theirs, ours, seed, made, answered, compacted, open, begins, is_old };
    while pair.made < requests {
        let newest = pair.theirs.newest().await;
        let ask = Ask::any(&mut chance, newest, streams);
        if chance.one_in(20) {
            pair.watch(&mut chance, newest).await;
        }
        // A compaction would discard events that are not delivered yet, so they are awaited before it.
        if matches!(ask, Ask::Compact(_)) || pair.made.is_multiple_of(CHECK_INTERVAL) {
            pair.look().await;
        }
        if matches!(ask, Ask::Compact(_)) {
            pair.none_behind(&etcd).await;
        }
        let json = if chance.one_in(JSON_SHARE) { JsonAsk::of(&ask) } else { None };
        pair.ask(ask, json).await;
        pair.made += 1;
    }
    pair.look().await;
    assert!(pair.answered > requests / 4, "most requests were rejected: {}", pair.answered);
}

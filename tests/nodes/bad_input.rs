//! Tests of invalid input: the input is rejected with a clear error, and a write and a read
//! afterwards show that it did no damage.

use std::error::Error as StdError;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use bowline::testing::{self, Cluster};
use bowline::{
    Blocking, Client, Compare, Config, ConfigError, Effect, Error, GuardError, KeyRange, LeadError,
    LeaseId, LockError, Node, Op, Rejection, Revision, Role, SessionEndReason, StartError,
    StopReason, WatchError,
    auth::AuthError,
    backup,
    cluster::{JoinErrorKind, MembershipError, TransportError},
    coordination::RunOnceError,
    lease::ResumeSessionError,
    lock::ResumeError,
    queue::QueueError,
};
use bowline_check::{RegisterCall, lines};

use crate::{loopback, stage};

fn quick(members: usize) -> Cluster {
    stage::with(members, |config| {
        config
            .heartbeat(Duration::from_millis(20))
            .election_timeout(Duration::from_millis(150))
            .call_deadline(Duration::from_secs(20))
    })
}

/// Expects that the start fails with an error that contains `words`.
fn refused(config: Config, words: &str) -> StartError {
    let error = Node::start(config).block().expect_err(words);
    assert!(error.to_string().contains(words), "{error} lacks {words:?}");
    error
}

fn works(kv: &Client) {
    let put = kv.put("proof", "of no damage").block().unwrap();
    let row = kv.get("proof").block().unwrap().unwrap();
    assert_eq!((row.value.as_ref(), row.mod_revision), (&b"of no damage"[..], put.revision));
}

/// Returns the addresses of a cluster that is never started.
fn three() -> [(&'static str, &'static str); 3] {
    [("a", "127.0.0.1:1"), ("b", "127.0.0.1:2"), ("c", "127.0.0.1:3")]
}

#[test]
fn invalid_configuration_creates_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let config = |name: &str| Config::new(&data, name);
    let twice = [("a", "127.0.0.1:1"), ("a", "127.0.0.1:2")];
    refused(
        config("a").members(twice),
        "two members have the name \"a\": each member needs its own name",
    );
    refused(config("z").members(three()), "the node name \"z\" is not in the list of members [");
    let same = [("a", "127.0.0.1:1"), ("b", "127.0.0.1:1")];
    refused(config("a").members(same), "members \"a\" and \"b\" have the same address");
    refused(config("a").members([("a", "nowhere")]), "is not of the form host:port");
    refused(config(""), "a member name is empty");
    refused(config("a").heartbeat(Duration::ZERO), "heartbeat is 0ns, and must be 4 ms to 10 s");
    assert!(!data.exists());
}

#[test]
fn second_node_on_a_directory_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let first = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    refused(Config::new(dir.path(), "solo"), "is in use by another node");
    works(&first.client());
}

#[test]
fn node_with_data_ignores_bootstrap_and_join_settings() {
    let dir = tempfile::tempdir().unwrap();
    let config = || Config::new(dir.path(), "solo");
    let node = Node::start(config()).block().unwrap();
    node.client().put("k", "v").block().unwrap();
    assert!(testing::shutdown(node).block().hanging.is_empty());
    let three = [("solo", "127.0.0.1:1"), ("b", "127.0.0.1:2"), ("c", "127.0.0.1:3")];
    for changed in [
        config().cluster_token("other"),
        config().members(three).listen("127.0.0.1:0").insecure_peers(true),
        config().join(["127.0.0.1:2"]).advertise("127.0.0.1:1").listen("127.0.0.1:0"),
        config(),
    ] {
        let node = Node::start(changed).block().unwrap();
        assert_eq!(node.client().get("k").block().unwrap().unwrap().value, "v");
        works(&node.client());
        assert!(testing::shutdown(node).block().hanging.is_empty());
    }
    refused(Config::new(dir.path(), "other"), "the directory belongs to member \"solo\"");
}

#[test]
fn directory_of_another_member_is_rejected_until_swapped_back() {
    let mut cluster = quick(3);
    cluster.node(0).client().put("k", "v").block().unwrap();
    cluster.shutdown(1).block();
    cluster.shutdown(2).block();
    let swap = |cluster: &Cluster| {
        let (one, two) = (cluster.data_dir(1), cluster.data_dir(2));
        let aside = one.with_extension("aside");
        fs::rename(&one, &aside).unwrap();
        fs::rename(&two, &one).unwrap();
        fs::rename(&aside, &two).unwrap();
    };
    swap(&cluster);
    for member in [1, 2] {
        let error = cluster.restart(member).block().unwrap_err().to_string();
        let words = format!("belongs to member {}", 4 - member);
        assert!(error.contains(&words), "{error} lacks {words:?}");
    }
    swap(&cluster);
    for member in [1, 2] {
        cluster.restart(member).block().unwrap();
        assert_eq!(cluster.node(member).client().get("k").block().unwrap().unwrap().value, "v");
        works(&cluster.node(member).client());
    }
}

#[test]
fn file_in_place_of_a_directory_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "precious").unwrap();
    refused(Config::new(&path, "solo"), "Not a directory");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn failed_join_reports_a_rejection_or_an_unknown_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let at = loopback::address();
    let founder = Config::new(dir.path().join("a"), "a").members([("a", &at)]).cluster_token("red");
    let founder = Node::start(founder).block().unwrap();
    let own = loopback::address();
    let joins = |token: &str| {
        Config::new(dir.path().join("b"), "b").join([&at]).advertise(&own).cluster_token(token)
    };
    let kind = |config: Config, words: &str| match refused(config, words) {
        StartError::Join { kind, .. } => kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        kind(joins("blue"), "the token does not match this cluster"),
        JoinErrorKind::Refused
    );
    let nobody = joins("red").join([loopback::address()]).join_deadline(Duration::from_millis(300));
    assert_eq!(
        kind(nobody, "no member accepted the join request before the deadline"),
        JoinErrorKind::TimedOut
    );
    // Neither failure prevents a later start.
    let joined = Node::start(joins("red")).block().unwrap();
    works(&joined.client());
    assert_eq!(founder.members().rows().len(), 2);
}

#[tokio::test]
async fn dropped_start_releases_the_port_and_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (own, nobody) = (loopback::address(), loopback::address());
    let joins = Config::new(dir.path(), "b").join([&nobody]).advertise(&own);
    let joins = joins.join_deadline(Duration::from_secs(3600));
    let started = tokio::time::timeout(Duration::from_millis(100), Node::start(joins)).await;
    assert!(started.is_err(), "nobody can have let it in: {started:?}");
    let begun = Instant::now();
    let founds = || Config::new(dir.path(), "b").members([("b", &own)]);
    let node = loop {
        match Node::start(founds()).await {
            Err(StartError::Network(_)) if begun.elapsed() < stage::SOON => {
                tokio::task::yield_now().await;
            }
            started => break started.unwrap(),
        }
    };
    works_async(&node.client()).await;
}

async fn works_async(kv: &Client) {
    kv.put("proof", "of no damage").await.unwrap();
}

fn wipe(dir: &Path) {
    fs::remove_dir_all(dir).unwrap();
}

fn why_it_stopped(node: &Node) -> String {
    let StopReason::Failed(why) = node.stopped().block() else { panic!("nobody asked it to stop") };
    why.to_string()
}

#[test]
fn member_with_a_wiped_disk_stops_and_the_other_two_serve() {
    let mut cluster = quick(3);
    cluster.node(0).client().put("k", "v").block().unwrap();
    cluster.kill(1).block();
    wipe(&cluster.data_dir(1));
    cluster.restart(1).block().unwrap();
    let why = why_it_stopped(cluster.node(1));
    assert!(is_about_the_lost_disk(&why), "{why:?}");
    for member in [0, 2] {
        let kv = cluster.node(member).client();
        assert_eq!(kv.get("k").block().unwrap().unwrap().value, "v");
        works(&kv);
    }
    // A repeated attempt to join does not succeed either.
    cluster.kill(1).block();
    cluster.restart(1).block().unwrap();
    why_it_stopped(cluster.node(1));
    works(&cluster.node(0).client());
}

/// Returns whether the error is about the lost disk, as reported by the member itself or by a peer that rejects it.
fn is_about_the_lost_disk(why: &str) -> bool {
    why.contains("must be replaced under a new id")
        || why.contains("that lost its disk cannot return")
}

#[test]
fn two_wiped_disks_of_three_never_make_an_empty_quorum() {
    let mut cluster = quick(3);
    cluster.node(0).client().put("k", "v").block().unwrap();
    let all = cluster.node(0).client().revision();
    cluster.all_at(all).block().unwrap();
    for member in [1, 2] {
        cluster.kill(member).block();
        wipe(&cluster.data_dir(member));
    }
    for member in [1, 2] {
        cluster.restart(member).block().unwrap();
    }
    for member in [1, 2] {
        // The result must never look like an empty store.
        let answer = cluster.node(member).client().get("k").block();
        assert!(matches!(answer, Err(Error::Stopped { .. })), "m{member} answers {answer:?}");
        let why = why_it_stopped(cluster.node(member));
        assert!(is_about_the_lost_disk(&why), "{why:?}");
    }
    let third = cluster.node(0);
    assert_eq!(third.stop_reason(), None);
    let kv = third.client();
    let read = kv.get("k").deadline(Duration::from_millis(500)).block();
    assert_eq!(read, Err(Error::Deadline { effect: Effect::NotApplied }));
    let put = kv.put("k", "w").deadline(Duration::from_millis(500)).block();
    // The put may be reported as not applied or as unknown, depending on whether the member still considered itself the
    // leader.
    assert!(matches!(put, Err(Error::Deadline { .. })), "{put:?}");
    assert_eq!(kv.get("k").local().block().unwrap().unwrap().value, "v");
}

#[test]
fn two_wiped_members_wait_for_the_third_and_then_stop() {
    let mut cluster = quick(3);
    cluster.node(0).client().put("k", "precious").block().unwrap();
    cluster.all_at(cluster.node(0).client().revision()).block().unwrap();
    for member in 0..3 {
        cluster.kill(member).block();
    }
    for member in [1, 2] {
        wipe(&cluster.data_dir(member));
        cluster.restart(member).block().unwrap();
    }
    for member in [1, 2] {
        let read = cluster.node(member).client().get("k").deadline(Duration::from_secs(1)).block();
        let Err(Error::NotFounded { waiting_for }) = read else { panic!("{read:?}") };
        assert_eq!(waiting_for.len(), 1, "{waiting_for:?}");
        let status = cluster.node(member).status();
        assert_eq!(status.role, Role::Founding, "{status:?}");
        assert_eq!(status.unreached.len(), 1, "{status:?}");
    }
    cluster.restart(0).block().unwrap();
    for member in [1, 2] {
        let why = why_it_stopped(cluster.node(member));
        assert!(is_about_the_lost_disk(&why), "{why:?}");
    }
    // The third member alone cannot know how much of its log was committed, but it has the whole
    // log.
    assert_eq!(cluster.node(0).stop_reason(), None);
    let log = fs::read(cluster.data_dir(0).join("0000000001.log")).unwrap();
    assert!(log.windows(8).any(|bytes| bytes == b"precious"));
}

#[test]
fn non_loopback_addresses_need_permission() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let config = |members: [(&str, &str); 2]| Config::new(&data, "a").members(members);
    let outside =
        "is not a loopback address, and connections between members are neither encrypted";
    refused(config([("a", "192.0.2.1:7400"), ("b", "127.0.0.1:7401")]), outside);
    let own = config([("a", "127.0.0.1:7400"), ("b", "127.0.0.1:7401")]);
    refused(own.listen("0.0.0.0:7400"), outside);
    assert!(!data.exists());
}

#[test]
fn port_in_use_is_named_and_no_data_is_created() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let config = Config::new(&data, "a").members([("a", address.as_str()), ("b", "127.0.0.1:1")]);
    let error = refused(config, &format!("cannot start the network: cannot listen on {address}: "));
    assert!(matches!(error, StartError::Network(_)));
    assert!(!data.exists());
}

#[test]
fn oversized_requests_are_rejected_with_name_and_value() {
    let cluster = quick(3);
    for (_, node) in cluster.running() {
        let kv = node.client();
        let rejection = |error: Error| match error {
            Error::Rejected(rejection) => rejection.to_string(),
            other => panic!("{other:?}"),
        };
        let before = kv.put("before", "").block().unwrap().revision;
        let words = [
            rejection(kv.put("", "v").block().unwrap_err()),
            rejection(kv.get("").block().unwrap_err()),
            rejection(kv.put(vec![b'k'; 4097], "v").block().unwrap_err()),
            rejection(kv.get(vec![b'k'; 4097]).block().unwrap_err()),
            rejection(kv.delete(vec![b'k'; 4097]).block().unwrap_err()),
            rejection(kv.put("k", vec![0; (1 << 20) + 1]).block().unwrap_err()),
            rejection(txn(&kv, (0..2).map(|i| Op::put(format!("k{i}"), vec![0; 800_000])))),
            rejection(txn(&kv, (0..129).map(|i| Op::put(format!("k{i}"), "v")))),
            rejection(txn(&kv, ["k", "k"].map(|key| Op::put(key, "v")))),
            rejection(txn(&kv, [Op::put("k", "v"), Op::delete(KeyRange::all())])),
        ];
        let expected = [
            "key is not provided",
            "key is not provided",
            "key of 4097 bytes, at most 4096",
            "key of 4097 bytes, at most 4096",
            "key of 4097 bytes, at most 4096",
            "value of 1048577 bytes, at most 1048576",
            "request is too large: 1600036 bytes, at most 1572864",
            "too many operations in txn request: 129, at most 128",
            "duplicate key given in txn request: k",
            "duplicate key given in txn request: k",
        ];
        assert_eq!(words, expected);
        let compares = (0..129).fold(kv.txn(), |txn, _| txn.when(Compare::exists("k")));
        let error = rejection(compares.commit().block().unwrap_err());
        assert_eq!(error, "too many operations in txn request: 129, at most 128");
        // No rejected write used a revision. A write of the maximum size is accepted.
        let put = kv.put(vec![b'k'; 4096], vec![0; 1 << 20]).block().unwrap();
        assert_eq!(put.revision, before.next());
        kv.delete(vec![b'k'; 4096]).block().unwrap();
        works(&kv);
    }
}

fn txn(kv: &Client, ops: impl IntoIterator<Item = Op>) -> Error {
    ops.into_iter().fold(kv.txn(), |txn, op| txn.then(op)).commit().block().unwrap_err()
}

#[test]
fn an_empty_start_of_a_range_means_the_first_key() {
    let cluster = quick(1);
    let all = cluster.node(0).client();
    let inner = all.with_prefix("app/");
    all.put("z", "").block().unwrap();
    // The second client also has the key `z`.
    for (kv, others) in [(&inner, 0), (&all, 1)] {
        let put = kv.put("a", "").block().unwrap().revision;
        kv.put("b", "").block().unwrap();
        let count = |keys: KeyRange| kv.range(keys).block().unwrap().count;
        assert_eq!((count((""..).into()), count((vec![]..).into())), (2 + others, 2 + others));
        assert_eq!((count((""..="b").into()), count(("".."b").into())), (2, 1));
        assert_eq!(count((""..="").into()), 0);
        let mut watch = kv.watch("".."b").from(put).block().unwrap();
        assert_eq!(watch.next().block().unwrap().unwrap().events[0].kv.key, "a");
        let exist = kv.txn().when(Compare::version("".."c").gt(0u64)).then(Op::range(""..));
        let reply = exist.commit().block().unwrap();
        assert_eq!((reply.succeeded, reply.results[0].rows().len() as u64), (true, 2 + others));
        assert_eq!(kv.delete("".."b").block().unwrap().deleted, 1);
        assert_eq!(kv.delete(""..="b").block().unwrap().deleted, 1);
    }
    assert_eq!(all.delete(""..).block().unwrap().deleted, 1);
    // A single key is still not empty.
    for kv in [&inner, &all] {
        let empty = |error| assert_eq!(error, Error::Rejected(Rejection::EmptyKey));
        empty(kv.range("").block().unwrap_err());
        empty(kv.delete("").block().unwrap_err());
        empty(kv.watch("").block().unwrap_err());
    }
}

#[test]
fn pages_continue_after_a_key_of_the_maximum_length() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    let long = vec![b'k'; 4096];
    kv.put(&long, "").block().unwrap();
    kv.put("l", "").block().unwrap();
    let page = kv.range(..).limit(1).block().unwrap();
    assert_eq!((&page.kvs[0].key[..], page.more), (&long[..], true));
    for rest in [KeyRange::all().after(&long), KeyRange::between("k", "m").after(&long)] {
        assert_eq!(kv.range(&rest).block().unwrap().kvs[0].key, "l");
        assert_eq!(kv.watch(&rest).block().map(drop), Ok(()));
    }
    assert_eq!(kv.range(KeyRange::key(&*long).after(&long)).block().unwrap().count, 0);
    assert_eq!(kv.delete(KeyRange::all().after(&long)).block().unwrap().deleted, 1);
}

#[test]
fn compacted_and_future_revisions_are_rejected_on_every_member() {
    let cluster = quick(3);
    let first = cluster.node(0).client();
    for i in 0..5 {
        first.put("k", i.to_string()).block().unwrap();
    }
    assert_eq!(first.compact(Revision(4)).block(), Ok(Revision(6)));
    for (_, node) in cluster.running() {
        let kv = node.client();
        let newest = kv.get("k").block().unwrap().unwrap().mod_revision;
        let asked = Revision(1_000_000);
        let future = Error::Rejected(Rejection::Future { asked, newest: Revision(6) });
        let words = "required revision 1000000 is a future revision; the newest is 6";
        assert_eq!((newest, future.to_string().as_str()), (Revision(6), words));
        assert_eq!(kv.get("k").revision(asked).block(), Err(future.clone()));
        assert_eq!(kv.range(KeyRange::all()).revision(asked).block(), Err(future.clone()));
        assert_eq!(kv.compact(asked).block(), Err(future));
        let (asked, compacted) = (Revision(3), Revision(4));
        let gone = Error::Rejected(Rejection::Compacted { asked, compacted });
        let words = "required revision 3 has been compacted; the oldest left is 4";
        assert_eq!(gone.to_string(), words);
        assert_eq!(kv.get("k").revision(asked).block(), Err(gone.clone()));
        assert_eq!(kv.range(KeyRange::all()).revision(asked).block(), Err(gone.clone()));
        assert_eq!(kv.compact(asked).block(), Err(gone));
        // The oldest revision can be read, but the store is already compacted up to it.
        assert_eq!(kv.get("k").revision(compacted).block().unwrap().unwrap().value, "2");
        let again = kv.compact(compacted).block().unwrap_err();
        assert_eq!(again, Error::Rejected(Rejection::Compacted { asked: compacted, compacted }));
        assert_eq!(again.to_string(), "the store is already compacted up to revision 4");
        let again = kv.compact(compacted).block().unwrap_err();
        assert!(matches!(again, Error::Rejected(Rejection::Compacted { .. })), "{again:?}");
        assert_eq!(kv.get("k").revision(compacted).block().unwrap().unwrap().value, "2");
        let mut watch = kv.watch("k").from(asked).block().unwrap();
        let end = watch.next().block().unwrap().unwrap_err();
        assert_eq!(end, WatchError::Compacted { asked, compacted });
        assert!(watch.next().block().is_none());
    }
    // A watch may start at a future revision.
    let mut watch = first.watch("k").from(Revision(8)).block().unwrap();
    for i in 5..8 {
        first.put("k", i.to_string()).block().unwrap();
    }
    let batch = watch.next().block().unwrap().unwrap();
    assert_eq!(batch.events[0].kv.mod_revision, Revision(8));
    works(&first);
}

#[test]
fn ended_unknown_and_invalid_leases_are_rejected() {
    let cluster = quick(3);
    let kv = cluster.node(0).client();
    let lease = kv.grant(Duration::from_secs(3)).block().unwrap().id;
    let put = kv.put("leased", "v").lease(lease).block().unwrap();
    let mut changes = kv.watch("leased").from(put.revision.next()).block().unwrap();
    let deleted = changes.next().block().unwrap().unwrap();
    assert_eq!(deleted.events[0].kind, bowline::EventKind::Delete);
    for (_, node) in cluster.running() {
        let kv = node.client();
        for lease in [lease, LeaseId::new(4242).unwrap()] {
            let gone = Error::Rejected(Rejection::LeaseNotFound(lease));
            assert_eq!(gone.to_string(), format!("requested lease not found: {lease}"));
            assert_eq!(kv.put("leased", "v").lease(lease).block(), Err(gone.clone()));
            assert_eq!(kv.revoke(lease).block(), Err(gone));
            assert!(kv.lease_info(lease).block().unwrap().is_none());
        }
        assert_eq!(kv.get("leased").block().unwrap(), None);
        for ttl in [Duration::ZERO, Duration::MAX] {
            let error = kv.grant(ttl).block().unwrap_err();
            let Error::Rejected(Rejection::LeaseTtl { asked, .. }) = error else {
                panic!("{error:?}")
            };
            assert_eq!(asked, ttl);
        }
        let taken = kv.grant(Duration::from_secs(60)).block().unwrap().id;
        let again = kv.grant(Duration::from_secs(60)).id(taken).block().unwrap_err();
        assert_eq!(again, Error::Rejected(Rejection::LeaseExists(taken)));
        works(&kv);
    }
}

/// Starts three nodes on sockets in this process.
fn on_sockets(dir: &Path) -> (Vec<Node>, Vec<SocketAddr>) {
    let addresses: Vec<SocketAddr> = (0..3).map(|_| loopback::address().parse().unwrap()).collect();
    let members = || addresses.iter().enumerate().map(|(i, at)| (format!("n{i}"), at.to_string()));
    let node = |i: usize| {
        let name = format!("n{i}");
        let config = Config::new(dir.join(&name), &name).members(members());
        Node::start(config.call_deadline(Duration::from_secs(20))).block().unwrap()
    };
    ((0..3).map(node).collect(), addresses)
}

/// Returns the first bytes of a member that supports these protocol versions.
fn preface(least: u16, greatest: u16) -> Vec<u8> {
    let mut bytes = b"bowline\0".to_vec();
    bytes.extend_from_slice(&least.to_le_bytes());
    bytes.extend_from_slice(&greatest.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes
}

#[test]
fn garbage_or_floods_on_the_peer_port_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let (nodes, addresses) = on_sockets(dir.path());
    works(&nodes[0].client());
    let oversized = [preface(1, 1), vec![0xff; 64]].concat();
    let wrong_checksum = [preface(1, 1), vec![16, 0, 0, 0], vec![7; 20]].concat();
    let noise: Vec<u8> =
        (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let garbage = [
        b"GET / HTTP/1.1\r\nHost: you\r\n\r\n".to_vec(),
        noise,
        preface(7, 9),
        oversized,
        wrong_checksum,
        preface(1, 1)[..9].to_vec(),
        vec![0; 1 << 20],
    ];
    // Connections that send nothing stay open during the whole test. Their number exceeds the limit
    // of connections in a handshake.
    let silent: Vec<TcpStream> = addresses
        .iter()
        .flat_map(|at| (0..100).map(move |_| TcpStream::connect(at).unwrap()))
        .collect();
    for (i, bytes) in garbage.iter().cycle().take(5 * garbage.len()).enumerate() {
        for (node, address) in nodes.iter().zip(&addresses) {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            // The connection may be closed before all bytes are written.
            drop(stream.write_all(bytes));
            drop(stream.shutdown(std::net::Shutdown::Write));
            let mut answer = Vec::new();
            drop(stream.read_to_end(&mut answer));
            assert!(answer.len() < 2_000, "a stranger is told {} bytes", answer.len());
            node.client().put(format!("k{i}"), "v").block().unwrap();
        }
    }
    drop(silent);
    for node in &nodes {
        assert_eq!(node.stop_reason(), None);
        let rows = node.client().range(KeyRange::prefix("k")).block().unwrap();
        assert_eq!(rows.count, 5 * garbage.len() as u64);
        works(&node.client());
    }
    for node in nodes {
        assert!(testing::shutdown(node).block().hanging.is_empty());
    }
}

/// Returns the texts of an error and of its sources, as `anyhow` prints them.
fn chain(error: &dyn StdError) -> Vec<String> {
    let (mut said, mut source) = (vec![error.to_string()], error.source());
    while let Some(error) = source {
        said.push(error.to_string());
        source = error.source();
    }
    said
}

#[test]
fn no_error_repeats_the_text_of_its_source() {
    let cluster = quick(1);
    let session = cluster.node(0).session().block().unwrap();
    let lock = session.rw_lock("lock");
    let (one, two) = (lock.read().block().unwrap(), lock.read().block().unwrap());
    let upgrade = one.try_upgrade().block().unwrap_err();
    drop(two);
    let no_line = lines::read::<RegisterCall>(&b"{"[..]).unwrap_err();

    let bind = || {
        let error = io::Error::new(io::ErrorKind::AddrInUse, "address in use");
        TransportError::Bind { address: "10.0.0.7:7400".to_owned(), error }
    };
    let no_name = || ConfigError::DuplicateName("a".to_owned());
    let too_long = ResumeSessionError::DelayTooLong {
        lease_ttl: Duration::from_secs(1),
        delay: Duration::from_secs(2),
    };
    let busy = || Error::Busy;
    let denied = || Error::Rejected(Rejection::Access(AuthError::Denied));
    let ended = || LockError::SessionEnded(SessionEndReason::NotRenewed);
    let errors: Vec<Box<dyn StdError>> = vec![
        Box::new(StartError::from(no_name())),
        Box::new(StartError::from(bind())),
        Box::new(StartError::Thread(io::Error::other("no thread"))),
        Box::new(bind()),
        Box::new(backup::BackupError::from(no_name())),
        Box::new(denied()),
        Box::new(Error::NotResumed(too_long)),
        Box::new(Error::Members(MembershipError::Pending)),
        Box::new(LockError::Store(denied())),
        Box::new(LeadError::from(ended())),
        Box::new(LeadError::from(LockError::Store(busy()))),
        Box::new(RunOnceError::<io::Error>::from(ended())),
        Box::new(RunOnceError::Failed(io::Error::other("no paper"))),
        Box::new(ResumeError::from(LockError::Store(busy()))),
        Box::new(GuardError::from(denied())),
        Box::new(QueueError::from(denied())),
        Box::new(upgrade),
        Box::new(no_line),
    ];
    for error in errors {
        let said = chain(&*error);
        assert!(!said[0].is_empty());
        for (at, source) in said.iter().enumerate() {
            for before in &said[..at] {
                assert!(!before.contains(source.as_str()), "{}", said.join(": "));
            }
        }
    }
}

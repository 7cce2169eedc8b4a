//! One lock with four kinds of clients: Go's concurrency package, `etcdctl lock`, `v3lockpb.Lock` over gRPC, and a
//! program that embeds the library and is a member of the same cluster. All clients share one queue. Servers are
//! killed while the clients run.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bowline::{Blocking, Config, Node, Session};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Handle;
use tonic::transport::Channel;

use crate::crew::Crew;
use crate::go::{Scene, counts, program};
use crate::ledger::{Count, count, row, verify};
use bowline_proto::{etcdserverpb as pb, v3lockpb};
use bowline_testkit::process::etcdctl_is_installed;
use pb::lease_client::LeaseClient;
use v3lockpb::lock_client::LockClient;

/// The lock and the counter, as the Go program names them.
const NAME: &str = "shared";
const COUNTER: &str = "shared-counter";

/// Longer than the test takes, so that no lease expires.
const LEASE_SECONDS: i64 = 60;

/// Time limit for a contender's next hold.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Pause before a retry.
const AGAIN: Duration = Duration::from_millis(10);

/// State shared by all contenders of this process.
#[derive(Default)]
struct Ring {
    ended: AtomicBool,
    inside: AtomicUsize,
    counts: Mutex<Vec<(&'static str, Count)>>,
    /// First observed violation.
    wrong: Mutex<Option<String>>,
}

impl Ring {
    fn continues(&self) -> bool {
        !self.ended.load(Ordering::SeqCst)
    }

    /// Holds the lock; no other contender of this process may hold it.
    async fn hold(&self, kind: &'static str, channel: &Channel, key: &str) {
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        let count = count(channel, key, COUNTER).await;
        self.counts.lock().unwrap().push((kind, count));
        self.inside.fetch_sub(1, Ordering::SeqCst);
        if others > 0 {
            *self.wrong.lock().unwrap() = Some(format!("{kind} is not alone: {count:?}"));
        }
    }

    fn holds_of(&self, kind: &str) -> usize {
        self.counts.lock().unwrap().iter().filter(|(found, _)| *found == kind).count()
    }
}

/// Revokes a lease, retrying until that succeeds.
async fn revoke(channel: &Channel, id: i64) {
    loop {
        let request = pb::LeaseRevokeRequest { id };
        match LeaseClient::new(channel.clone()).lease_revoke(request).await {
            Ok(_) => return,
            Err(status) if status.code() == tonic::Code::NotFound => return,
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

const GRPC: &str = "v3lock";

/// Acquires and releases over gRPC, each time with another lease, because the outcome of a failed call is unknown.
async fn over_grpc(ring: Arc<Ring>, channel: Channel) {
    while ring.continues() {
        let grant = pb::LeaseGrantRequest { ttl: LEASE_SECONDS, id: 0 };
        let Ok(granted) = LeaseClient::new(channel.clone()).lease_grant(grant).await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let lease = granted.into_inner().id;
        let mut locks = LockClient::new(channel.clone());
        let request = v3lockpb::LockRequest { name: NAME.into(), lease };
        if let Ok(held) = locks.lock(request).await {
            let key = held.into_inner().key;
            ring.hold(GRPC, &channel, std::str::from_utf8(&key).unwrap()).await;
            drop(locks.unlock(v3lockpb::UnlockRequest { key }).await);
        }
        revoke(&channel, lease).await;
    }
}

const EMBEDDED: &str = "embedded";

/// A program that embeds the library. A task with a reason has its own queue entry.
async fn embedded(ring: Arc<Ring>, session: Session, why: Option<&'static str>, channel: Channel) {
    let mutex = session.mutex(NAME);
    while ring.continues() {
        let call = mutex.lock();
        let guard = match why {
            Some(why) => call.reason(why).await.unwrap(),
            None => call.await.unwrap(),
        };
        let key = std::str::from_utf8(guard.key()).unwrap();
        ring.hold(EMBEDDED, &channel, key).await;
        assert!(guard.is_held(), "a session ended although it was renewed");
        guard.release().await.unwrap();
    }
}

const TERMINAL: &str = "etcdctl";

/// A user at a terminal: `etcdctl lock`, and Ctrl-C when the work is done.
struct Terminal {
    /// The running command.
    child: Arc<Mutex<Option<Child>>>,
    hands: Option<JoinHandle<()>>,
}

impl Terminal {
    fn with(ring: &Arc<Ring>, crew: &Crew) -> Self {
        let (ring, channel, child) = (Arc::clone(ring), crew.channel(), Arc::default());
        let (addresses, at) = (crew.addresses().join(","), Arc::clone(&child));
        let runtime = Handle::current();
        let hands = std::thread::spawn(move || {
            while ring.continues() {
                lock_once(&ring, &addresses, &channel, &at, &runtime);
            }
        });
        Self { child, hands: Some(hands) }
    }

    /// Waits until the last hold has ended.
    fn ends(mut self) {
        self.hands.take().unwrap().join().unwrap();
    }
}

impl Drop for Terminal {
    /// Kills the command if a test has failed.
    fn drop(&mut self) {
        if let Some(child) = self.child.lock().unwrap().as_mut() {
            drop(child.kill());
        }
    }
}

fn lock_once(
    ring: &Ring,
    addresses: &str,
    channel: &Channel,
    at: &Mutex<Option<Child>>,
    runtime: &Handle,
) {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").args(["--endpoints", addresses, "lock", "--ttl", "30", NAME]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let pid = Pid::from_child(&child);
    *at.lock().unwrap() = Some(child);
    let mut key = String::new();
    BufReader::new(stdout).read_line(&mut key).unwrap();
    let key = key.trim();
    if !key.is_empty() {
        runtime.block_on(ring.hold(TERMINAL, channel, key));
        kill_process(pid, Signal::INT).ok();
    }
    let ended = at.lock().unwrap().as_mut().unwrap().wait().unwrap();
    if !ended.success()
        && let Some((_, lease)) = key.rsplit_once('/')
    {
        // The server of the client was killed. The lease would expire eventually, but is revoked now to save time.
        runtime.block_on(revoke(channel, i64::from_str_radix(lease, 16).unwrap()));
    }
}

/// Starts a node of the library in this process, as the last member of the crew.
fn embed(crew: &Crew) -> Node {
    let members = crew.members();
    let (name, address) = members.last().unwrap().clone();
    let config = Config::new(crew.data(members.len() - 1), name)
        .listen(address.clone())
        .advertise(address)
        .members(members)
        // This is the default token of `bowline serve`.
        .cluster_token("etcd-cluster")
        .insecure_peers(true)
        // No session may expire while servers are killed.
        .session_ttl(Duration::from_secs(60))
        .call_deadline(Duration::from_secs(60))
        .heartbeat(Duration::from_millis(20))
        .election_timeout(Duration::from_millis(200));
    Node::start(config).block().unwrap()
}

/// Waits until a kind of contender of this process holds again.
fn holds_again(ring: &Ring, kind: &'static str) {
    let (before, begun) = (ring.holds_of(kind), Instant::now());
    while ring.holds_of(kind) == before {
        assert_eq!(*ring.wrong.lock().unwrap(), None);
        assert!(begun.elapsed() < WAIT_MAX, "{kind} makes no progress");
        std::thread::sleep(AGAIN);
    }
}

#[test]
fn all_client_kinds_share_one_lock_queue_during_server_kills() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let inside = runtime.enter();
    let crew = Crew::still(3, 4);
    // The node is started before there is a quorum, like the other members.
    let node = embed(&crew);
    let mut crew = crew.begun();
    let (ring, addresses) = (Arc::new(Ring::default()), crew.addresses());
    let mut kinds = vec![GRPC, EMBEDDED];
    let mut tasks = vec![runtime.spawn(over_grpc(Arc::clone(&ring), crew.channel()))];
    let session = node.session().block().unwrap();
    for why in [None, Some("to be in line")] {
        let (ring, session) = (Arc::clone(&ring), session.clone());
        tasks.push(runtime.spawn(embedded(ring, session, why, crew.channel())));
    }
    let mut terminal = None;
    if etcdctl_is_installed() {
        kinds.push(TERMINAL);
        terminal = Some(Terminal::with(&ring, &crew));
    }
    let mut go = program().map(|program| Scene::begin(program, "mutex", &addresses));
    let ring_goes_on = || kinds.iter().for_each(|kind| holds_again(&ring, kind));
    let all_go_on = |go: &mut Option<Scene>| {
        ring_goes_on();
        go.iter_mut().for_each(Scene::continues);
    };
    let resume = std::cell::RefCell::new(&mut go);
    crew.kill_in_turn(
        || all_go_on(&mut resume.borrow_mut()),
        || all_go_on(&mut resume.borrow_mut()),
    );
    ring.ended.store(true, Ordering::SeqCst);
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    terminal.into_iter().for_each(Terminal::ends);
    let lines = go.map(Scene::end).unwrap_or_default();
    assert_eq!(*ring.wrong.lock().unwrap(), None);
    let mut all = counts(&lines);
    all.extend(ring.counts.lock().unwrap().iter().map(|(_, count)| *count));
    let (counter, _, _) = runtime.block_on(row(&crew.channel(), COUNTER));
    verify(all, counter).unwrap();
    drop(inside);
    // A shutdown waits for only one second.
    let mut hanging = node.shutdown().block().hanging;
    let begun = Instant::now();
    while !hanging.is_empty() {
        assert!(begun.elapsed() < WAIT_MAX, "{hanging:?}");
        std::thread::sleep(AGAIN);
        hanging.retain(|name| is_alive(name));
    }
}

/// Returns whether this process has a thread with this name, if the operating system reports it.
fn is_alive(name: &str) -> bool {
    /// Length to which Linux truncates thread names.
    const NAME_BYTES_MAX: usize = 15;
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    // A thread that has just ended cannot be read, so it is skipped.
    let mut names = threads.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
    let kept = name.get(..NAME_BYTES_MAX).unwrap_or(name);
    names.any(|comm| comm.trim_end() == kept)
}

/// Two terminals, one lock, and three servers killed one after the other.
#[test]
fn two_terminals_alternate_on_one_lock_during_server_kills() {
    if !etcdctl_is_installed() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let inside = runtime.enter();
    let mut crew = Crew::of(3, 3);
    let ring = Arc::new(Ring::default());
    let terminals = [Terminal::with(&ring, &crew), Terminal::with(&ring, &crew)];
    let continues = || holds_again(&ring, TERMINAL);
    crew.kill_in_turn(continues, continues);
    ring.ended.store(true, Ordering::SeqCst);
    terminals.into_iter().for_each(Terminal::ends);
    assert_eq!(*ring.wrong.lock().unwrap(), None);
    let counts = ring.counts.lock().unwrap().iter().map(|(_, count)| *count).collect();
    let (counter, _, _) = runtime.block_on(row(&crew.channel(), COUNTER));
    drop(inside);
    verify(counts, counter).unwrap();
}

//! Shared parts of the tests of locks: small clusters with short timeouts, waits for conditions, and a resource
//! outside the store that checks tokens.

use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bowline::env::{BootClock, BootId, Clock, Env};
use bowline::testing::{Cluster, ClusterOptions};
use bowline::{
    Blocking, Client, Compare, Config, EventKind, KeyRange, LockError, Moment, Node, NodeStatus,
    Op, Revision, Role, Session, SessionEndReason, Token, lock::Fence,
};

/// Time limit for waits.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A time for which a test can wait. A TTL of this length would be too short on a busy machine.
pub(crate) const SHORT: Duration = Duration::from_millis(900);

/// The TTL of sessions that are renewed even on an overloaded machine, and whose end a test can wait for.
pub(crate) const STEADY: Duration = Duration::from_secs(3);

/// The TTL of sessions that outlive any test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// The maximum time after which the lock of a [`mortal`] session is free: its TTL, the drift bound of a tenth, an
/// election, and 5 s for a busy machine.
pub(crate) const FREED_WITHIN: Duration = Duration::from_millis(3_000 + 300 + 300 + 5_000);

fn timing(config: Config, ttl: Duration) -> Config {
    config
        .heartbeat(Duration::from_millis(20))
        .election_timeout(Duration::from_millis(150))
        .session_ttl(ttl)
        .call_deadline(SOON)
}

/// Starts a cluster whose sessions are renewed in time, and whose end a test can wait for.
pub(crate) fn steady(members: usize) -> Cluster {
    with(members, |config| timing(config, STEADY))
}

/// Starts a cluster whose sessions do not expire during a test. A test that needs the loss of a session opens one
/// with [`mortal`].
pub(crate) fn lasting(members: usize) -> Cluster {
    with(members, |config| timing(config, LONG))
}

/// Starts a cluster with this configuration of each member.
pub(crate) fn with(
    members: usize,
    configure: impl Fn(Config) -> Config + Send + Sync + 'static,
) -> Cluster {
    let options = ClusterOptions::new(members).configure(configure);
    options.start().block().expect("the cluster starts")
}

/// Like [`lasting`], with additional configuration for each member.
pub(crate) fn lasting_with(
    members: usize,
    configure: impl Fn(Config) -> Config + Send + Sync + 'static,
) -> Cluster {
    with(members, move |config| configure(timing(config, LONG)))
}

/// Waits for `time` while writing, and calls `look` after each write.
pub(crate) fn let_pass(node: &Node, time: Duration, mut look: impl FnMut()) {
    let begun = node.now();
    while node.now().since(begun) < time {
        node.client().put("tick", "").block().unwrap();
        look();
    }
}

/// Returns the leader and the two followers.
pub(crate) fn roles(cluster: &Cluster) -> (usize, usize, usize) {
    let leader = cluster.leader().block().unwrap();
    (leader, (leader + 1) % 3, (leader + 2) % 3)
}

/// Waits for a leader other than `old`. A leader that is cut off still reports itself as the leader
/// for a while.
pub(crate) fn another_leader(cluster: &Cluster, old: usize) -> usize {
    let is_new =
        |status: &NodeStatus| status.role == Role::Leader && status.name != format!("m{old}");
    let mut found = None;
    let seen = |all: &[NodeStatus]| {
        found = all.iter().find(|status| is_new(status)).map(|status| status.id);
        found.is_some()
    };
    cluster.wait_until("another member leads", seen).block().unwrap();
    // The leader may have changed again since the wait, so use the leader that the wait has found.
    let mut members = cluster.running();
    members.find(|(_, node)| Some(node.status().id) == found).expect("nobody was stopped").0
}

/// Returns the node's own session.
pub(crate) fn session(cluster: &Cluster, member: usize) -> Session {
    cluster.node(member).session().block().unwrap()
}

/// Opens a session in addition to the node's own.
pub(crate) fn another_session(cluster: &Cluster, member: usize, label: &str) -> Session {
    cluster.node(member).open_session().label(label).block().unwrap()
}

/// Opens a session that expires soon if it is not renewed, for a member that is to crash, to be cut off or to be
/// paused.
pub(crate) fn mortal(cluster: &Cluster, member: usize) -> Session {
    cluster.node(member).open_session().ttl(STEADY).block().unwrap()
}

/// Returns the number that a key holds, or 0 if the key does not exist.
pub(crate) fn read_number(kv: &Client, key: &str) -> u64 {
    let row = kv.get(key.to_owned()).block().unwrap();
    row.map_or(0, |row| std::str::from_utf8(&row.value).unwrap().parse().unwrap())
}

/// Puts one key if the store finds that all `conditions` hold, and returns whether it did. Only the store checks the
/// conditions.
pub(crate) fn commit_if(kv: &Client, conditions: Vec<Compare>, key: &str, value: &str) -> bool {
    let put = Op::put(key.to_owned(), value.to_owned());
    kv.txn().when_all(conditions).then(put).commit().block().unwrap().succeeded
}

/// Returns the number of keys below `name/`.
pub(crate) fn places(node: &Node, name: &str) -> u64 {
    let below = KeyRange::prefix(format!("{name}/"));
    node.client().range(below).count_only().block().unwrap().count
}

/// Waits until there are `wanted` keys below `name/`.
pub(crate) fn until_places(node: &Node, name: &str, wanted: u64) {
    until(node, name, &format!("{wanted} places"), |count| count == wanted);
}

/// Waits until the number of keys below `name/` meets a condition.
pub(crate) fn until(node: &Node, name: &str, what: &str, fits: impl Fn(u64) -> bool) {
    let kv = node.client();
    let below = KeyRange::prefix(format!("{name}/"));
    let begun = node.now();
    loop {
        let reply = kv.range(below.clone()).count_only().block().unwrap();
        if fits(reply.count) {
            return;
        }
        assert!(node.now().since(begun) < SOON, "{name}: {} keys, not {what}", reply.count);
        std::thread::yield_now();
    }
}

/// Polls until a condition holds for which there is no notification.
pub(crate) fn until_true(node: &Node, what: &str, is_so: impl Fn() -> bool) {
    let begun = node.now();
    while !is_so() {
        assert!(node.now().since(begun) < SOON, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// Waits until a key is deleted, and returns the revision of the deletion. The key must have existed.
pub(crate) fn until_deleted(kv: &Client, key: &str) -> Revision {
    let mut changes = kv.watch(key.to_owned()).from(Revision(1)).block().unwrap();
    loop {
        // Past events arrive in one batch, and the deletion may be anywhere in it.
        let batch = changes.next().block().unwrap().unwrap();
        if let Some(end) = batch.events.iter().find(|event| event.kind == EventKind::Delete) {
            return end.kv.mod_revision;
        }
    }
}

/// Returns whether a wait has ended by its deadline. On a busy machine the deadline may pass before the request
/// reaches the log.
pub(crate) fn timed_out(error: &LockError) -> bool {
    matches!(error, LockError::TimedOut { .. } | LockError::Unavailable)
}

/// Returns whether a wait has ended because the lease of its session has.
pub(crate) fn session_ended(error: &LockError) -> bool {
    *error == LockError::SessionEnded(SessionEndReason::LeaseEnded)
}

/// A call that was started and is polled by the test, with a count of its wake-ups.
pub(crate) struct Begun<T> {
    answer: Option<T>,
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls a call once and drops it, most likely before it has an answer.
pub(crate) fn give_up(call: impl IntoFuture) {
    let polled = pin!(call.into_future()).poll(&mut Context::from_waker(Waker::noop()));
    drop(polled);
}

impl<T> Begun<T> {
    /// Starts a call that must wait, for another request or for a node that is paused or cut off. Polls it once; it
    /// must be pending.
    pub(crate) fn new<C>(call: C) -> Self
    where
        C: IntoFuture<Output = T>,
        C::IntoFuture: Send + 'static,
    {
        let begun = Self::asked(call);
        assert!(begun.answer.is_none(), "it has an answer at once");
        begun
    }

    /// Starts a call that need not wait, and polls it once. On a busy machine the call may be answered by then.
    pub(crate) fn asked<C>(call: C) -> Self
    where
        C: IntoFuture<Output = T>,
        C::IntoFuture: Send + 'static,
    {
        let future = Box::pin(call.into_future());
        let mut begun = Self { answer: None, future, wakes: Arc::default() };
        begun.answer = begun.poll();
        begun
    }

    /// Returns the answer if there is one.
    pub(crate) fn poll(&mut self) -> Option<T> {
        if self.answer.is_some() {
            return self.answer.take();
        }
        let waker = Waker::from(Arc::clone(&self.wakes));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    /// Waits for the answer.
    pub(crate) fn finish(self) -> T {
        self.answer.unwrap_or_else(|| self.future.block())
    }

    /// Returns the number of wake-ups.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.0.load(Ordering::SeqCst)
    }
}

/// Starts to wait for a lock, and returns when the request is in the queue.
pub(crate) fn stand_in_line(
    session: &Session,
    node: &Node,
    name: &str,
) -> Begun<Result<bowline::Guard, LockError>> {
    let kv = node.client();
    let below = KeyRange::prefix(format!("{name}/"));
    let before = kv.range(below.clone()).count_only().block().unwrap().revision;
    let begun = Begun::new(session.mutex(name.to_owned()).lock());
    // Other requests may leave the queue meanwhile, so wait for a new key of this session.
    let mut changes = kv.watch(below).from(Revision(before.get() + 1)).block().unwrap();
    loop {
        let batch = changes.next().block().unwrap().unwrap();
        let mut puts = batch.events.iter().filter(|event| event.kind == EventKind::Put);
        if puts.any(|event| event.kv.lease == Some(session.lease())) {
            return begun;
        }
    }
}

/// A resource outside the store that rejects every write whose token is lower than the highest
/// token that it has seen.
#[derive(Default)]
pub(crate) struct Outside {
    fence: Fence,
    pub(crate) written: Vec<String>,
}

impl Outside {
    pub(crate) fn write(&mut self, token: Token, what: &str) -> Result<(), Token> {
        self.fence.admit(token).map_err(|stale| stale.highest)?;
        self.written.push(what.to_owned());
        Ok(())
    }
}

/// A clock that a test can move forward.
#[derive(Default)]
pub(crate) struct Jumping(AtomicU64);

impl Jumping {
    pub(crate) fn jump(&self, by: Duration) {
        self.0.fetch_add(by.as_secs(), Ordering::SeqCst);
    }
}

impl Clock for Jumping {
    fn now(&self) -> Moment {
        BootClock.now() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn boot(&self) -> Option<BootId> {
        BootClock.boot()
    }
}

/// Starts three members with separate clocks, whose sessions have this TTL.
pub(crate) fn with_clocks(ttl: Duration) -> (Cluster, [Arc<Jumping>; 3]) {
    let clocks: [Arc<Jumping>; 3] = Default::default();
    let (given, next) = (clocks.clone(), AtomicUsize::new(0));
    let cluster = with(3, move |config| {
        let clock = Arc::clone(&given[next.fetch_add(1, Ordering::SeqCst) % 3]);
        timing(config, ttl).env(Env { clock, ..Env::real() })
    });
    (cluster, clocks)
}

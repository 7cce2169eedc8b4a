//! Tests of the coordination tools on real nodes in one process: latches, barriers, counters, cells, sequences and
//! groups, under contention, with dropped calls, and with members that crash.

mod double_barriers;
mod groups;
mod numbers;
mod once;
mod values;
mod waiting;

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use bowline::testing::Cluster;
use bowline::{Blocking, Effect, Error, KeyRange, Node};

use crate::stage;

/// A time limit that no call of these tests exceeds.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Starts a cluster with fast elections, and sessions that are long enough for a busy machine.
pub(crate) fn quick(members: usize) -> Cluster {
    stage::with(members, |config| {
        config
            .heartbeat(Duration::from_millis(20))
            .election_timeout(Duration::from_millis(150))
            .session_ttl(Duration::from_secs(3))
            .call_deadline(LONG)
    })
}

pub(crate) fn deadline<T>(effect: Effect) -> Result<T, Error> {
    Err(Error::Deadline { effect })
}

pub(crate) type Running<F> = Pin<Box<<F as IntoFuture>::IntoFuture>>;

/// Polls a call once; it must be pending.
pub(crate) fn begin<F: IntoFuture>(call: F) -> Running<F> {
    let mut future = Box::pin(call.into_future());
    assert!(poll(&mut future).is_pending(), "it has to wait");
    future
}

/// Polls a call once and drops it, most likely before it has an answer.
pub(crate) fn give_up<F: IntoFuture>(call: F) {
    drop(poll(&mut Box::pin(call.into_future())));
}

pub(crate) fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a call until it has read the store and waits for others.
pub(crate) fn begin_to_wait<F: IntoFuture>(node: &Node, call: F) -> Running<F> {
    let mut future = begin(call);
    // Reads are answered in the order in which they are made.
    node.client().get("nothing").block().unwrap();
    assert!(poll(&mut future).is_pending(), "it has to wait");
    future
}

/// Waits until there are `count` keys below a prefix, as a node sees it.
pub(crate) fn wait_for_keys(node: &Node, prefix: &'static str, count: u64) {
    let (kv, range) = (node.client(), KeyRange::prefix(prefix));
    let mut watch = kv.watch(range.clone()).block().unwrap();
    while kv.range(range.clone()).local().block().unwrap().count != count {
        watch.next().block().unwrap().unwrap();
    }
}

/// Runs `work` in `tasks` threads for each member, and collects the results.
pub(crate) fn on_all<T: Send>(
    cluster: &Cluster,
    tasks: usize,
    work: impl Fn(&Node, usize) -> Vec<T> + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let spawn = |(_, node)| (0..tasks).map(move |task| scope.spawn(move || work(node, task)));
        let threads: Vec<_> = cluster.running().flat_map(spawn).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the error of a passed deadline without an effect.
pub(crate) fn late_error() -> Error {
    Error::Deadline { effect: Effect::NotApplied }
}

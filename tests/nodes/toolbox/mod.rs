//! The toolbox of coordination on real nodes in one process: latches, barriers, counters, cells,
//! sequences, groups; contended, dropped in the middle, and with members that crash.

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

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Elections take little; sessions are long enough for a busy machine.
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

/// Polls a call once.
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

/// Polls a call until it has looked at the store and waits for others.
pub(crate) fn begin_to_wait<F: IntoFuture>(node: &Node, call: F) -> Running<F> {
    let mut future = begin(call);
    // Reads are answered in the order in which they are asked.
    node.client().get("nothing").block().unwrap();
    assert!(poll(&mut future).is_pending(), "it has to wait");
    future
}

/// Waits until there are so many keys below a prefix, as a node sees it.
pub(crate) fn wait_for_keys(node: &Node, prefix: &'static str, count: u64) {
    let (kv, range) = (node.client(), KeyRange::prefix(prefix));
    let mut watch = kv.watch(range.clone()).block().unwrap();
    while kv.range(range.clone()).local().block().unwrap().count != count {
        watch.next().block().unwrap().unwrap();
    }
}

/// Runs `work` on each of the members, `tasks` times at once, and collects what they come to.
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

/// The time was up, and nothing was changed.
pub(crate) fn late_error() -> Error {
    Error::Deadline { effect: Effect::NotApplied }
}

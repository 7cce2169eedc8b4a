//! Tests of a driver's limits, on three nodes whose turns and clock the test controls.

mod alone;
mod forgetting;
mod full_disks;
mod health;
mod hostile;
mod leader_lease;
mod leading;
mod queues;
mod quota;
mod sessions;
mod slow;
mod snapshots;
mod versions;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::env::{Clock, Env, NoPoints, OsEntropy};
use crate::model::{ClusterId, Command, Delete, Limits, Moment, NodeId, PeerMessage, Put, Reply};
use crate::node::{
    Assembled, Assembly, CallError, CallResult, Contact, Drift, History, Input, Role, Settings,
    Shared, Wakers,
};
use crate::sim::SimDisk;
use crate::transport::{MemoryHub, Receiver};
use crate::wal::Space;

/// A clock that the test advances.
#[derive(Default)]
struct HeldClock(AtomicU64);

impl Clock for HeldClock {
    fn now(&self) -> Moment {
        Moment::since_boot(Duration::from_millis(self.0.load(Ordering::Relaxed)))
    }
}

/// Three simulated nodes. Nodes are numbered from 0, and their ids from 1.
struct Three {
    clock: Arc<HeldClock>,
    hub: MemoryHub,
    nodes: Vec<Assembled>,
    receivers: Vec<Arc<dyn Receiver>>,
    disks: Vec<Arc<SimDisk>>,
}

fn id(node: usize) -> NodeId {
    NodeId::new(node as u64 + 1).unwrap()
}

fn settings(node: usize) -> Settings {
    let contact = |node: usize| Contact { name: format!("m{node}"), address: format!("m{node}:1") };
    Settings {
        node: id(node),
        contact: contact(node),
        endpoints: Vec::new(),
        cluster: ClusterId(7),
        members: (0..3).map(|node| (id(node), contact(node))).collect::<BTreeMap<_, _>>(),
        founds: true,
        listed: Vec::new(),
        has_other_token: false,
        supported_version: crate::model::ClusterVersion::NEWEST,
        dir: PathBuf::from("/data"),
        heartbeat: Duration::from_millis(100),
        election_timeout: Duration::from_millis(500),
        drift: Drift::percent(10),
        session_ttl: Duration::from_secs(5),
        call_deadline: Duration::from_secs(5),
        lock_waiters_max: 1000,
        label: String::new(),
        limits: Limits::default(),
        open_writes_max: 4096,
        open_bytes_max: 64 << 20,
        open_reads_max: 4096,
        quota_bytes: 1 << 30,
        history: History::keep_all(),
        snapshot_log_bytes: u64::MAX,
        log_segment_bytes: 1 << 20,
        snapshot_part_bytes: crate::node::PART_BYTES,
        warm_copy: None,
        slow_request: Duration::MAX,
        slow_apply: Duration::MAX,
    }
}

impl Three {
    /// Returns three nodes with a leader.
    fn new(configure: impl Fn(usize, &mut Settings)) -> Self {
        let mut three = Self {
            clock: Arc::default(),
            hub: MemoryHub::default(),
            nodes: Vec::new(),
            receivers: Vec::new(),
            disks: Vec::new(),
        };
        for node in 0..3 {
            let mut settings = settings(node);
            configure(node, &mut settings);
            three.disks.push(Arc::new(SimDisk::new(node as u64)));
            let (assembled, receiver) = three.begin(node, settings);
            three.nodes.push(assembled);
            three.receivers.push(receiver);
        }
        three.until("nobody leads", |three| three.leader_now().is_some());
        three
    }

    /// Starts a node from its disk.
    fn begin(&self, node: usize, settings: Settings) -> (Assembled, Arc<dyn Receiver>) {
        let env = Env {
            clock: self.clock.clone(),
            entropy: Arc::new(OsEntropy),
            disk: Arc::clone(&self.disks[node]) as _,
            points: Arc::new(NoPoints),
        };
        let assembly = Assembly::open(settings, env, Wakers::silent(), None).unwrap();
        let receiver = assembly.receiver();
        let network = self.hub.join(id(node), assembly.introducer(), assembly.receiver());
        (assembly.finish(Box::new(network)).unwrap(), receiver)
    }

    /// Kills a node and starts it again.
    fn restart(&mut self, node: usize) {
        let settings = self.shared(node).settings.clone();
        self.nodes[node].driver.abandon(&crate::node::StopReason::Killed);
        let Assembled { driver, log_worker, snapshot_worker, .. } = self.nodes.remove(node);
        drop((driver, log_worker, snapshot_worker));
        let (assembled, receiver) = self.begin(node, settings);
        self.nodes.insert(node, assembled);
        self.receivers[node] = receiver;
    }

    /// Like [`Three::new`], with this node as the leader.
    fn led_by(node: usize, configure: impl Fn(usize, &mut Settings)) -> Self {
        let mut three = Self::new(configure);
        three.lead(node);
        three
    }

    fn lead(&mut self, node: usize) {
        for _ in 0..20 {
            match self.leader() {
                leader if leader == node => return,
                leader => {
                    let now = self.clock.now();
                    let (to, deadline) = (Some(id(node)), now + Duration::from_secs(1));
                    let reply = crate::node::ReplyTo::Discard;
                    self.push(leader, Input::Transfer { to, deadline, reply });
                    self.pass(300);
                }
            }
        }
        panic!("leadership does not move");
    }

    fn shared(&self, node: usize) -> &Arc<Shared> {
        &self.nodes[node].shared
    }

    fn push(&self, node: usize, input: Input) {
        assert!(self.shared(node).inbox.push(input).is_ok(), "node {node} has stopped");
    }

    /// Delivers a message from a peer, or from an attacker that poses as the peer.
    fn deliver(&self, to: usize, from: usize, message: PeerMessage) {
        self.receivers[to].deliver(id(from), message);
    }

    fn disk(&self, node: usize, space: Space) {
        self.push(node, Input::Space(space));
    }

    /// Advances the time by five milliseconds.
    fn step(&mut self) {
        self.step_without_log(None);
    }

    /// Advances the time by five milliseconds, in which the log of one node does nothing.
    fn step_without_log(&mut self, of: Option<usize>) {
        self.clock.0.fetch_add(5, Ordering::Relaxed);
        for (at, node) in self.nodes.iter_mut().enumerate() {
            node.driver.turn();
            if of != Some(at) {
                node.log_worker.turn();
            }
            node.snapshot_worker.turn();
        }
    }

    fn pass(&mut self, ms: u64) {
        (0..ms / 5).for_each(|_| self.step());
    }

    /// Steps until the condition holds, for at most 30 simulated seconds.
    fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        for _ in 0..6000 {
            if is(self) {
                return;
            }
            self.step();
        }
        panic!("{what}");
    }

    fn leader_now(&self) -> Option<usize> {
        let leads = |node: &usize| {
            let status = self.shared(*node).state.status.borrow();
            status.role == Role::Leader && status.leader == Some(status.id)
        };
        let leaders: Vec<usize> = (0..3).filter(leads).collect();
        let knows = |node: usize| self.shared(node).state.status.borrow().leader;
        match leaders[..] {
            [leader] if (0..3).all(|node| knows(node) == Some(id(leader))) => Some(leader),
            _ => None,
        }
    }

    fn leader(&mut self) -> usize {
        self.until("nobody leads", |three| three.leader_now().is_some());
        self.leader_now().unwrap()
    }

    /// Starts a call on a node. [`Three::finish`] completes the call.
    fn call(&self, node: usize, command: Command, timeout_ms: u64) -> Call {
        let shared = Arc::clone(self.shared(node));
        let deadline = shared.now() + Duration::from_millis(timeout_ms);
        let mut call: Call = Box::pin(async move { shared.write(command, deadline).await });
        // The first poll queues the call for the driver.
        let first = poll(&mut call);
        match first {
            Poll::Pending => call,
            Poll::Ready(result) => Box::pin(std::future::ready(result)),
        }
    }

    fn finish(&mut self, mut call: Call) -> CallResult<Reply> {
        for _ in 0..6000 {
            if let Poll::Ready(result) = poll(&mut call) {
                return result;
            }
            self.step();
        }
        panic!("a call has not ended");
    }

    fn write(&mut self, node: usize, command: Command) -> CallResult<Reply> {
        let call = self.call(node, command, 5_000);
        self.finish(call)
    }

    fn put(&mut self, node: usize, key: &str, bytes: usize) -> CallResult<Reply> {
        self.write(node, put(key, bytes))
    }

    fn delete(&mut self, node: usize, key: &str) -> CallResult<Reply> {
        self.write(node, Command::Delete(Delete::new(key.to_owned())))
    }
}

type Call = Pin<Box<dyn Future<Output = CallResult<Reply>>>>;

fn poll(call: &mut Call) -> Poll<CallResult<Reply>> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn put(key: &str, bytes: usize) -> Command {
    Command::Put(Put::new(key.to_owned(), vec![b'v'; bytes]))
}

fn is_quota(result: &CallResult<Reply>) -> bool {
    matches!(result, Err(CallError::QuotaExceeded { .. }))
}

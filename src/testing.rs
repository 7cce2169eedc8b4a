//! A cluster for tests of your own program: real nodes, real logs in a temporary directory, an
//! in-memory network that can be cut.
//!
//! ```
//! use bowline::testing::Cluster;
//! use bowline::Blocking;
//!
//! let mut cluster = Cluster::start(3).block()?;
//! let leader = cluster.leader().block()?;
//! cluster.node(leader).client().put("k", "v").block()?;
//!
//! cluster.kill(leader).block();
//! let next = cluster.leader().block()?;
//! assert_eq!(cluster.node(next).client().get("k").block()?.unwrap().value, "v");
//! cluster.restart(leader).block()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In a test that is async (`.block()` blocks its thread, and must not be called in async code):
//!
//! ```
//! use bowline::testing::Cluster;
//!
//! #[tokio::main] // or #[tokio::test]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let cluster = Cluster::start(3).await?;
//!     let guard = cluster.node(0).session().await?.mutex("lock").lock().await?;
//!     let other = cluster.node(1).session().await?;
//!     assert!(other.mutex("lock").try_lock().await.is_err());
//!     guard.release().await?;
//!     Ok(())
//! }
//! ```
//!
//! Members are numbered from 0, and member n is called `m<n>`: in [`Node::status`], in
//! [`Node::members`], and as the label of its own session. A node that was killed says
//! [`StopReason::Killed`](crate::StopReason::Killed) to whoever still holds something of it.
//!
//! Nothing here sleeps: waits are for conditions, with a limit ([`ClusterOptions::wait_limit`]). For a node that no
//! cluster has, there is [`shutdown`].

#[cfg(feature = "testing-tls")]
mod authority;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thiserror::Error;
use tokio::sync::oneshot;

use crate::model::{NodeId, Revision};
use crate::node::{NodeStatus, Role};
use crate::transport::MemoryHub;
use crate::{Config, Node, Shutdown, StartError, cluster::DataErrorKind};

#[cfg(feature = "testing-tls")]
pub use authority::{DevAuthority, Revocable};

/// How long a wait may take, if nothing else is said.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// How a [`Cluster`] is made.
pub struct ClusterOptions {
    members: usize,
    configure: Box<dyn Fn(Config) -> Config + Send + Sync>,
    wait_limit: Duration,
}

impl ClusterOptions {
    /// A cluster of so many members, 1 to [`Config::MEMBERS_MAX`].
    pub fn new(members: usize) -> Self {
        Self { members, configure: Box::new(|config| config), wait_limit: WAIT_MAX }
    }

    /// Changes each member's configuration: its timeouts, its limits.
    #[must_use]
    pub fn configure(mut self, with: impl Fn(Config) -> Config + Send + Sync + 'static) -> Self {
        self.configure = Box::new(with);
        self
    }

    /// How long a wait may take before it is an error. Default 30 s.
    #[must_use]
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = limit;
        self
    }

    /// Starts all members, and waits until one of them leads. A cluster that finds no leader within the
    /// [limit](ClusterOptions::wait_limit) is given all the same: its calls, and [`Cluster::leader`], say what
    /// is the matter.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(self) -> Result<Cluster, StartError> {
        let dir = TempDir::with_prefix("bowline-cluster-").map_err(|error| StartError::Data {
            kind: DataErrorKind::Io,
            why: format!("no temporary directory: {error}"),
        })?;
        let mut cluster = Cluster {
            nodes: (0..self.members).map(|_| None).collect(),
            hub: MemoryHub::default(),
            options: self,
            dir,
        };
        for member in 0..cluster.nodes.len() {
            cluster.restart(member).await?;
        }
        let _: Result<usize, TooLate> = cluster.leader().await;
        Ok(cluster)
    }
}

impl std::fmt::Debug for ClusterOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterOptions").field("members", &self.members).finish_non_exhaustive()
    }
}

/// A cluster in this process; see the module. Members are numbered from 0. Dropping it stops them and
/// removes their data.
pub struct Cluster {
    nodes: Vec<Option<Node>>,
    hub: MemoryHub,
    options: ClusterOptions,
    dir: TempDir,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

/// A condition that was waited for has not come true in time.
#[derive(Debug, Error)]
#[error("{what} within {limit:?}; members: {members:#?}")]
pub struct TooLate {
    what: String,
    limit: Duration,
    members: Vec<Option<NodeStatus>>,
}

impl Cluster {
    /// Starts a cluster of so many members, with default configurations, and waits until one of them leads.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(members: usize) -> Result<Cluster, StartError> {
        ClusterOptions::new(members).start().await
    }

    /// A running member.
    ///
    /// # Panics
    /// It does not run: it was killed and not restarted.
    pub fn node(&self, member: usize) -> &Node {
        self.nodes[member].as_ref().unwrap_or_else(|| panic!("member {member} was killed"))
    }

    /// The members that run.
    pub fn running(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(i, node)| Some((i, node.as_ref()?)))
    }

    /// Stops a member as a crash of its process would: nothing is said or handed over. What it had not
    /// synced may be lost, as far as the operating system's cache allows. Waits until its threads have ended and
    /// its directory is free, for the [limit](ClusterOptions::wait_limit) at most.
    pub async fn kill(&mut self, member: usize) {
        if let Some(node) = self.nodes[member].take() {
            node.abort();
            let _ = until_ended(&node, self.options.wait_limit).await;
        }
    }

    /// Stops a member in good order. Waits for its end as [`Cluster::kill`] does.
    pub async fn shutdown(&mut self, member: usize) {
        if let Some(node) = self.nodes[member].take() {
            node.running().stop();
            let _ = until_ended(&node, self.options.wait_limit).await;
        }
    }

    /// Starts a member again, on the data that it has; does not wait until it has caught up. Does nothing if
    /// it runs.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn restart(&mut self, member: usize) -> Result<(), StartError> {
        if self.nodes[member].is_none() {
            let config = if member < self.options.members {
                let founders = (0..self.options.members).map(|i| (name(i), address(i)));
                let config = Config::new(self.data_dir(member), name(member)).members(founders);
                (self.options.configure)(config)
            } else {
                self.config_to_join(member)
            };
            self.nodes[member] = Some(Node::start_in_memory(&config, self.hub.clone()).await?);
        }
        Ok(())
    }

    /// Starts a node that joins the cluster as a learner, and says which member it is.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn join(&mut self) -> Result<usize, StartError> {
        self.join_as(|config| config).await
    }

    /// As [`Cluster::join`], in the place of a voter, which is a member no more once the new one has
    /// caught up. That it has is what [`Cluster::wait_until`] waits for: this call does not.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn replace(&mut self, member: usize) -> Result<usize, StartError> {
        self.join_as(|config| config.replacing(name(member))).await
    }

    async fn join_as(&mut self, how: impl FnOnce(Config) -> Config) -> Result<usize, StartError> {
        let member = self.nodes.len();
        let config = how(self.config_to_join(member));
        let node = Node::start_in_memory(&config, self.hub.clone()).await?;
        self.nodes.push(Some(node));
        Ok(member)
    }

    /// What a member is started with that does not found the cluster.
    fn config_to_join(&self, member: usize) -> Config {
        let config = Config::new(self.data_dir(member), name(member))
            .join(["in-memory:1"])
            .advertise(address(member));
        (self.options.configure)(config)
    }

    /// Where a member keeps its data.
    pub fn data_dir(&self, member: usize) -> std::path::PathBuf {
        self.dir.path().join(format!("m{member}"))
    }

    /// Holds a member still, as `SIGSTOP` would; its callers go on and wait.
    pub fn pause(&self, member: usize) {
        self.node(member).running().pause();
    }

    /// Lets a paused member go on.
    pub fn resume(&self, member: usize) {
        self.node(member).running().resume();
    }

    /// Cuts the members in `group` off from all others, both ways. Earlier cuts stay.
    pub fn partition(&self, group: &[usize]) {
        for inside in group {
            for outside in (0..self.nodes.len()).filter(|member| !group.contains(member)) {
                self.cut(*inside, outside);
                self.cut(outside, *inside);
            }
        }
    }

    /// Loses everything that `from` sends to `to`, one way.
    pub fn cut(&self, from: usize, to: usize) {
        self.hub.cut(id(from), id(to));
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.hub.heal_all();
    }

    /// Waits until a member leads that a quorum of the voters follows, and says which.
    ///
    /// # Errors
    /// [`TooLate`].
    pub async fn leader(&self) -> Result<usize, TooLate> {
        let leader = |statuses: &[NodeStatus]| {
            let leader =
                statuses.iter().filter(|s| s.role == Role::Leader).max_by_key(|s| s.term)?;
            let (_, node) = self.running().find(|(_, node)| node.status().id == leader.id)?;
            let voters: Vec<NodeId> = node.members().voters().collect();
            let behind = |s: &&NodeStatus| {
                s.leader == Some(leader.id) && s.term == leader.term && voters.contains(&s.id)
            };
            (statuses.iter().filter(behind).count() > voters.len() / 2).then_some(leader.id)
        };
        let mut found = None;
        self.wait_until("no leader that a quorum follows", |statuses| {
            found = leader(statuses);
            found.is_some()
        })
        .await?;
        let id = found.expect("it was waited for").get();
        Ok(usize::try_from(id).expect("few members") - 1)
    }

    /// Waits until all running members have reached `revision`.
    ///
    /// # Errors
    /// [`TooLate`].
    pub async fn all_at(&self, revision: Revision) -> Result<(), TooLate> {
        self.wait_until("not all members have reached the revision", |statuses| {
            statuses.iter().all(|status| status.revision >= revision)
        })
        .await
    }

    /// Waits until the running members' statuses satisfy `condition`; `otherwise` says what the matter
    /// is if they do not in time.
    ///
    /// # Errors
    /// [`TooLate`].
    pub async fn wait_until(
        &self,
        otherwise: &str,
        mut condition: impl FnMut(&[NodeStatus]) -> bool,
    ) -> Result<(), TooLate> {
        let mut changes: Vec<_> =
            self.running().map(|(_, node)| node.shared().status.subscribe()).collect();
        let waiting = async {
            loop {
                let statuses: Vec<NodeStatus> =
                    changes.iter_mut().map(|change| change.borrow_and_update().clone()).collect();
                if condition(&statuses) {
                    return;
                }
                let mut any: Vec<_> =
                    changes.iter_mut().map(|change| Box::pin(change.changed())).collect();
                poll_fn(|context| {
                    let ready =
                        any.iter_mut().any(|change| change.as_mut().poll(context).is_ready());
                    if ready { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            }
        };
        let limit = self.options.wait_limit;
        match within(limit, waiting).await {
            Some(()) => Ok(()),
            None => Err(TooLate {
                what: otherwise.to_owned(),
                limit,
                members: self.nodes.iter().map(|node| node.as_ref().map(Node::status)).collect(),
            }),
        }
    }
}

/// As [`Node::shutdown`], for a test that goes on with the node's directory: on a disk that is slow to sync, a
/// node's threads may need longer than the second that a program waits for them. This waits for half a minute, and
/// says which are left then: none, unless something is broken.
///
/// ```
/// # use bowline::{Blocking, Config, Node, testing};
/// # let dir = tempfile::tempdir()?;
/// let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// assert!(testing::shutdown(node).block().hanging.is_empty());
/// let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # assert!(testing::shutdown(node).block().hanging.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn shutdown(node: Node) -> Shutdown {
    node.running().stop();
    until_ended(&node, WAIT_MAX).await
}

/// Waits until the threads of a node that was told to stop have ended, for so long at most.
async fn until_ended(node: &Node, limit: Duration) -> Shutdown {
    let begun = Instant::now();
    loop {
        // It waits itself, for a while.
        let hanging = node.running().ended().await.hanging;
        if hanging.is_empty() || begun.elapsed() >= limit {
            return Shutdown { hanging };
        }
    }
}

/// Ids are minted in the order in which members come.
fn id(member: usize) -> NodeId {
    NodeId::new(member as u64 + 1).expect("it is not 0")
}

fn name(member: usize) -> String {
    format!("m{member}")
}

/// Never dialed.
fn address(member: usize) -> String {
    format!("in-memory:{}", member + 1)
}

/// The future's output, unless it takes longer than `limit`.
async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (cancel, cancelled) = std::sync::mpsc::channel::<()>();
    let (sender, receiver) = oneshot::channel();
    // A timer that needs no runtime; it ends with this call.
    let timer = thread::Builder::new().name("bowline-test-timer".into()).spawn(move || {
        if cancelled.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = sender.send(());
        }
    });
    timer.expect("the operating system gives a thread");
    let (mut future, mut late) = (pin!(future), pin!(receiver));
    let result = poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        match late.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    drop(cancel);
    result
}

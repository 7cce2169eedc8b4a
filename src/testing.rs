//! In-process clusters for tests of your own program: real nodes, real logs in a temporary
//! directory, and an in-memory network that can be partitioned.
//!
//! ```
//! use bowline::testing::Cluster;
//! use bowline::Blocking;
//!
//! let mut cluster = Cluster::start(3).block()?;
//! let leader = cluster.leader().block()?;
//! cluster.client(leader).put("k", "v").block()?;
//!
//! cluster.kill(leader).block();
//! let next = cluster.leader().block()?;
//! assert_eq!(cluster.client(next).get("k").block()?.unwrap().value, "v");
//! cluster.restart(leader).block()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In an async test, await the calls instead. `.block()` blocks the calling thread and must not be
//! called in async code:
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
//! Members are numbered from 0. Member n has the name `m<n>` in [`Node::status`], in
//! [`Node::members`] and as the label of its own session. Handles on a killed node report
//! [`StopReason::Killed`](crate::StopReason::Killed).
//!
//! After [`Cluster::kill`] of the leader, the other members elect a new one only after an election
//! timeout, because no reset connection reports the death as with a process. A [`Config::session_ttl`]
//! for quick tests must be at least four election timeouts, which are 2 s in total by default, or
//! the change of the leader can end the sessions of other members.
//!
//! The functions of this module never sleep for a fixed time. The functions wait for a condition,
//! up to a time limit ([`ClusterOptions::wait_limit`]). To stop a node that does not belong to a
//! [`Cluster`], use [`shutdown`].

#[cfg(feature = "testing-tls")]
mod authority;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thiserror::Error;
use tokio::sync::oneshot;

use crate::model::{NodeId, Revision};
use crate::node::{NodeStatus, Role};
use crate::transport::MemoryHub;
use crate::{Client, Config, Node, Shutdown, StartError, cluster::DataErrorKind};

#[cfg(feature = "testing-tls")]
pub use authority::{DevAuthority, Revocable};

/// Default of [`ClusterOptions::wait_limit`].
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The options of a [`Cluster`].
pub struct ClusterOptions {
    members: usize,
    configure: Box<dyn Fn(Config) -> Config + Send + Sync>,
    wait_limit: Duration,
}

impl ClusterOptions {
    /// Creates the options for a cluster of `members` members, 1 to [`Config::MEMBERS_MAX`].
    pub fn new(members: usize) -> Self {
        Self { members, configure: Box::new(|config| config), wait_limit: WAIT_MAX }
    }

    /// Changes the configuration of each member, for example its timeouts and limits.
    #[must_use]
    pub fn configure(mut self, with: impl Fn(Config) -> Config + Send + Sync + 'static) -> Self {
        self.configure = Box::new(with);
        self
    }

    /// Limits how long each method of the cluster waits for its condition before it fails. Default
    /// 30 s.
    #[must_use]
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = limit;
        self
    }

    /// Starts all members and waits until one of them is the leader. If no leader is elected within
    /// the [limit](ClusterOptions::wait_limit), the cluster is returned nevertheless. Calls on the
    /// nodes and [`Cluster::leader`] then fail.
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

/// A cluster in this process; see the [module](self). Members are numbered from 0. Dropping the
/// cluster stops the members and removes their data.
pub struct Cluster {
    nodes: Vec<Option<Arc<Node>>>,
    hub: MemoryHub,
    options: ClusterOptions,
    dir: TempDir,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

/// A condition was not met within the time limit. The text lists the status of all members.
#[derive(Debug, Error)]
#[error("{what} within {limit:?}; members: {members:#?}")]
pub struct TooLate {
    what: String,
    limit: Duration,
    members: Vec<Option<NodeStatus>>,
}

impl Cluster {
    /// Starts a cluster of `members` members with default configurations, and waits until one of
    /// them is the leader.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(members: usize) -> Result<Cluster, StartError> {
        ClusterOptions::new(members).start().await
    }

    /// Returns a running member. A [`Node`] cannot be cloned. A task or an async closure needs a
    /// handle of its own: [`Cluster::shared_node`].
    ///
    /// # Panics
    /// Panics if the member was killed or shut down, and not restarted.
    pub fn node(&self, member: usize) -> &Node {
        self.nodes[member].as_deref().unwrap_or_else(|| panic!("member {member} is not running"))
    }

    /// Returns a running member for a part of the program that needs its own handle, such as a
    /// task or the state of a web service. The member still belongs to the cluster: [`Cluster::kill`],
    /// [`Cluster::shutdown`] and dropping the cluster stop it, and the handle then reports
    /// [`Error::Stopped`](crate::Error::Stopped).
    ///
    /// # Panics
    /// Panics if the member was killed or shut down, and not restarted.
    pub fn shared_node(&self, member: usize) -> Arc<Node> {
        let node = self.nodes[member].clone();
        node.unwrap_or_else(|| panic!("member {member} is not running"))
    }

    /// Returns a client of a running member. Short for `cluster.node(member).client()`.
    ///
    /// # Panics
    /// Panics if the member was killed or shut down, and not restarted.
    pub fn client(&self, member: usize) -> Client {
        self.node(member).client()
    }

    /// Returns the running members with their numbers.
    pub fn running(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(i, node)| Some((i, node.as_deref()?)))
    }

    /// Stops a member as a crash of its process would: it does not close its sessions or transfer
    /// leadership. Data that was written but not synced may survive, because the operating system's
    /// cache survives. Waits until the threads of the member have ended and its directory is free,
    /// at most for the [limit](ClusterOptions::wait_limit).
    ///
    /// Handles on the killed member stay stopped, also after [`Cluster::restart`]: clients, sessions,
    /// guards and those of [`Cluster::shared_node`].
    pub async fn kill(&mut self, member: usize) {
        if let Some(node) = self.nodes[member].take() {
            node.abort();
            let _ = until_ended(&node, self.options.wait_limit).await;
        }
    }

    /// Shuts a member down. Like [`Cluster::kill`], waits until its threads have ended and its
    /// directory is free.
    pub async fn shutdown(&mut self, member: usize) {
        if let Some(node) = self.nodes[member].take() {
            node.running().stop();
            let _ = until_ended(&node, self.options.wait_limit).await;
        }
    }

    /// Restarts a stopped member on its existing data. Does nothing if the member is running. Does
    /// not wait until the member has caught up.
    ///
    /// The restarted member is a new [`Node`]. Clients of the old one do not work again: get a new
    /// one with [`Cluster::client`].
    ///
    /// ```
    /// # use bowline::{Blocking, Error, testing::Cluster};
    /// # let mut cluster = Cluster::start(1).block()?;
    /// let old = cluster.client(0);
    /// old.put("k", "v").block()?;
    /// cluster.kill(0).block();
    /// cluster.restart(0).block()?;
    /// assert!(matches!(old.get("k").block(), Err(Error::Stopped { .. })));
    /// assert_eq!(cluster.client(0).get("k").block()?.unwrap().value, "v");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
            let node = Node::start_in_memory(&config, self.hub.clone()).await?;
            self.nodes[member] = Some(Arc::new(node));
        }
        Ok(())
    }

    /// Starts a node that joins the cluster as a learner, and returns its number.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn join(&mut self) -> Result<usize, StartError> {
        self.join_as(|config| config).await
    }

    /// Starts a node that joins the cluster and replaces a voter, and returns its number. The old
    /// voter is removed once the new one has caught up. This call does not wait for the removal. To
    /// wait, use [`Cluster::wait_until`].
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
        self.nodes.push(Some(Arc::new(node)));
        Ok(member)
    }

    /// Returns the configuration of a member that joins after the founding.
    fn config_to_join(&self, member: usize) -> Config {
        let config = Config::new(self.data_dir(member), name(member))
            .join(["in-memory:1"])
            .advertise(address(member));
        (self.options.configure)(config)
    }

    /// Returns the data directory of a member.
    pub fn data_dir(&self, member: usize) -> std::path::PathBuf {
        self.dir.path().join(format!("m{member}"))
    }

    /// Pauses a member, as `SIGSTOP` would. Threads that call the member keep running, and their
    /// calls wait.
    pub fn pause(&self, member: usize) {
        self.node(member).running().pause();
    }

    /// Resumes a paused member.
    pub fn resume(&self, member: usize) {
        self.node(member).running().resume();
    }

    /// Cuts all connections between the members in `group` and all other members, in both
    /// directions. Connections that were cut earlier stay cut.
    pub fn partition(&self, group: &[usize]) {
        for inside in group {
            for outside in (0..self.nodes.len()).filter(|member| !group.contains(member)) {
                self.cut(*inside, outside);
                self.cut(outside, *inside);
            }
        }
    }

    /// Cuts all connections of a member, in both directions. Short for
    /// `cluster.partition(&[member])`. For the next leader, see [`Cluster::leader_other_than`].
    pub fn isolate(&self, member: usize) {
        self.partition(&[member]);
    }

    /// Drops all messages from `from` to `to`. The opposite direction is not affected.
    pub fn cut(&self, from: usize, to: usize) {
        self.hub.cut(id(from), id(to));
    }

    /// Restores all connections that were cut.
    pub fn heal(&self) {
        self.hub.heal_all();
    }

    /// Waits until a quorum of voters follows a leader, and returns the leader's number. After a
    /// partition, the followers need an election timeout to notice it. Until then, this function
    /// returns the old leader. To wait for its successor, use [`Cluster::leader_other_than`].
    ///
    /// # Errors
    /// Returns [`TooLate`] if the condition is not met within the limit.
    pub async fn leader(&self) -> Result<usize, TooLate> {
        self.wait_for_leader("no leader with a quorum", None).await
    }

    /// Waits until a quorum of voters follows a leader other than `old`, and returns the leader's
    /// number.
    ///
    /// ```
    /// # use bowline::{Blocking, testing::Cluster};
    /// # let cluster = Cluster::start(3).block()?;
    /// let old = cluster.leader().block()?;
    /// cluster.isolate(old);
    /// let new = cluster.leader_other_than(old).block()?;
    /// assert_ne!(new, old);
    /// cluster.client(new).put("k", "v").block()?;
    /// cluster.heal();
    /// assert_eq!(cluster.client(old).get("k").block()?.unwrap().value, "v");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`TooLate`] if the condition is not met within the limit.
    pub async fn leader_other_than(&self, old: usize) -> Result<usize, TooLate> {
        self.wait_for_leader("no other leader with a quorum", Some(id(old))).await
    }

    async fn wait_for_leader(
        &self,
        otherwise: &str,
        except: Option<NodeId>,
    ) -> Result<usize, TooLate> {
        let leader = |statuses: &[NodeStatus]| {
            let leader =
                statuses.iter().filter(|s| s.role == Role::Leader).max_by_key(|s| s.term)?;
            if except == Some(leader.id) {
                return None;
            }
            let (_, node) = self.running().find(|(_, node)| node.status().id == leader.id)?;
            let voters: Vec<NodeId> = node.members().voters().collect();
            let behind = |s: &&NodeStatus| {
                s.leader == Some(leader.id) && s.term == leader.term && voters.contains(&s.id)
            };
            (statuses.iter().filter(behind).count() > voters.len() / 2).then_some(leader.id)
        };
        let mut found = None;
        self.wait_until(otherwise, |statuses| {
            found = leader(statuses);
            found.is_some()
        })
        .await?;
        let id = found.expect("the wait ended with a value").get();
        Ok(usize::try_from(id).expect("the number of members is small") - 1)
    }

    /// Waits until all running members have reached `revision`.
    ///
    /// # Errors
    /// Returns [`TooLate`] if the condition is not met within the limit.
    pub async fn all_at(&self, revision: Revision) -> Result<(), TooLate> {
        self.wait_until("not all members have reached the revision", |statuses| {
            statuses.iter().all(|status| status.revision >= revision)
        })
        .await
    }

    /// Waits until the statuses of the running members satisfy `condition`. If the statuses never
    /// do, the error has the text `otherwise`.
    ///
    /// # Errors
    /// Returns [`TooLate`] if the condition is not met within the limit.
    pub async fn wait_until(
        &self,
        otherwise: &str,
        mut condition: impl FnMut(&[NodeStatus]) -> bool,
    ) -> Result<(), TooLate> {
        let mut changes: Vec<_> =
            self.running().map(|(_, node)| node.shared().state.status.subscribe()).collect();
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
                members: self.nodes.iter().map(|node| node.as_deref().map(Node::status)).collect(),
            }),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A handle from `shared_node` may keep its node running, so stop all nodes.
        self.running().for_each(|(_, node)| node.running().stop());
    }
}

/// Shuts a node down like [`Node::shutdown`], for a test that uses the node's directory afterwards.
/// On a disk with slow syncs, the threads of a node may need longer than the second that
/// [`Node::shutdown`] waits for them. This function waits up to 30 seconds and returns the threads
/// that still run, normally none.
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

/// Waits up to `limit` until the threads of a stopping node have ended.
async fn until_ended(node: &Node, limit: Duration) -> Shutdown {
    let begun = Instant::now();
    loop {
        // One call of `ended` waits for about a second.
        let hanging = node.running().ended().await.hanging;
        if hanging.is_empty() || begun.elapsed() >= limit {
            return Shutdown { hanging };
        }
    }
}

/// Member ids are assigned in the order in which members are added.
fn id(member: usize) -> NodeId {
    NodeId::new(member as u64 + 1).expect("the id is not 0")
}

fn name(member: usize) -> String {
    format!("m{member}")
}

/// Returns a placeholder address, which is never dialed.
fn address(member: usize) -> String {
    format!("in-memory:{}", member + 1)
}

/// Returns the output of the future, or `None` after `limit`.
async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (cancel, cancelled) = std::sync::mpsc::channel::<()>();
    let (sender, receiver) = oneshot::channel();
    // Use a timer thread, which needs no async runtime. The thread ends with this call.
    let timer = thread::Builder::new().name("bowline-test-timer".into()).spawn(move || {
        if cancelled.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = sender.send(());
        }
    });
    timer.expect("the operating system can start a thread");
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

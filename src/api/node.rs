//! [`Node`]: a member of a cluster inside this program.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use tokio::sync::oneshot;

use crate::env::Env;
use crate::metrics::Metrics;
use crate::model::{
    self, ClusterId, Command, JoinAsk, LeaseId, MemberRole, Members, MembershipError,
    MembershipRequest, Moment, NodeId, Reply, SnapshotId, Term, are_addresses,
};
use crate::node::{
    Assembly, Contact, DataErrorKind, Health, Joined, NodeStatus, RestoredFrom, Role, Running,
    Settings, Shared, StopReason, Wakers, contacts, disk_to_join, is_founded, is_joining,
    owner_of_data, save_answer, saved_contacts,
};
use crate::transport::{self, JoinError, MemoryHub, TcpBound, TcpHandle};

use super::checked::{Checked, StartMode};
use super::own_session::OwnSession;
use super::{Client, Config, Error, OpenSession, ReadyCall, ResumeSession, Session, StartError};

/// A member of a cluster inside this program. A node runs on its own threads, works with any async
/// runtime or none, and stops when it is shut down or dropped.
///
/// Stop a node with [`Node::shutdown`]. To the other members, a dropped node looks like a crashed
/// one: they wait until its sessions expire. Leadership is not transferred, and the data directory
/// may stay locked for up to a second.
///
/// ```
/// use bowline::{Blocking, Config, Node};
/// # let dir = tempfile::tempdir().unwrap();
/// # let data = dir.path();
/// let node = Node::start(Config::new(data, "solo")).block()?;
/// node.ready().block()?; // a leader serves, and this node has caught up with it
/// node.client().put("greeting", "hello").block()?;
/// node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Node {
    shared: Arc<Shared>,
    running: Running,
    link: NodeLink,
    session: Arc<OwnSession>,
}

/// The connection of a node to its peers.
enum NodeLink {
    /// TCP connections to other processes.
    Tcp(TcpHandle),
    /// In-memory connections to other nodes in this process, with the node's id and its seat number
    /// in the hub.
    Memory(MemoryHub, NodeId, u64),
}

/// The result of a shutdown.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Shutdown {
    /// Names of the threads that were still running one second after the stop, usually because the
    /// disk hangs. Normally empty.
    pub hanging: Vec<&'static str>,
}

impl Node {
    /// Starts a member: opens and replays its data, listens, and begins to contact the other
    /// members. Returns as soon as the node runs, which is before it has reached other members and
    /// before there is a leader. [`Node::ready`] waits for a leader. Other calls also wait for a
    /// leader, up to their deadlines.
    ///
    /// Dropping the future cancels the start. A start that [joins](Config::join) a cluster ends
    /// within about a second. Any other start ends once it has completed its current work. Until
    /// its end, a cancelled start keeps the data directory and the port. The cluster may already
    /// have added the node as a member. A later start on the same directory then becomes that
    /// member, as after [`JoinErrorKind::TimedOut`](crate::cluster::JoinErrorKind::TimedOut).
    ///
    /// # Errors
    /// See [`StartError`]. After an error nothing keeps running.
    pub async fn start(config: Config) -> Result<Node, StartError> {
        let checked = config.check()?;
        run_blocking(move |given_up| {
            let env = config.world().clone();
            let Some(listen) = checked.listen_address() else {
                return Self::open_in_memory(&checked, env, &MemoryHub::default(), given_up);
            };
            // Bind the port first, so that a second node on the same port does not touch the data.
            let tcp = config.tcp_settings();
            let bound = TcpBound::bind(&listen, tcp.clone())?;
            let ask = |addresses: &[String], ask: &JoinAsk| {
                transport::join(&env, &tcp, addresses, ask, checked.join_deadline(), given_up)
            };
            let (settings, joined) = begin(&env, &checked, ask)?;
            let assembly = Assembly::open(settings, env.clone(), Wakers::silent(), joined)?;
            let contacts = assembly.contacts();
            for (id, places) in &contacts {
                // Check only addresses from the configuration. Addresses learnt from other members
                // must not prevent a start.
                for place in places.iter().filter(|place| config.names(place)) {
                    tcp.check_peer(*id, place)?;
                }
            }
            let (network, handle) = bound.start(
                &env,
                assembly.node(),
                &contacts,
                assembly.introducer(),
                assembly.receiver(),
            )?;
            Self::run(assembly, Box::new(network), NodeLink::Tcp(handle))
        })
        .await
    }

    /// Starts a member of a cluster whose members are all in this process.
    #[cfg_attr(not(any(test, feature = "testing")), allow(dead_code, reason = "for `testing`"))]
    pub(crate) async fn start_in_memory(
        config: &Config,
        hub: MemoryHub,
    ) -> Result<Node, StartError> {
        let (checked, env) = (config.check()?, config.world().clone());
        run_blocking(move |given_up| Self::open_in_memory(&checked, env, &hub, given_up)).await
    }

    fn open_in_memory(
        checked: &Checked,
        env: Env,
        hub: &MemoryHub,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Node, StartError> {
        let ask =
            |_: &[String], ask: &JoinAsk| hub.ask_to_join(ask, checked.join_deadline(), given_up);
        let (settings, joined) = begin(&env, checked, ask)?;
        let node = settings.node;
        let assembly = Assembly::open(settings, env, Wakers::silent(), joined)?;
        let network = hub.join(node, assembly.introducer(), assembly.receiver());
        let link = NodeLink::Memory(hub.clone(), node, network.seat());
        Self::run(assembly, Box::new(network), link)
    }

    fn run(
        assembly: Assembly,
        network: Box<dyn crate::env::Network>,
        link: NodeLink,
    ) -> Result<Node, StartError> {
        let assembled = assembly.finish(network)?;
        let shared = Arc::clone(&assembled.shared);
        let running = Running::start(assembled).map_err(StartError::Thread)?;
        let session = OwnSession::of(Client::new(Arc::clone(&shared)));
        Ok(Node { shared, running, link, session })
    }

    /// Waits until this node serves linearizable calls: a quorum follows a leader, and this node
    /// has applied everything that was committed before. If the leader fails later, calls wait for
    /// the next leader. Waits up to [`Config::call_deadline`] or, if it is set, up to
    /// [`ReadyCall::deadline`].
    ///
    /// # Errors
    /// - [`Error::Deadline`]: no leader served in time.
    /// - [`Error::NotFounded`]: the cluster was not founded in time. The error names the members
    ///   that this node waits for.
    /// - [`Error::Stopped`]: the node stopped.
    /// - [`Error::Busy`]: too many reads are waiting.
    ///
    /// ```
    /// use std::time::Duration;
    /// use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// node.ready().deadline(Duration::from_secs(30)).block()?;
    /// assert!(node.status().leader.is_some());
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ready(&self) -> ReadyCall {
        ReadyCall::new(&self.shared)
    }

    /// Returns a client that works through this node.
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.shared))
    }

    /// Returns the node's own session. The session is opened on first use and shared by all
    /// callers. After it has ended, the next call opens a new one. When the program restarts, the
    /// session of the previous run is revoked.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn session(&self) -> Result<Session, Error> {
        self.session.get().await
    }

    /// Returns the [`OwnSession`] of the node, for recipes that continue with a new session after
    /// one has ended.
    pub(crate) fn own_session(&self) -> &Arc<OwnSession> {
        &self.session
    }

    /// Opens a separate session, in addition to the node's own. The session is closed when its last
    /// handle is dropped or the node is shut down. Unlike the node's own session, it survives a
    /// crash of the program for its TTL. During that time the session can be
    /// [resumed](Node::resume_session) on this or another node.
    pub fn open_session(&self) -> OpenSession {
        OpenSession::on(self.client(), false)
    }

    /// Resumes a session that was opened with [`Node::open_session`], in an earlier run of this
    /// program or on another node. Any other lease can be resumed as well, except a node's own
    /// session. The keys of the lease stay, and this node renews the lease from now on. The call
    /// returns once a renewal that it sent has been confirmed.
    ///
    /// Several nodes may keep one lease alive at the same time, and the session is valid on all of
    /// them. The session ends when the last of these nodes stops renewing it. If one node closes
    /// the session, it ends on all of them, as soon as each node has applied the revocation. To
    /// move a session, [detach](Session::detach) it first. Resuming a lease twice on one node
    /// returns a second handle on the same session.
    ///
    /// All keys of the lease stay. Among them are the claims of queue items that an earlier run
    /// took and did not acknowledge. No other taker receives these items while the session lives,
    /// because another node may still work on them. A program that resumes sessions should
    /// therefore take from queues with a session that it does not resume.
    ///
    /// # Errors
    /// - [`Rejection::LeaseNotFound`](crate::Rejection::LeaseNotFound): the lease does not exist or has
    ///   expired.
    /// - [`Error::NotResumed`]: the lease cannot be resumed here, with the reason.
    /// - [`Error::Deadline`]: no renewal was confirmed in time, possibly because the lease is
    ///   expiring.
    ///
    /// After an error the lease is unchanged, or was renewed once.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let session = node.open_session().label("importer").block()?;
    /// node.client().put("importer/address", "10.0.0.7").lease(session.lease()).block()?;
    /// let lease = session.detach(); // or the program crashes, and knows the lease from a file
    /// let session = node.resume_session(lease).block()?;
    /// assert_eq!(session.label(), "importer");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume_session(&self, lease: LeaseId) -> ResumeSession {
        ResumeSession::new(self, lease)
    }

    /// Returns the status that the node's driver thread published last.
    pub fn status(&self) -> NodeStatus {
        self.shared.state.status.borrow().clone()
    }

    /// Returns the node's member id, which the cluster assigned when it was founded or when the node
    /// joined.
    pub fn id(&self) -> NodeId {
        self.shared.settings.node
    }

    /// Returns the node's name, as passed to [`Config::new`].
    pub fn name(&self) -> &str {
        &self.shared.settings.contact.name
    }

    /// Reports whether this node is the leader of the cluster's consensus, as known to this node.
    ///
    /// The consensus elects a leader to order writes. Every node serves all calls, so programs need
    /// this method only for diagnostics. The leader may change at any time, and for a moment two
    /// nodes may both report true. To let one process do some work, use an
    /// [`Election`](crate::Election) or [`Node::leader_task`]. An election has its own leader:
    /// [`Leadership::is_leader`](crate::Leadership::is_leader).
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// node.ready().block()?;
    /// assert!(node.is_leader());
    /// assert_eq!(node.status().leader, Some(node.id()));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_leader(&self) -> bool {
        self.shared.state.status.borrow().role == Role::Leader
    }

    /// Returns the node's term, as in [`status`](Self::status), without copying the rest of the
    /// status. Cheap enough to be called for every request.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # node.client().put("k", "v").block().unwrap();
    /// assert_eq!(node.term(), node.status().term);
    /// # node.shutdown().block();
    /// ```
    pub fn term(&self) -> Term {
        self.shared.state.status.borrow().term
    }

    /// Returns the health of the node: a status for programs and a sentence for people. Reads local
    /// state only and never blocks.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, HealthStatus, Node, Role};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # node.client().put("k", "v").block().unwrap();
    /// let health = node.health();
    /// assert!(health.is_alive());
    /// # if health.status == HealthStatus::Healthy && health.leads {
    /// assert_eq!(health.status.as_str(), "healthy");
    /// assert_eq!(health.to_string(), "healthy: the node is the leader");
    /// # }
    /// # node.shutdown().block();
    /// ```
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Returns the metrics of the node.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// node.client().put("k", "v").block()?;
    /// let metrics = node.metrics();
    /// assert!(metrics.snapshot().log_sync_seconds.quantile(0.99).is_some());
    /// let text = metrics.to_prometheus(); // for the handler of /metrics
    /// assert!(text.contains(r#"bowline_requests_total{node="solo",kind="put",outcome="ok"} 1"#));
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn metrics(&self) -> Metrics {
        // Hold a weak reference: a metrics handle that outlives the node must not keep the node's
        // state in memory.
        let shared = Arc::downgrade(&self.shared);
        Metrics::new(&self.shared.settings.contact.name, Arc::clone(&self.shared.meters))
            .with_refresh(move || {
                if let Some(shared) = shared.upgrade() {
                    shared.read_gauges();
                }
            })
    }

    /// Waits until the node's status satisfies `condition`, and returns that status. Also returns
    /// when the node stops; the status then has the role [`Role::Stopped`].
    pub async fn wait_for(&self, mut condition: impl FnMut(&NodeStatus) -> bool) -> NodeStatus {
        let mut statuses = self.shared.state.status.subscribe();
        loop {
            // Copy the status to release the channel's lock: `condition` may be slow and may call
            // this node.
            let status = statuses.borrow_and_update().clone();
            if status.role == Role::Stopped || condition(&status) {
                return status;
            }
            if statuses.changed().await.is_err() {
                return self.status();
            }
        }
    }

    /// Returns why the node has stopped, or `None` if it is running.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.shared.stop_reason()
    }

    /// Waits until the node has stopped, and returns the reason.
    pub async fn stopped(&self) -> StopReason {
        let mut stopped = self.shared.watch_stop();
        match stopped.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().expect("the wait ended with a value"),
            Err(_) => StopReason::Shutdown,
        }
    }

    /// Returns the current time on the clock that [`Session::valid_until`] and the locks use.
    pub fn now(&self) -> Moment {
        self.shared.now()
    }

    /// Transfers the leadership of the consensus to a member or, with `None`, to the most up-to-date
    /// voter. Does nothing if this node is not the leader, or if `to` is this node. For the leader
    /// of an election, see [`Leadership::transfer`](crate::Leadership::transfer).
    ///
    /// # Errors
    /// Returns [`Error::NoTransferee`] if the transfer is not possible, [`Error::Deadline`] if it
    /// was not completed in time, and [`Error::Busy`] if too many transfers are in progress. After
    /// an error, the leader is unchanged.
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<(), Error> {
        Ok(self.shared.transfer(to, self.shared.deadline(None)).await?)
    }

    /// Returns the id of the cluster.
    pub fn cluster(&self) -> ClusterId {
        self.shared.settings.cluster
    }

    /// Returns the members of the cluster as known to the local replica.
    pub fn members(&self) -> Arc<Members> {
        self.shared.reader.members()
    }

    /// Reserves a member id for a node that joins later with this address (`host:port`), and
    /// returns the id. One node can use the reservation. Until a node has used it,
    /// [`Member::is_taken`](crate::cluster::Member::is_taken) is `false`, and the reserved member
    /// neither votes nor counts towards a quorum.
    ///
    /// If the reservation is for a [`Voter`](MemberRole::Voter), the joining node starts as a
    /// learner. The cluster promotes it as soon as it has caught up and enough voters are
    /// connected. If the reservation is for a [`Learner`](MemberRole::Learner), the node stays a
    /// learner. A node that joins with an address that is not reserved becomes a learner.
    ///
    /// Returns when this node has applied the change. Succeeds without a change if the address is
    /// already reserved. [`remove_member`](Self::remove_member) cancels a reservation.
    ///
    /// # Errors
    /// Returns [`Error::Members`] if the change was rejected and nothing was changed. After
    /// [`Error::Deadline`] and [`Error::Stopped`] the change may have been applied.
    ///
    /// ```
    /// use bowline::{Blocking, Config, Node, cluster::MemberRole};
    /// # let place = tempfile::tempdir().unwrap();
    /// let node = Node::start(Config::new(place.path().join("data"), "one")).block()?;
    /// let second = node.reserve_member("10.0.0.2:7700", MemberRole::Voter).block()?;
    /// let kept = node.members().get(second).unwrap().clone();
    /// assert!(!kept.is_taken() && kept.role == MemberRole::Learner);
    /// node.client().put("still", "alone").block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn reserve_member(
        &self,
        address: impl Into<String>,
        role: MemberRole,
    ) -> Result<NodeId, Error> {
        let (address, votes) = (address.into(), role == MemberRole::Voter);
        let membership_request = MembershipRequest::Keep { address, votes };
        Ok(self.shared.step(membership_request, self.shared.deadline(None)).await?)
    }

    /// Announces the future address (`host:port`) of a member before it moves. The other members
    /// then dial both addresses until the member has been started with the new one. Returns when
    /// this node has applied the change.
    ///
    /// If one member moves alone, this call is not needed, because the member announces its new
    /// address when it starts. Call this if most members of a cluster move at once, so that they
    /// can still find each other. The address of a [reserved member](Self::reserve_member) is
    /// changed at once. Passing the current address cancels the move.
    ///
    /// # Errors
    /// Returns [`Error::Members`] if `address` is not valid,
    /// [`Rejection::NotMember`](crate::Rejection::NotMember) if there is no such member, and
    /// [`Rejection::AddressTaken`](crate::Rejection::AddressTaken) if another member has the
    /// address. See [`Error`] for other errors.
    ///
    /// ```
    /// use bowline::{Blocking, Config, Node};
    /// # let place = tempfile::tempdir().unwrap();
    /// let node = Node::start(Config::new(place.path().join("data"), "one")).block()?;
    /// let id = node.status().id;
    /// node.move_member(id, "10.0.0.7:7700").block()?;
    /// let members = node.members();
    /// assert_eq!(members.get(id).unwrap().moves_to.as_deref(), Some("10.0.0.7:7700"));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn move_member(
        &self,
        member: NodeId,
        address: impl Into<String>,
    ) -> Result<(), Error> {
        let address = address.into();
        if !are_addresses(&address) {
            return Err(Error::Members(MembershipError::BadAddress(address)));
        }
        let change = Command::Move { member, address };
        match self.client().propose(change, None).await? {
            Reply::Noted { .. } => Ok(()),
            other => unreachable!("unexpected reply to a move: {other:?}"),
        }
    }

    /// Promotes a learner to a voter. The learner must have caught up, and enough voters must be
    /// connected. Returns when this node has applied the change. Succeeds without a change if the
    /// member is already a voter.
    ///
    /// # Errors
    /// Returns [`Error::Members`] if the change was rejected and nothing was changed. After
    /// [`Error::Deadline`] and [`Error::Stopped`] the change may have been applied.
    pub async fn promote(&self, member: NodeId) -> Result<(), Error> {
        self.step(MembershipRequest::Promote(member)).await
    }

    /// Removes a member permanently. The id of the member is never used again, and its node stops
    /// when it learns of the removal. A leader that is to be removed transfers leadership first.
    /// Returns when this node has applied the change. Succeeds without a change if the member is
    /// already removed.
    ///
    /// # Errors
    /// Returns [`Error::Members`] if the change was rejected and nothing was changed, for example
    /// because too few connected voters would remain. After [`Error::Deadline`] and
    /// [`Error::Stopped`] the change may have been applied.
    pub async fn remove_member(&self, member: NodeId) -> Result<(), Error> {
        self.step(MembershipRequest::Remove(member)).await
    }

    async fn step(&self, membership_request: MembershipRequest) -> Result<(), Error> {
        self.shared.step(membership_request, self.shared.deadline(None)).await?;
        Ok(())
    }

    /// Writes a copy of this node's state to a file and returns its id. The copy contains the store
    /// at one revision. The copy is read back and verified before it gets its final name. An
    /// existing file with that name is replaced. Reads and writes of the store continue while the
    /// backup is written.
    ///
    /// The state is that of the local replica, which may lag behind the leader. For a copy that
    /// includes the latest writes, make a linearizable read first. One backup is written at a time,
    /// and at most four further calls may wait.
    ///
    /// # Errors
    /// - [`Error::Backup`]: the backup could not be written, or the replica has no state of its
    ///   cluster yet, or the disk did not respond for 30 seconds. While the disk does not respond,
    ///   all further backups are rejected.
    /// - [`Error::Busy`]: too many backups are waiting.
    /// - [`Error::Stopped`]: the node stopped.
    pub async fn backup(&self, file: impl Into<PathBuf>) -> Result<SnapshotId, Error> {
        Ok(self.shared.backup(file.into()).await?)
    }

    /// Flips one bit of a key's newest row in this node's memory, to test that the node detects
    /// memory corruption. Returns whether the key exists.
    ///
    /// # Errors
    /// Returns [`Error::Stopped`] if the node has stopped.
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub async fn rot(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.shared.rot(key.to_vec()).await?)
    }

    /// Stops the node: closes its sessions, so that their locks become free at once, transfers
    /// leadership, and ends its threads. Takes about one second at most, even if the disk or the
    /// peers hang. Later calls on the node fail with [`Error::Stopped`]. A second shutdown has no
    /// effect.
    pub async fn shutdown(&self) -> Shutdown {
        self.running.stop();
        let report = self.running.ended().await;
        self.link.stop();
        Shutdown { hanging: report.hanging }
    }

    #[cfg_attr(not(any(test, feature = "testing")), allow(dead_code, reason = "for `testing`"))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[cfg_attr(not(any(test, feature = "testing")), allow(dead_code, reason = "for `testing`"))]
    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    /// Stops the node as a crash would, and does not wait for its threads.
    #[cfg_attr(not(any(test, feature = "testing")), allow(dead_code, reason = "for `testing`"))]
    pub(crate) fn abort(&self) {
        self.link.stop();
        self.running.abort();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.running.stop();
        self.link.stop();
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.status().name).finish_non_exhaustive()
    }
}

impl NodeLink {
    fn stop(&self) {
        match self {
            NodeLink::Tcp(handle) => handle.stop(),
            NodeLink::Memory(hub, node, seat) => hub.leave(*node, *seat),
        }
    }
}

/// Determines the node's member id and cluster from its data directory, from its configuration, or
/// from the members to which it sends its join request.
fn begin(
    env: &Env,
    checked: &Checked,
    ask_each_member: impl FnOnce(&[String], &JoinAsk) -> Result<model::Joined, JoinError>,
) -> Result<(Settings, Option<Joined>), StartError> {
    let restored_from = RestoredFrom::of(env, checked.dir());
    let restored_from = restored_from.map_err(|error| StartError::Data {
        kind: DataErrorKind::of_origin(&error),
        why: error.to_string(),
    })?;
    let checked = &checked.clone().restored_from(restored_from.as_ref());
    if let Some((node, cluster)) = owner_of_data(env, checked.dir())?
        && !is_joining(env, checked.dir())
    {
        let why = |why| StartError::Data {
            kind: DataErrorKind::Foreign,
            why: format!("{}: {why}", checked.dir().display()),
        };
        let mut settings =
            checked.belongs(node, cluster, || is_founded(env, checked.dir())).map_err(why)?;
        for (id, contact) in saved_contacts(env, checked.dir(), (node, cluster)) {
            settings.members.entry(id).or_insert(contact);
        }
        return Ok((settings, None));
    }
    let (addresses, replaces) = match checked.start_mode() {
        StartMode::Found { node, cluster, members } => {
            return Ok((checked.settings(*node, *cluster, members.clone()), None));
        }
        StartMode::Join { addresses, replaces } => (addresses, replaces.clone()),
    };
    let of_disk = |error: io::Error| StartError::Data {
        kind: DataErrorKind::of_io(&error),
        why: format!("{}: {error}", checked.dir().display()),
    };
    let disk = disk_to_join(env, checked.dir()).map_err(of_disk)?;
    let Contact { name, address } = checked.contact().clone();
    let ask = JoinAsk { disk, name, address, replaces };
    let joined = ask_each_member(addresses, &ask)?;
    save_answer(env, checked.dir(), &joined).map_err(of_disk)?;
    let settings = checked.settings(joined.node, joined.cluster, contacts(&joined));
    Ok((settings, Some(Joined { disk, founders: joined.founding })))
}

/// Runs blocking disk work on a separate thread, so that the work does not block an executor. The
/// work can check whether the caller still waits for the result.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new()
        .name("bowline-start".into())
        .spawn(move || {
            let outcome = work(&|| sender.is_closed());
            drop(sender.send(outcome));
        })
        .map_err(StartError::Thread)?;
    let fell = || StartError::Data {
        kind: DataErrorKind::Other,
        why: "the thread that opened it panicked".to_owned(),
    };
    receiver.await.unwrap_or_else(|_| Err(fell()))
}

const _: () = {
    const fn is_send_sync<T: Send + Sync>() {}
    is_send_sync::<Node>();
    is_send_sync::<Client>();
    is_send_sync::<Session>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blocking;
    use crate::model::{Command, Put};
    use crate::node::ReplyTo;
    use std::future::IntoFuture;
    use std::time::Duration;

    #[test]
    fn status_waiter_learns_that_the_driver_panicked() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let fall = ReplyTo::Call(Box::new(|_| panic!("a test's own panic")));
        node.shared.propose_until_applied(Command::Put(Put::new("k", "v")), fall);
        assert_eq!(node.wait_for(|_| false).block().role, Role::Stopped);
        assert!(node.stopped().block().to_string().contains("a test's own panic"));
    }

    /// Runs `work` on a thread and panics if it takes longer than 60 seconds.
    fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || sender.send(work()));
        let done = receiver.recv_timeout(Duration::from_secs(60)).expect("timed out");
        thread.join().unwrap().unwrap();
        done
    }

    #[test]
    fn status_predicate_may_call_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let kv = node.client();
        let status = within(move || {
            node.wait_for(|status| kv.put("k", "v").block().is_ok() && status.term == node.term())
                .block()
        });
        assert_ne!(status.role, Role::Stopped);
    }

    struct Falls;

    impl std::task::Wake for Falls {
        fn wake(self: Arc<Self>) {
            panic!("a test's own executor");
        }
    }

    #[test]
    fn panicking_executor_does_not_abort_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let kv = node.client();
        kv.put("k", "v").block().unwrap();
        let far = || kv.get("k").at_least(crate::Revision(1_000_000));
        let mut waiting = [far(), far()].map(|call| Box::pin(call.into_future()));
        let waker = std::task::Waker::from(Arc::new(Falls));
        for call in &mut waiting {
            assert!(call.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        }
        let fall = ReplyTo::Call(Box::new(|_| panic!("a test's own panic")));
        node.shared.propose_until_applied(Command::Put(Put::new("k", "v")), fall);
        assert!(node.stopped().block().to_string().contains("a test's own panic"));
        assert!(node.shutdown().block().hanging.is_empty());
        for call in waiting {
            assert!(matches!(call.block(), Err(Error::Stopped { .. })));
        }
    }
}

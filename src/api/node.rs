//! A member of a cluster, inside this program.

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
    Assembly, Bells, Contact, DataErrorKind, Health, Joined, NodeStatus, RestoredFrom, Role,
    Running, Settings, Shared, StopReason, contacts, disk_to_join, is_founded, is_joining, told_of,
    was_told, whose,
};
use crate::transport::{self, JoinError, MemoryHub, TcpBound, TcpHandle};

use super::checked::{Beginning, Checked};
use super::own_session::OwnSession;
use super::{Client, Config, Error, OpenSession, ReadyCall, ResumeSession, Session, StartError};

/// A member of a cluster, inside this program. It runs on threads of its own, needs no particular
/// async runtime, and stops when it is shut down or dropped.
///
/// End it with [`Node::shutdown`]. To the others a node that is dropped has crashed: what its sessions hold they wait for
/// until its time is over, leadership is not handed over, and it may take a second until its directory is free.
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
    link: Link,
    session: Arc<OwnSession>,
}

/// What connects a node with its peers.
enum Link {
    /// Sockets.
    Tcp(TcpHandle),
    /// Other nodes in this process, if any.
    Memory(MemoryHub, NodeId),
}

/// How a shutdown went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shutdown {
    /// The threads that had not ended after a second: they hang in the disk. Empty if all is well.
    pub hanging: Vec<&'static str>,
}

impl Node {
    /// Starts a member: opens its data, replays it, listens, and lets it look for the others. Returns as soon as it
    /// runs, which is before it has found the others and before there is a leader. [`Node::ready`] waits for that;
    /// other calls wait for it, too, up to their deadlines.
    ///
    /// A start whose future is dropped is given up: one that asks to [join](Config::join) ends within about a second,
    /// and any other as soon as it has come to its end; until then it holds the directory and the port. It may have
    /// been let into the cluster by then: as after [`JoinErrorKind::TimedOut`](crate::cluster::JoinErrorKind::TimedOut), a start on the
    /// same directory becomes that member.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing keeps running then.
    pub async fn start(config: Config) -> Result<Node, StartError> {
        let checked = config.check()?;
        off_thread(move |given_up| {
            let env = config.world().clone();
            let Some(listen) = checked.listen_address() else {
                return Self::open_in_memory(&checked, env, &MemoryHub::default(), given_up);
            };
            // The port is taken first: a second node on it must not touch the data.
            let tcp = config.tcp_settings();
            let bound = TcpBound::bind(&listen, tcp.clone())?;
            let ask = |addresses: &[String], ask: &JoinAsk| {
                transport::join(&env, &tcp, addresses, ask, checked.join_deadline(), given_up)
            };
            let (settings, joined) = begin(&env, &checked, ask)?;
            let assembly = Assembly::open(settings, env.clone(), Bells::silent(), joined)?;
            let contacts = assembly.contacts();
            for (id, places) in &contacts {
                // What others say of where somebody is keeps no node from starting.
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
            Self::run(assembly, Box::new(network), Link::Tcp(handle))
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
        off_thread(move |given_up| Self::open_in_memory(&checked, env, &hub, given_up)).await
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
        let assembly = Assembly::open(settings, env, Bells::silent(), joined)?;
        let network = hub.join(node, assembly.introducer(), assembly.receiver());
        Self::run(assembly, Box::new(network), Link::Memory(hub.clone(), node))
    }

    fn run(
        assembly: Assembly,
        network: Box<dyn crate::env::Network>,
        link: Link,
    ) -> Result<Node, StartError> {
        let assembled = assembly.finish(network)?;
        let shared = Arc::clone(&assembled.shared);
        let running = Running::start(assembled).map_err(StartError::Thread)?;
        let session = OwnSession::of(Client::new(Arc::clone(&shared)));
        Ok(Node { shared, running, link, session })
    }

    /// Waits until this node serves linearizable calls: there is a leader that a quorum follows, and this node has
    /// applied everything that was committed before. That is no promise for later: a leader may fail at any time, and
    /// calls then wait for the next one. Waits up to [`Config::call_deadline`], or as long as
    /// [`ReadyCall::deadline`] says.
    ///
    /// # Errors
    /// [`Error::Deadline`] if no leader served in time. [`Error::NotFounded`] if the cluster was not founded in time; it
    /// names the members that this node waits for. [`Error::Stopped`] if the node stops. [`Error::Busy`] if too many
    /// reads wait already.
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

    /// A client that works through this node.
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.shared))
    }

    /// The node's own session: opened on first use, shared by all who ask, opened anew when it has
    /// ended. When the program restarts, the old one ends at once.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn session(&self) -> Result<Session, Error> {
        self.session.get().await
    }

    /// For those who go on with the next one when it has ended.
    pub(crate) fn own_session(&self) -> &Arc<OwnSession> {
        &self.session
    }

    /// Opens a session beside the node's own, for what should live and die apart from it. It is closed
    /// when the last handle on it is dropped, and when the node is shut down. Unlike the node's own
    /// session it outlives a crash of the program, for its TTL: until then it can be
    /// [resumed](Node::resume_session), here or elsewhere.
    pub fn open_session(&self) -> OpenSession {
        OpenSession::on(self.client(), false)
    }

    /// Goes on with the session of a lease that was opened by [`Node::open_session`], in an earlier life of
    /// this program or on another node, or with any other lease but a node's own session: its keys stay,
    /// and this node keeps it alive. Answers when a first renewal, sent after the call, was confirmed:
    /// nothing is believed before.
    ///
    /// Several nodes may keep one lease alive, and all believe in it, rightly: it ends when the last
    /// of them stops renewing it, or when one of them closes it, for all. The others then believe in
    /// it until they have applied that. Who hands a session over should [detach](Session::detach) it
    /// first. A second handle on one node is a handle on the same session.
    ///
    /// All that hangs on the lease stays: also what an earlier life has taken from a queue and not acknowledged, which
    /// nobody else gets then as long as this session lives, since another node may work on it. Whoever resumes
    /// sessions takes from queues with one that it does not resume.
    ///
    /// # Errors
    /// [`Rejection::LeaseNotFound`](crate::Rejection::LeaseNotFound) if there is no such lease, or none any
    /// more. [`Error::NotResumed`] says what else is in the way. [`Error::Deadline`] if no renewal was
    /// confirmed in time, also because the lease's expiry is under way. The lease is left as it was,
    /// at most renewed.
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

    /// What the node says about itself, as of its last turn.
    pub fn status(&self) -> NodeStatus {
        self.shared.status.borrow().clone()
    }

    /// The node's term, as [`status`](Self::status) has it, without a copy of everything else: for whoever asks with
    /// every request.
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
        self.shared.status.borrow().term
    }

    /// How the node is: a verdict for programs, and a sentence for people. Asks nobody and never waits.
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
    /// assert_eq!(health.to_string(), "all is well: the node leads");
    /// # }
    /// # node.shutdown().block();
    /// ```
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// What the node measures of itself.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// node.client().put("k", "v").block()?;
    /// let metrics = node.metrics();
    /// assert!(metrics.snapshot().log_sync_seconds.quantile(0.99).is_some());
    /// let text = metrics.to_prometheus(); // for whoever serves /metrics
    /// assert!(text.contains(r#"bowline_requests_total{node="solo",kind="put",outcome="ok"} 1"#));
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn metrics(&self) -> Metrics {
        // A handle that outlives the node must not keep its state in memory.
        let shared = Arc::downgrade(&self.shared);
        Metrics::new(&self.shared.settings.contact.name, Arc::clone(&self.shared.meters))
            .refreshed_by(move || {
                if let Some(shared) = shared.upgrade() {
                    shared.read_gauges();
                }
            })
    }

    /// Waits until the node's status satisfies `condition`. Ends too when the node stops: its role says
    /// so.
    pub async fn wait_for(&self, mut condition: impl FnMut(&NodeStatus) -> bool) -> NodeStatus {
        let mut told = self.shared.status.subscribe();
        loop {
            // A copy: whoever judges may take his time, and ask this node.
            let status = told.borrow_and_update().clone();
            if status.role == Role::Stopped || condition(&status) {
                return status;
            }
            if told.changed().await.is_err() {
                return self.status();
            }
        }
    }

    /// Why the node has stopped, if it has.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.shared.stop_reason()
    }

    /// Waits until the node has stopped, and says why.
    pub async fn stopped(&self) -> StopReason {
        let mut stopped = self.shared.watch_stop();
        match stopped.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().expect("it was waited for"),
            Err(_) => StopReason::Shutdown,
        }
    }

    /// The present moment, on the clock that [`Session::valid_until`] and the locks count on.
    pub fn now(&self) -> Moment {
        self.shared.now()
    }

    /// Moves leadership to a member, or, with `None`, to the one that is best prepared. Does nothing if
    /// this node does not lead.
    ///
    /// # Errors
    /// [`Error::NoTransferee`], [`Error::Deadline`]; the leader stays.
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<(), Error> {
        Ok(self.shared.transfer(to, self.shared.deadline(None)).await?)
    }

    /// Which cluster it is a member of.
    pub fn cluster(&self) -> ClusterId {
        self.shared.settings.cluster
    }

    /// The members of the cluster, as this node's replica has them.
    pub fn members(&self) -> Arc<Members> {
        self.shared.reader.members()
    }

    /// Keeps a place for a member that is to come: whoever joins with this address (`host:port`) takes it, once, under
    /// the id that is answered. Until then [`Member::is_taken`](crate::cluster::Member::is_taken) is false, nobody votes in it, and no quorum counts it. A
    /// member that is to be a [`Voter`](MemberRole::Voter) is a learner first and is promoted, without being asked,
    /// as soon as it has caught up and enough of the voters are there; a [`Learner`](MemberRole::Learner) stays one.
    /// Who joins with another address becomes a learner as without this. Answers when this node has applied it; fine if
    /// a place is kept at the address already. [`remove_member`](Self::remove_member) gives it up.
    ///
    /// # Errors
    /// [`Error::Members`], with nothing changed; [`Error::Deadline`] and [`Error::Stopped`], when it may have come
    /// true.
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

    /// Says where a member is going to be (`host:port`), before it is there: the others look for it in both places, until
    /// it has been started with the new address. A member that is moved alone needs none of this, for it announces itself
    /// where it comes up; but when most of a cluster moves at once, nobody would be found who could hear of it. For a
    /// [place that is kept](Self::reserve_member), that is where it is from now on. With the address that it has, it is to stay
    /// after all. Answers when this node has applied it.
    ///
    /// # Errors
    /// [`Error::Members`] if that is no address; [`Rejection::NotMember`](crate::Rejection::NotMember);
    /// [`Rejection::AddressTaken`](crate::Rejection::AddressTaken); see [`Error`] for the rest.
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
            other => unreachable!("a move is answered by {other:?}"),
        }
    }

    /// Makes a learner vote. It must have caught up, and enough of the voters must be there. Answers
    /// when this node has applied it; fine if it votes already.
    ///
    /// # Errors
    /// [`Error::Members`], with nothing changed; [`Error::Deadline`] and [`Error::Stopped`], when it may have come
    /// true.
    pub async fn promote(&self, member: NodeId) -> Result<(), Error> {
        self.step(MembershipRequest::Promote(member)).await
    }

    /// Removes a member, for ever: its id is never used again, and its node stops when it hears of it.
    /// A leader that is to be removed hands the leadership over first. Answers when this node has
    /// applied it; fine if it is gone already. Refused if too few voters would be left that are there.
    ///
    /// # Errors
    /// [`Error::Members`], with nothing changed; [`Error::Deadline`] and [`Error::Stopped`], when it may have come
    /// true.
    pub async fn remove_member(&self, member: NodeId) -> Result<(), Error> {
        self.step(MembershipRequest::Remove(member)).await
    }

    async fn step(&self, membership_request: MembershipRequest) -> Result<(), Error> {
        self.shared.step(membership_request, self.shared.deadline(None)).await?;
        Ok(())
    }

    /// Writes a copy of this node's state to a file, while everything goes on: the store at one
    /// revision, read back and checked before the file has its name. What is there is replaced. The
    /// state is that of this replica, which may lag: for a copy of the newest, read something
    /// linearizably first. A node that has no state of its cluster yet makes none. One is written at a time, and four
    /// may wait.
    ///
    /// # Errors
    /// [`Error::Backup`], also if the disk does not answer for 30 seconds: until it does, all others are refused, too;
    /// [`Error::Busy`]; [`Error::Stopped`].
    pub async fn backup(&self, file: impl Into<PathBuf>) -> Result<SnapshotId, Error> {
        Ok(self.shared.backup(file.into()).await?)
    }

    /// Flips one bit of a key's newest row in this node's memory, as failing memory would: for tests
    /// that the node notices. Answers with whether there is such a key.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub async fn rot(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.shared.rot(key.to_vec()).await?)
    }

    /// Stops the node: its sessions end, so that its locks are free at once, leadership is handed over,
    /// its threads end. Takes no longer than about a second, whatever the disk and the peers do. Whoever calls it after that
    /// is answered [`Error::Stopped`]; a second shutdown finds nothing to do.
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

    /// Stops the node as a crash would; does not wait for its end.
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

impl Link {
    fn stop(&self) {
        match self {
            Link::Tcp(handle) => handle.stop(),
            Link::Memory(hub, node) => hub.leave(*node),
        }
    }
}

/// Which member of which cluster a node is: its disk says so, or its configuration, or those that it
/// joins.
fn begin(
    env: &Env,
    checked: &Checked,
    ask_around: impl FnOnce(&[String], &JoinAsk) -> Result<model::Joined, JoinError>,
) -> Result<(Settings, Option<Joined>), StartError> {
    let restored_from = RestoredFrom::of(env, checked.dir());
    let restored_from = restored_from.map_err(|error| StartError::Data {
        kind: DataErrorKind::of_origin(&error),
        why: error.to_string(),
    })?;
    let checked = &checked.clone().restored_from(restored_from.as_ref());
    if let Some((node, cluster)) = whose(env, checked.dir())?
        && !is_joining(env, checked.dir())
    {
        let why = |why| StartError::Data {
            kind: DataErrorKind::Foreign,
            why: format!("{} {why}", checked.dir().display()),
        };
        let mut settings =
            checked.belongs(node, cluster, || is_founded(env, checked.dir())).map_err(why)?;
        for (id, contact) in told_of(env, checked.dir(), (node, cluster)) {
            settings.members.entry(id).or_insert(contact);
        }
        return Ok((settings, None));
    }
    let (addresses, replaces) = match checked.beginning() {
        Beginning::Found { node, cluster, members } => {
            return Ok((checked.settings(*node, *cluster, members.clone()), None));
        }
        Beginning::Join { addresses, replaces } => (addresses, replaces.clone()),
    };
    let of_disk = |error: io::Error| StartError::Data {
        kind: DataErrorKind::of_io(&error),
        why: format!("{}: {error}", checked.dir().display()),
    };
    let disk = disk_to_join(env, checked.dir()).map_err(of_disk)?;
    let Contact { name, address } = checked.contact().clone();
    let ask = JoinAsk { disk, name, address, replaces };
    let told = ask_around(addresses, &ask)?;
    was_told(env, checked.dir(), &told).map_err(of_disk)?;
    let settings = checked.settings(told.node, told.cluster, contacts(&told));
    Ok((settings, Some(Joined { disk, founders: told.founding })))
}

/// Runs what waits for the disk on a thread of its own, so that no executor waits for it. The work can ask whether
/// anybody still waits for what comes of it.
async fn off_thread<T: Send + 'static>(
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
        why: "the thread that opened it fell".to_owned(),
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
    fn who_waits_for_a_node_whose_driver_falls_hears_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let fall = ReplyTo::Call(Box::new(|_| panic!("a test's own panic")));
        node.shared.insist(Command::Put(Put::new("k", "v")), fall);
        assert_eq!(node.wait_for(|_| false).block().role, Role::Stopped);
        assert!(node.stopped().block().to_string().contains("a test's own panic"));
    }

    /// Ends in time, or says that it does not.
    fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || sender.send(work()));
        let done = receiver.recv_timeout(Duration::from_secs(60)).expect("it hangs");
        thread.join().unwrap().unwrap();
        done
    }

    #[test]
    fn who_judges_a_status_may_ask_the_node_and_keeps_it_from_nothing() {
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
    fn executors_that_panic_do_not_take_the_process_with_them_when_a_driver_falls() {
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
        node.shared.insist(Command::Put(Put::new("k", "v")), fall);
        assert!(node.stopped().block().to_string().contains("a test's own panic"));
        assert!(node.shutdown().block().hanging.is_empty());
        for call in waiting {
            assert!(matches!(call.block(), Err(Error::Stopped { .. })));
        }
    }
}

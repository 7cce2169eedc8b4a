//! [`ElectionView`]: who leads an election, as known to this node.

use bytes::Bytes;

use crate::api::{Client, Node};
use crate::lock_format::prefix_of;
use crate::model::{Compare, IntoBytes};

use super::observe::{Candidate, Leader, Observe, candidates};
use crate::recipes::lock::core::lock_table::LockTable;
use crate::recipes::lock::core::view;

/// A view of one election from this node, for code that does not run the campaign itself, such as
/// the handler of a request. Created by [`Node::election_view`]. Needs no session. Every method
/// reads local memory only and never waits; only the stream of [`ElectionView::observe`] does. So a
/// view also answers while the node has no quorum.
///
/// The leader of an election is not the leader of the consensus. Your program campaigns to lead an
/// election ([`Node::leader_task`], [`Session::election`](crate::Session::election)). The members
/// of the cluster elect the leader of the consensus among themselves ([`Node::is_leader`]). The two
/// are often different processes.
#[derive(Clone, Debug)]
pub struct ElectionView {
    client: Client,
    name: Bytes,
}

impl Node {
    /// Returns a view of the election `name`, which need not have candidates yet.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let reports = node.election_view("reports");
    /// let task = node.leader_task("reports", "10.0.0.7:9000");
    /// let leads = async |_| (reports.is_leader(), reports.leader().unwrap().value);
    /// assert_eq!(task.run(leads).block()?, (true, "10.0.0.7:9000".into()));
    /// assert!(!reports.is_leader());
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn election_view(&self, name: impl IntoBytes) -> ElectionView {
        ElectionView::on(self.client(), name.into_bytes())
    }
}

impl ElectionView {
    /// Creates a view on the client's node.
    pub(crate) fn on(client: Client, name: Bytes) -> Self {
        Self { client, name }
    }

    /// Returns the name of the election.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Reports whether a task of this node leads the election now. The result is true from the
    /// moment at which the task receives its [`Leadership`](crate::Leadership) until the leadership
    /// is resigned, dropped or lost. It is never true after
    /// [`Hold::valid_until`](crate::lock::Hold::valid_until). So the result is true on at most one
    /// node at a time, under the conditions of [`Hold`](crate::lock::Hold).
    ///
    /// The result may be outdated as soon as the call has returned. To write only as the leader,
    /// use [`ElectionView::still_leader`], or [`Hold::txn`](crate::lock::Hold::txn) of the
    /// leadership.
    pub fn is_leader(&self) -> bool {
        let shared = &self.client.shared;
        LockTable::of(shared).is_held_here(&prefix_of(&self.name), shared.now())
    }

    /// Returns conditions for your own transaction that hold only while this node's task leads, or
    /// `None` if no task of this node leads. With them, a handler of requests writes only as the
    /// leader: the store checks the conditions, so a process that has lost the leadership without
    /// noticing changes nothing.
    ///
    /// The keys are complete: pass the conditions to
    /// [`TxnCall::when_complete`](crate::TxnCall::when_complete). If they do not hold, the
    /// transaction changes nothing and its reply is not `succeeded`.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// # let reports = node.election_view("reports");
    /// # let handler = async |_| {
    /// // In a handler, while another task of this process leads:
    /// let Some(still_leader) = reports.still_leader() else { return Ok(false) };
    /// let put = Op::put("reports/last", "monday");
    /// let reply = kv.txn().when_complete(still_leader).then(put).commit().await?;
    /// # Ok::<bool, bowline::Error>(
    /// reply.succeeded
    /// # )
    /// # };
    /// # let done = node.leader_task("reports", "10.0.0.7:9000").run(handler).block()?;
    /// # assert!(done?);
    /// # assert!(reports.still_leader().is_none());
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn still_leader(&self) -> Option<Vec<Compare>> {
        let shared = &self.client.shared;
        LockTable::of(shared).still_held_here(&prefix_of(&self.name), shared.now())
    }

    /// Returns the leader that the local replica knows, or `None` if there is no candidate. The
    /// replica may lag behind the cluster, and a leader that has crashed is returned until its
    /// session expires. A node without a quorum does not learn of new leaders. So it may return
    /// itself although its leadership is lost: see [`ElectionView::leader_elsewhere`]. For a
    /// linearizable read, use [`Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Option<Leader> {
        let prefix = prefix_of(&self.name);
        let rows = view::rows(&self.client.shared, &prefix);
        candidates(rows, &prefix).into_iter().next().map(Candidate::into_leader)
    }

    /// Returns the leader to which a request can be redirected: like [`ElectionView::leader`], but
    /// `None` if the session of that leader belongs to this node. So a request that this node cannot
    /// serve is never redirected to this node.
    pub fn leader_elsewhere(&self) -> Option<Leader> {
        let shared = &self.client.shared;
        let (leader, me) = (self.leader()?, shared.state.status.borrow().id);
        (shared.reader.session_node(leader.lease) != Some(me)).then_some(leader)
    }

    /// Observes the leadership: first the leader that the local replica knows, at once, then every
    /// change. The last item is always the current state of the replica. Unlike
    /// [`Election::observe`](crate::Election::observe), the stream needs no session, and begins
    /// without a quorum. The first item may then be outdated. The missed changes follow when the
    /// node has a quorum again. [`LeaderEvent`](crate::LeaderEvent) explains what is reported after
    /// a crash.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let mut changes = node.election_view("reports").observe();
    /// assert_eq!(changes.next().block().unwrap()?.leader(), None);
    /// let election = node.session().block()?.election("reports");
    /// let leadership = election.campaign("10.0.0.7:9000").block()?;
    /// assert_eq!(changes.next().block().unwrap()?.leader().unwrap().value, "10.0.0.7:9000");
    /// leadership.resign().block()?;
    /// assert_eq!(changes.next().block().unwrap()?.leader(), None);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn observe(&self) -> Observe {
        Observe::local(self.client.clone(), prefix_of(&self.name))
    }
}

//! The election: a mutex whose holder is the leader. The value of its key identifies the leader.

use std::future::IntoFuture;
use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Error, Session, deadline_option};
use crate::lock_format::{MARK, prefix_of};
use crate::model::{IntoBytes, KeyRange, Put};

pub(crate) mod candidacy;
pub(crate) mod election_view;
pub(crate) mod leader_task;
pub(crate) mod observe;

use crate::recipes::lock::acquire::{Acquire, Enqueue, LockFuture};
use crate::recipes::lock::admin::LockAdminError;
use crate::recipes::lock::core::error::LockError;
use crate::recipes::lock::core::request::{LockRequest, WaitLimit};
use crate::recipes::lock::core::view::{self, LockEntry};
use crate::recipes::lock::guard::OfHold;
use crate::recipes::lock::guard_txn::GuardError;
use crate::recipes::lock::hold::{Hold, Released};
use observe::{Candidate, Leader, Observe};

/// An election: at most one leader of the election in the whole cluster. Created by
/// [`Session::election`].
///
/// An election and its leader belong to the program. They are independent of the leader of the
/// cluster's consensus ([`Node::is_leader`](crate::Node::is_leader)), which orders all writes. Any
/// node can have the leader of an election, and a cluster can have many elections.
///
/// # Time of a failover
///
/// - If the leader resigns, drops its [`Leadership`], or shuts its node down, the next candidate
///   leads after one commit.
/// - If the leader's process crashes, or is paused or partitioned, the next candidate leads once
///   the leader's session has expired. This takes up to one session TTL after the last renewal,
///   plus the lock delay of the session, if it has one. The default TTL is 5 s
///   ([`Config::session_ttl`](crate::Config::session_ttl)).
/// - A change of the consensus leader restarts the TTL. So if one process was both leaders and
///   crashes, add the time of the consensus election. It takes tens of milliseconds if the other
///   members notice that the process has ended, otherwise one to two
///   [`Config::election_timeout`](crate::Config::election_timeout).
/// - After a crash or a change of the consensus leader, the cluster waits for another tenth of the
///   TTL, in case its clocks run faster than that of the leader
///   ([`Config::drift_percent`](crate::Config::drift_percent)).
///
/// To fail over faster, use a shorter TTL: [`Config::session_ttl`](crate::Config::session_ttl) for
/// [`Node::leader_task`](crate::Node::leader_task), which uses the node's own session, or a session
/// for the election alone, `node.open_session().ttl(Duration::from_secs(2))`. Keep the TTL above 4
/// election timeouts and above the longest pause of the process, because a leader that is paused for
/// longer than the TTL loses its leadership.
#[derive(Clone, Debug)]
pub struct Election {
    session: Session,
    name: Bytes,
}

impl Session {
    /// Returns the election with this name. The candidates use the keys below `name/`.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let election = node.session().block()?.election("jobs/leader");
    /// let leadership = election.campaign("10.0.0.7:9000").block()?;
    /// assert_eq!(election.leader().block()?.unwrap().value, "10.0.0.7:9000");
    /// leadership.resign().block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn election(&self, name: impl IntoBytes) -> Election {
        Election { session: self.clone(), name: name.into_bytes() }
    }
}

impl Election {
    /// Starts a campaign, which waits until this candidate is the leader. The campaign fails when
    /// the session ends. Dropping the future withdraws the candidacy.
    pub fn campaign(&self, value: impl IntoBytes) -> Campaign {
        Campaign { election: self.clone(), value: value.into_bytes(), deadline: None }
    }

    /// Returns the name.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Returns the current leader, if there is one. The read is linearizable: it never returns a
    /// leader older than one that was observed anywhere before the call.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let prefix = prefix_of(&self.name);
        let rows = self.session.client().range(KeyRange::prefix(prefix.clone())).await?.kvs;
        let candidates = observe::candidates(rows, &prefix);
        Ok(candidates.into_iter().next().map(Candidate::into_leader))
    }

    /// Returns the candidates, the elected one first, as known to the local replica. The replica
    /// may lag behind the leader of the cluster. The value of a candidate is its
    /// [`LockEntry::reason`].
    ///
    /// # Errors
    /// Returns [`Error::Rejected`] if the name is not valid for an election.
    pub fn candidates(&self) -> Result<Vec<LockEntry>, Error> {
        view::list(self.session.shared(), &self.name)
    }

    /// Observes the leadership from now on: first the current state, then every change.
    /// [`LeaderEvent`](crate::LeaderEvent) explains what is reported after a crash.
    pub fn observe(&self) -> Observe {
        Observe::new(self.session.client(), prefix_of(&self.name))
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }
}

/// A call that campaigns for leadership; see [`Election::campaign`].
#[derive(Clone, Debug)]
#[must_use = "a campaign does nothing until it is awaited"]
pub struct Campaign {
    election: Election,
    value: Bytes,
    deadline: Option<Duration>,
}

impl Campaign {
    deadline_option! {
        /// Limits the wait. By default the campaign waits as long as the session lives. See
        /// [`LockCall::deadline`](crate::lock::LockCall::deadline) for the precision of the deadline.
    }
}

impl Campaign {
    /// Enqueues the candidate now. Returns a future that resolves to the leadership and can report
    /// its position in the queue. Dropping the future withdraws the candidacy.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let election = node.session().block()?.election("jobs/leader");
    /// let first = election.campaign("10.0.0.7:9000").enqueue()?;
    /// let second = election.campaign("10.0.0.8:9000").enqueue()?;
    /// first.block()?.resign().block()?;
    /// assert!(second.block()?.is_leader());
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns errors that are known immediately; see [`LockError`].
    pub fn enqueue(self) -> Result<Acquire<Leadership>, LockError> {
        let Campaign { election: Election { session, name }, value, deadline } = self;
        if value.starts_with(MARK) {
            return Err(LockError::ReservedValue);
        }
        let mut request = LockRequest::of_candidate(&session, name, value);
        request.wait = deadline.map_or(WaitLimit::Session, WaitLimit::For);
        Acquire::enqueue(request, None)
    }
}

impl Enqueue for Campaign {
    type Guard = Leadership;

    fn enqueue(self) -> Result<Acquire<Leadership>, LockError> {
        Campaign::enqueue(self)
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Leadership, LockError>;
    type IntoFuture = LockFuture<Campaign>;

    fn into_future(self) -> Self::IntoFuture {
        LockFuture::of(self)
    }
}

/// Leadership of an [`Election`], which is not the leadership of the consensus. Dropping the value
/// resigns in the background. [`Leadership::resign`] also waits until the resignation is durable.
/// See [`Hold`] for the other methods.
#[derive(Debug)]
#[must_use = "leadership ends when this is dropped"]
pub struct Leadership(Hold);

impl Leadership {
    /// Reports whether this candidate is still the leader. Never true after [`Hold::valid_until`].
    pub fn is_leader(&self) -> bool {
        self.0.is_held()
    }

    /// Publishes a new value to the observers.
    ///
    /// # Errors
    /// Returns [`GuardError::NotHeld`] if this candidate is not the leader any more.
    pub async fn proclaim(&self, value: impl IntoBytes) -> Result<(), GuardError> {
        let value = value.into_bytes();
        if value.starts_with(MARK) {
            return Err(GuardError::ReservedValue);
        }
        let put = Put::new(self.0.key().clone(), value).keep_lease();
        self.0.txn().then(put).commit().await.map(drop)
    }

    /// Transfers the leadership to another candidate ([`Election::candidates`]). Candidates ahead
    /// of the successor are skipped. Like [`Guard::transfer`](crate::Guard::transfer).
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let election = node.session().block()?.election("jobs/leader");
    /// let leadership = election.campaign("the old one").block()?;
    /// # let session = node.open_session().block()?;
    /// # let other = session.election("jobs/leader");
    /// // Elsewhere:
    /// let next = other.campaign("the new one").enqueue()?;
    /// # while election.candidates()?.len() < 2 { std::thread::yield_now(); }
    /// leadership.transfer(&election.candidates()?[1]).block()?;
    /// assert!(next.block()?.is_leader());
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`LockAdminError`]. After an error this candidate is not the leader any more, and the
    /// next candidate leads.
    pub async fn transfer(self, successor: &LockEntry) -> Result<(), LockAdminError> {
        self.0.transfer(successor).await
    }

    /// Resigns and waits until the resignation is durable.
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the resignation was not confirmed in time. The node keeps
    /// trying.
    #[doc(alias = "release")]
    pub async fn resign(self) -> Result<Released, Error> {
        self.0.release().await
    }
}

impl Deref for Leadership {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.0
    }
}

impl OfHold for Leadership {
    fn of(hold: Hold) -> Self {
        Leadership(hold)
    }
}

impl From<Leadership> for Hold {
    fn from(leadership: Leadership) -> Self {
        leadership.0
    }
}

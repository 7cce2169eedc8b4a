//! The election: a mutex with a value. Who holds it leads, and the key's value says what it wants to be
//! known by.

use std::future::IntoFuture;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Client, Error, Session};
use crate::model::{KeyRange, Op, Put, PutLease, PutValue};

use super::acquire::{Acquire, Enqueue, LockFuture};
use super::error::LockError;
use super::guard::OfHold;
use super::guard_txn::GuardError;
use super::hold::{Hold, Released};
use super::line::prefix_of;
use super::lock_call::deadline_of;
use super::observe::{self, Candidate, Leader, Observe};
use super::operate::LockAdminError;
use super::stance::MARK;
use super::view::{self, LockEntry};

/// An election: at most one leader in the whole cluster. Made by [`Session::election`].
#[derive(Clone, Debug)]
pub struct Election {
    session: Session,
    name: Bytes,
}

impl Session {
    /// The election of this name. Keys below `name/` are its candidates.
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
    pub fn election(&self, name: impl Into<Bytes>) -> Election {
        Election { session: self.clone(), name: name.into() }
    }
}

impl Election {
    /// Stands for election until it leads. Ends when the session does; dropping the future withdraws
    /// the candidacy.
    pub fn campaign(&self, value: impl Into<Bytes>) -> Campaign {
        Campaign { election: self.clone(), value: value.into(), deadline: None }
    }

    /// Its name.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Who leads. Linearizable: nobody can have learned of a later leader before the call.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let prefix = prefix_of(&self.name);
        let rows = self.client().range(KeyRange::prefix(prefix.clone())).await?.kvs;
        let candidates = observe::candidates(rows, &prefix);
        Ok(candidates.into_iter().next().map(Candidate::into_leader))
    }

    /// Who stands, the leader first, as this node's replica has it: perhaps not the newest. What a
    /// candidate wants to be known by is its [`LockEntry::reason`].
    ///
    /// # Errors
    /// [`Error::Rejected`] if the name cannot be an election's.
    pub fn candidates(&self) -> Result<Vec<LockEntry>, Error> {
        view::line_of(self.session.shared(), &self.name)
    }

    /// Follows who leads, from now on: first what is the case, then every change of it. What "leads" means
    /// after a crash: see [`LeaderEvent`](crate::LeaderEvent).
    pub fn observe(&self) -> Observe {
        Observe::new(self.client(), prefix_of(&self.name))
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    fn client(&self) -> Client {
        Client::new(Arc::clone(self.session.shared()))
    }
}

/// Stands for election; see [`Election::campaign`].
#[derive(Debug)]
#[must_use = "a campaign does nothing until it is awaited"]
pub struct Campaign {
    election: Election,
    value: Bytes,
    deadline: Option<Duration>,
}

impl Campaign {
    /// Gives up after this long. Without it, waits as long as the session lives. Kept as a lock's:
    /// [`LockCall::deadline`](crate::lock::LockCall::deadline).
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl Campaign {
    /// Stands for election now. What comes back is the wish, which can be asked where it stands, and becomes the
    /// leadership when it is awaited; dropping it withdraws the candidacy.
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
    /// What can be said at once; see [`LockError`].
    pub fn enqueue(self) -> Result<Acquire<Leadership>, LockError> {
        let Campaign { election: Election { session, name }, value, deadline } = self;
        if value.starts_with(MARK) {
            return Err(LockError::ReservedValue);
        }
        let deadline = deadline_of(&session, deadline, false);
        Acquire::enter_with(&session, vec![name], &|| value.clone(), None, |ask| {
            ask.deadline = deadline
        })
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

/// Being the leader. Dropping it resigns, in the background; [`Leadership::resign`] waits for that.
/// Everything else is in [`Hold`].
#[derive(Debug)]
#[must_use = "leadership ends when this is dropped"]
pub struct Leadership(Hold);

impl Leadership {
    /// Whether this leads, in one word. Never says so after [`Hold::valid_until`].
    pub fn is_leader(&self) -> bool {
        self.0.is_held()
    }

    /// Says something new to the observers.
    ///
    /// # Errors
    /// [`GuardError::NotHeld`] if this does not lead any more.
    pub async fn proclaim(&self, value: impl Into<Bytes>) -> Result<(), GuardError> {
        let value = value.into();
        if value.starts_with(MARK) {
            return Err(GuardError::ReservedValue);
        }
        let put = Put {
            key: self.0.key().clone(),
            value: PutValue::Set(value),
            lease: PutLease::Keep,
            prev_kv: false,
        };
        self.0.txn().then(Op::Put(put)).commit().await.map(drop)
    }

    /// Gives the lead to one who stands for it ([`Election::candidates`]), past those before that one: as
    /// [`Guard::transfer`](crate::Guard::transfer) does.
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
    /// See [`LockAdminError`]: this leads no more then, and the next in line does.
    pub async fn transfer(self, successor: &LockEntry) -> Result<(), LockAdminError> {
        self.0.transfer(successor).await
    }

    /// Leads no more, and waits until that is durable.
    ///
    /// # Errors
    /// [`Error::Deadline`] if it could not be confirmed in time; the node goes on trying.
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

//! [`Lock`], [`Hold`] and [`Election`]: locks of all kinds, their holds, and elections, whose
//! leadership is a hold too.

use std::sync::Arc;
use std::time::Instant;

use bowline::lock::Hold as BowlineHold;
use bowline::{Bytes, Error, Leadership, LockError, LostReason, Node, Released, Session};
use pyo3::exceptions::PyValueError;
use pyo3::{Bound, FromPyObject, IntoPyObject, Py, PyErr, PyResult, Python, pyclass, pymethods};

use crate::args::{Data, Seconds};
use crate::call::Call;
use crate::errors::Failure;
use crate::process::Owned;
use crate::queue::Item;
use crate::rows::Answer;
use crate::slot::Slot;
use crate::stream::{Stream, leader_parts};
use crate::txn::{Condition, Step, compares, ops};

/// The session of a lock, an election or a queue.
#[derive(Clone)]
pub(crate) enum Source {
    /// The node's own session, which is replaced after it has ended.
    Own(Arc<Node>),
    Given(Session),
}

impl Source {
    pub(crate) async fn session(&self) -> Result<Session, Error> {
        match self {
            Source::Own(node) => node.session().await,
            Source::Given(session) => Ok(session.clone()),
        }
    }

    pub(crate) fn client(&self) -> bowline::Client {
        match self {
            Source::Own(node) => node.client(),
            Source::Given(session) => session.client(),
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Mutex,
    Read,
    Write,
    Permits { limit: u32, wants: u32 },
}

/// A lock that can be acquired.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Lock {
    source: Owned<Source>,
    name: Bytes,
    kind: Kind,
}

/// How a lock is acquired.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct AcquireOptions {
    timeout: Option<Seconds>,
    reason: Option<Data>,
    max_hold: Option<Seconds>,
    only_try: bool,
}

impl Lock {
    /// Returns a lock of the kind `mutex`, `read`, `write` or `semaphore`.
    pub(crate) fn new(
        source: Source,
        kind: &str,
        name: Data,
        (limit, wants): (u32, u32),
    ) -> PyResult<Self> {
        let kind = match kind {
            "mutex" => Kind::Mutex,
            "read" => Kind::Read,
            "write" => Kind::Write,
            "semaphore" => Kind::Permits { limit, wants },
            other => return Err(PyValueError::new_err(format!("invalid kind of lock: {other}"))),
        };
        Ok(Self { source: Owned::new(source), name: name.0, kind })
    }
}

#[pymethods]
impl Lock {
    /// Acquires the lock. The result is a hold, or `None` if it was only tried.
    fn acquire(&self, options: AcquireOptions) -> PyResult<Call> {
        let (source, name, kind) = (self.source.get()?.clone(), self.name.clone(), self.kind);
        Ok(Call::new(async move {
            let began = Instant::now();
            let session = source.session().await?;
            macro_rules! acquire {
                ($waits:expr, $tries:expr) => {{
                    let mut call = if options.only_try { $tries } else { $waits };
                    if let Some(Seconds(timeout)) = options.timeout {
                        call = call.deadline(timeout.saturating_sub(began.elapsed()));
                    }
                    if let Some(Data(reason)) = options.reason {
                        call = call.reason(reason);
                    }
                    if let Some(Seconds(max)) = options.max_hold {
                        call = call.max_hold(max);
                    }
                    call.await.map(BowlineHold::from)
                }};
            }
            let held = match kind {
                Kind::Mutex => {
                    let mutex = session.mutex(name);
                    acquire!(mutex.lock(), mutex.try_lock())
                }
                Kind::Read => {
                    let lock = session.rw_lock(name);
                    acquire!(lock.read(), lock.try_read())
                }
                Kind::Write => {
                    let lock = session.rw_lock(name);
                    acquire!(lock.write(), lock.try_write())
                }
                Kind::Permits { limit, wants } => {
                    let semaphore = session.semaphore(name, limit);
                    acquire!(semaphore.acquire_many(wants), semaphore.try_acquire_many(wants))
                }
            };
            match held {
                Ok(hold) => Ok(Some(Hold::new(Held::Lock(hold)))),
                Err(LockError::WouldBlock { .. }) if options.only_try => Ok(None),
                Err(error) => Err(Failure::from(error)),
            }
        }))
    }
}

/// A lock that is held, or a leadership.
enum Held {
    Lock(BowlineHold),
    Leadership(Leadership),
}

impl Held {
    fn hold(&self) -> &BowlineHold {
        match self {
            Held::Lock(hold) => hold,
            Held::Leadership(leadership) => leadership,
        }
    }

    fn into_hold(self) -> BowlineHold {
        match self {
            Held::Lock(hold) => hold,
            Held::Leadership(leadership) => leadership.into(),
        }
    }

    fn loss(&self) -> Option<LostReason> {
        match self.hold().state() {
            bowline::LockState::Lost(reason) => Some(reason),
            _ => None,
        }
    }
}

/// A held lock or leadership. It is released at the latest when Python frees the object.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Hold {
    slot: Owned<Arc<Slot<Held>>>,
    token: bowline::Token,
}

impl Hold {
    fn new(held: Held) -> Self {
        let token = held.hold().token();
        Self { slot: Owned::new(Slot::new(held)), token }
    }
}

#[pymethods]
impl Hold {
    #[getter]
    fn token(&self) -> Token {
        Token(self.token)
    }

    /// Returns why the hold has ended, or `None` while the hold is valid. Never blocks.
    fn lost(&self) -> PyResult<Option<Lost>> {
        let loss = match self.slot.get()?.borrow() {
            Ok(held) => held.loss(),
            Err(reason) => Some(reason),
        };
        Ok(loss.map(Lost::from))
    }

    /// Waits until the hold has ended.
    fn wait_lost(&self) -> PyResult<Call> {
        let slot = Arc::clone(self.slot.get()?);
        Ok(Call::new(async move {
            let lost = slot.until_lost(async |held: &Held| held.hold().lost().await).await;
            Ok::<_, Failure>(Lost::from(lost))
        }))
    }

    /// Releases the hold. The result is the reason if the hold was lost before.
    fn release(&self) -> PyResult<Call> {
        let slot = Arc::clone(self.slot.get()?);
        Ok(Call::new(async move {
            Ok::<_, Failure>(match slot.take().await?.into_hold().release().await? {
                Released::AlreadyLost(reason) => Some(Lost::from(reason)),
                _ => None,
            })
        }))
    }

    /// Runs a transaction that is applied only while the hold is valid.
    fn txn(
        &self,
        when: Vec<Condition>,
        then: Vec<Step>,
        or_else: Vec<Step>,
        ack: Vec<Py<Item>>,
        release: bool,
        timeout: Option<Seconds>,
    ) -> PyResult<Call> {
        let slot = Arc::clone(self.slot.get()?);
        let (when, then, or_else) = (compares(when), ops(then), ops(or_else));
        let items = ack.iter().map(|item| item.get().slot());
        let items: Vec<_> = items.collect::<Result<_, Failure>>()?;
        Ok(Call::new(async move {
            let mut txn = slot.borrow().map_err(Failure::lost)?.hold().txn().when_all(when);
            txn = then.into_iter().fold(txn, |txn, op| txn.then(op));
            txn = or_else.into_iter().fold(txn, |txn, op| txn.or_else(op));
            if let Some(Seconds(timeout)) = timeout {
                txn = txn.deadline(timeout);
            }
            for item in items {
                txn = txn.ack(item.take().await?);
            }
            let reply = match release {
                true => txn.commit_and_release(slot.take().await?.into_hold()).await?,
                false => txn.commit().await?,
            };
            Ok::<_, Failure>(Answer::Txn(reply))
        }))
    }

    /// Publishes a new value of the leader.
    fn proclaim(&self, value: Data) -> PyResult<Call> {
        let slot = Arc::clone(self.slot.get()?);
        Ok(Call::new(async move {
            let held = slot.borrow().map_err(Failure::lost)?;
            match &*held {
                Held::Leadership(leadership) => Ok(leadership.proclaim(value.0).await?),
                Held::Lock(_) => {
                    Err(Failure::new("RejectedError", "not applied: not a leadership"))
                }
            }
        }))
    }
}

/// An election.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Election {
    source: Owned<Source>,
    name: Bytes,
}

impl Election {
    pub(crate) fn new(source: Source, name: Data) -> Self {
        Self { source: Owned::new(source), name: name.0 }
    }
}

/// The leader of an election on its way to Python.
struct Leader(bowline::election::Leader);

impl<'py> IntoPyObject<'py> for Leader {
    type Target = pyo3::PyAny;
    type Output = Bound<'py, pyo3::PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::PyAny>> {
        Ok(leader_parts(py, &self.0)?.into_bound(py))
    }
}

#[pymethods]
impl Election {
    /// Waits until this candidate leads.
    fn campaign(&self, value: Data, timeout: Option<Seconds>) -> PyResult<Call> {
        let (source, name) = (self.source.get()?.clone(), self.name.clone());
        Ok(Call::new(async move {
            let began = Instant::now();
            let mut campaign = source.session().await?.election(name).campaign(value.0);
            if let Some(Seconds(timeout)) = timeout {
                campaign = campaign.deadline(timeout.saturating_sub(began.elapsed()));
            }
            Ok::<_, Failure>(Hold::new(Held::Leadership(campaign.await?)))
        }))
    }

    /// Reads the current leader.
    fn leader(&self) -> PyResult<Call> {
        let (source, name) = (self.source.get()?.clone(), self.name.clone());
        Ok(Call::new(async move {
            let election = source.session().await?.election(name);
            Ok::<_, Error>(election.leader().await?.map(Leader))
        }))
    }

    /// Observes the leaders from now on.
    fn observe(&self) -> PyResult<Call> {
        let (source, name) = (self.source.get()?.clone(), self.name.clone());
        Ok(Call::new(async move {
            let election = source.session().await?.election(name);
            Ok::<_, Error>(Stream::of_election(election.observe()))
        }))
    }
}

/// A fencing token.
#[pyclass(frozen, eq, ord, hash, module = "bowline")]
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(pub(crate) bowline::Token);

#[pymethods]
impl Token {
    #[new]
    fn new(revision: u64, handoff: u64) -> Self {
        Self(bowline::Token::new(revision.into(), handoff))
    }

    /// Parses the text form.
    #[staticmethod]
    fn parse(text: &str) -> PyResult<Self> {
        text.parse().map(Self).map_err(|error: bowline::lock::ParseTokenError| {
            PyValueError::new_err(error.to_string())
        })
    }

    #[getter]
    fn revision(&self) -> u64 {
        self.0.revision().get()
    }

    #[getter]
    fn handoff(&self) -> u64 {
        self.0.handoff()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Token({}, {})", self.revision(), self.handoff())
    }
}

/// Why a lock, a leadership or an item is not held any more.
#[pyclass(frozen, name = "LostReason", module = "bowline")]
pub(crate) struct Lost {
    kind: &'static str,
    text: String,
}

impl From<LostReason> for Lost {
    fn from(reason: LostReason) -> Self {
        let kind = match reason {
            LostReason::SessionEnded(_) => "session_ended",
            LostReason::KeyDeleted => "key_deleted",
            LostReason::Released => "released",
            LostReason::HeldTooLong => "held_too_long",
            LostReason::ForceReleased { .. } => "force_released",
            LostReason::HandedOver => "transferred",
            LostReason::NodeStopped(_) => "node_stopped",
            _ => "other",
        };
        Self { kind, text: reason.to_string() }
    }
}

#[pymethods]
impl Lost {
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!("LostReason({:?}, {:?})", self.kind, self.text)
    }
}

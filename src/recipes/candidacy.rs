//! A candidacy that runs in the background; Curator calls it a leader latch.
//!
//! ```text
//!             ┌────────── checked after a pause ───────────┐
//!             ▼                                            │
//!   start ─▶ Stands ─▶ Leads ─▶ (dropped, withdrawn)     Pauses
//!             ▲ │        │                                 ▲
//!             │ └────────┼── rejected or evicted ──────────┘
//!             └──────────┤ lost
//!                        └─▶ Over: the session has ended, or the request is rejected for good
//! ```
//!
//! It has no task of its own. The node's driver advances its lock request like any other, and the
//! methods of the candidacy pick up the result. They all use [`Candidacy::look`], which polls the
//! request with one waker that notifies all waiting tasks. No lock is held while other code is
//! called, so a woken task may call a method at once.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::api::Error;
use crate::model::Moment;

use super::acquire::Acquire;
use super::call::after_pause;
use super::election::{Election, Leadership};
use super::error::{LockError, LostReason};
use super::hold::Released;
use super::leader_task::SharedLeadership;

/// A standing candidacy. Created by [`Election::candidacy`]. To share it among tasks, put it into
/// an [`Arc`]. Dropping it resigns, or leaves the queue, in the background; [`Candidacy::withdraw`]
/// waits for that.
///
/// Guarantees:
///
/// - While [`Candidacy::is_leader`] is true, it is not true for any other candidate, provided that
///   leadership changes by resignation or expiry and that clocks stay within the drift bound. Each
///   call is decided by this machine's clock: a program that was paused or partitioned sees with
///   its first call after [`Hold::valid_until`](crate::lock::Hold::valid_until) that it is not the leader
///   any more.
/// - A term that is lost while the session lives (its key was deleted, or an operator released or
///   transferred it) has ended for good. The candidacy joins the end of the queue again, and its
///   next term has a higher token.
/// - If the program crashes, another candidate becomes the leader when the session has expired, or
///   earlier if the node restarts.
///
/// Limits: [`Candidacy::is_leader`] describes the time of the call. A program that is paused
/// directly afterwards acts on an outdated result. Work that must not be done by two leaders should
/// be written with [`Hold::txn`](crate::lock::Hold::txn) of [`Candidacy::leadership`], or carry its
/// token.
///
/// After a loss, the candidacy joins the queue again with the next call of any of its methods.
/// Without calls it does not. While it is queued it can be elected without any call; other
/// candidates then wait for it.
#[must_use = "the candidacy ends when this is dropped"]
pub struct Candidacy {
    election: Election,
    value: Bytes,
    state: Mutex<CandidacyState>,
    news: Arc<CandidacyUpdate>,
}

/// State of the candidacy; see the module.
enum CandidacyState {
    /// Queued, or granted without having been polled.
    Stands(Acquire<Leadership>),
    /// Leader, or lost without having been polled.
    Leads(Arc<Leadership>),
    /// Its request failed. It is repeated by the first call after this time.
    Pauses(Moment),
    /// It cannot be elected any more.
    Over(LockError),
    /// Another call is working on the state. `again` is set if a caller now waits for its result.
    InHand { again: bool },
}

/// Result of a check.
enum CandidacyView {
    Leads(Arc<Leadership>),
    Waits,
    Pauses(Moment),
    Over(LockError),
}

/// Notifies all waiting tasks that they should check again.
#[derive(Default)]
struct CandidacyUpdate(Notify);

impl Wake for CandidacyUpdate {
    fn wake(self: Arc<Self>) {
        self.0.notify_waiters();
    }
}

impl Election {
    /// Starts a candidacy in the background. It lasts until the returned value is dropped, and is
    /// renewed after every term that was lost while the session lives.
    ///
    /// Its value is always `value`: a value that was [proclaimed](Leadership::proclaim) in one term
    /// is not kept for the next.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let election = node.session().block()?.election("jobs/leader");
    /// let candidacy = election.candidacy("10.0.0.7:9000");
    /// let term = candidacy.elected().block()?;
    /// assert!(candidacy.is_leader());
    ///
    /// let rival = election.candidacy("10.0.0.8:9000");
    /// assert!(!rival.is_leader());
    /// candidacy.withdraw().block()?;
    /// assert!(rival.elected().block()?.token() > term.token());
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn candidacy(&self, value: impl Into<Bytes>) -> Candidacy {
        let (election, value) = (self.clone(), value.into());
        let state = enter(&election, &value);
        Candidacy { election, value, state: Mutex::new(state), news: Arc::default() }
    }
}

impl Candidacy {
    /// Reports whether it is the leader now. Never true after
    /// [`Hold::valid_until`](crate::lock::Hold::valid_until). Reads local memory and the clock only and
    /// never blocks, so it can be called often.
    pub fn is_leader(&self) -> bool {
        matches!(self.look(false), CandidacyView::Leads(_))
    }

    /// Returns the current term if it is the leader: for its token, its transactions, and to wait
    /// for its loss.
    pub fn leadership(&self) -> Option<Arc<Leadership>> {
        match self.look(false) {
            CandidacyView::Leads(leadership) => Some(leadership),
            CandidacyView::Waits | CandidacyView::Pauses(_) | CandidacyView::Over(_) => None,
        }
    }

    /// Waits until it is the leader, and returns the term; returns at once if it is the leader
    /// already. Any number of tasks may wait. Cancel-safe: dropping the future does not leave the
    /// queue.
    ///
    /// To observe all terms, use a loop. It sees terms in order, each one lost before the next one
    /// begins:
    ///
    /// ```
    /// # use bowline::{LockError, LostReason, election::Candidacy};
    /// # fn start() {}
    /// # fn stop(_: LostReason) {}
    /// async fn listen(candidacy: &Candidacy) -> LockError {
    ///     loop {
    ///         let term = match candidacy.elected().await {
    ///             Ok(term) => term,
    ///             Err(why) => return why,
    ///         };
    ///         start();
    ///         stop(term.lost().await);
    ///     }
    /// }
    /// ```
    ///
    /// If other tasks call methods at the same time, the next term may begin before `stop` has
    /// ended. [`Election::run_while_leader`] prevents that. A term that was lost before any method
    /// was called is not reported.
    ///
    /// # Errors
    /// Returns an error if it cannot be elected any more, above all [`LockError::SessionEnded`].
    /// Later calls return the same error. After temporary errors (no quorum, full queue or disk, an
    /// alarm) it retries with a short pause.
    pub async fn elected(&self) -> Result<Arc<Leadership>, LockError> {
        let shared = self.election.session().shared();
        loop {
            let mut news = pin!(self.news.0.notified());
            // Register first, so that changes after the check wake this task.
            news.as_mut().enable();
            match self.look(true) {
                CandidacyView::Leads(leadership) => return Ok(leadership),
                CandidacyView::Over(why) => return Err(why),
                CandidacyView::Waits => news.await,
                CandidacyView::Pauses(until) => tokio::select! {
                    biased;
                    () = news => {}
                    () = shared.sleep_until(until) => {}
                },
            }
        }
    }

    /// Returns the number of candidates ahead of it, as known to this node: 0 if it is the leader.
    /// Returns `None` while the position is not known, and while it is not queued.
    pub fn position(&self) -> Option<usize> {
        match self.look(false) {
            CandidacyView::Leads(_) => Some(0),
            CandidacyView::Waits => match &*self.lock() {
                CandidacyState::Stands(acquire) => acquire.position(),
                _ => None,
            },
            CandidacyView::Pauses(_) | CandidacyView::Over(_) => None,
        }
    }

    /// Resigns, or leaves the queue, and waits until that is durable: afterwards another candidate
    /// may lead, and this candidacy has no key in the queue and will not get one. Returns
    /// [`Released::AlreadyLost`] if it had ended by a loss before. Shares of the leadership that
    /// are still in use become lost. Dropping the future does not undo it.
    ///
    /// # Errors
    /// - [`Error::Deadline`]: it was not confirmed in time. The node keeps trying.
    /// - [`Error::Stopped`]: the node has stopped. The remaining keys go with the session.
    pub async fn withdraw(mut self) -> Result<Released, Error> {
        match self.take() {
            CandidacyState::Leads(leadership) => SharedLeadership(leadership).0.end().await,
            CandidacyState::Stands(acquire) => acquire.leave().await.map(|()| Released::Now),
            CandidacyState::Over(LockError::SessionEnded(end)) => {
                Ok(Released::AlreadyLost(LostReason::SessionEnded(end)))
            }
            CandidacyState::Over(LockError::NodeStopped(reason)) => {
                Ok(Released::AlreadyLost(LostReason::NodeStopped(reason)))
            }
            CandidacyState::Pauses(_) | CandidacyState::Over(_) | CandidacyState::InHand { .. } => {
                Ok(Released::Now)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, CandidacyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the state; there are no other callers any more.
    fn take(&mut self) -> CandidacyState {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(state, CandidacyState::InHand { again: false })
    }

    /// Advances the state and returns the result. A caller that waits (`waits`) and has registered
    /// for notifications before this call is notified of every later change.
    fn look(&self, waits: bool) -> CandidacyView {
        let leadership = match &mut *self.lock() {
            CandidacyState::InHand { again } => {
                *again |= waits;
                return CandidacyView::Waits;
            }
            CandidacyState::Over(why) => return CandidacyView::Over(why.clone()),
            CandidacyState::Pauses(until) if !self.is_due(*until) => {
                return CandidacyView::Pauses(*until);
            }
            CandidacyState::Leads(leadership) => Some(Arc::clone(leadership)),
            CandidacyState::Stands(_) | CandidacyState::Pauses(_) => None,
        };
        // Fast path for a leader that is asked often.
        if let Some(leadership) = leadership
            && leadership.is_leader()
        {
            return CandidacyView::Leads(leadership);
        }
        let mut state = {
            let mut state = self.lock();
            if let CandidacyState::InHand { again } = &mut *state {
                *again |= waits;
                return CandidacyView::Waits;
            }
            std::mem::replace(&mut *state, CandidacyState::InHand { again: false })
        };
        let sight = loop {
            state = self.move_on(state);
            let mut held = self.lock();
            // The waker may have fired while this call had taken the state, so that the woken task
            // found nothing.
            if matches!(
                (&*held, &state),
                (CandidacyState::InHand { again: true }, CandidacyState::Stands(_))
            ) {
                *held = CandidacyState::InHand { again: false };
                continue;
            }
            let sight = CandidacyView::of(&state);
            *held = state;
            break sight;
        };
        if !matches!(sight, CandidacyView::Waits) {
            self.news.0.notify_waiters();
        }
        sight
    }

    /// Reports whether a pause has ended. It has also ended if the node has stopped, where sleeping
    /// is not possible.
    fn is_due(&self, until: Moment) -> bool {
        let shared = self.election.session().shared();
        shared.now() >= until || shared.stop_reason().is_some()
    }

    /// Advances a state.
    fn move_on(&self, mut state: CandidacyState) -> CandidacyState {
        let waker = Waker::from(Arc::clone(&self.news));
        let mut context = Context::from_waker(&waker);
        loop {
            state = match state {
                CandidacyState::Stands(mut acquire) => {
                    match Pin::new(&mut acquire).poll(&mut context) {
                        Poll::Pending => return CandidacyState::Stands(acquire),
                        Poll::Ready(Ok(leadership)) => CandidacyState::Leads(Arc::new(leadership)),
                        Poll::Ready(Err(why)) => return failed(&self.election, why),
                    }
                }
                CandidacyState::Leads(leadership) => match leadership.is_lost() {
                    None => return CandidacyState::Leads(leadership),
                    Some(LostReason::SessionEnded(end)) => {
                        return CandidacyState::Over(LockError::SessionEnded(end));
                    }
                    Some(LostReason::NodeStopped(reason)) => {
                        return CandidacyState::Over(LockError::NodeStopped(reason));
                    }
                    Some(_) => enter(&self.election, &self.value),
                },
                CandidacyState::Pauses(until) if self.is_due(until) => {
                    enter(&self.election, &self.value)
                }
                rest @ (CandidacyState::Pauses(_)
                | CandidacyState::Over(_)
                | CandidacyState::InHand { .. }) => return rest,
            }
        }
    }
}

/// Enqueues the request.
fn enter(election: &Election, value: &Bytes) -> CandidacyState {
    match election.campaign(value.clone()).enqueue() {
        Ok(acquire) => CandidacyState::Stands(acquire),
        Err(why) => failed(election, why),
    }
}

/// Returns the state after a failed request.
fn failed(election: &Election, why: LockError) -> CandidacyState {
    match why.may_pass() {
        true => CandidacyState::Pauses(after_pause(election.session().shared())),
        false => CandidacyState::Over(why),
    }
}

impl CandidacyView {
    fn of(state: &CandidacyState) -> Self {
        match state {
            CandidacyState::Leads(leadership) => CandidacyView::Leads(Arc::clone(leadership)),
            CandidacyState::Stands(_) | CandidacyState::InHand { .. } => CandidacyView::Waits,
            CandidacyState::Pauses(until) => CandidacyView::Pauses(*until),
            CandidacyState::Over(why) => CandidacyView::Over(why.clone()),
        }
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        if let CandidacyState::Leads(leadership) = self.take() {
            drop(SharedLeadership(leadership));
        }
    }
}

impl std::fmt::Debug for Candidacy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Candidacy")
            .field("election", self.election.name())
            .field("value", &self.value)
            .finish_non_exhaustive()
    }
}

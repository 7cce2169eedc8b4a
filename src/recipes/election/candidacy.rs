//! A candidacy that runs in the background. Apache Curator calls this recipe a leader latch.
//!
//! ```text
//!             ┌────────── checked after a pause ───────────┐
//!             ▼                                            │
//!   start ─▶ Waits ──▶ Leads ─▶ (dropped, withdrawn)     Pauses
//!             ▲ │        │                                 ▲
//!             │ └────────┼── rejected or evicted ──────────┘
//!             └──────────┤ lost
//!                        └─▶ Over: the session has ended, or the request is rejected for good
//! ```
//!
//! A candidacy has no task of its own. The node's driver advances its lock request like any other
//! request, and the methods of the candidacy read the result. All methods use [`Candidacy::look`],
//! which polls the request with one waker that notifies all waiting tasks. No lock is held while a
//! waker runs, so a woken task may call a method at once.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::api::Error;
use crate::model::{IntoBytes, Moment};

use super::leader_task::SharedLeadership;
use crate::recipes::call::after_pause;
use crate::recipes::election::{Election, Leadership};
use crate::recipes::lock::acquire::Acquire;
use crate::recipes::lock::core::error::{LockError, LostReason};
use crate::recipes::lock::hold::Released;

/// A candidacy that lasts over many terms. Created by [`Election::candidacy`]. To share a candidacy
/// among tasks, put it into an [`Arc`]. Dropping the candidacy resigns or leaves the queue in the
/// background. [`Candidacy::withdraw`] also waits until this is durable.
///
/// Guarantees:
///
/// - [`Candidacy::is_leader`] is true for at most one candidate at a time, provided that leadership
///   changes by resignation or expiry and that clocks stay within the drift bound. Each call reads
///   this machine's clock. So after a pause or a partition, the first call after
///   [`Hold::valid_until`](crate::lock::Hold::valid_until) returns false.
/// - A term that is lost while the session lives (its key was deleted, or an operator released or
///   transferred it) has ended permanently. The candidacy joins the end of the queue again, and its
///   next term has a higher token.
/// - If the program crashes, another candidate becomes the leader when the session has expired, or
///   earlier if the node restarts.
///
/// Limits: the result of [`Candidacy::is_leader`] may be outdated as soon as the call has returned,
/// for example if the program is paused. If two leaders must never both do some work, write its
/// results with [`Hold::txn`](crate::lock::Hold::txn) of [`Candidacy::leadership`], or pass the
/// token of the leadership to the system that the work changes.
///
/// After a loss, the candidacy joins the queue again with the next call of any of its methods. If
/// no method is called, it does not join again. A queued candidacy can be elected without any call,
/// and other candidates then wait until it resigns.
#[must_use = "the candidacy ends when this is dropped"]
pub struct Candidacy {
    election: Election,
    value: Bytes,
    state: Mutex<CandidacyState>,
    news: Arc<CandidacyUpdate>,
}

enum CandidacyState {
    /// The request is queued, or was granted and has not been polled since.
    Waits(Acquire<Leadership>),
    /// The candidate is the leader, or lost the leadership and has not been polled since.
    Leads(Arc<Leadership>),
    /// The request failed. The first call after this time repeats the request.
    Pauses(Moment),
    /// The candidate cannot be elected any more.
    Over(LockError),
    /// Another call is working on the state. `again` is set if a second caller waits for the result
    /// of that call.
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
    /// Starts a candidacy in the background. The candidacy lasts until the returned value is
    /// dropped. After a term that was lost while the session lives, it joins the queue again.
    ///
    /// Each term starts with `value`. A value that was [proclaimed](Leadership::proclaim) in one
    /// term is not kept for the next term.
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
    pub fn candidacy(&self, value: impl IntoBytes) -> Candidacy {
        let (election, value) = (self.clone(), value.into_bytes());
        let state = enter(&election, &value);
        Candidacy { election, value, state: Mutex::new(state), news: Arc::default() }
    }
}

impl Candidacy {
    /// Reports whether this candidate is the leader now. Never true after
    /// [`Hold::valid_until`](crate::lock::Hold::valid_until). Reads local memory and the clock only
    /// and never blocks, so it can be called often.
    pub fn is_leader(&self) -> bool {
        matches!(self.look(false), CandidacyView::Leads(_))
    }

    /// If this candidate is the leader, returns the current term. Use the term for its token, its
    /// transactions, and to wait for its loss.
    pub fn leadership(&self) -> Option<Arc<Leadership>> {
        match self.look(false) {
            CandidacyView::Leads(leadership) => Some(leadership),
            CandidacyView::Waits | CandidacyView::Pauses(_) | CandidacyView::Over(_) => None,
        }
    }

    /// Waits until this candidate is the leader, and returns the term. Returns at once if this
    /// candidate is already the leader. Any number of tasks may wait. Cancel-safe: dropping the
    /// future does not leave the queue.
    ///
    /// To observe all terms, use a loop. The loop sees the terms in order, and each term is lost
    /// before the next term begins:
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
    /// Returns an error if this candidate cannot be elected any more, usually
    /// [`LockError::SessionEnded`]. Later calls return the same error. After temporary errors (no
    /// quorum, full queue or disk, an alarm) the candidacy retries after a short pause.
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

    /// Returns the number of candidates ahead of this one, as known to this node: 0 for the leader.
    /// Returns `None` while the position is not known, and while the candidate is not queued.
    pub fn position(&self) -> Option<usize> {
        match self.look(false) {
            CandidacyView::Leads(_) => Some(0),
            CandidacyView::Waits => match &*self.lock() {
                CandidacyState::Waits(acquire) => acquire.position(),
                _ => None,
            },
            CandidacyView::Pauses(_) | CandidacyView::Over(_) => None,
        }
    }

    /// Resigns or leaves the queue, and waits until this is durable. Afterwards another candidate
    /// may lead, and this candidacy has no key in the queue and will not get one. Returns
    /// [`Released::AlreadyLost`] if the leadership had already been lost. [`Leadership`] values
    /// that are still in use become lost. Dropping the future does not undo the withdrawal.
    ///
    /// # Errors
    /// - [`Error::Deadline`]: the withdrawal was not confirmed in time. The node keeps retrying in
    ///   the background.
    /// - [`Error::Stopped`]: the node has stopped. The remaining keys are deleted with the session.
    pub async fn withdraw(mut self) -> Result<Released, Error> {
        match self.take() {
            CandidacyState::Leads(leadership) => SharedLeadership(leadership).0.end().await,
            CandidacyState::Waits(acquire) => acquire.leave().await.map(|()| Released::Now),
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

    /// Takes the state. The caller has exclusive access, so no other call can be in progress.
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
            CandidacyState::Waits(_) | CandidacyState::Pauses(_) => None,
        };
        // Fast path for a leader that calls `is_leader` often.
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
        let view = loop {
            state = self.move_on(state);
            let mut held = self.lock();
            // The waker may have fired while this call had taken the state. The woken task then
            // found no state, so notify it again.
            if matches!(
                (&*held, &state),
                (CandidacyState::InHand { again: true }, CandidacyState::Waits(_))
            ) {
                *held = CandidacyState::InHand { again: false };
                continue;
            }
            let view = CandidacyView::of(&state);
            *held = state;
            break view;
        };
        if !matches!(view, CandidacyView::Waits) {
            self.news.0.notify_waiters();
        }
        view
    }

    /// Reports whether a pause has ended. On a stopped node no timers run, so every pause counts as
    /// ended.
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
                CandidacyState::Waits(mut acquire) => {
                    match Pin::new(&mut acquire).poll(&mut context) {
                        Poll::Pending => return CandidacyState::Waits(acquire),
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
        Ok(acquire) => CandidacyState::Waits(acquire),
        Err(why) => failed(election, why),
    }
}

/// Returns the state after a failed request.
fn failed(election: &Election, why: LockError) -> CandidacyState {
    match why.is_retryable() {
        true => CandidacyState::Pauses(after_pause(election.session().shared())),
        false => CandidacyState::Over(why),
    }
}

impl CandidacyView {
    fn of(state: &CandidacyState) -> Self {
        match state {
            CandidacyState::Leads(leadership) => CandidacyView::Leads(Arc::clone(leadership)),
            CandidacyState::Waits(_) | CandidacyState::InHand { .. } => CandidacyView::Waits,
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

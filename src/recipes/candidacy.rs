//! A candidacy that goes on by itself, beside the program: what Curator calls a leader latch.
//!
//! ```text
//!             ┌────────── looked at after a pause ─────────┐
//!             ▼                                            │
//!   stand ─▶ Stands ─▶ Leads ─▶ (dropped, withdrawn)     Pauses
//!             ▲ │        │                                 ▲
//!             │ └────────┼── could not be, or evicted ─────┘
//!             └──────────┤ lost
//!                        └─▶ Over: the session has ended, or the wish is refused for good
//! ```
//!
//! No task of its own: the node's driver moves the wish on, as it does every other, and whoever looks
//! finds what has come of it. All looks go through [`Candidacy::look`], and poll the wish with the one
//! waker that tells all who wait. Nothing of the state is locked while anything else is called, so that
//! who is woken may look at once, and from wherever it is woken.

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
use super::leader_task::Shared;

/// A standing candidacy; made by [`Election::candidacy`]. To share it among tasks, put it into an [`Arc`].
/// Dropping it resigns, or leaves the line, in the background; [`Candidacy::withdraw`] waits for that.
///
/// What it guarantees:
/// - While [`Candidacy::is_leader`] is true, no other leader's is, as long as leadership passes by
///   resignation or expiry and clocks keep within the drift bound. Each look is judged by this
///   machine's clock: a program that was paused, or is cut off from the others, sees at its first look
///   after [`Hold::valid_until`](crate::lock::Hold::valid_until) that it leads no more.
/// - A term that is lost while the session lives (its key was deleted, an operator broke it or handed it
///   over) is over for good: it stands again, at the end of the line, and the next term has a higher
///   token.
/// - A crash of the program is the end of its session, if nothing else: another leads when that has run
///   out, or when the node is back.
///
/// What it does not: an answer of "leads" is true when it is given, and a program that is paused right
/// behind it acts on what was. Let what must not be done by two be written through
/// [`Hold::txn`](crate::lock::Hold::txn) of [`Candidacy::leadership`], or carry its token.
///
/// It stands again as soon as somebody looks or waits: a call of any of its methods. Where nobody ever
/// does, it does not. With nobody looking it is still elected when its turn comes, and others wait.
#[must_use = "it stands no more when this is dropped"]
pub struct Candidacy {
    election: Election,
    value: Bytes,
    state: Mutex<State>,
    news: Arc<News>,
}

/// See the module.
enum State {
    /// It stands in line, or has come to its turn and nobody has looked.
    Stands(Acquire<Leadership>),
    /// It leads, or has led and nobody has looked.
    Leads(Arc<Leadership>),
    /// It could not stand, and stands again at a look after this.
    Pauses(Moment),
    /// It will lead no more.
    Over(LockError),
    /// One who looks has it in hand; `again` if somebody would wait now for what that comes to.
    InHand { again: bool },
}

/// What a look finds.
enum Sight {
    Leads(Arc<Leadership>),
    Waits,
    Pauses(Moment),
    Over(LockError),
}

/// Tells all who wait that it is time to look.
#[derive(Default)]
struct News(Notify);

impl Wake for News {
    fn wake(self: Arc<Self>) {
        self.0.notify_waiters();
    }
}

impl Election {
    /// Stands for election in the background, from this call on until what it returns is dropped, and
    /// again after every term that was lost while the session lives.
    ///
    /// It is always known by `value`: what was [proclaimed](Leadership::proclaim) in one term is not
    /// repeated in the next.
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
    /// Whether it leads, now. Never says so after
    /// [`Hold::valid_until`](crate::lock::Hold::valid_until). It looks at this node's memory and clock, and
    /// waits for nothing: ask as often as you like.
    pub fn is_leader(&self) -> bool {
        matches!(self.look(false), Sight::Leads(_))
    }

    /// The present term, if it leads: its token, its transactions, and the wait for its loss.
    pub fn leadership(&self) -> Option<Arc<Leadership>> {
        match self.look(false) {
            Sight::Leads(leadership) => Some(leadership),
            Sight::Waits | Sight::Pauses(_) | Sight::Over(_) => None,
        }
    }

    /// Waits until it leads, and gives the term: at once if it leads already. Any number of tasks may
    /// wait. Cancel-safe, and to give up waiting is not to leave the line.
    ///
    /// A listener is a loop, and tells of terms in order, each lost before the next begins:
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
    /// Where other tasks look meanwhile, the next term may have begun before `stop` has ended:
    /// [`Election::run_while_leader`] has it in order. A term that was over before anybody looked is
    /// not told.
    ///
    /// # Errors
    /// It can be elected no more, and goes on saying why: above all [`LockError::SessionEnded`]. What may
    /// pass (no quorum, a full queue or disk, an alarm) is tried again, after a short pause each time.
    pub async fn elected(&self) -> Result<Arc<Leadership>, LockError> {
        let shared = self.election.session().shared();
        loop {
            let mut news = pin!(self.news.0.notified());
            // What comes after the look is heard.
            news.as_mut().enable();
            match self.look(true) {
                Sight::Leads(leadership) => return Ok(leadership),
                Sight::Over(why) => return Err(why),
                Sight::Waits => news.await,
                Sight::Pauses(until) => tokio::select! {
                    biased;
                    () = news => {}
                    () = shared.sleep_until(until) => {}
                },
            }
        }
    }

    /// How many stand before it, as this node knows it: 0 if it leads. `None` while it is not known where it
    /// stands, and when it does not stand.
    pub fn position(&self) -> Option<usize> {
        match self.look(false) {
            Sight::Leads(_) => Some(0),
            Sight::Waits => match &*self.lock() {
                State::Stands(acquire) => acquire.position(),
                _ => None,
            },
            Sight::Pauses(_) | Sight::Over(_) => None,
        }
    }

    /// Resigns, or leaves the line, and waits until that is durable: another may lead then, and nothing of
    /// it is in the line or will be. [`Released::AlreadyLost`] if that was so before, by a loss. Shares of its
    /// leadership that are still about are lost. Giving up the wait does not take it back.
    ///
    /// # Errors
    /// [`Error::Deadline`] if it could not be confirmed in time; the node goes on trying.
    /// [`Error::Stopped`] if the node has stopped meanwhile: what it left goes with its session.
    pub async fn withdraw(mut self) -> Result<Released, Error> {
        match self.take() {
            State::Leads(leadership) => Shared(leadership).0.end().await,
            State::Stands(acquire) => acquire.leave().await.map(|()| Released::Now),
            State::Over(LockError::SessionEnded(end)) => {
                Ok(Released::AlreadyLost(LostReason::SessionEnded(end)))
            }
            State::Over(LockError::NodeStopped(reason)) => {
                Ok(Released::AlreadyLost(LostReason::NodeStopped(reason)))
            }
            State::Pauses(_) | State::Over(_) | State::InHand { .. } => Ok(Released::Now),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody else looks any more.
    fn take(&mut self) -> State {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(state, State::InHand { again: false })
    }

    /// What is the case; moves on whatever is due. Who `waits` for a change, and listens for news from
    /// before the look on, hears of every change after it.
    fn look(&self, waits: bool) -> Sight {
        let leadership = match &mut *self.lock() {
            State::InHand { again } => {
                *again |= waits;
                return Sight::Waits;
            }
            State::Over(why) => return Sight::Over(why.clone()),
            State::Pauses(until) if !self.is_due(*until) => return Sight::Pauses(*until),
            State::Leads(leadership) => Some(Arc::clone(leadership)),
            State::Stands(_) | State::Pauses(_) => None,
        };
        // The way of a leader who is asked often.
        if let Some(leadership) = leadership
            && leadership.is_leader()
        {
            return Sight::Leads(leadership);
        }
        let mut state = {
            let mut state = self.lock();
            if let State::InHand { again } = &mut *state {
                *again |= waits;
                return Sight::Waits;
            }
            std::mem::replace(&mut *state, State::InHand { again: false })
        };
        let sight = loop {
            state = self.move_on(state);
            let mut held = self.lock();
            // Its wake-up may have come, and gone to one who found nothing, before it is put back.
            if matches!((&*held, &state), (State::InHand { again: true }, State::Stands(_))) {
                *held = State::InHand { again: false };
                continue;
            }
            let sight = Sight::of(&state);
            *held = state;
            break sight;
        };
        if !matches!(sight, Sight::Waits) {
            self.news.0.notify_waiters();
        }
        sight
    }

    /// Whether a pause is over. A node that has stopped lets nobody sleep.
    fn is_due(&self, until: Moment) -> bool {
        let shared = self.election.session().shared();
        shared.now() >= until || shared.stop_reason().is_some()
    }

    /// What has become of a state by now.
    fn move_on(&self, mut state: State) -> State {
        let waker = Waker::from(Arc::clone(&self.news));
        let mut context = Context::from_waker(&waker);
        loop {
            state = match state {
                State::Stands(mut acquire) => match Pin::new(&mut acquire).poll(&mut context) {
                    Poll::Pending => return State::Stands(acquire),
                    Poll::Ready(Ok(leadership)) => State::Leads(Arc::new(leadership)),
                    Poll::Ready(Err(why)) => return failed(&self.election, why),
                },
                State::Leads(leadership) => match leadership.is_lost() {
                    None => return State::Leads(leadership),
                    Some(LostReason::SessionEnded(end)) => {
                        return State::Over(LockError::SessionEnded(end));
                    }
                    Some(LostReason::NodeStopped(reason)) => {
                        return State::Over(LockError::NodeStopped(reason));
                    }
                    Some(_) => enter(&self.election, &self.value),
                },
                State::Pauses(until) if self.is_due(until) => enter(&self.election, &self.value),
                rest @ (State::Pauses(_) | State::Over(_) | State::InHand { .. }) => return rest,
            }
        }
    }
}

/// Steps into line.
fn enter(election: &Election, value: &Bytes) -> State {
    match election.campaign(value.clone()).enqueue() {
        Ok(acquire) => State::Stands(acquire),
        Err(why) => failed(election, why),
    }
}

/// What a wish leaves that did not come true.
fn failed(election: &Election, why: LockError) -> State {
    match why.may_pass() {
        true => State::Pauses(after_pause(election.session().shared())),
        false => State::Over(why),
    }
}

impl Sight {
    fn of(state: &State) -> Self {
        match state {
            State::Leads(leadership) => Sight::Leads(Arc::clone(leadership)),
            State::Stands(_) | State::InHand { .. } => Sight::Waits,
            State::Pauses(until) => Sight::Pauses(*until),
            State::Over(why) => Sight::Over(why.clone()),
        }
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        if let State::Leads(leadership) = self.take() {
            drop(Shared(leadership));
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

//! The turn of one task: how far its wish has come, and the hold that it comes to.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use super::super::error::{LockError, LostReason};
use super::super::head_count::{HeadCounts, Part};
use super::super::order::ReleaseRequest;
use super::super::token::Token;
use super::{Act, Acts};
use crate::model::{Moment, Revision};

/// What one task was granted.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// The keys that make it the holder; one but for multi-locks.
    pub(crate) keys: Arc<[Bytes]>,
    /// The revision that made them.
    pub(crate) since: Revision,
    pub(crate) token: Token,
    /// What their rows say of what it may do.
    pub(crate) value: Bytes,
}

/// How far a turn has come.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// It is not known where it stands.
    Asked,
    /// It must wait, since this revision.
    Stands(Revision),
    /// It holds, or has held until `LostReason`.
    Holds(Grant),
    /// It will not hold.
    Failed(LockError),
}

/// The wish of one task, and its hold when it comes true.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Its number among those of its place.
    pub(super) number: u64,
    /// It would rather fail than wait.
    pub(crate) only_try: bool,
    /// When it gives up waiting, with the timer's number.
    pub(crate) deadline: Option<(Moment, u64)>,
    /// For how long it may hold.
    pub(crate) cap: Option<Duration>,
    /// It wants to know when it must wait.
    pub(crate) is_owned: bool,
    /// Others of its place held or waited before it when it came.
    is_behind: bool,
    counts: HeadCounts,
    /// How many guards stand for its hold.
    shares: AtomicU32,
    /// Its task has looked, and has what it holds.
    is_delivered: AtomicBool,
    state: Mutex<TurnState>,
    /// Told when what it holds is lost, or somebody asks for it.
    pub(crate) changed: Notify,
}

#[derive(Debug)]
struct TurnState {
    stage: Stage,
    waker: Option<Waker>,
    loss: Option<LostReason>,
    /// When it was told that it holds, if it had waited for others.
    handed: Option<Moment>,
    /// When the hold ends by its cap, with the timer's number.
    until: Option<(Moment, u64)>,
    request: Option<ReleaseRequest>,
}

impl TurnState {
    /// What it counts as.
    fn part(&self) -> Option<Part> {
        match &self.stage {
            Stage::Asked | Stage::Stands(_) => Some(Part::Waits),
            Stage::Holds(_) => self.loss.is_none().then_some(Part::Holds),
            Stage::Failed(_) => None,
        }
    }
}

/// Whether a hold may be held once more.
pub(crate) enum Share {
    /// It is, once more.
    Again,
    /// As often as it may be, it is.
    TooMany,
    /// It is not held any more.
    Over,
}

impl Turn {
    /// It has just come.
    pub(super) fn new(
        number: u64,
        only_try: bool,
        deadline: Option<(Moment, u64)>,
        cap: Option<Duration>,
        is_owned: bool,
        is_behind: bool,
        counts: HeadCounts,
    ) -> Self {
        let (stage, waker) = (Stage::Asked, None);
        let (handed, until) = (None, None);
        let state = TurnState { stage, waker, loss: None, handed, until, request: None };
        counts.moves(None, state.part());
        let (state, changed) = (Mutex::new(state), Notify::new());
        let (shares, is_delivered) = (AtomicU32::new(1), AtomicBool::new(false));
        Self {
            number,
            only_try,
            deadline,
            cap,
            is_owned,
            is_behind,
            counts,
            shares,
            is_delivered,
            state,
            changed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it has come; if that does not settle it, wakes this waker when that changes.
    pub(crate) fn stage(&self, waker: Option<&Waker>) -> Stage {
        let mut state = self.lock();
        let mut before = None;
        if let (Stage::Asked | Stage::Stands(_), Some(waker)) = (&state.stage, waker)
            && !state.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            before = state.waker.replace(waker.clone());
        }
        let stage = state.stage.clone();
        drop(state);
        // With the last of its wakers a task may go, and whatever it holds.
        drop(before);
        stage
    }

    /// Moves on; whoever waits for that is woken by `acts`.
    pub(crate) fn advance(&self, stage: Stage, acts: &mut Acts) {
        let mut state = self.lock();
        let before = state.part();
        state.stage = stage;
        self.counts.moves(before, state.part());
        acts.0.extend(state.waker.take().map(Act::Wake));
    }

    /// It is known that it must wait.
    pub(crate) fn stands(&self, since: Revision, acts: &mut Acts) {
        let mut state = self.lock();
        // It may have stopped waiting meanwhile.
        if !matches!(state.stage, Stage::Asked | Stage::Stands(_)) {
            return;
        }
        state.stage = Stage::Stands(since);
        if self.is_owned {
            acts.0.extend(state.waker.take().map(Act::Wake));
        }
    }

    /// Its task has what it holds now.
    pub(crate) fn delivered(&self) {
        self.is_delivered.store(true, Ordering::Relaxed);
    }

    /// Whether its task has what it holds.
    pub(crate) fn is_delivered(&self) -> bool {
        self.is_delivered.load(Ordering::Relaxed)
    }

    /// One more guard for its hold.
    pub(crate) fn share(&self, limit: u32) -> Share {
        let more = |shares| (shares > 0 && shares < limit).then(|| shares + 1);
        match self.shares.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Share::Again,
            Err(0) => Share::Over,
            Err(_) => Share::TooMany,
        }
    }

    /// Whether one guard alone stands for its hold.
    pub(crate) fn is_single(&self) -> bool {
        self.shares.load(Ordering::Relaxed) == 1
    }

    /// One guard less. Answers with how many are left.
    pub(crate) fn unshare(&self) -> u32 {
        self.shares.fetch_sub(1, Ordering::Relaxed) - 1
    }

    /// Why the hold is over, if that is known here.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        self.lock().loss.clone()
    }

    /// The hold is over; the first reason stays. Whoever waits for that is told by `acts`.
    pub(crate) fn lose(self: &Arc<Self>, loss: LostReason, acts: &mut Acts) {
        {
            let mut state = self.lock();
            let before = state.part();
            state.loss.get_or_insert(loss);
            self.counts.moves(before, state.part());
        }
        acts.0.push(Act::Notify(Arc::clone(self)));
    }

    /// Whether it has had to wait for others.
    pub(super) fn has_waited(&self) -> bool {
        self.is_behind || matches!(self.lock().stage, Stage::Stands(_))
    }

    /// It became the holder after others, and this node knew so at this moment.
    pub(crate) fn hand(&self, at: Moment) {
        self.lock().handed = Some(at);
    }

    /// When it became the holder after others, if it did.
    pub(crate) fn handed(&self) -> Option<Moment> {
        self.lock().handed
    }

    /// When the hold ends by its cap.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.lock().until.map(|(moment, _)| moment)
    }

    /// The hold ends then. Answers with the timer that stood for it before.
    pub(crate) fn set_until(&self, until: Option<(Moment, u64)>) -> Option<(Moment, u64)> {
        std::mem::replace(&mut self.lock().until, until)
    }

    /// What somebody asks of the holder.
    pub(crate) fn request(&self) -> Option<ReleaseRequest> {
        self.lock().request.clone()
    }

    /// Somebody asks something of the holder.
    pub(crate) fn ask(self: &Arc<Self>, request: ReleaseRequest, acts: &mut Acts) {
        self.lock().request = Some(request);
        acts.0.push(Act::Notify(Arc::clone(self)));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let before = self.lock().part();
        self.counts.moves(before, None);
    }
}

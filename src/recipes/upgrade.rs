//! A reader that wants to be the writer.
//!
//! It stands in the line a second time, by the rule of an upgrade, until it is the only reader that
//! holds. Then, in one entry, its first row says that it writes and the second one goes:
//!
//! ```text
//!   r1  w  r2  u(r1)       r1 reads; w waits for it, r2 for w; u may go on: r1 is the only one that reads
//!   W1  w  r2              r1 has become the writer where it stood; the others wait as before
//! ```
//!
//! In between, what keeps r2 from reading is w, which may go away at any time: so that entry demands
//! that the first that bars readers is still there, as it was. If it is not, the wish stands in line
//! anew.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::oneshot;

use crate::api::Effect;
use crate::model::{Command, Compare, KeyValue, Moment, Op, Reply, Revision, Txn};
use crate::mutant::{self, Mutant};
use crate::node::{CallError, CallResult, ReplyTo, Shared};
use crate::watch::waking;

use super::acquire::{Acquire, Asked};
use super::error::LockError;
use super::guard::OfHold;
use super::hold::Hold;
use super::line::{lock_of, prefix_of};
use super::lock_call::deadline_of;
use super::owner::Mode;
use super::rule::{Queue, Rule};
use super::rw_lock::{ReadGuard, WriteGuard};
use super::stance::Stance;
use super::view;

/// Becomes the writer; see [`ReadGuard::upgrade`]. Dropping it releases the reader too;
/// [`Upgrade::give_up`] gives the reader back.
#[must_use = "a reader does not become the writer until this is awaited"]
pub struct Upgrade {
    /// The reader, until this is over.
    read: Option<Hold>,
    caller: &'static Location<'static>,
    only_try: bool,
    /// After how long it gives up.
    deadline: Option<Duration>,
    why: Option<Bytes>,
    /// When it gives up; counted from the first poll.
    until: Option<Moment>,
    step: Step,
}

enum Step {
    Begins,
    /// Its row says that it writes, so that in line it would wait for itself: the entry by which it reads is on its
    /// way.
    Reads(Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>),
    /// In line.
    Waits(Acquire<Hold>),
    /// The only reader: the entry that makes it the writer is on its way. The second row is held until
    /// its outcome is known.
    Turns {
        answer: oneshot::Receiver<CallResult<Reply>>,
        /// Ends when nobody waits for it any longer.
        late: Pin<Box<dyn Future<Output = ()> + Send>>,
        _second: Hold,
    },
}

/// Why a reader did not become the writer. It still reads, if its lock is not lost.
#[derive(Debug, ThisError)]
#[error("{why}")]
#[non_exhaustive]
pub struct UpgradeError {
    /// The reader.
    pub guard: ReadGuard,
    /// Why: [`LockError::UpgradeTaken`], [`LockError::Lost`] if the reader is lost, and whatever may come
    /// of any wish.
    pub why: LockError,
}

impl UpgradeError {
    /// Whether anything was changed that stays. Where that is unknown its row may say that it writes, so that other readers
    /// wait until the guard is released, or upgraded after all.
    pub fn effect(&self) -> Effect {
        self.why.effect()
    }

    /// Whether the guard may become the writer later without anybody changing the program: others were reading, or the
    /// cluster had no quorum.
    pub fn is_transient(&self) -> bool {
        self.why.is_transient()
    }
}

impl Upgrade {
    pub(super) fn new(read: Hold, caller: &'static Location<'static>, only_try: bool) -> Self {
        let (deadline, why, until, step) = (None, None, None, Step::Begins);
        Self { read: Some(read), caller, only_try, deadline, why, until, step }
    }

    /// Gives up after this long. Without it, waits as long as the session lives.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }

    /// Says why, to whoever looks at the line.
    pub fn reason(mut self, reason: impl Into<Bytes>) -> Self {
        self.why = Some(reason.into());
        self
    }

    /// Stays the reader. `None` after the end of the future, which has given the guard to somebody.
    pub fn give_up(mut self) -> Option<ReadGuard> {
        self.turn_back();
        self.read.take().map(ReadGuard::of)
    }

    /// If the row may have been rewritten meanwhile, it is rewritten back.
    fn turn_back(&mut self) {
        let (Some(read), Step::Turns { answer, .. }) = (&self.read, &mut self.step) else { return };
        answer.close();
        // If the answer is not there yet, whoever sends it finds that nobody waits for it.
        if let Ok(outcome) = answer.try_recv() {
            turn_back(read.session().shared(), read.restating(Rule::Read), &outcome);
        }
    }

    fn acquire(&mut self, read: &Hold) -> Result<Acquire<Hold>, LockError> {
        let asked = Asked {
            names: vec![lock_of(read.key())],
            rule: Rule::Upgrade(read.key().clone()),
            caller: self.caller,
            why: self.why.clone().unwrap_or_default(),
            owner: read.owner().cloned(),
            is_shared: false,
            only_try: self.only_try,
            deadline: self.until,
            cap: None,
        };
        Acquire::enqueue(read.session(), asked)
    }

    /// It is the only reader that holds: makes it the writer. `None` if it is that no more.
    fn turn(read: &Hold, second: Hold, until: Option<Moment>) -> Option<Step> {
        let bar = bar(read, &second)?;
        let mut txn = read.restating(Rule::Write);
        txn.compares.extend(second.conditions());
        if !mutant::is(Mutant::B20) {
            txn.compares.push(Compare::mod_revision(bar.key).eq(bar.mod_revision));
        }
        txn.success.push(Op::delete(second.key().clone()));
        let back = read.restating(Rule::Read);
        let (sender, answer) = oneshot::channel();
        let shared = read.session().shared();
        let weak = std::sync::Arc::downgrade(shared);
        let reply = ReplyTo::Call(Box::new(move |outcome: CallResult<Reply>| {
            if let Some(Err(outcome)) = waking(|| sender.send(outcome))
                && let Some(shared) = weak.upgrade()
            {
                // It was given up.
                turn_back(&shared, back, &outcome);
            }
        }));
        shared.insist(Command::Txn(txn), reply);
        let late = Box::pin(late(Arc::clone(shared), until));
        Some(Step::Turns { answer, late, _second: second })
    }

    /// Makes the row of a reader say that it reads.
    fn restate(read: &Hold, until: Option<Moment>) -> Step {
        let (sender, answer) = oneshot::channel();
        let session = read.session().clone();
        let shared = Arc::clone(session.shared());
        shared.insist(Command::Txn(read.downgrading()), ReplyTo::Waiting(sender));
        Step::Reads(Box::pin(async move {
            tokio::select! {
                biased;
                answer = answer => applied(answer.ok()).map(drop),
                end = session.ended() => Err(LockError::SessionEnded(end)),
                () = late(shared, until) => Err(LockError::Unavailable),
            }
        }))
    }

    /// What came of the entry: since when it writes; `Ok(None)` if the line had changed.
    fn turned(
        read: &Hold,
        outcome: Option<CallResult<Reply>>,
    ) -> Result<Option<Revision>, LockError> {
        match applied(outcome)? {
            Reply::Txn(reply) if reply.succeeded => Ok(Some(reply.revision)),
            // It was applied while this node was cut off, and a later state says what came of it.
            Reply::AppliedBefore { revision } => {
                let (row, _) = read.session().shared().reader.get(read.key());
                let writes = row.is_some_and(|row| {
                    row.mod_revision == revision
                        && Stance::rule_of(&row.key, &row.value) == Rule::Write
                });
                Ok(writes.then_some(revision))
            }
            _ => Ok(None),
        }
    }

    /// One step; `None` if it is to be polled again at once.
    fn advance(
        &mut self,
        read: &mut Hold,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(), LockError>>> {
        let lost = |read: &Hold| read.is_lost().map(LockError::Lost);
        match &mut self.step {
            Step::Begins => {
                if let Some(why) = lost(read) {
                    return Poll::Ready(Some(Err(why)));
                }
                // What the row says may be about to be taken back: an owner knows what it holds.
                let name = lock_of(read.key());
                if let Some(grant) = read.owner().and_then(|owner| owner.writes(&name, read)) {
                    read.holds_by(grant);
                    return Poll::Ready(Some(Ok(())));
                }
                // What made it a reader was refused, or is under way still. By another guard of its owner it might be
                // a writer that has not looked yet.
                if read.rule() == Rule::Write && read.parts().2.is_single() {
                    self.step = Self::restate(read, self.until);
                    return Poll::Ready(None);
                }
                self.step = Step::Waits(match self.acquire(read) {
                    Ok(acquire) => acquire,
                    Err(why) => return Poll::Ready(Some(Err(why))),
                });
                Poll::Ready(None)
            }
            Step::Reads(reading) => {
                let answer = ready!(reading.as_mut().poll(context));
                self.step = Step::Begins;
                Poll::Ready(answer.err().map(|why| Err(lost(read).unwrap_or(why))))
            }
            Step::Waits(acquire) => {
                let answer = ready!(Pin::new(acquire).poll(context));
                let second = match answer {
                    Ok(second) => second,
                    Err(why) => return Poll::Ready(Some(Err(lost(read).unwrap_or(why)))),
                };
                self.step = Self::turn(read, second, self.until).unwrap_or(Step::Begins);
                Poll::Ready(None)
            }
            Step::Turns { answer, late, .. } => {
                let outcome = match Pin::new(&mut *answer).poll(context) {
                    Poll::Ready(outcome) => outcome.ok(),
                    Poll::Pending => {
                        ready!(late.as_mut().poll(context));
                        // If it is not there now, whoever sends it finds that nobody waits, and takes the entry back.
                        answer.close();
                        let Ok(outcome) = answer.try_recv() else {
                            self.step = Step::Begins;
                            let why = LockError::Unavailable;
                            return Poll::Ready(Some(Err(lost(read).unwrap_or(why))));
                        };
                        Some(outcome)
                    }
                };
                self.step = Step::Begins;
                match Self::turned(read, outcome) {
                    Err(why) => Poll::Ready(Some(Err(why))),
                    Ok(None) => Poll::Ready(None),
                    Ok(Some(_)) if read.is_lost().is_some() => Poll::Ready(None),
                    Ok(Some(revision)) => {
                        read.writes_since(revision);
                        Poll::Ready(Some(Ok(())))
                    }
                }
            }
        }
    }
}

/// Ends when nobody waits for it any longer.
async fn late(shared: Arc<Shared>, until: Option<Moment>) {
    match until {
        Some(until) => shared.sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// The answer to an entry, if there is one.
fn applied(outcome: Option<CallResult<Reply>>) -> Result<Reply, LockError> {
    match outcome {
        Some(Ok(reply)) => Ok(reply),
        Some(Err(CallError::Stopped { reason, .. })) => Err(LockError::NodeStopped(reason)),
        Some(Err(error)) => Err(LockError::Store(error.into())),
        None => Err(LockError::Unavailable),
    }
}

/// Takes an entry back that has made a reader the writer, if it has, and its row has not changed since.
fn turn_back(shared: &Shared, mut back: Txn, outcome: &CallResult<Reply>) {
    let revision = match outcome {
        Ok(Reply::Txn(reply)) if reply.succeeded => reply.revision,
        Ok(Reply::AppliedBefore { revision }) => *revision,
        _ => return,
    };
    let Some(Op::Put(put)) = back.success.first() else { return };
    back.compares.push(Compare::mod_revision(put.key.clone()).eq(revision));
    shared.insist(Command::Txn(back), ReplyTo::Nobody);
}

/// The first row behind a reader, if it keeps all others from reading until the second row of the
/// reader does: as the replica has it now.
fn bar(read: &Hold, second: &Hold) -> Option<KeyValue> {
    let shared = read.session().shared();
    let rows = view::rows(shared, &prefix_of(&lock_of(read.key())));
    let mut queue = Queue::default();
    for row in &rows {
        let rule = Stance::rule_of(&row.key, &row.value);
        queue.insert((row.create_revision, row.key.clone()), rule);
    }
    let may_turn = queue.may_hold(&(second.since(), second.key().clone()));
    rows.into_iter().nth(1).filter(|_| may_turn)
}

impl Future for Upgrade {
    type Output = Result<WriteGuard, UpgradeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // After its end it stays as it is.
        let Some(mut read) = self.read.take() else { return Poll::Pending };
        if self.until.is_none() {
            self.until = deadline_of(read.session(), self.deadline, self.only_try);
        }
        loop {
            match self.advance(&mut read, context) {
                Poll::Pending => {
                    self.read = Some(read);
                    return Poll::Pending;
                }
                Poll::Ready(None) => {}
                Poll::Ready(Some(Ok(()))) => {
                    if let Some(owner) = read.owner() {
                        let names = [lock_of(read.key())];
                        owner.keep(&names, Mode::Write, &read);
                        owner.keep(&names, Mode::Read, &read);
                    }
                    return Poll::Ready(Ok(WriteGuard::of(read)));
                }
                Poll::Ready(Some(Err(why))) => {
                    let guard = ReadGuard::of(read);
                    return Poll::Ready(Err(UpgradeError { guard, why }));
                }
            }
        }
    }
}

impl Drop for Upgrade {
    /// The reader may be held by other guards too: what its row says must not bar readers then.
    fn drop(&mut self) {
        self.turn_back();
    }
}

impl std::fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upgrade").field("read", &self.read).finish_non_exhaustive()
    }
}

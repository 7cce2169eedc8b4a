//! Programs that use locks. They wait, hold, write under a guard, release, drop requests, and try to hold longer
//! than they may. They report to the judge whenever they believe that they hold a lock. Each primitive has its own
//! file. This file contains the code that all programs share.

mod contention;
mod counting;
mod election;
mod handing;
mod late;
mod leading;
mod multi;
mod mutex;
mod numbering;
mod orders;
mod owners;
mod passing;
mod permits;
mod queue;
mod reading;
mod resuming;
mod toolbox;

mod program;

pub(crate) use program::Program;

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;

use super::caller::SimCaller;
use super::judge::{CallId, EntryShare, HolderId, ReportedHold, WorkId};
use super::plan::{between, one_in};
use super::rng::Rng;
use super::workload::Scene;
use crate::api::{Effect, Error, Session};
use crate::env::Entropy;
use crate::model::{KeyValue, NodeId, Op};
use crate::recipes::{
    Guard, GuardError, GuardTxn, Hold, Leadership, LockEntry, LockError, LockState, LostReason,
    MultiGuard, Permit, ReadGuard, Released, WriteGuard,
};

/// Maximum time to wait for a lock.
const WAIT_MAX: Duration = Duration::from_secs(8);

/// A program on a node.
pub(crate) struct Player {
    pub(crate) scene: Scene,
    pub(crate) caller: SimCaller,
    pub(crate) node: NodeId,
    /// Index of the node in its world.
    pub(crate) at: usize,
    pub(crate) rng: Rng,
}

impl Player {
    /// Returns another player on the same node.
    fn again(&self) -> Self {
        let (scene, caller) = (self.scene.clone(), self.caller.clone());
        Self { scene, caller, node: self.node, at: self.at, rng: Rng::new(self.rng.next_u64()) }
    }

    /// Spawns a task that ends with the process.
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.scene.spawner.spawn(Some(self.at), task);
    }

    fn is_closing(&self) -> bool {
        self.scene.closing.get()
    }

    async fn think(&self) {
        self.scene.think(&self.rng).await;
    }

    async fn session(&self) -> Option<Session> {
        self.session_with(Duration::ZERO).await
    }

    /// Opens a session with this lock delay.
    async fn session_with(&self, delay: Duration) -> Option<Session> {
        let may_take = self.caller.deadline();
        let call = self.scene.judge.borrow_mut().call(self.node, "open session", may_take);
        let session = self.caller.session_with(self.scene.session_ttl, delay).await;
        self.scene.judge.borrow_mut().returned(call);
        if session.is_none() {
            self.think().await;
        }
        session
    }

    /// Returns a lock delay for a session. On average one in `without_delay` is zero.
    fn lock_delay(&self, without_delay: u64, delay_max: Duration) -> Duration {
        match one_in(&self.rng, without_delay) {
            true => Duration::ZERO,
            false => between(&self.rng, Duration::from_millis(1), delay_max),
        }
    }

    /// Opens sessions one after the other, and runs `turn` repeatedly in each session until the session has ended.
    /// `lock_delay` returns the lock delay of each session.
    async fn run_in_sessions(
        &self,
        lock_delay: impl Fn() -> Duration,
        mut turn: impl AsyncFnMut(&Session),
    ) {
        while !self.is_closing() {
            self.think().await;
            let Some(session) = self.session_with(lock_delay()).await else { continue };
            while session.end().is_none() && !self.is_closing() {
                turn(&session).await;
                self.think().await;
            }
            self.close(&session).await;
        }
    }

    /// Opens a session, with retries.
    pub(super) async fn session_surely(&self) -> Session {
        loop {
            if let Some(session) = self.session().await {
                return session;
            }
        }
    }

    /// Closes a session and waits.
    pub(super) async fn close(&self, session: &Session) {
        self.scene.close(self.node, session).await;
    }

    /// Acquires a lock with a new session, with retries.
    pub(super) async fn acquire_with_retries(
        &self,
        lock: &'static str,
    ) -> (Session, Holding<Guard>) {
        loop {
            let session = self.session_surely().await;
            let call = self.scene.judge.borrow_mut().call(self.node, "lock", WAIT_MAX);
            let guard = session.mutex(lock).lock().deadline(WAIT_MAX).await;
            self.scene.judge.borrow_mut().returned(call);
            if let Ok(guard) = guard {
                return (session, self.report_hold("lock", lock, guard));
            }
            self.close(&session).await;
        }
    }

    /// Waits for an acquisition. Sometimes gives up at once or a little later.
    async fn wait<H>(
        &self,
        lock: &'static str,
        attempt: impl IntoFuture<Output = Result<H, LockError>>,
    ) -> Result<H, GaveUp> {
        self.wait_as(lock, None, attempt).await
    }

    /// Like `wait`, for a piece of work.
    async fn wait_as<H>(
        &self,
        lock: &'static str,
        work: Option<WorkId>,
        attempt: impl IntoFuture<Output = Result<H, LockError>>,
    ) -> Result<H, GaveUp> {
        let (call, waiting) = {
            let mut judge = self.scene.judge.borrow_mut();
            let waiting = judge.attempts(lock, Program::group(lock), self.node, work);
            (judge.call(self.node, "lock", WAIT_MAX), waiting)
        };
        let mut attempt = pin!(attempt.into_future());
        let answer = self.wait_impatiently(attempt.as_mut(), 40, 8).await;
        let mut judge = self.scene.judge.borrow_mut();
        judge.returned(call);
        judge.gives_up(waiting);
        match answer {
            Some(Ok(held)) => Ok(held),
            Some(Err(why)) => Err(GaveUp::Told(why)),
            // Dropping the acquisition removes it from the lock queue.
            None => {
                judge.count("attempt cancelled");
                Err(GaveUp::Impatient)
            }
        }
    }

    /// Waits for a future. On average one in `impatient` calls gives up after less than `millis` milliseconds and
    /// returns `None`.
    async fn wait_impatiently<F: Future>(
        &self,
        mut future: Pin<&mut F>,
        millis: u64,
        impatient: u64,
    ) -> Option<F::Output> {
        let short = Duration::from_millis(self.rng.below(millis));
        let mut patience = pin!(self.scene.timers.sleep(short));
        let is_impatient = one_in(&self.rng, impatient);
        poll_fn(|context| {
            if let Poll::Ready(done) = future.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            if is_impatient && patience.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }

    /// Runs a future for at most this time and drops it if it has not completed.
    async fn for_at_most<T>(&self, time: Duration, what: impl Future<Output = T>) -> Option<T> {
        let (mut what, mut enough) = (pin!(what), pin!(self.scene.timers.sleep(time)));
        poll_fn(|context| match what.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => enough.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Returns how long to hold: sometimes longer than the session lives without renewals.
    fn while_held(&self) -> Duration {
        let most = match self.rng.below(10) {
            0 => self.scene.session_ttl * 2,
            1..4 => self.scene.session_ttl / 2,
            _ => Duration::from_millis(100),
        };
        between(&self.rng, Duration::ZERO, most)
    }

    /// Evicts an entry from its lock queue a little later, while the queue is used otherwise.
    fn evict_soon(&self, place: LockEntry) {
        let player = self.again();
        self.spawn(async move {
            let locks = player.caller.locks();
            let order = locks.force_release(&place, "it is too late");
            drop(player.for_at_most(WAIT_MAX, order.into_future()).await);
        });
    }

    /// Records in the judge that this program believes that it holds a lock. `what` is the name under which such holds
    /// are counted.
    pub(super) fn report_hold<H: LockingHeld>(
        &self,
        what: &'static str,
        lock: &'static str,
        held: H,
    ) -> Holding<H> {
        self.report_hold_as(what, lock, None, held)
    }

    /// Like `report_hold`, for a piece of work.
    fn report_hold_as<H: LockingHeld>(
        &self,
        what: &'static str,
        lock: &'static str,
        work: Option<WorkId>,
        held: H,
    ) -> Holding<H> {
        self.report_holds(what, &[lock], work, held)
    }

    /// Like `report_hold`, for several locks in the order of the keys of the hold.
    fn report_holds<H: LockingHeld>(
        &self,
        what: &'static str,
        locks: &[&'static str],
        work: Option<WorkId>,
        held: H,
    ) -> Holding<H> {
        let held = Rc::new(held);
        let mut judge = self.scene.judge.borrow_mut();
        let parts = locks.iter().zip(held.keys()).map(|(lock, key)| {
            (*lock, judge.record_hold(what, self.reported_hold(lock, key, work, &held)))
        });
        let parts = parts.collect();
        Holding { parts, held }
    }

    /// Records in the judge that an earlier hold continues as this one.
    fn report_continued_hold<H: LockingHeld>(&self, lock: &'static str, held: H) -> Holding<H> {
        let held = Rc::new(held);
        let reported_hold = self.reported_hold(lock, held.key(), None, &held);
        let id = self.scene.judge.borrow_mut().record_continued_hold(reported_hold);
        Holding { parts: vec![(lock, id)], held }
    }

    fn reported_hold<H: LockingHeld>(
        &self,
        lock: &'static str,
        key: &Bytes,
        work: Option<WorkId>,
        held: &Rc<H>,
    ) -> ReportedHold {
        let watched = held.clone();
        ReportedHold {
            lock,
            share: held.share(),
            node: self.node,
            key: key.clone(),
            since: held.since(),
            token: held.token(),
            lease: held.session().lease(),
            delay: held.session().lock_delay(),
            work,
            loss: Box::new(move || watched.loss()),
        }
    }

    /// Reads the row that a lock guards from this replica. The row contains the last write of the previous holder,
    /// because this replica has applied the grant, and the write precedes the grant. Returns `None` if the node has
    /// stopped.
    async fn guarded(&self, lock: &'static str) -> Option<Option<KeyValue>> {
        let (row, _) = self.caller.get_local(format!("guarded/{lock}").as_bytes()).await?;
        Some(row)
    }

    /// Reads a row and writes it under the lock right before the release. Sometimes drops the write before it
    /// completes. A dropped write may still be applied, but only until another program holds the lock.
    async fn update_at_last<H: LockingHeld>(&self, holding: &Holding<H>) {
        if !one_in(&self.rng, 6) {
            self.update(holding).await;
            return;
        }
        let key = Bytes::from(format!("guarded/{}", holding.lock()));
        let write = holding.held.txn().then(Op::put(key, self.scene.value("held")));
        let short = Duration::from_millis(self.rng.below(20));
        if self.for_at_most(short, write.commit()).await.is_none() {
            self.scene.judge.borrow_mut().count("guarded write given up");
        }
    }

    /// Reads a row and writes it under the lock.
    async fn update<H: LockingHeld>(&self, holding: &Holding<H>) -> LockingWritten {
        let lock = holding.lock();
        let Some(read) = self.guarded(lock).await else { return LockingWritten::Decided };
        self.write_back(holding, lock, read).await
    }

    /// Writes a row that was read under one of the locks.
    async fn write_back<H: LockingHeld>(
        &self,
        holding: &Holding<H>,
        lock: &'static str,
        read: Option<KeyValue>,
    ) -> LockingWritten {
        if one_in(&self.rng, 4) {
            self.scene.timers.sleep(Duration::from_millis(self.rng.below(200))).await;
        }
        let key = Bytes::from(format!("guarded/{lock}"));
        let value = self.scene.value("held");
        let txn = holding.held.txn().then(Op::put(key.clone(), value.clone()));
        let write = LockingWrite { of: key.clone(), key, value, read };
        self.write(holding, "guarded write", write, txn).await
    }

    /// Writes to a row other than the one that was read, under a lock that others may hold as well.
    async fn write_other_row<H: LockingHeld>(
        &self,
        holding: &Holding<H>,
        what: &'static str,
        read: Option<KeyValue>,
    ) {
        let of = Bytes::from(format!("guarded/{}", holding.lock()));
        let key = Bytes::from(format!("beside/{}", holding.lock()));
        let value = self.scene.value("seen");
        let txn = holding.held.txn().then(Op::put(key.clone(), value.clone()));
        self.write(holding, what, LockingWrite { of, key, value, read }, txn).await;
    }

    /// Performs a write under a lock.
    async fn write<H: LockingHeld>(
        &self,
        holding: &Holding<H>,
        what: &'static str,
        write: LockingWrite,
        txn: GuardTxn,
    ) -> LockingWritten {
        let LockingWrite { of, key, value, read } = write;
        let puts = [(key, value)];
        let floor = self.scene.judge.borrow().floor();
        let may_take = self.caller.deadline();
        let id = self.scene.judge.borrow_mut().call(self.node, what, may_take);
        let call = Calling { scene: &self.scene, id };
        let answer = if mutant!(N01) {
            let [(key, value)] = puts.clone();
            let plain = self.caller.client().txn().then(Op::put(key, value));
            plain.commit().await.map_err(GuardError::Store)
        } else {
            txn.commit().await
        };
        drop(call);
        let mut judge = self.scene.judge.borrow_mut();
        match answer {
            Ok(reply) => {
                judge.wrote(what, floor, reply.revision, &puts);
                judge.wrote_under_lock(&holding.parts, &of, read.as_ref(), reply.revision);
            }
            Err(GuardError::NotHeld) => {
                judge.not_applied(&puts);
                judge.count("guarded write refused");
                let loss = holding.held.loss();
                judge.expect(loss.is_some(), "K-GUARD", || {
                    format!("{what} under {:?} is refused, and that is held", holding.parts)
                });
            }
            Err(
                why
                @ (GuardError::ClaimLost | GuardError::ForeignGuard | GuardError::ReservedValue),
            ) => judge.expect(false, "K-GUARD", || format!("{what} is refused: {why}")),
            Err(GuardError::Store(error)) => match error.effect() {
                Effect::NotApplied => judge.not_applied(&puts),
                Effect::Unknown | Effect::Applied => {
                    judge.unknown();
                    return LockingWritten::Perhaps;
                }
            },
        }
        LockingWritten::Decided
    }

    /// Releases the hold: by a drop, or by a release that is awaited.
    pub(super) async fn release_hold<H: Release>(&self, holding: Holding<H>) {
        if one_in(&self.rng, 4) {
            return drop(self.report_end_of_hold(holding));
        }
        self.release_and_wait(holding).await;
    }

    /// Records that the program no longer considers the lock held, whatever the store replies later.
    pub(super) fn report_end_of_hold<H: LockingHeld>(&self, holding: Holding<H>) -> H {
        let Holding { parts, held } = holding;
        for (lock, id) in parts {
            self.scene.judge.borrow_mut().record_end_of_hold(lock, id);
        }
        Rc::into_inner(held).expect("the judge has given its share back")
    }

    /// Releases the hold and waits.
    pub(super) async fn release_and_wait<H: Release>(&self, holding: Holding<H>) {
        let lock = holding.lock();
        let held = self.report_end_of_hold(holding);
        let may_take = self.caller.deadline();
        let (keys, since, lease) = (held.keys().to_vec(), held.since(), held.session().lease());
        let call = self.scene.judge.borrow_mut().call(self.node, "unlock", may_take);
        let answer = held.release().await;
        let mut judge = self.scene.judge.borrow_mut();
        judge.returned(call);
        match answer {
            Ok(Released::Now) => {
                // If tasks share a queue entry, its key remains for the next task.
                if !Program::Contention.locks().contains(&lock) {
                    keys.iter().for_each(|key| judge.check_release(key, since, lease));
                }
                judge.count("unlock");
            }
            Ok(Released::StillHeld { .. }) => unreachable!("it has no owner"),
            Ok(Released::AlreadyLost(_)) => judge.count("lock lost"),
            Err(_) => judge.unknown(),
        }
    }
}

/// A call that ends for the judge when it is dropped.
struct Calling<'a> {
    scene: &'a Scene,
    id: CallId,
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.scene.judge.borrow_mut().returned(self.id);
    }
}

/// The reason why a wait ended without the lock.
#[derive(Debug)]
enum GaveUp {
    /// The program gave up.
    Impatient,
    /// The library returned an error.
    Told(LockError),
}

/// A write of one row under a lock.
struct LockingWrite {
    key: Bytes,
    value: Bytes,
    /// Key of the row that was read before, under the lock.
    of: Bytes,
    /// The row as it was read.
    read: Option<KeyValue>,
}

/// Whether the outcome of a write is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockingWritten {
    /// The write was applied, or will never be applied.
    Decided,
    /// The write may still be applied while its holder holds the lock.
    Perhaps,
}

/// A lock that a program believes that it holds, registered with the judge.
pub(super) struct Holding<H> {
    /// The locks and the judge's id of each hold.
    parts: Vec<(&'static str, HolderId)>,
    held: Rc<H>,
}

impl<H> Holding<H> {
    /// Returns the lock, or the first one of several.
    fn lock(&self) -> &'static str {
        self.parts[0].0
    }
}

/// A hold of any kind.
pub(super) trait LockingHeld: Deref<Target = Hold> + 'static {
    /// Returns the share of the lock.
    fn share(&self) -> EntryShare {
        EntryShare::All
    }

    /// Returns why the hold was lost, if it was.
    fn loss(&self) -> Option<LostReason> {
        match self.state() {
            LockState::Lost(loss) => Some(loss),
            LockState::Held(_) | LockState::Unconfirmed(_) => None,
        }
    }
}

/// A guard of any kind, which can be released.
pub(super) trait Release: LockingHeld {
    fn release(self) -> impl Future<Output = Result<Released, Error>>;
}

impl LockingHeld for Guard {}
impl LockingHeld for Leadership {}
impl LockingHeld for MultiGuard {}
impl LockingHeld for WriteGuard {}

impl LockingHeld for ReadGuard {
    fn share(&self) -> EntryShare {
        EntryShare::Read
    }
}

impl LockingHeld for Permit {
    fn share(&self) -> EntryShare {
        EntryShare::Permits(self.permits())
    }
}

macro_rules! released {
    ($($held:ident: $release:ident),*) => {$(
        impl Release for $held {
            async fn release(self) -> Result<Released, Error> {
                $held::$release(self).await
            }
        }
    )*};
}

released!(
    Guard: release,
    Leadership: resign,
    MultiGuard: release,
    WriteGuard: release,
    ReadGuard: release,
    Permit: release
);

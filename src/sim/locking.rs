//! Programs that want locks: they wait, hold, write under guard, let go, give up half-way, hold longer
//! than they may, and tell the judge whenever they believe to hold one.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;

use super::caller::Caller;
use super::judge::HolderId;
use super::plan::{between, one_in};
use super::rng::Rng;
use super::workload::Scene;
use crate::api::Session;
use crate::env::Entropy;
use crate::model::{NodeId, Op};
use crate::recipes::{Guard, GuardError, Released};

/// The locks that everybody wants.
pub(crate) const LOCKS: [&str; 2] = ["lock/a", "lock/b"];

/// How long the sessions of the holders live: short, so that many of them end.
const TTL: Duration = Duration::from_millis(2_500);

/// How long one waits for a lock before giving up.
const PATIENCE: Duration = Duration::from_secs(8);

/// One program that wants one lock, again and again.
struct Locker {
    scene: Scene,
    caller: Caller,
    node: NodeId,
    lock: &'static str,
    rng: Rng,
}

/// Starts a program that wants a lock.
pub(crate) fn start(
    scene: &Scene,
    caller: &Caller,
    node: NodeId,
    at: usize,
    lock: &'static str,
    rng: Rng,
) {
    let locker = Locker { scene: scene.clone(), caller: caller.clone(), node, lock, rng };
    scene.spawner.spawn(Some(at), locker.live());
}

/// Takes a lock once and lets it go, however long that takes.
pub(crate) async fn once(scene: &Scene, caller: &Caller, node: NodeId, lock: &'static str) {
    let (scene, caller, rng) = (scene.clone(), caller.clone(), Rng::new(node.get()));
    let locker = Locker { scene, caller, node, lock, rng };
    loop {
        let Some(session) = locker.session().await else { continue };
        if let Some(guard) = locker.lock(&session).await {
            locker.hold(guard, Duration::from_millis(1)).await;
            drop(session.close().await);
            return;
        }
    }
}

impl Locker {
    async fn live(self) {
        while !self.scene.closing.get() {
            self.scene.think(&self.rng).await;
            let Some(session) = self.session().await else { continue };
            while session.end().is_none() && !self.scene.closing.get() {
                self.turn(&session).await;
                self.scene.think(&self.rng).await;
                if one_in(&self.rng, 10) {
                    break;
                }
            }
            drop(session.close().await);
        }
    }

    async fn turn(&self, session: &Session) {
        let Some(guard) = self.lock(session).await else { return };
        let most = match self.rng.below(10) {
            0 => TTL * 2,
            1..4 => TTL / 2,
            _ => Duration::from_millis(100),
        };
        self.hold(guard, between(&self.rng, Duration::ZERO, most)).await;
    }

    async fn session(&self) -> Option<Session> {
        let may_take = self.caller.deadline();
        let call = self.scene.judge.borrow_mut().call(self.node, "open session", may_take);
        let session = self.caller.session(TTL).await;
        self.scene.judge.borrow_mut().returned(call);
        if session.is_none() {
            self.scene.think(&self.rng).await;
        }
        session
    }

    /// Waits for the lock; now and then gives up at once, or a little later.
    async fn lock(&self, session: &Session) -> Option<Guard> {
        let call = self.scene.judge.borrow_mut().call(self.node, "lock", PATIENCE);
        let mutex = session.mutex(self.lock);
        let mut wish = pin!(mutex.lock().deadline(PATIENCE).into_future());
        let short = Duration::from_millis(self.rng.below(40));
        let mut patience = pin!(self.scene.timers.sleep(short));
        let impatient = one_in(&self.rng, 8);
        let answer = poll_fn(|context| {
            if let Poll::Ready(answer) = wish.as_mut().poll(context) {
                return Poll::Ready(Some(answer));
            }
            if impatient && patience.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await;
        let mut judge = self.scene.judge.borrow_mut();
        judge.returned(call);
        match answer {
            Some(Ok(guard)) => Some(guard),
            Some(Err(_)) => None,
            // Dropping the wish leaves the line.
            None => {
                judge.count("wish given up");
                None
            }
        }
    }

    /// Holds the lock for a while, writes under its guard, and lets it go.
    async fn hold(&self, guard: Guard, time: Duration) {
        let guard = Rc::new(guard);
        let holder = {
            let watched = guard.clone();
            let mut judge = self.scene.judge.borrow_mut();
            judge.first_in_line(self.lock, guard.key(), guard.token().revision());
            judge.granted(self.lock, self.node, guard.token(), move || watched.is_held())
        };
        self.scene.timers.sleep(time).await;
        self.write_guarded(&guard).await;
        self.let_go(guard, holder).await;
    }

    async fn write_guarded(&self, guard: &Guard) {
        let (key, value) =
            (Bytes::from(format!("guarded/{}", self.lock)), self.scene.value("held"));
        let puts = [(key.clone(), value.clone())];
        let floor = self.scene.judge.borrow().floor();
        let may_take = self.caller.deadline();
        let call = self.scene.judge.borrow_mut().call(self.node, "guarded write", may_take);
        let answer = guard.txn().then(Op::put(key, value)).commit().await;
        let mut judge = self.scene.judge.borrow_mut();
        judge.returned(call);
        match answer {
            Ok(reply) => {
                judge.wrote("guarded write", floor, reply.revision, &puts);
                judge.first_in_line(self.lock, guard.key(), reply.revision);
            }
            Err(GuardError::NotHeld) => judge.not_applied(&puts),
            Err(GuardError::Store(error)) => match error.effect() {
                crate::api::Effect::NotApplied => judge.not_applied(&puts),
                crate::api::Effect::Unknown | crate::api::Effect::Applied => judge.unknown(),
            },
        }
    }

    async fn let_go(&self, guard: Rc<Guard>, holder: HolderId) {
        // From here on it does not believe any more, whatever the store will say.
        self.scene.judge.borrow_mut().released(self.lock, holder);
        let guard = Rc::into_inner(guard).expect("the judge has given its share back");
        if one_in(&self.rng, 4) {
            return drop(guard);
        }
        let may_take = self.caller.deadline();
        let (key, since) = (guard.key().clone(), guard.since());
        let call = self.scene.judge.borrow_mut().call(self.node, "unlock", may_take);
        let answer = guard.release().await;
        let mut judge = self.scene.judge.borrow_mut();
        judge.returned(call);
        match answer {
            Ok(Released::Now) => {
                judge.left_the_line(&key, since);
                judge.count("unlock");
            }
            Ok(Released::WasLost(_)) => judge.count("lock lost"),
            Err(_) => judge.unknown(),
        }
    }
}

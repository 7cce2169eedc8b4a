//! Programs that want locks: they wait, hold, write under guard, let go, give up half-way, hold longer
//! than they may, and tell the judge whenever they believe to hold one. One file a primitive; here is
//! what all of them do alike.

mod contention;
mod election;
mod mutex;
mod owners;

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;

use super::caller::Caller;
use super::judge::{Belief, HolderId, WorkId};
use super::plan::{between, one_in};
use super::rng::Rng;
use super::workload::Scene;
use crate::api::{Effect, Error, Session};
use crate::env::Entropy;
use crate::model::{KeyValue, NodeId, Op};
use crate::recipes::{
    Guard, GuardError, GuardTxn, Hold, Leadership, LockError, LockState, Loss, Released,
};

/// How long the sessions of the holders live: short, so that many of them end.
const TTL: Duration = Duration::from_millis(2_500);

/// How long one waits for a lock before giving up.
const PATIENCE: Duration = Duration::from_secs(8);

/// What programs do with locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Program {
    /// One task on each node wants one lock again and again.
    Mutex,
    /// Several tasks of each node share a session and want one lock.
    Contention,
    /// Each node campaigns, and observes.
    Election,
    /// Pieces of work take two locks, in one order or in any.
    Owners,
}

impl Program {
    /// All of them.
    pub(crate) const ALL: [Program; 4] =
        [Program::Mutex, Program::Contention, Program::Election, Program::Owners];

    /// The locks that it is about.
    pub(crate) fn locks(self) -> &'static [&'static str] {
        match self {
            Program::Mutex => &["lock/a", "lock/b"],
            Program::Contention => &["lock/c"],
            Program::Election => &["lock/e"],
            Program::Owners => &["lock/o", "lock/p", "lock/q", "lock/r"],
        }
    }

    /// Starts it on a node whose process has just started.
    pub(crate) fn start(self, player: &Player) {
        match (self, self.locks()) {
            (Program::Mutex, locks) => {
                locks.iter().for_each(|lock| mutex::start(player.again(), lock));
            }
            (Program::Contention, locks) => contention::start(player, locks[0]),
            (Program::Election, locks) => election::start(player.again(), locks[0]),
            (Program::Owners, locks) => owners::start(player, locks),
        }
    }

    /// Takes each of its locks once and lets it go, however long that takes.
    pub(crate) async fn once(self, player: &Player) {
        for lock in self.locks() {
            while !self.took_once(player, lock).await {}
        }
    }

    async fn took_once(self, player: &Player, lock: &'static str) -> bool {
        let Some(session) = player.session().await else { return false };
        let taken = match self {
            Program::Election => election::once(player, &session, lock).await,
            _ => mutex::once(player, &session, lock).await,
        };
        drop(session.close().await);
        taken
    }
}

/// A program on a node.
pub(crate) struct Player {
    pub(crate) scene: Scene,
    pub(crate) caller: Caller,
    pub(crate) node: NodeId,
    /// The place of the node in its world.
    pub(crate) at: usize,
    pub(crate) rng: Rng,
}

impl Player {
    /// Another one on the same node.
    fn again(&self) -> Self {
        let (scene, caller) = (self.scene.clone(), self.caller.clone());
        Self { scene, caller, node: self.node, at: self.at, rng: Rng::new(self.rng.next_u64()) }
    }

    /// Starts a task that ends with the process.
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
        let may_take = self.caller.deadline();
        let call = self.scene.judge.borrow_mut().call(self.node, "open session", may_take);
        let session = self.caller.session(TTL).await;
        self.scene.judge.borrow_mut().returned(call);
        if session.is_none() {
            self.think().await;
        }
        session
    }

    /// Opens a session, however long that takes.
    pub(super) async fn session_surely(&self) -> Session {
        loop {
            if let Some(session) = self.session().await {
                return session;
            }
        }
    }

    /// Takes a lock with a session of its own, however long that takes.
    pub(super) async fn take_surely(&self, lock: &'static str) -> (Session, Holding<Guard>) {
        loop {
            let session = self.session_surely().await;
            let call = self.scene.judge.borrow_mut().call(self.node, "lock", PATIENCE);
            let guard = session.mutex(lock).lock().deadline(PATIENCE).await;
            self.scene.judge.borrow_mut().returned(call);
            if let Ok(guard) = guard {
                return (session, self.believe("lock", lock, guard));
            }
            drop(session.close().await);
        }
    }

    /// Waits for what was wished for; now and then gives up at once, or a little later.
    async fn wait<H>(
        &self,
        lock: &'static str,
        wish: impl IntoFuture<Output = Result<H, LockError>>,
    ) -> Result<H, GaveUp> {
        self.wait_as(lock, None, wish).await
    }

    /// The same, for a piece of work.
    async fn wait_as<H>(
        &self,
        lock: &'static str,
        work: Option<WorkId>,
        wish: impl IntoFuture<Output = Result<H, LockError>>,
    ) -> Result<H, GaveUp> {
        let (call, waiting) = {
            let mut judge = self.scene.judge.borrow_mut();
            (judge.call(self.node, "lock", PATIENCE), judge.wishes(lock, self.node, work))
        };
        let mut wish = pin!(wish.into_future());
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
        judge.wishes_no_more(waiting);
        match answer {
            Some(Ok(held)) => Ok(held),
            Some(Err(why)) => Err(GaveUp::Told(why)),
            // Dropping the wish leaves the line.
            None => {
                judge.count("wish given up");
                Err(GaveUp::Impatient)
            }
        }
    }

    /// How long to hold: now and then longer than the session lives without renewals.
    fn while_held(&self) -> Duration {
        let most = match self.rng.below(10) {
            0 => TTL * 2,
            1..4 => TTL / 2,
            _ => Duration::from_millis(100),
        };
        between(&self.rng, Duration::ZERO, most)
    }

    /// Tells the judge that this program believes to hold a lock. `what` is how such holds are
    /// counted.
    pub(super) fn believe<H: Held>(
        &self,
        what: &'static str,
        lock: &'static str,
        held: H,
    ) -> Holding<H> {
        self.believe_as(what, lock, None, held)
    }

    /// The same, for a piece of work.
    fn believe_as<H: Held>(
        &self,
        what: &'static str,
        lock: &'static str,
        work: Option<WorkId>,
        held: H,
    ) -> Holding<H> {
        let held = Rc::new(held);
        let watched = held.clone();
        let belief = Belief {
            lock,
            node: self.node,
            key: held.key().clone(),
            since: held.since(),
            token: held.token(),
            work,
            loss: Box::new(move || watched.loss()),
        };
        let id = self.scene.judge.borrow_mut().believes(what, belief);
        Holding { lock, held, id }
    }

    /// Reads a row, and writes it under the lock.
    async fn update<H: Held>(&self, holding: &Holding<H>) {
        let Holding { lock, held, .. } = holding;
        let key = Bytes::from(format!("guarded/{lock}"));
        // What the last holder has written is here before the lock is.
        let Some((read, _)) = self.caller.get_local(&key).await else { return };
        if one_in(&self.rng, 4) {
            self.scene.timers.sleep(Duration::from_millis(self.rng.below(200))).await;
        }
        let value = self.scene.value("held");
        let txn = held.txn().then(Op::put(key.clone(), value.clone()));
        let write = Write { key, value, read };
        self.write(holding, "guarded write", write, txn).await;
    }

    /// Carries a write under a lock out.
    async fn write<H: Held>(
        &self,
        holding: &Holding<H>,
        what: &'static str,
        write: Write,
        txn: GuardTxn,
    ) {
        let Write { key, value, read } = write;
        let puts = [(key.clone(), value)];
        let floor = self.scene.judge.borrow().floor();
        let may_take = self.caller.deadline();
        let call = self.scene.judge.borrow_mut().call(self.node, what, may_take);
        let answer = txn.commit().await;
        let mut judge = self.scene.judge.borrow_mut();
        judge.returned(call);
        match answer {
            Ok(reply) => {
                judge.wrote(what, floor, reply.revision, &puts);
                let belief = (holding.lock, holding.held.key(), holding.held.since());
                judge.wrote_under_lock(belief, &key, read.as_ref(), reply.revision);
            }
            Err(GuardError::NotHeld | GuardError::NotOurs | GuardError::ReservedValue) => {
                judge.not_applied(&puts);
                judge.count("guarded write refused");
            }
            Err(GuardError::Store(error)) => match error.effect() {
                Effect::NotApplied => judge.not_applied(&puts),
                Effect::Unknown | Effect::Applied => judge.unknown(),
            },
        }
    }

    /// Lets go: drops what was held, or releases it and waits.
    pub(super) async fn let_go<H: Held>(&self, holding: Holding<H>) {
        if one_in(&self.rng, 4) {
            return drop(self.stop_believing(holding));
        }
        self.let_go_waiting(holding).await;
    }

    /// From here on it does not believe any more, whatever the store will say.
    pub(super) fn stop_believing<H: Held>(&self, holding: Holding<H>) -> H {
        let Holding { lock, held, id } = holding;
        self.scene.judge.borrow_mut().believes_no_more(lock, id);
        Rc::into_inner(held).expect("the judge has given its share back")
    }

    /// Releases what was held, and waits.
    pub(super) async fn let_go_waiting<H: Held>(&self, holding: Holding<H>) {
        let lock = holding.lock;
        let held = self.stop_believing(holding);
        let may_take = self.caller.deadline();
        let (key, since) = (held.key().clone(), held.since());
        let call = self.scene.judge.borrow_mut().call(self.node, "unlock", may_take);
        let answer = held.release().await;
        let mut judge = self.scene.judge.borrow_mut();
        judge.returned(call);
        match answer {
            Ok(Released::Now) => {
                // Among tasks that share a place the key stays for the next.
                if !Program::Contention.locks().contains(&lock) {
                    judge.left_the_line(&key, since);
                }
                judge.count("unlock");
            }
            Ok(Released::StillHeld { .. }) => unreachable!("it has no owner"),
            Ok(Released::WasLost(_)) => judge.count("lock lost"),
            Err(_) => judge.unknown(),
        }
    }
}

/// Why a wait has ended without the lock.
#[derive(Debug)]
enum GaveUp {
    /// The program did not want to wait any more.
    Impatient,
    /// The library says why.
    Told(LockError),
}

/// A write of one row that was read before.
struct Write {
    key: Bytes,
    value: Bytes,
    /// The row as it was read under the lock.
    read: Option<KeyValue>,
}

/// A lock that a program believes to hold, with the judge looking on.
pub(super) struct Holding<H> {
    lock: &'static str,
    held: Rc<H>,
    id: HolderId,
}

/// A guard of any kind.
pub(super) trait Held: Deref<Target = Hold> + 'static {
    fn release(self) -> impl Future<Output = Result<Released, Error>>;

    /// Why it is not held any more.
    fn loss(&self) -> Option<Loss> {
        match self.state() {
            LockState::Lost(loss) => Some(loss),
            LockState::Held(_) | LockState::Unconfirmed(_) => None,
        }
    }
}

impl Held for Guard {
    async fn release(self) -> Result<Released, Error> {
        Guard::release(self).await
    }
}

impl Held for Leadership {
    async fn release(self) -> Result<Released, Error> {
        Leadership::resign(self).await
    }
}

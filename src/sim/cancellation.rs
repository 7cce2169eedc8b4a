//! Wishes for locks that are dropped half-way, systematically: after each number of polls, with the
//! network failing from each message on that the node sends or gets meanwhile. Whatever is dropped
//! where: once the network is whole, or the session over, the lock is anybody's, and nothing is left
//! below its name.
//!
//! ```text
//!   rival holds (or nobody) ─▶ victim wishes, is polled k times ─▶ dropped ─▶ the network heals
//!                              └ from its n-th message on all, or that one, is lost ─┘
//!   ─▶ rival lets go ─▶ a third one gets the lock in time ─▶ the line is empty
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::locking::{Player, Release};
use super::net::{LostReason, NetConditions, SimNet};
use super::plan::{SESSION_TTL, index};
use super::rng::Rng;
use super::run::Failure;
use super::violation::Violation;
use super::workload::Scene;
use super::world::{World, WorldOptions};
use crate::api::Session;
use crate::env::Entropy;
use crate::recipes::LockError;

/// The lock, and the election, that everything is about.
const LOCK: &str = "lock/cancelled";

/// As few polls as this end every wish, where nothing is lost.
const POLLS_MAX: usize = 4;

/// More messages than this a wish does not need.
const MESSAGES_MAX: u64 = 9;

/// Once the network is whole and nobody holds the lock, the next one has it after this long at most.
/// Where a leader was cut off: an election, and what it takes to ask again.
const BOUND: Duration = Duration::from_secs(2);

/// And where the session of the dropped wish must end first.
const BOUND_OF_LOST: Duration = Duration::from_secs(4);

/// A trial that takes longer than this hangs.
const TRIAL_MAX: Duration = Duration::from_secs(60);

/// What is wished for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockAttemptKind {
    /// To wait for the lock.
    Lock,
    /// To wait for it, but not for long.
    LockUntil,
    /// To have it at once or not at all.
    TryLock,
    /// To lead.
    Campaign,
}

impl LockAttemptKind {
    /// All of them.
    pub const ALL: [LockAttemptKind; 4] = [
        LockAttemptKind::Lock,
        LockAttemptKind::LockUntil,
        LockAttemptKind::TryLock,
        LockAttemptKind::Campaign,
    ];
}

/// What becomes of messages that the node of the wish sends or gets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Break {
    /// One is lost.
    One,
    /// From one on all are lost, for less than an election takes.
    Short,
    /// From one on all are lost, for longer than the session lives.
    Long,
}

impl Break {
    /// All of them.
    pub const ALL: [Break; 3] = [Break::One, Break::Short, Break::Long];

    fn lasts(self) -> Duration {
        match self {
            Break::One | Break::Short => Duration::from_millis(400),
            Break::Long => Duration::from_millis(4_500),
        }
    }

    fn bound(self) -> Duration {
        match self {
            Break::One | Break::Short => BOUND,
            Break::Long => BOUND_OF_LOST,
        }
    }
}

/// A few hundred trials that have much in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cancellation {
    /// Decides delays and who is who.
    pub seed: u64,
    /// What is wished for.
    pub attempt: LockAttemptKind,
    /// What the network does.
    pub breaks: Break,
    /// Whether the wish is made on the leader.
    pub on_leader: bool,
    /// Whether somebody else holds the lock meanwhile.
    pub held: bool,
}

/// How wishes ended, counted.
#[derive(Clone, Debug, Default)]
pub struct Endings {
    /// By name.
    pub counts: BTreeMap<&'static str, u64>,
    /// The longest that the next one had to wait.
    pub longest: Duration,
    /// The hash of everything that happened.
    pub trace: u64,
}

/// One trial.
#[derive(Clone, Copy, Debug)]
struct Trial {
    case: Cancellation,
    /// So often the wish is polled.
    polls: usize,
    /// So many messages still pass.
    pass: u64,
}

/// Runs the trials of a case, one after another in one world.
///
/// # Errors
/// The invariant that broke.
pub fn run_cancellation(case: Cancellation) -> Result<Endings, Box<Failure>> {
    let options = WorldOptions {
        nodes: 3,
        net: NetConditions::default(),
        sync_min: Duration::from_micros(100),
        sync_max: Duration::from_millis(2),
        verbose: true,
    };
    let mut world = World::new(case.seed, options);
    let endings: Rc<RefCell<Endings>> = Rc::default();
    let told = all_trials(&mut world, case, &endings);
    let mut endings = endings.take();
    endings.trace = world.trace().hash();
    told.map(|()| endings).map_err(|violation| {
        let (at, trace) = (world.timeline().now(), world.trace().to_string());
        Box::new(Failure { seed: case.seed, at, violation, trace })
    })
}

fn all_trials(
    world: &mut World,
    case: Cancellation,
    endings: &Rc<RefCell<Endings>>,
) -> Result<(), Violation> {
    world.start_all()?;
    world.run_until(Duration::from_secs(3))?;
    let rng = Rng::new(case.seed);
    for polls in 0..=POLLS_MAX {
        for pass in 0..=MESSAGES_MAX {
            let trial = Trial { case, polls, pass };
            one_trial(world, trial, &rng, endings).map_err(|mut violation| {
                violation.detail = format!("{trial:?}: {}", violation.detail);
                violation
            })?;
        }
    }
    world.compare_rest()
}

fn one_trial(
    world: &mut World,
    trial: Trial,
    rng: &Rng,
    endings: &Rc<RefCell<Endings>>,
) -> Result<(), Violation> {
    let all = [0, 1, 2];
    let end = world.timeline().now() + TRIAL_MAX;
    if !world.run_while(end, |world| !world.is_settled(&all))? {
        return Violation::found("L-CONVERGE", world.describe());
    }
    let scene = Scene::new(
        world.judge().clone(),
        world.timers().clone(),
        world.timeline().clone(),
        world.spawner(),
        Duration::from_millis(5),
        SESSION_TTL,
    );
    let mut players: Vec<Player> = world
        .callers(&all)
        .map(|(at, node, caller)| {
            let rng = Rng::new(rng.next_u64());
            Player { scene: scene.clone(), caller, node, at, rng }
        })
        .collect();
    let leader = world.processes().find(|(_, process)| process.leads()).map_or(0, |(at, _)| at);
    let victim = match trial.case.on_leader {
        true => players.remove(leader),
        false => players.remove((leader + 1 + index(rng, 2)) % 3),
    };
    let others = (players.remove(0), players.remove(0));
    let stage = Stage {
        trial,
        net: world.net().clone(),
        victim,
        rival: others.0,
        third: others.1,
        endings: endings.clone(),
    };
    let done: Rc<Cell<bool>> = Rc::default();
    let is_done = done.clone();
    scene.spawner.spawn(None, async move {
        stage.play().await;
        done.set(true);
    });
    let end = world.timeline().now() + TRIAL_MAX;
    if !world.run_while(end, |_| !is_done.get())? {
        return Violation::found("C-NOHANG", "the trial does not come to its end");
    }
    Ok(())
}

/// Who plays what in a trial.
struct Stage {
    trial: Trial,
    net: SimNet,
    victim: Player,
    rival: Player,
    third: Player,
    endings: Rc<RefCell<Endings>>,
}

impl Stage {
    async fn play(&self) {
        let case = self.trial.case;
        let theirs = match case.held {
            true => Some(self.rival.take_surely(LOCK).await),
            false => None,
        };
        let session = self.victim.session_surely().await;
        let loss = match case.breaks {
            Break::One => LostReason { pass: self.trial.pass, lose: 1 },
            Break::Short | Break::Long => LostReason { pass: self.trial.pass, lose: u64::MAX },
        };
        self.net.lose(self.victim.node, Some(loss));
        let whole_again = self.now() + case.breaks.lasts();
        self.attempt(&session).await;
        self.rest(whole_again).await;
        self.net.lose(self.victim.node, None);
        if let Some((session, holding)) = theirs {
            self.rival.let_go(holding).await;
            self.rival.close(&session).await;
        }
        self.take_over().await;
        self.victim.close(&session).await;
    }

    fn now(&self) -> Duration {
        self.victim.scene.timeline.now()
    }

    async fn rest(&self, until: Duration) {
        self.victim.scene.timers.sleep(until.saturating_sub(self.now())).await;
    }

    fn ends(&self, how: &'static str) {
        *self.endings.borrow_mut().counts.entry(how).or_default() += 1;
    }

    async fn attempt(&self, session: &Session) {
        let short = Duration::from_millis(100);
        let mutex = session.mutex(LOCK);
        match self.trial.case.attempt {
            LockAttemptKind::Lock => self.poll_some(mutex.lock()).await,
            LockAttemptKind::LockUntil => self.poll_some(mutex.lock().deadline(short)).await,
            LockAttemptKind::TryLock => self.poll_some(mutex.try_lock()).await,
            LockAttemptKind::Campaign => {
                self.poll_some(session.election(LOCK).campaign("me")).await
            }
        }
    }

    /// Polls a wish so often, or as often as it is woken, and drops it, or what it has brought.
    async fn poll_some<H: Release>(&self, attempt: impl IntoFuture<Output = Result<H, LockError>>) {
        let patience = self.trial.case.breaks.lasts() + Duration::from_millis(200);
        let came = {
            let mut attempt = pin!(attempt.into_future());
            let mut late = pin!(self.victim.scene.timers.sleep(patience));
            let mut left = self.trial.polls;
            poll_fn(|context| {
                if left == 0 || late.as_mut().poll(context).is_ready() {
                    return Poll::Ready(None);
                }
                left -= 1;
                match attempt.as_mut().poll(context) {
                    Poll::Ready(came) => Poll::Ready(Some(came)),
                    Poll::Pending if left == 0 => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        };
        match came {
            None => self.ends("dropped"),
            Some(Err(_)) => self.ends("refused"),
            Some(Ok(held)) => self.end(held).await,
        }
    }

    /// Lets a lock go that was taken after all, in one way or another.
    async fn end<H: Release>(&self, held: H) {
        let holding = self.victim.believe("lock", LOCK, held);
        match self.trial.pass % 3 {
            0 => {
                self.ends("held, released");
                self.victim.let_go_waiting(holding).await;
            }
            1 => {
                self.ends("held, dropped");
                drop(self.victim.stop_believing(holding));
            }
            _ => {
                self.ends("held, release dropped");
                let held = self.victim.stop_believing(holding);
                let mut release = pin!(held.release());
                poll_fn(|context| {
                    let _: Poll<_> = release.as_mut().poll(context);
                    Poll::Ready(())
                })
                .await;
            }
        }
    }

    /// Somebody else gets the lock in time, and leaves nothing behind.
    async fn take_over(&self) {
        let began = self.now();
        let (session, holding) = self.third.take_surely(LOCK).await;
        let took = self.now() - began;
        self.third.let_go_waiting(holding).await;
        let judge = &self.third.scene.judge;
        let bound = self.trial.case.breaks.bound();
        judge.borrow_mut().expect(took <= bound, "K-LIVE", || {
            format!("after a dropped attempt {LOCK} was taken in {took:?}, not in {bound:?}")
        });
        self.third.close(&session).await;
        while judge.borrow().line_left(LOCK).is_some() {
            self.third.scene.timers.sleep(Duration::from_millis(50)).await;
            let left = judge.borrow().line_left(LOCK);
            let in_time = left.is_none() || self.now() - began <= bound;
            judge.borrow_mut().expect(in_time, "K-LEAK", || format!("there still is {left:?}"));
            if !in_time {
                return;
            }
        }
        let mut endings = self.endings.borrow_mut();
        endings.longest = endings.longest.max(self.now() - began);
    }
}

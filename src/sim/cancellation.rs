//! Systematic tests of lock acquisitions that are dropped before they complete. There is one trial for every
//! combination of two numbers: how often the acquisition is polled before it is dropped, and how many messages of its
//! node arrive before the network loses one. Depending on the case, only that message is lost, or all later messages
//! for a while too. Once the network has healed or the session has ended, other tasks must be able to acquire the lock,
//! and no key may be left below its name.
//!
//! ```text
//!   a rival holds or not    ─▶ victim enqueues, is polled k times ─▶ dropped ─▶ the network heals
//!                              └ its n-th message, or all messages from there on, are lost ─┘
//!   ─▶ rival releases ─▶ a third task gets the lock in time ─▶ the lock queue is empty
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::locking::{Player, Release};
use super::member_config::MemberConfig;
use super::net::{LossRule, NetConditions, SimNet};
use super::plan::{SESSION_TTL, index};
use super::rng::Rng;
use super::run::Failure;
use super::violation::Violation;
use super::workload::Scene;
use super::world::{World, WorldOptions};
use crate::api::Session;
use crate::env::Entropy;
use crate::recipes::LockError;

/// Name of the lock and of the election in all trials.
const LOCK: &str = "lock/cancelled";

/// Number of polls after which every acquisition has ended if no message is lost.
const POLLS_MAX: usize = 4;

/// Number of messages that no acquisition exceeds.
const MESSAGES_MAX: u64 = 9;

/// Maximum time until the next task gets the lock, once the network has healed and the lock is free. If a leader was
/// cut off, this includes an election and a retry.
const BOUND: Duration = Duration::from_secs(2);

/// Like [`BOUND`], if the session of the dropped acquisition must expire first.
const LOST_CALL_LIMIT: Duration = Duration::from_secs(4);

/// Time after which a trial counts as hanging.
const TRIAL_MAX: Duration = Duration::from_secs(60);

/// A kind of acquisition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockAttemptKind {
    /// Waits for the lock.
    Lock,
    /// Waits for the lock with a short deadline.
    LockUntil,
    /// Acquires the lock without waiting.
    TryLock,
    /// Campaigns in an election.
    Campaign,
}

impl LockAttemptKind {
    /// All kinds.
    pub const ALL: [LockAttemptKind; 4] = [
        LockAttemptKind::Lock,
        LockAttemptKind::LockUntil,
        LockAttemptKind::TryLock,
        LockAttemptKind::Campaign,
    ];
}

/// A kind of message loss at the node that makes the acquisition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Break {
    /// One message is lost.
    One,
    /// All messages from a chosen message on are lost, for less time than an election takes.
    Short,
    /// All messages from a chosen message on are lost, for longer than the session lives.
    Long,
}

impl Break {
    /// All kinds.
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
            Break::Long => LOST_CALL_LIMIT,
        }
    }
}

/// The common parameters of a few hundred trials.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cancellation {
    /// The seed of the delays and of the roles of the nodes.
    pub seed: u64,
    /// The kind of acquisition.
    pub attempt: LockAttemptKind,
    /// The kind of message loss.
    pub breaks: Break,
    /// Whether the acquisition is made on the leader.
    pub on_leader: bool,
    /// Whether another task holds the lock at first.
    pub held: bool,
}

/// Counts of how acquisitions ended.
#[derive(Clone, Debug, Default)]
pub struct Endings {
    /// The counts, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// The longest time that the next task had to wait for the lock.
    pub longest: Duration,
    /// The hash of all events.
    pub trace: u64,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    case: Cancellation,
    /// Number of polls before the acquisition is dropped.
    polls: usize,
    /// Number of messages that pass before messages are lost.
    pass: u64,
}

/// Runs the trials of a case one after another in one world.
///
/// # Errors
/// Returns the broken invariant.
pub fn run_cancellation(case: Cancellation) -> Result<Endings, Box<Failure>> {
    let options = WorldOptions {
        nodes: 3,
        net: NetConditions::default(),
        sync_min: Duration::from_micros(100),
        sync_max: Duration::from_millis(2),
        config: MemberConfig::default(),
        verbose: true,
    };
    let mut world = World::new(case.seed, options);
    let endings: Rc<RefCell<Endings>> = Rc::default();
    let told = all_trials(&mut world, case, &endings);
    let mut endings = endings.take();
    endings.trace = world.trace().hash();
    told.map(|()| endings).map_err(|violation| {
        let (at, trace_hash) = (world.timeline().now(), world.trace().hash());
        let trace = world.trace().to_string();
        Box::new(Failure { seed: case.seed, at, violation, trace, trace_hash })
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
    let stage = CancellationStage {
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

/// The tasks of a trial and their roles.
struct CancellationStage {
    trial: Trial,
    net: SimNet,
    victim: Player,
    rival: Player,
    third: Player,
    endings: Rc<RefCell<Endings>>,
}

impl CancellationStage {
    async fn play(&self) {
        let case = self.trial.case;
        let theirs = match case.held {
            true => Some(self.rival.acquire_with_retries(LOCK).await),
            false => None,
        };
        let session = self.victim.session_surely().await;
        let loss = match case.breaks {
            Break::One => LossRule { pass: self.trial.pass, lose: 1 },
            Break::Short | Break::Long => LossRule { pass: self.trial.pass, lose: u64::MAX },
        };
        self.net.lose(self.victim.node, Some(loss));
        let whole_again = self.now() + case.breaks.lasts();
        self.attempt(&session).await;
        self.rest(whole_again).await;
        self.net.lose(self.victim.node, None);
        if let Some((session, holding)) = theirs {
            self.rival.release_hold(holding).await;
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

    /// Polls an acquisition `polls` times, or as often as it is woken, and drops it. If it has completed, ends the
    /// hold.
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

    /// Ends the hold of a lock that was acquired after all: by a release, a drop, or a dropped release.
    async fn end<H: Release>(&self, held: H) {
        let holding = self.victim.report_hold("lock", LOCK, held);
        match self.trial.pass % 3 {
            0 => {
                self.ends("held, released");
                self.victim.release_and_wait(holding).await;
            }
            1 => {
                self.ends("held, dropped");
                drop(self.victim.report_end_of_hold(holding));
            }
            _ => {
                self.ends("held, release dropped");
                let held = self.victim.report_end_of_hold(holding);
                let mut release = pin!(held.release());
                poll_fn(|context| {
                    let _: Poll<_> = release.as_mut().poll(context);
                    Poll::Ready(())
                })
                .await;
            }
        }
    }

    /// Checks that another task gets the lock in time and that its release leaves no key behind.
    async fn take_over(&self) {
        let began = self.now();
        let (session, holding) = self.third.acquire_with_retries(LOCK).await;
        let took = self.now() - began;
        self.third.release_and_wait(holding).await;
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

//! Runs the tasks of a world: futures on one thread, polled in an order that the seed determines. A task belongs to a
//! node and ends with it; the tasks of a paused node wait. Tasks sleep in simulated time through [`Timers`], and this
//! module never blocks on real time, threads or I/O.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::clock::Timeline;
use crate::env::Entropy;

/// The id of a task that runs on a node, or of a task of the world itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TaskId(u64);

/// The owner of a task: the index of a node in its world, or `None` for the world.
pub(crate) type Owner = Option<usize>;

struct Task {
    owner: Owner,
    future: Pin<Box<dyn Future<Output = ()>>>,
    wake: Arc<TaskWake>,
}

/// The tasks that were woken. They form a set because the order of wake-ups must not matter: some wakers, such as those
/// of tokio's `watch`, do not always wake in the same order.
type Ready = Arc<Woken>;

#[derive(Default)]
struct Woken {
    /// Whether any task may be in the set. Most checks find none.
    any: AtomicBool,
    ids: Mutex<BTreeSet<TaskId>>,
}

struct TaskWake {
    id: TaskId,
    queued: AtomicBool,
    ready: Ready,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(self.id);
            self.ready.any.store(true, Ordering::Relaxed);
        }
    }
}

/// Tasks that wait for their first poll.
type Newborn = Rc<RefCell<Vec<(Owner, Pin<Box<dyn Future<Output = ()>>>)>>>;

/// A handle with which a task can spawn others.
#[derive(Clone)]
pub(crate) struct Spawner {
    newborn: Newborn,
}

impl Spawner {
    pub(crate) fn spawn(&self, owner: Owner, future: impl Future<Output = ()> + 'static) {
        self.newborn.borrow_mut().push((owner, Box::pin(future)));
    }
}

/// The tasks of a world.
#[derive(Default)]
pub(crate) struct Executor {
    tasks: BTreeMap<TaskId, Task>,
    ready: Ready,
    newborn: Newborn,
    next: u64,
    /// The owner of the task that was polled last.
    last_polled: Owner,
}

impl Executor {
    /// Returns the owner of the task that was polled last.
    pub(crate) fn last_polled(&self) -> Owner {
        self.last_polled
    }

    pub(crate) fn spawner(&self) -> Spawner {
        Spawner { newborn: self.newborn.clone() }
    }

    /// Polls one task that is ready and whose owner may run. Returns false if there is none.
    pub(crate) fn run_one(
        &mut self,
        entropy: &dyn Entropy,
        may_run: impl Fn(Owner) -> bool,
    ) -> bool {
        self.admit();
        let Some(id) = self.pick(entropy, may_run) else { return false };
        let Some(task) = self.tasks.get_mut(&id) else { return true };
        self.last_polled = task.owner;
        task.wake.queued.store(false, Ordering::Relaxed);
        let waker = Waker::from(task.wake.clone());
        if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.tasks.remove(&id);
        }
        true
    }

    /// Drops all tasks of a node, as the end of its process does.
    pub(crate) fn drop_tasks_of(&mut self, owner: usize) {
        self.newborn.borrow_mut().retain(|(of, _)| *of != Some(owner));
        let mut dead = Vec::new();
        for (id, task) in std::mem::take(&mut self.tasks) {
            if task.owner == Some(owner) {
                dead.push(task);
            } else {
                self.tasks.insert(id, task);
            }
        }
        drop(dead);
    }

    /// Returns the number of remaining tasks of an owner.
    #[cfg(test)]
    fn count_of(&self, owner: Owner) -> usize {
        self.tasks.values().filter(|task| task.owner == owner).count()
            + self.newborn.borrow().iter().filter(|(of, _)| *of == owner).count()
    }

    fn admit(&mut self) {
        for (owner, future) in std::mem::take(&mut *self.newborn.borrow_mut()) {
            let id = TaskId(self.next);
            self.next += 1;
            let wake = Arc::new(TaskWake {
                id,
                queued: AtomicBool::new(false),
                ready: self.ready.clone(),
            });
            wake.wake_by_ref();
            self.tasks.insert(id, Task { owner, future, wake });
        }
    }

    fn pick(&self, entropy: &dyn Entropy, may_run: impl Fn(Owner) -> bool) -> Option<TaskId> {
        if !self.ready.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut ready = self.ready.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ready.retain(|id| self.tasks.contains_key(id));
        if ready.is_empty() {
            self.ready.any.store(false, Ordering::Relaxed);
            return None;
        }
        let able = |id: &&TaskId| may_run(self.tasks[id].owner);
        let count = ready.iter().filter(able).count();
        if count == 0 {
            return None;
        }
        let chosen = usize::try_from(entropy.below(count as u64)).expect("an index");
        let chosen = ready.iter().filter(able).nth(chosen).copied()?;
        ready.remove(&chosen);
        Some(chosen)
    }
}

/// The sleeping tasks of a world and their wake-up times. All tasks share it.
#[derive(Clone)]
pub(crate) struct Timers {
    timeline: Arc<Timeline>,
    sleepers: Rc<RefCell<BTreeMap<(Duration, u64), Waker>>>,
    next: Rc<RefCell<u64>>,
}

impl Timers {
    pub(crate) fn new(timeline: Arc<Timeline>) -> Self {
        Self { timeline, sleepers: Rc::default(), next: Rc::default() }
    }

    /// Returns a future that completes after `time` of true time.
    pub(crate) fn sleep(&self, time: Duration) -> Sleep {
        Sleep { until: self.timeline.now() + time, number: None, timers: self.clone() }
    }

    /// Returns the time of the next wake-up.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.sleepers.borrow().keys().next().map(|(until, _)| *until)
    }

    /// Wakes all tasks whose time has come.
    pub(crate) fn wake_due(&self) {
        let now = self.timeline.now();
        loop {
            let first = self.sleepers.borrow().keys().next().copied();
            match first {
                Some(key) if key.0 <= now => {
                    let waker = self.sleepers.borrow_mut().remove(&key);
                    waker.expect("it was there a line ago").wake();
                }
                _ => return,
            }
        }
    }
}

/// The future of [`Timers::sleep`].
pub(crate) struct Sleep {
    until: Duration,
    number: Option<u64>,
    timers: Timers,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.timers.timeline.now() >= self.until {
            return Poll::Ready(());
        }
        let number = match self.number {
            Some(number) => number,
            None => {
                let mut next = self.timers.next.borrow_mut();
                *next += 1;
                *next
            }
        };
        self.number = Some(number);
        self.timers.sleepers.borrow_mut().insert((self.until, number), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.timers.sleepers.borrow_mut().remove(&(self.until, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rng::Rng;
    use super::*;

    struct Stage {
        timeline: Arc<Timeline>,
        timers: Timers,
        executor: Executor,
        said: Rc<RefCell<Vec<(u64, &'static str)>>>,
    }

    impl Stage {
        fn new() -> Self {
            let timeline = Arc::new(Timeline::default());
            let timers = Timers::new(timeline.clone());
            Self { timeline, timers, executor: Executor::default(), said: Rc::default() }
        }

        fn actor(&self, owner: Owner, name: &'static str, waits_ms: u64) {
            let (timers, said, timeline) =
                (self.timers.clone(), self.said.clone(), self.timeline.clone());
            self.executor.spawner().spawn(owner, async move {
                for _ in 0..2 {
                    timers.sleep(Duration::from_millis(waits_ms)).await;
                    said.borrow_mut().push((timeline.now().as_millis() as u64, name));
                }
            });
        }

        fn run(&mut self, may_run: impl Fn(Owner) -> bool) {
            let rng = Rng::new(1);
            loop {
                while self.executor.run_one(&rng, &may_run) {}
                let Some(next) = self.timers.next() else { return };
                self.timeline.advance_to(next.max(self.timeline.now()));
                self.timers.wake_due();
            }
        }
    }

    #[test]
    fn tasks_sleep_in_simulated_time() {
        let mut stage = Stage::new();
        stage.actor(None, "slow", 30);
        stage.actor(None, "quick", 20);
        stage.run(|_| true);
        assert_eq!(
            *stage.said.borrow(),
            [(20, "quick"), (30, "slow"), (40, "quick"), (60, "slow")]
        );
        assert_eq!(stage.executor.count_of(None), 0);
    }

    #[test]
    fn paused_node_keeps_its_tasks_and_a_dead_one_drops_them() {
        let mut stage = Stage::new();
        stage.actor(Some(0), "paused", 10);
        stage.actor(Some(1), "dead", 10);
        stage.actor(Some(2), "alive", 10);
        stage.executor.drop_tasks_of(1);
        stage.run(|owner| owner != Some(0));
        assert_eq!(*stage.said.borrow(), [(10, "alive"), (20, "alive")]);
        assert_eq!(stage.executor.count_of(Some(0)), 1);
        stage.run(|_| true);
        assert_eq!(stage.said.borrow().len(), 4);
    }
}

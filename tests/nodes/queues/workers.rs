//! Tests of workers: each item is handled and settled as its handler decides, and an orderly stop returns the rest.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, mpsc};

use tokio::sync::{Barrier, oneshot};

use bowline::queue::{QueueWorker, WorkFailure, WorkItem};
use bowline::{LeaseId, Put, Token};

use super::*;

/// Time limit for waits.
const SOON: Duration = Duration::from_secs(20);

/// A worker in a thread.
pub(super) struct Running {
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<Result<(), QueueError>>,
}

impl Running {
    pub(super) fn start(
        worker: QueueWorker,
        grace: Duration,
        handler: impl AsyncFnOnce(WorkItem) -> Result<(), WorkFailure> + Clone + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || worker.run_until(stopped, grace, handler).block());
        Self { stop, thread }
    }

    /// Stops the worker and waits until it has ended.
    pub(super) fn stop(self) -> Result<(), QueueError> {
        drop(self.stop);
        self.thread.join().unwrap()
    }

    /// Waits until the worker has ended by itself.
    pub(super) fn ended(self) -> Result<(), QueueError> {
        self.thread.join().unwrap()
    }
}

/// Counts the handlers that run.
#[derive(Clone, Default)]
pub(super) struct Handlers {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

pub(super) struct RunningHandler(Handlers);

impl Handlers {
    pub(super) fn enter(&self) -> RunningHandler {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        RunningHandler(self.clone())
    }

    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

impl Drop for RunningHandler {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the session that has the first item of the queue.
pub(super) fn taken_by(jobs: &Queue) -> LeaseId {
    match jobs.items().block().unwrap()[0].state {
        ItemState::Taken { by: Some(lease) } => lease,
        state => panic!("not taken: {state:?}"),
    }
}

/// Waits until all sessions are closed.
pub(super) fn until_no_session(kv: &Client) {
    let begun = Instant::now();
    while !kv.leases().is_empty() {
        assert!(begun.elapsed() < SOON, "{:?}", kv.leases());
        thread::yield_now();
    }
}

#[test]
fn worker_acknowledges_retries_and_gives_up_as_its_handler_decides() {
    let cluster = quick(3);
    let (kv, jobs) = (cluster.client(0), cluster.client(0).queue("jobs"));
    jobs.put_many(["good", "flaky", "bad", "hopeless"]).block().unwrap();
    let (usual, pause) = (Duration::from_millis(150), Duration::from_millis(300));
    let (begins, begun) = mpsc::channel();
    let worker = cluster.node(1).queue_worker("jobs");
    let worker = worker.attempts_max(2).retry_after(usual);
    let running = Running::start(worker, SOON, async move |job: WorkItem| {
        let name = job.text()?.to_owned();
        begins.send((name.clone(), job.attempt(), Instant::now())).unwrap();
        match (&*name, job.attempt()) {
            ("flaky", 1) => Err(WorkFailure::new("try again").retry_after(pause)),
            ("bad", _) => Err("seven".parse::<u8>().unwrap_err())?,
            ("hopeless", _) => Err(WorkFailure::dead_letter("no paper")),
            _ => Ok(()),
        }
    });
    until_count(&kv, "jobs/item/", 0);
    running.stop().unwrap();
    let begun: Vec<(String, u64, Instant)> = begun.iter().collect();
    let mut handled: Vec<(&str, u64)> = begun.iter().map(|(name, n, _)| (&**name, *n)).collect();
    handled.sort_unstable();
    let expected = [("bad", 1), ("bad", 2), ("flaky", 1), ("flaky", 2), ("good", 1)];
    assert_eq!(handled, [&expected[..], &[("hopeless", 1)]].concat());
    let times = |wanted: &str| -> Vec<Instant> {
        begun.iter().filter(|(name, ..)| name == wanted).map(|(_, _, at)| *at).collect()
    };
    for (name, delay) in [("flaky", pause), ("bad", usual)] {
        let times = times(name);
        assert!(times[1].duration_since(times[0]) >= delay, "{name}");
    }
    let letters = jobs.dead_letters().items().block().unwrap().into_iter().map(|item| {
        let letter = item.dead_letter.unwrap();
        (item.value, letter.attempts, letter.reason)
    });
    let letters: BTreeSet<_> = letters.collect();
    let expected = [("bad", 2, "invalid digit found in string"), ("hopeless", 1, "no paper")];
    assert_eq!(letters, expected.map(|(name, n, why)| (name.into(), n, why.to_owned())).into());
    assert_eq!(kv.leases(), [], "the session is closed");
}

#[test]
fn worker_runs_as_many_handlers_as_its_concurrency() {
    let cluster = quick(1);
    let jobs = cluster.client(0).queue("jobs");
    jobs.put_many((0..12).map(|n| n.to_string())).block().unwrap();
    let (handlers, together) = (Handlers::default(), Arc::new(Barrier::new(4)));
    let inside = handlers.clone();
    let worker = cluster.node(0).queue_worker("jobs").concurrency(4);
    let running = Running::start(worker, SOON, async move |_| {
        let _inside = inside.enter();
        together.wait().await;
        Ok(())
    });
    until_count(&cluster.client(0), "jobs/item/", 0);
    running.stop().unwrap();
    assert_eq!((handlers.most(), handlers.running()), (4, 0));
    // The minimum is one.
    jobs.put_many(["a", "b"]).block().unwrap();
    let (handlers, worker) = (Handlers::default(), cluster.node(0).queue_worker("jobs"));
    let (inside, kv) = (handlers.clone(), cluster.client(0));
    let running = Running::start(worker.concurrency(0), SOON, async move |_| {
        let _inside = inside.enter();
        kv.get("x").await?;
        Ok(())
    });
    until_count(&cluster.client(0), "jobs/item/", 0);
    running.stop().unwrap();
    assert_eq!(handlers.most(), 1);
}

#[test]
fn stopped_worker_takes_no_more_and_lets_its_handler_finish() {
    let cluster = quick(1);
    let (kv, jobs) = (cluster.client(0), cluster.client(0).queue("jobs"));
    jobs.put_many(["first", "second"]).block().unwrap();
    let (begins, begun) = mpsc::channel();
    let worker = cluster.node(0).queue_worker("jobs");
    let running = Running::start(worker, SOON, async move |job: WorkItem| {
        begins.send(()).unwrap();
        job.stopping().await;
        job.then(Op::put("result", job.value().clone()));
        Ok(())
    });
    begun.recv_timeout(SOON).unwrap();
    running.stop().unwrap();
    assert_eq!(kv.get("result").block().unwrap().unwrap().value, "first");
    let left = jobs.items().block().unwrap();
    assert_eq!((left.len(), &left[0].value[..], left[0].attempts), (1, &b"second"[..], 0));
    assert_eq!((left[0].state, kv.leases()), (ItemState::Free, vec![]));
    // A worker that is stopped before it begins takes nothing, and opens no session.
    let (before, worker) = (kv.revision(), cluster.node(0).queue_worker("jobs"));
    let stop = std::future::ready(());
    worker.run_until(stop, SOON, async |_| panic!("taken")).block().unwrap();
    assert_eq!(kv.revision(), before);
}

#[test]
fn handler_is_dropped_after_the_grace_period_and_its_item_released() {
    let cluster = quick(1);
    let (kv, jobs) = (cluster.client(0), cluster.client(0).queue("jobs"));
    jobs.put_many(["a", "b"]).block().unwrap();
    let (handlers, grace) = (Handlers::default(), Duration::from_millis(200));
    let (inside, (begins, begun)) = (handlers.clone(), mpsc::channel());
    let worker = cluster.node(0).queue_worker("jobs").concurrency(2);
    let running = Running::start(worker, grace, async move |_| {
        let _inside = inside.enter();
        begins.send(()).unwrap();
        pending().await
    });
    (0..2).for_each(|_| begun.recv_timeout(SOON).unwrap());
    let stopped = cluster.node(0).now();
    running.stop().unwrap();
    assert!(cluster.node(0).now().since(stopped) >= grace);
    assert_eq!(handlers.running(), 0);
    let left = jobs.items().block().unwrap();
    assert!(left.iter().all(|item| (item.state, item.attempts) == (ItemState::Free, 1)));
    assert_eq!((left.len(), kv.leases()), (2, vec![]));
}

#[test]
fn panic_of_a_handler_fails_its_item_and_the_worker_continues() {
    let cluster = quick(1);
    let jobs = cluster.client(0).queue("jobs");
    jobs.put_many(["panics", "fine"]).block().unwrap();
    let (begins, begun) = mpsc::channel();
    let worker = cluster.node(0).queue_worker("jobs").attempts_max(2);
    let worker = worker.retry_after(Duration::from_millis(1));
    let running = Running::start(worker, SOON, async move |job: WorkItem| {
        begins.send(job.text()?.to_owned())?;
        match job.value() == "panics" {
            true => panic!("at attempt {}", job.attempt()),
            false => Ok(()),
        }
    });
    until_count(&cluster.client(0), "jobs/item/", 0);
    running.stop().unwrap();
    let mut handled: Vec<String> = begun.iter().collect();
    handled.sort();
    assert_eq!(handled, ["fine", "panics", "panics"]);
    let letter = jobs.dead_letters().items().block().unwrap().remove(0).dead_letter.unwrap();
    assert_eq!(letter.reason, "the handler panicked: at attempt 2");
}

#[test]
fn effects_are_applied_with_the_acknowledgement_only() {
    let cluster = quick(1);
    let (kv, jobs) = (cluster.client(0), cluster.client(0).queue("jobs"));
    jobs.put_many(["done", "failed", "large", "leased"]).block().unwrap();
    let worker = cluster.node(0).queue_worker("jobs").attempts_max(1);
    let running = Running::start(worker, SOON, async |job: WorkItem| {
        let name = job.text()?.to_owned();
        job.then(Op::put(format!("effect/{name}"), "1"));
        job.clone().then(Op::put("effect/last", name.clone()));
        match &*name {
            "failed" => Err("no route to host")?,
            "large" => job.then(Op::put("effect/large", vec![0; 2 << 20])),
            "leased" => job.then(Put::new("effect/leased", "").lease(LeaseId::new(9).unwrap())),
            _ => {}
        }
        Ok(())
    });
    until_count(&kv, "jobs/item/", 0);
    running.stop().unwrap();
    assert_eq!(count(&kv, "effect/"), 2);
    assert_eq!(kv.get("effect/last").block().unwrap().unwrap().value, "done");
    let dead = jobs.dead_letters().items().block().unwrap();
    let why = dead.iter().map(|item| &*item.dead_letter.as_ref().unwrap().reason);
    let [failed, large, leased] = why.collect::<Vec<_>>()[..] else { panic!("{dead:?}") };
    assert_eq!(failed, "no route to host");
    assert!(large.contains("2097152"), "an effect that is not admitted fails its item: {large}");
    assert!(
        leased.contains("lease"),
        "an effect that is rejected when applied does so, too: {leased}"
    );
}

#[test]
fn operations_of_objects_with_a_prefix_have_complete_keys() {
    let cluster = quick(1);
    let kv = cluster.client(0);
    let app = kv.with_prefix("app/");
    let (results, fence) = (app.typed::<u32>("results/"), app.fence("fence"));
    let (texts, numbers) = (app.queue("texts"), app.queue("numbers").typed::<u32>());
    let token = Token::new(Revision(7), 0);
    fence.admit(token).block().unwrap();
    let all = move || {
        let puts = [results.put_op("1", &10), Ok(texts.put_op("x", 0)), numbers.put_op(&10, 0)];
        (puts.map(Result::unwrap), fence.condition(token))
    };
    // A transaction.
    let (ops, condition) = all();
    assert!(kv.txn().when(condition).then_all(ops).commit().block().unwrap().succeeded);
    // The acknowledgements of a taker and of a worker.
    kv.queue("jobs").put_many(["1", "2"]).block().unwrap();
    taker(&cluster, 0, "jobs").take().block().unwrap().ack_with(all().0).block().unwrap();
    let worker = cluster.node(0).queue_worker("jobs");
    let every = all.clone();
    let running = Running::start(worker, SOON, async move |job: WorkItem| {
        let (ops, condition) = every();
        job.when(condition);
        ops.into_iter().for_each(|op| job.then(op));
        Ok(())
    });
    until_count(&kv, "jobs/item/", 0);
    running.stop().unwrap();
    let version = app.get("results/1").block().unwrap().unwrap().version;
    let lens = ["texts", "numbers"].map(|name| app.queue(name).len().block().unwrap());
    assert_eq!((version, lens), (3, [3, 3]));
    let outside = ["results/", "texts/", "numbers/", "app/app/"];
    assert_eq!(outside.map(|prefix| count(&kv, prefix)), [0; 4]);
    // A client with a prefix takes complete compares and operations separately.
    let (ops, condition) = all();
    let mixed = app.txn().when_complete([condition]).then_complete(ops).then(Op::get("fence"));
    let reply = mixed.commit().block().unwrap();
    assert!(reply.succeeded);
    assert_eq!(reply.results[0].rows()[0].key, "fence", "complete operations run last");
    assert_eq!(app.get("results/1").block().unwrap().unwrap().version, 4);
    assert_eq!(app.queue("texts").len().block().unwrap(), 4);
    let refused = app.txn().when(Compare::missing("fence")).then_complete(all().0);
    assert!(!refused.or_else(Op::get("fence")).commit().block().unwrap().succeeded);
    assert_eq!(outside.map(|prefix| count(&kv, prefix)), [0; 4]);
}

#[test]
fn conditional_acknowledgements_of_concurrent_workers_lose_no_update() {
    const ITEMS: usize = 100;
    let cluster = quick(3);
    let (kv, jobs) = (cluster.client(0), cluster.client(0).queue("jobs"));
    jobs.put_many((0..ITEMS).map(|_| "1")).block().unwrap();
    let conflicts = Arc::new(AtomicUsize::new(0));
    let workers = [0, 1, 2, 0].map(|member| {
        let (kv, conflicts) = (cluster.client(member), Arc::clone(&conflicts));
        let worker = cluster.node(member).queue_worker("jobs").concurrency(2);
        let worker = worker.retry_with(|_| Duration::from_millis(1));
        Running::start(worker, SOON, async move |job: WorkItem| {
            conflicts.fetch_add(usize::from(job.attempt() > 1), Ordering::SeqCst);
            let row = kv.get("total").await?;
            let seen = row.as_ref().map_or(Revision(0), |row| row.mod_revision);
            let total = row.map_or(Ok(0), |row| row.parse::<usize>())?;
            job.when(Compare::mod_revision("total").eq(seen));
            job.then(Op::put("total", (total + job.parse::<usize>()?).to_string()));
            Ok(())
        })
    });
    until_count(&kv, "jobs/item/", 0);
    workers.into_iter().for_each(|worker| worker.stop().unwrap());
    let total = kv.get("total").block().unwrap().unwrap();
    assert_eq!((total.parse(), total.version), (Ok(ITEMS), ITEMS as u64));
    assert!(conflicts.load(Ordering::SeqCst) > 0, "no two workers have met");
}

#[test]
fn item_whose_condition_does_not_hold_is_retried_and_applies_nothing() {
    let cluster = quick(1);
    let (kv, jobs) = (cluster.client(0), cluster.client(0).queue("jobs"));
    jobs.put_many(["late", "never", "only a condition"]).block().unwrap();
    let worker = cluster.node(0).queue_worker("jobs").attempts_max(2).retry_after(Duration::ZERO);
    let running = Running::start(worker, SOON, async |job: WorkItem| {
        job.when(Compare::missing("lock"));
        match (job.text()?, job.attempt()) {
            ("late", 2) | ("only a condition", _) => {}
            _ => job.when_all([Compare::missing("a"), Compare::exists("b")]),
        }
        if job.value() != "only a condition" {
            job.then(Op::put("effect", job.value().clone()));
        }
        Ok(())
    });
    until_count(&kv, "jobs/item/", 0);
    running.stop().unwrap();
    let effect = kv.get("effect").block().unwrap().unwrap();
    assert_eq!((&effect.value[..], effect.version), (&b"late"[..], 1));
    let [never] = &jobs.dead_letters().items().block().unwrap()[..] else { panic!("one") };
    let letter = never.dead_letter.as_ref().unwrap();
    let reason = "the condition of the acknowledgement does not hold";
    assert_eq!((&never.value[..], letter.attempts, &*letter.reason), (&b"never"[..], 2, reason));
}

#[test]
fn retry_delay_is_computed_from_the_attempt() {
    let cluster = quick(1);
    let jobs = cluster.client(0).queue("jobs");
    jobs.put("x").block().unwrap();
    let (asked, delays) = mpsc::channel();
    let worker = cluster.node(0).queue_worker("jobs").attempts_max(4);
    let worker = worker.retry_with(move |attempt| {
        asked.send(attempt).unwrap();
        Duration::from_millis(attempt)
    });
    let running = Running::start(worker, SOON, async |job: WorkItem| match job.attempt() {
        2 => Err(WorkFailure::new("a delay of its own").retry_after(Duration::ZERO)),
        _ => Err(WorkFailure::new("no paper")),
    });
    until_count(&cluster.client(0), "jobs/item/", 0);
    running.stop().unwrap();
    assert_eq!(delays.try_iter().collect::<Vec<u64>>(), [1, 3, 4]);
}

#[test]
fn typed_worker_moves_undecodable_items_to_the_dead_letters() {
    let cluster = quick(1);
    let pages = cluster.client(0).typed::<u32>("app/").queue("pages");
    cluster.client(0).queue("app/pages").put("seven").block().unwrap();
    pages.put_many([7, 8]).block().unwrap();
    let printed = Arc::new(Mutex::new(Vec::new()));
    let (worker, prints) = (pages.worker(cluster.node(0)), Arc::clone(&printed));
    let (stop, stopped) = oneshot::channel::<()>();
    let handler = async move |page: u32, item: WorkItem| {
        if page == 8 && item.attempt() == 1 {
            return Err(WorkFailure::new("no paper").retry_after(Duration::from_millis(1)));
        }
        prints.lock().unwrap().push((page, item.attempt()));
        Ok(())
    };
    let worker = worker.concurrency(2).attempts_max(2).retry_after(SOON).finish_after_loss();
    let running = thread::spawn(move || worker.run_until(stopped, SOON, handler).block());
    until_count(&cluster.client(0), "app/pages/item/", 0);
    drop(stop);
    running.join().unwrap().unwrap();
    let mut printed = printed.lock().unwrap().clone();
    printed.sort_unstable();
    assert_eq!(printed, [(7, 1), (8, 2)]);
    let dead = pages.dead_letters().items().block().unwrap().remove(0);
    assert_eq!(dead.item.value, "seven");
    let why = dead.value.unwrap_err().to_string();
    let letter = dead.item.dead_letter.unwrap();
    assert_eq!(letter.attempts, 1, "not retried");
    // The texts differ only in the key: one names the key in the queue, the other the key in the dead-letter queue.
    let cause = |text: &str| text.rsplit_once(": ").unwrap().1.to_owned();
    assert_eq!(cause(&letter.reason), cause(&why));
}

#[test]
fn worker_reports_a_permanent_error() {
    let cluster = quick(1);
    let run = async || {
        let nameless = cluster.node(0).queue_worker("").concurrency(3);
        nameless.run(async |_| panic!("taken")).await
    };
    assert_eq!(run().block(), Err(QueueError::EmptyName));
    until_no_session(&cluster.client(0));
}

#[test]
fn dropped_worker_returns_its_items_and_closes_its_session() {
    const ITEMS: usize = 512;
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let (kv, node) = (cluster.client(leader), cluster.node((leader + 1) % 3));
    let jobs = kv.queue("jobs");
    for first in (0..ITEMS).step_by(128) {
        jobs.put_many((first..first + 128).map(|n| n.to_string())).block().unwrap();
    }
    let (done, handlers) = (Arc::new(Mutex::new(BTreeSet::new())), Handlers::default());
    for polls in (0..14).cycle().take(42) {
        let client = node.client();
        let handler = async |job: WorkItem| {
            let _inside = handlers.enter();
            client.get("x").await?;
            if job.attempt().is_multiple_of(2) {
                job.then(Op::put("effect", ""));
            }
            done.lock().unwrap().insert(job.text()?.to_owned());
            Ok(())
        };
        let worker = node.queue_worker("jobs").concurrency(1 + polls % 3);
        let ended = poll_at_most(polls, pin!(worker.run(handler)));
        assert_eq!((ended, handlers.running()), (None, 0));
        until_no_session(&kv);
        until_count(&kv, "jobs/claim/", 0);
        until_count(&kv, "jobs/idle/", 0);
    }
    let done = done.lock().unwrap();
    let left: BTreeSet<String> =
        jobs.items().block().unwrap().iter().map(|item| item.text().unwrap().to_owned()).collect();
    assert!(!done.is_empty() && left.len() < ITEMS);
    let lost = (0..ITEMS).map(|n| n.to_string()).find(|n| !done.contains(n) && !left.contains(n));
    assert_eq!(lost, None);
}

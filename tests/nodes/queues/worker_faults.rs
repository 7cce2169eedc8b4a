//! Tests of workers whose session, node or quorum fails: no item is lost, and no handler continues without its item.

use std::future::pending;
use std::pin::pin;
use std::sync::{Mutex, mpsc};

use bowline::Token;
use bowline::queue::{WorkFailure, WorkItem};

use super::workers::{Handlers, Running, taken_by, until_no_session};
use super::*;

/// Time limit for waits.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn handler_is_dropped_when_its_item_is_lost() {
    let cluster = quick(1);
    let (kv, jobs) = (cluster.client(0), cluster.client(0).queue("jobs"));
    jobs.put("x").block().unwrap();
    let (handlers, (begins, begun)) = (Handlers::default(), mpsc::channel());
    let inside = handlers.clone();
    let worker = cluster.node(0).queue_worker("jobs");
    let running = Running::start(worker, SOON, async move |job: WorkItem| {
        let others = inside.running();
        let _inside = inside.enter();
        begins.send((job.attempt(), others, job.is_claimed()))?;
        match job.attempt() {
            1 | 2 => pending().await,
            _ => Ok(()),
        }
    });
    assert_eq!(begun.recv_timeout(SOON), Ok((1, 0, true)));
    // The session ends, and the worker opens another one.
    let lost = taken_by(&jobs);
    kv.revoke(lost).block().unwrap();
    assert_eq!(begun.recv_timeout(SOON), Ok((2, 0, true)));
    assert_ne!(taken_by(&jobs), lost);
    assert_eq!(kv.leases(), [taken_by(&jobs)]);
    // An operator deletes the claim, while the session lives.
    kv.delete_prefix("jobs/claim/").block().unwrap();
    assert_eq!(begun.recv_timeout(SOON), Ok((3, 0, true)));
    until_count(&kv, "jobs/item/", 0);
    running.stop().unwrap();
    assert_eq!((kv.leases(), handlers.running()), (vec![], 0));
}

#[test]
fn late_result_of_a_lost_item_is_not_acknowledged() {
    let cluster = quick(1);
    let (kv, jobs) = (cluster.client(0), cluster.client(0).queue("jobs"));
    // Delete the claim only, or end the session.
    for ends_session in [false, true] {
        let id = jobs.put("x").block().unwrap();
        let (begins, begun) = mpsc::channel();
        let (late, is_late) = tokio::sync::watch::channel(0);
        let worker = cluster.node(0).queue_worker("jobs").concurrency(2).finish_after_loss();
        let running = Running::start(worker, SOON, async move |job: WorkItem| {
            let attempt = job.attempt();
            begins.send(attempt)?;
            if attempt == 1 {
                job.lost().await;
                begins.send(0)?;
            }
            is_late.clone().wait_for(|late| *late >= attempt).await?;
            job.then(Op::put("result", attempt.to_string()));
            Ok(())
        });
        assert_eq!(begun.recv_timeout(SOON), Ok(1));
        match ends_session {
            true => drop(kv.revoke(taken_by(&jobs)).block().unwrap()),
            false => drop(kv.delete_prefix("jobs/claim/").block().unwrap()),
        }
        let mut both = [begun.recv_timeout(SOON).unwrap(), begun.recv_timeout(SOON).unwrap()];
        both.sort_unstable();
        assert_eq!(both, [0, 2], "the loss is reported, and the item is delivered again");
        late.send(1).unwrap();
        // After its late handler has ended, the slot takes this item.
        let next = jobs.put("next").priority(-1).block().unwrap();
        assert_eq!(begun.recv_timeout(SOON), Ok(1), "the late handler has ended");
        let left = jobs.items().block().unwrap();
        assert_eq!(left.iter().map(|item| &item.id).collect::<Vec<_>>(), [&next, &id]);
        assert!(left.iter().all(|item| matches!(item.state, ItemState::Taken { .. })));
        assert_eq!(kv.get("result").block().unwrap(), None);
        kv.delete(format!("jobs/item/{next}")).block().unwrap();
        kv.delete(format!("jobs/claim/{next}")).block().unwrap();
        late.send(2).unwrap();
        until_count(&kv, "jobs/item/", 0);
        running.stop().unwrap();
        assert_eq!(kv.get("result").block().unwrap().unwrap().value, "2");
        kv.delete("result").block().unwrap();
    }
}

#[test]
fn worker_of_a_stopped_node_ends_and_returns_its_items() {
    let mut cluster = quick(3);
    let jobs = cluster.client(0).queue("jobs");
    jobs.put("x").block().unwrap();
    for may_finish in [false, true] {
        let (handlers, (begins, begun)) = (Handlers::default(), mpsc::channel());
        let inside = handlers.clone();
        let mut worker = cluster.node(1).queue_worker("jobs").concurrency(2);
        if may_finish {
            worker = worker.finish_after_loss();
        }
        let running = Running::start(worker, SOON, async move |_| {
            let _inside = inside.enter();
            begins.send(()).unwrap();
            pending().await
        });
        begun.recv_timeout(SOON).unwrap();
        cluster.shutdown(1).block();
        assert_stopped(&running.ended().unwrap_err());
        assert_eq!(handlers.running(), 0);
        // The sessions of the node are closed, so the item need not expire.
        let taker = taker(&cluster, 0, "jobs");
        let again = taker.take().deadline(Duration::from_secs(2)).block().unwrap();
        again.nack().block().unwrap();
        cluster.restart(1).block().unwrap();
    }
}

#[test]
fn worker_without_a_quorum_drops_its_handlers_and_waits() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let cut_off = (leader + 1) % 3;
    let (kv, node) = (cluster.client(leader), cluster.node(cut_off));
    let jobs = kv.queue("jobs");
    jobs.put("x").block().unwrap();
    let (handlers, (begins, begun)) = (Handlers::default(), mpsc::channel());
    let (inside, polls) = (handlers.clone(), Arc::new(AtomicU64::new(0)));
    let (worker, counted) = (node.queue_worker("jobs").concurrency(8), Arc::clone(&polls));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = thread::spawn(move || {
        let handler = async move |job: WorkItem| {
            let _inside = inside.enter();
            begins.send(job.attempt())?;
            if job.attempt() == 1 { pending().await } else { Ok(()) }
        };
        let mut running = pin!(worker.run_until(stopped, Duration::ZERO, handler));
        let counting = std::future::poll_fn(move |context| {
            counted.fetch_add(1, Ordering::Relaxed);
            running.as_mut().poll(context)
        });
        counting.block()
    });
    assert_eq!(begun.recv_timeout(SOON), Ok(1));
    cluster.partition(&[cut_off]);
    let begun_at = Instant::now();
    while handlers.running() > 0 {
        assert!(begun_at.elapsed() < SOON, "the session has expired");
        thread::yield_now();
    }
    // The worker has nothing to do, so it must not poll at full speed.
    let before = polls.load(Ordering::Relaxed);
    stage::let_pass(cluster.node(leader), Duration::from_secs(1), || {});
    let polled = polls.load(Ordering::Relaxed) - before;
    assert!(polled < 1_000, "{polled} polls in a second without a quorum");
    cluster.heal();
    assert_eq!(begun.recv_timeout(SOON), Ok(2));
    until_count(&kv, "jobs/item/", 0);
    // A stop does not wait for a quorum for long.
    cluster.partition(&[cut_off]);
    drop(stop);
    let stopped_at = Instant::now();
    running.join().unwrap().unwrap();
    assert!(stopped_at.elapsed() < SOON / 2, "it waited for a quorum");
    cluster.heal();
    until_no_session(&kv);
}

/// A step of a handler: its member, its item and the token of its delivery.
type Step = (usize, ItemId, Token);

/// The steps of all handlers, in their order, and the member whose handlers do not end.
#[derive(Default)]
struct Steps {
    taken: Mutex<Vec<Step>>,
    endless: Mutex<Option<usize>>,
}

impl Steps {
    /// Starts a worker whose handlers record their steps. Each result is written with the acknowledgement.
    fn work(self: &Arc<Self>, cluster: &Cluster, member: usize) -> Running {
        let (kv, steps) = (cluster.client(member), Arc::clone(self));
        let worker = cluster.node(member).queue_worker("jobs").concurrency(2);
        Running::start(worker, SOON, async move |job: WorkItem| {
            let is_endless = || *steps.endless.lock().unwrap() == Some(member);
            let mut taken = 0;
            while taken < 3 || is_endless() {
                taken += 1;
                steps.taken.lock().unwrap().push((member, job.id().clone(), job.token()));
                // Without a quorum, the step ends with its deadline.
                drop(kv.get("x").deadline(Duration::from_millis(50)).await);
            }
            job.then(Op::put(format!("done/{}", job.id()), ""));
            Ok::<(), WorkFailure>(())
        })
    }
}

#[test]
fn crashes_lose_no_item_and_no_handler_continues_without_its_item() {
    const ROUND: u64 = 40;
    let mut cluster = quick(3);
    let steps = Arc::new(Steps::default());
    let mut workers: Vec<Running> = (0..3).map(|member| steps.work(&cluster, member)).collect();
    let put = |kv: &Client| {
        kv.queue("jobs").put_many((0..ROUND).map(|n| n.to_string())).block().unwrap();
    };
    let until_done = |kv: &Client, wanted: u64| {
        let begun = Instant::now();
        while count(kv, "done/") < wanted {
            assert!(begun.elapsed() < 2 * SOON, "{} done", count(kv, "done/"));
            thread::yield_now();
        }
    };
    for (round, victim) in [1, 2, 0].into_iter().enumerate() {
        let lives = cluster.client((victim + 1) % 3);
        put(&lives);
        until_done(&lives, round as u64 * ROUND + 5);
        cluster.kill(victim).block();
        assert_stopped(&workers.remove(victim).ended().unwrap_err());
        cluster.restart(victim).block().unwrap();
        workers.insert(victim, steps.work(&cluster, victim));
        until_done(&lives, (round as u64 + 1) * ROUND);
    }
    // A member is cut off while its handlers run, until others have done their items.
    let leader = cluster.leader().block().unwrap();
    let (victim, kv) = ((leader + 1) % 3, cluster.client(leader));
    let before = steps.taken.lock().unwrap().len();
    *steps.endless.lock().unwrap() = Some(victim);
    put(&kv);
    let begun = Instant::now();
    while !steps.taken.lock().unwrap()[before..].iter().any(|step| step.0 == victim) {
        assert!(begun.elapsed() < SOON, "the member takes no item");
        thread::yield_now();
    }
    cluster.partition(&[victim]);
    until_done(&kv, 4 * ROUND);
    // The time of several steps.
    stage::let_pass(cluster.node(leader), Duration::from_millis(300), || {});
    *steps.endless.lock().unwrap() = None;
    cluster.heal();
    until_count(&kv, "jobs/item/", 0);
    workers.into_iter().for_each(|worker| worker.stop().unwrap());
    until_no_session(&kv);
    assert_eq!(count(&kv, "jobs/"), 0);
    let rows = kv.range(KeyRange::prefix("done/")).block().unwrap().kvs;
    assert_eq!(rows.len() as u64, 4 * ROUND);
    assert!(rows.iter().all(|row| row.version == 1), "each item is done once");
    // After a step under a later delivery of an item, there must be no step under an earlier delivery.
    let (mut latest, mut redelivered) = (BTreeMap::new(), 0);
    for (_, id, token) in steps.taken.lock().unwrap().drain(..) {
        let last = latest.insert(id.clone(), token).unwrap_or(token);
        assert!(last <= token, "{id}: a step of {token} after {last}");
        redelivered += u64::from(last < token);
    }
    assert!(redelivered > 0, "the faults have interrupted no handler");
}

//! Tests of dead letters: items that were taken too often or given up, and their way back.

use super::*;

#[test]
fn item_with_too_many_attempts_goes_to_the_dead_letter_queue() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs").attempts_max(2);
    taker.put("poison").priority(-3).block().unwrap();
    taker.put("food").block().unwrap();
    for attempt in 1..=2 {
        let delivery = taker.take().block().unwrap();
        assert_eq!((text(&delivery), delivery.attempt()), ("poison".into(), attempt));
        delivery.nack().block().unwrap();
    }
    assert_eq!(take(&taker), "food");
    assert!(taker.try_take().block().unwrap().is_none());
    assert!(taker.is_empty().block().unwrap());
    let dead = taker.dead_letters().items().block().unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((&dead[0].value[..], dead[0].attempts, dead[0].priority), (&b"poison"[..], 0, -3));
    let letter = dead[0].dead_letter.as_ref().unwrap();
    assert_eq!(letter.attempts, 2);
    assert_eq!(letter.reason, "taken 2 times without an acknowledgement");
    let undertaker = cluster.node(0).session().block().unwrap();
    let undertaker = undertaker.queue(taker.dead_letters().name().clone());
    assert_eq!(take(&undertaker), "poison");
    assert_eq!(count(&cluster.client(0), "jobs/dead/"), 0, "the reason goes with its item");
}

#[test]
fn taker_moves_an_item_to_the_dead_letters_with_a_reason() {
    let cluster = quick(1);
    let (taker, kv) = (taker(&cluster, 0, "jobs"), cluster.client(0));
    taker.put("poison").block().unwrap();
    taker.take().block().unwrap().nack().block().unwrap();
    let delivery = taker.take().block().unwrap();
    assert_eq!(delivery.as_dead_letter(), None);
    delivery.dead_letter("not food").block().unwrap();
    assert!(taker.is_empty().block().unwrap());
    let undertaker = cluster.node(0).session().block().unwrap();
    let undertaker = undertaker.queue(taker.dead_letters().name());
    let dead = undertaker.take().block().unwrap();
    assert_eq!(text(&dead), "poison");
    let letter = dead.as_dead_letter().unwrap();
    assert_eq!((letter.attempts, &*letter.reason), (2, "not food"));
    // Older versions write no reason, and ignore it.
    kv.delete_prefix("jobs/dead/reason/").block().unwrap();
    assert_eq!(undertaker.items().block().unwrap()[0].dead_letter, None);
    dead.ack().block().unwrap();
    assert_eq!(count(&kv, "jobs/"), 0);

    // An item that this taker has lost is not moved to the dead letters.
    taker.put("lost").block().unwrap();
    let delivery = taker.take().block().unwrap();
    kv.delete_prefix("jobs/claim/").block().unwrap();
    assert_eq!(delivery.dead_letter("late").block(), Err(QueueError::ClaimLost));
    assert_eq!((count(&kv, "jobs/item/"), count(&kv, "jobs/dead/")), (1, 0));
}

/// Puts an item and moves it to the dead letters.
fn bury(taker: &QueueTaker, value: &str) -> ItemId {
    let id = taker.put(value.to_owned()).priority(-1).block().unwrap();
    let delivery = taker.take().block().unwrap();
    assert_eq!(delivery.id(), &id);
    delivery.dead_letter("no paper").block().unwrap();
    id
}

#[test]
fn requeued_dead_letter_begins_again_at_the_end_of_its_queue() {
    let cluster = quick(3);
    let (taker, kv) = (taker(&cluster, 0, "app/jobs"), cluster.client(1));
    let jobs = kv.with_prefix("app/").queue("jobs");
    let ids = ["a", "b", "c"].map(|value| bury(&taker, value));
    taker.put("same priority").priority(-1).block().unwrap();
    taker.put("later priority").block().unwrap();
    assert!(jobs.requeue(&ids[1]).block().unwrap());
    assert!(!jobs.requeue(&ids[1]).block().unwrap(), "no longer a dead letter");
    let left = jobs.dead_letters().items().block().unwrap();
    assert_eq!(left.iter().map(|item| &item.value[..]).collect::<Vec<_>>(), [b"a", b"c"]);
    assert!(left.iter().all(|item| item.dead_letter.is_some()));
    assert_eq!(count(&kv, "app/jobs/dead/reason/"), 2, "its reason is deleted");
    let here = jobs.items().block().unwrap();
    assert_eq!(
        here.iter().map(|item| &item.value).collect::<Vec<_>>(),
        ["same priority", "b", "later priority"]
    );
    assert_eq!((&here[1].id, here[1].attempts, here[1].priority), (&ids[1], 0, -1));
    assert_eq!((here[1].state, &here[1].dead_letter), (ItemState::Free, &None));
    assert_eq!(take(&taker), "same priority");
    let again = taker.take().block().unwrap();
    assert_eq!((text(&again), again.attempt()), ("b".to_owned(), 1));
    again.ack().block().unwrap();
    // No dead letter has these ids.
    assert!(!jobs.requeue(&ids[1]).block().unwrap());
    let nameless = kv.queue("").requeue(&ids[0]).block();
    assert_eq!(nameless, Err(QueueError::EmptyName));
}

#[test]
fn requeue_on_the_dead_letters_puts_the_item_into_their_queue() {
    let cluster = quick(1);
    let kv = cluster.client(0);
    let (taker, jobs) = (taker(&cluster, 0, "app/jobs"), kv.with_prefix("app/").queue("jobs"));
    let ids = ["a", "b"].map(|value| bury(&taker, value));
    let dead = jobs.dead_letters();
    assert!(dead.limit(1).requeue(&ids[1]).block().unwrap());
    assert_eq!(dead.limit(1).requeue(&ids[0]).block(), Err(QueueError::Full { limit: 1 }));
    assert!(!dead.requeue(&ids[1]).block().unwrap(), "no longer a dead letter");
    assert_eq!(take(&taker), "b");
    // The dead letters of the dead letters go back one step.
    let undertaker = self::taker(&cluster, 0, "app/jobs/dead");
    undertaker.take().block().unwrap().dead_letter("no grave").block().unwrap();
    assert!(!dead.requeue(&ids[0]).block().unwrap());
    assert!(dead.dead_letters().requeue(&ids[0]).block().unwrap());
    assert!(dead.requeue(&ids[0]).block().unwrap());
    assert_eq!(take(&taker), "a");
    assert_eq!(count(&kv, "app/"), 0);
}

#[test]
fn requeue_skips_a_taken_dead_letter_and_ends_a_delay() {
    let cluster = quick(1);
    let (taker, kv) = (taker(&cluster, 0, "jobs"), cluster.client(0));
    let id = bury(&taker, "x");
    let undertaker = self::taker(&cluster, 0, "jobs/dead");
    let held = undertaker.take().block().unwrap();
    let before = kv.revision();
    assert!(!taker.requeue(&id).block().unwrap());
    assert_eq!(kv.revision(), before, "nothing is changed");
    assert!(held.is_claimed());
    held.nack_after(Duration::from_secs(3600)).block().unwrap();
    assert_eq!(undertaker.items().block().unwrap()[0].state, ItemState::Delayed);
    assert!(taker.requeue(&id).block().unwrap());
    assert_eq!(count(&kv, "jobs/dead/"), 0);
    assert_eq!(take(&taker), "x");
    assert_eq!(count(&kv, "jobs/"), 0);
}

#[test]
fn remove_deletes_items_that_no_taker_has() {
    let cluster = quick(1);
    let (taker, kv) = (taker(&cluster, 0, "jobs"), cluster.client(0));
    let (id, dead) = (bury(&taker, "x"), taker.dead_letters());
    assert!(!taker.remove(&id).block().unwrap(), "an item of another queue");
    let undertaker = self::taker(&cluster, 0, "jobs/dead");
    let held = undertaker.take().block().unwrap();
    let before = kv.revision();
    assert!(!dead.remove(&id).block().unwrap(), "a taker has it");
    assert_eq!(kv.revision(), before, "nothing is changed");
    held.nack_after(Duration::from_secs(3600)).block().unwrap();
    assert!(dead.remove(&id).block().unwrap());
    assert!(!dead.remove(&id).block().unwrap());
    assert_eq!(count(&kv, "jobs/"), 0, "its reason and its delay are deleted");

    let waiting = taker.put("y").block().unwrap();
    assert!(taker.remove(&waiting).block().unwrap());
    assert!(taker.try_take().block().unwrap().is_none());
    assert_eq!(kv.queue("").remove(&waiting).block(), Err(QueueError::EmptyName));
    assert_eq!(count(&kv, "jobs/item/"), 0);
}

#[test]
fn requeue_respects_the_limit_of_its_queue() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs");
    let id = bury(&taker, "x");
    let jobs = taker.limit(1);
    jobs.put("full").block().unwrap();
    assert_eq!(jobs.requeue(&id).block(), Err(QueueError::Full { limit: 1 }));
    assert_eq!(jobs.dead_letters().len().block().unwrap(), 1);
    assert_eq!(take(&taker), "full");
    assert!(jobs.requeue(&id).block().unwrap());
}

#[test]
fn requeue_overwrites_no_item_and_no_claim_with_the_same_id() {
    let cluster = quick(1);
    let (taker, kv) = (taker(&cluster, 0, "jobs"), cluster.client(0));
    let id = bury(&taker, "old");
    // Another client puts an item with the same id.
    let key = format!("jobs/item/{id}");
    kv.put(key.clone(), "new").block().unwrap();
    assert!(!taker.requeue(&id).block().unwrap());
    let held = taker.take().block().unwrap();
    assert_eq!(text(&held), "new");
    kv.delete(key).block().unwrap();
    assert!(!taker.requeue(&id).block().unwrap(), "its taker could acknowledge the old item");
    held.ack().block().unwrap();
    assert!(taker.requeue(&id).block().unwrap());
    assert_eq!(take(&taker), "old");
}

#[test]
fn requeue_moves_the_largest_value() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs");
    let id = taker.put(vec![7; 1 << 20]).block().unwrap();
    taker.take().block().unwrap().dead_letter("large").block().unwrap();
    assert!(taker.requeue(&id).block().unwrap());
    let again = taker.take().block().unwrap();
    assert!(again.value().len() == 1 << 20 && again.value().iter().all(|byte| *byte == 7));
    again.ack().block().unwrap();
}

#[test]
fn one_of_several_concurrent_requeues_moves_the_item() {
    let cluster = Arc::new(quick(3));
    let taker = taker(&cluster, 0, "jobs");
    for _ in 0..20 {
        let id = bury(&taker, "x");
        let requeues: Vec<_> = (0..6)
            .map(|n| {
                let (jobs, id) = (cluster.client(n % 3).queue("jobs"), id.clone());
                thread::spawn(move || jobs.requeue(&id).block().unwrap())
            })
            .collect();
        let moved = requeues.into_iter().map(|one| one.join().unwrap());
        assert_eq!(moved.filter(|moved| *moved).count(), 1);
        assert_eq!(take(&taker), "x");
        assert!(taker.try_take().block().unwrap().is_none());
    }
    assert_eq!(count(&cluster.client(1), "jobs/"), 0);
}

#[test]
fn requeue_overtaken_by_another_one_moves_nothing() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let late = (leader + 1) % 3;
    let (taker, jobs) = (taker(&cluster, leader, "jobs"), cluster.client(late).queue("jobs"));
    let (id, flag) = (bury(&taker, "x"), Flag::raised());
    let waker = Waker::from(Arc::clone(&flag));
    let mut context = Context::from_waker(&waker);
    let mut requeue = Box::pin(jobs.requeue(&id).into_future());
    // The first poll asks the leader. After the answer, the second poll reads the dead letter and
    // proposes the move. A paused node does not send it.
    flag.wait();
    assert!(requeue.as_mut().poll(&mut context).is_pending());
    flag.wait();
    cluster.pause(late);
    assert!(requeue.as_mut().poll(&mut context).is_pending());
    // Meanwhile the item is requeued and done.
    assert!(taker.requeue(&id).block().unwrap());
    assert_eq!(take(&taker), "x");
    cluster.resume(late);
    assert!(!requeue.block().unwrap());
    assert!(taker.try_take().block().unwrap().is_none(), "it is done already");
    until_count(&cluster.client(leader), "jobs/", 0);
}

#[test]
fn dropped_requeue_leaves_the_item_in_one_queue() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let taker = taker(&cluster, (leader + 1) % 3, "jobs");
    let kv = cluster.client(leader);
    let mut moved = 0;
    for polls in 0..24 {
        let id = bury(&taker, "x");
        drop(poll_at_most(polls % 6, taker.requeue(&id)));
        // Earlier calls of this node reach the log before this one.
        taker.put("last").priority(100).block().unwrap();
        let (here, dead) =
            (taker.len().block().unwrap(), taker.dead_letters().len().block().unwrap());
        assert_eq!(here + dead, 2);
        assert_eq!(count(&kv, "jobs/dead/reason/"), dead, "each letter has its reason");
        moved += u64::from(dead == 0);
        assert_eq!(taker.requeue(&id).block().unwrap(), dead == 1);
        assert_eq!([take(&taker), take(&taker)], ["x", "last"]);
    }
    assert!((1..24).contains(&moved), "{moved}");
    assert_eq!(count(&kv, "jobs/"), 0);
}

#[test]
fn requeues_and_takes_lose_and_duplicate_nothing_while_nodes_crash() {
    const ITEMS: usize = 40;
    let mut cluster = quick(3);
    let kv = cluster.client(0);
    let ids = kv.queue("jobs").put_many((0..ITEMS).map(|n| n.to_string())).block().unwrap();
    let ids = Arc::new(ids);
    let ended = Arc::new(AtomicBool::new(false));
    let is_stopped = |error: &QueueError| {
        let stopped = |error: &Error| matches!(error, Error::Stopped { .. });
        matches!(error, QueueError::SessionEnded(_))
            || matches!(error, QueueError::Store(error) if stopped(error))
    };
    // Every taker fails each item, so that items travel between the two queues all the time. Takers
    // of the dead-letter queue release what they take. All end with their node.
    let work = |cluster: &Cluster, member: usize| {
        let jobs = taker(cluster, member, "jobs").attempts_max(2);
        let undertaker = taker(cluster, member, "jobs/dead");
        let (ids, queue) = (Arc::clone(&ids), cluster.client(member).queue("jobs"));
        let is_over = || {
            let ended = Arc::clone(&ended);
            move || ended.load(Ordering::Relaxed)
        };
        let (over_takes, over_letters, over_requeues) = (is_over(), is_over(), is_over());
        [
            thread::spawn(move || {
                while !over_takes() {
                    match jobs.try_take().block() {
                        Ok(Some(job)) => drop(job.fail("again").block()),
                        Err(error) if is_stopped(&error) => return,
                        Ok(None) | Err(_) => thread::yield_now(),
                    }
                }
            }),
            thread::spawn(move || {
                while !over_letters() {
                    match undertaker.try_take().block() {
                        Ok(Some(letter)) => drop(letter.nack().block()),
                        Err(error) if is_stopped(&error) => return,
                        Ok(None) | Err(_) => thread::yield_now(),
                    }
                }
            }),
            thread::spawn(move || {
                for id in ids.iter().cycle() {
                    if over_requeues()
                        || queue.requeue(id).block().is_err_and(|error| is_stopped(&error))
                    {
                        return;
                    }
                }
            }),
        ]
    };
    let mut threads: Vec<_> = (0..3).flat_map(|member| work(&cluster, member)).collect();
    for victim in [1, 2, 0] {
        // Wait until some dead letters were moved, so that the member is killed in the middle of the work.
        let lives = cluster.client((victim + 1) % 3);
        let mut letters = lives.watch(KeyRange::prefix("jobs/dead/reason/")).block().unwrap();
        for _ in 0..10 {
            letters.next().block().unwrap().unwrap();
        }
        cluster.kill(victim).block();
        cluster.restart(victim).block().unwrap();
        threads.extend(work(&cluster, victim));
    }
    ended.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let kv = cluster.client(0);
    until_count(&kv, "jobs/claim/", 0);
    until_count(&kv, "jobs/dead/claim/", 0);
    let [here, dead] = ["jobs", "jobs/dead"].map(|name| kv.queue(name).items().block().unwrap());
    assert!(dead.iter().all(|letter| letter.dead_letter.is_some()));
    assert_eq!(count(&kv, "jobs/dead/reason/"), dead.len() as u64, "reasons without an item");
    let mut all: Vec<&ItemId> = here.iter().chain(&dead).map(|item| &item.id).collect();
    all.sort();
    let mut expected: Vec<&ItemId> = ids.iter().collect();
    expected.sort();
    assert_eq!(all, expected);
}

#[test]
fn failed_item_is_retried_until_its_last_attempt() {
    let cluster = quick(1);
    let (taker, kv) = (taker(&cluster, 0, "jobs").attempts_max(3), cluster.client(0));
    taker.put("x").block().unwrap();
    let job = taker.take().block().unwrap();
    assert!(!job.is_last_attempt());
    let outcome = job.fail("one").block().unwrap();
    assert_eq!((outcome, outcome.is_dead_letter()), (FailOutcome::Retry, false));
    let job = taker.take().block().unwrap();
    assert!(!job.is_last_attempt());
    let pause = Duration::from_millis(300);
    let failed = cluster.node(0).now();
    assert_eq!(job.fail("two").retry_after(pause).block().unwrap(), FailOutcome::Retry);
    assert!(taker.try_take().block().unwrap().is_none(), "it is delayed");
    let job = taker.take().block().unwrap();
    assert!(cluster.node(0).now().since(failed) >= pause);
    assert!(job.is_last_attempt());
    let outcome = job.fail("three").retry_after(pause).block().unwrap();
    assert!(outcome.is_dead_letter());
    assert!(taker.is_empty().block().unwrap(), "moved without another take");
    let dead = taker.dead_letters().items().block().unwrap().remove(0);
    assert_eq!((dead.attempts, dead.state), (0, ItemState::Free));
    let letter = dead.dead_letter.unwrap();
    assert_eq!((letter.attempts, &*letter.reason), (3, "three"));

    // Without a limit there is no last attempt.
    assert!(taker.requeue(&dead.id).block().unwrap());
    let unlimited = self::taker(&cluster, 0, "jobs");
    for attempt in 1..6 {
        let job = unlimited.take().block().unwrap();
        assert_eq!((job.attempt(), job.is_last_attempt()), (attempt, false));
        assert_eq!(job.fail("again").block().unwrap(), FailOutcome::Retry);
    }
    // A taker that has lost its item changes nothing.
    let job = unlimited.take().block().unwrap();
    kv.delete_prefix("jobs/claim/").block().unwrap();
    assert_eq!(job.fail("late").block(), Err(QueueError::ClaimLost));
    assert_eq!((count(&kv, "jobs/item/"), count(&kv, "jobs/dead/")), (1, 0));
}

#[test]
fn dropped_fail_leaves_the_item_in_one_queue() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let taker = taker(&cluster, (leader + 1) % 3, "jobs").attempts_max(1);
    let kv = cluster.client(leader);
    for polls in 0..12 {
        taker.put("x").block().unwrap();
        drop(poll_at_most(polls % 4, taker.take().block().unwrap().fail("reason")));
        until_count(&kv, "jobs/claim/", 0);
        // An item that was only released is moved by the next taker.
        assert!(taker.try_take().block().unwrap().is_none());
        until_count(&kv, "jobs/item/", 0);
        let dead = taker.dead_letters().items().block().unwrap();
        let reason = &dead[0].dead_letter.as_ref().unwrap().reason;
        let expected = match polls % 4 {
            0 => "taken 1 times without an acknowledgement",
            _ => "reason",
        };
        assert_eq!((dead.len(), reason.as_str()), (1, expected));
        let undertaker = self::taker(&cluster, leader, "jobs/dead");
        undertaker.take().block().unwrap().ack().block().unwrap();
        assert_eq!(count(&kv, "jobs/dead/"), 0);
    }
}

#[test]
fn dead_letter_with_too_many_attempts_takes_its_reason_along() {
    let cluster = quick(1);
    let (taker, kv) = (taker(&cluster, 0, "jobs"), cluster.client(0));
    bury(&taker, "x");
    let undertaker = self::taker(&cluster, 0, "jobs/dead").attempts_max(1);
    undertaker.take().block().unwrap().nack().block().unwrap();
    assert!(undertaker.try_take().block().unwrap().is_none());
    until_count(&kv, "jobs/dead/dead/item/", 1);
    assert_eq!(count(&kv, "jobs/dead/reason/"), 0);
    assert_eq!(undertaker.dead_letters().items().block().unwrap()[0].dead_letter.iter().count(), 1);
}

#[test]
fn listed_items_round_trip_through_json() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs");
    bury(&taker, "x");
    taker.put([0xff, 0]).block().unwrap();
    taker.put("delayed").delay(Duration::from_secs(3600)).block().unwrap();
    taker.put("free").block().unwrap();
    let _held = taker.take().block().unwrap();
    let mut items = taker.items().block().unwrap();
    items.extend(taker.dead_letters().items().block().unwrap());
    let text = serde_json::to_string(&items).unwrap();
    let read: Vec<QueuedItem> = serde_json::from_str(&text).unwrap();
    assert_eq!(read, items);
    // Older versions wrote no key.
    let mut old: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(old[3].as_object_mut().unwrap().remove("key").is_some());
    let old: QueuedItem = serde_json::from_value(old[3].take()).unwrap();
    assert_eq!((&old.id, &old.dead_letter), (&items[3].id, &items[3].dead_letter));
}

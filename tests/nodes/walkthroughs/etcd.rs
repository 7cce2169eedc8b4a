//! etcd: the six steps of a lock, two sessions on one lock, the leader-elected cron, elections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bowline::testing::Cluster;
use bowline::{
    Blocking, Client, EventKind, KeyRange, KeyValue, LeaseId, NodeStatus, Op, Released, Revision,
    Role, Session, SortOrder, SortTarget,
};

use crate::stage::{
    Begun, SOON, STEADY, another_leader, another_session, lasting, places, session, stand_in_line,
    steady, until_places,
};

const LOCK: &str = "/lock/mylock";

/// Returns the lock queue in the order of the creation of keys.
fn line(kv: &Client) -> (Vec<KeyValue>, Revision) {
    let below = KeyRange::prefix(format!("{LOCK}/"));
    let reply = kv.range(below).sort(SortTarget::Create, SortOrder::Ascend).block().unwrap();
    (reply.kvs, reply.revision)
}

/// Steps 4 and 5: unless the client's key is the first, waits until the key just before it is
/// deleted. Returns the number of wake-ups.
fn wait_for_turn(kv: &Client, key: &str) -> usize {
    let mut wakes = 0;
    loop {
        let (line, revision) = line(kv);
        let place = line.iter().position(|row| row.key == key).expect("it stands in line");
        if place == 0 {
            return wakes;
        }
        let next = Revision(revision.get() + 1);
        let mut changes = kv.watch(line[place - 1].key.clone()).from(next).block().unwrap();
        let batch = changes.next().block().unwrap().unwrap();
        assert_eq!(batch.events[0].kind, EventKind::Delete);
        wakes += 1;
    }
}

/// Steps 1 to 3: puts a key below the name, bound to a lease. The revision of the answer is the position in the
/// queue.
fn enter(kv: &Client, lease: LeaseId, who: &str) -> (String, Revision) {
    let key = format!("{LOCK}/{who}");
    let revision = kv.put(key.clone(), "").lease(lease).block().unwrap().revision;
    (key, revision)
}

#[test]
fn six_steps_by_hand_serve_in_order() {
    let cluster = lasting(3);
    let mut last = Revision(0);
    let (mut keys, mut sessions) = (Vec::new(), Vec::new());
    for (i, who) in ["2", "3", "1", "4"].into_iter().enumerate() {
        // The node renews the lease of a session after a third of its TTL.
        let session =
            cluster.node(i % 3).open_session().ttl(Duration::from_secs(15)).block().unwrap();
        let (key, revision) = enter(&cluster.node(i % 3).client(), session.lease(), who);
        assert!(revision > last);
        last = revision;
        keys.push(key);
        sessions.push(session);
    }
    let (sender, served) = mpsc::channel();
    std::thread::scope(|scope| {
        for (i, key) in keys.iter().enumerate() {
            let (kv, sender) = (cluster.node(i % 3).client(), sender.clone());
            scope.spawn(move || {
                let wakes = wait_for_turn(&kv, key);
                sender.send((key, wakes)).unwrap();
                // Step 6: the work is done, and the key is deleted.
                kv.delete(key.clone()).block().unwrap();
            });
        }
        for (i, key) in keys.iter().enumerate() {
            let (who, wakes) = served.recv_timeout(SOON).unwrap();
            assert_eq!(who, key);
            // A waiter is woken only by the deletion of the key before its own. A late waiter may
            // find that key already deleted.
            assert!(wakes <= usize::from(i > 0), "{key} was woken {wakes} times");
        }
    });
    assert_eq!(places(cluster.node(0), LOCK), 0);
}

#[test]
fn lease_of_a_dead_holder_deletes_its_key() {
    let cluster = lasting(3);
    let kv = cluster.node(0).client();
    // This lease is not renewed.
    let dead = kv.grant(STEADY).block().unwrap().id;
    let (dying, _) = enter(&kv, dead, "dying");
    let (key, _) = enter(&kv, session(&cluster, 1).lease(), "next");
    wait_for_turn(&cluster.node(1).client(), &key);
    assert_eq!(kv.get(dying).block().unwrap(), None);
    assert_eq!(kv.lease_info(dead).block().unwrap(), None);
}

#[test]
fn six_steps_with_the_mutex_serve_in_order_and_wake_one() {
    let cluster = lasting(3);
    let sessions: Vec<Session> =
        (1..=4).map(|i| another_session(&cluster, i % 3, &i.to_string())).collect();
    let gate = session(&cluster, 0).mutex(LOCK).lock().block().unwrap();
    let mut waiting: Vec<_> = [2, 3, 1, 4]
        .map(|i| (i, stand_in_line(&sessions[i - 1], cluster.node(i % 3), LOCK)))
        .into();
    let labels: Vec<_> =
        sessions[0].mutex(LOCK).queue().unwrap().into_iter().filter_map(|row| row.label).collect();
    assert_eq!(labels, ["m0", "2", "3", "1", "4"]);
    let mut held = gate;
    while !waiting.is_empty() {
        // All waiters know that they are queued before the next release.
        let newest = cluster.node(0).client().range("any").block().unwrap().revision;
        cluster.all_at(newest).block().unwrap();
        for (i, call) in &mut waiting {
            assert!(call.poll().is_none(), "{i} holds the lock beside another");
        }
        let before: Vec<u64> = waiting.iter().skip(1).map(|(_, call)| call.wakes()).collect();
        let token = held.token();
        assert_eq!(held.release().block().unwrap(), Released::Now);
        let (_, next) = waiting.remove(0);
        held = next.finish().unwrap();
        assert!(held.token() > token);
        cluster.all_at(held.token().revision()).block().unwrap();
        let after: Vec<u64> = waiting.iter().map(|(_, call)| call.wakes()).collect();
        assert_eq!(before, after, "a release wakes nobody but the next");
    }
    held.release().block().unwrap();
    assert_eq!(places(cluster.node(0), LOCK), 0);
}

#[test]
fn second_session_acquires_the_lock_once_the_first_releases() {
    let cluster = lasting(3);
    let first = another_session(&cluster, 0, "first").mutex("/lock").lock().block().unwrap();
    let second = another_session(&cluster, 1, "second");
    let mut waiting = stand_in_line(&second, cluster.node(1), "/lock");
    assert!(waiting.poll().is_none());
    assert!(first.is_held());
    first.release().block().unwrap();
    let second = waiting.finish().unwrap();
    assert!(second.is_held());
    second.release().block().unwrap();
}

/// One instance of the job: campaigns in the election, works while it is the leader, and resigns
/// when the job fails or the instance is stopped.
struct Instance {
    name: usize,
    session: Session,
    inside: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    ran: mpsc::Sender<usize>,
}

impl Instance {
    fn run(self) {
        let election = self.session.election("cron");
        while !self.stop.load(Ordering::SeqCst) {
            let Ok(leadership) = election.campaign(self.name.to_string()).block() else { return };
            for job in 1.. {
                if self.stop.load(Ordering::SeqCst) || job % 7 == 0 {
                    // The instance was stopped, or the job has failed.
                    let _ = leadership.resign().block();
                    break;
                }
                if !leadership.is_leader() {
                    return;
                }
                assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two run the job");
                let wrote = leadership.txn().then(Op::put("last", self.name.to_string())).commit();
                let wrote = wrote.block();
                self.inside.fetch_sub(1, Ordering::SeqCst);
                if wrote.is_err() || self.ran.send(self.name).is_err() {
                    return;
                }
            }
        }
    }
}

#[test]
fn leader_elected_cron_runs_once_and_its_successor_takes_over() {
    let mut cluster = steady(3);
    let (inside, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (sender, ran) = mpsc::channel();
    let instance = |cluster: &Cluster, name: usize| {
        let (inside, stop) = (Arc::clone(&inside), Arc::clone(&stop));
        let session = session(cluster, name);
        let instance = Instance { name, session, inside, stop, ran: sender.clone() };
        std::thread::spawn(move || instance.run())
    };
    let mut threads: Vec<_> = (0..3).map(|name| instance(&cluster, name)).collect();
    for _ in 0..3 {
        let leads = ran.recv_timeout(SOON).unwrap();
        cluster.kill(leads).block();
        threads.remove(leads).join().unwrap();
        // The first reports were sent before the instance died. Later reports are from another
        // instance.
        let mut next = leads;
        while next == leads {
            next = ran.recv_timeout(SOON).expect("a successor runs the job");
        }
        cluster.restart(leads).block().unwrap();
        threads.insert(leads, instance(&cluster, leads));
    }
    stop.store(true, Ordering::SeqCst);
    for thread in threads {
        thread.join().unwrap();
    }
    let election = session(&cluster, 0).election("cron");
    assert_eq!(election.leader().block().unwrap(), None, "who was told to stop has resigned");
}

/// `tests/simulation.rs` checks this over many seeds (R-ELECT).
#[test]
fn randomized_elections_have_at_most_one_leader_a_term() {
    let mut cluster = lasting(5);
    let mut leaders: BTreeMap<u64, String> = BTreeMap::new();
    let mut old = cluster.leader().block().unwrap();
    for _ in 0..3 {
        cluster.kill(old).block();
        let seen = |all: &[NodeStatus]| {
            for leader in all.iter().filter(|status| status.role == Role::Leader) {
                let first = leaders.entry(leader.term.get()).or_insert_with(|| leader.name.clone());
                assert_eq!(*first, leader.name, "two leaders in term {}", leader.term);
            }
            all.iter().any(|status| status.role == Role::Leader)
        };
        cluster.wait_until("nobody leads", seen).block().unwrap();
        let new = another_leader(&cluster, old);
        cluster.restart(old).block().unwrap();
        old = new;
    }
    assert!(leaders.len() >= 3, "{leaders:?}");
}

#[test]
fn dropped_campaign_leaves_no_candidacy() {
    let cluster = lasting(3);
    let leads = session(&cluster, 0).election("jobs").campaign("a").block().unwrap();
    let other = another_session(&cluster, 1, "b");
    let campaign = Begun::new(other.election("jobs").campaign("b"));
    until_places(cluster.node(1), "jobs", 2);
    drop(campaign);
    until_places(cluster.node(0), "jobs", 1);
    leads.resign().block().unwrap();
    assert_eq!(other.election("jobs").leader().block().unwrap(), None);
}

//! Tests of elections: work that runs only while its node leads, during losses, kills and partitions; and holds that
//! are resumed after a restart of the program.

mod views;

use std::collections::BTreeMap;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use bowline::env::{BootClock, Clock};
use bowline::testing::Cluster;
use bowline::{
    Blocking, Effect, GuardError, LeadError, LeaderEvent, Leadership, LeaseId, LockError,
    LostReason, Moment, Node, NodeId, Op, Released, Revision, Session, SessionEndReason, Token,
    lock::{ResumeError, SavedHold},
};
use tokio::sync::oneshot;

use crate::stage::{
    Begun, LONG, SOON, another_session, lasting, lasting_with, places, roles, session,
    stand_in_line, steady, until_places, until_true, with_clocks,
};

/// Counts how often work was started, and how often it has ended or was dropped.
#[derive(Clone, Default)]
struct Counted {
    begun: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

struct Inside(Counted);

impl Counted {
    fn enter(&self) -> Inside {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Inside(self.clone())
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Deletes the leader's key, as a foreign client might.
fn evict(node: &Node, election: &str) {
    let election = node.session().block().unwrap().election(election.to_owned());
    let leader = election.leader().block().unwrap().expect("somebody leads");
    node.client().delete(leader.key).block().unwrap();
}

/// Runs work that never ends by itself.
async fn work_for_ever(session: Session, counted: Counted) -> Result<(), LeadError> {
    let work = async |_| {
        let _inside = counted.enter();
        pending::<()>().await;
    };
    session.election("jobs").run_while_leader("a", work).await
}

#[test]
fn result_is_returned_when_another_may_lead() {
    let cluster = lasting(3);
    let election = session(&cluster, 0).election("jobs");
    let other = session(&cluster, 1).election("jobs");
    let work = async |leadership: Arc<Leadership>| {
        assert!(leadership.is_leader());
        let line = election.candidates().unwrap();
        assert_eq!((line.len(), &line[0].reason[..]), (1, &b"a"[..]));
        assert!(line[0].holds && line[0].key == *leadership.key());
        leadership.token()
    };
    let token = election.run_while_leader("a", work).block().unwrap();
    assert_eq!(other.leader().block().unwrap(), None);
    let next = other.campaign("b").block().unwrap();
    assert!(next.token() > token);
}

#[test]
fn work_that_ignores_the_loss_is_dropped_and_restarted() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let counted = Counted::default();
    let running = Begun::new(work_for_ever(session(&cluster, one), counted.clone()));
    let running = Mutex::new(running);
    for term in 1..=3 {
        until_true(cluster.node(one), "it leads", || {
            assert!(running.lock().unwrap().poll().is_none());
            counted.begun() == term
        });
        assert_eq!(counted.ended(), term - 1, "one at a time");
        evict(cluster.node(two), "jobs");
    }
    drop(running);
    assert_eq!(counted.begun(), counted.ended());
    until_places(cluster.node(two), "jobs", 0);
}

#[test]
fn work_may_finish_after_the_loss_if_configured() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let election = session(&cluster, one).election("jobs");
    let (kv, (sender, losses)) = (cluster.node(two).client(), mpsc::channel());
    let terms = AtomicU64::new(0);
    let work = async |leadership: Arc<Leadership>| {
        if terms.fetch_add(1, Ordering::SeqCst) == 1 {
            return "of the second term";
        }
        kv.delete(leadership.key().clone()).await.unwrap();
        sender.send(leadership.lost().await).unwrap();
        // The member becomes a candidate again only when this work has ended.
        assert_eq!(election.leader().await.unwrap(), None);
        "of the first term"
    };
    let result = election.leader_task("a").finish_after_loss().run(work).block();
    assert_eq!(result, Ok("of the second term"));
    assert_eq!(losses.try_iter().collect::<Vec<_>>(), [LostReason::KeyDeleted]);
}

#[test]
fn once_returns_the_leadership_loss() {
    let cluster = lasting(1);
    let election = session(&cluster, 0).election("jobs");
    let kv = cluster.node(0).client();
    let work = async |leadership: Arc<Leadership>| {
        kv.delete(leadership.key().clone()).await.unwrap();
        pending::<()>().await;
    };
    let lost = election.leader_task("a").once().run(work).block().unwrap_err();
    assert_eq!(lost, LeadError::Lost(LostReason::KeyDeleted));
    assert_eq!((lost.effect(), lost.is_transient()), (Effect::NotApplied, true));
    assert_eq!(election.leader().block().unwrap(), None, "it does not stand any more");
}

#[test]
fn leader_task_ends_with_its_session() {
    let cluster = lasting(3);
    let counted = Counted::default();
    let mut all = Vec::new();
    for member in 0..2 {
        let (session, seen) = (another_session(&cluster, member, "candidate"), counted.clone());
        let election = session.election("jobs");
        let running = Begun::new(async move {
            let work = async |_: Arc<Leadership>| {
                let _inside = seen.enter();
                pending::<()>().await;
            };
            election.run_while_leader("x", work).await
        });
        until_places(cluster.node(0), "jobs", member as u64 + 1);
        all.push((session, running));
    }
    // Stop the second candidate first, which waits.
    for (session, running) in all.into_iter().rev() {
        session.close().block().unwrap();
        let error = running.finish().unwrap_err();
        assert!(matches!(error, LeadError::NotElected(LockError::SessionEnded(_))), "{error:?}");
        assert_eq!((error.effect(), error.is_transient()), (Effect::NotApplied, false));
    }
    assert_eq!(counted.begun(), counted.ended());
    assert!(counted.begun() <= 1, "who never led is told nothing");
}

/// Runs a leader task of the node until it is stopped. Reports each term with its member and
/// session.
fn lead_by_node(
    node: &Node,
    sender: &mpsc::Sender<(NodeId, LeaseId, Token)>,
) -> (oneshot::Sender<()>, JoinHandle<Result<Option<&'static str>, LeadError>>) {
    let (stop, stopped) = oneshot::channel();
    let (id, leading, sender) = (node.status().id, node.leader_task("jobs", "a"), sender.clone());
    let running = std::thread::spawn(move || {
        let work = async |leadership: Arc<Leadership>| {
            sender.send((id, leadership.session().lease(), leadership.token())).unwrap();
            leadership.asked_to_release().await;
            "handed over"
        };
        leading.run_until(stopped, LONG, work).block()
    });
    (stop, running)
}

#[test]
fn leader_task_of_a_node_leads_again_after_its_session_ended() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let (sender, terms) = mpsc::channel();
    let (stop, running) = lead_by_node(cluster.node(one), &sender);
    let mut last = None;
    for _ in 0..2 {
        let (_, lease, token) = terms.recv_timeout(SOON).expect("it leads");
        assert!(last < Some(token), "{token} after {last:?}");
        last = Some(token);
        cluster.node(two).client().revoke(lease).block().unwrap();
    }
    let (_, lease, token) = terms.recv_timeout(SOON).expect("it leads again");
    assert!(last < Some(token));
    assert_eq!(session(&cluster, one).lease(), lease, "it leads with the node's own");
    session(&cluster, one).close().block().unwrap();
    let _ = terms.recv_timeout(SOON).expect("it leads again");
    stop.send(()).unwrap();
    assert_eq!(running.join().unwrap(), Ok(Some("handed over")));
    until_places(cluster.node(two), "jobs", 0);
}

#[test]
fn leader_tasks_requeue_after_a_long_quorum_outage() {
    let cluster = steady(3);
    let (sender, terms) = mpsc::channel();
    let mut running: BTreeMap<NodeId, _> = cluster
        .running()
        .map(|(_, node)| (node.status().id, lead_by_node(node, &sender)))
        .collect();
    terms.recv_timeout(SOON).expect("somebody leads");
    until_places(cluster.node(0), "jobs", 3);
    let sessions: Vec<_> = (0..3).map(|member| session(&cluster, member)).collect();
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        cluster.cut(from, to);
    }
    for session in sessions {
        session.ended().block();
    }
    // No member can lead now, so discard all reports so far. Later reports are from after the outage.
    while terms.try_recv().is_ok() {}
    cluster.heal();
    while !running.is_empty() {
        let (member, ..) = terms.recv_timeout(SOON).expect("the next one leads");
        if let Some((stop, thread)) = running.remove(&member) {
            stop.send(()).unwrap();
            let ended = thread.join().unwrap();
            assert!(ended.is_ok(), "{ended:?}");
        }
    }
}

/// With the option "release on cancel" of Kubernetes, the next instance may lead while the work of the previous one
/// still runs. Here it must not.
#[test]
fn next_leader_waits_until_the_work_has_ended() {
    let cluster = lasting(3);
    let other = session(&cluster, 1).election("jobs");
    let rival = Begun::asked(async move {
        let leadership = other.campaign("b").await?;
        Ok::<_, LockError>(leadership)
    });
    until_places(cluster.node(0), "jobs", 1);
    drop(rival.finish().unwrap());

    let other = session(&cluster, 1).election("jobs");
    let election = session(&cluster, 0).election("jobs");
    let ended = Arc::new(AtomicBool::new(false));
    let at_the_end = Arc::clone(&ended);
    let (stop, stopped) = oneshot::channel::<()>();
    let (leads, is_leading) = mpsc::channel();
    let running = std::thread::spawn(move || {
        let work = async |leadership: Arc<Leadership>| {
            leads.send(()).unwrap();
            let request = leadership.asked_to_release().await;
            assert!(leadership.is_leader() && !request.reason.is_empty());
            // After the request, the work still runs for a while. Meanwhile it is still the leader.
            leadership.proclaim("a, ending").await.unwrap();
            at_the_end.store(true, Ordering::SeqCst);
            "ended in order"
        };
        election.leader_task("a").run_until(stopped, LONG, work).block()
    });
    is_leading.recv_timeout(SOON).unwrap();
    let mut waits = Begun::new(other.campaign("b"));
    until_places(cluster.node(0), "jobs", 2);
    assert!(waits.poll().is_none());
    stop.send(()).unwrap();
    let next = waits.finish().unwrap();
    assert!(ended.load(Ordering::SeqCst), "another leads before the work has ended");
    assert_eq!(running.join().unwrap(), Ok(Some("ended in order")));
    assert!(next.is_leader());
}

#[test]
fn stopped_work_is_dropped_after_the_grace_period() {
    let cluster = lasting(1);
    let election = session(&cluster, 0).election("jobs");
    let counted = Counted::default();
    let grace = Duration::from_millis(200);
    let begun = cluster.node(0).now();
    let work = async |_: Arc<Leadership>| {
        let _inside = counted.enter();
        pending::<()>().await;
    };
    let stop = std::future::ready(());
    // If the task is stopped before it leads, it never becomes a candidate.
    assert_eq!(election.leader_task("a").run_until(stop, grace, work).block(), Ok(None));
    assert_eq!(counted.begun(), 0);

    let (stop, stopped) = oneshot::channel::<()>();
    let stop = Mutex::new(Some(stop));
    let work = async |_: Arc<Leadership>| {
        let _inside = counted.enter();
        stop.lock().unwrap().take().expect("one term").send(()).unwrap();
        pending::<()>().await;
    };
    assert_eq!(election.leader_task("a").run_until(stopped, grace, work).block(), Ok(None));
    assert_eq!((counted.begun(), counted.ended()), (1, 1));
    assert!(cluster.node(0).now().since(begun) >= grace);
    assert_eq!(election.leader().block().unwrap(), None);
}

#[test]
fn stopped_task_ends_without_a_quorum() {
    // Without its own limit, the resignation would wait for this deadline.
    let cluster = lasting_with(3, |config| config.call_deadline(Duration::from_secs(86_400)));
    // The work ends when it is asked to, or by itself before the stop.
    for ends_by_itself in [false, true] {
        let (leader, ..) = roles(&cluster);
        let election = session(&cluster, leader).election("jobs");
        let (leads, is_leading) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let (end, ending) = oneshot::channel::<()>();
        let ending = Arc::new(Mutex::new(Some(ending)));
        let (ends, has_ended) = mpsc::channel();
        let running = std::thread::spawn(move || {
            let work = async move |leadership: Arc<Leadership>| {
                leads.send(()).unwrap();
                let ending = ending.lock().unwrap().take().expect("one term");
                tokio::select! {
                    _ = leadership.asked_to_release() => {}
                    _ = ending => ends.send(()).unwrap(),
                }
            };
            election.leader_task("a").run_until(stopped, Duration::ZERO, work).block()
        });
        is_leading.recv_timeout(SOON).unwrap();
        cluster.partition(&[leader]);
        let end = if ends_by_itself {
            drop(end);
            has_ended.recv_timeout(SOON).unwrap();
            None
        } else {
            Some(end)
        };
        stop.send(()).unwrap();
        let result = running.join().unwrap().unwrap();
        assert!(result.is_some() || !ends_by_itself, "the result is lost");
        drop(end);
        cluster.heal();
        until_places(cluster.node((leader + 1) % 3), "jobs", 0);
    }
}

#[test]
fn handler_writes_only_while_a_task_of_its_node_leads() {
    let cluster = lasting(3);
    let view = cluster.node(0).election_view("jobs");
    let other = cluster.node(1).election_view("jobs");
    assert!(view.still_leader().is_none());
    let leadership = session(&cluster, 0).election("jobs").campaign("a").block().unwrap();
    let conditions = view.still_leader().expect("a task of the node leads");
    assert!(other.still_leader().is_none(), "another node leads");
    let write = |value: &'static str| {
        let put = Op::put("report", value);
        let txn = cluster.node(0).client().txn().when_complete(conditions.clone()).then(put);
        txn.commit().block().unwrap().succeeded
    };
    assert!(write("monday"));
    // The leader's key is deleted without the handler's knowledge, and another candidate leads.
    cluster.node(1).client().delete(leadership.key().clone()).block().unwrap();
    let next = session(&cluster, 1).election("jobs").campaign("b").block().unwrap();
    assert!(!write("tuesday"));
    assert!(view.still_leader().is_none() && other.still_leader().is_some());
    // A later term of the same node does not make the old conditions true again.
    next.resign().block().unwrap();
    let again = session(&cluster, 0).election("jobs").campaign("a").block().unwrap();
    assert!(!write("wednesday") && again.is_leader());
    let row = cluster.node(0).client().get("report").block().unwrap().unwrap();
    assert_eq!(row.value, "monday");
}

#[test]
fn dropped_or_panicking_leader_task_ends_the_work_then_resigns() {
    let cluster = lasting(3);
    let election = session(&cluster, 0).election("jobs");
    let counted = Counted::default();
    let work = async |_: Arc<Leadership>| -> () {
        let _inside = counted.enter();
        panic!("a bug in the work");
    };
    let running = election.run_while_leader("a", work);
    assert!(catch_unwind(AssertUnwindSafe(|| running.block())).is_err());
    assert_eq!((counted.begun(), counted.ended()), (1, 1));
    until_places(cluster.node(1), "jobs", 0);
}

#[test]
fn value_of_another_lock_kind_is_rejected() {
    let cluster = lasting(1);
    let election = session(&cluster, 0).election("jobs");
    let refused = election.run_while_leader("bowline:1 read\n", async |_| ()).block();
    assert_eq!(refused, Err(LeadError::NotElected(LockError::ReservedValue)));
    let leadership = election.campaign("a").block().unwrap();
    let refused = leadership.proclaim("bowline:1 read\n").block();
    assert_eq!(refused, Err(GuardError::ReservedValue));
}

/// The intervals in which work ran and was guaranteed to lead, by the clock of this machine.
type Spells = Arc<Mutex<Vec<(Moment, Moment)>>>;

/// Records its interval when it is dropped.
struct Spell {
    begun: Moment,
    /// The last time at which the work was known to lead. The time of the drop cannot be used instead, because the
    /// thread that ends the work may be late.
    last: Option<Moment>,
    spells: Spells,
}

impl Drop for Spell {
    fn drop(&mut self) {
        if let Some(last) = self.last {
            self.spells.lock().unwrap().push((self.begun, last));
        }
    }
}

#[test]
fn two_leader_tasks_never_run_at_once_during_kills_and_partitions() {
    let mut cluster = steady(3);
    let spells = Spells::default();
    let (sender, begun) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let candidate = |cluster: &Cluster, member: usize| {
        let (session, sender) = (session(cluster, member), sender.clone());
        let (spells, stop) = (Arc::clone(&spells), Arc::clone(&stop));
        std::thread::spawn(move || {
            let work = async |leadership: Arc<Leadership>| {
                let (begun, spells) = (BootClock.now(), Arc::clone(&spells));
                let mut spell = Spell { begun, last: None, spells };
                while !stop.load(Ordering::SeqCst) {
                    let now = BootClock.now();
                    if leadership.is_leader() && spell.last.replace(now).is_none() {
                        sender.send((member, leadership.token())).unwrap();
                    }
                    let said = leadership.proclaim(member.to_string()).await;
                    if said == Err(GuardError::NotHeld) {
                        // The loss is noticed at the next await point.
                        pending::<()>().await;
                    }
                }
            };
            session.election("jobs").run_while_leader(member.to_string(), work).block()
        })
    };
    let mut threads: Vec<_> = (0..3).map(|member| candidate(&cluster, member)).collect();
    let mut tokens = Vec::new();
    for round in 0..6 {
        let (leads, token) = begun.recv_timeout(SOON).expect("somebody leads");
        tokens.push(token);
        if round % 2 == 0 {
            cluster.kill(leads).block();
            assert!(threads.remove(leads).join().unwrap().is_err());
            cluster.restart(leads).block().unwrap();
        } else {
            cluster.partition(&[leads]);
            assert!(threads.remove(leads).join().unwrap().is_err());
            cluster.heal();
        }
        threads.insert(leads, candidate(&cluster, leads));
    }
    stop.store(true, Ordering::SeqCst);
    for thread in threads {
        match thread.join().unwrap() {
            Ok(()) | Err(LeadError::NotElected(LockError::SessionEnded(_))) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let mut spells = spells.lock().unwrap().clone();
    spells.sort();
    for pair in spells.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two at work at once: {pair:?}");
    }
    assert!(spells.len() >= 6);
    let observed = session(&cluster, 0).election("jobs").observe().next().block().unwrap().unwrap();
    assert_eq!(observed, LeaderEvent::Vacant);
}

#[test]
fn leadership_is_resumed_after_a_node_restart() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let mine = another_session(&cluster, one, "scheduler");
    let leadership = mine.election("jobs").campaign("a").block().unwrap();
    let (saved, token) = (leadership.saved_hold().to_string(), leadership.token());
    cluster.kill(one).block();
    drop((leadership, mine));
    let rival = Begun::new(session(&cluster, two).election("jobs").campaign("b"));
    until_places(cluster.node(two), "jobs", 2);
    cluster.restart(one).block().unwrap();

    let ticket: SavedHold = saved.parse().unwrap();
    let mine = session(&cluster, one);
    let election = mine.election("jobs");
    let leadership = election.resume(&ticket).block().unwrap();
    assert!(leadership.is_leader());
    assert!(leadership.token() > token, "{} after {token}", leadership.token());
    assert_eq!(leadership.since(), ticket.since());
    leadership.proclaim("a again").block().unwrap();
    assert_eq!(election.leader().block().unwrap().unwrap().value, "a again");
    assert_eq!(election.resume(&ticket).block().unwrap_err(), ResumeError::Over);
    assert_ne!(leadership.saved_hold().lease(), ticket.lease());
    leadership.resign().block().unwrap();
    assert!(rival.finish().unwrap().is_leader());
    assert_eq!(election.resume(&ticket).block().unwrap_err(), ResumeError::Over);
}

#[test]
fn observer_with_compacted_history_sees_the_next_leader() {
    /// The number of events that an observer buffers.
    const QUEUE: usize = 256;
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let lead = |label: &str| another_session(&cluster, 0, label).election("jobs");
    let first = lead("first").campaign("a").block().unwrap();
    let second = Begun::new(lead("second").campaign("b"));
    until_places(cluster.node(0), "jobs", 2);
    let mut observer = lead("observer").observe();
    let leads = observer.next().block().unwrap().unwrap();
    assert!(matches!(leads, LeaderEvent::Leads(leader) if leader.value == "a"));
    for n in 0..QUEUE {
        first.proclaim(format!("a{n}")).block().unwrap();
    }
    // This event does not fit into the buffer, and after the compaction only the deletion of the
    // key is left.
    first.resign().block().unwrap();
    let gone = kv.get("jobs").block().map(|_| kv.revision()).unwrap();
    kv.compact(gone).block().unwrap();
    let second = second.finish().unwrap();
    let (tell, told) = mpsc::channel();
    let observing = std::thread::spawn(move || {
        loop {
            match observer.next().block() {
                Some(Ok(LeaderEvent::Leads(leader))) if leader.value == "b" => break,
                Some(Ok(_)) => {}
                ended => panic!("{ended:?}"),
            }
        }
        tell.send(()).unwrap();
    });
    assert_eq!(told.recv_timeout(SOON), Ok(()), "it stays with a leader that has gone");
    observing.join().unwrap();
    assert!(second.is_leader());
}

#[test]
fn detached_lock_is_resumed_by_another_session_of_its_node() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let mut mine = another_session(&cluster, one, "importer");
    let guard = mine.mutex("import").lock().block().unwrap();
    let mut last = guard.token();
    let ticket = guard.saved_hold();
    let resume = |by: &Session, ticket: &SavedHold| by.mutex("import").resume(ticket).block();
    assert_eq!(resume(&mine, &ticket).unwrap_err(), ResumeError::SameLease(mine.lease()));
    assert_eq!(resume(&session(&cluster, one), &ticket).unwrap_err(), ResumeError::InUse);
    // While its session is active, the original holder on that node may still consider the lock
    // held.
    let elsewhere = resume(&session(&cluster, two), &ticket).unwrap_err();
    let own = cluster.node(two).status().id;
    assert_eq!(elsewhere, ResumeError::AnotherNode { ticket: ticket.node(), own });
    let mut guard = Some(guard);
    for is_leaked in [false, true, false] {
        let old = guard.take().unwrap();
        let ticket = match is_leaked {
            true => old.detach(),
            false => {
                let ticket = old.saved_hold();
                assert_eq!(mine.clone().detach(), ticket.lease());
                drop(old);
                ticket
            }
        };
        mine.detach();
        mine = another_session(&cluster, one, "importer");
        let next = resume(&mine, &ticket).unwrap();
        assert!(next.is_held() && next.token() > last);
        assert_eq!(resume(&session(&cluster, one), &ticket).unwrap_err(), ResumeError::Over);
        last = next.token();
        // A task of the same session waits after the holder, with its own key.
        let waits = stand_in_line(&mine, cluster.node(one), "import");
        drop(waits);
        until_places(cluster.node(one), "import", 1);
        guard = Some(next);
    }
    // The guard is still valid long after the driver has run.
    let guard = guard.unwrap();
    guard.txn().then(bowline::Op::put("imported", "1")).commit().block().unwrap();
    assert!(guard.is_held());
    assert_eq!(guard.release().block().unwrap(), Released::Now);
    let other = session(&cluster, two).mutex("import").try_lock().block();
    assert!(other.is_ok());
}

#[test]
fn saved_hold_names_one_hold_despite_local_handoffs() {
    let cluster = lasting(1);
    let mine = another_session(&cluster, 0, "importer");
    let mutex = mine.mutex("import");
    let first = mutex.lock().block().unwrap();
    let second = Begun::new(mutex.lock());
    assert_eq!(mutex.release(first.token()).block().unwrap(), Released::Now);
    let second = second.finish().unwrap();
    assert_eq!(second.key(), first.key());
    let over = first.saved_hold();
    let third = Begun::new(mutex.lock());
    let ticket = second.saved_hold();
    second.release().block().unwrap();
    let third = third.finish().unwrap();
    assert!(over != ticket && ticket != third.saved_hold());
    let left = third.detach();
    mine.detach();
    let next = session(&cluster, 0).mutex("import");
    for over in [over, ticket] {
        assert_eq!(next.resume(&over).block().unwrap_err(), ResumeError::Over);
    }
    assert!(next.resume(&left).block().unwrap().is_held());
}

#[test]
fn resumed_hold_of_a_dropped_call_is_released() {
    let cluster = lasting(1);
    let (node, kv) = (cluster.node(0), cluster.node(0).client());
    let mine = another_session(&cluster, 0, "importer");
    let guard = mine.mutex("import").lock().block().unwrap();
    let (key, ticket) = (guard.key().clone(), guard.detach());
    mine.detach();
    let next = session(&cluster, 0);
    let (mutex, lease) = (next.mutex("import"), next.lease());
    cluster.pause(0);
    let mut resuming = Begun::new(async move { mutex.resume(&ticket).await });
    cluster.resume(0);
    let mut woken = 0;
    loop {
        let now = resuming.wakes();
        let row = kv.get(key.clone()).block().unwrap();
        if row.is_some_and(|row| row.lease == Some(lease)) {
            break;
        }
        if now > woken {
            woken = now;
            assert!(resuming.poll().is_none());
        }
    }
    until_true(node, "the answer", || resuming.wakes() > woken);
    drop(resuming);
    until_places(node, "import", 0);
}

#[test]
fn resume_of_a_waiting_entry_waits_and_unknown_ones_are_rejected() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let holder = session(&cluster, two).mutex("import").lock().block().unwrap();
    let mine = another_session(&cluster, one, "importer");
    let waits = stand_in_line(&mine, cluster.node(one), "import");
    let line = mine.mutex("import").queue().unwrap();
    let (lease, second) = (mine.lease(), line[1].clone());
    let (since, key) = (second.since, String::from_utf8(second.key.to_vec()).unwrap());
    cluster.kill(one).block();
    assert!(waits.finish().is_err());
    cluster.restart(one).block().unwrap();
    let mine = session(&cluster, one);
    let mutex = mine.mutex("import");
    let node = cluster.node(one).status().id;
    let ticket = |lease: &str, since, key: &str| -> SavedHold {
        format!("{node}/{lease}@{since}:{key}").parse().unwrap()
    };
    let good = ticket(&lease.to_string(), since, &key);
    let over = ticket(&lease.to_string(), Revision(1), &key);
    assert_eq!(mutex.resume(&over).block().unwrap_err(), ResumeError::Over);
    let over = ticket("1234", since, &key);
    assert_eq!(mutex.resume(&over).block().unwrap_err(), ResumeError::Over);
    let other = mine.mutex("export").resume(&good).block().unwrap_err();
    assert!(matches!(other, ResumeError::AnotherLock { .. }), "{other:?}");
    let other = mine.election("import").resume(&good).block().unwrap_err();
    assert!(matches!(other, ResumeError::AnotherLock { .. }), "{other:?}");

    let resuming = std::thread::spawn(move || mutex.resume(&good).block());
    let behind = another_session(&cluster, two, "behind");
    let behind = stand_in_line(&behind, cluster.node(two), "import");
    holder.release().block().unwrap();
    let guard = resuming.join().unwrap().unwrap();
    assert_eq!(guard.since(), since);
    guard.release().block().unwrap();
    assert!(behind.finish().unwrap().is_held());
}

#[test]
fn pending_operations_of_the_earlier_hold_fail_after_a_resume() {
    let cluster = lasting(3);
    let (_, one, _) = roles(&cluster);
    let mine = another_session(&cluster, one, "importer");
    let guard = mine.mutex("import").lock().block().unwrap();
    let reader = mine.rw_lock("table").read().block().unwrap();
    let (stale, of) = (guard.still_held(), guard.saved_hold());
    let table = format!("{}/{}@{}:table/{}", of.node(), of.lease(), reader.since(), of.lease());
    assert_eq!(reader.key(), &table[table.len() - reader.key().len()..]);
    let (ticket, kv) = (guard.detach(), cluster.node(one).client());
    let lease = mine.detach();
    let next = session(&cluster, one);
    let guard = next.mutex("import").resume(&ticket).block().unwrap();
    let late = stale.into_iter().fold(kv.txn(), |txn, condition| txn.when(condition));
    assert!(!late.then(bowline::Op::put("imported", "late")).commit().block().unwrap().succeeded);
    // The entry of a reader cannot be resumed as a mutex.
    let other = next.mutex("table").resume(&table.parse().unwrap()).block().unwrap_err();
    assert!(matches!(other, ResumeError::AnotherLock { .. }), "{other:?}");
    kv.revoke(lease).block().unwrap();
    assert_eq!(places(cluster.node(one), "table"), 0);
    assert!(guard.is_held());
    guard.txn().then(bowline::Op::put("imported", "1")).commit().block().unwrap();
    drop(reader);
    assert_eq!(guard.release().block().unwrap(), Released::Now);
}

#[test]
fn force_release_frees_a_detached_lock() {
    let cluster = lasting(3);
    let (_, one, _) = roles(&cluster);
    let locks = cluster.node(one).locks();
    for is_broken in [true, false] {
        let mine = another_session(&cluster, one, "importer");
        let ticket = mine.mutex("import").lock().block().unwrap().detach();
        mine.detach();
        let place = locks.of("import").unwrap().queue.remove(0);
        let next = session(&cluster, one).mutex("import");
        if is_broken {
            locks.force_release(&place, "released by the test").block().unwrap();
            assert_eq!(next.resume(&ticket).block().unwrap_err(), ResumeError::Over);
        } else {
            locks.request_release(&place, "soon, please").block().unwrap();
            let guard = next.resume(&ticket).block().unwrap();
            assert_eq!(guard.asked_to_release().block().reason, "soon, please");
        }
    }
}

#[test]
fn force_release_frees_a_lost_lock_with_a_resumed_lease() {
    let (cluster, clocks) = with_clocks(LONG);
    let (_, one, two) = roles(&cluster);
    let node = cluster.node(one);
    let mine = node.open_session().ttl(LONG).block().unwrap();
    let guard = mine.mutex("import").lock().block().unwrap();
    // By the clock of its node the session has expired. By the leader's clock, its lease has just
    // begun.
    clocks[one].jump(2 * LONG);
    assert_eq!(guard.lost().block(), LostReason::SessionEnded(SessionEndReason::NotRenewed));
    let kept = node.resume_session(mine.lease()).block().unwrap();
    until_places(cluster.node(two), "import", 1);
    let locks = cluster.node(two).locks();
    let place = locks.of("import").unwrap().queue.remove(0);
    let mut broken =
        Begun::new(async move { locks.force_release(&place, "released by the test").await });
    until_places(cluster.node(two), "import", 0);
    until_true(node, "the answer", || broken.wakes() > 0);
    assert!(broken.poll().is_none_or(|answer| answer.is_ok()));
    assert!(kept.mutex("import").try_lock().block().unwrap().is_held());
}

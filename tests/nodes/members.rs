//! Tests of membership changes: learners, voters that are replaced one by one under load, and removed members.

use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bowline::testing::{self, Cluster, ClusterOptions};
use bowline::{
    Blocking, Client, Config, Error, KeyRange, Node, NodeId, Rejection, StopReason,
    cluster::{MemberRole, MembershipError},
};

use crate::loopback;

/// Time limit for waits.
const SOON: Duration = Duration::from_secs(20);

fn id(cluster: &Cluster, member: usize) -> NodeId {
    cluster.node(member).status().id
}

async fn three() -> Cluster {
    ClusterOptions::new(3)
        .configure(|config| {
            let config = config.snapshot_log_bytes(64 << 10).log_segment_bytes(64 << 10);
            config.call_deadline(SOON)
        })
        .start()
        .await
        .unwrap()
}

/// Removes a member as soon as the leader knows which members are connected.
async fn remove(node: &Node, gone: NodeId) {
    let begun = Instant::now();
    while let Err(error) = node.remove_member(gone).await {
        let early = matches!(error, Error::Members(MembershipError::LosesQuorum { .. }));
        assert!(early && begun.elapsed() < SOON, "{error}");
    }
}

/// Promotes a learner as soon as it has caught up.
async fn promote(cluster: &Cluster, member: usize) {
    let node = cluster.node(member);
    loop {
        match node.promote(node.status().id).await {
            Ok(()) => return,
            Err(Error::Members(MembershipError::NotCaughtUp(_) | MembershipError::Pending)) => {}
            Err(error) => panic!("{error}"),
        }
        let applied = node.status().applied;
        node.client().put("nudge", "").await.unwrap();
        node.wait_for(|status| status.applied > applied).await;
    }
}

#[test]
fn a_learner_reads_writes_watches_and_holds_locks_and_does_not_vote() {
    async {
        let mut cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        cluster.node(leader).client().put("before", "1").await.unwrap();
        let learner = cluster.join().await.unwrap();
        let node = cluster.node(learner);
        let client = node.client();
        assert_eq!(client.get("before").await.unwrap().unwrap().value, "1");
        let mut watch = client.watch(KeyRange::prefix("w/")).await.unwrap();
        let put = client.put("w/1", "x").await.unwrap();
        let batch = watch.next().await.unwrap().unwrap();
        assert_eq!(batch.events[0].kv.mod_revision, put.revision);
        assert_eq!(client.get("w/1").local().await.unwrap().unwrap().value, "x");
        let session = node.session().await.unwrap();
        let guard = session.mutex("door").lock().await.unwrap();
        let other = cluster.node(leader).session().await.unwrap();
        assert!(other.mutex("door").try_lock().await.is_err());
        guard.release().await.unwrap();
        let members = node.members();
        let me = members.get(id(&cluster, learner)).unwrap();
        assert_eq!((me.role, &*me.name), (MemberRole::Learner, "m3"));
        assert_eq!(members.voters().count(), 3);
    }
    .block();
}

#[test]
fn only_member_reads_without_a_round_while_it_is_alone() {
    async {
        let mut cluster = ClusterOptions::new(1).start().await.unwrap();
        cluster.node(0).client().put("k", "0").await.unwrap();
        // Reads ten times on member 0, each time after a put on the last member. Returns the number of rounds.
        let rounds = async |cluster: &Cluster, last: usize| {
            let (node, other) = (cluster.node(0), cluster.node(last).client());
            let before = node.metrics().snapshot().read_rounds_total;
            for value in 0..10 {
                other.put("k", value.to_string()).await.unwrap();
                let read = node.client().get("k").await.unwrap().unwrap();
                assert_eq!(read.value, value.to_string());
            }
            node.metrics().snapshot().read_rounds_total - before
        };
        assert!(rounds(&cluster, 0).await <= 1);
        assert_eq!(rounds(&cluster, 0).await, 0);
        let learner = cluster.join().await.unwrap();
        assert!(
            rounds(&cluster, learner).await >= 10,
            "the learner tells its callers of what it has applied"
        );
        let gone = id(&cluster, learner);
        remove(cluster.node(0), gone).await;
        assert!(rounds(&cluster, 0).await <= 1);
        assert_eq!(rounds(&cluster, 0).await, 0);
    }
    .block();
}

#[test]
fn promoted_member_counts_for_the_quorum_and_a_removed_one_stops() {
    async {
        let mut cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        let joined = cluster.join().await.unwrap();
        promote(&cluster, joined).await;
        let gone = (leader + 1) % 3;
        let gone_id = id(&cluster, gone);
        remove(cluster.node(leader), gone_id).await;
        assert_eq!(cluster.node(gone).stopped().await, StopReason::Removed);
        cluster.kill(gone).await;
        // A repeated removal has no effect.
        cluster.node(leader).remove_member(gone_id).await.unwrap();
        let other = 3 - leader - gone;
        cluster.kill(other).await;
        let leads = cluster.leader().await.unwrap();
        cluster.node(leads).client().put("k", "v").await.unwrap();
        // One of the two remaining voters cannot be removed, because the other one has stopped and no quorum would be
        // left.
        let refused = cluster.node(leads).remove_member(id(&cluster, leads)).await;
        assert!(refused.is_err());
        let back = cluster.restart(gone).await;
        if back.is_ok() {
            assert_eq!(cluster.node(gone).stopped().await, StopReason::Removed);
        }
    }
    .block();
}

#[test]
fn removed_leader_transfers_leadership_and_stops() {
    async {
        let cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        let from = (leader + 1) % 3;
        remove(cluster.node(from), id(&cluster, leader)).await;
        assert_eq!(cluster.node(leader).stopped().await, StopReason::Removed);
        cluster.node(from).client().put("k", "v").await.unwrap();
        assert_eq!(cluster.node(from).members().voters().count(), 2);
    }
    .block();
}

#[test]
fn only_voter_cannot_be_replaced_but_may_leave_after_a_promotion() {
    async {
        let mut cluster = ClusterOptions::new(1).start().await.unwrap();
        // No member could lead during the replacement.
        let refused = cluster.replace(0).await.unwrap_err().to_string();
        assert!(refused.contains("the last voter"), "{refused}");
        let joined = cluster.join().await.unwrap();
        promote(&cluster, joined).await;
        cluster.node(joined).remove_member(id(&cluster, 0)).await.unwrap();
        assert_eq!(cluster.node(0).stopped().await, StopReason::Removed);
        cluster.node(joined).client().put("k", "v").await.unwrap();
    }
    .block();
}

#[test]
fn acknowledged_removal_survives_a_restart() {
    async {
        let mut cluster = ClusterOptions::new(1).start().await.unwrap();
        let joined = cluster.join().await.unwrap();
        promote(&cluster, joined).await;
        let gone = id(&cluster, joined);
        cluster.node(0).remove_member(gone).await.unwrap();
        // There is no later write that would record on disk that the removal is committed, and the directory of the
        // other member is deleted.
        cluster.kill(joined).await;
        cluster.kill(0).await;
        cluster.restart(0).await.unwrap();
        let client = cluster.node(0).client();
        client.put("k", "v").deadline(Duration::from_secs(20)).await.expect("one of one leads");
        assert!(cluster.node(0).members().is_removed(gone));
    }
    .block();
}

#[test]
fn concurrent_leader_transfers_report_their_own_outcome() {
    async {
        let cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        let (one, two) = ((leader + 1) % 3, (leader + 2) % 3);
        let to = |member| cluster.node(leader).transfer_leadership(Some(id(&cluster, member)));
        let (first, second) = tokio::join!(to(one), to(two));
        let now = cluster.leader().await.unwrap();
        let told = [(one, &first), (two, &second)];
        for (member, told) in told.into_iter().filter(|(_, told)| told.is_ok()) {
            assert_eq!(member, now, "{told:?}: {first:?} and {second:?}");
        }
    }
    .block();
}

#[test]
fn concurrent_membership_changes_are_applied_in_turn() {
    async {
        let cluster = three().await;
        let keep = |at: usize| {
            let address = format!("192.0.2.{at}:7400");
            cluster.node(at % 3).reserve_member(address, MemberRole::Learner)
        };
        let (one, two, three, four) = tokio::join!(keep(1), keep(2), keep(3), keep(4));
        let mut ids = [one, two, three, four].map(Result::unwrap);
        ids.sort_unstable();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
    }
    .block();
}

#[test]
fn member_that_has_not_met_the_others_serves_no_state() {
    async {
        let mut cluster = three().await;
        for member in 0..3 {
            cluster.kill(member).await;
            std::fs::remove_dir_all(cluster.data_dir(member)).unwrap();
        }
        cluster.restart(0).await.unwrap();
        let (node, moment) = (cluster.node(0), Duration::from_millis(100));
        let read = node.client().get("k").local().deadline(moment).await;
        assert!(matches!(read, Err(Error::NotFounded { .. })), "nothing is no answer: {read:?}");
        // A watch that is started here could not distinguish new keys from old keys.
        let mut watch = Box::pin(node.client().watch("k").into_future());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(watch.as_mut().poll(&mut context).is_pending());
        drop(watch);
        let file = cluster.data_dir(0).with_extension("backup");
        let backup = node.backup(&file).await.unwrap_err().to_string();
        assert!(backup.contains("no state of its cluster yet"), "{backup}");
        assert!(!file.exists());
        // Two members that wait for the third exchange only a few messages.
        cluster.restart(1).await.unwrap();
        let turns = |cluster: &Cluster| cluster.node(0).metrics().snapshot().turn_seconds.count();
        let before = turns(&cluster);
        let _ = cluster.node(0).client().get("k").local().deadline(moment * 10).await;
        let turns = turns(&cluster) - before;
        assert!(turns < 1_000, "{turns} turns in a second");
        // The cluster can be read once all three have founded it again.
        cluster.restart(2).await.unwrap();
        assert_eq!(cluster.node(0).client().get("k").local().await.unwrap(), None);
        cluster.node(0).backup(&file).await.unwrap();
    }
    .block();
}

#[test]
fn membership_change_that_loses_the_quorum_is_rejected() {
    async {
        let mut cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        let (one, two) = ((leader + 1) % 3, (leader + 2) % 3);
        let alive = id(&cluster, two);
        cluster.kill(one).await;
        let refused = cluster.node(leader).remove_member(alive).await;
        assert!(
            matches!(refused, Err(Error::Members(MembershipError::LosesQuorum { active: 1, .. }))),
            "{refused:?}"
        );
        // The dead member can be removed, because both others are connected.
        remove(cluster.node(leader), NodeId::new(one as u64 + 1).unwrap()).await;
    }
    .block();
}

/// Increments a key by compare-and-set until the test stops it.
fn count_up(client: Client, key: String, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    use bowline::{Compare, Op};
    let mut next = 1u64;
    while !stop.load(Ordering::Relaxed) {
        let (before, value) = ((next - 1).to_string(), next.to_string());
        let is_first = next == 1;
        let compare = match is_first {
            true => Compare::missing(key.clone()),
            false => Compare::value(key.clone()).eq(before),
        };
        let txn = client.txn().when(compare).then(Op::put(key.clone(), value));
        match txn.commit().block() {
            Ok(reply) => {
                assert!(reply.succeeded, "{key} was not at {}", next - 1);
                done.store(next, Ordering::Relaxed);
                next += 1;
            }
            Err(Error::Stopped { .. }) => return,
            // The outcome is unknown, so read the key.
            Err(_) => match client.get(key.clone()).block() {
                Ok(row) => {
                    let now = row.map_or(0, |row| {
                        std::str::from_utf8(&row.value).unwrap().parse::<u64>().unwrap()
                    });
                    assert!(now == next || now == next - 1, "{key} at {now}, expected {next}");
                    next = now + 1;
                    done.store(now, Ordering::Relaxed);
                }
                Err(Error::Stopped { .. }) => return,
                Err(_) => {}
            },
        }
    }
}

#[test]
fn replacing_all_members_under_load_loses_nothing() {
    async {
        let mut cluster = three().await;
        cluster.leader().await.unwrap();
        let observer = cluster.join().await.unwrap();
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let counting = {
            let (client, stop, done) =
                (cluster.node(observer).client(), Arc::clone(&stop), Arc::clone(&done));
            std::thread::spawn(move || count_up(client, "count".to_owned(), stop, done))
        };
        for old in 0..3 {
            let old_id = id(&cluster, old);
            let new = cluster.replace(old).await.unwrap();
            let new_id = id(&cluster, new);
            let seen = |cluster: &Cluster| {
                let members = cluster.node(observer).members();
                members.get(old_id).is_none()
                    && !members.is_joint()
                    && members.get(new_id).is_some_and(|m| m.role == MemberRole::Voter)
            };
            while !seen(&cluster) {
                let applied = cluster.node(observer).status().applied;
                cluster.node(observer).wait_for(|status| status.applied > applied).await;
            }
            assert_eq!(cluster.node(old).stopped().await, StopReason::Removed);
            cluster.kill(old).await;
        }
        let before = done.load(Ordering::Relaxed);
        while done.load(Ordering::Relaxed) < before + 20 {
            let applied = cluster.node(observer).status().applied;
            cluster.node(observer).wait_for(|status| status.applied > applied).await;
        }
        stop.store(true, Ordering::Relaxed);
        counting.join().unwrap();
        let leader = cluster.leader().await.unwrap();
        let value = cluster.node(leader).client().get("count").await.unwrap().unwrap().value;
        assert_eq!(value, done.load(Ordering::Relaxed).to_string());
        assert!(cluster.node(leader).members().voters().all(|id| id.get() > 4));
    }
    .block();
}

#[test]
fn twenty_learners_join_lag_catch_up_and_hold_locks() {
    async {
        let mut cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        let mut learners = Vec::new();
        for _ in 0..20 {
            learners.push(cluster.join().await.unwrap());
        }
        // Ten learners are cut off until the entries that they lack are truncated from the log.
        let (away, here) = learners.split_at(10);
        cluster.partition(away);
        let client = cluster.node(leader).client();
        let mut revision = bowline::Revision::FIRST;
        for n in 0..600 {
            let put = client.put(format!("key/{}", n % 20), vec![b'v'; 1000]);
            revision = put.await.unwrap().revision;
        }
        for learner in here {
            let session = cluster.node(*learner).session().await.unwrap();
            session.mutex("one").lock().await.unwrap().release().await.unwrap();
        }
        cluster.heal();
        cluster.all_at(revision).await.unwrap();
        for learner in away {
            let session =
                cluster.node(*learner).open_session().ttl(Duration::from_secs(20)).await.unwrap();
            let guard = session.mutex("one").lock().await.unwrap();
            guard
                .txn()
                .then(bowline::Op::put("held by", learner.to_string()))
                .commit()
                .await
                .unwrap();
            guard.release().await.unwrap();
        }
        assert_eq!(cluster.node(leader).members().learners().count(), 20);
    }
    .block();
}

#[test]
fn moved_member_is_found_at_its_new_address() {
    async {
        let dir = tempfile::tempdir().unwrap();
        let at: Vec<_> = (0..4).map(|_| loopback::address()).collect();
        let names = ["a", "b", "c"];
        let config = |n: usize| {
            let members = names.into_iter().zip(at.iter().cloned());
            Config::new(dir.path().join(names[n]), names[n]).members(members)
        };
        let mut nodes = Vec::new();
        for n in 0..3 {
            nodes.push(Node::start(config(n)).await.unwrap());
        }
        nodes[0].client().put("k", "1").await.unwrap();
        let leaving = nodes.remove(2);
        let moved = leaving.status().id;
        assert!(testing::shutdown(leaving).await.hanging.is_empty());
        let node = Node::start(config(2).advertise(at[3].clone())).await.unwrap();
        node.client().put("k", "2").await.unwrap();
        let knows = |node: &Node| node.members().get(moved).is_some_and(|m| m.address == at[3]);
        while !nodes.iter().all(knows) {
            nodes[0].client().put("k", "3").await.unwrap();
        }
        // The member counts towards the quorum again.
        assert!(testing::shutdown(nodes.remove(1)).await.hanging.is_empty());
        nodes[0].client().put("k", "4").await.unwrap();
    }
    .block();
}

#[test]
fn node_may_advertise_any_name_of_its_machine() {
    let dir = tempfile::tempdir().unwrap();
    // Use the hexadecimal form of the address, so that it is resolved like a host name.
    let at = loopback::address().replacen("127.", "0x7f.", 1);
    let node = Node::start(Config::new(dir.path(), "a").members([("a", at)])).block().unwrap();
    node.client().put("k", "v").block().unwrap();
    assert!(testing::shutdown(node).block().hanging.is_empty());
}

/// All members start at new addresses, where they could not announce themselves to each other.
#[test]
fn all_members_move_at_once_when_announced_before() {
    async {
        let dir = tempfile::tempdir().unwrap();
        let [old, new] = [(); 2].map(|()| (0..3).map(|_| loopback::address()).collect::<Vec<_>>());
        let names = ["a", "b", "c"];
        let start = async |n: usize, at: &str| {
            let members = names.into_iter().zip(old.iter().cloned());
            let config = Config::new(dir.path().join(names[n]), names[n]).members(members);
            Node::start(config.advertise(at)).await.unwrap()
        };
        let mut nodes = Vec::new();
        for (n, at) in old.iter().enumerate() {
            nodes.push(start(n, at).await);
        }
        let client = nodes[0].client();
        client.put("k", "1").await.unwrap();
        let ids: Vec<NodeId> = nodes.iter().map(|node| node.status().id).collect();
        let move_to = async |id: NodeId, at: &str| nodes[0].move_member(id, at).await;
        let nobody = NodeId::new(9).unwrap();
        let refused = move_to(nobody, &new[0]).await.unwrap_err();
        assert_eq!(refused, Error::Rejected(Rejection::NotMember(nobody)));
        let refused = move_to(ids[0], &old[1]).await.unwrap_err();
        assert_eq!(refused, Error::Rejected(Rejection::AddressTaken(ids[1])));
        let refused = move_to(ids[0], "nowhere").await.unwrap_err();
        assert_eq!(refused, Error::Members(MembershipError::BadAddress("nowhere".to_owned())));
        for (id, at) in ids.iter().zip(&new) {
            move_to(*id, at).await.unwrap();
        }
        // All members know the new addresses, and are still connected at the old ones.
        let told = |node: &Node| node.members().rows().values().all(|row| row.moves_to.is_some());
        while !nodes.iter().all(told) {
            client.put("k", "2").await.unwrap();
        }
        // A reserved address that must not be dialed does not prevent a start.
        nodes[0].reserve_member("192.0.2.1:7400", MemberRole::Learner).await.unwrap();
        for node in nodes.drain(..) {
            assert!(testing::shutdown(node).await.hanging.is_empty());
        }
        for (n, at) in new.iter().enumerate() {
            nodes.push(start(n, at).await);
        }
        nodes[1].client().put("k", "3").await.unwrap();
        let is_there = |node: &Node| {
            let rows = node.members();
            rows.rows().values().zip(&new).all(|(row, at)| {
                row.address == *at && row.moves_to.is_none() && row.destination() == at
            })
        };
        while !nodes.iter().all(is_there) {
            nodes[0].client().put("k", "4").await.unwrap();
        }
        let joins = Config::new(dir.path().join("d"), "d").join([&*new[0]]);
        nodes.push(Node::start(joins.advertise(loopback::address())).await.unwrap());
        nodes[3].client().put("k", "5").await.unwrap();
        for node in nodes {
            assert!(testing::shutdown(node).await.hanging.is_empty());
        }
    }
    .block();
}

/// A joiner that has no state knows only the members to which it sent its join request. They do not know its current
/// address.
#[test]
fn joiner_without_state_is_found_at_a_new_address() {
    async {
        let dir = tempfile::tempdir().unwrap();
        let [founder, nowhere, somewhere] = [(); 3].map(|()| loopback::address());
        let config = Config::new(dir.path().join("a"), "a").members([("a", &*founder)]);
        let founder_node = Node::start(config).await.unwrap();
        founder_node.client().put("k", "1").await.unwrap();
        // The peers cannot reach the joiner at this address, so it has no state when it stops.
        let joins =
            |at: &str| Config::new(dir.path().join("b"), "b").join([&founder]).advertise(at);
        let joiner = Node::start(joins(&nowhere).listen(&*somewhere)).await.unwrap();
        let joined = joiner.status().id;
        assert!(
            joiner.client().get("k").local().deadline(Duration::from_millis(300)).await.is_err(),
            "it has a state"
        );
        assert!(testing::shutdown(joiner).await.hanging.is_empty());
        let joiner = Node::start(joins(&somewhere)).await.unwrap();
        assert_eq!(joiner.status().id, joined);
        assert_eq!(joiner.client().get("k").await.unwrap().unwrap().value, "1");
        joiner.client().put("k", "2").await.unwrap();
        assert!(testing::shutdown(joiner).await.hanging.is_empty());
        // Now the joiner knows the other members from its own state.
        let joiner = Node::start(joins(&somewhere)).await.unwrap();
        assert!(!dir.path().join("b").join("JOINED").exists());
        assert_eq!(joiner.client().get("k").await.unwrap().unwrap().value, "2");
    }
    .block();
}

/// The program keeps running and keeps the node value.
#[test]
fn removed_node_releases_its_port_and_peers() {
    async {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a", "b", "c"];
        let at: Vec<_> = names.iter().map(|_| loopback::address()).collect();
        let mut nodes = Vec::new();
        for name in names {
            let members = names.into_iter().zip(at.iter().cloned());
            let config = Config::new(dir.path().join(name), name).members(members);
            nodes.push(Node::start(config.call_deadline(SOON)).await.unwrap());
        }
        nodes[0].client().put("k", "1").await.unwrap();
        let gone = nodes[2].status().id;
        remove(&nodes[0], gone).await;
        assert_eq!(nodes[2].stopped().await, StopReason::Removed);
        let begun = Instant::now();
        while let Err(error) = std::net::TcpListener::bind(&at[2]) {
            assert!(begun.elapsed() < SOON, "{error}");
            std::thread::yield_now();
        }
    }
    .block();
}

//! Tests that messages wait for the state that they depend on.

use super::*;

#[test]
fn only_voter_sends_nothing_before_its_term_is_durable() {
    let mut world = World::new(1, 2, 1);
    world.at(1).campaign();
    world.turn(node(1)).unwrap();
    assert_eq!(world.at(1).role(), RaftRole::Leader, "raft makes it leader at once");
    world.propose(node(1), b"A");
    assert!(world.flying.is_empty(), "nothing has left: {:?}", kinds(&world.flying));
    world.sync(node(1));
    assert!(kinds(&world.flying).contains(&MessageType::MsgAppend));
}

#[test]
fn leader_with_a_durable_term_sends_entries_before_its_own_sync() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    assert_eq!(kinds(&world.flying), [MessageType::MsgAppend; 2]);
    assert_eq!(world.disk(1).look().queued.len(), 1);
}

#[test]
fn entry_commits_before_the_leader_syncs_but_applies_after() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let (_, index) = world.propose(node(1), b"A").unwrap();
    for flying in std::mem::take(&mut world.flying) {
        world.deliver(flying);
    }
    world.sync_all(2);
    world.sync_all(3);
    for flying in std::mem::take(&mut world.flying) {
        world.deliver(flying);
    }
    assert_eq!(world.at(1).commit(), index);
    assert!(world.members[&node(1)].applied < index);
    world.sync_all(1);
    assert_eq!(world.members[&node(1)].applied, index);
}

#[test]
fn follower_acknowledges_durable_entries_and_answers_heartbeats_at_once() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    let appends = std::mem::take(&mut world.flying);
    for flying in appends.into_iter().filter(|flying| flying.to == node(2)) {
        world.deliver(flying);
    }
    assert!(world.flying.is_empty(), "its disk has not answered");
    for _ in 0..HEARTBEAT {
        world.tick(node(1));
    }
    let heartbeats = std::mem::take(&mut world.flying);
    for flying in heartbeats.into_iter().filter(|flying| flying.to == node(2)) {
        world.deliver(flying);
    }
    assert_eq!(kinds(&world.flying), [MessageType::MsgHeartbeatResponse]);
    world.sync_all(2);
    assert!(kinds(&world.flying).contains(&MessageType::MsgAppendResponse));
}

/// More than `SEALED_MAX` acknowledgements wait for a disk that hangs: the oldest are dropped.
#[test]
fn messages_that_wait_for_a_hanging_disk_are_bounded() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    let append = std::mem::take(&mut world.flying).into_iter().find(|it| it.to == node(2)).unwrap();
    for _ in 0..5000 {
        world.deliver(append.clone());
    }
    assert!(world.flying.is_empty(), "its disk has not answered");
    world.sync_all(2);
    assert_eq!(world.flying.len(), 4096);
}

#[test]
fn votes_and_vote_requests_are_sent_once_durable() {
    let mut world = World::new(3, 0, 1);
    let mut request = message(MessageType::MsgRequestVote, 2, 1, 2);
    (request.index, request.log_term, request.commit, request.commit_term) = (1, 1, 1, 1);
    give(&mut world, &request);
    assert!(world.flying.is_empty());
    world.sync_all(1);
    assert_eq!(kinds(&world.flying), [MessageType::MsgRequestVoteResponse]);
    // A repeated request is answered at once, because the vote is durable already.
    give(&mut world, &request);
    assert_eq!(kinds(&world.flying), [MessageType::MsgRequestVoteResponse; 2]);
}

#[test]
fn lost_vote_was_never_sent() {
    let mut world = World::new(3, 0, 1);
    let mut request = message(MessageType::MsgRequestVote, 2, 1, 2);
    (request.index, request.log_term) = (1, 1);
    give(&mut world, &request);
    world.crash(node(1), 0);
    world.start(node(1));
    request.from = 3;
    give(&mut world, &request);
    world.sync_all(1);
    let votes: Vec<_> = world.flying.iter().map(|flying| flying.to).collect();
    assert_eq!(votes, [node(3)]);
}

#[test]
#[should_panic(expected = "group 9 of 0 is durable")]
fn durability_proof_of_unsubmitted_entries_panics() {
    World::new(1, 0, 1).at(1).persisted(wal::Durable::for_test(9));
}

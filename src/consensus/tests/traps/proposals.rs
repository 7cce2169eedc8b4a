//! Tests of proposals: their outcome and their replication.

use std::cell::Cell;

use super::*;

#[test]
fn follower_rejects_a_proposal_and_names_the_leader() {
    let mut world = World::new(3, 0, 1);
    assert_eq!(world.at(2).propose(b"A".to_vec()), Err(ProposeRejection::NotLeader(None)));
    world.elect(1);
    let rejection = world.at(2).propose(b"A".to_vec());
    assert_eq!(rejection, Err(ProposeRejection::NotLeader(Some(node(1)))));
    world.turn(node(2)).unwrap();
    assert!(world.flying.is_empty());
}

#[test]
fn proposal_commits_at_its_assigned_term_and_index() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let (term, index) = world.propose(node(1), b"A").unwrap();
    world.settle();
    let entry = &world.history[&index];
    assert_eq!((entry.term, &entry.data[..]), (term, &b"A"[..]));
}

#[test]
fn proposals_without_a_quorum_are_rejected_as_busy() {
    let mut world = World::dark(3, 0, 1);
    world.tune = |config| {
        config.uncommitted_bytes_max = 10_000;
        config.append_bytes_max = 1_000;
    };
    (1..=3).for_each(|id| world.start(node(id)));
    world.elect(1);
    let mut taken = 0;
    while world.at(1).propose(vec![7; 1000]).is_ok() {
        taken += 1;
        world.turn(node(1)).unwrap();
        world.sync_all(1);
        world.flying.clear();
    }
    assert_eq!(taken, 10);
    assert_eq!(world.at(1).propose(vec![7; 1000]), Err(ProposeRejection::Busy));
    // With the quorum restored, proposals are accepted again.
    for _ in 0..2 * HEARTBEAT {
        world.tick(node(1));
        world.settle();
    }
    assert!(world.propose(node(1), &[7; 1000]).is_some());
}

#[test]
fn entries_of_one_turn_share_one_message_per_follower() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for _ in 0..10 {
        world.at(1).propose(b"A".to_vec()).unwrap();
    }
    let turn = world.at(1).turn().unwrap().unwrap();
    assert_eq!(turn.send.len(), 2);
    assert!(turn.send.iter().all(|outbound| outbound.lane == Lane::Bulk));
    assert_eq!(turn.persist.unwrap().entries.len(), 10);
}

#[test]
fn large_proposals_are_split_into_acceptable_messages() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for _ in 0..4 {
        world.at(1).propose(vec![7; ENTRY_BYTES_MAX]).unwrap();
    }
    world.turn(node(1)).unwrap();
    assert_eq!(world.flying.len(), 8);
    world.settle();
    assert!(world.members.values().all(|member| member.applied == LogIndex(6)));
}

#[test]
fn entries_batched_into_a_pending_append_are_consecutive() {
    // With `batch_append`, raft adds entries to a waiting message without checking that they follow
    // its entries. In this test, raft would add the first entries of the log to an empty message
    // that refers to the end of the log.
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    world.flying.clear();
    for _ in 0..HEARTBEAT {
        world.tick(node(1));
    }
    let mut received = Vec::new();
    for flying in std::mem::take(&mut world.flying) {
        let mut answer = message(MessageType::MsgHeartbeatResponse, flying.to.get(), 1, 2);
        answer.commit = 2;
        received.push(answer);
    }
    // The leader receives two replies in one turn, with a lost message between them.
    for answer in &received {
        let from = node(answer.from);
        world.at(1).step(from, wire::encode(answer)).unwrap();
        world.at(1).unreachable(from);
        world.at(1).step(from, wire::encode(answer)).unwrap();
    }
    world.turn(node(1)).unwrap();
    world.settle();
    assert!(world.members.values().all(|member| member.applied == LogIndex(3)));
}

#[test]
fn entries_use_the_bulk_lane_and_other_messages_do_not() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.at(1).propose(b"A".to_vec()).unwrap();
    world.read(node(1));
    let lanes: Vec<_> = world.flying.iter().map(Flying::kind).collect();
    assert!(lanes.contains(&MessageType::MsgHeartbeat));
    world.at(1).propose(b"B".to_vec()).unwrap();
    let turn = world.at(1).turn().unwrap().unwrap();
    for outbound in turn.send {
        let PeerMessage::Raft(bytes) = outbound.message else { unreachable!() };
        let message = wire::decode(&bytes).unwrap();
        assert_eq!(outbound.lane == Lane::Bulk, !message.entries.is_empty());
    }
}

#[test]
fn commit_notification_is_not_answered() {
    let mut world = World::new(3, 1, 1);
    world.elect(1);
    let answers = Cell::new(0);
    for put in 1..=5 {
        world.propose(node(1), b"A");
        world.settle_without(|flying| {
            answers.set(answers.get() + u32::from(flying.kind() == MessageType::MsgAppendResponse));
            false
        });
        assert_eq!(answers.get(), 3 * put, "one of each follower");
    }
    let commit = world.at(1).commit();
    assert!((2..=4).all(|follower| world.at(follower).commit() == commit));
}

#[test]
fn lost_acknowledgement_is_repeated_at_the_next_heartbeat() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let (_, index) = world.propose(node(1), b"A").unwrap();
    let of_three =
        |flying: &Flying| flying.from == node(3) && flying.kind() == MessageType::MsgAppendResponse;
    world.settle_without(of_three);
    let matched = |world: &mut World| {
        let peers = world.at(1).peers();
        peers.into_iter().find(|peer| peer.id == node(3)).unwrap().matched
    };
    assert!(matched(&mut world) < index && world.at(3).commit() == index);
    for _ in 0..ELECTION {
        world.tick(node(1));
        world.settle();
    }
    assert_eq!(matched(&mut world), index);
}

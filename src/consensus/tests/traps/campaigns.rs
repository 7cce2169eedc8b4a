//! Tests of campaigns and leadership transfers.

use super::*;

#[test]
fn member_does_not_campaign_while_entries_are_being_written() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    for flying in std::mem::take(&mut world.flying) {
        world.deliver(flying);
    }
    tick_long(&mut world, 2);
    world.at(2).campaign();
    let term = world.at(2).term().get();
    give(&mut world, &message(MessageType::MsgTimeoutNow, 1, 2, term));
    assert_eq!(world.at(2).role(), RaftRole::Follower);
    world.flying.clear();
    world.sync_all(2);
    world.tick(node(2));
    assert_eq!(world.at(2).role(), RaftRole::PreCandidate, "its patience was over long ago");
}

#[test]
fn member_does_not_campaign_with_entries_not_yet_written() {
    let mut world = World::new(1, 1, 1);
    let mut append = message(MessageType::MsgAppend, 1, 2, 2);
    (append.index, append.log_term) = (1, 1);
    append
        .set_entries(vec![raft::eraftpb::Entry { index: 2, term: 2, ..Default::default() }].into());
    world.at(2).step(node(1), wire::encode(&append)).unwrap();
    world.at(2).campaign();
    assert_eq!(world.at(2).role(), RaftRole::Follower);
}

#[test]
fn leader_with_a_slow_disk_keeps_sending_heartbeats() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    world.flying.clear();
    for _ in 0..4 * ELECTION {
        world.tick(node(1));
        let flying = std::mem::take(&mut world.flying);
        for flying in flying.into_iter().filter(|flying| flying.kind() != MessageType::MsgAppend) {
            world.deliver(flying);
        }
    }
    assert_eq!(world.at(1).role(), RaftRole::Leader);
    assert!(world.at(1).owes_log());
}

#[test]
fn member_with_unapplied_entries_does_not_campaign() {
    let disk = disk(2, 6, (2..=6).map(|index| entry(index, 2)).collect());
    let mut consensus =
        Consensus::new(config(1, &[1, 2, 3]), disk, hard_state(2, 6), LogIndex(1)).unwrap();
    for _ in 0..3 * ELECTION {
        consensus.tick();
    }
    consensus.campaign();
    assert_eq!(consensus.role(), RaftRole::Follower);
    while let Some(turn) = consensus.turn().unwrap() {
        if let Some(last) = turn.commit.last() {
            consensus.applied(last.index);
        }
    }
    consensus.tick();
    assert_eq!(consensus.role(), RaftRole::PreCandidate);
}

#[test]
fn rejected_pre_vote_in_the_first_term_is_answered() {
    // Bowline starts at term 1. At term 0, raft's own initial term, the message below would cause a
    // panic.
    let mut world = World::new(3, 0, 1);
    let mut request = message(MessageType::MsgRequestPreVote, 2, 1, 2);
    (request.index, request.log_term) = (1, 1);
    *world.disk(1).look() = Default::default();
    world.disk(1).look().read_max = usize::MAX;
    world.disk(1).look().queued.push_back(group(1, 1, 1, vec![entry(2, 1)]));
    world.disk(1).look().sync();
    world.start(node(1));
    give(&mut world, &request);
    let answer = world.flying[0].message();
    assert!(answer.reject);
    assert_eq!((answer.get_msg_type(), answer.term), (MessageType::MsgRequestPreVoteResponse, 1));
}

#[test]
fn a_leader_without_a_quorum_steps_down() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for _ in 0..2 * ELECTION {
        world.tick(node(1));
        world.flying.clear();
    }
    assert_eq!(world.at(1).role(), RaftRole::Follower);
}

#[test]
fn isolated_member_does_not_raise_its_term() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let term = world.at(2).term();
    for _ in 0..20 * ELECTION {
        world.tick(node(2));
        world.flying.clear();
    }
    assert_eq!(world.at(2).term(), term);
}

#[test]
fn only_voter_elects_itself_at_once() {
    let mut world = World::new(1, 1, 1);
    world.tick(node(2));
    assert_eq!(world.at(2).role(), RaftRole::Follower, "a learner does not lead");
    world.tick(node(1));
    assert_eq!(world.at(1).role(), RaftRole::Leader);
}

#[test]
fn two_colliding_candidates_eventually_elect_a_leader() {
    for seed in 0..20 {
        let mut world = World::new(2, 0, seed);
        for _ in 0..40 * ELECTION {
            world.tick(node(1));
            world.tick(node(2));
            world.settle();
        }
        assert!(world.leader().is_some(), "seed {seed}");
    }
}

// ---- leadership transfer
// --------------------------------------------------------------------------

#[test]
fn leadership_is_transferred_to_the_longest_known_log() {
    let mut world = World::new(3, 0, 1);
    assert_eq!(world.at(1).best_transferee(), None, "not a leader");
    world.elect(1);
    world.propose(node(1), b"A");
    world.settle_without(|flying| flying.to == node(2));
    assert_eq!(world.at(1).best_transferee(), Some(node(3)));
    world.at(1).not_sent(node(3));
    assert_eq!(world.at(1).best_transferee(), Some(node(3)), "who gets too much is there");
    world.at(1).unreachable(node(3));
    assert_eq!(world.at(1).best_transferee(), Some(node(2)), "unreachable");
    world.propose(node(1), b"B");
    world.settle();
    world.at(1).transfer_to(node(3));
    assert!(world.at(1).is_transferring());
    assert_eq!(world.at(1).propose(b"C".to_vec()), Err(ProposeRejection::Busy));
    world.turn(node(1)).unwrap();
    world.settle();
    assert_eq!(world.leader(), Some(node(3)));
}

#[test]
fn failed_transfer_ends_after_an_election_timeout() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.at(1).transfer_to(node(2));
    world.turn(node(1)).unwrap();
    for _ in 0..=ELECTION {
        world.tick(node(1));
        world.settle_without(|flying| flying.kind() == MessageType::MsgTimeoutNow);
    }
    assert!(!world.at(1).is_transferring());
    assert!(world.propose(node(1), b"A").is_some());
}

#[test]
fn learner_is_no_transfer_target() {
    let mut world = World::new(1, 1, 1);
    world.elect(1);
    world.at(1).transfer_to(node(2));
    assert!(!world.at(1).is_transferring(), "a learner");
    assert_eq!(world.at(1).best_transferee(), None);
}

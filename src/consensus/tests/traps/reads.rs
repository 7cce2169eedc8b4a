//! Tests of read rounds.

use super::*;

#[test]
fn read_round_waits_for_a_commit_in_the_leaders_term() {
    let mut world = World::new(3, 0, 1);
    assert!(!world.read(node(1)), "a follower");
    world.at(1).campaign();
    world.turn(node(1)).unwrap();
    while world.at(1).role() != RaftRole::Leader {
        let flying = world.flying.remove(0);
        world.deliver(flying);
        (1..=3).for_each(|id| world.sync_all(id));
    }
    assert!(!world.read(node(1)), "raft would drop it silently");
    world.settle();
    assert!(world.read(node(1)));
    world.settle();
    assert_eq!(world.rounds_confirmed, 1);
}

#[test]
fn a_single_voter_confirms_a_round_at_once() {
    let mut world = World::new(1, 0, 1);
    world.elect(1);
    assert!(world.read(node(1)));
    assert_eq!(world.rounds_confirmed, 1);
}

#[test]
fn partitioned_leader_confirms_no_read_round() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for _ in 0..HEARTBEAT {
        world.tick(node(1));
    }
    world.settle();
    for _ in 0..3 * ELECTION {
        world.read(node(1));
        world.tick(node(1));
        world.flying.clear();
        assert_eq!(world.rounds_confirmed, 0);
    }
}

#[test]
fn lost_heartbeat_only_delays_a_read_round() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    assert!(world.read(node(1)));
    world.flying.clear();
    for _ in 0..HEARTBEAT {
        world.tick(node(1));
    }
    world.settle();
    assert_eq!(world.rounds_confirmed, 1);
}

/// A context that is used twice could confirm a stale read. In this test, a round is started, its
/// replies are delayed, and a round with the same id is started after a write.
#[test]
fn late_answer_confirms_no_other_round_with_the_same_id() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let id = RoundId { node: node(1), incarnation: Incarnation(1), counter: 7 };
    assert!(world.at(1).read_round(id));
    let first = heartbeats_of(&mut world);
    // The replies to the first round are made but delayed.
    let mut late = Vec::new();
    for heartbeat in &first {
        let mut answer = heartbeat.clone();
        (answer.from, answer.to) = (heartbeat.to, heartbeat.from);
        answer.set_msg_type(MessageType::MsgHeartbeatResponse);
        late.push(answer);
    }
    // A faulty node uses the same id again after a write.
    let (_, index) = world.propose(node(1), b"A").unwrap();
    world.settle_without(|flying| flying.kind() == MessageType::MsgHeartbeatResponse);
    assert_eq!(world.at(1).commit(), index);
    assert!(world.at(1).read_round(id));
    let second = heartbeats_of(&mut world);
    assert_ne!(first[0].context, second[0].context);
    for answer in late {
        world.at(1).step(node(answer.from), wire::encode(&answer)).unwrap();
    }
    while let Some(turn) = world.at(1).turn().unwrap() {
        for (_, confirmed) in turn.rounds {
            assert!(confirmed < index, "only the first round is confirmed");
        }
    }
    // If both rounds had the same context, raft would count the late replies for the second round.
    // Therefore the leader adds a serial number to the context.
    let serials: Vec<_> = [&first, &second]
        .map(|round| RoundContext::from_bytes(&round[0].context).unwrap().serial)
        .to_vec();
    assert!(serials[0] < serials[1]);
}

fn heartbeats_of(world: &mut World) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(turn) = world.at(1).turn().unwrap() {
        for outbound in turn.send {
            let PeerMessage::Raft(bytes) = outbound.message else { unreachable!() };
            messages.push(wire::decode(&bytes).unwrap());
        }
    }
    messages.retain(|message| message.get_msg_type() == MessageType::MsgHeartbeat);
    assert_eq!(messages.len(), 2);
    messages
}

#[test]
fn unanswered_read_rounds_are_bounded() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let begun = (0..5000)
        .filter(|_| {
            world.flying.clear();
            world.read(node(1))
        })
        .count();
    assert_eq!(begun, 1024);
}

//! Tests of membership changes.

use super::*;
use crate::consensus::gate::GateRejection;
use crate::consensus::tests::world::add;
use crate::consensus::{PeerState, member_change};
use crate::model::{MemberChange, MembershipError, NodeId};

fn promote(id: u64) -> MemberChange {
    MemberChange::Promote(node(id))
}

fn remove(id: u64) -> MemberChange {
    MemberChange::Remove(node(id))
}

fn replace(old: u64, new: u64) -> MemberChange {
    MemberChange::Replace { old: node(old), new: node(new) }
}

/// Makes a change and waits until all members know it.
fn make(world: &mut World, change: &MemberChange) {
    let leader = world.leader().expect("somebody leads");
    world.change(leader, change).expect("it is proposed");
    settle_with_heartbeats(world);
}

fn settle_with_heartbeats(world: &mut World) {
    world.settle();
    for _ in 0..2 * HEARTBEAT {
        let leader = world.leader().expect("somebody leads");
        world.tick(leader);
        world.settle();
    }
}

fn voters(world: &World) -> Vec<u64> {
    world.newest().voters().map(NodeId::get).collect()
}

#[test]
fn member_joins_votes_and_leaves() {
    let mut world = World::new(1, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    make(&mut world, &add(2));
    assert_eq!(world.members[&node(2)].applied, world.members[&node(1)].applied);
    assert!(world.at(1).is_caught_up(node(2)));
    make(&mut world, &promote(2));
    assert_eq!(voters(&world), [1, 2]);
    // From now on, both members are needed for a quorum.
    world.crash(node(2), 0);
    let (_, index) = world.propose(node(1), b"B").unwrap();
    settle_with_heartbeats(&mut world);
    assert!(world.at(1).commit() < index);
    world.start(node(2));
    settle_with_heartbeats(&mut world);
    assert!(world.at(1).commit() >= index);
    make(&mut world, &remove(2));
    assert_eq!(voters(&world), [1]);
    assert!(world.propose(node(1), b"C").is_some());
    world.settle();
    assert!(world.history.values().any(|entry| entry.data == "C"));
}

#[test]
fn second_pending_change_is_rejected() {
    // Raft accepts the proposal but puts an empty entry in its place.
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.change(node(1), &add(4)).unwrap();
    let last = world.at(1).status().last;
    assert_eq!(world.at(1).propose_membership(&add(5)), Err(ProposeRejection::Busy));
    assert_eq!(world.at(1).status().last, last);
    settle_with_heartbeats(&mut world);
    assert!(world.change(node(1), &add(5)).is_some());
}

#[test]
fn leader_proposes_no_change_before_its_term_is_applied() {
    // A new leader does not know whether an earlier change is committed. Without this check, the
    // leader could start a second change.
    let mut world = World::new(1, 0, 1);
    world.at(1).campaign();
    assert!(world.at(1).is_leader());
    assert_eq!(world.at(1).propose_membership(&add(2)), Err(ProposeRejection::Busy));
    world.turn(node(1)).unwrap();
    world.settle();
    assert!(world.at(1).propose_membership(&add(2)).is_ok());
    let mut follower = World::new(3, 0, 1);
    let rejection = follower.at(2).propose_membership(&add(4));
    assert_eq!(rejection, Err(ProposeRejection::NotLeader(None)));
}

#[test]
fn void_change_has_no_effect() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for void in [promote(3), remove(77), replace(2, 3), add(9), promote(1)] {
        let before = world.newest().clone();
        let index = world.change(node(1), &void).unwrap();
        settle_with_heartbeats(&mut world);
        assert_eq!(member_change(&world.history[&index]).unwrap(), void);
        assert_eq!(*world.newest(), before, "{void:?}");
        assert!((1..=3).all(|id| world.members[&node(id)].applied >= index));
    }
    assert!(world.propose(node(1), b"A").is_some(), "and it goes on");
}

#[test]
fn a_machine_that_disagrees_with_raft_stops_the_member() {
    let disk = disk(2, 1, vec![entry(2, 2)]);
    disk.look().entries[0].kind = wal::EntryKind::Membership;
    let change = crate::consensus::membership::write_change(&add(4));
    disk.look().entries[0].data = change.into();
    let start = || {
        let hard_state = hard_state(2, 2);
        let mut consensus =
            Consensus::new(config(1, &[1, 2, 3]), disk.clone(), hard_state, LogIndex(1)).unwrap();
        let entry = consensus.turn().unwrap().unwrap().commit.remove(0);
        (consensus, entry)
    };
    let (mut consensus, entry) = start();
    assert_eq!(consensus.applied_membership(&entry, &members_of(&[1, 2, 3], &[4])), Ok(()));
    consensus.applied(entry.index);
    for wrong in [members_of(&[1, 2, 3, 4], &[]), members_of(&[1, 2, 3], &[4, 5])] {
        let (mut consensus, entry) = start();
        let fault = consensus.applied_membership(&entry, &wrong).unwrap_err();
        assert!(matches!(fault, ConsensusFault::Membership { index: LogIndex(2), .. }));
        assert_eq!(consensus.turn().unwrap_err(), fault, "and it stays so");
    }
}

// ---- removed members
// ------------------------------------------------------------------------------

#[test]
fn leader_transfers_leadership_before_its_own_removal() {
    for change in [remove(1), replace(1, 4)] {
        let mut world = World::new(3, 1, 1);
        world.elect(1);
        world.settle();
        assert_eq!(world.change(node(1), &change), None);
        assert!(world.at(1).is_transferring());
        world.settle();
        let leader = world.leader().unwrap();
        assert_ne!(leader, node(1));
        make(&mut world, &change);
        settle_with_heartbeats(&mut world);
        assert!(world.newest().is_removed(node(1)) && !world.newest().is_joint());
        assert_eq!(world.leader(), Some(leader));
    }
}

/// Makes member 2 the leader and commits its removal, which an earlier leader has proposed. The
/// raft crate would stay leader, and panic at the next entry.
fn removed_while_leading() -> World {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.change(node(1), &remove(2)).unwrap();
    // All members receive the entry, but the leader crashes before it receives their
    // acknowledgements.
    for flying in std::mem::take(&mut world.flying) {
        world.deliver(flying);
    }
    (2..=3).for_each(|id| world.sync_all(id));
    world.crash(node(1), 9);
    world.flying.clear();
    tick_long(&mut world, 3);
    world.flying.clear();
    world.at(2).campaign();
    world.turn(node(2)).unwrap();
    world
}

#[test]
fn removed_leader_steps_down_and_another_is_elected_at_once() {
    let mut world = removed_while_leading();
    world.start(node(1));
    for _ in 0..4 * ELECTION {
        world.settle();
        if world.newest().is_removed(node(2)) {
            break;
        }
        world.tick(node(2));
    }
    assert!(world.newest().is_removed(node(2)));
    assert_eq!(world.removed_leaders, 1);
    assert_eq!(world.at(2).role(), RaftRole::Follower);
    world.settle();
    let leader = world.leader().expect("it was asked to campaign, without waiting");
    assert_ne!(leader, node(2));
    assert!(world.propose(leader, b"A").is_some());
    settle_with_heartbeats(&mut world);
    assert!(world.history.values().any(|entry| entry.data == "A"));
}

/// The leader of a cluster of two members is removed, and the remaining member does not know that
/// the removal is committed. The remaining member needs the vote of the removed member, but does
/// not get it, because its log is shorter. Therefore the removed member must inform the remaining
/// member of the commit.
#[test]
fn remaining_member_learns_from_the_removed_leader_that_it_is_alone() {
    let mut world = World::dark(2, 0, 1);
    world.tune = |config| config.cache_bytes_max = 0;
    (1..=2).for_each(|id| world.start(node(id)));
    world.elect(1);
    world.change(node(1), &remove(2)).unwrap();
    let has_entries = |flying: &Flying| !flying.message().entries.is_empty();
    let appends: Vec<_> = world.flying.drain(..).filter(has_entries).collect();
    appends.into_iter().for_each(|flying| world.deliver(flying));
    world.sync_all(2);
    world.sync_all(1);
    // Member 2 becomes leader, writes, and learns that it was removed. Member 1 receives nothing.
    world.flying.clear();
    tick_long(&mut world, 1);
    world.flying.clear();
    world.at(1).transfer_to(node(2));
    world.turn(node(1)).unwrap();
    for _ in 0..200 {
        if world.at(2).is_leader() {
            world.propose(node(2), b"A");
        }
        for flying in std::mem::take(&mut world.flying) {
            let message = flying.message();
            let is_write = message.entries.iter().any(|entry| entry.data == "A");
            let informs = is_write || (message.commit > 2 && world.at(2).is_leader());
            if flying.to != node(1) || !informs {
                world.deliver(flying);
            }
        }
        if world.removed_leaders > 0 {
            break;
        }
        (1..=2).for_each(|id| world.sync_all(id));
        world.tick(node(2));
    }
    assert_eq!(world.removed_leaders, 1);
    assert!(world.at(2).status().last > world.at(1).status().last);
    world.flying.clear();
    world.crash(node(1), 9);
    world.start(node(1));
    for _ in 0..6 * ELECTION {
        (1..=2).for_each(|id| world.tick(node(id)));
        world.settle();
    }
    assert_eq!(world.leader(), Some(node(1)));
    assert_eq!(voters(&world), [1]);
}

#[test]
fn removed_member_never_campaigns_even_after_a_restart() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    make(&mut world, &remove(3));
    // Member 3 is removed, and learns from this message that its removal is committed.
    let index = *world.states.last_key_value().unwrap().0;
    let mut append = message(MessageType::MsgAppend, 1, 3, 2);
    (append.index, append.log_term, append.commit) = (index.get(), 2, index.get());
    give(&mut world, &append);
    assert_eq!(world.members[&node(3)].applied, index);
    world.snapshot(node(3));
    for _ in 0..2 {
        let term = world.at(3).term();
        tick_long(&mut world, 3);
        world.at(3).campaign();
        give(&mut world, &message(MessageType::MsgTimeoutNow, 1, 3, 2));
        assert_eq!((world.at(3).role(), world.at(3).term()), (RaftRole::Follower, term));
        world.settle();
        world.crash(node(3), 0);
        world.start(node(3));
    }
}

#[test]
fn unaware_removed_member_disturbs_no_member() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.change(node(1), &remove(3)).unwrap();
    world.settle_without(|flying| flying.to == node(3));
    let term = world.at(1).term();
    for _ in 0..10 * ELECTION {
        world.tick(node(3));
        world.tick(node(1));
        world.settle_without(|flying| flying.to == node(3));
    }
    assert_eq!((world.at(1).term(), world.at(1).role()), (term, RaftRole::Leader));
    let mut heartbeat = message(MessageType::MsgHeartbeat, 3, 2, 99);
    for kind in [MessageType::MsgHeartbeat, MessageType::MsgRequestVoteResponse] {
        heartbeat.set_msg_type(kind);
        let rejection = world.at(2).step(node(3), wire::encode(&heartbeat));
        assert_eq!(rejection, Err(GateRejection::Removed));
    }
}

// ---- joint configurations
// -------------------------------------------------------------------------

#[test]
fn replacement_needs_both_majorities_and_leaves_joint_by_itself() {
    let mut world = World::new(3, 1, 1);
    world.elect(1);
    // Only one of the new voters (1, 2, 4) receives the entry: the leader. Two of the old voters
    // receive the entry.
    let index = world.change(node(1), &replace(3, 4)).unwrap();
    world.settle_without(|flying| [2, 4].map(node).contains(&flying.to));
    assert!(world.members[&node(1)].applied >= index && world.newest().is_joint());
    let (_, write) = world.propose(node(1), b"A").unwrap();
    world.settle_without(|flying| [2, 4].map(node).contains(&flying.to));
    assert!(world.at(1).commit() < write, "1 and 3 are no majority of those after it");
    settle_with_heartbeats(&mut world);
    assert!(world.at(1).commit() >= write);
    assert!(!world.newest().is_joint() && world.newest().is_removed(node(3)));
    assert_eq!(voters(&world), [1, 2, 4]);
}

#[test]
fn replacement_survives_a_leader_failure() {
    let mut world = World::new(3, 1, 1);
    world.elect(1);
    world.change(node(1), &replace(3, 4)).unwrap();
    // All members apply the change, but the leader crashes before it proposes to leave the joint
    // configuration.
    for _ in 0..100 {
        let flying = std::mem::take(&mut world.flying);
        flying.into_iter().for_each(|flying| world.deliver(flying));
        if world.newest().is_joint() {
            break;
        }
        (1..=4).for_each(|id| world.sync_all(id));
    }
    assert!(world.newest().is_joint());
    world.crash(node(1), 0);
    world.flying.clear();
    for _ in 0..6 * ELECTION {
        (2..=4).for_each(|id| world.tick(node(id)));
        world.settle();
    }
    assert!(!world.newest().is_joint());
    assert_eq!(voters(&world), [1, 2, 4]);
}

#[test]
fn a_member_restarts_into_a_joint_configuration() {
    let mut world = World::new(3, 1, 1);
    world.elect(1);
    world.change(node(1), &replace(3, 4)).unwrap();
    world.settle_without(|flying| [2, 4].map(node).contains(&flying.to));
    assert!(world.newest().is_joint());
    world.snapshot(node(1));
    world.cut(node(1), 0);
    world.crash(node(1), 9);
    world.start(node(1));
    assert!(world.members[&node(1)].machine.members.is_joint());
    for _ in 0..6 * ELECTION {
        (1..=4).for_each(|id| world.tick(node(id)));
        world.settle();
    }
    assert!(!world.newest().is_joint());
}

// ---- a single voter
// -------------------------------------------------------------------------------

#[test]
fn last_remaining_voter_sends_nothing_before_its_term_is_durable() {
    let mut world = World::new(2, 1, 1);
    world.elect(1);
    make(&mut world, &remove(2));
    world.snapshot(node(1));
    world.crash(node(1), 0);
    world.start(node(1));
    world.flying.clear();
    world.tick(node(1));
    assert_eq!(world.at(1).role(), RaftRole::Leader, "it votes alone, and waits for nobody");
    world.propose(node(1), b"A");
    assert!(world.flying.is_empty(), "nothing has left: {:?}", kinds(&world.flying));
    world.sync(node(1));
    assert!(kinds(&world.flying).contains(&MessageType::MsgAppend));
}

#[test]
fn new_only_voter_does_not_lead_before_its_entries_are_durable() {
    let mut world = World::new(2, 0, 1);
    world.elect(1);
    make(&mut world, &remove(2));
    // The leader steps down while an entry is in flight, as it does on any message of a later term.
    world.propose(node(1), b"A");
    let term = world.at(1).term().get() + 1;
    give(&mut world, &message(MessageType::MsgHeartbeat, 7, 1, term));
    assert_eq!(world.at(1).role(), RaftRole::Follower);
    tick_long(&mut world, 1);
    world.at(1).campaign();
    assert_eq!(world.at(1).role(), RaftRole::Follower, "raft would panic");
    world.sync_all(1);
    world.tick(node(1));
    assert_eq!(world.at(1).role(), RaftRole::Leader);
}

// ---- checks before a change
// -----------------------------------------------------------------------

#[test]
fn change_that_would_lose_the_quorum_is_detected() {
    let mut world = World::new(3, 2, 1);
    world.elect(1);
    settle_with_heartbeats(&mut world);
    let all = [add(6), promote(4), remove(3), replace(3, 4)];
    for change in &all {
        assert_eq!(world.at(1).would_lose_quorum(change), None, "{change:?}");
    }
    world.crash(node(3), 0);
    world.crash(node(5), 0);
    for _ in 0..2 * ELECTION {
        world.tick(node(1));
        world.settle();
    }
    // Members 1, 2 and 4 are active.
    for change in [add(6), promote(4), remove(3), replace(3, 4), replace(3, 5)] {
        assert_eq!(world.at(1).would_lose_quorum(&change), None, "{change:?}");
    }
    let rejection = MembershipError::LosesQuorum { active: 1, voters: 2, needed: 2 };
    assert_eq!(world.at(1).would_lose_quorum(&remove(2)), Some(rejection));
    let rejection = MembershipError::LosesQuorum { active: 2, voters: 4, needed: 3 };
    assert_eq!(world.at(1).would_lose_quorum(&promote(5)), Some(rejection));
    let rejection = MembershipError::LosesQuorum { active: 1, voters: 3, needed: 2 };
    assert_eq!(world.at(1).would_lose_quorum(&replace(2, 5)), Some(rejection));
}

#[test]
fn learner_is_caught_up_when_active_and_nearly_current() {
    let mut world = World::new(1, 1, 1);
    world.elect(1);
    assert!(world.at(1).is_caught_up(node(2)));
    assert!(!world.at(1).is_caught_up(node(3)), "nobody");
    assert!(!world.at(2).is_caught_up(node(1)), "who does not lead does not know");
    for _ in 0..300 {
        world.propose(node(1), b"A");
        world.settle_without(|flying| flying.to == node(2));
    }
    assert!(!world.at(1).is_caught_up(node(2)), "300 entries behind");
    settle_with_heartbeats(&mut world);
    assert!(world.at(1).is_caught_up(node(2)));
    world.at(1).unreachable(node(2));
    assert!(!world.at(1).is_caught_up(node(2)), "a message to it was lost");
    settle_with_heartbeats(&mut world);
    world.propose(node(1), b"A");
    world.settle();
    assert_eq!(world.at(1).peers()[0].state, PeerState::Replicate);
    for _ in 0..ELECTION {
        world.tick(node(1));
        world.flying.clear();
    }
    assert!(!world.at(1).is_caught_up(node(2)), "not heard of");
}

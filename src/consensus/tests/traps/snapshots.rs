//! Tests of truncated logs, and of snapshots that replace them.

use super::*;
use crate::consensus::tests::world::add;
use crate::consensus::{Offer, PeerState, Taken};
use crate::model::{MemberChange, SnapshotId};

fn not_to(id: u64) -> impl Fn(&Flying) -> bool {
    move |flying| flying.to == node(id)
}

/// Returns a cluster whose third member lacks thirty entries. The log of the leader still contains
/// the last `keep` of these entries.
fn behind(keep: u64) -> World {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for _ in 0..30 {
        world.propose(node(1), b"A");
        world.settle_without(not_to(3));
    }
    for id in [1, 2] {
        world.snapshot(node(id));
        world.cut(node(id), keep);
        world.at(id).log_cut().unwrap();
    }
    world
}

/// Delivers messages until the third member has an offer.
fn offered() -> World {
    let mut world = behind(0);
    for _ in 0..4 * HEARTBEAT {
        world.tick(node(1));
        deliver_all(&mut world);
        (1..=3).for_each(|id| world.sync_all(id));
        if world.members[&node(3)].offer.is_some() {
            world.flying.clear();
            return world;
        }
    }
    panic!("no snapshot is offered");
}

fn deliver_all(world: &mut World) {
    for flying in std::mem::take(&mut world.flying) {
        world.deliver(flying);
    }
}

fn offer_of(world: &World) -> Offer {
    world.members[&node(3)].offer.clone().unwrap()
}

fn offer_term(offer: &Offer) -> Term {
    Term(offer.message.term)
}

fn catches_up(world: &mut World) {
    for _ in 0..6 * ELECTION {
        world.tick(world.leader().unwrap());
        world.settle();
    }
    let last = *world.history.last_key_value().unwrap().0;
    assert_eq!(world.members[&node(3)].applied, last);
}

#[test]
fn follower_behind_the_log_installs_a_snapshot_and_continues() {
    let mut world = behind(0);
    let snapshot = world.members[&node(1)].machine.id();
    world.propose(node(1), b"B");
    catches_up(&mut world);
    assert_eq!(world.installs, 1);
    assert_eq!(world.disk(3).look().base.index, snapshot.index);
    assert_eq!(world.disk(3).look().entries.len(), 1);
    world.crash(node(3), 0);
    world.start(node(3));
    assert_eq!(world.members[&node(3)].applied, snapshot.index);
    catches_up(&mut world);
    assert_eq!(world.installs, 1, "it needs no other");
}

#[test]
fn follower_within_the_log_receives_entries() {
    let mut world = behind(40);
    catches_up(&mut world);
    assert_eq!(world.installs, 0);
}

#[test]
fn snapshot_offer_has_no_effect_until_the_file_is_received() {
    let mut world = offered();
    let offer = offer_of(&world);
    assert_eq!(offer.id, world.members[&node(1)].machine.id());
    assert_eq!(offer.from, node(1));
    let status = world.at(3).status();
    assert_eq!((status.commit, status.last), (LogIndex(2), LogIndex(2)));
    assert!(world.at(3).turn().unwrap().is_none());
    assert_eq!(world.at(1).peers()[1].state, PeerState::Snapshot);
}

#[test]
fn install_blocks_other_work_until_it_is_in_place() {
    let mut world = offered();
    world.holds_installs = true;
    // An entry is still being written to disk when the snapshot file is complete.
    let (term, last) = (world.at(3).term().get(), world.at(3).status().last.get());
    let mut append = message(MessageType::MsgAppend, 1, 3, term);
    (append.index, append.log_term, append.commit) = (last, 2, last);
    append.set_entries(
        vec![raft::eraftpb::Entry { index: last + 1, term: 2, ..Default::default() }].into(),
    );
    give(&mut world, &append);
    assert!(world.fetch(node(3)));
    assert_eq!(world.members[&node(3)].installing, None, "what is older must be durable first");
    world.sync(node(3));
    assert!(world.members[&node(3)].installing.is_some());
    world.flying.clear();
    // A heartbeat that arrives while the group is being written is answered later.
    give(&mut world, &message(MessageType::MsgHeartbeat, 1, 3, term));
    assert!(world.at(3).turn().unwrap().is_none());
    assert!(world.flying.is_empty(), "{:?}", kinds(&world.flying));
    // The group is proven durable, but the state is not installed yet. Only the acknowledgement is
    // sent.
    world.sync_all(3);
    assert_eq!(kinds(&world.flying), [MessageType::MsgAppendResponse]);
    assert!(world.at(3).turn().unwrap().is_none());
    assert!(world.finish_install(node(3)));
    assert!(kinds(&world.flying).contains(&MessageType::MsgHeartbeatResponse));
    catches_up(&mut world);
}

#[test]
fn snapshot_is_acknowledged_once_the_log_has_recorded_it() {
    let mut world = offered();
    assert!(world.fetch(node(3)));
    assert!(world.flying.is_empty(), "{:?}", kinds(&world.flying));
    assert_eq!(world.disk(3).look().queued.len(), 1);
    world.sync_all(3);
    assert_eq!(world.flying[0].message().index, world.members[&node(1)].applied.get());
}

#[test]
fn installing_member_does_not_campaign() {
    let mut world = offered();
    world.holds_installs = true;
    assert!(world.fetch(node(3)));
    let term = world.at(3).term().get();
    for proven in [false, true] {
        tick_long(&mut world, 3);
        world.at(3).campaign();
        give(&mut world, &message(MessageType::MsgTimeoutNow, 1, 3, term));
        assert_eq!(world.at(3).role(), RaftRole::Follower, "proven: {proven}");
        world.sync_all(3);
    }
    world.finish_install(node(3));
    tick_long(&mut world, 3);
    assert_eq!(world.at(3).role(), RaftRole::PreCandidate);
}

#[test]
fn crash_during_install_keeps_the_old_or_the_new_state() {
    for synced in [0, 1] {
        let mut world = offered();
        assert!(world.fetch(node(3)));
        let snapshot = world.members[&node(1)].applied;
        world.crash(node(3), synced);
        world.start(node(3));
        let applied = world.members[&node(3)].applied;
        assert_eq!(applied, if synced == 1 { snapshot } else { LogIndex(1) });
        catches_up(&mut world);
    }
}

#[test]
fn snapshot_of_a_failed_leader_is_installed_under_the_next() {
    let mut world = offered();
    // When the file is complete, the follower knows no leader, and the sender of the snapshot is
    // unreachable.
    let (offer, disk) = (offer_of(&world), world.disk(3));
    let machine = world.disk(1).look().files[&offer.id].clone();
    disk.look().files.insert(offer.id, machine);
    world.crash(node(1), 9);
    tick_long(&mut world, 3);
    world.flying.clear();
    assert_eq!(world.at(3).take_snapshot(&offer), Taken::Later);
    while world.at(3).leader() != Some(node(2)) {
        world.tick(node(2));
        deliver_all(&mut world);
        (2..=3).for_each(|id| world.sync_all(id));
    }
    assert!(world.at(3).term() > offer_term(&offer));
    assert_eq!(world.at(3).take_snapshot(&offer), Taken::Installing);
    world.turn(node(3)).unwrap();
    world.sync_all(3);
    world.members.get_mut(&node(3)).unwrap().offer = None;
    catches_up(&mut world);
    assert_eq!(world.installs, 1);
    assert_eq!(world.at(3).take_snapshot(&offer), Taken::Needless, "it is here");
}

#[test]
fn snapshot_of_entries_already_present_is_not_installed() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for _ in 0..5 {
        world.propose(node(1), b"A");
    }
    // The log contains the entries, but the member does not know that they are committed.
    deliver_all(&mut world);
    world.sync_all(3);
    world.flying.clear();
    let (last, commit) = (world.at(3).status().last, world.at(3).commit());
    assert!(last > commit);
    let mut offer = message(MessageType::MsgSnapshot, 1, 3, 2);
    let id = SnapshotId { index: last, term: Term(2), bytes: 1, checksum: 1 };
    let members = members_of(&[1, 2, 3], &[]);
    let configuration = crate::consensus::membership::Configuration::of(&members);
    offer.set_snapshot(crate::consensus::snapshot::to_raft(id, &configuration));
    assert_eq!(world.at(3).step(node(1), wire::encode(&offer)), Ok(Stepped::Done));
    assert_eq!(world.at(3).commit(), last);
    // The member also replies to an older offer, which has no other effect.
    let id = SnapshotId { index: LogIndex(2), ..id };
    offer.set_snapshot(crate::consensus::snapshot::to_raft(id, &configuration));
    assert_eq!(world.at(3).step(node(1), wire::encode(&offer)), Ok(Stepped::Done));
    let turn = world.at(3).turn().unwrap().unwrap();
    assert_eq!((turn.send.len(), turn.install), (2, None));
}

#[test]
fn unsuitable_snapshot_is_not_sent_and_a_new_one_is_requested() {
    // In this case, the offered snapshot is too old for the log.
    let mut world = behind(0);
    let members = world.newest().clone();
    let old = SnapshotId { index: LogIndex(5), term: Term(2), bytes: 1, checksum: 1 };
    world.at(1).offer_snapshot(Some((old, &members)));
    assert!(!world.at(1).wants_snapshot());
    let tick = |world: &mut World| {
        for _ in 0..8 * HEARTBEAT {
            world.tick(node(1));
            deliver_all(world);
            (1..=3).for_each(|id| world.sync_all(id));
        }
    };
    tick(&mut world);
    assert!(world.at(1).wants_snapshot());
    assert_eq!(world.members[&node(3)].offer, None);
    // In this case, the offered snapshot does not contain the follower as a member.
    let machine = world.members[&node(1)].machine.clone();
    world.at(1).offer_snapshot(Some((machine.id(), &members_of(&[1, 2], &[]))));
    tick(&mut world);
    assert!(world.at(1).wants_snapshot());
    assert_eq!(world.members[&node(3)].offer, None);
    world.snapshot(node(1));
    assert!(!world.at(1).wants_snapshot());
    catches_up(&mut world);
}

#[test]
fn member_added_after_truncation_gets_a_snapshot_that_lists_it() {
    let mut world = behind(0);
    catches_up(&mut world);
    world.stays_dark = Some(node(4));
    world.change(node(1), &add(4)).unwrap();
    world.settle();
    world.start(node(4));
    for _ in 0..8 * HEARTBEAT {
        world.tick(node(1));
        world.settle();
    }
    assert_eq!(world.members[&node(4)].applied, world.members[&node(1)].applied);
    assert!(world.members[&node(4)].machine.members.get(node(4)).is_some());
    world.change(node(1), &MemberChange::Promote(node(4))).unwrap();
    world.settle();
    assert!(world.newest().is_voter(node(4)));
}

#[test]
fn stalled_snapshot_is_offered_again() {
    let state = |world: &mut World| world.at(1).peers()[1].state;
    let mut world = offered();
    world.members.get_mut(&node(3)).unwrap().offer = None;
    for n in 0..10 * ELECTION {
        if n % ELECTION == 0 {
            world.at(1).snapshot_progress(node(3));
        }
        world.tick(node(1));
        world.settle_without(not_to(3));
        assert_eq!(state(&mut world), PeerState::Snapshot, "after {n} ticks");
    }
    // After a lost message or a restarted follower, the follower is probed again.
    let mut ticks = 0;
    while state(&mut world) == PeerState::Snapshot {
        world.tick(node(1));
        world.settle_without(not_to(3));
        ticks += 1;
        assert!(ticks <= 4 * ELECTION);
    }
    catches_up(&mut world);
    // If the snapshot is missing, the follower reports this to the leader.
    let mut world = offered();
    world.at(1).report_snapshot(node(3), false);
    assert_eq!(state(&mut world), PeerState::Probe);
}

#[test]
fn follower_with_an_older_snapshot_continues_from_the_log() {
    let mut world = offered();
    let offer = offer_of(&world);
    world.members.get_mut(&node(3)).unwrap().offer = None;
    // While the follower fetches the snapshot, the leader writes more entries and offers a newer
    // snapshot. The leader's log contains the entries after both snapshots.
    for _ in 0..5 {
        world.propose(node(1), b"B");
        world.settle_without(not_to(3));
    }
    let first = world.disk(1).look().files.clone();
    world.snapshot(node(1));
    world.disk(1).look().files.extend(first);
    world.at(1).report_snapshot(node(3), false);
    for _ in 0..8 * HEARTBEAT {
        world.tick(node(1));
        deliver_all(&mut world);
        (1..=3).for_each(|id| world.sync_all(id));
    }
    assert_eq!(world.at(1).peers()[1].state, PeerState::Snapshot);
    assert!(offer_of(&world).id.index > offer.id.index);
    world.flying.clear();
    world.members.get_mut(&node(3)).unwrap().offer = Some(offer.clone());
    assert!(world.fetch(node(3)));
    world.sync_all(3);
    assert_eq!(world.members[&node(3)].applied, offer.id.index);
    world.settle();
    world.tick(node(1));
    assert_ne!(world.at(1).peers()[1].state, PeerState::Snapshot);
    catches_up(&mut world);
    assert_eq!(world.installs, 1);
}

#[test]
fn log_truncated_ahead_of_raft_is_not_an_error() {
    let mut world = World::dark(3, 0, 1);
    world.tune = |config| config.cache_bytes_max = 0;
    (1..=3).for_each(|id| world.start(node(id)));
    world.elect(1);
    for _ in 0..30 {
        world.propose(node(1), b"A");
        world.settle_without(not_to(3));
    }
    world.snapshot(node(1));
    world.cut(node(1), 3);
    catches_up(&mut world);
    assert_eq!(world.installs, 1);
}

#[test]
fn state_older_than_the_log_start_stops_the_member() {
    let disk = disk(2, 6, (2..=6).map(|index| entry(index, 2)).collect());
    disk.look().base = wal::Base { index: LogIndex(5), term: Term(2) };
    disk.look().entries.drain(..4);
    let start = |applied| {
        let config = config(1, &[1, 2, 3]);
        Consensus::new(config, disk.clone(), hard_state(2, 6), LogIndex(applied)).err()
    };
    let lost = ConsensusFault::StateLost { first: LogIndex(6), applied: LogIndex(4) };
    assert_eq!(start(4), Some(lost));
    assert_eq!(start(5), None);
    assert_eq!(start(6), None);
}

#[test]
fn snapshot_with_unexpected_members_stops_the_member() {
    let mut world = offered();
    world.holds_installs = true;
    assert!(world.fetch(node(3)));
    world.sync_all(3);
    let fault = world.at(3).installed(&members_of(&[1, 2, 3, 4], &[])).unwrap_err();
    assert!(matches!(fault, ConsensusFault::Membership { .. }));
    assert_eq!(world.at(3).turn().unwrap_err(), fault);
}

#[test]
#[should_panic(expected = "the log has not proven it")]
fn install_before_the_log_proof_panics() {
    let mut world = offered();
    assert!(world.fetch(node(3)));
    let members = world.newest().clone();
    drop(world.at(3).installed(&members));
}

#[test]
fn entries_received_during_a_pending_install_follow_it() {
    let mut world = offered();
    let offer = offer_of(&world);
    let machine = world.disk(1).look().files[&offer.id].clone();
    world.disk(3).look().files.insert(offer.id, machine);
    assert_eq!(world.at(3).take_snapshot(&offer), Taken::Installing);
    assert_eq!(world.at(3).take_snapshot(&offer), Taken::Later);
    let index = offer.id.index.get();
    let mut append = message(MessageType::MsgAppend, 1, 3, 2);
    (append.index, append.log_term, append.commit) = (index, 2, index + 1);
    append.set_entries(
        vec![raft::eraftpb::Entry { index: index + 1, term: 2, ..Default::default() }].into(),
    );
    assert_eq!(world.at(3).step(node(1), wire::encode(&append)), Ok(Stepped::Done));
    let turn = world.at(3).turn().unwrap().unwrap();
    let group = turn.persist.unwrap();
    assert_eq!(turn.install, Some(offer.id));
    assert_eq!(group.base, Some(wal::Base { index: offer.id.index, term: Term(2) }));
    assert_eq!(group.entries.len(), 1);
    assert_eq!(group.hard_state.as_ref().unwrap().commit, LogIndex(index + 1));
    assert!(turn.commit.is_empty());
    let number = group.number;
    world.disk(3).look().queued.push_back(group);
    world.disk(3).look().sync();
    drop(world.at(3).persisted(wal::Durable::for_test(number)));
    world.at(3).installed(&members_of(&[1, 2, 3], &[])).unwrap();
    let turn = world.at(3).turn().unwrap().unwrap();
    assert_eq!(turn.commit.iter().map(|entry| entry.index.get()).collect::<Vec<_>>(), [index + 1]);
}

//! Tests of the reported status of a member and its peers.

use super::*;

#[test]
fn leader_is_ready_once_it_applied_an_entry_of_its_term() {
    let mut world = World::new(3, 0, 1);
    world.at(1).campaign();
    world.turn(node(1)).unwrap();
    while world.at(1).role() != RaftRole::Leader {
        let flying = world.flying.remove(0);
        world.deliver(flying);
        (1..=3).for_each(|id| world.sync_all(id));
    }
    assert!(!world.at(1).is_ready_to_lead());
    world.settle();
    assert!(world.at(1).is_ready_to_lead());
}

#[test]
fn leader_reports_the_progress_of_its_followers() {
    let mut world = World::new(3, 1, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    world.settle_without(|flying| flying.to == node(3));
    let status = world.at(1).status();
    assert_eq!(
        (status.last, status.persisted, status.applied),
        (LogIndex(3), LogIndex(3), LogIndex(3))
    );
    let peers: Vec<_> =
        status.peers.iter().map(|peer| (peer.id.get(), peer.matched.get())).collect();
    assert_eq!(peers, [(2, 3), (3, 2), (4, 3)]);
    assert!(status.peers.iter().all(|peer| peer.active));
    assert!(world.at(2).status().peers.is_empty());
    assert_eq!(world.at(2).status().leader, Some(node(1)));
    assert_eq!(world.at(2).term_at(LogIndex(9)), None);
}

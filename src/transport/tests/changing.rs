//! Tests of members that are added, removed and moved.

use super::*;

fn targets(peers: &[(u64, &Member)]) -> BTreeMap<NodeId, Vec<String>> {
    let place = |member: &Member| vec![member.handle.address().to_string()];
    peers.iter().map(|(id, member)| (node(*id), place(member))).collect()
}

fn founded(from: u64, to: u64) -> Hello {
    Hello { standing: founding(), ..hello(from, to) }
}

/// Returns member `id`, which knows no addresses.
fn lonely(id: u64) -> Member {
    Member::start(bind(settings()), founded(id, 1), &[], &Arc::default())
}

#[test]
fn peer_is_dialed_only_while_it_is_listed() {
    let (mut one, mut two) = (lonely(1), lonely(2));
    let send = |one: &mut Member| one.network.send(node(2), Lane::Control, ping(1));
    assert_eq!(send(&mut one), SendOutcome::Unreachable);
    one.network.set_peers(&targets(&[(2, &two)]));
    one.send(2, Lane::Control, &ping(1));
    two.inbox.wait_for_message(node(1), &ping(1));
    // Member 2 can reply to member 1 only after it has set member 1 as its peer.
    assert_eq!(two.network.send(node(1), Lane::Control, ping(2)), SendOutcome::Unreachable);
    two.network.set_peers(&targets(&[(1, &one)]));
    two.send(1, Lane::Control, &ping(2));
    one.inbox.wait_for_message(node(2), &ping(2));
    one.network.set_peers(&BTreeMap::new());
    assert_eq!(send(&mut one), SendOutcome::Unreachable);
    two.network.set_peers(&BTreeMap::new());
    for (member, peer) in [(&one, 2), (&two, 1)] {
        member.inbox.wait("gone", |received| has_disconnected(received, node(peer)));
    }
    one.network.set_peers(&targets(&[(2, &two)]));
    one.send(2, Lane::Bulk, &ping(3));
    two.inbox.wait_for_message(node(1), &ping(3));
}

#[test]
fn peer_with_a_missing_or_wrong_address_is_not_dialed() {
    let (mut one, two) = (lonely(1), lonely(2));
    let mut peers = targets(&[(2, &two)]);
    for (peer, place) in [(1, "127.0.0.1:1"), (3, ""), (4, "192.0.2.1:7400"), (5, "nonsense")] {
        peers.insert(node(peer), vec![place.to_owned()]);
    }
    one.network.set_peers(&peers);
    one.send(2, Lane::Control, &ping(1));
    for nowhere in [1, 3, 4, 5] {
        let outcome = one.network.send(node(nowhere), Lane::Snapshot, ping(1));
        assert_eq!(outcome, SendOutcome::Unreachable, "{nowhere}");
    }
}

#[test]
fn a_peer_that_moves_is_found_at_its_new_address() {
    let mut one = lonely(1);
    let [old, new] = [lonely(2), lonely(2)];
    one.network.set_peers(&targets(&[(2, &old)]));
    one.send(2, Lane::Control, &ping(1));
    old.inbox.wait_for_message(node(1), &ping(1));
    // The connection to the old address is closed, although the old address still answers.
    one.network.set_peers(&targets(&[(2, &new)]));
    old.inbox.wait("left", |received| has_disconnected(received, node(1)));
    new.inbox.wait_for_connection(node(1));
    one.send(2, Lane::Control, &ping(2));
    new.inbox.wait_for_message(node(1), &ping(2));
    // The targets are unchanged, so no connection is closed.
    one.network.set_peers(&targets(&[(2, &new)]));
    assert_eq!(one.network.send(node(2), Lane::Control, ping(3)), SendOutcome::Queued);
    new.inbox.wait_for_message(node(1), &ping(3));
    assert!(!new.inbox.has(|received| matches!(received, Received::Disconnected(_))));
}

#[test]
fn moving_peer_is_dialed_at_both_addresses() {
    let mut one = lonely(1);
    let [old, new] = [lonely(2), lonely(2)];
    one.network.set_peers(&targets(&[(2, &old)]));
    one.send(2, Lane::Control, &ping(1));
    old.inbox.wait_for_message(node(1), &ping(1));
    let place = |member: &Member| member.handle.address().to_string();
    let both = vec![place(&old), place(&new)];
    one.network.set_peers(&[(node(2), both)].into());
    // The connection to the current address is not closed.
    one.send(2, Lane::Control, &ping(2));
    old.inbox.wait_for_message(node(1), &ping(2));
    assert!(!old.inbox.has(|received| matches!(received, Received::Disconnected(_))));
    drop(old);
    new.inbox.wait_for_connection(node(1));
    one.send(2, Lane::Control, &ping(3));
    new.inbox.wait_for_message(node(1), &ping(3));
}

#[test]
fn unreachable_name_does_not_delay_the_next_address() {
    // Connection attempts to this port hang in the handshake.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = silent.local_addr().expect("bound");
    let settings = TcpSettings { handshake_timeout: Duration::from_secs(3600), ..settings() };
    let mut one = Member::start(bind(settings), founded(1, 2), &[(2, silent)], &Arc::default());
    let two = lonely(2);
    one.network.set_peers(&targets(&[(2, &two)]));
    one.send(2, Lane::Control, &ping(1));
    two.inbox.wait_for_message(node(1), &ping(1));
}

#[test]
fn removed_member_is_informed_at_once_and_on_every_return() {
    let (mut one, mut two) = (lonely(1), lonely(2));
    one.network.set_peers(&targets(&[(2, &two)]));
    two.network.set_peers(&targets(&[(1, &one)]));
    one.send(2, Lane::Control, &ping(1));
    two.send(1, Lane::Control, &ping(1));
    let mut left = members(&[]);
    left.apply(LogIndex(50), &MemberChange::Remove(node(2)));
    one.peer_versions.knows(left);
    one.network.set_peers(&BTreeMap::new());
    let await_rejection = |member: &Member, peer: u64| {
        member.inbox.wait("a rejection of the removed member", |received| {
            received.iter().any(|one| {
                matches!(one, Received::Refused(who, why) if *who == node(peer)
                    && why.removed == Some(node(2)) && why.why.contains("was removed"))
            })
        });
    };
    await_rejection(&one, 2);
    await_rejection(&two, 1);
    let again = Member::start(
        bind(settings()),
        Hello { incarnation: Incarnation(2), ..founded(2, 1) },
        &[(1, one.handle.address())],
        &Arc::default(),
    );
    await_rejection(&again, 1);
    assert!(!again.inbox.has(|received| matches!(received, Received::Connected(..))));
}

#[test]
fn unknown_new_member_is_accepted_and_an_impossible_one_rejected() {
    let (mut one, mut four) = (lonely(1), lonely(4));
    one.peer_versions.knows(members(&[]));
    four.peer_versions.knows(members(&[4]));
    four.peer_versions.since(101);
    four.network.set_peers(&targets(&[(1, &one)]));
    four.send(1, Lane::Control, &ping(1));
    one.inbox.wait_for_message(node(4), &ping(1));
    // The log entry is applied now, and it did not add a member 4 with this disk.
    let mut others = members(&[]);
    let add = MemberChange::Add {
        id: node(4),
        disk: DiskId(0xbad << 112),
        name: "m4".to_owned(),
        address: String::new(),
        replaces: None,
    };
    others.apply(LogIndex(101), &add);
    one.peer_versions.knows(others);
    one.network.set_peers(&BTreeMap::new());
    one.inbox.wait_for_rejection(node(4), "with disk 0bad0000.. but now has disk");
    four.inbox.wait_for_rejection(node(1), "with disk 0bad0000.. but now has disk");
    let lost = |received: &Received| matches!(received, Received::Refused(_, why) if why.disk_lost == Some(node(4)));
    assert!(one.inbox.has(lost));
}

#[test]
fn twenty_learners_and_three_voters_connect() {
    let learners: Vec<u64> = (4..24).collect();
    let everybody = members(&learners);
    let start = |id: u64| {
        let member = lonely(id);
        member.peer_versions.knows(everybody.clone());
        member
    };
    let mut voters: Vec<Member> = (1..=3).map(start).collect();
    let mut learners: Vec<Member> = learners.into_iter().map(start).collect();
    let at = |all: &[Member], first: u64| -> Vec<(NodeId, Vec<String>)> {
        let ids = (first..).map(node);
        ids.zip(all.iter().map(|member| vec![member.handle.address().to_string()])).collect()
    };
    let (all_voters, all_learners) = (at(&voters, 1), at(&learners, 4));
    let all = all_voters.iter().chain(&all_learners).cloned().collect();
    voters.iter_mut().for_each(|voter| voter.network.set_peers(&all));
    let some = all_voters.into_iter().collect();
    learners.iter_mut().for_each(|learner| learner.network.set_peers(&some));
    for (at, learner) in learners.iter_mut().enumerate() {
        let id = at as u64 + 4;
        for voter in 1..=3 {
            learner.send(voter, Lane::Control, &ping(id));
            voters[voter as usize - 1].inbox.wait_for_message(node(id), &ping(id));
            voters[voter as usize - 1].send(id, Lane::Bulk, &ping(voter));
            learner.inbox.wait_for_message(node(voter), &ping(voter));
        }
    }
    for learner in &learners {
        let met =
            |received: &Received| matches!(received, Received::Connected(id, _) if *id > node(3));
        assert!(!learner.inbox.has(met), "learners have nothing to say to each other");
    }
}

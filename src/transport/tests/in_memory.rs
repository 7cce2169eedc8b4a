//! Tests of members inside one process.

use super::*;

struct Guest {
    peer_versions: Arc<TestIntroducer>,
    inbox: Arc<Inbox>,
    network: MemoryNetwork,
}

fn join(hub: &MemoryHub, of: Hello) -> Guest {
    let inbox: Arc<Inbox> = Arc::default();
    let (me, peer_versions) = (of.from, TestIntroducer::new(of));
    let network = hub.join(me, peer_versions.clone(), inbox.clone());
    Guest { peer_versions, inbox, network }
}

impl Guest {
    fn send(&mut self, to: u64, number: u64) -> SendOutcome {
        self.network.send(node(to), Lane::Control, ping(number))
    }

    fn received(&self) -> Vec<Received> {
        self.inbox.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[test]
fn members_connect_exchange_messages_and_disconnect() {
    let hub = MemoryHub::default();
    let mut one = join(&hub, hello(1, 2));
    assert_eq!(one.send(2, 1), SendOutcome::Unreachable);
    let mut two = join(&hub, hello(2, 1));
    // An earlier instance of the member does not remove the present one.
    hub.leave(node(2), two.network.seat() - 1);
    assert_eq!(one.send(2, 2), SendOutcome::Queued);
    assert_eq!(two.send(1, 3), SendOutcome::Queued);
    assert_eq!(one.send(1, 4), SendOutcome::Unreachable);
    hub.leave(node(2), two.network.seat());
    assert_eq!(one.send(2, 5), SendOutcome::Unreachable);
    assert_eq!(two.send(1, 6), SendOutcome::Unreachable);
    let expected = |peer, number: u64, message| {
        let peer_hello = hello(peer, 3 - peer);
        [
            Received::Connected(node(peer), peer_hello),
            Received::Message(node(peer), ping(message)),
            Received::Disconnected(node(peer)),
        ][..number as usize]
            .to_vec()
    };
    assert_eq!(one.received(), expected(2, 3, 3));
    assert_eq!(two.received(), expected(1, 3, 2));
}

#[test]
fn cut_link_silently_drops_one_direction() {
    let hub = MemoryHub::default();
    let (mut one, mut two) = (join(&hub, hello(1, 2)), join(&hub, hello(2, 1)));
    hub.cut(node(1), node(2));
    assert_eq!(one.send(2, 1), SendOutcome::Queued);
    assert_eq!(two.send(1, 2), SendOutcome::Queued);
    hub.heal_all();
    assert_eq!(one.send(2, 3), SendOutcome::Queued);
    assert_eq!(two.inbox.messages(), [ping(3)]);
    assert_eq!(one.inbox.messages(), [ping(2)]);
}

#[test]
fn members_do_not_connect_over_a_cut_link() {
    let hub = MemoryHub::default();
    hub.cut(node(2), node(1));
    let (mut one, two) = (join(&hub, hello(1, 2)), join(&hub, hello(2, 1)));
    assert_eq!(one.send(2, 1), SendOutcome::Unreachable);
    assert!(one.received().is_empty() && two.received().is_empty());
    hub.heal_all();
    assert_eq!(one.send(2, 2), SendOutcome::Queued);
    assert_eq!(two.inbox.messages(), [ping(2)]);
}

#[test]
fn rejected_member_is_informed_once_and_can_return() {
    let hub = MemoryHub::default();
    let founded = Hello { standing: founding(), ..hello(1, 2) };
    let mut one = join(&hub, founded);
    let lost = Hello { disk: DiskId(0xdead << 112), ..hello(2, 1) };
    let mut two = join(&hub, lost);
    for number in 0..3 {
        assert_eq!(one.send(2, number), SendOutcome::Unreachable);
        assert_eq!(two.send(1, number), SendOutcome::Unreachable);
    }
    for (guest, peer) in [(&one, 2), (&two, 1)] {
        let received = guest.received();
        assert!(
            matches!(&received[..], [Received::Refused(who, why)] if *who == node(peer) && why.why.contains("dead0000")),
            "{received:?}"
        );
    }
    let two = join(&hub, hello(2, 1));
    assert_eq!(one.send(2, 9), SendOutcome::Queued);
    assert_eq!(two.inbox.messages(), [ping(9)]);
}

#[test]
fn rejoining_member_evicts_its_earlier_incarnation() {
    let hub = MemoryHub::default();
    let mut one = join(&hub, hello(1, 2));
    let mut earlier = join(&hub, hello(2, 1));
    let mut later = join(&hub, Hello { incarnation: Incarnation(2), ..hello(2, 1) });
    assert_eq!(earlier.send(1, 1), SendOutcome::Unreachable);
    drop(earlier);
    assert_eq!(later.send(1, 2), SendOutcome::Queued, "the earlier self took it along");
    assert_eq!(one.send(2, 3), SendOutcome::Queued);
    assert_eq!(one.inbox.messages(), [ping(2)]);
    let mut old = join(&hub, hello(2, 1));
    assert_eq!(old.send(1, 4), SendOutcome::Unreachable, "an earlier life came back");
}

#[test]
fn members_reach_only_listed_peers_and_removed_ones_disconnect() {
    let hub = MemoryHub::default();
    let of = |from| Hello { standing: founding(), ..hello(from, 1) };
    let (mut one, mut two, mut three) = (join(&hub, of(1)), join(&hub, of(2)), join(&hub, of(3)));
    let named = |peers: &[u64]| peers.iter().map(|id| (node(*id), Vec::new())).collect();
    two.network.set_peers(&named(&[1]));
    assert_eq!(two.send(3, 1), SendOutcome::Queued, "the other wants it");
    three.network.set_peers(&named(&[1]));
    assert_eq!(two.send(3, 2), SendOutcome::Unreachable);
    assert_eq!(two.received().last(), Some(&Received::Disconnected(node(3))));
    assert_eq!(two.send(1, 3), SendOutcome::Queued);
    two.network.set_peers(&named(&[1, 3]));
    assert_eq!(three.send(2, 4), SendOutcome::Queued);
    let mut left = super::members(&[]);
    left.apply(LogIndex(50), &MemberChange::Remove(node(2)));
    one.peer_versions.knows(left);
    one.network.set_peers(&named(&[3]));
    assert_eq!(one.send(2, 5), SendOutcome::Unreachable);
    for guest in [&one, &two] {
        let is_rejection = |received: &Received| matches!(received, Received::Refused(_, why) if why.removed == Some(node(2)));
        assert!(guest.inbox.has(is_rejection), "{:?}", guest.received());
    }
    assert_eq!(one.send(3, 6), SendOutcome::Queued);
}

#[test]
fn hello_sent_as_a_message_is_checked() {
    let hub = MemoryHub::default();
    let mut one = join(&hub, hello(1, 2));
    let two = join(&hub, Hello { standing: founding(), ..hello(2, 1) });
    let right = PeerMessage::Hello(Hello { standing: founding(), ..hello(1, 2) });
    one.network.send(node(2), Lane::Control, right.clone());
    assert_eq!(two.inbox.messages(), [right]);
    let lost = PeerMessage::Hello(Hello { disk: DiskId(9), ..hello(1, 2) });
    one.network.send(node(2), Lane::Control, lost);
    assert_eq!(two.inbox.messages().len(), 1);
    one.inbox.wait_for_rejection(node(2), "now has disk");
    two.inbox.wait_for_rejection(node(1), "now has disk");
}

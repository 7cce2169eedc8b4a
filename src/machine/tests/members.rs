//! Tests of members and cluster versions in the state.

use super::*;
use crate::model::DiskId;

fn founded() -> World {
    let mut world = World::new();
    world.machine.found(Members::founded(&(1..=3).map(|n| (node(n), DiskId(n.into()))).collect()));
    world
}

fn add(id: u64) -> MemberChange {
    let (id, disk) = (node(id), DiskId(id.into()));
    MemberChange::Add { id, disk, name: format!("m{id}"), address: String::new(), replaces: None }
}

impl World {
    fn member(&mut self, change: Option<&MemberChange>) -> Applied {
        let index = self.machine.applied().next();
        self.machine.apply_member(index, self.term, change).unwrap()
    }

    /// Applies a request of a node.
    fn ask(&mut self, from: u64, seq: u64, command: Command) -> Outcome {
        let proposal = proposal(from, 1, (seq, &[]), vec![(seq, command)]);
        self.entry(vec![Item::Proposal(proposal)]).outcomes.remove(0).1
    }
}

#[test]
fn each_membership_change_updates_members_and_digest() {
    let mut world = founded();
    let mut digests = BTreeSet::new();
    let steps = [
        add(4),
        MemberChange::Replace { old: node(2), new: node(4) },
        MemberChange::LeaveJoint,
        add(5),
        MemberChange::Promote(node(5)),
        MemberChange::Remove(node(5)),
    ];
    let mut expected = Members::clone(world.machine.members());
    for step in steps {
        let done = world.member(Some(&step));
        expected.apply(world.machine.applied(), &step);
        assert_eq!(done.members.as_deref(), Some(&expected));
        assert_eq!(*world.reader.members(), expected);
        assert!(digests.insert(world.machine.configuration));
    }
    assert_eq!(world.machine.members().next(), 6);
}

#[test]
fn void_membership_change_only_advances_the_applied_index() {
    let mut world = founded();
    let before = Arc::clone(world.machine.members());
    for step in [None, Some(&add(9)), Some(&MemberChange::LeaveJoint)] {
        let index = world.machine.applied();
        assert_eq!(world.member(step), Applied::default());
        assert_eq!(world.machine.applied(), index.next());
        assert_eq!(world.machine.members(), &before);
    }
    let late = world.machine.apply_member(LogIndex(2), Term(1), None);
    assert!(matches!(late, Err(Fault::OutOfOrder { .. })));
}

#[test]
fn requests_of_a_removed_member_are_completed() {
    let mut world = founded();
    let first = world.ask(2, 1, put("k", "1")).unwrap();
    assert_eq!(world.ask(2, 1, put("k", "1")), Ok(first), "the same answer again");
    world.member(Some(&MemberChange::Remove(node(2))));
    assert_eq!(world.machine.dedup.nodes().collect::<Vec<_>>(), []);
    let revision = world.reader.revision();
    for seq in [1, 2] {
        assert_eq!(world.ask(2, seq, put("k", "2")), Err(Rejection::Closed), "{seq}");
        let id = RequestId { node: node(2), incarnation: Incarnation(1), seq };
        assert_eq!(world.machine.answer(id), Some(Err(Rejection::Closed)));
    }
    assert_eq!(world.reader.revision(), revision, "nothing was executed again");
    assert!(world.ask(3, 1, put("k", "3")).is_ok());
}

#[test]
fn replaced_member_is_served_until_the_joint_configuration_is_left() {
    let mut world = founded();
    world.member(Some(&add(4)));
    world.ask(2, 1, put("k", "1")).unwrap();
    world.member(Some(&MemberChange::Replace { old: node(2), new: node(4) }));
    assert!(world.ask(2, 2, put("k", "2")).is_ok());
    world.member(Some(&MemberChange::LeaveJoint));
    assert_eq!(world.ask(2, 3, put("k", "3")), Err(Rejection::Closed));
}

#[test]
fn node_announces_its_name_and_addresses() {
    let mut world = founded();
    let served_at = |address: &str, endpoint: &str| {
        Command::Announce(MemberAttributes {
            name: "b".to_owned(),
            address: address.to_owned(),
            endpoints: vec![endpoint.to_owned()],
        })
    };
    let announce = |address: &str| served_at(address, &format!("http://{address}"));
    let before = world.machine.digest();
    let noted = Ok(Reply::Noted { revision: Revision(1) });
    assert_eq!(world.ask(2, 1, announce("h:1")), noted);
    let member = world.reader.members().get(node(2)).cloned().unwrap();
    assert_eq!((&member.name[..], &member.address[..]), ("b", "h:1"));
    assert_eq!(member.endpoints, ["http://h:1"]);
    assert_ne!(world.machine.digest(), before);
    let window = (2, &[][..]);
    let again = proposal(2, 1, window, vec![(2, announce("h:1")), (3, announce("h:2"))]);
    let done = world.entry(vec![Item::Proposal(again)]);
    assert_eq!(done.members.as_ref(), Some(world.machine.members()));
    let again = proposal(2, 1, window, vec![(4, announce("h:2"))]);
    assert_eq!(world.entry(vec![Item::Proposal(again)]).members, None, "nothing has changed");
    let before = world.machine.digest();
    let elsewhere = proposal(2, 1, window, vec![(5, served_at("h:2", "http://elsewhere"))]);
    assert!(world.entry(vec![Item::Proposal(elsewhere)]).members.is_some());
    assert_ne!(world.machine.digest(), before, "where it serves clients is part of the state");
    assert_eq!(world.ask(9, 1, announce("h:9")), Err(Rejection::NotMember(node(9))));
}

#[test]
fn future_address_of_a_member_is_recorded() {
    let mut world = founded();
    let move_to =
        |number: u64, at: &str| Command::Move { member: node(number), address: at.to_owned() };
    let noted = Ok(Reply::Noted { revision: Revision(1) });
    let before = world.machine.digest();
    assert_eq!(world.ask(1, 1, move_to(2, "h:2")), noted);
    assert_ne!(world.machine.digest(), before);
    assert_eq!(world.reader.members().get(node(2)).unwrap().destination(), "h:2");
    let again = proposal(1, 1, (2, &[]), vec![(2, move_to(2, "h:3"))]);
    let done = world.entry(vec![Item::Proposal(again)]);
    assert_eq!(
        done.members.as_ref(),
        Some(world.machine.members()),
        "the others are to look there"
    );
    assert_eq!(world.ask(1, 3, move_to(9, "h:9")), Err(Rejection::NotMember(node(9))));
    assert_eq!(world.ask(1, 4, move_to(1, "h:3")), Err(Rejection::AddressTaken(node(2))));
}

#[test]
fn the_version_of_the_cluster_rises_and_never_falls() {
    let mut world = founded();
    assert_eq!(world.machine.version(), ClusterVersion::FIRST);
    for version in [0, 1] {
        world.run(Command::Raise(ClusterVersion(version))).unwrap();
        assert_eq!(world.machine.version(), ClusterVersion::NEWEST);
    }
    let newer = ClusterVersion::NEWEST.next();
    let raise = proposal(1, 1, (9, &[]), vec![(9, Command::Raise(newer))]);
    let index = world.machine.applied().next();
    let fault = world.machine.apply(index, Term(1), vec![Item::Proposal(raise)]).unwrap_err();
    assert!(fault.to_string().ends_with("upgrade this node"), "{fault}");
}

#[test]
fn a_state_of_a_newer_version_is_not_restored() {
    let world = founded();
    let mut head = world.machine.image().head().clone();
    head.version = ClusterVersion::NEWEST.next();
    let error = Machine::restore(MachineOptions::default(), head, []).unwrap_err();
    assert!(error.to_string().ends_with("upgrade this node"), "{error}");
}

//! Tests of alarms: who may raise an alarm, which commands it forbids, and that snapshots contain
//! it.

use super::*;
use crate::model::{
    AccessChange, Alarm, AlarmChange, AlarmKind, Alarms, AuthError, Caller, KeyRange, ROOT, Secret,
};

const FULL: Alarm = Alarm { member: None, kind: AlarmKind::NoSpace };

fn change(world: &mut World, change: AlarmChange) -> Vec<Alarm> {
    match world.run(Command::Alarm(change)) {
        Ok(Reply::Alarms { alarms, .. }) => alarms,
        other => panic!("{other:?}"),
    }
}

fn corrupt() -> Alarm {
    Alarm { member: Some(node(9)), kind: AlarmKind::Corrupt }
}

#[test]
fn digest_covers_active_alarms_only() {
    let (mut world, mut other) = (World::new(), World::new());
    let mut digests = BTreeSet::new();
    for alarm in [FULL, corrupt(), Alarm { member: Some(node(9)), ..FULL }] {
        assert_eq!(change(&mut world, AlarmChange::Raise(alarm)), [alarm]);
        assert_eq!(change(&mut other, AlarmChange::End(alarm)), []);
        assert!(digests.insert(world.machine.configuration), "{alarm:?}");
        assert_ne!(world.machine.digest(), other.machine.digest());
    }
    change(&mut world, AlarmChange::EndAll);
    assert_eq!(world.machine.configuration, other.machine.configuration);
}

#[test]
fn request_rejected_by_an_alarm_has_no_effect() {
    let mut world = World::new();
    world.put("a", "1");
    change(&mut world, AlarmChange::Raise(FULL));
    let done = world.apply(Command::Put(Put::new("a", "2")));
    let refused = Err(Rejection::Alarm(AlarmKind::NoSpace));
    assert_eq!(done.outcomes[0].1, refused);
    assert!(done.changes.is_empty() && done.leases.is_empty());
    assert_eq!(world.reader.revision(), Revision(2));
    // If the grant of a session is rejected, the sessions of earlier incarnations do not end.
    let grant = |own| Command::Grant {
        id: None,
        ttl: Duration::from_secs(5),
        session: Some(SessionInfo { label: String::new(), own }),
    };
    change(&mut world, AlarmChange::EndAll);
    world.run(grant(true)).unwrap();
    change(&mut world, AlarmChange::Raise(corrupt()));
    let requests = vec![(1, grant(true))];
    let done = world.entry(vec![Item::Proposal(proposal(1, 2, (1, &[]), requests))]);
    assert_eq!(done.outcomes[0].1, Err(Rejection::Alarm(AlarmKind::Corrupt)));
    assert_eq!(world.reader.leases().len(), 1);
}

#[test]
fn snapshot_keeps_alarms_and_a_new_cluster_drops_them() {
    let mut world = World::new();
    world.put("a", "1");
    change(&mut world, AlarmChange::Raise(FULL));
    change(&mut world, AlarmChange::Raise(corrupt()));
    let machine = restored(&world.machine);
    assert_eq!(machine.digest(), world.machine.digest());
    let reader = machine.reader();
    assert_eq!(reader.alarms(), world.reader.alarms());
    let mut later = World { reader, machine, seq: world.seq, term: Term(1) };
    let refused = Err(Rejection::Alarm(AlarmKind::Corrupt));
    assert_eq!(later.run(Command::Put(Put::new("a", "2"))), refused);

    // The state is installed into a machine whose reader has seen only an empty state.
    let mut behind = World::new();
    drop(behind.machine.install(restored(&world.machine)).unwrap());
    assert_eq!(behind.reader.alarms(), world.reader.alarms());
    assert_eq!(behind.machine.digest(), world.machine.digest());
    behind.seq = world.seq;
    assert_eq!(behind.run(Command::Put(Put::new("a", "2"))), refused);
    assert_eq!(change(&mut behind, AlarmChange::EndAll), [FULL, corrupt()]);
    behind.put("a", "2");

    let how = Reseed { members: Members::default(), revision_jump: REVISION_JUMP };
    let machine = restored(&world.machine).reseed(how).unwrap();
    assert_eq!(*machine.reader().alarms(), Alarms::default());
    assert_eq!(restored(&machine).digest(), machine.digest());
    let mut fresh = World { reader: machine.reader(), machine, seq: 0, term: Term(1) };
    fresh.put("a", "2");
}

#[test]
fn only_root_changes_alarms_and_permission_is_checked_first() {
    let mut world = World::new();
    let text = |text: &str| text.to_owned();
    for made in [
        AccessChange::AddUser { user: text(ROOT), password: None },
        AccessChange::GrantRole { user: text(ROOT), role: text(ROOT) },
        AccessChange::AddUser { user: text("ann"), password: None },
        AccessChange::Enable { secret: Secret::new("s") },
    ] {
        world.run(Command::Access(made)).unwrap();
    }
    let revision = world.reader.access().revision();
    let acting = |user: &str, command| {
        Command::As(Caller { user: Some(text(user)), revision }, Box::new(command))
    };
    let raise = || Command::Alarm(AlarmChange::Raise(corrupt()));
    let denied = Err(Rejection::Access(AuthError::Denied));
    assert_eq!(world.run(acting("ann", raise())), denied);
    assert!(world.reader.alarms().is_empty());
    world.run(acting(ROOT, raise())).unwrap();
    assert_eq!(world.run(acting("ann", Command::Alarm(AlarmChange::EndAll))), denied);
    let delete = || Command::Delete(Delete::new(KeyRange::all()));
    assert_eq!(world.run(acting("ann", delete())), denied);
    // The alarm applies to root too, as for clients of etcd, while the embedding program may still
    // delete its own keys.
    let refused = Err(Rejection::Alarm(AlarmKind::Corrupt));
    assert_eq!(world.run(acting(ROOT, delete())), refused);
    assert_eq!(world.run(acting(ROOT, Command::Compact(Revision(1)))), refused);
    assert!(world.run(delete()).is_ok());
    world.run(acting(ROOT, Command::Alarm(AlarmChange::EndAll))).unwrap();
    assert!(world.run(acting(ROOT, delete())).is_ok());
}

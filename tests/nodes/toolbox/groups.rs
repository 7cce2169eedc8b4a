//! Tests of groups: joining, leaving and watching.

use std::time::Duration;

use bowline::{
    Blocking, Effect, Error, SessionEndReason,
    coordination::{BarrierError, GroupError, GroupEvent, GroupWatch},
};

use super::{begin, deadline, give_up, quick, wait_for_keys};

/// Returns the kind of the next event, and the metadata of the member.
fn next(watch: &mut GroupWatch) -> (&'static str, String) {
    let (word, member) = match watch.next().block().unwrap().unwrap() {
        GroupEvent::Joined(member) => ("joined", member),
        GroupEvent::Changed(member) => ("changed", member),
        GroupEvent::Left(member) => ("left", member),
        other => panic!("unknown event: {other:?}"),
    };
    (word, String::from_utf8(member.meta.to_vec()).unwrap())
}

#[test]
fn group_watch_reports_joins_changes_leaves_and_crashes() {
    let mut cluster = quick(3);
    let group = |member| cluster.node(member).session().block().unwrap().group("workers");
    let a = group(0).join("a").block().unwrap();
    let b = group(1).join("b").block().unwrap();
    let mut watch = group(2).watch();
    assert_eq!(next(&mut watch), ("joined", "a".into()));
    assert_eq!(next(&mut watch), ("joined", "b".into()));
    let c = group(2).join("c").block().unwrap();
    assert_eq!(next(&mut watch), ("joined", "c".into()));
    b.update("b2").block().unwrap();
    assert_eq!(next(&mut watch), ("changed", "b2".into()));
    let members = group(0).members().block().unwrap();
    let metas: Vec<_> = members.iter().map(|member| &member.meta[..]).collect();
    assert_eq!(metas, [&b"a"[..], b"b2", b"c"]);
    assert_eq!((members[1].since, members[1].label.as_deref()), (b.since(), Some("m1")));
    assert_eq!(c.leave().block(), Ok(true));
    assert_eq!(next(&mut watch), ("left", "c".into()));
    drop(b);
    assert_eq!(next(&mut watch), ("left", "b2".into()));
    cluster.kill(0).block();
    assert_eq!(next(&mut watch), ("left", "a".into()), "by the end of its session");
    assert_eq!(watch.members().count(), 0);
    drop(a);
    cluster.shutdown(2).block();
    assert!(matches!(watch.next().block(), Some(Err(Error::Stopped { .. }))));
    assert!(watch.next().block().is_none());
}

#[test]
fn session_may_join_a_group_twice() {
    let cluster = quick(3);
    let session = cluster.node(0).session().block().unwrap();
    let group = session.group("g");
    let first = group.join("1").block().unwrap();
    for _ in 0..10 {
        give_up(group.join("dropped"));
    }
    let second = group.join("2").block().unwrap();
    wait_for_keys(cluster.node(0), "g/", 2);
    assert_ne!(first.key(), second.key());
    // Another client deletes the key of the member.
    cluster.node(1).client().delete(first.key().clone()).block().unwrap();
    assert_eq!(first.update("late").block(), Err(GroupError::NotAMember));
    assert_eq!(first.leave().block(), Ok(false));
    session.close().block().unwrap();
    assert_eq!(group.members().block().unwrap(), []);
    assert!(matches!(group.join("late").block(), Err(Error::SessionEnded { .. })));
}

#[test]
fn group_watch_behind_a_compaction_reports_the_difference() {
    let cluster = quick(1);
    let session = cluster.node(0).session().block().unwrap();
    let (group, kv) = (session.group("g"), cluster.node(0).client());
    let stays = group.join("stays").block().unwrap();
    let leaves = group.join("leaves").block().unwrap();
    let mut watch = group.watch();
    assert_eq!(next(&mut watch), ("joined", "stays".into()));
    assert_eq!(next(&mut watch), ("joined", "leaves".into()));
    leaves.leave().block().unwrap();
    let comes = group.join("comes").block().unwrap();
    // Write more events than a watch buffers.
    for i in 0..1000 {
        stays.update(i.to_string()).block().unwrap();
    }
    kv.compact(kv.revision()).block().unwrap();
    let mut told = Vec::new();
    while told.last() != Some(&("changed", "999".to_owned())) {
        told.push(next(&mut watch));
    }
    assert!(
        told.contains(&("left", "leaves".into())) && told.contains(&("joined", "comes".into()))
    );
    assert!(told.len() < 1000, "it has fallen behind: {}", told.len());
    drop(comes);
}

#[test]
fn undone_join_reports_an_unknown_effect() {
    let cluster = quick(3);
    let node = cluster.node(0);
    let session = node.open_session().block().unwrap();
    let (group, gate) = (session.group("g"), node.client().barrier("gate"));
    cluster.partition(&[0]);
    let late = group.join("late").deadline(Duration::from_millis(100)).block();
    assert_eq!(late.unwrap_err(), deadline::<()>(Effect::Unknown).unwrap_err());
    let late = gate.hold(&session).deadline(Duration::from_millis(100)).block().unwrap_err();
    assert_eq!(late, BarrierError::Store(deadline::<()>(Effect::Unknown).unwrap_err()));
    let (joins, holds) = (begin(group.join("late")), begin(gate.hold(&session)));
    drop(begin(session.close()));
    let ended = Error::SessionEnded { end: SessionEndReason::Closed, effect: Effect::Unknown };
    assert_eq!(joins.block().unwrap_err(), ended);
    assert_eq!(holds.block().unwrap_err(), BarrierError::Store(ended));
    cluster.heal();
    let ended = Error::SessionEnded { end: SessionEndReason::Closed, effect: Effect::NotApplied };
    assert_eq!(group.join("later").block().unwrap_err(), ended, "it was not asked for");
    wait_for_keys(node, "", 0);
}

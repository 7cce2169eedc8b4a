//! Tests of how leases end, and of the keys that are deleted with them.

use super::*;

#[test]
fn lease_end_deletes_its_keys_in_order_in_one_revision() {
    let mut world = World::new();
    let (lease, other) = (world.grant(Some(7)), world.grant(None));
    for key in ["c", "a", "b", "moved", "freed"] {
        world.put_with(key, lease);
    }
    world.put_with("moved", other);
    world.put("freed", "");
    let applied = world.apply(Command::Revoke(lease));
    let reply = RevokeReply { revision: Revision(9), deleted: 3 };
    assert_eq!(applied.outcomes[0].1, Ok(Reply::Revoke(reply)));
    assert_eq!(applied.leases, [LeaseChange::Ended { id: lease }]);
    let [change] = &applied.changes[..] else { panic!("one revision") };
    let keys: Vec<_> = change.events().iter().map(|event| text(&event.kv.key)).collect();
    assert_eq!((change.revision(), keys), (Revision(9), ["a", "b", "c"].map(str::to_owned).into()));
    for event in change.events().iter() {
        assert_eq!((event.kind, event.kv.lease), (EventKind::Delete, None));
        assert_eq!(event.prev.as_ref().unwrap().lease, Some(lease));
    }
    assert_eq!(world.keys(KeyRange::all()), ["freed", "moved"]);
    assert_eq!(world.run(Command::Revoke(lease)), Err(Rejection::LeaseNotFound(lease)));
    let idle = world.grant(None);
    let applied = world.apply(Command::Revoke(idle));
    assert!(applied.changes.is_empty());
    assert_eq!(applied.outcomes[0].1.as_ref().unwrap().revision(), Revision(9));
}

#[test]
fn expiry_counts_only_in_an_entry_of_its_term() {
    let mut world = World::new();
    let (first, second) = (world.grant(None), world.grant(None));
    world.put_with("a", first);
    world.put_with("b", second);
    let gone = LeaseId::new(1000).unwrap();
    let expire = |term| Item::Expire { term, leases: vec![second, gone, first, second] };
    let digest = world.machine.digest();
    for term in [Term(0), Term(2)] {
        assert_eq!(world.entry(vec![expire(term)]), Applied::default());
    }
    assert_ne!(world.machine.digest(), digest, "applied all the same");
    let applied = world.entry(vec![expire(Term(1))]);
    let ended = [second, first].map(|id| LeaseChange::Ended { id });
    assert_eq!(applied.leases, ended);
    let revisions: Vec<_> = applied.changes.iter().map(|change| change.revision().get()).collect();
    assert_eq!(revisions, [4, 5], "one for each lease");
    assert_eq!(world.keys(KeyRange::all()), Vec::<String>::new());
}

#[test]
fn own_session_of_a_new_incarnation_ends_older_own_sessions() {
    let mut world = World::new();
    let grant = |own| Command::Grant {
        id: None,
        ttl: Duration::from_secs(5),
        session: Some(SessionInfo { label: "n1".into(), own }),
    };
    let mut ask = |life, seq, command| {
        let proposal = proposal(5, life, (1, &[]), vec![(seq, command)]);
        world.entry(vec![Item::Proposal(proposal)])
    };
    let granted = |applied: &Applied| match &applied.outcomes[0].1 {
        Ok(Reply::Grant(reply)) => reply.id,
        other => panic!("{other:?}"),
    };
    let old = granted(&ask(1, 1, grant(true)));
    let more = granted(&ask(1, 2, grant(false)));
    let second = granted(&ask(1, 3, grant(true)));
    for (seq, key, lease) in [(4, "y", old), (5, "x", old), (6, "z", second), (7, "w", more)] {
        let put = Put { lease: PutLease::Attach(lease), ..Put::new(key, "") };
        assert!(ask(1, seq, Command::Put(put)).outcomes[0].1.is_ok());
    }
    let applied = ask(2, 1, grant(true));
    let own = granted(&applied);
    let [a, b, c] = &applied.leases[..] else { panic!("{applied:?}") };
    assert_eq!([a, b], [old, second].map(|id| LeaseChange::Ended { id }).each_ref());
    assert!(
        matches!(c, LeaseChange::Granted { id, session: Some((_, Incarnation(2), _)), .. } if *id == own)
    );
    assert_eq!(applied.changes.len(), 2);
    assert_eq!(applied.outcomes[0].1.as_ref().unwrap().revision(), Revision(7));
    assert_eq!(world.keys(KeyRange::all()), ["w"], "its other sessions live on");
}

#[test]
fn lease_info_is_available_without_its_keys() {
    let mut world = World::new();
    let lease = world.grant(None);
    for key in ["a", "b/1", "b/2"] {
        world.put_with(key, lease);
    }
    let head = world.reader.lease_head(lease).unwrap();
    assert_eq!(world.reader.are_lease_keys(lease, |key| key.len() < 4), Some(true));
    assert_eq!(world.reader.are_lease_keys(lease, |key| key.starts_with(b"b")), Some(false));
    assert_eq!(world.reader.lease_keys_copied(), 0);
    let LeaseInfo { ttl, keys, session } = world.reader.lease(lease).unwrap();
    assert_eq!((head.ttl, head.session, keys.len()), (ttl, session, 3));
    assert_eq!(world.reader.lease_keys_copied(), 3);
    world.run(Command::Revoke(lease)).unwrap();
    assert_eq!(world.reader.lease_head(lease), None);
    assert_eq!(world.reader.are_lease_keys(lease, |_| true), None);
}

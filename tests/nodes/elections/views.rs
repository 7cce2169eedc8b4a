//! Tests of the streams of election views: the leader that the local replica knows, then every change.

use futures_util::{FutureExt, StreamExt};

use bowline::{Blocking, election::Observe};

use crate::stage::{Begun, lasting, roles, session, until_places};

/// Returns the value of the leader after the next change, or `None` if there is none.
fn next(changes: &mut Observe) -> Option<String> {
    let event = StreamExt::next(changes).block().expect("the node runs").unwrap();
    event.leader().map(|leader| leader.text().unwrap().to_owned())
}

#[test]
fn view_streams_the_leader_and_every_change() {
    let cluster = lasting(3);
    let mut changes = cluster.node(2).election_view("jobs").observe();
    assert_eq!(next(&mut changes), None, "there are no candidates");
    let first = session(&cluster, 0).election("jobs").campaign("a").block().unwrap();
    let second = Begun::new(session(&cluster, 1).election("jobs").campaign("b"));
    until_places(cluster.node(2), "jobs", 2);
    // A later stream begins with the current leader.
    let mut late = cluster.node(2).election_view("jobs").observe();
    assert_eq!([next(&mut changes), next(&mut late)], ["a", "a"].map(|a| Some(a.to_owned())));
    first.proclaim("a2").block().unwrap();
    first.resign().block().unwrap();
    second.finish().unwrap().resign().block().unwrap();
    for changes in [&mut changes, &mut late] {
        let seen = [(); 3].map(|()| next(changes));
        assert_eq!(seen, [Some("a2".to_owned()), Some("b".to_owned()), None]);
    }
    assert!(cluster.client(2).leases().len() == 2, "the view opens no session");
}

#[test]
fn view_stream_begins_without_a_quorum_and_catches_up() {
    let cluster = lasting(3);
    let (leader, cut_off, other) = roles(&cluster);
    let first = session(&cluster, leader).election("jobs").campaign("a").block().unwrap();
    until_places(cluster.node(cut_off), "jobs", 1);
    cluster.partition(&[cut_off]);
    let mut changes = cluster.node(cut_off).election_view("jobs").observe();
    assert_eq!(next(&mut changes).as_deref(), Some("a"));
    first.resign().block().unwrap();
    let last = session(&cluster, other).election("jobs").campaign("b").block().unwrap();
    cluster.heal();
    assert_eq!(next(&mut changes), None);
    assert_eq!(next(&mut changes).as_deref(), Some("b"));
    assert!(last.is_leader());
}

#[test]
fn view_stream_ends_in_the_final_state_after_compactions() {
    const TERMS: usize = 120;
    let cluster = lasting(3);
    let (leader, watched, _) = roles(&cluster);
    let streams: Vec<_> = (0..4)
        .map(|_| {
            let mut changes = cluster.node(watched).election_view("jobs").observe();
            std::thread::spawn(move || {
                while next(&mut changes).as_deref() != Some("final") {}
                changes
            })
        })
        .collect();
    // This stream reads nothing before the end.
    let mut slow = cluster.node(watched).election_view("jobs").observe();
    assert_eq!(next(&mut slow), None);
    let (kv, election) = (cluster.client(leader), session(&cluster, leader).election("jobs"));
    for term in 0..TERMS {
        let leadership = election.campaign(term.to_string()).block().unwrap();
        // More events than a watch buffers, and history that is compacted before it was read.
        for n in 0..4 {
            leadership.proclaim(n.to_string()).block().unwrap();
        }
        leadership.resign().block().unwrap();
        if term % 10 == 9 {
            kv.compact(kv.revision()).block().unwrap();
        }
    }
    let last = election.campaign("final").block().unwrap();
    let mut streams: Vec<Observe> = streams.into_iter().map(|one| one.join().unwrap()).collect();
    while next(&mut slow).as_deref() != Some("final") {}
    streams.push(slow);
    assert!(last.is_leader());
    for mut changes in streams {
        assert!(changes.next().now_or_never().is_none(), "there is no item after the last change");
    }
}

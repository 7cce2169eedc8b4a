//! Tests of the log storage, the entry cache, and restarts.

use super::*;
use crate::mutant::Mutant;

#[test]
fn log_shorter_than_the_commit_index_stops_the_member() {
    let start = |commit, applied| {
        let disk = disk(2, 1, vec![entry(2, 2), entry(3, 2)]);
        Consensus::new(config(1, &[1, 2, 3]), disk, hard_state(2, commit), LogIndex(applied)).err()
    };
    let lost = |promised| {
        Some(ConsensusFault::LogLost { promised: LogIndex(promised), last: LogIndex(3) })
    };
    assert_eq!(start(3, 1), None);
    assert_eq!(start(4, 1), lost(4));
    assert_eq!(start(2, 5), lost(5));
    assert_eq!(start(2, 3), None, "applied proves committed: the commit index came to disk later");
}

#[test]
fn entries_newer_than_the_recorded_term_stop_the_member() {
    let disk = disk(5, 1, vec![entry(2, 5)]);
    let fault = Consensus::new(config(1, &[1]), disk, hard_state(4, 1), LogIndex(1)).err();
    let (last, found, term) = (LogIndex(2), Term(5), Term(4));
    assert_eq!(fault, Some(ConsensusFault::TermLost { last, found, term }));
}

#[test]
fn invalid_consensus_configuration_is_rejected() {
    let start = |config| Consensus::new(config, Disk::new(), hard_state(1, 1), LogIndex(1)).err();
    let is_refused = |config| matches!(start(config), Some(ConsensusFault::Config(_)));
    assert_eq!(start(config(1, &[1, 2, 3])), None);
    assert_eq!(start(config(4, &[1, 2, 3])), None, "it has joined and not heard of it yet");
    assert!(is_refused(config(1, &[])), "nobody votes");
    assert!(is_refused(ConsensusConfig { heartbeat_ticks: 0, ..config(1, &[1]) }));
    assert!(is_refused(ConsensusConfig { election_ticks: HEARTBEAT, ..config(1, &[1]) }));
    assert!(is_refused(ConsensusConfig { inflight_max: 0, ..config(1, &[1]) }));
    assert!(is_refused(ConsensusConfig { uncommitted_bytes_max: 1, ..config(1, &[1]) }));
}

#[test]
fn restart_delivers_the_log_in_chunks_and_reads_each_once() {
    let disk = disk(2, 101, (2..=101).map(|index| entry(index, 2)).collect());
    let config = ConsensusConfig { commit_bytes_max: 1000, ..config(1, &[1, 2, 3]) };
    let mut consensus =
        Consensus::new(config, disk.clone(), hard_state(2, 101), LogIndex(1)).unwrap();
    let mut next = 2;
    let mut pieces = 0;
    while let Some(turn) = consensus.turn().unwrap() {
        for entry in &turn.commit {
            assert_eq!(entry.index.get(), next);
            next += 1;
        }
        pieces += 1;
        if let Some(last) = turn.commit.last() {
            consensus.applied(last.index);
        }
    }
    assert_eq!(next, 102);
    assert!(pieces > 3, "{pieces} pieces");
    assert!(disk.look().reads <= pieces + 1, "{} reads", disk.look().reads);
}

#[test]
fn unreadable_disk_stops_the_member() {
    let is_unreadable = |fault| matches!(fault, ConsensusFault::Unreadable { .. });
    // The read fails at a restart.
    let broken = disk(2, 6, (2..=6).map(|index| entry(index, 2)).collect());
    broken.look().broken = true;
    let mut consensus =
        Consensus::new(config(1, &[1]), broken, hard_state(2, 6), LogIndex(1)).unwrap();
    assert!(is_unreadable(consensus.turn().unwrap_err()));
    assert!(is_unreadable(consensus.turn().unwrap_err()), "and it stays so");

    // The read fails while a leader serves a follower that is far behind.
    let mut world = World::dark(3, 0, 1);
    world.tune = |config| config.cache_bytes_max = 0;
    world.start(node(1));
    world.start(node(2));
    world.elect(1);
    for _ in 0..5 {
        world.propose(node(1), b"A");
        world.settle();
    }
    world.disk(1).look().broken = true;
    world.start(node(3));
    for _ in 0..HEARTBEAT {
        world.at(1).tick();
    }
    let mut fault = world.turn(node(1)).err();
    while fault.is_none() && !world.flying.is_empty() {
        let flying = world.flying.remove(0);
        let to = flying.to;
        if let Some(consensus) = world.consensus(to) {
            consensus.step(flying.from, flying.bytes).unwrap();
            fault = world.turn(to).err();
            assert!(to == node(1) || fault.is_none());
        }
        (2..=3).for_each(|id| world.sync_all(id));
    }
    assert!(fault.is_some_and(is_unreadable));
}

#[test]
fn short_or_misordered_log_reads_stop_the_member() {
    let short = disk(2, 6, (2..=6).map(|index| entry(index, 2)).collect());
    short.look().read_max = 0;
    let mut consensus =
        Consensus::new(config(1, &[1]), short, hard_state(2, 6), LogIndex(1)).unwrap();
    let fault = ConsensusFault::OutOfOrder { asked: LogIndex(2), found: None };
    assert_eq!(consensus.turn().unwrap_err(), fault);

    let other = disk(2, 6, (2..=6).map(|index| entry(index, 2)).collect());
    other.look().entries[2].index = LogIndex(9);
    let mut consensus =
        Consensus::new(config(1, &[1]), other, hard_state(2, 6), LogIndex(1)).unwrap();
    let fault = ConsensusFault::OutOfOrder { asked: LogIndex(4), found: Some(LogIndex(9)) };
    assert_eq!(consensus.turn().unwrap_err(), fault);
}

#[test]
fn cache_is_bounded_but_keeps_unsynced_and_unapplied_entries() {
    let mut world = World::dark(3, 0, 1);
    world.tune = |config| config.cache_bytes_max = 5_000;
    (1..=3).for_each(|id| world.start(node(id)));
    world.elect(1);
    for _ in 0..50 {
        world.propose(node(1), &[7; 1000]);
        world.settle();
    }
    for id in 1..=3 {
        assert!(world.at(id).cached_bytes() <= 5_000);
    }
    for _ in 0..20 {
        world.propose(node(1), &[7; 1000]);
    }
    assert!(world.at(1).cached_bytes() > 20_000, "not durable: they cannot be read elsewhere");
    world.settle();
    assert!(world.at(1).cached_bytes() <= 5_000);
}

#[test]
fn lagging_follower_is_served_from_disk() {
    let mut world = World::dark(3, 0, 1);
    world.tune = |config| {
        config.cache_bytes_max = 0;
        config.append_bytes_max = 5_000;
    };
    world.start(node(1));
    world.start(node(2));
    world.elect(1);
    for _ in 0..200 {
        world.propose(node(1), &[7; 500]);
        world.settle();
    }
    world.start(node(3));
    for _ in 0..4 * HEARTBEAT {
        world.tick(node(1));
        world.settle();
    }
    assert_eq!(world.members[&node(3)].applied, LogIndex(202));
    assert!(world.disk(1).look().reads > 10);
}

#[test]
fn slow_follower_disk_bounds_the_accepted_entries() {
    let mut world = World::dark(3, 0, 1);
    world.tune = |config| config.unpersisted_bytes_max = 10_000;
    (1..=3).for_each(|id| world.start(node(id)));
    world.elect(1);
    for _ in 0..100 {
        world.propose(node(1), &[7; 1000]);
        for flying in std::mem::take(&mut world.flying) {
            world.deliver(flying);
        }
        world.sync_all(1);
        world.sync_all(3);
    }
    let queued: usize = world.disk(2).look().queued.iter().flat_map(|group| &group.entries).count();
    assert!((5..12).contains(&queued), "{queued} entries wait");
    for _ in 0..8 * HEARTBEAT {
        world.tick(node(1));
        world.settle();
    }
    assert_eq!(world.members[&node(2)].applied, LogIndex(102), "and it catches up");
}

#[test]
fn member_that_never_syncs_queues_bounded_messages() {
    let mut world = World::new(3, 0, 1);
    let mut request = message(MessageType::MsgRequestVote, 2, 1, 2);
    (request.index, request.log_term) = (1, 1);
    for _ in 0..10_000 {
        give(&mut world, &request);
    }
    world.sync_all(1);
    assert_eq!(world.flying.len(), 4096);
}

#[test]
fn older_durability_proof_after_a_newer_one_is_ignored() {
    let mut world = World::new(3, 0, 1);
    let mut request = message(MessageType::MsgRequestVote, 2, 1, 2);
    (request.index, request.log_term) = (1, 1);
    give(&mut world, &request);
    request.term = 3;
    give(&mut world, &request);
    let disk = world.disk(1);
    let numbers: Vec<_> = std::iter::from_fn(|| disk.look().sync()).collect();
    let [first, second] = numbers[..] else { panic!("{numbers:?}") };
    assert_eq!(world.at(1).persisted(wal::Durable::for_test(second)).len(), 2);
    assert!(world.at(1).persisted(wal::Durable::for_test(first)).is_empty());
    give(&mut world, &request);
    assert_eq!(world.flying.len(), 1, "the vote is still durable, and repeated at once");
}

/// Entries are written, replaced by entries of another leader, and received again. The disk
/// therefore contains these entries, loses them, and contains them again. The entries must not
/// count as durable in between.
#[test]
fn rewritten_entry_is_durable_only_after_the_last_write() {
    let config = config(2, &[1, 2, 3]);
    let mut follower = Consensus::new(config, Disk::new(), hard_state(1, 1), LogIndex(1)).unwrap();
    let mut groups = Vec::new();
    for (from, term, entries, commit) in [
        (1, 2, vec![(2, 2), (3, 2), (4, 2)], 1),
        (3, 3, vec![(2, 3)], 1),
        (1, 4, vec![(2, 2), (3, 2), (4, 2)], 4),
    ] {
        let mut append = message(MessageType::MsgAppend, from, 2, term);
        (append.index, append.log_term, append.commit) = (1, 1, commit);
        let entry = |(index, term)| raft::eraftpb::Entry { index, term, ..Default::default() };
        append.set_entries(entries.into_iter().map(entry).collect::<Vec<_>>().into());
        follower.step(node(from), wire::encode(&append)).unwrap();
        while let Some(turn) = follower.turn().unwrap() {
            groups.extend(turn.persist.map(|group| group.number));
            assert!(turn.commit.is_empty());
        }
    }
    let mut committed = 0;
    for (place, number) in groups.iter().enumerate() {
        follower.persisted(wal::Durable::for_test(*number));
        while let Some(turn) = follower.turn().unwrap() {
            committed += turn.commit.len();
        }
        assert_eq!(committed, if place == 2 { 3 } else { 0 }, "after group {number}");
    }
}

/// Few seeds of the simulator reach the situation in which this mutant has an effect.
#[test]
fn test_of_rewritten_entries_fails_under_its_mutant() {
    let _planted = Mutant::M46.plant();
    let test = rewritten_entry_is_durable_only_after_the_last_write;
    assert!(std::panic::catch_unwind(test).is_err());
}

#[test]
fn commit_index_from_a_vote_is_applied_in_chunks() {
    let disk = disk(2, 1, (2..=100).map(|index| entry(index, 2)).collect());
    let mut world = World::dark(3, 0, 1);
    *world.disk(1).look() = std::mem::take(&mut *disk.look());
    world.disk(1).look().read_max = 10;
    world.start(node(1));
    world.at(1).campaign();
    world.turn(node(1)).unwrap();
    assert_eq!(world.at(1).role(), RaftRole::PreCandidate);
    let mut rejection = message(MessageType::MsgRequestPreVoteResponse, 2, 1, 2);
    (rejection.reject, rejection.commit, rejection.commit_term) = (true, 100, 2);
    assert_eq!(world.at(1).step(node(2), wire::encode(&rejection)), Ok(Stepped::Done));
    assert_eq!(world.disk(1).look().reads, 1);
    assert_eq!(world.at(1).commit(), LogIndex(11));
}

//! What goes wrong with the raft crate if one does not know: each as a test.

use std::sync::Arc;

use raft::eraftpb::{Message, MessageType};

use super::disk::Disk;
use super::world::{ELECTION, Flying, HEARTBEAT, World, node};
use crate::consensus::config::ENTRY_BYTES_MAX;
use crate::consensus::fault::ConsensusFault;
use crate::consensus::gate::Standpoint;
use crate::consensus::round::RoundContext;
use crate::consensus::{Consensus, ConsensusConfig, Role, RoundId, wire};
use crate::env::OsEntropy;
use crate::model::{Incarnation, Lane, LogIndex, PeerMessage, ProposeRefusal, Term};
use crate::wal;

fn config(id: u64, voters: &[u64]) -> ConsensusConfig {
    let voters = voters.iter().copied().map(node).collect();
    ConsensusConfig::new(node(id), voters, HEARTBEAT, ELECTION, Arc::new(OsEntropy))
}

fn entry(index: u64, term: u64) -> wal::Entry {
    let (index, term) = (LogIndex(index), Term(term));
    wal::Entry { index, term, kind: wal::EntryKind::Data, data: "x".into() }
}

fn group(number: u64, term: u64, commit: u64, entries: Vec<wal::Entry>) -> wal::Group {
    let hard_state = wal::HardState { term: Term(term), vote: None, commit: LogIndex(commit) };
    wal::Group { number, hard_state: Some(hard_state), entries, founding: None }
}

/// A disk with a log.
fn disk(term: u64, commit: u64, entries: Vec<wal::Entry>) -> Disk {
    let disk = Disk::new();
    disk.look().queued.push_back(group(1, term, commit, entries));
    disk.look().sync();
    disk
}

fn kinds(flying: &[Flying]) -> Vec<MessageType> {
    flying.iter().map(Flying::kind).collect()
}

/// A message as `from` would write it.
fn message(kind: MessageType, from: u64, to: u64, term: u64) -> Message {
    let mut message = Message { from, to, term, ..Message::default() };
    message.set_msg_type(kind);
    message
}

fn give(world: &mut World, message: &Message) {
    let (from, to) = (node(message.from), node(message.to));
    world.deliver(Flying { from, to, bytes: wire::encode(message) });
}

/// Ticks long enough for anybody to lose patience.
fn tick_long(world: &mut World, id: u64) {
    for _ in 0..3 * ELECTION {
        world.tick(node(id));
    }
}

// ---- persist before send --------------------------------------------------------------------------

#[test]
fn the_only_voter_tells_its_learners_nothing_before_its_term_is_durable() {
    let mut world = World::new(1, 2, 1);
    world.at(1).campaign();
    world.turn(node(1)).unwrap();
    assert_eq!(world.at(1).role(), Role::Leader, "raft makes it leader at once");
    world.propose(node(1), b"A");
    assert!(world.flying.is_empty(), "nothing has left: {:?}", kinds(&world.flying));
    world.sync(node(1));
    assert!(kinds(&world.flying).contains(&MessageType::MsgAppend));
}

#[test]
fn a_leader_with_a_durable_term_sends_entries_while_its_own_disk_still_writes_them() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    assert_eq!(kinds(&world.flying), [MessageType::MsgAppend; 2]);
    assert_eq!(world.disk(1).look().queued.len(), 1);
}

#[test]
fn an_entry_is_committed_without_the_leaders_disk_but_applied_there_only_with_it() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let (_, index) = world.propose(node(1), b"A").unwrap();
    for flying in std::mem::take(&mut world.flying) {
        world.deliver(flying);
    }
    world.sync_all(2);
    world.sync_all(3);
    for flying in std::mem::take(&mut world.flying) {
        world.deliver(flying);
    }
    assert_eq!(world.at(1).commit(), index);
    assert!(world.members[&node(1)].applied < index);
    world.sync_all(1);
    assert_eq!(world.members[&node(1)].applied, index);
}

#[test]
fn a_follower_acknowledges_entries_when_they_are_durable_and_heartbeats_at_once() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    let appends = std::mem::take(&mut world.flying);
    for flying in appends.into_iter().filter(|flying| flying.to == node(2)) {
        world.deliver(flying);
    }
    assert!(world.flying.is_empty(), "its disk has not answered");
    for _ in 0..HEARTBEAT {
        world.tick(node(1));
    }
    let heartbeats = std::mem::take(&mut world.flying);
    for flying in heartbeats.into_iter().filter(|flying| flying.to == node(2)) {
        world.deliver(flying);
    }
    assert_eq!(kinds(&world.flying), [MessageType::MsgHeartbeatResponse]);
    world.sync_all(2);
    assert!(kinds(&world.flying).contains(&MessageType::MsgAppendResponse));
}

#[test]
fn votes_and_their_requests_leave_when_the_vote_is_durable() {
    let mut world = World::new(3, 0, 1);
    let mut request = message(MessageType::MsgRequestVote, 2, 1, 2);
    (request.index, request.log_term, request.commit, request.commit_term) = (1, 1, 1, 1);
    give(&mut world, &request);
    assert!(world.flying.is_empty());
    world.sync_all(1);
    assert_eq!(kinds(&world.flying), [MessageType::MsgRequestVoteResponse]);
    // A repeated request is answered at once: the vote is durable already.
    give(&mut world, &request);
    assert_eq!(kinds(&world.flying), [MessageType::MsgRequestVoteResponse; 2]);
}

#[test]
fn a_vote_that_was_not_durable_is_forgotten_and_not_broken() {
    let mut world = World::new(3, 0, 1);
    let mut request = message(MessageType::MsgRequestVote, 2, 1, 2);
    (request.index, request.log_term) = (1, 1);
    give(&mut world, &request);
    world.crash(node(1), 0);
    world.start(node(1));
    request.from = 3;
    give(&mut world, &request);
    world.sync_all(1);
    let votes: Vec<_> = world.flying.iter().map(|flying| flying.to).collect();
    assert_eq!(votes, [node(3)]);
}

#[test]
#[should_panic(expected = "group 9 of 0 is durable")]
fn a_proof_of_what_was_never_handed_over_is_no_proof() {
    World::new(1, 0, 1).at(1).persisted(wal::Durable::for_test(9));
}

// ---- campaigns ------------------------------------------------------------------------------------

#[test]
fn nobody_campaigns_while_its_entries_are_on_their_way_to_the_disk() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    for flying in std::mem::take(&mut world.flying) {
        world.deliver(flying);
    }
    tick_long(&mut world, 2);
    world.at(2).campaign();
    let term = world.at(2).term().get();
    give(&mut world, &message(MessageType::MsgTimeoutNow, 1, 2, term));
    assert_eq!(world.at(2).role(), Role::Follower);
    world.flying.clear();
    world.sync_all(2);
    world.tick(node(2));
    assert_eq!(world.at(2).role(), Role::PreCandidate, "its patience was over long ago");
}

#[test]
fn entries_that_raft_holds_and_no_turn_has_taken_keep_it_from_campaigning_too() {
    let mut world = World::new(1, 1, 1);
    let mut append = message(MessageType::MsgAppend, 1, 2, 2);
    (append.index, append.log_term) = (1, 1);
    append
        .set_entries(vec![raft::eraftpb::Entry { index: 2, term: 2, ..Default::default() }].into());
    world.at(2).step(node(1), wire::encode(&append)).unwrap();
    world.at(2).campaign();
    assert_eq!(world.at(2).role(), Role::Follower);
}

#[test]
fn a_leader_whose_disk_is_slow_keeps_its_heartbeats_going() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    world.flying.clear();
    for _ in 0..4 * ELECTION {
        world.tick(node(1));
        let flying = std::mem::take(&mut world.flying);
        for flying in flying.into_iter().filter(|flying| flying.kind() != MessageType::MsgAppend) {
            world.deliver(flying);
        }
    }
    assert_eq!(world.at(1).role(), Role::Leader);
    assert!(world.at(1).owes_log());
}

#[test]
fn a_member_that_has_not_applied_what_its_disk_holds_does_not_campaign() {
    let disk = disk(2, 6, (2..=6).map(|index| entry(index, 2)).collect());
    let mut consensus =
        Consensus::new(config(1, &[1, 2, 3]), disk, hard_state(2, 6), LogIndex(1)).unwrap();
    for _ in 0..3 * ELECTION {
        consensus.tick();
    }
    consensus.campaign();
    assert_eq!(consensus.role(), Role::Follower);
    while let Some(turn) = consensus.turn().unwrap() {
        if let Some(last) = turn.commit.last() {
            consensus.applied(last.index);
        }
    }
    consensus.tick();
    assert_eq!(consensus.role(), Role::PreCandidate);
}

#[test]
fn a_pre_vote_refused_in_the_first_term_of_all_is_answered() {
    // At term 0, where raft would start by itself, this panics.
    let mut world = World::new(3, 0, 1);
    let mut request = message(MessageType::MsgRequestPreVote, 2, 1, 2);
    (request.index, request.log_term) = (1, 1);
    *world.disk(1).look() = Default::default();
    world.disk(1).look().read_max = usize::MAX;
    world.disk(1).look().queued.push_back(group(1, 1, 1, vec![entry(2, 1)]));
    world.disk(1).look().sync();
    world.start(node(1));
    give(&mut world, &request);
    let answer = world.flying[0].message();
    assert!(answer.reject);
    assert_eq!((answer.get_msg_type(), answer.term), (MessageType::MsgRequestPreVoteResponse, 1));
}

#[test]
fn a_leader_without_a_quorum_steps_down() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for _ in 0..2 * ELECTION {
        world.tick(node(1));
        world.flying.clear();
    }
    assert_eq!(world.at(1).role(), Role::Follower);
}

#[test]
fn a_member_that_reaches_nobody_does_not_raise_its_term() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let term = world.at(2).term();
    for _ in 0..20 * ELECTION {
        world.tick(node(2));
        world.flying.clear();
    }
    assert_eq!(world.at(2).term(), term);
}

#[test]
fn a_member_that_votes_alone_waits_for_nobody() {
    let mut world = World::new(1, 1, 1);
    world.tick(node(2));
    assert_eq!(world.at(2).role(), Role::Follower, "a learner does not lead");
    world.tick(node(1));
    assert_eq!(world.at(1).role(), Role::Leader);
}

#[test]
fn two_members_that_always_collide_draw_new_timeouts_until_one_of_them_leads() {
    for seed in 0..20 {
        let mut world = World::new(2, 0, seed);
        for _ in 0..40 * ELECTION {
            world.tick(node(1));
            world.tick(node(2));
            world.settle();
        }
        assert!(world.leader().is_some(), "seed {seed}");
    }
}

// ---- handing over ---------------------------------------------------------------------------------

#[test]
fn leadership_is_handed_to_the_longest_log_that_was_heard_of() {
    let mut world = World::new(3, 0, 1);
    assert_eq!(world.at(1).best_transferee(), None, "not a leader");
    world.elect(1);
    world.propose(node(1), b"A");
    world.settle_without(|flying| flying.to == node(2));
    assert_eq!(world.at(1).best_transferee(), Some(node(3)));
    world.at(1).unreachable(node(3));
    assert_eq!(world.at(1).best_transferee(), Some(node(2)), "unreachable");
    world.propose(node(1), b"B");
    world.settle();
    world.at(1).transfer_to(node(3));
    assert!(world.at(1).is_transferring());
    assert_eq!(world.at(1).propose(b"C".to_vec()), Err(ProposeRefusal::Busy));
    world.turn(node(1)).unwrap();
    world.settle();
    assert_eq!(world.leader(), Some(node(3)));
}

#[test]
fn a_transfer_that_comes_to_nothing_ends_with_an_election_timeout() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.at(1).transfer_to(node(2));
    world.turn(node(1)).unwrap();
    for _ in 0..=ELECTION {
        world.tick(node(1));
        world.settle_without(|flying| flying.kind() == MessageType::MsgTimeoutNow);
    }
    assert!(!world.at(1).is_transferring());
    assert!(world.propose(node(1), b"A").is_some());
}

#[test]
fn nobody_is_handed_leadership_who_cannot_have_it() {
    let mut world = World::new(1, 1, 1);
    world.elect(1);
    world.at(1).transfer_to(node(2));
    assert!(!world.at(1).is_transferring(), "a learner");
    assert_eq!(world.at(1).best_transferee(), None);
}

// ---- proposals ------------------------------------------------------------------------------------

#[test]
fn a_follower_does_not_forward_a_proposal_but_says_who_leads() {
    let mut world = World::new(3, 0, 1);
    assert_eq!(world.at(2).propose(b"A".to_vec()), Err(ProposeRefusal::NotLeader(None)));
    world.elect(1);
    let refusal = world.at(2).propose(b"A".to_vec());
    assert_eq!(refusal, Err(ProposeRefusal::NotLeader(Some(node(1)))));
    world.turn(node(2)).unwrap();
    assert!(world.flying.is_empty());
}

#[test]
fn a_proposal_is_found_at_the_term_and_index_that_it_was_given() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let (term, index) = world.propose(node(1), b"A").unwrap();
    world.settle();
    let entry = &world.history[&index];
    assert_eq!((entry.term, &entry.data[..]), (term, &b"A"[..]));
}

#[test]
fn without_a_quorum_proposals_are_refused_as_busy_before_memory_is_full() {
    let mut world = World::dark(3, 0, 1);
    world.tune = |config| {
        config.uncommitted_bytes_max = 10_000;
        config.append_bytes_max = 1_000;
    };
    (1..=3).for_each(|id| world.start(node(id)));
    world.elect(1);
    let mut taken = 0;
    while world.at(1).propose(vec![7; 1000]).is_ok() {
        taken += 1;
        world.turn(node(1)).unwrap();
        world.sync_all(1);
        world.flying.clear();
    }
    assert_eq!(taken, 10);
    assert_eq!(world.at(1).propose(vec![7; 1000]), Err(ProposeRefusal::Busy));
    // With the quorum back, there is room again.
    for _ in 0..2 * HEARTBEAT {
        world.tick(node(1));
        world.settle();
    }
    assert!(world.propose(node(1), &[7; 1000]).is_some());
}

#[test]
fn entries_proposed_in_one_turn_travel_in_one_message_to_each_follower() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for _ in 0..10 {
        world.at(1).propose(b"A".to_vec()).unwrap();
    }
    let turn = world.at(1).turn().unwrap().unwrap();
    assert_eq!(turn.send.len(), 2);
    assert!(turn.send.iter().all(|outbound| outbound.lane == Lane::Bulk));
    assert_eq!(turn.persist.unwrap().entries.len(), 10);
}

#[test]
fn many_large_proposals_of_one_turn_are_cut_into_messages_that_a_gate_lets_in() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for _ in 0..4 {
        world.at(1).propose(vec![7; ENTRY_BYTES_MAX]).unwrap();
    }
    world.turn(node(1)).unwrap();
    assert_eq!(world.flying.len(), 8);
    world.settle();
    assert!(world.members.values().all(|member| member.applied == LogIndex(6)));
}

#[test]
fn entries_added_to_a_waiting_empty_message_follow_on_what_it_says() {
    // With batch_append, raft adds entries to a message that waits without looking whether they
    // follow it: an empty one speaks of the end of the log, the entries come from its beginning.
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.propose(node(1), b"A");
    world.flying.clear();
    for _ in 0..HEARTBEAT {
        world.tick(node(1));
    }
    let mut heard = Vec::new();
    for flying in std::mem::take(&mut world.flying) {
        let mut answer = message(MessageType::MsgHeartbeatResponse, flying.to.get(), 1, 2);
        answer.commit = 2;
        heard.push(answer);
    }
    // Two answers, a loss between them, in one turn.
    for answer in &heard {
        let from = node(answer.from);
        world.at(1).step(from, wire::encode(answer)).unwrap();
        world.at(1).unreachable(from);
        world.at(1).step(from, wire::encode(answer)).unwrap();
    }
    world.turn(node(1)).unwrap();
    world.settle();
    assert!(world.members.values().all(|member| member.applied == LogIndex(3)));
}

#[test]
fn entries_travel_in_bulk_and_everything_else_does_not_wait_behind_them() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    world.at(1).propose(b"A".to_vec()).unwrap();
    world.read(node(1));
    let lanes: Vec<_> = world.flying.iter().map(Flying::kind).collect();
    assert!(lanes.contains(&MessageType::MsgHeartbeat));
    world.at(1).propose(b"B".to_vec()).unwrap();
    let turn = world.at(1).turn().unwrap().unwrap();
    for outbound in turn.send {
        let PeerMessage::Raft(bytes) = outbound.message else { unreachable!() };
        let message = wire::decode(&bytes).unwrap();
        assert_eq!(outbound.lane == Lane::Bulk, !message.entries.is_empty());
    }
}

// ---- reads ----------------------------------------------------------------------------------------

#[test]
fn no_round_begins_before_the_leader_has_committed_in_its_term() {
    let mut world = World::new(3, 0, 1);
    assert!(!world.read(node(1)), "a follower");
    world.at(1).campaign();
    world.turn(node(1)).unwrap();
    while world.at(1).role() != Role::Leader {
        let flying = world.flying.remove(0);
        world.deliver(flying);
        (1..=3).for_each(|id| world.sync_all(id));
    }
    assert!(!world.read(node(1)), "raft would drop it silently");
    world.settle();
    assert!(world.read(node(1)));
    world.settle();
    assert_eq!(world.rounds_confirmed, 1);
}

#[test]
fn a_single_voter_confirms_a_round_at_once() {
    let mut world = World::new(1, 0, 1);
    world.elect(1);
    assert!(world.read(node(1)));
    assert_eq!(world.rounds_confirmed, 1);
}

#[test]
fn a_leader_that_is_cut_off_confirms_no_round_however_fresh_its_lease() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    for _ in 0..HEARTBEAT {
        world.tick(node(1));
    }
    world.settle();
    for _ in 0..3 * ELECTION {
        world.read(node(1));
        world.tick(node(1));
        world.flying.clear();
        assert_eq!(world.rounds_confirmed, 0);
    }
}

#[test]
fn a_lost_heartbeat_delays_a_round_and_does_not_end_it() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    assert!(world.read(node(1)));
    world.flying.clear();
    for _ in 0..HEARTBEAT {
        world.tick(node(1));
    }
    world.settle();
    assert_eq!(world.rounds_confirmed, 1);
}

/// The scenario in which a context used twice confirms a stale read: a round is asked, answered late,
/// and asked again under the same name after a write.
#[test]
fn an_answer_to_a_round_never_confirms_another_of_the_same_name() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let id = RoundId { node: node(1), incarnation: Incarnation(1), counter: 7 };
    assert!(world.at(1).read_round(id));
    let first = heartbeats_of(&mut world);
    // The answers to the first round are made, and wait in the network.
    let mut late = Vec::new();
    for heartbeat in &first {
        let mut answer = heartbeat.clone();
        (answer.from, answer.to) = (heartbeat.to, heartbeat.from);
        answer.set_msg_type(MessageType::MsgHeartbeatResponse);
        late.push(answer);
    }
    // A node that does what it must not: the same name again, after a write.
    let (_, index) = world.propose(node(1), b"A").unwrap();
    world.settle_without(|flying| flying.kind() == MessageType::MsgHeartbeatResponse);
    assert_eq!(world.at(1).commit(), index);
    assert!(world.at(1).read_round(id));
    let second = heartbeats_of(&mut world);
    assert_ne!(first[0].context, second[0].context);
    for answer in late {
        world.at(1).step(node(answer.from), wire::encode(&answer)).unwrap();
    }
    while let Some(turn) = world.at(1).turn().unwrap() {
        for (_, confirmed) in turn.rounds {
            assert!(confirmed < index, "only the first round is confirmed");
        }
    }
    // What raft itself would do with one context for both is why the leader counts.
    let serials: Vec<_> = [&first, &second]
        .map(|round| RoundContext::from_bytes(&round[0].context).unwrap().serial)
        .to_vec();
    assert!(serials[0] < serials[1]);
}

fn heartbeats_of(world: &mut World) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(turn) = world.at(1).turn().unwrap() {
        for outbound in turn.send {
            let PeerMessage::Raft(bytes) = outbound.message else { unreachable!() };
            messages.push(wire::decode(&bytes).unwrap());
        }
    }
    messages.retain(|message| message.get_msg_type() == MessageType::MsgHeartbeat);
    assert_eq!(messages.len(), 2);
    messages
}

#[test]
fn rounds_that_nobody_answers_do_not_pile_up() {
    let mut world = World::new(3, 0, 1);
    world.elect(1);
    let begun = (0..5000)
        .filter(|_| {
            world.flying.clear();
            world.read(node(1))
        })
        .count();
    assert_eq!(begun, 1024);
}

// ---- the log, the cache, restarts -----------------------------------------------------------------

fn hard_state(term: u64, commit: u64) -> wal::HardState {
    wal::HardState { term: Term(term), vote: None, commit: LogIndex(commit) }
}

#[test]
fn a_log_that_ends_before_what_is_known_to_be_committed_stops_the_member() {
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
fn entries_of_a_later_term_than_the_one_on_record_stop_the_member() {
    let disk = disk(5, 1, vec![entry(2, 5)]);
    let fault = Consensus::new(config(1, &[1]), disk, hard_state(4, 1), LogIndex(1)).err();
    let (last, found, term) = (LogIndex(2), Term(5), Term(4));
    assert_eq!(fault, Some(ConsensusFault::TermLost { last, found, term }));
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let start = |config| Consensus::new(config, Disk::new(), hard_state(1, 1), LogIndex(1)).err();
    let is_refused = |config| matches!(start(config), Some(ConsensusFault::Config(_)));
    assert_eq!(start(config(1, &[1, 2, 3])), None);
    assert!(is_refused(config(4, &[1, 2, 3])), "not a member");
    assert!(is_refused(config(1, &[1, 2, 2])), "twice");
    assert!(is_refused(ConsensusConfig { learners: vec![node(2)], ..config(1, &[1, 2]) }), "both");
    assert!(is_refused(ConsensusConfig { heartbeat_ticks: 0, ..config(1, &[1]) }));
    assert!(is_refused(ConsensusConfig { election_ticks: HEARTBEAT, ..config(1, &[1]) }));
    assert!(is_refused(ConsensusConfig { inflight_max: 0, ..config(1, &[1]) }));
    assert!(is_refused(ConsensusConfig { uncommitted_bytes_max: 1, ..config(1, &[1]) }));
}

#[test]
fn a_restart_hands_out_the_whole_log_in_pieces_and_reads_each_once() {
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
fn a_disk_that_cannot_be_read_stops_the_member_and_is_not_the_end_of_the_log() {
    let is_unreadable = |fault| matches!(fault, ConsensusFault::Unreadable { .. });
    // At a restart.
    let broken = disk(2, 6, (2..=6).map(|index| entry(index, 2)).collect());
    broken.look().broken = true;
    let mut consensus =
        Consensus::new(config(1, &[1]), broken, hard_state(2, 6), LogIndex(1)).unwrap();
    assert!(is_unreadable(consensus.turn().unwrap_err()));
    assert!(is_unreadable(consensus.turn().unwrap_err()), "and it stays so");

    // While a leader serves a follower that is far behind.
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
fn a_log_that_answers_with_less_than_nothing_or_other_entries_stops_the_member() {
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
fn the_cache_is_bounded_and_keeps_what_is_not_durable_or_not_applied() {
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
fn a_follower_that_is_far_behind_is_served_from_the_disk() {
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
fn a_disk_that_does_not_keep_up_bounds_what_a_follower_takes() {
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
fn a_member_that_never_syncs_does_not_hoard_messages() {
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
fn an_old_proof_after_a_newer_one_takes_nothing_back() {
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

/// Entries are written, replaced by another leader's, and come back: the disk holds them, loses them
/// and holds them again. In between they must not count.
#[test]
fn an_entry_that_comes_back_after_it_was_replaced_is_durable_when_it_is_written_again() {
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

#[test]
fn a_commit_index_that_comes_with_a_vote_does_not_bring_the_whole_log_into_memory() {
    let disk = disk(2, 1, (2..=100).map(|index| entry(index, 2)).collect());
    let mut world = World::dark(3, 0, 1);
    *world.disk(1).look() = std::mem::take(&mut *disk.look());
    world.disk(1).look().read_max = 10;
    world.start(node(1));
    world.at(1).campaign();
    world.turn(node(1)).unwrap();
    assert_eq!(world.at(1).role(), Role::PreCandidate);
    let mut refusal = message(MessageType::MsgRequestPreVoteResponse, 2, 1, 2);
    (refusal.reject, refusal.commit, refusal.commit_term) = (true, 100, 2);
    give(&mut world, &refusal);
    assert_eq!(world.disk(1).look().reads, 0);
}

// ---- how it stands --------------------------------------------------------------------------------

#[test]
fn a_leader_is_ready_when_it_has_applied_an_entry_of_its_own_term() {
    let mut world = World::new(3, 0, 1);
    world.at(1).campaign();
    world.turn(node(1)).unwrap();
    while world.at(1).role() != Role::Leader {
        let flying = world.flying.remove(0);
        world.deliver(flying);
        (1..=3).for_each(|id| world.sync_all(id));
    }
    assert!(!world.at(1).is_ready_to_lead());
    world.settle();
    assert!(world.at(1).is_ready_to_lead());
}

#[test]
fn a_leader_knows_how_far_its_followers_are() {
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

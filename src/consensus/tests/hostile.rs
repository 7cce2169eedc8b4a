//! Tests with messages that no correct member sends. Each of these messages would make the raft
//! crate panic or violate its safety, so the gate must reject all of them.

use raft::eraftpb::{Entry, Message, MessageType};

use super::machine::Machine;
use super::world::{ELECTION, Flying, World, members_of, node};
use crate::consensus::fault::ConsensusFault;
use crate::consensus::gate::GateRejection;
use crate::consensus::membership::Configuration;
use crate::consensus::snapshot;
use crate::consensus::wire::{self, WireError};
use crate::consensus::{Outbound, RaftRole, RoundId, Stepped, Taken};
use crate::model::{Incarnation, LogIndex, PeerMessage, SnapshotId, SplitMix64, Term};
use crate::wal;

/// Returns a cluster of three voters and a learner, in which node 1 leads term 2 and entries up to
/// 4 are committed.
fn world() -> World {
    let mut world = World::new(3, 1, 1);
    world.elect(1);
    for _ in 0..2 {
        world.propose(node(1), b"A");
        world.settle();
    }
    assert_eq!((world.at(2).term(), world.at(2).commit()), (Term(2), LogIndex(4)));
    world
}

fn message(kind: MessageType, change: impl FnOnce(&mut Message)) -> Message {
    let mut message = Message { from: 1, to: 2, term: 2, ..Message::default() };
    message.set_msg_type(kind);
    if kind == MessageType::MsgAppend {
        (message.index, message.log_term, message.commit) = (4, 2, 4);
    }
    if matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote) {
        (message.term, message.index, message.log_term) = (3, 4, 2);
    }
    if kind == MessageType::MsgSnapshot {
        let id = SnapshotId { index: LogIndex(9), term: Term(2), bytes: 7, checksum: 7 };
        let configuration = Configuration::of(&members_of(&[1, 2, 3], &[4]));
        message.set_snapshot(snapshot::to_raft(id, &configuration));
    }
    change(&mut message);
    message
}

fn entries(places: &[(u64, u64)]) -> Vec<Entry> {
    places.iter().map(|&(index, term)| Entry { index, term, ..Entry::default() }).collect()
}

/// Delivers a message to node `to` over the connection of `from`.
fn step(world: &mut World, from: u64, message: &Message) -> Result<Stepped, GateRejection> {
    let result = world.at(message.to.clamp(1, 4)).step(node(from), wire::encode(message));
    if result.as_ref().is_err_and(GateRejection::is_fatal) {
        return result;
    }
    for id in 1..=4 {
        world.turn(node(id)).unwrap();
    }
    result
}

type RejectionCheck = fn(&GateRejection) -> bool;

#[test]
fn messages_that_would_break_raft_are_rejected_without_effect() {
    use GateRejection as R;
    use MessageType as M;
    type Change = fn(&mut Message);
    let cases: Vec<(&str, M, Change, RejectionCheck)> = vec![
        ("in another's name", M::MsgHeartbeat, |m| m.from = 3, |r| matches!(r, R::Sender { .. })),
        ("in nobody's name", M::MsgHeartbeat, |m| m.from = 0, |r| matches!(r, R::Sender { .. })),
        ("term 0 passes for local", M::MsgAppend, |m| m.term = 0, |r| matches!(r, R::Term { .. })),
        (
            "the last term of all",
            M::MsgHeartbeat,
            |m| m.term = u64::MAX,
            |r| matches!(r, R::Term { .. }),
        ),
        (
            "a leap of terms",
            M::MsgHeartbeat,
            |m| m.term = 3 + (1 << 20),
            |r| matches!(r, R::Term { .. }),
        ),
        (
            "a gap before its entries",
            M::MsgAppend,
            |m| m.set_entries(entries(&[(6, 2)]).into()),
            |r| *r == R::Entries { index: 6, term: 2 },
        ),
        (
            "a gap between entries",
            M::MsgAppend,
            |m| m.set_entries(entries(&[(5, 2), (7, 2)]).into()),
            |r| *r == R::Entries { index: 7, term: 2 },
        ),
        (
            "an entry twice",
            M::MsgAppend,
            |m| m.set_entries(entries(&[(5, 2), (5, 2)]).into()),
            |r| *r == R::Entries { index: 5, term: 2 },
        ),
        (
            "terms that fall",
            M::MsgAppend,
            |m| m.set_entries(entries(&[(5, 2), (6, 1)]).into()),
            |r| *r == R::Entries { index: 6, term: 1 },
        ),
        (
            "an entry of the future",
            M::MsgAppend,
            |m| m.set_entries(entries(&[(5, 3)]).into()),
            |r| *r == R::Entries { index: 5, term: 3 },
        ),
        (
            "entries after nothing",
            M::MsgAppend,
            |m| (m.index, m.log_term) = (0, 0),
            |r| *r == R::Number { name: "index", value: 0 },
        ),
        (
            "term 0 far away passes for agreement",
            M::MsgAppend,
            |m| (m.index, m.log_term) = (50, 0),
            |r| *r == R::Number { name: "log term", value: 0 },
        ),
        (
            "an index at the end of numbers",
            M::MsgAppend,
            |m| m.index = u64::MAX,
            |r| matches!(r, R::Number { name: "index", .. }),
        ),
        (
            "a log term of the future",
            M::MsgAppend,
            |m| m.log_term = 3,
            |r| *r == R::Number { name: "log term", value: 3 },
        ),
        (
            "another log below the commit index",
            M::MsgAppend,
            |m| (m.index, m.log_term) = (3, 1),
            |r| *r == R::Contradiction { index: LogIndex(3) },
        ),
        (
            "another entry where one is committed",
            M::MsgAppend,
            |m| {
                (m.index, m.log_term, m.term) = (1, 1, 3);
                m.set_entries(entries(&[(2, 3)]).into());
            },
            |r| *r == R::Contradiction { index: LogIndex(2) },
        ),
        (
            "a context on entries",
            M::MsgAppend,
            |m| m.context = "x".into(),
            |r| *r == R::Field { name: "context" },
        ),
        (
            "a long context",
            M::MsgHeartbeat,
            |m| m.context = vec![1; 33].into(),
            |r| *r == R::Field { name: "context" },
        ),
        (
            "a forced campaign of one's own wording",
            M::MsgRequestVote,
            |m| {
                m.context = "CampaignElection".into();
            },
            |r| *r == R::Field { name: "context" },
        ),
        (
            "entries in a heartbeat",
            M::MsgHeartbeat,
            |m| m.set_entries(entries(&[(5, 2)]).into()),
            |r| *r == R::Field { name: "entries" },
        ),
        (
            "a request for a snapshot",
            M::MsgAppendResponse,
            |m| m.request_snapshot = 5,
            |r| *r == R::Field { name: "snapshot request" },
        ),
        (
            "a snapshot in a heartbeat",
            M::MsgHeartbeat,
            |m| m.mut_snapshot().mut_metadata().index = 9,
            |r| *r == R::Field { name: "snapshot" },
        ),
        ("no snapshot", M::MsgSnapshot, |m| m.clear_snapshot(), |r| *r == R::Snapshot),
        (
            "a snapshot with data",
            M::MsgSnapshot,
            |m| m.mut_snapshot().data = vec![0; 24].into(),
            |r| *r == R::Snapshot,
        ),
        (
            "a snapshot of the beginning",
            M::MsgSnapshot,
            |m| m.mut_snapshot().mut_metadata().index = 1,
            |r| *r == R::Snapshot,
        ),
        (
            "a snapshot of the end of numbers",
            M::MsgSnapshot,
            |m| m.mut_snapshot().mut_metadata().index = u64::MAX,
            |r| *r == R::Snapshot,
        ),
        (
            "a snapshot of the future",
            M::MsgSnapshot,
            |m| m.mut_snapshot().mut_metadata().term = 3,
            |r| *r == R::Snapshot,
        ),
        (
            "a snapshot of no term",
            M::MsgSnapshot,
            |m| m.mut_snapshot().mut_metadata().term = 0,
            |r| *r == R::Snapshot,
        ),
        (
            "a snapshot that does not know its receiver",
            M::MsgSnapshot,
            |m| m.mut_snapshot().mut_metadata().mut_conf_state().voters = vec![1, 3],
            |r| *r == R::Snapshot,
        ),
        (
            "a snapshot in which nobody votes",
            M::MsgSnapshot,
            |m| {
                let state = m.mut_snapshot().mut_metadata().mut_conf_state();
                (state.voters, state.learners) = (vec![], vec![1, 2, 3]);
            },
            |r| *r == R::Snapshot,
        ),
        (
            "a snapshot in which one both votes and learns",
            M::MsgSnapshot,
            |m| m.mut_snapshot().mut_metadata().mut_conf_state().learners = vec![3],
            |r| *r == R::Snapshot,
        ),
        (
            "a snapshot that is left to be joint",
            M::MsgSnapshot,
            |m| m.mut_snapshot().mut_metadata().mut_conf_state().voters_outgoing = vec![1, 2],
            |r| *r == R::Snapshot,
        ),
        (
            "a snapshot of another log",
            M::MsgSnapshot,
            |m| {
                let metadata = m.mut_snapshot().mut_metadata();
                (metadata.index, metadata.term) = (3, 1);
            },
            |r| *r == R::Contradiction { index: LogIndex(3) },
        ),
        (
            "a snapshot with entries",
            M::MsgSnapshot,
            |m| m.set_entries(entries(&[(10, 2)]).into()),
            |r| *r == R::Field { name: "entries" },
        ),
        (
            "a priority",
            M::MsgRequestVote,
            |m| m.priority = 9,
            |r| *r == R::Field { name: "priority" },
        ),
        (
            "a vote request of an empty log",
            M::MsgRequestVote,
            |m| m.index = 0,
            |r| matches!(r, R::Number { name: "index", .. }),
        ),
        (
            "a candidate ahead of its term",
            M::MsgRequestVote,
            |m| m.log_term = 3,
            |r| matches!(r, R::Number { name: "log term", .. }),
        ),
        (
            "a candidate that has committed what it has not",
            M::MsgRequestPreVote,
            |m| m.commit = 5,
            |r| *r == R::Number { name: "commit", value: 5 },
        ),
        (
            "a campaign ordered in a later term",
            M::MsgTimeoutNow,
            |m| m.term = 3,
            |r| *r == R::Term { term: 3, mine: Term(2) },
        ),
        (
            "a rejection of the beginning",
            M::MsgAppendResponse,
            |m| (m.reject, m.index) = (true, 1),
            |r| matches!(r, R::Number { name: "rejected index", .. }),
        ),
        (
            "a rejection with a hint beyond it",
            M::MsgAppendResponse,
            |m| {
                (m.reject, m.index, m.log_term, m.reject_hint) = (true, 3, 2, 1 << 61);
            },
            |r| matches!(r, R::Number { name: "reject hint", .. }),
        ),
    ];
    for (name, kind, change, is_expected) in cases {
        let mut world = world();
        let before = world.at(2).status();
        let rejection = step(&mut world, 1, &message(kind, change)).expect_err(name);
        assert!(is_expected(&rejection), "{name}: {rejection:?}");
        assert!(!rejection.is_fatal(), "{name}");
        assert_eq!(world.at(2).status(), before, "{name}");
    }
}

#[test]
fn local_message_kinds_are_rejected_from_the_wire() {
    use MessageType as M;
    let kinds = [
        M::MsgHup,
        M::MsgBeat,
        M::MsgPropose,
        M::MsgUnreachable,
        M::MsgSnapStatus,
        M::MsgCheckQuorum,
        M::MsgTransferLeader,
        M::MsgReadIndex,
        M::MsgReadIndexResp,
    ];
    for kind in kinds {
        let mut world = world();
        for (from, to) in [(1, 2), (2, 1)] {
            let message = message(kind, |m| (m.from, m.to) = (from, to));
            let rejection = step(&mut world, from, &message).unwrap_err();
            assert_eq!(rejection, GateRejection::Kind { kind: kind as i32 });
        }
    }
}

#[test]
fn message_for_another_member_is_rejected() {
    let mut world = world();
    let stray = wire::encode(&message(MessageType::MsgHeartbeat, |m| m.to = 3));
    assert_eq!(world.at(2).step(node(1), stray), Err(GateRejection::Addressee { to: 3 }));
}

#[test]
fn message_from_oneself_is_rejected() {
    let mut world = world();
    let own = message(MessageType::MsgAppendResponse, |m| (m.from, m.to, m.index) = (1, 1, 4));
    assert_eq!(step(&mut world, 1, &own), Err(GateRejection::Oneself));
}

#[test]
fn unknown_newer_leader_is_accepted() {
    // A member that was disconnected does not know the current members. Meanwhile member 5 may have
    // joined, or member 4, a learner in its state, may have been promoted. One of these two is the
    // leader now.
    for leader in [4, 5] {
        let mut world = world();
        let mut heartbeat = message(MessageType::MsgHeartbeat, |m| (m.from, m.term) = (leader, 3));
        heartbeat.to = 3;
        assert_eq!(step(&mut world, leader, &heartbeat), Ok(Stepped::Done));
        assert_eq!(world.at(3).leader(), Some(node(leader)));
    }
}

#[test]
fn second_leader_of_a_term_is_rejected() {
    use MessageType as M;
    for kind in [M::MsgHeartbeat, M::MsgAppend, M::MsgSnapshot, M::MsgTimeoutNow] {
        for to in [1, 2] {
            let mut world = world();
            let second = message(kind, |m| (m.from, m.to) = (3, to));
            let rejection = GateRejection::SecondLeader { term: Term(2), leader: node(1) };
            assert_eq!(step(&mut world, 3, &second), Err(rejection));
        }
    }
}

#[test]
fn acknowledgement_of_nonexistent_entries_is_rejected() {
    let mut world = world();
    let ack = message(MessageType::MsgAppendResponse, |m| (m.from, m.to, m.index) = (2, 1, 5));
    let rejection = GateRejection::Number { name: "acknowledged index", value: 5 };
    assert_eq!(step(&mut world, 2, &ack), Err(rejection));
}

#[test]
fn heartbeat_that_proves_lost_entries_stops_the_member() {
    let mut world = world();
    let heartbeat = message(MessageType::MsgHeartbeat, |m| m.commit = 5);
    let rejection = step(&mut world, 1, &heartbeat).unwrap_err();
    assert_eq!(rejection, GateRejection::LogLost { promised: LogIndex(5), last: LogIndex(4) });
    assert!(rejection.is_fatal());
    let fault = ConsensusFault::LogLost { promised: LogIndex(5), last: LogIndex(4) };
    assert_eq!(world.at(2).turn().unwrap_err(), fault);
}

#[test]
fn follower_detects_lost_synced_entries_from_a_heartbeat() {
    let mut world = world();
    world.crash(node(2), 0);
    {
        let disk = world.disk(2);
        let mut disk = disk.look();
        disk.entries.truncate(1);
        disk.hard_state.commit = LogIndex(2);
    }
    world.start(node(2));
    world.tick(node(1));
    world.tick(node(1));
    let heartbeat = world.flying.iter().find(|flying| flying.to == node(2)).unwrap().clone();
    assert_eq!(heartbeat.kind(), MessageType::MsgHeartbeat);
    let rejection = world.at(2).step(heartbeat.from, heartbeat.bytes).unwrap_err();
    assert_eq!(rejection, GateRejection::LogLost { promised: LogIndex(4), last: LogIndex(2) });
}

#[test]
fn append_with_a_high_commit_index_is_accepted() {
    let mut world = world();
    let ahead = message(MessageType::MsgAppend, |m| {
        m.set_entries(entries(&[(5, 2)]).into());
        m.commit = 1000;
    });
    world.at(2).step(node(1), wire::encode(&ahead)).unwrap();
    assert_eq!(world.at(2).commit(), LogIndex(5));
}

#[test]
fn garbage_is_rejected() {
    let mut world = world();
    for bytes in [&b""[..], b"\x00", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 100]] {
        let rejection = world.at(2).step(node(1), bytes.to_vec().into()).unwrap_err();
        let is_empty_message = matches!(rejection, GateRejection::Sender { claimed: 0 });
        assert!(matches!(rejection, GateRejection::Bytes(_)) || is_empty_message, "{rejection}");
    }
    let long = vec![0; wire::FRAME_BYTES_MAX + 1];
    let rejection = world.at(2).step(node(1), long.into()).unwrap_err();
    assert!(matches!(rejection, GateRejection::Bytes(WireError::TooLong { .. })));
}

/// Changes bytes of real messages. No accepted message may cause a panic.
#[test]
fn mutated_messages_never_panic() {
    let mut rng = SplitMix64::new(1);
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..30 {
        let mut world = World::new(3, 0, seed);
        world.elect(1);
        for _ in 0..60 {
            let id = 1 + rng.below(3);
            let _ = world.at(id).propose(b"some data".to_vec());
            let (incarnation, counter) = (Incarnation(1), rng.next_u64());
            world.at(id).read_round(RoundId { node: node(id), incarnation, counter });
            for id in 1..=3 {
                world.at(id).tick();
            }
            for Flying { from, to, bytes } in drain(&mut world) {
                // Only the second member receives changed messages.
                if to == node(2) && rng.next_u64().is_multiple_of(2) {
                    let mut changed = bytes.to_vec();
                    for _ in 0..1 + rng.below(3) {
                        let place = rng.below(changed.len() as u64) as usize;
                        changed[place] ^= 1 << rng.below(8);
                    }
                    match world.at(2).step(from, changed.into()) {
                        Ok(_) => taken += 1,
                        Err(rejection) if rejection.is_fatal() => {
                            world.crash(to, 0);
                            world.start(to);
                        }
                        Err(_) => refused += 1,
                    }
                    world.flying = drain(&mut world);
                }
                drop(world.consensus(to).unwrap().step(from, bytes));
            }
        }
    }
    assert!(refused > 500 && taken > 100, "{refused} refused, {taken} taken");
}

/// Sends messages with values close to interesting ones.
#[test]
fn generated_messages_never_panic() {
    use MessageType as M;
    let kinds = [
        M::MsgAppend,
        M::MsgAppendResponse,
        M::MsgRequestVote,
        M::MsgRequestVoteResponse,
        M::MsgHeartbeat,
        M::MsgHeartbeatResponse,
        M::MsgTimeoutNow,
        M::MsgRequestPreVote,
        M::MsgRequestPreVoteResponse,
        M::MsgSnapshot,
    ];
    let mut rng = SplitMix64::new(7);
    let (mut taken, mut roles, mut installs) = ([0; 10], [0; 4], 0);
    for seed in 0..60 {
        let mut world = World::new(3, 0, seed);
        for _ in 0..800 {
            let me = world.at(2).status();
            roles[me.role as usize] += 1;
            let place = rng.below(10) as usize;
            let mut near = |value: u64| match rng.below(12) {
                0 => 0,
                1 => u64::MAX - rng.below(3),
                2 => 1 << rng.below(64),
                _ => (value + rng.below(4)).saturating_sub(1 + rng.below(2)),
            };
            let covered = LogIndex(near(me.last.get() + 2));
            let mut message = Message { to: 2, ..Message::default() };
            message.set_msg_type(kinds[place]);
            message.term = near(me.term.get());
            message.log_term = near(me.term.get());
            message.index = near(me.last.get());
            message.commit = near(me.commit.get());
            message.commit_term = near(me.term.get());
            message.reject_hint = near(me.last.get());
            let from = 1 + 2 * rng.below(2);
            message.from = from;
            message.reject = rng.next_u64().is_multiple_of(4);
            if rng.next_u64().is_multiple_of(2) {
                // Often use the current term. Otherwise the member would never be elected.
                message.term = me.term.get() + u64::from(me.role == RaftRole::PreCandidate);
            }
            if kinds[place] == M::MsgAppend {
                let first = message.index.wrapping_add(1);
                let term = message.log_term;
                let places: Vec<_> = (0..rng.below(4))
                    .map(|n| (first.wrapping_add(n), term.saturating_add(rng.below(8) / 7)))
                    .collect();
                message.set_entries(entries(&places).into());
            }
            if kinds[place] == M::MsgSnapshot {
                let term = Term(message.log_term);
                let id = SnapshotId { index: covered, term, bytes: 1, checksum: 1 };
                let configuration = Configuration::of(world.founded());
                message.set_snapshot(snapshot::to_raft(id, &configuration));
            }
            for field in 0..5 {
                // In most cases, only fields that the kind uses are set, so that the message is
                // accepted.
                if !rng.next_u64().is_multiple_of(10) {
                    blank(&mut message, field);
                }
            }
            if kinds[place] == M::MsgTimeoutNow && rng.next_u64().is_multiple_of(2) {
                message.context = "CampaignTransfer".into();
            }
            match world.at(2).step(node(from), wire::encode(&message)) {
                Ok(Stepped::Done) => taken[place] += 1,
                Ok(Stepped::Offer(offer)) => {
                    taken[place] += 1;
                    let base = wal::Base { index: offer.id.index, term: offer.id.term };
                    let machine = Machine::made_up(base, world.founded().clone());
                    world.disk(2).look().files.insert(offer.id, machine);
                    installs += usize::from(world.at(2).take_snapshot(&offer) == Taken::Installing);
                }
                Err(rejection) if rejection.is_fatal() => {
                    world.crash(node(2), 0);
                    world.start(node(2));
                }
                Err(_) => {}
            }
            match rng.below(4) {
                0 => {
                    for _ in 0..rng.below(2 * ELECTION as u64) {
                        world.at(2).tick();
                    }
                }
                1 => {
                    let _ = world.at(2).propose(b"B".to_vec());
                }
                2 => world.at(2).unreachable(node(from)),
                _ => {}
            }
            drop(drain(&mut world));
        }
    }
    assert!(taken.iter().all(|taken| *taken > 30), "{taken:?}");
    assert!(installs > 100, "{installs} snapshots installed");
    assert!(roles.iter().all(|times| *times > 100), "{roles:?}");
}

/// Clears a field that the kind does not use.
fn blank(message: &mut Message, field: u64) {
    use MessageType as M;
    let kind = message.get_msg_type();
    match (field, kind) {
        (0, M::MsgHeartbeat | M::MsgHeartbeatResponse | M::MsgTimeoutNow | M::MsgSnapshot) => {
            (message.index, message.log_term) = (0, 0);
        }
        (1, M::MsgSnapshot) => (message.reject, message.commit) = (false, 0),
        (1, M::MsgHeartbeat | M::MsgHeartbeatResponse | M::MsgTimeoutNow | M::MsgAppend) => {
            message.reject = false;
        }
        (2, kind) if kind != M::MsgAppendResponse => message.reject_hint = 0,
        (3, M::MsgAppend | M::MsgHeartbeat | M::MsgAppendResponse) => message.commit_term = 0,
        (4, M::MsgRequestVote | M::MsgRequestPreVote) => {
            message.commit = message.commit.min(message.index);
            message.commit_term = message.commit_term.min(message.log_term);
        }
        _ => {}
    }
}

/// Runs the members without checking the effect of lies, and returns all messages that they have
/// sent.
fn drain(world: &mut World) -> Vec<Flying> {
    let mut flying = std::mem::take(&mut world.flying);
    let founded = world.founded().clone();
    for id in 1..=3 {
        let disk = world.disk(id);
        let consensus = world.at(id);
        let mut sent = Vec::new();
        while let Ok(Some(turn)) = consensus.turn() {
            sent.extend(turn.send);
            disk.look().queued.extend(turn.persist);
            if let Some(last) = turn.commit.last() {
                consensus.applied(last.index);
            }
            let synced = disk.look().sync();
            if let Some(number) = synced {
                sent.extend(consensus.persisted(wal::Durable::for_test(number)));
            }
            if turn.install.is_some() {
                consensus.installed(&founded).unwrap();
            }
        }
        for Outbound { to, message, .. } in sent {
            let PeerMessage::Raft(bytes) = message else { panic!("a message of raft's") };
            flying.push(Flying { from: node(id), to, bytes });
        }
    }
    flying
}

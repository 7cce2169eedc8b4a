//! Tests of the raft crate's pitfalls.

mod campaigns;
mod durability;
mod members;
mod proposals;
mod reads;
mod restarts;
mod snapshots;
mod standing;

use std::sync::Arc;

use raft::eraftpb::{Message, MessageType};

use super::disk::Disk;
use super::world::{ELECTION, Flying, HEARTBEAT, World, members_of, node};
use crate::consensus::config::ENTRY_BYTES_MAX;
use crate::consensus::fault::ConsensusFault;
use crate::consensus::gate::Standpoint;
use crate::consensus::round::RoundContext;
use crate::consensus::{Consensus, ConsensusConfig, RaftRole, RoundId, Stepped, wire};
use crate::env::OsEntropy;
use crate::model::{Incarnation, Lane, LogIndex, PeerMessage, ProposeRejection, Term};
use crate::wal;

pub(super) fn config(id: u64, voters: &[u64]) -> ConsensusConfig {
    ConsensusConfig::new(
        node(id),
        members_of(voters, &[]),
        HEARTBEAT,
        ELECTION,
        Arc::new(OsEntropy),
    )
}

pub(super) fn entry(index: u64, term: u64) -> wal::Entry {
    let (index, term) = (LogIndex(index), Term(term));
    wal::Entry { index, term, kind: wal::EntryKind::Data, data: "x".into() }
}

pub(super) fn group(number: u64, term: u64, commit: u64, entries: Vec<wal::Entry>) -> wal::Group {
    let hard_state = wal::HardState { term: Term(term), vote: None, commit: LogIndex(commit) };
    wal::Group { number, hard_state: Some(hard_state), entries, ..wal::Group::default() }
}

pub(super) fn disk(term: u64, commit: u64, entries: Vec<wal::Entry>) -> Disk {
    let disk = Disk::new();
    disk.look().queued.push_back(group(1, term, commit, entries));
    disk.look().sync();
    disk
}

pub(super) fn kinds(flying: &[Flying]) -> Vec<MessageType> {
    flying.iter().map(Flying::kind).collect()
}

/// Returns a message as `from` would write it.
pub(super) fn message(kind: MessageType, from: u64, to: u64, term: u64) -> Message {
    let mut message = Message { from, to, term, ..Message::default() };
    message.set_msg_type(kind);
    message
}

pub(super) fn give(world: &mut World, message: &Message) {
    let (from, to) = (node(message.from), node(message.to));
    world.deliver(Flying { from, to, bytes: wire::encode(message) });
}

/// Ticks long enough for any election timeout to expire.
pub(super) fn tick_long(world: &mut World, id: u64) {
    for _ in 0..3 * ELECTION {
        world.tick(node(id));
    }
}

pub(super) fn hard_state(term: u64, commit: u64) -> wal::HardState {
    wal::HardState { term: Term(term), vote: None, commit: LogIndex(commit) }
}

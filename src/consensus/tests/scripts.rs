//! Runs the scripts in `src/consensus/tests/scripts`, which show how the consensus works, and
//! compares what the members do with what the scripts say.
//!
//! A case is a title (`# ...`), followed by commands (`> ...`) and what the members do as a
//! consequence. An empty line ends a case. Each case has its own cluster. Nothing happens by
//! itself: a script decides when a message arrives, when a disk has synced, and when time passes.
//!
//! ```text
//! cluster VOTERS [LEARNERS]   starts members 1, 2, ... with empty disks, except for entry 1 of term 1
//! campaign N                  member N starts an election now
//! ended N M | runs N M        member N has evidence that the process of M has ended, or runs
//! early N                     member N starts its early election, if it is due
//! tick N [TIMES]              time passes for member N; 10 ticks are the minimum election timeout
//! propose N TEXT              a client's request arrives at member N
//! read N                      a linearizable read arrives at member N
//! transfer N M                leader N transfers its leadership to member M
//! add N M | promote N M | remove N M        leader N changes the membership of member M
//! deliver [N M]               messages that were sent arrive (from N at M), in order
//! lose [N M]                  messages that were sent are lost (from N to M)
//! sync N                      the disk of member N syncs the oldest group that it was given
//! settle [without N]          all messages arrive and all disks sync, until nothing is left to do;
//!                             messages from and to member N are lost
//! crash N | start N           member N loses what its disk has not synced; it starts from its disk
//! snapshot N | truncate N     member N takes a snapshot; it truncates its log up to the snapshot
//! log N                       prints the log on the disk of member N
//! ```
//!
//! The members' part: `1 -> 2:` is a message; `disk 1:` is a group that the log of member 1 must
//! write; `1:` is a change of its status. `5@2` is the entry with index 5 of term 2. `settle` prints
//! only the status.
//!
//! `UPDATE=1 cargo test --workspace --lib consensus::tests::scripts` writes what the members do into the scripts.
//! Review the difference afterwards, because the scripts define what is right.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use raft::eraftpb::{Message, MessageType};

use super::world::{Flying, World, add, node};
use crate::consensus::{Consensus, RaftRole};
use crate::model::{LogIndex, MemberChange, NodeId, Term};
use crate::wal;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/consensus/tests/scripts");

/// Minimum number of cases. If there are fewer, a file was not found.
const CASES_MIN: usize = 20;

#[test]
fn members_do_what_the_scripts_say() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut files: Vec<_> =
        std::fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut cases = 0;
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let blocks: Vec<_> = text.trim_end().split("\n\n").map(play).collect();
        cases += blocks.iter().filter(|block| block.starts_with('#')).count();
        let played = blocks.join("\n\n") + "\n";
        if update {
            std::fs::write(&path, played).unwrap();
        } else {
            assert_same(&path, &text, &played);
        }
    }
    assert!(cases >= CASES_MIN, "only {cases} cases");
}

/// Panics at the first line that differs.
fn assert_same(path: &Path, text: &str, played: &str) {
    let lines = text.lines().map(Some).chain(std::iter::repeat(None));
    for (number, (expected, found)) in lines.zip(played.lines().map(Some).chain([None])).enumerate()
    {
        assert_eq!(expected, found, "{}:{}", path.display(), number + 1);
    }
}

/// Runs a case, and returns it with the actual actions of the members.
fn play(block: &str) -> String {
    let mut cluster = Cluster::default();
    let mut out = String::new();
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            writeln!(out, "{line}").unwrap();
            let words: Vec<&str> = command.split(' ').collect();
            cluster.run(&words, &mut out);
        } else if line.starts_with(['#', '/']) {
            writeln!(out, "{line}").unwrap();
        }
    }
    out.trim_end().to_owned()
}

/// The cluster of a case.
#[derive(Default)]
struct Cluster {
    world: Option<World>,
    /// Messages that were sent and that have neither arrived nor been lost.
    sent: Vec<Flying>,
    /// The members' status as last printed.
    printed: BTreeMap<NodeId, Status>,
    /// Number of read rounds that were confirmed, as last printed.
    rounds: usize,
}

#[derive(Clone, PartialEq)]
struct Status {
    standing: String,
    commit: LogIndex,
    applied: LogIndex,
    /// Groups that the log was given and has not synced.
    queued: usize,
}

impl Cluster {
    fn run(&mut self, words: &[&str], out: &mut String) {
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let member = |at: usize| node(number(at));
        if words[0] == "cluster" {
            let learners = words.get(2).map_or(0, |_| number(2));
            self.world = Some(World::new(number(1), learners, 1));
            self.printed = self.status();
            return;
        }
        let sent = std::mem::take(&mut self.sent);
        let (chosen, kept): (Vec<_>, Vec<_>) = sent.into_iter().partition(|flying| {
            matches!(words[0], "deliver" | "lose")
                && (words.len() == 1 || (flying.from, flying.to) == (member(1), member(2)))
        });
        self.sent = kept;
        let world = self.world.as_mut().expect("a cluster");
        let mut settles = false;
        match words[0] {
            "campaign" => {
                world.at(number(1)).campaign();
                world.turn(member(1)).unwrap();
            }
            "ended" => {
                let is_due = world.at(number(1)).process_ended(member(2));
                let due =
                    if is_due { "an early election is due" } else { "no early election is due" };
                writeln!(out, "{}: {due}", words[1]).unwrap();
                world.turn(member(1)).unwrap();
            }
            "runs" => world.at(number(1)).not_ended(member(2)),
            "early" => {
                assert!(world.at(number(1)).campaign_early(), "the disk is ready");
                world.turn(member(1)).unwrap();
            }
            "tick" => {
                (0..words.get(2).map_or(1, |_| number(2))).for_each(|_| world.tick(member(1)));
            }
            "propose" => {
                if world.propose(member(1), words[2].as_bytes()).is_none() {
                    writeln!(out, "{}: rejects the request", words[1]).unwrap();
                }
            }
            "read" => {
                if !world.read(member(1)) {
                    writeln!(out, "{}: rejects the read", words[1]).unwrap();
                }
            }
            "transfer" => {
                world.at(number(1)).transfer_to(member(2));
                world.turn(member(1)).unwrap();
            }
            "add" | "promote" | "remove" => {
                let change = match words[0] {
                    "add" => add(number(2)),
                    "promote" => MemberChange::Promote(member(2)),
                    _ => MemberChange::Remove(member(2)),
                };
                if world.change(member(1), &change).is_none() {
                    writeln!(out, "{}: rejects the change", words[1]).unwrap();
                }
            }
            "deliver" => chosen.into_iter().for_each(|flying| world.deliver(flying)),
            "lose" => {}
            "sync" => assert!(world.sync(member(1)), "the disk was given nothing"),
            "settle" => {
                settles = true;
                world.flying = std::mem::take(&mut self.sent);
                match words.get(2) {
                    Some(_) => {
                        let out = member(2);
                        world.settle_without(|flying| flying.from == out || flying.to == out);
                    }
                    None => world.settle(),
                }
            }
            "crash" => world.crash(member(1), 0),
            "start" => world.start(member(1)),
            "snapshot" => world.snapshot(member(1)),
            "truncate" => world.cut(member(1), 0),
            "log" => writeln!(out, "{}", log(world, number(1))).unwrap(),
            other => panic!("unknown command {other}"),
        }
        self.print(settles, out);
    }

    /// Prints what has happened since the last call.
    fn print(&mut self, settled: bool, out: &mut String) {
        let status = self.status();
        let world = self.world.as_mut().expect("a cluster");
        for (id, now) in &status {
            let before = self.printed.get(id);
            if before.is_none_or(|before| before.standing != now.standing) {
                writeln!(out, "{id}: {}", now.standing).unwrap();
            }
            if before.is_some_and(|before| before.commit < now.commit) {
                writeln!(out, "{id}: entries up to {} are committed", now.commit).unwrap();
            }
            if before.is_some_and(|before| before.applied < now.applied) {
                writeln!(out, "{id}: applied entries up to {}", now.applied).unwrap();
            }
            let disk = world.members[id].disk.look();
            let old = before.map_or(0, |before| before.queued.min(disk.queued.len()));
            for group in disk.queued.iter().skip(old).filter(|_| !settled) {
                writeln!(out, "disk {id}: {}", group_text(group)).unwrap();
            }
        }
        let sent = std::mem::take(&mut world.flying);
        for flying in &sent {
            writeln!(out, "{} -> {}: {}", flying.from, flying.to, text(&flying.message())).unwrap();
        }
        self.sent.extend(sent);
        if world.rounds_confirmed > self.rounds {
            writeln!(out, "the read is confirmed").unwrap();
        }
        self.rounds = world.rounds_confirmed;
        self.printed = status;
    }

    fn status(&mut self) -> BTreeMap<NodeId, Status> {
        let world = self.world.as_ref().expect("a cluster");
        let mut status = BTreeMap::new();
        for (id, member) in &world.members {
            let consensus = member.consensus.as_ref();
            let commit = consensus.map_or(LogIndex(0), Consensus::commit);
            let standing = consensus.map_or_else(|| "is down".to_owned(), standing);
            let queued = member.disk.look().queued.len();
            status.insert(*id, Status { standing, commit, applied: member.applied, queued });
        }
        status
    }
}

fn standing(consensus: &Consensus) -> String {
    let term = consensus.term();
    match (consensus.role(), consensus.leader()) {
        (RaftRole::Leader, _) => format!("leader of term {term}"),
        (RaftRole::Candidate, _) => format!("candidate in term {term}"),
        (RaftRole::PreCandidate, _) => format!("pre-candidate in term {term}"),
        (RaftRole::Follower, Some(leader)) => format!("follower of {leader} in term {term}"),
        (RaftRole::Follower, None) => format!("follower in term {term}"),
    }
}

fn log(world: &World, id: u64) -> String {
    let disk = world.disk(id);
    let disk = disk.look();
    let entries: Vec<_> = disk.entries.iter().map(entry_text).collect();
    format!("disk {id} has {}@{} {}", disk.base.index, disk.base.term, entries.join(" "))
}

fn group_text(group: &wal::Group) -> String {
    let mut parts = Vec::new();
    if let Some(base) = group.base {
        parts.push(format!("snapshot {}@{}", base.index, base.term));
    }
    if let Some(state) = &group.hard_state {
        let vote = state.vote.map_or("none".to_owned(), |vote| vote.to_string());
        parts.push(format!("term {}, vote {vote}, commit {}", state.term, state.commit));
    }
    parts.extend(group.entries.iter().map(entry_text));
    format!("write {}", parts.join(", "))
}

fn entry_text(entry: &wal::Entry) -> String {
    let place = format!("{}@{}", entry.index, entry.term);
    match entry.kind {
        wal::EntryKind::Membership => format!("{place}=(membership)"),
        wal::EntryKind::Data if entry.data.is_empty() => place,
        wal::EntryKind::Data => format!("{place}={}", String::from_utf8_lossy(&entry.data)),
    }
}

/// Returns a message as text. The terms of the Raft paper are used where there are any.
fn text(message: &Message) -> String {
    let (term, index, at) = (message.term, message.index, message.log_term);
    let outcome = |granted: &str| if message.reject { "rejected" } else { granted }.to_owned();
    let rest = match message.get_msg_type() {
        MessageType::MsgRequestPreVote => format!("pre-vote request, last entry {index}@{at}"),
        MessageType::MsgRequestPreVoteResponse => format!("pre-vote {}", outcome("granted")),
        MessageType::MsgRequestVote => format!("vote request, last entry {index}@{at}"),
        MessageType::MsgRequestVoteResponse => format!("vote {}", outcome("granted")),
        MessageType::MsgAppend => {
            let entries = message.entries.iter().map(|entry| {
                let place = format!(" {}@{}", entry.index, entry.term);
                let is_data = entry.get_entry_type() == raft::eraftpb::EntryType::EntryNormal;
                match (is_data, entry.data.is_empty()) {
                    (true, true) => place,
                    (true, false) => format!("{place}={}", String::from_utf8_lossy(&entry.data)),
                    (false, _) => format!("{place}=(membership)"),
                }
            });
            let entries = entries.collect::<String>();
            format!("append after {index}@{at}:{entries}; commit {}", message.commit)
        }
        MessageType::MsgAppendResponse if message.reject => {
            format!("append rejected at {index}, hint {}@{at}", message.reject_hint)
        }
        MessageType::MsgAppendResponse => format!("has entries up to {index}"),
        MessageType::MsgHeartbeat => format!("heartbeat, commit {}", message.commit),
        MessageType::MsgHeartbeatResponse => "heartbeat response".to_owned(),
        MessageType::MsgTimeoutNow => "campaign now".to_owned(),
        MessageType::MsgSnapshot => {
            let metadata = message.get_snapshot().get_metadata();
            format!("snapshot {}@{} is offered", metadata.index, metadata.term)
        }
        other => format!("{other:?}"),
    };
    format!("{rest} (term {})", Term(term))
}

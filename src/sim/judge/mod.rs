//! Checks the invariants while the world runs. The judge sees what no node sees: true time, every replica, and every
//! reply to every caller. `docs/assurance/invariants.md` lists the invariants by their short names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

mod answers;
mod broad;
mod counter;
mod diligence;
mod early;
mod leases;
mod lines;
mod locks;
mod members;
mod observers;
mod peers;
mod queues;
mod standing;
mod toolbox;

use answers::Callers;
pub(crate) use answers::{CallId, Sign};
pub(crate) use broad::BROAD;
use counter::CounterCounts;
pub(crate) use counter::{Amount, COUNTER};
use diligence::Diligence;
use leases::LeaseJudge;
pub(crate) use lines::EntryShare;
use locks::LockJudge;
pub(crate) use locks::{HolderId, ReportedHold, WorkId};
use members::Roll;
use peers::PeerJudge;
use queues::Queues;
pub(crate) use queues::{DeliveryId, QueuesTaken};
pub(crate) use toolbox::NUMBERED;
use toolbox::Toolbox;

use super::clock::Timeline;
use super::process::SimProcess;
use super::scenario::{Rows, RowsCheck};
use super::truth::Truth;
use super::violation::Violation;
use super::world::place;
use crate::model::{Event, EventKind, LogIndex, NodeId, Revision, Term};
use crate::node::Look;

/// Number of log entries that are compared at a time, because reading a log costs more than comparing.
const COMPARE_AT_ONCE: u64 = 64;

/// Number of revisions that are compared at a time, for a replica that adds nothing new. Its digest is always
/// compared.
const ENTRIES_AT_ONCE: u64 = 16;

/// Number of digests of recent entries that are kept.
const DIGESTS_KEPT: usize = 20_000;

/// The observations of one node.
#[derive(Clone, Copy, Default)]
struct JudgeSeen {
    /// The term in this incarnation.
    term: Term,
    commit: LogIndex,
    applied: LogIndex,
    /// Index of the first entry in its log.
    first: LogIndex,
    /// The entries up to here have been compared with those of other nodes.
    compared: LogIndex,
    /// The newest revision that its readers have seen in this incarnation.
    revision: Revision,
    paused_since: Option<Duration>,
    /// The total time that it was paused.
    paused: Duration,
}

/// The progress of a node before a turn.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    pub(crate) commit: LogIndex,
    pub(crate) applied: LogIndex,
    pub(crate) term: Term,
}

/// Counts of operations and events.
#[derive(Clone, Debug, Default)]
pub(crate) struct JudgeTally {
    /// Operations with a definite reply, by name.
    pub(crate) done: BTreeMap<&'static str, u64>,
    /// Operations that were reported as not applied.
    pub(crate) not_applied: u64,
    /// Operations whose outcome was reported as unknown.
    pub(crate) unknown: u64,
    /// Operations whose node ended before they did.
    pub(crate) detached: u64,
    /// Other events, by name.
    pub(crate) others: BTreeMap<&'static str, u64>,
    /// Number of events that watches have yielded.
    pub(crate) watched: u64,
    /// Number of grants of each lock.
    pub(crate) grants: BTreeMap<&'static str, u64>,
    /// In the calm phase, the longest wait for a lock that no program believed it held.
    pub(crate) idle_max: Duration,
    /// The highest number of times that a lock was passed on within a node while others waited.
    pub(crate) passes_max: u32,
}

impl JudgeTally {
    pub(crate) fn acknowledged(&self) -> u64 {
        self.done.values().sum()
    }

    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = self.others.clone();
        for (what, times) in &self.done {
            *counts.entry(what).or_default() += times;
        }
        counts
    }
}

/// The judge of a world.
#[derive(Default)]
pub(crate) struct Judge {
    timeline: Arc<Timeline>,
    truth: Truth,
    violation: Option<Violation>,
    seen: Vec<JudgeSeen>,
    leaders: BTreeMap<Term, NodeId>,
    roll: Roll,
    /// The checks of a user's scenario on the rows of each revision.
    of_rows: Option<Vec<(&'static str, RowsCheck)>>,
    /// Term and hash of every entry that any node has applied, from index 2 on.
    entries: BTreeMap<LogIndex, (Term, u64)>,
    digests: BTreeMap<LogIndex, (u64, NodeId)>,
    callers: Callers,
    peers: PeerJudge,
    locks: LockJudge,
    queues: Queues,
    toolbox: Toolbox,
    counts: CounterCounts,
    leases: LeaseJudge,
    diligence: Diligence,
    /// The next id to assign.
    next: u64,
    pub(crate) tally: JudgeTally,
}

impl Judge {
    pub(crate) fn new(timeline: Arc<Timeline>, nodes: u64) -> Self {
        let nodes = usize::try_from(nodes).expect("few");
        Self { timeline, seen: vec![JudgeSeen::default(); nodes], ..Self::default() }
    }

    /// Runs the pending checks.
    ///
    /// # Errors
    /// Returns the first broken invariant.
    pub(crate) fn verdict(&mut self) -> Result<(), Violation> {
        self.check_calls();
        match &self.violation {
            Some(violation) => Err(violation.clone()),
            None => Ok(()),
        }
    }

    pub(crate) fn truth(&self) -> &Truth {
        &self.truth
    }

    /// Takes the result of a check and records its violation.
    pub(crate) fn note<T>(&mut self, found: Result<T, Violation>) -> Option<T> {
        match found {
            Ok(value) => Some(value),
            Err(violation) => {
                self.violation.get_or_insert(violation);
                None
            }
        }
    }

    fn broken(&mut self, invariant: &'static str, detail: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation::new(invariant, detail()));
        }
    }

    /// Checks another condition.
    pub(crate) fn expect(
        &mut self,
        so: bool,
        invariant: &'static str,
        detail: impl FnOnce() -> String,
    ) {
        if !so {
            self.broken(invariant, detail);
        }
    }

    /// Counts an event.
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.tally.others.entry(what).or_default() += 1;
    }

    /// Records that a process has started.
    pub(crate) fn started(&mut self, id: NodeId) {
        // The last state of the ended incarnation need not have been durable, except for the facts that its replies
        // have stated. These facts are checked when the judge first inspects the new incarnation.
        if self.seen.len() <= place(id) {
            self.seen.resize(place(id) + 1, JudgeSeen::default());
        }
        let seen = &mut self.seen[place(id)];
        *seen = JudgeSeen { paused: seen.paused, ..JudgeSeen::default() };
        self.peers.started(id);
        self.forget_leader(id);
        self.diligence.started(id);
    }

    /// Records that a process has ended, with its callers and holders.
    pub(crate) fn ended(&mut self, id: NodeId) {
        let seen = &mut self.seen[place(id)];
        seen.paused_since = None;
        self.callers_ended(id);
        self.members_ended(id);
        self.locks.ended(id);
        self.queues.ended(id);
        self.toolbox.ended(id);
    }

    pub(crate) fn paused(&mut self, id: NodeId) {
        self.seen[place(id)].paused_since = Some(self.timeline.now());
    }

    pub(crate) fn resumed(&mut self, id: NodeId) {
        let now = self.timeline.now();
        let seen = &mut self.seen[place(id)];
        if let Some(since) = seen.paused_since.take() {
            seen.paused += now - since;
        }
    }

    /// Returns the total time that a node was paused.
    pub(crate) fn paused_time(&self, id: NodeId) -> Duration {
        let JudgeSeen { paused, paused_since, .. } = self.seen[place(id)];
        paused + paused_since.map_or(Duration::ZERO, |since| self.timeline.now() - since)
    }

    /// Checks a node after a turn of its driver. Returns its progress before the turn.
    pub(crate) fn look(&mut self, id: NodeId, process: &SimProcess, look: &Look) -> Before {
        let is_news = look.revision > self.truth.newest();
        if is_news || look.revision.get() >= process.shown().get() + ENTRIES_AT_ONCE {
            self.hear(process);
        }
        self.follow_members(id, process, self.seen[place(id)].applied);
        let JudgeSeen { term, commit, applied, revision, .. } = self.seen[place(id)];
        if look.term < term {
            self.broken("R-TERM", || format!("{id:?} goes from {term:?} back to {:?}", look.term));
        }
        if look.commit < commit {
            self.broken("R-COMMIT", || format!("{id:?}: {commit:?}, then {:?}", look.commit));
        }
        if look.applied < applied || look.applied > look.commit {
            self.broken("R-APPLIED", || format!("{id:?}: {applied:?}, then {look:?}"));
        }
        if look.revision < revision {
            self.broken("M-MONO", || format!("{id:?}: {revision:?}, then {look:?}"));
        }
        if look.leads {
            self.check_leader(id, look.term);
            self.check_leading(id, process);
        }
        self.expect(!process.is_ahead_of_disk(), "R-PERSIST", || {
            format!("{id:?} has handed out an entry that its log is still to write")
        });
        self.check_company(id, process, look);
        self.check_memory(id, process, look);
        self.check_diligence(id, process, look);
        self.follow_leases(look.applied, process);
        let (had, first) = (self.seen[place(id)].first, process.first());
        if applied > LogIndex(0) && look.applied > applied && first > applied.next() {
            self.count("snapshot installed");
        } else if had > LogIndex(0) && first > had {
            self.count("log cut behind a snapshot");
            let covered = process.snapshot();
            self.expect(covered.is_none_or(|covered| first <= covered.next()), "S-CUT", || {
                format!(
                    "{id:?}: the log begins at {first:?}, the newest snapshot ends at {covered:?}"
                )
            });
        }
        // Skip the check before the cluster is founded, because the nodes do not have its members yet.
        if look.term > Term(0) && look.applied > applied {
            self.check_digest(id, look.applied, process.digest());
        }
        let compared = self.seen[place(id)].compared;
        if look.applied.get() >= compared.get() + COMPARE_AT_ONCE {
            self.check_entries(id, process, compared, look.applied);
        }
        let seen = &mut self.seen[place(id)];
        seen.term = look.term;
        seen.commit = look.commit;
        seen.applied = look.applied;
        seen.first = first;
        seen.revision = look.revision;
        self.check_holders();
        Before { commit, applied, term }
    }

    /// Records what a node applied before it stopped by itself.
    pub(crate) fn last_look(&mut self, id: NodeId, process: &SimProcess) {
        self.hear(process);
        self.follow_members(id, process, self.seen[place(id)].applied);
    }

    /// Adds what a node has applied to the history.
    pub(crate) fn hear(&mut self, process: &SimProcess) {
        for change in process.take_changes() {
            self.learn(change.revision(), change.events());
        }
    }

    fn learn(&mut self, revision: Revision, events: &[Event]) {
        let news = revision > self.truth.newest();
        let learned = self.truth.learn(revision, events);
        self.note(learned);
        events.iter().for_each(|event| self.check_previous_row(event));
        if let Some(checks) = self.of_rows.clone() {
            if news {
                self.check_rows_of_all(&checks);
            }
            return;
        }
        if news && let Err((invariant, what)) = self.locks.lines.follow(revision, events) {
            self.broken(invariant, || format!("at {revision:?} {what}"));
        }
        for what in std::mem::take(&mut self.locks.lines.handed_over) {
            self.count(what);
        }
        if news {
            self.follow_queues(revision, events);
            self.follow_tools(revision, events);
        }
        let leased =
            |event: &&Event| event.kind == EventKind::Delete && event.kv.key.starts_with(b"lease/");
        for event in events.iter().filter(leased).filter(|_| news) {
            self.lease_key_gone(event);
        }
    }

    /// Switches to a store that a user's scenario owns: these checks of its rows replace those of our own workload.
    pub(crate) fn judge_rows(&mut self, checks: Vec<(&'static str, RowsCheck)>) {
        self.truth.values_repeat();
        // The scenario does not announce its compactions.
        _ = self.may_compact(Revision(u64::MAX));
        self.of_rows = Some(checks);
    }

    fn check_rows_of_all(&mut self, checks: &[(&'static str, RowsCheck)]) {
        for (name, check) in checks {
            if let Err(why) = check(&Rows::newest(&self.truth)) {
                let newest = self.truth.newest();
                self.broken(name, || format!("at {newest:?}: {why}"));
            }
        }
    }

    fn check_leader(&mut self, id: NodeId, term: Term) {
        let other = *self.leaders.entry(term).or_insert(id);
        if other != id {
            self.broken("R-ELECT", || format!("{other:?} and {id:?} both lead {term:?}"));
        }
    }

    fn check_digest(&mut self, id: NodeId, index: LogIndex, digest: u64) {
        let (other, first) = *self.digests.entry(index).or_insert((digest, id));
        if other != digest {
            self.broken("M-HASH", || {
                format!("at {index:?} {first:?} has {other:016x} and {id:?} has {digest:016x}")
            });
        }
        if self.digests.len() > DIGESTS_KEPT {
            self.digests.pop_first();
        }
    }

    /// Compares everything that a node has applied and that was not compared yet.
    pub(crate) fn compare_rest(&mut self, id: NodeId, process: &SimProcess) {
        self.hear(process);
        let JudgeSeen { compared, applied, .. } = self.seen[place(id)];
        self.check_entries(id, process, compared, applied);
    }

    fn check_entries(&mut self, id: NodeId, process: &SimProcess, from: LogIndex, to: LogIndex) {
        // A node that has just received a snapshot has no term until the snapshot is in its log. Until then, the log
        // may contain older entries, which the node never applied.
        if process.look().term == Term(0) {
            return;
        }
        self.seen[place(id)].compared = to;
        for (index, term, hash) in process.entries(from, to) {
            let first = *self.entries.entry(index).or_insert((term, hash));
            if first != (term, hash) {
                self.broken("R-SM", || {
                    format!("{id:?} applies {term:?} {hash:08x} at {index:?}, another {first:?}")
                });
            }
        }
    }

    /// Returns how often leadership has changed.
    pub(crate) fn leader_changes(&self) -> u64 {
        (self.leaders.len() as u64).saturating_sub(1)
    }
}

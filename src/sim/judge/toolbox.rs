//! Judges the smaller recipes: counters, latches, barriers, groups, views and run-once.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::world::place;
use super::Judge;
use crate::model::{Event, EventKind, KeyRange, KeyValue, LeaseId, NodeId, Revision};
use crate::recipes::SequentialKey;

/// Prefix of numbered keys.
pub(crate) const NUMBERED: &str = "tool/number-";

/// The id of a follower of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FollowerId(u64);

/// A member of a group as a follower sees it: its key and revision of creation.
pub(crate) type Member = (Bytes, Revision);

/// The sums of the steps of a counter or latch.
#[derive(Clone, Copy, Default, Debug)]
struct ToolboxSteps {
    /// Steps whose calls were acknowledged.
    known: u64,
    /// Steps that may have been made.
    perhaps: u64,
    /// Steps that were made.
    made: u64,
}

/// The state of the judge for these recipes.
#[derive(Default)]
pub(super) struct Toolbox {
    steps: BTreeMap<&'static str, ToolboxSteps>,
    results: BTreeMap<Bytes, Bytes>,
    /// Number of numbered keys.
    numbers: u64,
    /// For each round of a double barrier, the entries of the participants inside.
    inside: BTreeMap<Revision, BTreeSet<Revision>>,
    followers: BTreeMap<FollowerId, (NodeId, &'static str, BTreeSet<Member>)>,
}

impl Toolbox {
    /// Forgets the followers of a process that has ended.
    pub(super) fn ended(&mut self, node: NodeId) {
        self.followers.retain(|_, (of, ..)| *of != node);
    }
}

/// Returns the number in a row, or 0 without a row.
pub(super) fn number(row: Option<&KeyValue>) -> u64 {
    let text = row.map_or("0", |row| std::str::from_utf8(&row.value).unwrap_or_default());
    text.parse().unwrap_or(u64::MAX / 2)
}

impl Judge {
    // ---- latches ---------------------------------------------------------------------------

    /// Records that a step by this amount will be requested.
    pub(crate) fn will_step(&mut self, key: &'static str, by: u64) {
        self.toolbox.steps.entry(key).or_default().perhaps += by;
    }

    /// Records the outcome of a step: it was made or not.
    pub(crate) fn stepped(&mut self, key: &'static str, by: u64, is_made: bool) {
        let steps = self.toolbox.steps.entry(key).or_default();
        steps.perhaps -= by;
        steps.known += if is_made { by } else { 0 };
        self.check_steps(key);
    }

    /// Checks that the steps made are at least the acknowledged ones and at most those plus the uncertain ones.
    fn check_steps(&mut self, key: &'static str) {
        let steps = self.toolbox.steps.get(key).copied().unwrap_or_default();
        let fits = steps.known <= steps.made && steps.made <= steps.known + steps.perhaps;
        self.expect(fits, "T-SUM", || format!("{key} has come by {steps:?}"));
    }

    /// Checks the reply that one revision after `floor` changed the number in a key from `from` to `to`.
    pub(crate) fn went(&mut self, key: &'static str, from: u64, to: u64, floor: Revision) {
        // The count is 0 at first.
        let mut before = 0;
        let is_it = |(at, row): (Revision, Option<&KeyValue>)| {
            let step = (std::mem::replace(&mut before, number(row)), number(row));
            at > floor && step == (from, to)
        };
        if !self.truth.changes(key.as_bytes()).any(is_it) {
            let last = self.truth.changes(key.as_bytes()).rev().take(4).collect::<Vec<_>>();
            let last = format!("{last:?}");
            self.broken("T-SUM", || {
                format!("{key} is said to go from {from} to {to} after {floor:?}; last: {last}")
            });
        }
        self.count(key);
    }

    /// Follows the numbers of the recipes.
    pub(super) fn follow_tools(&mut self, revision: Revision, events: &[Event]) {
        for event in events {
            let key = event.kv.key.clone();
            let before = number(self.truth.row_at(&key, Revision(revision.get() - 1)));
            let after = match event.kind {
                EventKind::Put => number(Some(&event.kv)),
                EventKind::Delete => 0,
            };
            let (what, by) = match &key[..] {
                b"tool/counter" => {
                    self.follow_counter(event);
                    continue;
                }
                // This event creates the row. It starts a new round, so it is not a step of the latch.
                b"tool/latch" if event.kv.version == 1 => continue,
                b"tool/latch" => ("tool/latch", before.wrapping_sub(after)),
                _ => {
                    self.follow_numbers(event);
                    continue;
                }
            };
            let steps = self.toolbox.steps.entry(what).or_default();
            steps.made = steps.made.wrapping_add(by);
            self.check_steps(what);
        }
    }

    // ---- numbers ---------------------------------------------------------------------------

    /// Checks the reply that a key was numbered, after `floor`.
    pub(crate) fn numbered(&mut self, floor: Revision, made: &SequentialKey, value: &Bytes) {
        let key = format!("{NUMBERED}{:010}", made.number);
        self.expect(made.key == key, "T-NUMBER", || format!("{made:?} is not {key}"));
        self.wrote(
            "sequence key created",
            floor,
            made.revision,
            &[(made.key.clone(), value.clone())],
        );
        self.count("sequence key created");
    }

    /// Checks that each new key has the number after the last one.
    fn follow_numbers(&mut self, event: &Event) {
        let Some(digits) = event.kv.key.strip_prefix(NUMBERED.as_bytes()) else { return };
        if event.kind == EventKind::Delete {
            return;
        }
        let next = self.toolbox.numbers;
        let is_next = digits == format!("{next:010}").as_bytes() && event.kv.version == 1;
        self.expect(is_next, "T-NUMBER", || format!("{event:?} is made, and {next} is next"));
        self.toolbox.numbers += 1;
    }

    // ---- waiting ---------------------------------------------------------------------------

    /// Checks that a wait for the deletion of a key, begun at `floor`, has ended rightly.
    pub(crate) fn passed(&mut self, key: &'static str, floor: Revision) {
        let was_there = |at| self.truth.row_at(key.as_bytes(), at).is_some();
        if was_there(floor) && !self.truth.was_deleted_after(key.as_bytes(), floor) {
            let row = self.truth.row_at(key.as_bytes(), floor).cloned();
            self.broken("T-WAIT", || format!("somebody has passed {key}, which is {row:?}"));
        }
        self.count(key);
    }

    /// Checks that a participant of a double barrier may begin a round that the entry of `round` completes.
    pub(crate) fn is_inside(&mut self, name: &str, lease: LeaseId, round: Revision, all: usize) {
        let rows = self.truth.rows_at(&KeyRange::prefix(format!("{name}/")), round);
        let places = rows.iter().filter(|row| row.lease.is_some()).count();
        let mine: Vec<Revision> = rows
            .iter()
            .filter(|row| row.lease == Some(lease))
            .map(|row| row.create_revision)
            .collect();
        let right = places >= all && !mine.is_empty();
        self.expect(right, "T-ROUND", || {
            format!("{lease:?} is in round {round:?} of {name}, of {places} places")
        });
        let inside = self.toolbox.inside.entry(round).or_default();
        inside.extend(mine.last());
        let count = inside.len();
        self.expect(count <= all, "T-ROUND", || {
            format!("{count} are in round {round:?} of {name}, which is for {all}")
        });
        self.count("double barrier entered");
    }

    /// Checks the reply that all other participants have left a round.
    pub(crate) fn all_have_left(&mut self, name: &str, round: Revision) {
        let newest = self.truth.newest();
        let rows = self.truth.rows_at(&KeyRange::prefix(format!("{name}/")), newest);
        let left = rows
            .into_iter()
            .find(|row| row.lease.is_some() && row.create_revision <= round)
            .cloned();
        self.expect(left.is_none(), "T-ROUND", || {
            format!("all are said to have left round {round:?} of {name}; there is {left:?}")
        });
        self.count("double barrier left");
    }

    // ---- run-once --------------------------------------------------------------------------

    /// Checks that all callers get the same result.
    pub(crate) fn ran_once(&mut self, name: &Bytes, result: &Bytes) {
        let first = self.toolbox.results.entry(name.clone()).or_insert_with(|| result.clone());
        let first = first.clone();
        self.expect(first == *result, "T-ONCE", || {
            format!("of {name:?} came {first:?} and {result:?}")
        });
        self.count("run once");
    }

    // ---- groups and views ------------------------------------------------------------------

    /// Checks the reply that a member has joined or left.
    pub(crate) fn is_member(&mut self, key: &Bytes, since: Revision, is_there: bool) {
        let at = if is_there { since } else { self.truth.newest() };
        let row = self.truth.row_at(key, at).cloned();
        let found = row.as_ref().is_some_and(|row| row.create_revision == since);
        self.expect(found == is_there, "T-GROUP", || {
            format!("{key:?} of {since:?} is a member at {at:?}: {is_there}, and is {row:?}")
        });
        self.count(if is_there { "member joined" } else { "member left" });
    }

    /// Records that a program on a node follows a group from now on.
    pub(crate) fn follower_begins(&mut self, node: NodeId, group: &'static str) -> FollowerId {
        let id = FollowerId(self.next);
        self.next += 1;
        self.toolbox.followers.insert(id, (node, group, BTreeSet::new()));
        id
    }

    /// Records the members that the follower knows now.
    pub(crate) fn record_follower_view(&mut self, id: FollowerId, members: BTreeSet<Member>) {
        if let Some((.., known)) = self.toolbox.followers.get_mut(&id) {
            *known = members;
        }
        self.count("group watched");
    }

    /// Returns a description of a follower on one of these nodes that does not know the current members.
    pub(crate) fn missing_follower_members(&self, nodes: &[usize]) -> Option<String> {
        let here = |node: NodeId| nodes.contains(&place(node));
        let newest = self.truth.newest();
        let all = self.toolbox.followers.values().filter(|(node, ..)| here(*node));
        let mut owing = all.filter_map(|(node, group, known)| {
            let rows = self.truth.rows_at(&KeyRange::prefix(format!("{group}/")), newest);
            let is: BTreeSet<Member> =
                rows.into_iter().map(|row| (row.key.clone(), row.create_revision)).collect();
            (is != *known).then(|| format!("{node:?} knows {known:?} of {group}, which is {is:?}"))
        });
        owing.next()
    }

    /// Checks that a view shows the rows of one revision.
    pub(crate) fn viewed(&mut self, range: &KeyRange, revision: Revision, rows: &[KeyValue]) {
        self.check_rows("T-VIEW", range, revision, rows);
        self.count("cached range read");
    }
}

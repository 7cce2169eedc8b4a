//! The judge of the toolbox: counters, latches, barriers, groups, views, and what is to be done once.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::world::place;
use super::Judge;
use crate::model::{Event, EventKind, KeyRange, KeyValue, LeaseId, NodeId, Revision};
use crate::recipes::SequentialKey;

/// What stands before the number of a key.
pub(crate) const NUMBERED: &str = "tool/number-";

/// Names somebody who follows a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FollowerId(u64);

/// A member of a group, as a follower was told: its key, and since when it is there.
pub(crate) type Member = (Bytes, Revision);

/// What steps something has come by, in sums.
#[derive(Clone, Copy, Default, Debug)]
struct Steps {
    /// Those that were answered.
    known: u64,
    /// Those that may have been made.
    perhaps: u64,
    /// Those that were made.
    made: u64,
}

/// What the judge knows of the toolbox.
#[derive(Default)]
pub(super) struct Toolbox {
    steps: BTreeMap<&'static str, Steps>,
    results: BTreeMap<Bytes, Bytes>,
    /// How many keys were numbered.
    numbers: u64,
    /// The places of those who are inside a double barrier, by round.
    inside: BTreeMap<Revision, BTreeSet<Revision>>,
    followers: BTreeMap<FollowerId, (NodeId, &'static str, BTreeSet<Member>)>,
}

impl Toolbox {
    /// A process has ended.
    pub(super) fn ended(&mut self, node: NodeId) {
        self.followers.retain(|_, (of, ..)| *of != node);
    }
}

/// The number that a row says; none says 0.
pub(super) fn number(row: Option<&KeyValue>) -> u64 {
    let text = row.map_or("0", |row| std::str::from_utf8(&row.value).unwrap_or_default());
    text.parse().unwrap_or(u64::MAX / 2)
}

impl Judge {
    // ---- latches ---------------------------------------------------------------------------

    /// A step of so much will be asked for.
    pub(crate) fn will_step(&mut self, key: &'static str, by: u64) {
        self.toolbox.steps.entry(key).or_default().perhaps += by;
    }

    /// It was answered by what is left, or was not made.
    pub(crate) fn stepped(&mut self, key: &'static str, by: u64, is_made: bool) {
        let steps = self.toolbox.steps.entry(key).or_default();
        steps.perhaps -= by;
        steps.known += if is_made { by } else { 0 };
        self.check_steps(key);
    }

    /// As many steps were made as were answered, and may have been made beside.
    fn check_steps(&mut self, key: &'static str) {
        let steps = self.toolbox.steps.get(key).copied().unwrap_or_default();
        let fits = steps.known <= steps.made && steps.made <= steps.known + steps.perhaps;
        self.expect(fits, "T-SUM", || format!("{key} has come by {steps:?}"));
    }

    /// From one number to another, in one revision after `floor`: that was told.
    pub(crate) fn went(&mut self, key: &'static str, from: u64, to: u64, floor: Revision) {
        // It begins from nothing.
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

    /// Follows the numbers.
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
                // A round begins from nothing.
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

    /// A key was numbered, after `floor`.
    pub(crate) fn numbered(&mut self, floor: Revision, made: &SequentialKey, value: &Bytes) {
        let key = format!("{NUMBERED}{:010}", made.number);
        self.expect(made.key == key, "T-NUMBER", || format!("{made:?} is not {key}"));
        self.wrote("key numbered", floor, made.revision, &[(made.key.clone(), value.clone())]);
        self.count("key numbered");
    }

    /// Each key that is made has the number after that of the last.
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

    /// Whoever waited until a key is gone, since the store was at `floor`, goes on.
    pub(crate) fn passed(&mut self, key: &'static str, floor: Revision) {
        let was_there = |at| self.truth.row_at(key.as_bytes(), at).is_some();
        if was_there(floor) && !self.truth.went_after(key.as_bytes(), floor) {
            let row = self.truth.row_at(key.as_bytes(), floor).cloned();
            self.broken("T-WAIT", || format!("somebody has passed {key}, which is {row:?}"));
        }
        self.count(key);
    }

    /// Whoever is in a place of a double barrier begins a round, which ends with the place of `round`.
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
        self.count("inside a double barrier");
    }

    /// Whoever has left a round was told that all others have.
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
        self.count("out of a double barrier");
    }

    // ---- what is to be done once -----------------------------------------------------------

    /// What came of it is what came of it for everybody.
    pub(crate) fn ran_once(&mut self, name: &Bytes, result: &Bytes) {
        let first = self.toolbox.results.entry(name.clone()).or_insert_with(|| result.clone());
        let first = first.clone();
        self.expect(first == *result, "T-ONCE", || {
            format!("of {name:?} came {first:?} and {result:?}")
        });
        self.count("run once");
    }

    // ---- groups and views ------------------------------------------------------------------

    /// Somebody has joined, or left.
    pub(crate) fn is_member(&mut self, key: &Bytes, since: Revision, is_there: bool) {
        let at = if is_there { since } else { self.truth.newest() };
        let row = self.truth.row_at(key, at).cloned();
        let found = row.as_ref().is_some_and(|row| row.create_revision == since);
        self.expect(found == is_there, "T-GROUP", || {
            format!("{key:?} of {since:?} is a member at {at:?}: {is_there}, and is {row:?}")
        });
        self.count(if is_there { "member joined" } else { "member left" });
    }

    /// A program on a node follows a group from now on.
    pub(crate) fn follower_begins(&mut self, node: NodeId, group: &'static str) -> FollowerId {
        let id = FollowerId(self.next);
        self.next += 1;
        self.toolbox.followers.insert(id, (node, group, BTreeSet::new()));
        id
    }

    /// It knows these members now.
    pub(crate) fn follower_knows(&mut self, id: FollowerId, members: BTreeSet<Member>) {
        if let Some((.., known)) = self.toolbox.followers.get_mut(&id) {
            *known = members;
        }
        self.count("group followed");
    }

    /// Whether a follower on one of these nodes does not know what is the case.
    pub(crate) fn follower_owes(&self, nodes: &[usize]) -> Option<String> {
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

    /// A view shows these rows, of one revision.
    pub(crate) fn viewed(&mut self, range: &KeyRange, revision: Revision, rows: &[KeyValue]) {
        self.check_rows("T-VIEW", range, revision, rows);
        self.count("view");
    }
}

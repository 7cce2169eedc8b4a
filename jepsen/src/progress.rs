//! Whether a run did enough to mean anything: a run in which nothing happened is not green but invalid.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ledger::{End, Entry};
use crate::nemesis::Wants;

/// A fault, from begin to end, in microseconds of the run's clock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Window {
    /// When it began.
    pub begin: u64,
    /// When it was undone.
    pub end: u64,
    /// What it did.
    pub what: String,
}

/// How operations of one kind ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Well.
    pub ok: u64,
    /// Certainly without effect.
    pub failed: u64,
    /// Nobody knows.
    pub unknown: u64,
}

/// How many operations of each kind ended how.
pub fn counts(entries: &[Entry]) -> BTreeMap<&'static str, Count> {
    let mut counts: BTreeMap<&'static str, Count> = BTreeMap::new();
    for entry in entries {
        let count = counts.entry(entry.kind).or_default();
        match entry.end {
            End::Ok => count.ok += 1,
            End::Failed => count.failed += 1,
            End::Unknown => count.unknown += 1,
        }
    }
    counts
}

/// Of a hundred operations so many must end well, faults or not.
const OK_PERCENT_MIN: u64 = 30;

/// What a run has lacked.
pub fn lacks(
    entries: &[Entry],
    windows: &[Window],
    leader_changes: u64,
    least: &[(&'static str, u64)],
    wants: Wants,
    load_seconds: u64,
) -> Vec<String> {
    const MINUTE: u64 = 60;
    let counts = counts(entries);
    let mut lacks = Vec::new();
    for (kind, per_minute) in least {
        let ok = counts.get(kind).map_or(0, |count| count.ok);
        let wanted = (per_minute * load_seconds / MINUTE).max(1);
        if ok < wanted {
            lacks.push(format!("{ok} of kind {kind} ended well, {wanted} are the least"));
        }
    }
    let ok: u64 = counts.values().map(|count| count.ok).sum();
    if ok * 100 < entries.len() as u64 * OK_PERCENT_MIN {
        lacks.push(format!("only {ok} of {} operations ended well", entries.len()));
    }
    if windows.is_empty() {
        lacks.push("no fault was begun".to_owned());
    }
    if wants.progress_inside {
        for window in windows {
            let inside = |entry: &&Entry| {
                entry.end == End::Ok && entry.invoked >= window.begin && entry.ended <= window.end
            };
            if entries.iter().find(inside).is_none() {
                lacks.push(format!("nothing ended well while: {}", window.what));
            }
        }
    }
    if wants.leader_change && leader_changes == 0 {
        lacks.push("the leader never changed".to_owned());
    }
    lacks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: &'static str, invoked: u64, end: End) -> Entry {
        Entry { client: 1, member: 0, kind, invoked, ended: invoked + 1, end, why: None }
    }

    fn window(begin: u64) -> Window {
        Window { begin, end: begin + 10, what: "kills m1".to_owned() }
    }

    const LEAST: &[(&str, u64)] = &[("read", 2)];

    #[test]
    fn a_run_that_did_too_little_is_told_what_it_lacks() {
        let wants = Wants::QUORUM_STAYS;
        let reads = [entry("read", 12, End::Ok), entry("read", 30, End::Ok)];
        assert!(lacks(&reads, &[window(10)], 0, LEAST, wants, 60).is_empty());
        assert_eq!(lacks(&reads[..1], &[window(10)], 0, LEAST, wants, 60).len(), 1);
        assert_eq!(lacks(&reads, &[], 0, LEAST, wants, 60).len(), 1);
        assert_eq!(lacks(&reads, &[window(50)], 0, LEAST, wants, 60).len(), 1);
        assert_eq!(lacks(&reads, &[window(10)], 0, LEAST, wants.and_leader_change(), 60).len(), 1);
        let failed = [entry("read", 12, End::Failed), entry("read", 30, End::Unknown)];
        assert_eq!(lacks(&failed, &[window(10)], 0, LEAST, wants, 60).len(), 3);
        assert_eq!(lacks(&[], &[window(10)], 0, &[], Wants::ALL_STOP, 60).len(), 0);
    }
}

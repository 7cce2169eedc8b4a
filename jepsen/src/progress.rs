//! Checks whether enough happened in a run. A run with too few successful operations is reported as invalid instead of
//! ok.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ledger::{End, Entry};
use crate::nemesis::Wants;

/// A fault from beginning to end, in microseconds of the clock of the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Window {
    /// Time at which the fault began.
    pub begin: u64,
    /// Time at which the immediate effects of the fault were complete.
    pub struck: u64,
    /// Time at which the fault was undone.
    pub end: u64,
    /// Description of the fault.
    pub what: String,
    /// Number of targets affected.
    pub hits: u64,
}

/// The outcomes of the operations of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Operations that succeeded.
    pub ok: u64,
    /// Operations without effect.
    pub failed: u64,
    /// Operations of unknown outcome.
    pub unknown: u64,
}

/// Counts the outcomes of the operations of each kind.
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

/// Kind of a take that returned nothing: the queue was empty, or the member received no item.
pub(crate) const NOTHING_TAKEN: &str = "nothing taken";

/// Kind of an acquisition of a lock or leadership that another client of the same member has passed on.
pub(crate) const PASSED_ON: &str = "passed on";

/// Kind of an acquisition of a lock that its owner already held.
pub(crate) const HAD_ALREADY: &str = "already held";

/// Kind of a removal of a member that had not joined.
pub(crate) const NOBODY_REMOVED: &str = "no member removed";

/// Kinds of operations that a member may complete without contact to other members. A release or a resignation may
/// find that the hold is already lost, or the member may pass the hold on to another of its own clients. The list of
/// members is read from the local state of one member, which may be outdated.
const LOCAL: [&str; 11] = [
    "events",
    HAD_ALREADY,
    "look",
    NOBODY_REMOVED,
    NOTHING_TAKEN,
    PASSED_ON,
    "promote",
    "release",
    "remove",
    "resign",
    "watch",
];

/// Returns whether operations of this kind succeed only if the member has contact to a quorum.
pub(crate) fn needs_a_quorum(kind: &str) -> bool {
    !LOCAL.contains(&kind)
}

/// Maximum time until a cluster with a quorum makes progress, as a multiple of the election timeout.
const GOES_ON_AFTER: u32 = 3;

/// Minimum share of operations that must succeed, with or without faults, in percent.
const OK_PERCENT_MIN: u64 = 30;

/// Returns the requirements that a run did not meet.
pub fn lacks(
    entries: &[Entry],
    windows: &[Window],
    leader_changes: &[u64],
    least: &[(&'static str, u64)],
    wants: Wants,
    load_seconds: u64,
    election: Duration,
) -> Vec<String> {
    const MINUTE: u64 = 60;
    let counts = counts(entries);
    let mut lacks = Vec::new();
    for (kind, per_minute) in least {
        let ok = counts.get(kind).map_or(0, |count| count.ok);
        let wanted = (per_minute * load_seconds / MINUTE).max(1);
        if ok < wanted {
            lacks.push(format!(
                "only {ok} operations of kind {kind} succeeded, at least {wanted} are required"
            ));
        }
    }
    let ok: u64 = counts.values().map(|count| count.ok).sum();
    if ok * 100 < entries.len() as u64 * OK_PERCENT_MIN {
        lacks.push(format!("only {ok} of {} operations succeeded", entries.len()));
    }
    if windows.is_empty() {
        lacks.push("no fault began".to_owned());
    } else if windows.iter().all(|window| window.hits == 0) {
        lacks.push("no fault had an effect".to_owned());
    }
    if wants.progress_inside {
        let time = u64::try_from((election * GOES_ON_AFTER).as_micros()).unwrap_or(u64::MAX / 2);
        for window in windows {
            // If the window is not longer than `time`, an operation must succeed in its second half.
            let length = window.end - window.struck;
            let pause = if time < length { time } else { length / 2 };
            // An operation that was called before the fault, or answered at once, may have had its quorum before the
            // fault.
            let inside = |entry: &&Entry| {
                entry.end == End::Ok
                    && needs_a_quorum(entry.kind)
                    && entry.invoked >= window.struck
                    && (window.struck + pause..=window.end).contains(&entry.ended)
            };
            if entries.iter().find(inside).is_none() {
                lacks.push(format!(
                    "no operation that needs a quorum succeeded during: {}",
                    window.what
                ));
            }
        }
    }
    let inside = |at: &u64| windows.iter().any(|of| (of.begin..=of.end).contains(at));
    if wants.leader_change && !leader_changes.iter().any(inside) {
        lacks.push("leadership did not change during any fault".to_owned());
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
        Window { begin, struck: begin + 1, end: begin + 10, what: "kills m1".to_owned(), hits: 1 }
    }

    const LEAST: &[(&str, u64)] = &[("read", 2)];
    /// Three election timeouts of this length have passed 3 µs after the fault.
    const ELECTION: Duration = Duration::from_micros(1);

    fn lacking(entries: &[Entry], windows: &[Window], changes: &[u64], wants: Wants) -> usize {
        lacks(entries, windows, changes, LEAST, wants, 60, ELECTION).len()
    }

    #[test]
    fn run_without_enough_progress_reports_what_is_missing() {
        let wants = Wants::QUORUM_STAYS;
        let reads = [entry("read", 14, End::Ok), entry("read", 30, End::Ok)];
        assert_eq!(lacking(&reads, &[window(10)], &[], wants), 0);
        assert_eq!(lacking(&reads[..1], &[window(10)], &[], wants), 1);
        assert_eq!(lacking(&reads, &[], &[], wants), 1);
        assert_eq!(lacking(&reads, &[window(50)], &[], wants), 1);
        let failed = [entry("read", 14, End::Failed), entry("read", 30, End::Unknown)];
        assert_eq!(lacking(&failed, &[window(10)], &[], wants), 3);
        assert!(lacks(&[], &[window(10)], &[], &[], Wants::ALL_STOP, 60, ELECTION).is_empty());
    }

    #[test]
    fn only_quorum_operations_after_the_fault_count_as_progress() {
        let wants = Wants::QUORUM_STAYS;
        let with = |third| {
            let reads = [entry("read", 30, End::Ok), entry("read", 31, End::Ok), third];
            lacking(&reads, &[window(10)], &[], wants)
        };
        assert_eq!(with(entry("read", 14, End::Ok)), 0);
        assert_eq!(with(entry("read", 12, End::Ok)), 1, "the cluster had time for an election");
        let before = Entry { ended: 15, ..entry("read", 10, End::Ok) };
        assert_eq!(with(before), 1, "called before the fault");
        assert_eq!(with(entry("read", 20, End::Ok)), 1, "ended with the fault");
        for kind in ["release", "resign", "remove", "promote"] {
            assert!(LOCAL.contains(&kind), "{kind}");
        }
        for local in LOCAL {
            assert_eq!(with(entry(local, 14, End::Ok)), 1, "{local}: needs no quorum");
        }
    }

    #[test]
    fn nemesis_that_hits_no_target_in_a_run_does_not_count() {
        let reads = [entry("read", 14, End::Ok), entry("read", 34, End::Ok)];
        let nobody = |begin| Window { hits: 0, ..window(begin) };
        let wants = Wants::QUORUM_STAYS;
        assert_eq!(lacking(&reads, &[nobody(10), window(30)], &[], wants), 0);
        assert_eq!(lacking(&reads, &[nobody(10), nobody(30)], &[], wants), 1);
    }

    #[test]
    fn leader_change_must_happen_during_the_fault() {
        let wants = Wants::QUORUM_STAYS.and_leader_change();
        let reads = [entry("read", 14, End::Ok), entry("read", 30, End::Ok)];
        assert_eq!(lacking(&reads, &[window(10)], &[], wants), 1);
        assert_eq!(lacking(&reads, &[window(10)], &[9, 21], wants), 1);
        assert_eq!(lacking(&reads, &[window(10)], &[9, 20], wants), 0);
    }
}

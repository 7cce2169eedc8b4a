//! Compares the rules for leases with a search for a possible lifetime, on thousands of small random histories.
//!
//! The oracle does not use the rules. The oracle tries each moment at which the lease may have been granted, each
//! moment at which it may have ended, and each way to end. The oracle then checks whether every reply is possible.
//! If no lifetime explains the history, the history is a violation.

use super::small::Random;
use crate::intervals::{self, LeaseCall, LeaseReply, Leases};
use crate::{History, Operation, Outcome, Value};

/// Number of histories for each set of rules.
const HISTORIES: u64 = 6_000;

/// A time after everything in a history, by its clock.
const LATEST: i64 = 50;

type Lived = History<LeaseCall, LeaseReply>;

/// Draws a history that mostly follows the rules, with slightly wrong clocks.
fn draw(random: &mut Random) -> Lived {
    let lease = || Value::from(7);
    let ttl = 3 + random.below(8);
    let (mut at, mut until) = (0, ttl);
    let operations = 2 + random.below(5);
    let operation = |place: u64| {
        at += random.below(5);
        let call = match random.below(12) {
            0 if place > 0 => LeaseCall::Revoke { lease: lease() },
            _ if place == 0 && random.below(8) > 0 => LeaseCall::Grant { lease: lease(), ttl },
            1 if random.below(3) == 0 => LeaseCall::Grant { lease: lease(), ttl },
            2..6 => LeaseCall::Renew { lease: lease() },
            _ => LeaseCall::Look { lease: lease() },
        };
        let there = match random.below(10) {
            0 => true,
            1 => false,
            _ => at < until,
        } || matches!(call, LeaseCall::Grant { .. });
        if there && !matches!(call, LeaseCall::Look { .. }) {
            until = at + ttl;
        }
        match random.below(10) {
            0 => Operation::unknown(at, call),
            1 => Operation::failed(at, call),
            _ => {
                let end = at + random.below(4);
                Operation::ok(at, end, call, LeaseReply { there, ttl: None })
            }
        }
    };
    (0..operations).map(operation).collect()
}

/// A possible lifetime of a lease, in half moments, so that there is a time between any two moments.
#[derive(Clone, Copy)]
struct Life {
    granted: i64,
    ended: i64,
    /// The operation that revoked it, or `None` if it expired.
    revoked: Option<usize>,
}

/// Returns the times at which an operation may have taken effect. Its clock may have been ahead of all others.
fn span(rules: &Leases, operation: &Operation<LeaseCall, LeaseReply>) -> (i64, i64) {
    let begin = (operation.invoked.0 as i64 - rules.slack as i64) * 2;
    match operation.outcome {
        Outcome::Ok { at, .. } => (begin, at.0 as i64 * 2),
        _ => (begin, LATEST * 2),
    }
}

fn is_ok(operation: &Operation<LeaseCall, LeaseReply>) -> bool {
    matches!(operation.outcome, Outcome::Ok { .. })
}

impl Life {
    /// Returns whether this lifetime explains every reply.
    fn explains(self, rules: &Leases, history: &Lived, ttl: Option<u64>) -> bool {
        let Self { granted, ended, revoked } = self;
        history.iter().enumerate().all(|(index, operation)| {
            let Outcome::Ok { reply, .. } = operation.outcome else { return true };
            let (begin, end) = span(rules, operation);
            let least = |ttl| ttl * (100 - rules.drift_percent) / 100;
            // A lease expires only after its TTL has passed since the last renewal.
            let is_early =
                revoked.is_none() && ttl.is_some_and(|ttl| ended < begin + 2 * least(ttl) as i64);
            match &operation.call {
                LeaseCall::Grant { .. } => (begin..=end).contains(&granted) && !is_early,
                // Two concurrent revocations may both have found the lease.
                LeaseCall::Revoke { .. } if reply.there => {
                    revoked.is_some_and(|by| by == index || is_ok(&history[by]))
                        && (begin..=end).contains(&ended)
                }
                LeaseCall::Renew { .. } if reply.there => {
                    granted <= end && begin <= ended && !is_early
                }
                LeaseCall::Look { .. } if reply.there => granted <= end && begin <= ended,
                _ => end >= ended || begin <= granted,
            }
        })
    }
}

/// Returns whether some lifetime explains the history.
fn is_possible(rules: &Leases, history: &Lived) -> bool {
    let grants = |known: bool| {
        let is_grant = move |operation: &&Operation<LeaseCall, LeaseReply>| {
            matches!(operation.call, LeaseCall::Grant { .. })
                && is_ok(operation) == known
                && !matches!(operation.outcome, Outcome::Failed { .. })
        };
        history.iter().filter(is_grant)
    };
    if grants(true).count() > 1 {
        return false;
    }
    let first = grants(true).next().or_else(|| grants(false).next());
    let ttl = first.map(|grant| match grant.call {
        LeaseCall::Grant { ttl, .. } => ttl,
        _ => unreachable!("it is a grant"),
    });
    // A lease without a grant in the history existed before.
    let granted = match first {
        Some(grant) => (span(rules, grant).0, span(rules, grant).1),
        None => (-LATEST, -LATEST),
    };
    let revokes = history.iter().enumerate().filter(|(_, operation)| {
        let found = match operation.outcome {
            Outcome::Ok { reply, .. } => reply.there,
            Outcome::Unknown { .. } => true,
            Outcome::Failed { .. } => false,
        };
        found && matches!(operation.call, LeaseCall::Revoke { .. })
    });
    let ends: Vec<(Option<usize>, i64, i64)> = revokes
        .map(|(index, revoke)| (Some(index), span(rules, revoke).0, span(rules, revoke).1))
        .chain([(None, granted.0, LATEST * 2 + 1)])
        .collect();
    (granted.0..=granted.1).any(|granted| {
        ends.iter().any(|(revoked, from, to)| {
            (*from.max(&granted)..=*to).any(|ended| {
                Life { granted, ended, revoked: *revoked }.explains(rules, history, ttl)
            })
        })
    })
}

fn judge(rules: Leases) {
    let (mut fine, mut broken) = (0, 0);
    for seed in 0..HISTORIES {
        let history = draw(&mut Random(seed * 1_000_003));
        let verdict = intervals::leases(&rules, &history);
        let possible = is_possible(&rules, &history);
        assert_eq!(verdict.is_ok(), possible, "seed {seed}: {verdict}\n{history:#?}");
        if possible { fine += 1 } else { broken += 1 }
    }
    assert!(fine * 10 >= HISTORIES && broken * 10 >= HISTORIES, "{fine} fine, {broken} broken");
}

#[test]
fn lease_checker_agrees_with_a_check_per_incarnation() {
    judge(Leases::default());
}

#[test]
fn lease_checker_allows_for_clock_drift() {
    judge(Leases { drift_percent: 40, ..Leases::default() });
}

#[test]
fn lease_checker_allows_for_clock_offset() {
    judge(Leases { slack: 2, ..Leases::default() });
}

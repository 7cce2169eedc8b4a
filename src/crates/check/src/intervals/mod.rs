//! Checks locks and leases by the clock: which processes believed that they held a lock and when, and did a lease
//! live as long as promised?
//!
//! The hold of a lock can end without a call, so such a lock cannot be checked as an object with calls and replies. The
//! users of a lock rely on the promise that no two of them *believe* that they hold the lock at one time. Therefore the
//! operation is the hold itself, from the first to the last moment at which its owner believed that it held the lock
//! ([`holds`]). The lifetime of a lease is checked in the same way ([`leases`]).
//!
//! ```text
//! process 1   ├────── token 5 ──────┤             believed: its guard still said "held" afterwards
//! process 2                 ├────── token 6 ──────┤
//!                           └─────┘ both: a violation, if longer than the clocks may differ
//! ```
//!
//! The checkers also compute durations, as differences between moments. All moments and durations of a history have one
//! unit, for instance nanoseconds of one clock. If the processes have different clocks, `slack` is the maximum
//! difference between any two.
//!
//! Never record a hold as longer than it was, or a call as shorter than it was, because this causes false violations.
//! Read the clock first and ask the guard afterwards. If the guard then reports "held", the lock was held at the time
//! that the clock returned, even if the process was paused between the two calls:
//!
//! ```text
//! acquire ─▶ t1 = now ─▶ held? ── yes ─▶ the hold begins at t1
//!            t2 = now ─▶ held? ── yes ─▶ it lasts until t2 at least, and so on, until
//!            tn = now ─▶ held? ── no, or it is released: it ended at the last confirmed moment
//! ```

mod hold_calls;
mod hold_rules;
mod lease_calls;
mod lease_rules;

pub use hold_calls::{HoldCall, HoldKind, HoldReply};
pub use hold_rules::{Holds, holds};
pub use lease_calls::{LeaseCall, LeaseReply};
pub use lease_rules::{Leases, leases};

/// Returns the least time that has passed when a clock with this rate error has measured `duration`.
fn at_least(duration: u64, drift_percent: u64) -> u64 {
    let percent = 100_u64.saturating_sub(drift_percent);
    u64::try_from(u128::from(duration) * u128::from(percent) / 100).expect("it is no longer")
}

/// Returns the most time that may have passed when a clock with this rate error has measured `duration`.
fn at_most(duration: u64, drift_percent: u64) -> u64 {
    let percent = 100 + u128::from(drift_percent);
    u64::try_from(u128::from(duration) * percent / 100).unwrap_or(u64::MAX)
}

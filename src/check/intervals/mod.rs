//! Locks and leases by the clock: who believed to hold what, from when to when, and did a lease live as long as was
//! promised?
//!
//! A lock whose hold can end by itself is no object with calls and replies: nobody calls the end. What its users rely
//! on is that no two of them *believe* to hold it at one time. So the operation here is the hold itself, from the
//! first moment at which its holder believed in it to the last one ([`holds`]). What ends leases is judged
//! the same way ([`leases`]): by moments.
//!
//! ```text
//! process 1   ├────── token 5 ──────┤             believed: its guard said "held" afterwards
//! process 2                 ├────── token 6 ──────┤
//!                           └─────┘ both: a violation, if longer than the clocks may differ
//! ```
//!
//! Here moments are durations, too, in one unit for a whole history: nanoseconds of one clock, for instance. Where the
//! processes have clocks of their own, `slack` is how much any two of them may differ.
//!
//! To take down a hold, be careful to the other side than with calls: what seems longer than it was invents
//! violations. Take the moment first and ask the guard then. If it says "held" it was held at that moment, whatever
//! pause there was in between:
//!
//! ```text
//! acquire ─▶ t1 = now ─▶ held? ── yes ─▶ the hold begins at t1
//!            t2 = now ─▶ held? ── yes ─▶ it lasts until t2 at least, and so on, until
//!            tn = now ─▶ held? ── no, or it is released: it ended at the last moment that was confirmed
//! ```

mod hold_calls;
mod hold_rules;
mod lease_calls;
mod lease_rules;

pub use hold_calls::{HoldCall, HoldKind, HoldReply};
pub use hold_rules::{Holds, holds};
pub use lease_calls::{LeaseCall, LeaseReply};
pub use lease_rules::{Leases, leases};

/// What is left of a duration when a clock may go wrong by so many percent of it.
fn at_least(duration: u64, drift_percent: u64) -> u64 {
    let percent = 100_u64.saturating_sub(drift_percent);
    u64::try_from(u128::from(duration) * u128::from(percent) / 100).expect("it is no longer")
}

/// What a duration may have become when a clock may go wrong by so many percent of it.
fn at_most(duration: u64, drift_percent: u64) -> u64 {
    let percent = 100 + u128::from(drift_percent);
    u64::try_from(u128::from(duration) * percent / 100).unwrap_or(u64::MAX)
}

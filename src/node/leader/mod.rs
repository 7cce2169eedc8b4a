//! The duties of a leader that need no driver: counting leases, and deciding how much history is kept.

pub(super) mod lessor;
pub(super) mod retain;

//! The requests of callers: admission, the quota, the queue of inputs, and writes that have no answer yet.

pub(super) mod admission;
pub(super) mod answer;
pub(super) mod inbox;
pub(super) mod proposals;
pub(super) mod quota;
pub(super) mod rejected_requests;
pub(super) mod request_trace;
pub(super) mod slow;
pub(super) mod writing;

//! The threads of a node: the thread of the log, and running a node on real threads.

pub(super) mod log_worker;
pub(super) mod parker;
pub(super) mod thread;

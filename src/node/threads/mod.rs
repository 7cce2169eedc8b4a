//! The threads of a node: the log's thread, and the code that runs the parts of a node on threads.

pub(super) mod log_worker;
pub(super) mod parker;
pub(super) mod thread;

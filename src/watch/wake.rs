//! What runs code of the host's: to wake a task is to call its executor.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does something that may wake tasks of the host. A panic of its executor is told, and is not this node's.
pub(crate) fn waking(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("the host's executor has panicked while one of its tasks was woken");
    }
}

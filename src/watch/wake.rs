//! What runs code of the host's: to wake a task is to call its executor.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does something that may wake tasks of the host: nothing that this node relies on comes behind the waking. A panic
/// of its executor is told, and is not this node's; `None` then.
pub(crate) fn waking<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    if done.is_err() {
        tracing::error!("the host's executor has panicked while one of its tasks was woken");
    }
    done.ok()
}

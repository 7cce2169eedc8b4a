//! Waking tasks of the host, which runs code of its executor.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`, which may wake tasks of the host. This node must not depend on anything after the
/// wake-up in `work`. If the host's executor panics, logs an error and returns `None`.
pub(crate) fn waking<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    if done.is_err() {
        tracing::error!("host executor panicked while waking a task");
    }
    done.ok()
}

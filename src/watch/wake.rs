//! Wakes tasks of the host program. Waking a task may run arbitrary code of the host's executor.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`, which may wake tasks of the host program. If the host's executor panics, logs an
/// error and returns `None`. The rest of `work` is then skipped, so this node must not depend on
/// the completion of `work`.
pub(crate) fn waking<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    if done.is_err() {
        tracing::error!("host executor panicked while waking a task");
    }
    done.ok()
}

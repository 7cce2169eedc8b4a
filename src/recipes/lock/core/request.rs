//! A lock request.

/// Returns the source location of a request and its task.
pub(crate) fn site(caller: &std::panic::Location<'_>) -> String {
    let (file, line) = (caller.file(), caller.line());
    match tokio::task::try_id() {
        Some(task) => format!("{file}:{line} task {task}"),
        None => format!("{file}:{line}"),
    }
}

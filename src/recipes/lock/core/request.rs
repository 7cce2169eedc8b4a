//! A lock request: what a program asks for when it acquires a lock of any kind.

use std::panic::Location;
use std::time::Duration;

use bytes::Bytes;

use crate::api::Session;
use crate::lock_format::{EntryMetadata, LockMode};
use crate::model::Moment;

use super::error::LockError;

/// Maximum number of names in one request. It keeps the request's transaction within
/// [`Limits`](crate::Limits).
const NAMES_MAX: usize = 30;

/// A lock request of any kind. From the call of the program to the lock table, a request stays this
/// one value.
#[derive(Clone)]
pub(crate) struct LockRequest {
    pub(crate) session: Session,
    /// Names of the locks without a trailing slash, without duplicates.
    pub(crate) names: Vec<Bytes>,
    pub(crate) row: RequestRow,
    /// The owner, whose waits are checked for deadlocks.
    pub(crate) owner: Option<OwnerTag>,
    /// Whether the request fails instead of waiting.
    pub(crate) only_try: bool,
    pub(crate) wait: WaitLimit,
    /// Maximum hold time.
    pub(crate) max_hold: Option<Duration>,
}

/// The value of the request's row.
#[derive(Clone)]
pub(crate) enum RequestRow {
    /// Metadata with the lock mode.
    Request { mode: LockMode, caller: &'static Location<'static>, reason: Option<Bytes> },
    /// The value of a candidate.
    Candidate(Bytes),
}

/// The id and the name of an owner, as written into the row.
#[derive(Clone)]
pub(crate) struct OwnerTag {
    /// Cluster-wide unique id.
    pub(crate) id: String,
    pub(crate) name: String,
}

/// How long a request waits.
#[derive(Clone, Copy)]
pub(crate) enum WaitLimit {
    /// As long as the session lives.
    Session,
    /// From the enqueue for this time.
    For(Duration),
    Until(Moment),
}

impl LockRequest {
    /// Creates a request that waits until the lock can be held in its mode.
    pub(crate) fn new(
        session: &Session,
        names: Vec<Bytes>,
        mode: LockMode,
        caller: &'static Location<'static>,
    ) -> Self {
        Self::of_row(session, names, RequestRow::Request { mode, caller, reason: None })
    }

    /// Creates the request of a candidate.
    pub(crate) fn of_candidate(session: &Session, name: Bytes, value: Bytes) -> Self {
        Self::of_row(session, vec![name], RequestRow::Candidate(value))
    }

    fn of_row(session: &Session, names: Vec<Bytes>, row: RequestRow) -> Self {
        let (session, wait) = (session.clone(), WaitLimit::Session);
        Self { session, names, row, owner: None, only_try: false, wait, max_hold: None }
    }

    /// Attaches a reason. A candidate has none.
    pub(crate) fn set_reason(&mut self, why: Bytes) {
        if let RequestRow::Request { reason, .. } = &mut self.row {
            *reason = Some(why);
        }
    }

    pub(crate) fn mode(&self) -> &LockMode {
        match &self.row {
            RequestRow::Request { mode, .. } => mode,
            RequestRow::Candidate(_) => &LockMode::Mutex,
        }
    }

    /// Checks the names.
    ///
    /// # Errors
    /// Returns [`LockError::EmptyName`] or [`LockError::TooManyNames`].
    pub(crate) fn check_names(&self) -> Result<(), LockError> {
        if self.names.is_empty() || self.names.iter().any(Bytes::is_empty) {
            return Err(LockError::EmptyName);
        }
        if self.names.len() > NAMES_MAX {
            return Err(LockError::TooManyNames { asked: self.names.len(), max: NAMES_MAX });
        }
        Ok(())
    }

    /// Reports whether the task may share an entry with other tasks of its session. This is the
    /// case for a mutex without options.
    pub(crate) fn is_shared(&self) -> bool {
        let is_plain =
            matches!(self.row, RequestRow::Request { mode: LockMode::Mutex, reason: None, .. });
        is_plain && self.names.len() == 1 && self.max_hold.is_none() && self.owner.is_none()
    }

    /// Returns the value of the request's row.
    pub(crate) fn to_value(&self) -> Bytes {
        let (mode, caller, reason) = match &self.row {
            RequestRow::Candidate(value) => return value.clone(),
            RequestRow::Request { mode, caller, reason } => (mode, caller, reason),
        };
        let mut metadata = EntryMetadata::new(mode.clone(), site(caller));
        metadata.reason = reason.clone().unwrap_or_default();
        if let Some(OwnerTag { id, name }) = &self.owner {
            metadata.owner.clone_from(id);
            metadata.owner_name.clone_from(name);
        }
        metadata.to_value()
    }

    /// Returns the deadline of a request that is enqueued now.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        deadline_of(&self.session, self.wait, self.only_try)
    }
}

/// Returns the deadline of a request. A `try_` call waits for the outcome of its enqueue, at most
/// for the default deadline of calls.
pub(crate) fn deadline_of(session: &Session, wait: WaitLimit, only_try: bool) -> Option<Moment> {
    let shared = session.shared();
    match wait {
        WaitLimit::Until(deadline) => Some(deadline),
        WaitLimit::For(timeout) => Some(shared.now() + timeout),
        WaitLimit::Session if only_try => Some(shared.now() + shared.settings.call_deadline),
        WaitLimit::Session => None,
    }
}

/// Returns the source location of a request and its task.
fn site(caller: &Location<'_>) -> String {
    let (file, line) = (caller.file(), caller.line());
    match tokio::task::try_id() {
        Some(task) => format!("{file}:{line} task {task}"),
        None => format!("{file}:{line}"),
    }
}

//! Errors of a client, and the meaning of a server's status.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tonic::{Code, Status};

/// Reason for which a call failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The settings are invalid.
    #[error("{0}")]
    Config(String),
    /// A file of the settings cannot be read.
    #[error("{0}: {1}")]
    File(String, #[source] io::Error),
    /// No endpoint could be reached. Contains the endpoints, each with its error.
    #[error("no server could be reached{}", listed(.0))]
    Unreachable(Vec<(String, String)>),
    /// The server rejected the request.
    #[error("{}", .0.message())]
    Refused(Status),
    /// The server did not answer a read in time.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// The request was sent, but its response was lost.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// The server canceled the watch.
    #[error("the watch was canceled: {}", reason(.0))]
    Canceled(Box<bowline_proto::etcdserverpb::WatchResponse>),
    /// The lease of the session, or the key of the lock, was lost.
    #[error("session or lock lost: {0}")]
    Lost(String),
    /// The lock is in use as another kind of lock.
    #[error("the lock is in use as another kind: {0}")]
    OtherKind(String),
}

fn listed(tried: &[(String, String)]) -> String {
    let tried = tried.iter().map(|(endpoint, why)| format!("\n  {endpoint}: {why}"));
    tried.collect::<String>()
}

fn reason(answer: &bowline_proto::etcdserverpb::WatchResponse) -> &str {
    match answer.compact_revision {
        0 => &answer.cancel_reason,
        _ => "etcdserver: mvcc: required revision has been compacted",
    }
}

/// Whether a failed call changed anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The call changed nothing.
    NotApplied,
    /// The change was applied, but its reply was lost.
    Applied,
    /// The change may have been applied.
    Unknown,
}

impl Error {
    /// Returns whether the failed call changed anything.
    pub fn effect(&self) -> Effect {
        match self {
            Error::Unknown(why) if why.starts_with("bowline: applied") => Effect::Applied,
            Error::Unknown(_) | Error::Lost(_) => Effect::Unknown,
            _ => Effect::NotApplied,
        }
    }

    /// Returns whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Unreachable(_) | Error::Timeout(_) | Error::Unknown(_) => true,
            Error::Refused(status) => is_transient(status),
            _ => false,
        }
    }
}

/// Returns whether the same request may succeed later.
pub(crate) fn is_transient(status: &Status) -> bool {
    let is_passing = [Code::Unavailable, Code::DeadlineExceeded, Code::Aborted];
    StatusMeaning::of(status) != StatusMeaning::Refused || is_passing.contains(&status.code())
}

/// The fate of a failed change, according to its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusMeaning {
    /// The contacted server has not applied the change. Another server may be able to apply the change.
    Elsewhere,
    /// The change was not applied, and a retry cannot succeed.
    Refused,
    /// The change may have been applied.
    Unknown,
}

impl StatusMeaning {
    /// Classifies a status by its origin and text.
    pub fn of(status: &Status) -> Self {
        if was_not_sent(status) {
            return Self::Elsewhere;
        }
        let text = status.message();
        if text.contains("not applied") {
            return Self::Refused;
        }
        let mentions = |words: &str| text.contains(words);
        match status.code() {
            // The error comes from the connection, not from the server.
            _ if std::error::Error::source(status).is_some() => Self::Unknown,
            Code::Unavailable if mentions("etcdserver: no leader") => Self::Elsewhere,
            Code::Unavailable if mentions("unhealthy cluster") => Self::Refused,
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Self::Unknown,
            // etcd uses this code for errors that have no code of their own.
            Code::Unknown if !mentions("etcdserver: ") => Self::Unknown,
            Code::ResourceExhausted | Code::Unknown if mentions("too many requests") => {
                Self::Elsewhere
            }
            _ => Self::Refused,
        }
    }
}

/// Returns whether the connection failed before the request was sent.
fn was_not_sent(status: &Status) -> bool {
    let mut error = std::error::Error::source(status);
    while let Some(cause) = error {
        if cause.is::<tonic::ConnectError>() {
            return true;
        }
        error = cause.source();
    }
    false
}

/// Returns the innermost cause of an error, usually the operating system's message.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut last = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        last = error.to_string();
        cause = error.source();
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_determines_the_outcome_of_a_change() {
        let table = [
            (Code::Unavailable, "etcdserver: no leader", StatusMeaning::Elsewhere),
            (Code::Unavailable, "etcdserver: request timed out", StatusMeaning::Unknown),
            (Code::Unavailable, "etcdserver: leader changed", StatusMeaning::Unknown),
            (Code::Unavailable, "etcdserver: server stopped", StatusMeaning::Unknown),
            (Code::Unavailable, "bowline: not applied: deadline exceeded", StatusMeaning::Refused),
            (Code::Unknown, "bowline: applied at revision 7, but", StatusMeaning::Unknown),
            (Code::Unknown, "etcdserver: re-configuration failed", StatusMeaning::Refused),
            (Code::ResourceExhausted, "etcdserver: too many requests", StatusMeaning::Elsewhere),
            (Code::NotFound, "etcdserver: requested lease not found", StatusMeaning::Refused),
            (Code::DeadlineExceeded, "context deadline exceeded", StatusMeaning::Unknown),
        ];
        for (code, text, meant) in table {
            assert_eq!(StatusMeaning::of(&Status::new(code, text)), meant, "{text}");
        }
    }

    #[test]
    fn error_reports_whether_the_change_was_applied() {
        let unknown = |why: &str| Error::Unknown(why.to_owned());
        for (error, effect) in [
            (Error::Unreachable(Vec::new()), Effect::NotApplied),
            (
                Error::Refused(Status::permission_denied("etcdserver: permission denied")),
                Effect::NotApplied,
            ),
            (unknown("etcdserver: request timed out"), Effect::Unknown),
            (unknown("bowline: applied, but the reply was dropped"), Effect::Applied),
        ] {
            assert_eq!(error.effect(), effect, "{error:?}");
        }
    }
}

//! Failures of client commands. A failure has a hint on what to do, and an exit code. The exit code shows whether the
//! command changed anything.

use std::io;
use std::time::Duration;

use bowline_client::{Error, StatusMeaning};
use tonic::{Code, Status};

/// Exit code if the server rejected the request, a file is invalid, or the output could not be written.
const EXIT_FAILED: u8 = 1;

/// Exit code if it is unknown whether the change was applied.
pub(crate) const EXIT_UNKNOWN: u8 = 3;

/// Exit code if no server could be reached. Nothing was changed.
pub(crate) const EXIT_UNREACHABLE: u8 = 4;

/// Explanation of the exit codes, shown in the help of every command that contacts a server.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 success; 1 rejected or failed, nothing was changed; 2 wrong \
     arguments; 3 the outcome of a change is unknown, or a later step failed after a change: check before you repeat \
     it; 4 no server could be reached, nothing was changed.";

/// Reason for which a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The arguments, or input given in place of arguments, are invalid.
    #[error("{0}")]
    Usage(String),
    /// The server rejected the request.
    #[error("{}", .0.message())]
    Refused(Status),
    /// The server did not answer a read in time.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// The request was sent, but its response was lost.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// The command failed after it had changed something.
    #[error("failed after some changes were made: {0}")]
    Late(Box<Failure>),
    /// No endpoint could be reached.
    #[error("no server could be reached{}", listed(.0))]
    Unreachable(Vec<(String, String)>),
    /// An error on this machine.
    #[error("{0}: {1}")]
    Local(String, #[source] io::Error),
    /// The command failed, with a complete message.
    #[error("{0}")]
    Failed(String),
    /// The failure was already reported, so only the exit code remains.
    #[error("exit code {0}")]
    Exit(u8),
}

fn listed(tried: &[(String, String)]) -> String {
    let tried = tried.iter().map(|(endpoint, why)| format!("\n  {endpoint}: {why}"));
    tried.collect::<String>()
}

impl Failure {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => crate::EXIT_USAGE,
            Failure::Unknown(_) | Failure::Late(_) => EXIT_UNKNOWN,
            Failure::Unreachable(_) => EXIT_UNREACHABLE,
            Failure::Exit(code) => *code,
            Failure::Refused(_) | Failure::Timeout(_) | Failure::Local(..) | Failure::Failed(_) => {
                EXIT_FAILED
            }
        }
    }

    /// Converts a failure of a command that has already changed something. An exit code that means "nothing was
    /// changed" becomes [`EXIT_UNKNOWN`].
    pub(crate) fn after_a_change(self) -> Failure {
        match self {
            Failure::Exit(code) if code == EXIT_FAILED || code == EXIT_UNREACHABLE => {
                Failure::Exit(EXIT_UNKNOWN)
            }
            failure if [EXIT_FAILED, EXIT_UNREACHABLE].contains(&failure.code()) => {
                Failure::Late(Box::new(failure))
            }
            failure => failure,
        }
    }

    /// Returns advice for the user, if there is any.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Failure::Unreachable(_) => Some(
                "pass the servers' addresses with --endpoints, or start servers on this machine with `bowline up`",
            ),
            Failure::Timeout(_) => Some(
                "the servers may have no leader: see `bowline endpoint status --cluster`, or wait longer with \
                 --command-timeout",
            ),
            Failure::Unknown(_) => Some("check whether the change was made before you repeat it"),
            Failure::Late(_) => Some("check which changes were made before you repeat it"),
            Failure::Refused(status) => hint_of(status.message()),
            _ => None,
        }
    }

    /// Prints the failure and its hint on standard error.
    pub(crate) fn print_failure(&self) {
        if matches!(self, Failure::Exit(_)) {
            return;
        }
        crate::print_failure(self);
        if let Some(hint) = self.hint() {
            // An error of standard error itself cannot be reported.
            drop(io::Write::write_fmt(&mut io::stderr().lock(), format_args!(" hint: {hint}\n")));
        }
    }
}

/// Error texts of etcd, and a hint for each.
const HINTS: &[(&str, &str)] = &[
    ("user name is empty", "authentication is enabled: pass a user with --user NAME[:PASSWORD]"),
    ("authentication failed, invalid user ID", "the user name or the password is wrong"),
    (
        "permission denied",
        "grant a role permission for the keys with `bowline role grant-permission`",
    ),
    (
        "root user does not exist",
        "first run `bowline user add root` and `bowline user grant-role root root`",
    ),
    ("has been compacted", "older revisions were discarded: start at a later one"),
    ("is a future revision", "`bowline get KEY -w json` shows the newest revision"),
    (
        "requested lease not found",
        "the lease has expired or was revoked: `bowline lease list` shows the existing leases",
    ),
    (
        "database space exceeded",
        "delete keys and compact, or raise the quota; if `bowline alarm list` then shows a NOSPACE alarm, clear it \
         with `bowline alarm disarm`",
    ),
    (
        "corrupt cluster",
        "compare the members with `bowline endpoint hashkv --cluster`; if they are equal, clear the alarm with \
         `bowline alarm disarm`",
    ),
    ("rpc not supported for learner", "this member is a learner: use another one with --endpoints"),
    ("not leader", "`bowline endpoint status --cluster` shows the leader"),
    ("no leader", "a majority of the members must run: see `bowline endpoint health --cluster`"),
    ("member not found", "`bowline member list` shows the members and their IDs"),
    ("duplicate key given in txn", "a branch of a transaction may put each key only once"),
    ("too many operations in txn", "the limit is the server's --max-txn-ops"),
    ("request is too large", "the limit is the server's --max-request-bytes"),
    ("received fatal alert", "the servers may require a client certificate: --cert and --key"),
    ("the connection broke", "if the servers use TLS, pass https://HOST:PORT, and --cacert"),
    ("unknown service", "the server does not support this method"),
];

fn hint_of(text: &str) -> Option<&'static str> {
    HINTS.iter().find(|(words, _)| text.contains(words)).map(|(_, hint)| *hint)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(why) => Failure::Usage(why),
            Error::File(path, error) => Failure::Local(path, error),
            Error::Unreachable(tried) => Failure::Unreachable(tried),
            Error::Refused(status) => Failure::Refused(status),
            Error::Timeout(limit) => Failure::Timeout(limit),
            Error::Unknown(why) => Failure::Unknown(why),
            error => Failure::Failed(error.to_string()),
        }
    }
}

/// Returns whether the same request may succeed later.
pub(crate) fn passes(failure: &Failure) -> bool {
    match failure {
        Failure::Unreachable(_) | Failure::Timeout(_) | Failure::Unknown(_) => true,
        Failure::Refused(status) => {
            let is_passing = [Code::Unavailable, Code::DeadlineExceeded, Code::Aborted];
            StatusMeaning::of(status) != StatusMeaning::Refused
                || is_passing.contains(&status.code())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_has_a_hint_and_an_exit_code() {
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        let refused = Failure::Refused(Status::new(Code::OutOfRange, compacted));
        assert_eq!((refused.to_string().as_str(), refused.code()), (compacted, 1));
        assert!(refused.hint().is_some());
        let tried = vec![("a:1".to_owned(), "refused".to_owned())];
        let unreachable = Failure::Unreachable(tried);
        assert_eq!(unreachable.to_string(), "no server could be reached\n  a:1: refused");
        assert_eq!(unreachable.code(), EXIT_UNREACHABLE);
    }

    #[test]
    fn transient_failures_differ_from_permanent_ones() {
        let refused = |code, text: &str| Failure::Refused(Status::new(code, text));
        for (failure, is_passing) in [
            (Failure::Unreachable(Vec::new()), true),
            (Failure::Timeout(Duration::ZERO), true),
            (Failure::Unknown(String::new()), true),
            (refused(Code::Unavailable, "etcdserver: leader changed"), true),
            (refused(Code::Unavailable, "bowline: not applied: deadline exceeded"), true),
            (refused(Code::ResourceExhausted, "etcdserver: too many requests"), true),
            (refused(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"), false),
            (
                refused(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
                false,
            ),
            (refused(Code::PermissionDenied, "etcdserver: permission denied"), false),
            (Failure::Usage(String::new()), false),
        ] {
            assert_eq!(passes(&failure), is_passing, "{failure:?}");
        }
    }
}

//! Why a command that asks a server fails: in words that say what to do, and as an exit code that tells scripts
//! whether anything was changed.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tonic::{Code, Status};

/// What is to be printed could not be, or a file is not what it should be, or the server refused.
const EXIT_FAILED: u8 = 1;

/// Nobody knows whether the change was made.
pub(crate) const EXIT_UNKNOWN: u8 = 3;

/// No server could be reached. Nothing was changed.
pub(crate) const EXIT_UNREACHABLE: u8 = 4;

/// What stands below the help of every command that asks a server.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 done; 1 refused or failed, nothing was changed; 2 wrong \
     arguments; 3 nobody knows whether the change was made, or it was, and then something failed: look before you \
     repeat it; 4 no server could be reached, nothing was changed.";

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The arguments, or what was read in their place, make no sense.
    #[error("{0}")]
    Usage(String),
    /// The server says no.
    #[error("{}", .0.message())]
    Refused(Status),
    /// The server did not answer a question in time.
    #[error("no answer came within {0:?}")]
    Timeout(Duration),
    /// It was sent, and the answer was lost.
    #[error("it is not known whether this was done: {0}")]
    Unknown(String),
    /// Something was changed, and then this came.
    #[error("something was changed, and then: {0}")]
    Late(Box<Failure>),
    /// No endpoint could be reached.
    #[error("no server could be reached{}", listed(.0))]
    Unreachable(Vec<(String, String)>),
    /// Something on this machine.
    #[error("{0}: {1}")]
    Local(String, #[source] io::Error),
    /// It did not go as it should, as has been said.
    #[error("{0}")]
    Failed(String),
    /// All has been said; this is the exit code.
    #[error("exit code {0}")]
    Exit(u8),
}

fn listed(tried: &[(String, String)]) -> String {
    let tried = tried.iter().map(|(endpoint, why)| format!("\n  {endpoint}: {why}"));
    tried.collect::<String>()
}

impl Failure {
    /// The exit code.
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

    /// The same, where something was changed before: its code no longer says that nothing was.
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

    /// What can be done about it, if that is known.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Failure::Unreachable(_) => Some(
                "--endpoints says where the servers are; `bowline up` starts some on this machine",
            ),
            Failure::Timeout(_) => Some(
                "the servers may have no leader: `bowline endpoint status --cluster` shows them; \
                 --command-timeout gives them more time",
            ),
            Failure::Unknown(_) => Some("look whether it was done before you repeat it"),
            Failure::Late(_) => Some("look what was done before you repeat it"),
            Failure::Refused(status) => hint_of(status.message()),
            _ => None,
        }
    }

    /// What a status of a question means.
    pub(crate) fn of_status(status: Status) -> Failure {
        Failure::Refused(status)
    }

    /// Says on standard error why, and what to do.
    pub(crate) fn complain(&self) {
        if matches!(self, Failure::Exit(_)) {
            return;
        }
        crate::complain(self);
        if let Some(hint) = self.hint() {
            // Where nobody reads it nothing is lost.
            drop(io::Write::write_fmt(&mut io::stderr().lock(), format_args!(" hint: {hint}\n")));
        }
    }
}

/// Texts of etcd's errors, and what helps.
const HINTS: &[(&str, &str)] = &[
    ("user name is empty", "authentication is on: --user NAME[:PASSWORD] says who you are"),
    ("authentication failed, invalid user ID", "the name or the password is wrong"),
    ("permission denied", "`bowline role grant-permission` gives a role a range of keys"),
    ("root user does not exist", "first: bowline user add root, and user grant-role root root"),
    ("has been compacted", "older revisions were forgotten: begin at a later one"),
    ("is a future revision", "`bowline get KEY -w json` shows the newest revision"),
    ("requested lease not found", "it has ended: `bowline lease list` shows those that live"),
    (
        "database space exceeded",
        "delete what is not needed and compact, or raise the quota; if `bowline alarm list` shows an alarm NOSPACE then, \
         `bowline alarm disarm` ends it",
    ),
    (
        "corrupt cluster",
        "`bowline endpoint hashkv --cluster` compares the members; if they are the same, `bowline alarm disarm` ends an alarm \
         that was raised",
    ),
    (
        "rpc not supported for learner",
        "this member does not vote yet: ask another with --endpoints",
    ),
    ("not leader", "`bowline endpoint status --cluster` shows who leads"),
    ("no leader", "a majority of the members is needed: `bowline endpoint health --cluster`"),
    ("member not found", "`bowline member list` shows the members and their ids"),
    ("duplicate key given in txn", "one branch of a transaction may put a key once only"),
    ("too many operations in txn", "the server's --max-txn-ops says how many there may be"),
    ("request is too large", "the server's --max-request-bytes says how large it may be"),
    ("received fatal alert", "the servers want to know who asks: --cert and --key"),
    ("the connection broke", "if the servers want TLS: https://HOST:PORT, and --cacert"),
    ("unknown service", "the server does not offer this"),
];

fn hint_of(text: &str) -> Option<&'static str> {
    HINTS.iter().find(|(words, _)| text.contains(words)).map(|(_, hint)| *hint)
}

/// What a server's status says of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It was not made, and another server may make it.
    Elsewhere,
    /// It was not made, and nobody will.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// Where a status comes from, and what it says of the request.
pub(crate) fn outcome(status: &Status) -> Outcome {
    if never_sent(status) {
        return Outcome::Elsewhere;
    }
    let text = status.message();
    if text.contains("not applied") {
        return Outcome::Refused;
    }
    let says = |words: &str| text.contains(words);
    match status.code() {
        // What the connection says, not the server.
        _ if std::error::Error::source(status).is_some() => Outcome::Unknown,
        Code::Unavailable if says("etcdserver: no leader") => Outcome::Elsewhere,
        Code::Unavailable if says("unhealthy cluster") => Outcome::Refused,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Outcome::Unknown,
        // etcd gives errors that it has no code for this one.
        Code::Unknown if !says("etcdserver: ") => Outcome::Unknown,
        Code::ResourceExhausted | Code::Unknown if says("too many requests") => Outcome::Elsewhere,
        _ => Outcome::Refused,
    }
}

/// Whether the same request may be answered later.
pub(crate) fn passes(failure: &Failure) -> bool {
    match failure {
        Failure::Unreachable(_) | Failure::Timeout(_) | Failure::Unknown(_) => true,
        Failure::Refused(status) => {
            let is_passing = [Code::Unavailable, Code::DeadlineExceeded, Code::Aborted];
            outcome(status) != Outcome::Refused || is_passing.contains(&status.code())
        }
        _ => false,
    }
}

/// Whether the connection was not there when the request was to be sent.
fn never_sent(status: &Status) -> bool {
    let mut error = std::error::Error::source(status);
    while let Some(cause) = error {
        if cause.is::<tonic::ConnectError>() {
            return true;
        }
        error = cause.source();
    }
    false
}

/// The last word of an error of the connection: what the system says of it.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
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
    fn what_a_status_says_of_a_change() {
        let table = [
            (Code::Unavailable, "etcdserver: no leader", Outcome::Elsewhere),
            (Code::Unavailable, "etcdserver: request timed out", Outcome::Unknown),
            (Code::Unavailable, "etcdserver: leader changed", Outcome::Unknown),
            (Code::Unavailable, "etcdserver: server stopped", Outcome::Unknown),
            (Code::Unavailable, "bowline: not applied: the deadline has passed", Outcome::Refused),
            (Code::Unknown, "bowline: applied, at revision 7; its answer", Outcome::Unknown),
            (Code::Unknown, "etcdserver: re-configuration failed", Outcome::Refused),
            (Code::ResourceExhausted, "etcdserver: too many requests", Outcome::Elsewhere),
            (Code::NotFound, "etcdserver: requested lease not found", Outcome::Refused),
            (Code::DeadlineExceeded, "context deadline exceeded", Outcome::Unknown),
        ];
        for (code, text, meant) in table {
            assert_eq!(outcome(&Status::new(code, text)), meant, "{text}");
        }
    }

    #[test]
    fn an_error_says_what_to_do_and_its_code_whether_anything_changed() {
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
    fn what_passes_is_told_from_what_stays() {
        let refused = |code, text: &str| Failure::Refused(Status::new(code, text));
        for (failure, is_passing) in [
            (Failure::Unreachable(Vec::new()), true),
            (Failure::Timeout(Duration::ZERO), true),
            (Failure::Unknown(String::new()), true),
            (refused(Code::Unavailable, "etcdserver: leader changed"), true),
            (refused(Code::Unavailable, "bowline: not applied: the deadline has passed"), true),
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

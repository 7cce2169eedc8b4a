//! What a status says of a call: that it certainly has no effect, or that nobody knows.
//!
//! A change that is told to have failed and is seen later makes a violation where there is none; one that is told to be
//! unknown although it was refused hides what is lost. So what is refused is listed, and everything else is unknown: what
//! the server says when its time is up, or when it stops, and whatever the connection says once it was there.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::wire::Answer;

/// Why there is no reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Miss {
    /// It certainly has no effect, now or later.
    Refused(String),
    /// It may have one.
    Unknown(String),
}

impl Miss {
    /// Of something that changes nothing that anybody judges, whatever comes of it.
    pub(super) fn harmless(self) -> Self {
        match self {
            Miss::Refused(why) | Miss::Unknown(why) => Miss::Refused(why),
        }
    }

    /// An answer without what it must have.
    pub(super) fn incomplete(what: &str) -> Self {
        Miss::Unknown(format!("an answer without {what}"))
    }
}

impl From<Miss> for Answer {
    fn from(miss: Miss) -> Self {
        match miss {
            Miss::Refused(why) => Answer::Refused(why),
            Miss::Unknown(why) => Answer::Unknown(why),
        }
    }
}

impl From<Status> for Miss {
    fn from(status: Status) -> Self {
        if status.source().is_some() {
            let why = root_cause(&status);
            return match never_sent(&status) {
                true => Miss::Refused(format!("not sent: {why}")),
                false => Miss::Unknown(format!("the connection broke: {why}")),
            };
        }
        let words = status.message();
        let is_refused = match status.code() {
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::DataLoss => true,
            Code::Unavailable => {
                words.contains("not applied")
                    || ["etcdserver: no leader", "etcdserver: unhealthy cluster"].contains(&words)
            }
            _ => false,
        };
        let words = words.to_owned();
        if is_refused { Miss::Refused(words) } else { Miss::Unknown(words) }
    }
}

/// Whether there was no connection on which it could have been sent.
fn never_sent(status: &Status) -> bool {
    let mut error = status.source();
    while let Some(cause) = error {
        if cause.is::<tonic::ConnectError>() {
            return true;
        }
        error = cause.source();
    }
    false
}

/// What the system says, in the end.
fn root_cause(status: &Status) -> String {
    let (mut last, mut error) = (status.message().to_owned(), status.source());
    while let Some(cause) = error {
        last = cause.to_string();
        error = cause.source();
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_definite_rejections_are_classified_as_rejected() {
        let table = [
            (Code::Unavailable, "etcdserver: no leader", true),
            (Code::Unavailable, "etcdserver: request timed out", false),
            (Code::Unavailable, "etcdserver: leader changed", false),
            (Code::Unavailable, "etcdserver: server stopped", false),
            (Code::Unavailable, "bowline: not applied: too many calls ...", true),
            (Code::Unknown, "bowline: applied at revision 7, but the reply", false),
            (Code::ResourceExhausted, "etcdserver: too many requests", true),
            (Code::NotFound, "etcdserver: requested lease not found", true),
            (Code::FailedPrecondition, "etcdserver: not leader", true),
            (Code::DeadlineExceeded, "context deadline exceeded", false),
            (Code::Internal, "h2 protocol error", false),
            (Code::Cancelled, "", false),
            (Code::Aborted, "", false),
        ];
        for (code, words, is_refused) in table {
            let miss = Miss::from(Status::new(code, words));
            assert_eq!(matches!(miss, Miss::Refused(_)), is_refused, "{code:?} {words}");
        }
    }

    #[test]
    fn broken_connection_makes_the_outcome_unknown() {
        // Whatever its code.
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let mut status = Status::new(Code::NotFound, "?");
        status.set_source(std::sync::Arc::new(broken));
        assert!(matches!(Miss::from(status), Miss::Unknown(_)));
    }

    #[test]
    fn refused_connection_means_the_request_was_not_sent() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let miss = runtime.block_on(async {
            let free = crate::ports::free_addresses(1).unwrap().remove(0);
            let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{free}"));
            let channel = endpoint.unwrap().connect_lazy();
            let mut kv = crate::generated::etcdserverpb::kv_client::KvClient::new(channel);
            Miss::from(
                kv.put(crate::generated::etcdserverpb::PutRequest::default()).await.unwrap_err(),
            )
        });
        assert!(matches!(&miss, Miss::Refused(why) if why.starts_with("not sent")), "{miss:?}");
    }
}

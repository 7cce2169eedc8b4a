//! Classifies gRPC statuses: either the call certainly had no effect, or its outcome is unknown.
//!
//! Both kinds of wrong classification are harmful. If a change that was applied is reported as failed, the checker
//! reports a false violation. If a rejected change is reported as unknown, the checker may miss the loss of an applied
//! change. Therefore this module lists the statuses of rejections explicitly. Every other status is unknown: deadlines,
//! the shutdown of the server, and every failure of an established connection.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::wire::Answer;

/// The reason why a call has no reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Miss {
    /// The call certainly had no effect and will have none.
    Refused(String),
    /// The outcome is unknown: the call may have had an effect.
    Unknown(String),
}

impl Miss {
    /// Converts an unknown outcome to a failure. Use this function for calls that change nothing that a checker
    /// observes.
    pub(super) fn harmless(self) -> Self {
        match self {
            Miss::Refused(why) | Miss::Unknown(why) => Miss::Refused(why),
        }
    }

    /// Returns the error for a response that lacks a required part.
    pub(super) fn incomplete(what: &str) -> Self {
        Miss::Unknown(format!("incomplete response: no {what}"))
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
            return match was_not_sent(&status) {
                true => Miss::Refused(format!("not sent: {why}")),
                false => Miss::Unknown(format!("connection broken: {why}")),
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

/// Returns whether there was no connection on which the call could have been sent.
fn was_not_sent(status: &Status) -> bool {
    let mut error = status.source();
    while let Some(cause) = error {
        if cause.is::<tonic::ConnectError>() {
            return true;
        }
        error = cause.source();
    }
    false
}

/// Returns the innermost message of a status.
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
        // In these cases the code of the status does not matter.
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let mut status = Status::new(Code::NotFound, "?");
        status.set_source(std::sync::Arc::new(broken));
        assert!(matches!(Miss::from(status), Miss::Unknown(_)));
    }

    #[test]
    fn refused_connection_means_the_request_was_not_sent() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let miss = runtime.block_on(async {
            let free = bowline_fleet::ports::free_addresses(1).unwrap().remove(0);
            let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{free}"));
            let channel = endpoint.unwrap().connect_lazy();
            let mut kv = bowline_proto::etcdserverpb::kv_client::KvClient::new(channel);
            Miss::from(
                kv.put(bowline_proto::etcdserverpb::PutRequest::default()).await.unwrap_err(),
            )
        });
        assert!(matches!(&miss, Miss::Refused(why) if why.starts_with("not sent")), "{miss:?}");
    }
}

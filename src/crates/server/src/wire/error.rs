//! Errors with etcd's codes and texts, because clients compare codes and texts.

use std::sync::Arc;

use bowline::{
    Effect, Error, Rejection,
    auth::AuthError,
    cluster::{AlarmKind, MembershipError},
};
use tonic::{Code, Status};

/// Defines the enum of all reasons, each with its code and its text.
macro_rules! reasons {
    ($($name:ident: $code:ident, $text:literal;)+) => {
        /// Rejections for which etcd has a text.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Reason {
            $($name,)+
        }

        impl Reason {
            fn parts(self) -> (Code, &'static str) {
                match self {
                    $(Reason::$name => (Code::$code, $text),)+
                }
            }
        }
    };
}

reasons! {
    EmptyKey: InvalidArgument, "key is not provided";
    KeyNotFound: InvalidArgument, "key not found";
    ValueProvided: InvalidArgument, "value is provided";
    LeaseProvided: InvalidArgument, "lease is provided";
    TooManyOps: InvalidArgument, "too many operations in txn request";
    DuplicateKey: InvalidArgument, "duplicate key given in txn request";
    InvalidSortOption: InvalidArgument, "invalid sort option";
    RequestTooLarge: InvalidArgument, "request is too large";
    Compacted: OutOfRange, "mvcc: required revision has been compacted";
    FutureRevision: OutOfRange, "mvcc: required revision is a future revision";
    LeaseTtlTooLarge: OutOfRange, "too large lease TTL";
    LeaseNotFound: NotFound, "requested lease not found";
    LeaseExists: FailedPrecondition, "lease already exists";
    NoSpace: ResourceExhausted, "mvcc: database space exceeded";
    TooManyRequests: ResourceExhausted, "too many requests";
    Corrupt: DataLoss, "corrupt cluster";
    NoLeader: Unavailable, "no leader";
    Stopped: Unavailable, "server stopped";
    Timeout: Unavailable, "request timed out";
    NotLeader: FailedPrecondition, "not leader";
    BadTransferee: FailedPrecondition, "bad leader transferee";
    MemberNotFound: NotFound, "member not found";
    BadUrls: InvalidArgument, "given member URLs are invalid";
    NotEnoughStarted: FailedPrecondition, "re-configuration failed due to not enough started members";
    UrlsTaken: FailedPrecondition, "Peer URLs already exists";
    LearnerNotReady: FailedPrecondition, "can only promote a learner member which is in sync with leader";
    NotLearner: FailedPrecondition, "can only promote a learner member";
    TooManyLearners: FailedPrecondition, "too many learner members in cluster";
    Unhealthy: Unavailable, "unhealthy cluster";
    NotForLearners: FailedPrecondition, "rpc not supported for learner";
    AuthNotEnabled: FailedPrecondition, "authentication is not enabled";
    AuthFailed: InvalidArgument, "authentication failed, invalid user ID or password";
    InvalidToken: Unauthenticated, "invalid auth token";
    NoUser: InvalidArgument, "user name is empty";
    NoRole: InvalidArgument, "role name is empty";
    NoPermission: InvalidArgument, "permission not given";
    InvalidAuth: InvalidArgument, "invalid auth management";
    OldRevision: InvalidArgument, "revision of auth store is old";
    Denied: PermissionDenied, "permission denied";
    NoRoot: FailedPrecondition, "root user does not exist";
    RootWithoutRole: FailedPrecondition, "root user does not have root role";
    UserExists: FailedPrecondition, "user name already exists";
    UserNotFound: FailedPrecondition, "user name not found";
    RoleExists: FailedPrecondition, "role name already exists";
    RoleNotFound: FailedPrecondition, "role name not found";
    RoleNotGranted: FailedPrecondition, "role is not granted to the user";
    NotGranted: FailedPrecondition, "permission is not granted to the role";
    DowngradeFormat: InvalidArgument, "wrong downgrade target version format";
    DowngradeTarget: InvalidArgument, "invalid downgrade target version";
}

impl Reason {
    /// Returns etcd's text without a code, for errors that do not end a call.
    pub(crate) fn text(self) -> String {
        format!("etcdserver: {}", self.parts().1)
    }
}

impl From<Reason> for Status {
    fn from(reason: Reason) -> Self {
        Status::new(reason.parts().0, reason.text())
    }
}

/// Converts an error of the library.
pub(crate) fn refused(error: Error) -> Status {
    match &error {
        Error::Rejected(Rejection::Access(why)) => access_refused(*why),
        Error::Rejected(Rejection::TooManyAlarms { .. }) => ours(Code::ResourceExhausted, &error),
        Error::Rejected(Rejection::TooManyKeys { .. }) => ours(Code::InvalidArgument, &error),
        Error::Rejected(rejection) => {
            reason_of(rejection).map_or_else(|| ours(Code::Unavailable, &error), Status::from)
        }
        Error::Busy => Reason::TooManyRequests.into(),
        Error::Diverged => Reason::Corrupt.into(),
        Error::QuotaExceeded { .. } | Error::NoSpace => {
            let mut status = Status::from(Reason::NoSpace);
            status.set_source(Arc::new(error));
            status
        }
        Error::Deadline { .. } => Reason::Timeout.into(),
        Error::Stopped { .. } => Reason::Stopped.into(),
        Error::NoTransferee => Reason::Unhealthy.into(),
        Error::Members(rejection) => members(rejection, &error),
        // The change was applied, so the status code must not cause the client to retry.
        _ if error.effect() == Effect::Applied => ours(Code::Unknown, &error),
        _ => ours(Code::Unavailable, &error),
    }
}

fn ours(code: Code, error: &Error) -> Status {
    Status::new(code, format!("bowline: {error}"))
}

fn reason_of(rejection: &Rejection) -> Option<Reason> {
    Some(match rejection {
        Rejection::EmptyKey => Reason::EmptyKey,
        Rejection::NotMember(_) => Reason::MemberNotFound,
        Rejection::AddressTaken(_) => Reason::UrlsTaken,
        Rejection::KeyNotFound => Reason::KeyNotFound,
        Rejection::Compacted { .. } => Reason::Compacted,
        Rejection::Future { .. } => Reason::FutureRevision,
        Rejection::LeaseNotFound(_) => Reason::LeaseNotFound,
        Rejection::LeaseExists(_) => Reason::LeaseExists,
        Rejection::LeaseTtl { .. } => Reason::LeaseTtlTooLarge,
        Rejection::DuplicateKey(_) => Reason::DuplicateKey,
        Rejection::Alarm(AlarmKind::NoSpace) => Reason::NoSpace,
        Rejection::Alarm(AlarmKind::Corrupt) => Reason::Corrupt,
        Rejection::TooManyOps { .. } | Rejection::TooDeep { .. } => Reason::TooManyOps,
        Rejection::KeyTooLarge { .. }
        | Rejection::ValueTooLarge { .. }
        | Rejection::RequestTooLarge { .. } => Reason::RequestTooLarge,
        _ => return None,
    })
}

fn access(why: AuthError) -> Option<Reason> {
    Some(match why {
        AuthError::Denied => Reason::Denied,
        AuthError::Outdated => Reason::OldRevision,
        AuthError::NoUser => Reason::NoUser,
        AuthError::NoRoot => Reason::NoRoot,
        AuthError::RootWithoutRole => Reason::RootWithoutRole,
        AuthError::UserExists => Reason::UserExists,
        AuthError::UserNotFound => Reason::UserNotFound,
        AuthError::RoleExists => Reason::RoleExists,
        AuthError::RoleNotFound => Reason::RoleNotFound,
        AuthError::NoRole => Reason::NoRole,
        AuthError::RoleNotGranted => Reason::RoleNotGranted,
        AuthError::NotGranted => Reason::NotGranted,
        AuthError::Invalid => Reason::InvalidAuth,
        _ => return None,
    })
}

/// Converts a permission error.
pub(crate) fn access_refused(why: AuthError) -> Status {
    let words = || Status::new(Code::FailedPrecondition, format!("bowline: {why}"));
    access(why).map_or_else(words, Status::from)
}

fn members(rejection: &MembershipError, error: &Error) -> Status {
    match rejection {
        MembershipError::Unknown(_) => Reason::MemberNotFound.into(),
        MembershipError::Voter(_) => Reason::NotLearner.into(),
        MembershipError::NotCaughtUp(_) => Reason::LearnerNotReady.into(),
        MembershipError::BadAddress(_) => Reason::BadUrls.into(),
        MembershipError::LastVoter(_) => Reason::NotEnoughStarted.into(),
        MembershipError::LosesQuorum { .. } | MembershipError::Pending => Reason::Unhealthy.into(),
        _ => ours(Code::FailedPrecondition, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membership_errors_use_the_texts_of_etcd() {
        let id = bowline::NodeId::new(4).unwrap();
        for (rejection, code, words) in [
            (MembershipError::Unknown(id), Code::NotFound, "member not found"),
            (
                MembershipError::Voter(id),
                Code::FailedPrecondition,
                "can only promote a learner member",
            ),
            (
                MembershipError::LastVoter(id),
                Code::FailedPrecondition,
                "re-configuration failed due to not enough started members",
            ),
            (
                MembershipError::LosesQuorum { active: 1, voters: 2, needed: 2 },
                Code::Unavailable,
                "unhealthy cluster",
            ),
            (MembershipError::Pending, Code::Unavailable, "unhealthy cluster"),
        ] {
            let status = refused(Error::Members(rejection));
            let expected = (code, format!("etcdserver: {words}"));
            assert_eq!((status.code(), status.message().to_owned()), expected);
        }
    }
}

//! Errors with etcd's codes and texts, because clients compare codes and texts.

use std::sync::Arc;

use bowline::{
    Effect, Error, Rejection,
    auth::AuthError,
    cluster::{AlarmKind, MembershipError},
};
use tonic::{Code, Status};

/// Rejections for which etcd has a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    EmptyKey,
    KeyNotFound,
    ValueProvided,
    LeaseProvided,
    TooManyOps,
    DuplicateKey,
    InvalidSortOption,
    RequestTooLarge,
    Compacted,
    FutureRevision,
    LeaseTtlTooLarge,
    LeaseNotFound,
    LeaseExists,
    NoSpace,
    TooManyRequests,
    Corrupt,
    NoLeader,
    Stopped,
    Timeout,
    NotLeader,
    BadTransferee,
    MemberNotFound,
    BadUrls,
    NotEnoughStarted,
    UrlsTaken,
    LearnerNotReady,
    NotLearner,
    TooManyLearners,
    Unhealthy,
    NotForLearners,
    AuthNotEnabled,
    AuthFailed,
    InvalidToken,
    NoUser,
    NoRole,
    NoPermission,
    InvalidAuth,
    OldRevision,
    Denied,
    NoRoot,
    RootWithoutRole,
    UserExists,
    UserNotFound,
    RoleExists,
    RoleNotFound,
    RoleNotGranted,
    NotGranted,
    DowngradeFormat,
    DowngradeTarget,
}

impl Reason {
    fn parts(self) -> (Code, &'static str) {
        match self {
            Reason::EmptyKey => (Code::InvalidArgument, "key is not provided"),
            Reason::KeyNotFound => (Code::InvalidArgument, "key not found"),
            Reason::ValueProvided => (Code::InvalidArgument, "value is provided"),
            Reason::LeaseProvided => (Code::InvalidArgument, "lease is provided"),
            Reason::TooManyOps => (Code::InvalidArgument, "too many operations in txn request"),
            Reason::DuplicateKey => (Code::InvalidArgument, "duplicate key given in txn request"),
            Reason::InvalidSortOption => (Code::InvalidArgument, "invalid sort option"),
            Reason::RequestTooLarge => (Code::InvalidArgument, "request is too large"),
            Reason::DowngradeFormat => {
                (Code::InvalidArgument, "wrong downgrade target version format")
            }
            Reason::DowngradeTarget => (Code::InvalidArgument, "invalid downgrade target version"),
            Reason::Compacted => (Code::OutOfRange, "mvcc: required revision has been compacted"),
            Reason::FutureRevision => {
                (Code::OutOfRange, "mvcc: required revision is a future revision")
            }
            Reason::LeaseTtlTooLarge => (Code::OutOfRange, "too large lease TTL"),
            Reason::LeaseNotFound => (Code::NotFound, "requested lease not found"),
            Reason::MemberNotFound => (Code::NotFound, "member not found"),
            Reason::BadUrls => (Code::InvalidArgument, "given member URLs are invalid"),
            Reason::NotEnoughStarted => (
                Code::FailedPrecondition,
                "re-configuration failed due to not enough started members",
            ),
            Reason::UrlsTaken => (Code::FailedPrecondition, "Peer URLs already exists"),
            Reason::LeaseExists => (Code::FailedPrecondition, "lease already exists"),
            Reason::NotLeader => (Code::FailedPrecondition, "not leader"),
            Reason::BadTransferee => (Code::FailedPrecondition, "bad leader transferee"),
            Reason::LearnerNotReady => (
                Code::FailedPrecondition,
                "can only promote a learner member which is in sync with leader",
            ),
            Reason::NotLearner => (Code::FailedPrecondition, "can only promote a learner member"),
            Reason::TooManyLearners => {
                (Code::FailedPrecondition, "too many learner members in cluster")
            }
            Reason::NotForLearners => (Code::FailedPrecondition, "rpc not supported for learner"),
            Reason::AuthNotEnabled => (Code::FailedPrecondition, "authentication is not enabled"),
            Reason::AuthFailed => {
                (Code::InvalidArgument, "authentication failed, invalid user ID or password")
            }
            Reason::InvalidToken => (Code::Unauthenticated, "invalid auth token"),
            Reason::NoUser => (Code::InvalidArgument, "user name is empty"),
            Reason::NoRole => (Code::InvalidArgument, "role name is empty"),
            Reason::NoPermission => (Code::InvalidArgument, "permission not given"),
            Reason::InvalidAuth => (Code::InvalidArgument, "invalid auth management"),
            Reason::OldRevision => (Code::InvalidArgument, "revision of auth store is old"),
            Reason::Denied => (Code::PermissionDenied, "permission denied"),
            Reason::NoRoot => (Code::FailedPrecondition, "root user does not exist"),
            Reason::RootWithoutRole => {
                (Code::FailedPrecondition, "root user does not have root role")
            }
            Reason::UserExists => (Code::FailedPrecondition, "user name already exists"),
            Reason::UserNotFound => (Code::FailedPrecondition, "user name not found"),
            Reason::RoleExists => (Code::FailedPrecondition, "role name already exists"),
            Reason::RoleNotFound => (Code::FailedPrecondition, "role name not found"),
            Reason::RoleNotGranted => (Code::FailedPrecondition, "role is not granted to the user"),
            Reason::NotGranted => {
                (Code::FailedPrecondition, "permission is not granted to the role")
            }
            Reason::NoSpace => (Code::ResourceExhausted, "mvcc: database space exceeded"),
            Reason::TooManyRequests => (Code::ResourceExhausted, "too many requests"),
            Reason::Corrupt => (Code::DataLoss, "corrupt cluster"),
            Reason::NoLeader => (Code::Unavailable, "no leader"),
            Reason::Stopped => (Code::Unavailable, "server stopped"),
            Reason::Timeout => (Code::Unavailable, "request timed out"),
            Reason::Unhealthy => (Code::Unavailable, "unhealthy cluster"),
        }
    }

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

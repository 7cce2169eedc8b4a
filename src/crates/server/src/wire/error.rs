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
        use Code::*;
        match self {
            Reason::EmptyKey => (InvalidArgument, "key is not provided"),
            Reason::KeyNotFound => (InvalidArgument, "key not found"),
            Reason::ValueProvided => (InvalidArgument, "value is provided"),
            Reason::LeaseProvided => (InvalidArgument, "lease is provided"),
            Reason::TooManyOps => (InvalidArgument, "too many operations in txn request"),
            Reason::DuplicateKey => (InvalidArgument, "duplicate key given in txn request"),
            Reason::InvalidSortOption => (InvalidArgument, "invalid sort option"),
            Reason::RequestTooLarge => (InvalidArgument, "request is too large"),
            Reason::DowngradeFormat => (InvalidArgument, "wrong downgrade target version format"),
            Reason::DowngradeTarget => (InvalidArgument, "invalid downgrade target version"),
            Reason::Compacted => (OutOfRange, "mvcc: required revision has been compacted"),
            Reason::FutureRevision => (OutOfRange, "mvcc: required revision is a future revision"),
            Reason::LeaseTtlTooLarge => (OutOfRange, "too large lease TTL"),
            Reason::LeaseNotFound => (NotFound, "requested lease not found"),
            Reason::MemberNotFound => (NotFound, "member not found"),
            Reason::BadUrls => (InvalidArgument, "given member URLs are invalid"),
            Reason::NotEnoughStarted => {
                (FailedPrecondition, "re-configuration failed due to not enough started members")
            }
            Reason::UrlsTaken => (FailedPrecondition, "Peer URLs already exists"),
            Reason::LeaseExists => (FailedPrecondition, "lease already exists"),
            Reason::NotLeader => (FailedPrecondition, "not leader"),
            Reason::BadTransferee => (FailedPrecondition, "bad leader transferee"),
            Reason::LearnerNotReady => (
                FailedPrecondition,
                "can only promote a learner member which is in sync with leader",
            ),
            Reason::NotLearner => (FailedPrecondition, "can only promote a learner member"),
            Reason::TooManyLearners => (FailedPrecondition, "too many learner members in cluster"),
            Reason::NotForLearners => (FailedPrecondition, "rpc not supported for learner"),
            Reason::AuthNotEnabled => (FailedPrecondition, "authentication is not enabled"),
            Reason::AuthFailed => {
                (InvalidArgument, "authentication failed, invalid user ID or password")
            }
            Reason::InvalidToken => (Unauthenticated, "invalid auth token"),
            Reason::NoUser => (InvalidArgument, "user name is empty"),
            Reason::NoRole => (InvalidArgument, "role name is empty"),
            Reason::NoPermission => (InvalidArgument, "permission not given"),
            Reason::InvalidAuth => (InvalidArgument, "invalid auth management"),
            Reason::OldRevision => (InvalidArgument, "revision of auth store is old"),
            Reason::Denied => (PermissionDenied, "permission denied"),
            Reason::NoRoot => (FailedPrecondition, "root user does not exist"),
            Reason::RootWithoutRole => (FailedPrecondition, "root user does not have root role"),
            Reason::UserExists => (FailedPrecondition, "user name already exists"),
            Reason::UserNotFound => (FailedPrecondition, "user name not found"),
            Reason::RoleExists => (FailedPrecondition, "role name already exists"),
            Reason::RoleNotFound => (FailedPrecondition, "role name not found"),
            Reason::RoleNotGranted => (FailedPrecondition, "role is not granted to the user"),
            Reason::NotGranted => (FailedPrecondition, "permission is not granted to the role"),
            Reason::NoSpace => (ResourceExhausted, "mvcc: database space exceeded"),
            Reason::TooManyRequests => (ResourceExhausted, "too many requests"),
            Reason::Corrupt => (DataLoss, "corrupt cluster"),
            Reason::NoLeader => (Unavailable, "no leader"),
            Reason::Stopped => (Unavailable, "server stopped"),
            Reason::Timeout => (Unavailable, "request timed out"),
            Reason::Unhealthy => (Unavailable, "unhealthy cluster"),
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
        // The change was applied, so the code must not make the client retry.
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

//! The permission that each method needs while authentication is on.

use bowline::auth::{Access, AuthError};
use tonic::Status;

use crate::identity::Identity;
use crate::wire::{Reason, access_refused};

/// Permission that a method needs while authentication is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Permission {
    /// None.
    None,
    /// None to open the stream. Each watch on it is checked on its own, and so is an invalid token, because clients
    /// take a rejected watch as the reason to log in again.
    PerWatch,
    /// Any user. If the permission depends on the request, the service checks it.
    User,
    /// The role `root`.
    Root,
}

impl Permission {
    /// Returns the permission for a method.
    pub(crate) fn of(service: &str, method: &str) -> Self {
        match (service, method) {
            ("grpc.health.v1.Health", _) | ("etcdserverpb.Auth", "Authenticate" | "AuthStatus") => {
                Self::None
            }
            ("etcdserverpb.Watch", _) => Self::PerWatch,
            ("etcdserverpb.KV" | "etcdserverpb.Lease", _)
            | ("v3lockpb.Lock" | "v3electionpb.Election", _)
            | ("etcdserverpb.Auth", "UserGet" | "RoleGet")
            | ("etcdserverpb.Cluster", "MemberList")
            | ("etcdserverpb.Maintenance", "Alarm" | "Status") => Self::User,
            _ => Self::Root,
        }
    }

    /// Checks the caller against the table by which the caller was identified.
    pub(crate) fn check(self, who: &Identity, access: &Access) -> Result<(), Status> {
        let checked = match self {
            Self::None | Self::PerWatch => Ok(()),
            Self::User => access.is_user(&who.caller()),
            Self::Root => match access.is_root(&who.caller()) {
                // The user of a certificate may be missing in the table, whereas the user of a valid token always
                // exists. The error text is etcd's.
                Err(AuthError::Denied)
                    if who.user().is_some_and(|user| !access.users().contains_key(user)) =>
                {
                    return Err(Reason::UserNotFound.into());
                }
                checked => checked,
            },
        };
        checked.map_err(access_refused)
    }
}

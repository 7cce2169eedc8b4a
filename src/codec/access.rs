//! Encoding of the table of users and roles, of changes to that table, and of the caller of a
//! request.
//!
//! ```text
//! access   = enabled u8 | revision | secret bytes | list of user, by name | list of role, by name
//! user     = name bytes | password | revision | list of role names
//! role     = name bytes | list of grant
//! grant    = keys | rights u8                      1 read, 2 write, 3 both
//! password = 0 | 1 hash bytes
//! caller   = 0 | 1 user bytes, then revision
//! change   = 1 secret bytes (enable) | 2 (disable) | 3 user bytes, password (add) | 4 user bytes (delete)
//!          | 5 user bytes, password (set) | 6 user, role bytes (grant) | 7 user, role bytes (revoke)
//!          | 8 role bytes (add) | 9 role bytes (delete) | 10 role bytes, grant | 11 role bytes, keys (revoke)
//! ```

use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink, choice, record};
use crate::model::{Access, AccessChange, AccessGrant, AuthError, Caller, Rights, User};

choice!(AuthError, "kind of authorization error", 1, {
    1 => Denied,
    2 => Outdated,
    3 => NoUser,
    4 => NoRoot,
    5 => RootWithoutRole,
    6 => UserExists,
    7 => UserNotFound,
    8 => RoleExists,
    9 => RoleNotFound,
    10 => NoRole,
    11 => RoleNotGranted,
    12 => NotGranted,
    13 => Invalid,
    14 => TooMuch,
});

record!(Caller, 2, { user, revision });

choice!(Rights, "rights", 1, {
    1 => Read,
    2 => Write,
    3 => ReadWrite,
});

record!(AccessGrant, 3, { range as copied_range, rights });

choice!(AccessChange, "kind of change of users or roles", 1, {
    1 => Enable { secret },
    2 => Disable,
    3 => AddUser { user, password },
    4 => DeleteUser(user),
    5 => SetPassword { user, password },
    6 => GrantRole { user, role },
    7 => RevokeRole { user, role },
    8 => AddRole(role),
    9 => DeleteRole(role),
    10 => Grant { role, grant },
    11 => Revoke { role, range as copied_range },
});

record!(User, 3, { password, since, roles });

impl Encode for Access {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        self.is_enabled().encode(to);
        self.revision().encode(to);
        self.secret().encode(to);
        self.users().encode(to);
        self.roles().encode(to);
    }
}

impl Decode for Access {
    const BYTES_MIN: usize = 5;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let core = (Decode::decode(from)?, Decode::decode(from)?, Decode::decode(from)?);
        let access = Access::from_parts(core, Decode::decode(from)?, Decode::decode(from)?);
        access.ok_or_else(|| from.malformed("users and roles contradict each other"))
    }
}

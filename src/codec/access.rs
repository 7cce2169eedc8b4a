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

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::outcome::yes_or_no;
use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink};
use crate::model::{
    Access, AccessChange, AccessGrant, AccessRole, AuthError, Caller, KeyRange, Rights, Secret,
    User,
};

mod rejection {
    pub(super) const DENIED: u8 = 1;
    pub(super) const OUTDATED: u8 = 2;
    pub(super) const NO_USER: u8 = 3;
    pub(super) const NO_ROOT: u8 = 4;
    pub(super) const ROOT_WITHOUT_ROLE: u8 = 5;
    pub(super) const USER_EXISTS: u8 = 6;
    pub(super) const USER_NOT_FOUND: u8 = 7;
    pub(super) const ROLE_EXISTS: u8 = 8;
    pub(super) const ROLE_NOT_FOUND: u8 = 9;
    pub(super) const NO_ROLE: u8 = 10;
    pub(super) const ROLE_NOT_GRANTED: u8 = 11;
    pub(super) const NOT_GRANTED: u8 = 12;
    pub(super) const INVALID: u8 = 13;
    pub(super) const TOO_MUCH: u8 = 14;
}

impl Encode for AuthError {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.byte(match self {
            AuthError::Denied => rejection::DENIED,
            AuthError::Outdated => rejection::OUTDATED,
            AuthError::NoUser => rejection::NO_USER,
            AuthError::NoRoot => rejection::NO_ROOT,
            AuthError::RootWithoutRole => rejection::ROOT_WITHOUT_ROLE,
            AuthError::UserExists => rejection::USER_EXISTS,
            AuthError::UserNotFound => rejection::USER_NOT_FOUND,
            AuthError::RoleExists => rejection::ROLE_EXISTS,
            AuthError::RoleNotFound => rejection::ROLE_NOT_FOUND,
            AuthError::NoRole => rejection::NO_ROLE,
            AuthError::RoleNotGranted => rejection::ROLE_NOT_GRANTED,
            AuthError::NotGranted => rejection::NOT_GRANTED,
            AuthError::Invalid => rejection::INVALID,
            AuthError::TooMuch => rejection::TOO_MUCH,
        });
    }
}

impl Decode for AuthError {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            rejection::DENIED => AuthError::Denied,
            rejection::OUTDATED => AuthError::Outdated,
            rejection::NO_USER => AuthError::NoUser,
            rejection::NO_ROOT => AuthError::NoRoot,
            rejection::ROOT_WITHOUT_ROLE => AuthError::RootWithoutRole,
            rejection::USER_EXISTS => AuthError::UserExists,
            rejection::USER_NOT_FOUND => AuthError::UserNotFound,
            rejection::ROLE_EXISTS => AuthError::RoleExists,
            rejection::ROLE_NOT_FOUND => AuthError::RoleNotFound,
            rejection::NO_ROLE => AuthError::NoRole,
            rejection::ROLE_NOT_GRANTED => AuthError::RoleNotGranted,
            rejection::NOT_GRANTED => AuthError::NotGranted,
            rejection::INVALID => AuthError::Invalid,
            rejection::TOO_MUCH => AuthError::TooMuch,
            found => {
                return Err(CodecError::Newer {
                    what: "kind of authorization error",
                    found: found.into(),
                });
            }
        })
    }
}

impl Encode for Caller {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match &self.user {
            None => to.byte(0),
            Some(user) => {
                to.byte(1);
                to.bytes(user.as_bytes());
            }
        }
        to.number(self.revision);
    }
}

impl Decode for Caller {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let user = if yes_or_no(from)? { Some(from.text()?) } else { None };
        Ok(Caller { user, revision: from.number()? })
    }
}

/// Reads a secret and copies it, so that a few bytes do not keep the whole input buffer alive.
fn take_secret(from: &mut Decoder) -> Result<Secret, CodecError> {
    Ok(Secret::new(Bytes::copy_from_slice(&from.bytes()?)))
}

fn put_password<S: Sink>(password: Option<&Secret>, to: &mut Encoder<'_, S>) {
    to.byte(u8::from(password.is_some()));
    if let Some(password) = password {
        to.bytes(password.reveal());
    }
}

fn take_password(from: &mut Decoder) -> Result<Option<Secret>, CodecError> {
    if yes_or_no(from)? { take_secret(from).map(Some) } else { Ok(None) }
}

impl Encode for AccessGrant {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        self.range.encode(to);
        to.byte(match self.rights {
            Rights::Read => 1,
            Rights::Write => 2,
            Rights::ReadWrite => 3,
        });
    }
}

impl Decode for AccessGrant {
    const BYTES_MIN: usize = KeyRange::BYTES_MIN + 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let range = own(KeyRange::decode(from)?);
        let rights = match from.byte()? {
            1 => Rights::Read,
            2 => Rights::Write,
            3 => Rights::ReadWrite,
            found => return Err(CodecError::Newer { what: "rights", found: found.into() }),
        };
        Ok(AccessGrant { range, rights })
    }
}

/// Copies a range into memory of its own.
fn own(range: KeyRange) -> KeyRange {
    use crate::model::RangeEnd;
    let start = Bytes::copy_from_slice(range.start());
    match range.end() {
        RangeEnd::Single => KeyRange::key(start),
        RangeEnd::Before(end) => KeyRange::between(start, Bytes::copy_from_slice(end)),
        RangeEnd::Unbounded => KeyRange::starting_at(start),
    }
}

impl Encode for AccessChange {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        let (kind, name) = match self {
            AccessChange::Enable { secret } => {
                to.byte(1);
                return to.bytes(secret.reveal());
            }
            AccessChange::Disable => return to.byte(2),
            AccessChange::AddUser { user, .. } => (3, user),
            AccessChange::DeleteUser(user) => (4, user),
            AccessChange::SetPassword { user, .. } => (5, user),
            AccessChange::GrantRole { user, .. } => (6, user),
            AccessChange::RevokeRole { user, .. } => (7, user),
            AccessChange::AddRole(role) => (8, role),
            AccessChange::DeleteRole(role) => (9, role),
            AccessChange::Grant { role, .. } => (10, role),
            AccessChange::Revoke { role, .. } => (11, role),
        };
        to.byte(kind);
        to.bytes(name.as_bytes());
        match self {
            AccessChange::AddUser { password, .. } | AccessChange::SetPassword { password, .. } => {
                put_password(password.as_ref(), to);
            }
            AccessChange::GrantRole { role, .. } | AccessChange::RevokeRole { role, .. } => {
                to.bytes(role.as_bytes());
            }
            AccessChange::Grant { grant, .. } => grant.encode(to),
            AccessChange::Revoke { range, .. } => range.encode(to),
            _ => {}
        }
    }
}

impl Decode for AccessChange {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            1 => AccessChange::Enable { secret: take_secret(from)? },
            2 => AccessChange::Disable,
            3 => AccessChange::AddUser { user: from.text()?, password: take_password(from)? },
            4 => AccessChange::DeleteUser(from.text()?),
            5 => AccessChange::SetPassword { user: from.text()?, password: take_password(from)? },
            6 => AccessChange::GrantRole { user: from.text()?, role: from.text()? },
            7 => AccessChange::RevokeRole { user: from.text()?, role: from.text()? },
            8 => AccessChange::AddRole(from.text()?),
            9 => AccessChange::DeleteRole(from.text()?),
            10 => AccessChange::Grant { role: from.text()?, grant: AccessGrant::decode(from)? },
            11 => AccessChange::Revoke { role: from.text()?, range: own(KeyRange::decode(from)?) },
            found => {
                return Err(CodecError::Newer {
                    what: "kind of change of users or roles",
                    found: found.into(),
                });
            }
        })
    }
}

impl Encode for Access {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.byte(u8::from(self.is_enabled()));
        to.number(self.revision());
        to.bytes(self.secret().reveal());
        to.number(self.users().len() as u64);
        for (name, user) in self.users() {
            to.bytes(name.as_bytes());
            put_password(user.password.as_ref(), to);
            to.number(user.since);
            to.number(user.roles.len() as u64);
            for role in &user.roles {
                to.bytes(role.as_bytes());
            }
        }
        to.number(self.roles().len() as u64);
        for (name, role) in self.roles() {
            to.bytes(name.as_bytes());
            to.list(role);
        }
    }
}

impl Decode for Access {
    const BYTES_MIN: usize = 5;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let core = (yes_or_no(from)?, from.number()?, take_secret(from)?);
        let mut users = BTreeMap::new();
        for _ in 0..from.count(4)? {
            let name = from.text()?;
            let (password, since) = (take_password(from)?, from.number()?);
            let mut roles = BTreeSet::new();
            for _ in 0..from.count(1)? {
                let role = from.text()?;
                if roles.last().is_some_and(|last| *last >= role) {
                    return Err(from.malformed("the roles of a user are out of order"));
                }
                roles.insert(role);
            }
            next_name(&users, &name, from)?;
            users.insert(name, User { password, roles, since });
        }
        let mut roles = BTreeMap::new();
        for _ in 0..from.count(2)? {
            let name = from.text()?;
            let role: AccessRole = from.list()?;
            next_name(&roles, &name, from)?;
            roles.insert(name, role);
        }
        let access = Access::from_parts(core, users, roles);
        access.ok_or_else(|| from.malformed("users and roles contradict each other"))
    }
}

/// Returns an error if a name does not sort after the names read so far. Names must be in order and
/// without duplicates, so that each table has only one encoding.
fn next_name<T>(named: &BTreeMap<String, T>, name: &str, from: &Decoder) -> Result<(), CodecError> {
    match named.last_key_value() {
        Some((last, _)) if last.as_str() >= name => Err(from.malformed("names are out of order")),
        _ => Ok(()),
    }
}

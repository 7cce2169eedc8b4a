//! Access control: users, their roles, and the key ranges that each role may access. The table is
//! part of the replicated state, so every member makes the same decision at the same log index. The
//! semantics are etcd's.
//!
//! ```text
//!   Caller ──▶ user ──▶ roles ──▶ grants: range of keys, rights
//!     │
//!     └ the revision of this table at which the caller was authenticated: if the table has changed
//!       since, the command is rejected and must be retried
//! ```
//!
//! While access control is disabled, every caller may do everything. The program that embeds the
//! node may always do everything: only commands that contain a [`Caller`] are checked. Other code
//! hashes passwords and authenticates callers, before a command is proposed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use super::key_set::OpenKeys;
use super::{IntoBytes, KeyRange, RangeEnd};

/// The name of the administrator user, and the name of the role that has all rights.
pub const ROOT: &str = "root";

/// Bytes that are never displayed: a password hash, or a key that signs tokens.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(Bytes);

impl Secret {
    /// Wraps the bytes.
    pub fn new(bytes: impl IntoBytes) -> Self {
        Self(bytes.into_bytes())
    }

    /// Returns the bytes.
    pub fn expose(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The caller on whose behalf a command is executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The user, or `None` for an anonymous caller.
    pub user: Option<String>,
    /// The [revision](Access::revision) of the table at which the user was authenticated.
    pub revision: u64,
}

/// A user.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct User {
    /// Hash of the password, in a format that only the authentication code knows. `None` if the
    /// user has no password and is authenticated in another way.
    pub password: Option<Secret>,
    /// Names of the user's roles.
    pub roles: BTreeSet<String>,
    /// Revision of the table at which the password was set. Tokens issued before this revision are
    /// invalid.
    pub since: u64,
}

/// The operations that a role may perform on a range of keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rights {
    /// Read and watch the keys.
    Read,
    /// Put and delete the keys.
    Write,
    /// Read, watch, put and delete the keys.
    ReadWrite,
}

impl Rights {
    fn include(self, wanted: Right) -> bool {
        match wanted {
            Right::Read => self != Rights::Write,
            Right::Write => self != Rights::Read,
        }
    }
}

/// A range of keys, and the rights of a role to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessGrant {
    /// The keys.
    pub range: KeyRange,
    /// The rights to these keys.
    pub rights: Rights,
}

/// A role: its grants, ordered by range.
pub type Role = Vec<AccessGrant>;

/// The table of users and roles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    enabled: bool,
    revision: u64,
    secret: Secret,
    users: BTreeMap<String, User>,
    roles: BTreeMap<String, Role>,
}

/// A change of the table of users and roles.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AccessChange {
    /// Enables access control. A user `root` with the role `root` must exist.
    Enable {
        /// A new key for signing tokens.
        secret: Secret,
    },
    /// Disables access control.
    Disable,
    /// Adds a user.
    AddUser {
        /// Name of the user: not empty, at most [`Access::NAME_BYTES_MAX`] bytes.
        user: String,
        /// Hash of the password, or `None` if the user has no password.
        password: Option<Secret>,
    },
    /// Deletes a user.
    DeleteUser(String),
    /// Changes a user's password. Tokens issued for the old password become invalid.
    SetPassword {
        /// Name of the user.
        user: String,
        /// Hash of the new password, or `None` if the user has no password.
        password: Option<Secret>,
    },
    /// Grants a role to a user.
    GrantRole {
        /// Name of the user.
        user: String,
        /// Name of the role. The role `root` need not exist.
        role: String,
    },
    /// Revokes a role from a user.
    RevokeRole {
        /// Name of the user.
        user: String,
        /// Name of the role.
        role: String,
    },
    /// Adds a role without any rights.
    AddRole(String),
    /// Deletes a role and revokes it from its users.
    DeleteRole(String),
    /// Grants a role rights to a range. Replaces earlier rights to exactly the same range.
    Grant {
        /// Name of the role.
        role: String,
        /// The range, which must not be empty, and the rights.
        grant: AccessGrant,
    },
    /// Revokes a role's rights to a range.
    Revoke {
        /// Name of the role.
        role: String,
        /// The range, exactly as it was granted.
        range: KeyRange,
    },
}

impl AccessChange {
    /// Returns the approximate size of the change in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let secret = |secret: Option<&Secret>| secret.map_or(0, |secret| secret.0.len());
        match self {
            AccessChange::Enable { secret: key } => secret(Some(key)),
            AccessChange::Disable => 0,
            AccessChange::AddUser { user, password }
            | AccessChange::SetPassword { user, password } => {
                user.len() + secret(password.as_ref())
            }
            AccessChange::DeleteUser(name)
            | AccessChange::AddRole(name)
            | AccessChange::DeleteRole(name) => name.len(),
            AccessChange::GrantRole { user, role } | AccessChange::RevokeRole { user, role } => {
                user.len() + role.len()
            }
            AccessChange::Grant { role, grant: AccessGrant { range, .. } }
            | AccessChange::Revoke { role, range } => role.len() + bytes_of(range),
        }
    }
}

/// The reason why access is denied, or why a change of the table is rejected. Where etcd has an
/// equivalent error, the text is the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The caller lacks the rights for this operation.
    #[error("permission denied")]
    Denied,
    /// Users or roles have changed since the caller was authenticated; the caller must retry.
    #[error("revision of auth store is old")]
    Outdated,
    /// The request has no user, or the name of a user is empty.
    #[error("user name is empty")]
    NoUser,
    /// Access control cannot be enabled, because no user `root` exists who could administer the
    /// cluster.
    #[error("root user does not exist")]
    NoRoot,
    /// Access control cannot be enabled, because the user `root` lacks the role `root`.
    #[error("root user does not have root role")]
    RootWithoutRole,
    /// A user with this name exists already.
    #[error("user name already exists")]
    UserExists,
    /// No user with this name exists.
    #[error("user name not found")]
    UserNotFound,
    /// A role with this name exists already.
    #[error("role name already exists")]
    RoleExists,
    /// No role with this name exists.
    #[error("role name not found")]
    RoleNotFound,
    /// The name of the role is empty.
    #[error("role name is empty")]
    NoRole,
    /// The user does not have this role.
    #[error("role is not granted to the user")]
    RoleNotGranted,
    /// The role has no rights to exactly this range.
    #[error("permission is not granted to the role")]
    NotGranted,
    /// The change would leave the cluster without an administrator, or its range contains no keys.
    #[error("invalid auth management")]
    Invalid,
    /// The table has reached its size limit, or a name is too long.
    #[error(
        "users, roles and permissions take more than {} bytes, or a name more than {}",
        Access::BYTES_MAX,
        Access::NAME_BYTES_MAX
    )]
    TooMuch,
}

#[cfg(test)]
impl AuthError {
    pub(crate) const ALL: [Self; 14] = [
        Self::Denied,
        Self::Outdated,
        Self::NoUser,
        Self::NoRoot,
        Self::RootWithoutRole,
        Self::UserExists,
        Self::UserNotFound,
        Self::RoleExists,
        Self::RoleNotFound,
        Self::NoRole,
        Self::RoleNotGranted,
        Self::NotGranted,
        Self::Invalid,
        Self::TooMuch,
    ];
}

/// The right that an operation on keys needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Right {
    Read,
    Write,
}

/// The rights of a caller.
enum Powers<'a> {
    Everything,
    Of(&'a User),
}

impl Default for Access {
    fn default() -> Self {
        Self {
            enabled: false,
            revision: 1,
            secret: Secret::default(),
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
        }
    }
}

impl Access {
    /// Maximum length of the name of a user or a role, in bytes.
    pub const NAME_BYTES_MAX: usize = 256;

    /// Maximum approximate size of the whole table in bytes. The table is limited because the head
    /// of every snapshot contains the table.
    pub const BYTES_MAX: usize = 256 << 10;

    /// Number of bytes that each entry adds to the size of the table, in addition to its own bytes.
    const ENTRY_BYTES: usize = 16;

    /// Builds the table from its parts. Returns `None` if the parts contradict each other.
    pub(crate) fn from_parts(
        (enabled, revision, secret): (bool, u64, Secret),
        users: BTreeMap<String, User>,
        roles: BTreeMap<String, Role>,
    ) -> Option<Self> {
        let ordered =
            |role: &Role| role.windows(2).all(|pair| order(&pair[0].range) < order(&pair[1].range));
        let sound = revision > 0 && roles.values().all(ordered);
        sound.then_some(Self { enabled, revision, secret, users, roles })
    }

    /// Returns a table with the same users and roles for a restored cluster, in which all tokens
    /// issued earlier are invalid.
    pub(crate) fn reseeded(&self, revision_jump: u64) -> Self {
        let mut access = self.clone();
        access.revision = self.revision.saturating_add(revision_jump);
        for user in access.users.values_mut() {
            user.since = access.revision;
        }
        access
    }

    /// Returns whether access control is enabled.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the revision of the table. The revision starts at 1 and increases with every change
    /// of users, roles or rights.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the key that signs tokens. A new key is set each time access control is enabled.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Returns the users by name.
    pub fn users(&self) -> &BTreeMap<String, User> {
        &self.users
    }

    /// Returns the roles by name.
    pub fn roles(&self) -> &BTreeMap<String, Role> {
        &self.roles
    }

    /// Checks that a caller may read and watch all of these keys.
    ///
    /// # Errors
    /// Returns an [`AuthError`] if the caller lacks the right.
    pub fn may_read(&self, caller: &Caller, keys: &KeyRange) -> Result<(), AuthError> {
        self.may(caller, Right::Read, keys)
    }

    /// Checks that a caller may put and delete all of these keys.
    ///
    /// # Errors
    /// Returns an [`AuthError`] if the caller lacks the right.
    pub fn may_write(&self, caller: &Caller, keys: &KeyRange) -> Result<(), AuthError> {
        self.may(caller, Right::Write, keys)
    }

    /// Checks that a caller is an existing user.
    ///
    /// # Errors
    /// Returns an [`AuthError`] otherwise.
    pub fn is_user(&self, caller: &Caller) -> Result<(), AuthError> {
        self.powers(caller).map(|_| ())
    }

    /// Checks that a caller may administer the cluster, that is, that its user has the role `root`.
    ///
    /// # Errors
    /// Returns an [`AuthError`] if the caller may not administer the cluster.
    pub fn is_root(&self, caller: &Caller) -> Result<(), AuthError> {
        match self.powers(caller)? {
            Powers::Everything => Ok(()),
            Powers::Of(_) => Err(AuthError::Denied),
        }
    }

    fn powers(&self, caller: &Caller) -> Result<Powers<'_>, AuthError> {
        if !self.enabled {
            return Ok(Powers::Everything);
        }
        let name = caller.user.as_ref().ok_or(AuthError::NoUser)?;
        if caller.revision != self.revision {
            return Err(AuthError::Outdated);
        }
        let user = self.users.get(name).ok_or(AuthError::Denied)?;
        Ok(if user.roles.contains(ROOT) { Powers::Everything } else { Powers::Of(user) })
    }

    /// Checks that a caller has a right to all of these keys.
    pub(crate) fn may(
        &self,
        caller: &Caller,
        right: Right,
        keys: &KeyRange,
    ) -> Result<(), AuthError> {
        let Powers::Of(user) = self.powers(caller)? else { return Ok(()) };
        let mut grants = self.granted(user, right);
        // A single key, or a range exactly as it was granted, can be checked against each grant
        // without merging the grants.
        let may = match keys.as_single() {
            Some(key) => grants.any(|range| range.contains(key)),
            None => grants.any(|range| range == keys) || self.open_to(user, right).hold(keys),
        };
        if may { Ok(()) } else { Err(AuthError::Denied) }
    }

    /// Returns the keys to which a caller has a right, for repeated checks.
    pub(crate) fn open(&self, caller: &Caller, right: Right) -> Result<OpenKeys, AuthError> {
        let Powers::Of(user) = self.powers(caller)? else { return Ok(OpenKeys::All) };
        Ok(self.open_to(user, right))
    }

    fn open_to(&self, user: &User, right: Right) -> OpenKeys {
        OpenKeys::of(self.granted(user, right))
    }

    fn granted<'a>(&'a self, user: &'a User, right: Right) -> impl Iterator<Item = &'a KeyRange> {
        let roles = user.roles.iter().filter_map(|role| self.roles.get(role));
        let grants = roles.flatten().filter(move |grant| grant.rights.include(right));
        grants.map(|grant| &grant.range)
    }

    /// Applies a change. A rejected change has no effect.
    ///
    /// # Errors
    /// Returns an [`AuthError`] if the change is rejected.
    pub(crate) fn apply(&mut self, change: AccessChange) -> Result<(), AuthError> {
        let mut after = self.clone();
        after.change(change)?;
        if after.bytes() > Self::BYTES_MAX && after.bytes() > self.bytes() {
            return Err(AuthError::TooMuch);
        }
        *self = after;
        Ok(())
    }

    fn change(&mut self, change: AccessChange) -> Result<(), AuthError> {
        let next = self.revision + 1;
        match change {
            AccessChange::Enable { secret } => {
                let root = self.users.get(ROOT).ok_or(AuthError::NoRoot)?;
                if !root.roles.contains(ROOT) {
                    return Err(AuthError::RootWithoutRole);
                }
                if !self.enabled {
                    (self.enabled, self.secret) = (true, secret);
                }
                // As in etcd, the revision does not change, so that callers that were authenticated
                // before remain valid.
                return Ok(());
            }
            AccessChange::Disable if !self.enabled => return Ok(()),
            AccessChange::Disable => self.enabled = false,
            AccessChange::AddUser { user, password } => {
                named(&user, AuthError::NoUser)?;
                if self.users.contains_key(&user) {
                    return Err(AuthError::UserExists);
                }
                let roles = BTreeSet::new();
                self.users.insert(user, User { password, roles, since: next });
            }
            AccessChange::DeleteUser(user) => {
                if self.enabled && user == ROOT {
                    return Err(AuthError::Invalid);
                }
                self.users.remove(&user).ok_or(AuthError::UserNotFound)?;
            }
            AccessChange::SetPassword { user, password } => {
                let user = self.users.get_mut(&user).ok_or(AuthError::UserNotFound)?;
                (user.password, user.since) = (password, next);
            }
            AccessChange::GrantRole { user, role } => {
                let user = self.users.get_mut(&user).ok_or(AuthError::UserNotFound)?;
                if role != ROOT && !self.roles.contains_key(&role) {
                    return Err(AuthError::RoleNotFound);
                }
                if !user.roles.insert(role) {
                    return Ok(());
                }
            }
            AccessChange::RevokeRole { user, role } => {
                if self.enabled && user == ROOT && role == ROOT {
                    return Err(AuthError::Invalid);
                }
                let user = self.users.get_mut(&user).ok_or(AuthError::UserNotFound)?;
                if !user.roles.remove(&role) {
                    return Err(AuthError::RoleNotGranted);
                }
            }
            AccessChange::AddRole(role) => {
                named(&role, AuthError::NoRole)?;
                if self.roles.contains_key(&role) {
                    return Err(AuthError::RoleExists);
                }
                self.roles.insert(role, Role::new());
            }
            AccessChange::DeleteRole(role) => {
                if self.enabled && role == ROOT {
                    return Err(AuthError::Invalid);
                }
                self.roles.remove(&role).ok_or(AuthError::RoleNotFound)?;
                for user in self.users.values_mut() {
                    user.roles.remove(&role);
                }
            }
            AccessChange::Grant { role, grant } => {
                let role = self.roles.get_mut(&role).ok_or(AuthError::RoleNotFound)?;
                if is_empty(&grant.range) {
                    return Err(AuthError::Invalid);
                }
                match role.binary_search_by_key(&order(&grant.range), |at| order(&at.range)) {
                    Ok(at) => role[at].rights = grant.rights,
                    Err(at) => role.insert(at, grant),
                }
            }
            AccessChange::Revoke { role, range } => {
                let role = self.roles.get_mut(&role).ok_or(AuthError::RoleNotFound)?;
                let at = role.binary_search_by_key(&order(&range), |at| order(&at.range));
                role.remove(at.map_err(|_| AuthError::NotGranted)?);
            }
        }
        self.revision = next;
        Ok(())
    }

    /// Returns the approximate size of the table in bytes.
    fn bytes(&self) -> usize {
        let text = |text: &String| Self::ENTRY_BYTES + text.len();
        let users = self.users.iter().map(|(name, user)| {
            let password = user.password.as_ref().map_or(0, |password| password.0.len());
            text(name) + password + user.roles.iter().map(text).sum::<usize>()
        });
        let roles = self.roles.iter().map(|(name, role)| {
            let grants =
                role.iter().map(|AccessGrant { range, .. }| Self::ENTRY_BYTES + bytes_of(range));
            text(name) + grants.sum::<usize>()
        });
        users.sum::<usize>() + roles.sum::<usize>()
    }
}

fn named(name: &str, empty: AuthError) -> Result<(), AuthError> {
    match name.len() {
        0 => Err(empty),
        1..=Access::NAME_BYTES_MAX => Ok(()),
        _ => Err(AuthError::TooMuch),
    }
}

/// The order of ranges within a role.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum RangeOrder<'a> {
    Single,
    Before(&'a [u8]),
    Unbounded,
}

fn order(range: &KeyRange) -> (&[u8], RangeOrder<'_>) {
    let end = match range.end() {
        RangeEnd::Single => RangeOrder::Single,
        RangeEnd::Before(end) => RangeOrder::Before(end),
        RangeEnd::Unbounded => RangeOrder::Unbounded,
    };
    (range.start(), end)
}

fn bytes_of(range: &KeyRange) -> usize {
    let end = if let RangeEnd::Before(end) = range.end() { end.len() } else { 0 };
    range.start().len() + end
}

fn is_empty(range: &KeyRange) -> bool {
    match range.end() {
        RangeEnd::Single | RangeEnd::Unbounded => range.start().is_empty(),
        RangeEnd::Before(end) => range.start().is_empty() || end <= range.start(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: &str = "ann";

    fn table(grants: &[(KeyRange, Rights)]) -> Access {
        let mut access = Access::default();
        let text = str::to_owned;
        let mut changes = vec![
            AccessChange::AddUser { user: text(ROOT), password: None },
            AccessChange::GrantRole { user: text(ROOT), role: text(ROOT) },
            AccessChange::AddUser { user: text(ANN), password: None },
            AccessChange::AddRole(text("some")),
            AccessChange::GrantRole { user: text(ANN), role: text("some") },
        ];
        changes.extend(grants.iter().map(|(range, rights)| AccessChange::Grant {
            role: text("some"),
            grant: AccessGrant { range: range.clone(), rights: *rights },
        }));
        changes.push(AccessChange::Enable { secret: Secret::new("s") });
        for change in changes {
            access.apply(change).unwrap();
        }
        access
    }

    fn caller(access: &Access, user: Option<&str>) -> Caller {
        Caller { user: user.map(str::to_owned), revision: access.revision() }
    }

    #[test]
    fn adjacent_grants_cover_a_spanning_range_but_not_a_gap() {
        let (read, both) = (Rights::Read, Rights::ReadWrite);
        let access = table(&[
            (KeyRange::between("a", "c"), both),
            (KeyRange::between("b", "d"), read),
            (KeyRange::key("d"), read),
            (KeyRange::between("e", "f"), read),
            (KeyRange::starting_at("x"), both),
        ]);
        let ann = caller(&access, Some(ANN));
        let may = |keys: KeyRange| access.may_read(&ann, &keys).is_ok();
        for open in [
            KeyRange::key("a"),
            KeyRange::key("cz"),
            KeyRange::between("a", "d"),
            KeyRange::between("a", "d\0"),
            KeyRange::between("x", "zzz"),
            KeyRange::starting_at("y"),
            KeyRange::prefix("e"),
        ] {
            assert!(may(open.clone()), "{open:?}");
        }
        for closed in [
            KeyRange::key("0"),
            KeyRange::key("d1"),
            KeyRange::between("a", "e"),
            KeyRange::between("0", "b"),
            KeyRange::starting_at("a"),
            KeyRange::starting_at("e"),
            KeyRange::all(),
            KeyRange::between("g", "a"),
            KeyRange::key("f"),
        ] {
            assert!(!may(closed.clone()), "{closed:?}");
        }
        assert!(access.may_write(&ann, &KeyRange::key("b")).is_ok());
        assert!(access.may_write(&ann, &KeyRange::key("c")).is_err());
    }

    #[test]
    fn caller_is_checked_only_while_auth_is_enabled() {
        let mut access = table(&[(KeyRange::key("k"), Rights::Read)]);
        let key = KeyRange::key("k");
        let (anonymous, ann, bob) =
            (caller(&access, None), caller(&access, Some(ANN)), caller(&access, Some("bob")));
        let root = caller(&access, Some(ROOT));
        assert_eq!(access.may_read(&anonymous, &key), Err(AuthError::NoUser));
        assert_eq!(access.may_read(&bob, &key), Err(AuthError::Denied));
        assert_eq!(access.may_read(&ann, &key), Ok(()));
        assert_eq!(access.is_root(&ann), Err(AuthError::Denied));
        assert_eq!(access.is_root(&root), Ok(()));
        assert_eq!(access.may_write(&root, &KeyRange::all()), Ok(()));
        access.apply(AccessChange::AddRole("more".to_owned())).unwrap();
        assert_eq!(access.may_read(&ann, &key), Err(AuthError::Outdated));
        assert_eq!(access.is_root(&root), Err(AuthError::Outdated));
        access.apply(AccessChange::Disable).unwrap();
        assert_eq!(access.may_write(&anonymous, &KeyRange::all()), Ok(()));
    }

    #[test]
    fn root_cannot_be_removed_while_auth_is_enabled() {
        let mut access = table(&[]);
        let text = str::to_owned;
        let before = access.clone();
        for change in [
            AccessChange::DeleteUser(text(ROOT)),
            AccessChange::RevokeRole { user: text(ROOT), role: text(ROOT) },
            AccessChange::DeleteRole(text(ROOT)),
        ] {
            assert_eq!(access.apply(change), Err(AuthError::Invalid));
        }
        assert_eq!(access, before);
        let mut none = Access::default();
        let enable = AccessChange::Enable { secret: Secret::new("s") };
        assert_eq!(none.apply(enable.clone()), Err(AuthError::NoRoot));
        none.apply(AccessChange::AddUser { user: text(ROOT), password: None }).unwrap();
        assert_eq!(none.apply(enable), Err(AuthError::RootWithoutRole));
    }

    #[test]
    fn deleted_role_leaves_its_users_and_an_empty_range_grants_nothing() {
        let mut access = table(&[(KeyRange::key("k"), Rights::ReadWrite)]);
        for range in [KeyRange::key(""), KeyRange::between("b", "a"), KeyRange::between("b", "b")] {
            let grant = AccessGrant { range, rights: Rights::Read };
            let change = AccessChange::Grant { role: "some".to_owned(), grant };
            assert_eq!(access.apply(change), Err(AuthError::Invalid));
        }
        access.apply(AccessChange::DeleteRole("some".to_owned())).unwrap();
        assert!(access.users()[ANN].roles.is_empty());
        let ann = caller(&access, Some(ANN));
        assert_eq!(access.may_read(&ann, &KeyRange::key("k")), Err(AuthError::Denied));
    }

    #[test]
    fn access_table_and_names_have_maximum_sizes() {
        let mut access = Access::default();
        let long = "n".repeat(Access::NAME_BYTES_MAX + 1);
        assert_eq!(access.apply(AccessChange::AddRole(long)), Err(AuthError::TooMuch));
        let refused = (0..2000).find_map(|number| {
            access.apply(AccessChange::AddRole(format!("{number:0>256}"))).err()
        });
        assert_eq!(refused, Some(AuthError::TooMuch));
        assert!(access.bytes() <= Access::BYTES_MAX);
        access.apply(AccessChange::DeleteRole(format!("{:0>256}", 1))).unwrap();
    }

    #[test]
    fn secrets_are_not_printed() {
        let change = AccessChange::AddUser {
            user: "ann".to_owned(),
            password: Some(Secret::new("hunter2")),
        };
        assert!(!format!("{change:?}").contains("hunter2"));
    }
}

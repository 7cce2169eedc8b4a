//! Who may do what: users, their roles, and the ranges of keys that roles open. Part of the replicated state,
//! so that every member says the same at the same place in the log. The meaning is etcd's.
//!
//! ```text
//!   Caller ──▶ user ──▶ roles ──▶ grants: range of keys, rights
//!     │
//!     └ the revision of this table that the caller was told apart by: whatever has changed since, the
//!       command is refused, and to be asked again
//! ```
//!
//! While it is off everybody may do everything, and so may the program in which a member runs, always: only
//! commands that come with a [`Caller`] are judged. Passwords are hashed, and callers told apart, by whoever
//! lets them in; what is kept here says nothing about how.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use super::open::OpenKeys;
use super::{KeyRange, RangeEnd};

/// The user, and the role, that may do everything.
pub const ROOT: &str = "root";

/// Bytes that are never shown: a password's hash, a key that signs tokens.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(Bytes);

impl Secret {
    /// Keeps them.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn reveal(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// For whom a command is executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The user; `None` if nobody has said.
    pub user: Option<String>,
    /// The [revision](Access::revision) of the table by which the user was told apart.
    pub revision: u64,
}

/// A user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The hash of the password, as whoever checks passwords made it; `None` if it has none, and is told apart
    /// in another way.
    pub password: Option<Secret>,
    /// Its roles.
    pub roles: BTreeSet<String>,
    /// The revision of the table at which its password was set: what was handed out for an older one is void.
    pub since: u64,
}

/// What may be done with a range of keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rights {
    /// Read and watch them.
    Read,
    /// Put and delete them.
    Write,
    /// Both.
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

/// A range of keys, and what a role may do with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessGrant {
    /// Which keys.
    pub range: KeyRange,
    /// What may be done with them.
    pub rights: Rights,
}

/// A role: what it opens, ordered by range.
pub type Role = Vec<AccessGrant>;

/// Users and roles, as of a log index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    enabled: bool,
    revision: u64,
    secret: Secret,
    users: BTreeMap<String, User>,
    roles: BTreeMap<String, Role>,
}

/// One change of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AccessChange {
    /// From now on callers are judged. There must be a user `root` with the role `root`.
    Enable {
        /// A new key for whoever signs tokens with it. Nobody else knows it.
        secret: Secret,
    },
    /// Callers are judged no more.
    Disable,
    /// A new user.
    AddUser {
        /// Its name: not empty, at most [`Access::NAME_BYTES_MAX`].
        user: String,
        /// The hash of its password, or `None`.
        password: Option<Secret>,
    },
    /// A user goes.
    DeleteUser(String),
    /// A user's password changes, and all that was handed out for the old one is void.
    SetPassword {
        /// Whose.
        user: String,
        /// The new one's hash, or `None`.
        password: Option<Secret>,
    },
    /// A user gets a role.
    GrantRole {
        /// Who.
        user: String,
        /// Which; `root` need not exist.
        role: String,
    },
    /// A user loses a role.
    RevokeRole {
        /// Who.
        user: String,
        /// Which.
        role: String,
    },
    /// A new role, which opens nothing yet.
    AddRole(String),
    /// A role goes; its users lose it.
    DeleteRole(String),
    /// A role opens a range of keys; rights that it had to the very same range are replaced.
    Grant {
        /// Which role.
        role: String,
        /// What it opens. The range is not empty.
        grant: AccessGrant,
    },
    /// A role does not open a range any more.
    Revoke {
        /// Which role.
        role: String,
        /// The very range that was granted.
        range: KeyRange,
    },
}

impl AccessChange {
    /// How much it takes, about, in bytes.
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

/// Why something is not allowed, or the table stays as it is. The texts are etcd's where etcd has one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The caller may not do this.
    #[error("permission denied")]
    Denied,
    /// Users and roles have changed since the caller was told apart: ask again.
    #[error("revision of auth store is old")]
    Outdated,
    /// Nobody has said who asks; or a user's name is empty.
    #[error("user name is empty")]
    NoUser,
    /// Nobody could administer the cluster.
    #[error("root user does not exist")]
    NoRoot,
    /// Nobody could administer the cluster.
    #[error("root user does not have root role")]
    RootWithoutRole,
    /// There is such a user.
    #[error("user name already exists")]
    UserExists,
    /// There is no such user.
    #[error("user name not found")]
    UserNotFound,
    /// There is such a role.
    #[error("role name already exists")]
    RoleExists,
    /// There is no such role.
    #[error("role name not found")]
    RoleNotFound,
    /// A role has a name.
    #[error("role name is empty")]
    NoRole,
    /// The user does not have it.
    #[error("role is not granted to the user")]
    RoleNotGranted,
    /// The role does not open this range.
    #[error("permission is not granted to the role")]
    NotGranted,
    /// The change would leave nobody to administer the cluster, or is of a range without keys.
    #[error("invalid auth management")]
    Invalid,
    /// There are as many users, roles and grants as there can be, or a name is too long.
    #[error(
        "users, roles and permissions take more than {} bytes, or a name more than {}",
        Access::BYTES_MAX,
        Access::NAME_BYTES_MAX
    )]
    TooMuch,
}

#[cfg(test)]
impl AuthError {
    /// Each of them.
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

/// What a caller wants with keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Right {
    Read,
    Write,
}

/// What a caller may do.
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
    /// The longest name of a user or a role, in bytes.
    pub const NAME_BYTES_MAX: usize = 256;

    /// How much all of it may take, about, in bytes: it travels with every snapshot's head.
    pub const BYTES_MAX: usize = 256 << 10;

    /// What an entry of the table counts for beside its bytes.
    const ENTRY_BYTES: usize = 16;

    /// The table with these parts; `None` if they contradict each other.
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

    /// The same users and roles, as another cluster begins with them: whatever was handed out for them is void.
    pub(crate) fn reseeded(&self, revision_jump: u64) -> Self {
        let mut access = self.clone();
        access.revision = self.revision.saturating_add(revision_jump);
        for user in access.users.values_mut() {
            user.since = access.revision;
        }
        access
    }

    /// Whether callers are judged.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Rises with every change of who may do what, from 1.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The key that tokens are signed with. It is another one after each time that it was enabled.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The users, by name.
    pub fn users(&self) -> &BTreeMap<String, User> {
        &self.users
    }

    /// The roles, by name.
    pub fn roles(&self) -> &BTreeMap<String, Role> {
        &self.roles
    }

    /// Whether a caller may read and watch all of these keys.
    ///
    /// # Errors
    /// See [`AuthError`].
    pub fn may_read(&self, caller: &Caller, keys: &KeyRange) -> Result<(), AuthError> {
        self.may(caller, Right::Read, keys)
    }

    /// Whether a caller may put and delete all of these keys.
    ///
    /// # Errors
    /// See [`AuthError`].
    pub fn may_write(&self, caller: &Caller, keys: &KeyRange) -> Result<(), AuthError> {
        self.may(caller, Right::Write, keys)
    }

    /// Whether a caller is a user at all.
    ///
    /// # Errors
    /// See [`AuthError`].
    pub fn is_user(&self, caller: &Caller) -> Result<(), AuthError> {
        self.powers(caller).map(|_| ())
    }

    /// Whether a caller may administer the cluster: its user has the role `root`.
    ///
    /// # Errors
    /// See [`AuthError`].
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

    /// Whether a caller has a right to all of these keys.
    pub(crate) fn may(
        &self,
        caller: &Caller,
        right: Right,
        keys: &KeyRange,
    ) -> Result<(), AuthError> {
        let Powers::Of(user) = self.powers(caller)? else { return Ok(()) };
        let mut grants = self.granted(user, right);
        // One key, or a range as it was granted, needs nothing put together.
        let may = match keys.as_single() {
            Some(key) => grants.any(|range| range.contains(key)),
            None => grants.any(|range| range == keys) || self.open_to(user, right).hold(keys),
        };
        if may { Ok(()) } else { Err(AuthError::Denied) }
    }

    /// The keys to which a caller has a right: for who asks more than once.
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

    /// Makes a change. A refused one changes nothing.
    ///
    /// # Errors
    /// See [`AuthError`].
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
                // As in etcd: what was known of users before is known still.
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

    /// What all of it takes, about, in bytes.
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

/// How ranges are ordered in a role.
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
    fn ranges_side_by_side_open_what_lies_across_them_and_a_gap_does_not() {
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
    fn who_asks_is_judged_only_where_it_is_enabled_and_by_the_newest_table() {
        let mut access = table(&[(KeyRange::key("k"), Rights::Read)]);
        let key = KeyRange::key("k");
        let (nobody, ann, bob) =
            (caller(&access, None), caller(&access, Some(ANN)), caller(&access, Some("bob")));
        let root = caller(&access, Some(ROOT));
        assert_eq!(access.may_read(&nobody, &key), Err(AuthError::NoUser));
        assert_eq!(access.may_read(&bob, &key), Err(AuthError::Denied));
        assert_eq!(access.may_read(&ann, &key), Ok(()));
        assert_eq!(access.is_root(&ann), Err(AuthError::Denied));
        assert_eq!(access.is_root(&root), Ok(()));
        assert_eq!(access.may_write(&root, &KeyRange::all()), Ok(()));
        access.apply(AccessChange::AddRole("more".to_owned())).unwrap();
        assert_eq!(access.may_read(&ann, &key), Err(AuthError::Outdated));
        assert_eq!(access.is_root(&root), Err(AuthError::Outdated));
        access.apply(AccessChange::Disable).unwrap();
        assert_eq!(access.may_write(&nobody, &KeyRange::all()), Ok(()));
    }

    #[test]
    fn nobody_can_take_root_away_from_a_table_that_is_in_force() {
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
    fn a_role_that_goes_is_lost_by_its_users_and_an_empty_range_opens_nothing() {
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
    fn the_table_has_a_largest_size_and_names_a_longest_length() {
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
    fn secrets_are_not_shown() {
        let change = AccessChange::AddUser {
            user: "ann".to_owned(),
            password: Some(Secret::new("hunter2")),
        };
        assert!(!format!("{change:?}").contains("hunter2"));
    }
}

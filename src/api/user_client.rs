//! [`UserClient`]: calls on behalf of users, authorized by the users and roles of the cluster.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    Access, AccessChange, AuthError, Caller, Command, IntoBytes, KeyRange, LeaseId, OpenKeys,
    Rejection, Revision, RevokeReply, Right,
};
use crate::watch::WatchError;

use super::call::Consistency;
use super::{
    Client, DeleteCall, Error, GetCall, GrantCall, LeaseStatus, PutCall, RangeCall, TxnCall,
    WatchCall,
};

impl Client {
    /// Returns a client that acts on behalf of `caller`. A call that the users and roles of the
    /// cluster forbid is rejected with [`AuthError`]. A write is authorized when it is applied,
    /// against the current access table. A read is authorized before and after it is made. A watch
    /// is authorized with every batch of events.
    ///
    /// The embedding program has full access through its other clients. The program must
    /// authenticate the caller itself, for example with [`User::password`](crate::auth::User) and
    /// [`Access::secret`].
    ///
    /// ```
    /// # use bowline::{Blocking, Config, KeyRange, Node, auth::{Access, AccessChange, AccessGrant, Caller, Rights, Secret, ROOT}};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// let grant = AccessGrant { range: KeyRange::prefix("app/"), rights: Rights::ReadWrite };
    /// for change in [
    ///     AccessChange::AddUser { user: ROOT.into(), password: None },
    ///     AccessChange::GrantRole { user: ROOT.into(), role: ROOT.into() },
    ///     AccessChange::AddUser { user: "ann".into(), password: None },
    ///     AccessChange::AddRole("app".into()),
    ///     AccessChange::Grant { role: "app".into(), grant },
    ///     AccessChange::GrantRole { user: "ann".into(), role: "app".into() },
    ///     AccessChange::Enable { secret: Secret::new("for tokens") },
    /// ] {
    ///     kv.change_access(change).block()?;
    /// }
    /// let caller = Caller { user: Some("ann".into()), revision: kv.access().revision() };
    /// let ann = kv.as_user(caller);
    /// assert!(ann.put("app/rate", "100").block().is_ok());
    /// assert!(ann.put("other", "1").block().is_err());
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn as_user(&self, caller: Caller) -> UserClient {
        UserClient(Client { caller: Some(Arc::new(caller)), ..self.clone() })
    }

    /// Returns the users and roles as known to the local replica. The result may lag behind the
    /// leader, but is never older than the results of earlier reads through this node.
    pub fn access(&self) -> Arc<Access> {
        self.shared.reader.access()
    }

    /// Returns the users and roles with a linearizable read.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn read_access(&self) -> Result<Arc<Access>, Error> {
        self.wait_until_current(Consistency::Linearizable, self.shared.deadline(None)).await?;
        Ok(self.access())
    }

    /// Changes users and roles. Returns the revision of the store when the change was applied. The
    /// change does not increase the revision.
    ///
    /// # Errors
    /// Returns an [`AuthError`] if the change is not valid. See [`Error`] for other errors.
    pub async fn change_access(&self, change: AccessChange) -> Result<Revision, Error> {
        Ok(self.propose(Command::Access(change), None).await?.revision())
    }

    /// Authorizes a read by the user of this client against the current access table.
    pub(crate) fn may(
        &self,
        read: impl Fn(&Access, &Caller) -> Result<(), AuthError>,
    ) -> Result<(), Rejection> {
        match &self.caller {
            None => Ok(()),
            Some(caller) => Ok(read(&self.access(), caller)?),
        }
    }

    /// Authorizes a read of a range.
    pub(crate) fn may_read(&self, keys: &KeyRange) -> Result<(), Rejection> {
        self.may(|access, caller| access.may_read(caller, keys))
    }

    /// Authorizes a command that only reads, and is therefore not authorized when it is applied.
    pub(crate) fn may_do(&self, command: &Command) -> Result<(), Rejection> {
        match &self.caller {
            None => Ok(()),
            Some(caller) => Ok(self.shared.reader.authorize(caller, command)?),
        }
    }

    /// Authorizes the delivery of a watch batch.
    pub(crate) fn may_watch(&self, keys: &KeyRange) -> Result<(), WatchError> {
        let permitted = self.may(|access, caller| {
            // A watch must survive changes to other users. Use the current revision of the access
            // table, so that a change to another user does not end the watch.
            let caller = Caller { revision: access.revision(), ..caller.clone() };
            access.may_read(&caller, keys)
        });
        permitted.map_err(|_| WatchError::Denied)
    }

    /// Wraps a command with the caller on whose behalf it is proposed.
    pub(crate) fn signed(&self, command: Command) -> Command {
        match &self.caller {
            None => command,
            Some(caller) => Command::As(Caller::clone(caller), Box::new(command)),
        }
    }
}

/// Reads, writes and watches the store on behalf of a user; see [`Client::as_user`]. Cheap to
/// clone. Every call of this client is authorized. Locks and the other recipes are available only
/// to the program itself.
#[derive(Clone, Debug)]
pub struct UserClient(pub(super) Client);

impl UserClient {
    /// Like [`Client::put`]. The caller needs write permission for the key. With `prev_kv` it also
    /// needs read permission, and with a lease it needs write permission for all keys of the lease.
    pub fn put(&self, key: impl IntoBytes, value: impl IntoBytes) -> PutCall {
        self.0.put(key, value)
    }

    /// Like [`Client::get`]. The caller needs read permission for the key.
    pub fn get(&self, key: impl IntoBytes) -> GetCall {
        self.0.get(key)
    }

    /// Like [`Client::range`]. The caller needs read permission for the whole range.
    pub fn range(&self, keys: impl Into<KeyRange>) -> RangeCall {
        self.0.range(keys)
    }

    /// Like [`Client::get_prefix`], with the permissions that [`UserClient::range`] needs.
    pub fn get_prefix(&self, prefix: impl IntoBytes) -> RangeCall {
        self.0.get_prefix(prefix)
    }

    /// Like [`Client::delete`]. The caller needs write permission for the whole range, and with
    /// `prev_kv` also read permission.
    pub fn delete(&self, keys: impl Into<KeyRange>) -> DeleteCall {
        self.0.delete(keys)
    }

    /// Like [`Client::delete_prefix`], with the permissions that [`UserClient::delete`] needs.
    pub fn delete_prefix(&self, prefix: impl IntoBytes) -> DeleteCall {
        self.0.delete_prefix(prefix)
    }

    /// Like [`Client::txn`]. The caller needs read permission for all compared keys. For the
    /// operations in both branches, including nested transactions, the caller needs the same
    /// permissions as for separate calls.
    pub fn txn(&self) -> TxnCall {
        self.0.txn()
    }

    /// Like [`Client::watch`]. The caller needs read permission for the whole range when the watch
    /// starts and with every batch. Without the permission, the watch ends with
    /// [`WatchError::Denied`].
    pub fn watch(&self, keys: impl Into<KeyRange>) -> WatchCall {
        self.0.watch(keys)
    }

    /// Like [`Client::watch_prefix`], with the permissions that [`UserClient::watch`] needs.
    pub fn watch_prefix(&self, prefix: impl IntoBytes) -> WatchCall {
        self.0.watch_prefix(prefix)
    }

    /// Like [`Client::compact`]. The caller needs the role `root`.
    ///
    /// # Errors
    /// The errors of [`Client::compact`], and [`AuthError`] if the caller lacks the role.
    pub async fn compact(&self, revision: Revision) -> Result<Revision, Error> {
        self.0.compact(revision).await
    }

    /// Like [`Client::grant`]. Available to any user.
    pub fn grant(&self, ttl: Duration) -> GrantCall {
        self.0.grant(ttl)
    }

    /// Like [`Client::revoke`]. The caller needs write permission for all keys of the lease.
    ///
    /// # Errors
    /// The errors of [`Client::revoke`], and [`AuthError`] if the caller lacks the permission.
    pub async fn revoke(&self, lease: LeaseId) -> Result<RevokeReply, Error> {
        self.0.revoke(lease).await
    }

    /// Like [`Client::renew`]. The caller needs write permission for all keys of the lease, as
    /// known to the local replica.
    ///
    /// # Errors
    /// The errors of [`Client::renew`], and [`AuthError`] if the caller lacks the permission.
    pub async fn renew(&self, lease: LeaseId) -> Result<Duration, Error> {
        // Renewing a lease decides how long its keys live, so it needs the same permission as
        // revoking it.
        self.0.may_do(&Command::Revoke(lease))?;
        self.0.renew(lease).await
    }

    /// Like [`Client::lease_time_to_live`]. Available to any user.
    ///
    /// # Errors
    /// The errors of [`Client::lease_time_to_live`], and [`AuthError`] if the caller is not a user.
    pub async fn lease_time_to_live(&self, lease: LeaseId) -> Result<Option<Duration>, Error> {
        self.0.may(Access::is_user)?;
        self.0.lease_time_to_live(lease).await
    }

    /// Returns the TTL, the session and the keys of a lease, like [`Client::lease_info`]. The
    /// caller needs read permission for all keys of the lease.
    ///
    /// # Errors
    /// The errors of [`Client::lease_info`], and [`AuthError`] if the caller lacks the permission.
    pub async fn lease_info(&self, lease: LeaseId) -> Result<Option<LeaseStatus>, Error> {
        self.0.may(Access::is_user)?;
        let status = self.0.lease_info(lease).with_keys().await?;
        let open = self.readable()?;
        match &status {
            Some(status) if !status.keys.iter().all(|key| open.has(key)) => {
                Err(Rejection::from(AuthError::Denied).into())
            }
            _ => Ok(status),
        }
    }

    /// Like [`Client::leases`], limited to leases whose keys the caller may all read.
    ///
    /// # Errors
    /// Returns [`AuthError`] if the caller is not a user.
    pub fn leases(&self) -> Result<Vec<LeaseId>, Error> {
        self.0.may(Access::is_user)?;
        let mut leases = self.0.leases();
        let open = self.readable()?;
        if open != OpenKeys::All {
            leases.retain(|&lease| {
                self.0.shared.reader.are_lease_keys(lease, |key| open.has(key)) == Some(true)
            });
        }
        Ok(leases)
    }

    /// Like [`Client::change_access`]. The caller needs the role `root`.
    ///
    /// # Errors
    /// The errors of [`Client::change_access`], and [`AuthError`] if the caller lacks the role.
    pub async fn change_access(&self, change: AccessChange) -> Result<Revision, Error> {
        self.0.change_access(change).await
    }

    fn readable(&self) -> Result<OpenKeys, Rejection> {
        let Some(caller) = &self.0.caller else { return Ok(OpenKeys::All) };
        Ok(self.0.access().open(caller, Right::Read)?)
    }
}

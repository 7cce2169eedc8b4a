//! Working for others: calls that are judged by the users and roles of the cluster.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::model::{
    Access, AccessChange, AuthError, Caller, Command, KeyRange, LeaseId, OpenKeys, Rejection,
    Revision, RevokeReply, Right,
};
use crate::watch::WatchError;

use super::call::Consistency;
use super::{
    Client, DeleteCall, Error, GetCall, GrantCall, LeaseStatus, PutCall, RangeCall, TxnCall,
    WatchCall,
};

impl Client {
    /// A client for what somebody else asks of this program: each of its calls is refused
    /// ([`AuthError`]) where the users and roles of the cluster forbid it. Writes are judged where they are
    /// applied, by the table as it is there; reads before and after they are made; watches with every batch.
    ///
    /// The program itself may do everything, through its own clients. Who the caller is, it has found out by means of
    /// its own: [`User::password`](crate::auth::User) and [`Access::secret`] are there for that.
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

    /// Users and roles, as this replica knows them. Local: perhaps not the newest, but never older than what a read
    /// through this node has shown.
    pub fn access(&self) -> Arc<Access> {
        self.shared.reader.access()
    }

    /// Users and roles. Linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn read_access(&self) -> Result<Arc<Access>, Error> {
        self.be_current(Consistency::Linearizable, self.shared.deadline(None)).await?;
        Ok(self.access())
    }

    /// Changes users and roles. Takes no revision of the store, and returns the one that the store had when the change
    /// was applied.
    ///
    /// # Errors
    /// An [`AuthError`] if the change makes no sense; see [`Error`] for the rest.
    pub async fn change_access(&self, change: AccessChange) -> Result<Revision, Error> {
        Ok(self.propose(Command::Access(change), None).await?.revision())
    }

    /// Judges a read for whom this client acts, by the table as it is now.
    pub(crate) fn may(
        &self,
        read: impl Fn(&Access, &Caller) -> Result<(), AuthError>,
    ) -> Result<(), Rejection> {
        match &self.caller {
            None => Ok(()),
            Some(caller) => Ok(read(&self.access(), caller)?),
        }
    }

    /// The same, of a range.
    pub(crate) fn may_read(&self, keys: &KeyRange) -> Result<(), Rejection> {
        self.may(|access, caller| access.may_read(caller, keys))
    }

    /// The same, of what a command would do: for one that only reads, and is not judged where it is applied.
    pub(crate) fn may_do(&self, command: &Command) -> Result<(), Rejection> {
        match &self.caller {
            None => Ok(()),
            Some(caller) => Ok(self.shared.reader.judge(caller, command)?),
        }
    }

    /// Whether a batch of a watch may be shown.
    pub(crate) fn may_watch(&self, keys: &KeyRange) -> Result<(), WatchError> {
        let judged = self.may(|access, caller| {
            // A watch outlives many changes of users that are not its own: its user is known still.
            let caller = Caller { revision: access.revision(), ..caller.clone() };
            access.may_read(&caller, keys)
        });
        judged.map_err(|_| WatchError::Denied)
    }

    /// A command as it is proposed: for whom this client acts.
    pub(crate) fn signed(&self, command: Command) -> Command {
        match &self.caller {
            None => command,
            Some(caller) => Command::As(Caller::clone(caller), Box::new(command)),
        }
    }
}

/// Reads, writes and watches the store for a caller; see [`Client::as_user`]. Cheap to clone. What is offered here is
/// what is judged; locks and the other recipes are the program's own.
#[derive(Clone, Debug)]
pub struct UserClient(pub(super) Client);

impl UserClient {
    /// As [`Client::put`]. The key must be the caller's to write; with the row before it, to read as well; with a lease,
    /// all keys of the lease to write.
    pub fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> PutCall {
        self.0.put(key, value)
    }

    /// As [`Client::get`].
    pub fn get(&self, key: impl Into<Bytes>) -> GetCall {
        self.0.get(key)
    }

    /// As [`Client::range`]. All of the range must be the caller's to read.
    pub fn range(&self, keys: impl Into<KeyRange>) -> RangeCall {
        self.0.range(keys)
    }

    /// As [`Client::get_prefix`], with the rights that [`UserClient::range`] needs.
    pub fn get_prefix(&self, prefix: impl Into<Bytes>) -> RangeCall {
        self.0.get_prefix(prefix)
    }

    /// As [`Client::delete`]. All of the range must be the caller's to write; with the deleted rows, to read as well.
    pub fn delete(&self, keys: impl Into<KeyRange>) -> DeleteCall {
        self.0.delete(keys)
    }

    /// As [`Client::delete_prefix`], with the rights that [`UserClient::delete`] needs.
    pub fn delete_prefix(&self, prefix: impl Into<Bytes>) -> DeleteCall {
        self.0.delete_prefix(prefix)
    }

    /// As [`Client::txn`]. What is compared must be the caller's to read, and everything in both branches, at any depth,
    /// what it would have to be by itself.
    pub fn txn(&self) -> TxnCall {
        self.0.txn()
    }

    /// As [`Client::watch`]. All of the range must be the caller's to read, now and with every batch: otherwise it ends
    /// with [`WatchError::Denied`].
    pub fn watch(&self, keys: impl Into<KeyRange>) -> WatchCall {
        self.0.watch(keys)
    }

    /// As [`Client::watch_prefix`], with the rights that [`UserClient::watch`] needs.
    pub fn watch_prefix(&self, prefix: impl Into<Bytes>) -> WatchCall {
        self.0.watch_prefix(prefix)
    }

    /// As [`Client::compact`]; only for callers with the role `root`.
    ///
    /// # Errors
    /// As there, and [`AuthError`].
    pub async fn compact(&self, revision: Revision) -> Result<Revision, Error> {
        self.0.compact(revision).await
    }

    /// As [`Client::grant`]; for any user.
    pub fn grant(&self, ttl: Duration) -> GrantCall {
        self.0.grant(ttl)
    }

    /// As [`Client::revoke`]; all keys of the lease must be the caller's to write.
    ///
    /// # Errors
    /// As there, and [`AuthError`].
    pub async fn revoke(&self, lease: LeaseId) -> Result<RevokeReply, Error> {
        self.0.revoke(lease).await
    }

    /// As [`Client::renew`]; all keys of the lease, as this replica knows them, must be the caller's to write.
    ///
    /// # Errors
    /// As there, and [`AuthError`].
    pub async fn renew(&self, lease: LeaseId) -> Result<Duration, Error> {
        // Who decides how long they live may as well end them.
        self.0.may_do(&Command::Revoke(lease))?;
        self.0.renew(lease).await
    }

    /// As [`Client::lease_time_to_live`]; for any user.
    ///
    /// # Errors
    /// As there, and [`AuthError`].
    pub async fn lease_time_to_live(&self, lease: LeaseId) -> Result<Option<Duration>, Error> {
        self.0.may(Access::is_user)?;
        self.0.lease_time_to_live(lease).await
    }

    /// Returns the TTL, the session and the keys of a lease, as [`Client::lease_info`] does; all keys of the lease must be the caller's to read.
    ///
    /// # Errors
    /// As there, and [`AuthError`].
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

    /// As [`Client::leases`]: those with no keys but the caller's to read.
    ///
    /// # Errors
    /// [`AuthError`].
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

    /// As [`Client::change_access`]; only for callers with the role `root`.
    ///
    /// # Errors
    /// As there.
    pub async fn change_access(&self, change: AccessChange) -> Result<Revision, Error> {
        self.0.change_access(change).await
    }

    fn readable(&self) -> Result<OpenKeys, Rejection> {
        let Some(caller) = &self.0.caller else { return Ok(OpenKeys::All) };
        Ok(self.0.access().open(caller, Right::Read)?)
    }
}

//! The operators' interface to locks: listing queues, and admin requests to holders.

use std::collections::BTreeMap;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Node};
use crate::lock_format::{
    AdminAction, AdminRequest, QueuePosition, ReleaseRequest, admin_request_key, parent, prefix_of,
};
use crate::model::{
    Command, IntoBytes, KeyRange, KeyValue, LeaseId, Op, Put, Range, Reply, Revision, Txn,
};
use crate::node::Shared;

use crate::recipes::call::{Call, Until};
use crate::recipes::lock::core::release_plan::still_mine;
use crate::recipes::lock::core::view::{self, LockEntry};

/// The locks of the store, for operators. Created by [`Node::locks`].
///
/// Listing reads the local replica. An admin request goes through the log to the node that renews
/// the session of the queue entry. That node invalidates the hold before another session gets the
/// lock. A request contains the entry's key and create revision, not just the name of the lock, so
/// it never affects a later entry.
#[derive(Clone, Debug)]
pub struct Locks {
    client: Client,
    label: String,
}

/// The state of one lock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockInfo {
    /// Name of the lock.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serialize::serialize"))]
    pub name: Bytes,
    /// Holders and waiters, in queue order.
    pub queue: Vec<LockEntry>,
    /// Keys below the name that are not queue entries, because they have no lease or are nested
    /// deeper. Bowline ignores them, but etcd clients would wait for them, so they should not
    /// exist.
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "crate::model::serialize::serialize_list")
    )]
    pub foreign_keys: Vec<Bytes>,
}

/// Error of an admin request. [`LockAdminError::effect`] states whether the request was issued.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LockAdminError {
    /// The queue entry does not exist any more, or was replaced by a later one. Nothing was
    /// changed.
    #[error("request not sent: the queue entry does not exist any more")]
    Gone,
    /// The entry does not belong to a Bowline session, so no node can run the request. Nothing was
    /// changed.
    #[error(
        "request not sent: {} does not belong to a Bowline session; it can only be \
         force-released immediately",
        key.escape_ascii()
    )]
    Foreign {
        /// Key of the entry.
        key: Bytes,
    },
    /// The successor is not a waiter of the same queue, or it has the same session as the holder
    /// (two holds of one session could not be distinguished). Nothing was changed.
    #[error(
        "request not sent: {} is not a waiter of that lock with another session than the holder's",
        successor.escape_ascii()
    )]
    NoSuccessor {
        /// Key of the named successor.
        successor: Bytes,
    },
    /// Error of the store. Its [effect](Error::effect) states whether the request was issued.
    #[error(transparent)]
    Store(#[from] Error),
}

impl LockAdminError {
    /// Returns whether the request was issued or carried out.
    pub fn effect(&self) -> Effect {
        match self {
            LockAdminError::Gone
            | LockAdminError::Foreign { .. }
            | LockAdminError::NoSuccessor { .. } => Effect::NotApplied,
            LockAdminError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention. Issuing the same
    /// request twice has no additional effect.
    pub fn is_transient(&self) -> bool {
        matches!(self, LockAdminError::Store(error) if error.is_transient())
    }
}

impl Node {
    /// Returns the locks of the store, for operators.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, LostReason, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let guard = node.session().block()?.mutex("jobs/nightly").lock().reason("cleaning").block()?;
    /// let locks = node.locks();
    /// let nightly = &locks.list_prefix("jobs/")?[0];
    /// assert_eq!(nightly.queue[0].reason, "cleaning");
    /// locks.force_release(&nightly.queue[0], "it hangs").block()?;
    /// assert!(matches!(guard.lost().block(), LostReason::ForceReleased { .. }));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn locks(&self) -> Locks {
        Locks::new(self.client())
    }
}

impl Locks {
    /// Creates the value for the node of a client.
    pub(crate) fn new(client: Client) -> Self {
        let label = client.shared.settings.label.clone();
        Self { client, label }
    }

    /// Returns the locks whose names begin with `prefix` and that have a holder or a waiter, sorted
    /// by name. The empty prefix returns all locks.
    ///
    /// # Errors
    /// Returns [`Error::Rejected`] if the prefix is longer than a key may be.
    pub fn list_prefix(&self, prefix: impl IntoBytes) -> Result<Vec<LockInfo>, Error> {
        let prefix = prefix.into_bytes();
        let keys = KeyRange::prefix(prefix.clone());
        let mut range = Range::new(keys);
        range.keys_only = true;
        let shared = &self.client.shared;
        shared.settings.limits.check_range(&range)?;
        let rows = shared.reader.range(&range)?.kvs;
        let mut names = BTreeMap::new();
        for row in rows.iter().filter(|row| has_entry_name(row)) {
            // The keys of the lock `jobs` begin with `jobs/`, but its name does not.
            let name = parent(&row.key).map(|below| &below[..below.len() - 1]);
            if let Some(name) = name.filter(|name| name.starts_with(&prefix)) {
                names.insert(Bytes::copy_from_slice(name), ());
            }
        }
        names.into_keys().map(|name| self.of(name)).collect()
    }

    /// Returns one lock. The queue of the result is empty if there are no holders and no waiters.
    ///
    /// # Errors
    /// Returns [`Error::Rejected`] if the name is not valid for a lock.
    pub fn of(&self, name: impl IntoBytes) -> Result<LockInfo, Error> {
        let name = name.into_bytes();
        let prefix = prefix_of(&name);
        let queue = view::list(&self.client.shared, &name)?;
        let mut range = Range::new(KeyRange::prefix(prefix.clone()));
        range.keys_only = true;
        let rows = self.client.shared.reader.range(&range)?.kvs;
        let of_a_place = |key: &Bytes| {
            queue
                .iter()
                .any(|entry| *key == entry.key || parent(key) == Some(&prefix_of(&entry.key)))
        };
        let foreign_keys =
            rows.into_iter().map(|row| row.key).filter(|key| !of_a_place(key)).collect();
        Ok(LockInfo { name, queue, foreign_keys })
    }

    /// Asks the holder to release the lock. The holder receives the request from
    /// [`Hold::asked_to_release`](crate::lock::Hold::asked_to_release) and decides what to do.
    ///
    /// # Errors
    /// See [`LockAdminError`].
    pub fn request_release(
        &self,
        entry: &LockEntry,
        why: impl Into<String>,
    ) -> Call<'static, (), LockAdminError> {
        let (locks, entry, why) = (self.clone(), entry.clone(), why.into());
        Call::new(&self.client, move |until| async move {
            locks.order(&entry, AdminAction::RequestRelease, why, &until).await.map(drop)
        })
    }

    /// Forces a holder to release the lock, or evicts a waiter. The node of the entry invalidates
    /// the hold first, and the lock passes to the next waiter afterwards. If the node does not
    /// respond, the lock stays held until the session expires.
    ///
    /// Returns once the entry is gone. Waits without limit unless a deadline is set, even while the
    /// cluster is unavailable. Dropping the call does not cancel the request.
    ///
    /// The request has no effect if a lease keeps the key of the entry, but no program has its
    /// hold. This happens after a crash if the program has [resumed](crate::Node::resume_session)
    /// its session but not the hold. Another cause is a hold that was lost with a session that had
    /// a lock delay. In both cases use [`Locks::force_release_now`].
    ///
    /// # Errors
    /// See [`LockAdminError`]. If the effect is unknown, the request was issued and may have been
    /// carried out.
    pub fn force_release(
        &self,
        entry: &LockEntry,
        why: impl Into<String>,
    ) -> Call<'static, (), LockAdminError> {
        let (locks, entry, why) = (self.clone(), entry.clone(), why.into());
        Call::without_deadline(&self.client, move |until| async move {
            let ordered = locks.order(&entry, AdminAction::ForceRelease, why, &until).await?;
            locks.until_gone(&entry, ordered, &until).await
        })
    }

    /// Deletes the entry of a hold at once, without waiting until the holder's node has invalidated
    /// the hold. For a short time two holders may consider the lock held. Guarded transactions and
    /// fencing tokens stay safe. Use this method for holders that do not belong to Bowline, and for
    /// holders on machines that are known to be gone.
    ///
    /// # Errors
    /// See [`LockAdminError`]. If the effect is unknown, the entry may still exist, and a request
    /// like that of [`Locks::force_release`] may have been issued.
    pub fn force_release_now(
        &self,
        entry: &LockEntry,
        why: impl Into<String>,
    ) -> Call<'static, (), LockAdminError> {
        let (locks, entry, why) = (self.clone(), entry.clone(), why.into());
        Call::new(&self.client, move |until| async move {
            let is_ordered =
                match locks.order(&entry, AdminAction::ForceRelease, why.clone(), &until).await {
                    Ok(_) => true,
                    Err(LockAdminError::Foreign { .. }) => false,
                    // A full store rejects the request, but not a deletion. So continue without
                    // informing the holder first.
                    Err(LockAdminError::Store(error)) if error.needs_room() => false,
                    Err(error) => return Err(error),
                };
            let (LockEntry { key, since, lease, .. }, by) = (&entry, &locks.label);
            tracing::warn!(by, why, lock = %key.escape_ascii(), "force-releasing lock immediately");
            let deletions = [Op::delete(key.clone()), Op::delete(admin_request_key(key))];
            let txn = Txn::if_all(still_mine(key, *since, *lease), deletions);
            loop {
                let breaking = Command::Txn(txn.clone());
                match locks.client.propose(breaking, Some(until.left())).await {
                    Ok(_) => return Ok(()),
                    // Retry: only one of several attempts can find the entry, so the deletion is
                    // not repeated.
                    Err(error) if error.is_transient() && !until.is_over() => until.pause().await,
                    Err(error) if is_ordered => return Err(error.after_partial_change().into()),
                    Err(error) => return Err(error.into()),
                }
            }
        })
    }

    /// Transfers a hold to a waiter, even if other waiters are ahead of it. The holder's node
    /// invalidates the hold first. The successor gets a new token. The request is rejected while
    /// the queue contains an entry of a client that is not Bowline, because that client would not
    /// notice the transfer.
    ///
    /// Permits of a semaphore are transferred only to a request that has never held its permits. If
    /// the limit was changed since that request began to wait, the permits are released instead,
    /// and the next waiter gets them.
    ///
    /// Returns once the holder has lost the lock. Waits without limit unless a deadline is set,
    /// like [`Locks::force_release`]. If the successor has left the queue by then, the next waiter
    /// gets the lock.
    ///
    /// # Errors
    /// See [`LockAdminError`]. If the effect is unknown, the request was issued and may have been
    /// carried out.
    pub fn transfer(
        &self,
        holder: &LockEntry,
        successor: &LockEntry,
        why: impl Into<String>,
    ) -> Call<'static, (), LockAdminError> {
        let (locks, holder, successor, why) =
            (self.clone(), holder.clone(), successor.clone(), why.into());
        Call::without_deadline(&self.client, move |until| async move {
            if parent(&holder.key) != parent(&successor.key) {
                return Err(LockAdminError::NoSuccessor { successor: successor.key });
            }
            check_successor(&successor, holder.lease)?;
            let prefix = parent(&holder.key).map(Bytes::copy_from_slice).unwrap_or_default();
            check_all_bowline(&locks.client.shared, &prefix)?;
            let action = AdminAction::Transfer(QueuePosition::new(successor.since, successor.key));
            let ordered = locks.order(&holder, action, why, &until).await?;
            locks.until_gone(&holder, ordered, &until).await
        })
    }

    /// Writes the row of an admin request. Returns its revision.
    async fn order(
        &self,
        entry: &LockEntry,
        action: AdminAction,
        why: String,
        until: &Until,
    ) -> Result<Revision, LockAdminError> {
        let LockEntry { key, since, lease, node, .. } = entry;
        if node.is_none() {
            return Err(LockAdminError::Foreign { key: key.clone() });
        }
        tracing::warn!(
            by = self.label, why, ?action, entry = %key.escape_ascii(),
            "sending admin request to lock holder"
        );
        let request = ReleaseRequest { by: self.label.clone(), reason: why };
        let value = AdminRequest { action, since: *since, request }.to_value();
        let put = Put::new(admin_request_key(key), value).lease(*lease);
        let txn = Txn::if_all(still_mine(key, *since, *lease), [Op::Put(put)]);
        match self.client.propose(Command::Txn(txn), Some(until.left())).await? {
            Reply::Txn(reply) if reply.succeeded => Ok(reply.revision),
            _ => Err(LockAdminError::Gone),
        }
    }

    /// Waits until the addressed entry is gone or belongs to another session.
    async fn until_gone(
        &self,
        entry: &LockEntry,
        ordered: Revision,
        until: &Until,
    ) -> Result<(), LockAdminError> {
        let LockEntry { key, since, lease, .. } = entry;
        let is_there = |row: &KeyValue| row.create_revision == *since && row.lease == Some(*lease);
        loop {
            match self.is_gone(key, &is_there, ordered, until).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if error.is_transient() && !until.is_over() => until.pause().await,
                // The request was issued, regardless of this error.
                Err(error) => return Err(error.after_partial_change().into()),
            }
        }
    }

    /// Waits until an entry is gone: reads it, then watches it. Returns `false` if the watch has
    /// ended.
    async fn is_gone(
        &self,
        key: &Bytes,
        is_there: &impl Fn(&KeyValue) -> bool,
        ordered: Revision,
        until: &Until,
    ) -> Result<bool, Error> {
        let key = KeyRange::key(key.clone());
        let look = self.client.range(key.clone()).at_least(ordered).deadline(until.left()).await?;
        if !look.kvs.first().is_some_and(is_there) {
            return Ok(true);
        }
        // Watch from the revision of the read: the revision of the request may be compacted long
        // before the entry is gone, and a watch from there could never start.
        let mut watch = self.client.watch(key).from(look.revision.next()).await?;
        // The history was compacted, or the node stopped. The next read distinguishes these two
        // cases.
        while let Some(Ok(batch)) = until.within(watch.next()).await? {
            if batch.events.iter().any(|event| !is_there(&event.kv)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Reports whether a row's key is named like a queue entry of Bowline or an etcd client.
fn has_entry_name(row: &KeyValue) -> bool {
    let Some(lease) = row.lease else { return false };
    let last = row.key.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let lease = lease.to_string();
    last.strip_prefix(lease.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
}

/// Checks that all entries of a queue belong to Bowline sessions.
///
/// # Errors
/// [`LockAdminError::Foreign`] names the first entry that does not.
pub(crate) fn check_all_bowline(shared: &Shared, prefix: &Bytes) -> Result<(), LockAdminError> {
    let entries = view::entries_of(shared, view::rows(shared, prefix));
    match entries.into_iter().find(|entry| entry.node.is_none()) {
        Some(foreign) => Err(LockAdminError::Foreign { key: foreign.key }),
        None => Ok(()),
    }
}

/// Checks that a hold of `lease` may be transferred to `successor`, which must be a waiter with
/// another lease. Two holds of one lease could not be distinguished.
///
/// # Errors
/// Returns [`LockAdminError::NoSuccessor`] if the successor is not such a waiter.
pub(crate) fn check_successor(successor: &LockEntry, lease: LeaseId) -> Result<(), LockAdminError> {
    let waits = !successor.holds && successor.lease != lease;
    if waits {
        Ok(())
    } else {
        Err(LockAdminError::NoSuccessor { successor: successor.key.clone() })
    }
}

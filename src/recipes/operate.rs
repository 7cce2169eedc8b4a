//! Locks as an operator sees them: who holds what since when, and what can be done about it.

use std::collections::BTreeMap;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Node};
use crate::model::{
    Command, KeyRange, KeyValue, Op, Put, PutLease, PutValue, Range, Reply, Revision, Txn,
};

use super::call::{Call, Until};
use super::line::{parent, prefix_of, still_mine};
use super::order::{self, Order, ReleaseRequest, What};
use super::view::{self, LockEntry};

/// The locks of the store, for operators. Made by [`Node::locks`].
///
/// Looking is local: it shows what this node's replica has. Orders go to whoever has a place, through
/// the log, and are carried out by its node, which ends the holder's belief before anybody else gets the
/// lock. They name the place and its revision, never the lock alone: what came after is left alone.
#[derive(Clone, Debug)]
pub struct Locks {
    client: Client,
    label: String,
}

/// One lock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name.
    pub name: Bytes,
    /// Those who hold it and wait for it, in order.
    pub queue: Vec<LockEntry>,
    /// Keys below its name that are no places: they have no lease, or lie deeper. Nothing waits for
    /// them here, but clients of etcd would: they should not be there.
    pub foreign_keys: Vec<Bytes>,
}

/// Why an order was not given, or what became of it is not known: [`LockAdminError::effect`] says which.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LockAdminError {
    /// The place is not there any more, or is another one by now. Nothing was changed.
    #[error("not ordered: that place is not in the line any more")]
    Gone,
    /// The place is not Bowline's, so that nobody would carry the order out. Nothing was changed.
    #[error(
        "not ordered: {} is not kept by a Bowline session: it can only be broken at once",
        key.escape_ascii()
    )]
    Foreign {
        /// Its key.
        key: Bytes,
    },
    /// The successor does not wait in that line with another session than the holder's: within one session a
    /// hand-over could not be told from no hand-over. Nothing was changed.
    #[error(
        "not ordered: {} does not wait in that line with another session than the holder's",
        successor.escape_ascii()
    )]
    NoSuccessor {
        /// The key that was named.
        successor: Bytes,
    },
    /// The store could not, or would not. Its [effect](Error::effect) says whether the order stands.
    #[error(transparent)]
    Store(#[from] Error),
}

impl LockAdminError {
    /// Whether the order stands, or was carried out.
    pub fn effect(&self) -> Effect {
        match self {
            LockAdminError::Gone
            | LockAdminError::Foreign { .. }
            | LockAdminError::NoSuccessor { .. } => Effect::NotApplied,
            LockAdminError::Store(error) => error.effect(),
        }
    }

    /// Whether the same call may succeed later without anybody changing the program. An order that stands is
    /// the same when it is given again.
    pub fn is_transient(&self) -> bool {
        matches!(self, LockAdminError::Store(error) if error.is_transient())
    }
}

impl Node {
    /// The locks of the store, as an operator sees them.
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
    /// As the node of this client sees them.
    pub(crate) fn new(client: Client) -> Self {
        let label = client.shared.settings.label.clone();
        Self { client, label }
    }

    /// Returns the locks whose names begin with `prefix` and that have a holder or a waiter, sorted by name. The
    /// empty prefix returns all locks.
    ///
    /// # Errors
    /// [`Error::Rejected`] if the prefix is longer than a key.
    pub fn list_prefix(&self, prefix: impl Into<Bytes>) -> Result<Vec<LockInfo>, Error> {
        let prefix: Bytes = prefix.into();
        let keys = KeyRange::prefix(prefix.clone());
        let mut range = Range::new(keys);
        range.keys_only = true;
        let shared = &self.client.shared;
        shared.settings.limits.check_range(&range)?;
        let rows = shared.reader.range(&range)?.kvs;
        let mut names = BTreeMap::new();
        for row in rows.iter().filter(|row| has_places_name(row)) {
            // Of the lock `jobs` the keys begin with `jobs/`, the name does not.
            let name = parent(&row.key).map(|below| &below[..below.len() - 1]);
            if let Some(name) = name.filter(|name| name.starts_with(&prefix)) {
                names.insert(Bytes::copy_from_slice(name), ());
            }
        }
        names.into_keys().map(|name| self.of(name)).collect()
    }

    /// One lock; with an empty line if nobody holds it or waits for it.
    ///
    /// # Errors
    /// [`Error::Rejected`] if the name cannot be a lock's.
    pub fn of(&self, name: impl Into<Bytes>) -> Result<LockInfo, Error> {
        let name = name.into();
        let prefix = prefix_of(&name);
        let line = view::line_of(&self.client.shared, &name)?;
        let mut range = Range::new(KeyRange::prefix(prefix.clone()));
        range.keys_only = true;
        let rows = self.client.shared.reader.range(&range)?.kvs;
        let of_a_place = |key: &Bytes| {
            line.iter()
                .any(|place| *key == place.key || parent(key) == Some(&prefix_of(&place.key)))
        };
        let foreign_keys =
            rows.into_iter().map(|row| row.key).filter(|key| !of_a_place(key)).collect();
        Ok(LockInfo { name, queue: line, foreign_keys })
    }

    /// Asks the holder to give the lock up: its [`Hold::asked_to_release`](crate::lock::Hold::asked_to_release)
    /// says so. What it does is its own affair.
    ///
    /// # Errors
    /// See [`LockAdminError`].
    pub fn request_release(
        &self,
        place: &LockEntry,
        why: impl Into<String>,
    ) -> Call<'static, (), LockAdminError> {
        let (locks, place, why) = (self.clone(), place.clone(), why.into());
        Call::new(&self.client, move |until| async move {
            locks.order(&place, What::Ask, why, &until).await.map(drop)
        })
    }

    /// Breaks a hold, or evicts who waits. Its node ends the holder's belief, and the lock is another's
    /// after that; a node that does not answer keeps the lock until its session has expired. Answers
    /// when the place is gone: waits without end unless it is given a deadline, also while the cluster cannot answer.
    /// Giving up the waiting does not take the order back.
    ///
    /// Nobody carries it out where nobody knows of the hold, whose key somebody's lease keeps all the same: what a
    /// program held before a crash, after which it has [resumed](crate::Node::resume_session) its session, and what
    /// was lost with a session that had a lock delay. [`Locks::force_release_now`] frees both.
    ///
    /// # Errors
    /// See [`LockAdminError`]. Where the effect is unknown the order stands, and may have been carried out.
    pub fn force_release(
        &self,
        place: &LockEntry,
        why: impl Into<String>,
    ) -> Call<'static, (), LockAdminError> {
        let (locks, place, why) = (self.clone(), place.clone(), why.into());
        Call::endless(&self.client, move |until| async move {
            let ordered = locks.order(&place, What::Break, why, &until).await?;
            locks.until_gone(&place, ordered, &until).await
        })
    }

    /// Breaks a hold at once, without waiting until its holder knows: for a moment two may believe to hold
    /// the lock. Guarded transactions and tokens stay safe. For holders that are not Bowline's, and for
    /// those whose machine is known to be gone.
    ///
    /// # Errors
    /// See [`LockAdminError`]. Where the effect is unknown the place may be there still, and its node be ordered to leave
    /// it, as by [`Locks::force_release`].
    pub fn force_release_now(
        &self,
        place: &LockEntry,
        why: impl Into<String>,
    ) -> Call<'static, (), LockAdminError> {
        let (locks, place, why) = (self.clone(), place.clone(), why.into());
        Call::new(&self.client, move |until| async move {
            let is_ordered = match locks.order(&place, What::Break, why.clone(), &until).await {
                Ok(_) => true,
                Err(LockAdminError::Foreign { .. }) => false,
                // What is deleted needs no room: its holder is not told first.
                Err(LockAdminError::Store(error)) if error.needs_room() => false,
                Err(error) => return Err(error),
            };
            let (LockEntry { key, since, lease, .. }, by) = (&place, &locks.label);
            tracing::warn!(by, why, lock = %key.escape_ascii(), "a lock is broken at once");
            let order = order::key_for(key);
            let txn = Txn {
                compares: still_mine(key, *since, *lease).to_vec(),
                success: vec![Op::delete(key.clone()), Op::delete(order)],
                failure: Vec::new(),
            };
            loop {
                let breaking = Command::Txn(txn.clone());
                match locks.client.propose(breaking, Some(until.left())).await {
                    Ok(_) => return Ok(()),
                    // Of several at most one finds the place.
                    Err(error) if error.is_transient() && !until.is_over() => until.pause().await,
                    Err(error) if is_ordered => return Err(error.halfway().into()),
                    Err(error) => return Err(error.into()),
                }
            }
        })
    }

    /// Hands a hold to one who waits for it, past those before that one. The present holder's node ends
    /// its belief first; the successor gets a token of its own. Refused while a client that is not Bowline's
    /// stands in the line: it would not know.
    ///
    /// A permit is handed over only to a request that has not held: if the limit was changed since that request began to
    /// wait, the permit is released instead, and the next in line gets it.
    ///
    /// Answers when the holder has lost the lock: waits without end unless it is given a deadline, as
    /// [`Locks::force_release`]. If the successor has gone by then, the next in line gets it.
    ///
    /// # Errors
    /// See [`LockAdminError`]. Where the effect is unknown the order stands, and may have been carried out.
    pub fn transfer(
        &self,
        holder: &LockEntry,
        successor: &LockEntry,
        why: impl Into<String>,
    ) -> Call<'static, (), LockAdminError> {
        let (locks, holder, successor, why) =
            (self.clone(), holder.clone(), successor.clone(), why.into());
        Call::endless(&self.client, move |until| async move {
            if parent(&holder.key) != parent(&successor.key) {
                return Err(LockAdminError::NoSuccessor { successor: successor.key });
            }
            view::may_be_handed(&successor, holder.lease)?;
            let prefix = parent(&holder.key).map(Bytes::copy_from_slice).unwrap_or_default();
            view::is_for_ours_alone(&locks.client.shared, &prefix)?;
            let what = What::HandOver((successor.since, successor.key));
            let ordered = locks.order(&holder, what, why, &until).await?;
            locks.until_gone(&holder, ordered, &until).await
        })
    }

    /// Puts an order before the node that keeps a place. Answers with the revision at which it stands.
    async fn order(
        &self,
        place: &LockEntry,
        what: What,
        why: String,
        until: &Until,
    ) -> Result<Revision, LockAdminError> {
        let LockEntry { key, since, lease, node, .. } = place;
        if node.is_none() {
            return Err(LockAdminError::Foreign { key: key.clone() });
        }
        tracing::warn!(by = self.label, why, ?what, place = %key.escape_ascii(), "an order to a holder");
        let request = ReleaseRequest { by: self.label.clone(), reason: why };
        let put = Put {
            key: order::key_for(key),
            value: PutValue::Set(Order { what, since: *since, request }.to_value()),
            lease: PutLease::Attach(*lease),
            prev_kv: false,
        };
        let txn = Txn {
            compares: still_mine(key, *since, *lease).to_vec(),
            success: vec![Op::Put(put)],
            failure: Vec::new(),
        };
        match self.client.propose(Command::Txn(txn), Some(until.left())).await? {
            Reply::Txn(reply) if reply.succeeded => Ok(reply.revision),
            _ => Err(LockAdminError::Gone),
        }
    }

    /// Waits until a place that was ordered away is not that one's any more.
    async fn until_gone(
        &self,
        place: &LockEntry,
        ordered: Revision,
        until: &Until,
    ) -> Result<(), LockAdminError> {
        let LockEntry { key, since, lease, .. } = place;
        let is_there = |row: &KeyValue| row.create_revision == *since && row.lease == Some(*lease);
        loop {
            match self.is_gone(key, &is_there, ordered, until).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if error.is_transient() && !until.is_over() => until.pause().await,
                // The order is given, whatever came of it.
                Err(error) => return Err(error.halfway().into()),
            }
        }
    }

    /// Looks whether a place is gone, and follows it until it is; false if it cannot be followed any further.
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
        // From what was just seen on: where the order stands may be compacted long before the place is gone, and
        // a watch that can never begin would be begun for ever.
        let mut watch = self.client.watch(key).from(look.revision.next()).await?;
        // Compacted, or the node has stopped: the next look says which.
        while let Some(Ok(batch)) = until.within(watch.next()).await? {
            if batch.events.iter().any(|event| !is_there(&event.kv)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether a row's key is named as Bowline and etcd's clients name places.
fn has_places_name(row: &KeyValue) -> bool {
    let Some(lease) = row.lease else { return false };
    let last = row.key.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let lease = lease.to_string();
    last.strip_prefix(lease.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
}

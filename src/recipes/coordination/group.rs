//! Groups: listing members, and watching them join and leave.
//!
//! Each member has a key `name/<lease hex>-<number>`, attached to a session, with the member's
//! metadata as its value. If a member crashes, it leaves the group when its session ends.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Session};
use crate::lock_format::is_entry;
use crate::model::{
    Compare, Event, EventKind, IntoBytes, KeyRange, KeyValue, LeaseId, Put, Revision, readable,
};

use super::cas_branches::branch_is_unknown;
use super::prefix_watch::{PrefixUpdate, PrefixWatch};
use super::undo_on_drop::{SessionKey, delete_of};
use crate::recipes::call::Call;

/// A group of members that join and leave. Created by [`Session::group`].
///
/// A member that crashes, or is paused or partitioned for longer than its TTL, leaves when its
/// session ends. Until its session ends, such a member is still listed, so a listed member may not
/// be alive any more. A member learns from its session ([`Session::ended`]) that it has left. The
/// session uses the member's own clock, so the member learns this no later than the other members.
#[derive(Clone, Debug)]
pub struct Group {
    session: Session,
    prefix: Bytes,
}

/// A member of a [`Group`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupMember {
    /// Key of the member, which identifies it.
    pub key: Bytes,
    /// Metadata of the member.
    pub meta: Bytes,
    /// Revision at which the member joined. Members are listed in this order.
    pub since: Revision,
    /// Lease of the member's key.
    pub lease: LeaseId,
    /// Label of the session, if the lease belongs to a session.
    pub label: Option<String>,
}

impl GroupMember {
    readable!(key, meta);
}

/// A change of a [`Group`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GroupEvent {
    /// A member has joined.
    Joined(GroupMember),
    /// The metadata of a member has changed.
    Changed(GroupMember),
    /// A member has left, or its session has ended.
    Left(GroupMember),
}

/// Error of an update of a member.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum GroupError {
    /// The membership has ended, because its session has ended or its key was deleted. Nothing was
    /// changed.
    #[error("not applied: the membership has ended")]
    NotAMember,
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] Error),
}

impl GroupError {
    /// Returns whether the update was applied.
    pub fn effect(&self) -> Effect {
        match self {
            GroupError::NotAMember => Effect::NotApplied,
            GroupError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention.
    pub fn is_transient(&self) -> bool {
        matches!(self, GroupError::Store(error) if error.is_transient())
    }
}

impl Session {
    /// Returns the group with this name. The members use the keys below `name/`.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, coordination::GroupEvent};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let workers = node.session().block()?.group("workers");
    /// let membership = workers.join("10.0.0.7:9000").block()?;
    /// assert_eq!(workers.members().block()?[0].meta, "10.0.0.7:9000");
    /// let mut changes = workers.watch();
    /// let first = changes.next().block().unwrap()?;
    /// assert!(matches!(first, GroupEvent::Joined(member) if member.key == membership.key()));
    /// membership.leave().block()?;
    /// assert!(matches!(changes.next().block().unwrap()?, GroupEvent::Left(_)));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group(&self, name: impl IntoBytes) -> Group {
        let prefix = [&name.into_bytes()[..], b"/"].concat().into();
        Group { session: self.clone(), prefix }
    }
}

impl Group {
    /// Joins the group. The membership lasts as long as both the session and the returned
    /// [`Membership`] live. Each call adds another member. Dropping the future leaves no member
    /// behind.
    ///
    /// # Errors
    /// See [`Error`], for example [`Error::SessionEnded`] and [`Error::Deadline`]. A failed call
    /// leaves no member behind. If the effect is unknown, the member may be visible for a short
    /// time.
    pub fn join(&self, meta: impl IntoBytes) -> Call<'static, Membership> {
        let (Self { session, prefix }, meta) = (self.clone(), meta.into_bytes());
        let client = session.client();
        Call::new(&client.clone(), move |until| async move {
            loop {
                let key = key_in(&prefix, &session);
                let made = SessionKey::make(&session, key, meta.clone(), &until, delete_of).await?;
                if let Some(entry) = made {
                    return Ok(Membership { client, entry });
                }
            }
        })
    }

    /// Returns the members in the order in which they joined. The read is linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn members(&self) -> Call<'static, Vec<GroupMember>> {
        let (client, prefix) = (self.session.client(), self.prefix.clone());
        Call::new(&client.clone(), move |until| async move {
            let range = client.range(KeyRange::prefix(prefix.clone()));
            let rows = range.deadline(until.left()).await?.kvs;
            let mut members: Vec<_> =
                rows.into_iter().filter_map(|row| member(&client, &prefix, row)).collect();
            members.sort_by(|a, b| (a.since, &a.key).cmp(&(b.since, &b.key)));
            Ok(members)
        })
    }

    /// Watches the group from now on: first one [`GroupEvent::Joined`] for each member, then every
    /// change.
    pub fn watch(&self) -> GroupWatch {
        GroupWatch {
            client: self.session.client(),
            prefix: self.prefix.clone(),
            following: PrefixWatch::new(self.session.client(), self.prefix.clone()),
            members: BTreeMap::new(),
            to_report: VecDeque::new(),
        }
    }
}

/// Returns a new key for a session below a prefix. The name contains a dash, while queue entries of
/// locks contain a dot, so that such a key is not mistaken for a lock request.
pub(crate) fn key_in(prefix: &Bytes, session: &Session) -> Bytes {
    let name = format!("{}-{}", session.lease(), session.shared_session().next_number());
    [&prefix[..], name.as_bytes()].concat().into()
}

fn member(client: &Client, prefix: &Bytes, row: KeyValue) -> Option<GroupMember> {
    let lease = row.lease.filter(|_| is_entry(&row, prefix))?;
    let info = client.shared.reader.lease_head(lease);
    let label = info.and_then(|info| info.session.map(|(_, _, session)| session.label));
    Some(GroupMember { key: row.key, meta: row.value, since: row.create_revision, lease, label })
}

/// Membership in a group. Dropping the value leaves the group in the background.
/// [`Membership::leave`] also waits until this is durable.
#[derive(Debug)]
#[must_use = "a membership ends when this is dropped"]
pub struct Membership {
    client: Client,
    entry: SessionKey,
}

impl Membership {
    /// Returns the key of the member.
    pub fn key(&self) -> &Bytes {
        self.entry.key()
    }

    /// Returns the revision at which the member joined.
    pub fn since(&self) -> Revision {
        self.entry.since()
    }

    /// Returns the session of the member.
    pub fn session(&self) -> &Session {
        self.entry.session()
    }

    /// Changes the metadata of the member.
    ///
    /// # Errors
    /// Returns [`GroupError::NotAMember`] if the membership has ended. [`GroupError::Store`] states
    /// whether the update was applied.
    pub fn update(&self, meta: impl IntoBytes) -> Call<'static, (), GroupError> {
        let (key, since, meta) = (self.key().clone(), self.since(), meta.into_bytes());
        let client = self.client.clone();
        Call::new(&self.client, move |until| async move {
            let put = Put::new(key.clone(), meta).keep_lease();
            let txn = client.txn().when(Compare::create_revision(key).eq(since));
            let call = txn.then(put).deadline(until.left());
            match call.commit().await.map_err(branch_is_unknown)?.succeeded {
                true => Ok(()),
                false => Err(GroupError::NotAMember),
            }
        })
    }

    /// Leaves the group and waits until this is durable. Returns `false` if the membership had
    /// already ended or the session was lost. If the session was lost, the member stays listed
    /// until the lease has ended, after the lock delay.
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the deletion of the member was not confirmed in time. The
    /// node keeps trying.
    pub fn leave(self) -> Call<'static, bool> {
        let Self { client, entry } = self;
        Call::new(&client, move |until| async move { entry.leave(&until).await })
    }
}

/// A watch on a [`Group`]; see [`Group::watch`]. Also a [`Stream`](futures_core::Stream).
///
/// The watch reads the local replica. While this node is partitioned, no events are delivered.
/// After the partition, the watch delivers all events that it has missed. If changes were compacted
/// before the watch has read them, the watch reads the members again and reports the differences.
/// In this case the watch may miss members that joined and left in between.
pub struct GroupWatch {
    client: Client,
    prefix: Bytes,
    following: PrefixWatch,
    members: BTreeMap<Bytes, GroupMember>,
    to_report: VecDeque<GroupEvent>,
}

impl GroupWatch {
    /// Waits for the next event. Returns `None` after the error of a stopped node has been
    /// returned. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the node has stopped or cannot read the members. If the members could
    /// not be read, the call can be repeated.
    pub async fn next(&mut self) -> Option<Result<GroupEvent, Error>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Returns the members in key order. The list already includes changes whose events are not
    /// delivered yet.
    pub fn members(&self) -> impl Iterator<Item = &GroupMember> {
        self.members.values()
    }

    /// Replaces the members by a snapshot, and queues the differences.
    fn begin(&mut self, rows: Vec<KeyValue>) {
        let found = rows.into_iter().filter_map(|row| member(&self.client, &self.prefix, row));
        let mut found: BTreeMap<Bytes, GroupMember> =
            found.map(|member| (member.key.clone(), member)).collect();
        let is_same = |member: &GroupMember| {
            found.get(&member.key).is_some_and(|found| found.since == member.since)
        };
        let gone: Vec<Bytes> = self
            .members
            .values()
            .filter(|member| !is_same(member))
            .map(|member| member.key.clone())
            .collect();
        for key in gone {
            self.left(&key);
        }
        let mut found: Vec<_> = std::mem::take(&mut found).into_values().collect();
        found.sort_by(|a, b| (a.since, &a.key).cmp(&(b.since, &b.key)));
        for member in found {
            self.is_there(member);
        }
    }

    fn follow(&mut self, event: Event) {
        let key = event.kv.key.clone();
        let member = match event.kind {
            EventKind::Put => member(&self.client, &self.prefix, event.kv),
            EventKind::Delete => None,
        };
        match member {
            Some(member) => self.is_there(member),
            None => self.left(&key),
        }
    }

    fn is_there(&mut self, member: GroupMember) {
        match self.members.insert(member.key.clone(), member.clone()) {
            None => self.to_report.push_back(GroupEvent::Joined(member)),
            Some(before) if before.meta == member.meta => {}
            Some(_) => self.to_report.push_back(GroupEvent::Changed(member)),
        }
    }

    fn left(&mut self, key: &Bytes) {
        if !mutant!(B17) {
            self.to_report.extend(self.members.remove(key).map(GroupEvent::Left));
        }
    }
}

impl Stream for GroupWatch {
    type Item = Result<GroupEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.to_report.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(Pin::new(&mut self.following).poll_next(context)) {
                Some(Ok(PrefixUpdate::Reset(rows))) => self.begin(rows),
                Some(Ok(PrefixUpdate::Changes(events))) => {
                    events.into_iter().for_each(|event| self.follow(event));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl std::fmt::Debug for GroupWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupWatch").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

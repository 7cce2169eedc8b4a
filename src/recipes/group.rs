//! Groups: who is there, and who comes and goes.
//!
//! A member is a key below the group's name that is bound to a session, `name/<lease hex>-<number>`, with
//! what the member says of itself as the value. So who crashes leaves, when its session has ended.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{
    Compare, Event, EventKind, KeyRange, KeyValue, LeaseId, Op, Put, PutLease, PutValue, Revision,
};
use crate::mutant::{self, Mutant};

use super::call::Call;
use super::chain::which_is_unknown;
use super::deed::{Entry, delete_of};
use super::following::{Following, News};
use super::line::is_place;

/// A group of members that come and go; made by [`Session::group`].
///
/// A member that crashes, or is paused or cut off for longer than its session lives, is out when its
/// session has ended: at the latest its time to live later. Until then others still see it, so a member
/// that is listed is one that was there a moment ago, not one that is surely alive. A member learns of
/// its own end from its session ([`Session::ended`]), by its own clock and not later than the others.
#[derive(Clone, Debug)]
pub struct Group {
    session: Session,
    prefix: Bytes,
}

/// One of a [`Group`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupMember {
    /// Its key, by which it is told from all others.
    pub key: Bytes,
    /// What it says of itself.
    pub meta: Bytes,
    /// The revision in which it joined: members are listed in this order.
    pub since: Revision,
    /// The lease that it lives with.
    pub lease: LeaseId,
    /// The label of the session, if the lease is a session's.
    pub label: Option<String>,
}

/// What has changed in a [`Group`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupEvent {
    /// A member is there.
    Joined(GroupMember),
    /// A member says something new of itself.
    Changed(GroupMember),
    /// A member is not there any more: it left, or its session has ended.
    Left(GroupMember),
}

/// Why a member could not say something new.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum GroupError {
    /// It is no member any more: its session has ended, or somebody has deleted its key. Nothing was
    /// changed.
    #[error("not applied: it is no member any more")]
    NotAMember,
    /// The store could not, or would not.
    #[error(transparent)]
    Store(#[from] Error),
}

impl GroupError {
    /// Whether it was said.
    pub fn effect(&self) -> Effect {
        match self {
            GroupError::NotAMember => Effect::NotApplied,
            GroupError::Store(error) => error.effect(),
        }
    }

    /// Whether the same call may succeed later without anybody changing the program.
    pub fn is_transient(&self) -> bool {
        matches!(self, GroupError::Store(error) if error.is_transient())
    }
}

impl Session {
    /// The group of this name. Keys below `name/` are its members.
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
    pub fn group(&self, name: impl Into<Bytes>) -> Group {
        let prefix = [&name.into()[..], b"/"].concat().into();
        Group { session: self.clone(), prefix }
    }
}

impl Group {
    /// Becomes a member, as long as the session and the [`Membership`] live. Each call makes one more
    /// member. If the future is dropped, none is left behind.
    ///
    /// # Errors
    /// [`Error::SessionEnded`], [`Error::Deadline`] and others: nothing is left behind. Where the effect is unknown,
    /// others may see the member for a moment.
    pub fn join(&self, meta: impl Into<Bytes>) -> Call<'static, Membership> {
        let (Self { session, prefix }, meta) = (self.clone(), meta.into());
        let client = client_of(&session);
        Call::new(&client.clone(), move |until| async move {
            loop {
                let key = place(&prefix, &session);
                let made = Entry::make(&session, key, meta.clone(), &until, delete_of).await?;
                if let Some(entry) = made {
                    return Ok(Membership { client, entry });
                }
            }
        })
    }

    /// Who is there, in the order in which they joined. Linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn members(&self) -> Call<'static, Vec<GroupMember>> {
        let (client, prefix) = (client_of(&self.session), self.prefix.clone());
        Call::new(&client.clone(), move |until| async move {
            let range = client.range(KeyRange::prefix(prefix.clone()));
            let rows = range.deadline(until.left()).await?.kvs;
            let mut members: Vec<_> =
                rows.into_iter().filter_map(|row| member(&client, &prefix, row)).collect();
            members.sort_by(|a, b| (a.since, &a.key).cmp(&(b.since, &b.key)));
            Ok(members)
        })
    }

    /// Follows who is there, from now on: first one [`GroupEvent::Joined`] for each member, then every
    /// change.
    pub fn watch(&self) -> GroupWatch {
        GroupWatch {
            client: client_of(&self.session),
            prefix: self.prefix.clone(),
            following: Following::new(client_of(&self.session), self.prefix.clone()),
            members: BTreeMap::new(),
            to_tell: VecDeque::new(),
        }
    }
}

fn client_of(session: &Session) -> Client {
    Client::new(Arc::clone(session.shared()))
}

/// A key for one more place of a session below a prefix. Not as places in the lines of locks are named, with a dot: who
/// looks for locks must not take this for one.
pub(crate) fn place(prefix: &Bytes, session: &Session) -> Bytes {
    let name = format!("{}-{}", session.lease(), session.shared_session().next_number());
    [&prefix[..], name.as_bytes()].concat().into()
}

fn member(client: &Client, prefix: &Bytes, row: KeyValue) -> Option<GroupMember> {
    let lease = row.lease.filter(|_| is_place(&row, prefix))?;
    let info = client.shared.reader.lease_head(lease);
    let label = info.and_then(|info| info.session.map(|(_, _, session)| session.label));
    Some(GroupMember { key: row.key, meta: row.value, since: row.create_revision, lease, label })
}

/// Being a member. Dropping it leaves the group, in the background; [`Membership::leave`] waits for that.
#[derive(Debug)]
#[must_use = "a membership ends when this is dropped"]
pub struct Membership {
    client: Client,
    entry: Entry,
}

impl Membership {
    /// The member's key.
    pub fn key(&self) -> &Bytes {
        self.entry.key()
    }

    /// The revision in which it joined.
    pub fn since(&self) -> Revision {
        self.entry.since()
    }

    /// The session that it lives with.
    pub fn session(&self) -> &Session {
        self.entry.session()
    }

    /// Says something new of itself.
    ///
    /// # Errors
    /// [`GroupError::NotAMember`]; [`GroupError::Store`], which says whether it was said.
    pub fn update(&self, meta: impl Into<Bytes>) -> Call<'static, (), GroupError> {
        let (key, since, meta) = (self.key().clone(), self.since(), meta.into());
        let client = self.client.clone();
        Call::new(&self.client, move |until| async move {
            let value = PutValue::Set(meta);
            let put = Put { key: key.clone(), value, lease: PutLease::Keep, prev_kv: false };
            let txn = client.txn().when(Compare::create_revision(key).eq(since));
            let call = txn.then(Op::Put(put)).deadline(until.left());
            match call.commit().await.map_err(which_is_unknown)?.succeeded {
                true => Ok(()),
                false => Err(GroupError::NotAMember),
            }
        })
    }

    /// Leaves the group, and waits until that is durable. False if it was no member any more, or its
    /// session was lost: then it is one until the lease has ended, for the lock delay.
    ///
    /// # Errors
    /// [`Error::Deadline`] if it could not be confirmed in time; the node goes on trying.
    pub fn leave(self) -> Call<'static, bool> {
        let Self { client, entry } = self;
        Call::new(&client, move |until| async move { entry.leave(&until).await })
    }
}

/// Follows a [`Group`]; see [`Group::watch`]. Also a [`Stream`](futures_core::Stream).
///
/// It reads and follows this node's replica: while that is cut off there is no news, and after that all
/// of it. If it falls behind what the store still remembers, it looks again and tells the difference,
/// so that joining and leaving in between may be passed over. What it has told is always a
/// state that the group was in.
pub struct GroupWatch {
    client: Client,
    prefix: Bytes,
    following: Following,
    members: BTreeMap<Bytes, GroupMember>,
    to_tell: VecDeque<GroupEvent>,
}

impl GroupWatch {
    /// The next thing to know. `None` after the node has stopped and that was told. Cancel-safe.
    ///
    /// # Errors
    /// If the node has stopped, or cannot say what is the case; then it may be asked again.
    pub async fn next(&mut self) -> Option<Result<GroupEvent, Error>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// The members, by key, as far as their events were delivered or wait to be.
    pub fn members(&self) -> impl Iterator<Item = &GroupMember> {
        self.members.values()
    }

    /// Takes what is the case for a new beginning, and tells what is different.
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
            None => self.to_tell.push_back(GroupEvent::Joined(member)),
            Some(before) if before.meta == member.meta => {}
            Some(_) => self.to_tell.push_back(GroupEvent::Changed(member)),
        }
    }

    fn left(&mut self, key: &Bytes) {
        if !mutant::is(Mutant::B17) {
            self.to_tell.extend(self.members.remove(key).map(GroupEvent::Left));
        }
    }
}

impl Stream for GroupWatch {
    type Item = Result<GroupEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.to_tell.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(Pin::new(&mut self.following).poll_next(context)) {
                Some(Ok(News::Anew(rows))) => self.begin(rows),
                Some(Ok(News::Changes(events))) => {
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

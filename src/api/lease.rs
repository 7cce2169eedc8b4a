//! Leases that nobody renews.

use std::future::IntoFuture;
use std::time::Duration;

use bytes::Bytes;

use crate::machine::{LeaseHead, LeaseInfo};
use crate::model::{Command, GrantReply, LeaseId, NodeId, Reply};

use super::call::{Answer, Consistency};
use super::{Client, Error};

/// A granted lease.
pub type Lease = GrantReply;

/// Makes a lease; see [`Client::grant`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct GrantCall {
    client: Client,
    ttl: Duration,
    id: Option<LeaseId>,
    deadline: Option<Duration>,
}

impl GrantCall {
    pub(crate) fn new(client: Client, ttl: Duration) -> Self {
        Self { client, ttl, id: None, deadline: None }
    }

    /// Under this id, which must be free. Otherwise it gets one that was never used.
    pub fn id(mut self, id: LeaseId) -> Self {
        self.id = Some(id);
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl IntoFuture for GrantCall {
    type Output = Result<Lease, Error>;
    type IntoFuture = Answer<Lease>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let command = Command::Grant { id: self.id, ttl: self.ttl, session: None };
            match self.client.propose(command, self.deadline).await? {
                Reply::Grant(reply) => Ok(reply),
                other => unreachable!("a grant is answered by {other:?}"),
            }
        })
    }
}

/// Reads what the store knows of a lease; see [`Client::lease_info`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct LeaseInfoCall {
    client: Client,
    lease: LeaseId,
    with_keys: bool,
}

impl LeaseInfoCall {
    pub(crate) fn new(client: Client, lease: LeaseId) -> Self {
        Self { client, lease, with_keys: false }
    }

    /// Also returns the keys that are bound to the lease. The cost grows with their number.
    pub fn with_keys(mut self) -> Self {
        self.with_keys = true;
        self
    }
}

impl IntoFuture for LeaseInfoCall {
    type Output = Result<Option<LeaseStatus>, Error>;
    type IntoFuture = Answer<Option<LeaseStatus>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, lease, with_keys } = self;
            let shared = &client.shared;
            client.be_current(Consistency::Linearizable, shared.deadline(None)).await?;
            let info = match with_keys {
                true => shared.reader.lease(lease),
                false => shared
                    .reader
                    .lease_head(lease)
                    .map(|LeaseHead { ttl, session }| LeaseInfo { ttl, keys: Vec::new(), session }),
            };
            Ok(info.map(|info| LeaseStatus::new(lease, info)))
        })
    }
}

/// What is known of a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LeaseStatus {
    /// Its id.
    pub id: LeaseId,
    /// How long it lives without renewal; for a session with a lock delay, that included.
    pub ttl: Duration,
    /// The keys that its end will delete, in order. Not scoped: as the store knows them.
    pub keys: Vec<Bytes>,
    /// If it is a session's: which node opened it, and how the session is labelled. Another node may keep
    /// it alive since: that is known only there.
    pub session: Option<(NodeId, String)>,
}

impl LeaseStatus {
    pub(crate) fn new(id: LeaseId, info: LeaseInfo) -> Self {
        let session = info.session.map(|(node, _, session)| (node, session.label));
        Self { id, ttl: info.ttl, keys: info.keys, session }
    }
}

/// A session as everybody sees it; see [`Client::sessions`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SessionStatus {
    /// Its lease.
    pub lease: LeaseId,
    /// How long the lease lives without renewal, a lock delay included.
    pub ttl: Duration,
    /// Which node opened it. Another one may keep it alive since.
    pub node: NodeId,
    /// What people are to see of it.
    pub label: String,
    /// Whether it is the node's own, which ends when its node starts anew.
    pub own: bool,
}

//! Leases that are not renewed automatically.

use std::time::Duration;

use bytes::Bytes;

use crate::machine::{LeaseHead, LeaseInfo};
use crate::model::{Command, GrantReply, LeaseId, NodeId, Reply};

use super::call::{Consistency, awaited, deadline_option};
use super::{Client, Error};

/// A granted lease.
pub type Lease = GrantReply;

/// A call that grants a lease; see [`Client::grant`].
#[derive(Clone, Debug)]
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

    /// Sets the id of the lease, which must be free. By default the lease gets an id that was never
    /// used before.
    pub fn id(mut self, id: LeaseId) -> Self {
        self.id = Some(id);
        self
    }

    deadline_option!();

    async fn run(self) -> Result<Lease, Error> {
        let command = Command::Grant { id: self.id, ttl: self.ttl, session: None };
        match self.client.propose(command, self.deadline).await? {
            Reply::Grant(reply) => Ok(reply),
            other => unreachable!("unexpected reply to a grant: {other:?}"),
        }
    }
}

awaited!(GrantCall -> Result<Lease, Error>);

/// A call that reads a lease; see [`Client::lease_info`].
#[derive(Clone, Debug)]
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

    async fn run(self) -> Result<Option<LeaseStatus>, Error> {
        let Self { client, lease, with_keys } = self;
        let shared = &client.shared;
        client.wait_until_current(Consistency::Linearizable, shared.deadline(None)).await?;
        let info = match with_keys {
            true => shared.reader.lease(lease),
            false => shared.reader.lease_head(lease).map(|LeaseHead { ttl, session }| LeaseInfo {
                ttl,
                keys: Vec::new(),
                session,
            }),
        };
        Ok(info.map(|info| LeaseStatus::new(lease, info)))
    }
}

awaited!(LeaseInfoCall -> Result<Option<LeaseStatus>, Error>);

/// State of a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LeaseStatus {
    /// Id of the lease.
    pub id: LeaseId,
    /// TTL of the lease. For a session this includes the lock delay. Serialized as a number of
    /// seconds.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serialize::seconds"))]
    pub ttl: Duration,
    /// The keys that are deleted when the lease ends, in ascending order. The keys are complete: a
    /// prefix of the client is not removed. Empty unless [`LeaseInfoCall::with_keys`] was set.
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "crate::model::serialize::serialize_list")
    )]
    pub keys: Vec<Bytes>,
    /// For a session: the node that opened it, and its label. If another node has resumed the
    /// session, this field still names the first node.
    pub session: Option<(NodeId, String)>,
}

impl LeaseStatus {
    pub(crate) fn new(id: LeaseId, info: LeaseInfo) -> Self {
        let session = info.session.map(|(node, _, session)| (node, session.label));
        Self { id, ttl: info.ttl, keys: info.keys, session }
    }
}

/// A session as seen by all nodes; see [`Client::sessions`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SessionStatus {
    /// Lease of the session.
    pub lease: LeaseId,
    /// TTL of the lease, including the lock delay.
    pub ttl: Duration,
    /// The node that opened the session. Another node may have resumed it.
    pub node: NodeId,
    /// Label of the session, shown to people.
    pub label: String,
    /// Whether this is the node's own session, which is revoked when its node restarts.
    pub own: bool,
}

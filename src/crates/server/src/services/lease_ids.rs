//! Grants leases, with ids that this member chooses where the client chooses none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bowline::{Error, LeaseId, NodeId, Rejection, lease::Lease};
use tonic::Status;

use crate::identity::Identity;
use crate::member::Member;
use crate::wire::refused;

/// Lease ids are positive in the protocol.
const LEASE_ID_BITS: u64 = u64::MAX >> 1;

/// Returns the first lease id that a member chooses: the member's id in the upper bits, then its start time, so that
/// members and incarnations do not collide. After a collision the next id is tried.
fn first_lease(node: NodeId) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (node.get() << 48) | ((now.as_millis() as u64 & 0xff_ffff_ffff) << 8)
}

/// The next lease id that this member chooses.
pub(crate) struct LeaseIds(AtomicU64);

impl LeaseIds {
    pub(crate) fn new(node: NodeId) -> Self {
        Self(AtomicU64::new(first_lease(node)))
    }

    /// Grants a lease with the given id, or with an id that this member chooses: a large number, to avoid ids that
    /// clients choose.
    pub(crate) async fn grant(
        &self,
        member: &Member,
        who: &Identity,
        ttl: Duration,
        id: Option<LeaseId>,
    ) -> Result<Lease, Status> {
        let grant = |id| {
            member.retry_while_outdated(who, move |client| async move {
                match client.grant(ttl).id(id).await {
                    Err(rejection @ Error::Rejected(Rejection::LeaseExists(_))) => {
                        Ok(Err(rejection))
                    }
                    granted => granted.map(Ok),
                }
            })
        };
        if let Some(id) = id {
            return grant(id).await?.map_err(refused);
        }
        loop {
            let next = self.0.fetch_add(1, Ordering::Relaxed) & LEASE_ID_BITS;
            let Some(id) = LeaseId::new(next) else { continue };
            // If a lease with this id exists, it belongs to another client, and the next id is tried.
            if let Ok(lease) = grant(id).await? {
                return Ok(lease);
            }
        }
    }
}

//! Leases that are taken along: under their own ids, for as long as they were granted. While this goes on they live
//! at the target for as long as they do at the source; then for one TTL more, in which whoever keeps them alive has
//! to turn to the target.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::side::Side;
use super::source::Source;
use crate::client::connect::{Effect, Link};
use crate::client::failure::Failure;
use crate::client::lease::renewal;
use crate::generated::etcdserverpb as pb;

/// How many renewals a TTL has room for.
const RENEWALS: u32 = 3;

/// How long to wait between renewals at most, and at least.
const PAUSE_MAX: Duration = Duration::from_secs(10);
const PAUSE_LEAST: Duration = Duration::from_millis(300);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Those that are there, and what they were granted for, in seconds.
    alive: RefCell<BTreeMap<i64, i64>>,
    /// Those that had ended when they were looked for.
    ended: RefCell<BTreeSet<i64>>,
}

impl Leases {
    /// Whether keys that hang on it are taken along with it: all, but of leases that are known to have ended.
    pub(crate) fn may_live(&self, id: i64) -> bool {
        !self.ended.borrow().contains(&id)
    }

    /// It is not there any more, it seems.
    pub(crate) fn forget(&self, id: i64) {
        self.alive.borrow_mut().remove(&id);
    }

    /// Sees to it that the target has it. Says whether it lives.
    pub(crate) async fn take(
        &self,
        id: i64,
        source: &Source,
        target: &Side,
    ) -> Result<bool, Failure> {
        if self.alive.borrow().contains_key(&id) {
            return Ok(true);
        }
        let Some(ttl) = source.lease(id).await? else {
            self.ended.borrow_mut().insert(id);
            return Ok(false);
        };
        let call =
            async |link: Link| link.lease().lease_grant(pb::LeaseGrantRequest { ttl, id }).await;
        match target.ask(call).await {
            Ok(_) => {}
            // From an attempt whose answer was lost, or from an earlier import.
            Err(Failure::Refused(status)) if status.message().contains("already exists") => {}
            Err(failure) => return Err(failure),
        }
        self.ended.borrow_mut().remove(&id);
        self.alive.borrow_mut().insert(id, ttl);
        Ok(true)
    }

    /// Keeps those alive at the target that live at the source, for ever.
    pub(crate) async fn keep(&self, source: &Source, target: &Side) {
        loop {
            let shortest = self.alive.borrow().values().min().copied();
            let ttl =
                Duration::from_secs(shortest.and_then(|ttl| ttl.try_into().ok()).unwrap_or(1));
            tokio::time::sleep((ttl / RENEWALS).clamp(PAUSE_LEAST, PAUSE_MAX)).await;
            let ids: Vec<i64> = self.alive.borrow().keys().copied().collect();
            for id in ids {
                let request = pb::LeaseTimeToLiveRequest { id, keys: false };
                let call = async |link: Link| link.lease().lease_time_to_live(request).await;
                // Of whom nothing is heard it is not said that he is dead.
                let life = source.side.client.ask(Effect::Repeatable, call).await;
                if life.is_ok_and(|life| life.ttl <= 0) {
                    self.forget(id);
                    continue;
                }
                if target
                    .client
                    .ask(Effect::Repeatable, renewal(id))
                    .await
                    .is_ok_and(|r| r.ttl <= 0)
                {
                    self.forget(id);
                }
            }
        }
    }
}

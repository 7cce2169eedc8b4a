//! Requests of clients about their own leases: they attach a key to each lease, and then renew the lease,
//! revoke it, or let it expire.

use std::time::Duration;

use bytes::Bytes;

use super::super::caller::Fate;
use super::super::judge::Sign;
use super::super::plan::{between, one_in};
use super::WorkloadClient;
use crate::env::Entropy;
use crate::model::{Command, LeaseId, Put, PutLease, PutValue, Rejection, Reply};

/// Maximum number of revoked leases that are remembered.
const REVOKED_MAX: usize = 16;

impl WorkloadClient {
    /// Grants a lease with a key, and lets it expire or revokes it.
    pub(super) async fn lease(&mut self) {
        let revoked = self.scene.revoked_leases.borrow().back().copied();
        if let Some(revoked) = revoked.filter(|_| one_in(&self.rng, 4)) {
            self.renew_revoked(revoked).await;
        }
        let ttl = between(&self.rng, Duration::from_millis(500), Duration::from_secs(4));
        let ttl = Duration::from_millis(u64::try_from(ttl.as_millis()).expect("short"));
        let floor = self.scene.judge.borrow().floor();
        let sent = self.scene.timeline.now();
        let id = one_in(&self.rng, 2).then(|| self.scene.lease());
        let command = Command::Grant { id, ttl, session: None };
        let sign = id.map_or(Sign::Nothing, Sign::Grants);
        let answer = self.change("grant", command, sign).await;
        if let (Some(Err(Fate::Refused(Rejection::LeaseExists(id)))), true) =
            (&answer, id.is_some())
        {
            let mut judge = self.scene.judge.borrow_mut();
            judge.expect(false, "X-ONCE", || format!("{id:?} was asked for once, and exists"));
        }
        let Some(Ok(Reply::Grant(granted))) = answer else { return };
        let value = self.scene.value("leased");
        let key: Bytes = format!("lease/{}", granted.id).into();
        {
            let mut judge = self.scene.judge.borrow_mut();
            judge.changed_nothing("grant", floor, granted.revision);
            judge.expect(
                id.is_none_or(|id| id == granted.id) && ttl == granted.ttl,
                "M-TXN",
                || format!("{granted:?} was granted, and {id:?} for {ttl:?} was asked for"),
            );
            judge.lease_counts(granted.id, sent, ttl);
        }
        let puts = [(key.clone(), value.clone())];
        let put = Put {
            key,
            value: PutValue::Set(value),
            lease: PutLease::Attach(granted.id),
            prev_kv: false,
        };
        let floor = self.scene.judge.borrow().floor();
        match self.change("leased put", Command::Put(put), Sign::Puts(&puts)).await {
            Some(Ok(reply)) => {
                self.scene.judge.borrow_mut().wrote("leased put", floor, reply.revision(), &puts);
            }
            Some(Err(Fate::Refused(why))) => {
                self.scene.judge.borrow_mut().lease_refused(granted.id, &why);
                return;
            }
            _ => return,
        }
        for _ in 0..self.rng.below(3) {
            self.scene.think(&self.rng).await;
            if !self.renew(granted.id, ttl).await {
                break;
            }
        }
        if one_in(&self.rng, 2) {
            return;
        }
        self.scene.judge.borrow_mut().lease_may_end(granted.id);
        let (revoke, sign) = (Command::Revoke(granted.id), Sign::Revokes(granted.id));
        if let Some(Ok(Reply::Revoke(reply))) = self.change("revoke", revoke, sign).await {
            let mut judge = self.scene.judge.borrow_mut();
            judge.changed_nothing("revoke", floor, reply.revision);
            judge.revoked(granted.id, reply.revision);
            let mut revoked = self.scene.revoked_leases.borrow_mut();
            revoked.push_back(granted.id);
            if revoked.len() > REVOKED_MAX {
                revoked.pop_front();
            }
        }
    }

    /// Tries to renew a lease whose revocation was acknowledged to another client.
    async fn renew_revoked(&mut self, lease: LeaseId) {
        let call = self.scene.judge.borrow_mut().call(self.node, "renew", self.caller.deadline());
        let answer = self.caller.renew(lease).await;
        let mut judge = self.scene.judge.borrow_mut();
        match answer {
            Ok(left) => {
                judge.returned(call);
                judge.expect(false, "L-GONE", || {
                    format!("{lease:?} was revoked, and is renewed for {left:?}")
                });
            }
            Err(Fate::Refused(Rejection::LeaseNotFound(_))) => {
                judge.returned(call);
                judge.count("revoked lease not renewed");
            }
            Err(_) => judge.returned_without_result(call),
        }
    }

    /// Renews the lease. Returns whether it may still exist.
    async fn renew(&mut self, lease: LeaseId, ttl: Duration) -> bool {
        let sent = self.scene.timeline.now();
        let call = self.scene.judge.borrow_mut().call(self.node, "renew", self.caller.deadline());
        let answer = self.caller.renew(lease).await;
        let mut judge = self.scene.judge.borrow_mut();
        match answer {
            Ok(left) => {
                judge.returned(call);
                judge.expect(left == ttl, "L-EPOCH", || {
                    format!("{lease:?}, of {ttl:?}, is said to live for {left:?} again")
                });
                judge.lease_renewed(lease, sent, ttl);
                true
            }
            Err(Fate::Refused(Rejection::LeaseNotFound(_))) => {
                judge.returned(call);
                judge.lease_not_renewed(lease);
                false
            }
            Err(_) => {
                judge.returned_without_result(call);
                true
            }
        }
    }
}

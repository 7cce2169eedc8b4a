//! The holds of a server's clients: locks of `v3lockpb`, leaderships of `v3electionpb`, and watches.
//!
//! A client considers a hold valid exactly as long as it considers the lease of the hold valid, because a client of
//! etcd learns nothing else about its hold. Each acquisition has its own session, because two acquisitions with one
//! lease would share one entry in the lock queue.

use std::time::Duration;

use tonic::Code;

use super::kv::{created_at, get, put, revision_of, text};
use super::watch::Watching;
use super::{Clients, Miss, Session};
use crate::calls::{Kind, Reply};
use crate::moment;
use bowline_proto::etcdserverpb::response_op::Response;
use bowline_proto::v3electionpb::election_client::ElectionClient;
use bowline_proto::v3electionpb::{CampaignRequest, LeaderKey, LeaderRequest, ResignRequest};
use bowline_proto::v3lockpb::lock_client::LockClient;
use bowline_proto::v3lockpb::{LockRequest, UnlockRequest};

/// A hold.
pub(super) enum Holding {
    /// A lock.
    Lock(Session, Key),
    /// A leadership.
    Leadership(Session, LeaderKey),
    /// A watch.
    Watch(Box<Watching>),
    /// A watch that has ended. The reason was not reported to the client yet.
    Over(Miss),
}

/// The key of an entry in a lock queue.
pub(super) struct Key(String);

/// The message of the server when there is no leader.
const NOBODY_LEADS: &str = "election: no leader";

impl Clients {
    pub(super) async fn acquire(
        &self,
        slot: String,
        lock: &str,
        kind: &Kind,
        wait: Duration,
    ) -> Result<Reply, Miss> {
        if *kind != Kind::Mutex {
            return Err(Miss::Refused("servers only support plain mutexes".to_owned()));
        }
        let session = self.session().await?;
        let (key, revision) = self.lock(&session, lock, wait).await?;
        if !session.is_believed() {
            return Err(lost());
        }
        self.slots.put(slot, Holding::Lock(session, key));
        Ok(Reply::Granted { token: (revision, 0) })
    }

    /// Waits for a lock. Returns its key and a revision at which it was held.
    async fn lock(
        &self,
        session: &Session,
        name: &str,
        wait: Duration,
    ) -> Result<(Key, u64), Miss> {
        let request = LockRequest { name: name.to_owned().into(), lease: session.lease };
        let mut client = LockClient::new(self.channel.clone());
        let locked = tokio::time::timeout(wait, client.lock(request)).await;
        let answer = locked.map_err(|_| late())??.into_inner();
        Ok((Key(text(&answer.key)), revision_of(answer.header)))
    }

    async fn unlock(&self, key: Key) -> Result<(), Miss> {
        let request = UnlockRequest { key: key.0.into() };
        LockClient::new(self.channel.clone()).unlock(request).await?;
        Ok(())
    }

    pub(super) async fn campaign(
        &self,
        slot: String,
        name: &str,
        value: &str,
        wait: Duration,
    ) -> Result<Reply, Miss> {
        let session = self.session().await?;
        let request = CampaignRequest {
            name: name.to_owned().into(),
            lease: session.lease,
            value: value.to_owned().into(),
        };
        let mut client = ElectionClient::new(self.channel.clone());
        let elected = tokio::time::timeout(wait, client.campaign(request)).await;
        let answer = elected.map_err(|_| late())??.into_inner();
        let leader = answer.leader.ok_or_else(|| Miss::incomplete("leader key"))?;
        if !session.is_believed() {
            return Err(lost());
        }
        let token = (leader.rev.cast_unsigned(), 0);
        self.slots.put(slot, Holding::Leadership(session, leader));
        Ok(Reply::Granted { token })
    }

    /// Returns the leader according to the server.
    pub(super) async fn leader_of(&self, name: &str) -> Result<Reply, Miss> {
        let request = LeaderRequest { name: name.to_owned().into() };
        match ElectionClient::new(self.channel.clone()).leader(request).await {
            Ok(answer) => {
                let row = answer.into_inner().kv;
                Ok(Reply::Leader(row.map(|row| text(&row.value))))
            }
            Err(status) if status.code() == Code::Unknown && status.message() == NOBODY_LEADS => {
                Ok(Reply::Leader(None))
            }
            Err(status) => Err(status.into()),
        }
    }

    /// Returns whether the client may still consider the hold of a slot valid.
    pub(super) fn look(&self, slot: String) -> Result<Reply, Miss> {
        let holding = self.slots.take(&slot).ok_or_else(|| empty(&slot))?;
        // The clock is read before the state of the hold, as inside a member.
        let at = moment::now();
        let held = match &holding {
            Holding::Lock(session, _) | Holding::Leadership(session, _) => session.is_believed(),
            Holding::Watch(_) => true,
            Holding::Over(_) => false,
        };
        self.slots.put(slot, holding);
        Ok(Reply::Held { held, at: held.then_some(at) })
    }

    /// Releases the hold of a slot. Returns whether the hold was valid when the release was requested. The validity of
    /// the lease decides this, because the server does not report whether the hold was valid.
    pub(super) async fn release(&self, slot: &str) -> Result<Reply, Miss> {
        let holding = self.slots.take(slot).ok_or_else(|| empty(slot))?;
        let at = Some(moment::now());
        let session = match holding {
            Holding::Watch(_) => return Ok(Reply::Held { held: true, at }),
            Holding::Over(_) => return Ok(Reply::Held { held: false, at: None }),
            // Dropping the session revokes its lease.
            Holding::Lock(session, _) | Holding::Leadership(session, _)
                if !session.is_believed() =>
            {
                return Ok(Reply::Held { held: false, at: None });
            }
            Holding::Lock(session, key) => {
                self.unlock(key).await?;
                session
            }
            Holding::Leadership(session, leader) => {
                let request = ResignRequest { leader: Some(leader) };
                ElectionClient::new(self.channel.clone()).resign(request).await?;
                session
            }
        };
        self.is_idle(session);
        Ok(Reply::Held { held: true, at })
    }

    /// Acquires a lock, reads a set, pauses, writes the set with one more element, and releases the lock. If
    /// `guarded`, the write is a transaction on the condition that the key of the lock still has its creation
    /// revision. Otherwise the write is unconditional, as by a client that relies on the lock alone.
    pub(super) async fn add_under_lock(
        &self,
        lock: &str,
        set: &str,
        element: u64,
        (wait, think): (Duration, Duration),
        guarded: bool,
    ) -> Result<Reply, Miss> {
        let session = self.session().await?;
        // Nothing was written yet, so a failure has no effect.
        let (key, _) = self.lock(&session, lock, wait).await.map_err(Miss::harmless)?;
        let reads = vec![get(&key.0), get(set)];
        let answer = self.txn(Vec::new(), reads).await.map_err(Miss::harmless)?;
        let mut rows = answer.responses.into_iter().map(|response| match response.response {
            Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        let own = rows.next().flatten().ok_or_else(lost)?;
        let before = rows.next().flatten().map_or_else(String::new, |row| text(&row.value) + ",");
        // The pause simulates work under the lock.
        tokio::time::sleep(think).await;
        let is_held = created_at(&key.0, own.create_revision.cast_unsigned());
        let when = if guarded { vec![is_held] } else { Vec::new() };
        let answer = self.txn(when, vec![put(set, &format!("{before}{element}"))]).await?;
        // The outcome of the release does not matter here.
        if self.unlock(key).await.is_ok() && session.is_believed() {
            self.is_idle(session);
        }
        match answer.succeeded {
            true => Ok(Reply::Done { revision: revision_of(answer.header) }),
            false => Err(lost()),
        }
    }
}

/// Returns the error for a hold that was not granted in time.
fn late() -> Miss {
    Miss::Refused("not acquired before the deadline".to_owned())
}

/// Returns the error for a hold that was granted after its lease had to be considered expired.
fn lost() -> Miss {
    Miss::Refused("lost before it could be used".to_owned())
}

pub(super) fn empty(slot: &str) -> Miss {
    Miss::Refused(format!("slot {slot} is empty"))
}

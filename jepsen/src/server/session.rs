//! A lease that a client keeps alive, and the time until which the client may consider the lease valid.
//!
//! The client counts the TTL from the time at which it sent the last acknowledged renewal, because the server starts
//! to count later. As in the library, the possible clock drift is subtracted from the TTL. When a session is dropped,
//! its lease is revoked if the server can be reached. Otherwise the keys of the lease are deleted when the lease
//! expires.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::{Miss, pb, runtime};
use pb::lease_client::LeaseClient;

/// Maximum difference of the rates of two clocks, in percent.
const DRIFT_PERCENT: u32 = 10;

/// Number of renewals per TTL.
const RENEWALS: u32 = 4;

/// Pause before a broken renewal stream is reopened.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Maximum time to try to revoke a lease.
const REVOKES_WITHIN: Duration = Duration::from_secs(2);

/// A granted lease.
pub(super) struct Granted {
    pub(super) id: i64,
    ttl: Duration,
    /// Time at which the lease was requested.
    sent: Instant,
}

/// Requests a lease with a TTL in seconds.
///
/// # Errors
/// Returns an error if the lease is not granted.
pub(super) async fn grant(channel: &Channel, seconds: i64) -> Result<Granted, Miss> {
    let sent = Instant::now();
    let request = pb::LeaseGrantRequest { ttl: seconds, id: 0 };
    let answer = LeaseClient::new(channel.clone()).lease_grant(request).await?.into_inner();
    Ok(Granted { id: answer.id, ttl: Duration::from_secs(answer.ttl.unsigned_abs()), sent })
}

/// A lease that is kept alive.
pub(super) struct Session {
    channel: Channel,
    pub(super) lease: i64,
    valid_until: Arc<Mutex<Instant>>,
    keeper: AbortHandle,
}

impl Session {
    /// Opens a session with this TTL.
    ///
    /// # Errors
    /// Returns an error if no lease is granted. No lease is left behind.
    pub(super) async fn open(channel: &Channel, ttl: Duration) -> Result<Self, Miss> {
        let seconds = i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX);
        let granted = grant(channel, seconds).await.map_err(Miss::harmless)?;
        let valid_until = Arc::new(Mutex::new(granted.sent + believed(granted.ttl)));
        let keep = keep(channel.clone(), granted.id, granted.ttl, Arc::clone(&valid_until));
        let keeper = runtime().spawn(keep).abort_handle();
        Ok(Self { channel: channel.clone(), lease: granted.id, valid_until, keeper })
    }

    /// Returns whether the lease certainly exists.
    pub(super) fn is_believed(&self) -> bool {
        Instant::now() < *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.keeper.abort();
        let (mut client, id) = (LeaseClient::new(self.channel.clone()), self.lease);
        runtime().spawn(async move {
            let revoke = client.lease_revoke(pb::LeaseRevokeRequest { id });
            // If the revocation does not arrive, the lease expires by itself.
            drop(tokio::time::timeout(REVOKES_WITHIN, revoke).await);
        });
    }
}

/// Returns how long after sending a renewal a client may rely on a lease.
fn believed(ttl: Duration) -> Duration {
    ttl - ttl * DRIFT_PERCENT / 100
}

/// Renews a lease until it has ended.
async fn keep(channel: Channel, id: i64, ttl: Duration, valid_until: Arc<Mutex<Instant>>) {
    loop {
        if renewals(&channel, id, ttl, &valid_until).await.is_some() {
            let mut until = valid_until.lock().unwrap_or_else(PoisonError::into_inner);
            *until = Instant::now();
            return;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// Renews the lease on one stream until the stream breaks. Returns `Some` if the lease has ended.
async fn renewals(
    channel: &Channel,
    id: i64,
    ttl: Duration,
    valid_until: &Mutex<Instant>,
) -> Option<()> {
    let (requests, stream) = mpsc::channel(1);
    let mut client = LeaseClient::new(channel.clone());
    let opened = tokio::time::timeout(ttl, client.lease_keep_alive(ReceiverStream::new(stream)));
    let mut answers = opened.await.ok()?.ok()?.into_inner();
    loop {
        let sent = Instant::now();
        requests.send(pb::LeaseKeepAliveRequest { id }).await.ok()?;
        // Only one request is in flight at a time, so the next response belongs to the last one.
        let answer = tokio::time::timeout(ttl, answers.message()).await.ok()?.ok()??;
        if answer.ttl <= 0 {
            return Some(());
        }
        let renewed = Duration::from_secs(answer.ttl.unsigned_abs()).min(ttl);
        *valid_until.lock().unwrap_or_else(PoisonError::into_inner) = sent + believed(renewed);
        tokio::time::sleep(ttl / RENEWALS).await;
    }
}

//! A lease that a client keeps alive, and how long it may believe in it.
//!
//! The time counts from the sending of the last renewal that was answered: the server began to count later. As in the
//! library, what clocks may differ is taken off. A session that is dropped is revoked, if the server can be reached; what
//! hangs on it goes with it at the latest when its time is up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::{Miss, pb, runtime};
use pb::lease_client::LeaseClient;

/// By how much two clocks may differ in speed.
const DRIFT_PERCENT: u32 = 10;

/// How many renewals a lease's life has room for.
const RENEWALS: u32 = 4;

/// How long to wait before a stream of renewals that broke is opened anew.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// How long it is tried to revoke a lease.
const REVOKES_WITHIN: Duration = Duration::from_secs(2);

/// A lease that was granted.
pub(super) struct Granted {
    pub(super) id: i64,
    ttl: Duration,
    /// When it was asked for.
    sent: Instant,
}

/// Asks for a lease of so many seconds.
///
/// # Errors
/// No answer that grants one.
pub(super) async fn grant(channel: &Channel, seconds: i64) -> Result<Granted, Miss> {
    let sent = Instant::now();
    let request = pb::LeaseGrantRequest { ttl: seconds, id: 0 };
    let answer = LeaseClient::new(channel.clone()).lease_grant(request).await?.into_inner();
    Ok(Granted { id: answer.id, ttl: Duration::from_secs(answer.ttl.unsigned_abs()), sent })
}

/// See the module.
pub(super) struct Session {
    channel: Channel,
    /// Its lease.
    pub(super) lease: i64,
    believed_until: Arc<Mutex<Instant>>,
    keeper: AbortHandle,
}

impl Session {
    /// A new one, that outlives its client's silence for so long.
    ///
    /// # Errors
    /// No lease is granted. Nothing is left that lives on.
    pub(super) async fn open(channel: &Channel, ttl: Duration) -> Result<Self, Miss> {
        let seconds = i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX);
        let granted = grant(channel, seconds).await.map_err(Miss::harmless)?;
        let believed_until = Arc::new(Mutex::new(granted.sent + believed(granted.ttl)));
        let keep = keep(channel.clone(), granted.id, granted.ttl, Arc::clone(&believed_until));
        let keeper = runtime().spawn(keep).abort_handle();
        Ok(Self { channel: channel.clone(), lease: granted.id, believed_until, keeper })
    }

    /// Whether the lease lives for certain.
    pub(super) fn is_believed(&self) -> bool {
        Instant::now() < *self.believed_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.keeper.abort();
        let (mut client, id) = (LeaseClient::new(self.channel.clone()), self.lease);
        runtime().spawn(async move {
            let revoke = client.lease_revoke(pb::LeaseRevokeRequest { id });
            // If it does not get there, the lease ends by itself.
            drop(tokio::time::timeout(REVOKES_WITHIN, revoke).await);
        });
    }
}

/// How long a holder believes in a lease.
fn believed(ttl: Duration) -> Duration {
    ttl - ttl * DRIFT_PERCENT / 100
}

/// Renews a lease until it has ended.
async fn keep(channel: Channel, id: i64, ttl: Duration, believed_until: Arc<Mutex<Instant>>) {
    loop {
        if renewals(&channel, id, ttl, &believed_until).await.is_some() {
            let mut until = believed_until.lock().unwrap_or_else(PoisonError::into_inner);
            *until = Instant::now();
            return;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// Renews it on one stream, until that breaks; something, if the lease has ended.
async fn renewals(
    channel: &Channel,
    id: i64,
    ttl: Duration,
    believed_until: &Mutex<Instant>,
) -> Option<()> {
    let (requests, stream) = mpsc::channel(1);
    let mut client = LeaseClient::new(channel.clone());
    let opened = tokio::time::timeout(ttl, client.lease_keep_alive(ReceiverStream::new(stream)));
    let mut answers = opened.await.ok()?.ok()?.into_inner();
    loop {
        let sent = Instant::now();
        requests.send(pb::LeaseKeepAliveRequest { id }).await.ok()?;
        // The next answer is to the last request: one is under way at a time.
        let answer = tokio::time::timeout(ttl, answers.message()).await.ok()?.ok()??;
        if answer.ttl <= 0 {
            return Some(());
        }
        let renewed = Duration::from_secs(answer.ttl.unsigned_abs()).min(ttl);
        *believed_until.lock().unwrap_or_else(PoisonError::into_inner) = sent + believed(renewed);
        tokio::time::sleep(ttl / RENEWALS).await;
    }
}

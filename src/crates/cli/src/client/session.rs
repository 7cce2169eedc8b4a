//! A lease that is kept alive, and the time for which its holder can rely on it.
//!
//! ```text
//!   renewal sent ── answered ──────────────── valid until ── the server may expire it
//!        │◄─────────── TTL minus clock drift ───────────►│
//! ```
//!
//! The client counts the validity of the lease from the time at which it sent the last confirmed renewal. The client
//! uses a clock that also runs while the machine sleeps. The server starts to count only when it receives the renewal,
//! so the client always stops relying on the lease before the server can expire it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tonic::Response;

use super::connect::{Client, Effect, Link};
use super::failure::Failure;
use super::lease::renewal;
use bowline_proto::etcdserverpb as pb;

/// Maximum difference between the speeds of two clocks, in percent.
const DRIFT_PERCENT: u32 = 10;

/// Number of renewals per TTL.
const RENEWALS: u32 = 3;

/// Interval at which the clock is read while waiting. The wait cannot rely on tokio's timers alone, because they stand
/// still while the machine sleeps.
const LOOK: Duration = Duration::from_millis(100);

/// Pause before a failed renewal is retried.
const AGAIN: Duration = Duration::from_millis(100);

/// A point in time, as the time since boot. The clock also runs while the machine sleeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Moment(Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        #[cfg(target_os = "linux")]
        let clock = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let clock = ClockId::Monotonic;
        let now = clock_gettime(clock);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        Self(Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), nanos))
    }

    /// Encodes the time for another process on this machine.
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX).to_be_bytes()
    }

    /// Decodes a time from another process on this machine.
    pub(crate) fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(Duration::from_nanos(u64::from_be_bytes(bytes)))
    }

    /// Returns the time that is `span` later than this time.
    pub(crate) fn after(self, span: Duration) -> Self {
        Self(self.0 + span)
    }

    /// Returns the time that is `span` earlier than this time.
    pub(crate) fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span))
    }

    /// Returns the time left until this point in time. Returns zero if the point in time has passed.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_sub(Moment::now().0)
    }

    /// Waits until this point in time.
    pub(crate) async fn come(self) {
        while !self.left().is_zero() {
            tokio::time::sleep(self.left().min(LOOK)).await;
        }
    }
}

/// A lease owned by this process.
#[derive(Debug)]
pub(crate) struct Session {
    client: Arc<Client>,
    pub(crate) lease: i64,
    /// TTL that the server has granted.
    pub(crate) ttl: Duration,
    sent: Cell<Moment>,
    valid_until: watch::Sender<Moment>,
}

impl Session {
    /// Grants a new lease.
    pub(crate) async fn open(client: &Arc<Client>, ttl: Duration) -> Result<Self, Failure> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let sent = Cell::new(Moment::now());
        let grant = async |link: Link| {
            sent.set(Moment::now());
            link.lease().lease_grant(pb::LeaseGrantRequest { ttl: seconds, id: 0 }).await
        };
        // A grant is safe to repeat: if the response to a grant is lost, its lease expires by itself.
        let granted = client.ask(Effect::Repeatable, grant).await?;
        let ttl = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or_default());
        let valid_until = sent.get().after(believed(ttl));
        Ok(Self {
            client: Arc::clone(client),
            lease: granted.id,
            ttl,
            sent,
            valid_until: watch::Sender::new(valid_until),
        })
    }

    /// Returns a receiver of the time until which the lease certainly exists. Each renewal updates the time.
    pub(crate) fn valid_until(&self) -> watch::Receiver<Moment> {
        self.valid_until.subscribe()
    }

    /// Renews the lease until the lease can no longer be relied on. Returns the reason.
    pub(crate) async fn keep(&self) -> String {
        let mut next = self.sent.get().after(self.ttl / RENEWALS);
        loop {
            next.come().await;
            let valid_until = *self.valid_until.borrow();
            if valid_until.left().is_zero() {
                return "no renewal of the lease was confirmed in time".to_owned();
            }
            let renew = renewal(self.lease);
            let sent = Cell::new(Moment::now());
            let call = async |link: Link| {
                sent.set(Moment::now());
                let answer = renew(link).await?.into_inner();
                // The validity counts from the attempt that was answered.
                Ok(Response::new((answer, sent.get())))
            };
            let patience = valid_until.left().min(self.ttl / RENEWALS);
            match self.client.ask_for(patience, Effect::Repeatable, call).await {
                Ok((answer, _)) if answer.ttl <= 0 => return "the lease has ended".to_owned(),
                Ok((answer, sent)) => {
                    let ttl = Duration::from_secs(u64::try_from(answer.ttl).unwrap_or_default());
                    let valid_until = sent.after(believed(ttl.min(self.ttl)));
                    self.valid_until.send_if_modified(|now| {
                        let is_later = valid_until > *now;
                        *now = valid_until.max(*now);
                        is_later
                    });
                    next = sent.after(self.ttl / RENEWALS);
                }
                Err(_) => next = Moment::now().after(AGAIN),
            }
        }
    }

    /// Revokes the lease, which deletes its keys. Retries for at most `limit`.
    pub(crate) async fn close(&self, limit: Duration) -> Result<(), Failure> {
        let request = pb::LeaseRevokeRequest { id: self.lease };
        let call = async |link: Link| link.lease().lease_revoke(request).await;
        match self.client.ask_for(limit, Effect::Repeatable, call).await {
            Ok(_) => Ok(()),
            // The lease had expired, or an attempt whose response was lost has revoked it.
            Err(Failure::Refused(status)) if status.message().contains("lease not found") => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// Returns how long a client can rely on a lease after it sent a renewal.
fn believed(ttl: Duration) -> Duration {
    ttl - ttl * DRIFT_PERCENT / 100
}

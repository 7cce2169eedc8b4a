//! A lease that is kept alive, and how long its holder may believe in it.
//!
//! ```text
//!   renewal sent ── answered ─────────────── valid until ── the server may end it
//!        │◄──────────── TTL less the drift of clocks ──►│
//! ```
//!
//! The time counts from the sending of the last renewal that was confirmed, on the clock that goes on while the
//! machine sleeps: whatever happens to the answer, the server began to count later.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tonic::Response;

use super::connect::{Client, Effect, Link};
use super::failure::Failure;
use super::lease::renewal;
use crate::generated::etcdserverpb as pb;

/// By how much two clocks may differ in speed.
const DRIFT_PERCENT: u32 = 10;

/// How many renewals a TTL has room for.
const RENEWALS: u32 = 3;

/// How often the clock is looked at: sleeping goes by another clock, that stands still while the machine sleeps.
const LOOK: Duration = Duration::from_millis(100);

/// How long to wait before a renewal that failed is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// A moment since the machine was started, its sleep counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Moment(Duration);

impl Moment {
    /// Now.
    pub(crate) fn now() -> Self {
        #[cfg(target_os = "linux")]
        let clock = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let clock = ClockId::Monotonic;
        let now = clock_gettime(clock);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        Self(Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), nanos))
    }

    /// As another process of this machine reads it.
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX).to_be_bytes()
    }

    /// What another process of this machine means.
    pub(crate) fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(Duration::from_nanos(u64::from_be_bytes(bytes)))
    }

    /// So much later.
    pub(crate) fn after(self, span: Duration) -> Self {
        Self(self.0 + span)
    }

    /// So much earlier.
    pub(crate) fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span))
    }

    /// How long it is until then.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_sub(Moment::now().0)
    }

    /// Waits until then.
    pub(crate) async fn come(self) {
        while !self.left().is_zero() {
            tokio::time::sleep(self.left().min(LOOK)).await;
        }
    }
}

/// A lease of our own.
#[derive(Debug)]
pub(crate) struct Session {
    client: Arc<Client>,
    /// Its id.
    pub(crate) lease: i64,
    /// What the server has granted.
    pub(crate) ttl: Duration,
    sent: Cell<Moment>,
    valid_until: watch::Sender<Moment>,
}

impl Session {
    /// A new lease.
    pub(crate) async fn open(client: &Arc<Client>, ttl: Duration) -> Result<Self, Failure> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let sent = Cell::new(Moment::now());
        let grant = async |link: Link| {
            sent.set(Moment::now());
            link.lease().lease_grant(pb::LeaseGrantRequest { ttl: seconds, id: 0 }).await
        };
        // A lease that is granted and not heard of ends by itself.
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

    /// Until when it is safe to believe in the lease; moves on with each renewal.
    pub(crate) fn valid_until(&self) -> watch::Receiver<Moment> {
        self.valid_until.subscribe()
    }

    /// Keeps the lease alive, until it cannot be believed in any more. Says why.
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
                // Confirmed by an answer to this very attempt.
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

    /// Ends the lease, and deletes what hangs on it; tries for so long.
    pub(crate) async fn close(&self, limit: Duration) -> Result<(), Failure> {
        let request = pb::LeaseRevokeRequest { id: self.lease };
        let call = async |link: Link| link.lease().lease_revoke(request).await;
        match self.client.ask_for(limit, Effect::Repeatable, call).await {
            Ok(_) => Ok(()),
            // It had ended, or an attempt whose answer was lost has ended it.
            Err(Failure::Refused(status)) if status.message().contains("lease not found") => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// How long a holder believes in a lease.
fn believed(ttl: Duration) -> Duration {
    ttl - ttl * DRIFT_PERCENT / 100
}

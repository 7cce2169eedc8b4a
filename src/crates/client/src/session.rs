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
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tonic::{Response, Status};

use crate::connect::{CallKind, Client, Link};
use crate::error::Error;
use bowline_proto::etcdserverpb as pb;

/// Maximum difference between the speeds of two clocks, in percent.
const DRIFT_PERCENT: u32 = 10;

/// Number of renewals per TTL.
const RENEWALS: u32 = 3;

/// Interval at which the clock is read while waiting. The wait cannot rely on tokio's timers alone, because they do not
/// advance while the machine sleeps.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Pause before a failed renewal is retried.
const AGAIN: Duration = Duration::from_millis(100);

/// A point in time, as the time since boot. The clock also runs while the machine sleeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BootTime(Duration);

impl BootTime {
    /// Returns the current time.
    pub fn now() -> Self {
        #[cfg(target_os = "linux")]
        let clock = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let clock = ClockId::Monotonic;
        let now = clock_gettime(clock);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        Self(Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), nanos))
    }

    /// Encodes the time for another process on this machine.
    pub fn to_bytes(self) -> [u8; 8] {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX).to_be_bytes()
    }

    /// Decodes a time from another process on this machine.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(Duration::from_nanos(u64::from_be_bytes(bytes)))
    }

    /// Returns the time that is `span` later than this time.
    pub fn after(self, span: Duration) -> Self {
        Self(self.0 + span)
    }

    /// Returns the time that is `span` earlier than this time.
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span))
    }

    /// Returns the time left until this point in time. Returns zero if the point in time has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_sub(BootTime::now().0)
    }

    /// Waits until this point in time.
    pub async fn come(self) {
        while !self.left().is_zero() {
            tokio::time::sleep(self.left().min(POLL_INTERVAL)).await;
        }
    }
}

/// A lease owned by this process.
#[derive(Debug)]
pub struct Session {
    client: Arc<Client>,
    lease: i64,
    ttl: Duration,
    /// When the grant was sent.
    sent: BootTime,
    valid_until: watch::Sender<BootTime>,
}

impl Session {
    /// Grants a new lease. [`run`](Self::run) or [`keep`](Self::keep) renew it.
    ///
    /// # Errors
    /// Returns an error if no server grants the lease.
    pub async fn open(client: &Arc<Client>, ttl: Duration) -> Result<Self, Error> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let sent = Cell::new(BootTime::now());
        let grant = async |link: Link| {
            sent.set(BootTime::now());
            link.lease().lease_grant(pb::LeaseGrantRequest { ttl: seconds, id: 0 }).await
        };
        // A grant is safe to repeat: if the response to a grant is lost, its lease expires by itself.
        let granted = client.call(CallKind::Repeatable, grant).await?;
        let ttl = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or_default());
        let valid_until = sent.get().after(believed(ttl));
        Ok(Self {
            client: Arc::clone(client),
            lease: granted.id,
            ttl,
            sent: sent.get(),
            valid_until: watch::Sender::new(valid_until),
        })
    }

    /// Returns the client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Returns the id of the lease.
    pub fn lease(&self) -> i64 {
        self.lease
    }

    /// Returns the TTL that the server has granted.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Runs `work` while the lease is renewed. If the lease can no longer be relied on, `work` is dropped.
    ///
    /// # Errors
    /// Returns [`Error::Lost`] with the reason if the lease is lost.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let (mut work, mut keep) = (pin!(work), pin!(self.keep()));
        let mut valid_until = self.valid_until();
        loop {
            let end = *valid_until.borrow_and_update();
            tokio::select! {
                biased;
                why = &mut keep => return Err(Error::Lost(why)),
                () = end.come() => {
                    return Err(Error::Lost("no renewal of the lease was confirmed in time".to_owned()));
                }
                Ok(()) = valid_until.changed() => {}
                done = &mut work => return Ok(done),
            }
        }
    }

    /// Returns a receiver of the time until which the lease certainly exists. Each renewal updates the time.
    pub fn valid_until(&self) -> watch::Receiver<BootTime> {
        self.valid_until.subscribe()
    }

    /// Renews the lease until the lease can no longer be relied on. Returns the reason.
    pub async fn keep(&self) -> String {
        let mut next = self.sent.after(self.ttl / RENEWALS);
        loop {
            next.come().await;
            let valid_until = *self.valid_until.borrow();
            if valid_until.left().is_zero() {
                return "no renewal of the lease was confirmed in time".to_owned();
            }
            let renew = renewal(self.lease);
            let sent = Cell::new(BootTime::now());
            let call = async |link: Link| {
                sent.set(BootTime::now());
                let answer = renew(link).await?.into_inner();
                // The validity counts from the attempt that was answered.
                Ok(Response::new((answer, sent.get())))
            };
            let patience = valid_until.left().min(self.ttl / RENEWALS);
            match self.client.call_within(patience, CallKind::Repeatable, call).await {
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
                Err(_) => next = BootTime::now().after(AGAIN),
            }
        }
    }

    /// Revokes the lease, which deletes its keys and releases its locks.
    ///
    /// # Errors
    /// Returns an error if no server confirms it. Then the lease expires by itself.
    pub async fn close(&self) -> Result<(), Error> {
        self.close_within(self.client.options().call_timeout).await
    }

    /// Like [`close`](Self::close), with the given time limit.
    ///
    /// # Errors
    /// Returns an error if no server confirms that the lease was revoked. Then the lease expires when its TTL has
    /// passed.
    pub async fn close_within(&self, limit: Duration) -> Result<(), Error> {
        let request = pb::LeaseRevokeRequest { id: self.lease };
        let call = async |link: Link| link.lease().lease_revoke(request).await;
        match self.client.call_within(limit, CallKind::Repeatable, call).await {
            Ok(_) => Ok(()),
            // The lease had expired, or an attempt whose response was lost has revoked it.
            Err(Error::Refused(status)) if status.message().contains("lease not found") => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// Returns a call that renews a lease once.
pub fn renewal(
    id: i64,
) -> impl AsyncFn(Link) -> Result<Response<pb::LeaseKeepAliveResponse>, Status> {
    async move |link: Link| {
        let request = tokio_stream::once(pb::LeaseKeepAliveRequest { id });
        let answers = link.lease().lease_keep_alive(request).await?;
        let answer = answers.into_inner().message().await?;
        answer.map(Response::new).ok_or_else(|| {
            Status::unavailable("the server closed the stream without renewing the lease")
        })
    }
}

/// Returns how long a client can rely on a lease after it sent a renewal.
fn believed(ttl: Duration) -> Duration {
    ttl - ttl * DRIFT_PERCENT / 100
}

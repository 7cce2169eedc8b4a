//! `etcdserverpb.Lease`: grants, revocations, renewals and remaining TTLs.

use std::collections::{HashSet, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline::{Error, LeaseId, Rejection, auth::AuthError};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::identity::Identity;
use crate::leader::{Leaderless, needs_leader};
use crate::member::Member;
use crate::services::lease_ids::LeaseIds;
use crate::services::response_stream::{ResponseSender, ResponseStream};
use crate::wire::{Reason, access_refused, lease_id, refused};
use bowline_proto::etcdserverpb::lease_server::Lease;
use bowline_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};

#[derive(Clone)]
pub(crate) struct LeaseService {
    pub(crate) member: Arc<Member>,
    pub(crate) lease_ids: Arc<LeaseIds>,
    pub(crate) leaderless: Arc<Leaderless>,
}

/// TTL reported for a lease that does not exist.
const NO_TTL: i64 = -1;

/// Maximum number of concurrent renewals per stream. Each takes a round trip through the cluster, so the leases of a
/// distant client would expire if they were renewed one by one.
const QUEUED_RENEWALS_MAX: usize = 32;

/// Maximum number of queued renewals per stream. Leaving more requests unread would fill the connection's flow control
/// after a few thousand small messages and block it.
const WAITING_MAX: usize = 1 << 15;

/// Maximum number of leases that a stream remembers as renewed; then it starts over.
const KEPT_MAX: usize = 1 << 14;

impl LeaseService {
    /// Returns the minimum TTL in whole seconds, which must outlive an election.
    fn least_ttl(&self) -> Duration {
        let (election, heartbeat) =
            (self.member.settings().election_timeout, self.member.settings().heartbeat);
        let ticks = election.as_nanos() / heartbeat.as_nanos().max(1);
        let nanos = (3 * ticks / 2) * heartbeat.as_nanos();
        Duration::from_secs(u64::try_from(nanos.div_ceil(1_000_000_000)).unwrap_or(u64::MAX))
    }

    /// Renews a lease and returns its TTL in seconds, or 0 if it has ended.
    async fn keep_alive(member: &Member, who: &Identity, id: i64) -> Result<i64, Status> {
        let Some(lease) = lease_id(id) else { return Ok(0) };
        match member.client_of_running(who).renew(lease).await {
            // A TTL of 0 would tell the client that the lease has ended, so at least 1 is reported.
            Ok(ttl) => Ok(ttl.as_secs().max(1) as i64),
            Err(Error::Rejected(Rejection::LeaseNotFound(_))) => Ok(0),
            Err(error) => Err(unanswered(member, error)),
        }
    }
}

/// Converts an error of the leader. As in etcd, a missing leader is reported as such.
fn unanswered(member: &Member, error: Error) -> Status {
    match error {
        Error::Deadline { .. } if !member.has_leader() => Reason::NoLeader.into(),
        error => refused(error),
    }
}

/// Futures that run concurrently within one task, and complete in order.
struct InOrder<F: Future>(VecDeque<Run<F>>);

enum Run<F: Future> {
    On(Pin<Box<F>>),
    Done(F::Output),
}

impl<F: Future> InOrder<F> {
    /// Starts a future at the end of the queue.
    async fn begin(&mut self, future: F) {
        let mut future = Box::pin(future);
        let first = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        self.0.push_back(match first {
            Poll::Ready(output) => Run::Done(output),
            Poll::Pending => Run::On(future),
        });
    }

    /// Returns the result of the first future, and waits if there is none. The other futures wake the same task, but
    /// are polled only when they become the first.
    async fn next(&mut self) -> F::Output {
        poll_fn(|context| match self.0.pop_front() {
            None => Poll::Pending,
            Some(Run::Done(output)) => Poll::Ready(output),
            Some(Run::On(mut future)) => {
                let polled = future.as_mut().poll(context);
                if polled.is_pending() {
                    self.0.push_front(Run::On(future));
                }
                polled
            }
        })
        .await
    }
}

/// A stream of renewals.
struct KeepingAlive {
    member: Arc<Member>,
    who: Identity,
    /// Leases that this stream has renewed. Like open watches, they are renewed further as long as the user has
    /// permission. For other leases the caller is identified again, because its credentials may have expired.
    kept: HashSet<i64>,
}

impl KeepingAlive {
    /// Handles the requests, and sends the responses in order.
    async fn run(
        mut self,
        mut requests: Streaming<LeaseKeepAliveRequest>,
        answers: ResponseSender<LeaseKeepAliveResponse>,
    ) -> Result<(), Status> {
        let (mut in_progress, mut waiting) = (InOrder(VecDeque::new()), VecDeque::new());
        // The result with which the stream ends once no more requests are read. Earlier requests are answered before.
        let mut end = None;
        loop {
            while in_progress.0.len() < QUEUED_RENEWALS_MAX
                && let Some(id) = waiting.pop_front()
            {
                match self.renew(id) {
                    Ok(renewal) => in_progress.begin(renewal).await,
                    Err(status) => {
                        waiting.clear();
                        end = Some(Err(status));
                    }
                }
            }
            if in_progress.0.is_empty()
                && let Some(end) = end.take()
            {
                return end;
            }
            tokio::select! {
                answer = in_progress.next() => {
                    let answer = answer?;
                    self.note(&answer);
                    if answers.send(Ok(answer)).await.is_err() {
                        return Ok(());
                    }
                }
                request = requests.message(), if end.is_none() && waiting.len() < WAITING_MAX => {
                    match request {
                        Ok(Some(request)) => waiting.push_back(request.id),
                        Ok(None) => end = Some(Ok(())),
                        Err(status) => end = Some(Err(status)),
                    }
                }
            }
        }
    }

    /// Returns the renewal of a lease, which starts when first polled.
    fn renew(
        &mut self,
        id: i64,
    ) -> Result<impl Future<Output = Result<LeaseKeepAliveResponse, Status>> + use<>, Status> {
        if !self.kept.contains(&id) {
            self.who = self.member.again(&self.who)?;
        }
        // The header is created before the renewal. If the renewal succeeds, the lease existed at the header's
        // revision.
        let header = self.member.header_now();
        let (member, who) = (Arc::clone(&self.member), self.who.clone());
        Ok(async move {
            let ttl = LeaseService::keep_alive(&member, &who, id).await?;
            Ok(LeaseKeepAliveResponse { header, id, ttl })
        })
    }

    fn note(&mut self, LeaseKeepAliveResponse { id, ttl, .. }: &LeaseKeepAliveResponse) {
        if *ttl <= 0 {
            self.kept.remove(id);
            return;
        }
        if self.kept.len() >= KEPT_MAX && !self.kept.contains(id) {
            self.kept.clear();
        }
        self.kept.insert(*id);
    }
}

/// Rounds the remaining TTL down to whole seconds. As in etcd, the result is below the TTL right after a grant, even if
/// the clock shows no time since the grant.
fn seconds_left(left: Duration) -> i64 {
    left.saturating_sub(Duration::from_nanos(1)).as_secs() as i64
}

fn known(id: i64) -> Result<LeaseId, Status> {
    lease_id(id).ok_or_else(|| Reason::LeaseNotFound.into())
}

#[tonic::async_trait]
impl Lease for LeaseService {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let who = Identity::in_request(&request);
        let LeaseGrantRequest { ttl, id } = request.into_inner();
        let asked = Duration::from_secs(ttl.max(0).unsigned_abs());
        let lease = self
            .lease_ids
            .grant(&self.member, &who, asked.max(self.least_ttl()), lease_id(id))
            .await?;
        let header = self.member.header(lease.revision);
        let (id, ttl) = (lease.id.get() as i64, lease.ttl.as_secs() as i64);
        Ok(Response::new(LeaseGrantResponse { header, id, ttl, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let who = Identity::in_request(&request);
        let lease = known(request.into_inner().id)?;
        let reply = self.member.client_of(&who)?.revoke(lease).await.map_err(refused)?;
        Ok(Response::new(LeaseRevokeResponse { header: self.member.header(reply.revision) }))
    }

    type LeaseKeepAliveStream =
        Pin<Box<dyn Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        self.member.not_for_learners()?;
        let needs_leader = needs_leader(&request);
        let (member, who) = (Arc::clone(&self.member), Identity::in_request(&request));
        let leaderless = Arc::clone(&self.leaderless);
        let requests = request.into_inner();
        Ok(Response::new(ResponseStream::by(move |answers| {
            let keeping = KeepingAlive { member, who, kept: HashSet::new() };
            async move {
                tokio::select! {
                    ended = keeping.run(requests, answers) => ended,
                    status = leaderless.lost(), if needs_leader => Err(status),
                }
            }
        })))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let client = self.member.client_of(&Identity::in_request(&request))?;
        let unanswered = |error| unanswered(&self.member, error);
        let LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let mut response = LeaseTimeToLiveResponse { id, ttl: NO_TTL, ..Default::default() };
        let lease = lease_id(id);
        response.header = self.member.header_now();
        let left = match lease {
            Some(lease) => client.lease_time_to_live(lease).await.map_err(unanswered)?,
            None => None,
        };
        if left.is_some() {
            // The header is created before the keys are read. A client that watches from the next revision therefore
            // misses no key.
            response.header = self.member.header_now();
        }
        if let (Some(lease), Some(left)) = (lease, left)
            && let Some(status) =
                self.member.client().lease_info(lease).await.map_err(unanswered)?
        {
            response.ttl = seconds_left(left);
            response.granted_ttl = status.ttl.as_secs() as i64;
            if keys && let Some(status) = client.lease_info(lease).await.map_err(unanswered)? {
                response.keys = status.keys;
            }
        }
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let client = self.member.client_of(&Identity::in_request(&request))?;
        let header = self.member.header_now();
        // A lease is hidden from the caller if it exists before and after the caller's read, but is not in the result.
        // A lease that is granted or revoked meanwhile does not count as hidden.
        let all = self.member.client().leases();
        let leases = client.leases().map_err(refused)?;
        let hidden = |lease: &LeaseId| {
            all.binary_search(lease).is_ok() && leases.binary_search(lease).is_err()
        };
        if leases.len() < all.len() && self.member.client().leases().iter().any(hidden) {
            return Err(access_refused(AuthError::Denied));
        }
        let leases = leases.into_iter();
        let leases = leases.map(|lease| LeaseStatus { id: lease.get() as i64 }).collect();
        Ok(Response::new(LeaseLeasesResponse { header, leases }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_ttl_is_below_the_full_ttl_after_a_grant() {
        let millis = Duration::from_millis;
        for (left, seconds) in
            [(90_000, 89), (89_999, 89), (89_001, 89), (89_000, 88), (1, 0), (0, 0)]
        {
            assert_eq!(seconds_left(millis(left)), seconds, "{left} ms");
        }
    }
}

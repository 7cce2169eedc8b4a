//! The member that a server runs, with the state that all services share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bowline::{
    Client, Error, LeaseId, Node, NodeId, Rejection, Revision,
    auth::{AuthError, UserClient},
    cluster::{MemberRole, Term},
    lease::Lease,
};
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Status};

use super::calls::Calls;
use super::dispatch::Needs;
use super::flags::Options;
use super::identity::Identity;
use super::leader::Leaderless;
use super::line::Spots;
use super::no_space::NoSpace;
use super::password::Passwords;
use super::room::Room;
use super::token::Tokens;
use super::wire::{Reason, refused};
use bowline_proto::etcdserverpb::ResponseHeader;

/// Version of etcd that this server emulates.
pub(super) const VERSION: &str = "3.6.9";

/// The cluster version of that release.
pub(crate) const CLUSTER_VERSION: &str = "3.6.0";

/// The same without the patch number, which etcd uses in some places.
pub(super) const CLUSTER_VERSION_SHORT: &str = "3.6";

/// Lease ids are positive in the protocol.
const LEASE_ID_BITS: u64 = u64::MAX >> 1;

/// Returns the first lease id that a member chooses: the member's id in the upper bits, then its start time, so that
/// members and incarnations do not collide. After a collision the next id is tried.
fn first_lease(node: NodeId) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (node.get() << 48) | ((now.as_millis() as u64 & 0xff_ffff_ffff) << 8)
}

/// Maximum number of snapshots sent at the same time. More are rejected, because each keeps a file open.
const SNAPSHOTS_MAX: usize = 4;

/// A member, its options, and shared state of the services.
pub(super) struct Member {
    node: Node,
    client: Client,
    options: Options,
    /// Fixed as long as the member runs.
    id: NodeId,
    cluster_id: u64,
    next_lease: AtomicU64,
    snapshots: Arc<Semaphore>,
    snapshot: Mutex<()>,
    passwords: Passwords,
    tokens: Tokens,
    calls: Calls,
    no_space: NoSpace,
    room: Room,
    watch_room: Room,
    spots: Spots,
    leaderless: Leaderless,
}

impl Member {
    pub(super) fn new(node: Node, options: Options, tokens: Tokens) -> Arc<Self> {
        let client = node.client();
        // The library's cluster id is a hash of twice this size. Either half of the hash would do.
        let cluster_id = node.cluster().0 as u64;
        let id = node.status().id;
        let next_lease = AtomicU64::new(first_lease(id));
        let (snapshots, snapshot) = (Arc::new(Semaphore::new(SNAPSHOTS_MAX)), Mutex::default());
        let passwords = Passwords::new(options.bcrypt_cost);
        let member = Arc::new(Self {
            node,
            client,
            options,
            id,
            cluster_id,
            next_lease,
            snapshots,
            snapshot,
            passwords,
            tokens,
            calls: Calls::new(),
            no_space: NoSpace::default(),
            room: Room::new(),
            watch_room: Room::of_watches(),
            spots: Spots::default(),
            leaderless: Leaderless::new(),
        });
        member.leaderless.keep_looking(&member);
        member
    }

    pub(super) fn id(&self) -> NodeId {
        self.id
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the member's own client, which has all permissions. To be used only for work that no user has requested,
    /// and for public information.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a client with the permissions of a user, for one call. If users and roles have changed since the caller
    /// was identified, identifies the caller again with the table whose revision is attached to the call. A change
    /// after that, such as a new password, causes the call to be rejected as outdated when applied.
    ///
    /// # Errors
    /// Fails if the token has expired since.
    pub(super) fn acting(&self, who: &Identity) -> Result<UserClient, Status> {
        let access = self.client.access();
        let caller = match who.holds(&access) {
            true => who.caller(),
            false => who.again(&access, &self.tokens)?.caller(),
        };
        Ok(self.client.as_user(caller))
    }

    /// Runs a call as a user that etcd does not check against the auth revision. If users or roles change meanwhile,
    /// the rejected call is repeated; it had no effect. The caller is identified again each time.
    ///
    /// # Errors
    /// Fails if the token has expired since, and with the errors of the call.
    pub(super) async fn insisting<T, F>(
        &self,
        who: &Identity,
        mut ask: impl FnMut(UserClient) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let begun = Instant::now();
        loop {
            match ask(self.acting(who)?).await {
                Err(Error::Rejected(Rejection::Access(AuthError::Outdated)))
                    if begun.elapsed() < self.options.request_timeout() => {}
                other => return other.map_err(refused),
            }
        }
    }

    /// Returns a client for a running operation, which may continue as long as its user has permission, even if the
    /// token has expired.
    pub(super) fn acting_still(&self, who: &Identity) -> UserClient {
        self.client.as_user(who.known_still(&self.client.access()))
    }

    /// Identifies the caller again by the credentials of its request.
    ///
    /// # Errors
    /// Fails if the token has expired since.
    pub(super) fn again(&self, who: &Identity) -> Result<Identity, Status> {
        who.again(&self.client.access(), &self.tokens)
    }

    /// Like [`Self::again`]. Also checks that the caller may administer the cluster, according to this replica's users
    /// and roles.
    ///
    /// # Errors
    ///
    /// Fails if the token has expired since then, or if the caller lacks permission.
    pub(super) fn again_root(&self, who: &Identity) -> Result<Identity, Status> {
        let access = self.client.access();
        let who = who.again(&access, &self.tokens)?;
        Needs::Root.judge(&who, &access)?;
        Ok(who)
    }

    pub(super) fn passwords(&self) -> &Passwords {
        &self.passwords
    }

    pub(super) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Returns the alarm about requests rejected for lack of space.
    pub(super) fn no_space(&self) -> &NoSpace {
        &self.no_space
    }

    /// Returns the response budget of watches.
    pub(super) fn watch_room(&self) -> &Room {
        &self.watch_room
    }

    /// Returns the response budget of all other calls.
    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// Returns the queue keys of running calls.
    pub(super) fn spots(&self) -> &Spots {
        &self.spots
    }

    /// Returns the observer of missing leaders.
    pub(super) fn leaderless(&self) -> &Leaderless {
        &self.leaderless
    }

    /// Returns the size of the state at the node's last tick, in bytes.
    pub(super) fn state_bytes(&self) -> u64 {
        self.node.metrics().snapshot().state_bytes
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the header of a response. `revision` is the store's revision when the response was made.
    pub(super) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        let Term(raft_term) = self.node.term();
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.id.get(),
            revision: revision.get() as i64,
            raft_term,
        })
    }

    /// Returns the header of a response, with this replica's current revision.
    pub(super) fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.client.revision())
    }

    /// Returns whether calls that require a leader are accepted. After the leader is lost, calls are accepted until an
    /// election should have replaced it, because clients treat a rejection as final and Go's sessions end with it.
    pub(super) fn has_leader(&self) -> bool {
        self.node.health().has_leader
    }

    pub(super) fn is_learner(&self) -> bool {
        let members = self.node.members();
        members.get(self.id).is_some_and(|own| own.role == MemberRole::Learner)
    }

    /// Rejects callers who may not administer the cluster, according to the newest table of users. The table of this
    /// replica alone would not suffice: it may be outdated, or may not have any users yet.
    pub(super) async fn administered_by<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let access = self.client.read_access().await.map_err(refused)?;
        let who = Identity::in_request(request).again(&access, &self.tokens)?;
        Needs::Root.judge(&who, &access)
    }

    /// Rejects requests that learners do not serve.
    pub(super) fn not_for_learners(&self) -> Result<(), Status> {
        if self.is_learner() { Err(Reason::NotForLearners.into()) } else { Ok(()) }
    }

    /// Grants a lease with the given id, or with an id that the member chooses: a large number, to avoid ids that
    /// clients choose.
    pub(super) async fn grant(
        &self,
        who: &Identity,
        ttl: Duration,
        id: Option<LeaseId>,
    ) -> Result<Lease, Status> {
        let grant = |id| {
            self.insisting(who, move |client| async move {
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
            let next = self.next_lease.fetch_add(1, Ordering::Relaxed) & LEASE_ID_BITS;
            let Some(id) = LeaseId::new(next) else { continue };
            // If a lease with this id exists, it belongs to another client, and the next id is tried.
            if let Ok(lease) = grant(id).await? {
                return Ok(lease);
            }
        }
    }

    /// Returns a permit to send a snapshot, or `None` if too many are being sent.
    pub(super) fn may_send_snapshot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.snapshots).try_acquire_owned().ok()
    }

    /// Waits for the right to create a snapshot file.
    pub(super) async fn takes_snapshot(&self) -> MutexGuard<'_, ()> {
        self.snapshot.lock().await
    }

    /// Returns how long a stream that requires a leader stays open after [`Self::has_leader`] has become false. In
    /// total it ends four to six election timeouts after the last contact with a leader; in etcd, four to five.
    pub(super) fn patience(&self) -> Duration {
        self.options.election_timeout * 2
    }
}

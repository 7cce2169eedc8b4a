//! The member that a server speaks for: what all services share.

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
use crate::generated::etcdserverpb::ResponseHeader;

/// The version of etcd whose behaviour this is.
pub(super) const VERSION: &str = "3.6.9";

/// The same, for what asks for the cluster's.
pub(crate) const CLUSTER_VERSION: &str = "3.6.0";

/// The same without the last of its three numbers, as etcd says it in some places.
pub(super) const CLUSTER_VERSION_SHORT: &str = "3.6";

/// Ids of leases are positive in the protocol.
const LEASE_ID_BITS: u64 = u64::MAX >> 1;

/// The first id that a member chooses: its own in the upper bits, then the time at which it starts, so that lives
/// of one member and several members do not meet. Where they do all the same, the next one is tried.
fn first_lease(node: NodeId) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (node.get() << 48) | ((now.as_millis() as u64 & 0xff_ffff_ffff) << 8)
}

/// How many snapshots are sent at a time; more are refused, since each keeps a file.
const SNAPSHOTS_MAX: usize = 4;

/// A member, and what it was told.
pub(super) struct Member {
    node: Node,
    client: Client,
    options: Options,
    /// Its own: the same for as long as it runs.
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
        // The id is a hash of twice the size; either half of it would do.
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

    /// The member's own client, which may do everything: only for what no client has asked for, and for what everybody
    /// may know.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// A client that may do what a user may. Made for one call: users and roles change. Where they have since it was
    /// found out who asks, that is found out again, by the very table whose revision the call is stamped with: what is
    /// changed after that, a password for one, makes the call outdated where it is applied.
    ///
    /// # Errors
    /// A token that has ended since.
    pub(super) fn acting(&self, who: &Identity) -> Result<UserClient, Status> {
        let access = self.client.access();
        let caller = match who.holds(&access) {
            true => who.caller(),
            false => who.again(&access, &self.tokens)?.caller(),
        };
        Ok(self.client.as_user(caller))
    }

    /// Asks as a user for what etcd does not judge by the revision of users and roles: again where they have changed while
    /// it was under way. What was refused has had no effect, and each time it is found out anew who asks.
    ///
    /// # Errors
    /// A token that has ended since, and what the library says.
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

    /// The same for what has begun, and goes on for as long as its user may, whatever has become of the token.
    pub(super) fn acting_still(&self, who: &Identity) -> UserClient {
        self.client.as_user(who.known_still(&self.client.access()))
    }

    /// Who asks by what was shown a while ago, as things are now.
    ///
    /// # Errors
    /// A token that has ended since.
    pub(super) fn again(&self, who: &Identity) -> Result<Identity, Status> {
        who.again(&self.client.access(), &self.tokens)
    }

    /// The same, if it is somebody who may administer the cluster, by the users and roles as they are here.
    ///
    /// # Errors
    /// A token that has ended since, and who may not.
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

    /// How often clients have called which method.
    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Whether something was refused for want of space.
    pub(super) fn no_space(&self) -> &NoSpace {
        &self.no_space
    }

    /// The room for answers that nobody has taken yet.
    /// The room for responses of watches.
    pub(super) fn watch_room(&self) -> &Room {
        &self.watch_room
    }

    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// Where calls stand in lines.
    pub(super) fn spots(&self) -> &Spots {
        &self.spots
    }

    /// Since when it has had no leader.
    pub(super) fn leaderless(&self) -> &Leaderless {
        &self.leaderless
    }

    /// How many bytes its state had when it looked at itself last, with a tick.
    pub(super) fn state_bytes(&self) -> u64 {
        self.node.metrics().snapshot().state_bytes
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// What every answer begins with; `revision` is the store's when the answer was made.
    pub(super) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        let Term(raft_term) = self.node.term();
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.id.get(),
            revision: revision.get() as i64,
            raft_term,
        })
    }

    /// The same, with the revision that this replica has reached.
    pub(super) fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.client.revision())
    }

    /// Whether calls that require a leader are accepted. The last known leader counts until an election should have
    /// replaced it: clients take a refusal for final, and Go's sessions end with it.
    pub(super) fn has_leader(&self) -> bool {
        self.node.health().has_leader
    }

    /// Whether it does not vote.
    pub(super) fn is_learner(&self) -> bool {
        let members = self.node.members();
        members.get(self.id).is_some_and(|own| own.role == MemberRole::Learner)
    }

    /// Refuses who may not administer the cluster, by the newest table of users: this replica may lag, or be too new to
    /// have any.
    pub(super) async fn administered_by<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let access = self.client.read_access().await.map_err(refused)?;
        let who = Identity::in_request(request).again(&access, &self.tokens)?;
        Needs::Root.judge(&who, &access)
    }

    /// Refuses what learners do not do.
    pub(super) fn not_for_learners(&self) -> Result<(), Status> {
        if self.is_learner() { Err(Reason::NotForLearners.into()) } else { Ok(()) }
    }

    /// Grants a lease under an id, or under one of its own choice: a large number, so that those that clients choose
    /// for themselves are free.
    pub(super) async fn grant(
        &self,
        who: &Identity,
        ttl: Duration,
        id: Option<LeaseId>,
    ) -> Result<Lease, Status> {
        let grant = |id| {
            self.insisting(who, move |client| async move {
                match client.grant(ttl).id(id).await {
                    Err(refusal @ Error::Rejected(Rejection::LeaseExists(_))) => Ok(Err(refusal)),
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
            // One that exists is somebody's.
            if let Ok(lease) = grant(id).await? {
                return Ok(lease);
            }
        }
    }

    /// Leave to send a snapshot, for as long as it is kept; none if too many have it.
    pub(super) fn may_send_snapshot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.snapshots).try_acquire_owned().ok()
    }

    /// The turn to take one.
    pub(super) async fn takes_snapshot(&self) -> MutexGuard<'_, ()> {
        self.snapshot.lock().await
    }

    /// How long a stream that requires a leader stays open after [`Self::has_leader`] has become false. With the time that
    /// passes before, it ends four to six election timeouts after the last contact with a leader; in etcd, four to five.
    pub(super) fn patience(&self) -> Duration {
        self.options.election_timeout * 2
    }
}

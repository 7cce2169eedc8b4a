//! The member that a server runs, and the clients that act on behalf of identified callers.

use std::sync::Arc;
use std::time::Instant;

use bowline::{
    Client, Error, KeyRange, Node, NodeId, Rejection, Revision,
    auth::{AuthError, UserClient},
    cluster::{MemberRole, Term},
};
use bowline_proto::etcdserverpb::ResponseHeader;
use tonic::{Request, Status};

use crate::identity::Identity;
use crate::permission::Permission;
use crate::settings::{LearnerCalls, Settings};
use crate::token::Tokens;
use crate::version::EtcdVersion;
use crate::wire::{Reason, access_refused, refused};

/// Version of etcd that this server emulates.
pub const VERSION: &str = EtcdVersion::V3_7.server();

/// The cluster version of that release.
pub const CLUSTER_VERSION: &str = EtcdVersion::V3_7.cluster();

/// The cluster version without the patch number, which etcd uses in some places.
pub const CLUSTER_VERSION_SHORT: &str = EtcdVersion::V3_7.short();

/// A member, the settings of its server, and the tokens by which it identifies users.
pub(crate) struct Member {
    node: Arc<Node>,
    client: Client,
    settings: Settings,
    tokens: Tokens,
    announced: EtcdVersion,
    /// Fixed as long as the member runs.
    id: NodeId,
    cluster_id: u64,
}

impl Member {
    pub(crate) fn new(
        node: Arc<Node>,
        settings: Settings,
        tokens: Tokens,
        announced: EtcdVersion,
    ) -> Arc<Self> {
        let client = node.client();
        // The library's cluster id is a hash of twice this size. Either half of the hash would do.
        let cluster_id = node.cluster().0 as u64;
        let id = node.status().id;
        Arc::new(Self { node, client, settings, tokens, announced, id, cluster_id })
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the member's own client, which has all permissions. To be used only for work that no user has requested,
    /// and for public information.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a client with the permissions of a user, for one call. If users and roles have changed since the caller
    /// was identified, identifies the caller again with the table whose revision is attached to the call. A change
    /// after that, such as a new password, causes the call to be rejected as outdated when applied.
    ///
    /// # Errors
    /// Fails if the token has expired since.
    pub(crate) fn client_of(&self, who: &Identity) -> Result<UserClient, Status> {
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
    pub(crate) async fn retry_while_outdated<T, F>(
        &self,
        who: &Identity,
        mut ask: impl FnMut(UserClient) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let begun = Instant::now();
        loop {
            match ask(self.client_of(who)?).await {
                Err(Error::Rejected(Rejection::Access(AuthError::Outdated)))
                    if begun.elapsed() < self.settings.request_timeout() => {}
                other => return other.map_err(refused),
            }
        }
    }

    /// Returns a client for a running operation, which may continue as long as its user has permission, even if the
    /// token has expired.
    pub(crate) fn client_of_running(&self, who: &Identity) -> UserClient {
        self.client.as_user(who.with_current_revision(&self.client.access()))
    }

    /// Checks that the user of a running operation may read a range, by the current users and roles. The token may have
    /// expired.
    pub(crate) fn may_still_read(&self, who: &Identity, keys: &KeyRange) -> Result<(), Status> {
        let access = self.client.access();
        access.may_read(&who.with_current_revision(&access), keys).map_err(access_refused)
    }

    /// Returns the caller, identified again if users and roles have changed since.
    ///
    /// # Errors
    /// Fails if the token has expired since.
    pub(crate) fn current(&self, who: &Identity) -> Result<Identity, Status> {
        if who.holds(&self.client.access()) { Ok(who.clone()) } else { self.again(who) }
    }

    /// Identifies the caller again by the credentials of its request.
    ///
    /// # Errors
    /// Fails if the token has expired since.
    pub(crate) fn again(&self, who: &Identity) -> Result<Identity, Status> {
        who.again(&self.client.access(), &self.tokens)
    }

    /// Like [`Self::again`]. Also checks that the caller may administer the cluster, according to this replica's users
    /// and roles.
    ///
    /// # Errors
    ///
    /// Fails if the token has expired since then, or if the caller lacks permission.
    pub(crate) fn again_root(&self, who: &Identity) -> Result<Identity, Status> {
        let access = self.client.access();
        let who = who.again(&access, &self.tokens)?;
        Permission::Root.check(&who, &access)?;
        Ok(who)
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Returns the size of the state at the node's last tick, in bytes.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.node.metrics().snapshot().state_bytes
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the release of etcd to announce to clients.
    pub(crate) fn announced(&self) -> EtcdVersion {
        self.announced
    }

    /// Returns the header of a response. `revision` is the store's revision when the response was made.
    pub(crate) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        let Term(raft_term) = self.node.term();
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.id.get(),
            revision: revision.get() as i64,
            raft_term,
        })
    }

    /// Returns the header of a response, with this replica's current revision.
    pub(crate) fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.client.revision())
    }

    /// Returns whether calls that require a leader are accepted. After the leader is lost, calls are accepted until an
    /// election should have replaced it, because clients treat a rejection as final and Go's sessions end with it.
    pub(crate) fn has_leader(&self) -> bool {
        self.node.health().has_leader
    }

    pub(crate) fn is_learner(&self) -> bool {
        let members = self.node.members();
        members.get(self.id).is_some_and(|own| own.role == MemberRole::Learner)
    }

    /// Rejects callers who may not administer the cluster, according to the newest table of users. The table of this
    /// replica alone would not suffice: it may be outdated, or may not have any users yet.
    pub(crate) async fn administered_by<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let access = self.client.read_access().await.map_err(refused)?;
        let who = Identity::in_request(request).again(&access, &self.tokens)?;
        Permission::Root.check(&who, &access)
    }

    /// Rejects requests that learners do not serve.
    pub(crate) fn not_for_learners(&self) -> Result<(), Status> {
        self.served_from(None)
    }

    /// Rejects watches at a learner that does not serve them.
    pub(crate) fn may_watch(&self) -> Result<(), Status> {
        self.served_from(Some(LearnerCalls::Watch))
    }

    /// Rejects linearizable ranges at a learner that does not serve them.
    pub(crate) fn may_confirm_reads(&self) -> Result<(), Status> {
        self.served_from(Some(LearnerCalls::WatchAndRange))
    }

    /// Rejects requests that learners serve only from this setting on; `None` for never.
    fn served_from(&self, least: Option<LearnerCalls>) -> Result<(), Status> {
        let is_served = least.is_some_and(|least| self.settings.learners.calls >= least);
        if !is_served && self.is_learner() { Err(Reason::NotForLearners.into()) } else { Ok(()) }
    }
}

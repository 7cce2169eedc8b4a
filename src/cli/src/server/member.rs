//! The member that a server speaks for: what all services share.

use std::sync::Arc;

use bowline::{Client, MemberRole, Node, NodeStatus, Revision, Term, Verdict};
use tonic::Status;

use super::flags::Options;
use super::wire::Reason;
use crate::generated::etcdserverpb::ResponseHeader;

/// The version of etcd whose behaviour this is.
pub(super) const VERSION: &str = "3.6.9";

/// The same, for what asks for the cluster's.
pub(super) const CLUSTER_VERSION: &str = "3.6.0";

/// A member, and what it was told.
pub(super) struct Member {
    node: Node,
    client: Client,
    options: Options,
    cluster_id: u64,
}

impl Member {
    pub(super) fn new(node: Node, options: Options) -> Arc<Self> {
        let client = node.client();
        // The id is a hash of twice the size; either half of it would do.
        let cluster_id = node.cluster().0 as u64;
        Arc::new(Self { node, client, options, cluster_id })
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn into_node(self) -> Node {
        self.node
    }

    /// What every answer begins with; `revision` is the store's when the answer was made.
    pub(super) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        let status = self.node.status();
        self.header_of(&status, revision)
    }

    /// The same, without a look at the node.
    pub(super) fn header_of(
        &self,
        status: &NodeStatus,
        revision: Revision,
    ) -> Option<ResponseHeader> {
        let Term(raft_term) = status.term;
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: status.id.get(),
            revision: revision.get() as i64,
            raft_term,
        })
    }

    /// Whether it knows of a leader that it is in touch with.
    pub(super) fn has_leader(&self) -> bool {
        self.node.status().leader.is_some() && self.node.health().verdict != Verdict::NoQuorum
    }

    /// Whether it does not vote.
    pub(super) fn is_learner(&self) -> bool {
        let status = self.node.status();
        let own = status.members.iter().find(|member| member.id == status.id);
        own.is_some_and(|member| member.role == MemberRole::Learner)
    }

    /// Refuses what learners do not do.
    pub(super) fn not_for_learners(&self) -> Result<(), Status> {
        if self.is_learner() { Err(Reason::NotForLearners.into()) } else { Ok(()) }
    }
}

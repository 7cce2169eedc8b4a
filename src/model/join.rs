//! The request of a process to become a member, and the reply. Before it joins, the process has no
//! member id, so these are not messages between members.

use std::collections::BTreeMap;

use super::{ClusterId, DiskId, Members, NodeId};

/// A request to become a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinAsk {
    /// Id of the process's data directory. Repeated requests with the same id create only one
    /// member.
    pub disk: DiskId,
    /// Name of the new member.
    pub name: String,
    /// Address at which the other members reach it, `host:port`.
    pub address: String,
    /// Name of the voter that it replaces, if any.
    pub replaces: Option<String>,
}

impl JoinAsk {
    /// Maximum length of each text in the request, in bytes.
    pub const TEXT_BYTES_MAX: usize = 512;
}

/// The reply to a join request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JoinAnswer {
    /// The process is now a member.
    Joined(Joined),
    /// This member is not the leader. Contains the leader's address, if known.
    NotLeader(Option<String>),
    /// The request cannot be handled now, for this reason. Retry later.
    Later(String),
    /// The request was rejected, for this reason.
    Refused(String),
}

/// The information that a new member needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// Id of the cluster.
    pub cluster: ClusterId,
    /// Id assigned to the new member.
    pub node: NodeId,
    /// The founders of the cluster with their disks.
    pub founding: BTreeMap<NodeId, DiskId>,
    /// The members of the cluster, including the new one.
    pub members: Members,
}

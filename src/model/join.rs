//! The request of a process to become a member, and the reply. Before it joins, the process has no
//! member id. Therefore this request and its reply are separate types from the messages between
//! members.

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
    /// Address (`host:port`) at which the other members reach the new member.
    pub address: String,
    /// Name of the voter that the new member replaces, if any.
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
    /// The member that replied is not the leader. Contains the leader's address, if known.
    NotLeader(Option<String>),
    /// The request cannot be handled now, for the reason in the text. The process should retry
    /// later.
    Later(String),
    /// The request was rejected, for the reason in the text.
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
    /// The members of the cluster, including the new member.
    pub members: Members,
}

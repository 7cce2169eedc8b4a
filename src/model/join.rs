//! What a process that wants to become a member says, and what it is told. Said before anybody knows
//! who it is, so it is no message between members.

use std::collections::BTreeMap;

use super::{ClusterId, DiskId, Members, NodeId};

/// Somebody wants to become a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinAsk {
    /// Its data directory. Who asks twice with the same becomes one member.
    pub disk: DiskId,
    /// What it is called.
    pub name: String,
    /// Where the members reach it, `host:port`.
    pub address: String,
    /// The name of the voter whose place it is to take.
    pub replaces: Option<String>,
}

impl JoinAsk {
    /// The longest name, address, or name of a voter to be replaced, in bytes.
    pub const TEXT_BYTES_MAX: usize = 512;
}

/// What somebody who wants to join is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JoinAnswer {
    /// It is a member.
    Joined(Joined),
    /// Ask the leader, at this address, if it is known.
    NotLeader(Option<String>),
    /// Not now, and why: ask again in a while.
    Later(String),
    /// No, and why.
    Refused(String),
}

/// All that a new member needs to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// The cluster.
    pub cluster: ClusterId,
    /// The id that was minted for it.
    pub node: NodeId,
    /// Who founded the cluster, with which disks.
    pub founding: BTreeMap<NodeId, DiskId>,
    /// Who belongs to it, the new member too.
    pub members: Members,
}

//! A validated configuration, and the node settings derived from it once the member id and the
//! cluster are known.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use crate::model::{ClusterId, NodeId};
use crate::node::{Contact, Drift, PART_BYTES, RestoredFrom, Settings};

use super::Config;

/// A validated configuration.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    config: Config,
    contact: Contact,
    start_mode: StartMode,
}

/// How a node with an empty data directory begins.
#[derive(Clone, Debug)]
pub(crate) enum StartMode {
    /// Founds a cluster with the listed members.
    Found {
        node: NodeId,
        /// Id of the new cluster.
        cluster: ClusterId,
        /// All founding members.
        members: BTreeMap<NodeId, Contact>,
    },
    /// Joins an existing cluster.
    Join {
        /// Addresses of the members to which the join request is sent.
        addresses: Vec<String>,
        /// Name of the voter to replace.
        replaces: Option<String>,
    },
}

/// A data directory that belongs to a different member or cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(crate) enum SomebodyElse {
    /// The directory belongs to a cluster with another token.
    #[error(
        "the directory belongs to a cluster with another token: use a separate directory for each cluster"
    )]
    OtherToken,
    /// The directory belongs to another founding member.
    #[error(
        "the directory belongs to member {found}, but by the list of members this node is member {own}: use a \
         separate directory for each member"
    )]
    OtherMember {
        /// Id of the member in the directory.
        found: NodeId,
        /// Id of this node according to the list of members.
        own: NodeId,
    },
}

impl Checked {
    pub(super) fn new(config: Config, contact: Contact, start_mode: StartMode) -> Self {
        Self { config, contact, start_mode }
    }

    /// Derives a new cluster id if the cluster is restored from a backup.
    pub(crate) fn restored_from(mut self, restored_from: Option<&RestoredFrom>) -> Self {
        if let (StartMode::Found { cluster, .. }, Some(restored_from)) =
            (&mut self.start_mode, restored_from)
        {
            *cluster = restored_id(*cluster, restored_from);
        }
        self
    }

    /// Returns the node's name and address.
    pub(crate) fn contact(&self) -> &Contact {
        &self.contact
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.config.dir
    }

    /// Returns how the node begins if its data directory is empty.
    pub(crate) fn start_mode(&self) -> &StartMode {
        &self.start_mode
    }

    /// Returns the listen address, or `None` if the node has no address.
    pub(crate) fn listen_address(&self) -> Option<String> {
        let listen = self.config.listen.clone().unwrap_or_else(|| self.contact.address.clone());
        (!listen.is_empty()).then_some(listen)
    }

    pub(crate) fn join_deadline(&self) -> Duration {
        self.config.join_deadline
    }

    /// Returns the settings for a node whose directory belongs to this member of this cluster. Once
    /// the cluster is founded, the directory takes precedence over the configuration. Differences
    /// between the two cause only a warning, because configuration management keeps passing the
    /// flags of the first start, and the member list may have changed since.
    ///
    /// # Errors
    /// Fails if the directory does not belong to this node.
    pub(crate) fn belongs(
        &self,
        node: NodeId,
        cluster: ClusterId,
        is_founded: impl Fn() -> bool,
    ) -> Result<Settings, SomebodyElse> {
        let token = cluster_id(&self.config.token, [].into_iter());
        let has_other_token = token_half(cluster) != token_half(token);
        if has_other_token && !is_founded() {
            return Err(SomebodyElse::OtherToken);
        }
        let founders = match &self.start_mode {
            StartMode::Found { node: own, cluster: founded, members } if *founded == cluster => {
                // A member that joined later may have a founder's name, but is not in the list of
                // founders.
                let is_other = *own != node && (members.contains_key(&node) || !is_founded());
                if is_other {
                    return Err(SomebodyElse::OtherMember { found: node, own: *own });
                }
                Some(members).filter(|_| *own == node)
            }
            _ => None,
        };
        let mut settings = self.settings(node, cluster, founders.cloned().unwrap_or_default());
        settings.has_other_token = has_other_token;
        settings.founds = founders.is_some();
        if let (None, StartMode::Found { members, .. }) = (founders, &self.start_mode)
            && !self.config.members.is_empty()
        {
            settings.listed = members.values().cloned().collect();
        }
        Ok(settings)
    }

    pub(crate) fn settings(
        &self,
        node: NodeId,
        cluster: ClusterId,
        members: BTreeMap<NodeId, Contact>,
    ) -> Settings {
        let Self { config, contact, start_mode } = self;
        let founds =
            matches!(start_mode, StartMode::Found { cluster: founded, .. } if *founded == cluster);
        Settings {
            node,
            contact: contact.clone(),
            endpoints: config.endpoints.clone(),
            cluster,
            members,
            founds,
            listed: Vec::new(),
            has_other_token: false,
            supported_version: config.supported_version,
            dir: config.dir.clone(),
            heartbeat: config.heartbeat,
            election_timeout: config.election_timeout,
            drift: Drift::percent(config.drift_percent),
            session_ttl: config.session_ttl,
            call_deadline: config.call_deadline,
            lock_waiters_max: config.lock_waiters_max,
            label: config.label.clone().unwrap_or_else(|| config.name.clone()),
            limits: config.limits.clone(),
            open_writes_max: config.open_writes_max,
            open_bytes_max: config.open_bytes_max,
            open_reads_max: config.open_reads_max,
            quota_bytes: config.quota_bytes,
            history: config.history.clone(),
            snapshot_log_bytes: config.snapshot_log_bytes,
            log_segment_bytes: config.log_segment_bytes,
            snapshot_part_bytes: PART_BYTES,
            warm_copy: config.warm_copy.clone(),
            slow_request: config.slow_request,
            slow_apply: config.slow_apply,
        }
    }
}

/// Derives the cluster id. The id distinguishes clusters and is not a security measure. Its upper
/// half depends only on the token, so that a member that does not know the founders can still check
/// the token.
pub(super) fn cluster_id<'a>(token: &'a str, names: impl Iterator<Item = &'a str>) -> ClusterId {
    let mut hash = Fnv::default();
    hash.part(token);
    let of_token = hash.0 ^ hash.0 << 64;
    for name in names {
        hash.part(name);
    }
    let of_all = hash.0 ^ hash.0 >> 64;
    ClusterId(of_token & !u128::from(u64::MAX) | of_all & u128::from(u64::MAX))
}

/// Derives the id of a restored cluster from its original id and the backup.
fn restored_id(cluster: ClusterId, restored_from: &RestoredFrom) -> ClusterId {
    let mut hash = Fnv::default();
    hash.part(&format!("{:032x}", cluster.0));
    hash.part(&restored_from.words());
    let of_all = hash.0 ^ hash.0 >> 64;
    let half = u128::from(u64::MAX);
    ClusterId(cluster.0 & !half | of_all & half)
}

fn token_half(cluster: ClusterId) -> u128 {
    cluster.0 >> 64
}

/// A 128-bit FNV-1a hash.
struct Fnv(u128);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv {
    fn part(&mut self, part: &str) {
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let length = (part.len() as u64).to_le_bytes();
        for byte in length.iter().chain(part.as_bytes()) {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    }
}

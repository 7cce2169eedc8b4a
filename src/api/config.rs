//! The configuration of a node.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::env::Env;
use crate::model::{
    ClusterVersion, Limits, MemberAttributes, NodeId, addresses, are_addresses, is_address,
    is_nowhere,
};
use crate::node::{Contact, History, WarmCopy, is_joining, owner_of_data};
#[cfg(feature = "tls")]
use crate::transport::PeerTls;
use crate::transport::TcpSettings;

use super::StartError;
use super::checked::{Checked, StartMode, cluster_id};

/// The configuration of a node. Create it with [`Config::new`], with [`Config::from_env`], or from
/// files and flags with [`PartialConfig`](crate::config::PartialConfig). Every setting has a
/// default.
#[derive(Clone, Debug)]
#[must_use = "a configuration does nothing until it is passed to Node::start"]
pub struct Config {
    pub(super) dir: PathBuf,
    pub(super) name: String,
    pub(super) members: Vec<(String, String)>,
    pub(super) join: Vec<String>,
    pub(super) replaces: Option<String>,
    pub(super) join_deadline: Duration,
    pub(super) listen: Option<String>,
    pub(super) advertise: Option<String>,
    pub(super) endpoints: Vec<String>,
    pub(super) token: String,
    pub(super) insecure_peers: bool,
    pub(super) supported_version: ClusterVersion,
    #[cfg(feature = "tls")]
    pub(super) peer_tls: Option<PeerTls>,
    pub(super) heartbeat: Duration,
    pub(super) election_timeout: Duration,
    pub(super) session_ttl: Duration,
    pub(super) drift_percent: u32,
    pub(super) call_deadline: Duration,
    pub(super) lock_waiters_max: usize,
    pub(super) label: Option<String>,
    pub(super) limits: Limits,
    pub(super) open_writes_max: usize,
    pub(super) open_bytes_max: usize,
    pub(super) open_reads_max: usize,
    pub(super) quota_bytes: u64,
    pub(super) history: History,
    pub(super) snapshot_log_bytes: u64,
    pub(super) log_segment_bytes: u64,
    pub(super) warm_copy: Option<WarmCopy>,
    pub(super) slow_request: Duration,
    pub(super) slow_apply: Duration,
    pub(super) env: Env,
}

/// An invalid [`Config`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The node's name is not in the list of members.
    #[error(
        "the node name {name:?} is not in the list of members {members:?}: use the name of a \
         listed member"
    )]
    UnknownMember {
        /// Name of this node.
        name: String,
        /// Names of the members.
        members: Vec<String>,
    },
    /// Two members have the same name.
    #[error("two members have the name {0:?}: each member needs its own name")]
    DuplicateName(String),
    /// Two members have the same address.
    #[error(
        "members {0:?} and {1:?} have the same address {2:?}: each member needs its own address"
    )]
    DuplicateAddress(String, String, String),
    /// An address is not of the form `host:port`.
    #[error("the address {address:?} of member {name:?} is not of the form host:port")]
    BadAddress {
        /// Name of the member.
        name: String,
        /// The invalid address.
        address: String,
    },
    /// An address cannot be dialed: it has port 0 or names all interfaces. Only a node that founds
    /// a cluster alone may have such an address.
    #[error(
        "member {name:?} at {address:?} cannot be dialed: use a host and port that the other \
         members can reach; to set the listen address, use listen()"
    )]
    Unreachable {
        /// Name of the member.
        name: String,
        /// The invalid address.
        address: String,
    },
    /// The configuration both founds and joins a cluster.
    #[error("members() and join() are both set: a node either founds a cluster or joins one")]
    JoinOrFound,
    /// [`Config::replacing`] is set on a node that does not join a cluster.
    #[error("replacing({0:?}) is set without join(): only a joining node can replace a member")]
    ReplacesWithoutJoin(String),
    /// The node joins a cluster, but has no address at which the other members can reach it.
    #[error(
        "{0:?} joins a cluster without an address: use advertise() to set the address for the \
         other members"
    )]
    NoAddress(String),
    /// The list has more members than [`Config::MEMBERS_MAX`].
    #[error("too many members: {0}, at most {max}", max = Config::MEMBERS_MAX)]
    TooManyMembers(usize),
    /// An environment variable is missing or invalid; see [`Config::from_env`].
    #[error("environment variable {name}: {why}")]
    Variable {
        /// Name of the variable.
        name: String,
        /// Why it cannot be used.
        why: String,
    },
    /// A file, or a text in TOML or JSON, is invalid.
    #[error("{}{why}", place(file.as_deref(), *line))]
    File {
        /// Path of the file, if the text is from a file.
        file: Option<PathBuf>,
        /// Number of the line, from 1, if it is known.
        line: Option<usize>,
        /// Why the text cannot be used. Names the key.
        why: String,
    },
    /// A flag of the command line is invalid.
    #[error("flag {name}: {why}")]
    Flag {
        /// Name of the flag.
        name: String,
        /// Why it cannot be used.
        why: String,
    },
    /// A required setting is not set in any source of a
    /// [`PartialConfig`](crate::config::PartialConfig).
    #[error("the required setting {key} is not set: {}", super::settings::ways_to_set(key))]
    Missing {
        /// Key of the setting.
        key: &'static str,
    },
    /// A member's name is empty.
    #[error("a member name is empty")]
    EmptyName,
    /// A value is out of range.
    #[error("the setting {what} is {is}, and must be {must}")]
    OutOfRange {
        /// Name of the setting.
        what: &'static str,
        /// The invalid value.
        is: String,
        /// The valid range.
        must: &'static str,
    },
}

/// Returns the start of an error text: the place of the error.
fn place(file: Option<&Path>, line: Option<usize>) -> String {
    match (file.map(Path::display), line) {
        (Some(file), Some(line)) => format!("{file}, line {line}: "),
        (Some(file), None) => format!("{file}: "),
        (None, Some(line)) => format!("line {line}: "),
        (None, None) => String::new(),
    }
}

impl Config {
    /// Maximum number of voting members of a cluster.
    pub const MEMBERS_MAX: usize = 7;

    /// Creates the configuration of a node that keeps its data in `dir` and has the name `name`.
    /// Without [`Config::members`] the node founds a cluster of one member.
    pub fn new(dir: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        Self {
            dir: dir.into(),
            name: name.into(),
            members: Vec::new(),
            join: Vec::new(),
            replaces: None,
            join_deadline: Duration::from_secs(60),
            listen: None,
            advertise: None,
            endpoints: Vec::new(),
            token: String::new(),
            insecure_peers: false,
            supported_version: ClusterVersion::NEWEST,
            #[cfg(feature = "tls")]
            peer_tls: None,
            heartbeat: Duration::from_millis(100),
            election_timeout: Duration::from_millis(500),
            session_ttl: Duration::from_secs(5),
            drift_percent: 10,
            call_deadline: Duration::from_secs(5),
            lock_waiters_max: 100_000,
            label: None,
            limits: Limits::default(),
            open_writes_max: 16_384,
            open_bytes_max: 64 << 20,
            open_reads_max: 65_536,
            quota_bytes: 2 << 30,
            history: History::default(),
            snapshot_log_bytes: 32 << 20,
            log_segment_bytes: 16 << 20,
            warm_copy: None,
            slow_request: Duration::from_millis(300),
            slow_apply: Duration::from_millis(100),
            env: Env::real(),
        }
    }

    /// Sets the members that found a new cluster, including this node. Each member has a name and
    /// an address `host:port` at which the other members reach it. An address may list several
    /// `host:port`, separated by commas, which are tried in turn. The list must be the same on all
    /// members. [`MemberList`](crate::cluster::MemberList) parses it from one line of text.
    ///
    /// Once the cluster exists, it stores its own list of members, which changes with
    /// [`Config::join`] and [`Node::remove_member`](crate::Node::remove_member). If the data
    /// directory has data, the list only names the addresses that the node contacts first.
    /// Differences from the directory are logged as one warning.
    pub fn members<N: Into<String>, A: Into<String>>(
        mut self,
        members: impl IntoIterator<Item = (N, A)>,
    ) -> Self {
        self.members = members.into_iter().map(|(name, at)| (name.into(), at.into())).collect();
        self
    }

    /// Joins an existing cluster instead of founding one. The node contacts the given members in
    /// turn, and one running member is enough. The node becomes a learner: it serves the embedding
    /// program like any member, but does not vote until it is [promoted](crate::Node::promote).
    ///
    /// To join, a node needs the cluster's [token](Config::cluster_token) and its own address
    /// ([`Config::advertise`]). If the data directory has data, the node is already a member, and
    /// the list only names the addresses that the node contacts first.
    pub fn join<A: Into<String>>(mut self, members: impl IntoIterator<Item = A>) -> Self {
        self.join = members.into_iter().map(Into::into).collect();
        self
    }

    /// Lets a joining node replace the voter called `name`. Once the node has caught up, it becomes
    /// a voter and the replaced voter is removed, in one membership change. Use this setting if a
    /// member has lost its disk, or to move a member to another machine.
    pub fn replacing(mut self, name: impl Into<String>) -> Self {
        self.replaces = Some(name.into());
        self
    }

    /// Limits how long a joining node retries its join request before the start fails. Default 1
    /// minute; 1 ms to 1 year.
    pub fn join_deadline(mut self, deadline: Duration) -> Self {
        self.join_deadline = deadline;
        self
    }

    /// Sets the address `host:port` at which the other members reach this node, or several
    /// addresses, separated by commas. Port 0 and an address of all interfaces are valid only for
    /// [`Config::listen`]. Default: the address in [`Config::members`].
    ///
    /// A host name is resolved again for each connection. To change the address, restart the node
    /// with the new address, which the node then announces to the other members.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// Sets the endpoints at which the program that embeds this node serves its own clients, as
    /// URLs or in any other form. A node has at most 16 endpoints, each of at most 512 bytes.
    /// Endpoints are published to all members
    /// ([`MemberStatus::endpoints`](crate::cluster::MemberStatus::endpoints),
    /// [`Node::members`](crate::Node::members)), for example to find the program that embeds the
    /// leader. The library does not use endpoints itself. A restarted node replaces the endpoints
    /// that it published before.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let config = bowline::Config::new(dir.path(), "alpha").endpoints(["http://alpha.example:8080"]);
    /// let node = bowline::Node::start(config).await?;
    /// let status = node.wait_for(|status| status.members.iter().any(|m| !m.endpoints.is_empty())).await;
    /// assert_eq!(status.members[0].endpoints, ["http://alpha.example:8080"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn endpoints<E: Into<String>>(mut self, endpoints: impl IntoIterator<Item = E>) -> Self {
        self.endpoints = endpoints.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the address on which the node listens for other members, if it differs from the
    /// advertised address. Format: `host:port`, or several, separated by commas.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Sets a token that distinguishes clusters whose members have the same names. The token must
    /// be the same on all members.
    pub fn cluster_token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// Allows unencrypted connections between members on different machines. Anyone who can reach
    /// their ports can then read and change all data.
    pub fn insecure_peers(mut self, allowed: bool) -> Self {
        self.insecure_peers = allowed;
        self
    }

    /// Encrypts the connections between members, and accepts only peers whose certificates identify
    /// them as members; see [`PeerTls`]. Set this on all members or on none. Requires the crate
    /// feature `tls`.
    #[cfg(feature = "tls")]
    pub fn peer_tls(mut self, files: PeerTls) -> Self {
        self.peer_tls = Some(files);
        self
    }

    /// Sets the interval between heartbeats of the leader. Default 100 ms; 4 ms to 10 s. Must be
    /// the same on all members.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval;
        self
    }

    /// Sets the election timeout. A member that receives no message from a leader starts an
    /// election after a random time between this value and twice this value. Default 500 ms; at
    /// least 3 heartbeats, at most 1 minute. Must be the same on all members.
    pub fn election_timeout(mut self, timeout: Duration) -> Self {
        self.election_timeout = timeout;
        self
    }

    /// Sets the default TTL of sessions: how long a session and its locks survive after the node's
    /// last renewal. Default 5 s; 100 ms to 9,000,000,000 s (285 years). A change of the leader can
    /// end a session whose TTL is shorter than 4 election timeouts.
    pub fn session_ttl(mut self, ttl: Duration) -> Self {
        self.session_ttl = ttl;
        self
    }

    /// Sets the maximum clock drift of a member, in percent of true time in either direction. As
    /// long as no clock drifts more, no lease ends early. Default 10; 0 to 30. Must be the same on
    /// all members.
    pub fn drift_percent(mut self, percent: u32) -> Self {
        self.drift_percent = percent;
        self
    }

    /// Sets the default deadline of calls. Default 5 s; 1 ms to 1 day.
    pub fn call_deadline(mut self, deadline: Duration) -> Self {
        self.call_deadline = deadline;
        self
    }

    /// Limits how many requests of this node may wait for one lock, over all sessions of the node.
    /// Further requests fail with [`LockError::QueueFull`](crate::LockError::QueueFull). Default
    /// 100,000; 1 to 16,777,216.
    pub fn lock_waiters_max(mut self, waiters: usize) -> Self {
        self.lock_waiters_max = waiters;
        self
    }

    /// Sets the label of this node's sessions, which other nodes see, for example as the holder of
    /// a lock. Default: the node's name.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the limits on requests. [`Limits`] documents the range of each value. Must be the same
    /// on all members.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Limits the number of in-flight writes of this node's callers, and their total size in bytes.
    /// Further calls fail with [`Error::Busy`](crate::Error::Busy). Default 16,384 and 64 MiB; 1 to
    /// 1,048,576 and 1 MiB to 1 TiB.
    ///
    /// For each key in the ranges of a write, 160 bytes are added to its size. Together, these
    /// additions use at most half of the byte limit.
    pub fn open_writes_max(mut self, writes: usize, bytes: usize) -> Self {
        self.open_writes_max = writes;
        self.open_bytes_max = bytes;
        self
    }

    /// Limits how many calls of this node may wait for a linearizable read or for a revision.
    /// Further calls fail with [`Error::Busy`](crate::Error::Busy). Default 65,536; 1 to
    /// 16,777,216.
    pub fn open_reads_max(mut self, reads: usize) -> Self {
        self.open_reads_max = reads;
        self
    }

    /// Limits the size of the state in bytes: all retained versions of all keys, including
    /// overhead. Above the limit, calls that would make the state grow (puts, transactions with
    /// puts, leases) fail with [`Error::QuotaExceeded`](crate::Error::QuotaExceeded), until
    /// deletions and compaction have freed space. Writes that are in flight when the limit is
    /// reached are still applied. Default 2 GiB; at least 1 KiB. Must be the same on all members.
    pub fn quota_bytes(mut self, bytes: u64) -> Self {
        self.quota_bytes = bytes;
        self
    }

    /// Sets how much history is kept for reads of earlier revisions and for watches that start in
    /// the past. Default: 10 minutes, at most 100,000 revisions and at most half of the quota. Must
    /// be the same on all members.
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// Sets by how many bytes of entries the log grows before a snapshot is taken and the log is
    /// truncated. If half the size of the state is larger, that size is used instead. Default 32
    /// MiB; 64 KiB to 1 PiB.
    pub fn snapshot_log_bytes(mut self, bytes: u64) -> Self {
        self.snapshot_log_bytes = bytes;
        self
    }

    /// Sets the size of a log file. The node keeps a file of the same size in reserve, so that it
    /// can still write when the disk is full. At most half of this size, but at least 1 MiB and at
    /// most 32 MiB, may be uncommitted. Default 16 MiB; 64 KiB to 1 GiB.
    pub fn log_segment_bytes(mut self, bytes: u64) -> Self {
        self.log_segment_bytes = bytes;
        self
    }

    /// Keeps a copy of the state on disk, in addition to snapshot and log. A start that uses the
    /// copy does not replay the log since the last snapshot. The copy is written in the background.
    /// The copy costs up to a tenth of a core while data changes, about 100 MB of memory, and disk
    /// space of up to 4 times the size of the state. Correctness does not depend on the copy.
    /// Default: off. `docs/decisions/warm-copy.md` describes when it is worthwhile.
    #[cfg(feature = "warm")]
    pub fn warm_copy(mut self, keep: bool) -> Self {
        self.warm_copy = keep.then_some(WarmCopy::OnDisk);
        self
    }

    /// Logs a request that takes longer than `threshold` at level `warn`, with the time spent in
    /// each stage. Logs at most one line per second, and none for requests made before the node
    /// first knew a leader. Default 300 ms; [`Duration::MAX`] disables these lines.
    pub fn slow_request(mut self, threshold: Duration) -> Self {
        self.slow_request = threshold;
        self
    }

    /// Logs when applying a batch of entries to this replica takes longer than `threshold`. Logs at
    /// most one line per second. Default 100 ms; [`Duration::MAX`] disables these lines.
    pub fn slow_apply(mut self, threshold: Duration) -> Self {
        self.slow_apply = threshold;
        self
    }

    /// Sets the newest cluster version that the node supports. Tests of upgrades use it to imitate
    /// another build.
    #[doc(hidden)]
    pub fn supported_version(mut self, version: ClusterVersion) -> Self {
        self.supported_version = version;
        self
    }

    /// Reports whether the data directory already belongs to a member. The node then continues as
    /// that member, and the settings for founding or joining a cluster have no effect. Reads the
    /// disk.
    ///
    /// # Errors
    /// Returns [`StartError::Data`] if the directory cannot be read or its log is damaged.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// let config = Config::new(dir.path(), "solo");
    /// assert!(!config.has_data()?);
    /// Node::start(config.clone()).block()?.shutdown().block();
    /// assert!(config.has_data()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn has_data(&self) -> Result<bool, StartError> {
        Ok(owner_of_data(&self.env, &self.dir)?.is_some() && !is_joining(&self.env, &self.dir))
    }

    /// Replaces the node's clock, disk and crash points. Tests use it to inject faults.
    #[doc(hidden)]
    pub fn env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// Returns the environment set with [`Config::env`].
    pub(crate) fn world(&self) -> &Env {
        &self.env
    }

    /// Validates the configuration.
    pub(crate) fn check(&self) -> Result<Checked, ConfigError> {
        let (contact, start_mode) = self.check_start_mode()?;
        self.check_ranges()?;
        let timeout = self.election_timeout;
        if self.session_ttl < timeout * 4 {
            tracing::warn!(
                session_ttl = ?self.session_ttl, election_timeout = ?timeout,
                "session_ttl is shorter than 4 election timeouts; a leader change can end sessions"
            );
        }
        if addresses(&contact.address).any(is_nowhere) {
            tracing::warn!(
                address = contact.address,
                "the advertised address cannot be dialed by other members"
            );
        }
        Ok(Checked::new(self.clone(), contact, start_mode))
    }

    /// Checks the range of each setting.
    pub(super) fn check_ranges(&self) -> Result<(), ConfigError> {
        let ms = Duration::from_millis;
        self.check_endpoints()?;
        within("heartbeat", self.heartbeat, ms(4), ms(10_000), "4 ms to 10 s")?;
        let timeout = self.election_timeout;
        let least = self.heartbeat * 3;
        within("election_timeout", timeout, least, ms(60_000), "3 heartbeats to 60 s")?;
        let (least, most) = (Limits::SESSION_TTL_MIN, Limits::LEASE_TTL_MAX);
        within("session_ttl", self.session_ttl, least, most, "100 ms to 9,000,000,000 s")?;
        let year = Duration::from_secs(365 * 86_400);
        within("join_deadline", self.join_deadline, ms(1), year, "1 ms to a year")?;
        within("call_deadline", self.call_deadline, ms(1), ms(86_400_000), "1 ms to a day")?;
        within("lock_waiters_max", self.lock_waiters_max, 1, 1 << 24, "1 to 16,777,216")?;
        within("drift_percent", self.drift_percent, 0, 30, "0 to 30")?;
        within("open_writes_max", self.open_writes_max, 1, 1 << 20, "1 to 1,048,576")?;
        within("open_bytes_max", self.open_bytes_max, 1 << 20, 1 << 40, "1 MiB to 1 TiB")?;
        within("open_reads_max", self.open_reads_max, 1, 1 << 24, "1 to 16,777,216")?;
        within("quota_bytes", self.quota_bytes, 1 << 10, u64::MAX, "at least 1 KiB")?;
        self.check_history()?;
        within("log_segment_bytes", self.log_segment_bytes, 64 << 10, 1 << 30, "64 KiB to 1 GiB")?;
        within(
            "snapshot_log_bytes",
            self.snapshot_log_bytes,
            64 << 10,
            1 << 50,
            "64 KiB to 1 PiB",
        )?;
        self.check_limits()
    }

    /// Returns the node's name and address, and whether it founds or joins a cluster if its disk is
    /// new.
    fn check_start_mode(&self) -> Result<(Contact, StartMode), ConfigError> {
        if self.join.is_empty() {
            if let Some(old) = &self.replaces {
                return Err(ConfigError::ReplacesWithoutJoin(old.clone()));
            }
            let members = self.check_members()?;
            let (node, contact) = members
                .iter()
                .find(|(_, member)| member.name == self.name)
                .map(|(node, member)| (*node, member.clone()))
                .ok_or_else(|| ConfigError::UnknownMember {
                    name: self.name.clone(),
                    members: members.values().map(|member| member.name.clone()).collect(),
                })?;
            let address = self.advertise.clone().unwrap_or(contact.address);
            let contact = self.check_contact(address)?;
            let names = members.values().map(|member| member.name.as_str());
            let cluster = cluster_id(&self.token, names);
            return Ok((contact, StartMode::Found { node, cluster, members }));
        }
        if !self.members.is_empty() {
            return Err(ConfigError::JoinOrFound);
        }
        let Some(address) = self.advertise.clone() else {
            return Err(ConfigError::NoAddress(self.name.clone()));
        };
        if let Some(address) = self.join.iter().find(|address| !is_address(address)) {
            let (name, address) = ("to join".to_owned(), address.clone());
            return Err(ConfigError::BadAddress { name, address });
        }
        let (addresses, replaces) = (self.join.clone(), self.replaces.clone());
        Ok((self.check_contact(address)?, StartMode::Join { addresses, replaces }))
    }

    fn check_contact(&self, address: String) -> Result<Contact, ConfigError> {
        let name = self.name.clone();
        if name.is_empty() {
            return Err(ConfigError::EmptyName);
        }
        if !address.is_empty() && !are_addresses(&address) {
            return Err(ConfigError::BadAddress { name, address });
        }
        self.check_found(&name, &address)?;
        Ok(Contact { name, address })
    }

    /// Checks that other members can reach a member at its address. No other member dials a node
    /// that founds a cluster alone.
    fn check_found(&self, name: &str, address: &str) -> Result<(), ConfigError> {
        let founds_alone = self.join.is_empty() && self.members.len() <= 1;
        if founds_alone || !addresses(address).any(is_nowhere) {
            return Ok(());
        }
        Err(ConfigError::Unreachable { name: name.to_owned(), address: address.to_owned() })
    }

    /// Reports whether the list of members contains this address.
    pub(super) fn names(&self, address: &str) -> bool {
        self.members.iter().any(|(_, at)| addresses(at).any(|one| one == address))
    }

    /// Returns the settings for connections to other members.
    pub(crate) fn tcp_settings(&self) -> TcpSettings {
        TcpSettings {
            insecure_peers: self.insecure_peers,
            token: self.token.clone(),
            #[cfg(feature = "tls")]
            tls: self.peer_tls.clone(),
            ..TcpSettings::with_election_timeout(self.election_timeout)
        }
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        // A request must fit into one log entry, whose size is limited.
        let (request, least) = (limits.request_bytes_max, Limits::REQUEST_BYTES_LEAST);
        within("limits.request_bytes_max", request, least, 3 << 20, "8 KiB to 3 MiB")?;
        let (key, least) = (limits.key_bytes_max, Limits::KEY_BYTES_LEAST);
        let must = "128 bytes to limits.request_bytes_max";
        within("limits.key_bytes_max", key, least, request, must)?;
        let (value, least) = (limits.value_bytes_max, Limits::VALUE_BYTES_LEAST);
        let must = "1 KiB to limits.request_bytes_max";
        within("limits.value_bytes_max", value, least, request, must)?;
        let (ops, least) = (limits.txn_ops_max, Limits::TXN_OPS_LEAST);
        within("limits.txn_ops_max", ops, least, 10_000, "16 to 10,000")?;
        let (depth, most) = (limits.txn_depth_max, Limits::TXN_DEPTH_CEILING);
        within("limits.txn_depth_max", depth, 3, most, "3 to 16")?;
        within("limits.txn_keys_max", limits.txn_keys_max, 1, usize::MAX, "at least 1")
    }

    fn check_history(&self) -> Result<(), ConfigError> {
        let History { window, revisions_max, quota_percent } = &self.history;
        if let Some(window) = *window {
            let (least, most) = (Duration::from_secs(1), Duration::from_secs(365 * 86_400));
            within("history.window", window, least, most, "a second to a year")?;
        }
        if let Some(revisions) = *revisions_max {
            within("history.revisions_max", revisions, 1, u64::MAX, "at least 1")?;
        }
        if let Some(percent) = *quota_percent {
            within("history.quota_percent", percent, 1, 100, "1 to 100")?;
        }
        Ok(())
    }

    fn check_endpoints(&self) -> Result<(), ConfigError> {
        let most = MemberAttributes::ENDPOINTS_MAX;
        within("the number of endpoints", self.endpoints.len(), 0, most, "0 to 16")?;
        let most = MemberAttributes::ENDPOINT_BYTES_MAX;
        self.endpoints.iter().try_for_each(|endpoint| {
            within("the length of an endpoint in bytes", endpoint.len(), 1, most, "1 to 512")
        })
    }

    fn check_members(&self) -> Result<BTreeMap<NodeId, Contact>, ConfigError> {
        let mut members: Vec<Contact> = self
            .members
            .iter()
            .map(|(name, address)| Contact { name: name.clone(), address: address.clone() })
            .collect();
        let alone = members.is_empty();
        if alone {
            members.push(Contact { name: self.name.clone(), address: String::new() });
        }
        if members.len() > Self::MEMBERS_MAX {
            return Err(ConfigError::TooManyMembers(members.len()));
        }
        // Sort by name, so that ids do not depend on the order of the list.
        members.sort_by(|a, b| a.name.cmp(&b.name));
        for pair in members.windows(2) {
            if pair[0].name == pair[1].name {
                return Err(ConfigError::DuplicateName(pair[0].name.clone()));
            }
        }
        for (i, member) in members.iter().enumerate() {
            let Contact { name, address } = member;
            if name.is_empty() {
                return Err(ConfigError::EmptyName);
            }
            if !alone && !are_addresses(address) {
                let (name, address) = (name.clone(), address.clone());
                return Err(ConfigError::BadAddress { name, address });
            }
            self.check_found(name, address)?;
            for other in &members[..i] {
                let taken = |one: &&str| addresses(&other.address).any(|other| other == *one);
                if let Some(address) = addresses(address).find(taken) {
                    let (one, two, address) =
                        (other.name.clone(), name.clone(), address.to_owned());
                    return Err(ConfigError::DuplicateAddress(one, two, address));
                }
            }
        }
        let ids = (1..).filter_map(NodeId::new);
        Ok(ids.zip(members).collect())
    }
}

fn within<T: PartialOrd + std::fmt::Debug>(
    what: &'static str,
    is: T,
    least: T,
    most: T,
    must: &'static str,
) -> Result<(), ConfigError> {
    if is < least || is > most {
        return Err(ConfigError::OutOfRange { what, is: format!("{is:?}"), must });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Config {
        Config::new("d", "b").members([("c", "h:3"), ("a", "h:1"), ("b", "h:2")])
    }

    #[test]
    fn ids_and_the_cluster_do_not_depend_on_the_order_of_the_members() {
        let found = |config: Config| {
            let checked = config.check().unwrap();
            match checked.start_mode().clone() {
                StartMode::Found { node, cluster, members } => {
                    checked.settings(node, cluster, members)
                }
                StartMode::Join { .. } => panic!("the node joins"),
            }
        };
        let one = found(three());
        let other = Config::new("x", "b").members([("a", "z:1"), ("b", "h:2"), ("c", "h:3")]);
        let other = found(other);
        assert_eq!((one.node, one.cluster), (other.node, other.cluster));
        assert_eq!(one.node.get(), 2);
        let token = found(three().cluster_token("t"));
        assert_ne!(token.cluster, one.cluster);
        let fewer = found(Config::new("d", "b").members([("a", "h:1"), ("b", "h:2")]));
        assert_ne!(fewer.cluster, one.cluster);
        let join = Config::new("d", "x").join(["h:1"]).advertise("h:9");
        let four = NodeId::new(4).unwrap();
        let belongs = |config: &Config, node, cluster, is_founded: bool| {
            let settings = config.check().unwrap().belongs(node, cluster, || is_founded);
            settings.map_err(|why| why.to_string())
        };
        assert!(belongs(&join, four, one.cluster, false).is_ok(), "the same token");
        let other_token = belongs(&join, four, token.cluster, false).unwrap_err();
        assert!(other_token.contains("another token"));
        assert!(belongs(&join, four, token.cluster, true).unwrap().has_other_token);
        // A founder's directory is accepted only under that founder's name. A member that joined
        // later may have a founder's name.
        let swapped = belongs(&three(), NodeId::new(3).unwrap(), one.cluster, true).unwrap_err();
        assert!(swapped.contains("belongs to member 3"));
        assert!(belongs(&three(), four, one.cluster, false).is_err());
        assert!(!belongs(&three(), four, one.cluster, true).unwrap().founds);
        let listed = belongs(&three(), four, fewer.cluster, true).unwrap();
        assert_eq!((listed.listed.len(), listed.members.len()), (3, 0), "of another list");
    }

    fn limited(change: impl FnOnce(&mut Limits)) -> Config {
        let mut limits = Limits::default();
        change(&mut limits);
        three().limits(limits)
    }

    #[test]
    fn a_node_may_listen_at_any_port_and_on_all_interfaces() {
        for listen in ["127.0.0.1:0", "0.0.0.0:7000", "[::]:0", "127.0.0.1:7000,10.0.0.1:7000"] {
            assert!(three().listen(listen).check().is_ok(), "{listen}");
        }
    }

    /// The first steps in etcd's documentation use addresses like `0.0.0.0`, and a directory that
    /// was founded with such an address must stay usable.
    #[test]
    fn single_founder_needs_only_a_listen_address() {
        for address in ["0.0.0.0:2380", "127.0.0.1:0"] {
            let config = Config::new("d", "a").members([("a", address)]);
            assert!(config.check().is_ok(), "{address}");
            assert!(config.advertise(address).check().is_ok(), "{address}");
        }
    }

    #[test]
    fn invalid_configurations_are_rejected_with_a_reason() {
        let cases = [
            (Config::new("d", "z").members([("a", "h:1")]), "the node name \"z\""),
            (
                Config::new("d", "a").members([("a", "h:1"), ("a", "h:2")]),
                "two members have the name",
            ),
            (Config::new("d", "a").members([("a", "h:1"), ("b", "h:1")]), "the same address"),
            (Config::new("d", "a").members([("a", "h")]), "not of the form host:port"),
            (Config::new("d", "a").members([("a", "h:99999")]), "not of the form host:port"),
            (Config::new("d", "").members([("", "h:1")]), "name is empty"),
            (Config::new("d", "a").members([("a", "h:0"), ("b", "h:1")]), "\"a\" at \"h:0\""),
            (Config::new("d", "a").members([("a", "h:1"), ("b", "0.0.0.0:2")]), "member \"b\" at"),
            (Config::new("d", "a").members([("a", "[::]:1"), ("b", "h:1")]), "cannot be dialed"),
            (three().advertise("0.0.0.0:1"), "to set the listen address, use listen()"),
            (three().advertise("h:9,0.0.0.0:1"), "to set the listen address, use listen()"),
            (three().advertise("h:9,"), "not of the form host:port"),
            (
                Config::new("d", "a").members([("a", "h:1,h:2"), ("b", "h:3,h:2")]),
                "the same address \"h:2\"",
            ),
            (Config::new("d", "x").join(["h:1"]).advertise("127.0.0.1:0"), "cannot be dialed"),
            (three().join(["h:1"]), "founds a cluster or joins one"),
            (three().replacing("a"), "without join()"),
            (Config::new("d", "x").join(["h:1"]), "without an address"),
            (Config::new("d", "x").join(["h"]).advertise("h:9"), "not of the form host:port"),
            (Config::new("d", "x").join(["h:1"]).advertise("h"), "not of the form host:port"),
            (three().heartbeat(Duration::ZERO), "heartbeat is 0ns, and must be 4 ms to 10 s"),
            (three().election_timeout(Duration::from_millis(150)), "3 heartbeats to 60 s"),
            (three().session_ttl(Duration::from_millis(99)), "100 ms to 9,000,000,000 s"),
            (three().session_ttl(Duration::MAX), "100 ms to 9,000,000,000 s"),
            (
                three().join_deadline(Duration::ZERO),
                "join_deadline is 0ns, and must be 1 ms to a year",
            ),
            (three().join_deadline(Duration::MAX), "1 ms to a year"),
            (three().call_deadline(Duration::MAX), "1 ms to a day"),
            (three().lock_waiters_max(0), "1 to 16,777,216"),
            (three().open_writes_max(0, 1 << 20), "1 to 1,048,576"),
            (three().open_writes_max(1, usize::MAX), "1 MiB to 1 TiB"),
            (three().open_reads_max(usize::MAX), "1 to 16,777,216"),
            (three().snapshot_log_bytes(u64::MAX), "64 KiB to 1 PiB"),
            (three().drift_percent(40), "drift_percent is 40, and must be 0 to 30"),
            (three().log_segment_bytes(1), "64 KiB to 1 GiB"),
            (limited(|limits| limits.request_bytes_max = 4 << 20), "8 KiB to 3 MiB"),
            (limited(|limits| limits.request_bytes_max = 8191), "8 KiB to 3 MiB"),
            (limited(|limits| limits.key_bytes_max = 0), "128 bytes to limits.request_bytes_max"),
            (limited(|limits| limits.key_bytes_max = 2 << 20), "to limits.request_bytes_max"),
            (limited(|limits| limits.value_bytes_max = 0), "1 KiB to limits.request_bytes_max"),
            (limited(|limits| limits.value_bytes_max = 2 << 20), "to limits.request_bytes_max"),
            (limited(|limits| limits.txn_ops_max = 1), "1, and must be 16 to 10,000"),
            (limited(|limits| limits.txn_ops_max = 10_001), "16 to 10,000"),
            (limited(|limits| limits.txn_depth_max = 0), "0, and must be 3 to 16"),
            (limited(|limits| limits.txn_depth_max = 2), "2, and must be 3 to 16"),
            (limited(|limits| limits.txn_depth_max = 17), "17, and must be 3 to 16"),
            (limited(|limits| limits.txn_keys_max = 0), "0, and must be at least 1"),
            (
                Config::new("d", "1").members((1..=8).map(|i| (i.to_string(), format!("h:{i}")))),
                "too many members: 8, at most 7",
            ),
        ];
        for (config, words) in cases {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }
}

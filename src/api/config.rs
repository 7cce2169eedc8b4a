//! What a node is told when it starts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::env::Env;
use crate::model::{
    ClusterVersion, Limits, MemberAttributes, NodeId, addresses, are_addresses, is_address,
    is_nowhere,
};
use crate::node::{Contact, History, is_joining, whose};
#[cfg(feature = "tls")]
use crate::transport::PeerTls;
use crate::transport::TcpSettings;

use super::StartError;
use super::checked::{Beginning, Checked, cluster_id};

/// The configuration of a node. Start with [`Config::new`]; everything has a default.
#[derive(Clone, Debug)]
#[must_use = "give it to Node::start"]
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
    pub(super) warm_copy: bool,
    pub(super) slow_request: Duration,
    pub(super) slow_apply: Duration,
    pub(super) env: Env,
}

/// What is wrong with a [`Config`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The node is not among the members.
    #[error(
        "this node is called {name:?}, and the members are {members:?}: name it as one of them"
    )]
    UnknownMember {
        /// This node's name.
        name: String,
        /// The members' names.
        members: Vec<String>,
    },
    /// Two members have one name.
    #[error("two members are called {0:?}: each needs a name of its own")]
    DuplicateName(String),
    /// Two members have one address.
    #[error("members {0:?} and {1:?} have the same address {2:?}: each needs one of its own")]
    DuplicateAddress(String, String, String),
    /// An address is not `host:port`.
    #[error("the address {address:?} of member {name:?} is not of the form host:port")]
    BadAddress {
        /// Whose it is.
        name: String,
        /// What was given.
        address: String,
    },
    /// An address at which nobody is found: of port 0, or of all interfaces. Who founds a cluster alone may have one.
    #[error(
        "nobody finds member {name:?} at {address:?}: say the host and the port that the others dial; where \
         to listen is said with listen()"
    )]
    Unreachable {
        /// Whose it is.
        name: String,
        /// What was given.
        address: String,
    },
    /// Founding and joining at once.
    #[error("both members() and join() are given: a node founds a cluster or joins one")]
    JoinOrFound,
    /// A voter to be replaced by a node that does not join.
    #[error("replacing({0:?}) without join(): only a node that joins can take another's place")]
    ReplacesWithoutJoin(String),
    /// A node that joins and that nobody could reach.
    #[error(
        "{0:?} joins a cluster and has no address: say with advertise() where the others reach it"
    )]
    NoAddress(String),
    /// More members than a cluster may have.
    #[error("{0} members, at most {max}", max = Config::MEMBERS_MAX)]
    TooManyMembers(usize),
    /// A name that is empty.
    #[error("a member's name is empty")]
    EmptyName,
    /// A number that is out of its range.
    #[error("{what} is {is}, and must be {must}")]
    OutOfRange {
        /// Which setting.
        what: &'static str,
        /// Its value.
        is: String,
        /// Its range.
        must: &'static str,
    },
}

impl Config {
    /// The most voting members of a cluster.
    pub const MEMBERS_MAX: usize = 7;

    /// A node that keeps its data in `dir` and is called `name`. Without [`Config::members`] it is a
    /// cluster of its own.
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
            warm_copy: false,
            slow_request: Duration::from_millis(300),
            slow_apply: Duration::from_millis(100),
            env: Env::real(),
        }
    }

    /// The members that found a new cluster, this node too: a name and an address `host:port` for each, at which the
    /// others reach it; or several, with commas between them, which they try in turn.
    /// The same on all. Once the cluster exists its members are kept in it, and change with
    /// [`Config::join`] and [`Node::remove_member`](crate::Node::remove_member). With data in the directory, this list
    /// only says where to look for the others first. Differences from the directory are logged as one warning.
    pub fn members<N: Into<String>, A: Into<String>>(
        mut self,
        members: impl IntoIterator<Item = (N, A)>,
    ) -> Self {
        self.members = members.into_iter().map(|(name, at)| (name.into(), at.into())).collect();
        self
    }

    /// Joins a cluster that exists, instead of founding one, through any of these members, which are
    /// asked one after the other; one that is up is enough. The node becomes a learner: it serves its
    /// program like any member and does not vote, until it is
    /// [promoted](crate::Node::promote). Needs the cluster's [token](Config::cluster_token) and an
    /// address of its own ([`Config::advertise`]). With data in the directory, the node is a member
    /// already, and this is only where it looks for the others first.
    pub fn join<A: Into<String>>(mut self, members: impl IntoIterator<Item = A>) -> Self {
        self.join = members.into_iter().map(Into::into).collect();
        self
    }

    /// A node that joins takes the place of the voter with this name: once it has caught up, it votes
    /// and the other is a member no more, in one step. For a member whose disk is lost, and for moving
    /// to another machine.
    pub fn replacing(mut self, name: impl Into<String>) -> Self {
        self.replaces = Some(name.into());
        self
    }

    /// How long a node that joins asks around before it gives up. Default a minute; a millisecond to a year.
    pub fn join_deadline(mut self, deadline: Duration) -> Self {
        self.join_deadline = deadline;
        self
    }

    /// Where the other members reach this one, `host:port`, or several with commas between them: neither port 0 nor an address of all interfaces, which are
    /// for [`Config::listen`] only. Default: its address in [`Config::members`]. A name is resolved again at each
    /// connect. When it changes, restart the node with the new one: the others hear of it.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// Where this node's host serves clients of its own, as URLs or in any other words: at most 16, of at most 512
    /// bytes each. All members are told ([`MemberStatus::endpoints`](crate::cluster::MemberStatus::endpoints),
    /// [`Node::members`](crate::Node::members)), so that whoever looks for the leader's host finds it; the library
    /// does not use them. What a restarted node says replaces what it said before.
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

    /// Where to listen for the other members, if not at the address that they reach it at: `host:port`, or several with
    /// commas between them.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Tells clusters apart whose members have the same names. The same on all members.
    pub fn cluster_token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// Allows members to talk without encryption beyond this machine. Whoever can reach their ports
    /// can then read and change everything.
    pub fn insecure_peers(mut self, allowed: bool) -> Self {
        self.insecure_peers = allowed;
        self
    }

    /// Encrypts the connections between members and lets only those in whose certificates say that they
    /// are members: see [`PeerTls`]. All members or none. Needs the feature `tls`.
    #[cfg(feature = "tls")]
    pub fn peer_tls(mut self, files: PeerTls) -> Self {
        self.peer_tls = Some(files);
        self
    }

    /// How often a leader says that it is there. Default 100 ms; 4 ms to 10 s. The same on all members.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval;
        self
    }

    /// A member that hears no leader stands for election after a time drawn at random from this to
    /// twice this. Default 500 ms; at least three heartbeats, at most a minute. The same on all.
    pub fn election_timeout(mut self, timeout: Duration) -> Self {
        self.election_timeout = timeout;
        self
    }

    /// How long a session, with its locks, outlives its node's silence. Default 5 s; 100 ms to 9,000,000,000 s, which
    /// are 285 years. One that is shorter
    /// than four election timeouts can be ended by a change of the leader.
    pub fn session_ttl(mut self, ttl: Duration) -> Self {
        self.session_ttl = ttl;
        self
    }

    /// How many percent the rate of any member's clock may be off true time, either way, without a
    /// lease ending early. Default 10; 0 to 30. The same on all members.
    pub fn drift_percent(mut self, percent: u32) -> Self {
        self.drift_percent = percent;
        self
    }

    /// How long a call may take that says nothing else. Default 5 s; a millisecond to a day.
    pub fn call_deadline(mut self, deadline: Duration) -> Self {
        self.call_deadline = deadline;
        self
    }

    /// Limits the requests of this node that wait for one lock, of all its sessions together. One more is rejected with
    /// [`LockError::QueueFull`](crate::LockError::QueueFull). Default 100,000; 1 to 16,777,216.
    pub fn lock_waiters_max(mut self, waiters: usize) -> Self {
        self.lock_waiters_max = waiters;
        self
    }

    /// What others see of this node's session, as the holder of a lock say. Default: the node's name.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// How large requests may be; each in the range that stands at it in [`Limits`]. The same on all members.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How many writes of this node's callers, and how many bytes of them, may be without an answer
    /// before a call is refused with [`Error::Busy`](crate::Error::Busy). Default 16,384 and 64 MiB; 1 to
    /// 1,048,576, and 1 MiB to 1 TiB. Each key that the ranges of one pass over counts for 160 bytes, but all of them
    /// for no more than half of what is allowed.
    pub fn open_writes_max(mut self, writes: usize, bytes: usize) -> Self {
        self.open_writes_max = writes;
        self.open_bytes_max = bytes;
        self
    }

    /// How many linearizable reads, and waits for a revision, of this node's callers may be without an
    /// answer before one is refused with [`Error::Busy`](crate::Error::Busy). Default 65,536; 1 to
    /// 16,777,216.
    pub fn open_reads_max(mut self, reads: usize) -> Self {
        self.open_reads_max = reads;
        self
    }

    /// How many bytes the state may take: all versions of all keys that are kept, with what surrounds
    /// them. Beyond it, what would make it grow (puts, transactions with puts, leases) is refused with
    /// [`Error::QuotaExceeded`](crate::Error::QuotaExceeded), until deletions and compaction have made
    /// room. What is under way when it is reached still comes in. Default 2 GiB; at least 1 KiB. The same
    /// on all members.
    pub fn quota_bytes(mut self, bytes: u64) -> Self {
        self.quota_bytes = bytes;
        self
    }

    /// How much history is kept, for reads of the past and for watches that start in it. Default: ten
    /// minutes, at most 100,000 revisions and at most half the quota. The same on all members.
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// How many bytes of entries the log grows by before a snapshot of the state is taken and the log is
    /// cut; half the size of the state, if that is more. Default 32 MiB; 64 KiB to 1 PiB.
    pub fn snapshot_log_bytes(mut self, bytes: u64) -> Self {
        self.snapshot_log_bytes = bytes;
        self
    }

    /// The size of a file of the log, and of what is kept in reserve for a full disk; at most half of that may be
    /// under way without a quorum. Default 16 MiB; 64 KiB to 1 GiB.
    pub fn log_segment_bytes(mut self, bytes: u64) -> Self {
        self.log_segment_bytes = bytes;
        self
    }

    /// Whether a copy of the state is kept beside snapshot and log, written behind, from which a start
    /// goes on that need not apply the log since the last snapshot. It costs up to a tenth of a core
    /// while things change, some 100 MB of memory, and up to four times the state on the disk; it is
    /// never needed. Default: off. `docs/decisions/warm-copy.md` says when it pays.
    pub fn warm_copy(mut self, keep: bool) -> Self {
        self.warm_copy = keep;
        self
    }

    /// A request that takes longer gets a line in the log, at level `warn`, that says where the time
    /// went; one line a second at most, and none for what was asked for before the node knew of a leader for
    /// the first time. Default 300 ms; [`Duration::MAX`] for none.
    pub fn slow_request(mut self, threshold: Duration) -> Self {
        self.slow_request = threshold;
        self
    }

    /// A batch of entries that takes longer to apply to this replica gets a line in the log, too: one a second
    /// at most. Default 100 ms; [`Duration::MAX`] for none.
    pub fn slow_apply(mut self, threshold: Duration) -> Self {
        self.slow_apply = threshold;
        self
    }

    /// The newest cluster version that the node understands, where it is to pass for another build:
    /// for tests of upgrades.
    #[doc(hidden)]
    pub fn supported_version(mut self, version: ClusterVersion) -> Self {
        self.supported_version = version;
        self
    }

    /// Reports whether the data directory is that of a member already: then the node goes on as that member, and how it
    /// would found or join a cluster no longer matters. Reads the disk.
    ///
    /// # Errors
    /// [`StartError::Data`]: the directory cannot be read, or its log is damaged.
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
        Ok(whose(&self.env, &self.dir)?.is_some() && !is_joining(&self.env, &self.dir))
    }

    /// The clock, disk and crash points that the node lives with: for tests that break them.
    #[doc(hidden)]
    pub fn env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// What was given to [`Config::env`].
    pub(crate) fn world(&self) -> &Env {
        &self.env
    }

    /// Checks it, once, at the edge.
    pub(crate) fn check(&self) -> Result<Checked, ConfigError> {
        let (contact, beginning) = self.check_beginning()?;
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
        self.check_limits()?;
        if self.session_ttl < timeout * 4 {
            tracing::warn!(
                session_ttl = ?self.session_ttl, election_timeout = ?timeout,
                "sessions live shorter than four election timeouts: a change of the leader can end them"
            );
        }
        if addresses(&contact.address).any(is_nowhere) {
            tracing::warn!(address = contact.address, "no other member could dial this one there");
        }
        Ok(Checked::new(self.clone(), contact, beginning))
    }

    /// How the node begins, if its disk is new, and what it is called.
    fn check_beginning(&self) -> Result<(Contact, Beginning), ConfigError> {
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
            return Ok((contact, Beginning::Found { node, cluster, members }));
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
        Ok((self.check_contact(address)?, Beginning::Join { addresses, replaces }))
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

    /// Others can find a member there. For one that founds a cluster alone nobody looks yet.
    fn check_found(&self, name: &str, address: &str) -> Result<(), ConfigError> {
        let founds_alone = self.join.is_empty() && self.members.len() <= 1;
        if founds_alone || !addresses(address).any(is_nowhere) {
            return Ok(());
        }
        Err(ConfigError::Unreachable { name: name.to_owned(), address: address.to_owned() })
    }

    /// Whether it says that a member is at this address.
    pub(super) fn names(&self, address: &str) -> bool {
        self.members.iter().any(|(_, at)| addresses(at).any(|one| one == address))
    }

    /// How to talk to the other members.
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
        // One request is one entry of the log at most, which has a largest size.
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
        within("endpoints, their number", self.endpoints.len(), 0, most, "0 to 16")?;
        let most = MemberAttributes::ENDPOINT_BYTES_MAX;
        self.endpoints.iter().try_for_each(|endpoint| {
            within("endpoints, each in bytes", endpoint.len(), 1, most, "1 to 512")
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
        // The order in which they are written down must not matter.
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
            match checked.beginning().clone() {
                Beginning::Found { node, cluster, members } => {
                    checked.settings(node, cluster, members)
                }
                Beginning::Join { .. } => panic!("it joins"),
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
        // A founder's directory is that of its name; a member that joined later may have a founder's name.
        let swapped = belongs(&three(), NodeId::new(3).unwrap(), one.cluster, true).unwrap_err();
        assert!(swapped.contains("is that of member 3"));
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

    /// As etcd's own first steps have it; and a directory that was begun so goes on.
    #[test]
    fn who_founds_alone_may_say_no_more_than_where_it_listens() {
        for address in ["0.0.0.0:2380", "127.0.0.1:0"] {
            let config = Config::new("d", "a").members([("a", address)]);
            assert!(config.check().is_ok(), "{address}");
            assert!(config.advertise(address).check().is_ok(), "{address}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let cases = [
            (Config::new("d", "z").members([("a", "h:1")]), "this node is called \"z\""),
            (Config::new("d", "a").members([("a", "h:1"), ("a", "h:2")]), "two members are called"),
            (Config::new("d", "a").members([("a", "h:1"), ("b", "h:1")]), "the same address"),
            (Config::new("d", "a").members([("a", "h")]), "not of the form host:port"),
            (Config::new("d", "a").members([("a", "h:99999")]), "not of the form host:port"),
            (Config::new("d", "").members([("", "h:1")]), "name is empty"),
            (Config::new("d", "a").members([("a", "h:0"), ("b", "h:1")]), "\"a\" at \"h:0\""),
            (Config::new("d", "a").members([("a", "h:1"), ("b", "0.0.0.0:2")]), "member \"b\" at"),
            (Config::new("d", "a").members([("a", "[::]:1"), ("b", "h:1")]), "nobody finds member"),
            (three().advertise("0.0.0.0:1"), "where to listen is said with listen()"),
            (three().advertise("h:9,0.0.0.0:1"), "where to listen is said with listen()"),
            (three().advertise("h:9,"), "not of the form host:port"),
            (
                Config::new("d", "a").members([("a", "h:1,h:2"), ("b", "h:3,h:2")]),
                "the same address \"h:2\"",
            ),
            (Config::new("d", "x").join(["h:1"]).advertise("127.0.0.1:0"), "nobody finds member"),
            (three().join(["h:1"]), "founds a cluster or joins one"),
            (three().replacing("a"), "without join()"),
            (Config::new("d", "x").join(["h:1"]), "has no address"),
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
                "8 members, at most 7",
            ),
        ];
        for (config, words) in cases {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }
}

//! Limits and intervals of a server.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// Services for JSON and HTTP, and who may use them from a browser.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WebSettings {
    /// Whether to serve the JSON gateway.
    pub offers_json: bool,
    /// Web pages that may use the server from a browser.
    pub origins: Origins,
}

/// A set of web pages, by the origin of the page as browsers send it: scheme, host and port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origins {
    /// All web pages.
    Any,
    /// Only web pages of these origins, such as `https://example.com` and `http://localhost:3000`.
    Only(BTreeSet<String>),
}

/// Limits and services of learners.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LearnerSettings {
    /// Maximum number of learners in the cluster, if limited.
    pub max: Option<usize>,
    /// Calls that this member serves while it is a learner.
    pub calls: LearnerCalls,
}

/// Calls that a learner serves, in addition to serializable ranges, status and snapshots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum LearnerCalls {
    /// No others, as in etcd.
    Etcd,
    /// Watches. They deliver the same events as at a voter.
    #[default]
    Watch,
    /// Watches and linearizable ranges. For each range the learner asks the leader for the current log index.
    WatchAndRange,
}

/// Limits and intervals of a server. The defaults are etcd's, except for the intervals of the node, which are the
/// library's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Heartbeat interval of the node.
    pub heartbeat: Duration,
    /// Election timeout of the node. Requests may wait for two elections, and no lease is shorter than one.
    pub election_timeout: Duration,
    /// Largest request, in bytes.
    pub request_bytes_max: usize,
    /// Maximum number of operations in a transaction.
    pub txn_ops_max: usize,
    /// Cost of password hashes: each increment doubles the time.
    pub bcrypt_cost: u32,
    /// Quota of the state in bytes, as reported to clients. The node enforces its own quota.
    pub quota_bytes: u64,
    /// Interval of progress notifications for watches that request them.
    pub progress_interval: Duration,
    /// Maximum number of concurrent streams on one connection.
    pub streams_max: u32,
    /// Whether `/metrics` includes the durations of calls.
    pub metrics_extensive: bool,
    /// Limits and services of learners.
    pub learners: LearnerSettings,
    /// Settings for JSON and HTTP.
    pub web: WebSettings,
    /// Idle time after which a connection is pinged; `None` for no pings.
    pub ping_after: Option<Duration>,
    /// Time to wait for the response to a ping.
    pub ping_timeout: Duration,
    /// Whether the URLs of members begin with `https://`.
    pub peers_use_tls: bool,
    /// Directory of the file with a snapshot that is being sent to a client. The file needs as much space as the
    /// state, and is deleted before it is sent.
    pub snapshot_dir: PathBuf,
}

impl Default for WebSettings {
    fn default() -> Self {
        Self { offers_json: true, origins: Origins::Any }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(100),
            election_timeout: Duration::from_millis(500),
            request_bytes_max: 1_572_864,
            txn_ops_max: 128,
            bcrypt_cost: 10,
            quota_bytes: 2 << 30,
            progress_interval: Duration::from_secs(600),
            streams_max: u32::MAX,
            metrics_extensive: false,
            learners: LearnerSettings::default(),
            web: WebSettings::default(),
            ping_after: Some(Duration::from_secs(7200)),
            ping_timeout: Duration::from_secs(20),
            peers_use_tls: false,
            snapshot_dir: std::env::temp_dir(),
        }
    }
}

impl Settings {
    /// Returns the timeout of requests: etcd's five seconds plus two election timeouts.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(5) + self.election_timeout * 2
    }

    /// Returns the scheme of the members' URLs.
    pub(crate) fn peer_scheme(&self) -> &'static str {
        if self.peers_use_tls { "https://" } else { "http://" }
    }
}

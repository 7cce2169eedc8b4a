//! Table of all flags of etcd's server and how each is treated here.

use Fate::{Ignored, Refused, Used};

/// Treatment of a flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// It has the same meaning as in etcd.
    Used,
    /// It is accepted and has no effect.
    Ignored,
    /// It is rejected, because the feature is not supported.
    Refused,
}

#[derive(Debug)]
pub(super) struct Flag {
    /// Name without dashes. The environment variable is derived from it.
    pub(super) name: &'static str,
    /// Whether the value may be omitted, which means `true`.
    pub(super) is_switch: bool,
    /// Whether the help omits the flag.
    pub(super) is_hidden: bool,
    pub(super) fate: Fate,
    /// A value of a rejected flag that requests the existing behavior.
    pub(super) harmless: Option<&'static str>,
    /// Description for the help.
    pub(super) what: &'static str,
}

const fn used(name: &'static str, what: &'static str) -> Flag {
    Flag { name, is_switch: false, is_hidden: false, fate: Used, harmless: None, what }
}

const fn used_switch(name: &'static str, what: &'static str) -> Flag {
    Flag { name, is_switch: true, is_hidden: false, fate: Used, harmless: None, what }
}

const fn ignored(name: &'static str, why: &'static str) -> Flag {
    Flag { name, is_switch: false, is_hidden: false, fate: Ignored, harmless: None, what: why }
}

const fn ignored_switch(name: &'static str, why: &'static str) -> Flag {
    Flag { name, is_switch: true, is_hidden: false, fate: Ignored, harmless: None, what: why }
}

/// For programs that pass the flag to any server they start. The help does not offer it.
const fn hidden_switch(name: &'static str, why: &'static str) -> Flag {
    Flag { name, is_switch: true, is_hidden: true, fate: Ignored, harmless: None, what: why }
}

const fn refused(name: &'static str, instead: &'static str) -> Flag {
    Flag { name, is_switch: false, is_hidden: false, fate: Refused, harmless: None, what: instead }
}

const fn refused_switch(name: &'static str, instead: &'static str) -> Flag {
    Flag { name, is_switch: true, is_hidden: false, fate: Refused, harmless: None, what: instead }
}

/// Rejected unless its list contains `*`, etcd's default, which means all.
const fn refused_unless_all(name: &'static str, instead: &'static str) -> Flag {
    Flag {
        name,
        is_switch: false,
        is_hidden: false,
        fate: Refused,
        harmless: Some("*"),
        what: instead,
    }
}

const NO_DISCOVERY: &str = "discovery is not supported: name the members with --initial-cluster";
const BY_URI: &str = "a member whose certificate contains the URI bowline://CLUSTER/MEMBER accepts only members \
                      with such certificates: add the URI to all of them instead";
const NO_PROXY: &str = "the etcd 2 proxy is not supported";
const NO_TRACING: &str = "tracing export is not supported: use --log-level debug";

/// In the order of etcd's own help.
pub(super) const FLAGS: &[Flag] = &[
    used("config-file", "YAML file with these flags as keys; all other flags are then ignored"),
    used("announce-version", "release of etcd to announce to clients: '3.6' or '3.7' ['3.7']"),
    used("name", "name of this member ['default']"),
    used("data-dir", "data directory ['${name}.etcd']"),
    used_switch(
        "ignore-etcd-data",
        "start empty although --data-dir holds data of etcd, which this server cannot read",
    ),
    used("wal-dir", "must be empty, or a path in --data-dir, which holds log and snapshots"),
    ignored(
        "snapshot-count",
        "a snapshot is taken when the log has grown by half of the state's size",
    ),
    used("heartbeat-interval", "interval of the leader's heartbeats, in milliseconds ['100']"),
    used("election-timeout", "time without heartbeats until an election, in milliseconds ['1000']"),
    ignored_switch(
        "initial-election-tick-advance",
        "a node waits one election timeout after its start",
    ),
    used("listen-peer-urls", "URLs to listen on for other members ['http://localhost:2380']"),
    used("listen-client-urls", "URLs to listen on for clients ['http://localhost:2379']"),
    used(
        "listen-client-http-urls",
        "URLs to listen on for JSON and HTTP; --listen-client-urls then serve gRPC only",
    ),
    ignored("max-wals", "old log files are deleted automatically"),
    ignored("max-snapshots", "old snapshots are deleted automatically"),
    refused_switch("memory-mlock", "use systemd's LimitMEMLOCK to lock the process's memory"),
    used("quota-backend-bytes", "maximum size of the state in bytes; 0 is 2 GiB ['0']"),
    ignored("backend-bbolt-freelist-type", "bbolt is not used"),
    ignored(
        "backend-batch-interval",
        "writes are not batched by time: each is synced before its response",
    ),
    ignored(
        "backend-batch-limit",
        "writes are not batched by time: each is synced before its response",
    ),
    used("max-txn-ops", "maximum number of operations in a transaction ['128']"),
    used("max-request-bytes", "maximum size of a request in bytes ['1572864']"),
    used("max-concurrent-streams", "maximum number of streams on a connection ['4294967295']"),
    ignored("grpc-keepalive-min-time", "pings of clients are not limited"),
    used(
        "grpc-keepalive-interval",
        "idle time until a connection is pinged; 0 disables pings ['2h']",
    ),
    used(
        "grpc-keepalive-timeout",
        "time to wait for the response to a ping; 0 disables pings ['20s']",
    ),
    refused_switch("socket-reuse-port", "give each member an address of its own"),
    ignored_switch("socket-reuse-address", "it is always set"),
    used_switch("enable-grpc-gateway", "serve JSON over HTTP, below /v3/ ['true']"),
    ignored("raft-read-timeout", "connections between members have their own timeouts"),
    ignored("raft-write-timeout", "connections between members have their own timeouts"),
    used("feature-gates", "etcd's feature gates, as name=true,name=false; they have no effect"),
    used(
        "initial-advertise-peer-urls",
        "URLs under which other members reach this one ['http://localhost:2380']",
    ),
    used(
        "initial-cluster",
        "first members of the cluster: name=url,name=url ['default=http://localhost:2380']",
    ),
    used("initial-cluster-state", "'new' to bootstrap a cluster, 'existing' to join one ['new']"),
    used("initial-cluster-token", "token that distinguishes clusters ['etcd-cluster']"),
    used(
        "advertise-client-urls",
        "URLs under which clients reach this member; required with --listen-client-urls ['http://localhost:2379']",
    ),
    refused("discovery", NO_DISCOVERY),
    refused("discovery-token", NO_DISCOVERY),
    refused("discovery-endpoints", NO_DISCOVERY),
    ignored("discovery-dial-timeout", NO_DISCOVERY),
    ignored("discovery-request-timeout", NO_DISCOVERY),
    ignored("discovery-keepalive-time", NO_DISCOVERY),
    ignored("discovery-keepalive-timeout", NO_DISCOVERY),
    ignored_switch("discovery-insecure-transport", NO_DISCOVERY),
    ignored_switch("discovery-insecure-skip-tls-verify", NO_DISCOVERY),
    ignored("discovery-cert", NO_DISCOVERY),
    ignored("discovery-key", NO_DISCOVERY),
    ignored("discovery-cacert", NO_DISCOVERY),
    ignored("discovery-user", NO_DISCOVERY),
    ignored("discovery-password", NO_DISCOVERY),
    ignored("discovery-fallback", "discovery is not supported"),
    ignored("discovery-proxy", NO_DISCOVERY),
    refused("discovery-srv", NO_DISCOVERY),
    ignored("discovery-srv-name", NO_DISCOVERY),
    ignored_switch(
        "strict-reconfig-check",
        "changes that would lose the quorum are always rejected",
    ),
    ignored_switch("pre-vote", "it is always enabled"),
    used("auto-compaction-retention", "how much history to keep; 0 keeps all ['0']"),
    used(
        "auto-compaction-mode",
        "unit of --auto-compaction-retention: 'periodic' or 'revision' ['periodic']",
    ),
    used("cert-file", "PEM file with the certificate for clients; reloaded when it changes"),
    used("key-file", "PEM file with the key of --cert-file"),
    used_switch(
        "client-cert-auth",
        "require client certificates, whose common name is the user of requests without a token",
    ),
    ignored("client-cert-file", "the server is not a client of other servers"),
    ignored("client-key-file", "the server is not a client of other servers"),
    used(
        "client-crl-file",
        "PEM file with revocation lists for client certificates, one for each authority",
    ),
    used(
        "client-cert-allowed-hostname",
        "comma-separated hosts, one of which a client certificate must name",
    ),
    used(
        "trusted-ca-file",
        "PEM file with the authorities of client certificates, which are then required",
    ),
    used_switch(
        "auto-tls",
        "use a self-signed certificate for clients, made at every start, for tests",
    ),
    used(
        "peer-cert-file",
        "PEM file with this member's certificate; if it contains the URI bowline://CLUSTER/MEMBER, which is \
         recommended, those of the other members must, too",
    ),
    used("peer-key-file", "PEM file with the key of --peer-cert-file"),
    used_switch("peer-client-cert-auth", "members with certificates always verify each other"),
    used(
        "peer-client-cert-file",
        "must be the file of --peer-cert-file: a member has one certificate",
    ),
    used("peer-client-key-file", "must be the file of --peer-key-file"),
    used("peer-trusted-ca-file", "PEM file with the authorities of members' certificates"),
    refused("peer-cert-allowed-cn", BY_URI),
    refused("peer-cert-allowed-hostname", BY_URI),
    used_switch(
        "peer-tls-migration",
        "connect to members with and without TLS, while members move from http:// to https:// one by one",
    ),
    used_switch(
        "peer-auto-tls",
        "use self-signed certificates between members, made at every start; encrypts without authentication, for tests",
    ),
    used("self-signed-cert-validity", "validity of --auto-tls's certificate in years ['1']"),
    used("peer-crl-file", "PEM file with revocation lists for members' certificates"),
    ignored_switch(
        "peer-skip-client-san-verification",
        "host names in members' certificates are not verified",
    ),
    used("cipher-suites", "comma-separated TLS 1.2 cipher suites for clients, by Go's names"),
    used("tls-min-version", "'TLS1.2' or 'TLS1.3', for clients; members use 1.3 ['TLS1.2']"),
    used("tls-max-version", "'TLS1.2' or 'TLS1.3', for clients ['TLS1.3']"),
    used(
        "cors",
        "comma-separated origins of web pages that may use JSON and HTTP in a browser; '*' is all ['*']",
    ),
    refused_unless_all(
        "host-whitelist",
        "host names in requests are not checked: bind --listen-client-urls to addresses that only trusted hosts can \
         reach",
    ),
    used(
        "auth-token",
        "'simple', or 'jwt,sign-method=ES256,priv-key=FILE,pub-key=FILE,ttl=5m'; must be the same on all members \
         ['simple']",
    ),
    used("bcrypt-cost", "cost of hashing a password; each increment doubles the time ['10']"),
    used("auth-token-ttl", "lifetime of an unused simple token, in seconds ['300']"),
    ignored_switch("enable-pprof", "this is not a Go program: use perf for profiles"),
    used("metrics", "'basic', or 'extensive', which adds call durations by method ['basic']"),
    used("listen-metrics-urls", "additional URLs for /metrics, /health, /livez and /readyz"),
    ignored("logger", "there is only one logger"),
    used(
        "log-outputs",
        "'stderr', 'stdout', 'default' (stderr) and file paths, separated by commas ['default']",
    ),
    used("log-level", "'debug', 'info', 'warn' or 'error' ['info']"),
    used("log-format", "'console' for text, or 'json' for one JSON object per line ['console']"),
    used_switch("enable-log-rotation", "rotate the files of --log-outputs"),
    used(
        "log-rotation-config-json",
        "rotation settings: {\"maxsize\": MIB, \"maxage\": DAYS, \"maxbackups\": FILES, \"localtime\": BOOL, \
         \"compress\": BOOL} ['{\"maxsize\": 100}']",
    ),
    used("warning-unary-request-duration", "log requests that take longer ['300ms']"),
    refused_switch("enable-distributed-tracing", NO_TRACING),
    ignored("distributed-tracing-address", NO_TRACING),
    ignored("distributed-tracing-service-name", NO_TRACING),
    ignored("distributed-tracing-instance-id", NO_TRACING),
    ignored("distributed-tracing-sampling-rate", NO_TRACING),
    ignored_switch(
        "initial-corrupt-check",
        "replicas compare their digests continuously, from the first entry on",
    ),
    ignored_switch("compact-hash-check-enabled", "replicas compare their digests continuously"),
    ignored_switch(
        "stop-grpc-service-on-defrag",
        "defragmentation does nothing, and does not block requests",
    ),
    ignored_switch(
        "txn-mode-write-with-shared-buffer",
        "transactions do not copy the write buffer",
    ),
    ignored_switch("enable-lease-checkpoint", "a new leader gives every lease its full TTL"),
    ignored_switch(
        "enable-lease-checkpoint-persist",
        "a new leader gives every lease its full TTL",
    ),
    ignored("corrupt-check-time", "replicas compare their digests continuously"),
    ignored("compact-hash-check-time", "replicas compare their digests continuously"),
    ignored("compaction-batch-limit", "compaction frees memory in small steps, with every entry"),
    ignored(
        "compaction-sleep-interval",
        "compaction frees memory in small steps, with every entry",
    ),
    used(
        "watch-progress-notify-interval",
        "interval of progress notifications for watches that request them ['10m']",
    ),
    used("warning-apply-duration", "log batches of entries that take longer to apply ['100ms']"),
    ignored("bootstrap-defrag-threshold-megabytes", "defragmentation does nothing"),
    ignored("v2-deprecation", "the v2 store is not supported"),
    // Flags removed from etcd that its sample configuration file still contains.
    ignored("proxy", NO_PROXY),
    ignored("proxy-failure-wait", NO_PROXY),
    ignored("proxy-refresh-interval", NO_PROXY),
    ignored("proxy-dial-timeout", NO_PROXY),
    ignored("proxy-write-timeout", NO_PROXY),
    ignored("proxy-read-timeout", NO_PROXY),
    used(
        "max-learners",
        "maximum number of learners for `member add --learner` [no limit, but 64 members in all]",
    ),
    used(
        "learner-calls",
        "further calls that a learner serves: 'etcd' for none, 'watch', or 'watch,range' ['watch']",
    ),
    ignored("downgrade-check-time", "downgrades are not supported"),
    ignored(
        "snapshot-catchup-entries",
        "the log keeps all entries that a connected member has not received",
    ),
    refused_switch(
        "force-new-cluster",
        "use `bowline recover` to make a new cluster from this member's data",
    ),
    hidden_switch("unsafe-no-fsync", "every write is synced anyway"),
];

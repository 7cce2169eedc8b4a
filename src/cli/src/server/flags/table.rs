//! Every flag of etcd's server, and what becomes of it here.

use super::Fate::{self, Ignored, Refused, Used};

/// A flag.
#[derive(Debug)]
pub(super) struct Flag {
    /// Its name, without dashes; the variable of the environment is made of it.
    pub(super) name: &'static str,
    /// Whether it may stand without a value, which is then `true`.
    pub(super) is_switch: bool,
    /// Whether the help says nothing of it.
    pub(super) is_hidden: bool,
    /// What becomes of it.
    pub(super) fate: Fate,
    /// A value with which a refused flag asks for what is so anyway.
    pub(super) harmless: Option<&'static str>,
    /// What it is, for the help.
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

/// For programs that give it to whatever server they start; nobody who reads the help shall.
const fn hidden_switch(name: &'static str, why: &'static str) -> Flag {
    Flag { name, is_switch: true, is_hidden: true, fate: Ignored, harmless: None, what: why }
}

const fn refused(name: &'static str, instead: &'static str) -> Flag {
    Flag { name, is_switch: false, is_hidden: false, fate: Refused, harmless: None, what: instead }
}

const fn refused_switch(name: &'static str, instead: &'static str) -> Flag {
    Flag { name, is_switch: true, is_hidden: false, fate: Refused, harmless: None, what: instead }
}

/// Refused unless its list has `*`, which is etcd's default: all of them.
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

const NO_DISCOVERY: &str = "there is no discovery service: name the members with --initial-cluster";
const BY_URI: &str = "a member whose certificate has the URI bowline://CLUSTER/MEMBER lets in only members whose \
                      certificates have theirs: write it into all of them instead";
const NO_PROXY: &str = "there is no proxy of etcd 2";
const NO_TRACING: &str = "there is no exporter of traces: use --log-level debug";

/// In the order of etcd's own help.
pub(super) const FLAGS: &[Flag] = &[
    used("config-file", "a YAML file with these flags as keys; all other flags are then ignored"),
    used("name", "this member's name ['default']"),
    used("data-dir", "where its data is ['${name}.etcd']"),
    used_switch(
        "ignore-etcd-data",
        "start empty although --data-dir holds the data of etcd, which this server does not read",
    ),
    used("wal-dir", "empty, or a path in --data-dir: log and snapshots are kept there"),
    ignored("snapshot-count", "a snapshot is taken when the log has grown by half of the state"),
    used("heartbeat-interval", "how often a leader says that it is there, in milliseconds ['100']"),
    used("election-timeout", "how long a silent leader is waited for, in milliseconds ['1000']"),
    ignored_switch(
        "initial-election-tick-advance",
        "a node that starts waits one election timeout",
    ),
    used("listen-peer-urls", "where to listen for members ['http://localhost:2380']"),
    used("listen-client-urls", "where to listen for clients ['http://localhost:2379']"),
    used(
        "listen-client-http-urls",
        "where to listen for JSON and HTTP; --listen-client-urls are for gRPC alone then",
    ),
    ignored("max-wals", "the log is cut by itself"),
    ignored("max-snapshots", "snapshots that nobody needs are deleted by themselves"),
    refused_switch(
        "memory-mlock",
        "lock the process's memory from outside, with systemd's LimitMEMLOCK",
    ),
    used("quota-backend-bytes", "how many bytes the state may take; 0 is 2 GiB ['0']"),
    ignored("backend-bbolt-freelist-type", "there is no bbolt"),
    ignored(
        "backend-batch-interval",
        "there is no batch to wait for: a write is synced before its answer",
    ),
    ignored(
        "backend-batch-limit",
        "there is no batch to wait for: a write is synced before its answer",
    ),
    used("max-txn-ops", "the most operations in a transaction ['128']"),
    used("max-request-bytes", "the largest request, in bytes ['1572864']"),
    used("max-concurrent-streams", "the most streams on one connection ['4294967295']"),
    ignored("grpc-keepalive-min-time", "clients may ping as often as they like"),
    used(
        "grpc-keepalive-interval",
        "how long a silent connection is left alone; 0 is for ever ['2h']",
    ),
    used(
        "grpc-keepalive-timeout",
        "how long its answer to a ping is waited for; 0 is for ever ['20s']",
    ),
    refused_switch("socket-reuse-port", "give each member an address of its own"),
    ignored_switch("socket-reuse-address", "it is always set"),
    used_switch("enable-grpc-gateway", "answer requests in JSON over HTTP, below /v3/ ['true']"),
    ignored("raft-read-timeout", "connections between members have limits of their own"),
    ignored("raft-write-timeout", "connections between members have limits of their own"),
    used(
        "feature-gates",
        "etcd's own, as name=true,name=false; what they would switch is always so",
    ),
    used("initial-advertise-peer-urls", "where members reach this one ['http://localhost:2380']"),
    used(
        "initial-cluster",
        "who founds the cluster: name=url,name=url ['default=http://localhost:2380']",
    ),
    used("initial-cluster-state", "'new' founds a cluster, 'existing' joins one ['new']"),
    used("initial-cluster-token", "tells clusters apart ['etcd-cluster']"),
    used(
        "advertise-client-urls",
        "where clients reach this member; needed with --listen-client-urls ['http://localhost:2379']",
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
    ignored("discovery-fallback", "there is no discovery service that could fail"),
    ignored("discovery-proxy", NO_DISCOVERY),
    refused("discovery-srv", NO_DISCOVERY),
    ignored("discovery-srv-name", NO_DISCOVERY),
    ignored_switch(
        "strict-reconfig-check",
        "changes that would lose the quorum are always refused",
    ),
    ignored_switch("pre-vote", "it is always on"),
    used("auto-compaction-retention", "how much history is kept; 0 is all of it ['0']"),
    used("auto-compaction-mode", "what that counts: 'periodic' or 'revision' ['periodic']"),
    used("cert-file", "the certificate that clients are shown, PEM, read again when it changes"),
    used("key-file", "its key"),
    used_switch(
        "client-cert-auth",
        "clients must show a certificate, and who shows no token is the user named in it",
    ),
    ignored("client-cert-file", "the server is nobody's client"),
    ignored("client-key-file", "the server is nobody's client"),
    used(
        "client-crl-file",
        "which of clients' certificates were revoked, PEM; a list for each authority",
    ),
    used(
        "client-cert-allowed-hostname",
        "hosts, separated by commas: clients' certificates must be for one of them",
    ),
    used("trusted-ca-file", "who signs clients' certificates: with it, they must show one"),
    used_switch(
        "auto-tls",
        "show clients a certificate that is made at every start, to try it out",
    ),
    used(
        "peer-cert-file",
        "this member's certificate; with the URI bowline://CLUSTER/MEMBER in it, as all should be, others must be \
         named so too",
    ),
    used("peer-key-file", "its key"),
    used_switch(
        "peer-client-cert-auth",
        "members always show each other certificates where they have any",
    ),
    used(
        "peer-client-cert-file",
        "the same file as --peer-cert-file: a member has one certificate",
    ),
    used("peer-client-key-file", "the same file as --peer-key-file"),
    used("peer-trusted-ca-file", "who signs members' certificates"),
    refused("peer-cert-allowed-cn", BY_URI),
    refused("peer-cert-allowed-hostname", BY_URI),
    used_switch(
        "peer-tls-migration",
        "while members move from http:// to https://, one after the other: talk with members with and without TLS",
    ),
    used_switch(
        "peer-auto-tls",
        "members encrypt with certificates that are made at every start, which prove nothing, to try it out",
    ),
    used("self-signed-cert-validity", "for how many years --auto-tls's certificate is good ['1']"),
    used("peer-crl-file", "which of members' certificates were revoked, PEM"),
    ignored_switch(
        "peer-skip-client-san-verification",
        "hosts in members' certificates are not looked at",
    ),
    used(
        "cipher-suites",
        "those of TLS 1.2 that clients may use, by Go's names, separated by commas",
    ),
    used("tls-min-version", "'TLS1.2' or 'TLS1.3', with clients; members speak 1.3 ['TLS1.2']"),
    used("tls-max-version", "'TLS1.2' or 'TLS1.3', with clients ['TLS1.3']"),
    refused_unless_all(
        "cors",
        "the HTTP side answers no preflight requests: put a proxy before it",
    ),
    refused_unless_all(
        "host-whitelist",
        "host names are not looked at: bind --listen-client-urls to where only those reach it who may",
    ),
    used(
        "auth-token",
        "'simple', or 'jwt,sign-method=ES256,priv-key=FILE,pub-key=FILE,ttl=5m': the same on all members ['simple']",
    ),
    used(
        "bcrypt-cost",
        "how long it takes to check a password: each one more takes twice the time ['10']",
    ),
    used("auth-token-ttl", "how many seconds a simple token may go unused ['300']"),
    ignored_switch("enable-pprof", "there is no Go to be profiled: use perf"),
    used(
        "metrics",
        "'basic', or 'extensive', which adds the durations of calls by method ['basic']",
    ),
    used("listen-metrics-urls", "where else to listen for /metrics, /health, /livez and /readyz"),
    ignored("logger", "there is one logger"),
    used(
        "log-outputs",
        "'stderr', 'stdout', 'default', which is stderr, and paths of files, separated by commas ['default']",
    ),
    used("log-level", "'debug', 'info', 'warn' or 'error' ['info']"),
    used("log-format", "'console', lines for people, or 'json', an object a line ['console']"),
    used_switch("enable-log-rotation", "rotate the files of --log-outputs"),
    used(
        "log-rotation-config-json",
        "when, as {\"maxsize\": MIB, \"maxage\": DAYS, \"maxbackups\": FILES, \"localtime\": BOOL, \"compress\": BOOL} \
         ['{\"maxsize\": 100}']",
    ),
    used("warning-unary-request-duration", "a slower request gets a line in the log ['300ms']"),
    refused_switch("enable-distributed-tracing", NO_TRACING),
    ignored("distributed-tracing-address", NO_TRACING),
    ignored("distributed-tracing-service-name", NO_TRACING),
    ignored("distributed-tracing-instance-id", NO_TRACING),
    ignored("distributed-tracing-sampling-rate", NO_TRACING),
    ignored_switch(
        "initial-corrupt-check",
        "replicas compare their digests from the first entry on",
    ),
    ignored_switch("compact-hash-check-enabled", "replicas compare their digests all the time"),
    ignored_switch("stop-grpc-service-on-defrag", "there is nothing to defragment: nobody waits"),
    ignored_switch("txn-mode-write-with-shared-buffer", "transactions copy nothing"),
    ignored_switch("enable-lease-checkpoint", "a new leader gives every lease its full TTL"),
    ignored_switch(
        "enable-lease-checkpoint-persist",
        "a new leader gives every lease its full TTL",
    ),
    ignored("corrupt-check-time", "replicas compare their digests all the time"),
    ignored("compact-hash-check-time", "replicas compare their digests all the time"),
    ignored("compaction-batch-limit", "memory is given back a little with every entry"),
    ignored("compaction-sleep-interval", "memory is given back a little with every entry"),
    used(
        "watch-progress-notify-interval",
        "how often a watch that wants it hears how far it is ['10m']",
    ),
    used(
        "warning-apply-duration",
        "a batch of entries that takes longer to apply gets a line in the log ['100ms']",
    ),
    ignored("bootstrap-defrag-threshold-megabytes", "there is nothing to defragment"),
    ignored("v2-deprecation", "there is no v2 store"),
    // Of no etcd any more, and in its sample of a file still.
    ignored("proxy", NO_PROXY),
    ignored("proxy-failure-wait", NO_PROXY),
    ignored("proxy-refresh-interval", NO_PROXY),
    ignored("proxy-dial-timeout", NO_PROXY),
    ignored("proxy-write-timeout", NO_PROXY),
    ignored("proxy-read-timeout", NO_PROXY),
    used(
        "max-learners",
        "refuse `member add --learner` at this number of learners; without it, 64 members in all",
    ),
    ignored("downgrade-check-time", "there is no downgrade"),
    ignored("snapshot-catchup-entries", "the log keeps what a connected member lacks"),
    refused_switch(
        "force-new-cluster",
        "make a new cluster of what this member has: bowline recover",
    ),
    hidden_switch("unsafe-no-fsync", "every write is synced all the same"),
];

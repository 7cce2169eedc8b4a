//! Systemd units, configuration files and charts of public projects, reduced to the settings that are special about
//! each. For each of them, a server must start with the settings unchanged, serve a write, and stop. Only host names,
//! ports and paths are replaced by the test's own.

use std::process::Command;

use tempfile::tempdir;

use crate::office::{GOOD, Office};
use bowline_testkit::process::{Server, bowline, free_ports};

/// A project's configuration of the server. `$NODE` is the node's address, `$CLIENT`, `$PEER`, `$METRICS` and `$HTTP`
/// are ports, `$DIR` is a directory, and `$CA`, `$CERT` and `$KEY` are certificate files.
struct Project {
    name: &'static str,
    /// Separated by white space.
    arguments: &'static str,
    /// One variable a line.
    environment: &'static str,
    /// The text of `$DIR/etcd.conf`.
    file: &'static str,
    /// The client endpoint.
    endpoint: &'static str,
    /// A warning that the log must contain, or an empty string.
    warning: &'static str,
}

const EMPTY: Project = Project {
    name: "",
    arguments: "",
    environment: "",
    file: "",
    endpoint: "http://127.0.0.1:$CLIENT",
    warning: "",
};

const PROJECTS: [Project; 15] = [
    Project {
        name: "kubespray: a unit with a file of variables",
        environment: "ETCD_DATA_DIR=$DIR/data\nETCD_ADVERTISE_CLIENT_URLS=https://$NODE:$CLIENT\n\
            ETCD_INITIAL_ADVERTISE_PEER_URLS=https://$NODE:$PEER\nETCD_INITIAL_CLUSTER_STATE=new\n\
            ETCD_METRICS=basic\nETCD_LISTEN_CLIENT_URLS=https://$NODE:$CLIENT,https://127.0.0.1:$CLIENT\n\
            ETCD_ELECTION_TIMEOUT=5000\nETCD_HEARTBEAT_INTERVAL=250\nETCD_INITIAL_CLUSTER_TOKEN=k8s_etcd\n\
            ETCD_LISTEN_PEER_URLS=https://$NODE:$PEER\nETCD_NAME=etcd1\nETCD_PROXY=off\n\
            ETCD_INITIAL_CLUSTER=etcd1=https://$NODE:$PEER\nETCD_AUTO_COMPACTION_RETENTION=8\n\
            ETCD_SNAPSHOT_COUNT=100000\nETCD_QUOTA_BACKEND_BYTES=2147483648\nETCD_MAX_REQUEST_BYTES=1572864\n\
            ETCD_LOG_LEVEL=info\nETCD_MAX_SNAPSHOTS=5\nETCD_MAX_WALS=5\nETCD_FLUSH_INTERVAL=\n\
            ETCD_TRUSTED_CA_FILE=$CA\nETCD_CERT_FILE=$CERT\nETCD_KEY_FILE=$KEY\nETCD_CLIENT_CERT_AUTH=true\n\
            ETCD_PEER_TRUSTED_CA_FILE=$CA\nETCD_PEER_CERT_FILE=$CERT\nETCD_PEER_KEY_FILE=$KEY\n\
            ETCD_PEER_CLIENT_CERT_AUTH=True\nETCD_EXPERIMENTAL_INITIAL_CORRUPT_CHECK=True\n\
            ETCD_EXPERIMENTAL_WATCH_PROGRESS_NOTIFY_INTERVAL=5s\n\
            ETCD_EXPERIMENTAL_DISTRIBUTED_TRACING_ADDRESS=localhost:4317\nETCDCTL_ENDPOINTS=https://127.0.0.1:2379\n\
            GOGC=100",
        endpoint: "https://127.0.0.1:$CLIENT",
        ..EMPTY
    },
    Project {
        name: "kubeasz: a unit with arguments, and a port for clients on this machine without TLS",
        arguments: "--name=etcd-1 --cert-file=$CERT --key-file=$KEY --peer-cert-file=$CERT --peer-key-file=$KEY \
            --trusted-ca-file=$CA --peer-trusted-ca-file=$CA --initial-advertise-peer-urls=https://$NODE:$PEER \
            --listen-peer-urls=https://$NODE:$PEER \
            --listen-client-urls=https://$NODE:$CLIENT,http://127.0.0.1:$CLIENT \
            --advertise-client-urls=https://$NODE:$CLIENT --initial-cluster-token=etcd-cluster-0 \
            --initial-cluster=etcd-1=https://$NODE:$PEER --initial-cluster-state=new --data-dir=$DIR/data --wal-dir= \
            --snapshot-count=50000 --auto-compaction-retention=1 --auto-compaction-mode=periodic \
            --max-request-bytes=10485760 --quota-backend-bytes=8589934592",
        warning: "--max-request-bytes is 10485760, more than this server supports",
        ..EMPTY
    },
    Project {
        name: "pigsty: a file that rotates its log",
        arguments: "--config-file=$DIR/etcd.conf",
        file: "name: etcd-1\ndata-dir: $DIR/data\n#enable-v2: yes\ninitial-cluster-token: \"etcd\"\n\
            initial-cluster-state: \"new\"\ninitial-cluster: \"etcd-1=https://$NODE:$PEER\"\n\n\
            initial-advertise-peer-urls: \"https://$NODE:$PEER\"\nlisten-peer-urls: \"https://$NODE:$PEER\"\n\
            listen-client-urls: \"https://$NODE:$CLIENT,https://127.0.0.1:$CLIENT\"\n\
            advertise-client-urls: \"https://$NODE:$CLIENT\"\nelection-timeout: 1000\nheartbeat-interval: 100\n\
            # 16 GiB\nquota-backend-bytes: 17179869184\nauto-compaction-mode: periodic\n\
            auto-compaction-retention: \"24h\"\nclient-transport-security:\n  cert-file: \"$CERT\"\n  \
            key-file:  \"$KEY\"\n  trusted-ca-file: \"$CA\"\npeer-transport-security:\n  cert-file: \"$CERT\"\n  \
            key-file:  \"$KEY\"\n  trusted-ca-file: \"$CA\"\nlogger: zap\nlog-level: info\nlog-format: json\n\
            log-outputs:\n  - \"$DIR/etcd.log\"\nenable-log-rotation: true\n\
            log-rotation-config-json: '{\"maxsize\": 100, \"maxage\": 14, \"maxbackups\": 0, \"localtime\": true, \"compress\": true}'\n",
        endpoint: "https://127.0.0.1:$CLIENT",
        ..EMPTY
    },
    Project {
        name: "autobase: variables in quotes of a shell",
        environment: "ETCD_NAME=pgnode01\nETCD_LISTEN_CLIENT_URLS=http://$NODE:$CLIENT,http://127.0.0.1:$CLIENT\n\
            ETCD_ADVERTISE_CLIENT_URLS=http://$NODE:$CLIENT\nETCD_LISTEN_PEER_URLS=http://$NODE:$PEER\n\
            ETCD_INITIAL_ADVERTISE_PEER_URLS=http://$NODE:$PEER\nETCD_INITIAL_CLUSTER_TOKEN=etcd-postgres-cluster\n\
            ETCD_INITIAL_CLUSTER=pgnode01=http://$NODE:$PEER\nETCD_INITIAL_CLUSTER_STATE=new\n\
            ETCD_DATA_DIR=$DIR/data\nETCD_ELECTION_TIMEOUT=5000\nETCD_HEARTBEAT_INTERVAL=1000\n\
            ETCD_INITIAL_ELECTION_TICK_ADVANCE=false\nETCD_AUTO_COMPACTION_RETENTION=1\nETCD_ENABLE_V2=true\n\
            GOMAXPROCS=2",
        warning: "unknown environment variable ETCD_ENABLE_V2",
        ..EMPTY
    },
    Project {
        name: "Debian: a unit with a name and a directory, and a file with few variables",
        environment: "ETCD_NAME=host\nETCD_DATA_DIR=$DIR/default\nETCD_UNSUPPORTED_ARCH=arm64\n\
            ETCD_LISTEN_PEER_URLS=http://localhost:$PEER\nETCD_LISTEN_CLIENT_URLS=http://localhost:$CLIENT\n\
            ETCD_ADVERTISE_CLIENT_URLS=http://localhost:$CLIENT\nETCD_DISCOVERY=\nETCD_WAL_DIR=\nETCD_CORS=\n\
            ETCD_INITIAL_CLUSTER=host=http://localhost:$PEER\n\
            ETCD_INITIAL_ADVERTISE_PEER_URLS=http://localhost:$PEER\nDAEMON_ARGS=",
        endpoint: "http://localhost:$CLIENT",
        ..EMPTY
    },
    Project {
        name: "Bitnami's chart: variables of the container beside those of etcd",
        environment: "BITNAMI_DEBUG=false\nALLOW_NONE_AUTHENTICATION=yes\nETCD_ON_K8S=yes\nETCD_NAME=etcd-0\n\
            ETCD_DATA_DIR=$DIR/data\nETCD_LOG_LEVEL=info\nETCD_AUTH_TOKEN=simple\nETCD_PREUPGRADE_START_DELAY=15\n\
            ETCD_ADVERTISE_CLIENT_URLS=http://etcd-0.etcd-headless.default.svc:$CLIENT,http://etcd.default.svc:$CLIENT\n\
            ETCD_LISTEN_CLIENT_URLS=http://0.0.0.0:$CLIENT\nETCD_LISTEN_PEER_URLS=http://0.0.0.0:$PEER\n\
            ETCD_INITIAL_ADVERTISE_PEER_URLS=http://localhost:$PEER\nETCD_INITIAL_CLUSTER_TOKEN=etcd-cluster-k8s\n\
            ETCD_INITIAL_CLUSTER_STATE=new\nETCD_INITIAL_CLUSTER=etcd-0=http://localhost:$PEER\n\
            ETCD_LISTEN_METRICS_URLS=http://0.0.0.0:$METRICS\nETCD_AUTO_COMPACTION_MODE=revision\n\
            ETCD_AUTO_COMPACTION_RETENTION=1000\nETCD_CLUSTER_DOMAIN=etcd-headless.default.svc\n\
            ETCD_START_FROM_SNAPSHOT=no\nETCD_DISASTER_RECOVERY=no",
        warning: "unknown environment variable ETCD_ON_K8S",
        ..EMPTY
    },
    Project {
        name: "kubeadm: a static pod of Kubernetes 1.31",
        arguments: "--advertise-client-urls=https://$NODE:$CLIENT --cert-file=$CERT --client-cert-auth=true \
            --data-dir=$DIR/data --experimental-initial-corrupt-check=true \
            --experimental-watch-progress-notify-interval=5s --initial-advertise-peer-urls=https://$NODE:$PEER \
            --initial-cluster=master=https://$NODE:$PEER --key-file=$KEY \
            --listen-client-urls=https://127.0.0.1:$CLIENT,https://$NODE:$CLIENT \
            --listen-metrics-urls=http://127.0.0.1:$METRICS --listen-peer-urls=https://$NODE:$PEER --name=master \
            --peer-cert-file=$CERT --peer-client-cert-auth=true --peer-key-file=$KEY --peer-trusted-ca-file=$CA \
            --snapshot-count=10000 --trusted-ca-file=$CA",
        endpoint: "https://127.0.0.1:$CLIENT",
        ..EMPTY
    },
    Project {
        name: "kubeadm: a static pod of Kubernetes 1.34, and what Kubernetes' own tests add",
        arguments: "--advertise-client-urls=https://$NODE:$CLIENT --cert-file=$CERT --client-cert-auth=true \
            --data-dir=$DIR/data --feature-gates=InitialCorruptCheck=true --initial-advertise-peer-urls=https://$NODE:$PEER \
            --initial-cluster=master=https://$NODE:$PEER --key-file=$KEY \
            --listen-client-urls=https://127.0.0.1:$CLIENT,https://$NODE:$CLIENT \
            --listen-metrics-urls=http://127.0.0.1:$METRICS --listen-peer-urls=https://$NODE:$PEER --name=master \
            --peer-cert-file=$CERT --peer-client-cert-auth=true --peer-key-file=$KEY --peer-trusted-ca-file=$CA \
            --snapshot-count=10000 --trusted-ca-file=$CA --watch-progress-notify-interval=5s --max-txn-ops=10240 \
            --unsafe-no-fsync --log-level=INFO",
        endpoint: "https://127.0.0.1:$CLIENT",
        warning: "--max-txn-ops is 10240, more than this server supports",
        ..EMPTY
    },
    Project {
        name: "k3s and RKE2: a file as Go writes it, with two peer URLs and a port for JSON",
        arguments: "--config-file=$DIR/etcd.conf",
        file: "advertise-client-urls: https://$NODE:$CLIENT\nclient-transport-security:\n  cert-file: $CERT\n  \
            client-cert-auth: true\n  key-file: $KEY\n  trusted-ca-file: $CA\ndata-dir: $DIR/data\n\
            election-timeout: 5000\nexperimental-initial-corrupt-check: true\n\
            experimental-watch-progress-notify-interval: 5000000000\nheartbeat-interval: 500\n\
            initial-advertise-peer-urls: https://$NODE:$PEER\ninitial-cluster: node-1a2b=https://$NODE:$PEER\n\
            initial-cluster-state: new\nlisten-client-http-urls: https://127.0.0.1:$HTTP\n\
            listen-client-urls: https://127.0.0.1:$CLIENT,https://$NODE:$CLIENT\n\
            listen-metrics-urls: http://127.0.0.1:$METRICS\n\
            listen-peer-urls: https://127.0.0.1:$PEER,https://$NODE:$PEER\nlog-outputs:\n- stderr\nlogger: zap\n\
            name: node-1a2b\npeer-transport-security:\n  cert-file: $CERT\n  client-cert-auth: true\n  \
            key-file: $KEY\n  trusted-ca-file: $CA\nsnapshot-count: 10000\n",
        endpoint: "https://127.0.0.1:$CLIENT",
        ..EMPTY
    },
    Project {
        name: "Patroni: a service of Docker Compose",
        arguments: "--name etcd1 --initial-advertise-peer-urls http://localhost:$PEER",
        environment: "ETCD_LISTEN_PEER_URLS=http://0.0.0.0:$PEER\nETCD_LISTEN_CLIENT_URLS=http://0.0.0.0:$CLIENT\n\
            ETCD_ADVERTISE_CLIENT_URLS=http://localhost:$CLIENT\nETCD_INITIAL_CLUSTER=etcd1=http://localhost:$PEER\n\
            ETCD_INITIAL_CLUSTER_STATE=new\nETCD_INITIAL_CLUSTER_TOKEN=tutorial\nETCD_UNSUPPORTED_ARCH=arm64\n\
            ETCDCTL_API=3",
        ..EMPTY
    },
    Project {
        name: "Cilium: the store of its mesh, with an address of IPv4 in brackets",
        arguments: "--data-dir=$DIR/data --name=clustermesh-apiserver --client-cert-auth --trusted-ca-file=$CA \
            --cert-file=$CERT --key-file=$KEY \
            --listen-client-urls=https://127.0.0.1:$CLIENT,https://[$NODE]:$CLIENT \
            --advertise-client-urls=https://[$NODE]:$CLIENT --initial-cluster-token=clustermesh-apiserver \
            --listen-peer-urls=http://localhost:$PEER --initial-advertise-peer-urls=http://localhost:$PEER \
            --initial-cluster=clustermesh-apiserver=http://localhost:$PEER \
            --auto-compaction-retention=1 --listen-metrics-urls=http://[$NODE]:$METRICS --metrics=extensive",
        endpoint: "https://127.0.0.1:$CLIENT",
        ..EMPTY
    },
    Project {
        name: "Calico: a set of pods with ports of its own",
        arguments: "--name=calico --data-dir=$DIR/calico-data --advertise-client-urls=http://$NODE:$CLIENT \
            --listen-client-urls=http://0.0.0.0:$CLIENT --listen-peer-urls=http://0.0.0.0:$PEER \
            --initial-advertise-peer-urls=http://localhost:$PEER --initial-cluster=calico=http://localhost:$PEER \
            --auto-compaction-retention=1",
        environment: "CALICO_ETCD_IP=$NODE",
        ..EMPTY
    },
    Project {
        name: "OpenStack Kolla: a container with a file for its output",
        environment: "KOLLA_CONFIG_STRATEGY=COPY_ALWAYS\nETCD_DATA_DIR=$DIR/data\nETCD_NAME=control01\n\
            ETCD_ADVERTISE_CLIENT_URLS=http://$NODE:$CLIENT\nETCD_LISTEN_CLIENT_URLS=http://$NODE:$CLIENT\n\
            ETCD_INITIAL_ADVERTISE_PEER_URLS=http://$NODE:$PEER\nETCD_LISTEN_PEER_URLS=http://$NODE:$PEER\n\
            ETCD_INITIAL_CLUSTER_TOKEN=etcd-cluster-0\nETCD_INITIAL_CLUSTER=control01=http://$NODE:$PEER\n\
            ETCD_INITIAL_CLUSTER_STATE=new\nETCD_OUT_FILE=$DIR/out.log\nETCD_LOGGER=zap\n\
            ETCD_LOG_OUTPUTS=stderr,$DIR/etcd.log\nETCD_LOG_LEVEL=debug",
        endpoint: "http://$NODE:$CLIENT",
        warning: "unknown environment variable ETCD_OUT_FILE",
        ..EMPTY
    },
    Project {
        name: "Flatcar: the unit of a member with what a drop-in adds",
        arguments: "--name=3f2a --listen-peer-urls=http://$NODE:$PEER --initial-cluster=3f2a=http://$NODE:$PEER \
            --listen-client-urls=http://0.0.0.0:$CLIENT --advertise-client-urls=http://$NODE:$CLIENT \
            --initial-advertise-peer-urls=http://$NODE:$PEER",
        environment: "ETCD_IMAGE_TAG=v3.5.0\nETCD_NAME=machine\nETCD_USER=etcd\nETCD_DATA_DIR=$DIR/data\n\
            ETCD_SSL_DIR=/etc/ssl/certs\nETCD_OPTS=\nETCD_STRICT_RECONFIG_CHECK=true\nETCD_PEER_AUTO_TLS=true",
        warning: "--peer-auto-tls has no effect",
        ..EMPTY
    },
    Project {
        name: "etcd's sample: every setting, most of them empty",
        arguments: "--config-file $DIR/etcd.conf",
        file: "# This is the configuration file for the etcd server.\n\nname: 'default'\ndata-dir: $DIR/data\nwal-dir:\n\
            snapshot-count: 10000\nheartbeat-interval: 100\nelection-timeout: 1000\nquota-backend-bytes: 0\n\
            listen-peer-urls: http://localhost:$PEER\nlisten-client-urls: http://localhost:$CLIENT\n\
            max-snapshots: 5\nmax-wals: 5\ncors:\ninitial-advertise-peer-urls: http://localhost:$PEER\n\
            advertise-client-urls: http://localhost:$CLIENT\ndiscovery:\n# 'exit' or 'proxy'\n\
            discovery-fallback: 'proxy'\ndiscovery-proxy:\ndiscovery-srv:\n\
            initial-cluster: default=http://localhost:$PEER\ninitial-cluster-token: 'etcd-cluster'\n\
            initial-cluster-state: 'new'\nstrict-reconfig-check: false\nenable-v2: true\nenable-pprof: true\n\
            proxy: 'off'\nproxy-failure-wait: 5000\nproxy-refresh-interval: 30000\nproxy-dial-timeout: 1000\n\
            proxy-write-timeout: 5000\nproxy-read-timeout: 0\nclient-transport-security:\n  ca-file:\n  cert-file:\n  \
            key-file:\n  client-cert-auth: false\n  trusted-ca-file:\n  auto-tls: false\n\
            peer-transport-security:\n  ca-file:\n  cert-file:\n  key-file:\n  client-cert-auth: false\n  \
            trusted-ca-file:\n  auto-tls: false\n  allowed-cn:\n  allowed-hostname:\ndebug: false\n\
            log-package-levels:\nself-signed-cert-validity: 1\nlog-level: debug\nlogger: zap\n\
            log-outputs: [stderr]\nforce-new-cluster: false\nauto-compaction-mode: periodic\n\
            auto-compaction-retention: \"1\"\ncipher-suites: [\n  TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, # one\n  \
            TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384\n]\ntls-min-version: 'TLS1.2'\ntls-max-version: 'TLS1.3'\n",
        endpoint: "http://localhost:$CLIENT",
        warning: "unknown settings are ignored: \"enable-v2\" (line",
        ..EMPTY
    },
];

#[test]
fn configurations_of_public_projects_start_unchanged() {
    let mut office = Office::new();
    let card = office.issue(GOOD);
    for project in &PROJECTS {
        let dir = tempdir().unwrap();
        let [client, peer, metrics, http] = free_ports();
        let ports = [("$CLIENT", client), ("$PEER", peer), ("$METRICS", metrics), ("$HTTP", http)];
        let files = [("$CA", &office.ca()), ("$CERT", &card.cert), ("$KEY", &card.key)];
        let filled = |text: &str| {
            let mut text = text.replace("$NODE", "127.0.0.2");
            for (name, port) in ports {
                text = text.replace(name, &port.to_string());
            }
            for (name, path) in files {
                text = text.replace(name, path.to_str().unwrap());
            }
            text.replace("$DIR", dir.path().to_str().unwrap())
        };
        std::fs::write(dir.path().join("etcd.conf"), filled(project.file)).unwrap();
        let mut command = bowline();
        command.arg("serve").args(filled(project.arguments).split_whitespace());
        command.current_dir(dir.path());
        for variable in filled(project.environment).lines() {
            let (name, value) = variable.split_once('=').unwrap();
            command.env(name, value);
        }
        let server = Server::run(command, client).ready();
        let tls = ["--cacert=$CA", "--cert=$CERT", "--key=$KEY"].map(filled);
        let endpoint = format!("--endpoints={}", filled(project.endpoint));
        let ask = |words: &[&str]| {
            let mut command: Command = bowline();
            command.args(words).arg(&endpoint).args(&tls).arg("--command-timeout=60s");
            let done = command.output().unwrap();
            assert!(done.status.success(), "{}: {done:?}", project.name);
            String::from_utf8(done.stdout).unwrap()
        };
        ask(&["put", "k", project.name]);
        assert_eq!(ask(&["get", "k", "--print-value-only"]).trim_end(), project.name);
        let (status, log) = server.stop();
        assert!(status.success(), "{}: {log}", project.name);
        assert!(log.contains(project.warning), "{}: {log}", project.name);
    }
}

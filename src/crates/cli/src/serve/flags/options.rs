//! The server's options, parsed from the flags and checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline::{
    Config, Limits,
    cluster::{History, PeerProof, PeerTls},
};
use bowline_server::{
    EtcdVersion, LearnerCalls, LearnerSettings, ListenerScope, Origins, Settings, TlsSettings,
    WebSettings,
};

use super::error::FlagError;
use super::gates;
use super::log::LogOptions;
use super::parse::{capped, duration, number, split, switch, switch_or, wrong};
use super::secure::{client_tls, peer_tls};
use super::tokens::TokenKind;
use super::urls::{Door, Url, addresses, urls};
use super::values::Values;
use crate::usage::go_duration;

/// Largest `--max-request-bytes` that the library accepts. Larger requests would delay all others.
const REQUEST_BYTES_CEILING: usize = 3 << 20;

/// Largest `--max-txn-ops` that the library accepts.
const TXN_OPS_CEILING: usize = 10_000;

/// Default cost of password hashes.
const BCRYPT_COST: u32 = 10;

/// Options of a server.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) data_dir: PathBuf,
    /// Addresses to listen on for clients.
    pub(crate) listen_clients: Vec<Url>,
    /// The addresses in `listen_clients` with the services offered at each, and further addresses for HTTP.
    pub(crate) doors: Vec<Door>,
    /// TLS settings for clients, if any address uses TLS.
    pub(crate) client_tls: Option<TlsSettings>,
    /// Warnings for the operator.
    pub(crate) warnings: Vec<String>,
    /// Client URLs to advertise, as given.
    pub(crate) advertise_clients: Vec<String>,
    /// Settings of the server for clients.
    pub(crate) settings: Settings,
    /// Kind of the tokens that users get at login.
    pub(crate) tokens: TokenKind,
    pub(crate) log: LogOptions,
    bootstrap: Bootstrap,
    /// Whether to start empty next to etcd's data.
    pub(crate) ignore_etcd_data: bool,
    history: History,
    slow: SlowLimits,
    /// Release of etcd to announce to clients.
    pub(crate) announced: EtcdVersion,
}

/// Durations above which the log has a line for a slow operation.
#[derive(Clone, Copy, Debug)]
struct SlowLimits {
    request: Duration,
    apply: Duration,
}

/// How the member finds the others.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Bootstrap {
    members: Vec<(String, String)>,
    listen: String,
    advertise: String,
    joins: bool,
    token: String,
    tls: Option<PeerTls>,
}

impl Options {
    /// Reads the options from the flags.
    ///
    /// # Errors
    /// Fails at the first invalid value.
    pub(crate) fn new(values: &Values) -> Result<Self, FlagError> {
        let text = |name, default: &str| values.get(name).unwrap_or(default).to_owned();
        let name = text("name", "default");
        // The library's limits are combined with etcd's: at least five heartbeats per election timeout, and at most 50
        // s.
        let millis = |name: &'static str, default: u64, least, most| {
            number(values, name, default, least, most).map(Duration::from_millis)
        };
        let heartbeat = millis("heartbeat-interval", 100, 4, 10_000)?;
        let election_timeout = millis("election-timeout", 1000, 20, 50_000)?;
        if election_timeout < heartbeat * 5 {
            return Err(FlagError::Together(format!(
                "--election-timeout ({election_timeout:?}) must be at least five times --heartbeat-interval \
                 ({heartbeat:?})"
            )));
        }
        let quota_bytes = match number(values, "quota-backend-bytes", 0, i64::MIN, i64::MAX)? {
            0 => 2 << 30,
            // As in etcd, a negative number means no quota.
            negative if negative < 0 => u64::MAX,
            // The library requires at least 1024.
            few @ 1..1024 => {
                let must = "at least 1024 bytes, 0 for 2 GiB, or less than 0 for no quota";
                return Err(wrong("quota-backend-bytes", &few.to_string(), must));
            }
            bytes => bytes.unsigned_abs(),
        };
        let listen = text("listen-client-urls", "http://localhost:2379");
        let advertise = text("advertise-client-urls", "http://localhost:2379");
        let listen_clients = urls("listen-client-urls", &listen)?;
        urls("advertise-client-urls", &advertise)?;
        // As in etcd, settings missing in a file silently get their defaults.
        let is_given = |name| values.get(name).is_some() && !values.is_of_file();
        if is_given("listen-client-urls") && values.get("advertise-client-urls").is_none() {
            return Err(FlagError::Together(
                "--advertise-client-urls is required when --listen-client-urls is set explicitly"
                    .into(),
            ));
        }
        let doors = doors(values, &listen_clients)?;
        let (client_tls, mut warnings) = client_tls(values, &doors)?;
        warnings.extend(gates::idle(values)?);
        let ping_after = duration(values, "grpc-keepalive-interval", Duration::from_secs(7200))?;
        let ping_timeout = duration(values, "grpc-keepalive-timeout", Duration::from_secs(20))?;
        let data_dir = PathBuf::from(text("data-dir", &format!("{name}.etcd")));
        check_wal_dir(values, &data_dir)?;
        let bootstrap = Bootstrap::new(values, &name, &data_dir, &mut warnings)?;
        let (tokens, more) = TokenKind::new(values)?;
        warnings.extend(more);
        let (log, more) = LogOptions::new(values)?;
        warnings.extend(more);
        let request_bytes_max =
            capped(values, "max-request-bytes", 1_572_864, REQUEST_BYTES_CEILING, &mut warnings)?;
        let txn_ops_max = capped(values, "max-txn-ops", 128, TXN_OPS_CEILING, &mut warnings)?;
        let settings = Settings {
            heartbeat,
            election_timeout,
            request_bytes_max,
            txn_ops_max,
            bcrypt_cost: bcrypt_cost(values, &mut warnings)?,
            quota_bytes,
            progress_interval: duration(
                values,
                "watch-progress-notify-interval",
                Duration::from_secs(600),
            )?
            .max(Duration::from_millis(100)),
            // As in etcd, 0 means no limit.
            streams_max: match number(values, "max-concurrent-streams", u32::MAX, 0, u32::MAX)? {
                0 => u32::MAX,
                most => most,
            },
            metrics_extensive: match values.get("metrics") {
                None | Some("basic" | "") => false,
                Some("extensive") => true,
                Some(other) => return Err(wrong("metrics", other, "basic or extensive")),
            },
            learners: learners(values)?,
            web: WebSettings {
                offers_json: switch_or(values, "enable-grpc-gateway", true)?,
                origins: origins(values)?,
            },
            // As in etcd, 0 in either flag disables pings.
            ping_after: (!ping_after.is_zero() && !ping_timeout.is_zero()).then_some(ping_after),
            ping_timeout,
            peers_use_tls: bootstrap.tls.is_some(),
            snapshot_dir: data_dir.clone(),
        };
        Ok(Self {
            bootstrap,
            ignore_etcd_data: switch(values, "ignore-etcd-data")?,
            data_dir,
            listen_clients,
            doors,
            client_tls,
            warnings,
            advertise_clients: split(&advertise),
            settings,
            tokens,
            log,
            history: history(values)?,
            slow: SlowLimits {
                request: duration(
                    values,
                    "warning-unary-request-duration",
                    Duration::from_millis(300),
                )?,
                apply: duration(values, "warning-apply-duration", Duration::from_millis(100))?,
            },
            announced: match values.get("announce-version") {
                None | Some("3.7") => EtcdVersion::V3_7,
                Some("3.6") => EtcdVersion::V3_6,
                Some(other) => return Err(wrong("announce-version", other, "3.6 or 3.7")),
            },
            name,
        })
    }

    /// Returns the paths of the self-signed certificate and key for members that must be created before the start, if
    /// any.
    pub(crate) fn makes_peer_files(&self) -> Option<(&Path, &Path)> {
        let tls = self.bootstrap.tls.as_ref();
        let tls = tls.filter(|tls| tls.proof == PeerProof::Nothing)?;
        Some((&tls.cert, &tls.key))
    }

    /// Returns the library's configuration.
    pub(crate) fn config(&self) -> Config {
        let Bootstrap { members, listen, advertise, joins, token, tls } = &self.bootstrap;
        let Settings { heartbeat, election_timeout, request_bytes_max, txn_ops_max, .. } =
            self.settings.clone();
        let limits = Limits {
            // etcd limits only the request as a whole. If the configured limit is below the library's minimum, only
            // the server enforces it.
            key_bytes_max: request_bytes_max.max(Limits::KEY_BYTES_LEAST),
            value_bytes_max: request_bytes_max.max(Limits::VALUE_BYTES_LEAST),
            // The server's limit includes the encoding overhead. The library's limit is larger, so that the library
            // never rejects a request for its size that the server has accepted.
            request_bytes_max: (request_bytes_max + request_bytes_max / 8)
                .clamp(Limits::REQUEST_BYTES_LEAST, REQUEST_BYTES_CEILING),
            txn_ops_max: txn_ops_max.max(Limits::TXN_OPS_LEAST),
            txn_depth_max: Limits::TXN_DEPTH_CEILING,
            ..Limits::default()
        };
        let config = Config::new(&self.data_dir, &self.name)
            .listen(listen)
            .advertise(advertise)
            .endpoints(self.advertise_clients.iter().cloned())
            .cluster_token(token)
            // If there are no certificates, the operator has explicitly chosen insecure connections by http:// URLs or
            // by --peer-auto-tls.
            .insecure_peers(tls.is_none() || self.makes_peer_files().is_some())
            .heartbeat(heartbeat)
            .election_timeout(election_timeout)
            .session_ttl((election_timeout * 4).max(Duration::from_secs(5)))
            .call_deadline(self.settings.request_timeout())
            .quota_bytes(self.settings.quota_bytes)
            .history(self.history.clone())
            .slow_request(self.slow.request)
            .slow_apply(self.slow.apply)
            .limits(limits);
        let config = match tls {
            Some(files) => config.peer_tls(files.clone()),
            None => config,
        };
        if *joins && !self.joins_no_other() {
            let others = members.iter().filter(|(name, _)| *name != self.name);
            config.join(others.flat_map(|(_, list)| list.split(',').map(str::to_owned)))
        } else {
            config.members(members.iter().cloned())
        }
    }

    /// Returns whether the member is to join a cluster but no other member is named. That is an error only with a new
    /// data directory.
    pub(crate) fn joins_no_other(&self) -> bool {
        let Bootstrap { members, joins, .. } = &self.bootstrap;
        *joins && members.iter().all(|(name, _)| *name == self.name)
    }
}

impl Bootstrap {
    fn new(
        values: &Values,
        name: &str,
        data_dir: &Path,
        warnings: &mut Vec<String>,
    ) -> Result<Self, FlagError> {
        let text = |name, default: &str| values.get(name).unwrap_or(default).to_owned();
        let advertised = text("initial-advertise-peer-urls", "http://localhost:2380");
        let advertise = urls("initial-advertise-peer-urls", &advertised)?;
        let listen = text("listen-peer-urls", "http://localhost:2380");
        let listen = urls("listen-peer-urls", &listen)?;
        let own = advertise.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>();
        let cluster = text("initial-cluster", &own.join(","));
        // A member with several URLs is listed once for each.
        let mut members: Vec<(String, Vec<Url>)> = Vec::new();
        for member in split(&cluster) {
            let must = "of the form name=url,name=url";
            let (member, url) =
                member.split_once('=').ok_or_else(|| wrong("initial-cluster", &cluster, must))?;
            let url = urls("initial-cluster", url)?;
            match members.iter_mut().find(|(known, _)| known == member) {
                Some((_, known)) => known.extend(url),
                None => members.push((member.to_owned(), url)),
            }
        }
        let of_members = members.iter().flat_map(|(_, urls)| urls);
        let all: Vec<_> = (listen.iter().map(|url| ("listen-peer-urls", url.clone())))
            .chain(advertise.iter().map(|url| ("initial-advertise-peer-urls", url.clone())))
            .chain(of_members.map(|url| ("initial-cluster", url.clone())))
            .collect();
        let members: Vec<(String, String)> =
            members.iter().map(|(name, urls)| (name.clone(), addresses(urls))).collect();
        let tls = peer_tls(values, &all, data_dir, warnings)?;
        let advertise = addresses(&advertise);
        let listen: Vec<_> = listen.into_iter().map(|url| url.address).collect();
        let listen = listen.join(",");
        let joins = match values.raw("initial-cluster-state").unwrap_or("new") {
            "new" => false,
            "existing" => true,
            other => return Err(wrong("initial-cluster-state", other, "new or existing")),
        };
        let token = text("initial-cluster-token", "etcd-cluster");
        Ok(Self { members, listen, advertise, joins, token, tls })
    }
}

/// Rejects a log directory outside the data directory, where the log always is.
fn check_wal_dir(values: &Values, data_dir: &Path) -> Result<(), FlagError> {
    let Some(wal_dir) = values.get("wal-dir") else { return Ok(()) };
    if [data_dir, &data_dir.join("wal"), &data_dir.join("member/wal")].contains(&Path::new(wal_dir))
    {
        return Ok(());
    }
    Err(FlagError::Together(format!(
        "--wal-dir={wal_dir} is not supported: the log is kept in --data-dir, which is {}; omit --wal-dir",
        data_dir.display()
    )))
}

/// Returns the addresses to listen on, with the services offered at each.
fn doors(values: &Values, listen_clients: &[Url]) -> Result<Vec<Door>, FlagError> {
    let listed = |name| match values.get(name) {
        None => Ok(Vec::new()),
        Some(list) => urls(name, list),
    };
    let http = listed("listen-client-http-urls")?;
    let health = listed("listen-metrics-urls")?;
    let of_clients = if http.is_empty() { ListenerScope::All } else { ListenerScope::Grpc };
    let at = |urls: &[Url], scope| {
        urls.iter().map(|url| Door { url: url.clone(), scope }).collect::<Vec<_>>()
    };
    Ok([
        at(listen_clients, of_clients),
        at(&http, ListenerScope::Http),
        at(&health, ListenerScope::Health),
    ]
    .concat())
}

/// Returns the limits and services of learners.
fn learners(values: &Values) -> Result<LearnerSettings, FlagError> {
    let max = match number(values, "max-learners", usize::MAX, 1, usize::MAX)? {
        usize::MAX => None,
        most => Some(most),
    };
    let calls = match values.get("learner-calls") {
        None | Some("watch") => LearnerCalls::Watch,
        Some("etcd") => LearnerCalls::Etcd,
        Some("watch,range") => LearnerCalls::WatchAndRange,
        Some(other) => return Err(wrong("learner-calls", other, "etcd, watch, or watch,range")),
    };
    Ok(LearnerSettings { max, calls })
}

/// Returns the origins of the web pages that may use the server.
fn origins(values: &Values) -> Result<Origins, FlagError> {
    let listed = split(values.get("cors").unwrap_or("*"));
    if listed.iter().any(|origin| origin == "*") {
        return Ok(Origins::Any);
    }
    let is_origin = |origin: &String| {
        let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@']))
    };
    match listed.iter().find(|origin| !is_origin(origin)) {
        None => Ok(Origins::Only(listed.into_iter().collect())),
        Some(other) => {
            Err(wrong("cors", other, "'*', or origins such as https://example.com:8443"))
        }
    }
}

/// Returns the cost of password hashes. As in etcd, a cost that bcrypt does not support is replaced by the default.
fn bcrypt_cost(values: &Values, warnings: &mut Vec<String>) -> Result<u32, FlagError> {
    let asked = number(values, "bcrypt-cost", u64::from(BCRYPT_COST), 0, u64::MAX)?;
    let cost = u32::try_from(asked).ok().filter(|cost| (4..=31).contains(cost));
    Ok(cost.unwrap_or_else(|| {
        warnings.push(format!("--bcrypt-cost is {asked}, not 4 to 31: using {BCRYPT_COST}"));
        BCRYPT_COST
    }))
}

/// Returns how much history to keep.
fn history(values: &Values) -> Result<History, FlagError> {
    const NAME: &str = "auto-compaction-retention";
    let value = values.get(NAME).unwrap_or("0");
    let mode = values.get("auto-compaction-mode").unwrap_or("periodic");
    match mode {
        "periodic" => {
            let window = match value.parse::<u64>() {
                // A bare number is in hours.
                Ok(hours) => Some(Duration::from_secs(hours.saturating_mul(3600))),
                Err(_) => go_duration(value),
            };
            let must = "a duration such as 5m or 1h, at least 1s, or a number of hours";
            match window.ok_or_else(|| wrong(NAME, value, must))? {
                Duration::ZERO => Ok(History::keep_all()),
                window if window < Duration::from_secs(1) => Err(wrong(NAME, value, must)),
                window => Ok(History::keep_all().window(window)),
            }
        }
        "revision" => match value.parse::<u64>() {
            Ok(0) => Ok(History::keep_all()),
            Ok(revisions) => Ok(History::keep_all().revisions_max(revisions)),
            Err(_) => Err(wrong(NAME, value, "a number of revisions")),
        },
        other => Err(wrong("auto-compaction-mode", other, "periodic or revision")),
    }
}

#[cfg(test)]
mod tests {
    use bowline::{Blocking, Node};

    use super::super::table::{FLAGS, Fate};
    use super::*;

    fn options(arguments: &[&str]) -> Result<Options, FlagError> {
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Options::new(&Values::read(&arguments, std::iter::empty())?)
    }

    #[test]
    fn defaults_match_etcd() {
        let options = options(&[]).unwrap();
        assert_eq!(options.data_dir, PathBuf::from("default.etcd"));
        let listens: Vec<_> = options.listen_clients.iter().map(Url::to_string).collect();
        assert_eq!(listens, ["http://localhost:2379"]);
        assert!(options.client_tls.is_none() && options.warnings.is_empty());
        assert_eq!(options.settings.request_timeout(), Duration::from_secs(7));
        assert_eq!(options.settings.quota_bytes, 2 << 30);
        let member = ("default".to_owned(), "localhost:2380".to_owned());
        assert_eq!(options.bootstrap.members, [member]);
        assert_eq!(options.history, History::keep_all());
    }

    #[test]
    fn only_a_file_accepts_durations_without_a_unit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.yaml");
        std::fs::write(&path, "grpc-keepalive-interval: 7200000000000").unwrap();
        let path = format!("--config-file={}", path.display());
        assert_eq!(options(&[&path]).unwrap().settings.ping_after, Some(Duration::from_secs(7200)));
        let error = options(&["--grpc-keepalive-interval=7200"]).unwrap_err().to_string();
        assert!(error.contains("a duration such as 300ms"), "{error}");
        // 0 in either flag disables pings.
        for off in ["--grpc-keepalive-interval=0", "--grpc-keepalive-timeout=0"] {
            assert_eq!(options(&[off]).unwrap().settings.ping_after, None, "{off}");
        }
    }

    #[test]
    fn advertise_urls_are_required_with_explicit_listen_urls() {
        let listen = "--listen-client-urls=http://10.0.0.1:2379";
        let error = options(&[listen]).unwrap_err().to_string();
        let words =
            "--advertise-client-urls is required when --listen-client-urls is set explicitly";
        assert_eq!(error, words);
        assert!(options(&[listen, "--advertise-client-urls=http://h:2379"]).is_ok());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.yaml");
        std::fs::write(&path, "listen-client-urls: http://10.0.0.1:2379").unwrap();
        let path = format!("--config-file={}", path.display());
        assert_eq!(options(&[&path]).unwrap().advertise_clients, ["http://localhost:2379"]);
    }

    #[test]
    fn invalid_flags_are_rejected_with_a_reason() {
        let cases: [(&[&str], &str); 18] = [
            (&["--election-timeout=400"], "must be at least five times --heartbeat-interval"),
            (&["--heartbeat-interval=x"], "must be 4 to 10000 milliseconds"),
            (&["--heartbeat-interval=3"], "must be 4 to 10000 milliseconds"),
            (&["--heartbeat-interval=10001"], "must be 4 to 10000 milliseconds"),
            (&["--election-timeout=50001"], "must be 20 to 50000 milliseconds"),
            (&["--quota-backend-bytes=1"], "must be at least 1024 bytes, 0 for 2 GiB"),
            (&["--quota-backend-bytes=1023"], "must be at least 1024 bytes, 0 for 2 GiB"),
            (&["--listen-client-urls=ftp://h:1"], "of the form http://host:port or https://"),
            (&["--listen-client-urls=unix://"], "of the form http://host:port or https://"),
            (&["--listen-peer-urls=unix://h:1"], "members connect over TCP"),
            (&["--listen-client-urls=http://h"], "of the form http://host:port"),
            (&["--initial-cluster=a"], "name=url,name=url"),
            (&["--initial-cluster-state=old"], "new or existing"),
            (&["--auto-compaction-mode=yearly"], "periodic or revision"),
            (&["--max-request-bytes=0"], "must be 1 or more"),
            (&["--max-request-bytes=1MiB"], "must be 1 or more"),
            (&["--max-txn-ops=-1"], "must be 1 or more"),
            (&["--log-format=xml"], "console or json"),
        ];
        for (arguments, words) in cases {
            let error = options(arguments).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }

    #[test]
    fn oversized_limits_are_lowered_with_a_warning() {
        let found = |arguments: &[&str]| {
            let options = options(arguments).unwrap();
            let found = (
                options.settings.request_bytes_max,
                options.settings.txn_ops_max,
                options.settings.bcrypt_cost,
                options.settings.streams_max,
            );
            (found, options.warnings)
        };
        let none: Vec<String> = Vec::new();
        let usual = (1_572_864, 128, 10, u32::MAX);
        assert_eq!(found(&[]), (usual, none.clone()));
        let most = ["--max-request-bytes=3145728", "--max-txn-ops=10000", "--bcrypt-cost=31"];
        assert_eq!(found(&most), ((3 << 20, 10_000, 31, u32::MAX), none.clone()));
        assert_eq!(found(&["--max-concurrent-streams=0"]), (usual, none));
        let more = ["--max-request-bytes=10485760", "--max-txn-ops=10240", "--bcrypt-cost=32"];
        let warnings = [
            "--max-request-bytes is 10485760, more than this server supports: using 3145728",
            "--max-txn-ops is 10240, more than this server supports: using 10000",
            "--bcrypt-cost is 32, not 4 to 31: using 10",
        ];
        let lowered = (3 << 20, 10_000, 10, u32::MAX);
        assert_eq!(found(&more), (lowered, warnings.map(str::to_owned).to_vec()));
        let huge = format!("--max-request-bytes={}", u64::MAX);
        assert_eq!(found(&[&huge]).0.0, 3 << 20);
    }

    /// Flags whose empty value is an error in etcd, too: numbers, durations and enumerations.
    const NEVER_EMPTY: [&str; 16] = [
        "auth-token-ttl",
        "bcrypt-cost",
        "election-timeout",
        "grpc-keepalive-interval",
        "grpc-keepalive-timeout",
        "heartbeat-interval",
        "initial-cluster-state",
        "max-concurrent-streams",
        "max-learners",
        "max-request-bytes",
        "max-txn-ops",
        "quota-backend-bytes",
        "self-signed-cert-validity",
        "warning-apply-duration",
        "warning-unary-request-duration",
        "watch-progress-notify-interval",
    ];

    #[test]
    fn empty_value_means_default_where_etcd_accepts_it() {
        let usual = format!("{:?}", options(&[]).unwrap());
        let mut refused = Vec::new();
        for flag in FLAGS {
            let argument = format!("--{}=", flag.name);
            let values = Values::read(std::slice::from_ref(&argument), std::iter::empty());
            let read = values.and_then(|values| Ok((Options::new(&values)?, values)));
            match read {
                Err(_) if flag.is_switch => {}
                Err(error) => {
                    assert!(error.to_string().contains(flag.name), "{error}");
                    refused.push(flag.name);
                }
                Ok((options, values)) => {
                    assert!(!flag.is_switch || flag.fate == Fate::Ignored, "{argument}");
                    assert_eq!(format!("{options:?}"), usual, "{argument}");
                    assert!(flag.is_switch || values.idle().count() == 0, "{argument}");
                }
            }
        }
        refused.sort_unstable();
        assert_eq!(refused, NEVER_EMPTY);
    }

    #[test]
    fn flags_without_effect_are_accepted() {
        let warnings = |argument: &str| {
            let values = Values::read(&[argument.to_owned()], std::iter::empty()).unwrap();
            let idle = values.idle().map(|(name, _)| format!("--{name} has no effect")).collect();
            [Options::new(&values).expect(argument).warnings, idle].concat().join("; ")
        };
        for (argument, warning) in [
            ("--host-whitelist=*", "--host-whitelist has no effect"),
            ("--host-whitelist=a,*", "--host-whitelist has no effect"),
            ("--cors=*", ""),
            ("--cors=http://a,https://b:8443", ""),
            ("--log-rotation-config-json={}", ""),
            ("--distributed-tracing-address=h:4317", "--distributed-tracing-address has no effect"),
            ("--experimental-distributed-tracing-service-name=etcd", "service-name has no effect"),
            ("--distributed-tracing-sampling-rate=0", "sampling-rate has no effect"),
            ("--enable-distributed-tracing=false", ""),
            ("--discovery-dial-timeout=2s", "--discovery-dial-timeout has no effect"),
            ("--discovery-request-timeout=5s", "--discovery-request-timeout has no effect"),
            ("--discovery-keepalive-time=2s", "--discovery-keepalive-time has no effect"),
            ("--discovery-insecure-transport=true", "--discovery-insecure-transport has no effect"),
            ("--discovery-fallback=proxy", "--discovery-fallback has no effect"),
            ("--log-level=INFO", ""),
            ("--peer-auto-tls", "--peer-auto-tls has no effect: --listen-peer-urls has http://"),
            ("--auto-tls", "is not encrypted: certificates apply to https:// only"),
            ("--wal-dir=default.etcd/member/wal", ""),
        ] {
            let found = warnings(argument);
            assert!(
                found.contains(warning) && found.is_empty() == warning.is_empty(),
                "{argument}: {found:?}"
            );
        }
        for (argument, words) in [
            ("--host-whitelist=a", "host names in requests are not checked"),
            ("--cors=a", "'*', or origins such as"),
            ("--cors=http://a/b", "'*', or origins such as"),
            ("--enable-distributed-tracing", "tracing export is not supported"),
            ("--discovery=http://d", "discovery is not supported"),
            ("--discovery-endpoints=http://d", "discovery is not supported"),
            ("--discovery-token=x", "discovery is not supported"),
            ("--discovery-srv=example.com", "discovery is not supported"),
            ("--wal-dir=/other", "--wal-dir=/other is not supported"),
        ] {
            let error = options(&[argument]).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }

    #[test]
    fn members_may_have_several_urls() {
        // As k3s and RKE2 configure it: listen on loopback and on the node's address.
        let bootstrap = |arguments: &[&str]| options(arguments).unwrap().bootstrap;
        let cluster = "--initial-cluster=a=http://10.0.0.1:2380,b=http://10.0.0.2:2380";
        let k3s = bootstrap(&[
            "--name=a",
            "--listen-peer-urls=http://127.0.0.1:2380,http://10.0.0.1:2380",
            "--initial-advertise-peer-urls=http://10.0.0.1:2380",
            cluster,
        ]);
        assert_eq!(
            (&*k3s.listen, &*k3s.advertise),
            ("127.0.0.1:2380,10.0.0.1:2380", "10.0.0.1:2380")
        );
        // The same name with several URLs, in either order.
        for both in
            ["a=http://h:2,b=http://i:1,a=http://h:1", "a=http://h:1,a=http://h:2,b=http://i:1"]
        {
            let cluster = format!("--initial-cluster={both}");
            let several = "--initial-advertise-peer-urls=http://h:2,http://h:1";
            let several = bootstrap(&["--name=a", several, &cluster]);
            assert_eq!(several.advertise, "h:1,h:2");
            let members = [("a", "h:1,h:2"), ("b", "i:1")];
            assert_eq!(several.members, members.map(|(name, at)| (name.to_owned(), at.to_owned())));
        }
        let joins = options(&[
            "--name=b",
            "--initial-cluster-state=existing",
            "--initial-cluster=a=http://h:1,a=http://h:2",
        ]);
        assert!(format!("{:?}", joins.unwrap().config()).contains(r#"join: ["h:1", "h:2"]"#));
    }

    #[test]
    fn library_accepts_every_allowed_request_and_heartbeat_setting() {
        let dir = tempfile::tempdir().unwrap();
        let data = format!("--data-dir={}", dir.path().display());
        let least = [
            "--max-request-bytes=1",
            "--max-txn-ops=1",
            "--heartbeat-interval=4",
            "--election-timeout=20",
            "--quota-backend-bytes=1024",
        ];
        let most = [
            "--max-request-bytes=3145728",
            "--max-txn-ops=10000",
            "--heartbeat-interval=10000",
            "--election-timeout=50000",
            "--quota-backend-bytes=-1",
        ];
        for [bytes, ops, heartbeat, election, quota] in [least, most] {
            let listen = "--listen-peer-urls=http://127.0.0.1:0";
            let arguments = [&data, listen, bytes, ops, heartbeat, election, quota];
            let node = Node::start(options(&arguments).unwrap().config()).block().expect(bytes);
            assert!(node.shutdown().block().hanging.is_empty());
        }
    }

    #[test]
    fn history_retention_follows_auto_compaction_flags() {
        let cases: [(&[&str], History); 4] = [
            (&["--auto-compaction-retention=0"], History::keep_all()),
            (
                &["--auto-compaction-retention=2"],
                History::keep_all().window(Duration::from_secs(7200)),
            ),
            (
                &["--auto-compaction-retention=30m", "--auto-compaction-mode=periodic"],
                History::keep_all().window(Duration::from_secs(1800)),
            ),
            (
                &["--auto-compaction-retention=1000", "--auto-compaction-mode=revision"],
                History::keep_all().revisions_max(1000),
            ),
        ];
        for (arguments, history) in cases {
            assert_eq!(options(arguments).unwrap().history, history, "{arguments:?}");
        }
    }
}

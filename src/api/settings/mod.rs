//! [`PartialConfig`]: settings from files, environment variables and the command line.
//!
//! ```text
//!   TOML, JSON ─┐
//!   variables ──┼─▶ PartialConfig, text by key ─▶ the table's setters ─▶ Config
//!   flags ──────┘
//! ```
//!
//! Each source provides the value of a setting as text. One table parses the texts of all sources.

#[cfg(feature = "clap")]
mod args;
#[cfg(feature = "config")]
mod file;
mod parse;
mod table;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
#[cfg(feature = "config")]
use std::path::PathBuf;

use super::{Config, ConfigError};

use parse::distance;
use table::{PREFIX, REQUIRED, SETTINGS, Setting, missing_feature};

/// Some settings of a node, from one or more sources. [`PartialConfig::into_config`] converts them
/// to a [`Config`].
///
/// A setting has a key. In a TOML or JSON file, the part before a dot is a table or an object.
/// [`PartialConfig::from_env`] reads the variable whose name is `BOWLINE_` and the key in upper
/// case, with `_` for a dot: `BOWLINE_HISTORY_WINDOW`. With the crate feature `clap`, the flag is
/// `--bowline-` and the key with hyphens: `--bowline-history-window`.
///
/// | key | setting | value |
/// |---|---|---|
/// | `data_dir`, required | directory in [`Config::new`] | path |
/// | `node_name`, required | name in [`Config::new`] | text |
/// | `members` | [`Config::members`] | `{ n1 = "host:port", .. }`, or `"n1=host:port,.."` as a [`MemberList`](crate::cluster::MemberList) |
/// | `join` | [`Config::join`] | list of `host:port` |
/// | `replacing` | [`Config::replacing`] | name |
/// | `join_deadline` | [`Config::join_deadline`] | duration |
/// | `advertise` | [`Config::advertise`] | `host:port` |
/// | `listen` | [`Config::listen`] | `host:port` |
/// | `client_endpoints` | [`Config::endpoints`] | list of texts |
/// | `cluster_token` | [`Config::cluster_token`] | text |
/// | `insecure_peers` | [`Config::insecure_peers`] | `true` or `false` |
/// | `peer_tls.ca`, `peer_tls.cert`, `peer_tls.key`, `peer_tls.crl` | `Config::peer_tls`, with the crate feature `tls` | path |
/// | `peer_tls.proof` | `PeerTls::proof` | `named`, `own-kind` or `nothing` |
/// | `peer_tls.migrating` | `PeerTls::migrating` | `true` or `false` |
/// | `label` | [`Config::label`] | text |
/// | `heartbeat` | [`Config::heartbeat`] | duration |
/// | `election_timeout` | [`Config::election_timeout`] | duration |
/// | `session_ttl` | [`Config::session_ttl`] | duration |
/// | `drift_percent` | [`Config::drift_percent`] | number |
/// | `call_deadline` | [`Config::call_deadline`] | duration |
/// | `limits.key_bytes_max`, `limits.value_bytes_max`, `limits.request_bytes_max` | [`Config::limits`] | size |
/// | `limits.txn_ops_max`, `limits.txn_depth_max`, `limits.txn_keys_max` | [`Config::limits`] | number |
/// | `open_writes_max` | [`Config::open_writes_max`] | number |
/// | `open_bytes_max` | bytes in [`Config::open_writes_max`] | size |
/// | `open_reads_max` | [`Config::open_reads_max`] | number |
/// | `lock_waiters_max` | [`Config::lock_waiters_max`] | number |
/// | `quota_bytes` | [`Config::quota_bytes`] | size |
/// | `history.window` | [`Config::history`] | duration or `off` |
/// | `history.revisions_max`, `history.quota_percent` | [`Config::history`] | number or `off` |
/// | `snapshot_log_bytes` | [`Config::snapshot_log_bytes`] | size |
/// | `log_segment_bytes` | [`Config::log_segment_bytes`] | size |
/// | `warm_copy` | `Config::warm_copy`, with the crate feature `warm` | `true` or `false` |
/// | `slow_request` | [`Config::slow_request`] | duration or `off` |
/// | `slow_apply` | [`Config::slow_apply`] | duration or `off` |
///
/// - A duration is a whole number with a unit: `"250ms"`, `"5s"`, `"10m"` or `"2h"`.
/// - A size is a number of bytes, or a whole number with a unit: `65536`, `"64KiB"`, `"64MiB"`,
///   `"2GiB"` or `"1TiB"`.
/// - In variables and flags, the items of a list are separated by commas.
///
/// # Several sources
///
/// ```
/// use bowline::config::PartialConfig;
///
/// # #[cfg(feature = "config")] {
/// let file = PartialConfig::from_toml(
///     r#"
///     data_dir = "/var/lib/app"
///     heartbeat = "100ms"
///     quota_bytes = "4GiB"
///
///     [members]
///     n1 = "10.0.0.1:7700"
///     n2 = "10.0.0.2:7700"
///     n3 = "10.0.0.3:7700"
///
///     [history]
///     window = "1h"
///     "#,
/// )?;
/// # let file = file.overridden_by(PartialConfig::from_toml("node_name = 'n1'")?);
/// // Each machine sets BOWLINE_NODE_NAME. A variable overrides the file.
/// let config = file.overridden_by(PartialConfig::from_env()?).into_config()?;
/// # let _ = config;
///
/// let error = PartialConfig::from_toml("\nheartbeat = 100").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "line 2: `heartbeat`: invalid duration \"100\": expected a number with a unit, such as 250ms, 5s or 2m"
/// );
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With the crate feature `config` the type implements `serde::Deserialize`, so it can also be a
/// part of the program's own configuration, in any self-describing format. With the crate feature
/// `clap` it implements `clap::Args`:
///
/// ```
/// # #[cfg(feature = "clap")] {
/// use bowline::config::PartialConfig;
/// use clap::Parser;
///
/// #[derive(Parser)]
/// struct Cli {
///     /// Address of the HTTP server
///     #[arg(long)]
///     http: String,
///     #[command(flatten)]
///     bowline: PartialConfig,
/// }
///
/// let cli = Cli::parse_from([
///     "app", "--http=:8080", "--bowline-data-dir=/var/lib/app", "--bowline-node-name=n1",
/// ]);
/// let config = PartialConfig::from_env()?.overridden_by(cli.bowline).into_config()?;
/// # let _ = config;
/// # }
/// # Ok::<(), bowline::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PartialConfig {
    given: BTreeMap<&'static str, Given>,
}

/// The value of one setting.
#[derive(Clone, Debug)]
struct Given {
    /// The value as text, in the format of environment variables.
    value: OsString,
    source: SettingSource,
}

/// The source of a value, for errors.
#[derive(Clone, PartialEq, Eq, Debug)]
enum SettingSource {
    Variable,
    #[cfg(feature = "clap")]
    Flag,
    #[cfg(feature = "config")]
    Text {
        file: Option<PathBuf>,
        line: Option<usize>,
    },
}

impl SettingSource {
    /// Returns the error for an invalid value of a setting.
    fn error(self, setting: &Setting, why: String) -> ConfigError {
        match self {
            SettingSource::Variable => ConfigError::Variable { name: setting.variable(), why },
            #[cfg(feature = "clap")]
            SettingSource::Flag => ConfigError::Flag { name: format!("--{}", setting.flag()), why },
            #[cfg(feature = "config")]
            SettingSource::Text { file, line } => {
                ConfigError::File { file, line, why: format!("`{}`: {why}", setting.key) }
            }
        }
    }
}

impl PartialConfig {
    /// Returns the settings in the environment variables. A variable that is unset or empty leaves
    /// its setting unset.
    ///
    /// # Errors
    /// Returns [`ConfigError::Variable`], which names the variable, if a variable is invalid. Other
    /// variables with the prefix `BOWLINE_` are ignored, unless their names differ from the name of
    /// a setting by at most two characters. Such a variable is an error, because a node with a
    /// misspelt `BOWLINE_MEMBERS` would found its own cluster.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(env::vars_os())
    }

    fn from_variables(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let known: Vec<(String, &Setting)> =
            SETTINGS.iter().map(|setting| (setting.variable(), setting)).collect();
        let mut all = Self::default();
        for (name, value) in variables {
            let Ok(name) = name.into_string() else { continue };
            if value.is_empty() || !name.starts_with(PREFIX) {
                continue;
            }
            if let Some((_, setting)) = known.iter().find(|(other, _)| *other == name) {
                all.insert(setting, value, SettingSource::Variable)
                    .map_err(|why| SettingSource::Variable.error(setting, why))?;
                continue;
            }
            let key = name[PREFIX.len()..].to_ascii_lowercase();
            if let Some(feature) = missing_feature(&key) {
                let why = format!("this build lacks the crate feature `{feature}`");
                return Err(ConfigError::Variable { name, why });
            }
            if let Some((near, _)) = known.iter().find(|(other, _)| distance(&name, other) <= 2) {
                let why = format!("unknown variable; did you mean {near}");
                return Err(ConfigError::Variable { name, why });
            }
        }
        Ok(all)
    }

    /// Adds a value, if it is valid.
    fn insert(
        &mut self,
        setting: &Setting,
        value: OsString,
        source: SettingSource,
    ) -> Result<(), String> {
        setting.check(&value)?;
        self.given.insert(setting.key, Given { value, source });
        Ok(())
    }

    /// Returns the settings of both. If both have a setting, uses the value in `stronger`.
    #[must_use]
    pub fn overridden_by(mut self, stronger: Self) -> Self {
        self.given.extend(stronger.given);
        self
    }

    /// Returns the configuration. Settings that are not set have their defaults. To change a
    /// setting that has no text form, call its method on the result.
    ///
    /// # Errors
    /// Returns [`ConfigError::Missing`] if a required setting is not set. If a setting is out of
    /// range, the error names its source: [`ConfigError::Variable`], [`ConfigError::Flag`] or
    /// [`ConfigError::File`]. Relations between settings, such as the node's name in the list of
    /// members, are checked when the node starts.
    pub fn into_config(mut self) -> Result<Config, ConfigError> {
        for key in REQUIRED {
            if !self.given.contains_key(key) {
                return Err(ConfigError::Missing { key });
            }
        }
        let config = SETTINGS.iter().try_fold(Config::new("", ""), |config, setting| match self
            .given
            .get(setting.key)
        {
            Some(Given { value, source }) => {
                setting.apply(config, value).map_err(|why| source.clone().error(setting, why))
            }
            None => Ok(config),
        })?;
        #[cfg(feature = "tls")]
        if let Some(key) = config.peer_tls.as_ref().and_then(crate::transport::PeerTls::missing) {
            return Err(ConfigError::Missing { key });
        }
        match config.check_ranges() {
            Ok(()) => Ok(config),
            Err(error) => Err(self.locate(error)),
        }
    }

    /// Adds the source of the value to an error, if it is known.
    fn locate(&mut self, error: ConfigError) -> ConfigError {
        let ConfigError::OutOfRange { what, .. } = &error else { return error };
        match (self.given.remove(what), Setting::find(what)) {
            (Some(Given { source, .. }), Some(setting)) => source.error(setting, error.to_string()),
            _ => error,
        }
    }
}

/// Returns the end of an error text: how to set the setting with this key.
pub(super) fn ways_to_set(key: &str) -> String {
    let Some(setting) = Setting::find(key) else { return "see the documentation".to_owned() };
    #[cfg(feature = "clap")]
    let flag = format!("the flag --{}, ", setting.flag());
    #[cfg(not(feature = "clap"))]
    let flag = "";
    format!("use {flag}the environment variable {} or a file", setting.variable())
}

impl Config {
    /// Creates the configuration of a node from environment variables: `BOWLINE_DATA_DIR` and
    /// `BOWLINE_NODE_NAME`, which are required, `BOWLINE_MEMBERS`, `BOWLINE_HEARTBEAT` and so on.
    /// Without `BOWLINE_MEMBERS` and `BOWLINE_JOIN`, a new node founds a cluster of one member.
    /// [`PartialConfig`] lists all settings, and combines variables with other sources. Variables
    /// that are unset or empty keep the default. To change a setting that has no variable, call its
    /// method on the result.
    ///
    /// # Errors
    /// Returns [`ConfigError::Variable`], which names the variable, if a required variable is unset
    /// or a variable is invalid; see [`PartialConfig::from_env`].
    ///
    /// ```no_run
    /// use bowline::{Config, Node};
    ///
    /// # async fn main_() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = Node::start(Config::from_env()?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env() -> Result<Config, ConfigError> {
        Self::of_variables(PartialConfig::from_env()?)
    }

    fn of_variables(variables: PartialConfig) -> Result<Config, ConfigError> {
        variables.into_config().map_err(|error| match error {
            ConfigError::Missing { key } => match Setting::find(key) {
                Some(setting) => {
                    SettingSource::Variable.error(setting, "not set; it is required".to_owned())
                }
                None => error,
            },
            error => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    pub(super) fn variables(variables: &[(&str, &str)]) -> Result<PartialConfig, ConfigError> {
        let all = variables.iter().map(|(name, value)| (name.into(), value.into()));
        PartialConfig::from_variables(all)
    }

    fn from(more: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let required = [("BOWLINE_DATA_DIR", "d"), ("BOWLINE_NODE_NAME", "b")];
        Config::of_variables(variables(&[&required, more].concat())?)
    }

    fn error(variables: &[(&str, &str)]) -> String {
        from(variables).unwrap_err().to_string()
    }

    #[test]
    fn variables_set_what_the_calls_set() {
        let read = from(&[
            ("BOWLINE_MEMBERS", "a=h:1,b=h:2"),
            ("BOWLINE_HEARTBEAT", "50ms"),
            ("BOWLINE_SESSION_TTL", "3 s"),
            ("BOWLINE_CALL_DEADLINE", "1m"),
            ("BOWLINE_CLIENT_ENDPOINTS", "http://x:1, http://y:2"),
            ("BOWLINE_INSECURE_PEERS", "true"),
            ("BOWLINE_QUOTA_BYTES", "1048576"),
            ("BOWLINE_OPEN_BYTES_MAX", "2MiB"),
            ("BOWLINE_LIMITS_TXN_OPS_MAX", "64"),
            ("BOWLINE_HISTORY_WINDOW", "off"),
            ("BOWLINE_SLOW_APPLY", "off"),
            ("BOWLINE_LABEL", ""),
            ("BOWLINE_TOKEN", "of another program"),
            ("PATH", "/bin"),
        ]);
        let limits = crate::model::Limits { txn_ops_max: 64, ..Default::default() };
        let history = crate::node::History { window: None, ..Default::default() };
        let made = Config::new("d", "b")
            .members([("a", "h:1"), ("b", "h:2")])
            .heartbeat(Duration::from_millis(50))
            .session_ttl(Duration::from_secs(3))
            .call_deadline(Duration::from_secs(60))
            .endpoints(["http://x:1", "http://y:2"])
            .insecure_peers(true)
            .quota_bytes(1 << 20)
            .open_writes_max(16_384, 2 << 20)
            .limits(limits)
            .history(history)
            .slow_apply(Duration::MAX);
        assert_eq!(format!("{:?}", read.unwrap()), format!("{made:?}"));
    }

    #[test]
    fn every_setting_is_documented() {
        let docs = include_str!("mod.rs");
        let page = include_str!("../../../docs/operating/settings.md");
        for setting in SETTINGS {
            let key = setting.key;
            let in_docs = docs
                .lines()
                .any(|line| line.starts_with("/// | `") && line.contains(&format!("`{key}`")));
            assert!(in_docs, "{key} is not in the table of PartialConfig");
            let name = key.rsplit('.').next().unwrap();
            let on_page = match key {
                "data_dir" | "node_name" | "client_endpoints" => page.contains(key),
                _ if key.starts_with("peer_tls.") => page.contains("`peer_tls`"),
                _ => page.lines().any(|line| {
                    line.starts_with(&format!("| `{name}`")) || line.contains(&format!("`{name}`"))
                }),
            };
            assert!(on_page, "{key} is not in settings.md");
            assert!(!setting.help.is_empty() && !setting.help.ends_with('.'), "{key}");
        }
        // Each setting on the page must have a key.
        let fields = page.lines().take_while(|line| *line != "## Settings of `bowline serve`");
        for line in fields.filter(|line| line.starts_with("| `")) {
            let name = line.split('`').nth(1).unwrap();
            let name = match name {
                "Config::new(dir, name)" => "node_name",
                "endpoints" => "client_endpoints",
                "limits" | "history" | "peer_tls" => continue,
                name => name,
            };
            let has_key =
                SETTINGS.iter().any(|setting| setting.key.rsplit('.').next() == Some(name));
            assert!(has_key, "{name} of settings.md has no key");
        }
    }

    #[test]
    fn variables_reject_nonsense_by_name() {
        for setting in SETTINGS {
            let text =
                matches!(setting.form, table::Form::Text | table::Form::Path | table::Form::List);
            if !text {
                let name = setting.variable();
                let why = error(&[(&name, "-1")]);
                assert!(why.starts_with(&format!("environment variable {name}: invalid")), "{why}");
            }
        }
        assert!(error(&[("BOWLINE_CALL_DEADLINE", "5")]).contains("a number with a unit"));
        assert!(error(&[("BOWLINE_INSECURE_PEERS", "yes")]).contains("BOWLINE_INSECURE_PEERS"));
        assert_eq!(
            error(&[("BOWLINE_HEARTBEAT", "1ms")]),
            "environment variable BOWLINE_HEARTBEAT: the setting heartbeat is 1ms, and must be 4 ms to 10 s"
        );
    }

    #[test]
    fn misspelt_and_missing_variables_are_named() {
        let why = error(&[("BOWLINE_MEMEBRS", "a=h:1")]);
        assert!(why.contains("BOWLINE_MEMEBRS") && why.contains("did you mean BOWLINE_MEMBERS"));
        assert!(error(&[("BOWLINE_JOINS", "h:1")]).contains("did you mean BOWLINE_JOIN"));
        let missing = Config::of_variables(variables(&[("BOWLINE_DATA_DIR", "d")]).unwrap());
        assert!(missing.unwrap_err().to_string().contains("BOWLINE_NODE_NAME: not set"));
        let missing = variables(&[("BOWLINE_DATA_DIR", "d")]).unwrap().into_config();
        let missing = missing.unwrap_err();
        assert_eq!(missing, ConfigError::Missing { key: "node_name" });
        assert!(missing.to_string().contains("BOWLINE_NODE_NAME"), "{missing}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn certificates_are_set_together() {
        let files = [("BOWLINE_PEER_TLS_CA", "ca"), ("BOWLINE_PEER_TLS_CERT", "cert")];
        assert!(error(&files).contains("BOWLINE_PEER_TLS_KEY: not set"));
        let key = [("BOWLINE_PEER_TLS_KEY", "key"), ("BOWLINE_PEER_TLS_MIGRATING", "true")];
        let made = crate::transport::PeerTls::new("ca", "cert", "key").migrating();
        let read = from(&[&files[..], &key].concat()).unwrap();
        assert_eq!(read.peer_tls, Some(made));
        let unproven = [key[0], files[1], ("BOWLINE_PEER_TLS_PROOF", "nothing")];
        assert!(from(&unproven).is_ok(), "a ca is not needed");
    }

    #[test]
    fn later_sources_override_earlier_ones() {
        let one = variables(&[("BOWLINE_DATA_DIR", "d"), ("BOWLINE_LABEL", "one")]).unwrap();
        let two = variables(&[("BOWLINE_NODE_NAME", "b"), ("BOWLINE_LABEL", "two")]).unwrap();
        let config = one.overridden_by(two).into_config().unwrap();
        assert_eq!((config.name.as_str(), config.label.as_deref()), ("b", Some("two")));
    }
}

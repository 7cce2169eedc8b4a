//! The table of the settings that files, environment variables and flags can set. Each name exists
//! only here.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use super::parse::{count, duration, list, off, parse, size};
use crate::api::{Config, MemberList};
use crate::node::History;
#[cfg(feature = "tls")]
use crate::transport::{PeerProof, PeerTls};

/// Prefix of all environment variables.
pub(super) const PREFIX: &str = "BOWLINE_";

/// The keys of the settings that every configuration needs.
pub(super) const REQUIRED: [&str; 2] = ["data_dir", "node_name"];

pub(super) struct Setting {
    /// Its key in a file. A key in a table of the file has the form `table.key`.
    pub(super) key: &'static str,
    /// The form of its value.
    #[cfg_attr(not(any(feature = "clap", feature = "config")), expect(dead_code))]
    pub(super) form: Form,
    /// One line of help for the command line.
    #[cfg_attr(not(feature = "clap"), expect(dead_code))]
    pub(super) help: &'static str,
    set: Setter,
}

/// Applies the text of a value to a configuration, or returns why the text is invalid.
enum Setter {
    Text(fn(Config, &str) -> Result<Config, String>),
    Path(fn(Config, &Path) -> Config),
}

/// The form of a setting's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Text,
    Path,
    Switch,
    Number,
    NumberOrOff,
    Size,
    Duration,
    DurationOrOff,
    List,
    Members,
    #[cfg(feature = "tls")]
    Proof,
}

#[cfg(any(feature = "clap", feature = "config"))]
impl Form {
    /// Describes the valid values of this form.
    #[cfg(feature = "config")]
    pub(super) fn accepts(self) -> &'static str {
        match self {
            Form::Text => "text",
            Form::Path => "a path as text",
            Form::Switch => "true or false",
            Form::Number => "a whole number",
            Form::NumberOrOff => "a whole number, or \"off\"",
            Form::Size => "a number of bytes, or a size such as \"64MiB\"",
            Form::Duration => "a duration such as \"500ms\", \"5s\" or \"2m\"",
            Form::DurationOrOff => "a duration such as \"500ms\", \"5s\" or \"2m\", or \"off\"",
            Form::List => "a list of texts",
            Form::Members => "a table of names and addresses, or \"n1=host:port,n2=host:port\"",
            #[cfg(feature = "tls")]
            Form::Proof => "\"named\", \"own-kind\" or \"nothing\"",
        }
    }

    /// Returns the name of the value in the help of the command line.
    #[cfg(feature = "clap")]
    pub(super) fn value_name(self) -> &'static str {
        match self {
            Form::Text => "TEXT",
            Form::Path => "PATH",
            Form::Switch => "BOOL",
            Form::Number => "NUMBER",
            Form::NumberOrOff => "NUMBER|off",
            Form::Size => "SIZE",
            Form::Duration => "DURATION",
            Form::DurationOrOff => "DURATION|off",
            Form::List => "LIST",
            Form::Members => "NAME=HOST:PORT,...",
            #[cfg(feature = "tls")]
            Form::Proof => "named|own-kind|nothing",
        }
    }
}

impl Setting {
    pub(super) fn find(key: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// Returns the name of the environment variable.
    pub(super) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.key.replace('.', "_").to_ascii_uppercase())
    }

    /// Returns the name of the flag, without the leading hyphens.
    #[cfg(feature = "clap")]
    pub(super) fn flag(&self) -> String {
        format!("bowline-{}", self.key.replace(['.', '_'], "-"))
    }

    /// Checks a value in the format of environment variables. If the value is invalid, returns the
    /// reason.
    pub(super) fn check(&self, value: &OsStr) -> Result<(), String> {
        self.apply(Config::new("", ""), value).map(drop)
    }

    /// Applies a value in the format of environment variables.
    pub(super) fn apply(&self, config: Config, value: &OsStr) -> Result<Config, String> {
        match self.set {
            Setter::Path(set) => Ok(set(config, Path::new(value))),
            Setter::Text(set) => {
                set(config, value.to_str().ok_or_else(|| "not UTF-8 text".to_owned())?)
            }
        }
    }
}

/// Returns the crate feature that this setting needs, if the build lacks the feature.
pub(super) fn missing_feature(key: &str) -> Option<&'static str> {
    let is_tls = key == "peer_tls" || key.starts_with("peer_tls.") || key.starts_with("peer_tls_");
    match key {
        _ if is_tls && cfg!(not(feature = "tls")) => Some("tls"),
        "warm_copy" if cfg!(not(feature = "warm")) => Some("warm"),
        _ => None,
    }
}

#[cfg(feature = "tls")]
fn tls(config: &mut Config) -> &mut PeerTls {
    config.peer_tls.get_or_insert_with(|| PeerTls::new("", "", ""))
}

#[cfg(feature = "tls")]
fn proof(text: &str) -> Result<PeerProof, String> {
    match text.trim() {
        "named" => Ok(PeerProof::Named),
        "own-kind" => Ok(PeerProof::OwnKind),
        "nothing" => Ok(PeerProof::Nothing),
        _ => Err(format!("invalid value {text:?}: expected named, own-kind or nothing")),
    }
}

/// Generates the table. An entry is a key, the form of the value, a line of help, and an expression
/// that applies the value to a configuration.
macro_rules! settings {
    (@setter $config:ident, $path:ident, Path, $apply:expr) => {
        Setter::Path(|mut $config, $path| {
            $apply;
            $config
        })
    };
    (@setter $config:ident, $text:ident, $form:ident, $apply:expr) => {
        Setter::Text(|mut $config, $text| {
            $apply;
            Ok($config)
        })
    };
    (|$config:ident, $value:ident| $($(#[$attribute:meta])* $key:literal, $form:ident, $help:literal => $apply:expr;)*) => {
        /// All settings, in the order of `docs/operating/settings.md`.
        pub(super) const SETTINGS: &[Setting] = &[$(
            $(#[$attribute])*
            Setting {
                key: $key,
                form: Form::$form,
                help: $help,
                set: settings!(@setter $config, $value, $form, $apply),
            },
        )*];
    };
}

settings! { |config, value|
    "data_dir", Path, "Data directory of this member" => config.dir = value.into();
    "node_name", Text, "Permanent name of this member" => config.name = value.into();
    "members", Members, "Founding members of the cluster, including this one" =>
        config = config.members(parse::<MemberList>(value)?);
    "join", List, "Addresses of members to ask when joining a cluster" => config = config.join(list(value));
    "replacing", Text, "Voter that this joining member replaces" => config = config.replacing(value);
    "join_deadline", Duration, "Time limit for joining [default: 60s]" => config.join_deadline = duration(value)?;
    "advertise", Text, "Address to which the other members connect [default: from the members]" =>
        config = config.advertise(value);
    "listen", Text, "Local address on which this member listens [default: the advertised one]" =>
        config = config.listen(value);
    "client_endpoints", List, "Addresses at which this program serves its own clients" =>
        config = config.endpoints(list(value));
    "cluster_token", Text, "Text that separates clusters with the same member names" =>
        config.token = value.into();
    "insecure_peers", Switch, "Allow unencrypted connections to other machines [default: false]" =>
        config.insecure_peers = parse(value)?;
    #[cfg(feature = "tls")]
    "peer_tls.ca", Path, "Certificates of the authorities of members" => tls(&mut config).ca = value.into();
    #[cfg(feature = "tls")]
    "peer_tls.cert", Path, "Certificate of this member" => tls(&mut config).cert = value.into();
    #[cfg(feature = "tls")]
    "peer_tls.key", Path, "Private key of this member's certificate" => tls(&mut config).key = value.into();
    #[cfg(feature = "tls")]
    "peer_tls.crl", Path, "Revocation lists of the authorities" => tls(&mut config).crl = Some(value.into());
    #[cfg(feature = "tls")]
    "peer_tls.proof", Proof, "Rule for the certificates of other members [default: named]" =>
        tls(&mut config).proof = proof(value)?;
    #[cfg(feature = "tls")]
    "peer_tls.migrating", Switch, "Also allow connections without TLS, during a migration [default: false]" =>
        tls(&mut config).migrating = parse(value)?;
    "label", Text, "Holder's name in lists of locks [default: the name of the member]" =>
        config = config.label(value);
    "heartbeat", Duration, "Interval of the leader's heartbeats [default: 100ms]" =>
        config.heartbeat = duration(value)?;
    "election_timeout", Duration, "Time without a leader before an election [default: 500ms]" =>
        config.election_timeout = duration(value)?;
    "session_ttl", Duration, "Time after which a session without renewal expires [default: 5s]" =>
        config.session_ttl = duration(value)?;
    "drift_percent", Number, "Drift bound of clocks, in percent [default: 10]" =>
        config.drift_percent = count(value)?;
    "call_deadline", Duration, "Default deadline of calls [default: 5s]" =>
        config.call_deadline = duration(value)?;
    "limits.key_bytes_max", Size, "Maximum size of a key [default: 4KiB]" =>
        config.limits.key_bytes_max = size(value)?;
    "limits.value_bytes_max", Size, "Maximum size of a value [default: 1MiB]" =>
        config.limits.value_bytes_max = size(value)?;
    "limits.request_bytes_max", Size, "Maximum size of a request [default: 1536KiB]" =>
        config.limits.request_bytes_max = size(value)?;
    "limits.txn_ops_max", Number, "Maximum number of operations in a transaction [default: 128]" =>
        config.limits.txn_ops_max = count(value)?;
    "limits.txn_depth_max", Number, "Maximum depth of nested transactions [default: 8]" =>
        config.limits.txn_depth_max = count(value)?;
    "limits.txn_keys_max", Number, "Maximum number of keys that a transaction scans [default: 262144]" =>
        config.limits.txn_keys_max = count(value)?;
    "open_writes_max", Number, "Maximum number of writes in progress [default: 16384]" =>
        config.open_writes_max = count(value)?;
    "open_bytes_max", Size, "Maximum size of all writes in progress [default: 64MiB]" =>
        config.open_bytes_max = size(value)?;
    "open_reads_max", Number, "Maximum number of reads in progress [default: 65536]" =>
        config.open_reads_max = count(value)?;
    "lock_waiters_max", Number, "Maximum number of waiters for one lock on this node [default: 100000]" =>
        config.lock_waiters_max = count(value)?;
    "quota_bytes", Size, "Maximum size of the state [default: 2GiB]" => config.quota_bytes = size(value)?;
    "history.window", DurationOrOff, "Age from which revisions are compacted [default: 10m]" =>
        config.history = History { window: off(value, duration)?, ..config.history };
    "history.revisions_max", NumberOrOff, "Maximum number of revisions [default: 100000]" =>
        config.history = History { revisions_max: off(value, count)?, ..config.history };
    "history.quota_percent", NumberOrOff, "Maximum share of the quota for history, in percent [default: 50]" =>
        config.history = History { quota_percent: off(value, count)?, ..config.history };
    "snapshot_log_bytes", Size, "Log growth after which a snapshot is written [default: 32MiB]" =>
        config.snapshot_log_bytes = size(value)?;
    "log_segment_bytes", Size, "Size of a log file [default: 16MiB]" =>
        config.log_segment_bytes = size(value)?;
    #[cfg(feature = "warm")]
    "warm_copy", Switch, "Keep a copy of the state for faster starts [default: false]" =>
        config = config.warm_copy(parse(value)?);
    "slow_request", DurationOrOff, "Time from which requests are logged as slow [default: 300ms]" =>
        config.slow_request = off(value, duration)?.unwrap_or(Duration::MAX);
    "slow_apply", DurationOrOff, "Time from which applied batches are logged as slow [default: 100ms]" =>
        config.slow_apply = off(value, duration)?.unwrap_or(Duration::MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_in_the_help_are_those_of_the_configuration() {
        let mut checked = 0;
        for setting in SETTINGS {
            let Some((_, default)) = setting.help.split_once("[default: ") else { continue };
            let default = default.strip_suffix(']').unwrap();
            // These defaults depend on other settings.
            if default.starts_with("from the ") || default.starts_with("the ") {
                continue;
            }
            // The settings of a table have defaults only if the table is set.
            let config = Config::new("d", "n");
            #[cfg(feature = "tls")]
            let config = match setting.key.starts_with("peer_tls.") {
                true => Config { peer_tls: Some(PeerTls::new("", "", "")), ..config },
                false => config,
            };
            let before = format!("{config:?}");
            let after = setting.apply(config, default.as_ref()).unwrap();
            assert_eq!(format!("{after:?}"), before, "{}", setting.key);
            checked += 1;
        }
        assert!(checked >= 25, "{checked} defaults");
    }
}

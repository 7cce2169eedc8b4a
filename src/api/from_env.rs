//! [`Config::from_env`]: a configuration from environment variables.

use std::env;
use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use super::{Config, ConfigError, MemberList};

/// Prefix of all variables.
const PREFIX: &str = "BOWLINE_";

/// The required variables, without the prefix.
const REQUIRED: [&str; 2] = ["DATA_DIR", "NODE_NAME"];

/// Applies the text of a variable to a configuration, or returns why the text is invalid.
type Setter = fn(Config, &str) -> Result<Config, String>;

/// The optional variables, without the prefix.
const OPTIONAL: &[(&str, Setter)] = &[
    ("MEMBERS", |config, text| Ok(config.members(parse::<MemberList>(text)?))),
    ("JOIN", |config, text| Ok(config.join(list(text)))),
    ("REPLACING", |config, text| Ok(config.replacing(text))),
    ("JOIN_DEADLINE", |config, text| Ok(config.join_deadline(duration(text)?))),
    ("LISTEN", |config, text| Ok(config.listen(text))),
    ("ADVERTISE", |config, text| Ok(config.advertise(text))),
    ("CLIENT_ENDPOINTS", |config, text| Ok(config.endpoints(list(text)))),
    ("CLUSTER_TOKEN", |config, text| Ok(config.cluster_token(text))),
    ("INSECURE_PEERS", |config, text| Ok(config.insecure_peers(parse(text)?))),
    ("HEARTBEAT", |config, text| Ok(config.heartbeat(duration(text)?))),
    ("ELECTION_TIMEOUT", |config, text| Ok(config.election_timeout(duration(text)?))),
    ("SESSION_TTL", |config, text| Ok(config.session_ttl(duration(text)?))),
    ("CALL_DEADLINE", |config, text| Ok(config.call_deadline(duration(text)?))),
    ("DRIFT_PERCENT", |config, text| Ok(config.drift_percent(parse(text)?))),
    ("LABEL", |config, text| Ok(config.label(text))),
    ("QUOTA_BYTES", |config, text| Ok(config.quota_bytes(parse(text)?))),
    ("SNAPSHOT_LOG_BYTES", |config, text| Ok(config.snapshot_log_bytes(parse(text)?))),
    ("LOG_SEGMENT_BYTES", |config, text| Ok(config.log_segment_bytes(parse(text)?))),
];

impl Config {
    /// Creates the configuration of a node from environment variables. Variables that are unset or
    /// empty keep the default. Settings without a variable can be added to the result.
    ///
    /// | variable | setting | text |
    /// |---|---|---|
    /// | `BOWLINE_DATA_DIR`, required | directory in [`Config::new`] | path |
    /// | `BOWLINE_NODE_NAME`, required | name in [`Config::new`] | text |
    /// | `BOWLINE_MEMBERS` | [`members`](Config::members) | `n1=host:port,n2=host:port` ([`MemberList`]) |
    /// | `BOWLINE_JOIN` | [`join`](Config::join) | `host:port,host:port` |
    /// | `BOWLINE_REPLACING` | [`replacing`](Config::replacing) | name |
    /// | `BOWLINE_JOIN_DEADLINE` | [`join_deadline`](Config::join_deadline) | duration |
    /// | `BOWLINE_LISTEN` | [`listen`](Config::listen) | `host:port` |
    /// | `BOWLINE_ADVERTISE` | [`advertise`](Config::advertise) | `host:port` |
    /// | `BOWLINE_CLIENT_ENDPOINTS` | [`endpoints`](Config::endpoints) | list, separated by commas |
    /// | `BOWLINE_CLUSTER_TOKEN` | [`cluster_token`](Config::cluster_token) | text |
    /// | `BOWLINE_INSECURE_PEERS` | [`insecure_peers`](Config::insecure_peers) | `true` or `false` |
    /// | `BOWLINE_HEARTBEAT` | [`heartbeat`](Config::heartbeat) | duration |
    /// | `BOWLINE_ELECTION_TIMEOUT` | [`election_timeout`](Config::election_timeout) | duration |
    /// | `BOWLINE_SESSION_TTL` | [`session_ttl`](Config::session_ttl) | duration |
    /// | `BOWLINE_CALL_DEADLINE` | [`call_deadline`](Config::call_deadline) | duration |
    /// | `BOWLINE_DRIFT_PERCENT` | [`drift_percent`](Config::drift_percent) | number |
    /// | `BOWLINE_LABEL` | [`label`](Config::label) | text |
    /// | `BOWLINE_QUOTA_BYTES` | [`quota_bytes`](Config::quota_bytes) | number |
    /// | `BOWLINE_SNAPSHOT_LOG_BYTES` | [`snapshot_log_bytes`](Config::snapshot_log_bytes) | number |
    /// | `BOWLINE_LOG_SEGMENT_BYTES` | [`log_segment_bytes`](Config::log_segment_bytes) | number |
    ///
    /// A duration is a whole number with a unit: `250ms`, `5s`, `10m` or `2h`.
    ///
    /// # Errors
    /// Returns [`ConfigError::Variable`], which names the variable, if a required variable is unset
    /// or a variable is invalid. Other variables with this prefix are ignored, except those whose
    /// names differ from one in the table by at most two characters: a node with a misspelt
    /// `BOWLINE_MEMBERS` would found a cluster of its own.
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
        Self::from_variables(env::vars_os())
    }

    fn from_variables(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Config, ConfigError> {
        let mut set: Vec<(String, OsString)> = Vec::new();
        for (name, value) in variables {
            let Ok(name) = name.into_string() else { continue };
            let Some(name) = name.strip_prefix(PREFIX) else { continue };
            if !value.is_empty() {
                set.push((name.to_owned(), value));
            }
        }
        let known = || REQUIRED.into_iter().chain(OPTIONAL.iter().map(|(name, _)| *name));
        for (name, _) in &set {
            let is_known = known().any(|other| other == name);
            if let Some(near) = known().find(|other| !is_known && distance(name, other) <= 2) {
                return Err(invalid(
                    name,
                    format!("unknown variable; did you mean {PREFIX}{near}"),
                ));
            }
        }
        let value = |name: &str| set.iter().find(|(other, _)| other == name).map(|(_, it)| it);
        let text = |name: &str| match value(name).map(|value| value.to_str()) {
            Some(None) => Err(invalid(name, "not UTF-8 text".to_owned())),
            Some(text) => Ok(text),
            None => Ok(None),
        };
        let missing = |name| invalid(name, "not set; it is required".to_owned());
        let [dir, name] = REQUIRED;
        let dir = value(dir).ok_or_else(|| missing(dir))?;
        let name = text(name)?.ok_or_else(|| missing(name))?;
        OPTIONAL.iter().try_fold(Config::new(dir, name), |config, (name, setter)| {
            match text(name)? {
                Some(text) => setter(config, text).map_err(|why| invalid(name, why)),
                None => Ok(config),
            }
        })
    }
}

fn invalid(name: &str, why: String) -> ConfigError {
    ConfigError::Variable { name: format!("{PREFIX}{name}"), why }
}

fn parse<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|why| format!("invalid value {text:?}: {why}"))
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim)
}

fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let millis = match unit.trim() {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let millis = millis.and_then(|unit: u64| number.parse::<u64>().ok()?.checked_mul(unit));
    millis.map(Duration::from_millis).ok_or_else(|| {
        format!("invalid duration {text:?}: expected a number with a unit, such as 250ms, 5s or 2m")
    })
}

/// Returns how many characters must be added, removed or replaced to turn one text into the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let required = [("BOWLINE_DATA_DIR", "d"), ("BOWLINE_NODE_NAME", "b")];
        let all = required.iter().chain(variables);
        Config::from_variables(all.map(|(name, value)| (name.into(), value.into())))
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
            ("BOWLINE_LABEL", ""),
            ("BOWLINE_TOKEN", "of another program"),
            ("PATH", "/bin"),
        ]);
        let made = Config::new("d", "b")
            .members([("a", "h:1"), ("b", "h:2")])
            .heartbeat(Duration::from_millis(50))
            .session_ttl(Duration::from_secs(3))
            .call_deadline(Duration::from_secs(60))
            .endpoints(["http://x:1", "http://y:2"])
            .insecure_peers(true)
            .quota_bytes(1 << 20);
        assert_eq!(format!("{:?}", read.unwrap()), format!("{made:?}"));
    }

    #[test]
    fn every_variable_is_documented_and_rejects_nonsense_by_name() {
        let source = include_str!("from_env.rs");
        for (name, _) in OPTIONAL {
            assert!(source.contains(&format!("/// | `{PREFIX}{name}` |")), "{name}");
        }
        for name in ["HEARTBEAT", "ELECTION_TIMEOUT", "SESSION_TTL", "QUOTA_BYTES", "MEMBERS"] {
            let name = format!("{PREFIX}{name}");
            let why = error(&[(&name, "-1")]);
            assert!(why.starts_with(&format!("environment variable {name}: invalid")), "{why}");
        }
        assert!(error(&[("BOWLINE_CALL_DEADLINE", "5")]).contains("a number with a unit"));
        assert!(error(&[("BOWLINE_INSECURE_PEERS", "yes")]).contains("BOWLINE_INSECURE_PEERS"));
    }

    #[test]
    fn misspelt_and_missing_variables_are_named() {
        let why = error(&[("BOWLINE_MEMEBRS", "a=h:1")]);
        assert!(why.contains("BOWLINE_MEMEBRS") && why.contains("did you mean BOWLINE_MEMBERS"));
        assert!(error(&[("BOWLINE_JOINS", "h:1")]).contains("did you mean BOWLINE_JOIN"));
        let missing = Config::from_variables([("BOWLINE_DATA_DIR".into(), "d".into())]);
        assert!(missing.unwrap_err().to_string().contains("BOWLINE_NODE_NAME: not set"));
        assert_eq!(
            (distance("abc", "abc"), distance("", "ab"), distance("kitten", "sitting")),
            (0, 2, 3)
        );
    }
}

//! Options of all client commands: endpoints, credentials, timeouts and output. These options are accepted before or
//! after the command, as in etcdctl, or as environment variables (`BOWLINE_ENDPOINTS`, or `ETCDCTL_ENDPOINTS`).
//! Options take precedence over variables, and BOWLINE_ variables over ETCDCTL_ variables.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use bowline_client::Tls;

use super::failure::Failure;
use crate::usage::{self, parse_bool};

const ENDPOINT_DEFAULT: &str = "127.0.0.1:2379";

/// Default timeouts, as in etcdctl.
const DIAL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);
const COMMAND_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(6);

/// Minimum interval between keepalive pings. Servers treat more frequent pings as an attack.
const KEEPALIVE_TIME_LEAST: Duration = Duration::from_secs(10);

#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Options of all commands that call a server")]
pub(crate) struct Globals {
    /// Comma-separated endpoints: HOST:PORT, http://..., https://... or unix://...; unreachable endpoints are skipped
    /// [default: 127.0.0.1:2379]
    #[arg(long, global = true, value_name = "ENDPOINTS")]
    endpoints: Option<String>,

    /// Output format [default: simple]
    #[arg(short, long, global = true, value_name = "FORMAT", value_enum)]
    write_out: Option<Format>,

    /// Print keys and values in hexadecimal
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = parse_bool)]
    hex: Option<bool>,

    /// Timeout for connecting: 500ms, 2s, 1m [default: 2s]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    dial_timeout: Option<Duration>,

    /// Timeout for a response [default: 5s]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    command_timeout: Option<Duration>,

    /// Interval between pings on an idle connection [default: 10s, also the minimum]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    keepalive_time: Option<Duration>,

    /// Timeout for the response to a ping [default: 6s]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    keepalive_timeout: Option<Duration>,

    /// User name; prompts for the password if omitted
    #[arg(long, global = true, value_name = "NAME[:PASSWORD]")]
    user: Option<String>,

    /// Password of --user (prefer a variable: other users of this machine can see arguments)
    #[arg(long = "password", id = "client_password", global = true, value_name = "PASSWORD")]
    password: Option<String>,

    /// CA certificate of the servers, a PEM file
    #[arg(long, global = true, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// Client certificate, a PEM file
    #[arg(long, global = true, value_name = "FILE")]
    cert: Option<PathBuf>,

    /// Private key of --cert, a PEM file
    #[arg(long = "key", id = "tls_key", global = true, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Skip verification of the server certificate (testing only)
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = parse_bool)]
    insecure_skip_tls_verify: Option<bool>,

    /// Allow connections without TLS [default: true]
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = parse_bool, hide_short_help = true)]
    insecure_transport: Option<bool>,
}

/// Output format of responses.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// Text for people and simple scripts
    #[default]
    Simple,
    /// One JSON object per line, as etcdctl prints it; keys and values in base64
    Json,
    /// Tables, for commands that support them
    Table,
    /// One line per field
    Fields,
}

/// The settings that result from options and environment.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Endpoints of the cluster. There is at least one.
    pub(crate) endpoints: Vec<String>,
    pub(crate) format: Format,
    pub(crate) hex: bool,
    pub(crate) dial_timeout: Duration,
    pub(crate) command_timeout: Duration,
    /// The command timeout if it was set explicitly, for operations that otherwise have no time limit.
    pub(crate) given_timeout: Option<Duration>,
    pub(crate) keepalive_time: Duration,
    pub(crate) keepalive_timeout: Duration,
    pub(crate) login: Option<Login>,
    pub(crate) tls: Tls,
}

/// Credentials of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) name: String,
    /// The password, or `None` to prompt for it.
    pub(crate) password: Option<String>,
}

impl Globals {
    /// Returns whether no option was given.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the settings: the options, with missing options taken from the environment.
    pub(crate) fn settle(&self) -> Result<Settings, Failure> {
        self.settle_with(|name| std::env::var(name).ok())
    }

    fn settle_with(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        let given = |name: &str| given(&variable, name);
        let span = |chosen: Option<Duration>, name: &str| match (chosen, given(name)) {
            (Some(chosen), _) => Ok(Some(chosen)),
            (None, None) => Ok(None),
            (None, Some(text)) => duration(&text).map(Some).map_err(|why| wrong(name, &text, &why)),
        };
        let flag = |chosen: Option<bool>, name: &str| match (chosen, given(name).as_deref()) {
            (Some(chosen), _) => Ok(Some(chosen)),
            (None, None) => Ok(None),
            (None, Some(text)) => parse_bool(text).map(Some).map_err(|why| wrong(name, text, &why)),
        };
        let file = |chosen: &Option<PathBuf>, name: &str| {
            chosen.clone().or_else(|| given(name).map(PathBuf::from))
        };
        let format = match (self.write_out, given("WRITE_OUT")) {
            (Some(format), _) => format,
            (None, None) => Format::default(),
            (None, Some(text)) => {
                Format::from_str(&text, false).map_err(|why| wrong("WRITE_OUT", &text, &why))?
            }
        };
        let endpoints = self.endpoints.clone().or_else(|| given("ENDPOINTS"));
        let endpoints = endpoints.unwrap_or_else(|| ENDPOINT_DEFAULT.to_owned());
        let endpoints = self::endpoints(&endpoints);
        if endpoints.is_empty() {
            return Err(Failure::Usage("--endpoints names no server".to_owned()));
        }
        let keepalive = span(self.keepalive_time, "KEEPALIVE_TIME")?;
        let tls = Tls {
            cacert: file(&self.cacert, "CACERT"),
            cert: file(&self.cert, "CERT"),
            key: file(&self.tls_key, "KEY"),
            skip_verify: flag(self.insecure_skip_tls_verify, "INSECURE_SKIP_TLS_VERIFY")?
                .unwrap_or(false),
            required: flag(self.insecure_transport, "INSECURE_TRANSPORT")? == Some(false),
            ..Tls::default()
        };
        if tls.cert.is_some() != tls.key.is_some() {
            return Err(Failure::Usage("--cert and --key require each other".to_owned()));
        }
        let given_timeout = span(self.command_timeout, "COMMAND_TIMEOUT")?;
        let user = self.user.clone().or_else(|| given("USER"));
        let password = self.password.clone().or_else(|| given("PASSWORD"));
        Ok(Settings {
            endpoints,
            format,
            hex: flag(self.hex, "HEX")?.unwrap_or(false),
            dial_timeout: span(self.dial_timeout, "DIAL_TIMEOUT")?.unwrap_or(DIAL_TIMEOUT_DEFAULT),
            command_timeout: given_timeout.unwrap_or(COMMAND_TIMEOUT_DEFAULT),
            given_timeout,
            keepalive_time: keepalive.unwrap_or(KEEPALIVE_TIME_LEAST).max(KEEPALIVE_TIME_LEAST),
            keepalive_timeout: span(self.keepalive_timeout, "KEEPALIVE_TIMEOUT")?
                .unwrap_or(KEEPALIVE_TIMEOUT_DEFAULT),
            login: user.map(|user| login(user, password)),
            tls,
        })
    }
}

/// Returns the value of a BOWLINE_ variable, or of the ETCDCTL_ variable with the same name.
fn given(variable: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    let of = |prefix: &str| variable(&format!("{prefix}_{name}"));
    of("BOWLINE").or_else(|| of("ETCDCTL")).filter(|value| !value.is_empty())
}

/// Returns a value from the environment.
pub(crate) fn variable(name: &str) -> Option<String> {
    given(|name| std::env::var(name).ok(), name)
}

/// Splits a comma-separated list of endpoints.
pub(crate) fn endpoints(text: &str) -> Vec<String> {
    let endpoints = text.split(',').map(|endpoint| endpoint.trim().to_owned());
    endpoints.filter(|endpoint| !endpoint.is_empty()).collect()
}

/// Parses a user name. The password follows a colon, or is given separately.
pub(crate) fn login(user: String, password: Option<String>) -> Login {
    match (user.split_once(':'), password) {
        // With a separate password, the name may contain a colon.
        (_, Some(password)) => Login { name: user, password: Some(password) },
        (Some((name, password)), None) => {
            Login { name: name.to_owned(), password: Some(password.to_owned()) }
        }
        (None, None) => Login { name: user, password: None },
    }
}

fn wrong(name: &str, text: &str, why: &str) -> Failure {
    Failure::Usage(format!("environment variable {name}: invalid value {text:?}: {why}"))
}

/// Parses a duration in Go's format: `500ms`, `5s`, `1m30s`. A bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid duration {text:?}: use, for example, 500ms, 5s or 1m30s");
    let seconds = text.parse().map(Duration::from_secs).ok();
    seconds.or_else(|| usage::go_duration(text)).ok_or_else(wrong)
}

/// Parses the TTL of a lease: a number of seconds, or a duration in Go's format. The TTL must be a whole number of
/// seconds.
pub(crate) fn ttl(text: &str) -> Result<Duration, String> {
    let wrong = |_| "not a TTL: use seconds or a duration, such as 60, 60s or 1m".to_owned();
    let ttl = duration(text).map_err(wrong)?;
    if ttl.is_zero() || ttl.subsec_nanos() != 0 || i64::try_from(ttl.as_secs()).is_err() {
        return Err("a TTL has whole seconds, at least 1s".to_owned());
    }
    Ok(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(globals: &Globals, variables: &[(&str, &str)]) -> Settings {
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        globals.settle_with(find).unwrap()
    }

    #[test]
    fn flag_overrides_bowline_and_etcdctl_variables() {
        let both = [("ETCDCTL_ENDPOINTS", "a:1"), ("BOWLINE_ENDPOINTS", "b:1, c:2")];
        let silent = Globals::default();
        assert_eq!(settled(&silent, &[]).endpoints, [ENDPOINT_DEFAULT]);
        assert_eq!(settled(&silent, &both[..1]).endpoints, ["a:1"]);
        assert_eq!(settled(&silent, &both).endpoints, ["b:1", "c:2"]);
        let given = Globals { endpoints: Some("d:4".to_owned()), ..Globals::default() };
        assert_eq!(settled(&given, &both).endpoints, ["d:4"]);
    }

    #[test]
    fn password_follows_the_colon_or_the_password_flag() {
        let login = |user: &str, password: Option<&str>| {
            let login = super::login(user.to_owned(), password.map(str::to_owned));
            (login.name, login.password)
        };
        assert_eq!(login("ann:a:b", None), ("ann".to_owned(), Some("a:b".to_owned())));
        assert_eq!(login("ann", None), ("ann".to_owned(), None));
        assert_eq!(login("a:nn", Some("x")), ("a:nn".to_owned(), Some("x".to_owned())));
    }

    #[test]
    fn durations_are_parsed_as_in_go() {
        let table = [("500ms", 500), ("5s", 5000), ("1m30s", 90_000), ("7", 7000), ("1.5s", 1500)];
        for (text, millis) in table {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (text, seconds) in [("60", 60), ("60s", 60), ("1m", 60), ("1m30s", 90)] {
            assert_eq!(ttl(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "60x", "-1", "0", "0s", "500ms", "1.5s", "soon", "9223372036854775808"] {
            assert!(ttl(text).is_err(), "{text}");
        }
        for text in ["", "s", "5", "5x", "-5s", "5s3"] {
            assert_eq!(duration(text).is_ok(), text == "5", "{text}");
        }
    }
}

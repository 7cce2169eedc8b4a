//! What all commands that ask a server are told: where it is, who asks, how long to wait, and how to print. Given
//! as options before or behind the command, as in etcdctl, or as variables: `BOWLINE_ENDPOINTS`, or
//! `ETCDCTL_ENDPOINTS` and so on. An option counts before a variable, and ours before etcdctl's.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::failure::Failure;
use crate::go_flags::truth;

/// Where a server is asked if nothing is said.
const ENDPOINT_DEFAULT: &str = "127.0.0.1:2379";

/// As etcdctl's.
const DIAL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);
const COMMAND_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(6);

/// More often than that, servers take for an attack.
const KEEPALIVE_TIME_LEAST: Duration = Duration::from_secs(10);

/// The options.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Options of all commands that ask a server")]
pub(crate) struct Globals {
    /// Where the servers are: HOST:PORT, http://... or https://..., separated by commas. If one cannot be
    /// reached the next is asked [default: 127.0.0.1:2379]
    #[arg(long, global = true, value_name = "ENDPOINTS")]
    endpoints: Option<String>,

    /// How to print [default: simple]
    #[arg(short, long, global = true, value_name = "FORMAT", value_enum)]
    write_out: Option<Format>,

    /// Print keys and values in hexadecimal
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = truth)]
    hex: Option<bool>,

    /// How long to wait for a connection: 500ms, 2s, 1m [default: 2s]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    dial_timeout: Option<Duration>,

    /// How long to wait for an answer [default: 5s]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    command_timeout: Option<Duration>,

    /// How often a connection is tried that nothing comes from; 10s at least
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    keepalive_time: Option<Duration>,

    /// How long such a try may take [default: 6s]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    keepalive_timeout: Option<Duration>,

    /// Who asks; the password is asked for if it is left out
    #[arg(long, global = true, value_name = "NAME[:PASSWORD]")]
    user: Option<String>,

    /// The password of --user. Better in a variable: arguments can be seen by others on the machine
    #[arg(long = "password", id = "client_password", global = true, value_name = "PASSWORD")]
    password: Option<String>,

    /// The authority that signs the servers' certificates, as a file of PEM
    #[arg(long, global = true, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// The certificate that says who asks, as a file of PEM
    #[arg(long, global = true, value_name = "FILE")]
    cert: Option<PathBuf>,

    /// The key of --cert, as a file of PEM
    #[arg(long = "key", id = "tls_key", global = true, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Take any certificate for the server's: for trying things out only
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = truth)]
    insecure_skip_tls_verify: Option<bool>,

    /// Whether connections without TLS are allowed [default: true]
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = truth, hide_short_help = true)]
    insecure_transport: Option<bool>,

    /// Accepted as etcdctl's, and changes nothing
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = truth, hide_short_help = true)]
    debug: Option<bool>,

    /// Accepted as etcdctl's, and changes nothing: there is no discovery
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = truth, hide_short_help = true)]
    insecure_discovery: Option<bool>,

    /// Accepted as etcdctl's, and changes nothing: the server says how large a request may be
    #[arg(long, global = true, value_name = "BYTES", hide_short_help = true)]
    max_request_bytes: Option<u64>,

    /// Accepted as etcdctl's, and changes nothing: any answer is taken
    #[arg(long, global = true, value_name = "BYTES", hide_short_help = true)]
    max_recv_bytes: Option<u64>,
}

/// How answers are printed.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people, and simple scripts
    #[default]
    Simple,
    /// One JSON object a line, as etcdctl's; keys and values are base64
    Json,
    /// Tables, of what is best seen so
    Table,
    /// A line for each field
    Fields,
    /// The protocol's own messages, as etcdctl's
    Protobuf,
}

/// What the options and the environment come to.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// One at least.
    pub(crate) endpoints: Vec<String>,
    pub(crate) format: Format,
    pub(crate) hex: bool,
    pub(crate) dial_timeout: Duration,
    pub(crate) command_timeout: Duration,
    /// The same, if somebody has said it: for what otherwise takes the time it takes.
    pub(crate) said_timeout: Option<Duration>,
    pub(crate) keepalive_time: Duration,
    pub(crate) keepalive_timeout: Duration,
    pub(crate) login: Option<Login>,
    pub(crate) tls: Tls,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) name: String,
    /// Not given: to be asked for.
    pub(crate) password: Option<String>,
}

/// How connections are secured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) skip_verify: bool,
    /// No connection may be without.
    pub(crate) required: bool,
}

impl Tls {
    /// Whether an endpoint that does not say is to be reached with TLS.
    pub(crate) fn is_wanted(&self) -> bool {
        self.required || self.cacert.is_some() || self.cert.is_some() || self.skip_verify
    }
}

impl Globals {
    /// Whether nothing was said.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// With what the environment says of the rest.
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
            (None, Some(text)) => truth(text).map(Some).map_err(|why| wrong(name, text, &why)),
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
        };
        if tls.cert.is_some() != tls.key.is_some() {
            return Err(Failure::Usage("--cert and --key belong together".to_owned()));
        }
        let said_timeout = span(self.command_timeout, "COMMAND_TIMEOUT")?;
        let user = self.user.clone().or_else(|| given("USER"));
        let password = self.password.clone().or_else(|| given("PASSWORD"));
        Ok(Settings {
            endpoints,
            format,
            hex: flag(self.hex, "HEX")?.unwrap_or(false),
            dial_timeout: span(self.dial_timeout, "DIAL_TIMEOUT")?.unwrap_or(DIAL_TIMEOUT_DEFAULT),
            command_timeout: said_timeout.unwrap_or(COMMAND_TIMEOUT_DEFAULT),
            said_timeout,
            keepalive_time: keepalive.unwrap_or(KEEPALIVE_TIME_LEAST).max(KEEPALIVE_TIME_LEAST),
            keepalive_timeout: span(self.keepalive_timeout, "KEEPALIVE_TIMEOUT")?
                .unwrap_or(KEEPALIVE_TIMEOUT_DEFAULT),
            login: user.map(|user| login(user, password)),
            tls,
        })
    }
}

/// What a variable says, ours before etcdctl's.
fn given(variable: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    let of = |prefix: &str| variable(&format!("{prefix}_{name}"));
    of("BOWLINE").or_else(|| of("ETCDCTL")).filter(|value| !value.is_empty())
}

/// What the environment says.
pub(crate) fn variable(name: &str) -> Option<String> {
    given(|name| std::env::var(name).ok(), name)
}

/// Servers, as they are named in one word.
pub(crate) fn endpoints(text: &str) -> Vec<String> {
    let endpoints = text.split(',').map(|endpoint| endpoint.trim().to_owned());
    endpoints.filter(|endpoint| !endpoint.is_empty()).collect()
}

/// Who asks: the password stands behind the name, or elsewhere.
pub(crate) fn login(user: String, password: Option<String>) -> Login {
    match (user.split_once(':'), password) {
        // The name may have a colon in it where the password stands elsewhere.
        (_, Some(password)) => Login { name: user, password: Some(password) },
        (Some((name, password)), None) => {
            Login { name: name.to_owned(), password: Some(password.to_owned()) }
        }
        (None, None) => Login { name: user, password: None },
    }
}

fn wrong(name: &str, text: &str, why: &str) -> Failure {
    Failure::Usage(format!("the environment's {name}: {text:?} is wrong: {why}"))
}

/// A duration as Go writes it: `500ms`, `5s`, `1m30s`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration such as 500ms, 5s or 1m30s");
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let (mut rest, mut sum) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(end);
        let next = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(next);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        sum += Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        rest = tail;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(sum) }
}

/// The TTL of a lease: seconds, or a duration as Go writes it. Leases have whole seconds.
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
    fn an_option_counts_before_a_variable_and_ours_before_etcdctls() {
        let both = [("ETCDCTL_ENDPOINTS", "a:1"), ("BOWLINE_ENDPOINTS", "b:1, c:2")];
        let silent = Globals::default();
        assert_eq!(settled(&silent, &[]).endpoints, [ENDPOINT_DEFAULT]);
        assert_eq!(settled(&silent, &both[..1]).endpoints, ["a:1"]);
        assert_eq!(settled(&silent, &both).endpoints, ["b:1", "c:2"]);
        let said = Globals { endpoints: Some("d:4".to_owned()), ..Globals::default() };
        assert_eq!(settled(&said, &both).endpoints, ["d:4"]);
    }

    #[test]
    fn a_password_is_behind_the_colon_or_elsewhere() {
        let login = |user: &str, password: Option<&str>| {
            let login = super::login(user.to_owned(), password.map(str::to_owned));
            (login.name, login.password)
        };
        assert_eq!(login("ann:a:b", None), ("ann".to_owned(), Some("a:b".to_owned())));
        assert_eq!(login("ann", None), ("ann".to_owned(), None));
        assert_eq!(login("a:nn", Some("x")), ("a:nn".to_owned(), Some("x".to_owned())));
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
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

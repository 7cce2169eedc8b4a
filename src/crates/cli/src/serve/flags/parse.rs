//! Parses the values of flags: numbers, durations, switches and lists.

use std::time::Duration;

use super::error::FlagError;
use super::values::Values;
pub(super) use super::values::split;
use super::yaml::whole;
use crate::usage::{go_duration, parse_bool};

pub(super) fn wrong(name: &'static str, value: &str, must: &'static str) -> FlagError {
    FlagError::Value { name, value: value.to_owned(), must }
}

pub(super) fn number<T: std::str::FromStr + PartialOrd>(
    values: &Values,
    name: &'static str,
    default: T,
    least: T,
    most: T,
) -> Result<T, FlagError> {
    let Some(value) = values.raw(name) else { return Ok(default) };
    let number = value.parse().ok().or_else(|| in_file(values, value));
    let number = number.filter(|number| *number >= least && *number <= most);
    let must = match name {
        "heartbeat-interval" => "4 to 10000 milliseconds",
        "election-timeout" => "20 to 50000 milliseconds",
        "max-request-bytes" | "max-txn-ops" => "1 or more",
        "max-learners" => "1 or more",
        "self-signed-cert-validity" => "1 to 100 years",
        "auth-token-ttl" => "1 to 2147483648 seconds",
        _ => "a number",
    };
    number.ok_or_else(|| wrong(name, value, must))
}

/// Returns a limit, lowered to `ceiling` with a warning if a higher one is requested.
pub(super) fn capped(
    values: &Values,
    name: &'static str,
    default: u64,
    ceiling: usize,
    warnings: &mut Vec<String>,
) -> Result<usize, FlagError> {
    let asked = number(values, name, default, 1, u64::MAX)?;
    Ok(usize::try_from(asked).ok().filter(|asked| *asked <= ceiling).unwrap_or_else(|| {
        warnings
            .push(format!("--{name} is {asked}, more than this server supports: using {ceiling}"));
        ceiling
    }))
}

/// Parses a boolean flag in Go's format.
pub(super) fn switch(values: &Values, name: &'static str) -> Result<bool, FlagError> {
    switch_or(values, name, false)
}

/// Like [`switch`], for a flag whose default is `default`.
pub(super) fn switch_or(
    values: &Values,
    name: &'static str,
    default: bool,
) -> Result<bool, FlagError> {
    match values.raw(name) {
        None => Ok(default),
        Some(text) => parse_bool(text).map_err(|_| wrong(name, text, "true or false")),
    }
}

/// Parses an integer from a file, where it may have an exponent.
fn in_file<T: std::str::FromStr>(values: &Values, value: &str) -> Option<T> {
    let digits = || whole(value).and_then(|digits| digits.parse().ok());
    values.is_of_file().then(|| value.parse().ok().or_else(digits)).flatten()
}

pub(super) fn duration(
    values: &Values,
    name: &'static str,
    default: Duration,
) -> Result<Duration, FlagError> {
    let Some(value) = values.raw(name) else { return Ok(default) };
    // In etcd's file, durations are integers in nanoseconds.
    let nanos = in_file(values, value).map(Duration::from_nanos);
    nanos
        .or_else(|| go_duration(value))
        .ok_or_else(|| wrong(name, value, "a duration such as 300ms, 5s, 10m or 1h30m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_go() {
        let cases = [
            ("5m", Some(300_000_u128)),
            ("1h30m", Some(5_400_000)),
            ("1.5s", Some(1500)),
            ("250ms", Some(250)),
            ("600000000000", None),
            ("0", Some(0)),
            ("", None),
            ("5", None),
            ("5 m", None),
            ("m", None),
            ("-1s", None),
        ];
        for (text, millis) in cases {
            let found = go_duration(text).map(|duration| duration.as_millis());
            assert_eq!(found, millis, "{text:?}");
        }
    }
}

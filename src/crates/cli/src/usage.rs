//! Parses Boolean values and durations, and replaces clap's messages for wrong arguments with clearer ones.

use std::num::{IntErrorKind, ParseIntError};
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options of other tools, each with the equivalent option of this program.
const GUESSED: [(&str, &str); 11] = [
    (
        "--ttl",
        "keys expire with their lease: run `bowline lease grant 60`, then pass its ID with --lease",
    ),
    (
        "--expire",
        "keys expire with their lease: run `bowline lease grant 60`, then pass its ID with --lease",
    ),
    ("--recursive", "use --prefix"),
    ("--timeout", "use --command-timeout"),
    ("--host", "use --endpoints"),
    ("--endpoint", "use --endpoints"),
    ("--peers", "use --endpoints"),
    ("--output", "use --write-out"),
    ("--json", "use --write-out json"),
    ("--ca-file", "use --cacert"),
    ("--cert-file", "use --cert"),
];

/// Parses a boolean in one of Go's spellings.
pub(crate) fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// Parses a duration in Go's format, in which only 0 needs no unit.
pub(crate) fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let count: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|char: char| char.is_ascii_digit()).unwrap_or(rest.len());
        let seconds = match &rest[..letters] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(count * seconds).ok()?)?;
        rest = &rest[letters..];
    }
    (!text.is_empty()).then_some(total)
}

/// Replaces clap's message if the message uses Rust's terms or suggests the wrong option.
pub(crate) fn clearer(mut error: clap::Error) -> clap::Error {
    match error.kind() {
        ErrorKind::ValueValidation => {
            if let Some(why) = wrong_number(&error) {
                let named = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
                let (arg, value) =
                    (named(ContextKind::InvalidArg), named(ContextKind::InvalidValue));
                let text = format!("invalid value '{value}' for '{arg}': {why}");
                error = crate::command().error(error.kind(), text);
            }
        }
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else {
                return error;
            };
            let name = arg.split('=').next().unwrap_or_default();
            if let Some((_, tip)) = GUESSED.iter().find(|(guess, _)| *guess == name) {
                let tip = ContextValue::StyledStrs(vec![(*tip).into()]);
                error.insert(ContextKind::Suggested, tip);
                error.remove(ContextKind::SuggestedArg);
                error.remove(ContextKind::TrailingArg);
            }
        }
        _ => {}
    }
    error
}

/// If an argument is not a number, returns the reason. Returns `None` for any other error.
fn wrong_number(error: &clap::Error) -> Option<&'static str> {
    let source = std::error::Error::source(error)?.downcast_ref::<ParseIntError>()?;
    Some(match source.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "the number is out of range",
        _ => "not a whole number",
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn text(words: &[&str]) -> String {
        let words = words.iter().map(|word| OsString::from(*word));
        let error = crate::command().try_get_matches_from(words).unwrap_err();
        clearer(error).to_string()
    }

    #[test]
    fn invalid_number_is_named() {
        let text_of = text(&["bowline", "get", "a", "--limit", "ten"]);
        assert!(text_of.contains("'ten'") && text_of.contains("not a whole number"), "{text_of}");
        let text_of = text(&["bowline", "get", "a", "--limit", "99999999999999999999"]);
        assert!(text_of.contains("the number is out of range"), "{text_of}");
        let text_of = text(&["bowline", "lease", "grant", "soon"]);
        assert!(text_of.contains("60, 60s or 1m"), "{text_of}");
    }

    #[test]
    fn unknown_option_gets_a_suggestion() {
        let text_of = text(&["bowline", "put", "a", "b", "--ttl", "5"]);
        assert!(text_of.contains("bowline lease grant 60"), "{text_of}");
        assert!(!text_of.contains("-- --ttl"), "{text_of}");
        for (guess, tip) in GUESSED {
            let text_of = text(&["bowline", "get", "a", guess, "x"]);
            assert!(text_of.contains(tip), "{guess}: {text_of}");
        }
    }
}

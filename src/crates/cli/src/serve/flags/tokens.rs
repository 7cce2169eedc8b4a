//! Parses `--auth-token`: the kind of tokens and, for JWT, the keys that sign and verify them.

use std::path::PathBuf;
use std::time::Duration;

use bowline_server::{Algorithm, JwtSettings};

use super::error::FlagError;
use super::parse::{number, wrong};
use super::values::Values;
use crate::usage::go_duration;

/// Default lifetime of a JWT.
const JWT_TTL: Duration = Duration::from_secs(300);

/// Kind of tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TokenKind {
    /// Signed with a key that the cluster stores; expires when unused for `ttl`.
    Simple { ttl: Duration },
    /// Signed with a key from a file.
    Jwt(JwtSettings),
}

fn refused(why: String) -> FlagError {
    FlagError::Together(format!("--auth-token: {why}"))
}

impl TokenKind {
    /// Parses the flags. Returns warnings with them.
    pub(super) fn new(values: &Values) -> Result<(Self, Vec<String>), FlagError> {
        const TTL: &str = "auth-token-ttl";
        let ttl = Duration::from_secs(number(values, TTL, 300, 1, 1 << 31)?);
        let text = values.get("auth-token").unwrap_or("simple");
        let (kind, options) = text.split_once(',').unwrap_or((text, ""));
        match (kind, options) {
            ("simple", "") => Ok((Self::Simple { ttl }, Vec::new())),
            ("simple", _) => Err(refused("simple tokens have no options".to_owned())),
            ("jwt", options) => {
                let warning =
                    "--auth-token-ttl has no effect: the lifetime of a JWT is ttl= in --auth-token";
                let warnings = values.get(TTL).map(|_| warning.to_owned()).into_iter().collect();
                Ok((Self::Jwt(jwt(options)?), warnings))
            }
            _ => Err(wrong(
                "auth-token",
                text,
                "simple, or jwt with its options: jwt,sign-method=...",
            )),
        }
    }
}

fn jwt(options: &str) -> Result<JwtSettings, FlagError> {
    let (mut method, mut public, mut private, mut ttl) = (None, None, None, None);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = option
            .split_once('=')
            .ok_or_else(|| refused(format!("{option:?} is not of the form option=value")))?;
        let place = match name {
            "sign-method" => &mut method,
            "pub-key" => &mut public,
            "priv-key" => &mut private,
            "ttl" => &mut ttl,
            _ => {
                let known = "sign-method, pub-key, priv-key and ttl";
                return Err(refused(format!(
                    "unknown option {name:?} of jwt; supported are {known}"
                )));
            }
        };
        if value.is_empty() || place.replace(value).is_some() {
            return Err(refused(format!("{name} requires exactly one value")));
        }
    }
    let names = || Algorithm::ALL.map(|(name, _)| name).join(", ");
    let algorithm = match method {
        None => return Err(refused(format!("jwt requires sign-method, one of {}", names()))),
        Some(name) => Algorithm::named(name).ok_or_else(|| {
            refused(format!("unknown sign-method {name}; supported are {}", names()))
        })?,
    };
    let name = algorithm.name();
    match (private, public) {
        (None, _) if algorithm.is_shared() => {
            return Err(refused(format!(
                "{name} requires priv-key: a file whose bytes are the secret"
            )));
        }
        (_, Some(_)) if algorithm.is_shared() => {
            return Err(refused(format!(
                "{name} uses priv-key for both signing and verification: omit pub-key"
            )));
        }
        (None, None) => {
            return Err(refused(format!(
                "{name} requires priv-key, or pub-key if tokens are only verified"
            )));
        }
        _ => {}
    }
    let ttl = match ttl {
        None => JWT_TTL,
        Some(text) => {
            go_duration(text).filter(|ttl| *ttl >= Duration::from_secs(1)).ok_or_else(|| {
                refused(format!("invalid ttl {text:?}: must be a duration such as 5m, at least 1s"))
            })?
        }
    };
    let path = |text: Option<&str>| text.map(PathBuf::from);
    Ok(JwtSettings { algorithm, public: path(public), private: path(private), ttl })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(arguments: &[&str]) -> Result<(TokenKind, Vec<String>), FlagError> {
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        TokenKind::new(&Values::read(&arguments, std::iter::empty())?)
    }

    #[test]
    fn auth_token_flag_is_parsed_as_in_etcd() {
        let seconds = Duration::from_secs;
        assert_eq!(kind(&[]).unwrap(), (TokenKind::Simple { ttl: seconds(300) }, Vec::new()));
        let (simple, _) = kind(&["--auth-token=simple", "--auth-token-ttl=7"]).unwrap();
        assert_eq!(simple, TokenKind::Simple { ttl: seconds(7) });
        let both = "--auth-token=jwt,pub-key=a,priv-key=b,sign-method=RS512,ttl=10m";
        let options = JwtSettings {
            algorithm: Algorithm::Rs512,
            public: Some("a".into()),
            private: Some("b".into()),
            ttl: seconds(600),
        };
        assert_eq!(kind(&[both]).unwrap(), (TokenKind::Jwt(options), Vec::new()));
        let (checks, warnings) =
            kind(&["--auth-token=jwt,sign-method=EdDSA,pub-key=a", "--auth-token-ttl=7"]).unwrap();
        let TokenKind::Jwt(checks) = checks else { panic!("{checks:?}") };
        assert_eq!((checks.algorithm.name(), checks.private, checks.ttl), ("EdDSA", None, JWT_TTL));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
    }

    #[test]
    fn invalid_auth_token_flags_are_rejected_with_a_reason() {
        for (text, words) in [
            ("none", "simple, or jwt with its options"),
            ("simple,ttl=5m", "simple tokens have no options"),
            ("jwt", "jwt requires sign-method"),
            ("jwt,sign-method=none,priv-key=k", "unknown sign-method none; supported are HS256"),
            ("jwt,sign-method=ES512,priv-key=k", "unknown sign-method ES512"),
            ("jwt,sign-method=RS256", "RS256 requires priv-key, or pub-key if"),
            ("jwt,sign-method=HS256", "HS256 requires priv-key: a file"),
            ("jwt,sign-method=HS256,pub-key=k", "HS256 requires priv-key: a file"),
            ("jwt,sign-method=HS256,pub-key=k,priv-key=k", "omit pub-key"),
            ("jwt,sign-method", "not of the form option=value"),
            ("jwt,sign-method=RS256,priv-key=", "priv-key requires exactly one value"),
            ("jwt,sign-method=RS256,sign-method=ES256", "sign-method requires exactly one value"),
            ("jwt,sign-method=RS256,priv-key=k,ttl=soon", "must be a duration such as 5m"),
            ("jwt,sign-method=RS256,priv-key=k,ttl=0s", "at least 1s"),
            ("jwt,sign-method=RS256,priv-key=k,audience=x", "unknown option \"audience\" of jwt"),
        ] {
            let error = kind(&[&format!("--auth-token={text}")]).unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error:?} lacks {words:?}");
        }
    }
}

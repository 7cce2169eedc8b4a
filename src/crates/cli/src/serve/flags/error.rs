//! Errors of flags.

use thiserror::Error;

/// Invalid configuration.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum FlagError {
    #[error("unknown flag --{0}; see bowline serve --help")]
    Unknown(String),
    #[error("{0:?} is not a flag: flags begin with --")]
    NotAFlag(String),
    #[error("--{0} requires a value")]
    NoValue(String),
    #[error("--{name}: {instead}")]
    Refused { name: &'static str, instead: &'static str },
    #[error("--{name}: invalid value {value:?}: must be {must}")]
    Value { name: &'static str, value: String, must: &'static str },
    #[error("{0}")]
    Together(String),
    #[error("configuration file {path}, line {line}: {why}")]
    File { path: String, line: usize, why: String },
    #[error("cannot read the configuration file {path}: {why}")]
    Unreadable { path: String, why: String },
}

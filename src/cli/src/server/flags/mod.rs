//! What the server is told: etcd's flags, its variables of the environment, and its file.
//!
//! A flag that is given and that would do nothing is said so; one that asks for what is not offered is
//! refused, with what to do instead. Nothing is passed over in silence.

mod file;
mod gates;
mod log;
mod options;
mod secure;
mod table;
mod tokens;
mod urls;
mod values;
mod yaml;

pub(super) use log::{LogFormat, LogOptions, LogOutput, Rotation};
pub(super) use options::Options;
pub(super) use secure::{ClientTls, Shown, server_name};
pub(super) use tokens::{Algorithm, JwtOptions, TokenKind};
pub(super) use urls::{Door, Offer};
pub(super) use values::Values;

use thiserror::Error;

use table::FLAGS;

/// What becomes of a flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It means what it means in etcd.
    Used,
    /// It may be given, and changes nothing.
    Ignored,
    /// It asks for what is not offered.
    Refused,
}

/// Why the server cannot do what it is told.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum FlagError {
    #[error("there is no flag --{0}; see bowline serve --help")]
    Unknown(String),
    #[error("{0:?} is not a flag: flags begin with --")]
    NotAFlag(String),
    #[error("--{0} needs a value")]
    NoValue(String),
    #[error("--{name}: {instead}")]
    Refused { name: &'static str, instead: &'static str },
    #[error("--{name} is {value:?}, and must be {must}")]
    Value { name: &'static str, value: String, must: &'static str },
    #[error("{0}")]
    Together(String),
    #[error("{path}, line {line}: {why}")]
    File { path: String, line: usize, why: String },
    #[error("{path}: {why}")]
    Unreadable { path: String, why: String },
}

/// The flags, for people.
pub(super) fn help() -> String {
    let mut text = String::from(
        "A server that speaks etcd's v3 protocol\n\nUsage: bowline serve [--FLAG VALUE]...\n\nEvery flag can \
         also be given as a variable, ETCD_ and its name in capitals with _ for -, or in a file.\n\nFlags:\n",
    );
    let section =
        |fate: Fate| FLAGS.iter().filter(move |flag| flag.fate == fate && !flag.is_hidden);
    for flag in section(Fate::Used) {
        text += &format!("  --{:<32} {}\n", flag.name, flag.what);
    }
    text += "\nAccepted, and without effect:\n";
    for flag in section(Fate::Ignored) {
        text += &format!("  --{:<32} {}\n", flag.name, flag.what);
    }
    text += "\nOther flags of etcd are refused, and say what to do instead.\n";
    text
}

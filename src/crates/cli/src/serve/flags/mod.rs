//! The server's configuration from etcd's flags, environment variables and configuration file.
//!
//! If a flag has no effect, the server logs a warning. If a flag belongs to an unsupported feature, the server rejects
//! the flag and names an alternative. No flag is ignored silently.

mod error;
mod file;
mod gates;
mod log;
mod options;
mod parse;
mod secure;
mod table;
mod tokens;
mod urls;
mod values;
mod yaml;

pub(super) use log::{LogFormat, LogOptions, LogOutput, Rotation};
pub(super) use options::Options;
pub(super) use tokens::TokenKind;
pub(super) use urls::Door;
pub(super) use values::Values;

use table::{FLAGS, Fate};

/// Returns the help text for the flags.
pub(super) fn help() -> String {
    let mut text = String::from(
        "Run a server for etcd's v3 protocol\n\nUsage: bowline serve [--FLAG VALUE]...\n\nEach flag can also be set \
         with an environment variable (ETCD_ and its name in upper case, with _ for -), or in a configuration \
         file.\n\nFlags:\n",
    );
    let section =
        |fate: Fate| FLAGS.iter().filter(move |flag| flag.fate == fate && !flag.is_hidden);
    for flag in section(Fate::Used) {
        text += &format!("  --{:<32} {}\n", flag.name, flag.what);
    }
    text += "\nAccepted without effect:\n";
    for flag in section(Fate::Ignored) {
        text += &format!("  --{:<32} {}\n", flag.name, flag.what);
    }
    text += "\nOther flags of etcd are rejected, and the error says what to use instead.\n";
    text
}

//! How a server is started: etcd's flags.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::fleet::Program;

/// How many heartbeats an election timeout has.
const HEARTBEATS: u32 = 8;

/// A member's place, as its server is told.
pub(crate) struct Seat<'a> {
    /// Its name.
    pub(crate) name: String,
    /// Its data.
    pub(crate) dir: &'a Path,
    /// Where clients reach it.
    pub(crate) client: &'a str,
    /// Where the others reach it.
    pub(crate) address: &'a str,
    /// Where it listens to them.
    pub(crate) listen: &'a str,
    /// The founders, as `name=http://address`.
    pub(crate) founders: String,
    /// The election timeout.
    pub(crate) election: Duration,
}

/// The command that starts a server there.
pub(crate) fn command(program: &Program, seat: &Seat<'_>) -> Command {
    let Seat { name, dir, client, address, listen, founders, election } = seat;
    let mut command = Command::new(&program.path);
    command.args(&program.words);
    for (flag, value) in [
        ("name", name.clone()),
        ("data-dir", dir.display().to_string()),
        ("listen-client-urls", format!("http://{client}")),
        ("advertise-client-urls", format!("http://{client}")),
        ("listen-peer-urls", format!("http://{listen}")),
        ("initial-advertise-peer-urls", format!("http://{address}")),
        ("initial-cluster", founders.clone()),
        ("initial-cluster-token", "jepsen".to_owned()),
        ("election-timeout", election.as_millis().to_string()),
        ("heartbeat-interval", (*election / HEARTBEATS).as_millis().to_string()),
        ("watch-progress-notify-interval", "200ms".to_owned()),
        ("log-level", "error".to_owned()),
    ] {
        command.arg(format!("--{flag}={value}"));
    }
    // What is meant for other servers on this machine would be taken for flags.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("ETCD_")) {
            command.env_remove(name);
        }
    }
    command
}

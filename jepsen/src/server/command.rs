//! Builds the command line of a server, with the flags of etcd.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::fleet::Program;

/// Number of heartbeats per election timeout.
const HEARTBEATS: u32 = 8;

/// The parameters of the server of a member.
pub(crate) struct Seat<'a> {
    pub(crate) name: String,
    /// The data directory.
    pub(crate) dir: &'a Path,
    /// The address for clients.
    pub(crate) client: &'a str,
    /// The address that the other members use.
    pub(crate) address: &'a str,
    /// The listen address for the other members.
    pub(crate) listen: &'a str,
    /// The founders, as `name=http://address`.
    pub(crate) founders: String,
    pub(crate) election: Duration,
}

/// Returns the command that starts the server.
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
    // ETCD_ variables that are meant for other servers on this machine would be used as flags.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("ETCD_")) {
            command.env_remove(name);
        }
    }
    command
}

//! A process of the demo: a program that embeds a node and carries out the calls of the demo's workers, as in the test
//! harness. The process ends when its standard input ends.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bowline::{Blocking, Config, Node};
use bowline_fleet::{Answer, Message, node};
use clap::Args;

/// TTL of sessions: long enough for an election between two renewals, and short, so that the lock of a killed holder is
/// soon free.
const SESSION_TTL: Duration = Duration::from_secs(2);

/// Arguments of the process.
#[derive(Args, Debug)]
pub struct NodeOptions {
    /// Data directory
    pub(crate) dir: PathBuf,

    /// Name of the member
    pub(crate) name: String,

    /// All members: NAME=ADDRESS,...
    pub(crate) members: String,
}

/// Runs the process until its standard input ends.
pub fn main(options: &NodeOptions) -> ExitCode {
    if io::stdin().is_terminal() {
        crate::print_failure(&"this command is internal to the demo");
        return ExitCode::from(crate::EXIT_USAGE);
    }
    die_with_the_parent();
    tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            crate::print_failure(&why);
            node::say(&Message::Stopped(why));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &NodeOptions) -> Result<(), String> {
    let members = options.members.split(',').filter_map(|member| member.split_once('='));
    let config = Config::new(&options.dir, &options.name)
        .members(members.map(|(name, address)| (name.to_owned(), address.to_owned())))
        .session_ttl(SESSION_TTL);
    let started = Node::start(config).block().map_err(|error| error.to_string())?;
    node::say(&Message::Ready);
    let extra = |_: &_| Answer::Refused("the demo injects no such fault".to_owned());
    node::serve(&started, &extra, &|reason| reason);
    node::shut_down(started)
}

/// Asks the kernel to kill this process with its parent, because a suspended process cannot notice the end of its
/// input.
fn die_with_the_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // If this call fails, the process still ends when its standard input ends.
        set_parent_process_death_signal(Some(Signal::KILL)).ok();
    }
}

//! A command that runs while something is held, and that is gone before the hold can be another's.
//!
//! It is started through this program itself, which asks the system to kill it when its parent ends, whatever ends
//! that. It has a process group of its own unless it shares the terminal. When this process ends it, what it has started
//! is ended with it: this process adopts what its children leave behind, so that nothing of them escapes. Where this
//! process is killed itself nobody does that: the command goes, what it has started does not.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::failure::Failure;

/// As shells say it.
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_SIGNALLED: u8 = 128;

/// How often to look whether what was killed is gone.
const LOOK: Duration = Duration::from_millis(5);

/// How often at most: what hangs in the system, or is another user's by now, stays.
const LOOKS: u32 = 400;

/// The name of the hidden command that becomes the child.
pub(crate) const COMMAND: &str = "held-child";

/// Becomes the command that runs while a lock is held
#[derive(Args, Debug)]
#[command(hide = true)]
pub(crate) struct HeldChild {
    /// Who holds the lock
    parent: u32,

    /// The command
    #[arg(last = true)]
    command: Vec<OsString>,
}

impl HeldChild {
    /// Becomes the command.
    pub(crate) fn main(&self) -> ExitCode {
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
            crate::complain(&format!("the command could not be bound to its parent: {error}"));
            return ExitCode::from(EXIT_NOT_EXECUTABLE);
        }
        if std::os::unix::process::parent_id() != self.parent {
            // It was gone before the system was asked.
            return ExitCode::from(EXIT_NOT_EXECUTABLE);
        }
        let Some((program, arguments)) = self.command.split_first() else {
            return ExitCode::from(crate::EXIT_USAGE);
        };
        let error = Command::new(program).args(arguments).exec();
        crate::complain(&format!("{}: {error}", program.to_string_lossy()));
        match error.kind() {
            io::ErrorKind::NotFound => ExitCode::from(EXIT_NOT_FOUND),
            _ => ExitCode::from(EXIT_NOT_EXECUTABLE),
        }
    }
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Child {
    process: tokio::process::Child,
    pid: Pid,
    has_group: bool,
}

impl Child {
    /// Starts it, with more variables in its environment. To be called on the main thread, whose end is the end of
    /// the process.
    pub(crate) fn start(
        command: &[OsString],
        variables: &[(&str, String)],
    ) -> Result<Self, Failure> {
        let failed = |error| Failure::Local("the command could not be started".to_owned(), error);
        #[cfg(target_os = "linux")]
        let own = std::path::PathBuf::from("/proc/self/exe");
        #[cfg(not(target_os = "linux"))]
        let own = std::env::current_exe().map_err(failed)?;
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| failed(error.into()))?;
        // At a terminal it must stay in the group that may read from it.
        let has_group = !io::stdin().is_terminal();
        let mut start = Command::new(own);
        start.arg(COMMAND).arg(std::process::id().to_string()).arg("--").args(command);
        start.envs(variables.iter().map(|(name, value)| (name, value)));
        if has_group {
            start.process_group(0);
        }
        let process = tokio::process::Command::from(start).spawn().map_err(failed)?;
        let pid = process.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| failed(io::Error::other("it has no id")))?;
        Ok(Self { process, pid, has_group })
    }

    /// Waits for its end. May be dropped, and called again.
    pub(crate) async fn wait(&mut self) -> Result<ExitStatus, Failure> {
        let status = self.process.wait().await;
        status.map_err(|error| Failure::Local("the command is lost".to_owned(), error))
    }

    /// Passes a signal on. What the terminal sends to all who share it is not sent twice.
    pub(crate) fn pass_on(&self, signal: Signal) {
        if self.has_group {
            // Who is gone needs no signal.
            kill_process_group(self.pid, signal).ok();
        } else if ![Signal::INT, Signal::QUIT].contains(&signal) {
            kill_process(self.pid, signal).ok();
        }
    }

    /// Asks it to end, and all that it has started.
    pub(crate) fn ask_to_end(&self) {
        for pid in descendants() {
            kill_process(pid, Signal::TERM).ok();
        }
        kill_process(self.pid, Signal::TERM).ok();
    }

    /// Kills it and all that it has started, and waits until none of them runs.
    pub(crate) async fn kill(&mut self) {
        if self.has_group {
            kill_process_group(self.pid, Signal::KILL).ok();
        }
        drop(self.process.start_kill());
        // If it cannot be waited for it is gone.
        drop(self.process.wait().await);
        for _ in 0..LOOKS {
            let left = descendants();
            if left.is_empty() {
                return;
            }
            for pid in left {
                kill_process(pid, Signal::KILL).ok();
            }
            tokio::time::sleep(LOOK).await;
        }
        crate::complain(&"some of what the command has started cannot be killed");
    }
}

/// The exit code of a command, as shells say it.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let signalled = |signal| u8::try_from(signal).map_or(u8::MAX, |signal| EXIT_SIGNALLED | signal);
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => signalled(signal),
        (None, None) => u8::MAX,
    }
}

/// The exit code of who was ended by a signal.
pub(crate) fn ended_by(signal: Signal) -> u8 {
    u8::try_from(signal.as_raw()).map_or(u8::MAX, |signal| EXIT_SIGNALLED | signal)
}

/// All processes that descend from this one, and run.
#[cfg(target_os = "linux")]
fn descendants() -> Vec<Pid> {
    // The parent of each, unless it is dead and only not waited for.
    let mut parents = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    for pid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name, in brackets, may have anything in it.
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let mut fields = rest.split(' ');
        let (state, parent) = (fields.next(), fields.next().and_then(|text| text.parse().ok()));
        if let (Some(state), Some(parent)) = (state, parent)
            && !["Z", "X"].contains(&state)
        {
            parents.insert(pid, parent);
        }
    }
    let own = std::process::id();
    let descends = |mut pid: u32| {
        while let Some(parent) = parents.get(&pid) {
            if *parent == own {
                return true;
            }
            pid = *parent;
        }
        false
    };
    let found = parents.keys().filter(|pid| descends(**pid));
    found.filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)).collect()
}

/// Elsewhere the process group has to do.
#[cfg(not(target_os = "linux"))]
fn descendants() -> Vec<Pid> {
    Vec::new()
}

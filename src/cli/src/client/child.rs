//! A command that runs while something is held, and that is gone before the hold can be another's.
//!
//! It is started through a keeper, which is this program, too: whatever ends this process, its keeper kills the
//! command and all that it has started. Whatever ends the keeper, the system kills the command, and this process
//! adopts and kills the rest. Only if both are killed at once what the command has started may go on. The keeper knows
//! until when the command may run, so that it ends in time while this process stands still.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::deadline_pipe::DeadlinePipe;
use super::descendants::{self, descendants};
use super::failure::Failure;
use super::session::Moment;
use super::supervisor::{self, ended_by};

/// How long a keeper may take to do what it was told.
const SUPERVISOR_MAX: Duration = Duration::from_secs(2);

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Child {
    supervisor: tokio::process::Child,
    pid: Pid,
    pipe: DeadlinePipe,
}

impl Child {
    /// Starts it, with more variables in its environment; it may run until then. To be called on the main thread, whose
    /// end is the end of the process.
    pub(crate) fn start(
        command: &[OsString],
        variables: &[(&str, OsString)],
        until: Moment,
    ) -> Result<Self, Failure> {
        let failed = |error| Failure::Local("the command could not be started".to_owned(), error);
        descendants::adopt().map_err(failed)?;
        let mut start = supervisor::supervisor_of(command).map_err(failed)?;
        start.envs(variables.iter().map(|(name, value)| (name, value)));
        let (pipe, supervisors) = DeadlinePipe::new().map_err(failed)?;
        pipe.begin(until).map_err(failed)?;
        start.stdin(supervisors);
        let supervisor = tokio::process::Command::from(start).spawn().map_err(failed)?;
        let pid = supervisor.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| failed(io::Error::other("it has no id")))?;
        Ok(Self { supervisor, pid, pipe })
    }

    /// It may run until then.
    pub(crate) fn extend(&self, until: Moment) {
        self.pipe.extend(until);
    }

    /// Waits for its end, and says its exit code. May be dropped, and called again.
    pub(crate) async fn wait(&mut self) -> Result<u8, Failure> {
        let status = self.supervisor.wait().await;
        let status =
            status.map_err(|error| Failure::Local("the command is lost".to_owned(), error))?;
        match (status.code(), status.signal()) {
            (Some(code), _) => Ok(u8::try_from(code).unwrap_or(u8::MAX)),
            // The keeper was killed, or was told to end before it could pass that on: not the command.
            (None, signal) => {
                descendants::kill().await;
                let signal = signal.and_then(Signal::from_named_raw).unwrap_or(Signal::KILL);
                Ok(ended_by(signal))
            }
        }
    }

    /// Passes a signal on.
    pub(crate) fn pass_on(&self, signal: Signal) {
        // Who is gone needs no signal, and its number may be another's.
        if self.supervisor.id().is_some() {
            kill_process(self.pid, signal).ok();
        }
    }

    /// Asks it to end, and all that it has started.
    pub(crate) fn ask_to_end(&self) {
        let mut asked = descendants();
        // Which would pass it on to who has been asked.
        asked.retain(|pid| *pid != self.pid);
        if asked.is_empty() {
            self.pass_on(Signal::TERM);
        }
        for pid in asked {
            kill_process(pid, Signal::TERM).ok();
            // Who was stopped hears nothing before it goes on.
            kill_process(pid, Signal::CONT).ok();
        }
    }

    /// Kills it and all that it has started, and waits until none of them runs.
    pub(crate) async fn kill(&mut self) {
        self.pass_on(supervisor::END);
        descendants::kill().await;
        if tokio::time::timeout(SUPERVISOR_MAX, self.supervisor.wait()).await.is_err() {
            drop(self.supervisor.start_kill());
        }
    }
}

//! Runs a command while a lock is held, and ends the command before another client can acquire the lock.
//!
//! The command is started by a supervisor, which is another process of this program. If this process ends for any
//! reason, the supervisor kills the command and all descendants of the command. If the supervisor ends, the kernel
//! kills the command, and this process adopts and kills the remaining descendants. Descendants of the command can
//! survive only if both processes are killed at the same time. The supervisor knows the time until which the command
//! may run. The supervisor therefore ends the command in time even while this process is suspended.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::deadline_pipe::DeadlinePipe;
use super::descendants::{self, descendants};
use super::failure::Failure;
use super::supervisor::{self, ended_by};
use bowline_client::BootTime;

/// Maximum time that the supervisor may take to kill the command after it was ordered to.
const SUPERVISOR_EXIT_MAX: Duration = Duration::from_secs(2);

/// A running command and the supervisor process that started the command.
#[derive(Debug)]
pub(crate) struct Child {
    supervisor: tokio::process::Child,
    pid: Pid,
    pipe: DeadlinePipe,
}

impl Child {
    /// Starts the command with additional environment variables. The command may run until the time `until`. Must be
    /// called on the main thread, because the kernel kills the supervisor when the thread that started the supervisor
    /// ends.
    pub(crate) fn start(
        command: &[OsString],
        variables: &[(&str, OsString)],
        until: BootTime,
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
        let pid = pid.ok_or_else(|| failed(io::Error::other("the process has no ID")))?;
        Ok(Self { supervisor, pid, pipe })
    }

    /// Extends the time until which the command may run.
    pub(crate) fn extend(&self, until: BootTime) {
        self.pipe.extend(until);
    }

    /// Waits until the command ends, and returns the command's exit code. Cancel safe.
    pub(crate) async fn wait(&mut self) -> Result<u8, Failure> {
        let status = self.supervisor.wait().await;
        let status = status
            .map_err(|error| Failure::Local("cannot wait for the command".to_owned(), error))?;
        match (status.code(), status.signal()) {
            (Some(code), _) => Ok(u8::try_from(code).unwrap_or(u8::MAX)),
            // The supervisor itself was killed, or was asked to end before it could forward the signal. Its exit
            // status is therefore not the status of the command.
            (None, signal) => {
                descendants::kill().await;
                let signal = signal.and_then(Signal::from_named_raw).unwrap_or(Signal::KILL);
                Ok(ended_by(signal))
            }
        }
    }

    /// Forwards a signal to the supervisor.
    pub(crate) fn pass_on(&self, signal: Signal) {
        // A process that has been waited for needs no signal, and its process id may already be reused.
        if self.supervisor.id().is_some() {
            kill_process(self.pid, signal).ok();
        }
    }

    /// Sends SIGTERM to the command and all its descendants.
    pub(crate) fn terminate(&self) {
        let mut asked = descendants();
        // The supervisor would forward the signal to processes that receive it here anyway.
        asked.retain(|pid| *pid != self.pid);
        if asked.is_empty() {
            self.pass_on(Signal::TERM);
        }
        for pid in asked {
            kill_process(pid, Signal::TERM).ok();
            // A stopped process handles SIGTERM only after SIGCONT.
            kill_process(pid, Signal::CONT).ok();
        }
    }

    /// Kills the command and all its descendants, and waits until all of them have ended.
    pub(crate) async fn kill(&mut self) {
        self.pass_on(supervisor::END);
        descendants::kill().await;
        if tokio::time::timeout(SUPERVISOR_EXIT_MAX, self.supervisor.wait()).await.is_err() {
            drop(self.supervisor.start_kill());
        }
    }
}

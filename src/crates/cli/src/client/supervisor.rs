//! The supervisor process between `bowline lock` and the command that runs under the lock.
//!
//! ```text
//!   bowline lock ends   ──► the supervisor kills the command and the command's descendants
//!   supervisor ends     ──► the kernel kills the command; `bowline lock` adopts and kills the descendants
//! ```
//!
//! The supervisor forwards signals to the command, reaps the command's orphaned descendants, and exits with the
//! command's exit code. The supervisor also kills the command at the deadline, in case `bowline lock` is suspended and
//! cannot do so.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use bowline_fleet::Signals;
use clap::Args;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use rustix::process::{kill_process, kill_process_group, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::deadline_pipe::Deadline;
use super::descendants;

/// Exit codes for a command that could not be started or was killed, as in shells.
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_SIGNALLED: u8 = 128;

/// If the same signal arrives again within this time, the supervisor forwards it only once.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(200);

/// Name of the hidden subcommand that starts a supervisor.
const COMMAND: &str = "supervised-child";

/// Signal at which a supervisor kills the command. The kernel sends it when `bowline lock` has ended.
pub(crate) const END: Signal = Signal::USR1;

/// Supervises the command that runs while a lock is held
#[derive(Args, Debug)]
#[command(hide = true)]
pub(crate) struct SupervisedChild {
    /// Execute the command in this process instead of supervising it
    #[arg(long)]
    becomes: bool,

    /// Process id of the expected parent
    parent: u32,

    /// Command to run
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// Returns a command that starts this program as the supervisor of `command`.
pub(crate) fn supervisor_of(command: &[OsString]) -> io::Result<Command> {
    let mut supervisor = own(&[])?;
    supervisor.args(command);
    set_group(&mut supervisor, io::stdin().is_terminal());
    Ok(supervisor)
}

/// Returns a command that starts this program so that it executes another program, which is given as further
/// arguments. The kernel ends the other program when this process ends.
pub(crate) fn bound() -> io::Result<Command> {
    own(&["--becomes"])
}

fn own(flags: &[&str]) -> io::Result<Command> {
    #[cfg(target_os = "linux")]
    let own = std::path::PathBuf::from("/proc/self/exe");
    #[cfg(not(target_os = "linux"))]
    let own = std::env::current_exe()?;
    let mut start = Command::new(own);
    start.arg(COMMAND).args(flags).arg(std::process::id().to_string()).arg("--");
    Ok(start)
}

/// Puts the command into a process group of its own. If standard input is a terminal, the command stays in the
/// foreground process group, because only that group may read from the terminal.
fn set_group(command: &mut Command, has_terminal: bool) {
    if !has_terminal {
        command.process_group(0);
    }
}

impl SupervisedChild {
    /// Supervises the command, or executes it in this process.
    pub(crate) fn main(&self) -> ExitCode {
        let done = if self.becomes { self.become_it() } else { self.keep() };
        done.unwrap_or_else(|error| {
            crate::print_failure(&format!("the command could not be started: {error}"));
            ExitCode::from(EXIT_NOT_EXECUTABLE)
        })
    }

    /// Asks the kernel to send this process a signal when its parent ends.
    fn bind(&self, at_its_end: Signal) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(at_its_end))?;
        #[cfg(not(target_os = "linux"))]
        let _ = at_its_end;
        if self.has_parent() {
            return Ok(());
        }
        Err(io::Error::other("the parent process has exited"))
    }

    fn has_parent(&self) -> bool {
        std::os::unix::process::parent_id() == self.parent
    }

    fn become_it(&self) -> io::Result<ExitCode> {
        self.bind(Signal::KILL)?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Ok(ExitCode::from(crate::EXIT_USAGE));
        };
        let error = Command::new(program).args(arguments).exec();
        crate::print_failure(&format!("{}: {error}", program.to_string_lossy()));
        Ok(ExitCode::from(match error.kind() {
            io::ErrorKind::NotFound => EXIT_NOT_FOUND,
            _ => EXIT_NOT_EXECUTABLE,
        }))
    }

    fn keep(&self) -> io::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut signals = Signals::new()?;
            let mut end = signal(SignalKind::from_raw(END.as_raw()))?;
            let mut child = signal(SignalKind::child())?;
            descendants::adopt()?;
            self.bind(END)?;
            let (mut deadline, stdin) = Deadline::receive()?;
            let mut command = Kept::start(&self.command, stdin)?;
            let code = loop {
                tokio::select! {
                    biased;
                    _ = end.recv() => break None,
                    _ = child.recv() => if let Some(code) = command.reap()? {
                        break Some(code);
                    },
                    signal = signals.next() => command.pass_on(signal),
                    () = deadline.pass() => break None,
                }
            };
            // If the parent has ended, it may have been killed at the same time as the command.
            if code.is_none() || !self.has_parent() {
                command.kill().await;
            }
            Ok(ExitCode::from(code.unwrap_or(ended_by(Signal::KILL))))
        })
    }
}

/// The supervised command.
struct Kept {
    pid: Pid,
    has_group: bool,
    /// The signal that was forwarded last, and the time at which it was forwarded.
    passed: Option<(Signal, Instant)>,
}

impl Kept {
    fn start(command: &[OsString], stdin: OwnedFd) -> io::Result<Self> {
        let mut start = bound()?;
        let has_terminal = stdin.is_terminal();
        start.args(command).stdin(stdin);
        set_group(&mut start, has_terminal);
        let child = start.spawn()?;
        Ok(Self { pid: Pid::from_child(&child), has_group: !has_terminal, passed: None })
    }

    /// Forwards a signal to the command, unless the same signal was forwarded just before. A terminal sends a signal
    /// to the whole process group, and a service manager to the whole service. The signal may therefore arrive both
    /// directly and from `bowline lock`.
    fn pass_on(&mut self, signal: Signal) {
        let now = Instant::now();
        let is_again = |(passed, at): (Signal, Instant)| {
            passed == signal && now.duration_since(at) < DUPLICATE_WINDOW
        };
        if self.passed.is_some_and(is_again) {
            return;
        }
        self.passed = Some((signal, now));
        // A stopped process handles a signal only after SIGCONT. Errors are ignored, because they mean that the
        // process has ended.
        if self.has_group {
            kill_process_group(self.pid, signal).ok();
            kill_process_group(self.pid, Signal::CONT).ok();
        } else {
            if ![Signal::INT, Signal::QUIT].contains(&signal) {
                kill_process(self.pid, signal).ok();
            }
            kill_process(self.pid, Signal::CONT).ok();
        }
    }

    /// Reaps all children that have ended, including adopted descendants of the command. If the command has ended,
    /// returns its exit code.
    fn reap(&self) -> io::Result<Option<u8>> {
        let mut code = None;
        while code.is_none()
            && let Some((pid, status)) = wait(WaitOptions::NOHANG)?
        {
            code = (pid == self.pid).then(|| exit_code(status));
        }
        Ok(code)
    }

    async fn kill(&self) {
        if self.has_group {
            kill_process_group(self.pid, Signal::KILL).ok();
        } else {
            kill_process(self.pid, Signal::KILL).ok();
        }
        descendants::kill().await;
    }
}

/// Returns the exit code that a shell would report.
fn exit_code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| {
        let signal = status.terminating_signal()?;
        Some(i32::from(EXIT_SIGNALLED) | signal)
    });
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Returns the exit code of a process that was ended by a signal.
pub(crate) fn ended_by(signal: Signal) -> u8 {
    u8::try_from(signal.as_raw()).map_or(u8::MAX, |signal| EXIT_SIGNALLED | signal)
}

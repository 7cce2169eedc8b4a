//! Test helpers that run a command and collect its output and exit code.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use bowline_testkit::process::{Server, bowline};

/// Time limit for a long-running command. When it is killed, a test that waits for its next line fails.
const GOING_MAX: Duration = Duration::from_secs(300);

/// Result of a command.
#[derive(Debug)]
pub(crate) struct CliOutput {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl CliOutput {
    /// Returns the standard output as text.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    /// Asserts success, and returns the standard output as text.
    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        String::from_utf8(self.out).unwrap()
    }
}

pub(crate) fn command(server: &Server) -> Command {
    command_at(&server.address)
}

/// Returns the command for these endpoints. Its timeout is longer than anything takes here on a busy machine.
pub(crate) fn command_at(endpoints: &str) -> Command {
    let mut command = bowline();
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("ETCDCTL_") || name.starts_with("BOWLINE_") {
            command.env_remove(name);
        }
    }
    command.env("BOWLINE_COMMAND_TIMEOUT", "60s").env("BOWLINE_DIAL_TIMEOUT", "60s");
    command.args(["--endpoints", endpoints]);
    command
}

/// Runs a command with the given standard input.
pub(crate) fn run(mut command: Command, input: &[u8]) -> CliOutput {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The write fails if the command exits without reading its input, which does not matter.
    drop(child.stdin.take().unwrap().write_all(input));
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    CliOutput { code: output.status.code().unwrap_or(-1), out: output.stdout, err }
}

/// Runs the command with these arguments against a server.
pub(crate) fn ask<A: AsRef<OsStr>>(server: &Server, arguments: &[A]) -> CliOutput {
    let mut command = command(server);
    command.args(arguments);
    run(command, b"")
}

/// A running command whose output is read line by line.
pub(crate) struct Going {
    pub(crate) child: Child,
    lines: BufReader<std::process::ChildStdout>,
    _wanted: Sender<()>,
}

impl Going {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let (wanted, gone) = channel();
        let pid = Pid::from_child(&child);
        std::thread::spawn(move || {
            if gone.recv_timeout(GOING_MAX) == Err(RecvTimeoutError::Timeout) {
                // The call fails if the command has already ended, which does not matter.
                kill_process(pid, Signal::KILL).ok();
            }
        });
        Self { child, lines, _wanted: wanted }
    }

    /// Returns the next line, empty at the end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    /// Returns the next lines.
    pub(crate) fn lines(&mut self, count: usize) -> String {
        (0..count).map(|_| self.line()).collect()
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

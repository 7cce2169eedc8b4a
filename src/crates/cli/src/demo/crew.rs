//! The demo's processes, as seen by their parent. The parent starts, kills, suspends and resumes them, sends orders to
//! them and receives their reports. This module does not interpret orders or reports.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::wire::{Order, Part, Report, line};
use super::workplace::Workplace;

/// Time limit for a process to exit after it was asked to. It is longer than the time for which the process waits for
/// its node's threads, which is a second, or more on a busy disk.
const END_PATIENCE: Duration = Duration::from_secs(65);

/// Index of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Seat(pub(crate) usize);

/// A report from a process. All reports of an incarnation are received before its end.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) from: Seat,
    pub(crate) life: u32,
    /// The report, or `None` if the process has ended.
    pub(crate) report: Option<Report>,
}

/// All processes.
#[derive(Debug)]
pub(crate) struct Crew {
    program: PathBuf,
    members: Vec<Member>,
    sender: mpsc::UnboundedSender<News>,
    news: mpsc::UnboundedReceiver<News>,
}

#[derive(Debug)]
struct Member {
    part: Part,
    log: PathBuf,
    process: Option<(Child, ChildStdin)>,
}

impl Crew {
    /// Returns one process per address, none of them started.
    pub(crate) fn new(
        place: &Workplace,
        addresses: Vec<String>,
        ledger: &str,
        workers: u32,
    ) -> io::Result<Self> {
        let named: Vec<(String, String)> =
            (1..).map(|number| format!("n{number}")).zip(addresses).collect();
        let members = named
            .iter()
            .map(|(name, _)| Member {
                log: place.log(name),
                part: Part {
                    member: name.clone(),
                    life: 0,
                    members: named.clone(),
                    data: place.data(name),
                    ledger: ledger.to_owned(),
                    workers,
                },
                process: None,
            })
            .collect();
        let (sender, news) = mpsc::unbounded_channel();
        Ok(Self { program: std::env::current_exe()?, members, sender, news })
    }

    pub(crate) fn seats(&self) -> impl Iterator<Item = Seat> + use<> {
        (0..self.members.len()).map(Seat)
    }

    /// Returns the name of the process.
    pub(crate) fn name(&self, seat: Seat) -> &str {
        &self.members[seat.0].part.member
    }

    /// Returns how often the process has been started.
    pub(crate) fn life(&self, seat: Seat) -> u32 {
        self.members[seat.0].part.life
    }

    /// Returns whether the process was started and was not killed by the parent. A suspended process counts as
    /// running.
    pub(crate) fn runs(&self, seat: Seat) -> bool {
        self.members[seat.0].process.is_some()
    }

    /// Returns the last line that the process has written to standard error.
    pub(crate) fn last_words(&self, seat: Seat) -> Option<String> {
        let log = std::fs::read_to_string(&self.members[seat.0].log).ok()?;
        log.lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned)
    }

    /// Waits for the next report.
    pub(crate) async fn news(&mut self) -> News {
        self.news.recv().await.expect("self holds a sender")
    }

    /// Starts a process that is not running.
    pub(crate) async fn start(&mut self, seat: Seat) -> io::Result<()> {
        let member = &mut self.members[seat.0];
        assert!(member.process.is_none(), "{} is already running", member.part.member);
        member.part.life += 1;
        let log = OpenOptions::new().create(true).append(true).open(&member.log)?;
        let mut child = Command::new(&self.program)
            .arg("demo-node")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C at a terminal must reach only the parent, which then ends its children.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().expect("the stream is piped");
        let input = child.stdin.take().expect("the stream is piped");
        tokio::spawn(hear(output, seat, member.part.life, self.sender.clone()));
        let start = Order::Start(member.part.clone());
        member.process = Some((child, input));
        self.tell(seat, &start).await;
        Ok(())
    }

    /// Sends an order to a process. Errors are ignored: the end of the process is reported separately.
    pub(crate) async fn tell(&mut self, seat: Seat, order: &Order) {
        if let Some((_, input)) = &mut self.members[seat.0].process {
            drop(input.write_all(line(order).as_bytes()).await);
        }
    }

    /// Sends an order to all running processes.
    pub(crate) async fn tell_all(&mut self, order: &Order) {
        for seat in self.seats() {
            self.tell(seat, order).await;
        }
    }

    /// Kills a process with SIGKILL, and waits for it.
    pub(crate) async fn kill(&mut self, seat: Seat) -> io::Result<()> {
        match self.members[seat.0].process.take() {
            Some((mut child, _)) => child.kill().await,
            None => Ok(()),
        }
    }

    /// Suspends a process with SIGSTOP.
    pub(crate) fn pause(&self, seat: Seat) -> io::Result<()> {
        self.signal(seat, Signal::STOP)
    }

    /// Resumes a stopped process.
    pub(crate) fn resume(&self, seat: Seat) -> io::Result<()> {
        self.signal(seat, Signal::CONT)
    }

    fn signal(&self, seat: Seat, signal: Signal) -> io::Result<()> {
        let child = self.members[seat.0].process.as_ref().map(|(child, _)| child);
        // If the child has no process id, the process has ended, and its former id may already be reused.
        let pid = child.and_then(Child::id).and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pid = pid.ok_or_else(|| io::Error::other("the process has ended"))?;
        Ok(kill_process(pid, signal)?)
    }

    /// Asks all processes to end, and kills the processes that do not. Returns descriptions of all problems.
    pub(crate) async fn end(&mut self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut ending = Vec::new();
        for member in &mut self.members {
            // Dropping the handle closes the process's standard input, which asks the process to end.
            let child = member.process.take().map(|(child, _)| child);
            ending.extend(child.map(|child| (member.part.member.clone(), child)));
        }
        let deadline = tokio::time::Instant::now() + END_PATIENCE;
        for (name, mut child) in ending {
            match tokio::time::timeout_at(deadline, child.wait()).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(Ok(status)) => complaints.push(format!("{name} exited with {status}")),
                Ok(Err(error)) => complaints.push(format!("cannot wait for {name}: {error}")),
                Err(_) => {
                    complaints.push(format!("{name} was still running after {END_PATIENCE:?}"));
                    complaints.extend(child.kill().await.err().map(|error| error.to_string()));
                }
            }
        }
        complaints
    }

    pub(crate) async fn kill_all(&mut self) {
        for seat in self.seats() {
            if let Err(error) = self.kill(seat).await {
                crate::complain(&format_args!("cannot kill {}: {error}", self.name(seat)));
            }
        }
    }
}

/// Forwards a process's reports until it ends.
async fn hear(output: ChildStdout, from: Seat, life: u32, sender: mpsc::UnboundedSender<News>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(text)) = lines.next_line().await {
        // If the line is incomplete because the process was killed, it is ignored.
        let report = serde_json::from_str(&text).ok();
        if report.is_some() && sender.send(News { from, life, report }).is_err() {
            return;
        }
    }
    drop(sender.send(News { from, life, report: None }));
}

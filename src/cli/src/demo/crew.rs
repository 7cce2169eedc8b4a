//! The processes of the demo, from their parent's side: started, killed, stopped, resumed, told what to
//! do, heard. It knows nothing of what they do.

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

/// How long a process may take to end when it was asked to: longer than it waits for the threads of its node. That takes
/// a second, or as long as a busy disk does.
const END_PATIENCE: Duration = Duration::from_secs(65);

/// Names a process: its place in the crew.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Seat(pub(crate) usize);

/// What is heard of a process. What a life has said is heard before its end.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) from: Seat,
    pub(crate) life: u32,
    /// `None`: it has ended.
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
    /// A process for each address; none is started yet.
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

    /// Everybody's seat.
    pub(crate) fn seats(&self) -> impl Iterator<Item = Seat> + use<> {
        (0..self.members.len()).map(Seat)
    }

    /// What the process is called.
    pub(crate) fn name(&self, seat: Seat) -> &str {
        &self.members[seat.0].part.member
    }

    /// How often it has been started.
    pub(crate) fn life(&self, seat: Seat) -> u32 {
        self.members[seat.0].part.life
    }

    /// Whether it runs, stopped or not: it was started and not killed here.
    pub(crate) fn runs(&self, seat: Seat) -> bool {
        self.members[seat.0].process.is_some()
    }

    /// The last line that it wrote on standard error.
    pub(crate) fn last_words(&self, seat: Seat) -> Option<String> {
        let log = std::fs::read_to_string(&self.members[seat.0].log).ok()?;
        log.lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned)
    }

    /// Waits for the next news. Never ends by itself.
    pub(crate) async fn news(&mut self) -> News {
        self.news.recv().await.expect("this holds a sender")
    }

    /// Starts a process that does not run.
    pub(crate) async fn start(&mut self, seat: Seat) -> io::Result<()> {
        let member = &mut self.members[seat.0];
        assert!(member.process.is_none(), "{} runs already", member.part.member);
        member.part.life += 1;
        let log = OpenOptions::new().create(true).append(true).open(&member.log)?;
        let mut child = Command::new(&self.program)
            .arg("demo-node")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // What a terminal sends on Ctrl-C is for the parent, which then ends its children.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().expect("it was asked for");
        let input = child.stdin.take().expect("it was asked for");
        tokio::spawn(hear(output, seat, member.part.life, self.sender.clone()));
        let start = Order::Start(member.part.clone());
        member.process = Some((child, input));
        self.tell(seat, &start).await;
        Ok(())
    }

    /// Tells a process something. One that has just ended is not told: its end is heard.
    pub(crate) async fn tell(&mut self, seat: Seat, order: &Order) {
        if let Some((_, input)) = &mut self.members[seat.0].process {
            drop(input.write_all(line(order).as_bytes()).await);
        }
    }

    /// Tells all that run.
    pub(crate) async fn tell_all(&mut self, order: &Order) {
        for seat in self.seats() {
            self.tell(seat, order).await;
        }
    }

    /// `kill -9`, and nothing is left of it.
    pub(crate) async fn kill(&mut self, seat: Seat) -> io::Result<()> {
        match self.members[seat.0].process.take() {
            Some((mut child, _)) => child.kill().await,
            None => Ok(()),
        }
    }

    /// Stops a process in the middle of whatever it does.
    pub(crate) fn pause(&self, seat: Seat) -> io::Result<()> {
        self.signal(seat, Signal::STOP)
    }

    /// Lets a stopped process go on.
    pub(crate) fn resume(&self, seat: Seat) -> io::Result<()> {
        self.signal(seat, Signal::CONT)
    }

    fn signal(&self, seat: Seat, signal: Signal) -> io::Result<()> {
        let child = self.members[seat.0].process.as_ref().map(|(child, _)| child);
        // No id: it has ended, and the number may be another process's by now.
        let pid = child.and_then(Child::id).and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pid = pid.ok_or_else(|| io::Error::other("the process has ended"))?;
        Ok(kill_process(pid, signal)?)
    }

    /// Asks all to end, and kills those that do not. Answers with what was not as it should be.
    pub(crate) async fn end(&mut self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut ending = Vec::new();
        for member in &mut self.members {
            // The end of its input is the order to end.
            let child = member.process.take().map(|(child, _)| child);
            ending.extend(child.map(|child| (member.part.member.clone(), child)));
        }
        let deadline = tokio::time::Instant::now() + END_PATIENCE;
        for (name, mut child) in ending {
            match tokio::time::timeout_at(deadline, child.wait()).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(Ok(status)) => complaints.push(format!("{name} ended with {status}")),
                Ok(Err(error)) => complaints.push(format!("{name} cannot be waited for: {error}")),
                Err(_) => {
                    complaints.push(format!("{name} had not ended after {END_PATIENCE:?}"));
                    complaints.extend(child.kill().await.err().map(|error| error.to_string()));
                }
            }
        }
        complaints
    }

    /// Kills all.
    pub(crate) async fn kill_all(&mut self) {
        for seat in self.seats() {
            if let Err(error) = self.kill(seat).await {
                crate::complain(&format_args!("{} cannot be killed: {error}", self.name(seat)));
            }
        }
    }
}

/// Passes on what a process says, up to its end.
async fn hear(output: ChildStdout, from: Seat, life: u32, sender: mpsc::UnboundedSender<News>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(text)) = lines.next_line().await {
        // A line that a kill has cut says nothing.
        let report = serde_json::from_str(&text).ok();
        if report.is_some() && sender.send(News { from, life, report }).is_err() {
            return;
        }
    }
    drop(sender.send(News { from, life, report: None }));
}

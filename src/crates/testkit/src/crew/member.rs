//! A member of the measured cluster: a separate process, or a thread of this process. In both cases
//! the member receives commands as lines of words, and answers each command with a line.

use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bowline::{Config, Node, Role};
use tokio::task::JoinSet;

use super::measured::Measured;

/// The parameters of a member.
#[derive(Clone)]
pub struct Plan {
    pub dir: PathBuf,
    /// Index of the member in `ports`.
    pub number: usize,
    /// One port for each member.
    pub ports: Vec<u16>,
    pub heartbeat: Duration,
    pub election: Duration,
    /// TTL of sessions.
    pub session_ttl: Duration,
    /// Number of threads that run the callers' commands.
    pub threads: usize,
}

impl Plan {
    /// The first argument of a process that is a member.
    pub const WORD: &str = "member";

    fn to_args(&self) -> Vec<String> {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        vec![
            Self::WORD.to_owned(),
            self.dir.display().to_string(),
            self.number.to_string(),
            ports.join(","),
            self.heartbeat.as_millis().to_string(),
            self.election.as_millis().to_string(),
            self.session_ttl.as_millis().to_string(),
            self.threads.to_string(),
        ]
    }

    pub fn from_args(args: &[String]) -> Option<Self> {
        let [word, dir, number, ports, heartbeat, election, session_ttl, threads] = args else {
            return None;
        };
        let millis = |text: &String| text.parse().ok().map(Duration::from_millis);
        (word == Self::WORD).then_some(())?;
        Some(Self {
            dir: dir.into(),
            number: number.parse().ok()?,
            ports: ports.split(',').map(|port| port.parse().ok()).collect::<Option<_>>()?,
            heartbeat: millis(heartbeat)?,
            election: millis(election)?,
            session_ttl: millis(session_ttl)?,
            threads: threads.parse().ok()?,
        })
    }

    fn config(&self) -> Config {
        let config = Config::new(&self.dir, format!("n{}", self.number))
            .heartbeat(self.heartbeat)
            .election_timeout(self.election)
            .session_ttl(self.session_ttl)
            .call_deadline(Duration::from_secs(30));
        match self.ports.len() {
            1 => config,
            _ => config.members(
                self.ports
                    .iter()
                    .enumerate()
                    .map(|(i, port)| (format!("n{i}"), format!("127.0.0.1:{port}"))),
            ),
        }
    }
}

/// The status that a member reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CrewStatus {
    pub leads: bool,
    pub leader: u64,
    pub applied: u64,
}

/// The handle of a member in the benchmark process.
pub struct Member {
    body: Body,
    to: Box<dyn Write + Send>,
    from: Box<dyn BufRead + Send>,
}

enum Body {
    Process(Child),
    Thread(Option<thread::JoinHandle<()>>),
}

impl Member {
    /// Starts a member as a process.
    pub fn process(plan: &Plan) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(plan.to_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take().expect("it was asked for");
        let from = child.stdout.take().expect("it was asked for");
        let (to, from) = (Box::new(to), Box::new(BufReader::new(from)));
        Ok(Self { body: Body::Process(child), to, from })
    }

    /// Starts a member as a thread.
    pub fn thread<T: Trade>(plan: &Plan) -> io::Result<Self> {
        let (theirs, to): (PipeReader, PipeWriter) = io::pipe()?;
        let (from, mine) = io::pipe()?;
        let plan = plan.clone();
        let thread = thread::spawn(move || live::<T>(&plan, BufReader::new(theirs), mine));
        let (to, from) = (Box::new(to), Box::new(BufReader::new(from)));
        Ok(Self { body: Body::Thread(Some(thread)), to, from })
    }

    /// Sends a command.
    pub fn send(&mut self, words: &str) {
        writeln!(self.to, "{words}").expect("the member listens");
    }

    /// Reads the next answer.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the member answers");
        assert!(line.ends_with('\n'), "the member is gone");
        line.trim_end().to_owned()
    }

    /// Sends a command and waits for the answer.
    pub fn ask(&mut self, words: &str) -> String {
        self.send(words);
        self.answer()
    }

    /// Reads the next answer as measurements.
    pub fn measured(&mut self) -> Measured {
        let words = self.answer();
        Measured::from_words(&words).unwrap_or_else(|| panic!("not a measurement: {words:?}"))
    }

    pub fn status(&mut self) -> CrewStatus {
        let words = self.ask("status");
        let numbers: Vec<u64> = words.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [leads, leader, applied] = numbers[..] else { panic!("not a status: {words:?}") };
        CrewStatus { leads: leads == 1, leader, applied }
    }

    /// Returns the CPU time of the member's process.
    pub fn cpu(&self) -> Duration {
        match &self.body {
            Body::Process(child) => cpu_of(&child.id().to_string()),
            Body::Thread(_) => Duration::ZERO,
        }
    }

    /// Kills the process, as `kill -9` does.
    pub fn kill(mut self) {
        let Body::Process(child) = &mut self.body else { panic!("a thread cannot be killed") };
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    /// Closes the input of the member, and waits until the member has ended.
    pub fn end(self) {
        let Self { body, to, from } = self;
        drop((to, from));
        match body {
            Body::Process(mut child) => drop(child.wait()),
            Body::Thread(thread) => thread.expect("once").join().expect("it ends in good order"),
        }
    }
}

/// Returns the CPU time of the running threads of a process.
pub fn cpu_of(process: &str) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let nanos = threads.map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(nanos.sum())
}

/// Returns the resident memory of this process in bytes, or 0 if the system does not report it.
pub fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// The benchmark-specific part of a member.
pub trait Trade: Send + Sync + Sized + 'static {
    fn new(node: Node) -> Self;

    fn node(&self) -> &Node;

    /// Executes a command and returns the answer line.
    fn execute(self: Arc<Self>, order: String) -> impl Future<Output = String> + Send;
}

/// Runs a member: executes commands until the input ends.
pub fn live<T: Trade>(plan: &Plan, orders: impl BufRead, mut answers: impl Write) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(plan.threads)
        .enable_time()
        .build()
        .expect("a runtime for the callers");
    let node = runtime.block_on(Node::start(plan.config())).expect("the node starts");
    let trade = Arc::new(T::new(node));
    for order in orders.lines() {
        let Ok(order) = order else { break };
        let answer = if order == "status" {
            status(trade.node())
        } else {
            // Run the command on the callers' threads, like a program that embeds a member.
            let doing = runtime.spawn(Arc::clone(&trade).execute(order));
            runtime.block_on(doing).expect("an order that is understood")
        };
        if writeln!(answers, "{answer}").and_then(|()| answers.flush()).is_err() {
            break;
        }
    }
    runtime.block_on(trade.node().shutdown());
}

fn status(node: &Node) -> String {
    let status = node.status();
    let leader = status.leader.map_or(0, |leader| leader.get());
    let leads = u8::from(status.role == Role::Leader);
    format!("{leads} {leader} {}", status.applied.get())
}

/// Runs tasks concurrently and merges their measurements.
pub async fn together<F>(callers: u64, task: impl Fn(u64) -> F) -> Measured
where
    F: Future<Output = Measured> + Send + 'static,
{
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..callers {
        tasks.spawn(task(number));
    }
    let each = tasks.join_all().await;
    let mut all = Measured::new(begun.elapsed());
    each.iter().for_each(|measured| all.merge(measured));
    all
}

/// Returns the data directory of a member.
pub fn data_dir(base: &Path, number: usize) -> PathBuf {
    base.join(format!("n{number}"))
}

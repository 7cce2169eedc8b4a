//! The demo's main thread: starts, kills, suspends and resumes the processes, and waits for conditions. While it waits,
//! it follows the leader, shows the progress, and reacts to Ctrl-C.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bowline::Token;
use bowline_check::{KvCall, KvReply, Seen};
use bowline_fleet::calls::{self, Call, Reply};
use bowline_fleet::{Answer, Order, Process, Signals, moment};
use rustix::process::Signal;
use serde_json::{Value, json};
use thiserror::Error;

use crate::account::{Point, Shared};
use crate::proof::{Row, Store};
use crate::worker::{COUNT, OPS, Worker};
use crate::workplace::Workplace;

/// Number of workers per process.
const WORKERS: usize = 2;
/// Prefix of all keys of the demo, and of the keys in the lock's queue.
const KEYS: &str = "demo/";
const QUEUE: &str = "demo/lock/";
/// Time limit for each condition. An election and the expiry of a lease together take less than five seconds; a busy
/// machine may be slower.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Time limit for the lock queue to become empty when all workers rest. Requests whose callers have given up leave the
/// queue soon, in the background.
const QUEUE_PATIENCE: Duration = Duration::from_secs(15);
/// Interval for checking conditions that are not reported.
const LOOK: Duration = Duration::from_millis(25);

/// Reason why the demo ended early.
#[derive(Debug, Error)]
pub(crate) enum DemoError {
    /// A signal.
    #[error("interrupted by {0}")]
    Interrupted(&'static str),
    /// A problem of the machine.
    #[error("cannot run the demo: {0}")]
    Environment(String),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
    /// A condition was not met or a process failed, which disproves Bowline's promise.
    #[error("the demo failed: {0}")]
    Halted(String),
}

impl DemoError {
    /// Returns a conversion for errors that only the machine can cause.
    pub(crate) fn environment<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> DemoError {
        move |error| DemoError::Environment(format!("{what}: {error}"))
    }
}

/// Receives the signals that end a demo. From this call on, a signal ends the demo in an orderly way, so everything that
/// is created afterwards is cleaned up.
pub(crate) fn signals() -> io::Result<mpsc::Receiver<&'static str>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let inside = runtime.enter();
    let mut signals = Signals::new()?;
    drop(inside);
    let (sender, caught) = mpsc::channel();
    let wait = async move {
        let name = match signals.next().await {
            Signal::INT => "Ctrl-C",
            Signal::TERM => "SIGTERM",
            Signal::HUP => "SIGHUP",
            _ => "SIGQUIT",
        };
        sender.send(name).ok();
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(wait))?;
    Ok(caught)
}

/// A member of the cluster.
#[derive(Default)]
struct Member {
    name: String,
    address: String,
    life: u32,
    /// The process, if it was not killed.
    process: Option<Arc<Process>>,
    /// The time of the last query of its leadership, and the answer, until it has arrived.
    look: Option<(Instant, mpsc::Receiver<Answer>)>,
    /// The term in which the member leads, if it does.
    leads: Option<u64>,
}

/// A running demo.
pub(crate) struct Stage<'a> {
    pub(crate) shared: Arc<Shared>,
    place: &'a Workplace,
    signals: mpsc::Receiver<&'static str>,
    members: Vec<Member>,
    workers: Vec<JoinHandle<()>>,
    /// Start of the work.
    work: Option<Instant>,
}

impl<'a> Stage<'a> {
    /// Returns one member per address, none of them started.
    pub(crate) fn set(
        shared: Shared,
        place: &'a Workplace,
        addresses: Vec<String>,
        signals: mpsc::Receiver<&'static str>,
    ) -> Self {
        let member = |(number, address): (usize, String)| {
            let name = format!("n{number}");
            Member { name, address, ..Member::default() }
        };
        let members = (1..).zip(addresses).map(member).collect();
        let (shared, workers) = (Arc::new(shared), Vec::new());
        Self { shared, place, signals, members, workers, work: None }
    }

    /// Shows an event of one process, or of the whole demo.
    pub(crate) fn report(&self, seat: Option<usize>, event: &str, fields: &Value) {
        self.shared.report(seat.map(|seat| &*self.members[seat].name), event, fields);
    }

    /// Waits until `find` returns a value. `what` describes the value for the error text.
    pub(crate) fn until_some<T>(
        &mut self,
        what: &str,
        mut find: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T, DemoError> {
        let begun = Instant::now();
        loop {
            if let Some(found) = find(self) {
                return Ok(found);
            }
            if begun.elapsed() > WAIT_MAX {
                let why = format!("timed out after {WAIT_MAX:?} while waiting for {what}");
                return Err(DemoError::Halted(why));
            }
            self.wait(LOOK)?;
        }
    }

    /// Waits until `met` holds.
    pub(crate) fn until(
        &mut self,
        what: &str,
        met: impl Fn(&Self) -> bool,
    ) -> Result<(), DemoError> {
        self.until_some(what, |stage| met(stage).then_some(()))
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) -> Result<(), DemoError> {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.wait(LOOK.min(left))?;
        }
        Ok(())
    }

    /// Waits for a change of the account, up to a time limit.
    fn wait(&mut self, at_most: Duration) -> Result<(), DemoError> {
        self.shared.wait(at_most);
        if let Ok(name) = self.signals.try_recv() {
            return Err(DemoError::Interrupted(name));
        }
        if let Some(error) = self.shared.lock().error.take() {
            return Err(error);
        }
        (0..self.members.len()).try_for_each(|seat| self.look_at(seat))?;
        if self.work.is_some() {
            let work_time = self.work_time();
            let increments = self.shared.lock().evidence.acknowledged.len();
            let rate = increments as f64 / work_time.as_secs_f64().max(0.1);
            self.shared
                .timeline
                .progress(work_time, format!("{increments} increments, {rate:.0}/s"));
        }
        Ok(())
    }

    /// Checks that a process still runs, and whether it leads.
    fn look_at(&mut self, seat: usize) -> Result<(), DemoError> {
        let member = &mut self.members[seat];
        let Some(process) = &member.process else { return Ok(()) };
        if process.is_over() {
            let why = process.why_stopped().unwrap_or_else(|| "has exited".to_owned());
            return Err(self.fell(seat, &why));
        }
        let ask = || (Instant::now(), process.ask(&Order::Look));
        let (asked, answer) = member.look.get_or_insert_with(ask);
        if asked.elapsed() < LOOK {
            return Ok(());
        }
        let Ok(answer) = answer.try_recv() else { return Ok(()) };
        member.look = None;
        let Answer::Status { leads, term, .. } = answer else { return Ok(()) };
        let now = leads.then_some(term);
        let before = std::mem::replace(&mut member.leads, now);
        if before == now {
            return Ok(());
        }
        if let Some(term) = before {
            self.report(Some(seat), "leads_no_more", &json!({"term": term}));
        }
        if let Some(term) = now {
            self.shared.lock().terms_led.insert(term);
            self.report(Some(seat), "leads", &json!({"term": term}));
        }
        Ok(())
    }

    /// Returns the error for a process that ended unexpectedly. Before the work starts, such an end counts as an error
    /// of the environment.
    fn fell(&self, seat: usize, why: &str) -> DemoError {
        let name = &self.members[seat].name;
        let log = std::fs::read_to_string(self.place.log(name)).unwrap_or_default();
        let last = log.lines().rfind(|line| !line.trim().is_empty());
        let last = last.map(|line| format!(" (the last line of its log: {line})"));
        let why = format!("{name}: {why}{}", last.unwrap_or_default());
        if self.work.is_none() { DemoError::Environment(why) } else { DemoError::Halted(why) }
    }

    fn spawn(&self, seat: usize) -> io::Result<Process> {
        let name = &self.members[seat].name;
        let member = |member: &Member| format!("{}={}", member.name, member.address);
        let members: Vec<_> = self.members.iter().map(member).collect();
        let log = OpenOptions::new().create(true).append(true).open(self.place.log(name))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("demo-node").arg(self.place.data(name)).args([name, &members.join(",")]);
        // Ctrl-C at a terminal must reach only the parent, which then ends its children.
        command.stderr(log).process_group(0);
        Process::spawn(&mut command).map_err(io::Error::other)
    }

    /// Starts a process that is not running, without waiting until its node runs.
    fn begin(&mut self, seat: usize) -> Result<(), DemoError> {
        let process = self.spawn(seat).map_err(DemoError::environment("cannot start a process"))?;
        let member = &mut self.members[seat];
        member.life += 1;
        member.process = Some(Arc::new(process));
        Ok(())
    }

    /// Waits until a started node runs, and starts its workers.
    fn finish(&mut self, seat: usize) -> Result<(), DemoError> {
        let process = self.until_some("a node to run", |stage| {
            stage.members[seat].process.clone().filter(|process| process.is_ready())
        })?;
        let Member { name, life, .. } = &self.members[seat];
        self.report(Some(seat), "started", &json!({"life": life}));
        for number in 1..=WORKERS {
            let name = format!("{name}.{life}.w{number}");
            let (shared, process) = (Arc::clone(&self.shared), Arc::clone(&process));
            let worker = Worker { shared, process, seat, name };
            self.shared.lock().workers += 1;
            self.workers.push(thread::spawn(|| worker.run()));
        }
        Ok(())
    }

    /// Starts all processes, and waits for the first increment.
    pub(crate) fn start_all(&mut self) -> Result<(), DemoError> {
        (0..self.members.len()).try_for_each(|seat| self.begin(seat))?;
        (0..self.members.len()).try_for_each(|seat| self.finish(seat))?;
        self.until("the first increment", |stage| {
            !stage.shared.lock().evidence.acknowledged.is_empty()
        })?;
        self.work = Some(Instant::now());
        Ok(())
    }

    /// Returns the duration of the work so far.
    pub(crate) fn work_time(&self) -> Duration {
        self.work.map_or(Duration::ZERO, |began| began.elapsed())
    }

    /// Waits for a leader. Returns its process and term.
    pub(crate) fn leader(&mut self) -> Result<(usize, u64), DemoError> {
        self.until_some("a leader", |stage| {
            let members = stage.members.iter().enumerate();
            let leaders = members.filter_map(|(seat, member)| Some((seat, member.leads?)));
            leaders.max_by_key(|(_, term)| *term)
        })
    }

    /// Waits until a worker of this process holds the lock and pauses at this point. Returns its increment and token.
    pub(crate) fn linger(&mut self, seat: usize, at: Point) -> Result<(String, Token), DemoError> {
        self.shared.lock().linger = Some((seat, at));
        let lingering = |stage: &Self| stage.shared.lock().lingering.clone();
        self.until_some("a worker to hold the lock", lingering)
    }

    /// Lets a pausing worker continue.
    pub(crate) fn resume_worker(&self) {
        self.shared.change(|account| (account.linger, account.lingering) = (None, None));
    }

    /// Kills a process, restarts it after a while, and waits for the first increment that was started since the kill.
    /// Returns the time from the kill to that increment.
    pub(crate) fn kill(
        &mut self,
        seat: usize,
        event: &str,
        fields: &Value,
        away: Duration,
    ) -> Result<Duration, DemoError> {
        let killed = Some(moment::now());
        self.shared.change(|account| {
            (account.idle_since, account.recovered_after) = (killed, None);
            account.evidence.kills += 1;
        });
        let member = &mut self.members[seat];
        (member.look, member.leads) = (None, None);
        let process = member.process.take().expect("only running processes are killed");
        process.end().map_err(|error| self.fell(seat, &error.to_string()))?;
        self.resume_worker();
        self.report(Some(seat), event, fields);
        self.pass(away)?;
        self.begin(seat)?;
        self.finish(seat)?;
        let recovered = |stage: &Self| stage.shared.lock().recovered_after;
        self.until_some("an increment after a fault", recovered)
    }

    /// Suspends or resumes a process.
    pub(crate) fn signal(&self, seat: usize, signal: Signal) -> Result<(), DemoError> {
        let process = self.members[seat].process.as_ref().expect("the process runs");
        process.signal(signal).map_err(DemoError::environment("cannot pause and resume a process"))
    }

    /// Waits until all workers rest.
    pub(crate) fn rest(&mut self) -> Result<(), DemoError> {
        let work_time = self.work_time();
        self.report(None, "resting", &json!({}));
        self.shared.change(|account| (account.resting, account.work_time) = (true, work_time));
        self.until("all workers to stop", |stage| stage.shared.lock().workers == 0)
    }

    /// Reads the store of every member.
    pub(crate) fn read_all(&mut self) -> Result<(), DemoError> {
        for seat in 0..self.members.len() {
            let begun = Instant::now();
            let mut store = self.read(seat)?;
            while !store.in_line.is_empty() && begun.elapsed() < QUEUE_PATIENCE {
                self.pass(LOOK)?;
                store = self.read(seat)?;
            }
            let fields = json!({"increments": store.rows.len(), "count": store.count});
            self.report(Some(seat), "read", &fields);
            self.shared.lock().evidence.stores.push(store);
        }
        Ok(())
    }

    /// Reads the store of a member at one linearizable revision.
    fn read(&mut self, seat: usize) -> Result<Store, DemoError> {
        let Member { name, process, .. } = &self.members[seat];
        let mut store = Store { member: name.clone(), ..Store::default() };
        let begun = self.shared.history.begin(0, "", KvCall::Get { key: COUNT.into() });
        let list = Order::Call(Box::new(Call::List { prefix: KEYS.to_owned() }));
        let answer = process.as_ref().expect("the process runs").ask(&list);
        let what = "all members to read their stores";
        let answer = self.until_some(what, |_| answer.try_recv().ok())?;
        let unexpected = |what: &dyn std::fmt::Debug| {
            DemoError::Halted(format!("unexpected contents of the store: {what:?}"))
        };
        let Answer::Came(reply) = answer else { return Err(unexpected(&answer)) };
        let Reply::Rows { revision, rows } = *reply else { return Err(unexpected(&reply)) };
        let (mut value, mut modified) = (None, None);
        for row in &rows {
            if row.key.starts_with(QUEUE) {
                store.in_line.push(row.key.clone());
            } else if row.key == COUNT {
                store.count = row.value.parse().map_err(|_| unexpected(row))?;
                (value, modified) = (Some(store.count.into()), Some(row.modified));
            } else {
                store.rows.push(increment(row).ok_or_else(|| unexpected(row))?);
            }
        }
        let seen = Seen::Read { value, modified };
        self.shared.history.ok(begun, KvReply { seen, revision: Some(revision) });
        Ok(store)
    }

    /// Ends all processes at once. Returns descriptions of all problems.
    pub(crate) fn end(&mut self) -> Vec<String> {
        let end = |(name, process): (String, Arc<Process>)| {
            let stop = move || process.stop().err().map(|error| format!("{name}: {error}"));
            thread::spawn(stop)
        };
        let running = |member: &mut Member| Some((member.name.clone(), member.process.take()?));
        let ends: Vec<_> = self.members.iter_mut().filter_map(running).map(end).collect();
        ends.into_iter().filter_map(|end| end.join().expect("it does not panic")).collect()
    }

    /// Kills all processes, and waits for the workers.
    pub(crate) fn kill_all(&mut self) {
        self.shared.change(|account| account.resting = true);
        for member in &mut self.members {
            let end = |process: Arc<Process>| process.end_for_any_reason();
            if let Some(Err(error)) = member.process.take().map(end) {
                crate::print_failure(&format_args!("cannot kill {}: {error}", member.name));
            }
        }
        self.resume_worker();
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}

/// Parses the row of an increment.
fn increment(row: &calls::Row) -> Option<Row> {
    let (count, token) = row.value.split_once(' ')?;
    Some(Row {
        op: row.key.strip_prefix(OPS)?.to_owned(),
        count: count.parse().ok()?,
        token: token.parse().ok()?,
        revision: row.modified,
        version: row.version,
    })
}

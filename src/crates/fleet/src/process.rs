//! One run of a node's process, as seen by the harness. A restarted node is a new process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use bowline::env::Point;
use rustix::process::{Pid, Signal, kill_process};
use thiserror::Error;

use crate::wire::{Answer, Message, Order};

/// Maximum time to wait for an event that must occur, such as a start, a reply or an exit. The time is long enough for
/// an overloaded machine.
pub const LIMIT: Duration = Duration::from_secs(60);

const SIGKILL: i32 = 9;

/// Text in the message of a server that is ready for clients, and the prefix of the message of a server that fails.
const SERVES: &str = "is ready to serve client requests";
const FAILS: &str = "error: ";

/// An error that prevents the harness from continuing.
#[derive(Debug, Error)]
pub enum HarnessError {
    /// The operating system reports an error.
    #[error("{what}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The error.
        source: std::io::Error,
    },
    /// An external tool fails.
    #[error("{tool} failed ({status}): {output}")]
    Tool {
        /// Name of the tool.
        tool: String,
        /// Exit status of the tool.
        status: String,
        /// Output of the tool.
        output: String,
    },
    /// Fault injection, a tool of the machine, or the harness itself did not complete in time.
    #[error("timed out after {LIMIT:?}: {0}")]
    TooLate(String),
    /// Members made no progress in time: a member did not start or end, or no leader was elected although a quorum was
    /// available.
    #[error("members made no progress within {LIMIT:?}: {0}")]
    Hangs(String),
    /// A node that should run has stopped.
    #[error("a node has stopped by itself: {0}")]
    Stopped(String),
    /// A process ended, but was not killed.
    #[error("a process ended unexpectedly: {0}")]
    Ended(String),
    /// A member does not serve requests again although all faults have ended.
    #[error("members not available {LIMIT:?} after all faults ended: {0}")]
    NotBack(String),
    /// A member confirmed a backup that is invalid.
    #[error("invalid backup: {0}")]
    Backup(String),
    /// A node rejects an order.
    #[error("unexpected reply to {order:?}: {answer:?}")]
    Answered {
        /// The order.
        order: Order,
        /// The answer.
        answer: Answer,
    },
}

impl HarnessError {
    /// Returns a function that makes this error of an error of the operating system. `what` is the attempted operation.
    pub fn system(what: &'static str) -> impl Fn(std::io::Error) -> Self + Copy {
        move |source| HarnessError::System { what, source }
    }

    /// Converts the error to the error that it implies if it occurs after all faults have ended.
    #[must_use]
    pub fn when_healed(self) -> Self {
        match self {
            HarnessError::TooLate(what) | HarnessError::Hangs(what) => HarnessError::NotBack(what),
            other => other,
        }
    }

    /// Adds the name of the member, if the error is about a member.
    #[must_use]
    pub fn of(self, member: usize) -> Self {
        let of = |what| format!("m{member}: {what}");
        match self {
            HarnessError::Hangs(what) => HarnessError::Hangs(of(what)),
            HarnessError::Stopped(why) => HarnessError::Stopped(of(why)),
            HarnessError::Ended(how) => HarnessError::Ended(of(how)),
            other => other,
        }
    }
}

/// How a process was killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// The process killed itself at this crash point.
    At(Point),
    /// The process was killed from outside.
    Outside,
}

/// The process of a node. Dropping this value kills the process.
pub struct Process {
    child: Mutex<Child>,
    orders: OrderInput,
    received: Arc<Received>,
}

/// How orders reach a process.
enum OrderInput {
    /// Orders are lines on the standard input of the process, until it is ordered to stop.
    Input(Mutex<Option<ChildStdin>>),
    /// Orders reach the process over the network, because the process is a server.
    Port(Arc<dyn Remote>),
}

/// The clients of a server, which carry out orders over the network.
pub trait Remote: Send + Sync {
    /// Runs an order, and sends the answer to `received`.
    fn ask(self: Arc<Self>, order: &Order, received: mpsc::Sender<Answer>);
}

#[derive(Default)]
struct Received {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: BTreeMap<u64, mpsc::Sender<Answer>>,
    ready: bool,
    dies: Option<Point>,
    stopped: Option<String>,
    /// Whether the process was ordered to stop.
    ending: bool,
    /// Whether no more output will be read.
    over: bool,
}

impl Received {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while a condition holds. At the limit, returns the error `otherwise`.
    fn wait_while(
        &self,
        limit: Duration,
        otherwise: fn(String) -> HarnessError,
        what: &str,
        mut condition: impl FnMut(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>, HarnessError> {
        let (state, late) = self
            .changed
            .wait_timeout_while(self.lock(), limit, |state| condition(state))
            .unwrap_or_else(PoisonError::into_inner);
        if late.timed_out() { Err(otherwise(what.to_owned())) } else { Ok(state) }
    }

    fn listen(&self, output: impl Read, hear: fn(&mut State, &str)) {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { break };
            hear(&mut self.lock(), &line);
            self.changed.notify_all();
        }
        let mut state = self.lock();
        state.over = true;
        state.waiting.clear();
        drop(state);
        self.changed.notify_all();
    }
}

/// Handles a line of a node. A line that was cut off by a kill is ignored.
fn handle_node_line(state: &mut State, line: &str) {
    match serde_json::from_str(line) {
        Ok(Message::Ready) => state.ready = true,
        Ok(Message::Dies(point)) => state.dies = Some(point),
        Ok(Message::Stopped(why)) => state.stopped = Some(why),
        Ok(Message::Answer(id, answer)) => {
            if let Some(waiting) = state.waiting.remove(&id) {
                drop(waiting.send(answer));
            }
        }
        Err(_) => {}
    }
}

/// Handles a line that a server writes to its standard error: a line when the server is ready, and a line when it
/// fails. All other messages are in the log of the server.
fn handle_server_line(state: &mut State, line: &str) {
    if line.contains(SERVES) {
        state.ready = true;
    } else if let Some(why) = line.strip_prefix(FAILS) {
        state.stopped = Some(why.to_owned());
    }
}

impl Process {
    /// Starts the process of a node.
    ///
    /// # Errors
    /// Returns errors of the operating system.
    pub fn spawn(command: &mut Command) -> Result<Self, HarnessError> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(HarnessError::system("cannot start a process"))?;
        let input = child.stdin.take().expect("it is piped");
        let output = child.stdout.take().expect("it is piped");
        Self::of(child, output, handle_node_line, OrderInput::Input(Mutex::new(Some(input))))
    }

    /// Starts a server that its clients reach over the network.
    ///
    /// # Errors
    /// Returns errors of the operating system.
    pub fn serve(command: &mut Command, clients: Arc<dyn Remote>) -> Result<Self, HarnessError> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(HarnessError::system("cannot start a server"))?;
        let output = child.stderr.take().expect("it is piped");
        Self::of(child, output, handle_server_line, OrderInput::Port(clients))
    }

    fn of(
        child: Child,
        output: impl Read + Send + 'static,
        hear: fn(&mut State, &str),
        orders: OrderInput,
    ) -> Result<Self, HarnessError> {
        let received = Arc::new(Received::default());
        let listener = Arc::clone(&received);
        thread::Builder::new()
            .name("listener".to_owned())
            .spawn(move || listener.listen(output, hear))
            .map_err(HarnessError::system("cannot start a thread"))?;
        Ok(Self { child: Mutex::new(child), orders, received })
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the node of the process is ready. Returns false if the process has ended instead.
    ///
    /// # Errors
    ///
    /// Returns an error if neither happens in time.
    pub fn ready(&self) -> Result<bool, HarnessError> {
        self.ready_within(LIMIT)
    }

    fn ready_within(&self, limit: Duration) -> Result<bool, HarnessError> {
        let starts = |state: &State| !state.ready && !state.over;
        let what = "a node is not ready";
        Ok(self.received.wait_while(limit, HarnessError::Hangs, what, starts)?.ready)
    }

    /// Returns whether the node of the process has been ready.
    pub fn is_ready(&self) -> bool {
        self.received.lock().ready
    }

    /// Sends an order. If the process ends before it answers, the sender of the returned receiver is dropped.
    pub fn ask(&self, order: &Order) -> mpsc::Receiver<Answer> {
        let (sender, receiver) = mpsc::channel();
        let input = match &self.orders {
            OrderInput::Input(input) => input,
            OrderInput::Port(clients) => {
                if !self.is_over() {
                    Arc::clone(clients).ask(order, sender);
                }
                return receiver;
            }
        };
        let id = {
            let mut state = self.received.lock();
            state.next += 1;
            let id = state.next;
            if !state.over {
                state.waiting.insert(id, sender);
            }
            id
        };
        let line = serde_json::to_string(&(id, order)).unwrap_or_default() + "\n";
        let mut input = input.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(input) = input.as_mut() {
            // If the process no longer reads, it has ended, and the reader of its output will notice.
            drop(input.write_all(line.as_bytes()));
        }
        receiver
    }

    /// Sends an order and waits for the answer. Returns `None` if the process ends before it answers.
    ///
    /// # Errors
    ///
    /// Returns an error if the process neither answers nor ends in time.
    pub fn answer(&self, order: &Order) -> Result<Option<Answer>, HarnessError> {
        match self.ask(order).recv_timeout(LIMIT) {
            Ok(answer) => Ok(Some(answer)),
            Err(mpsc::RecvTimeoutError::Disconnected) => Ok(None),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(HarnessError::Hangs(format!("no answer to {order:?}")))
            }
        }
    }

    /// Returns whether the process can take no more orders: it has ended, its node has stopped, or it was ordered to
    /// stop.
    pub fn is_over(&self) -> bool {
        let state = self.received.lock();
        state.over || state.ending || state.stopped.is_some()
    }

    /// Returns the reason for which the node has stopped by itself, if the process has reported that.
    pub fn why_stopped(&self) -> Option<String> {
        self.received.lock().stopped.clone()
    }

    /// Waits until the node has stopped by itself, and returns the reason.
    ///
    /// # Errors
    ///
    /// Returns an error if the node keeps running, or if the process ends without a message.
    pub fn stopped(&self) -> Result<String, HarnessError> {
        let continues = |state: &State| !state.over && state.stopped.is_none();
        let what = "a node that should stop still runs";
        let state = self.received.wait_while(LIMIT, HarnessError::Hangs, what, continues)?;
        let without_a_word = || HarnessError::Ended("no message".to_owned());
        state.stopped.clone().ok_or_else(without_a_word)
    }

    /// Kills the process.
    fn kill(&self) {
        // If the process has already ended, the error is ignored.
        drop(self.child().kill());
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    ///
    /// Returns errors of the operating system.
    pub fn signal(&self, signal: Signal) -> Result<(), HarnessError> {
        // Hold the lock while the signal is sent: the operating system cannot assign the id to another process until
        // `wait` is called.
        let child = self.child();
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let sent = id.map_or(Ok(()), |id| kill_process(id, signal));
        sent.map_err(|errno| HarnessError::system("cannot send a signal")(errno.into()))
    }

    /// Shuts the process down gracefully: the process answers its open orders, and its node transfers leadership and
    /// stops.
    ///
    /// # Errors
    ///
    /// Returns an error if the process does not end or does not exit successfully, or if the node had stopped by
    /// itself.
    pub fn stop(&self) -> Result<(), HarnessError> {
        self.stop_within(LIMIT)
    }

    fn stop_within(&self, limit: Duration) -> Result<(), HarnessError> {
        self.received.lock().ending = true;
        match &self.orders {
            OrderInput::Input(input) => {
                drop(input.lock().unwrap_or_else(PoisonError::into_inner).take());
            }
            OrderInput::Port(_) => self.signal(Signal::TERM)?,
        }
        let what = "a process that was asked to stop still runs";
        let state = self.received.wait_while(limit, HarnessError::Hangs, what, |s| !s.over)?;
        let stopped = state.stopped.clone();
        drop(state);
        let status = self.wait()?;
        match stopped {
            Some(why) => Err(HarnessError::Stopped(why)),
            None if status.success() => Ok(()),
            None => Err(HarnessError::Ended(status.to_string())),
        }
    }

    fn wait(&self) -> Result<ExitStatus, HarnessError> {
        let mut child = self.child();
        child.wait().map_err(HarnessError::system("cannot wait for a process"))
    }

    /// Kills the process. If the process has reported that its node stopped by itself, returns the reason.
    ///
    /// # Errors
    ///
    /// Returns an error if the process survives, or if it had ended before without a message.
    pub fn end(&self) -> Result<Option<String>, HarnessError> {
        let (was_over, status, stopped) = self.kill_and_wait()?;
        match (status.signal(), &stopped) {
            (Some(SIGKILL), _) if !was_over => Ok(stopped),
            (None, Some(_)) => Ok(stopped),
            _ => Err(HarnessError::Ended(match stopped {
                Some(why) => format!("{status}, after the message: {why}"),
                None => format!("{status}, without a message"),
            })),
        }
    }

    /// Like [`end`](Self::end), for a process whose disk fails or has no power. Such a process may have ended for any
    /// reason.
    ///
    /// # Errors
    ///
    /// Returns an error if the process survives.
    pub fn end_for_any_reason(&self) -> Result<Option<String>, HarnessError> {
        self.kill_and_wait().map(|(_, _, stopped)| stopped)
    }

    /// Kills the process. Returns whether it had ended before, its exit status, and the reason for which its node had
    /// stopped, if the process has reported that.
    fn kill_and_wait(&self) -> Result<(bool, ExitStatus, Option<String>), HarnessError> {
        // The output of a process ends some time before the operating system reports the end of the process.
        let was_over = self.received.lock().over;
        let was_over = was_over || {
            let mut child = self.child();
            let ended = child.try_wait().map_err(HarnessError::system("cannot query a process"))?;
            if ended.is_none() {
                // The process may end by itself at this moment. In that case its exit status shows the cause.
                drop(child.kill());
            }
            ended.is_some()
        };
        // A process cannot prevent that it is killed, so this is a problem of the machine.
        let what = "a killed process still runs";
        let state = self.received.wait_while(LIMIT, HarnessError::TooLate, what, |s| !s.over)?;
        let stopped = state.stopped.clone();
        drop(state);
        Ok((was_over, self.wait()?, stopped))
    }

    /// Waits until the process has been killed, by itself or from outside, and returns which of the two happened.
    ///
    /// # Errors
    ///
    /// Returns an error if the process survives, if its node has stopped by itself, or if the process has ended in
    /// another way.
    pub fn died(&self) -> Result<Death, HarnessError> {
        let lives = |state: &State| !state.over && state.stopped.is_none();
        let what = "a process that should die still runs";
        let state = self.received.wait_while(LIMIT, HarnessError::TooLate, what, lives)?;
        let (dies, stopped) = (state.dies, state.stopped.clone());
        drop(state);
        if let Some(why) = stopped {
            return Err(HarnessError::Stopped(why));
        }
        let status = self.wait()?;
        if status.signal() != Some(SIGKILL) {
            return Err(HarnessError::Ended(status.to_string()));
        }
        Ok(dies.map_or(Death::Outside, Death::At))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        drop(self.child().wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_state_is_parsed_from_its_standard_error() {
        let mut state = State::default();
        handle_server_line(&mut state, "2026-11-22 ERROR error: a line of a log says nothing");
        assert!(!state.ready && state.stopped.is_none());
        handle_server_line(
            &mut state,
            "bowline: member \"m0\" is ready to serve client requests on ...",
        );
        handle_server_line(&mut state, "error: the member has stopped: disk error: cannot sync");
        assert!(state.ready);
        assert_eq!(
            state.stopped.as_deref(),
            Some("the member has stopped: disk error: cannot sync")
        );
    }

    /// Ends a process that runs these commands, and returns the result. If `is_over`, waits first until the process has
    /// ended by itself.
    fn end_of(words: &str, is_over: bool) -> Result<Option<String>, HarnessError> {
        let process = Process::spawn(Command::new("sh").args(["-c", words])).unwrap();
        let lives = |state: &State| is_over && !state.over;
        drop(
            process
                .received
                .wait_while(LIMIT, HarnessError::TooLate, "it does not end", lives)
                .unwrap(),
        );
        process.end()
    }

    #[test]
    fn process_that_ended_before_the_kill_is_reported() {
        assert!(matches!(end_of("exec sleep 60", false), Ok(None)));
        for words in ["kill -ABRT $$", "kill -SEGV $$", "kill -KILL $$", "exit 0", "exit 3"] {
            let end = end_of(words, true);
            assert!(matches!(end, Err(HarnessError::Ended(_))), "{words}: {end:?}");
        }
        let outcome = end_of(r#"echo '{"stopped":"it was full"}'; exit 1"#, true);
        assert_eq!(outcome.unwrap().as_deref(), Some("it was full"));
    }

    #[test]
    fn process_that_stopped_by_itself_fails_a_clean_stop() {
        let stop_of =
            |words: &str| Process::spawn(Command::new("sh").args(["-c", words])).unwrap().stop();
        assert!(stop_of("cat > /dev/null").is_ok());
        let outcome = stop_of(r#"echo '{"stopped":"of grief"}'; cat > /dev/null"#);
        assert!(
            matches!(&outcome, Err(HarnessError::Stopped(why)) if why == "of grief"),
            "{outcome:?}"
        );
        assert!(matches!(stop_of("cat > /dev/null; exit 3"), Err(HarnessError::Ended(_))));
    }

    #[test]
    fn process_that_neither_starts_nor_stops_is_reported_as_hanging() {
        let process = Process::spawn(Command::new("sleep").arg("60")).unwrap();
        let soon = Duration::from_millis(50);
        assert!(matches!(process.ready_within(soon), Err(HarnessError::Hangs(_))));
        assert!(matches!(process.stop_within(soon), Err(HarnessError::Hangs(_))));
    }
}

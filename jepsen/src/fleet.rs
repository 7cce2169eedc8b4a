//! The processes of one run. Clients send calls to these processes, and the nemesis kills or pauses them.
//!
//! A member consists of a directory, an address and, if the member is running, a process. Calls to a member are sent
//! to its current process. If that process dies, its open calls get no reply.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline::StopReason;
use bowline::env::Point;
use bowline_fleet::ports::free_addresses;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::calls::{Call, Reply};
use crate::links::Links;
use crate::moment;
use crate::over::Over;
use crate::process::{Death, HarnessError, LIMIT, Process};
use crate::server::{Clients, Seat, Terms, command};
use crate::volume::{Medium, Volumes};
use crate::wire::{Answer, Order};

/// Environment variable of a node process with the election timeout, in milliseconds.
pub const ELECTION_MS: &str = "JEPSEN_ELECTION_MS";
/// Environment variable of a node process with the listen address, if it differs from the advertised address.
pub const LISTEN: &str = "JEPSEN_LISTEN";
/// Environment variable of a node process with the session TTL, in milliseconds.
pub const SESSION_MS: &str = "JEPSEN_SESSION_MS";
/// Environment variable of a node process with the call deadline, in milliseconds.
pub const DEADLINE_MS: &str = "JEPSEN_DEADLINE_MS";
/// Environment variable of a node process with the comma-separated addresses of the cluster to join. If it is not set,
/// the node founds a cluster.
pub const JOIN: &str = "JEPSEN_JOIN";
/// Environment variable of a node process with the name of the member that the joining node replaces.
pub const REPLACES: &str = "JEPSEN_REPLACES";

/// Environment variable of a node process with the faults at the start, as an order of
/// [`fault_injection`](crate::fault_injection).
pub const DOORS: &str = "JEPSEN_DOORS";

/// The default election timeout of members.
pub const ELECTION: Duration = Duration::from_millis(400);

/// The first words of the messages of a process that failed to join: no member answered, or the name was taken.
pub const NOT_LET_IN: [&str; 2] = ["it did not start: joining:", "it did not start: network:"];

/// Maximum time for a query of the leader.
const LOOK_LIMIT: Duration = Duration::from_millis(300);
/// Pause between two attempts to find the leader.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The parameters of the members of a run. The workload and the nemesis of the run may change some of the parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The kind of members and the protocol of their clients.
    pub over: Over,
    /// Number of founding members.
    pub members: usize,
    /// Number of additional members that may join later.
    pub spare: usize,
    /// The election timeout.
    pub election: Duration,
    /// The session TTL.
    pub session: Duration,
    /// The call deadline.
    pub deadline: Duration,
    /// Whether members talk through the proxy of the harness. Required for the faults of [`Fleet::links`].
    pub proxied: bool,
    /// If each member has its own file system: the kinds of file systems, assigned to the members in turn, and their
    /// size.
    pub volumes: Option<(Vec<Medium>, u64)>,
    /// Additional environment variables of the processes.
    pub variables: Vec<(String, String)>,
}

impl Setup {
    /// Returns the setup for this number of members on one machine, with short timeouts.
    pub fn of(members: usize) -> Self {
        Self {
            over: Over::default(),
            members,
            spare: 0,
            election: ELECTION,
            session: Duration::from_secs(2),
            deadline: Duration::from_secs(3),
            proxied: false,
            volumes: None,
            variables: Vec::new(),
        }
    }
}

/// A compaction that was requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compaction {
    /// Time of the call, on the clock of the machine. In the run of a workload, the time is on the clock of the run.
    pub called: u64,
    /// The revision up to which history was to be discarded.
    pub revision: u64,
}

/// The state of the process of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessState {
    /// The member has no process: the process was killed, or never started.
    Down,
    /// The process runs, as far as the harness knows.
    Up,
    /// The process is paused.
    Paused,
}

struct Place {
    dir: PathBuf,
    /// The address that the other members use.
    address: String,
    /// The listen address.
    listen: String,
    /// The address that clients use, if the member is a server.
    client: String,
    now: Mutex<Now>,
    /// Held while the process is started or ended, so that only one thread does either.
    hands: Mutex<()>,
}

struct Now {
    process: Option<Arc<Process>>,
    being: ProcessState,
    /// Whether the member joins a cluster instead of founding one.
    joins: bool,
    /// Whether the member replaces a member with the same index whose disk was lost.
    replaces: bool,
    /// Whether the removal of a member with this name was requested. The flag is never reset, because a late removal
    /// may affect the next member with the same name.
    goes: bool,
}

impl Place {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The program of the members, with its first arguments.
#[derive(Clone, Debug)]
pub struct Program {
    /// Path of the executable.
    pub path: PathBuf,
    /// The arguments that precede the member's own arguments.
    pub words: Vec<String>,
}

/// The processes of one run. Dropping the fleet kills the processes and removes their data.
pub struct Fleet {
    program: Program,
    setup: Setup,
    places: Vec<Place>,
    links: Links,
    volumes: Option<Mutex<Volumes>>,
    /// Violations that were observed by components that cannot report them in another way.
    wrongs: Mutex<Vec<String>>,
    /// Compactions that were requested.
    compactions: Mutex<Vec<Compaction>>,
    _door: Option<crate::proxy::Proxy>,
    _dir: TempDir,
}

impl From<&str> for Program {
    fn from(path: &str) -> Self {
        Self { path: path.into(), words: Vec::new() }
    }
}

impl Fleet {
    /// Creates members without starting them.
    ///
    /// # Errors
    /// Returns errors of the operating system.
    pub fn new(program: Program, setup: Setup) -> Result<Self, HarnessError> {
        let dir = TempDir::with_prefix("bowline-jepsen-")
            .map_err(HarnessError::system("cannot create a directory"))?;
        let many = setup.members + setup.spare;
        let volumes = match &setup.volumes {
            Some((media, bytes)) => {
                let media: Vec<Medium> = media.iter().copied().cycle().take(many).collect();
                Some(Volumes::make(&media, *bytes)?)
            }
            None => None,
        };
        let (listens, links) = (free_addresses(many)?, Links::default());
        let (addresses, door) = if setup.proxied {
            let addresses = free_addresses(many)?;
            let door = crate::proxy::Proxy::start(&addresses, &listens, links.clone())?;
            (addresses, Some(door))
        } else {
            (listens.clone(), None)
        };
        let clients = free_addresses(many)?;
        let places = (addresses.into_iter().zip(listens).zip(clients).enumerate())
            .map(|(member, ((address, listen), client))| Place {
                dir: volumes.as_ref().map_or_else(
                    || dir.path().join(format!("m{member}")),
                    |v| v.dir(member).join("data"),
                ),
                address,
                listen,
                client,
                now: Mutex::new(Now {
                    process: None,
                    being: ProcessState::Down,
                    joins: false,
                    replaces: false,
                    goes: false,
                }),
                hands: Mutex::default(),
            })
            .collect();
        let volumes = volumes.map(Mutex::new);
        let (wrongs, compactions) = (Mutex::default(), Mutex::default());
        Ok(Self {
            program,
            setup,
            places,
            links,
            volumes,
            wrongs,
            compactions,
            _door: door,
            _dir: dir,
        })
    }

    /// Returns the path of the program.
    pub fn program(&self) -> &Path {
        &self.program.path
    }

    /// Returns the setup.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Returns the number of founding members.
    pub fn members(&self) -> usize {
        self.setup.members
    }

    /// Returns the number of all members, including those that may join later.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Returns the links between members. Link faults have an effect only if the members use the proxy.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// Returns the file systems of the members, or `None` if the members share the file system of the machine.
    pub fn volumes(&self) -> Option<MutexGuard<'_, Volumes>> {
        Some(self.volumes.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the data directory of a member. The directory may be changed only while the member is down.
    pub fn dir(&self, member: usize) -> &Path {
        &self.places[member].dir
    }

    /// Returns the address at which the other members reach a member.
    pub fn address(&self, member: usize) -> &str {
        &self.places[member].address
    }

    /// Returns the state of the process of a member.
    pub fn being(&self, member: usize) -> ProcessState {
        self.places[member].now().being
    }

    /// Returns the members whose processes run.
    pub fn up(&self) -> Vec<usize> {
        (0..self.places()).filter(|member| self.being(*member) == ProcessState::Up).collect()
    }

    /// Starts the founding members and waits for a leader.
    ///
    /// # Errors
    /// Returns an error if a member does not start, or if there is no leader in time.
    pub fn start(&self) -> Result<(), HarnessError> {
        (0..self.members()).try_for_each(|member| self.spawn(member))?;
        (0..self.members()).try_for_each(|member| self.await_ready(member))?;
        self.await_leader(LIMIT).map(drop)
    }

    /// Starts a member that is down, without waiting until the member is ready. Does nothing if the member is up.
    ///
    /// # Errors
    ///
    /// Returns errors of the operating system.
    pub fn spawn(&self, member: usize) -> Result<(), HarnessError> {
        self.spawn_armed(member, None)
    }

    /// Like [`spawn`](Self::spawn). If `armed` is given, the member kills itself when it reaches that crash point for
    /// the given number of times.
    ///
    /// # Errors
    ///
    /// Returns errors of the operating system.
    pub fn spawn_armed(
        &self,
        member: usize,
        armed: Option<(Point, u64)>,
    ) -> Result<(), HarnessError> {
        let place = &self.places[member];
        let mut now = place.now();
        if now.being != ProcessState::Down {
            return Ok(());
        }
        let process = match self.setup.over {
            Over::Embedded => Process::spawn(&mut self.node(member, &now, armed))?,
            Over::Server if armed.is_some() || now.joins => {
                let source =
                    std::io::Error::other("servers only found clusters and have no crash points");
                return Err(HarnessError::System { what: "cannot start a server", source });
            }
            Over::Server => self.serve(member)?,
        };
        now.process = Some(Arc::new(process));
        now.being = ProcessState::Up;
        Ok(())
    }

    /// Returns the founders with their addresses.
    fn founders(&self, scheme: &str) -> String {
        let founder = |member| format!("m{member}={scheme}{}", self.address(member));
        (0..self.members()).map(founder).collect::<Vec<_>>().join(",")
    }

    /// Returns the command that starts a node.
    fn node(&self, member: usize, now: &Now, armed: Option<(Point, u64)>) -> Command {
        let place = &self.places[member];
        let mut command = Command::new(&self.program.path);
        command.args(&self.program.words).arg(&place.dir).arg(format!("m{member}"));
        command.arg(self.founders(""));
        command.args(armed.map(|(point, hits)| format!("{point:?}:{hits}")));
        let millis = |span: Duration| span.as_millis().to_string();
        command.env(ELECTION_MS, millis(self.setup.election));
        command.env(SESSION_MS, millis(self.setup.session));
        command.env(DEADLINE_MS, millis(self.setup.deadline));
        command.env(LISTEN, &place.listen);
        command.envs(self.setup.variables.iter().cloned());
        if now.joins {
            let others: Vec<&str> = (0..self.members()).map(|other| self.address(other)).collect();
            command.env(JOIN, format!("{},{}", place.address, others.join(",")));
        }
        if now.replaces {
            command.env(REPLACES, format!("m{member}"));
        }
        command
    }

    fn serve(&self, member: usize) -> Result<Process, HarnessError> {
        let place = &self.places[member];
        let seat = Seat {
            name: format!("m{member}"),
            dir: &place.dir,
            client: &place.client,
            address: &place.address,
            listen: &place.listen,
            founders: self.founders("http://"),
            election: self.setup.election,
        };
        let terms = Terms { deadline: self.setup.deadline, session: self.setup.session };
        Process::serve(&mut command(&self.program, &seat), Clients::of(&place.client, terms))
    }

    /// Starts a new member that joins the cluster, without waiting until the member is ready.
    ///
    /// # Errors
    ///
    /// Returns errors of the operating system.
    pub fn spawn_joining(&self, member: usize) -> Result<(), HarnessError> {
        self.places[member].now().joins = true;
        self.spawn(member)
    }

    /// Discards the data of a member and starts a replacement with an empty directory, without waiting until the
    /// replacement is ready.
    ///
    /// # Errors
    ///
    /// Returns errors of the operating system.
    pub fn spawn_replacing(&self, member: usize) -> Result<(), HarnessError> {
        self.clear(member)?;
        self.places[member].now().replaces = true;
        self.spawn_joining(member)
    }

    /// Waits until a member has died, either at its armed crash point or because it was killed from outside. Returns
    /// which of the two happened.
    ///
    /// # Errors
    ///
    /// Returns an error if the member survives, if its node has stopped by itself, or if its process has ended in
    /// another way.
    pub fn died(&self, member: usize) -> Result<Death, HarnessError> {
        let process = self.process(member);
        let death = match process {
            Some(process) => process.died()?,
            None => return Err(HarnessError::Ended(format!("m{member} had no process"))),
        };
        let mut now = self.places[member].now();
        now.being = ProcessState::Down;
        now.process = None;
        Ok(death)
    }

    /// Waits until a spawned member is ready.
    ///
    /// # Errors
    ///
    /// Returns an error if the member's process ends, or if the member is not ready in time.
    pub fn await_ready(&self, member: usize) -> Result<(), HarnessError> {
        let process = self.process(member);
        if let Some(process) = &process
            && process.ready().map_err(|trouble| trouble.of(member))?
        {
            return Ok(());
        }
        let why = process.and_then(|process| process.why_stopped());
        let why = why.unwrap_or_else(|| "no message".to_owned());
        Err(HarnessError::Ended(format!("m{member} did not start: {why}")))
    }

    /// Waits until a replacement votes in place of a founder, and every running founder knows this. Until then the
    /// vote of the lost member still counts, so the cluster tolerates one failure less.
    ///
    /// # Errors
    ///
    /// Returns an error if the replacement's process ends, or if the replacement is not admitted in time.
    pub fn await_replaced(&self, member: usize) -> Result<(), HarnessError> {
        self.await_ready(member)?;
        let founders = 0..self.members();
        let names: BTreeSet<String> = founders.clone().map(|member| format!("m{member}")).collect();
        let knows = |member: usize| {
            matches!(self.call(member, Call::Members, LOOK_LIMIT),
                Some(Reply::Members { voters, learners, joint: false })
                    if names.iter().all(|name| voters.contains(name) && !learners.contains(name)))
        };
        let do_all =
            || founders.clone().all(|other| self.being(other) != ProcessState::Up || knows(other));
        let what = format!("m{member} has not replaced the lost member");
        self.await_some(LIMIT, &what, || do_all().then_some(()))
    }

    /// Repeats a query until it has a result.
    fn await_some<T>(
        &self,
        limit: Duration,
        what: &str,
        look: impl Fn() -> Option<T>,
    ) -> Result<T, HarnessError> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if let Some(found) = look() {
                return Ok(found);
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        Err(HarnessError::Hangs(format!("{what}{}", self.told_of_all())))
    }

    /// Describes the state and the answer of every member, for the report of a run that hangs.
    fn told_of_all(&self) -> String {
        let order = Order::Call(Box::new(Call::Members));
        let all = (0..self.places()).map(|member| {
            let being = self.being(member);
            let stopped = self.process(member).and_then(|process| process.why_stopped());
            let says = |order| match self.ask(member, order, LOOK_LIMIT) {
                Some(answer) => format!("{answer:?}"),
                None => "no answer".to_owned(),
            };
            match (being, stopped) {
                (ProcessState::Up, None) => {
                    format!("; m{member}: {}; {}", says(&Order::Look), says(&order))
                }
                (being, stopped) => {
                    format!("; m{member}: {being:?} {}", stopped.unwrap_or_default())
                }
            }
        });
        all.collect()
    }

    /// Starts a member that is down, and waits until the member is ready.
    ///
    /// # Errors
    ///
    /// Returns an error if the member does not start.
    pub fn restart(&self, member: usize) -> Result<(), HarnessError> {
        self.spawn(member)?;
        self.await_ready(member)
    }

    /// Ends a member permanently and deletes its data, because the member was or will be removed from the cluster.
    ///
    /// # Errors
    ///
    /// Returns an error if the process survives. Also returns an error if the member had stopped before, for a reason
    /// other than its removal or a rejected join.
    pub fn clear(&self, member: usize) -> Result<(), HarnessError> {
        self.bury_newcomer(member)?;
        let place = &self.places[member];
        place.now().joins = false;
        match std::fs::remove_dir_all(&place.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(HarnessError::System {
                    what: "cannot delete the data of a member",
                    source: error,
                })
            }
            _ => Ok(()),
        }
    }

    /// Kills a member. Does nothing if the member is down.
    ///
    /// # Errors
    ///
    /// Returns an error if the process survives. Also returns an error if the node had stopped by itself, which no
    /// member may do.
    pub fn kill(&self, member: usize) -> Result<(), HarnessError> {
        match self.reap(member)? {
            Some(why) => Err(HarnessError::Stopped(format!("m{member}: {why}"))),
            None => Ok(()),
        }
    }

    /// Kills a member that has joined or tried to join.
    ///
    /// # Errors
    ///
    /// Returns an error if the process survives. Also returns an error if the member had stopped before, for a reason
    /// other than its removal or a rejected join.
    pub fn bury_newcomer(&self, member: usize) -> Result<(), HarnessError> {
        match self.reap(member)? {
            Some(why) if !self.may_stop(member, &why) => {
                Err(HarnessError::Stopped(format!("m{member}, which joined later: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a member was allowed to stop by itself with this message. This is the case only for a member
    /// that is not a founder, and only if it was removed or could not join.
    fn may_stop(&self, member: usize, why: &str) -> bool {
        let was_let_in = !NOT_LET_IN.iter().any(|words| why.contains(words));
        member >= self.members() && (!was_let_in || self.may_have_gone(member, why))
    }

    /// Returns whether a member reports that it was removed, and its removal was requested.
    fn may_have_gone(&self, member: usize, why: &str) -> bool {
        member >= self.members() && self.places[member].now().goes && was_removed(why)
    }

    /// Records that the removal of a member is about to be requested. From then on the member may report that it was
    /// removed.
    ///
    /// # Errors
    ///
    /// Returns an error if the member has reported its removal before.
    pub fn lets_go(&self, member: usize) -> Result<(), HarnessError> {
        let why = self.process(member).and_then(|process| process.why_stopped());
        let went = why.filter(|why| was_removed(why) && !self.may_have_gone(member, why));
        self.places[member].now().goes = true;
        went.map_or(Ok(()), |why| Err(HarnessError::Stopped(why).of(member)))
    }

    /// Checks that the node of a member has not stopped by itself. Call this method before a fault that may stop the
    /// node: afterwards, a stop because of the fault looks like a stop by itself.
    ///
    /// # Errors
    ///
    /// Returns an error if the node had stopped by itself.
    pub fn must_run(&self, member: usize) -> Result<(), HarnessError> {
        match self.process(member).and_then(|process| process.why_stopped()) {
            Some(why) if !self.may_stop(member, &why) => {
                Err(HarnessError::Stopped(format!("m{member}: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Kills a member after a fault that may stop its node. If the node had stopped by itself, returns the reason.
    ///
    /// # Errors
    ///
    /// Returns an error if the process survives, or if it had ended before without a message from the node.
    pub fn reap(&self, member: usize) -> Result<Option<String>, HarnessError> {
        let end = |process: Arc<Process>| process.end().map_err(|trouble| trouble.of(member));
        self.take(member).map_or(Ok(None), end)
    }

    /// Like [`reap`](Self::reap), for a member whose disk fails or has no power. The process of such a member may have
    /// ended for any reason.
    ///
    /// # Errors
    ///
    /// Returns an error if the process survives.
    pub fn bury_however(&self, member: usize) -> Result<Option<String>, HarnessError> {
        self.take(member).map_or(Ok(None), |process| process.end_for_any_reason())
    }

    fn take(&self, member: usize) -> Option<Arc<Process>> {
        let mut now = self.places[member].now();
        now.being = ProcessState::Down;
        now.process.take()
    }

    /// Records a violation, for components that cannot report it in another way.
    pub fn is_wrong(&self, what: String) {
        self.wrongs.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Returns the recorded violations.
    pub fn wrongs(&self) -> Vec<String> {
        self.wrongs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks a member to compact all revisions except the last `keep` that the member knows. Returns whether the member
    /// confirmed the compaction. Without a confirmation, the compaction may still be applied, now or later.
    pub fn compact(&self, member: usize, keep: u64, limit: Duration) -> bool {
        let look = Call::Get { key: "status".to_owned(), local: true };
        let Some(Reply::Rows { revision, .. }) = self.call(member, look, limit) else {
            return false;
        };
        let revision = revision.saturating_sub(keep);
        let compaction = Compaction { called: moment::now(), revision };
        self.compactions.lock().unwrap_or_else(PoisonError::into_inner).push(compaction);
        let done = self.ask(member, &Order::Compact(revision), limit);
        matches!(done, Some(Answer::Done(_)))
    }

    /// Returns the compactions that were requested so far.
    pub fn compactions(&self) -> Vec<Compaction> {
        self.compactions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shuts a member down gracefully.
    ///
    /// # Errors
    ///
    /// Returns an error if the process does not end or does not exit successfully, or if the node had stopped by
    /// itself.
    pub fn stop(&self, member: usize) -> Result<(), HarnessError> {
        let process = self.process(member);
        let stopped = process.map_or(Ok(()), |process| process.stop());
        drop(self.take(member));
        match stopped {
            Err(HarnessError::Stopped(why)) if self.may_stop(member, &why) => Ok(()),
            stopped => stopped.map_err(|trouble| trouble.of(member)),
        }
    }

    /// Pauses a member.
    ///
    /// # Errors
    /// Returns errors of the operating system.
    pub fn pause(&self, member: usize) -> Result<(), HarnessError> {
        self.signal(member, ProcessState::Up, Signal::STOP, ProcessState::Paused)
    }

    /// Resumes a paused member.
    ///
    /// # Errors
    /// Returns errors of the operating system.
    pub fn resume(&self, member: usize) -> Result<(), HarnessError> {
        self.signal(member, ProcessState::Paused, Signal::CONT, ProcessState::Up)
    }

    fn signal(
        &self,
        member: usize,
        from: ProcessState,
        by: Signal,
        to: ProcessState,
    ) -> Result<(), HarnessError> {
        let mut now = self.places[member].now();
        if let (true, Some(process)) = (now.being == from, &now.process) {
            process.signal(by)?;
            now.being = to;
        }
        Ok(())
    }

    /// Locks a member until the caller has started or ended the member's process. Without the lock, a concurrent
    /// thread might end the process and the caller would misinterpret that.
    pub fn hold(&self, member: usize) -> MutexGuard<'_, ()> {
        self.places[member].hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`hold`](Self::hold), but returns `None` if another thread has locked the member.
    pub fn try_hold(&self, member: usize) -> Option<MutexGuard<'_, ()>> {
        self.places[member].hands.try_lock().ok()
    }

    /// Returns the current process of a member, if there is one.
    pub fn process(&self, member: usize) -> Option<Arc<Process>> {
        self.places[member].now().process.clone()
    }

    /// Sends an order to a member. Returns `None` if the member is down, dies before it answers, or takes longer than
    /// `limit`.
    pub fn ask(&self, member: usize, order: &Order, limit: Duration) -> Option<Answer> {
        self.process(member)?.ask(order).recv_timeout(limit).ok()
    }

    /// Sends a client call to a member. Returns `None` in the cases of [`ask`](Self::ask), and if the outcome is
    /// unknown.
    pub fn call(&self, member: usize, call: Call, limit: Duration) -> Option<Reply> {
        match self.ask(member, &Order::Call(Box::new(call)), limit)? {
            Answer::Came(reply) => Some(*reply),
            _ => None,
        }
    }

    /// Starts or ends faults inside the process of a member: see `crate::fault_injection`. Returns false if the member
    /// has no process or the process is paused.
    ///
    /// # Errors
    ///
    /// Returns an error if the order is unknown or not answered in time.
    pub fn door(&self, member: usize, words: &str) -> Result<bool, HarnessError> {
        let order = Order::Fault(words.to_owned());
        match self.told(member, &order, LIMIT)? {
            Some(Answer::Armed) => Ok(true),
            None => Ok(false),
            Some(answer) => Err(HarnessError::Answered { order, answer }),
        }
    }

    /// Like [`door`](Self::door), for several members. Returns the number of members that ran the order.
    ///
    /// # Errors
    /// Returns the errors of [`door`](Self::door).
    pub fn doors(&self, members: &[usize], words: &str) -> Result<u64, HarnessError> {
        members.iter().try_fold(0, |done, member| Ok(done + u64::from(self.door(*member, words)?)))
    }

    /// Returns the number of injected failures of the log of a member, or `None` if the member's process has ended.
    ///
    /// # Errors
    ///
    /// Returns an error if the order is unknown or not answered in time.
    pub fn disk_failures(&self, member: usize) -> Result<Option<u64>, HarnessError> {
        let order = Order::Fault("failures".to_owned());
        match self.told(member, &order, LIMIT)? {
            Some(Answer::Done(failures)) => Ok(Some(failures)),
            None => Ok(None),
            Some(answer) => Err(HarnessError::Answered { order, answer }),
        }
    }

    /// Returns the answer to an order that the process of a member runs in any state of its node. Returns `None` if
    /// the member has no process, or if the process has ended. Also returns `None` if the process is paused; it runs
    /// the order when it resumes.
    ///
    /// # Errors
    ///
    /// Returns an error if the process does not answer in time.
    fn told(
        &self,
        member: usize,
        order: &Order,
        limit: Duration,
    ) -> Result<Option<Answer>, HarnessError> {
        let Some(process) = self.process(member) else { return Ok(None) };
        let answer = process.ask(order);
        if self.being(member) == ProcessState::Paused {
            return Ok(None);
        }
        match answer.recv_timeout(limit) {
            Ok(answer) => Ok(Some(answer)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                Err(HarnessError::TooLate(format!("no answer of m{member} to {order:?}")))
            }
        }
    }

    /// Returns the leader of the highest term that any running member knows, together with the term. Returns `None` if
    /// no member knows a leader.
    pub fn leader(&self) -> Option<(usize, u64)> {
        let looks: Vec<_> = (self.up().into_iter())
            .filter_map(|member| Some((member, self.process(member)?.ask(&Order::Look))))
            .collect();
        let answers = looks.into_iter().filter_map(|(member, answer)| {
            match answer.recv_timeout(LOOK_LIMIT).ok()? {
                Answer::Status { leads, term, .. } => Some((term, leads, member)),
                _ => None,
            }
        });
        answers.max().filter(|(_, leads, _)| *leads).map(|(term, _, member)| (member, term))
    }

    /// Waits for a leader.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no leader in time.
    pub fn await_leader(&self, limit: Duration) -> Result<(usize, u64), HarnessError> {
        self.await_some(limit, "no leader", || self.leader())
    }

    /// Returns the members whose nodes have stopped by themselves, with the reasons. Members that stopped because they
    /// were removed are omitted.
    pub fn stopped(&self) -> Vec<(usize, String)> {
        let why = |member| Some((member, self.process(member)?.why_stopped()?));
        let all = (0..self.places()).filter_map(why);
        all.filter(|(member, why)| !self.may_have_gone(*member, why)).collect()
    }

    /// Ends every fault that a nemesis may have left: resumes paused members, restores all links, ends all injected
    /// faults, and starts all members that have run before and are down.
    ///
    /// # Errors
    ///
    /// Returns an error if a member does not start.
    pub fn heal(&self) -> Result<(), HarnessError> {
        self.links.heal();
        let known: Vec<usize> = (0..self.places())
            .filter(|member| *member < self.members() || self.places[*member].now().joins)
            .collect();
        for member in &known {
            self.resume(*member)?;
            self.spawn(*member)?;
        }
        for member in known {
            self.await_ready(member)?;
            if self.setup.over == Over::Embedded {
                self.door(member, "close")?;
            }
        }
        Ok(())
    }
}

/// Returns whether a node reports that it was removed. The process may append more to the message.
fn was_removed(why: &str) -> bool {
    why.starts_with(&StopReason::Removed.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::Message;

    /// Returns a fleet whose member is a shell. The shell runs these commands for each `$order`, and answers to `$id`.
    pub(crate) fn shell(does: &str) -> Fleet {
        let fleet = shells(&per_order(does), 1, 0);
        fleet.restart(0).unwrap();
        fleet
    }

    /// Returns a loop that runs these commands for each `$order`, whose number is `$id`.
    pub(crate) fn per_order(does: &str) -> String {
        format!("while IFS='[,' read -r _ id order; do {does}; done")
    }

    /// Returns a command that sends this message, as a node does.
    pub(crate) fn says(message: &Message) -> String {
        format!("echo '{}'", serde_json::to_string(message).unwrap())
    }

    /// Returns a command that sends this answer to the order with the number `$id`.
    pub(crate) fn answers(answer: &Answer) -> String {
        let answer = serde_json::to_string(answer).unwrap();
        format!("echo '{{\"answer\":['$id',{answer}]}}'")
    }

    /// Returns a fleet whose members are shells that run these commands once they are ready. None is started.
    pub(crate) fn shells(do_this: &str, members: usize, spare: usize) -> Fleet {
        let words = vec!["-c".to_owned(), format!("{}; {do_this}", says(&Message::Ready))];
        let program = Program { path: "sh".into(), words };
        Fleet::new(program, Setup { spare, ..Setup::of(members) }).unwrap()
    }

    /// Returns commands that report, as a node does, that it has stopped, and wait for the end of the input.
    pub(crate) fn stops(why: &str) -> String {
        format!("{}; cat > /dev/null", says(&Message::Stopped(why.to_owned())))
    }

    #[test]
    fn only_a_removed_member_that_joined_later_may_stop_early() {
        let removed = StopReason::Removed.to_string();
        let stopped = |why: &str, member: usize| {
            let fleet = shells(&stops(why), 1, 1);
            fleet.lets_go(member).unwrap();
            fleet.restart(member).unwrap();
            fleet.stop(member)
        };
        for (why, member) in [("of grief", 0), ("of grief", 1), ("a file was removed", 1)] {
            assert!(
                matches!(stopped(why, member), Err(HarnessError::Stopped(_))),
                "{why}, m{member}"
            );
        }
        assert!(matches!(stopped(&removed, 0), Err(HarnessError::Stopped(_))));
        assert!(stopped(&removed, 1).is_ok());
    }

    #[test]
    fn removed_stop_reason_is_valid_only_after_a_removal_request() {
        let removed = || {
            let fleet = shells(&stops(&StopReason::Removed.to_string()), 1, 1);
            fleet.restart(1).unwrap();
            fleet.process(1).unwrap().stopped().unwrap();
            fleet
        };
        assert_eq!(removed().stopped().len(), 1);
        assert!(matches!(removed().bury_newcomer(1), Err(HarnessError::Stopped(_))));
        let fleet = removed();
        assert!(
            matches!(fleet.lets_go(1), Err(HarnessError::Stopped(_))),
            "the removal was reported before it was requested"
        );
        assert!(fleet.lets_go(1).is_ok() && fleet.stopped().is_empty(), "the removal was allowed");
        assert!(fleet.bury_newcomer(1).is_ok());
    }

    #[test]
    fn quorum_without_a_leader_is_reported_as_hanging() {
        let nobody = shell("true").await_leader(Duration::from_millis(1));
        assert!(matches!(nobody, Err(HarnessError::Hangs(_))), "{nobody:?}");
    }

    #[test]
    fn fault_command_without_a_reply_times_out() {
        let order = Order::Fault("full".to_owned());
        let soon = Duration::from_millis(100);
        let fleet = shell("true");
        assert!(matches!(fleet.told(0, &order, soon), Err(HarnessError::TooLate(_))));
        fleet.pause(0).unwrap();
        assert_eq!(
            fleet.told(0, &order, LIMIT).unwrap(),
            None,
            "a paused process has no answer yet"
        );
        fleet.kill(0).unwrap();
        assert_eq!(fleet.told(0, &order, LIMIT).unwrap(), None, "there is no process");
        let fleet = shell(&answers(&Answer::Armed));
        assert!(fleet.door(0, "full").unwrap());
        assert_eq!(fleet.doors(&[0], "full").unwrap(), 1);
        fleet.kill(0).unwrap();
        assert_eq!(fleet.doors(&[0], "full").unwrap(), 0);
        let fleet = shell("exit 0");
        assert_eq!(fleet.told(0, &order, LIMIT).unwrap(), None, "the process has ended");
    }
}

//! The processes of one run, shared by the clients who use them and the nemesis who breaks them.
//!
//! A member is a place: a directory, an address, and the process that lives there now, if one does. Whoever
//! asks a member asks that process; if it dies, what was open is answered by nobody.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline::StopReason;
use bowline::env::Point;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::calls::{Call, Reply};
use crate::links::Links;
use crate::moment;
use crate::over::Over;
use crate::ports::free_addresses;
use crate::process::{Death, HarnessError, LIMIT, Process};
use crate::server::{Seat, Terms, command};
use crate::volume::{Medium, Volumes};
use crate::wire::{Answer, Order};

/// The variable in which a node's process is told its election timeout, in milliseconds.
pub const ELECTION_MS: &str = "JEPSEN_ELECTION_MS";
/// The variable in which it is told where to listen, if not where others reach it.
pub const LISTEN: &str = "JEPSEN_LISTEN";
/// The variable in which it is told how long its session lives, in milliseconds.
pub const SESSION_MS: &str = "JEPSEN_SESSION_MS";
/// The variable in which it is told how long a call may take, in milliseconds.
pub const DEADLINE_MS: &str = "JEPSEN_DEADLINE_MS";
/// The variable in which it is told whom to join, instead of founding a cluster: addresses, with commas.
pub const JOIN: &str = "JEPSEN_JOIN";
/// The variable in which it is told whose place it takes by joining.
pub const REPLACES: &str = "JEPSEN_REPLACES";

/// The variable in which it is told how its doors stand at its start: an order of [`doors`](crate::fault_injection).
pub const DOORS: &str = "JEPSEN_DOORS";

/// The election timeout of members, if nobody says otherwise.
pub const ELECTION: Duration = Duration::from_millis(400);

/// What a process says that wanted to join, and has not: nobody was there, or somebody of its name was.
pub const NOT_LET_IN: [&str; 2] = ["it did not start: joining:", "it did not start: network:"];

/// How long a member may take to say who leads.
const LOOK_LIMIT: Duration = Duration::from_millis(300);
/// How long is waited between two looks for a leader.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a run asks of its members. A workload and a nemesis may each change what they need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// What members are, and how they are asked.
    pub over: Over,
    /// How many members there are at first.
    pub members: usize,
    /// How many more places there are, for members who join later.
    pub spare: usize,
    /// The election timeout.
    pub election: Duration,
    /// How long a session outlives its node's silence.
    pub session: Duration,
    /// How long a call may take.
    pub deadline: Duration,
    /// Whether members talk through a door of the harness, so that [`Fleet::links`] has an effect.
    pub proxied: bool,
    /// Whether each member's data is on a file system of its own: on what, going around, and how large.
    pub volumes: Option<(Vec<Medium>, u64)>,
    /// More variables for the processes.
    pub variables: Vec<(String, String)>,
}

impl Setup {
    /// So many members on one machine, with short times.
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

/// Somebody was told to forget what was before a revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compaction {
    /// When that was called, by the machine's clock; of a workload's run, by the run's.
    pub called: u64,
    /// The revision.
    pub revision: u64,
}

/// How a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessState {
    /// No process lives there: it was killed, or never started.
    Down,
    /// It runs, as far as anybody knows.
    Up,
    /// It stands still.
    Paused,
}

struct Place {
    dir: PathBuf,
    /// Where the others reach it.
    address: String,
    /// Where it listens.
    listen: String,
    /// Where clients reach it, if it is a server.
    client: String,
    now: Mutex<Now>,
    /// Had by whoever starts or ends it where another may at the same time.
    hands: Mutex<()>,
}

struct Now {
    process: Option<Arc<Process>>,
    being: ProcessState,
    /// It joins a cluster instead of founding one.
    joins: bool,
    /// It took the place of whoever was here before, whose disk was lost.
    replaces: bool,
    /// Somebody has asked that a member of its name be removed. Never taken back: that may be carried out late, on the next
    /// of this name.
    goes: bool,
}

impl Place {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a process for a member: its program and the words that come before its own.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// What is said before the member's own words.
    pub words: Vec<String>,
}

/// See the module. Dropping it kills all processes and removes their data.
pub struct Fleet {
    program: Program,
    setup: Setup,
    places: Vec<Place>,
    links: Links,
    volumes: Option<Mutex<Volumes>>,
    /// What members did that no member may, as those have found who cannot say so otherwise.
    wrongs: Mutex<Vec<String>>,
    /// What members were told to forget.
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
    /// Members that are not started yet.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(program: Program, setup: Setup) -> Result<Self, HarnessError> {
        let dir = TempDir::with_prefix("bowline-jepsen-")
            .map_err(|source| HarnessError::System { what: "making a directory", source })?;
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

    /// What its members are processes of.
    pub fn program(&self) -> &Path {
        &self.program.path
    }

    /// What was asked of it.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// How many members it was founded with.
    pub fn members(&self) -> usize {
        self.setup.members
    }

    /// All places, also those of members who join later.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The links between members, if they talk through a door.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// The members' own file systems, if they have some.
    pub fn volumes(&self) -> Option<MutexGuard<'_, Volumes>> {
        Some(self.volumes.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A member's data. To be changed only while it is down.
    pub fn dir(&self, member: usize) -> &Path {
        &self.places[member].dir
    }

    /// Where the others reach a member.
    pub fn address(&self, member: usize) -> &str {
        &self.places[member].address
    }

    /// How a member is.
    pub fn being(&self, member: usize) -> ProcessState {
        self.places[member].now().being
    }

    /// The members that run.
    pub fn up(&self) -> Vec<usize> {
        (0..self.places()).filter(|member| self.being(*member) == ProcessState::Up).collect()
    }

    /// Starts the founding members and waits until somebody leads.
    ///
    /// # Errors
    /// One does not start, or nobody leads in time.
    pub fn start(&self) -> Result<(), HarnessError> {
        (0..self.members()).try_for_each(|member| self.spawn(member))?;
        (0..self.members()).try_for_each(|member| self.await_ready(member))?;
        self.await_leader(LIMIT).map(drop)
    }

    /// Starts a member that is down, without waiting for it. One that is up stays as it is.
    ///
    /// # Errors
    /// The operating system's.
    pub fn spawn(&self, member: usize) -> Result<(), HarnessError> {
        self.spawn_armed(member, None)
    }

    /// The same, armed with a point to die at, and at the how manieth reach of it, if there is one.
    ///
    /// # Errors
    /// The operating system's.
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
                    std::io::Error::other("a server is a founder, and dies nowhere by itself");
                return Err(HarnessError::System { what: "starting a server", source });
            }
            Over::Server => self.serve(member)?,
        };
        now.process = Some(Arc::new(process));
        now.being = ProcessState::Up;
        Ok(())
    }

    /// The founders, each with where the others reach it.
    fn founders(&self, scheme: &str) -> String {
        let founder = |member| format!("m{member}={scheme}{}", self.address(member));
        (0..self.members()).map(founder).collect::<Vec<_>>().join(",")
    }

    /// The command that starts a node.
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

    /// Starts a server.
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
        Process::serve(&mut command(&self.program, &seat), &place.client, terms)
    }

    /// Starts a member at a place where none has been, as one who joins, without waiting for it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn spawn_joining(&self, member: usize) -> Result<(), HarnessError> {
        self.places[member].now().joins = true;
        self.spawn(member)
    }

    /// Gives up what a member has on its disk, and starts a new one on an empty directory in its place, without
    /// waiting for it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn spawn_replacing(&self, member: usize) -> Result<(), HarnessError> {
        self.clear(member)?;
        self.places[member].now().replaces = true;
        self.spawn_joining(member)
    }

    /// Waits until a member has killed itself, where it was told to, or was killed from outside, and says where.
    ///
    /// # Errors
    /// It lives on, its node has stopped by itself, or it has ended in another way.
    pub fn died(&self, member: usize) -> Result<Death, HarnessError> {
        let process = self.process(member);
        let death = match process {
            Some(process) => process.died()?,
            None => return Err(HarnessError::Ended(format!("m{member} was not there"))),
        };
        let mut now = self.places[member].now();
        now.being = ProcessState::Down;
        now.process = None;
        Ok(death)
    }

    /// Waits until a member that was spawned runs.
    ///
    /// # Errors
    /// It ends instead, or does neither in time.
    pub fn await_ready(&self, member: usize) -> Result<(), HarnessError> {
        let process = self.process(member);
        if let Some(process) = &process
            && process.ready().map_err(|trouble| trouble.of(member))?
        {
            return Ok(());
        }
        let why = process.and_then(|process| process.why_stopped());
        let why = why.unwrap_or_else(|| "it said nothing".to_owned());
        Err(HarnessError::Ended(format!("m{member} did not start: {why}")))
    }

    /// Waits until a member that was spawned to replace a founder votes in its place, and every founder that runs knows
    /// that. Until then the vote of the one that is gone counts, and the cluster bears one failure less.
    ///
    /// # Errors
    /// It ends instead, or is not let in in time.
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
        let what = format!("m{member} does not take the place of the one before it");
        self.await_some(LIMIT, &what, || do_all().then_some(()))
    }

    /// Looks again and again, until there is what is looked for.
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
            std::thread::sleep(LOOK_EVERY);
        }
        Err(HarnessError::Hangs(format!("{what}{}", self.told_of_all())))
    }

    /// How each member is, and what it says, for whoever reads why something hangs.
    fn told_of_all(&self) -> String {
        let order = Order::Call(Box::new(Call::Members));
        let all = (0..self.places()).map(|member| {
            let being = self.being(member);
            let stopped = self.process(member).and_then(|process| process.why_stopped());
            let says = |order| match self.ask(member, order, LOOK_LIMIT) {
                Some(answer) => answer.words(),
                None => "nothing".to_owned(),
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

    /// Starts a member that is down, and waits until it runs.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&self, member: usize) -> Result<(), HarnessError> {
        self.spawn(member)?;
        self.await_ready(member)
    }

    /// Ends a member for good: it is removed from the cluster, or will be. Its data is deleted.
    ///
    /// # Errors
    /// It does not die of it; it had stopped before, and not because it was removed, or not let in.
    pub fn clear(&self, member: usize) -> Result<(), HarnessError> {
        self.bury_newcomer(member)?;
        let place = &self.places[member];
        place.now().joins = false;
        match std::fs::remove_dir_all(&place.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(HarnessError::System { what: "deleting a member's data", source: error })
            }
            _ => Ok(()),
        }
    }

    /// Kills a member, wherever it is. One that is down stays so.
    ///
    /// # Errors
    /// It does not die of it; it had stopped by itself, which no member may.
    pub fn kill(&self, member: usize) -> Result<(), HarnessError> {
        match self.reap(member)? {
            Some(why) => Err(HarnessError::Stopped(format!("m{member}: {why}"))),
            None => Ok(()),
        }
    }

    /// Kills one that has joined, or has tried to.
    ///
    /// # Errors
    /// It does not die of it; it had stopped before, and not because it was removed, or not let in.
    pub fn bury_newcomer(&self, member: usize) -> Result<(), HarnessError> {
        match self.reap(member)? {
            Some(why) if !self.may_stop(member, &why) => {
                Err(HarnessError::Stopped(format!("m{member}, that came later: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether a member may have stopped by itself and said this: who came later may, if it was removed, or not let in.
    fn may_stop(&self, member: usize, why: &str) -> bool {
        let was_let_in = !NOT_LET_IN.iter().any(|words| why.contains(words));
        member >= self.members() && (!was_let_in || self.may_have_gone(member, why))
    }

    /// Whether a member may say that it was removed, and does.
    fn may_have_gone(&self, member: usize, why: &str) -> bool {
        member >= self.members() && self.places[member].now().goes && was_removed(why)
    }

    /// From now on one that came later may say that it was removed: somebody is about to ask for that.
    ///
    /// # Errors
    /// It has said so before anybody has asked.
    pub fn lets_go(&self, member: usize) -> Result<(), HarnessError> {
        let why = self.process(member).and_then(|process| process.why_stopped());
        let went = why.filter(|why| was_removed(why) && !self.may_have_gone(member, why));
        self.places[member].now().goes = true;
        went.map_or(Ok(()), |why| Err(HarnessError::Stopped(why).of(member)))
    }

    /// Asks a member that is about to lose everything whether its node runs still: afterwards nobody can tell.
    ///
    /// # Errors
    /// It had stopped by itself, which it may not.
    pub fn must_run(&self, member: usize) -> Result<(), HarnessError> {
        match self.process(member).and_then(|process| process.why_stopped()) {
            Some(why) if !self.may_stop(member, &why) => {
                Err(HarnessError::Stopped(format!("m{member}: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Kills a member, and says why its node had stopped by itself, if it had: for faults that may stop one.
    ///
    /// # Errors
    /// It does not die of it; or it had ended before, or ends of something else, without a word.
    pub fn reap(&self, member: usize) -> Result<Option<String>, HarnessError> {
        let end = |process: Arc<Process>| process.end().map_err(|trouble| trouble.of(member));
        self.take(member).map_or(Ok(None), end)
    }

    /// The same of one whose disk is dead or has no power: whatever it ended of.
    ///
    /// # Errors
    /// It does not die of it.
    pub fn bury_however(&self, member: usize) -> Result<Option<String>, HarnessError> {
        self.take(member).map_or(Ok(None), |process| process.end_however())
    }

    fn take(&self, member: usize) -> Option<Arc<Process>> {
        let mut now = self.places[member].now();
        now.being = ProcessState::Down;
        now.process.take()
    }

    /// Somebody has seen what no member may do, and cannot say so otherwise.
    pub fn is_wrong(&self, what: String) {
        self.wrongs.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// What was seen so.
    pub fn wrongs(&self) -> Vec<String> {
        self.wrongs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells a member to forget all but so many of the last revisions that it knows of. Whether it says that it was done: it
    /// may be, or may come to be, also if not.
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

    /// What members were told to forget until now.
    pub fn compactions(&self) -> Vec<Compaction> {
        self.compactions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops a member in good order.
    ///
    /// # Errors
    /// It does not end, or not well; or it had stopped by itself, which it may not.
    pub fn stop(&self, member: usize) -> Result<(), HarnessError> {
        let process = self.process(member);
        let stopped = process.map_or(Ok(()), |process| process.stop());
        drop(self.take(member));
        match stopped {
            Err(HarnessError::Stopped(why)) if self.may_stop(member, &why) => Ok(()),
            stopped => stopped.map_err(|trouble| trouble.of(member)),
        }
    }

    /// Lets a member stand still.
    ///
    /// # Errors
    /// The operating system's.
    pub fn pause(&self, member: usize) -> Result<(), HarnessError> {
        self.signal(member, ProcessState::Up, Signal::STOP, ProcessState::Paused)
    }

    /// Lets a member go on that stands still.
    ///
    /// # Errors
    /// The operating system's.
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

    /// Keeps a place for whoever starts or ends a member there, until that is done: who takes no part in it would judge the end
    /// of a process that another has ended.
    pub fn hold(&self, member: usize) -> MutexGuard<'_, ()> {
        self.places[member].hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, if nobody has it.
    pub fn try_hold(&self, member: usize) -> Option<MutexGuard<'_, ()>> {
        self.places[member].hands.try_lock().ok()
    }

    /// The process that lives at a place, if one does.
    pub fn process(&self, member: usize) -> Option<Arc<Process>> {
        self.places[member].now().process.clone()
    }

    /// Asks a member for something; `None` if it is down, dies before it answers, or takes longer than `limit`.
    pub fn ask(&self, member: usize, order: &Order, limit: Duration) -> Option<Answer> {
        self.process(member)?.ask(order).recv_timeout(limit).ok()
    }

    /// What comes of a client's call at a member; `None` as with [`ask`](Self::ask), or if nothing is known to have come of
    /// it.
    pub fn call(&self, member: usize, call: Call, limit: Duration) -> Option<Reply> {
        match self.ask(member, &Order::Call(Box::new(call)), limit)? {
            Answer::Came(reply) => Some(*reply),
            _ => None,
        }
    }

    /// Opens or closes a door to the world inside a member's process: see `crate::fault_injection`. Whether that was done: nobody may be
    /// there, or stand still.
    ///
    /// # Errors
    /// It does not understand, or does not answer in time.
    pub fn door(&self, member: usize, words: &str) -> Result<bool, HarnessError> {
        let order = Order::Fault(words.to_owned());
        match self.told(member, &order, LIMIT)? {
            Some(Answer::Armed) => Ok(true),
            None => Ok(false),
            Some(answer) => Err(HarnessError::Answered { order, answer }),
        }
    }

    /// The same at several members. At how many that was done.
    ///
    /// # Errors
    /// Those of [`door`](Self::door).
    pub fn doors(&self, members: &[usize], words: &str) -> Result<u64, HarnessError> {
        members.iter().try_fold(0, |done, member| Ok(done + u64::from(self.door(*member, words)?)))
    }

    /// How many writes and syncs of a member's log have failed at its doors; `None` if its process is gone.
    ///
    /// # Errors
    /// It does not understand, or does not answer in time.
    pub fn disk_failures(&self, member: usize) -> Result<Option<u64>, HarnessError> {
        let order = Order::Fault("failures".to_owned());
        match self.told(member, &order, LIMIT)? {
            Some(Answer::Done(failures)) => Ok(Some(failures)),
            None => Ok(None),
            Some(answer) => Err(HarnessError::Answered { order, answer }),
        }
    }

    /// What a member's process answers to an order that it carries out itself, whatever its node does. `None`: there is no
    /// process, or it has ended; or it stands still, and carries it out when it goes on.
    ///
    /// # Errors
    /// It does not answer in time.
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
                Err(HarnessError::TooLate(format!("m{member} has not answered to {order:?}")))
            }
        }
    }

    /// Who leads in the highest term that anybody who runs knows of, and that term; `None` if nobody is known to.
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

    /// Waits until somebody leads.
    ///
    /// # Errors
    /// Nobody does, in time.
    pub fn await_leader(&self, limit: Duration) -> Result<(usize, u64), HarnessError> {
        self.await_some(limit, "nobody leads", || self.leader())
    }

    /// Members whose node has stopped by itself, and why; but for those that came later and were removed.
    pub fn stopped(&self) -> Vec<(usize, String)> {
        let why = |member| Some((member, self.process(member)?.why_stopped()?));
        let all = (0..self.places()).filter_map(why);
        all.filter(|(member, why)| !self.may_have_gone(*member, why)).collect()
    }

    /// Heals what every nemesis may leave: lets go on who stands still, joins all links, closes all doors, starts who
    /// is down and has run before.
    ///
    /// # Errors
    /// One does not start.
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

/// Whether a node says so that it was removed: in these words, and whatever its process adds.
fn was_removed(why: &str) -> bool {
    why.starts_with(&StopReason::Removed.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A member that is a shell, which is asked as a node is: it does this with the words of each `$order`, whose `$id` it
    /// answers to.
    pub(crate) fn shell(does: &str) -> Fleet {
        let fleet = shells(&format!("while read -r id order; do {does}; done"), 1, 0);
        fleet.restart(0).unwrap();
        fleet
    }

    /// Members that are shells, and do this once they are ready; none is started.
    pub(crate) fn shells(do_this: &str, members: usize, spare: usize) -> Fleet {
        let words = vec!["-c".to_owned(), format!("echo ready; {do_this}")];
        let program = Program { path: "sh".into(), words };
        Fleet::new(program, Setup { spare, ..Setup::of(members) }).unwrap()
    }

    /// Says so, as a node does, and waits for its end.
    pub(crate) fn stops(why: &str) -> String {
        format!("echo 'stopped {why}'; cat > /dev/null")
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
        assert!(matches!(fleet.lets_go(1), Err(HarnessError::Stopped(_))), "it has gone before");
        assert!(fleet.lets_go(1).is_ok() && fleet.stopped().is_empty(), "it was told once");
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
        assert_eq!(fleet.told(0, &order, LIMIT).unwrap(), None, "it will when it goes on");
        fleet.kill(0).unwrap();
        assert_eq!(fleet.told(0, &order, LIMIT).unwrap(), None, "nobody is there");
        let fleet = shell("echo $id armed");
        assert!(fleet.door(0, "full").unwrap());
        assert_eq!(fleet.doors(&[0], "full").unwrap(), 1);
        fleet.kill(0).unwrap();
        assert_eq!(fleet.doors(&[0], "full").unwrap(), 0);
        let fleet = shell("exit 0");
        assert_eq!(fleet.told(0, &order, LIMIT).unwrap(), None, "it has ended");
    }
}

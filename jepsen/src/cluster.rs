//! A cluster of processes, and the load on it.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use bowline::env::Point;
use tempfile::TempDir;

use crate::history::Verdict;
use crate::load::Load;
use crate::process::{Death, LIMIT, Process, Trouble};
use crate::wire::{Answer, Order, Rows};

/// The variable in which a node's process is told its election timeout, in milliseconds.
pub const ELECTION_MS: &str = "JEPSEN_ELECTION_MS";

/// See the module. Dropping it kills all processes, and removes their data if it made the directories.
pub struct Cluster {
    program: PathBuf,
    dirs: Vec<PathBuf>,
    addresses: Vec<String>,
    processes: Vec<Option<Arc<Process>>>,
    load: Load,
    election: Option<Duration>,
    /// Of the directories, if it made them.
    _temporary: Option<TempDir>,
}

impl Cluster {
    /// A cluster of so many members that are not started yet, each to be a process of `program`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(program: impl Into<PathBuf>, members: usize) -> Result<Self, Trouble> {
        let dir = TempDir::with_prefix("bowline-jepsen-")
            .map_err(|source| Trouble::System { what: "making a directory", source })?;
        let dirs = (0..members).map(|member| dir.path().join(format!("m{member}"))).collect();
        Ok(Self { _temporary: Some(dir), ..Self::on(program, dirs)? })
    }

    /// The same, each member with its data in one of these directories.
    ///
    /// # Errors
    /// The operating system's.
    pub fn on(program: impl Into<PathBuf>, dirs: Vec<PathBuf>) -> Result<Self, Trouble> {
        Ok(Self {
            program: program.into(),
            addresses: free_addresses(dirs.len())?,
            processes: dirs.iter().map(|_| None).collect(),
            dirs,
            load: Load::default(),
            election: None,
            _temporary: None,
        })
    }

    /// How long its nodes, when they are started, wait for a leader before they elect another.
    #[must_use]
    pub fn election_timeout(mut self, timeout: Duration) -> Self {
        self.election = Some(timeout);
        self
    }

    /// The load.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// How many members it has.
    pub fn members(&self) -> usize {
        self.processes.len()
    }

    /// Starts all members, and the load on them.
    ///
    /// # Errors
    /// One does not start.
    pub fn start(&mut self) -> Result<(), Trouble> {
        for member in 0..self.members() {
            self.spawn(member, None)?;
        }
        (0..self.members()).try_for_each(|member| self.join(member))
    }

    /// Starts all members, without load.
    ///
    /// # Errors
    /// One does not start.
    pub fn start_idle(&mut self) -> Result<(), Trouble> {
        (0..self.members()).try_for_each(|member| self.spawn(member, None))?;
        (0..self.members()).try_for_each(|member| self.runs(member))
    }

    /// Starts a member again, without load.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart_idle(&mut self, member: usize) -> Result<(), Trouble> {
        self.spawn(member, None)?;
        self.runs(member)
    }

    /// Waits until a member that was spawned runs.
    ///
    /// # Errors
    /// It ends instead.
    pub fn runs(&self, member: usize) -> Result<(), Trouble> {
        if self.process(member).ready()? {
            return Ok(());
        }
        Err(Trouble::Ended(format!("m{member} did not start")))
    }

    /// Starts a member's process, armed with a point to die at if there is one. Does not wait.
    ///
    /// # Errors
    /// The operating system's.
    pub fn spawn(&mut self, member: usize, armed: Option<(Point, u64)>) -> Result<(), Trouble> {
        let members: Vec<String> = (self.addresses.iter().enumerate())
            .map(|(member, address)| format!("m{member}={address}"))
            .collect();
        let mut command = Command::new(&self.program);
        command.arg(&self.dirs[member]).arg(format!("m{member}")).arg(members.join(","));
        command.args(armed.map(|(point, hits)| format!("{point:?}:{hits}")));
        command.envs(self.election.map(|limit| (ELECTION_MS, limit.as_millis().to_string())));
        self.processes[member] = Some(Arc::new(Process::spawn(&mut command)?));
        Ok(())
    }

    /// Waits until a member that was spawned runs, and puts load on it.
    ///
    /// # Errors
    /// It ends instead.
    pub fn join(&self, member: usize) -> Result<(), Trouble> {
        self.runs(member)?;
        self.load.write_to(member, self.process(member));
        Ok(())
    }

    /// Starts a member again, and the load on it.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&mut self, member: usize) -> Result<(), Trouble> {
        self.spawn(member, None)?;
        self.join(member)
    }

    /// A member's process.
    ///
    /// # Panics
    /// It was never started.
    pub fn process(&self, member: usize) -> &Arc<Process> {
        self.processes[member].as_ref().expect("it was started")
    }

    /// Kills these members at once, from outside.
    ///
    /// # Errors
    /// They do not die of it.
    pub fn kill(&self, members: &[usize]) -> Result<(), Trouble> {
        for member in members {
            self.process(*member).kill();
        }
        for member in members {
            let death = self.process(*member).died()?;
            if death != Death::Outside {
                return Err(Trouble::Ended(format!("m{member} died by itself: {death:?}")));
            }
        }
        Ok(())
    }

    /// Ends these members' processes, whatever has become of their nodes. Says how many of those had
    /// stopped by themselves.
    ///
    /// # Errors
    /// A process does not die.
    pub fn bury(&self, members: &[usize]) -> Result<usize, Trouble> {
        for member in members {
            self.process(*member).kill();
        }
        let ends = members.iter().map(|member| self.process(*member).end());
        Ok(ends.collect::<Result<Vec<_>, _>>()?.iter().flatten().count())
    }

    /// Tells a member to die at the n-th reach of a point.
    ///
    /// # Errors
    /// It does not understand.
    pub fn arm(&self, member: usize, point: Point, hits: u64) -> Result<(), Trouble> {
        let order = Order::Arm(point, hits);
        match self.process(member).answer(&order)? {
            Some(Answer::Armed) | None => Ok(()),
            Some(answer) => Err(Trouble::Answered { order, answer }),
        }
    }

    /// The member that leads.
    ///
    /// # Errors
    /// None does, in time.
    pub fn leader(&self) -> Result<usize, Trouble> {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            for member in 0..self.members() {
                let answer = self.process(member).answer(&Order::Status)?;
                if let Some(Answer::Status { leads: true, .. }) = answer {
                    return Ok(member);
                }
            }
        }
        Err(Trouble::TooLate("nobody leads".to_owned()))
    }

    /// The highest term that any member is in, and who leads in it, as of a moment in which somebody does.
    ///
    /// # Errors
    /// Nobody does, in time.
    pub fn term(&self) -> Result<(u64, usize), Trouble> {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            let statuses = (0..self.members())
                .map(|member| self.process(member).answer(&Order::Status))
                .collect::<Result<Vec<_>, _>>()?;
            let highest = (0..).zip(statuses).filter_map(|(member, answer)| match answer {
                Some(Answer::Status { leads, term, .. }) => Some((term, leads, member)),
                _ => None,
            });
            if let Some((term, true, leader)) = highest.max() {
                return Ok((term, leader));
            }
        }
        Err(Trouble::TooLate("nobody leads in the highest term".to_owned()))
    }

    /// Everything in the store, as a member reads it.
    ///
    /// # Errors
    /// It does not answer in time.
    pub fn rows(&self, member: usize) -> Result<Rows, Trouble> {
        let begun = Instant::now();
        loop {
            match self.process(member).answer(&Order::Rows)? {
                Some(Answer::Rows(rows)) => return Ok(rows),
                None => return Err(Trouble::Ended(format!("m{member} died when it was read"))),
                // There may be no leader yet.
                Some(Answer::Refused(_)) if begun.elapsed() < LIMIT => {}
                Some(answer) => return Err(Trouble::Answered { order: Order::Rows, answer }),
            }
        }
    }

    /// Judges what a member reads.
    ///
    /// # Errors
    /// It does not answer in time.
    ///
    /// # Panics
    /// Something was lost, doubled or invented.
    pub fn judge(&self, member: usize) -> Result<Verdict, Trouble> {
        let ended = self.load.history().ended();
        let rows = self.rows(member)?;
        match self.load.history().judge(&ended, &rows) {
            Ok(verdict) => Ok(verdict),
            Err(complaints) => panic!("on m{member}:\n  {}", complaints.join("\n  ")),
        }
    }

    /// Ends the load and judges what every member reads; all must read the same.
    ///
    /// # Errors
    /// One does not answer in time.
    ///
    /// # Panics
    /// Something was lost, doubled or invented, or members differ.
    pub fn conclude(&self) -> Result<Verdict, Trouble> {
        self.load.end();
        let all =
            (0..self.members()).map(|member| self.rows(member)).collect::<Result<Vec<_>, _>>()?;
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "members differ: {all:#?}");
        for member in 1..self.members() {
            self.judge(member)?;
        }
        self.judge(0)
    }
}

/// Where ports are looked for: below those that systems hand out for outgoing connections, so that a
/// dead member's port is not taken by somebody's connection before it is back.
const PORTS: std::ops::Range<u16> = 10_000..19_000;

/// So many addresses on loopback that nobody listens at.
pub(crate) fn free_addresses(many: usize) -> Result<Vec<String>, Trouble> {
    // Clusters of one process never look at the same ports; those of several rarely do.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let begin = u16::try_from(std::process::id().wrapping_mul(97) % u32::from(span)).unwrap_or(0);
    let mut found = Vec::new();
    for _ in 0..span {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + (begin + step % span) % span;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            found.push(format!("127.0.0.1:{port}"));
        }
        if found.len() == many {
            return Ok(found);
        }
    }
    let source = std::io::Error::other("all are taken");
    Err(Trouble::System { what: "looking for free ports", source })
}

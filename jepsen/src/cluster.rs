//! A fleet under the writes of the crash tests: one writer for each process, and what became of each write.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::env::Point;

use crate::fleet::{Fleet, Program, Setup};
use crate::history::Verdict;
use crate::load::Load;
use crate::process::{HarnessError, LIMIT, Process};
use crate::wire::{Answer, Order, Rows};

/// How long sessions live and calls may take: nothing here is about either.
const LONG: Duration = Duration::from_secs(5);

/// See the module. Whatever else is done to members the [`Fleet`] does.
pub struct Cluster {
    fleet: Fleet,
    load: Load,
}

impl Deref for Cluster {
    type Target = Fleet;

    fn deref(&self) -> &Fleet {
        &self.fleet
    }
}

impl Cluster {
    /// What crash tests ask of so many members. They may ask for more.
    pub fn usual(members: usize) -> Setup {
        Setup { session: LONG, deadline: LONG, ..Setup::of(members) }
    }

    /// A cluster of so many members that are not started yet, each to be a process of `program`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(program: impl Into<Program>, members: usize) -> Result<Self, HarnessError> {
        Self::of(program, Self::usual(members))
    }

    /// The same, with all that is asked of them.
    ///
    /// # Errors
    /// The operating system's, and that of the tools that make file systems.
    pub fn of(program: impl Into<Program>, setup: Setup) -> Result<Self, HarnessError> {
        Ok(Self { fleet: Fleet::new(program.into(), setup)?, load: Load::default() })
    }

    /// The load.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Starts all members, and the load on them.
    ///
    /// # Errors
    /// One does not start.
    pub fn start(&self) -> Result<(), HarnessError> {
        self.fleet.start()?;
        (0..self.members()).try_for_each(|member| self.join(member))
    }

    /// Waits until a member that was spawned runs, and puts load on it.
    ///
    /// # Errors
    /// It ends instead.
    pub fn join(&self, member: usize) -> Result<(), HarnessError> {
        self.await_ready(member)?;
        self.load.write_to(member, &self.process(member));
        Ok(())
    }

    /// Starts a member again, once it is dead, and the load on it.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&self, member: usize) -> Result<(), HarnessError> {
        self.fleet.spawn(member)?;
        self.join(member)
    }

    /// A member's process.
    ///
    /// # Panics
    /// There is none.
    pub fn process(&self, member: usize) -> Arc<Process> {
        self.fleet.process(member).expect("it was started")
    }

    /// Tells a member to die at the n-th reach of a point.
    ///
    /// # Errors
    /// It does not understand.
    pub fn arm(&self, member: usize, point: Point, hits: u64) -> Result<(), HarnessError> {
        let order = Order::Arm(point, hits);
        match self.process(member).answer(&order)? {
            Some(Answer::Armed) | None => Ok(()),
            Some(answer) => Err(HarnessError::Answered { order, answer }),
        }
    }

    /// Everything in the store, as a member reads it.
    ///
    /// # Errors
    /// It does not answer in time.
    pub fn rows(&self, member: usize) -> Result<Rows, HarnessError> {
        let begun = Instant::now();
        loop {
            match self.process(member).answer(&Order::Rows)? {
                Some(Answer::Rows(rows)) => return Ok(rows),
                None => {
                    return Err(HarnessError::Ended(format!("m{member} died when it was read")));
                }
                // There may be no leader yet.
                Some(Answer::Refused(_) | Answer::Unknown(_)) if begun.elapsed() < LIMIT => {}
                Some(answer) => return Err(HarnessError::Answered { order: Order::Rows, answer }),
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
    pub fn judge(&self, member: usize) -> Result<Verdict, HarnessError> {
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
    pub fn conclude(&self) -> Result<Verdict, HarnessError> {
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

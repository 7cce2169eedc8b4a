//! A fleet with the write load of the crash tests: one writer per process, and the outcome of each write.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::env::Point;

use crate::fleet::{Fleet, Program, Setup};
use crate::history::Verdict;
use crate::load::Load;
use crate::process::{HarnessError, LIMIT, Process};
use crate::wire::{Answer, Order, Rows};

/// Session TTL and call deadline, long because these tests are about neither.
const LONG: Duration = Duration::from_secs(5);

/// A fleet with a load of writes. The [`Fleet`] itself has the other operations on members.
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
    /// Returns the usual setup of crash tests for this number of members.
    pub fn usual(members: usize) -> Setup {
        Setup { session: LONG, deadline: LONG, ..Setup::of(members) }
    }

    /// Creates a cluster whose members are not started yet. Each will be a process of `program`.
    ///
    /// # Errors
    /// Returns errors of the operating system.
    pub fn new(program: impl Into<Program>, members: usize) -> Result<Self, HarnessError> {
        Self::of(program, Self::usual(members))
    }

    /// Creates a cluster with this setup.
    ///
    /// # Errors
    /// Returns errors of the operating system and of the tools that make file systems.
    pub fn of(program: impl Into<Program>, setup: Setup) -> Result<Self, HarnessError> {
        Ok(Self { fleet: Fleet::new(program.into(), setup)?, load: Load::default() })
    }

    /// Returns the load.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Starts all members and their load.
    ///
    /// # Errors
    /// Returns an error if a member does not start.
    pub fn start(&self) -> Result<(), HarnessError> {
        self.fleet.start()?;
        (0..self.members()).try_for_each(|member| self.join(member))
    }

    /// Waits until a spawned member is ready, and starts its load.
    ///
    /// # Errors
    /// Returns an error if its process ends instead.
    pub fn join(&self, member: usize) -> Result<(), HarnessError> {
        self.await_ready(member)?;
        self.load.write_to(member, &self.process(member));
        Ok(())
    }

    /// Restarts a dead member and its load.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub fn restart(&self, member: usize) -> Result<(), HarnessError> {
        self.fleet.spawn(member)?;
        self.join(member)
    }

    /// Returns the process of a member.
    ///
    /// # Panics
    /// If there is none.
    pub fn process(&self, member: usize) -> Arc<Process> {
        self.fleet.process(member).expect("it was started")
    }

    /// Arms a crash point of a member: it kills itself when it reaches `point` for the `hits`-th time.
    ///
    /// # Errors
    /// Returns an error if the member rejects the order.
    pub fn arm(&self, member: usize, point: Point, hits: u64) -> Result<(), HarnessError> {
        let order = Order::Arm(point, hits);
        match self.process(member).answer(&order)? {
            Some(Answer::Armed) | None => Ok(()),
            Some(answer) => Err(HarnessError::Answered { order, answer }),
        }
    }

    /// Returns all rows of the store as a member reads them.
    ///
    /// # Errors
    /// Returns an error if it does not answer in time.
    pub fn rows(&self, member: usize) -> Result<Rows, HarnessError> {
        let begun = Instant::now();
        loop {
            match self.process(member).answer(&Order::Rows)? {
                Some(Answer::Rows(rows)) => return Ok(rows),
                None => return Err(HarnessError::Ended(format!("m{member} died during a read"))),
                // There may be no leader yet.
                Some(Answer::Refused(_) | Answer::Unknown(_)) if begun.elapsed() < LIMIT => {}
                Some(answer) => return Err(HarnessError::Answered { order: Order::Rows, answer }),
            }
        }
    }

    /// Checks the rows that a member reads.
    ///
    /// # Errors
    /// Returns an error if it does not answer in time.
    ///
    /// # Panics
    /// If a write was lost, applied twice or never made.
    pub fn judge(&self, member: usize) -> Result<Verdict, HarnessError> {
        let ended = self.load.history().ended();
        let rows = self.rows(member)?;
        match self.load.history().judge(&ended, &rows) {
            Ok(verdict) => Ok(verdict),
            Err(complaints) => {
                panic!("contradictions on m{member}:\n  {}", complaints.join("\n  "))
            }
        }
    }

    /// Ends the load and checks the rows of every member, which must be equal.
    ///
    /// # Errors
    /// Returns an error if a member does not answer in time.
    ///
    /// # Panics
    /// If a write was lost, applied twice or never made, or if members differ.
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

//! Starts a fleet, runs the write load of the crash tests on it (one writer per process), and records the outcome of
//! each write.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::env::Point;

use crate::fleet::{Fleet, Program, Setup};
use crate::history::Verdict;
use crate::load::Load;
use crate::process::{HarnessError, LIMIT, Process};
use crate::wire::{Answer, Order, Rows};

/// Session TTL and call deadline. Both times are long, because the crash tests do not test sessions or deadlines.
const LONG: Duration = Duration::from_secs(5);

/// A fleet with a load of writes. For other operations on members, use the [`Fleet`] directly.
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

    /// Creates a cluster whose members are not started yet. Each member will run `program` as a process.
    ///
    /// # Errors
    ///
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

    /// Starts all members and the load.
    ///
    /// # Errors
    ///
    /// Returns an error if a member does not start.
    pub fn start(&self) -> Result<(), HarnessError> {
        self.fleet.start()?;
        (0..self.members()).try_for_each(|member| self.join(member))
    }

    /// Waits until a spawned member is ready, and starts a writer for the member.
    ///
    /// # Errors
    ///
    /// Returns an error if the member's process ends instead.
    pub fn join(&self, member: usize) -> Result<(), HarnessError> {
        self.await_ready(member)?;
        self.load.write_to(member, &self.process(member));
        Ok(())
    }

    /// Restarts a dead member and its writer.
    ///
    /// # Errors
    ///
    /// Returns an error if the member does not start.
    pub fn restart(&self, member: usize) -> Result<(), HarnessError> {
        self.fleet.spawn(member)?;
        self.join(member)
    }

    /// Returns the process of a member.
    ///
    /// # Panics
    ///
    /// Panics if the member has no process.
    pub fn process(&self, member: usize) -> Arc<Process> {
        self.fleet.process(member).expect("it was started")
    }

    /// Arms a crash point of a member: the member kills itself when it reaches `point` for the `hits`-th time.
    ///
    /// # Errors
    ///
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
    ///
    /// Returns an error if the member does not answer in time.
    pub fn rows(&self, member: usize) -> Result<Rows, HarnessError> {
        let begun = Instant::now();
        loop {
            match self.process(member).answer(&Order::Rows)? {
                Some(Answer::Rows(rows)) => return Ok(rows),
                None => return Err(HarnessError::Ended(format!("m{member} died during a read"))),
                // The order may be rejected because there is no leader yet, so it is retried.
                Some(Answer::Refused(_) | Answer::Unknown(_)) if begun.elapsed() < LIMIT => {}
                Some(answer) => return Err(HarnessError::Answered { order: Order::Rows, answer }),
            }
        }
    }

    /// Checks the rows that a member reads against the history of writes.
    ///
    /// # Errors
    ///
    /// Returns an error if the member does not answer in time.
    ///
    /// # Panics
    ///
    /// Panics if a write was lost or applied twice, or if a row was never written.
    pub fn judge(&self, member: usize) -> Result<Verdict, HarnessError> {
        let ended = self.load.history().ended();
        let rows = self.rows(member)?;
        match self.load.history().judge(&ended, &rows) {
            Ok(verdict) => Ok(verdict),
            Err(problems) => {
                panic!("contradictions on m{member}:\n  {}", problems.join("\n  "))
            }
        }
    }

    /// Ends the load and checks the rows of every member. All members must have equal rows.
    ///
    /// # Errors
    ///
    /// Returns an error if a member does not answer in time.
    ///
    /// # Panics
    ///
    /// Panics if a write was lost or applied twice, if a row was never written, or if members differ.
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

//! The cluster that a benchmark measures.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::member::{CrewStatus, Member, Plan, Trade, cpu_of, data_dir};
use crate::ports::reserved_ports;

/// Time limit for a cluster to find a leader that all members follow.
const SETTLE: Duration = Duration::from_secs(60);

/// The configuration of a cluster.
#[derive(Clone)]
pub struct Shape {
    pub members: usize,
    /// Whether members are threads of this process instead of processes.
    pub in_process: bool,
    /// Number of threads in each member that run the callers' commands.
    pub threads: usize,
    pub heartbeat: Duration,
    pub election: Duration,
    /// TTL of sessions.
    pub session_ttl: Duration,
    /// Directory for the logs, which should be on a real disk.
    pub dir: PathBuf,
}

impl Shape {
    /// Returns the default configuration, with this directory for the logs.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            members: 3,
            in_process: false,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            heartbeat: Duration::from_millis(100),
            election: Duration::from_millis(500),
            session_ttl: Duration::from_secs(5),
            dir: dir.into(),
        }
    }

    /// Takes the option and its value, if it configures the cluster. Returns false for any other option.
    pub fn takes<'a>(
        &mut self,
        option: &str,
        rest: &mut impl Iterator<Item = &'a String>,
    ) -> Result<bool, String> {
        let mut value = || rest.next().cloned().ok_or(format!("{option} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|error| error.to_string());
        match option {
            "--single" => self.members = 1,
            "--in-process" => self.in_process = true,
            "--threads" => self.threads = number(value()?)?.max(1) as usize,
            "--heartbeat-ms" => self.heartbeat = Duration::from_millis(number(value()?)?),
            "--election-ms" => self.election = Duration::from_millis(number(value()?)?),
            "--dir" => self.dir = value()?.into(),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Describes the cluster in words.
    pub fn words(&self) -> String {
        let kind = match (self.members, self.in_process) {
            (1, _) => "one member in a process",
            (_, true) => "three members in one process",
            (_, false) => "three members, each a process",
        };
        let Self { heartbeat, election, .. } = self;
        format!(
            "{kind}, on loopback and one disk; heartbeat {heartbeat:?}, election timeout {election:?}"
        )
    }
}

/// All members. Their order changes when one is killed and restarted.
pub struct Cluster {
    pub members: Vec<Member>,
    plans: Vec<Plan>,
    start: fn(&Plan) -> std::io::Result<Member>,
    in_process: bool,
    _dir: TempDir,
}

impl Cluster {
    /// Starts all members in a new directory.
    pub fn start<T: Trade>(shape: &Shape) -> Result<Self, String> {
        let words = |error: std::io::Error| error.to_string();
        let dir = TempDir::with_prefix_in("bench-", &shape.dir).map_err(words)?;
        let ports = reserved_ports(shape.members);
        let plan = |number| Plan {
            dir: data_dir(dir.path(), number),
            number,
            ports: ports.clone(),
            heartbeat: shape.heartbeat,
            election: shape.election,
            session_ttl: shape.session_ttl,
            threads: shape.threads,
        };
        let plans: Vec<Plan> = (0..shape.members).map(plan).collect();
        let in_process = shape.in_process;
        let start = if in_process { Member::thread::<T> } else { Member::process };
        let mut cluster =
            Self { members: Vec::new(), plans: Vec::new(), start, in_process, _dir: dir };
        for plan in plans {
            cluster.restart(plan)?;
        }
        Ok(cluster)
    }

    /// Starts a member and appends it to the list.
    pub fn restart(&mut self, plan: Plan) -> Result<(), String> {
        self.members.push((self.start)(&plan).map_err(|error| error.to_string())?);
        self.plans.push(plan);
        Ok(())
    }

    /// Removes a member from the list, so that the caller can kill or end it. The members after it
    /// move up by one position.
    pub fn take(&mut self, member: usize) -> (Member, Plan) {
        (self.members.remove(member), self.plans.remove(member))
    }

    /// Waits until all members follow a leader and have caught up with it. Returns the position of
    /// the leader in the list.
    pub fn leader(&mut self) -> Result<usize, String> {
        let begun = Instant::now();
        loop {
            let all: Vec<_> = self.members.iter_mut().map(Member::status).collect();
            let leaders: Vec<usize> = (0..all.len()).filter(|i| all[*i].leads).collect();
            if let [leader] = leaders[..] {
                let first = &all[leader];
                // The report of a member is as old as its last tick, so an exact match cannot be required.
                let follows =
                    |other: &CrewStatus| other.leader == first.leader && other.applied > 1;
                if all.iter().all(follows) && self.is_even(leader) {
                    return Ok(leader);
                }
            }
            if begun.elapsed() > SETTLE {
                return Err(format!("no leader whom all follow within {SETTLE:?}: {all:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns whether all members have applied what the leader had applied a moment ago.
    fn is_even(&mut self, leader: usize) -> bool {
        let target = self.members[leader].status().applied;
        self.members.iter_mut().all(|member| member.status().applied >= target)
    }

    /// Divides callers among the members as evenly as possible, starting with the leader.
    pub fn shares(&self, leader: usize, callers: u64) -> Vec<(usize, u64)> {
        let count = self.members.len();
        let among = count as u64;
        (0..among)
            .map(|i| {
                let share = callers / among + u64::from(i < callers % among);
                ((leader + i as usize) % count, share)
            })
            .filter(|(_, share)| *share > 0)
            .collect()
    }

    /// Returns the CPU time of all members.
    pub fn cpu(&self) -> Duration {
        if self.in_process {
            return cpu_of("self");
        }
        self.members.iter().map(Member::cpu).sum()
    }

    /// Shuts all members down.
    pub fn end(self) {
        self.members.into_iter().for_each(Member::end);
    }
}

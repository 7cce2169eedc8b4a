//! The systems that are compared, and a single measurement of one system.

use std::time::Duration;

use serde::Serialize;
use tokio::runtime::Runtime;

use super::options::Options;
use super::redis::{self, Redis};
use super::rows::Row;
use crate::crew::site::{Site, WATCHERS, Work, order};
use crate::crew::{Cluster, Measured, Shape, Trace};
use crate::served::{self, Bed, Load};

/// Fraction of the time, as a divisor, that callers work before counting starts.
const WARM: u32 = 5;

/// Number of callers that fill the store.
const FILLERS: u64 = 16;

/// Number of servers of a cluster.
const NODES: usize = 3;

/// A system. The order is that of the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum System {
    Embedded,
    Served,
    Etcd,
    Redis,
}

impl System {
    /// All systems, in the order of the tables.
    pub const ALL: [Self; 4] = [Self::Embedded, Self::Served, Self::Etcd, Self::Redis];

    /// Returns the name in tables and pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "Bowline embedded",
            Self::Served => "bowline serve",
            Self::Etcd => "etcd",
            Self::Redis => "Redis",
        }
    }

    /// Returns the name in files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Served => "served",
            Self::Etcd => "etcd",
            Self::Redis => "redis",
        }
    }
}

/// The versions of the systems that run here, or the reasons to skip them.
pub(super) struct Found(Vec<(System, Result<String, String>)>);

impl Found {
    pub(super) fn look(options: &Options) -> Self {
        let installed = |version: Option<String>, program: &str, package: &str, option: &str| {
            version.ok_or_else(|| {
                format!("{program} does not run (Debian: {package}); {option} PATH names another")
            })
        };
        let etcd = served::System::Etcd(options.etcd.clone()).version();
        let etcd = etcd.map(|line| line.trim_start_matches("etcd Version: ").to_owned());
        let redis = Redis::version(&options.redis);
        let bowline = env!("CARGO_PKG_VERSION").to_owned();
        Self(vec![
            (System::Embedded, Ok(bowline.clone())),
            (System::Served, Ok(bowline)),
            (System::Etcd, installed(etcd, &options.etcd, "etcd-server", "--etcd")),
            (System::Redis, installed(redis, &options.redis, "redis-server", "--redis")),
        ])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(System, Result<String, String>)> {
        self.0.iter()
    }

    fn has(&self, system: System) -> bool {
        self.0.iter().any(|(other, version)| *other == system && version.is_ok())
    }
}

/// The running systems.
pub(super) struct Systems {
    runtime: Runtime,
    embedded: Cluster,
    served: Bed,
    etcd: Option<Bed>,
    redis: Option<Redis>,
    keys: u64,
    time: Duration,
    /// Whether the embedded members are threads of this process.
    in_process: bool,
}

impl Systems {
    pub(super) fn start(options: &Options, found: &Found) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let mut shape = Shape::new(&options.dir);
        shape.in_process = options.in_process;
        let embedded = Cluster::start::<Site>(&shape)?;
        let bed =
            |system: served::System| runtime.block_on(Bed::start(&system, NODES, &options.dir));
        let named = |what: &str, error: String| format!("{what}: {error}");
        let served = bed(served::System::Bowline).map_err(|error| named("bowline serve", error))?;
        let etcd = found.has(System::Etcd).then(|| bed(served::System::Etcd(options.etcd.clone())));
        let etcd = etcd.transpose().map_err(|error| named(&options.etcd, error))?;
        let redis = found
            .has(System::Redis)
            .then(|| runtime.block_on(Redis::start(&options.redis, &options.dir, options.keys)));
        let redis = redis.transpose()?;
        let Options { keys, time, in_process, .. } = *options;
        Ok(Self { runtime, embedded, served, etcd, redis, keys, time, in_process })
    }

    /// Makes sure that all keys exist in all systems.
    pub(super) fn fill(&mut self) -> Result<(), String> {
        let leader = self.embedded.leader()?;
        for member in &mut self.embedded.members {
            member.ask(&format!("keys {}", self.keys));
        }
        let member = &mut self.embedded.members[leader];
        member.send(&order(Work::Fill, FILLERS, Duration::ZERO));
        let _ = member.measured();
        let Self { runtime, served, etcd, redis, keys, .. } = self;
        runtime.block_on(async {
            served::fill(served, *keys).await;
            if let Some(etcd) = etcd {
                served::fill(etcd, *keys).await;
            }
            if let Some(redis) = redis {
                redis.fill().await;
            }
        });
        Ok(())
    }

    /// Returns the systems in the order of a round: each round starts with another system.
    pub(super) fn in_order_of(&self, round: usize) -> [System; 4] {
        let mut order = System::ALL;
        order.rotate_left(round % System::ALL.len());
        order
    }

    /// Measures a system. Returns the latencies and the CPU time, or `None` if the system is not part of the row.
    pub(super) fn measure(
        &mut self,
        row: &Row,
        system: System,
    ) -> Result<Option<(Measured, Duration)>, String> {
        match system {
            System::Embedded => {
                row.embedded.map(|work| self.measure_embedded(work, row.callers)).transpose()
            }
            System::Served => Ok(self.measure_served(row, Some(&self.served))),
            System::Etcd => Ok(self.measure_served(row, self.etcd.as_ref())),
            System::Redis => Ok(self.measure_redis(row.redis, row.callers)),
        }
    }

    fn measure_embedded(
        &mut self,
        work: Work,
        callers: u64,
    ) -> Result<(Measured, Duration), String> {
        let leader = self.embedded.leader()?;
        self.embedded.members[leader].send(&order(work, callers, self.time / WARM));
        let _ = self.embedded.members[leader].measured();
        let cpu = self.embedded.cpu();
        self.embedded.members[leader].send(&order(work, callers, self.time));
        let measured = self.embedded.members[leader].measured();
        let cpu = self.embedded.cpu().saturating_sub(cpu);
        self.embedded.members[leader].ask("compact");
        Ok((measured, cpu))
    }

    fn measure_served(&self, row: &Row, bed: Option<&Bed>) -> Option<(Measured, Duration)> {
        let (work, bed) = (row.served?, bed?);
        let callers = row.callers as usize;
        let clients = if work == served::Work::Watch { WATCHERS } else { callers };
        let load = Load { work, clients, writers: callers, keys: self.keys, time: self.time };
        Some(self.runtime.block_on(served::run(bed, load)))
    }

    fn measure_redis(
        &self,
        work: Option<redis::Work>,
        callers: u64,
    ) -> Option<(Measured, Duration)> {
        let (work, redis) = (work?, self.redis.as_ref()?);
        self.runtime.block_on(async {
            let _ = redis.run(work, callers, self.time / WARM).await;
            Some(redis.run(work, callers, self.time).await)
        })
    }

    /// Returns the bed of a system that clients reach over gRPC.
    fn bed(&mut self, system: System) -> Option<&mut Bed> {
        match system {
            System::Served => Some(&mut self.served),
            System::Etcd => self.etcd.as_mut(),
            System::Embedded | System::Redis => None,
        }
    }

    /// Kills the leader of a system and restarts it. Returns the time from the kill to the next acknowledged write on
    /// another member, or `None` if the system is not part of the row.
    pub(super) fn kill_leader(&mut self, system: System) -> Result<Option<Duration>, String> {
        if system == System::Embedded {
            return self.kill_embedded();
        }
        let handle = self.runtime.handle().clone();
        let Some(bed) = self.bed(system) else { return Ok(None) };
        handle.block_on(async {
            let channels = bed.followers().await;
            let begun = std::time::Instant::now();
            bed.kill_leader();
            let killing = begun.elapsed();
            let time = killing + served::next_write(&channels).await;
            bed.restart().await?;
            Ok(Some(time))
        })
    }

    fn kill_embedded(&mut self) -> Result<Option<Duration>, String> {
        if self.in_process {
            return Ok(None);
        }
        let leader = self.embedded.leader()?;
        let begun = std::time::Instant::now();
        let (fallen, plan) = self.embedded.take(leader);
        fallen.kill();
        self.embedded.members[0].send("next-write");
        let _ = self.embedded.members[0].measured();
        let time = begun.elapsed();
        self.embedded.restart(plan)?;
        Ok(Some(time))
    }

    /// Traces the writes of `callers` callers on the followers, and kills the leader `before` after their start.
    /// Returns the trace and the time of the kill in milliseconds since the Unix epoch.
    pub(super) fn trace_kill(
        &mut self,
        system: System,
        callers: usize,
        before: Duration,
        all: Duration,
    ) -> Result<Option<(Trace, u64)>, String> {
        let keys = self.keys;
        if system == System::Embedded {
            return self.trace_embedded(callers, before, all);
        }
        let handle = self.runtime.handle().clone();
        let Some(bed) = self.bed(system) else { return Ok(None) };
        handle.block_on(async {
            let channels = bed.followers().await;
            let trace = tokio::spawn(served::trace(channels, callers, keys, all));
            tokio::time::sleep(before).await;
            let killed = Trace::now_ms();
            bed.kill_leader();
            let trace = trace.await.map_err(|error| error.to_string())?;
            bed.restart().await?;
            Ok(Some((trace, killed)))
        })
    }

    fn trace_embedded(
        &mut self,
        callers: usize,
        before: Duration,
        all: Duration,
    ) -> Result<Option<(Trace, u64)>, String> {
        if self.in_process {
            return Ok(None);
        }
        let keys = self.keys;
        let leader = self.embedded.leader()?;
        let (fallen, plan) = self.embedded.take(leader);
        let share = callers / self.embedded.members.len();
        for member in &mut self.embedded.members {
            member.ask(&format!("keys {keys}"));
            member.send(&format!("trace {share} {}", all.as_millis()));
        }
        std::thread::sleep(before);
        let killed = Trace::now_ms();
        fallen.kill();
        let mut trace = Trace::default();
        for member in &mut self.embedded.members {
            let words = member.answer();
            let part = Trace::from_words(&words).ok_or(format!("not a trace: {words:?}"))?;
            trace.merge(&part);
        }
        self.embedded.restart(plan)?;
        Ok(Some((trace, killed)))
    }

    /// Shuts all systems down.
    pub(super) fn end(self) {
        self.embedded.end();
    }
}

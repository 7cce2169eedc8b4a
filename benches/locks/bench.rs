//! The parts that all rows share: the options, the cluster that most of them use, and its counters.

use std::time::Duration;

use crate::report::{Report, Row, Spent};
use crate::site::{Counts, Site};
use bowline_testkit::crew::{Cluster, Form, Shape};

/// The options of the benchmark.
pub(crate) struct Options {
    pub(crate) form: Form,
    pub(crate) shape: Shape,
    /// If set, only rows whose names contain this text are run.
    pub(crate) only: Option<String>,
    /// Duration of a row, for rows that are limited by time.
    pub(crate) time: Duration,
    /// Duration of the rows about idle locks and about the shares of the nodes.
    pub(crate) long: Duration,
    /// Number of holders that are killed.
    pub(crate) times: usize,
    /// Maximum number of waiters in one lock queue.
    pub(crate) waiters: u64,
    /// Maximum number of lock names.
    pub(crate) names: u64,
    /// Number of locks that idle holders hold.
    pub(crate) held: u64,
    /// TTL of the sessions of holders that are killed.
    pub(crate) ttl: Duration,
}

impl Options {
    pub(crate) fn from_args(args: &[String]) -> Result<Self, String> {
        // `cargo bench` passes this option. Without it, only check that the benchmark runs.
        let bench = args.iter().any(|arg| arg == "--bench");
        let mut options = Self {
            form: Form::Table,
            shape: Shape::new(env!("CARGO_TARGET_TMPDIR")),
            only: None,
            time: Duration::from_secs(3),
            long: Duration::from_secs(10),
            times: 11,
            waiters: 10_000,
            names: 1_000_000,
            held: 100_000,
            ttl: Duration::from_secs(2),
        };
        let quick = |options: &mut Self| {
            options.time = Duration::from_millis(200);
            options.long = Duration::from_millis(500);
            options.times = 1;
            options.waiters = 256;
            options.names = 1_000;
            options.held = 1_000;
        };
        if !bench {
            quick(&mut options);
        }
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if options.shape.takes(arg, &mut args)? {
                continue;
            }
            let mut value = || args.next().cloned().ok_or(format!("{arg} needs a value"));
            let number = |text: String| text.parse::<u64>().map_err(|error| error.to_string());
            match arg.as_str() {
                "--bench" => {}
                "--quick" => quick(&mut options),
                "--json" => options.form = Form::Json,
                "--only" => options.only = Some(value()?),
                "--seconds" => options.time = Duration::from_secs(number(value()?)?),
                "--long-seconds" => options.long = Duration::from_secs(number(value()?)?),
                "--times" => options.times = number(value()?)? as usize,
                "--waiters" => options.waiters = number(value()?)?,
                "--names" => options.names = number(value()?)?,
                "--held" => options.held = number(value()?)?.max(1),
                "--ttl-ms" => options.ttl = Duration::from_millis(number(value()?)?),
                other => return Err(format!("no option {other:?}; see the head of this file")),
            }
        }
        Ok(options)
    }
}

/// The state of a run.
pub(crate) struct Bench {
    pub(crate) options: Options,
    report: Report,
    cluster: Option<Cluster>,
}

impl Bench {
    pub(crate) fn new(options: Options) -> Self {
        let report = Report::begin(options.form, &options.shape.words());
        Self { options, report, cluster: None }
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.options.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Returns the cluster that the rows share, and its leader.
    pub(crate) fn cluster(&mut self) -> Result<(&mut Cluster, usize), String> {
        if self.cluster.is_none() {
            self.cluster = Some(Cluster::start::<Site>(&self.options.shape)?);
        }
        let cluster = self.cluster.as_mut().expect("it was just started");
        let leader = cluster.leader()?;
        Ok((cluster, leader))
    }

    pub(crate) fn end_cluster(&mut self) {
        self.cluster.take().into_iter().for_each(Cluster::end);
    }

    pub(crate) fn row(&mut self, row: &Row<'_>) {
        self.report.row(row);
    }
}

/// The member on which the callers of a row run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Leader,
    Follower,
}

impl At {
    pub(crate) fn member(self, cluster: &Cluster, leader: usize) -> usize {
        match self {
            At::Leader => leader,
            At::Follower => (leader + 1) % cluster.members.len(),
        }
    }
}

/// Returns the counters of a member.
pub(crate) fn counts(cluster: &mut Cluster, member: usize) -> Counts {
    Counts::from_words(&cluster.members[member].ask("counts"))
}

/// Measures the resources that all members use between two points in time.
pub(crate) struct Meter {
    leader: usize,
    cpu: Duration,
    counts: Counts,
}

impl Meter {
    pub(crate) fn start(cluster: &mut Cluster, leader: usize) -> Self {
        Self { leader, counts: counts(cluster, leader), cpu: cluster.cpu() }
    }

    pub(crate) fn stop(self, cluster: &mut Cluster) -> Spent {
        let cpu = cluster.cpu().saturating_sub(self.cpu);
        let now = counts(cluster, self.leader);
        Spent {
            cpu,
            entries: now.entries - self.counts.entries,
            log_bytes: now.log_bytes - self.counts.log_bytes,
            rounds: now.rounds - self.counts.rounds,
        }
    }
}

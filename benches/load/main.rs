//! Measures the speed of a cluster, as seen by a program that embeds a member.
//!
//! ```sh
//! cargo bench --bench load                     # three processes on loopback, real disks
//! cargo bench --bench load -- --in-process     # three members in one process, still with sockets
//! cargo bench --bench load -- --single         # one member
//! cargo bench --bench load -- --quick          # every row for a moment, to check that it runs
//! cargo bench --bench load -- --only "put, 64" --seconds 5 --json
//! ```
//!
//! Callers run inside members, as in a program that embeds one. They run in the leader's process unless a row says
//! otherwise. Each member process runs this program and receives commands on its standard input.
//! `docs/performance.md` explains the rows.

#![allow(clippy::print_stdout, reason = "a benchmark prints its report")]

mod report;

use std::time::{Duration, Instant};

use bowline_testkit::crew::site::{Site, Work, order};
use bowline_testkit::crew::{Cluster, Form, Measured, Plan, Shape, live};

/// Number of callers that fill the store.
const FILLERS: u64 = 16;

#[derive(Clone)]
struct Options {
    form: Form,
    shape: Shape,
    /// If set, only rows whose names contain this text are run.
    only: Option<String>,
    /// Duration of each row.
    time: Duration,
    /// Number of leaders to kill, and number of leadership transfers.
    times: usize,
    keys: u64,
}

impl Options {
    fn from_args(args: &[String]) -> Result<Self, String> {
        // `cargo bench` passes this option. Without it, only check that the benchmark runs.
        let bench = args.iter().any(|arg| arg == "--bench");
        let mut options = Self {
            form: Form::Table,
            shape: Shape::new(env!("CARGO_TARGET_TMPDIR")),
            only: None,
            time: Duration::from_secs(3),
            times: 11,
            keys: 100_000,
        };
        let quick = |options: &mut Self| {
            options.time = Duration::from_millis(250);
            options.times = 2;
            options.keys = 1_000;
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
                "--times" => options.times = number(value()?)? as usize,
                "--keys" => options.keys = number(value()?)?.max(1),
                other => return Err(format!("no option {other:?}; see the head of this file")),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == Plan::WORD) {
        let plan = Plan::from_args(&args).ok_or("a member's arguments are not its own")?;
        live::<Site>(&plan, std::io::stdin().lock(), std::io::stdout().lock());
        return Ok(());
    }
    let options = Options::from_args(&args)?;
    report::begin(
        options.form,
        &format!("{}; {} keys, values of 256 bytes\n", options.shape.words(), options.keys),
    );
    load(&options)?;
    if options.shape.members > 1 {
        changes_of_leader(&options)?;
    }
    Ok(())
}

/// The members on which the callers of a row run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Leader,
    Follower,
    /// The callers are divided among all members, starting with the leader.
    All,
}

const ROWS: &[(&str, Work, u64, At)] = &[
    ("put, 1 caller", Work::Put, 1, At::Leader),
    ("put, 64 callers", Work::Put, 64, At::Leader),
    ("put, 256 callers", Work::Put, 256, At::Leader),
    ("put, 64 callers on all members", Work::Put, 64, At::All),
    ("put on a follower, 1 caller", Work::Put, 1, At::Follower),
    ("linearizable get, 1 caller", Work::Get, 1, At::Leader),
    ("linearizable get, 64 callers", Work::Get, 64, At::Leader),
    ("linearizable get on a follower, 1 caller", Work::Get, 1, At::Follower),
    ("linearizable get on a follower, 64 callers", Work::Get, 64, At::Follower),
    ("local get, 1 caller", Work::LocalGet, 1, At::Leader),
    ("local get, 64 callers", Work::LocalGet, 64, At::Leader),
    ("half put half get, 64 callers", Work::Mixed, 64, At::Leader),
    ("compare-and-set, 64 callers, 10,000 keys", Work::CompareAndSet, 64, At::Leader),
    ("watch, 100 watchers, 64 writers, events", Work::Watch, 64, At::Leader),
    ("lease grant, 64 callers", Work::Grant, 64, At::Leader),
    ("lease revoke, 64 callers", Work::Revoke, 64, At::Leader),
    ("lock and unlock uncontended, 1 caller", Work::Lock, 1, At::Leader),
    ("lock and unlock uncontended, 64 callers", Work::Lock, 64, At::Leader),
    ("contended handoff, 2 callers", Work::Handoff, 2, At::All),
    ("contended handoff, 8 callers", Work::Handoff, 8, At::All),
    ("contended handoff, 64 callers", Work::Handoff, 64, At::All),
];

fn load(options: &Options) -> Result<(), String> {
    let alone = options.shape.members == 1;
    let rows: Vec<_> = ROWS
        .iter()
        .filter(|(name, _, _, at)| options.wants(name) && !(alone && *at == At::Follower))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let mut cluster = Cluster::start::<Site>(&options.shape)?;
    let leader = cluster.leader()?;
    for member in &mut cluster.members {
        member.ask(&format!("keys {}", options.keys));
    }
    cluster.members[leader].send(&order(Work::Fill, FILLERS, Duration::ZERO));
    let _ = cluster.members[leader].measured();
    for (name, work, callers, at) in rows {
        let leader = cluster.leader()?;
        let count = cluster.members.len();
        // Pairs of a member and its number of callers.
        let shares: Vec<(usize, u64)> = match at {
            At::Leader => vec![(leader, *callers)],
            At::Follower => vec![((leader + 1) % count, *callers)],
            At::All => cluster.shares(leader, *callers),
        };
        let cpu = cluster.cpu();
        for (member, share) in &shares {
            cluster.members[*member].send(&order(*work, *share, options.time));
        }
        let mut all = Measured::new(Duration::ZERO);
        for (member, _) in &shares {
            all.merge(&cluster.members[*member].measured());
        }
        report::rate(options.form, name, &all, cluster.cpu().saturating_sub(cpu));
    }
    cluster.end();
    Ok(())
}

/// Measures the interruption by killed leaders and by planned leadership transfers.
fn changes_of_leader(options: &Options) -> Result<(), String> {
    let (killed, moved) = (
        "leader killed with -9, to the next acknowledged write",
        "planned transfer, to the next acknowledged write",
    );
    if !options.wants(killed) && !options.wants(moved) {
        return Ok(());
    }
    let mut cluster = Cluster::start::<Site>(&options.shape)?;
    if options.wants(moved) {
        let mut all = Measured::new(Duration::ZERO);
        for _ in 0..options.times {
            let leader = cluster.leader()?;
            cluster.members[leader].send("transfer");
            all.merge(&cluster.members[leader].measured());
        }
        report::time(options.form, moved, &all);
    }
    if options.wants(killed) && !options.shape.in_process {
        let mut all = Measured::new(Duration::ZERO);
        for _ in 0..options.times {
            let leader = cluster.leader()?;
            let begun = Instant::now();
            let (fallen, plan) = cluster.take(leader);
            fallen.kill();
            cluster.members[0].send("next-write");
            let _ = cluster.members[0].measured();
            all.add(begun.elapsed());
            cluster.restart(plan)?;
        }
        report::time(options.form, killed, &all);
    }
    cluster.end();
    Ok(())
}

//! How fast a cluster is, as a program that embeds a member sees it.
//!
//! ```sh
//! cargo bench --bench load                     # three processes on loopback, real disks
//! cargo bench --bench load -- --in-process     # three members in one process, sockets all the same
//! cargo bench --bench load -- --single         # one member
//! cargo bench --bench load -- --quick          # every row for a moment: that it runs
//! cargo bench --bench load -- --only "put, 64" --seconds 5 --json
//! ```
//!
//! Callers live inside members, as they do in a program that embeds one: the leader's, unless a row
//! says otherwise. Each process is this program again, told what to do over its standard input.
//! `docs/performance.md` says what each row means.

#![allow(clippy::print_stdout, reason = "a benchmark reports to whoever runs it")]

mod member;
mod report;
mod work;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use member::{Member, Plan, cpu_of, data_dir, free_ports};
use report::{Form, Measured};
use work::Work;

/// How long a cluster may take to find a leader whom all follow.
const SETTLE: Duration = Duration::from_secs(60);

/// The callers that fill the store.
const FILLERS: u64 = 16;

#[derive(Clone)]
struct Options {
    form: Form,
    members: usize,
    in_process: bool,
    /// Only rows whose names contain this.
    only: Option<String>,
    /// How long each row is measured.
    time: Duration,
    /// How often leaders are killed and moved.
    times: usize,
    keys: u64,
    threads: usize,
    heartbeat: Duration,
    election: Duration,
    dir: PathBuf,
}

impl Options {
    fn from_args(args: &[String]) -> Result<Self, String> {
        // `cargo bench` says so; whoever runs it otherwise only wants to see that it runs.
        let bench = args.iter().any(|arg| arg == "--bench");
        let mut options = Self {
            form: Form::Table,
            members: 3,
            in_process: false,
            only: None,
            time: Duration::from_secs(3),
            times: 11,
            keys: 100_000,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            heartbeat: Duration::from_millis(100),
            election: Duration::from_millis(500),
            dir: env!("CARGO_TARGET_TMPDIR").into(),
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
            let mut value = || args.next().cloned().ok_or(format!("{arg} needs a value"));
            let number = |text: String| text.parse::<u64>().map_err(|error| error.to_string());
            match arg.as_str() {
                "--bench" => {}
                "--quick" => quick(&mut options),
                "--json" => options.form = Form::Json,
                "--single" => options.members = 1,
                "--in-process" => options.in_process = true,
                "--only" => options.only = Some(value()?),
                "--seconds" => options.time = Duration::from_secs(number(value()?)?),
                "--times" => options.times = number(value()?)? as usize,
                "--keys" => options.keys = number(value()?)?.max(1),
                "--threads" => options.threads = number(value()?)?.max(1) as usize,
                "--heartbeat-ms" => options.heartbeat = Duration::from_millis(number(value()?)?),
                "--election-ms" => options.election = Duration::from_millis(number(value()?)?),
                "--dir" => options.dir = value()?.into(),
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
        member::live(&plan, std::io::stdin().lock(), std::io::stdout().lock());
        return Ok(());
    }
    let options = Options::from_args(&args)?;
    let kind = match (options.members, options.in_process) {
        (1, _) => "one member in a process",
        (_, true) => "three members in one process",
        (_, false) => "three members, each a process",
    };
    let (keys, heartbeat, election) = (options.keys, options.heartbeat, options.election);
    options.form.begin(&format!(
        "{kind}, on loopback and one disk; {keys} keys, values of 256 bytes; \
         heartbeat {heartbeat:?}, election timeout {election:?}\n"
    ));
    load(&options)?;
    if options.members > 1 {
        changes_of_leader(&options)?;
    }
    Ok(())
}

/// Where the callers of a row are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Leader,
    Follower,
    /// Divided among all, the leader first.
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
    let alone = options.members == 1;
    let rows: Vec<_> = ROWS
        .iter()
        .filter(|(name, _, _, at)| options.wants(name) && !(alone && *at == At::Follower))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let mut cluster = Cluster::start(options)?;
    let leader = cluster.leader()?;
    cluster.members[leader].begin(Work::Fill, FILLERS, Duration::ZERO);
    let _ = cluster.members[leader].measured();
    for (name, work, callers, at) in rows {
        let leader = cluster.leader()?;
        let count = cluster.members.len();
        // (member, how many callers it has)
        let shares: Vec<(usize, u64)> = match at {
            At::Leader => vec![(leader, *callers)],
            At::Follower => vec![((leader + 1) % count, *callers)],
            At::All => (0..count as u64)
                .map(|i| {
                    let among = count as u64;
                    let share = callers / among + u64::from(i < callers % among);
                    ((leader + i as usize) % count, share)
                })
                .filter(|(_, share)| *share > 0)
                .collect(),
        };
        let cpu = cluster.cpu();
        for (member, share) in &shares {
            cluster.members[*member].begin(*work, *share, options.time);
        }
        let mut all = Measured::new(Duration::ZERO);
        for (member, _) in &shares {
            all.merge(&cluster.members[*member].measured());
        }
        options.form.rate(name, &all, cluster.cpu().saturating_sub(cpu));
    }
    cluster.end();
    Ok(())
}

/// Leaders that are killed, and leaders that go in good order.
fn changes_of_leader(options: &Options) -> Result<(), String> {
    let (killed, moved) = (
        "leader killed with -9, to the next acknowledged write",
        "planned transfer, to the next acknowledged write",
    );
    if !options.wants(killed) && !options.wants(moved) {
        return Ok(());
    }
    let mut cluster = Cluster::start(options)?;
    if options.wants(moved) {
        let mut all = Measured::new(Duration::ZERO);
        for _ in 0..options.times {
            let leader = cluster.leader()?;
            cluster.members[leader].tell("transfer");
            all.merge(&cluster.members[leader].measured());
        }
        options.form.time(moved, &all);
    }
    if options.wants(killed) && !options.in_process {
        let mut all = Measured::new(Duration::ZERO);
        for _ in 0..options.times {
            let leader = cluster.leader()?;
            let begun = Instant::now();
            let (fallen, survivor) = cluster.kill(leader);
            cluster.members[survivor].tell("next-write");
            let _ = cluster.members[survivor].measured();
            all.add(begun.elapsed());
            cluster.restart(fallen)?;
        }
        options.form.time(killed, &all);
    }
    cluster.end();
    Ok(())
}

/// All members. Their order changes when one is killed and comes back.
struct Cluster {
    members: Vec<Member>,
    plans: Vec<Plan>,
    in_process: bool,
    _dir: TempDir,
}

impl Cluster {
    fn start(options: &Options) -> Result<Self, String> {
        let words = |error: std::io::Error| error.to_string();
        let dir = TempDir::with_prefix_in("load-", &options.dir).map_err(words)?;
        let ports = free_ports(options.members).map_err(words)?;
        let plan = |number| Plan {
            dir: data_dir(dir.path(), number),
            number,
            ports: ports.clone(),
            heartbeat: options.heartbeat,
            election: options.election,
            keys: options.keys,
            threads: options.threads,
        };
        let plans: Vec<Plan> = (0..options.members).map(plan).collect();
        let in_process = options.in_process;
        let mut cluster = Self { members: Vec::new(), plans: Vec::new(), in_process, _dir: dir };
        for plan in plans {
            cluster.restart(plan)?;
        }
        Ok(cluster)
    }

    fn restart(&mut self, plan: Plan) -> Result<(), String> {
        let start = if self.in_process { Member::thread } else { Member::process };
        self.members.push(start(&plan).map_err(|error| error.to_string())?);
        self.plans.push(plan);
        Ok(())
    }

    /// Kills a member; its plan, and a member that lives.
    fn kill(&mut self, member: usize) -> (Plan, usize) {
        self.members.remove(member).kill();
        (self.plans.remove(member), 0)
    }

    /// Waits until there is a leader whom all follow and have caught up with, and says which.
    fn leader(&mut self) -> Result<usize, String> {
        let begun = Instant::now();
        loop {
            let all: Vec<_> = self.members.iter_mut().map(Member::standing).collect();
            let leaders: Vec<usize> = (0..all.len()).filter(|i| all[*i].leads).collect();
            if let [leader] = leaders[..] {
                let first = &all[leader];
                // What a member says is as old as its last tick, so none is asked to be exactly even.
                let follows =
                    |other: &member::Standing| other.leader == first.leader && other.applied > 1;
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

    /// Whether all have applied what the leader had applied a moment ago.
    fn is_even(&mut self, leader: usize) -> bool {
        let target = self.members[leader].standing().applied;
        self.members.iter_mut().all(|member| member.standing().applied >= target)
    }

    fn cpu(&self) -> Duration {
        if self.in_process {
            return cpu_of("self");
        }
        self.members.iter().map(Member::cpu).sum()
    }

    fn end(self) {
        self.members.into_iter().for_each(Member::end);
    }
}

//! `bowline serve` compared with etcd: both on this machine, in one run, under the same load from the same client.
//!
//! ```sh
//! cargo bench -p bowline-cli --bench beside_etcd                   # one server, then three; some fifteen minutes
//! cargo bench -p bowline-cli --bench beside_etcd -- --quick        # every row briefly, to check that it runs
//! cargo bench -p bowline-cli --bench beside_etcd -- --only put --nodes 3 --seconds 5 --pairs 5
//! cargo bench -p bowline-cli --bench beside_etcd -- --etcd /path/to/another/etcd
//! ```
//!
//! Servers are processes with default settings, which sync each write to the same disk. Clients are tasks of this
//! process, which runs on the same processors as the servers. The benchmark measures each row for both systems in
//! turn, several times, and computes a ratio from each pair of measurements. `docs/performance.md` explains the rows.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

mod report;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bowline_testkit::crew::Sample;
use bowline_testkit::served::{Bed, Load, System, Work, fill, run};
use report::{Pair, Row};

/// The work of the rows, in the order of the table.
const ALL: [(&str, Work); 7] = [
    ("put", Work::Put),
    ("range, linearizable", Work::Range),
    ("range, serializable", Work::SerializableRange),
    ("transaction", Work::Txn),
    ("watch, events", Work::Watch),
    ("lease keep-alive", Work::KeepAlive),
    ("lock and unlock", Work::Lock),
];

const KEYS: u64 = 10_000;

/// Number of concurrent puts for watchers to receive.
const WRITERS: usize = 8;

/// Numbers of concurrent clients.
const CLIENTS: [usize; 3] = [1, 32, 256];

#[derive(Clone)]
struct Options {
    /// Path of etcd's program.
    etcd: String,
    /// Runs only rows whose names contain this text.
    only: Option<String>,
    /// Numbers of servers.
    nodes: Vec<usize>,
    /// Duration of each measurement.
    time: Duration,
    /// Number of measurements of each system.
    pairs: usize,
    /// Omits etcd, for runs under a profiler.
    alone: bool,
}

impl Options {
    fn from_args(args: &[String]) -> Result<Self, String> {
        let (nodes, time) = (vec![1, 3], Duration::from_secs(2));
        let etcd = "etcd".to_owned();
        let mut options = Self { etcd, only: None, nodes, time, pairs: 3, alone: false };
        let quick = |options: &mut Self| {
            options.time = Duration::from_millis(50);
            options.pairs = 1;
        };
        // `cargo bench` passes `--bench`. Without it, the benchmark only checks that everything runs.
        if !args.iter().any(|arg| arg == "--bench") {
            quick(&mut options);
        }
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().ok_or(format!("{arg} needs a value"));
            let number = |text: String| text.parse::<usize>().map_err(|error| error.to_string());
            match arg.as_str() {
                "--bench" => {}
                "--quick" => quick(&mut options),
                "--alone" => options.alone = true,
                "--etcd" => options.etcd = value()?,
                "--only" => options.only = Some(value()?),
                "--nodes" => options.nodes = vec![number(value()?)?],
                "--seconds" => options.time = Duration::from_secs(number(value()?)? as u64),
                "--pairs" => options.pairs = number(value()?)?.max(1),
                other => return Err(format!("no option {other:?}; see the head of this file")),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let compared = Options::from_args(&args).and_then(|options| {
        runtime.map_err(|error| error.to_string())?.block_on(compare(&options))
    });
    match compared {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("beside_etcd: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn compare(options: &Options) -> Result<(), String> {
    let etcd = System::Etcd(options.etcd.clone());
    let version = etcd.version();
    if !options.alone && version.is_none() {
        println!(
            "SKIPPED: {} does not run (Debian: etcd-server); --etcd names another",
            options.etcd
        );
        return Ok(());
    }
    println!("etcd: {}", version.unwrap_or_default());
    // The data must be on the same disk as the project, because the default directory may be in memory.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for nodes in &options.nodes {
        let bowline = Bed::start(&System::Bowline, *nodes, dir).await?;
        let etcd = match options.alone {
            true => None,
            false => Some(Bed::start(&etcd, *nodes, dir).await?),
        };
        fill(&bowline, KEYS).await;
        if let Some(etcd) = &etcd {
            fill(etcd, KEYS).await;
        }
        report::head(*nodes);
        for (name, work) in ALL {
            for clients in CLIENTS {
                let name = format!("{name}, {clients}");
                if options.wants(&name) {
                    let time = options.time;
                    let load = Load { work, clients, writers: WRITERS, keys: KEYS, time };
                    let row = measure(options, load, &bowline, etcd.as_ref()).await;
                    row.print(&name);
                }
            }
        }
    }
    Ok(())
}

/// Measures the two systems in turn, and alternates which of them starts.
async fn measure(options: &Options, load: Load, bowline: &Bed, etcd: Option<&Bed>) -> Row {
    let mut row = Row::default();
    for turn in 0..options.pairs {
        let one = async |bed: &Bed| {
            let (measured, cpu) = run(bed, load).await;
            Sample::of(&measured, cpu)
        };
        let pair = match etcd {
            None => Pair { bowline: one(bowline).await, etcd: Sample::default() },
            Some(etcd) if turn % 2 == 0 => {
                let etcd = one(etcd).await;
                Pair { bowline: one(bowline).await, etcd }
            }
            Some(etcd) => {
                let bowline = one(bowline).await;
                Pair { bowline, etcd: one(etcd).await }
            }
        };
        row.add(pair);
    }
    row
}

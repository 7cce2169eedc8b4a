//! The results, as they are written to `versus.json`.
//!
//! The file is one object, a [`Report`]. Names of fields are those of the types below. A system is one of `embedded`
//! (members inside three processes), `served` (three `bowline serve`), `etcd` (three servers) and `redis` (one server).
//! A spread is an object with `median`, `min` and `max`. Rates are operations per second. The suffix of a field is its
//! unit. `schema` increases when a field changes its meaning or disappears.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::options::Options;
use super::systems::{Found, System};
use crate::crew::{Sample, Spread};

/// Version of the file's format.
const SCHEMA: u32 = 1;

/// All results.
#[derive(Clone, Serialize, Debug)]
pub struct Report {
    pub schema: u32,
    /// Start of the run, in seconds since the Unix epoch.
    pub begun_s: u64,
    pub machine: Machine,
    pub settings: Settings,
    pub systems: Vec<SystemReport>,
    pub rows: Vec<RowReport>,
    pub kills: Vec<Kills>,
    pub timelines: Vec<Timeline>,
}

/// The machine, which all systems and their clients share.
#[derive(Clone, Serialize, Debug)]
pub struct Machine {
    pub processors: usize,
    /// Model of the processor.
    pub model: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Load averages over 1, 5 and 15 minutes before the run.
    pub load_before: String,
    /// Load averages over 1, 5 and 15 minutes after the run.
    pub load_after: String,
}

/// The settings of the run.
#[derive(Clone, Serialize, Debug)]
pub struct Settings {
    pub rounds: usize,
    /// Duration of each measurement.
    pub seconds: f64,
    pub keys: u64,
    pub value_bytes: u64,
}

/// A system, and whether it ran.
#[derive(Clone, Serialize, Debug)]
pub struct SystemReport {
    pub system: System,
    pub name: String,
    pub version: Option<String>,
    /// The reason, if the system did not run.
    pub skipped: Option<String>,
}

/// The figure of a row that its summary compares.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Headline {
    /// Operations per second. Higher is better.
    Rate,
    /// Median latency. Lower is better.
    Latency,
}

/// A row.
#[derive(Clone, Serialize, Debug)]
pub struct RowReport {
    pub name: String,
    pub headline: Headline,
    /// Number of concurrent callers; for watches, of writers.
    pub callers: u64,
    /// The results of each measured system.
    pub results: Vec<RowResult>,
    pub ratios: Vec<Ratio>,
}

/// The results of a system in a row. Each [`Spread`] covers all rounds of the measurement.
#[derive(Clone, Serialize, Debug)]
pub struct RowResult {
    pub system: System,
    pub rate: Spread,
    pub median_us: Spread,
    pub p99_us: Spread,
    /// CPU time per operation. For `embedded`, the CPU time of both members and callers counts. For the other systems,
    /// only the CPU time of the servers counts.
    pub cpu_us: Spread,
    pub rounds: Vec<Sample>,
    /// Pairs of a quantile (0 to 1) and its latency, computed from the operations of all rounds.
    pub quantiles_us: Vec<(f64, f64)>,
}

/// The ratio of a system to another. Each round has its own ratio.
#[derive(Clone, Serialize, Debug)]
pub struct Ratio {
    pub of: System,
    pub to: System,
    pub rate: Spread,
    /// Ratio of the median latencies.
    pub median: Spread,
}

/// The times from the kill of a leader to the next acknowledged write on another member.
#[derive(Clone, Serialize, Debug)]
pub struct Kills {
    pub system: System,
    /// The time after each kill, in the order of the kills.
    pub times_ms: Vec<f64>,
    pub spread_ms: Spread,
    /// 99th percentile (nearest rank).
    pub p99_ms: f64,
}

impl Kills {
    /// Computes the spread and the percentile.
    pub fn new(system: System, times_ms: Vec<f64>) -> Self {
        let mut sorted = times_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() as f64 * 0.99).ceil() as usize;
        let p99_ms = sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default();
        Self { system, spread_ms: Spread::of(sorted), times_ms, p99_ms }
    }
}

/// Acknowledged writes around the kill of a leader. The writers are on the other members.
#[derive(Clone, Serialize, Debug)]
pub struct Timeline {
    pub system: System,
    /// Number of concurrent writers.
    pub callers: usize,
    /// Width of an interval.
    pub bin_ms: u64,
    /// Start of the first interval, relative to the time of the kill. A negative time is before the kill.
    pub from_ms: i64,
    /// Number of writes that were acknowledged in each interval.
    pub writes: Vec<u64>,
    /// Longest time without an acknowledged write after the kill.
    pub gap_ms: u64,
}

impl Report {
    pub(super) fn new(options: &Options, found: &Found) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let system = |(system, version): &(System, Result<String, String>)| SystemReport {
            system: *system,
            name: system.name().to_owned(),
            version: version.as_ref().ok().cloned(),
            skipped: version.as_ref().err().cloned(),
        };
        Self {
            schema: SCHEMA,
            begun_s: since.as_secs(),
            machine: Machine::here(),
            settings: Settings {
                rounds: options.rounds,
                seconds: options.time.as_secs_f64(),
                keys: options.keys,
                value_bytes: 256,
            },
            systems: found.iter().map(system).collect(),
            rows: Vec::new(),
            kills: Vec::new(),
            timelines: Vec::new(),
        }
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is JSON") + "\n"
    }
}

impl Machine {
    fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
        let load = load_average();
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            model: model.unwrap_or_default().trim_start_matches([' ', '\t', ':']).to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: load.clone(),
            load_after: load,
        }
    }
}

impl RowReport {
    /// Returns the result of a system.
    pub fn of(&self, system: System) -> Option<&RowResult> {
        self.results.iter().find(|result| result.system == system)
    }

    /// Returns the ratio of two systems' results, by the figure in [`RowReport::headline`].
    pub fn ratio(&self, of: System, to: System) -> Option<Spread> {
        let ratio = self.ratios.iter().find(|ratio| ratio.of == of && ratio.to == to)?;
        Some(match self.headline {
            Headline::Rate => ratio.rate,
            Headline::Latency => ratio.median,
        })
    }
}

impl RowResult {
    /// Returns the figure that the summary compares.
    pub fn headline(&self, headline: Headline) -> Spread {
        match headline {
            Headline::Rate => self.rate,
            Headline::Latency => self.median_us,
        }
    }
}

/// Returns the load averages over 1, 5 and 15 minutes.
pub(super) fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Compares a text with a file of this folder. `BOWLINE_BLESS=1` writes the file again after a change.
    pub(in crate::versus) fn assert_golden(file: &str, text: &str) {
        let path = format!("{}/src/versus/{file}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("BOWLINE_BLESS").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines().zip(golden.lines());
        assert_eq!(lines.find(|(text, golden)| text != golden), None, "{file}");
        assert_eq!(text.len(), golden.len(), "{file}");
    }

    /// Returns a report with fixed figures.
    pub(in crate::versus) fn example() -> Report {
        let spread = |median: f64| Spread { median, min: median * 0.9, max: median * 1.25 };
        let result = |system, rate: f64, median: f64| RowResult {
            system,
            rate: spread(rate),
            median_us: spread(median),
            p99_us: spread(median * 2.0),
            cpu_us: spread(10.0),
            rounds: vec![Sample {
                rate,
                median_us: median,
                p99_us: median * 2.0,
                cpu_us: 10.0,
                count: 100,
            }],
            quantiles_us: vec![(0.0, median / 2.0), (0.5, median), (0.99, median * 2.0)],
        };
        let row = |name: &str, headline, callers, results: Vec<RowResult>| {
            let ratios = vec![Ratio {
                of: System::Embedded,
                to: System::Etcd,
                rate: spread(4.0),
                median: spread(0.25),
            }];
            RowReport { name: name.to_owned(), headline, callers, results, ratios }
        };
        let system = |system: System, version: Option<&str>, skipped: Option<&str>| SystemReport {
            system,
            name: system.name().to_owned(),
            version: version.map(str::to_owned),
            skipped: skipped.map(str::to_owned),
        };
        Report {
            schema: SCHEMA,
            begun_s: 1_800_000_000,
            machine: Machine {
                processors: 2,
                model: "An <example>".to_owned(),
                kernel: "6.18".to_owned(),
                load_before: "0.10 0.20 0.30".to_owned(),
                load_after: "2.00 1.00 0.50".to_owned(),
            },
            settings: Settings { rounds: 5, seconds: 2.0, keys: 10_000, value_bytes: 256 },
            systems: vec![
                system(System::Embedded, Some("0.1.0"), None),
                system(System::Etcd, Some("3.7.3"), None),
                system(System::Redis, None, Some("redis-server does not run")),
            ],
            rows: vec![
                row(
                    "put, 1 caller",
                    Headline::Latency,
                    1,
                    vec![
                        result(System::Embedded, 2_000.0, 500.0),
                        result(System::Etcd, 900.0, 1_100.0),
                    ],
                ),
                row(
                    "put, 64 callers",
                    Headline::Rate,
                    64,
                    vec![
                        result(System::Embedded, 40_000.0, 1_500.0),
                        result(System::Etcd, 10_000.0, 6_000.0),
                    ],
                ),
            ],
            kills: vec![
                Kills::new(System::Embedded, vec![30.0, 28.0, 95.0]),
                Kills::new(System::Etcd, vec![1_200.0, 1_100.0, 1_400.0]),
            ],
            timelines: vec![Timeline {
                system: System::Embedded,
                callers: 16,
                bin_ms: 10,
                from_ms: -20,
                writes: vec![40, 42, 3, 0, 20, 41],
                gap_ms: 14,
            }],
        }
    }

    #[test]
    fn percentile_is_by_nearest_rank() {
        let kills = Kills::new(System::Etcd, (1..=200).rev().map(f64::from).collect());
        assert_eq!((kills.p99_ms, kills.spread_ms.median), (198.0, 100.5));
        assert_eq!(Kills::new(System::Etcd, vec![5.0, 3.0]).p99_ms, 5.0);
    }

    /// The names of the fields, at any depth, are the schema.
    #[test]
    fn schema_of_the_json_has_these_fields() {
        fn fields(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
            match value {
                serde_json::Value::Object(object) => {
                    for (name, value) in object {
                        fields(value, &format!("{path}.{name}"), found);
                    }
                }
                serde_json::Value::Array(all) if !all.is_empty() => {
                    fields(&all[0], &format!("{path}[]"), found);
                }
                _ => found.push(path.trim_start_matches('.').to_owned()),
            }
        }
        let json: serde_json::Value = serde_json::from_str(&example().to_json()).unwrap();
        let mut found = Vec::new();
        fields(&json, "", &mut found);
        found.sort();
        assert_golden("schema.txt", &(found.join("\n") + "\n"));
        assert_eq!(json["rows"][1]["headline"], "rate");
        assert_eq!(json["rows"][1]["results"][1]["system"], "etcd");
    }
}

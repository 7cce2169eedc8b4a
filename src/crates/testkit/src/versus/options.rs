//! The options of the benchmark.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::failover;
use super::rows::ROWS;

/// All options, for error texts.
const KNOWN: &str = "--quick, --only TEXT, --rounds N, --seconds N, --kills N, --etcd PATH, --redis PATH, --out DIR, \
                     --dir DIR, --in-process";

/// The options of the benchmark.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// Path of etcd's program.
    pub(super) etcd: String,
    /// Path of Redis' program.
    pub(super) redis: String,
    /// Runs only rows whose names contain this text.
    only: Option<String>,
    /// Number of measurements of each row for each system.
    pub(super) rounds: usize,
    /// Duration of each measurement.
    pub(super) time: Duration,
    /// Number of leaders to kill in each system.
    pub(super) kills: usize,
    pub(super) keys: u64,
    /// Duration of the traced writes around a kill, after and before it.
    pub(super) traced: (Duration, Duration),
    /// Whether the embedded members are threads of this process. Their leader cannot be killed then.
    pub(super) in_process: bool,
    /// Directory for the data of all systems.
    pub(super) dir: PathBuf,
    /// Directory for the files that the benchmark writes.
    pub(super) out: PathBuf,
}

impl Options {
    pub(super) fn from_args(args: &[String], tmp: &Path) -> Result<Self, String> {
        let mut options = Self {
            etcd: "etcd".to_owned(),
            redis: "redis-server".to_owned(),
            only: None,
            rounds: 5,
            time: Duration::from_secs(2),
            kills: 11,
            keys: 10_000,
            traced: (Duration::from_millis(2_500), Duration::from_millis(500)),
            in_process: false,
            dir: tmp.to_owned(),
            out: tmp.join("versus"),
        };
        let quick = |options: &mut Self| {
            options.rounds = 1;
            options.time = Duration::from_millis(100);
            options.kills = 1;
            options.keys = 1_000;
            options.traced = (Duration::from_millis(1_500), Duration::from_millis(200));
        };
        // `cargo bench` passes `--bench`. Without it, the benchmark only checks that everything runs.
        if !args.iter().any(|arg| arg == "--bench") {
            quick(&mut options);
        }
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--bench" => {}
                "--quick" => quick(&mut options),
                "--in-process" => options.in_process = true,
                "--etcd" => options.etcd = value()?,
                "--redis" => options.redis = value()?,
                "--only" => options.only = Some(value()?),
                "--dir" => options.dir = value()?.into(),
                "--out" => options.out = value()?.into(),
                "--rounds" => options.rounds = count(arg, &value()?)?,
                "--kills" => options.kills = count(arg, &value()?)?,
                "--seconds" => options.time = seconds(&value()?)?,
                other => return Err(format!("unknown option {other:?}; the options are {KNOWN}")),
            }
        }
        options.check_only()?;
        Ok(options)
    }

    fn check_only(&self) -> Result<(), String> {
        let names: Vec<&str> = ROWS.iter().map(|row| row.name).chain([failover::NAME]).collect();
        if names.iter().any(|name| self.wants(name)) {
            return Ok(());
        }
        let only = self.only.as_deref().unwrap_or_default();
        Err(format!("--only {only:?} selects no row; the rows are {names:?}"))
    }

    /// Returns whether the row is selected.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

fn count(option: &str, text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or(format!("{option} must be a positive number, and is {text:?}"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=3_600.0).contains(seconds));
    let seconds = seconds.ok_or(format!("--seconds must be 0.01 to 3600, and is {text:?}"))?;
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(args: &str) -> Result<Options, String> {
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        Options::from_args(&args, Path::new("/tmp"))
    }

    #[test]
    fn options_set_what_they_name() {
        let options = of("--bench --only put --rounds 7 --seconds 0.5 --kills 3 --out o").unwrap();
        assert_eq!((options.rounds, options.kills), (7, 3));
        assert_eq!(options.time, Duration::from_millis(500));
        assert_eq!(options.out, Path::new("o"));
        assert!(options.wants("put, 1 caller") && !options.wants("watch"));
        // Without `--bench`, which `cargo bench` passes, the run is quick.
        assert_eq!(of("").unwrap().rounds, 1);
        assert_eq!(of("--bench").unwrap().rounds, 5);
    }

    #[test]
    fn invalid_options_are_named() {
        for (args, error) in [
            ("--rouns 3", "unknown option \"--rouns\"; the options are --quick, --only TEXT"),
            ("--rounds", "--rounds needs a value"),
            ("--rounds 0", "--rounds must be a positive number, and is \"0\""),
            ("--kills x", "--kills must be a positive number, and is \"x\""),
            ("--seconds -1", "--seconds must be 0.01 to 3600, and is \"-1\""),
            (
                "--only nothing",
                "--only \"nothing\" selects no row; the rows are [\"put, 1 caller\"",
            ),
        ] {
            let found = of(args).unwrap_err();
            assert!(found.starts_with(error), "{args}: {found}");
        }
    }
}

//! Process metrics from the operating system, under the names of Prometheus' client libraries. They exist only on
//! Linux.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// Measurements of this process.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Process {
    /// CPU time in user and kernel mode, in seconds.
    pub(crate) cpu_seconds: f64,
    /// Start time, in seconds since 1970.
    pub(crate) start_seconds: f64,
    pub(crate) resident_bytes: u64,
    pub(crate) virtual_bytes: u64,
    pub(crate) open_files: u64,
    /// Limit of open files; `None` without a limit.
    pub(crate) open_files_max: Option<u64>,
}

impl Process {
    /// Measures the process.
    pub(crate) fn now() -> Option<Self> {
        let stat = Stat::parse(&fs::read_to_string("/proc/self/stat").ok()?)?;
        let booted = boot_seconds(&fs::read_to_string("/proc/stat").ok()?)?;
        // The directory itself is open while it is read.
        let open_files = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64;
        let ticks_a_second = clock_ticks_per_second() as f64;
        Some(Self {
            cpu_seconds: stat.cpu_ticks as f64 / ticks_a_second,
            start_seconds: booted as f64 + stat.start_ticks as f64 / ticks_a_second,
            resident_bytes: stat.resident_pages * page_size() as u64,
            virtual_bytes: stat.virtual_bytes,
            open_files,
            open_files_max: getrlimit(Resource::Nofile).current,
        })
    }
}

/// The used fields of `/proc/self/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stat {
    cpu_ticks: u64,
    /// Since boot.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(line: &str) -> Option<Self> {
        // The process name, in parentheses, may contain any characters. The next field has the number 3.
        let rest = line.rsplit_once(')')?.1;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Returns the boot time, in seconds since 1970.
fn boot_seconds(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_spaces_does_not_shift_the_fields() {
        let line =
            "42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 110 12 13 14 15 16 17 18 1900 20000 300 22";
        let stat = Stat::parse(line).unwrap();
        let found = [stat.cpu_ticks, stat.start_ticks, stat.virtual_bytes, stat.resident_pages];
        assert_eq!(found, [122, 1900, 20_000, 300]);
        assert_eq!(Stat::parse("42 (short) S 1 2"), None);
        assert_eq!(boot_seconds("cpu 1 2\nbtime 1700000000\nprocesses 3\n"), Some(1_700_000_000));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn process_stats_report_start_time_and_memory() {
        let process = Process::now().unwrap();
        assert!(
            process.resident_bytes > 1 << 20 && process.virtual_bytes >= process.resident_bytes
        );
        assert!(process.open_files > 2 && process.start_seconds > 1.6e9);
    }
}

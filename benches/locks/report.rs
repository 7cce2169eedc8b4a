//! The output of the rows: tables, or a line of JSON for each row. Consecutive rows with the same
//! workload form one table, below a description of the workload.

use std::time::Duration;

use bowline_testkit::crew::{Form, Measured};

/// The result of one row.
pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    /// Description of the workload: what one operation is, and what its latency includes.
    pub(crate) words: &'a str,
    /// Names and values of the results. Rows with the same description have the same names.
    pub(crate) numbers: Vec<(&'static str, f64)>,
}

/// Returns the rate and the latencies.
pub(crate) fn rates(measured: &Measured) -> Vec<(&'static str, f64)> {
    let (median, p99) = (measured.micros(0.5), measured.micros(0.99));
    vec![("a second", measured.rate()), ("median us", median), ("p99 us", p99)]
}

/// The resources that all members together used for a row.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spent {
    pub(crate) cpu: Duration,
    /// Entries in the leader's log.
    pub(crate) entries: u64,
    /// Bytes in the leader's log.
    pub(crate) log_bytes: u64,
    /// Rounds in which the leader confirmed its leadership.
    pub(crate) rounds: u64,
}

impl Spent {
    /// Returns the cost of one operation, given their number.
    pub(crate) fn each(&self, count: u64) -> Vec<(&'static str, f64)> {
        let each = |all: f64| all / count.max(1) as f64;
        vec![
            ("CPU us each", each(self.cpu.as_secs_f64() * 1e6)),
            ("commits each", each(self.entries as f64)),
            ("log bytes each", each(self.log_bytes as f64)),
            ("rounds of proof each", each(self.rounds as f64)),
        ]
    }
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, more: Spent) {
        self.cpu += more.cpu;
        self.entries += more.entries;
        self.log_bytes += more.log_bytes;
        self.rounds += more.rounds;
    }
}

/// Prints rows.
pub(crate) struct Report {
    form: Form,
    /// The description of the previous row.
    words: String,
}

impl Report {
    pub(crate) fn begin(form: Form, title: &str) -> Self {
        if form == Form::Table {
            println!("{title}");
        }
        Self { form, words: String::new() }
    }

    pub(crate) fn row(&mut self, row: &Row<'_>) {
        let Row { name, words, numbers } = row;
        match self.form {
            Form::Table => {
                if self.words != *words {
                    self.words = (*words).to_owned();
                    let columns: Vec<&str> = numbers.iter().map(|(column, _)| *column).collect();
                    println!("\n{words}:\n\n| row | {} |", columns.join(" | "));
                    println!("|---{}|", "|---".repeat(columns.len()));
                }
                let cells: Vec<String> = numbers.iter().map(|(_, value)| short(*value)).collect();
                println!("| {name} | {} |", cells.join(" | "));
            }
            Form::Json => {
                let field = |(column, value): &(&str, f64)| {
                    format!(",\"{}\":{}", column.replace(' ', "_"), short(*value))
                };
                let fields: String = numbers.iter().map(field).collect();
                println!("{{\"row\":\"{name}\",\"workload\":\"{words}\"{fields}}}");
            }
        }
    }
}

/// Formats a number with three digits, or all digits before the point.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.001.. => format!("{value:.3}"),
        _ => format!("{value:.6}"),
    }
}

//! How rows are told: for people as tables, one for all rows in a row with the same workload, which is
//! told in words above it; for programs as a line of JSON each.

use std::time::Duration;

use crate::crew::{Form, Measured};

/// What one row came to.
pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    /// The workload, in words: what one operation is, and what its latency is.
    pub(crate) words: &'a str,
    /// What was measured, by what it is. Rows with the same words have the same.
    pub(crate) numbers: Vec<(&'static str, f64)>,
}

/// Operations a second, and how long one takes.
pub(crate) fn rates(measured: &Measured) -> Vec<(&'static str, f64)> {
    let (median, p99) = (measured.micros(0.5), measured.micros(0.99));
    vec![("a second", measured.rate()), ("median us", median), ("p99 us", p99)]
}

/// What all members together spent on a row.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spent {
    pub(crate) cpu: Duration,
    /// Entries of the leader's log.
    pub(crate) entries: u64,
    /// Bytes of the leader's log.
    pub(crate) log_bytes: u64,
    /// Rounds in which the leader proved that it leads.
    pub(crate) rounds: u64,
}

impl Spent {
    /// What one of so many operations cost.
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

/// Tells rows.
pub(crate) struct Report {
    form: Form,
    /// The words of the rows before.
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

/// Three digits, or all before the point.
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

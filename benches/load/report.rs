//! What a row comes to: latencies and how long it took, as a line between processes, as a line of a
//! table, and as a line of JSON.

use std::time::Duration;

use hdrhistogram::Histogram;

/// What callers have measured.
pub(crate) struct Measured {
    /// Nanoseconds of each operation.
    pub(crate) latencies: Histogram<u64>,
    /// How long all of them together took.
    pub(crate) elapsed: Duration,
}

impl Measured {
    pub(crate) fn new(elapsed: Duration) -> Self {
        Self { latencies: Histogram::new(3).expect("three digits are few"), elapsed }
    }

    pub(crate) fn add(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latencies.record(nanos).expect("it grows by itself");
    }

    /// What others measured at the same time.
    pub(crate) fn merge(&mut self, other: &Measured) {
        self.latencies.add(&other.latencies).expect("it grows by itself");
        self.elapsed = self.elapsed.max(other.elapsed);
    }

    /// As words for another process: the time, then each latency with its count.
    pub(crate) fn to_words(&self) -> String {
        let mut words = self.elapsed.as_nanos().to_string();
        for bucket in self.latencies.iter_recorded() {
            words += &format!(" {}:{}", bucket.value_iterated_to(), bucket.count_at_value());
        }
        words
    }

    /// From such words.
    pub(crate) fn from_words(words: &str) -> Option<Self> {
        let mut words = words.split_whitespace();
        let mut measured = Self::new(Duration::from_nanos(words.next()?.parse().ok()?));
        for word in words {
            let (value, count) = word.split_once(':')?;
            measured.latencies.record_n(value.parse().ok()?, count.parse().ok()?).ok()?;
        }
        Some(measured)
    }

    fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn micros(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

/// How rows are told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A table for people.
    Table,
    /// One object a line.
    Json,
}

impl Form {
    /// The first lines.
    pub(crate) fn begin(self, title: &str) {
        if self == Form::Table {
            println!("{title}");
            println!(
                "| work | operations/s | median us | p99 us | CPU us an operation | operations |"
            );
            println!("|---|---|---|---|---|---|");
        }
    }

    /// A row whose point is how many operations a second there are.
    pub(crate) fn rate(self, name: &str, measured: &Measured, cpu: Duration) {
        let count = measured.latencies.len();
        let cpu = cpu.as_secs_f64() * 1e6 / count.max(1) as f64;
        let (rate, median, p99) = (measured.rate(), measured.micros(0.5), measured.micros(0.99));
        match self {
            Form::Table => {
                println!("| {name} | {rate:.0} | {median:.0} | {p99:.0} | {cpu:.1} | {count} |");
            }
            Form::Json => println!(
                "{{\"row\":\"{name}\",\"ops_per_s\":{rate:.1},\"p50_us\":{median:.1},\
                 \"p99_us\":{p99:.1},\"cpu_us\":{cpu:.1},\"n\":{count}}}"
            ),
        }
    }

    /// A row whose point is how long one thing takes, which was done several times.
    pub(crate) fn time(self, name: &str, measured: &Measured) {
        let count = measured.latencies.len();
        let (median, p99) = (measured.micros(0.5), measured.micros(0.99));
        match self {
            Form::Table => println!("| {name} | - | {median:.0} | {p99:.0} | - | {count} |"),
            Form::Json => println!(
                "{{\"row\":\"{name}\",\"p50_us\":{median:.1},\"p99_us\":{p99:.1},\"n\":{count}}}"
            ),
        }
    }
}

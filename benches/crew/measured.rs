//! What callers have measured: latencies and how long it took, also as a line between processes.

use std::time::Duration;

use hdrhistogram::Histogram;

/// What callers have measured.
pub(crate) struct Measured {
    /// Nanoseconds of each operation.
    latencies: Histogram<u64>,
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

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.latencies.len()
    }

    pub(crate) fn rate(&self) -> f64 {
        self.count() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub(crate) fn micros(&self, quantile: f64) -> f64 {
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

//! The measurements of callers: latencies and the total time. Measurements can be sent between
//! processes as a line of text.

use std::borrow::Cow;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Number of latencies that are kept individually. A histogram takes 200 KB, which is too much for each of ten
/// thousand callers with few latencies.
const FEW: usize = 4_096;

/// Latencies and the total time.
pub struct Measured {
    /// Latencies in nanoseconds, except those in `few`.
    many: Option<Histogram<u64>>,
    /// The remaining latencies in nanoseconds.
    few: Vec<u64>,
    /// Total time of all operations.
    pub elapsed: Duration,
}

impl Measured {
    pub fn new(elapsed: Duration) -> Self {
        Self { many: None, few: Vec::new(), elapsed }
    }

    pub fn add(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        if self.few.len() == FEW {
            self.settle();
        }
        self.few.push(nanos);
    }

    /// Moves the latencies in `few` into the histogram.
    fn settle(&mut self) {
        let mut many = self.many.take().unwrap_or_else(empty);
        for nanos in self.few.drain(..) {
            many.record(nanos).expect("it grows by itself");
        }
        self.many = Some(many);
    }

    fn histogram(&self) -> Cow<'_, Histogram<u64>> {
        let mut all = match &self.many {
            Some(many) if self.few.is_empty() => return Cow::Borrowed(many),
            Some(many) => many.clone(),
            None => empty(),
        };
        for nanos in &self.few {
            all.record(*nanos).expect("it grows by itself");
        }
        Cow::Owned(all)
    }

    /// Adds the measurements of another caller that ran at the same time.
    pub fn merge(&mut self, other: &Measured) {
        if let Some(many) = &other.many {
            self.settle();
            let all = self.many.as_mut().expect("it was just made");
            all.add(many).expect("it grows by itself");
        }
        for nanos in &other.few {
            self.add(Duration::from_nanos(*nanos));
        }
        self.elapsed = self.elapsed.max(other.elapsed);
    }

    /// Formats the measurements for another process: the time, then each latency with its count.
    pub fn to_words(&self) -> String {
        let mut words = self.elapsed.as_nanos().to_string();
        for bucket in self.histogram().iter_recorded() {
            words += &format!(" {}:{}", bucket.value_iterated_to(), bucket.count_at_value());
        }
        words
    }

    /// Parses the format of [`Measured::to_words`].
    pub fn from_words(words: &str) -> Option<Self> {
        let mut words = words.split_whitespace();
        let mut measured = Self::new(Duration::from_nanos(words.next()?.parse().ok()?));
        measured.settle();
        let all = measured.many.as_mut()?;
        for word in words {
            let (value, count) = word.split_once(':')?;
            all.record_n(value.parse().ok()?, count.parse().ok()?).ok()?;
        }
        Some(measured)
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.many.as_ref().map_or(0, Histogram::len) + self.few.len() as u64
    }

    pub fn rate(&self) -> f64 {
        self.count() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub fn micros(&self, quantile: f64) -> f64 {
        self.histogram().value_at_quantile(quantile) as f64 / 1_000.0
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are few")
}

/// The output format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A table for people.
    Table,
    /// One JSON object on each line.
    Json,
}

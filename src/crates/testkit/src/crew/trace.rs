//! The times at which writes are acknowledged. Traces can be sent between processes as a line of text.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Numbers of acknowledged writes for each millisecond since the Unix epoch.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Trace(BTreeMap<u64, u64>);

impl Trace {
    /// Returns the milliseconds since the Unix epoch, which all processes of a machine share.
    pub fn now_ms() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        u64::try_from(since.as_millis()).expect("not millions of years")
    }

    /// Records a write that was acknowledged now.
    pub fn add_now(&mut self) {
        self.add(Self::now_ms(), 1);
    }

    /// Records writes that were acknowledged in this millisecond.
    pub fn add(&mut self, at_ms: u64, writes: u64) {
        *self.0.entry(at_ms).or_default() += writes;
    }

    /// Adds the writes of another trace.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(at, writes)| self.add(*at, *writes));
    }

    /// Formats the trace for another process.
    pub fn to_words(&self) -> String {
        let words: Vec<_> = self.0.iter().map(|(at, writes)| format!("{at}:{writes}")).collect();
        words.join(" ")
    }

    /// Parses the format of [`Trace::to_words`].
    pub fn from_words(words: &str) -> Option<Self> {
        let mut trace = Self::default();
        for word in words.split_whitespace() {
            let (at, writes) = word.split_once(':')?;
            trace.add(at.parse().ok()?, writes.parse().ok()?);
        }
        Some(trace)
    }

    /// Returns the numbers of writes in `count` intervals of `width_ms` each, starting at `from_ms`.
    pub fn bins(&self, from_ms: u64, width_ms: u64, count: usize) -> Vec<u64> {
        let mut bins = vec![0; count];
        for (at, writes) in self.0.range(from_ms..from_ms + width_ms * count as u64) {
            bins[((at - from_ms) / width_ms) as usize] += writes;
        }
        bins
    }

    /// Returns the longest time without a write that begins within `within_ms` after `from_ms`, in milliseconds. The
    /// last write of the trace ends it.
    pub fn longest_gap_ms(&self, from_ms: u64, within_ms: u64) -> u64 {
        let times: Vec<u64> = self.0.keys().copied().collect();
        let gaps =
            times.windows(2).filter(|pair| pair[1] > from_ms && pair[0] < from_ms + within_ms);
        gaps.map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let mut trace = Trace::default();
        for (at, writes) in [(1_000, 2), (1_009, 1), (1_010, 4), (1_450, 3), (1_455, 1)] {
            trace.add(at, writes);
        }
        trace
    }

    #[test]
    fn words_keep_the_trace() {
        let trace = trace();
        assert_eq!(trace.to_words(), "1000:2 1009:1 1010:4 1450:3 1455:1");
        assert_eq!(Trace::from_words(&trace.to_words()), Some(trace));
        assert_eq!(Trace::from_words("1000:2 x"), None);
    }

    #[test]
    fn bins_count_the_writes_of_their_interval() {
        assert_eq!(trace().bins(1_000, 10, 3), [3, 4, 0]);
        assert_eq!(trace().bins(1_445, 10, 2), [3, 1]);
        let mut twice = trace();
        twice.merge(&trace());
        assert_eq!(twice.bins(1_000, 500, 1), [22]);
    }

    #[test]
    fn gap_is_the_longest_after_the_start() {
        assert_eq!(trace().longest_gap_ms(1_005, 100), 440);
        assert_eq!(trace().longest_gap_ms(1_451, 100), 5);
        assert_eq!(trace().longest_gap_ms(2_000, 100), 0);
    }
}

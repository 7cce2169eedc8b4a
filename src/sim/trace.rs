//! The trace: a running hash over everything that happens in a world, and the last lines of it in
//! words. Two runs of one seed have the same hash, or something in the code is not deterministic.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// How many lines are kept for the report of a failure.
const LINES_KEPT: usize = 400;

/// What happened in a world, as a hash and as its last lines.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    lines: VecDeque<String>,
    /// Lines are only made if somebody will read them: formatting costs more than most events.
    verbose: bool,
}

impl Trace {
    pub(crate) fn new(verbose: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, events: 0, lines: VecDeque::new(), verbose }
    }

    /// Takes an event into the hash: when, what, and bytes that tell it from others of its kind.
    pub(crate) fn event(&mut self, at: Duration, kind: u8, numbers: &[u64], bytes: &[u8]) {
        self.events += 1;
        self.mix(at.as_nanos() as u64);
        self.mix(u64::from(kind));
        for &number in numbers {
            self.mix(number);
        }
        if !bytes.is_empty() {
            self.mix(u64::from(crc32fast::hash(bytes)));
        }
    }

    /// A line for the reader of a failure. `line` is called only if lines are wanted.
    pub(crate) fn line(&mut self, at: Duration, line: impl FnOnce() -> String) {
        if !self.verbose {
            return;
        }
        if self.lines.len() == LINES_KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{:>10.6} {}", at.as_secs_f64(), line()));
    }

    /// The hash so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events were taken in.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    fn mix(&mut self, number: u64) {
        // A multiply and a rotation a number: enough to tell two runs apart.
        self.hash = (self.hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_hash_depends_on_event_time_and_order() {
        let run = |events: &[(u64, u8, u64)]| {
            let mut trace = Trace::new(false);
            for &(at, kind, number) in events {
                trace.event(Duration::from_nanos(at), kind, &[number], b"x");
            }
            trace.hash()
        };
        let base = run(&[(1, 1, 1), (2, 2, 2)]);
        assert_eq!(base, run(&[(1, 1, 1), (2, 2, 2)]));
        for other in [[(1, 1, 1), (2, 2, 3)], [(1, 1, 1), (3, 2, 2)], [(2, 2, 2), (1, 1, 1)]] {
            assert_ne!(base, run(&other));
        }
    }
}

//! The trace of a world: a running hash of all events, and the last ones as text. Two runs of one seed have the same
//! hash unless some code is not deterministic.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// Number of lines that are kept for the report of a failure.
const LINES_KEPT: usize = 400;

/// A hash of all events, and the last lines.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    lines: TraceLines,
}

/// The last lines of a trace. All clones share them.
#[derive(Clone, Debug)]
pub(crate) struct TraceLines {
    kept: Rc<RefCell<VecDeque<String>>>,
    /// Whether lines are formatted. Formatting costs more than most events.
    verbose: bool,
}

impl Trace {
    pub(crate) fn new(verbose: bool) -> Self {
        let lines = TraceLines { kept: Rc::default(), verbose };
        Self { hash: 0xcbf2_9ce4_8422_2325, events: 0, lines }
    }

    /// Adds an event to the hash: its time, its kind, and data that distinguishes it from others of that kind.
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

    /// Adds a line for the report of a failure. `line` is called only if lines are kept.
    pub(crate) fn line(&self, at: Duration, line: impl FnOnce() -> String) {
        self.lines.add(at, line);
    }

    /// Returns a handle with which programs can add lines.
    pub(crate) fn lines(&self) -> TraceLines {
        self.lines.clone()
    }

    /// Returns the hash so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    fn mix(&mut self, number: u64) {
        // A multiplication and a rotation per number are enough to distinguish two runs.
        self.hash = (self.hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

impl TraceLines {
    /// Adds a line. `line` is called only if lines are kept.
    pub(crate) fn add(&self, at: Duration, line: impl FnOnce() -> String) {
        if !self.verbose {
            return;
        }
        let line = format!("{:>10.6} {}", at.as_secs_f64(), line());
        let mut kept = self.kept.borrow_mut();
        if kept.len() == LINES_KEPT {
            kept.pop_front();
        }
        kept.push_back(line);
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.lines.kept.borrow().iter() {
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

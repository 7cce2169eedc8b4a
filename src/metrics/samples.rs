//! Visits all values of a snapshot in a fixed order. Every output format uses this module.

use std::fmt;

use super::Label;
use super::snapshot::{Histogram, PeerLag, PeerLink, PeerQueue};

/// A receiver of all metrics with their samples, in the order of the table.
pub(super) trait Sink {
    /// Begins a metric. `kind` is `counter`, `gauge` or `histogram`.
    fn head(&mut self, name: &'static str, help: &'static str, kind: &'static str);

    /// Receives a sample of the metric. `suffix` is `_bucket`, `_sum` or `_count` for a histogram,
    /// and otherwise empty.
    fn sample(&mut self, suffix: &'static str, labels: &Labels, value: Number);
}

/// The value of a sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Number {
    Whole(u64),
    Real(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(number) => number.fmt(f),
            Number::Real(number) => number.fmt(f),
        }
    }
}

/// The labels of a sample.
#[derive(Clone)]
pub(super) struct Labels(Vec<(&'static str, String)>);

impl Labels {
    pub(super) fn new(name: &'static str, value: &str) -> Self {
        Self(vec![(name, value.to_owned())])
    }

    fn and(&self, name: &'static str, value: &str) -> Self {
        let mut all = self.clone();
        all.0.push((name, value.to_owned()));
        all
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

/// A value that can be written as samples.
pub(super) trait Show {
    fn show(&self, sink: &mut impl Sink, labels: &Labels);
}

impl Show for u64 {
    fn show(&self, sink: &mut impl Sink, labels: &Labels) {
        sink.sample("", labels, Number::Whole(*self));
    }
}

impl Show for Histogram {
    /// Writes the buckets up to the first one that includes all values: the later ones would repeat
    /// the count of the infinite bucket.
    fn show(&self, sink: &mut impl Sink, labels: &Labels) {
        let count = self.count();
        for (bound, below) in self.cumulative() {
            if bound.is_finite() {
                sink.sample("_bucket", &labels.and("le", &bound.to_string()), Number::Whole(below));
            }
            if below == count {
                break;
            }
        }
        sink.sample("_bucket", &labels.and("le", "+Inf"), Number::Whole(count));
        sink.sample("_sum", labels, Number::Real(self.sum()));
        sink.sample("_count", labels, Number::Whole(count));
    }
}

impl<L: Label, V: Show> Show for Vec<(L, V)> {
    fn show(&self, sink: &mut impl Sink, labels: &Labels) {
        for (label, value) in self {
            value.show(sink, &labels.and(L::NAME, label.text()));
        }
    }
}

impl Show for Vec<PeerLag> {
    fn show(&self, sink: &mut impl Sink, labels: &Labels) {
        for lag in self {
            sink.sample("", &labels.and("peer", &lag.peer), Number::Whole(lag.entries));
        }
    }
}

impl Show for Vec<PeerQueue> {
    fn show(&self, sink: &mut impl Sink, labels: &Labels) {
        for queue in self {
            sink.sample("", &labels.and("peer", &queue.peer), Number::Whole(queue.bytes));
        }
    }
}

impl Show for Vec<PeerLink> {
    fn show(&self, sink: &mut impl Sink, labels: &Labels) {
        for link in self {
            sink.sample("", &labels.and("peer", &link.peer), Number::Whole(link.connected.into()));
        }
    }
}

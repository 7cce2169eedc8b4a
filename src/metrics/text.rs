//! A writer for the Prometheus text format, version 0.0.4.

use std::fmt::Write;

use super::Label;
use super::snapshot::{Histogram, PeerLag, PeerLink, PeerQueue};

/// A text under construction.
#[derive(Default)]
pub(super) struct Text {
    out: String,
    /// Name of the metric whose samples follow.
    name: &'static str,
}

/// The rendered labels, without the braces.
#[derive(Clone)]
pub(super) struct Labels(String);

impl Labels {
    pub(super) fn new(name: &str, value: &str) -> Self {
        Self(format!("{name}=\"{}\"", escaped(value)))
    }

    fn and(&self, name: &str, value: &str) -> Self {
        Self(format!("{},{name}=\"{}\"", self.0, escaped(value)))
    }
}

/// Escapes backslashes, quotes and newlines, which would end the value.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Text {
    /// Writes the `HELP` and `TYPE` lines of a metric.
    pub(super) fn head(&mut self, name: &'static str, help: &str, kind: &str) {
        self.name = name;
        let help = help.trim();
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, suffix: &str, labels: &Labels, value: impl std::fmt::Display) {
        let name = self.name;
        self.line(format_args!("{name}{suffix}{{{}}} {value}", labels.0));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.out.write_fmt(line).expect("a string takes everything");
        self.out.push('\n');
    }

    pub(super) fn finish(self) -> String {
        self.out
    }
}

/// A value that can be written as samples.
pub(super) trait Show {
    fn show(&self, text: &mut Text, labels: &Labels);
}

impl Show for u64 {
    fn show(&self, text: &mut Text, labels: &Labels) {
        text.sample("", labels, self);
    }
}

impl Show for Histogram {
    /// Writes the buckets up to the first one that includes all values: the later ones would repeat
    /// the count of the infinite bucket.
    fn show(&self, text: &mut Text, labels: &Labels) {
        let count = self.count();
        for (bound, below) in self.cumulative() {
            if bound.is_finite() {
                text.sample("_bucket", &labels.and("le", &bound.to_string()), below);
            }
            if below == count {
                break;
            }
        }
        text.sample("_bucket", &labels.and("le", "+Inf"), count);
        text.sample("_sum", labels, self.sum());
        text.sample("_count", labels, count);
    }
}

impl<L: Label, V: Show> Show for Vec<(L, V)> {
    fn show(&self, text: &mut Text, labels: &Labels) {
        for (label, value) in self {
            value.show(text, &labels.and(L::NAME, label.text()));
        }
    }
}

impl Show for Vec<PeerLag> {
    fn show(&self, text: &mut Text, labels: &Labels) {
        for lag in self {
            text.sample("", &labels.and("peer", &lag.peer), lag.entries);
        }
    }
}

impl Show for Vec<PeerQueue> {
    fn show(&self, text: &mut Text, labels: &Labels) {
        for queue in self {
            text.sample("", &labels.and("peer", &queue.peer), queue.bytes);
        }
    }
}

impl Show for Vec<PeerLink> {
    fn show(&self, text: &mut Text, labels: &Labels) {
        for link in self {
            text.sample("", &labels.and("peer", &link.peer), u8::from(link.connected));
        }
    }
}

//! A writer for the Prometheus text format, version 0.0.4.

use std::fmt::{self, Write};

use super::samples::{Labels, Number, Sink};

/// A text under construction.
#[derive(Default)]
pub(super) struct Text {
    out: String,
    /// Name of the metric whose samples follow.
    name: &'static str,
}

/// Escapes backslashes, quotes and newlines, which would end the value.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Sink for Text {
    fn head(&mut self, name: &'static str, help: &'static str, kind: &'static str) {
        self.name = name;
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, suffix: &'static str, labels: &Labels, value: Number) {
        let name = self.name;
        self.line(format_args!("{name}{suffix}{{{}}} {value}", Rendered(labels)));
    }
}

/// Labels without the braces.
struct Rendered<'a>(&'a Labels);

impl fmt::Display for Rendered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, value)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{name}=\"{}\"", escaped(value))?;
        }
        Ok(())
    }
}

impl Text {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.out.write_fmt(line).expect("a string takes everything");
        self.out.push('\n');
    }

    pub(super) fn finish(self) -> String {
        self.out
    }
}

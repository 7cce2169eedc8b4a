//! Two plots of a run as SVG: the latency of each operation, and the number of operations per second. Faults are
//! shown in the background.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bowline_check::page::escaped;

use crate::ledger::{End, Entry};
use crate::progress::Window;

const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 24.0;
/// Maximum number of points. More points would make the page slow without showing more.
const POINTS_MAX: usize = 6000;
const MICROS: f64 = 1e6;

fn color(end: End) -> &'static str {
    match end {
        End::Ok => "#2b6cb0",
        End::Failed => "#dd8800",
        End::Unknown => "#c53030",
    }
}

/// The frame of a plot from 0 to `seconds`, with the faults.
struct Frame {
    svg: String,
    seconds: f64,
}

impl Frame {
    fn new(seconds: f64, windows: &[Window]) -> Self {
        let svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n");
        let mut frame = Self { svg, seconds: seconds.max(1.0) };
        for Window { begin, end, what, .. } in windows {
            let (from, to) = (frame.x(*begin as f64 / MICROS), frame.x(*end as f64 / MICROS));
            let (width, height) = (to - from, HEIGHT - BOTTOM);
            let what = escaped(what);
            frame.say(&format!(
                "<rect x=\"{from:.1}\" y=\"0\" width=\"{width:.1}\" height=\"{height}\" class=\"fault\">\
                 <title>{what}</title></rect>"
            ));
        }
        let step = if frame.seconds > 90.0 { 20 } else { 5 };
        for second in (0..).step_by(step).take_while(|second| f64::from(*second) <= seconds) {
            let (x, y) = (frame.x(f64::from(second)), HEIGHT - 8.0);
            frame.say(&format!("<text x=\"{x:.1}\" y=\"{y}\" class=\"x\">{second} s</text>"));
        }
        frame
    }

    fn x(&self, second: f64) -> f64 {
        LEFT + second / self.seconds * (WIDTH - LEFT)
    }

    fn say(&mut self, what: &str) {
        self.svg.push_str(what);
        self.svg.push('\n');
    }

    fn level(&mut self, y: f64, label: &str) {
        self.say(&format!(
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{WIDTH}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" class=\"y\">{label}</text>",
            LEFT - 6.0,
            y + 4.0
        ));
    }

    fn done(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

/// Plots the start and the latency (logarithmic) of each operation.
pub(super) fn latencies(entries: &[Entry], windows: &[Window], seconds: f64) -> String {
    const DECADES: f64 = 5.0;
    let mut frame = Frame::new(seconds, windows);
    // The axis ranges from a tenth of a millisecond to ten seconds.
    let y = |millis: f64| {
        let decade = (millis.max(0.1).log10() + 1.0).min(DECADES);
        (HEIGHT - BOTTOM) * (1.0 - decade / DECADES)
    };
    for (millis, label) in
        [(0.1, "0.1 ms"), (1.0, "1 ms"), (10.0, "10 ms"), (100.0, "0.1 s"), (1000.0, "1 s")]
    {
        frame.level(y(millis), label);
    }
    // Failures are rarer and more important, so all of them are drawn.
    let step = entries.len().div_ceil(POINTS_MAX).max(1);
    for end in [End::Ok, End::Failed, End::Unknown] {
        let mut dots = String::new();
        for (_, entry) in entries
            .iter()
            .enumerate()
            .filter(|(at, entry)| entry.end == end && (end != End::Ok || at.is_multiple_of(step)))
        {
            let (x, y) = (
                frame.x(entry.invoked as f64 / MICROS),
                y(entry.ended.saturating_sub(entry.invoked) as f64 / 1000.0),
            );
            write!(dots, "M{x:.1} {y:.1}h2").expect("a String takes everything");
        }
        let color = color(end);
        frame.say(&format!("<path d=\"{dots}\" stroke=\"{color}\" stroke-width=\"2\"/>"));
    }
    frame.done()
}

/// Plots the number of operations per second for each outcome.
pub(super) fn rates(entries: &[Entry], windows: &[Window], seconds: f64) -> String {
    let mut frame = Frame::new(seconds, windows);
    let mut rates: BTreeMap<End, BTreeMap<u64, u64>> = BTreeMap::new();
    for entry in entries {
        let second = entry.ended / 1_000_000;
        *rates.entry(entry.end).or_default().entry(second).or_default() += 1;
    }
    let most = rates.values().flat_map(BTreeMap::values).max().copied().unwrap_or(1).max(1);
    let y = |rate: u64| (HEIGHT - BOTTOM) * (1.0 - rate as f64 / most as f64 * 0.95);
    frame.level(y(0), "0/s");
    frame.level(y(most), &format!("{most}/s"));
    for (end, rates) in rates {
        let mut path = String::new();
        for second in 0..=(seconds as u64) {
            let (x, y) =
                (frame.x(second as f64 + 0.5), y(rates.get(&second).copied().unwrap_or(0)));
            let word = if path.is_empty() { 'M' } else { 'L' };
            write!(path, "{word}{x:.1} {y:.1}").expect("a String takes everything");
        }
        let color = color(end);
        frame.say(&format!("<path d=\"{path}\" stroke=\"{color}\" stroke-width=\"1.5\"/>"));
    }
    frame.done()
}

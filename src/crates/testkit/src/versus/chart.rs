//! Charts as SVG, without scripts. Colours come from classes, which the page defines for its light and its dark mode.

use std::fmt::Write;

use super::failover;
use super::format::{headline, micros, number};
use super::report::{Headline, Kills, RowReport, Timeline};
use super::systems::System;

/// A picture.
struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// The side of a text on which its position is.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let line = format!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        );
        self.body += &line;
    }

    fn bar(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), rounded: f64) {
        let bar = format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"{rounded}\"/>\n"
        );
        self.body += &bar;
    }

    fn dot(&mut self, class: &str, (x, y): (f64, f64), radius: f64, title: &str) {
        let title = escape(title);
        let dot = format!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"><title>{title}</title></circle>\n"
        );
        self.body += &dot;
    }

    fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let mut path = String::new();
        for (at, (x, y)) in points.iter().enumerate() {
            let command = if at == 0 { 'M' } else { 'L' };
            write!(path, "{command}{x:.1} {y:.1}").expect("a string");
        }
        self.body += &format!("<path class=\"{class}\" d=\"{path}\"/>\n");
    }

    fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.body += &format!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"
        );
    }

    fn finish(self, label: &str) -> String {
        let Self { width, height, body } = self;
        let label = escape(label);
        format!(
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{label}\">\n{body}</svg>\n"
        )
    }
}

/// Escapes a text for HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A scale from values to positions, linear or logarithmic.
#[derive(Clone, Copy)]
struct Scale {
    from: f64,
    to: f64,
    low: f64,
    high: f64,
    is_log: bool,
}

impl Scale {
    fn linear((from, to): (f64, f64), (low, high): (f64, f64)) -> Self {
        Self { from, to, low, high, is_log: false }
    }

    /// Returns a logarithmic scale with a margin of a tenth on both sides.
    fn log((from, to): (f64, f64), (low, high): (f64, f64)) -> Self {
        let (from, to) = (from.max(1e-3) * 0.9, to.max(2e-3) * 1.1);
        Self { from, to, low, high, is_log: true }
    }

    fn at(&self, value: f64) -> f64 {
        let part = match self.is_log {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from).max(1e-9),
        };
        self.low + part * (self.high - self.low)
    }

    /// Returns the values of grid lines: powers of ten on a logarithmic scale, with 2 and 5 between them if there are
    /// few; otherwise about four round numbers.
    fn ticks(&self) -> Vec<f64> {
        let inside = |value: &f64| (self.from..=self.to).contains(value);
        if self.is_log {
            let steps: &[f64] = if self.to / self.from > 150.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let powers = (-3..10).map(|power| 10f64.powi(power));
            return powers
                .flat_map(|power| steps.iter().map(move |step| power * step))
                .filter(inside)
                .collect();
        }
        let rough = (self.to - self.from).max(1e-9) / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .map(|step| step * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let first = (self.from / step).ceil() as i64;
        (first..).map(|at| at as f64 * step).take_while(|value| *value <= self.to).collect()
    }
}

/// Returns the class of a system's colour.
fn class(kind: &str, system: System) -> String {
    format!("{kind} {}", system.word())
}

/// Draws the figures of a row: a bar for each system, and the range from minimum to maximum.
pub(super) fn bars(row: &RowReport) -> String {
    const ROW: f64 = 30.0;
    let mut svg = Svg::new(420.0, row.results.len() as f64 * ROW + 4.0);
    let most = row.results.iter().map(|result| result.headline(row.headline).max);
    let scale = Scale::linear((0.0, most.fold(0.0, f64::max)), (130.0, 336.0));
    for (at, result) in row.results.iter().enumerate() {
        let (figure, middle) = (result.headline(row.headline), at as f64 * ROW + ROW / 2.0 + 2.0);
        let end = scale.at(figure.median);
        svg.text("name", (122.0, middle + 4.0), Anchor::End, result.system.name());
        let size = (end - scale.low, 16.0);
        svg.bar(&class("bar", result.system), (scale.low, middle - 8.0), size, 2.0);
        svg.line("range", (scale.at(figure.min), middle), (scale.at(figure.max), middle));
        for edge in [figure.min, figure.max] {
            let x = scale.at(edge);
            svg.line("range", (x, middle - 4.0), (x, middle + 4.0));
        }
        let after = end.max(scale.at(figure.max)) + 8.0;
        let text = headline(row.headline, figure.median);
        svg.text("value", (after, middle + 4.0), Anchor::Start, &text);
    }
    svg.finish(&row.name)
}

/// Draws the latency distributions of a row: the share of calls that are answered within a time.
pub(super) fn distribution(row: &RowReport) -> String {
    let mut svg = Svg::new(420.0, 230.0);
    let all = || row.results.iter().flat_map(|result| &result.quantiles_us).map(|(_, us)| *us);
    let range = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    let x = Scale::log(range, (46.0, 394.0));
    let y = Scale::linear((0.0, 1.0), (196.0, 12.0));
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        svg.line("grid", (x.low, y.at(share)), (x.high, y.at(share)));
        let text = format!("{:.0} %", share * 100.0);
        svg.text("tick", (x.low - 6.0, y.at(share) + 4.0), Anchor::End, &text);
    }
    for tick in x.ticks() {
        svg.line("grid", (x.at(tick), y.low), (x.at(tick), y.high));
        svg.text("tick", (x.at(tick), y.low + 16.0), Anchor::Middle, &short_micros(tick));
    }
    for result in &row.results {
        let points: Vec<_> =
            result.quantiles_us.iter().map(|(share, us)| (x.at(*us), y.at(*share))).collect();
        svg.path(&class("curve", result.system), &points);
    }
    let middle = f64::midpoint(x.low, x.high);
    svg.text("tick", (middle, 228.0), Anchor::Middle, "latency (logarithmic)");
    svg.finish(&format!("{}: latency distribution", row.name))
}

/// Formats a round number of microseconds.
fn short_micros(value: f64) -> String {
    match value {
        under if under < 1_000.0 => format!("{under} µs"),
        under if under < 1_000_000.0 => format!("{} ms", under / 1e3),
        _ => format!("{} s", value / 1e6),
    }
}

/// Draws the rate over the median latency, with a point for each row. The rows are the same work with an increasing
/// number of callers.
pub(super) fn rate_over_latency(rows: &[&RowReport]) -> String {
    let mut svg = Svg::new(860.0, 380.0);
    // A system without a reply has no latency.
    let all = || rows.iter().flat_map(|row| &row.results).filter(|result| result.rate.median > 0.0);
    let least = all().map(|result| result.median_us.median).fold(f64::MAX, f64::min);
    let most = all().map(|result| result.median_us.median).fold(0.0, f64::max);
    let x = Scale::log((least * 0.9, most * 1.15), (64.0, 824.0));
    let fastest = all().map(|result| result.rate.median).fold(0.0, f64::max);
    let y = Scale::linear((0.0, fastest * 1.1), (336.0, 12.0));
    for tick in y.ticks() {
        svg.line("grid", (x.low, y.at(tick)), (x.high, y.at(tick)));
        let text = number(tick).trim_end_matches(".00").to_owned();
        svg.text("tick", (x.low - 6.0, y.at(tick) + 4.0), Anchor::End, &text);
    }
    for tick in x.ticks() {
        svg.line("grid", (x.at(tick), y.low), (x.at(tick), y.high));
        svg.text("tick", (x.at(tick), y.low + 18.0), Anchor::Middle, &short_micros(tick));
    }
    for system in System::ALL {
        let points: Vec<_> = rows
            .iter()
            .filter_map(|row| {
                let result = row.of(system).filter(|result| result.rate.median > 0.0)?;
                let (us, rate) = (result.median_us.median, result.rate.median);
                let title =
                    format!("{}, {}: {}/s, {}", system.name(), row.name, number(rate), micros(us));
                Some(((x.at(us), y.at(rate)), row.callers, title))
            })
            .collect();
        let line: Vec<_> = points.iter().map(|(point, ..)| *point).collect();
        if !line.is_empty() {
            svg.path(&class("curve", system), &line);
        }
        for (point, callers, title) in points {
            svg.dot(&class("dot", system), point, 4.0, &title);
            let above = (point.0, point.1 - 9.0);
            svg.text("count", above, Anchor::Middle, &callers.to_string());
        }
    }
    let middle = f64::midpoint(x.low, x.high);
    svg.text("tick", (middle, 374.0), Anchor::Middle, "median latency (logarithmic)");
    svg.finish("puts a second over median latency")
}

/// Draws a dot for each kill, at the time until the next acknowledged write, and a line at the median.
pub(super) fn kills(all: &[Kills]) -> String {
    const ROW: f64 = 44.0;
    let bottom = all.len() as f64 * ROW + 6.0;
    let mut svg = Svg::new(860.0, bottom + 40.0);
    let times = || all.iter().flat_map(|kills| &kills.times_ms).copied();
    let range = (times().fold(f64::MAX, f64::min), times().fold(0.0, f64::max));
    let x = Scale::log((range.0 * 0.8, range.1 * 1.1), (130.0, 760.0));
    for tick in x.ticks() {
        svg.line("grid", (x.at(tick), 4.0), (x.at(tick), bottom));
        svg.text("tick", (x.at(tick), bottom + 16.0), Anchor::Middle, &short_micros(tick * 1e3));
    }
    for (at, kills) in all.iter().enumerate() {
        let middle = at as f64 * ROW + ROW / 2.0;
        svg.text("name", (118.0, middle + 4.0), Anchor::End, kills.system.name());
        for time in &kills.times_ms {
            let title = format!("{} ms", number(*time));
            svg.dot(&class("kill", kills.system), (x.at(*time), middle), 5.0, &title);
        }
        let median = x.at(kills.spread_ms.median);
        svg.line("median", (median, middle - 12.0), (median, middle + 12.0));
        let text = format!("{} ms", number(kills.spread_ms.median));
        svg.text("value", (772.0, middle + 4.0), Anchor::Start, &text);
    }
    let text = "time to the next acknowledged write (logarithmic)";
    svg.text("tick", (f64::midpoint(x.low, x.high), bottom + 36.0), Anchor::Middle, text);
    svg.finish(failover::NAME)
}

/// Draws the acknowledged writes around a kill, with a bar for each interval.
pub(super) fn timeline(timeline: &Timeline) -> String {
    let mut svg = Svg::new(860.0, 150.0);
    let width = timeline.bin_ms as f64;
    let from = timeline.from_ms as f64;
    let to = from + width * timeline.writes.len() as f64;
    let x = Scale::linear((from, to), (64.0, 824.0));
    let most = timeline.writes.iter().max().copied().unwrap_or(0).max(1) as f64;
    let y = Scale::linear((0.0, most), (114.0, 22.0));
    for tick in y.ticks() {
        svg.line("grid", (x.low, y.at(tick)), (x.high, y.at(tick)));
        let text = number(tick).trim_end_matches(".00").trim_end_matches(".0").to_owned();
        svg.text("tick", (x.low - 6.0, y.at(tick) + 4.0), Anchor::End, &text);
    }
    let mut tick = (from as i64).div_euclid(500) * 500;
    while tick as f64 <= to {
        if tick as f64 >= from {
            let text = format!("{tick} ms");
            svg.text("tick", (x.at(tick as f64), y.low + 16.0), Anchor::Middle, &text);
        }
        tick += 500;
    }
    for (at, writes) in timeline.writes.iter().enumerate().filter(|(_, writes)| **writes > 0) {
        let left = x.at(from + at as f64 * width);
        let (top, step) = (y.at(*writes as f64), x.at(from + width) - x.low);
        svg.bar(&class("bar", timeline.system), (left, top), (step - 0.4, y.low - top), 0.0);
    }
    svg.line("killed", (x.at(0.0), 8.0), (x.at(0.0), y.low));
    svg.text("value", (x.at(0.0) - 6.0, 16.0), Anchor::End, "leader killed");
    let after = format!("no write for {} ms", timeline.gap_ms);
    svg.text("value", (x.at(0.0) + 6.0, 16.0), Anchor::Start, &after);
    let middle = f64::midpoint(x.low, x.high);
    let text =
        format!("acknowledged writes per {} ms, {} writers", timeline.bin_ms, timeline.callers);
    svg.text("tick", (middle, 148.0), Anchor::Middle, &text);
    svg.finish(&format!("{}: writes around the kill of the leader", timeline.system.name()))
}

/// Returns what is better in a row, for its caption.
pub(super) fn better(headline: Headline) -> &'static str {
    match headline {
        Headline::Rate => "operations a second, more is better",
        Headline::Latency => "median latency, less is better",
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;

    #[test]
    fn scales_map_and_choose_round_ticks() {
        let linear = Scale::linear((0.0, 42_000.0), (0.0, 420.0));
        assert_eq!(linear.at(21_000.0), 210.0);
        assert_eq!(linear.ticks(), [0.0, 20_000.0, 40_000.0]);
        let log = Scale::log((100.0, 10_000.0), (0.0, 100.0));
        assert!((log.at(1_000.0) - 50.0).abs() < 1.0, "{}", log.at(1_000.0));
        assert_eq!(log.ticks(), [100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0]);
        assert_eq!(Scale::log((1.0, 1_000.0), (0.0, 1.0)).ticks(), [1.0, 10.0, 100.0, 1_000.0]);
    }

    #[test]
    fn empty_results_are_drawn() {
        for svg in [rate_over_latency(&[]), kills(&[])] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn charts_are_well_formed_and_inside_their_picture() {
        let report = example();
        let rows: Vec<_> = report.rows.iter().collect();
        let charts = [
            bars(&report.rows[0]),
            distribution(&report.rows[1]),
            rate_over_latency(&rows),
            kills(&report.kills),
            timeline(&report.timelines[0]),
        ];
        for svg in charts {
            let size = svg.split('"').nth(1).unwrap();
            let size: Vec<f64> = size.split(' ').map(|number| number.parse().unwrap()).collect();
            let numbers = |name: &str| -> Vec<f64> {
                let name = format!(" {name}=\"");
                let all = svg.split(&name).skip(1);
                all.map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
            };
            let x = ["x", "x1", "x2", "cx"].map(numbers).concat();
            let y = ["y", "y1", "y2", "cy"].map(numbers).concat();
            assert!(x.len() > 5, "{svg}");
            assert!(x.iter().all(|x| (0.0..=size[2]).contains(x)), "{svg}");
            assert!(y.iter().all(|y| (0.0..=size[3]).contains(y)), "{svg}");
        }
    }
}

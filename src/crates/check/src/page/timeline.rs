//! Draws the timeline: a lane for each process, a bar for each operation, an arrow for each link.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::text::{escaped, shortened};
use crate::history::{At, Index, Process};
use crate::verdict::Link;

/// One operation.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) index: Index,
    pub(super) process: Process,
    pub(super) invoked: At,
    pub(super) ended: Option<At>,
    /// `ok`, `failed` or `unknown`.
    pub(super) outcome: &'static str,
    pub(super) label: String,
    pub(super) mark: Mark,
    /// Position in the longest order that was found, from 1.
    pub(super) place: Option<usize>,
}

/// The highlighting of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    None,
    /// The operation belongs to the reason.
    Bad,
    /// The operation belongs to the reason and cannot be next.
    Stuck,
}

/// The layout of all bars, in pixels.
#[derive(Debug)]
pub(super) struct PageTimeline {
    bars: Vec<PlacedBar>,
    lanes: Vec<(Process, usize)>,
    moments: Vec<(usize, At)>,
    width: usize,
    height: usize,
}

#[derive(Debug)]
struct PlacedBar {
    bar: Bar,
    x: usize,
    y: usize,
    width: usize,
    /// Whether the bar is open at its right end.
    is_open: bool,
}

const NAMES_WIDTH: usize = 92;
const MOMENT_WIDTH: usize = 46;
const LANE_HEIGHT: usize = 34;
const BAR_HEIGHT: usize = 24;
const AXIS_HEIGHT: usize = 28;
const MARGIN: usize = 24;
/// Approximate width of a letter in a label.
const LETTER_WIDTH: usize = 7;

impl PageTimeline {
    /// Lays out bars, which must be sorted by the time of their calls.
    pub(super) fn of(bars: Vec<Bar>) -> Self {
        let ends = bars.iter().filter_map(|bar| bar.ended);
        let all: BTreeSet<At> = bars.iter().map(|bar| bar.invoked).chain(ends).collect();
        let moments: Vec<At> = all.into_iter().collect();
        let x_of = |at: At| {
            let moment = moments.binary_search(&at).expect("each moment has its place");
            NAMES_WIDTH + moment * MOMENT_WIDTH
        };
        let right = NAMES_WIDTH + moments.len() * MOMENT_WIDTH;
        // Concurrent operations of one process, and those without an end, get separate rows in its lane.
        let mut rows: BTreeMap<Process, Vec<usize>> = BTreeMap::new();
        let mut placed: Vec<(Bar, usize, usize, usize)> = Vec::new();
        for bar in bars {
            let x = x_of(bar.invoked);
            let is_open = bar.outcome == "unknown";
            let end = match bar.ended {
                Some(ended) if !is_open => x_of(ended).max(x + MOMENT_WIDTH / 2),
                _ if is_open => right,
                _ => x + MOMENT_WIDTH / 2,
            };
            let rows = rows.entry(bar.process).or_default();
            let row = rows.iter().position(|until| *until <= x).unwrap_or_else(|| {
                rows.push(0);
                rows.len() - 1
            });
            rows[row] = end;
            placed.push((bar, x, end, row));
        }
        let mut tops: BTreeMap<Process, usize> = BTreeMap::new();
        let mut lanes = Vec::new();
        let mut y = AXIS_HEIGHT;
        for (process, rows) in &rows {
            tops.insert(*process, y);
            lanes.push((*process, y));
            y += rows.len() * LANE_HEIGHT;
        }
        let bars = placed.into_iter().map(|(bar, x, end, row)| PlacedBar {
            x,
            y: tops[&bar.process] + row * LANE_HEIGHT + (LANE_HEIGHT - BAR_HEIGHT) / 2,
            width: end - x,
            is_open: bar.outcome == "unknown",
            bar,
        });
        let bars = bars.collect();
        let moments = moments.iter().map(|at| (x_of(*at), *at)).collect();
        Self { bars, lanes, moments, width: right + MARGIN, height: y + MARGIN }
    }

    pub(super) fn write(&self, html: &mut String, links: &[Link]) -> std::fmt::Result {
        let Self { width, height, .. } = self;
        writeln!(html, "<div class=\"scroll\" tabindex=\"0\">")?;
        writeln!(
            html,
            "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"operations by process and time\">"
        )?;
        writeln!(html, "{}", include_str!("marks.svg").trim_end())?;
        self.axis(html)?;
        for (process, y) in &self.lanes {
            writeln!(html, "<line class=\"lane\" x1=\"0\" y1=\"{y}\" x2=\"{width}\" y2=\"{y}\"/>")?;
            let y = y + LANE_HEIGHT / 2 + 4;
            writeln!(html, "<text class=\"name\" x=\"4\" y=\"{y}\">process {}</text>", process.0)?;
        }
        self.bars.iter().try_for_each(|placed| placed.write(html))?;
        links.iter().enumerate().try_for_each(|(number, link)| self.arrow(html, number, link))?;
        writeln!(html, "</svg></div>")
    }

    fn axis(&self, html: &mut String) -> std::fmt::Result {
        let digits = self.moments.last().map_or(1, |(_, at)| at.0.to_string().len());
        let every = (digits * LETTER_WIDTH + LETTER_WIDTH).div_ceil(MOMENT_WIDTH);
        let bottom = self.height - MARGIN;
        for (x, at) in self.moments.iter().step_by(every) {
            writeln!(
                html,
                "<line class=\"tick\" x1=\"{x}\" y1=\"20\" x2=\"{x}\" y2=\"{bottom}\"/>"
            )?;
            writeln!(html, "<text class=\"at\" x=\"{x}\" y=\"14\">{}</text>", at.0)?;
        }
        Ok(())
    }

    /// Draws an arrow between the middles of two bars. It is bent so that opposite arrows can be told apart.
    fn arrow(&self, html: &mut String, number: usize, link: &Link) -> std::fmt::Result {
        let middle = |index: Index| {
            let placed = self.bars.iter().find(|placed| placed.bar.index == index)?;
            // The end of an open bar does not show when the operation took effect, so the arrow starts near the call.
            let width = placed.width.min(2 * MOMENT_WIDTH);
            Some((placed.x + width / 2, placed.y + BAR_HEIGHT / 2))
        };
        let (Some((x1, y1)), Some((x2, y2))) = (middle(link.before), middle(link.after)) else {
            return Ok(());
        };
        let down = y2 > y1 || (y2 == y1 && number.is_multiple_of(2));
        let (y1, y2) = match (y1 == y2, down) {
            (true, true) => (y1 + BAR_HEIGHT / 2, y2 + BAR_HEIGHT / 2),
            (true, false) => (y1 - BAR_HEIGHT / 2, y2 - BAR_HEIGHT / 2),
            (false, true) => (y1 + BAR_HEIGHT / 2, y2 - BAR_HEIGHT / 2),
            (false, false) => (y1 - BAR_HEIGHT / 2, y2 + BAR_HEIGHT / 2),
        };
        let bend = if down { LANE_HEIGHT as i64 } else { -(LANE_HEIGHT as i64) };
        let side = if down { 18 } else { -18 };
        let (cx, cy) = ((x1 + x2) as i64 / 2 + side, (y1 + y2) as i64 / 2);
        let cy = if y1 == y2 { cy + bend } else { cy };
        writeln!(
            html,
            "<path class=\"link\" d=\"M{x1} {y1} Q{cx} {cy} {x2} {y2}\"><title>#{} before #{}: {}</title></path>",
            link.before,
            link.after,
            escaped(&link.why)
        )
    }
}

impl PlacedBar {
    fn write(&self, html: &mut String) -> std::fmt::Result {
        let Self { bar, x, y, width, is_open } = self;
        let mark = match bar.mark {
            Mark::None => "",
            Mark::Bad => " bad",
            Mark::Stuck => " bad stuck",
        };
        let open = if *is_open { " open" } else { "" };
        let index = bar.index;
        let from = bar.invoked.0;
        let until = bar.ended.map_or_else(|| "?".to_owned(), |at| at.0.to_string());
        let label = escaped(&bar.label);
        writeln!(
            html,
            "<a href=\"#o{index}\" class=\"bar {}{mark}{open}\"><title>#{index} process {}, {from} to {until}, {}: \
             {label}</title>",
            bar.outcome, bar.process.0, bar.outcome
        )?;
        let sides = match is_open {
            true => format!("M{} {y}H{x}V{}H{}", x + width, y + BAR_HEIGHT, x + width),
            false => format!("M{x} {y}H{}V{}H{x}Z", x + width, y + BAR_HEIGHT),
        };
        writeln!(
            html,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{BAR_HEIGHT}\"/><path d=\"{sides}\"/>"
        )?;
        let fits = width.saturating_sub(8) / LETTER_WIDTH;
        let name = format!("#{index} ");
        let shown = match fits.checked_sub(name.len() + 3) {
            Some(_) => shortened(&format!("{name}{}", bar.label), fits),
            None => shortened(&name, fits.max(1)),
        };
        writeln!(
            html,
            "<text x=\"{}\" y=\"{}\">{}</text>",
            x + 4,
            y + 16,
            escaped(shown.trim_end())
        )?;
        if let Some(place) = bar.place {
            let (cx, cy) = (x + width.min(&(2 * MOMENT_WIDTH)), y);
            let radius = 6 + 3 * place.to_string().len();
            writeln!(html, "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"{radius}\"/>")?;
            writeln!(html, "<text class=\"place\" x=\"{cx}\" y=\"{}\">{place}</text>", cy + 4)?;
        }
        writeln!(html, "</a>")
    }
}

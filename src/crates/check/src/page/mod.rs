//! Renders a violation as an HTML page: the operations over time, those that contradict each other, and the reason.
//!
//! The page is one self-contained HTML file: it needs no network, font or program except a browser. Details that a
//! click reveals are also in the table, so that the page can be printed and read without its short script. The same
//! history and reason always produce the same bytes.
//!
//! Of a long history, the page draws only the operations of the reason and those nearest to them. Of a long reason, it
//! draws the last operations. The page states how many operations are left out.
//!
//! ```text
//! process 1  ├─ write 1 ─┤      ┌──────┐
//! process 2                     │read 0│◀── none of these can be next
//! process 3      ├─ write 2 ┄┄┄┄└──────┘┄┄┄┄  (unknown: open to the right)
//! ```

mod text;
mod timeline;
mod window;

use std::fmt::Write;

use super::history::{History, Index, Operation, Outcome};
use super::lines::{self, Written};
use super::verdict::{Counterexample, DeadEnd};
pub use text::escaped;
pub(crate) use text::shortened;
use text::{label, words};
use timeline::{Bar, Mark, PageTimeline};
use window::Window;

/// Maximum number of drawn operations, in addition to those of the reason.
pub const OPERATIONS_DRAWN: usize = 160;

/// Maximum number of drawn operations of the reason, counted from the last one.
pub const REASON_DRAWN: usize = 100;

/// Maximum number of operations of an order that are listed, counted from its end.
const ORDER_SHOWN: usize = 40;

/// Maximum length of a state, in characters.
const STATE_CHARS_MAX: usize = 1_000;

/// A builder for a page.
///
/// ```
/// use bowline_check::{Budget, Operation, Register, RegisterCall, RegisterReply, linear, page::Page};
///
/// let history = vec![
///     Operation::ok(1, 2, RegisterCall::Write(Some(7.into())), RegisterReply::Written).by(1),
///     Operation::ok(3, 4, RegisterCall::Read, RegisterReply::Read(None)).by(2),
/// ];
/// let verdict = linear::check(&Register::default(), &history, Budget::default());
/// let why = verdict.violation().expect("the read is stale");
/// let html = Page::new("a register").of(&history, why);
/// assert!(html.starts_with("<!DOCTYPE html>"));
/// ```
#[derive(Clone, Debug)]
pub struct Page<'a> {
    title: &'a str,
    lines: &'a [usize],
}

impl<'a> Page<'a> {
    /// Creates a page with this title, which should name the program and the run.
    pub fn new(title: &'a str) -> Self {
        Self { title, lines: &[] }
    }

    /// Sets the line number of each operation in its file, from 1. The page shows it next to the name.
    #[must_use]
    pub fn lines(self, lines: &'a [usize]) -> Self {
        Self { lines, ..self }
    }

    /// Renders the page of one violation of `history`.
    ///
    /// # Panics
    ///
    /// Panics if the reason names an operation that `history` does not have, that is, if the reason belongs to another
    /// history.
    pub fn of<C: Written>(&self, history: &History<C, C::Reply>, why: &Counterexample) -> String {
        let window = Window::around(history, why, OPERATIONS_DRAWN);
        let bars: Vec<Bar> = window.drawn.iter().map(|index| bar(history, *index, why)).collect();
        let timeline = PageTimeline::of(bars);
        let mut html = String::with_capacity(64 << 10);
        self.write(&mut html, history, why, &window, &timeline).expect("a String takes everything");
        html
    }

    fn write<C: Written>(
        &self,
        html: &mut String,
        history: &History<C, C::Reply>,
        why: &Counterexample,
        window: &Window,
        timeline: &PageTimeline,
    ) -> std::fmt::Result {
        let title = escaped(self.title);
        writeln!(html, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
        writeln!(html, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
        writeln!(html, "<meta name=\"color-scheme\" content=\"light dark\">")?;
        writeln!(html, "<title>{}: {title}</title>", escaped(why.rule))?;
        writeln!(html, "<style>\n{}</style>\n</head>\n<body>", include_str!("page.css"))?;
        writeln!(html, "<header><p class=\"title\">{title}</p>")?;
        writeln!(html, "<h1>Violation: {}</h1>", escaped(why.rule))?;
        let object = match why.object.as_str() {
            "" => "the only object".to_owned(),
            object => format!("object <code>{}</code>", escaped(object)),
        };
        let is_silenced = why.dead_end.as_ref().is_some_and(|dead_end| dead_end.silenced > 0);
        let minimal = match why.is_minimal {
            true if is_silenced => {
                "They contradict each other whatever the other operations returned, and each of them is needed."
            }
            true => {
                "They contradict each other regardless of all other operations, and each of them is needed."
            }
            false => {
                "The violation was found here. Fewer operations may be enough, or others may be part of it."
            }
        };
        let count = match why.operations.len() {
            1 => "1 operation".to_owned(),
            count => format!("{count} operations"),
        };
        writeln!(html, "<p>{count} of {object}. {minimal}</p></header>\n<main>")?;
        writeln!(html, "<section><h2>Why</h2>\n<p>{}</p>", self.named(&why.why))?;
        if !why.links.is_empty() {
            writeln!(html, "<ol class=\"links\">")?;
            for link in &why.links {
                let (before, after) = (self.name(link.before), self.name(link.after));
                writeln!(html, "<li>{before} before {after}: {}</li>", self.named(&link.why))?;
            }
            writeln!(html, "</ol>")?;
        }
        if let Some(dead_end) = &why.dead_end {
            self.dead_end(html, dead_end)?;
        }
        writeln!(html, "</section>\n<section><h2>When</h2>")?;
        writeln!(html, "<p>{}</p>", window.words(history.len()))?;
        writeln!(html, "{}", include_str!("legend.html").trim_end())?;
        timeline.write(html, &why.links)?;
        writeln!(
            html,
            "<p id=\"detail\" role=\"status\">Point at an operation, or tap it.</p></section>"
        )?;
        writeln!(html, "<section><h2>Operations</h2>\n<div class=\"scroll\"><table>")?;
        let line = if self.lines.is_empty() { "" } else { "<th>line</th>" };
        writeln!(
            html,
            "<thead><tr><th>name</th>{line}<th>process</th><th>from</th><th>to</th><th>outcome</th>\
             <th>call and reply</th><th>JSON</th></tr></thead>\n<tbody>"
        )?;
        for index in &window.drawn {
            self.row(html, &history[*index], *index, why)?;
        }
        writeln!(html, "</tbody></table></div></section>\n</main>")?;
        writeln!(html, "<script>\n{}</script>\n</body>\n</html>", include_str!("page.js"))
    }

    fn dead_end(&self, html: &mut String, dead_end: &DeadEnd) -> std::fmt::Result {
        let DeadEnd { let_off, silenced, order, relaxed, state, blocked } = dead_end;
        let left_out = order.len().saturating_sub(ORDER_SHOWN);
        let name = |index: &Index| match relaxed.contains(index) {
            true => format!("{} (relaxed)", self.name(*index)),
            false => self.name(*index),
        };
        let shown: Vec<String> = order[left_out..].iter().map(name).collect();
        let more = match left_out {
            0 => String::new(),
            count => format!("{count} more, then "),
        };
        let after = match order.len() {
            0 => "At the beginning".to_owned(),
            _ => format!("The longest order found: {more}{}. After it", shown.join(" → ")),
        };
        let left_out = blocked.len().saturating_sub(ORDER_SHOWN);
        let mut stuck: Vec<String> = blocked.iter().map(|index| self.name(*index)).collect();
        stuck.truncate(ORDER_SHOWN);
        let more = match left_out {
            0 => String::new(),
            count => format!(" and {count} others"),
        };
        write!(
            html,
            "<p>{after} the object holds <code>{}</code>. One of these must be next, but none can be: {}{more}.",
            escaped(&shortened(state, STATE_CHARS_MAX)),
            stuck.join(", ")
        )?;
        if *silenced > 0 {
            write!(
                html,
                " The replies of {silenced} other operations were ignored: each took effect between its call and its \
                 end, unless its reply says that it changed nothing."
            )?;
        }
        writeln!(
            html,
            " The other {let_off} operations were relaxed: each may take effect at any moment after its call, or \
             never.</p>"
        )
    }

    fn row<C: Written>(
        &self,
        html: &mut String,
        operation: &Operation<C, C::Reply>,
        index: Index,
        why: &Counterexample,
    ) -> std::fmt::Result {
        let marked = if why.operations.contains(&index) { " class=\"bad\"" } else { "" };
        write!(html, "<tr id=\"o{index}\"{marked}><td>#{index}</td>")?;
        if !self.lines.is_empty() {
            let line = self.lines.get(index).map_or_else(String::new, usize::to_string);
            write!(html, "<td>{line}</td>")?;
        }
        let to = operation.ended().map_or_else(|| "?".to_owned(), |at| at.0.to_string());
        writeln!(
            html,
            "<td>{}</td><td>{}</td><td>{to}</td><td>{}</td><td>{}</td><td><code>{}</code></td></tr>",
            operation.process.0,
            operation.invoked.0,
            outcome(operation),
            escaped(&label(operation)),
            escaped(&lines::line(operation)),
        )
    }

    /// Returns the name of an operation as a link to its row in the table.
    fn name(&self, index: Index) -> String {
        format!("<a href=\"#o{index}\">#{index}</a>")
    }

    /// Formats a sentence in which `#3` names an operation.
    fn named(&self, sentence: &str) -> String {
        words(sentence, |index| self.name(index))
    }
}

fn outcome<C, R>(operation: &Operation<C, R>) -> &'static str {
    match operation.outcome {
        Outcome::Ok { .. } => "ok",
        Outcome::Failed { .. } => "failed",
        Outcome::Unknown { .. } => "unknown",
    }
}

fn bar<C: Written>(history: &History<C, C::Reply>, index: Index, why: &Counterexample) -> Bar {
    let operation = &history[index];
    let dead_end = why.dead_end.as_ref();
    let is_stuck = dead_end.is_some_and(|dead_end| dead_end.blocked.contains(&index));
    let mark = match why.operations.contains(&index) {
        true if is_stuck => Mark::Stuck,
        true => Mark::Bad,
        false => Mark::None,
    };
    let place = dead_end.and_then(|dead_end| dead_end.order.iter().position(|one| *one == index));
    Bar {
        index,
        process: operation.process,
        invoked: operation.invoked,
        ended: operation.ended(),
        outcome: outcome(operation),
        label: label(operation),
        mark,
        place: place.map(|place| place + 1),
    }
}

//! The HTML page of one run. The page loads nothing from the network.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bowline_check::page::escaped;

use super::{Summary, plot};
use crate::ledger::End;
use crate::over::Over;
use crate::run::Ran;

const STYLE: &str = "\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a202c }
h1 span { padding: 0 .5rem; border-radius: .3rem; color: #fff; background: #718096 }
h1 .ok { background: #2f855a } h1 .violation { background: #c53030 } h1 .invalid { background: #b7791f }
svg { width: 100%; height: auto; background: #f7fafc } svg path { fill: none }
svg line { stroke: #e2e8f0 } svg text { font-size: 11px; fill: #4a5568 }
svg .y { text-anchor: end } .fault { fill: #e53e3e; fill-opacity: .12 }
table { border-collapse: collapse } td, th { padding: .15rem .8rem; text-align: right; border-bottom: 1px solid #e2e8f0 }
td:first-child, th:first-child, td.words { text-align: left }
pre { background: #f7fafc; padding: .6rem; white-space: pre-wrap }
i { font-style: normal; display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem }
";

/// Maximum number of reasons that are shown.
const REASONS_MAX: usize = 12;

/// Renders the whole page.
pub(super) fn page(ran: &Ran, summary: &Summary) -> String {
    let mut page = String::new();
    let title = escaped(&format!(
        "{} under {}, {} members, {}",
        summary.workload,
        summary.nemesis,
        summary.members,
        match summary.over {
            Over::Embedded => "embedded",
            Over::Server => "over servers",
        }
    ));
    let seconds = ran.entries.iter().map(|entry| entry.ended).max().unwrap_or(0) as f64 / 1e6;
    let say = |page: &mut String, what: String| {
        page.push_str(&what);
        page.push('\n');
    };
    let verdict = &summary.verdict;
    say(
        &mut page,
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style><h1>{title} <span class=\"{verdict}\">{verdict}</span></h1>"
        ),
    );
    say(&mut page, format!("<p>{}</p>", escaped(&summary.why)));
    say(&mut page, format!("<p>Again:</p><pre>{}</pre>", escaped(&summary.command)));
    for file in summary.evidence.iter().filter_map(|path| path.file_name()) {
        let name = escaped(&file.to_string_lossy());
        say(&mut page, format!("<p>History: <a href=\"{name}\">{name}</a></p>"));
    }
    for again in &summary.judge_again {
        say(&mut page, format!("<p>To check it again:</p><pre>{}</pre>", escaped(again)));
    }
    say(
        &mut page,
        format!(
            "<p>{:.0} successful operations per second; median latency {:.1} ms, 99th percentile {:.1} ms. \
         {} faults, {} leader changes. The run took {:.1} s.</p>",
            summary.ok_per_second,
            summary.latency_ms_median,
            summary.latency_ms_p99,
            summary.faults,
            summary.leader_changes,
            summary.seconds,
        ),
    );
    say(
        &mut page,
        "<h2>Latency</h2><p><i style=\"background:#2b6cb0\"></i>ok\
         <i style=\"background:#dd8800\"></i>failed<i style=\"background:#c53030\"></i>unknown\
         <i style=\"background:#e53e3e33\"></i>fault (hover for details)</p>"
            .to_owned(),
    );
    say(&mut page, plot::latencies(&ran.entries, &ran.windows, seconds));
    say(&mut page, "<h2>Operations per second</h2>".to_owned());
    say(&mut page, plot::rates(&ran.entries, &ran.windows, seconds));
    say(
        &mut page,
        "<h2>Operations</h2><table><tr><th>kind<th>ok<th>failed<th>unknown</tr>".to_owned(),
    );
    for (kind, count) in &summary.kinds {
        let (ok, failed, unknown) = (count.ok, count.failed, count.unknown);
        say(&mut page, format!("<tr><td>{kind}<td>{ok}<td>{failed}<td>{unknown}</tr>"));
    }
    say(&mut page, "</table><h2>Faults</h2><table><tr><th>from<th>to<th>fault</tr>".to_owned());
    for window in &ran.windows {
        let (begin, end) = (window.begin as f64 / 1e6, window.end as f64 / 1e6);
        let what = escaped(&window.what);
        say(
            &mut page,
            format!("<tr><td>{begin:.1} s<td>{end:.1} s<td class=\"words\">{what}</tr>"),
        );
    }
    say(&mut page, format!("</table>{}</html>", reasons(ran)));
    page
}

/// Renders the reasons of operations that did not succeed, the most frequent first.
fn reasons(ran: &Ran) -> String {
    let mut times: BTreeMap<(&str, End), usize> = BTreeMap::new();
    for entry in &ran.entries {
        if let Some(why) = &entry.why {
            *times.entry((why, entry.end)).or_default() += 1;
        }
    }
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    let mut table = "<h2>Errors of clients</h2><table><tr><th>error<th>count</tr>".to_owned();
    for ((why, end), times) in times.into_iter().take(REASONS_MAX) {
        let end = if end == End::Unknown { "unknown: " } else { "" };
        write!(table, "<tr><td>{end}{}<td>{times}</tr>", escaped(why))
            .expect("a String takes everything");
    }
    table + "</table>"
}

//! Formats the verdict of `bowline check` as text for people and as JSON for programs.

use bowline_check::lines::{self, Lines, Written};
use bowline_check::{Counterexample, Undecided, Verdict};
use serde_json::{Value as Json, json};

use super::CheckOptions;

/// Returns advice for an undecided verdict.
fn more(why: Undecided) -> &'static str {
    match why {
        Undecided::Steps => "not a pass: try again with more --steps",
        Undecided::Configurations => {
            "not a pass: try again with more --configurations, if there is enough memory"
        }
        Undecided::Stopped => "not a pass: try again with more --seconds",
        Undecided::Repeated(..) => "not a pass: let each transaction write values of its own",
        Undecided::Nothing | Undecided::Unread => {
            "not a pass: check whether the test made any calls, and whether this is its history"
        }
        _ => "not a pass",
    }
}

/// Returns the lines of the report for people. Each line is a pair of a label and a sentence.
pub(super) fn details<C: Written>(
    options: &CheckOptions,
    lines: &Lines<C, C::Reply>,
    verdict: &Verdict,
) -> Vec<(&'static str, String)> {
    let count = lines.history.len();
    match verdict {
        Verdict::Ok => {
            let page = options
                .page
                .is_some()
                .then_some(("page", "not written: there is no violation to show".to_owned()));
            [("ok", format!("{count} operations, {}", options.promise()))]
                .into_iter()
                .chain(page)
                .collect()
        }
        Verdict::Undecided { why: why @ (Undecided::Nothing | Undecided::Unread), .. } => {
            vec![
                ("undecided", format!("{count} operations, and {why}")),
                ("do", more(*why).to_owned()),
            ]
        }
        Verdict::Undecided { object, why, explored } => vec![
            ("undecided", format!("object {object:?}: {why} (after {explored} steps)")),
            ("do", more(*why).to_owned()),
        ],
        Verdict::Violation(why) => {
            let Counterexample { rule, object, operations, is_minimal, why, dead_end, .. } = &**why;
            let mut details =
                vec![("violation", format!("object {object:?}: {rule}")), ("why", why.clone())];
            let line = |index: usize| {
                format!(
                    "#{index}, line {}: {}",
                    lines.numbers[index],
                    lines::line(&lines.history[index])
                )
            };
            details.extend(operations.iter().map(|index| ("operation", line(*index))));
            if let Some(dead_end) = dead_end {
                let blocked: Vec<String> =
                    dead_end.blocked.iter().map(|index| format!("#{index}")).collect();
                let blocked = match blocked.as_slice() {
                    [one] => format!("{one} cannot be next"),
                    several => format!("none of {} can be next", several.join(", ")),
                };
                let (placed, state) = (dead_end.order.len(), &dead_end.state);
                let words = format!(
                    "the longest possible order has {placed} operations; the state is then {state}, and {blocked}"
                );
                details.push(("stuck", words));
            }
            if !is_minimal {
                details.push((
                    "note",
                    "a subset of these operations may be enough for the violation, or other operations may belong to \
                     it".to_owned(),
                ));
            }
            if let Some(page) = &options.page {
                details.push(("page", page.display().to_string()));
            }
            details
        }
    }
}

/// Returns the JSON object for programs.
pub(super) fn to_json<C: Written>(
    options: &CheckOptions,
    lines: &Lines<C, C::Reply>,
    verdict: &Verdict,
) -> Json {
    let operations = lines.history.len();
    match verdict {
        Verdict::Ok => json!({
            "verdict": "ok",
            "operations": operations,
            "promise": options.promise(),
        }),
        Verdict::Undecided { object, why, explored } => json!({
            "verdict": "undecided",
            "operations": operations,
            "object": object,
            "why": why.to_string(),
            "explored": explored,
        }),
        Verdict::Violation(why) => {
            let reason = why.operations.iter().map(|index| {
                let line: Json = serde_json::from_str(&lines::line(&lines.history[*index]))
                    .expect("a line is an object");
                json!({ "index": index, "line": lines.numbers[*index], "operation": line })
            });
            let links = why
                .links
                .iter()
                .map(|link| json!({ "before": link.before, "after": link.after, "why": link.why }));
            let dead_end = why.dead_end.as_ref().map(|dead_end| {
                json!({
                    "let_off": dead_end.let_off,
                    "silenced": dead_end.silenced,
                    "relaxed": dead_end.relaxed,
                    "order": dead_end.order,
                    "state": dead_end.state,
                    "stuck": dead_end.blocked,
                })
            });
            json!({
                "verdict": "violation",
                "operations": operations,
                "object": why.object,
                "rule": why.rule,
                "why": why.why,
                "is_minimal": why.is_minimal,
                "reason": reason.collect::<Json>(),
                "links": links.collect::<Json>(),
                "dead_end": dead_end,
                "page": options.page.as_ref().map(|page| page.display().to_string()),
            })
        }
    }
}

//! Output of the demo: a line per event, a progress bar at a terminal, and the verdict.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::proof::{Claim, Finding};

/// The events: the name, the color, and the sentence with the fields of the event in braces.
const EVENTS: [(&str, &str, &str); 16] = [
    ("begins", PLAIN, "{nodes} processes, {seconds} s of work, seed {seed}, in {dir}"),
    ("started", GOOD, "runs (incarnation {life})"),
    ("leads", GOOD, "became leader (term {term})"),
    ("leads_no_more", FAINT, "lost leadership (term {term})"),
    ("leader_killed", BAD, "kill -9: the leader of term {term}"),
    ("holder_killed", BAD, "kill -9: the lock holder (token {token}), at increment {op}, {point}"),
    ("recovered", GOOD, "first increment since the kill, after {after_ms} ms"),
    ("holder_stopped", BAD, "paused: the lock holder (token {token}), at increment {op}"),
    ("overtaken", WARNING, "its lease has expired: the ledger has token {token} of another holder"),
    ("resumed", PLAIN, "resumed after {after_ms} ms, attempts its late writes"),
    ("ledger_refused", WARNING, "the ledger rejected {op}: token {token} is lower than {highest}"),
    ("store_refused", WARNING, "the store rejected {op}: the lock is no longer held"),
    ("unknown", FAINT, "unknown whether {op} was applied: {why}"),
    ("lost", FAINT, "{worker}: {why}"),
    ("resting", PLAIN, "all faults are healed, the workers have stopped"),
    ("read", GOOD, "read {increments} increments, the counter is {count}"),
];

/// The statistics in the verdict.
const FIGURES: [(&str, &str); 9] = [
    ("increments acknowledged", "{acknowledged} ({increments_per_s}/s)"),
    ("lock handoffs", "{handoffs} ({handoffs_per_s}/s)"),
    ("elections", "{elections}"),
    ("leaders killed", "{leader_kills}"),
    ("holders killed", "{holder_kills}"),
    ("holders paused beyond their lease", "{holders_stopped}"),
    ("rejected by the ledger / by the store", "{refused_by_ledger} / {refused_by_store}"),
    ("retried / with unknown outcome in the end", "{tried_again} / {unknown}"),
    ("leader kill to next increment", "{recovery} (min / median / max)"),
];

/// Control sequences of terminals for the colors.
const PLAIN: &str = "";
const GOOD: &str = "\x1b[32m";
const BAD: &str = "\x1b[31m";
const WARNING: &str = "\x1b[33m";
const FAINT: &str = "\x1b[2m";

/// Replaces the names in braces by the values of the fields.
fn filled(sentence: &str, fields: &Value) -> String {
    let mut text = sentence.to_owned();
    for (name, value) in fields.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text = text.replace(&format!("{{{name}}}"), &value);
    }
    text
}

/// Returns minimum, median and maximum in milliseconds, or null for an empty list.
pub(crate) fn spread(durations: &[Duration]) -> Value {
    let mut all: Vec<u64> = durations.iter().map(|duration| ms(*duration)).collect();
    all.sort_unstable();
    let (Some(min), Some(max)) = (all.first(), all.last()) else { return Value::Null };
    let median = u64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2]);
    json!({"min": min, "median": median, "max": max})
}

/// Converts a duration to milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Converts a duration to seconds with three decimal places.
pub(crate) fn rounded(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

/// Prints events, progress and the verdict.
#[derive(Debug)]
pub(crate) struct Timeline {
    json: bool,
    colour: bool,
    bar: ProgressBar,
    began: Instant,
}

impl Timeline {
    /// Starts the clock. `length` is the end of the progress bar.
    pub(crate) fn begin(json: bool, length: Duration) -> Self {
        let terminal = io::stdout().is_terminal();
        let colourless = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        // The bar is drawn on standard error, and only if standard error is a terminal.
        let bar = if json || !terminal {
            ProgressBar::hidden()
        } else {
            let look = if colourless { "[{bar:30}]" } else { "[{bar:30.green}]" };
            let style = ProgressStyle::with_template(&format!("  {look} {{msg}}"))
                .expect("the template is valid")
                .progress_chars("=> ");
            ProgressBar::new(ms(length)).with_style(style)
        };
        Self { json, colour: !json && terminal && !colourless, bar, began: Instant::now() }
    }

    /// Shows an event of one member, or of the whole demo.
    pub(crate) fn report(
        &self,
        member: Option<&str>,
        event: &str,
        fields: &Value,
    ) -> io::Result<()> {
        let at = self.began.elapsed();
        if self.json {
            let mut object = fields.clone();
            (object["at"], object["event"]) = (rounded(at).into(), event.into());
            if let Some(member) = member {
                object["member"] = member.into();
            }
            return self.print(&format!("{object}\n"));
        }
        let known = EVENTS.iter().find(|(name, ..)| *name == event);
        let (_, tone, sentence) = known.expect("the event is in the table");
        let at = self.paint(FAINT, &format!("{:7.2}s", at.as_secs_f64()));
        let sentence = self.paint(tone, &filled(sentence, fields));
        self.print(&format!("{at}  {:<3} {sentence}\n", member.unwrap_or("-")))
    }

    /// Updates the progress bar.
    pub(crate) fn progress(&self, work_time: Duration, message: String) {
        self.bar.set_position(ms(work_time));
        self.bar.set_message(message);
    }

    /// Removes the progress bar.
    pub(crate) fn end_progress(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows the verdict and the statistics.
    pub(crate) fn verdict(&self, seed: u64, claims: &[Claim], figures: &Value) -> io::Result<()> {
        let proven = !claims.iter().any(Claim::is_disproven);
        if self.json {
            let verdict = json!({
                "at": rounded(self.began.elapsed()), "event": "verdict", "proven": proven, "seed": seed,
                "claims": claims, "figures": figures,
            });
            return self.print(&format!("{verdict}\n"));
        }
        let mut fields = figures.clone();
        let recovery = &figures["recovery_ms"];
        fields["recovery"] = match recovery.is_null() {
            true => "-".into(),
            false => filled("{min} / {median} / {max} ms", recovery).into(),
        };
        let mut text = String::from("\n");
        for (what, figure) in FIGURES {
            text += &format!("  {what:<43} {}\n", filled(figure, &fields));
        }
        text.push('\n');
        for Claim { claim, finding } in claims {
            let (tone, word, detail) = match finding {
                Finding::Proven { by } => (GOOD, "proven   ", std::slice::from_ref(by)),
                Finding::Disproven { because } => (BAD, "DISPROVEN", &because[..]),
                Finding::Untested { because } => {
                    (WARNING, "untested ", std::slice::from_ref(because))
                }
            };
            text += &format!("  {}  {claim}\n", self.paint(tone, word));
            for line in detail {
                text += &format!("             {}\n", self.paint(FAINT, line));
            }
        }
        text += &match proven {
            true => format!("\n{}\n", self.paint(GOOD, "Nothing was lost.")),
            false => format!(
                "\n{} To repeat the schedule of faults: bowline demo --seed {seed}; with --keep, the members' data \
                 and logs and the ledger are kept.\n",
                self.paint(BAD, "At least one claim is disproven.")
            ),
        };
        self.print(&text)
    }

    /// Shows where the kept files are.
    pub(crate) fn kept(&self, dir: &std::path::Path) -> io::Result<()> {
        if self.json { Ok(()) } else { self.print(&format!("Kept: {}\n", dir.display())) }
    }

    fn paint(&self, tone: &str, text: &str) -> String {
        match self.colour && !tone.is_empty() {
            true => format!("{tone}{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    fn print(&self, text: &str) -> io::Result<()> {
        self.bar.suspend(|| {
            let mut output = io::stdout().lock();
            output.write_all(text.as_bytes())?;
            output.flush()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_minimum_median_and_maximum() {
        let spread = |all: &[u64]| {
            let all: Vec<_> = all.iter().map(|ms| Duration::from_millis(*ms)).collect();
            spread(&all)
        };
        assert_eq!(spread(&[]), Value::Null);
        assert_eq!(spread(&[7]), json!({"min": 7, "median": 7, "max": 7}));
        assert_eq!(spread(&[7, 9]), json!({"min": 7, "median": 8, "max": 9}));
        assert_eq!(spread(&[9, 1, 4]), json!({"min": 1, "median": 4, "max": 9}));
    }

    #[test]
    fn sentences_contain_the_fields_of_their_event() {
        let fields = json!({"op": "n1.1.w1.1", "token": "7.0", "highest": "9.1"});
        let of = |event: &str| EVENTS.iter().find(|(name, ..)| *name == event).unwrap().2;
        assert_eq!(
            filled(of("ledger_refused"), &fields),
            "the ledger rejected n1.1.w1.1: token 7.0 is lower than 9.1"
        );
        assert_eq!(filled("{n}/s", &json!({"n": 1.5})), "1.5/s");
    }
}

//! Output of the demo: a line per event, a progress bar at a terminal, and the verdict.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::proof::{Claim, Finding};
use super::wire::{Fence, Instant, Point};

/// An event to show.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The demo has started.
    Begins { nodes: u8, seconds: u64, seed: u64, dir: String },
    /// A process has started its node.
    Started { life: u32 },
    /// The process has become leader.
    Leads { term: u64 },
    /// The process is no longer leader, and still running.
    LeadsNoMore { term: u64 },
    /// The leader was killed.
    LeaderKilled { term: u64 },
    /// A process with a lock holder was killed.
    HolderKilled { op: String, token: Fence, point: Point },
    /// The first increment after the kill was acknowledged.
    Recovered { after_ms: u64 },
    /// A process with a lock holder was suspended.
    HolderStopped { op: String, token: Fence },
    /// While a holder was suspended, the ledger has accepted a write of a later holder.
    Overtaken { token: Fence },
    /// The suspended process was resumed.
    Resumed { after_ms: u64 },
    /// The ledger has rejected a write.
    LedgerRefused { op: String, token: Fence, highest: Fence },
    /// The store has rejected a write.
    StoreRefused { op: String },
    /// An increment has ended with an unknown outcome.
    Unknown { op: String, why: String },
    /// A worker has lost the lock or failed to acquire it.
    Lost { worker: String, why: String },
    /// The workers were ordered to rest.
    Resting,
    /// A member has read its store.
    Read { increments: u64, count: u64 },
}

/// Color of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tone {
    Plain,
    Good,
    Bad,
    Warning,
    Faint,
}

impl Tone {
    /// Returns the terminal's control sequence.
    fn code(self) -> &'static str {
        match self {
            Tone::Plain => "",
            Tone::Good => "\x1b[32m",
            Tone::Bad => "\x1b[31m",
            Tone::Warning => "\x1b[33m",
            Tone::Faint => "\x1b[2m",
        }
    }
}

impl Event {
    fn tone(&self) -> Tone {
        match self {
            Event::Begins { .. } | Event::Resting | Event::Resumed { .. } => Tone::Plain,
            Event::Started { .. }
            | Event::Leads { .. }
            | Event::Recovered { .. }
            | Event::Read { .. } => Tone::Good,
            Event::LeaderKilled { .. }
            | Event::HolderKilled { .. }
            | Event::HolderStopped { .. } => Tone::Bad,
            Event::Overtaken { .. } | Event::LedgerRefused { .. } | Event::StoreRefused { .. } => {
                Tone::Warning
            }
            Event::LeadsNoMore { .. } | Event::Unknown { .. } | Event::Lost { .. } => Tone::Faint,
        }
    }

    fn sentence(&self) -> String {
        match self {
            Event::Begins { nodes, seconds, seed, dir } => {
                format!("{nodes} processes, {seconds} s of work, seed {seed}, in {dir}")
            }
            Event::Started { life: 1 } => "runs".to_owned(),
            Event::Started { life } => format!("restarted (incarnation {life})"),
            Event::Leads { term } => format!("became leader (term {term})"),
            Event::LeadsNoMore { term } => format!("lost leadership (term {term})"),
            Event::LeaderKilled { term } => format!("kill -9: the leader of term {term}"),
            Event::HolderKilled { op, token, point } => {
                format!("kill -9: the lock holder (token {token}), at increment {op}, {point}")
            }
            Event::Recovered { after_ms } => {
                format!("first increment since the kill, after {after_ms} ms")
            }
            Event::HolderStopped { op, token } => {
                format!("paused: the lock holder (token {token}), at increment {op}")
            }
            Event::Overtaken { token } => {
                format!("its lease has expired: the ledger has token {token} of another holder")
            }
            Event::Resumed { after_ms } => {
                format!("resumed after {after_ms} ms, attempts its late writes")
            }
            Event::LedgerRefused { op, token, highest } => {
                format!("the ledger rejected {op}: token {token} is lower than {highest}")
            }
            Event::StoreRefused { op } => {
                format!("the store rejected {op}: the lock is no longer held")
            }
            Event::Unknown { op, why } => format!("unknown whether {op} was applied: {why}"),
            Event::Lost { worker, why } => format!("{worker}: {why}"),
            Event::Resting => "all faults are healed, the workers have stopped".to_owned(),
            Event::Read { increments, count } => {
                format!("read {increments} increments, the counter is {count}")
            }
        }
    }
}

/// Statistics of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// Time from the start of the work until the workers rest, in seconds.
    pub(crate) worked_s: f64,
    pub(crate) acknowledged: u64,
    pub(crate) increments_per_s: f64,
    /// Number of times that the lock was granted to another worker than before.
    pub(crate) handoffs: u64,
    pub(crate) handoffs_per_s: f64,
    pub(crate) elections: u64,
    pub(crate) leader_kills: u64,
    pub(crate) holder_kills: u64,
    pub(crate) holders_stopped: u64,
    pub(crate) refused_by_ledger: u64,
    pub(crate) refused_by_store: u64,
    pub(crate) unknown: u64,
    /// Increments that were retried after an unknown outcome.
    pub(crate) tried_again: u64,
    /// Time from the kill of a leader to the acknowledgement of the next increment that started after it.
    pub(crate) recovery_ms: Option<Spread>,
}

/// Minimum, median and maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: u64,
    pub(crate) median: u64,
    pub(crate) max: u64,
}

impl Spread {
    /// Returns the values in milliseconds, or `None` for an empty list.
    pub(crate) fn of(durations: &[Duration]) -> Option<Self> {
        let mut all: Vec<u64> = durations.iter().map(|duration| ms(*duration)).collect();
        all.sort_unstable();
        let (min, max) = (*all.first()?, *all.last()?);
        let median = u64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2]);
        Some(Self { min, median, max })
    }
}

/// Converts a duration to milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The last JSON object.
#[derive(Serialize)]
struct Verdict<'a> {
    at: f64,
    event: &'static str,
    proven: bool,
    seed: u64,
    claims: &'a [Claim],
    figures: &'a Figures,
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
    pub(crate) fn tell(&self, member: Option<&str>, event: &Event) -> io::Result<()> {
        let at = Instant::now().since(self.began);
        if self.json {
            #[derive(Serialize)]
            struct Told<'a> {
                at: f64,
                #[serde(skip_serializing_if = "Option::is_none")]
                member: Option<&'a str>,
                #[serde(flatten)]
                event: &'a Event,
            }
            return self.print_json(&Told { at: rounded(at), member, event });
        }
        let (who, sentence) = (member.unwrap_or("-"), event.sentence());
        let at = self.paint(Tone::Faint, &format!("{:7.2}s", at.as_secs_f64()));
        self.print(&format!("{at}  {who:<3} {}\n", self.paint(event.tone(), &sentence)))
    }

    /// Updates the progress bar.
    pub(crate) fn progress(&self, worked: Duration, message: String) {
        self.bar.set_position(ms(worked));
        self.bar.set_message(message);
    }

    /// Removes the progress bar.
    pub(crate) fn end_progress(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows the verdict and the statistics.
    pub(crate) fn verdict(&self, seed: u64, claims: &[Claim], figures: &Figures) -> io::Result<()> {
        self.end_progress();
        let proven = !claims.iter().any(Claim::is_disproven);
        if self.json {
            let at = rounded(Instant::now().since(self.began));
            return self.print_json(&Verdict {
                at,
                event: "verdict",
                proven,
                seed,
                claims,
                figures,
            });
        }
        let mut text = String::from("\n");
        for (what, figure) in figures.lines() {
            text += &format!("  {what:<43} {figure}\n");
        }
        text.push('\n');
        for Claim { claim, finding } in claims {
            let (tone, word, detail) = match finding {
                Finding::Proven { by } => (Tone::Good, "proven   ", vec![by.clone()]),
                Finding::Disproven { because } => (Tone::Bad, "DISPROVEN", because.clone()),
                Finding::Untested { because } => {
                    (Tone::Warning, "untested ", vec![because.clone()])
                }
            };
            text += &format!("  {}  {claim}\n", self.paint(tone, word));
            for line in detail {
                text += &format!("             {}\n", self.paint(Tone::Faint, &line));
            }
        }
        text += &match proven {
            true => format!("\n{}\n", self.paint(Tone::Good, "Nothing was lost.")),
            false => format!(
                "\n{} To repeat the schedule of faults: bowline demo --seed {seed}; with --keep, the members' data \
                 and logs and the ledger are kept.\n",
                self.paint(Tone::Bad, "At least one claim is disproven.")
            ),
        };
        self.print(&text)
    }

    /// Shows where the kept files are.
    pub(crate) fn kept(&self, dir: &std::path::Path) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        self.print(&format!("Kept: {}\n", dir.display()))
    }

    fn paint(&self, tone: Tone, text: &str) -> String {
        match (self.colour, tone.code()) {
            (false, _) | (_, "") => text.to_owned(),
            (true, code) => format!("{code}{text}\x1b[0m"),
        }
    }

    fn print_json<T: Serialize>(&self, value: &T) -> io::Result<()> {
        self.print(&super::wire::line(value))
    }

    fn print(&self, text: &str) -> io::Result<()> {
        self.bar.suspend(|| {
            let mut output = io::stdout().lock();
            output.write_all(text.as_bytes())?;
            output.flush()
        })
    }
}

impl Figures {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let recovery = self.recovery_ms.map_or_else(
            || "-".to_owned(),
            |Spread { min, median, max }| format!("{min} / {median} / {max} ms"),
        );
        vec![
            (
                "increments acknowledged",
                format!("{} ({:.1}/s)", self.acknowledged, self.increments_per_s),
            ),
            ("lock handoffs", format!("{} ({:.1}/s)", self.handoffs, self.handoffs_per_s)),
            ("elections", self.elections.to_string()),
            ("leaders killed", self.leader_kills.to_string()),
            ("holders killed", self.holder_kills.to_string()),
            ("holders paused beyond their lease", self.holders_stopped.to_string()),
            (
                "rejected by the ledger / by the store",
                format!("{} / {}", self.refused_by_ledger, self.refused_by_store),
            ),
            (
                "retried / with unknown outcome in the end",
                format!("{} / {}", self.tried_again, self.unknown),
            ),
            ("leader kill to next increment", format!("{recovery} (min / median / max)")),
        ]
    }
}

fn rounded(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_minimum_median_and_maximum() {
        let ms = |ms: &[u64]| -> Vec<Duration> {
            ms.iter().map(|ms| Duration::from_millis(*ms)).collect()
        };
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&ms(&[7])), Some(Spread { min: 7, median: 7, max: 7 }));
        assert_eq!(Spread::of(&ms(&[7, 9])), Some(Spread { min: 7, median: 8, max: 9 }));
        assert_eq!(Spread::of(&ms(&[9, 1, 4])), Some(Spread { min: 1, median: 4, max: 9 }));
    }
}

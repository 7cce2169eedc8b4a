//! The operations of a counterexample as lines of text.

use std::fmt;

use serde_json::Value as Json;

use crate::history::{At, History, Index, Operation, Outcome, Process};
use crate::lines::{Fields, Written};
use crate::page::shortened;
use crate::verdict::{Counterexample, Verdict};

/// Maximum number of operations of a counterexample that are kept as text, counted from the last one.
pub const OPERATIONS_SHOWN: usize = 20;

/// Maximum length of a call or a reply, in characters.
const TEXT_CHARS_MAX: usize = 80;

/// An operation of a counterexample as text.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OperationText {
    /// The index in the history.
    pub index: Index,
    /// The caller.
    pub process: Process,
    /// Time of the call.
    pub invoked: At,
    /// Time at which the caller learned the outcome or gave up, if known.
    pub ended: Option<At>,
    /// The call: `write 7`, `cas expect=1 value=2`.
    pub call: String,
    /// The reply or the outcome: `7`, `swapped=true`, `ok`, `failed`, `unknown`.
    pub reply: String,
}

impl OperationText {
    fn new<C, R>(
        index: Index,
        operation: &Operation<C, R>,
        call: impl Fn(&C) -> String,
        reply: impl Fn(&C, &R) -> String,
    ) -> Self {
        let said = match &operation.outcome {
            Outcome::Ok { reply: said, .. } => reply(&operation.call, said),
            Outcome::Failed { .. } => "failed".to_owned(),
            Outcome::Unknown { .. } => "unknown".to_owned(),
        };
        Self {
            index,
            process: operation.process,
            invoked: operation.invoked,
            ended: operation.ended(),
            call: shortened(&call(&operation.call), TEXT_CHARS_MAX),
            reply: shortened(&said, TEXT_CHARS_MAX),
        }
    }
}

impl Counterexample {
    /// Adds the last operations as text.
    pub(super) fn showing<C, R>(
        self,
        history: &History<C, R>,
        call: impl Fn(&C) -> String,
        reply: impl Fn(&C, &R) -> String,
    ) -> Self {
        let last = &self.operations[self.operations.len().saturating_sub(OPERATIONS_SHOWN)..];
        let text = |index: &Index| OperationText::new(*index, &history[*index], &call, &reply);
        Self { shown: last.iter().map(text).collect(), ..self }
    }
}

impl Verdict {
    /// Adds the operations of a violation as text, unless they have been added.
    pub(super) fn showing<C: Written>(self, history: &History<C, C::Reply>) -> Self {
        match self {
            Self::Violation(why) if why.shown.is_empty() => {
                why.showing(history, call_text, reply_text).into()
            }
            verdict => verdict,
        }
    }
}

pub(super) fn call_text<C: Written>(call: &C) -> String {
    let mut fields = Fields::default();
    let name = call.write(&mut fields);
    let fields: Vec<_> = fields.iter().collect();
    match fields.as_slice() {
        [] => name.to_owned(),
        [(_, one)] => format!("{name} {}", text(one)),
        several => format!("{name} {}", named(several)),
    }
}

pub(super) fn reply_text<C: Written>(call: &C, reply: &C::Reply) -> String {
    let mut fields = Fields::default();
    call.write_reply(reply, &mut fields);
    let fields: Vec<_> = fields.iter().collect();
    match fields.as_slice() {
        [] => "ok".to_owned(),
        [(_, one)] if !one.is_boolean() => text(one),
        several => named(several),
    }
}

fn named(fields: &[(&String, &Json)]) -> String {
    let words = fields.iter().map(|(name, json)| format!("{name}={}", text(json)));
    words.collect::<Vec<_>>().join(" ")
}

/// Formats a field. The steps of a transaction are words, other values are JSON.
fn text(json: &Json) -> String {
    let step = |step: &Json| match step.as_array().map(Vec::as_slice) {
        Some([Json::String(name), key @ Json::String(_), rest @ ..]) => {
            let words = std::iter::once(key).chain(rest).map(|word| format!(" {word}"));
            Some(name.clone() + &words.collect::<String>())
        }
        _ => None,
    };
    match json {
        Json::Null => "none".to_owned(),
        Json::Array(steps) if !steps.is_empty() => {
            let words: Option<Vec<String>> = steps.iter().map(step).collect();
            words.map_or_else(|| json.to_string(), |words| words.join(", "))
        }
        other => other.to_string(),
    }
}

/// Writes one aligned line for each operation.
pub(super) fn write(f: &mut fmt::Formatter<'_>, shown: &[OperationText]) -> fmt::Result {
    let rows = shown.iter().map(|one| {
        let ended = one.ended.map_or_else(|| "...".to_owned(), |at| at.0.to_string());
        [
            format!("#{}", one.index),
            format!("process {}", one.process.0),
            format!("{} to {ended}", one.invoked.0),
            one.call.clone(),
        ]
    });
    let rows: Vec<[String; 4]> = rows.collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths = [0, 1, 2, 3].map(|column| width(column).unwrap_or(0));
    for ([name, process, times, call], one) in rows.iter().zip(shown) {
        let [a, b, c, d] = widths;
        write!(f, "\n  {name:a$}  {process:b$}  {times:c$}  {call:d$}  → {}", one.reply)?;
    }
    Ok(())
}

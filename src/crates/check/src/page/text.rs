//! Escapes the texts of a page, so that nothing in a history can become markup or change the direction of the text.

use serde_json::Value as Json;

use crate::history::{Index, Operation, Outcome};
use crate::lines::{Fields, Written};

/// Maximum length of a label, in characters.
const LABEL_CHARS_MAX: usize = 200;

/// Escapes a text for HTML elements and quoted attributes. Invisible characters are written as their code points.
pub fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c if is_invisible(c) => html.extend(c.escape_unicode()),
            c => html.push(c),
        }
    }
    html
}

/// Returns whether a character is a control character or changes the direction of the text.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Formats a sentence as HTML. `name` returns the replacement of each `#3`.
pub(super) fn words(sentence: &str, name: impl Fn(Index) -> String) -> String {
    let mut html = String::new();
    let mut rest = sentence;
    while let Some(at) = rest.find('#') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        html.push_str(&escaped(before));
        match after[..digits].parse() {
            Ok(index) => html.push_str(&name(index)),
            Err(_) => html.push_str(&escaped(&rest[at..=at + digits])),
        }
        rest = &after[digits..];
    }
    html.push_str(&escaped(rest));
    html
}

/// Returns the call and the reply of an operation in short form: `cas 1 2 → true`.
pub(super) fn label<C: Written>(operation: &Operation<C, C::Reply>) -> String {
    let mut fields = Fields::default();
    let mut text = operation.call.write(&mut fields).to_owned();
    for (_, json) in fields.iter() {
        text.push(' ');
        text.push_str(&brief(json));
    }
    match &operation.outcome {
        Outcome::Ok { reply, .. } => {
            let mut fields = Fields::default();
            operation.call.write_reply(reply, &mut fields);
            let said: Vec<String> = fields.iter().map(|(_, json)| brief(json)).collect();
            if !said.is_empty() {
                text.push_str(" → ");
                text.push_str(&said.join(" "));
            }
        }
        Outcome::Failed { .. } => text.push_str(" failed"),
        Outcome::Unknown { .. } => text.push_str(" → ?"),
    }
    shortened(&text, LABEL_CHARS_MAX)
}

/// Returns the first characters of a text, with an ellipsis if it is longer.
pub(crate) fn shortened(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Formats a field without quotes, and steps as words.
fn brief(json: &Json) -> String {
    match json {
        Json::String(text) => text.clone(),
        Json::Array(items) if items.iter().any(is_step) => {
            let step = |item: &Json| match item {
                Json::Array(words) => words.iter().map(brief).collect::<Vec<_>>().join(" "),
                other => brief(other),
            };
            items.iter().map(step).collect::<Vec<_>>().join(", ")
        }
        Json::Array(items) => {
            format!("[{}]", items.iter().map(brief).collect::<Vec<_>>().join(", "))
        }
        Json::Null => "none".to_owned(),
        other => other.to_string(),
    }
}

/// Returns whether the value is a step: `["read", "x"]`, but not `["a"]`, which may be a list.
fn is_step(json: &Json) -> bool {
    let words = json.as_array().map(Vec::as_slice);
    matches!(words, Some([Json::String(_), Json::String(_), ..]))
}

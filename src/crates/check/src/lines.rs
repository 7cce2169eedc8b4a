//! Reads and writes histories as JSON lines: one operation per line, in any order.
//!
//! ```text
//! {"process":1,"object":"x","invoke":10,"complete":14,"outcome":"ok","call":"write","value":7}
//! {"process":2,"object":"x","invoke":12,"complete":19,"outcome":"ok","call":"read","result":7}
//! {"process":3,"object":"x","invoke":13,"outcome":"unknown","call":"write","value":8}
//! # lines that begin with # are comments; empty lines are ignored as well
//! ```
//!
//! | field | meaning | if it is missing |
//! |---|---|---|
//! | `process` | a number: the caller; only [`Level::SessionSerializable`](super::Level) requires it | 0 |
//! | `object` | a string: each object is checked on its own | `""` |
//! | `invoke` | a number: the moment of the call, in any unit | an error |
//! | `complete` | a number, not less than `invoke`: when the caller knew the outcome | an error with `ok` |
//! | `outcome` | `ok`, `failed` (never takes effect) or `unknown` (may take effect at any later moment) | an error |
//! | `call` | a call of the model, with its fields | an error |
//!
//! The type of the calls documents their names and fields in JSON: [`RegisterCall`](super::RegisterCall),
//! [`KvCall`](super::KvCall), [`MutexCall`](super::MutexCall), [`SemaphoreCall`](super::SemaphoreCall),
//! [`QueueCall`](super::QueueCall), [`ElectionCall`](super::ElectionCall), [`ListTxn`](super::ListTxn),
//! [`RegisterTxn`](super::RegisterTxn), [`RecordedWatchCall`](super::watch::RecordedWatchCall),
//! [`HoldCall`](super::intervals::HoldCall) and [`LeaseCall`](super::intervals::LeaseCall). An
//! unknown field is an error, and so is a field that occurs twice in an object, so that a typing error never drops a part
//! of a history. Every error names its line.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufRead, Read as _, Write};

use serde_json::{Deserializer, Map, Value as Json};
use thiserror::Error;

use super::history::{At, History, Operation, Outcome, Process};
use super::value::Value;

/// Maximum length of a line, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Calls that can be read from and written to the fields of a line, together with their replies.
pub trait Written: Sized {
    /// The reply to a call.
    type Reply;

    /// Takes the fields of the call with this name. Returns `None` if there is no such call.
    ///
    /// # Errors
    ///
    /// Returns an error if a field is missing or invalid.
    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError>;

    /// Takes the fields of the reply to this call.
    ///
    /// # Errors
    ///
    /// Returns an error if a field is missing or invalid.
    fn read_reply(&self, fields: &mut Fields) -> Result<Self::Reply, FieldError>;

    /// Puts the fields of this call and returns its name.
    fn write(&self, fields: &mut Fields) -> &'static str;

    /// Puts the fields of a reply to this call.
    fn write_reply(&self, reply: &Self::Reply, fields: &mut Fields);
}

/// The fields of one line. Reading a field removes it.
#[derive(Debug, Default)]
pub struct Fields(Map<String, Json>);

/// An error in a field.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FieldError {
    /// A required field is missing.
    #[error("the field `{0}` is missing")]
    Missing(&'static str),
    /// The field has another type than expected.
    #[error("the field `{name}` is {found}, not {expected}")]
    Wrong {
        /// Name of the field.
        name: &'static str,
        /// Description of a valid value.
        expected: &'static str,
        /// The value that was found.
        found: String,
    },
    /// The field has a string that is not among the allowed ones.
    #[error("the field `{name}` is {found:?}, not {expected}")]
    NoneOf {
        /// Name of the field.
        name: &'static str,
        /// The allowed strings.
        expected: String,
        /// The value that was found.
        found: String,
    },
    /// An object in a list has an unknown field.
    #[error("unknown field `{field}` in `{list}`")]
    Surplus {
        /// Name of the list.
        list: &'static str,
        /// Name of the unknown field.
        field: String,
    },
}

/// An error in a line.
#[derive(Debug, Error)]
pub enum LineFault {
    /// The line cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The line is longer than [`LINE_BYTES_MAX`].
    #[error("longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// The line is not valid JSON.
    #[error("invalid JSON: {0}")]
    NotJson(serde_json::Error),
    /// The line is valid JSON, but not an object.
    #[error("not a JSON object")]
    NotAnObject,
    /// The input is not valid EDN, or not a valid history.
    #[error("{0}")]
    NotEdn(String),
    /// A field is missing or invalid.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The model has no call with this name.
    #[error("the model has no call `{0}`")]
    NoSuchCall(String),
    /// The line has an unknown field.
    #[error("unknown field `{0}`")]
    NoSuchField(String),
    /// The line has a field twice.
    #[error("duplicate field `{0}`")]
    Repeated(String),
    /// The operation ended before it began.
    #[error("`complete` ({completed}) is before `invoke` ({invoked})")]
    Backwards {
        /// Value of `invoke`.
        invoked: u64,
        /// Value of `complete`.
        completed: u64,
    },
}

impl From<serde_json::Error> for LineFault {
    fn from(error: serde_json::Error) -> Self {
        LineFault::NotJson(error)
    }
}

/// An error in a history, with the line where it occurred.
#[derive(Debug, Error)]
#[error("line {line}: {fault}")]
pub struct LineError {
    /// Line number, from 1.
    pub line: usize,
    /// The error.
    pub fault: LineFault,
}

impl Fields {
    /// Takes a field, if it exists.
    pub fn take(&mut self, name: &'static str) -> Option<Json> {
        self.0.remove(name)
    }

    /// Takes a non-negative integer.
    ///
    /// # Errors
    ///
    /// Returns an error if the field has another type.
    pub fn number(&mut self, name: &'static str) -> Result<Option<u64>, FieldError> {
        let Some(json) = self.take(name) else { return Ok(None) };
        match json.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(name, "a non-negative integer", &json)),
        }
    }

    /// Takes a required field that is a non-negative integer or null.
    ///
    /// # Errors
    ///
    /// Returns an error if the field is missing or has another type.
    pub fn number_or_null(&mut self, name: &'static str) -> Result<Option<u64>, FieldError> {
        match self.take(name) {
            None => Err(FieldError::Missing(name)),
            Some(Json::Null) => Ok(None),
            Some(json) => json
                .as_u64()
                .map(Some)
                .ok_or_else(|| wrong(name, "a non-negative integer or null", &json)),
        }
    }

    /// Takes a string.
    ///
    /// # Errors
    ///
    /// Returns an error if the field has another type.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(json) => Err(wrong(name, "a string", &json)),
        }
    }

    /// Takes a required field that is a string or null.
    ///
    /// # Errors
    ///
    /// Returns an error if the field is missing or has another type.
    pub fn text_or_null(
        &mut self,
        name: &'static str,
    ) -> Result<Option<Option<String>>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Null) => Ok(Some(None)),
            Some(Json::String(text)) => Ok(Some(Some(text))),
            Some(json) => Err(wrong(name, "a string or null", &json)),
        }
    }

    /// Takes one of several allowed strings and returns its index among them.
    ///
    /// # Errors
    ///
    /// Returns an error if the field has any other value.
    pub fn one_of(
        &mut self,
        name: &'static str,
        texts: &[&'static str],
    ) -> Result<Option<usize>, FieldError> {
        let Some(found) = self.text(name)? else { return Ok(None) };
        match texts.iter().position(|text| *text == found) {
            Some(place) => Ok(Some(place)),
            None => Err(FieldError::NoneOf { name, expected: texts.join(" or "), found }),
        }
    }

    /// Takes a list of objects.
    ///
    /// # Errors
    ///
    /// Returns an error if the field is not a list or has other elements.
    pub fn list(&mut self, name: &'static str) -> Result<Option<Vec<Fields>>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Array(list)) => list
                .into_iter()
                .map(|one| match one {
                    Json::Object(map) => Ok(Self(map)),
                    other => Err(wrong(name, "a list of objects", &other)),
                })
                .collect::<Result<_, _>>()
                .map(Some),
            Some(json) => Err(wrong(name, "a list of objects", &json)),
        }
    }

    /// Returns whether a field exists.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Checks that all fields of an object in a list were taken.
    ///
    /// # Errors
    ///
    /// Returns an error if a field is left.
    pub fn end(self, list: &'static str) -> Result<(), FieldError> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((field, _)) => Err(FieldError::Surplus { list, field }),
        }
    }

    /// Takes a boolean.
    ///
    /// # Errors
    ///
    /// Returns an error if the field has another type.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Bool(flag)) => Ok(Some(flag)),
            Some(json) => Err(wrong(name, "true or false", &json)),
        }
    }

    /// Takes a required field that is a value.
    ///
    /// # Errors
    ///
    /// Returns an error if the field is missing or not a value.
    pub fn value(&mut self, name: &'static str) -> Result<Value, FieldError> {
        match self.take(name) {
            None => Err(FieldError::Missing(name)),
            Some(json) => value(&json)
                .ok_or_else(|| wrong(name, "a 64-bit signed integer or a string", &json)),
        }
    }

    /// Takes a required field that is a value or null.
    ///
    /// # Errors
    ///
    /// Returns an error if the field is missing or has another type.
    pub fn value_or_null(&mut self, name: &'static str) -> Result<Option<Value>, FieldError> {
        match self.take(name) {
            None => Err(FieldError::Missing(name)),
            Some(Json::Null) => Ok(None),
            Some(json) => value(&json)
                .map(Some)
                .ok_or_else(|| wrong(name, "a 64-bit signed integer, a string or null", &json)),
        }
    }

    /// Returns the remaining fields, sorted by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Json)> {
        self.0.iter()
    }

    /// Puts a field.
    pub fn put(&mut self, name: &'static str, json: impl Into<Json>) {
        self.0.insert(name.to_owned(), json.into());
    }

    /// Puts a list of objects.
    pub fn put_list(&mut self, name: &'static str, list: impl IntoIterator<Item = Fields>) {
        let list: Vec<Json> = list.into_iter().map(|fields| Json::Object(fields.0)).collect();
        self.put(name, list);
    }

    /// Puts a value or null.
    pub fn put_value(&mut self, name: &'static str, value: Option<&Value>) {
        self.put(name, value.map_or(Json::Null, json));
    }
}

/// Returns the value that a piece of JSON represents, if it represents one.
pub(super) fn value(json: &Json) -> Option<Value> {
    match json {
        Json::Number(number) => number.as_i64().map(Value::Number),
        Json::String(text) => Some(Value::Text(text.as_str().into())),
        _ => None,
    }
}

pub(super) fn json(value: &Value) -> Json {
    match value {
        Value::Number(number) => (*number).into(),
        Value::Text(text) => text.as_ref().into(),
    }
}

/// Returns an error that shows the beginning of the value that was found.
pub(super) fn wrong(name: &'static str, expected: &'static str, found: &Json) -> FieldError {
    const SHOWN_CHARS_MAX: usize = 40;
    let text = found.to_string();
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    FieldError::Wrong { name, expected, found: shown }
}

/// A history, with the line of each of its operations.
#[derive(Clone, Debug)]
pub struct Lines<C, R> {
    /// The history.
    pub history: History<C, R>,
    /// Line number of each operation, from 1.
    pub numbers: Vec<usize>,
    /// The first line without a process. The process of this line counts as 0, which may be wrong.
    pub nameless: Option<usize>,
}

impl<C, R> Lines<C, R> {
    pub(super) fn new() -> Self {
        Self { history: Vec::new(), numbers: Vec::new(), nameless: None }
    }
}

/// Reads a history line by line up to the end of the input.
///
/// # Errors
///
/// Returns an error for the first line that cannot be read or that the model does not know.
pub fn read<C: Written>(mut from: impl BufRead) -> Result<Lines<C, C::Reply>, LineError> {
    let mut lines = Lines::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let fault = |fault: LineFault| LineError { line, fault };
        let read = (&mut from)
            .take(LINE_BYTES_MAX as u64 + 1)
            .read_until(b'\n', &mut bytes)
            .map_err(|error| fault(error.into()))?;
        if read == 0 {
            break;
        }
        if read > LINE_BYTES_MAX {
            return Err(fault(LineFault::TooLong));
        }
        let said = bytes.trim_ascii();
        if said.is_empty() || said[0] == b'#' {
            continue;
        }
        let map = object(said).map_err(fault)?;
        if !map.contains_key("process") {
            lines.nameless.get_or_insert(line);
        }
        lines.history.push(of_fields::<C>(map).map_err(fault)?);
        lines.numbers.push(line);
    }
    Ok(lines)
}

fn object(line: &[u8]) -> Result<Map<String, Json>, LineFault> {
    let Json::Object(map) = serde_json::from_slice(line)? else {
        return Err(LineFault::NotAnObject);
    };
    match repeated(line) {
        Some(name) => Err(LineFault::Repeated(name)),
        None => Ok(map),
    }
}

/// Returns the first name that occurs twice in one object of a line of valid JSON. The parsed map only has the last
/// of such fields.
fn repeated(line: &[u8]) -> Option<String> {
    let mut rest = line;
    let mut open: Vec<BTreeSet<String>> = Vec::new();
    while let Some((first, after)) = rest.split_first() {
        match first {
            b'{' => open.push(BTreeSet::new()),
            b'}' => drop(open.pop()),
            b'"' => {
                let mut texts = Deserializer::from_slice(rest).into_iter::<String>();
                let text = texts.next()?.ok()?;
                rest = rest[texts.byte_offset()..].trim_ascii_start();
                if rest.starts_with(b":") && !open.last_mut()?.insert(text.clone()) {
                    return Some(text);
                }
                continue;
            }
            _ => {}
        }
        rest = after;
    }
    None
}

/// Builds the operation from the fields of a line.
pub(super) fn of_fields<C: Written>(
    map: Map<String, Json>,
) -> Result<Operation<C, C::Reply>, LineFault> {
    let fields = &mut Fields(map);
    let process = Process(fields.number("process")?.unwrap_or(0));
    let object = fields.text("object")?.unwrap_or_default().into();
    let invoked = fields.number("invoke")?.ok_or(FieldError::Missing("invoke"))?;
    let completed = fields.number("complete")?;
    if let Some(completed) = completed.filter(|completed| *completed < invoked) {
        return Err(LineFault::Backwards { invoked, completed });
    }
    let ended = completed.map(At);
    let name = fields.text("call")?.ok_or(FieldError::Missing("call"))?;
    let outcome = fields.text("outcome")?.ok_or(FieldError::Missing("outcome"))?;
    let Some(call) = C::read(&name, fields)? else {
        return Err(LineFault::NoSuchCall(name));
    };
    let outcome = match outcome.as_str() {
        "ok" => Outcome::Ok {
            at: ended.ok_or(FieldError::Missing("complete"))?,
            reply: call.read_reply(fields)?,
        },
        "failed" => Outcome::Failed { at: ended },
        "unknown" => Outcome::Unknown { at: ended },
        _ => {
            let expected = "\"ok\", \"failed\" or \"unknown\"";
            return Err(wrong("outcome", expected, &outcome.into()).into());
        }
    };
    match fields.0.keys().next() {
        Some(left) => Err(LineFault::NoSuchField(left.clone())),
        None => Ok(Operation { process, object, invoked: At(invoked), call, outcome }),
    }
}

/// Returns an operation as one line, without a line break.
pub fn line<C: Written>(operation: &Operation<C, C::Reply>) -> String {
    let mut text = format!("{{\"process\":{}", operation.process.0);
    let mut say = |name: &str, json: &Json| {
        write!(text, ",{}:{json}", Json::from(name)).expect("a String takes everything");
    };
    if !operation.object.is_empty() {
        say("object", &operation.object.as_ref().into());
    }
    say("invoke", &operation.invoked.0.into());
    if let Some(At(ended)) = operation.ended() {
        say("complete", &ended.into());
    }
    let mut fields = Fields::default();
    let name = operation.call.write(&mut fields);
    let outcome = match &operation.outcome {
        Outcome::Ok { reply, .. } => {
            operation.call.write_reply(reply, &mut fields);
            "ok"
        }
        Outcome::Failed { .. } => "failed",
        Outcome::Unknown { .. } => "unknown",
    };
    say("outcome", &outcome.into());
    say("call", &name.into());
    for (name, json) in &fields.0 {
        say(name, json);
    }
    text.push('}');
    text
}

/// Writes a history in the format that [`read`] reads.
///
/// # Errors
///
/// Returns the errors of `to`.
pub fn write<C: Written>(history: &History<C, C::Reply>, mut to: impl Write) -> io::Result<()> {
    for operation in history {
        writeln!(to, "{}", line(operation))?;
    }
    to.flush()
}

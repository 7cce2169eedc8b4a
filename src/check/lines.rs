//! Histories as JSON lines: one operation, one line, in any order.
//!
//! ```text
//! {"process":1,"object":"x","invoke":10,"complete":14,"outcome":"ok","call":"write","value":7}
//! {"process":2,"object":"x","invoke":12,"complete":19,"outcome":"ok","call":"read","result":7}
//! {"process":3,"object":"x","invoke":13,"outcome":"unknown","call":"write","value":8}
//! # a line that begins with # says nothing, and so does an empty one
//! ```
//!
//! | field | what it is | if it is missing |
//! |---|---|---|
//! | `process` | a number: who called; only [`Level::SessionSerializable`](super::Level) asks for it | 0 |
//! | `object` | a text: each object is judged by itself | `""` |
//! | `invoke` | a number: the moment of the call, in any unit | an error |
//! | `complete` | a number, not before `invoke`: when the caller knew the end | an error with `ok` |
//! | `outcome` | `ok`, `failed` (it never takes effect) or `unknown` (it may, at any later moment) | an error |
//! | `call` | one of the model's, with its fields | an error |
//!
//! What calls there are, and their fields, stands at each model. A field that nobody knows is an error, and so is one that
//! stands twice in an object, so that a slip of the pen never makes a history say less than was meant. Every
//! error names its line.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufRead, Read as _, Write};

use serde_json::{Deserializer, Map, Value as Json};
use thiserror::Error;

use super::history::{At, History, Operation, Outcome, Process};
use super::value::Value;

/// The longest line that is read, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Calls that can be written as fields of a line, with what comes back of them.
pub trait Written: Sized {
    /// What comes back.
    type Reply;

    /// Takes the fields of the call of this name; `None` if there is no such call.
    ///
    /// # Errors
    ///
    /// What is wrong with the fields.
    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError>;

    /// Takes the fields of what came back of this call.
    ///
    /// # Errors
    ///
    /// What is wrong with the fields.
    fn read_reply(&self, fields: &mut Fields) -> Result<Self::Reply, FieldError>;

    /// The name of this call; and puts its fields.
    fn write(&self, fields: &mut Fields) -> &'static str;

    /// Puts the fields of what came back of this call.
    fn write_reply(&self, reply: &Self::Reply, fields: &mut Fields);
}

/// The fields of one line, from which each is taken once.
#[derive(Debug, Default)]
pub struct Fields(Map<String, Json>);

/// What is wrong with a field.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FieldError {
    /// It must be there.
    #[error("the field `{0}` is missing")]
    Missing(&'static str),
    /// It holds something else than it should.
    #[error("the field `{name}` is {found}, not {expected}")]
    Wrong {
        /// Its name.
        name: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// It holds another text than it may.
    #[error("the field `{name}` is {found:?}, not {expected}")]
    NoneOf {
        /// Its name.
        name: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// In a list, an object has a field that nobody knows.
    #[error("nobody knows the field `{field}` in `{list}`")]
    Surplus {
        /// The list's name.
        list: &'static str,
        /// The field's.
        field: String,
    },
}

/// What is wrong with a line.
#[derive(Debug, Error)]
pub enum LineFault {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is longer than [`LINE_BYTES_MAX`].
    #[error("it is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// It is no JSON.
    #[error("it is no JSON: {0}")]
    NotJson(serde_json::Error),
    /// It is JSON, but no object.
    #[error("it is no JSON object")]
    NotAnObject,
    /// It is no EDN, or none that says what a history says.
    #[error("{0}")]
    NotEdn(String),
    /// A field is missing, or not what it should be.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The model has no such call.
    #[error("the model has no call `{0}`")]
    NoSuchCall(String),
    /// A field that nobody knows.
    #[error("nobody knows the field `{0}` here")]
    NoSuchField(String),
    /// A field that is said twice.
    #[error("the field `{0}` stands twice in one object")]
    Repeated(String),
    /// It ended before it began.
    #[error("it completes at {completed}, before it is invoked at {invoked}")]
    Backwards {
        /// `invoke`.
        invoked: u64,
        /// `complete`.
        completed: u64,
    },
}

impl From<serde_json::Error> for LineFault {
    fn from(error: serde_json::Error) -> Self {
        LineFault::NotJson(error)
    }
}

/// A history that cannot be read.
#[derive(Debug, Error)]
#[error("line {line}: {fault}")]
pub struct LineError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub fault: LineFault,
}

impl Fields {
    /// Takes a field, if it is there.
    pub fn take(&mut self, name: &'static str) -> Option<Json> {
        self.0.remove(name)
    }

    /// Takes a number from 0.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn number(&mut self, name: &'static str) -> Result<Option<u64>, FieldError> {
        let Some(json) = self.take(name) else { return Ok(None) };
        match json.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(name, "a whole number from 0", &json)),
        }
    }

    /// Takes a number from 0, or null, one of which must be there.
    ///
    /// # Errors
    ///
    /// It is missing, or neither.
    pub fn number_or_null(&mut self, name: &'static str) -> Result<Option<u64>, FieldError> {
        match self.take(name) {
            None => Err(FieldError::Missing(name)),
            Some(Json::Null) => Ok(None),
            Some(json) => json
                .as_u64()
                .map(Some)
                .ok_or_else(|| wrong(name, "a whole number from 0, or null", &json)),
        }
    }

    /// Takes a text.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(json) => Err(wrong(name, "a text", &json)),
        }
    }

    /// Takes a text or null.
    ///
    /// # Errors
    ///
    /// It is neither.
    pub fn text_or_null(
        &mut self,
        name: &'static str,
    ) -> Result<Option<Option<String>>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Null) => Ok(Some(None)),
            Some(Json::String(text)) => Ok(Some(Some(text))),
            Some(json) => Err(wrong(name, "a text or null", &json)),
        }
    }

    /// Takes one of some texts: its place among them.
    ///
    /// # Errors
    ///
    /// It is none of them.
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
    /// It is no list, or there is something else in it.
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

    /// Whether a field is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Takes care that everything was taken of an object in a list.
    ///
    /// # Errors
    ///
    /// Something is left.
    pub fn end(self, list: &'static str) -> Result<(), FieldError> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((field, _)) => Err(FieldError::Surplus { list, field }),
        }
    }

    /// Takes true or false.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Bool(flag)) => Ok(Some(flag)),
            Some(json) => Err(wrong(name, "true or false", &json)),
        }
    }

    /// Takes a value that must be there.
    ///
    /// # Errors
    ///
    /// It is missing, or no value.
    pub fn value(&mut self, name: &'static str) -> Result<Value, FieldError> {
        match self.take(name) {
            None => Err(FieldError::Missing(name)),
            Some(json) => value(&json)
                .ok_or_else(|| wrong(name, "a whole number below 2^63 or a text", &json)),
        }
    }

    /// Takes a value or null, one of which must be there.
    ///
    /// # Errors
    ///
    /// It is missing, or neither.
    pub fn value_or_null(&mut self, name: &'static str) -> Result<Option<Value>, FieldError> {
        match self.take(name) {
            None => Err(FieldError::Missing(name)),
            Some(Json::Null) => Ok(None),
            Some(json) => value(&json)
                .map(Some)
                .ok_or_else(|| wrong(name, "a whole number below 2^63, a text or null", &json)),
        }
    }

    /// The fields that are left, by their names.
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

    /// Puts a value, or null.
    pub fn put_value(&mut self, name: &'static str, value: Option<&Value>) {
        self.put(name, value.map_or(Json::Null, json));
    }
}

/// The value that a piece of JSON is, if it is one.
pub(super) fn value(json: &Json) -> Option<Value> {
    match json {
        Json::Number(number) => number.as_i64().map(Value::Number),
        Json::String(text) => Some(Value::Text(text.as_str().into())),
        _ => None,
    }
}

/// A value as JSON.
pub(super) fn json(value: &Value) -> Json {
    match value {
        Value::Number(number) => (*number).into(),
        Value::Text(text) => text.as_ref().into(),
    }
}

/// Says what was found, in a few characters.
pub(super) fn wrong(name: &'static str, expected: &'static str, found: &Json) -> FieldError {
    const SHOWN_CHARS_MAX: usize = 40;
    let text = found.to_string();
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    FieldError::Wrong { name, expected, found: shown }
}

/// A history, and on which line each of its operations stood.
#[derive(Clone, Debug)]
pub struct Lines<C, R> {
    /// What the lines say.
    pub history: History<C, R>,
    /// The line of each operation, from 1.
    pub numbers: Vec<usize>,
    /// The first line that does not say whose it is: its process is 0, and may be another one.
    pub nameless: Option<usize>,
}

impl<C, R> Lines<C, R> {
    pub(super) fn new() -> Self {
        Self { history: Vec::new(), numbers: Vec::new(), nameless: None }
    }
}

/// Reads a history, line by line, up to its end.
///
/// # Errors
///
/// The first line that cannot be read, or says nothing that the model knows.
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

/// The first name that stands twice in one object of a line, which is JSON: of such fields the map has the last.
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

/// The operation that the fields of a line say.
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

/// One operation as its line, without the line's end.
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

/// Writes a history that [`read`] reads.
///
/// # Errors
///
/// What `to` says.
pub fn write<C: Written>(history: &History<C, C::Reply>, mut to: impl Write) -> io::Result<()> {
    for operation in history {
        writeln!(to, "{}", line(operation))?;
    }
    to.flush()
}

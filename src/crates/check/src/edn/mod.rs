//! Reads histories in the EDN format of Jepsen: one map for each call and one for each completion.
//!
//! ```text
//! {:type :invoke, :f :write, :value 7, :process 0, :time 10, :index 0}
//! {:type :ok,     :f :write, :value 7, :process 0, :time 14, :index 1}
//! {:type :invoke, :f :cas, :value [7 8], :process 1, :time 20, :index 2}
//! {:type :info,   :f :cas, :value [7 8], :process 1, :time 99, :index 3, :error :timeout}
//! ```
//!
//! The file contains the maps one after the other, or in one vector or list. The order of the maps is the order of
//! time. `:ok` took effect, `:fail` never does, and `:info` or a missing completion means that the outcome is
//! unknown. Maps with `:process :nemesis` and all other keys of a map are ignored. Every other process must be a
//! number: a map without one is an error, so that no operation is skipped by accident.
//!
//! | dialect | `:f` | `:value` |
//! |---|---|---|
//! | [`Dialect::Register`] | `:read`, `:write`, `:cas` | a value, or nil; of `:cas` `[old new]` |
//! | [`Dialect::Set`] | `:add`, `:read` | of `:add` an element, each added only once; of `:read` the elements that were read, as a set, a vector or a list, or nil for none |
//! | [`Dialect::ListAppend`] | `:txn` | `[[:append k v] [:r k nil]]`, where `:ok` says `[:r k [v ...]]` |
//! | [`Dialect::WriteRead`] | `:txn` | `[[:w k v] [:r k nil]]`, where `:ok` says `[:r k v]` |
//! | [`Dialect::Queue`] | `:enqueue`, `:dequeue` | a value |
//! | [`Dialect::Lock`] | `:acquire`, `:release` | nothing: the owner is the process |
//!
//! A history may contain many registers and sets, as `jepsen.independent` writes them: then each value, also that of
//! a call, is `[k value]`. The value of a register may be `[version value]`, as in Jepsen's tests of etcd; versions
//! are not checked. Values are integers and strings. A value of any other type is kept as its text.

mod form;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use serde_json::{Map, Value as Json};

use super::lines::{self, LineError, LineFault, Lines, Written};
use form::{EdnReader, Form};

/// The vocabulary of a history: the possible `:f` and the meaning of `:value`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Operations on registers, for [`RegisterCall`](super::RegisterCall).
    Register,
    /// Elements that are added to a set and never removed, for [`RegisterTxn`](super::RegisterTxn): each element is a
    /// register, an `:add` writes one of them, and a `:read` reads all of them.
    Set,
    /// Transactions that append to lists, for [`ListTxn`](super::ListTxn).
    ListAppend,
    /// Transactions on registers, for [`RegisterTxn`](super::RegisterTxn).
    WriteRead,
    /// Operations on queues, for [`QueueCall`](super::QueueCall).
    Queue,
    /// Operations on locks, for [`MutexCall`](super::MutexCall) and [`SemaphoreCall`](super::SemaphoreCall).
    Lock,
}

/// Reads a history up to the end of the input. The line of an operation is the line of its call.
///
/// # Errors
///
/// Returns an error for the first form that is not valid EDN or that the dialect does not know.
///
/// ```
/// use bowline_check::edn::{self, Dialect};
/// use bowline_check::{Budget, Register, RegisterCall, linear};
///
/// let text = "{:type :invoke, :f :write, :value 7, :process 0}
///             {:type :ok, :f :write, :value 7, :process 0}
///             {:type :invoke, :f :read, :value nil, :process 1}
///             {:type :ok, :f :read, :value 6, :process 1}";
/// let lines = edn::read::<RegisterCall>(text.as_bytes(), Dialect::Register)?;
/// let verdict = linear::check(&Register::default(), &lines.history, Budget::default());
/// assert_eq!(lines.numbers[verdict.violation().unwrap().operations[0]], 3);
/// # Ok::<(), bowline_check::lines::LineError>(())
/// ```
pub fn read<C: Written>(
    mut from: impl Read,
    dialect: Dialect,
) -> Result<Lines<C, C::Reply>, LineError> {
    let mut text = String::new();
    from.read_to_string(&mut text).map_err(|error| LineError { line: 1, fault: error.into() })?;
    let operations = operations(&text)?;
    let sets = match dialect {
        Dialect::Set => Sets::of(&operations)?,
        _ => Sets::default(),
    };
    let mut lines = Lines::new();
    for operation in operations {
        let fault = |fault| LineError { line: operation.line, fault };
        let fields =
            operation.fields(dialect, &sets).map_err(|why| fault(LineFault::NotEdn(why)))?;
        lines.history.push(lines::of_fields::<C>(fields).map_err(fault)?);
        lines.numbers.push(operation.line);
    }
    Ok(lines)
}

/// A call and its completion, if it has one.
struct EdnOperation {
    line: usize,
    process: i64,
    name: String,
    called: Form,
    invoked: u64,
    /// The type (`:ok`, `:fail` or `:info`), the value and the time of the completion.
    ended: Option<(String, Form, u64)>,
}

/// Pairs calls with their completions.
fn operations(text: &str) -> Result<Vec<EdnOperation>, LineError> {
    let mut reader = EdnReader::new(text);
    let (mut all, mut open, mut now) = (Vec::new(), BTreeMap::new(), 0);
    loop {
        let fault = |line, why| LineError { line, fault: LineFault::NotEdn(why) };
        let more = reader.skip().map_err(|why| fault(reader.line(), why))?;
        if !more {
            return Ok(all);
        }
        for (line, form) in reader.forms().map_err(|why| fault(reader.line(), why))? {
            now += 1;
            take(form, line, now, &mut all, &mut open).map_err(|why| fault(line, why))?;
        }
    }
}

fn take(
    form: Form,
    line: usize,
    now: u64,
    all: &mut Vec<EdnOperation>,
    open: &mut BTreeMap<i64, usize>,
) -> Result<(), String> {
    if !matches!(form, Form::Map(_)) {
        return Err(format!("{} is not a map", excerpt(&form)));
    }
    let process = match form.get("process") {
        Some(Form::Number(process)) => process,
        Some(Form::Keyword(name)) if name == "nemesis" => return Ok(()),
        Some(other) => {
            let other = excerpt(other);
            return Err(format!(":process is {other}, neither a number nor :nemesis"));
        }
        None => return Err(":process is missing".to_owned()),
    };
    let word = |name: &str| match form.get(name) {
        Some(Form::Keyword(word)) => Ok(word.clone()),
        Some(other) => Err(format!(":{name} is {}, not a keyword", excerpt(other))),
        None => Err(format!(":{name} is missing")),
    };
    let (kind, name) = (word("type")?, word("f")?);
    let value = form.get("value").cloned().unwrap_or(Form::Nil);
    match kind.as_str() {
        "invoke" => {
            if open.insert(*process, all.len()).is_some() {
                return Err(format!("process {process} calls before its previous call has ended"));
            }
            let (process, called) = (*process, value);
            all.push(EdnOperation { line, process, name, called, invoked: now, ended: None });
        }
        "ok" | "fail" | "info" => {
            let call = open.remove(process);
            let call =
                call.ok_or_else(|| format!("process {process} has no open call to complete"))?;
            all[call].ended = Some((kind, value, now));
        }
        other => return Err(format!(":type is :{other}, not :invoke, :ok, :fail or :info")),
    }
    Ok(())
}

impl EdnOperation {
    /// Returns the value of the reply, if the operation took effect.
    fn reply(&self) -> Option<&Form> {
        match &self.ended {
            Some((kind, value, _)) if kind == "ok" => Some(value),
            _ => None,
        }
    }

    /// Returns the operation as the fields of a JSON line.
    fn fields(&self, dialect: Dialect, sets: &Sets) -> Result<Map<String, Json>, String> {
        let mut fields = Map::new();
        let mut put = |name: &str, json: Json| drop(fields.insert(name.to_owned(), json));
        put("process", self.process.into());
        put("invoke", self.invoked.into());
        let outcome = match &self.ended {
            Some((kind, _, at)) => {
                put("complete", (*at).into());
                if kind == "ok" {
                    "ok"
                } else if kind == "fail" {
                    "failed"
                } else {
                    "unknown"
                }
            }
            None => "unknown",
        };
        put("outcome", outcome.into());
        let said = match dialect {
            Dialect::Register => self.register(),
            Dialect::Set => self.set(sets),
            Dialect::ListAppend => self.transaction("append", "append"),
            Dialect::WriteRead => self.transaction("w", "write"),
            Dialect::Queue => self.queue(),
            Dialect::Lock => match self.name.as_str() {
                "acquire" | "release" => {
                    Ok(vec![("call", self.name.as_str().into()), ("owner", self.process.into())])
                }
                _ => Err(self.unknown()),
            },
        };
        said?.into_iter().for_each(|(name, json)| put(name, json));
        Ok(fields)
    }

    fn unknown(&self) -> String {
        format!("unknown :f :{}", self.name)
    }

    fn register(&self) -> Result<Vec<(&'static str, Json)>, String> {
        let mut said = Vec::new();
        // The history contains many registers if the value is a pair `[k value]`. The plain value of a `:cas` is itself
        // a pair.
        let is_cas = self.name == "cas";
        let of_many =
            |form: &Form| form.pair().is_some_and(|(_, inner)| !is_cas || inner.pair().is_some());
        let mut called = &self.called;
        let many = of_many(called);
        if many {
            let (key, inner) = called.pair().expect("as just seen");
            said.push(("object", word(key).into()));
            called = inner;
        }
        // If a pair remains where a value is expected, it is a version and a value.
        if let Some((_, inner)) = called.pair().filter(|_| of_many(called)) {
            called = inner;
        }
        let reply = self.reply().map(|reply| {
            let inner = match reply.pair() {
                Some((_, inner)) if many => inner,
                _ => reply,
            };
            inner.pair().map_or(inner, |(_, inner)| inner)
        });
        match self.name.as_str() {
            "read" => {
                said.push(("call", "read".into()));
                said.extend(reply.map(|reply| ("result", json(reply))));
            }
            "write" => said.extend([("call", "write".into()), ("value", json(called))]),
            "cas" => {
                let (old, new) = called.pair().ok_or_else(|| {
                    format!(":value of :cas is {}, not [old new]", excerpt(called))
                })?;
                said.extend([("call", "cas".into()), ("expect", json(old)), ("value", json(new))]);
                said.extend(reply.map(|_| ("swapped", true.into())));
            }
            _ => return Err(self.unknown()),
        }
        Ok(said)
    }

    fn queue(&self) -> Result<Vec<(&'static str, Json)>, String> {
        match self.name.as_str() {
            "enqueue" => Ok(vec![("call", "put".into()), ("value", json(&self.called))]),
            "dequeue" => {
                let mut said = vec![("call", "take".into())];
                said.extend(self.reply().map(|reply| ("result", json(reply))));
                Ok(said)
            }
            _ => Err(self.unknown()),
        }
    }

    fn transaction(&self, name: &str, call: &str) -> Result<Vec<(&'static str, Json)>, String> {
        if !["txn", name].contains(&self.name.as_str()) {
            return Err(self.unknown());
        }
        // If the transaction has a reply, the reply contains the values of its reads.
        let is_ok = self.reply().is_some();
        let all = self.reply().unwrap_or(&self.called);
        let (mut steps, mut results) = (Vec::new(), Vec::new());
        let all = all.elements().ok_or_else(|| format!("{} is not a transaction", excerpt(all)))?;
        for step in all {
            let wrong = || format!("{} is not a step of a transaction", excerpt(step));
            let Some([Form::Keyword(what), key, value]) = step.elements() else {
                return Err(wrong());
            };
            if what == name {
                steps.push(Json::from(vec![call.into(), word(key).into(), json(value)]));
            } else if what == "r" {
                steps.push(Json::from(vec!["read".into(), Json::from(word(key))]));
                results.push(match (value, name) {
                    (Form::Nil, "append") => Json::from(Vec::<Json>::new()),
                    (_, "append") => value.elements().ok_or_else(wrong)?.iter().map(json).collect(),
                    _ => json(value),
                });
            } else {
                return Err(wrong());
            }
        }
        let mut said = vec![("call", "txn".into()), ("steps", steps.into())];
        said.extend(is_ok.then(|| ("results", results.into())));
        Ok(said)
    }

    /// Returns the name of the set, and the value that was added or read.
    fn of_set<'a>(&'a self, value: &'a Form) -> (String, &'a Form) {
        match (self.name.as_str(), self.called.pair()) {
            ("read" | "add", Some((key, _))) => {
                (word(key), value.pair().map_or(value, |(_, inner)| inner))
            }
            _ => (String::new(), value),
        }
    }

    fn set(&self, sets: &Sets) -> Result<Vec<(&'static str, Json)>, String> {
        let (mut steps, mut results) = (Vec::new(), Vec::new());
        match self.name.as_str() {
            "add" => {
                let (set, element) = self.of_set(&self.called);
                steps.push(Json::from(vec!["write".into(), in_set(&set, element), 1.into()]));
            }
            // A read of unknown outcome proves nothing, so it adds no steps.
            "read" => {
                if let Some(reply) = self.reply() {
                    let (set, found) = self.of_set(reply);
                    let found = found_in(found)?;
                    for element in sets.0.get(&set).into_iter().flatten() {
                        let key = Json::from(format!("{set} {element}").trim_start());
                        steps.push(Json::from(vec!["read".into(), key]));
                        let is_there = found.contains(element);
                        results.push(if is_there { Json::from(1) } else { Json::Null });
                    }
                }
            }
            _ => return Err(self.unknown()),
        }
        let mut said = vec![("call", "txn".into()), ("steps", steps.into())];
        said.extend(self.reply().map(|_| ("results", results.into())));
        Ok(said)
    }
}

fn in_set(set: &str, element: &Form) -> Json {
    format!("{set} {}", word(element)).trim_start().into()
}

/// All elements of each set that were ever added or read.
#[derive(Default)]
struct Sets(BTreeMap<String, BTreeSet<String>>);

impl Sets {
    fn of(operations: &[EdnOperation]) -> Result<Self, LineError> {
        let mut sets = Self::default();
        let mut added = BTreeSet::new();
        for operation in operations {
            let fault = |why| LineError { line: operation.line, fault: LineFault::NotEdn(why) };
            if operation.name == "add" {
                let (set, element) = operation.of_set(&operation.called);
                let element = word(element);
                if !added.insert((set.clone(), element.clone())) {
                    let why = format!(
                        "duplicate element {element}: each element must be added by one operation only"
                    );
                    return Err(fault(why));
                }
                sets.0.entry(set).or_default().insert(element);
            } else if let ("read", Some(reply)) = (operation.name.as_str(), operation.reply()) {
                let (set, found) = operation.of_set(reply);
                let found = found_in(found).map_err(fault)?;
                sets.0.entry(set).or_default().extend(found);
            }
        }
        Ok(sets)
    }
}

/// Returns the elements that a read returned. `nil` is an empty set.
fn found_in(read: &Form) -> Result<BTreeSet<String>, String> {
    match (read, read.elements()) {
        (_, Some(elements)) => Ok(elements.iter().map(word).collect()),
        (Form::Nil, None) => Ok(BTreeSet::new()),
        _ => Err(format!(
            "the value of the read is {}, not a set, a vector or a list",
            excerpt(read)
        )),
    }
}

/// Returns a form as a key.
fn word(form: &Form) -> String {
    match form {
        Form::Text(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns a form as a JSON value.
fn json(form: &Form) -> Json {
    match form {
        Form::Nil => Json::Null,
        Form::Number(number) => (*number).into(),
        other => word(other).into(),
    }
}

/// Returns the beginning of a form for an error message.
fn excerpt(form: &Form) -> String {
    const SHOWN_CHARS_MAX: usize = 40;
    let text = form.to_string();
    let mut excerpt: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if excerpt.len() < text.len() {
        excerpt.push_str("...");
    }
    excerpt
}

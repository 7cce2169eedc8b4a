//! Transactions on append-only lists and on registers, which [`cycles`](crate::cycles) checks.
//!
//! A key is a string. Among the transactions that may have taken effect, only one may write a given value to a key:
//! the checker matches reads with writers by value.
//!
//! Both kinds are also sequential models, so that `linear` can check short histories by brute force.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::lines::{self, FieldError, Fields, Written};
use crate::model::Model;
use crate::value::Value;

/// A step of a transaction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TxnStep {
    /// Reads a key.
    Read(Arc<str>),
    /// Writes a value to a key: appends it to a list, or sets a register.
    Write(Arc<str>, Value),
}

/// A transaction on lists: its steps, in order.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `txn` | `steps`: an array of `["append", key, value]` and `["read", key]` | `results`: an array with the list that each read saw, in order; a list is an array of values |
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ListTxn(pub Vec<TxnStep>);

/// A transaction on registers: its steps, in order.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `txn` | `steps`: an array of `["write", key, value]` and `["read", key]` | `results`: an array with the value that each read saw, in order, or null for none |
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RegisterTxn(pub Vec<TxnStep>);

/// Keys with lists, to which transactions append. A key without appends has the empty list.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ListAppend;

/// Keys with one value each, which transactions write. A key without writes has no value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WriteRead;

impl TxnStep {
    /// Returns a read step.
    pub fn read(key: &str) -> Self {
        Self::Read(key.into())
    }

    /// Returns a write step, or an append step for a list.
    pub fn write(key: &str, value: impl Into<Value>) -> Self {
        Self::Write(key.into(), value.into())
    }

    /// Returns the key.
    pub fn key(&self) -> &Arc<str> {
        match self {
            Self::Read(key) | Self::Write(key, _) => key,
        }
    }
}

/// Runs a transaction on `state`. Returns `None` if a read has another result than its reply.
fn run<Held: Clone + Default + PartialEq>(
    state: &BTreeMap<Arc<str>, Held>,
    steps: &[TxnStep],
    reply: Option<&Vec<Held>>,
    write: impl Fn(&mut Held, &Value),
) -> Option<BTreeMap<Arc<str>, Held>> {
    let mut after = state.clone();
    let mut said = reply.map(|reply| reply.iter());
    for step in steps {
        match step {
            TxnStep::Write(key, value) => write(after.entry(key.clone()).or_default(), value),
            TxnStep::Read(key) => {
                if let Some(said) = &mut said {
                    let nothing = Held::default();
                    if said.next()? != after.get(key).unwrap_or(&nothing) {
                        return None;
                    }
                }
            }
        }
    }
    said.is_none_or(|mut said| said.next().is_none()).then_some(after)
}

impl Model for ListAppend {
    type Call = ListTxn;
    type Reply = Vec<Vec<Value>>;
    type State = BTreeMap<Arc<str>, Vec<Value>>;

    fn initial(&self) -> Self::State {
        BTreeMap::new()
    }

    fn step(
        &self,
        state: &Self::State,
        call: &ListTxn,
        reply: Option<&Self::Reply>,
        next: &mut Vec<Self::State>,
    ) {
        next.extend(run(state, &call.0, reply, |list, value| list.push(value.clone())));
    }

    fn observes(&self, call: &ListTxn, _reply: Option<&Self::Reply>) -> bool {
        only_reads(&call.0)
    }

    texts_as_written!();
}

impl Model for WriteRead {
    type Call = RegisterTxn;
    type Reply = Vec<Option<Value>>;
    type State = BTreeMap<Arc<str>, Option<Value>>;

    fn initial(&self) -> Self::State {
        BTreeMap::new()
    }

    fn step(
        &self,
        state: &Self::State,
        call: &RegisterTxn,
        reply: Option<&Self::Reply>,
        next: &mut Vec<Self::State>,
    ) {
        next.extend(run(state, &call.0, reply, |held, value| *held = Some(value.clone())));
    }

    fn observes(&self, call: &RegisterTxn, _reply: Option<&Self::Reply>) -> bool {
        only_reads(&call.0)
    }

    texts_as_written!();
}

fn only_reads(steps: &[TxnStep]) -> bool {
    steps.iter().all(|step| matches!(step, TxnStep::Read(_)))
}

/// Takes `steps`, in which a write is called `write`.
fn read_steps(write: &str, fields: &mut Fields) -> Result<Vec<TxnStep>, FieldError> {
    let expected = match write {
        "append" => r#"an array of ["append", key, value] and ["read", key]"#,
        _ => r#"an array of ["write", key, value] and ["read", key]"#,
    };
    let json = fields.take("steps").ok_or(FieldError::Missing("steps"))?;
    let step = |json: &Json| match json.as_array()?.as_slice() {
        [Json::String(name), Json::String(key)] if name == "read" => Some(TxnStep::read(key)),
        [Json::String(name), Json::String(key), value] if name == write => {
            Some(TxnStep::Write(key.as_str().into(), lines::value(value)?))
        }
        _ => None,
    };
    let Some(steps) = json.as_array() else {
        return Err(lines::wrong("steps", expected, &json));
    };
    let wrong = |one: &Json| lines::wrong("steps", expected, one);
    steps.iter().map(|one| step(one).ok_or_else(|| wrong(one))).collect()
}

/// Takes `results`, with one result per read.
fn read_results<Seen>(
    call: &[TxnStep],
    fields: &mut Fields,
    expected: &'static str,
    seen: impl Fn(&Json) -> Option<Seen>,
) -> Result<Vec<Seen>, FieldError> {
    let reads = call.iter().filter(|step| matches!(step, TxnStep::Read(_))).count();
    let json = match fields.take("results") {
        None if reads == 0 => return Ok(Vec::new()),
        None => return Err(FieldError::Missing("results")),
        Some(json) => json,
    };
    let results = json.as_array().filter(|results| results.len() == reads);
    let Some(results) = results else {
        return Err(lines::wrong("results", "an array with one result for each read", &json));
    };
    let wrong = |one: &Json| lines::wrong("results", expected, one);
    results.iter().map(|one| seen(one).ok_or_else(|| wrong(one))).collect()
}

fn write_steps(write: &str, call: &[TxnStep], fields: &mut Fields) -> &'static str {
    let step = |step: &TxnStep| match step {
        TxnStep::Read(key) => Json::from(vec![Json::from("read"), Json::from(key.as_ref())]),
        TxnStep::Write(key, value) => {
            Json::from(vec![Json::from(write), Json::from(key.as_ref()), lines::json(value)])
        }
    };
    fields.put("steps", call.iter().map(step).collect::<Json>());
    "txn"
}

impl Written for ListTxn {
    type Reply = Vec<Vec<Value>>;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        if name == "txn" { Ok(Some(Self(read_steps("append", fields)?))) } else { Ok(None) }
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<Self::Reply, FieldError> {
        read_results(&self.0, fields, "an array of values", |json| {
            json.as_array()?.iter().map(lines::value).collect()
        })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        write_steps("append", &self.0, fields)
    }

    fn write_reply(&self, reply: &Self::Reply, fields: &mut Fields) {
        let list = |list: &Vec<Value>| list.iter().map(lines::json).collect::<Json>();
        fields.put("results", reply.iter().map(list).collect::<Json>());
    }
}

impl Written for RegisterTxn {
    type Reply = Vec<Option<Value>>;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        if name == "txn" { Ok(Some(Self(read_steps("write", fields)?))) } else { Ok(None) }
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<Self::Reply, FieldError> {
        read_results(&self.0, fields, "a value or null", |json| match json {
            Json::Null => Some(None),
            json => lines::value(json).map(Some),
        })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        write_steps("write", &self.0, fields)
    }

    fn write_reply(&self, reply: &Self::Reply, fields: &mut Fields) {
        let held = |held: &Option<Value>| held.as_ref().map_or(Json::Null, lines::json);
        fields.put("results", reply.iter().map(held).collect::<Json>());
    }
}

//! What is recorded of a store and those who watch it.
//!
//! | call | its fields | fields of an `ok` reply |
//! |---|---|---|
//! | `change` | `rows`: a list of `key` and `value` (a value; null: the row is deleted) | `revision`: a number, which all these rows have in common |
//! | `compact` | `revision`: a number | |
//! | `watch` | `stream`: a text; `key`: a text; `end`: a text, if it is about the rows from `key` up to it, null for all from `key`, missing for one row; `start`: a number, missing for "from now on"; `only`: `puts` or `deletes`, missing for both | `at`: a number, may be missing: the store's revision when it began |
//! | `receive` | `stream` | one of: `events`, with `more`: true if others of its last revision follow; `progress`: a number; `compacted`: a number |
//!
//! An event is an object with `revision`, `key`, `value` (a value; null: deleted), and, where they were told,
//! `previous` (a value or null: what the row held before) and `created` (a number: the revision since which the row
//! is there).
//!
//! A `receive` is at one moment, when it was received, so `invoke` and `complete` are equal. A `watch` with the name of
//! an earlier stream ends that one and begins anew.
//!
//! Lines stand in any order where their moments differ. At one moment changes and compactions come first, and the first
//! `watch` of each stream; then what is received, and streams that begin anew, in the order of their lines.

use std::sync::Arc;

use crate::check::history::{Operation, Outcome};
use crate::check::lines::{FieldError, Fields, Written};
use crate::check::models::{KvCall, KvReply, Seen};
use crate::check::value::Value;

/// A call, or a message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum WatchCall {
    /// The store was changed, in one revision.
    Change {
        /// Each row, with what it holds then; `None`: it is deleted.
        rows: Vec<(Arc<str>, Option<Value>)>,
    },
    /// What was before this revision may be forgotten.
    Compact {
        /// The revision.
        revision: u64,
    },
    /// Tell me of changes.
    Watch {
        /// The name under which they are told.
        stream: Arc<str>,
        /// Of which rows.
        keys: Keys,
        /// From this revision on; `None`: from now on.
        start: Option<u64>,
        /// Of which kind.
        only: Option<Kind>,
    },
    /// Something was told.
    Receive {
        /// Under which name.
        stream: Arc<str>,
    },
}

/// What came back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchReply {
    /// It was changed.
    Changed {
        /// At this revision.
        revision: u64,
    },
    /// It is compacted.
    Compacted,
    /// The stream began.
    Watching {
        /// When the store was at this revision, if that was told.
        at: Option<u64>,
    },
    /// What was told.
    Received(Received),
}

/// What was told at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// Changes.
    Events {
        /// Each of them.
        events: Vec<Event>,
        /// Whether the next message goes on with the last one's revision.
        more: bool,
    },
    /// Everything up to this revision has been told.
    Progress(u64),
    /// What should come next is gone: the store was compacted at this revision. It is the last message.
    Compacted(u64),
}

/// A change of one row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// When.
    pub revision: u64,
    /// Which row.
    pub key: Arc<str>,
    /// What it holds then; `None`: it was deleted.
    pub value: Option<Value>,
    /// What it held before, if that was told.
    pub previous: Option<Option<Value>>,
    /// Since which revision it is there, if that was told.
    pub created: Option<u64>,
}

/// Which rows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Keys {
    /// One.
    One(Arc<str>),
    /// From the first up to, and without, the second; `None`: all from the first on.
    Range(Arc<str>, Option<Arc<str>>),
}

/// A kind of change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The row holds something.
    Put,
    /// The row is gone.
    Delete,
}

impl Keys {
    /// Whether a row is one of them.
    pub fn contains(&self, key: &str) -> bool {
        match self {
            Self::One(one) => **one == *key,
            Self::Range(from, to) => **from <= *key && to.as_ref().is_none_or(|to| *key < **to),
        }
    }
}

impl Event {
    /// What kind of change it is.
    pub fn kind(&self) -> Kind {
        kind(self.value.as_ref())
    }
}

pub(super) fn kind(value: Option<&Value>) -> Kind {
    if value.is_some() { Kind::Put } else { Kind::Delete }
}

/// What an operation of a store changed, or may have changed, as those who watch see it. `None`: nothing.
///
/// So the history that [`total`](crate::check::total) judges is half of the one that is judged here.
pub fn change(operation: &Operation<KvCall, KvReply>) -> Option<Operation<WatchCall, WatchReply>> {
    let (key, value) = match &operation.call {
        KvCall::Put { key, value } | KvCall::CompareAndSet { key, value, .. } => {
            (key.clone(), Some(value.clone()))
        }
        KvCall::Delete { key } => (key.clone(), None),
        KvCall::Get { .. } => return None,
    };
    let outcome = match &operation.outcome {
        Outcome::Failed { at } => Outcome::Failed { at: *at },
        Outcome::Unknown { at } => Outcome::Unknown { at: *at },
        Outcome::Ok { reply, .. } if reply.seen == Seen::Changed(false) => return None,
        Outcome::Ok { at, reply } => match reply.revision {
            Some(revision) => Outcome::Ok { at: *at, reply: WatchReply::Changed { revision } },
            None => Outcome::Unknown { at: Some(*at) },
        },
    };
    Some(Operation {
        process: operation.process,
        object: operation.object.clone(),
        invoked: operation.invoked,
        call: WatchCall::Change { rows: vec![(key, value)] },
        outcome,
    })
}

fn needed<T>(name: &'static str, found: Option<T>) -> Result<T, FieldError> {
    found.ok_or(FieldError::Missing(name))
}

impl Written for WatchCall {
    type Reply = WatchReply;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        let mut stream = || fields.text("stream").and_then(|found| needed("stream", found));
        Ok(Some(match name {
            "change" => {
                let mut rows = Vec::new();
                for mut row in needed("rows", fields.list("rows")?)? {
                    let key = needed("key", row.text("key")?)?;
                    rows.push((key.into(), row.value_or_null("value")?));
                    row.end("rows")?;
                }
                Self::Change { rows }
            }
            "compact" => {
                Self::Compact { revision: needed("revision", fields.number("revision")?)? }
            }
            "receive" => Self::Receive { stream: stream()?.into() },
            "watch" => {
                let stream = stream()?.into();
                let key = needed("key", fields.text("key")?)?.into();
                let keys = match fields.text_or_null("end")? {
                    None => Keys::One(key),
                    Some(end) => Keys::Range(key, end.map(Into::into)),
                };
                let start = fields.number("start")?;
                let only = fields.one_of("only", &["puts", "deletes"])?;
                let only = only.map(|place| [Kind::Put, Kind::Delete][place]);
                Self::Watch { stream, keys, start, only }
            }
            _ => return Ok(None),
        }))
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<WatchReply, FieldError> {
        Ok(match self {
            Self::Change { .. } => {
                WatchReply::Changed { revision: needed("revision", fields.number("revision")?)? }
            }
            Self::Compact { .. } => WatchReply::Compacted,
            Self::Watch { .. } => WatchReply::Watching { at: fields.number("at")? },
            Self::Receive { .. } => {
                WatchReply::Received(if let Some(revision) = fields.number("progress")? {
                    Received::Progress(revision)
                } else if let Some(revision) = fields.number("compacted")? {
                    Received::Compacted(revision)
                } else {
                    let mut events = Vec::new();
                    for mut event in needed("events", fields.list("events")?)? {
                        events.push(Event {
                            revision: needed("revision", event.number("revision")?)?,
                            key: needed("key", event.text("key")?)?.into(),
                            value: event.value_or_null("value")?,
                            previous: match event.has("previous") {
                                true => Some(event.value_or_null("previous")?),
                                false => None,
                            },
                            created: event.number("created")?,
                        });
                        event.end("events")?;
                    }
                    Received::Events { events, more: fields.flag("more")?.unwrap_or(false) }
                })
            }
        })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        match self {
            Self::Change { rows } => {
                let row = |(key, value): &(Arc<str>, Option<Value>)| {
                    let mut row = Fields::default();
                    row.put("key", key.as_ref());
                    row.put_value("value", value.as_ref());
                    row
                };
                fields.put_list("rows", rows.iter().map(row));
                "change"
            }
            Self::Compact { revision } => {
                fields.put("revision", *revision);
                "compact"
            }
            Self::Watch { stream, keys, start, only } => {
                fields.put("stream", stream.as_ref());
                match keys {
                    Keys::One(key) => fields.put("key", key.as_ref()),
                    Keys::Range(key, end) => {
                        fields.put("key", key.as_ref());
                        fields.put("end", end.as_deref());
                    }
                }
                if let Some(start) = start {
                    fields.put("start", *start);
                }
                match only {
                    Some(Kind::Put) => fields.put("only", "puts"),
                    Some(Kind::Delete) => fields.put("only", "deletes"),
                    None => {}
                }
                "watch"
            }
            Self::Receive { stream } => {
                fields.put("stream", stream.as_ref());
                "receive"
            }
        }
    }

    fn write_reply(&self, reply: &WatchReply, fields: &mut Fields) {
        match reply {
            WatchReply::Changed { revision } => fields.put("revision", *revision),
            WatchReply::Compacted | WatchReply::Watching { at: None } => {}
            WatchReply::Watching { at: Some(at) } => fields.put("at", *at),
            WatchReply::Received(Received::Progress(revision)) => {
                fields.put("progress", *revision);
            }
            WatchReply::Received(Received::Compacted(revision)) => {
                fields.put("compacted", *revision);
            }
            WatchReply::Received(Received::Events { events, more }) => {
                let event = |event: &Event| {
                    let mut fields = Fields::default();
                    fields.put("revision", event.revision);
                    fields.put("key", event.key.as_ref());
                    fields.put_value("value", event.value.as_ref());
                    if let Some(previous) = &event.previous {
                        fields.put_value("previous", previous.as_ref());
                    }
                    if let Some(created) = event.created {
                        fields.put("created", created);
                    }
                    fields
                };
                fields.put_list("events", events.iter().map(event));
                if *more {
                    fields.put("more", true);
                }
            }
        }
    }
}

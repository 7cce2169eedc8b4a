//! The notation of changes to a store and of watch streams in a history.

use std::sync::Arc;

use crate::history::{Operation, Outcome};
use crate::lines::{FieldError, Fields, Written};
use crate::models::{KvCall, KvReply, Seen};
use crate::value::Value;

/// A call on a store, or a message of a stream.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `change` | `rows`: a list of `key` and `value` (a value, or null for a deletion) | `revision`: a number, shared by all these rows |
/// | `compact` | `revision`: a number | |
/// | `watch` | `stream`: a string; `key`: a string; `end`: a string for the rows from `key` up to it, null for all rows from `key`, missing for one row; `start`: a number, missing for "from now on"; `only`: `puts` or `deletes`, missing for both | `at` (optional): a number, the revision of the store when the stream began |
/// | `receive` | `stream` | one of: `events`, with `more`: true if more events of its last revision follow; `progress`: a number; `compacted`: a number |
///
/// An event is an object with `revision`, `key` and `value` (a value, or null for a deletion). If they were received,
/// it also has `previous` (the value of the row before, or null) and `created` (a number: the revision at which the row
/// was created).
///
/// A `receive` happens at one moment, so its `invoke` and `complete` are equal. A `watch` with the name of an earlier
/// stream ends that stream and begins a new one.
///
/// Lines with different times may be in any order. Among lines with the same time, changes, compactions and the first
/// `watch` of each stream come first. Messages and restarted streams come after them, in the order of their lines.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RecordedWatchCall {
    /// Changes the store in one revision.
    Change {
        /// Each row with its new value, or `None` if it is deleted.
        rows: Vec<(Arc<str>, Option<Value>)>,
    },
    /// Discards history before a revision.
    Compact {
        /// The revision.
        revision: u64,
    },
    /// Begins a watch stream.
    Watch {
        /// Name of the stream.
        stream: Arc<str>,
        /// The watched rows.
        keys: Keys,
        /// The first revision to report, or `None` for "from now on".
        start: Option<u64>,
        /// The only kind of change to report, if there is a filter.
        only: Option<RecordedEventKind>,
    },
    /// Receives a message.
    Receive {
        /// Name of the stream.
        stream: Arc<str>,
    },
}

/// The reply to a call, or the content of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchReply {
    /// The store was changed.
    Changed {
        /// The revision of the change.
        revision: u64,
    },
    /// The store was compacted.
    Compacted,
    /// The stream began.
    Watching {
        /// The revision of the store at that time, if the reply contains it.
        at: Option<u64>,
    },
    /// A message was received.
    Received(Received),
}

/// The content of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// Events.
    Events {
        /// The events, in order.
        events: Vec<RecordedEvent>,
        /// Whether the next message continues the last revision.
        more: bool,
    },
    /// All events up to this revision have been sent.
    Progress(u64),
    /// The next events were discarded: the store was compacted at this revision. It is the last message of the
    /// stream.
    Compacted(u64),
}

/// A change of one row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedEvent {
    /// Revision of the change.
    pub revision: u64,
    /// Key of the row.
    pub key: Arc<str>,
    /// The new value, or `None` if the row was deleted.
    pub value: Option<Value>,
    /// The value before, if the event contains it.
    pub previous: Option<Option<Value>>,
    /// The revision at which the row was created, if the event contains it.
    pub created: Option<u64>,
}

/// A set of watched rows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Keys {
    /// One row.
    One(Arc<str>),
    /// The rows from the first key up to the second (exclusive), or all rows from the first key if `None`.
    Range(Arc<str>, Option<Arc<str>>),
}

/// A kind of change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecordedEventKind {
    /// The row was written.
    Put,
    /// The row was deleted.
    Delete,
}

impl Keys {
    /// Returns whether a row is in the set.
    pub fn contains(&self, key: &str) -> bool {
        match self {
            Self::One(one) => **one == *key,
            Self::Range(from, to) => **from <= *key && to.as_ref().is_none_or(|to| *key < **to),
        }
    }
}

impl RecordedEvent {
    /// Returns the kind of the change.
    pub fn kind(&self) -> RecordedEventKind {
        kind(self.value.as_ref())
    }
}

pub(super) fn kind(value: Option<&Value>) -> RecordedEventKind {
    if value.is_some() { RecordedEventKind::Put } else { RecordedEventKind::Delete }
}

/// Converts an operation on a store into the change that watch streams may report. Returns `None` if the
/// operation changes nothing.
///
/// This turns a history for [`total`](crate::total) into one half of a history for this checker.
pub fn change(
    operation: &Operation<KvCall, KvReply>,
) -> Option<Operation<RecordedWatchCall, WatchReply>> {
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
        call: RecordedWatchCall::Change { rows: vec![(key, value)] },
        outcome,
    })
}

fn needed<T>(name: &'static str, found: Option<T>) -> Result<T, FieldError> {
    found.ok_or(FieldError::Missing(name))
}

impl Written for RecordedWatchCall {
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
                let only =
                    only.map(|place| [RecordedEventKind::Put, RecordedEventKind::Delete][place]);
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
                        events.push(RecordedEvent {
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
                    Some(RecordedEventKind::Put) => fields.put("only", "puts"),
                    Some(RecordedEventKind::Delete) => fields.put("only", "deletes"),
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
                let event = |event: &RecordedEvent| {
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

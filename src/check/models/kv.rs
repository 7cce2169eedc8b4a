//! A store of rows under one revision, as etcd's and Bowline's: each change of the store makes the next one.
//!
//! | call | its fields | fields of an `ok` reply |
//! |---|---|---|
//! | `put` | `key`: a text; `value`: a value | |
//! | `get` | `key` | `result`: a value or null; `modified`: a number, may be missing: the revision of its last change |
//! | `delete` | `key` | `deleted`: true or false; what was not there makes no revision |
//! | `cas` | `key`; `expect`: a number, the revision of the last change, or null: no such row; `value` | `swapped`: true or false |
//!
//! Every reply may have `revision`, a number: the store's, right after the call took effect.
//!
//! All rows of an object are judged together, since revisions order them together. Who has no revisions is better
//! off with a register for each key.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::check::lines::{FieldError, Fields, Written};
use crate::check::model::Model;
use crate::check::value::Value;

/// A store whose revision is `first` and which has no rows, before the first operation.
///
/// Revisions must have no gaps: whatever else writes to the store must be in the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kv {
    /// The revision before the first operation. By default 1, as in a new etcd and a new Bowline.
    pub first: u64,
}

impl Default for Kv {
    fn default() -> Self {
        Self { first: 1 }
    }
}

/// What a store is asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum KvCall {
    /// Write a row.
    Put {
        /// Its key.
        key: Arc<str>,
        /// What it holds then.
        value: Value,
    },
    /// Read a row.
    Get {
        /// Its key.
        key: Arc<str>,
    },
    /// Delete a row, if it is there.
    Delete {
        /// Its key.
        key: Arc<str>,
    },
    /// Write a row, if its last change was at `expect`; `None`: if it is not there.
    CompareAndSet {
        /// Its key.
        key: Arc<str>,
        /// The revision of its last change.
        expect: Option<u64>,
        /// What it holds then.
        value: Value,
    },
}

/// What a store says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvReply {
    /// What came of the call.
    pub seen: Seen,
    /// The store's revision after the call, if the reply has it.
    pub revision: Option<u64>,
}

/// What came of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The row was written.
    Written,
    /// The row held this, or was not there.
    Read {
        /// What it held.
        value: Option<Value>,
        /// The revision of its last change, if the reply has it.
        modified: Option<u64>,
    },
    /// Whether a row was deleted, or a comparison was true and the row written.
    Changed(bool),
}

/// A row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Row {
    /// What it holds.
    pub value: Value,
    /// The revision of its last change.
    pub modified: u64,
}

/// What a store is like between two calls.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KvState {
    /// How many changes there were, and the first revision.
    pub revision: u64,
    /// Its rows.
    pub rows: BTreeMap<Arc<str>, Row>,
}

impl KvCall {
    /// The row's key.
    pub fn key(&self) -> &Arc<str> {
        match self {
            Self::Put { key, .. }
            | Self::Get { key }
            | Self::Delete { key }
            | Self::CompareAndSet { key, .. } => key,
        }
    }
}

impl KvState {
    fn written(&self, key: &Arc<str>, value: &Value) -> Self {
        let mut after = Self { revision: self.revision + 1, rows: self.rows.clone() };
        let row = Row { value: value.clone(), modified: after.revision };
        after.rows.insert(key.clone(), row);
        after
    }
}

impl Model for Kv {
    type Call = KvCall;
    type Reply = KvReply;
    type State = KvState;

    fn initial(&self) -> KvState {
        KvState { revision: self.first, rows: BTreeMap::new() }
    }

    fn step(
        &self,
        state: &KvState,
        call: &KvCall,
        reply: Option<&KvReply>,
        next: &mut Vec<KvState>,
    ) {
        let row = state.rows.get(call.key());
        // A reply that names another revision costs no copy of the store.
        let changes = match call {
            KvCall::Put { .. } => true,
            KvCall::Get { .. } => false,
            KvCall::Delete { .. } => row.is_some(),
            KvCall::CompareAndSet { expect, .. } => row.map(|row| row.modified) == *expect,
        };
        let fits = reply.is_none_or(|KvReply { seen, revision }| {
            let at = state.revision + u64::from(changes);
            revision.is_none_or(|revision| revision == at)
                && match (call, seen) {
                    (KvCall::Put { .. }, Seen::Written) => true,
                    (KvCall::Get { .. }, Seen::Read { value, modified }) => {
                        row.map(|row| &row.value) == value.as_ref()
                            && (modified.is_none() || row.map(|row| row.modified) == *modified)
                    }
                    (KvCall::Delete { .. } | KvCall::CompareAndSet { .. }, Seen::Changed(seen)) => {
                        changes == *seen
                    }
                    _ => false,
                }
        });
        if !fits {
            return;
        }
        next.push(match call {
            KvCall::Put { key, value } => state.written(key, value),
            KvCall::CompareAndSet { key, value, .. } if changes => state.written(key, value),
            KvCall::Delete { key } if changes => {
                let mut after = state.clone();
                after.revision += 1;
                after.rows.remove(key);
                after
            }
            _ => state.clone(),
        });
    }

    fn observes(&self, call: &KvCall, reply: Option<&KvReply>) -> bool {
        matches!(call, KvCall::Get { .. })
            || reply.is_some_and(|reply| reply.seen == Seen::Changed(false))
    }
}

impl Written for KvCall {
    type Reply = KvReply;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        if !["put", "get", "delete", "cas"].contains(&name) {
            return Ok(None);
        }
        let key: Arc<str> = fields.text("key")?.ok_or(FieldError::Missing("key"))?.into();
        Ok(Some(match name {
            "put" => Self::Put { key, value: fields.value("value")? },
            "get" => Self::Get { key },
            "delete" => Self::Delete { key },
            _ => Self::CompareAndSet {
                key,
                expect: fields.number_or_null("expect")?,
                value: fields.value("value")?,
            },
        }))
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<KvReply, FieldError> {
        let mut flag = |name| fields.flag(name)?.ok_or(FieldError::Missing(name));
        let seen = match self {
            Self::Put { .. } => Seen::Written,
            Self::Get { .. } => Seen::Read {
                value: fields.value_or_null("result")?,
                modified: fields.number("modified")?,
            },
            Self::Delete { .. } => Seen::Changed(flag("deleted")?),
            Self::CompareAndSet { .. } => Seen::Changed(flag("swapped")?),
        };
        Ok(KvReply { seen, revision: fields.number("revision")? })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        fields.put("key", self.key().as_ref());
        match self {
            Self::Put { value, .. } => {
                fields.put_value("value", Some(value));
                "put"
            }
            Self::Get { .. } => "get",
            Self::Delete { .. } => "delete",
            Self::CompareAndSet { expect, value, .. } => {
                fields.put("expect", *expect);
                fields.put_value("value", Some(value));
                "cas"
            }
        }
    }

    fn write_reply(&self, reply: &KvReply, fields: &mut Fields) {
        match &reply.seen {
            Seen::Written => {}
            Seen::Read { value, modified } => {
                fields.put_value("result", value.as_ref());
                if let Some(modified) = modified {
                    fields.put("modified", *modified);
                }
            }
            Seen::Changed(changed) => {
                let is_delete = matches!(self, Self::Delete { .. });
                fields.put(if is_delete { "deleted" } else { "swapped" }, *changed);
            }
        }
        if let Some(revision) = reply.revision {
            fields.put("revision", revision);
        }
    }
}

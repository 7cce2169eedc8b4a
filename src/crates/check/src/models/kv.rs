//! A model of a key-value store with one revision, as in etcd and Bowline: each change increments it.
//!
//! All rows of an object are checked together because the revisions order them together. For a store without
//! revisions, use one register per key instead.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lines::{FieldError, Fields, Written};
use crate::model::Model;
use crate::value::Value;

/// A store without rows that starts at revision `first`.
///
/// Revisions must have no gaps: the history must contain all writes to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kv {
    /// The revision before the first operation. Default 1, as in a new etcd and a new Bowline.
    pub first: u64,
}

impl Default for Kv {
    fn default() -> Self {
        Self { first: 1 }
    }
}

/// A call on a store.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `put` | `key`: a string; `value`: a value | |
/// | `get` | `key` | `result`: a value or null; `modified` (optional): a number, the revision of its last change |
/// | `delete` | `key` | `deleted`: true or false; deleting a missing key makes no revision |
/// | `cas` | `key`; `expect`: a number, the revision of the last change, or null for a missing key; `value` | `swapped`: true or false |
///
/// Every reply may contain `revision`, a number: the revision of the store right after the call took effect.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum KvCall {
    /// Writes a row.
    Put {
        /// Key of the row.
        key: Arc<str>,
        /// The new value.
        value: Value,
    },
    /// Reads a row.
    Get {
        /// Key of the row.
        key: Arc<str>,
    },
    /// Deletes a row if it exists.
    Delete {
        /// Key of the row.
        key: Arc<str>,
    },
    /// Writes a row if its last change was at `expect`, or if the row does not exist and `expect` is `None`.
    CompareAndSet {
        /// Key of the row.
        key: Arc<str>,
        /// The expected revision of the last change.
        expect: Option<u64>,
        /// The new value.
        value: Value,
    },
}

/// The reply of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvReply {
    /// The result of the call.
    pub seen: Seen,
    /// The revision of the store after the call, if the reply contains it.
    pub revision: Option<u64>,
}

/// The result of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The row was written.
    Written,
    /// The row was read, or did not exist.
    Read {
        /// The value of the row.
        value: Option<Value>,
        /// The revision of its last change, if the reply contains it.
        modified: Option<u64>,
    },
    /// Whether a row was deleted, or a compare-and-set succeeded.
    Changed(bool),
}

/// A row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Row {
    /// The value.
    pub value: Value,
    /// The revision of the last change.
    pub modified: u64,
}

/// The state of a store between two calls.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KvState {
    /// The current revision: the first revision plus the number of changes.
    pub revision: u64,
    /// The rows, by key.
    pub rows: BTreeMap<Arc<str>, Row>,
}

impl KvCall {
    /// Returns the key of the row.
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
        // Compares the revision first, so that an impossible reply does not copy the store.
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

    fn state_text(&self, state: &KvState) -> String {
        let row =
            |(key, row): (&Arc<str>, &Row)| format!("{key:?}: {} @{}", row.value, row.modified);
        let rows: Vec<String> = state.rows.iter().map(row).collect();
        format!("revision {}, rows {{{}}}", state.revision, rows.join(", "))
    }

    texts_as_written!();
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

//! A row of the store and a change of one.

use bytes::Bytes;

use super::{LeaseId, Revision};

/// A key with its value, as of one revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    /// The key: arbitrary bytes, at least one.
    pub key: Bytes,
    /// The value: arbitrary bytes, possibly none. Empty where a range asked for keys only.
    pub value: Bytes,
    /// The revision that created the key (again, after a deletion).
    pub create_revision: Revision,
    /// The revision of the last put.
    pub mod_revision: Revision,
    /// How many puts since the creation, from 1.
    pub version: u64,
    /// The lease whose end deletes the key.
    pub lease: Option<LeaseId>,
}

/// What happened to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// The key was created or overwritten.
    Put,
    /// The key was deleted, by a request or by the end of its lease.
    Delete,
}

/// One change of one key. Events of one revision stand in the order in which the request made them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The row after a put. After a delete only `key` and `mod_revision` (the revision of the
    /// deletion) mean something: the value is empty, `create_revision` and `version` are 0.
    pub kv: KeyValue,
    /// The row before the change, if there was one and it is still known.
    pub prev: Option<KeyValue>,
}

impl Event {
    /// The revision that made this change.
    pub fn revision(&self) -> Revision {
        self.kv.mod_revision
    }
}

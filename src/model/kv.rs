//! A row of the store, and a change of a row.

use bytes::Bytes;

use super::decode::{DecodeError, key_text, readable};
use super::{LeaseId, Revision};

/// A key with its value at one revision. The default value is for tests of programs: no row of a
/// store has an empty key.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct KeyValue {
    /// The key: arbitrary bytes, at least one.
    #[cfg_attr(feature = "serde", serde(with = "crate::model::serialize"))]
    pub key: Bytes,
    /// The value: arbitrary bytes, possibly none. The result of a keys-only range has empty values.
    #[cfg_attr(feature = "serde", serde(with = "crate::model::serialize"))]
    pub value: Bytes,
    /// The revision that created the key, or re-created it after a deletion.
    pub create_revision: Revision,
    /// The revision of the last put.
    pub mod_revision: Revision,
    /// Number of puts since the creation, from 1.
    pub version: u64,
    /// The lease that the key is attached to. The key is deleted when the lease ends.
    pub lease: Option<LeaseId>,
}

/// ```
/// # use bowline::{Blocking, Config, Node};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # let kv = node.client();
/// kv.put("config/rate", "100").block()?;
/// kv.put("config/logo", [0xff, 0xd8]).block()?;
/// let row = kv.get("config/rate").block()?.unwrap();
/// assert_eq!((row.key_text()?, row.text()?, row.parse::<u32>()?), ("config/rate", "100", 100));
/// let why = kv.get("config/logo").block()?.unwrap().text().unwrap_err();
/// assert_eq!(
///     why.to_string(),
///     r#"cannot decode the row "config/logo": the value is not UTF-8 text: invalid byte at 0"#,
/// );
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl KeyValue {
    readable!(key, value, mod_revision);

    /// Returns the key as text.
    ///
    /// # Errors
    /// If the key is not UTF-8 text, returns an error with the key and the value.
    pub fn key_text(&self) -> Result<&str, DecodeError> {
        key_text(&self.key, &self.value).map_err(|error| error.at(self.mod_revision))
    }
}

/// The kind of a change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum EventKind {
    /// The key was created or overwritten.
    Put,
    /// The key was deleted, by a request or by the end of its lease.
    Delete,
}

/// One change of one key. The events of one revision are in the order of the operations of the
/// request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Event {
    /// The kind of the change.
    pub kind: EventKind,
    /// The row after a put. After a delete only `key` and `mod_revision` (the revision of the
    /// deletion) are meaningful: the value is empty, and `create_revision` and `version` are 0.
    pub kv: KeyValue,
    /// The row before the change. `None` if the key did not exist, or if the old row is no longer
    /// available.
    pub prev: Option<KeyValue>,
}

impl Event {
    /// Returns the revision that made this change.
    pub fn revision(&self) -> Revision {
        self.kv.mod_revision
    }
}

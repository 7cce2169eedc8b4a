//! The flags in the store: one key each, with JSON as its value.

use std::collections::BTreeMap;

use bowline::coordination::{CasOutcome, Expected};
use bowline::kv::WatchCall;
use bowline::lock::StoredFence;
use bowline::{Client, KeyValue, Op, Revision, Token};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;

/// The keys of the flags begin with this.
const PREFIX: &str = "flags/";

/// A feature flag.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flag {
    /// Whether the feature is on.
    pub on: bool,
    /// Time at which the sweeper switches the flag off, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_at: Option<u64>,
}

/// A flag as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredFlag {
    /// Name of the flag.
    pub name: String,
    /// The flag.
    pub flag: Flag,
    /// The revision that wrote it, which is its version for compare-and-set.
    pub revision: Revision,
}

/// The flags, as one node of the cluster reads and writes them.
#[derive(Clone, Debug)]
pub struct Flags {
    kv: Client,
}

impl Flags {
    /// Returns the flags in the store of this client.
    pub fn new(kv: Client) -> Self {
        Self { kv }
    }

    /// Reads a flag. The read is linearizable: it sees every write that was acknowledged before, on
    /// any process.
    pub async fn get(&self, name: &str) -> Result<Option<StoredFlag>, ApiError> {
        self.kv.get(key(name)).await?.as_ref().map(decode).transpose()
    }

    /// Reads all flags.
    pub async fn list(&self) -> Result<Vec<StoredFlag>, ApiError> {
        self.kv.get_prefix(PREFIX).await?.kvs.iter().map(decode).collect()
    }

    /// Reads the flags whose time has come. Reads the local replica, which may be stale: the
    /// sweeper compares the revision when it writes.
    pub async fn due(&self, now: u64) -> Result<Vec<StoredFlag>, ApiError> {
        let rows = self.kv.get_prefix(PREFIX).local().await?.kvs;
        let flags = rows.iter().map(decode);
        let is_due = |stored: &StoredFlag| stored.flag.off_at.is_some_and(|time| time <= now);
        flags.filter(|stored| stored.as_ref().map_or(true, is_due)).collect()
    }

    /// Writes a flag, and returns its revision. With `expected`, only if the flag is in that state.
    pub async fn set(
        &self,
        name: &str,
        flag: &Flag,
        expected: Option<Expected>,
    ) -> Result<Revision, ApiError> {
        let (key, value) = (key(name), encode(flag));
        let Some(expected) = expected else { return Ok(self.kv.put(key, value).await?.revision) };
        match self.kv.compare_and_set(key, expected, value).await? {
            CasOutcome::Done { revision } => Ok(revision),
            CasOutcome::Lost { row } => Err(ApiError::Changed(row.map(|row| row.mod_revision))),
        }
    }

    /// Writes several flags at once, if `token` still is the highest token that the fence has seen.
    pub async fn import(
        &self,
        flags: &BTreeMap<String, Flag>,
        token: Token,
    ) -> Result<Revision, ApiError> {
        let mut txn = self.kv.txn().when(self.import_fence().condition(token));
        for (name, flag) in flags {
            txn = txn.then(put(name, flag));
        }
        let reply = txn.commit().await?;
        if reply.succeeded { Ok(reply.revision) } else { Err(ApiError::Overtaken) }
    }

    /// Returns the fence for the tokens of importers.
    pub fn import_fence(&self) -> StoredFence {
        self.kv.fence("fences/import")
    }

    /// Watches all flags, after the given revision or from now on.
    pub fn watch(&self, after: Option<Revision>) -> WatchCall {
        let watch = self.kv.watch_prefix(PREFIX);
        match after {
            Some(revision) => watch.after(revision),
            None => watch,
        }
    }

    /// Returns the revision of the local replica.
    pub fn revision(&self) -> Revision {
        self.kv.revision()
    }
}

/// Returns the operation that writes a flag.
pub fn put(name: &str, flag: &Flag) -> Op {
    Op::put(key(name), encode(flag))
}

/// Returns the key of a flag.
pub fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Returns the name in a key.
pub fn name_of(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[PREFIX.len()..]).into_owned()
}

/// Reads a row.
pub fn decode(row: &KeyValue) -> Result<StoredFlag, ApiError> {
    let name = name_of(&row.key);
    match serde_json::from_slice(&row.value) {
        Ok(flag) => Ok(StoredFlag { name, flag, revision: row.mod_revision }),
        Err(error) => Err(ApiError::Undecodable { name, why: error.to_string() }),
    }
}

fn encode(flag: &Flag) -> String {
    serde_json::to_string(flag).expect("a flag has a form in JSON")
}

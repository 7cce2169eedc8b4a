//! The flags in the store: one key each, with JSON as its value.

use std::collections::BTreeMap;

use bowline::coordination::{CasOutcome, Expected};
use bowline::kv::DecodeError;
use bowline::lock::StoredFence;
use bowline::typed::{Json, Typed, TypedRow, TypedWatchCall};
use bowline::{Client, Error, Op, Revision, Token};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;

/// The keys of the flags begin with this.
const FOLDER: &str = "flags/";

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

/// The flags, as one node of the cluster reads and writes them.
#[derive(Clone, Debug)]
pub struct Flags {
    kv: Client,
    /// The same store, but keys are names of flags and values are flags.
    typed: Typed<Flag, Json>,
}

impl Flags {
    /// Returns the flags in the store of this client.
    pub fn new(kv: Client) -> Self {
        Self { typed: kv.typed(FOLDER), kv }
    }

    /// Reads a flag. The read is linearizable: it sees every write that was acknowledged before, on
    /// any process.
    pub async fn get(&self, name: &str) -> Result<Option<TypedRow<Flag>>, Error> {
        self.typed.get(name).await
    }

    /// Reads all flags.
    pub async fn list(&self) -> Result<BTreeMap<String, Flag>, Error> {
        let rows = self.typed.range(..).await?.into_iter();
        let flags = rows.map(|row| row.map(|row| (name_of(&row.key), row.value)));
        Ok(flags.collect::<Result<_, DecodeError>>()?)
    }

    /// Reads the flags whose time has come. Reads the local replica, which may be stale: the
    /// sweeper compares the revision when it writes.
    pub async fn due(&self, now: u64) -> Result<Vec<TypedRow<Flag>>, Error> {
        let rows = self.typed.client().range(..).local().await?.kvs;
        // A row that is no flag must not keep the sweeper from the others.
        let flags = rows.iter().filter_map(|row| self.typed.decode(row).ok());
        Ok(flags.filter(|row| row.value.off_at.is_some_and(|time| time <= now)).collect())
    }

    /// Writes a flag, and returns its revision. With `expected`, only if the flag is in that state.
    pub async fn set(
        &self,
        name: &str,
        flag: &Flag,
        expected: Option<Expected>,
    ) -> Result<Revision, ApiError> {
        let Some(expected) = expected else {
            return Ok(self.typed.put(name, flag).await?.revision);
        };
        let value = self.typed.encode(name, flag)?;
        match self.typed.client().compare_and_set(name, expected, value).await? {
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
            txn = txn.then(self.put_op(name, flag)?);
        }
        let reply = txn.commit().await?;
        if reply.succeeded { Ok(reply.revision) } else { Err(ApiError::Overtaken) }
    }

    /// Returns the fence for the tokens of importers.
    pub fn import_fence(&self) -> StoredFence {
        self.kv.fence("fences/import")
    }

    /// Watches all flags.
    pub fn watch(&self) -> TypedWatchCall<Flag, Json> {
        self.typed.watch(..)
    }

    /// Returns the revision of the local replica.
    pub fn revision(&self) -> Revision {
        self.kv.revision()
    }

    /// Returns the operation that writes a flag, for a transaction.
    pub fn put_op(&self, name: &str, flag: &Flag) -> Result<Op, Error> {
        self.typed.put_op(name, flag)
    }
}

/// Returns the whole key of a flag. Transactions of a lock or a leadership take whole keys.
pub fn key(name: &str) -> String {
    format!("{FOLDER}{name}")
}

/// Returns the name in the key of a typed row.
pub fn name_of(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

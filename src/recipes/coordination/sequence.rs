//! Sequential keys: the store appends the next number to a prefix.
//!
//! The next number of a prefix is stored in a separate row outside the prefix, and is increased in
//! the transaction that creates a key. So a number is never used twice, even after its key was
//! deleted.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::Semaphore;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{
    Command, Compare, IntoBytes, KeyValue, Op, Put, PutLease, PutValue, Reply, Revision,
};

use super::cas_branches::{
    CasBranch, TRIES_MAX, branches_max, chosen, nest_branches, try_branches,
};
use super::undo_on_drop::{delete_of, run_undoable_within};
use crate::recipes::call::{Call, Until};
use crate::recipes::decimal::number_in;

/// Prefix of the rows with the next numbers; the prefix of the keys follows.
const NUMBERS: &[u8] = b"__sequence/";

/// Number of digits of each number. It is fixed, because numbers of different lengths would break
/// the order of the keys.
const DIGITS: usize = 10;

/// Maximum size of a value that is sent several times in one transaction, once for each expected
/// number.
const GUESSED_VALUE_BYTES_MAX: usize = 256;

/// Creates keys `<prefix><number>`. Created by [`Client::sequential_prefix`].
///
/// Numbers start at 0 and have ten digits. Each created key takes the next number, and a call that
/// creates no key takes no number. The sequence skips a number only if another write, such as
/// [`Client::put`], has already created the key with this number. A number is never used twice,
/// even after its key was deleted or its creation was undone. Keys sort in the order of their
/// creation.
///
/// A call is one entry in the log and is applied at most once. After a crash, a pause or a
/// partition in the middle of a call the key either exists or does not.
///
/// The next number is stored in the key `__sequence/<prefix>`, one row for each prefix, which is
/// never deleted automatically. Delete this key when the prefix is not used any more.
///
/// Clones share a queue, so that tasks of one process that use clones do not compete with each
/// other.
#[derive(Clone, Debug)]
pub struct Sequence {
    client: Client,
    prefix: Bytes,
    tries: Arc<Semaphore>,
}

/// A key that was created by a [`Sequence`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SequentialKey {
    /// The key: the prefix and ten digits.
    pub key: Bytes,
    /// The number.
    pub number: u64,
    /// Create revision of the key.
    pub revision: Revision,
}

/// Error of creating a key.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum SequenceError {
    /// All numbers of ten digits have been used.
    #[error("not applied: no number of {DIGITS} digits is left")]
    Exhausted,
    /// The row of the next number does not contain a number. Nothing was changed.
    #[error("not applied: the row of the next number is not a number: {}", .0.escape_ascii())]
    NotANumber(Bytes),
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] Error),
}

impl SequenceError {
    /// Returns whether a number was taken. If the call fails, a key that is attached to a session
    /// is deleted again.
    pub fn effect(&self) -> Effect {
        match self {
            SequenceError::Exhausted | SequenceError::NotANumber(_) => Effect::NotApplied,
            SequenceError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention. If the effect of the
    /// failed call is unknown, a retry may take a second number.
    pub fn is_transient(&self) -> bool {
        matches!(self, SequenceError::Store(error) if error.is_transient())
    }
}

impl Client {
    /// Returns a sequence of keys below `prefix`, numbered by the store.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let jobs = node.client().sequential_prefix("jobs/job-");
    /// assert_eq!(jobs.put("build").block()?.key, "jobs/job-0000000000");
    /// let session = node.session().block()?;
    /// let bound = jobs.put_bound("test", &session).block()?;
    /// assert_eq!((bound.key, bound.number), ("jobs/job-0000000001".into(), 1));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sequential_prefix(&self, prefix: impl IntoBytes) -> Sequence {
        let tries = Arc::new(Semaphore::new(TRIES_MAX));
        Sequence { client: self.clone(), prefix: prefix.into_bytes(), tries }
    }
}

impl Sequence {
    /// Creates the next key with this value. If the future is dropped, the key may still be
    /// created, at most once.
    ///
    /// # Errors
    /// See [`SequenceError`]. The effect of the error states whether a key was created.
    pub fn put(&self, value: impl IntoBytes) -> Call<'static, SequentialKey, SequenceError> {
        let (sequence, value) = (self.clone(), value.into_bytes());
        Call::new(
            &self.client,
            move |until| async move { sequence.make(value, None, &until).await },
        )
    }

    /// Like [`Sequence::put`], with a key that lives as long as the session. ZooKeeper calls such a
    /// key an ephemeral sequential node. If the creator crashes, the key is deleted when its
    /// session ends. If the future is dropped, no key remains, but a number may have been taken.
    ///
    /// # Errors
    /// See [`SequenceError`], which may contain [`Error::SessionEnded`]. After an error no key
    /// remains. If the effect is unknown, a number may have been taken.
    pub fn put_bound(
        &self,
        value: impl IntoBytes,
        session: &Session,
    ) -> Call<'static, SequentialKey, SequenceError> {
        let (sequence, value, session) = (self.clone(), value.into_bytes(), session.clone());
        Call::new(&self.client, move |until| async move {
            sequence.make(value, Some(&session), &until).await
        })
    }

    async fn make(
        self,
        value: Bytes,
        session: Option<&Session>,
        until: &Until,
    ) -> Result<SequentialKey, SequenceError> {
        let Self { client, prefix, tries } = self;
        let _permit = until.within(tries.acquire()).await?;
        let numbers: Bytes = [NUMBERS, &prefix[..]].concat().into();
        let mut row = client.get(numbers.clone()).local().await?;
        // Whether `row` was current at some time during this call.
        let mut is_recent = false;
        loop {
            let mut first = match next_number(row.as_ref()) {
                Err(_) if !is_recent => {
                    is_recent = true;
                    row = client.get(numbers.clone()).deadline(until.left()).await?;
                    continue;
                }
                next => next?,
            };
            // Skip numbers whose keys were created without a sequence.
            while client.get(numbered(&prefix, first)?).local().await?.is_some() {
                first += 1;
            }
            if mutant!(B62) {
                let last = numbered(&prefix, first.saturating_sub(1))?;
                let is_gone = client.get(last).local().await?.is_none();
                first -= u64::from(is_gone && first > 0);
            }
            let seen = row.as_ref().map_or(Revision(0), |row| row.mod_revision);
            let branches = match value.len() {
                0..=GUESSED_VALUE_BYTES_MAX => branches_max(&client),
                _ => 1,
            };
            let last = first.saturating_add(branches as u64);
            let keys: Vec<Bytes> =
                (first..last).map_while(|number| numbered(&prefix, number).ok()).collect();
            let branch = |(number, key): (u64, &Bytes)| {
                let follows = match number == first {
                    true => Compare::mod_revision(numbers.clone()).eq(seen),
                    false => Compare::value(numbers.clone()).eq(number.to_string()),
                };
                let lease = session.map_or(PutLease::None, |it| PutLease::Attach(it.lease()));
                let (key, value) = (key.clone(), PutValue::Set(value.clone()));
                let next = Op::put(numbers.clone(), (number + 1).to_string());
                let when = vec![follows, Compare::missing(key.clone())];
                let then = vec![next, Op::Put(Put { key, value, lease, prev_kv: false })];
                CasBranch { when, then }
            };
            let branches = (first..).zip(&keys).map(branch).collect();
            let (chosen, revision) = match session {
                None => try_branches(&client, branches, until).await?,
                Some(session) => try_bound(&client, branches, &keys, session, until).await?,
            };
            if let Some(branch) = chosen {
                let (key, number) = (keys[branch].clone(), first + branch as u64);
                return Ok(SequentialKey { key, number, revision });
            }
            is_recent = true;
            row = client.get(numbers.clone()).local().await?;
        }
    }
}

/// Like [`try_ways`], with a key that is deleted again if the caller stops waiting.
async fn try_bound(
    client: &Client,
    branches: Vec<CasBranch>,
    keys: &[Bytes],
    session: &Session,
    until: &Until,
) -> Result<(Option<usize>, Revision), Error> {
    let command = Command::Txn(client.scope.txn(nest_branches(branches)));
    let keys: Vec<Bytes> = keys.iter().map(|key| client.scope.key(key.clone())).collect();
    let undo = move |reply: &Reply| match reply {
        Reply::Txn(reply) => chosen(reply).map(|branch| delete_of(&keys[branch], reply.revision)),
        // A key may have been created, but its name is not known. The key is deleted when the
        // session ends.
        _ => None,
    };
    match run_undoable_within(session, command, until, undo).await? {
        Reply::Txn(reply) => Ok((chosen(&reply), reply.revision)),
        other => unreachable!("unexpected reply to a transaction: {other:?}"),
    }
}

/// Returns the key with this number.
fn numbered(prefix: &Bytes, number: u64) -> Result<Bytes, SequenceError> {
    let digits = format!("{number:0DIGITS$}");
    if digits.len() > DIGITS {
        return Err(SequenceError::Exhausted);
    }
    Ok([&prefix[..], digits.as_bytes()].concat().into())
}

/// Parses the row of the next number in canonical form.
fn next_number(row: Option<&KeyValue>) -> Result<u64, SequenceError> {
    let Some(row) = row else { return Ok(0) };
    number_in(&row.value).ok_or_else(|| SequenceError::NotANumber(row.value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_have_ten_digits_and_exhaust() {
        let prefix = Bytes::from_static(b"p");
        assert_eq!(numbered(&prefix, 0).unwrap(), "p0000000000");
        assert_eq!(numbered(&prefix, 9_999_999_999).unwrap(), "p9999999999");
        assert_eq!(numbered(&prefix, 10_000_000_000), Err(SequenceError::Exhausted));
    }
}

//! The countdown latch: tasks wait until other tasks have counted the latch down to 0.
//!
//! A latch is one key whose value is the count in decimal digits. At 0 the key is deleted, so an
//! open latch leaves nothing in the store and a new round can begin. The create revision of the key
//! distinguishes rounds.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::Semaphore;

use crate::api::{Client, Effect, Error};
use crate::model::{Compare, IntoBytes, KeyRange, KeyValue, Op};

use super::cas_branches::{CasBranch, TRIES_MAX, branches_max, try_branches};
use super::conditional::put_over;
use super::wait_until::wait_until;
use crate::recipes::call::{Call, Until};
use crate::recipes::decimal::number_in;

/// A countdown latch. Created by [`Client::latch`].
///
/// Counting down is one entry in the log and is applied at most once. The count is not attached to
/// a session: if a participant crashes before it counts down, the waiters keep waiting. Set a
/// deadline for the wait, or use a [`Session::group`](crate::Session::group), whose members leave
/// when they crash. A waiter that was paused or partitioned is notified of the end of its round
/// when it is connected again, even if the next round has begun by then.
///
/// Clones share a queue, so that tasks of one process that use clones of one latch do not compete
/// with each other.
#[derive(Clone, Debug)]
pub struct Latch {
    client: Client,
    key: Bytes,
    tries: Arc<Semaphore>,
}

/// Error of a latch.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LatchError {
    /// The value of the key is not a count. Nothing was changed.
    #[error("not applied: the value is not a count: {}", .0.escape_ascii())]
    NotACount(Bytes),
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] Error),
}

impl LatchError {
    /// Returns whether the count was changed.
    pub fn effect(&self) -> Effect {
        match self {
            LatchError::NotACount(_) => Effect::NotApplied,
            LatchError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention. If the effect of the
    /// failed call is unknown, a retry may apply the change twice.
    pub fn is_transient(&self) -> bool {
        matches!(self, LatchError::Store(error) if error.is_transient())
    }
}

impl Client {
    /// Returns the latch in the key `name`.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// let loaded = node.client().latch("phase-1/loaded");
    /// assert!(loaded.try_set(2).block()?);
    /// loaded.count_down().block()?;
    /// assert_eq!(loaded.count().block()?, 1);
    /// loaded.count_down().block()?;
    /// loaded.wait().block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::coordination::LatchError>(())
    /// ```
    pub fn latch(&self, name: impl IntoBytes) -> Latch {
        let tries = Arc::new(Semaphore::new(TRIES_MAX));
        Latch { client: self.clone(), key: name.into_bytes(), tries }
    }
}

impl Latch {
    /// Sets the count if it is 0, which starts a round. Returns `false` and changes nothing if a
    /// round is in progress. Setting the count to 0 changes nothing.
    ///
    /// # Errors
    /// [`LatchError::Store`] states whether the count was set.
    pub fn try_set(&self, count: u64) -> Call<'static, bool, LatchError> {
        let Self { client, key, .. } = self.clone();
        Call::new(&self.client, move |until| async move {
            if count == 0 {
                return Ok(client.get(key).deadline(until.left()).await?.is_none());
            }
            let when = vec![Compare::missing(key.clone())];
            let branch = CasBranch { when, then: vec![Op::put(key, count.to_string())] };
            let (taken, _) = try_branches(&client, vec![branch], &until).await?;
            Ok(taken.is_some())
        })
    }

    /// Counts down by one, exactly once, and returns the remaining count. A count of 0 stays 0. A
    /// key with a lease keeps its lease.
    ///
    /// Without contention the call costs one commit.
    ///
    /// # Errors
    /// After [`LatchError::NotACount`] nothing was changed. [`LatchError::Store`] states whether
    /// anything was changed.
    pub fn count_down(&self) -> Call<'static, u64, LatchError> {
        let latch = self.clone();
        Call::new(&self.client, move |until| async move { latch.count_down_until(&until).await })
    }

    async fn count_down_until(self, until: &Until) -> Result<u64, LatchError> {
        let Self { client, key, tries } = self;
        let _permit = until.within(tries.acquire()).await.map_err(LatchError::from)?;
        let mut row = client.get(key.clone()).local().await?;
        // Whether `row` was current at some time during this call.
        let mut is_recent = false;
        loop {
            match count(row.as_ref()) {
                Ok(left @ 1..) => {
                    let branches = steps(&key, row.as_ref(), left, branches_max(&client));
                    if let (Some(branch), _) = try_branches(&client, branches, until).await? {
                        return Ok(left - 1 - branch as u64);
                    }
                    is_recent = true;
                    row = client.get(key.clone()).local().await?;
                }
                result if is_recent => return result,
                _ => {
                    is_recent = true;
                    row = client.get(key.clone()).deadline(until.left()).await?;
                }
            }
        }
    }

    /// Returns the count with a linearizable read.
    ///
    /// # Errors
    /// See [`LatchError`].
    pub fn count(&self) -> Call<'static, u64, LatchError> {
        let Self { client, key, .. } = self.clone();
        Call::new(&self.client, move |until| async move {
            count(client.get(key).deadline(until.left()).await?.as_ref())
        })
    }

    /// Waits until the count is 0 or the current round has ended. Returns at once if no round is in
    /// progress. Waits without limit unless a deadline is set, even while the cluster is
    /// unavailable. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// Returns [`LatchError::Store`] with [`Error::Deadline`] if the deadline passes, or with
    /// [`Error::Stopped`] if the node stops.
    pub fn wait(&self) -> Call<'static, (), LatchError> {
        let Self { client, key, .. } = self.clone();
        Call::without_deadline(&self.client, move |until| async move {
            let mut round = None;
            wait_until(&client, KeyRange::key(key), &until, |rows| {
                mutant!(B14, return Ok(Some(())));
                count(rows.first())?;
                let begun = rows.first().map(|row| row.create_revision);
                Ok((begun.is_none() || begun != *round.get_or_insert(begun)).then_some(()))
            })
            .await
        })
    }
}

/// Parses a row's value in canonical form.
fn count(row: Option<&KeyValue>) -> Result<u64, LatchError> {
    let Some(row) = row else { return Ok(0) };
    let count = number_in(&row.value).filter(|count| *count > 0);
    count.ok_or_else(|| LatchError::NotACount(row.value.clone()))
}

/// Returns the alternatives of a countdown: one for the count as read, and one for each lower count
/// that concurrent countdowns produce.
fn steps(key: &Bytes, row: Option<&KeyValue>, left: u64, branches: usize) -> Vec<CasBranch> {
    let branch = |from: u64| {
        let when = match row {
            Some(row) if from == left => Compare::mod_revision(key.clone()).eq(row.mod_revision),
            _ => Compare::value(key.clone()).eq(from.to_string()),
        };
        let then = match from - 1 {
            0 => Op::delete(key.clone()),
            less => put_over(true, key.clone(), less.to_string()),
        };
        CasBranch { when: vec![when], then: vec![then] }
    };
    (1..=left).rev().take(branches).map(branch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Revision;

    fn row(value: &'static str) -> KeyValue {
        KeyValue {
            key: Bytes::from_static(b"k"),
            value: Bytes::from_static(value.as_bytes()),
            create_revision: Revision(2),
            mod_revision: Revision(2),
            version: 1,
            lease: None,
        }
    }

    #[test]
    fn latch_count_is_parsed_in_canonical_form_only() {
        assert_eq!(count(None), Ok(0));
        assert_eq!(count(Some(&row("3"))), Ok(3));
        for text in ["", "0", "-1", "03", "+3", "three"] {
            let error = LatchError::NotACount(Bytes::from_static(text.as_bytes()));
            assert_eq!(count(Some(&row(text))), Err(error), "{text:?}");
        }
    }

    #[test]
    fn last_count_down_deletes_the_key() {
        let key = Bytes::from_static(b"k");
        let steps = steps(&key, Some(&row("3")), 3, 8);
        let then: Vec<_> = steps.iter().map(|branch| branch.then[0].clone()).collect();
        let put = |count: &'static str| put_over(true, key.clone(), count);
        assert_eq!(then, [put("2"), put("1"), Op::delete("k")]);
        assert_eq!(steps[0].when, [Compare::mod_revision("k").eq(2)]);
        assert_eq!(steps[2].when, [Compare::value("k").eq("1")]);
    }
}

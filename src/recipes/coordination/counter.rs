//! A shared counter.
//!
//! A counter is an ordinary key whose value is a number in decimal digits. If the key does not
//! exist, the number is 0. An addition is a compare-and-set that also expects the states that
//! concurrent additions produce (see [`cas_branches`](super::cas_branches)), so that several
//! concurrent additions cost one commit in total, not one each.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::Semaphore;

use crate::api::{Client, Effect, Error};
use crate::model::{Compare, IntoBytes, KeyValue, Revision};

use super::cas_branches::{CasBranch, TRIES_MAX, branches_max, try_branches};
use super::conditional::put_over;
use crate::recipes::call::{Call, Until};
use crate::recipes::decimal::number_in;

/// A shared number of type [`i64`]. Created by [`Client::counter`].
///
/// Reads are linearizable. Every change is one entry in the log and is applied at most once. The
/// [effect](CounterError::effect) of an error states whether the change was applied. After a crash,
/// a pause or a partition in the middle of a change the counter has either the old number or the
/// new one.
///
/// Clones share a queue, so that tasks of one process that use clones of one counter do not compete
/// with each other.
#[derive(Clone, Debug)]
pub struct Counter {
    client: Client,
    key: Bytes,
    tries: Arc<Semaphore>,
}

/// Error of a counter.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum CounterError {
    /// The sum does not fit into an [`i64`]. Nothing was changed.
    #[error("not applied: {value} + {add} is out of range")]
    Overflow {
        /// The current number.
        value: i64,
        /// The number to be added.
        add: i64,
    },
    /// The number differs from the expected one. Nothing was changed.
    #[error("not applied: the counter has another value: {value}")]
    Changed {
        /// The current number in the local replica.
        value: i64,
    },
    /// The value of the key is not a number. Nothing was changed.
    #[error("not applied: the value is not a number: {}", .0.escape_ascii())]
    NotANumber(Bytes),
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] Error),
}

impl CounterError {
    /// Returns whether the number was changed.
    pub fn effect(&self) -> Effect {
        match self {
            CounterError::Overflow { .. }
            | CounterError::Changed { .. }
            | CounterError::NotANumber(_) => Effect::NotApplied,
            CounterError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention. If the effect of the
    /// failed call is unknown, a retry may apply the change twice.
    pub fn is_transient(&self) -> bool {
        matches!(self, CounterError::Store(error) if error.is_transient())
    }
}

impl Client {
    /// Returns a counter whose value is stored in the key `name`.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, coordination::CounterError};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// let visits = node.client().counter("visits");
    /// assert_eq!(visits.increment().block()?, 1);
    /// assert_eq!(visits.add(10).block()?, 11);
    /// assert_eq!(visits.compare_and_set(7, 0).block(), Err(CounterError::Changed { value: 11 }));
    /// assert_eq!(visits.get().block()?, 11);
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::coordination::CounterError>(())
    /// ```
    pub fn counter(&self, name: impl IntoBytes) -> Counter {
        let tries = Arc::new(Semaphore::new(TRIES_MAX));
        Counter { client: self.clone(), key: name.into_bytes(), tries }
    }
}

impl Counter {
    /// Returns the number with a linearizable read.
    ///
    /// # Errors
    /// Returns [`CounterError::NotANumber`] if the value is not a number, and
    /// [`CounterError::Store`].
    pub fn get(&self) -> Call<'static, i64, CounterError> {
        let Self { client, key, .. } = self.clone();
        Call::new(&self.client, move |until| async move {
            number(client.get(key).deadline(until.left()).await?.as_ref())
        })
    }

    /// Adds 1 and returns the sum.
    ///
    /// # Errors
    /// Like [`Counter::add`].
    pub fn increment(&self) -> Call<'static, i64, CounterError> {
        self.add(1)
    }

    /// Adds a number, which may be negative, exactly once, and returns the sum. If several callers
    /// add 1 to one counter, they all get different sums. A key with a lease keeps its lease. If
    /// the key does not exist, the call creates it without a lease.
    ///
    /// Without contention the call costs one commit. Under contention it retries until its
    /// deadline.
    ///
    /// # Errors
    /// After [`CounterError::Overflow`] and [`CounterError::NotANumber`] nothing was changed.
    /// [`CounterError::Store`] states whether anything was changed.
    pub fn add(&self, add: i64) -> Call<'static, i64, CounterError> {
        let counter = self.clone();
        Call::new(&self.client, move |until| async move { counter.add_until(add, &until).await })
    }

    async fn add_until(self, add: i64, until: &Until) -> Result<i64, CounterError> {
        let Self { client, key, tries } = self;
        let _permit = until.within(tries.acquire()).await?;
        let mut row = client.get(key.clone()).local().await?;
        // Whether `row` was current at some time during this call.
        let mut is_recent = false;
        loop {
            let from = number(row.as_ref());
            let sum = from.clone().and_then(|value| {
                value.checked_add(add).ok_or(CounterError::Overflow { value, add })
            });
            match (from, sum) {
                // Adding 0 changes nothing, so no transaction confirms the number. Return the
                // number only if it was read during this call.
                (Ok(value), Ok(_)) if add == 0 && is_recent => return Ok(value),
                (Ok(value), Ok(_)) if add != 0 => {
                    let version = row.as_ref().map_or(Revision(0), |row| row.mod_revision);
                    let branches = steps(&key, version, value, add, branches_max(&client));
                    let sums: Vec<i64> = branches.iter().map(|(sum, _)| *sum).collect();
                    let branches = branches.into_iter().map(|(_, branch)| branch).collect();
                    if let (Some(branch), _) = try_branches(&client, branches, until).await? {
                        return Ok(sums[branch]);
                    }
                    is_recent = true;
                    row = client.get(key.clone()).local().await?;
                }
                (_, Err(error)) if is_recent => return Err(error),
                _ => {
                    is_recent = true;
                    row = client.get(key.clone()).deadline(until.left()).await?;
                }
            }
        }
    }

    /// Sets the number. As with [`Client::put`], a key with a lease is detached from the lease.
    pub fn set(&self, value: i64) -> Call<'static, (), CounterError> {
        let Self { client, key, .. } = self.clone();
        Call::new(&self.client, move |until| async move {
            client.put(key, value.to_string()).deadline(until.left()).await?;
            Ok(())
        })
    }

    /// Sets the number to `new` if it is `expected`. A key with a lease keeps its lease.
    ///
    /// # Errors
    /// After [`CounterError::Changed`] (another number) and [`CounterError::NotANumber`] nothing
    /// was changed. [`CounterError::Store`] states whether anything was changed.
    pub fn compare_and_set(&self, expected: i64, new: i64) -> Call<'static, (), CounterError> {
        let Self { client, key, .. } = self.clone();
        Call::new(&self.client, move |until| async move {
            let put = |is_there| vec![put_over(is_there, key.clone(), new.to_string())];
            let is = Compare::value(key.clone()).eq(expected.to_string());
            let mut branches = vec![CasBranch { when: vec![is], then: put(true) }];
            if expected == 0 {
                branches.push(CasBranch {
                    when: vec![Compare::missing(key.clone())],
                    then: put(false),
                });
            }
            match try_branches(&client, branches, &until).await? {
                (Some(_), _) => Ok(()),
                (None, _) => {
                    let value = number(client.get(key).local().await?.as_ref())?;
                    Err(CounterError::Changed { value })
                }
            }
        })
    }
}

/// Parses a row's value in canonical form.
fn number(row: Option<&KeyValue>) -> Result<i64, CounterError> {
    let Some(row) = row else { return Ok(0) };
    number_in(&row.value).ok_or_else(|| CounterError::NotANumber(row.value.clone()))
}

/// Returns the alternatives of an addition, each with its sum: one for the number as read, and one
/// for each number that concurrent equal additions produce.
fn steps(
    key: &Bytes,
    seen: Revision,
    value: i64,
    add: i64,
    branches: usize,
) -> Vec<(i64, CasBranch)> {
    let mut steps = Vec::new();
    let (mut value, mut next) = (value, value.checked_add(add));
    while let (Some(sum), true) = (next, steps.len() < branches) {
        let when = match steps.is_empty() {
            true => Compare::mod_revision(key.clone()).eq(seen),
            false => Compare::value(key.clone()).eq(value.to_string()),
        };
        // Concurrent additions that were applied before have created the key.
        let is_there = seen.get() > 0 || !steps.is_empty();
        let then = vec![put_over(is_there, key.clone(), sum.to_string())];
        steps.push((sum, CasBranch { when: vec![when], then }));
        (value, next) = (sum, sum.checked_add(add));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn counter_value_is_parsed_in_canonical_form_only() {
        assert_eq!(number(None), Ok(0));
        for (text, value) in [("0", 0), ("-5", -5), ("9223372036854775807", i64::MAX)] {
            assert_eq!(number(Some(&row(text))), Ok(value));
        }
        for text in ["", "x", " 5", "+5", "05", "-0", "5.0", "9223372036854775808"] {
            let error = CounterError::NotANumber(Bytes::from_static(text.as_bytes()));
            assert_eq!(number(Some(&row(text))), Err(error), "{text:?}");
        }
    }

    #[test]
    fn counter_guesses_are_multiples_of_the_increment_and_stop_at_overflow() {
        let key = Bytes::from_static(b"k");
        let sums = |value, add| -> Vec<i64> {
            steps(&key, Revision(7), value, add, 4).into_iter().map(|(sum, _)| sum).collect()
        };
        assert_eq!(sums(5, 1), [6, 7, 8, 9]);
        assert_eq!(sums(5, -3), [2, -1, -4, -7]);
        assert_eq!(sums(i64::MAX - 2, 1), [i64::MAX - 1, i64::MAX]);
        assert_eq!(sums(i64::MAX, 1), [0; 0]);
        let steps = steps(&key, Revision(7), 5, 1, 4);
        assert_eq!(steps[0].1.when, [Compare::mod_revision("k").eq(7)]);
        assert_eq!(steps[1].1.when, [Compare::value("k").eq("6")]);
        assert_eq!(steps[1].1.then, [put_over(true, key.clone(), "7")]);
    }
}

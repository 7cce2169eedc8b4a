//! The shared counter: one number that many add to.
//!
//! It is an ordinary key whose value is the number in decimal digits; a key that does not exist counts
//! as 0. Adding is a compare-and-set that guesses what others will have added by then as well (see
//! [`chain`](super::chain)), so that adding at the same time costs one commit, not one each.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::Semaphore;

use crate::api::{Client, Effect, Error};
use crate::model::{Compare, KeyValue, Revision};

use super::call::{Call, Until};
use super::chain::{TRIES_MAX, Way, try_ways, ways_max};
use super::conditional::put_over;
use super::digits::number_in;

/// A number that many change, an [`i64`]; made by [`Client::counter`].
///
/// Reads are linearizable; every change is one entry in the log, applied at most once whatever becomes of
/// leaders and messages. An error says whether it was. A crash, a pause or a partition in the middle of a
/// change leaves the old number or the new one, and nothing to clean up.
///
/// Clones share a queue: tasks of one process that use clones of one counter take turns instead of
/// getting in each other's way.
#[derive(Clone, Debug)]
pub struct Counter {
    client: Client,
    key: Bytes,
    turns: Arc<Semaphore>,
}

/// Why a counter did not count.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum CounterError {
    /// The sum is no [`i64`]. Nothing was changed.
    #[error("not applied: {value} + {add} is out of range")]
    Overflow {
        /// The number that is there.
        value: i64,
        /// What was to be added.
        add: i64,
    },
    /// It is another number than was expected. Nothing was changed.
    #[error("not applied: the counter is {value}")]
    Changed {
        /// The number that this node's replica has now.
        value: i64,
    },
    /// Somebody else has put something there that is no number. Nothing was changed.
    #[error("not applied: the value is no number: {}", .0.escape_ascii())]
    NotANumber(Bytes),
    /// The store could not, or would not.
    #[error(transparent)]
    Store(#[from] Error),
}

impl CounterError {
    /// Whether the number was changed.
    pub fn effect(&self) -> Effect {
        match self {
            CounterError::Overflow { .. }
            | CounterError::Changed { .. }
            | CounterError::NotANumber(_) => Effect::NotApplied,
            CounterError::Store(error) => error.effect(),
        }
    }

    /// Whether the same call may succeed later without anybody changing the program. One whose effect is unknown
    /// may then be applied twice.
    pub fn is_transient(&self) -> bool {
        matches!(self, CounterError::Store(error) if error.is_transient())
    }
}

impl Client {
    /// The number in the key `name`.
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
    pub fn counter(&self, name: impl Into<Bytes>) -> Counter {
        let turns = Arc::new(Semaphore::new(TRIES_MAX));
        Counter { client: self.clone(), key: name.into(), turns }
    }
}

impl Counter {
    /// The number. Linearizable.
    ///
    /// # Errors
    /// [`CounterError::NotANumber`], [`CounterError::Store`].
    pub fn get(&self) -> Call<'static, i64, CounterError> {
        let Self { client, key, .. } = self.clone();
        Call::new(&self.client, move |until| async move {
            number(client.get(key).deadline(until.left()).await?.as_ref())
        })
    }

    /// Adds 1, and answers with the sum.
    ///
    /// # Errors
    /// As for [`Counter::add`].
    pub fn increment(&self) -> Call<'static, i64, CounterError> {
        self.add(1)
    }

    /// Adds a number, which may be negative, once, and answers with the sum. Answers of several who add
    /// 1 to one counter are all different. A key that has a lease keeps it.
    ///
    /// One commit if nobody is in the way. A task that keeps losing to others goes on until its
    /// deadline.
    ///
    /// # Errors
    /// [`CounterError::Overflow`] and [`CounterError::NotANumber`], when nothing was changed;
    /// [`CounterError::Store`] says whether anything was.
    pub fn add(&self, add: i64) -> Call<'static, i64, CounterError> {
        let counter = self.clone();
        Call::new(&self.client, move |until| async move { counter.add_until(add, &until).await })
    }

    async fn add_until(self, add: i64, until: &Until) -> Result<i64, CounterError> {
        let Self { client, key, turns } = self;
        let _turn = until.within(turns.acquire()).await?;
        let mut row = client.get(key.clone()).local().await?;
        // Whether the row was there at some time during this call.
        let mut is_recent = false;
        loop {
            let from = number(row.as_ref());
            let sum = from.clone().and_then(|value| {
                value.checked_add(add).ok_or(CounterError::Overflow { value, add })
            });
            match (from, sum) {
                // A transaction that changes nothing says nothing of the number.
                (Ok(value), Ok(_)) if add == 0 && is_recent => return Ok(value),
                (Ok(value), Ok(_)) if add != 0 => {
                    let version = row.as_ref().map_or(Revision(0), |row| row.mod_revision);
                    let ways = steps(&key, version, value, add, ways_max(&client));
                    let sums: Vec<i64> = ways.iter().map(|(sum, _)| *sum).collect();
                    let ways = ways.into_iter().map(|(_, way)| way).collect();
                    if let (Some(way), _) = try_ways(&client, ways, until).await? {
                        return Ok(sums[way]);
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

    /// Sets the number, whatever it was. As with [`Client::put`], a key that had a lease has none then.
    pub fn set(&self, value: i64) -> Call<'static, (), CounterError> {
        let Self { client, key, .. } = self.clone();
        Call::new(&self.client, move |until| async move {
            client.put(key, value.to_string()).deadline(until.left()).await?;
            Ok(())
        })
    }

    /// Sets the number if it is the one expected. A key that has a lease keeps it.
    ///
    /// # Errors
    /// [`CounterError::Changed`] if it is another one; [`CounterError::NotANumber`]; and
    /// [`CounterError::Store`], which says whether anything was changed.
    pub fn compare_and_set(&self, expected: i64, new: i64) -> Call<'static, (), CounterError> {
        let Self { client, key, .. } = self.clone();
        Call::new(&self.client, move |until| async move {
            let put = |is_there| vec![put_over(is_there, key.clone(), new.to_string())];
            let is = Compare::value(key.clone()).eq(expected.to_string());
            let mut ways = vec![Way { when: vec![is], then: put(true) }];
            if expected == 0 {
                ways.push(Way { when: vec![Compare::missing(key.clone())], then: put(false) });
            }
            match try_ways(&client, ways, &until).await? {
                (Some(_), _) => Ok(()),
                (None, _) => {
                    let value = number(client.get(key).local().await?.as_ref())?;
                    Err(CounterError::Changed { value })
                }
            }
        })
    }
}

/// What a row says, if it says it as this module would.
fn number(row: Option<&KeyValue>) -> Result<i64, CounterError> {
    let Some(row) = row else { return Ok(0) };
    number_in(&row.value).ok_or_else(|| CounterError::NotANumber(row.value.clone()))
}

/// The ways to add, with the sum of each: to the number as it was seen, and to what it becomes when
/// others add the same.
fn steps(key: &Bytes, seen: Revision, value: i64, add: i64, ways: usize) -> Vec<(i64, Way)> {
    let mut steps = Vec::new();
    let (mut value, mut next) = (value, value.checked_add(add));
    while let (Some(sum), true) = (next, steps.len() < ways) {
        let when = match steps.is_empty() {
            true => Compare::mod_revision(key.clone()).eq(seen),
            false => Compare::value(key.clone()).eq(value.to_string()),
        };
        // Who has added before has made the key, if it was not there.
        let is_there = seen.get() > 0 || !steps.is_empty();
        let then = vec![put_over(is_there, key.clone(), sum.to_string())];
        steps.push((sum, Way { when: vec![when], then }));
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
    fn a_number_is_read_only_as_it_is_written() {
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
    fn the_guesses_are_steps_of_what_is_added_and_end_where_numbers_do() {
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

//! A workload of a counter: every increment must be counted exactly once, however often the library had to retry, and
//! must return a value that no other increment returned.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bowline_check::{At, History, Outcome};
use serde::Serialize;

use super::{Client, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::ledger::Book;

pub(super) const KIND: Kind = Kind {
    name: "counter",
    about: "every acknowledged increment is counted exactly once, unknown ones at most once",
    least: &[("add", 60), ("read", 30)],
    clients: 3,
    control: None,
    make: || Box::new(Counter::default()),
};

const KEY: &str = "counter";

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum CounterCall {
    Add,
    Read,
}

/// The workload.
#[derive(Default)]
struct Counter {
    book: Book<CounterCall, i64>,
    /// The final value, or `None` if it was not read.
    last: Mutex<Option<i64>>,
}

impl Counter {
    fn read(&self, caller: &mut Caller<'_>) -> Result<i64, Miss> {
        let get = Call::Get { key: KEY.to_owned(), local: false };
        let read = |caller: &mut Caller<'_>| {
            let rows = caller.rows(&get)?;
            Ok(rows.first().map_or(0, |row| row.value.parse().unwrap_or(i64::MIN)))
        };
        caller.operation(&self.book, "read", KEY, CounterCall::Read, read)
    }
}

impl Client for &Counter {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if caller.dice.below(4) == 0 {
            drop(self.read(caller));
            return;
        }
        let add = |caller: &mut Caller<'_>| match caller
            .call(&Call::Add { key: KEY.to_owned(), by: 1 })?
        {
            Reply::Number(sum) => Ok(sum),
            reply => Err(Miss::nonsense(&reply)),
        };
        drop(caller.operation(&self.book, "add", KEY, CounterCall::Add, add));
    }
}

impl Workload for Counter {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let last = self.read(caller)?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
        Ok(())
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let judge = move |history: &History<_, _>| problems(history, last);
        vec![Exhibit::of_our_own("counter", self.book.history(), judge)]
    }
}

/// Returns the contradictions in a history. Every number up to the final value must have been produced by one
/// addition: either by the addition that returned the number or, if no addition returned it, by one of unknown
/// outcome. If the final value was not read, the highest observed value is used instead.
fn problems(history: &History<CounterCall, i64>, last: Option<i64>) -> Vec<String> {
    let seen = history.iter().filter_map(|operation| match operation.outcome {
        Outcome::Ok { reply, .. } => Some(reply),
        _ => None,
    });
    let last = last.or_else(|| seen.max()).unwrap_or(0);
    let (mut problems, mut sums, mut unknown) = (Vec::new(), BTreeMap::new(), Vec::new());
    // Each addition with a reply has one position in the order, which is the value that it returned.
    let mut places = Vec::new();
    for (index, operation) in history.iter().enumerate() {
        let is_add = matches!(operation.call, CounterCall::Add);
        match &operation.outcome {
            Outcome::Ok { at, reply } => {
                if is_add && let Some(other) = sums.insert(*reply, index) {
                    problems.push(format!("#{other} and #{index} both returned {reply}"));
                }
                if !(i64::from(is_add)..=last).contains(reply) {
                    problems
                        .push(format!("#{index} returned {reply}, but the final value is {last}"));
                }
                places.push((operation.invoked, *at, *reply, is_add, index));
            }
            Outcome::Unknown { .. } if is_add => unknown.push(operation.invoked),
            _ => {}
        }
    }
    // For the time at which each operation ended: the highest value observed until then, and the operation that
    // observed it.
    places.sort_unstable_by_key(|place| place.1);
    let seen: Vec<(At, (i64, usize))> = places
        .iter()
        .scan((i64::MIN, 0), |highest, place| {
            *highest = (*highest).max((place.2, place.4));
            Some((place.1, *highest))
        })
        .collect();
    let seen_before = |called: At| {
        let ended = seen.partition_point(|(at, _)| *at < called);
        seen[..ended].last().map(|(_, highest)| *highest)
    };
    for (invoked, _, number, is_add, index) in &places {
        if let Some((high, before)) = seen_before(*invoked)
            && (*number < high || (*is_add && *number == high))
        {
            problems.push(format!(
                "#{index} returned {number}, although #{before} had returned {high} before"
            ));
        }
    }
    let above = |called| seen_before(called).map_or(0, |(high, _)| high);
    let mut above: Vec<i64> = unknown.into_iter().map(above).collect();
    above.sort_unstable();
    problems.extend(nobodys(&sums, &above, last));
    problems
}

/// Returns the first number that no addition returned and that no addition of unknown outcome can have produced. An
/// addition of unknown outcome produces at most one number, which is greater than all values observed before its call.
/// `above` contains the greatest such value for each addition of unknown outcome, sorted. If such an addition may have
/// produced a number, it may also have produced any higher number, so assigning the lowest numbers first is optimal.
fn nobodys(sums: &BTreeMap<i64, usize>, above: &[i64], last: i64) -> Option<String> {
    let untold = (1..=last).filter(|number| !sums.contains_key(number));
    for (taken, number) in untold.enumerate() {
        let able = above.partition_point(|seen| *seen < number);
        if able <= taken {
            return Some(format!(
                "no increment returned {number}: only {able} increments of unknown outcome may have made it, and \
                 {taken} lower numbers need one each"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use bowline_check::Operation;

    use super::*;
    use crate::workload::Judgement;

    fn add(at: u64, sum: i64) -> Operation<CounterCall, i64> {
        Operation::ok(at, at + 1, CounterCall::Add, sum)
    }

    fn read(at: u64, seen: i64) -> Operation<CounterCall, i64> {
        Operation::ok(at, at + 1, CounterCall::Read, seen)
    }

    fn unknown(at: u64) -> Operation<CounterCall, i64> {
        Operation::unknown(at, CounterCall::Add)
    }

    fn fine(history: &[Operation<CounterCall, i64>], last: i64) {
        let found = problems(&history.to_vec(), Some(last));
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn lost_duplicate_or_late_increments_are_reported() {
        let wrong = |history: &[Operation<_, _>], last, words: &str| {
            let found = problems(&history.to_vec(), Some(last)).join("; ");
            assert!(found.contains(words), "{found:?}");
        };
        fine(&[add(1, 1), unknown(1), read(5, 1)], 1);
        fine(&[add(1, 1), unknown(1), read(5, 2)], 2);
        wrong(&[add(1, 1), unknown(1), read(5, 3)], 3, "no increment returned 3: only 1");
        wrong(
            &[add(1, 1), add(1, 2), read(5, 1)],
            2,
            "#2 returned 1, although #1 had returned 2 before",
        );
        wrong(&[add(1, 1), add(1, 2), read(5, 1)], 1, "#1 returned 2, but the final value is 1");
        wrong(&[add(1, 1), add(1, 1), read(5, 2)], 2, "#0 and #1 both returned 1");
        wrong(
            &[add(1, 2), add(5, 1), read(7, 2)],
            2,
            "#1 returned 1, although #0 had returned 2 before",
        );
        wrong(&[add(1, 0), read(5, 0)], 0, "#0 returned 0, but the final value is 0");
    }

    #[test]
    fn unapplied_increment_does_not_hide_a_duplicate_one() {
        let wrong = |history: &[Operation<_, _>], last, number: &str| {
            let found = problems(&history.to_vec(), Some(last));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(
                found[0].starts_with(&format!("no increment returned {number}: ")),
                "{found:?}"
            );
        };
        // An addition of unknown outcome cannot have produced the value 2 if it was called after 2 or a higher value
        // had been observed.
        wrong(&[add(1, 1), add(10, 3), unknown(20), read(30, 3)], 3, "2");
        wrong(&[add(1, 1), read(10, 2), unknown(20), read(30, 2)], 2, "2");
        fine(&[add(1, 1), add(10, 3), unknown(10), read(30, 3)], 3);
        fine(&[add(1, 1), add(10, 3), unknown(11), read(30, 3)], 3);
        wrong(&[add(1, 1), add(10, 3), unknown(12), read(30, 3)], 3, "2");
        // Each addition of unknown outcome explains one missing value. An early addition may explain a late value, but
        // a late addition cannot explain an early value.
        fine(&[unknown(1), add(10, 2), unknown(20), add(30, 4), read(40, 4)], 4);
        fine(&[unknown(1), unknown(2), add(10, 2), add(30, 4), read(40, 4)], 4);
        wrong(&[unknown(1), add(10, 3), unknown(20), add(30, 4), read(40, 4)], 4, "2");
        wrong(&[add(10, 2), unknown(20), unknown(21), add(30, 3), read(40, 3)], 3, "1");
    }

    #[test]
    fn counter_without_a_final_read_is_checked_as_far_as_observed() {
        let judged = |history: Vec<Operation<CounterCall, i64>>| {
            let counter = Counter { book: Book::of(history), ..Counter::default() };
            counter.exhibits().remove(0).judge().judgement
        };
        assert!(matches!(judged(Vec::new()), Judgement::Ok(_)));
        assert!(matches!(judged(vec![add(1, 1), unknown(3), add(5, 3)]), Judgement::Ok(_)));
        for wrong in [
            vec![add(1, 1), add(1, 1)],
            vec![add(1, 2), read(5, 1), unknown(1)],
            vec![add(1, 1), add(5, 3)],
        ] {
            assert!(matches!(judged(wrong), Judgement::Violation(_)));
        }
    }
}

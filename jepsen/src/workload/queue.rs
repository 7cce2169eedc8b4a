//! A workload of a queue: every item must be processed exactly once. A client takes an item, and acknowledges the item
//! in one transaction with writing a row that names the client.
//!
//! The history is checked twice: by the replies to takers and the final rows ([`problems`]), and by the times during
//! which takers believed that they own an item ([`intervals::holds`]). A taker owns an item from the reply to its take
//! until the last time at which the item certainly belonged to that taker. During this time no other taker may own the
//! item.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bowline_check::intervals::{self, HoldCall, HoldKind, HoldReply, Holds};
use bowline_check::{At, History, Outcome};
use serde::Serialize;

use super::lock::token_number;
use super::{Client, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss, Timed, outcome};
use crate::calls::{Call, Reply};
use crate::ledger::Book;
use crate::progress::NOTHING_TAKEN;

pub(super) const KIND: Kind = Kind {
    name: "queue",
    about: "every item is acknowledged exactly once, with its effect, and has at most one taker at a time",
    least: &[("put", 60), ("take", 60), ("ack", 60)],
    clients: 2,
    control: None,
    make: || Box::new(Items::default()),
};

const QUEUE: &str = "q/work";
const DONE: &str = "q-done/";
const WAIT_MS: u64 = 500;
/// Maximum time between two checks of a held item.
const HOLD_MS: u64 = 12;
/// Maximum time until the queue becomes shorter at the end of a run. The time restarts whenever the queue has become
/// shorter.
const EMPTIER_WITHIN: Duration = Duration::from_secs(30);
/// Number that is recorded for an item that is not part of the workload.
const STRANGE: u64 = u64::MAX;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum ItemCall {
    Put(u64),
    Take,
    /// An acknowledgement of an item by a taker.
    Ack(u64, String),
}

/// The workload.
#[derive(Default)]
struct Items {
    /// A take returns the item, an acknowledgement returns 1.
    book: Book<ItemCall, Option<u64>>,
    /// The times during which each taker believed that it owned an item.
    holds: Book<HoldCall, HoldReply>,
    next: AtomicU64,
    takes: AtomicU64,
    /// The final rows, or `None` if they were not read.
    done: Mutex<Option<Vec<Done>>>,
}

/// A row that records the effect of an item, and the item's taker. Each effect has its own row, so no effect can
/// overwrite another.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Done {
    item: u64,
    by: String,
}

impl Done {
    fn key(&self) -> String {
        format!("{DONE}{:06}/{}", self.item, self.by)
    }

    fn of(key: &str) -> Self {
        let (item, by) =
            key.strip_prefix(DONE).and_then(|rest| rest.split_once('/')).unwrap_or(("", key));
        Self { item: item.parse().unwrap_or(STRANGE), by: by.to_owned() }
    }
}

/// A taken item.
struct Taken {
    item: u64,
    token: u64,
    /// Time at which the take was known.
    since: u64,
}

impl Items {
    fn put(&self, caller: &mut Caller<'_>) {
        let item = self.next.fetch_add(1, Ordering::Relaxed);
        let offer = Call::Offer { queue: QUEUE.to_owned(), value: item.to_string() };
        let put = |caller: &mut Caller<'_>| caller.call(&offer).map(|_| None);
        drop(caller.operation(&self.book, "put", QUEUE, ItemCall::Put(item), put));
    }

    /// Takes an item, and then acknowledges it or returns it to the queue. Returns whether there was an item.
    fn take(&self, caller: &mut Caller<'_>) -> Result<bool, Miss> {
        let who = format!("{}.{}", caller.client, self.takes.fetch_add(1, Ordering::Relaxed));
        let Some(taken) = self.try_take(caller, &who)? else { return Ok(false) };
        let mut seen = taken.since;
        for _ in 0..caller.dice.below(3) {
            thread::sleep(Duration::from_millis(caller.dice.below(HOLD_MS)));
            let call = Call::Look { slot: who.clone() };
            let said = caller.timed("look", |caller| caller.call(&call)).result;
            let Some(at) = said.ok().and_then(|said| caller.ledger.seen(&said)) else { break };
            seen = seen.max(at);
        }
        // One in ten items is returned to the queue.
        let (invoked, end) = match caller.dice.below(10) {
            0 => self.give_back(caller, &who),
            _ => self.acknowledge(caller, &who, taken.item),
        };
        // If the operation succeeded, the item belonged to this taker when the operation was requested.
        self.had(
            caller.client,
            &who,
            &taken,
            if end.is_ok() { seen.max(invoked) } else { seen },
            end.is_err(),
        );
        end.map(|()| true)
    }

    fn try_take(&self, caller: &mut Caller<'_>, who: &str) -> Result<Option<Taken>, Miss> {
        let call = Call::Take { slot: who.to_owned(), queue: QUEUE.to_owned(), wait_ms: WAIT_MS };
        let index = self.book.begin(caller.client, QUEUE, caller.now(), ItemCall::Take);
        let Timed { result, ended, .. } =
            caller.timed_as(kind_of, |caller| match caller.call(&call)? {
                Reply::Item(item) => Ok(item
                    .map(|(item, token)| (item.parse().unwrap_or(STRANGE), token_number(token)))),
                reply => Err(Miss::nonsense(&reply)),
            });
        let item = result.clone().map(|taken| taken.map(|(item, _)| item));
        self.book.end(index, outcome(&item, ended));
        if matches!(result, Err(Miss::Unknown(_))) {
            // The item may still arrive, and must be given up when it does.
            caller.forget(who.to_owned());
        }
        Ok(result?.map(|(item, token)| Taken { item, token, since: ended }))
    }

    fn give_back(&self, caller: &mut Caller<'_>, who: &str) -> (u64, Result<(), Miss>) {
        let call = Call::Release { slot: who.to_owned() };
        let timed = caller.timed("give back", |caller| was_ours(caller.call(&call)?));
        (timed.invoked, timed.result)
    }

    fn acknowledge(
        &self,
        caller: &mut Caller<'_>,
        who: &str,
        item: u64,
    ) -> (u64, Result<(), Miss>) {
        let done = Done { item, by: who.to_owned() };
        let call =
            Call::Acknowledge { slot: who.to_owned(), key: done.key(), value: String::new() };
        let ack = ItemCall::Ack(item, who.to_owned());
        let index = self.book.begin(caller.client, QUEUE, caller.now(), ack);
        let Timed { result, invoked, ended } =
            caller.timed("ack", |caller| was_ours(caller.call(&call)?));
        self.book.end(index, outcome(&result.clone().map(|()| Some(1)), ended));
        (invoked, result)
    }

    /// Records the time during which a taker believed that it owned an item.
    fn had(&self, client: u64, who: &str, taken: &Taken, until: u64, lost: bool) {
        let call =
            HoldCall::Hold { owner: who.into(), kind: HoldKind::Write, token: Some(taken.token) };
        let index = self.holds.begin(client, &format!("item {}", taken.item), taken.since, call);
        self.holds.end(index, Outcome::Ok { at: At(until), reply: HoldReply { lost } });
    }
}

/// Returns the kind under which a take is recorded. An empty take may not have needed a quorum.
fn kind_of<T>(taken: &Result<Option<T>, Miss>) -> &'static str {
    if matches!(taken, Ok(None)) { NOTHING_TAKEN } else { "take" }
}

fn was_ours(reply: Reply) -> Result<(), Miss> {
    match reply {
        Reply::Held { held: true, .. } => Ok(()),
        Reply::Held { held: false, .. } => {
            Err(Miss::Failed("the item belongs to another taker".to_owned()))
        }
        reply => Err(Miss::nonsense(&reply)),
    }
}

impl Client for &Items {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if caller.dice.below(2) == 0 {
            self.put(caller);
        } else {
            drop(self.take(caller));
        }
    }
}

impl Workload for Items {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        // When takers have ended, the items that they claimed become available after their sessions have ended.
        let (mut least, mut since) = (usize::MAX, Instant::now());
        loop {
            let some = self.take(caller).unwrap_or(true);
            let left = caller.rows(&Call::List { prefix: format!("{QUEUE}/item/") })?.len();
            if !some && left == 0 {
                break;
            }
            if left < least {
                (least, since) = (left, Instant::now());
            }
            if since.elapsed() > EMPTIER_WITHIN {
                return Err(Miss::Failed(format!("{left} items were never taken")));
            }
        }
        let rows = caller.rows(&Call::List { prefix: DONE.to_owned() })?;
        let done = rows.into_iter().map(|row| Done::of(&row.key)).collect();
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        Ok(())
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let judge = move |history: &History<_, _>| problems(history, done.as_deref());
        let holds = |history: &History<_, _>| intervals::holds(&Holds::default(), history);
        vec![
            Exhibit::of_our_own("items", self.book.history(), judge),
            Exhibit::new("takers", "--model holds", self.holds.history(), holds),
        ]
    }
}

/// Checks the replies to takers, and the final rows if they were read.
fn problems(history: &History<ItemCall, Option<u64>>, done: Option<&[Done]>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut rows: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for Done { item, by } in done.unwrap_or_default() {
        rows.entry(*item).or_default().push(by);
    }
    let is_done = |item: &u64, who: &str| rows.get(item).is_some_and(|by| by.contains(&who));
    // All puts and acknowledgements are collected before any take is checked, because the history is in the order of
    // calls.
    let (mut put, mut called) = (BTreeMap::new(), BTreeSet::new());
    let mut acknowledged: BTreeMap<u64, (At, &str)> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        match (&operation.call, &operation.outcome) {
            (ItemCall::Put(item), outcome) => drop(put.insert(*item, (operation.invoked, outcome))),
            (ItemCall::Ack(item, who), outcome) => {
                called.insert((*item, who.as_str()));
                match outcome {
                    Outcome::Ok { at, .. } => {
                        if let Some((_, other)) = acknowledged.insert(*item, (*at, who)) {
                            problems.push(format!("{item} was acknowledged by {other} and {who}"));
                        }
                        if done.is_some() && !is_done(item, who) {
                            let by = rows.get(item);
                            problems.push(format!(
                                "{item} was acknowledged by {who}, but its effect is by {by:?}"
                            ));
                        }
                    }
                    Outcome::Failed { .. } if is_done(item, who) => {
                        problems.push(format!(
                            "{item} has an effect by {who}, whose acknowledgement was rejected (#{index})"
                        ));
                    }
                    _ => {}
                }
            }
            (ItemCall::Take, _) => {}
        }
    }
    for (index, operation) in history.iter().enumerate() {
        let (ItemCall::Take, Outcome::Ok { at, reply: Some(item) }) =
            (&operation.call, &operation.outcome)
        else {
            continue;
        };
        match put.get(item) {
            None | Some((_, Outcome::Failed { .. })) => {
                problems.push(format!("{item} was taken (#{index}) but never put"));
            }
            Some((invoked, _)) if at < invoked => {
                problems.push(format!("{item} was taken (#{index}) before it was put"));
            }
            Some(_) => {}
        }
        if let Some((_, who)) = acknowledged.get(item).filter(|(at, _)| *at < operation.invoked) {
            problems.push(format!("{item} was taken (#{index}) after {who} had acknowledged it"));
        }
    }
    for (item, by) in &rows {
        if by.len() > 1 {
            problems.push(format!("{item} has {} effects: by {}", by.len(), by.join(", ")));
        }
        for who in by.iter().filter(|who| !called.contains(&(*item, **who))) {
            problems.push(format!("{item} has an effect by {who}, who never took it"));
        }
    }
    if done.is_some() {
        let is_put = |(_, outcome): &(At, &Outcome<_>)| matches!(outcome, Outcome::Ok { .. });
        let lost = put.iter().filter(|(item, put)| is_put(put) && !rows.contains_key(item));
        problems.extend(lost.map(|(item, _)| format!("{item} was put but has no effect")));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress;
    use crate::workload::Judgement;
    use bowline_check::Operation;

    type Item = Operation<ItemCall, Option<u64>>;

    fn put(item: u64) -> Item {
        Operation::ok(1, 2, ItemCall::Put(item), None)
    }

    fn take(invoked: u64, item: u64) -> Item {
        Operation::ok(invoked, invoked + 2, ItemCall::Take, Some(item))
    }

    fn ack(invoked: u64, item: u64, who: &str) -> Item {
        Operation::ok(invoked, invoked + 2, ItemCall::Ack(item, who.to_owned()), Some(1))
    }

    fn done(item: u64, by: &str) -> Done {
        Done { item, by: by.to_owned() }
    }

    fn told(history: Vec<Item>, done: &[Done]) -> Vec<String> {
        problems(&history, Some(done))
    }

    #[test]
    fn item_put_taken_and_acknowledged_once_is_valid() {
        let again = vec![put(7), take(3, 7), take(6, 7), ack(9, 7, "b")];
        assert_eq!(told(again, &[done(7, "b")]), [""; 0]);
        // The second delivery and the acknowledgement were concurrent: the item had been returned to the queue before.
        let at_once = vec![put(7), take(3, 7), take(8, 7), ack(6, 7, "a")];
        assert_eq!(told(at_once, &[done(7, "a")]), [""; 0]);
        let unknown = ItemCall::Ack(7, "a".to_owned());
        let unknown = vec![put(7), take(3, 7), Operation::unknown(6, unknown)];
        assert_eq!(told(unknown, &[done(7, "a")]), [""; 0]);
        let uncertain = vec![Operation::unknown(1, ItemCall::Put(7)), take(3, 7), ack(6, 7, "a")];
        assert_eq!(told(uncertain, &[done(7, "a")]), [""; 0]);
    }

    #[test]
    fn item_done_twice_is_reported_without_both_replies() {
        let call = |who: &str| Operation::unknown(5, ItemCall::Ack(7, who.to_owned()));
        let history = vec![put(7), take(3, 7), take(3, 7), ack(6, 7, "a"), call("b")];
        let rows = ["q-done/000007/a", "q-done/000007/b"].map(Done::of);
        assert_eq!(told(history, &rows), ["7 has 2 effects: by a, b"]);
    }

    #[test]
    fn take_after_acknowledgement_is_reported() {
        let history = vec![put(7), take(3, 7), ack(6, 7, "a"), take(9, 7)];
        let said = told(history, &[done(7, "a")]);
        assert_eq!(said, ["7 was taken (#3) after a had acknowledged it"]);
    }

    #[test]
    fn queue_replies_are_checked_without_a_final_read() {
        let judged = |history: Vec<Item>| {
            let items = Items { book: Book::of(history), ..Items::default() };
            items.exhibits().remove(0).judge().judgement
        };
        assert!(matches!(
            judged(vec![put(7), put(8), take(3, 7), ack(6, 7, "a")]),
            Judgement::Ok(_)
        ));
        for wrong in [
            vec![put(7), take(3, 7), ack(6, 7, "a"), take(9, 7)],
            vec![put(7), take(3, 7), ack(6, 7, "a"), ack(6, 7, "b")],
            vec![put(7), take(3, 8)],
        ] {
            assert!(matches!(judged(wrong), Judgement::Violation(_)));
        }
    }

    #[test]
    fn take_of_an_item_never_put_is_reported() {
        let never = vec![put(7), take(3, 7), ack(6, 7, "a"), take(3, STRANGE)];
        let said = told(never, &[done(7, "a")]);
        assert_eq!(said, [format!("{STRANGE} was taken (#3) but never put")]);
        let refused = vec![Operation::failed(1, ItemCall::Put(7)), take(3, 7)];
        assert_eq!(told(refused, &[]), ["7 was taken (#1) but never put"]);
        let early = vec![Operation::unknown(9, ItemCall::Put(7)), take(3, 7)];
        assert_eq!(told(early, &[]), ["7 was taken (#1) before it was put"]);
    }

    #[test]
    fn done_rows_must_match_the_acknowledgements() {
        let lost = vec![put(7), take(3, 7), ack(6, 7, "a")];
        let said =
            ["7 was acknowledged by a, but its effect is by None", "7 was put but has no effect"];
        assert_eq!(told(lost, &[]), said);
        let strange = vec![put(7), take(3, 7), ack(6, 7, "a")];
        let said = told(strange, &[done(7, "a"), Done::of("q-done/nonsense")]);
        assert_eq!(
            said,
            [format!("{STRANGE} has an effect by q-done/nonsense, who never took it")]
        );
        let refused = Operation::failed(6, ItemCall::Ack(7, "a".to_owned()));
        let said = told(vec![put(7), take(3, 7), refused], &[done(7, "a")]);
        assert_eq!(said, ["7 has an effect by a, whose acknowledgement was rejected (#2)"]);
    }

    #[test]
    fn two_holders_of_one_item_are_reported() {
        let verdict = |other: u64| {
            let items = Items::default();
            items.had(1, "a", &Taken { item: 7, token: 5, since: 10 }, 20, false);
            items.had(2, "b", &Taken { item: other, token: 6, since: 19 }, 30, true);
            items.exhibits().remove(1).judge().judgement
        };
        assert!(matches!(verdict(7), Judgement::Violation(_)), "{:?}", verdict(7));
        assert!(matches!(verdict(8), Judgement::Ok(_)), "{:?}", verdict(8));
    }

    #[test]
    fn empty_take_is_not_progress() {
        assert!(!progress::needs_a_quorum(kind_of::<u64>(&Ok(None))));
        assert!(progress::needs_a_quorum(kind_of(&Ok(Some(7)))));
        assert!(progress::needs_a_quorum(kind_of::<u64>(&Err(Miss::Failed(String::new())))));
    }
}

//! Judges the queues: an item exists once, has at most one consumer at a time, and is removed only by an
//! acknowledgement of that consumer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::Judge;
use super::standing::{MemberListChange, Standing};
use crate::model::{Event, EventKind, NodeId, Revision};

/// In the calm phase, maximum time until a taker gets an item while items are available all the time. The time covers
/// an election, and items that are first meant for waiting takers that are gone.
const TAKE_WAIT_MAX: Duration = Duration::from_secs(6);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct DeliveryId(u64);

/// A delivered item as its taker sees it.
pub(crate) struct QueuesTaken {
    pub(crate) node: NodeId,
    /// The name of the item, and its value.
    pub(crate) item: Bytes,
    pub(crate) value: Bytes,
    pub(crate) attempt: u64,
    pub(crate) taken_at: Revision,
    /// Returns whether the delivery still belongs to the taker.
    pub(crate) is_claimed: Box<dyn Fn() -> bool>,
}

/// The parameters of a put.
#[derive(Clone, Copy)]
struct QueuesPut {
    /// The item must not be taken before this time.
    not_before: Duration,
    priority: i16,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct WaitingTakerId(u64);

/// A taker that retries until it gets an item.
struct WaitingTaker {
    node: NodeId,
    queue: &'static str,
    since: Duration,
}

/// The state of the judge for queues.
#[derive(Default)]
pub(super) struct Queues {
    /// Deliveries that have not ended.
    deliveries: BTreeMap<DeliveryId, QueuesTaken>,
    /// Keys of the items, by value.
    keys: BTreeMap<Bytes, Bytes>,
    /// Number of items in all queues.
    waiting: usize,
    /// Items whose put was not applied.
    refused: BTreeSet<Bytes>,
    /// The put of each value.
    puts: BTreeMap<Bytes, QueuesPut>,
    /// The order of each queue.
    standing: BTreeMap<Bytes, Standing>,
    /// Claims that were acknowledged or may have been, by item and revision of the claim.
    acknowledged: BTreeSet<(Bytes, Revision)>,
    /// The last claim of each item and its attempt number.
    takings: BTreeMap<Bytes, (Revision, u64)>,
    /// Keys of the items that are neither claimed nor delayed, and since when.
    free: BTreeMap<Bytes, Duration>,
    waiting_takers: BTreeMap<WaitingTakerId, WaitingTaker>,
}

impl Queues {
    /// Forgets the takers of a process that has ended.
    pub(super) fn ended(&mut self, node: NodeId) {
        self.deliveries.retain(|_, taken| taken.node != node);
        self.waiting_takers.retain(|_, waiting_taker| waiting_taker.node != node);
    }
}

impl Judge {
    /// Records that an item will be put with a priority and a delay.
    pub(crate) fn puts_item(&mut self, value: &Bytes, priority: i16, delay: Duration) {
        let not_before = self.timeline.now() + delay;
        self.queues.puts.insert(value.clone(), QueuesPut { not_before, priority });
    }

    /// Returns the number of items in all queues at the newest revision.
    pub(crate) fn items_waiting(&self) -> usize {
        self.queues.waiting
    }

    /// Records that a program on a node takes repeatedly until it gets an item.
    pub(crate) fn record_waiting_taker(
        &mut self,
        node: NodeId,
        queue: &'static str,
    ) -> WaitingTakerId {
        let id = WaitingTakerId(self.next);
        self.next += 1;
        let since = self.timeline.now();
        self.queues.waiting_takers.insert(id, WaitingTaker { node, queue, since });
        id
    }

    /// Records that the program got an item or has stopped.
    pub(crate) fn record_served_taker(&mut self, id: WaitingTakerId) {
        self.queues.waiting_takers.remove(&id);
    }

    /// Checks that in the calm phase no taker waits long while items are available all the time.
    pub(super) fn check_takers(&mut self, calm: Duration) {
        let now = self.timeline.now();
        let Queues { free, waiting_takers, .. } = &self.queues;
        let long = |since: Duration| now - since.max(calm) > TAKE_WAIT_MAX;
        for waiting_taker in
            waiting_takers.values().filter(|waiting_taker| long(waiting_taker.since))
        {
            let is_of = |key: &Bytes| {
                let rest = key.strip_prefix(waiting_taker.queue.as_bytes());
                rest.is_some_and(|rest| rest.starts_with(b"/item/"))
            };
            if let Some((key, _)) = free.iter().find(|(key, since)| is_of(key) && long(**since)) {
                let detail = format!(
                    "nobody has had {key:?} since {calm:?}, and {:?} takes",
                    waiting_taker.node
                );
                return self.broken("Q-LIVE", || detail);
            }
        }
    }

    /// Checks the reply that an item was put.
    pub(crate) fn put_item(&mut self, queue: &str, item: &[u8], value: &Bytes) {
        let key = Bytes::from([queue.as_bytes(), b"/item/", item].concat());
        let known = self.queues.keys.get(value).cloned();
        self.expect(known.as_ref() == Some(&key), "Q-LOST", || {
            format!("{value:?} was put as {key:?}, and is {known:?}")
        });
        self.count("item put");
    }

    /// Records that the put of an item was not applied.
    pub(crate) fn refused_item(&mut self, value: &Bytes) {
        let known = self.queues.keys.get(value).cloned();
        self.expect(known.is_none(), "X-UNKNOWN", || {
            format!("{value:?} is told as not put, and is {known:?}")
        });
        self.queues.refused.insert(value.clone());
    }

    /// Records a delivery to a taker.
    pub(crate) fn takes(&mut self, taken: QueuesTaken) -> DeliveryId {
        let id = DeliveryId(self.next);
        self.next += 1;
        let now = self.timeline.now();
        let not_before = self.queues.puts.get(&taken.value).map(|put| put.not_before);
        self.expect(not_before.is_some_and(|at| at <= now), "Q-DELAY", || {
            format!("{:?} is taken; it was not to be before {not_before:?}", taken.value)
        });
        let this = (taken.taken_at, taken.attempt);
        let last = self.queues.takings.insert(taken.item.clone(), this);
        let rises = last.is_none_or(|(at, attempt)| at < this.0 && attempt < this.1);
        self.expect(rises, "K-TOKEN", || {
            format!("{:?} is taken at {this:?}, and was before at {last:?}", taken.value)
        });
        self.queues.deliveries.insert(id, taken);
        self.count("item taken");
        self.check_deliveries(id);
        id
    }

    /// Checks that no other taker has the item that was just delivered.
    fn check_deliveries(&mut self, id: DeliveryId) {
        let deliveries = &self.queues.deliveries;
        let Some(taken) = deliveries.get(&id) else { return };
        let others =
            deliveries.iter().filter(|(other, with)| **other != id && with.item == taken.item);
        let also = others.filter(|(_, with)| (with.is_claimed)()).map(|(_, with)| with.node);
        if let (true, Some(other)) = ((taken.is_claimed)(), also.min()) {
            let (value, node) = (taken.value.clone(), taken.node);
            self.broken("Q-ONE", || format!("{value:?} is with {node:?} and with {other:?}"));
        }
    }

    /// Records that the taker is about to acknowledge the delivery.
    pub(crate) fn acknowledges(&mut self, id: DeliveryId) {
        let Some(taken) = self.queues.deliveries.remove(&id) else { return };
        self.queues.acknowledged.insert((taken.item, taken.taken_at));
    }

    /// Records that the acknowledgement was not applied and never will be: this claim does not remove the item.
    pub(crate) fn not_acknowledged(&mut self, queue: &str, item: &Bytes, taken_at: Revision) {
        self.queues.acknowledged.remove(&(item.clone(), taken_at));
        let gone = self.deletion_of(queue, item);
        let was_its = gone.is_some_and(|(_, claimed)| claimed == taken_at);
        self.expect(!was_its, "X-UNKNOWN", || {
            format!(
                "the taking of {item:?} at {taken_at:?} is told as not acknowledged; it went: {gone:?}"
            )
        });
        self.count("acknowledgement not applied");
    }

    /// Records that the taker returns the item to the queue.
    pub(crate) fn gives_back(&mut self, id: DeliveryId) {
        self.queues.deliveries.remove(&id);
        self.count("item given back");
    }

    /// Checks the reply that the item was returned.
    pub(crate) fn check_returned_item(&mut self, queue: &str, item: &[u8], taken_at: Revision) {
        let claim = [queue.as_bytes(), b"/claim/", item].concat();
        let row = self.truth.row_at(&claim, self.truth.newest()).cloned();
        let is_gone = row.as_ref().is_none_or(|row| row.create_revision != taken_at);
        self.expect(is_gone, "Q-ACK", || {
            format!("the taking at {taken_at:?} is told as given back, and there is {row:?}")
        });
        self.count("item back");
    }

    /// Checks the reply to an acknowledgement: whether it was applied, and the row that it wrote.
    pub(crate) fn was_acknowledged(
        &mut self,
        queue: &str,
        item: &Bytes,
        taken_at: Revision,
        done: Result<Option<Revision>, ()>,
    ) {
        if done.is_err() {
            self.queues.acknowledged.remove(&(item.clone(), taken_at));
        }
        let gone = self.deletion_of(queue, item);
        let was_its = gone.is_some_and(|(_, claimed)| claimed == taken_at);
        self.expect(was_its == done.is_ok(), "Q-ACK", || {
            format!("of the taking at {taken_at:?} is told {done:?}; the item went: {gone:?}")
        });
        let right = match (done, gone) {
            (Ok(Some(at)), Some((went, _))) => at == went,
            _ => true,
        };
        self.expect(right, "Q-ACK", || format!("told {done:?}, and it went with {gone:?}"));
        self.count(if done.is_ok() { "acknowledged" } else { "acknowledged too late" });
    }

    /// Returns the revision at which an item was deleted, and the revision at which its claim was made.
    fn deletion_of(&self, queue: &str, item: &[u8]) -> Option<(Revision, Revision)> {
        let key = |part: &[u8]| [queue.as_bytes(), part, item].concat();
        let last = self.truth.changes(&key(b"/item/")).next_back();
        let (went, _) = last.filter(|(_, row)| row.is_none())?;
        let claimed = self.truth.row_at(&key(b"/claim/"), Revision(went.get() - 1))?;
        Some((went, claimed.create_revision))
    }

    /// Follows the changes below `queue/`: no item appears twice, and none is removed without an acknowledgement.
    pub(super) fn follow_queues(&mut self, revision: Revision, events: &[Event]) {
        self.follow_takers(revision, events);
        for event in events.iter().filter(|event| event.kv.key.starts_with(b"queue/")) {
            let key = &event.kv.key;
            self.follow_claims(event);
            let Some(at) = key.windows(6).position(|part| part == b"/item/") else { continue };
            let (queue, item) = (key.slice(..at), key.slice(at + 6..));
            let is_new = event.kind == EventKind::Put && event.kv.version == 1;
            if is_new {
                self.queues.waiting += 1;
                let value = event.kv.value.clone();
                let put = self.queues.puts.get(&value);
                if put.is_some_and(|put| put.not_before <= self.timeline.now()) {
                    self.queues.free.insert(key.clone(), self.timeline.now());
                }
                let before = self.queues.keys.insert(value.clone(), key.clone());
                let is_refused = self.queues.refused.contains(&value);
                self.expect(before.is_none() && !is_refused, "Q-LOST", || {
                    format!("{value:?} is put as {key:?}, and was {before:?}, {is_refused}")
                });
            }
            if event.kind == EventKind::Delete {
                self.queues.waiting = self.queues.waiting.saturating_sub(1);
                self.queues.free.remove(key);
                let claim = [&queue[..], b"/claim/", &item[..]].concat();
                let row = self.truth.row_at(&claim, Revision(revision.get() - 1));
                let since = row.map(|row| row.create_revision);
                let by = since.map(|since| (item.clone(), since));
                let is_right = by.is_some_and(|by| self.queues.acknowledged.contains(&by));
                self.expect(is_right, "Q-LOST", || {
                    format!(
                        "{key:?} is gone at {revision:?}; nobody acknowledged it since {since:?}"
                    )
                });
            }
        }
    }

    /// Follows the order of the queues: a taker without competition gets the first item.
    fn follow_takers(&mut self, revision: Revision, events: &[Event]) {
        let mut changes: BTreeMap<Bytes, Vec<MemberListChange<'_>>> = BTreeMap::new();
        for event in events.iter().filter(|event| event.kv.key.starts_with(b"queue/")) {
            let priority = self.queues.puts.get(&event.kv.value).map_or(0, |put| put.priority);
            if let Some((queue, change)) = MemberListChange::of(event, priority) {
                changes.entry(queue).or_default().push(change);
            }
        }
        for (queue, changes) in changes {
            match self.queues.standing.entry(queue).or_default().follow(&changes) {
                Ok(true) => self.count("item taken without competition"),
                Ok(false) => {}
                Err(what) => self.broken("Q-ORDER", || format!("at {revision:?} {what}")),
            }
        }
    }

    /// An item with a claim is not available. The item becomes available if its claim is removed without the item.
    fn follow_claims(&mut self, event: &Event) {
        let key = &event.kv.key;
        let Some(at) = key.windows(7).position(|part| part == b"/claim/") else { return };
        let item = Bytes::from([&key[..at], b"/item/", &key[at + 7..]].concat());
        match event.kind {
            EventKind::Put => drop(self.queues.free.remove(&item)),
            EventKind::Delete => {
                if self.truth.row_at(&item, event.revision()).is_some() {
                    self.queues.free.insert(item, self.timeline.now());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::clock::Timeline;
    use super::*;
    use crate::model::KeyValue;

    const QUEUE: &str = "queue/q";
    const ITEM: Bytes = Bytes::from_static(b"8000.1.0");
    const TAKEN_AT: Revision = Revision(3);

    /// Returns a judge that has seen an item put at 2, claimed at 3, and perhaps acknowledged by that claim.
    fn judge() -> Judge {
        let mut judge = Judge::new(Arc::new(Timeline::default()), 1);
        judge.puts_item(&"item #1".into(), 0, Duration::ZERO);
        change(&mut judge, &["item"], "item #1");
        change(&mut judge, &["claim"], "x");
        judge.queues.acknowledged.insert((ITEM, TAKEN_AT));
        judge
    }

    /// Puts rows of the item, or deletes them if `value` is empty.
    fn change(judge: &mut Judge, parts: &[&str], value: &'static str) {
        let revision = judge.truth.newest().next();
        let event = |part: &&str| {
            let key = Bytes::from([QUEUE.as_bytes(), b"/", part.as_bytes(), b"/", &ITEM].concat());
            let prev = judge.truth.row_at(&key, judge.truth.newest()).cloned();
            let is_put = !value.is_empty();
            let kv = KeyValue {
                key,
                value: value.into(),
                create_revision: if is_put { revision } else { Revision(0) },
                mod_revision: revision,
                version: is_put.into(),
                lease: None,
            };
            let kind = if is_put { EventKind::Put } else { EventKind::Delete };
            Event { kind, kv, prev }
        };
        let events: Vec<Event> = parts.iter().map(event).collect();
        judge.learn(revision, &events);
    }

    fn goes(judge: &mut Judge) {
        change(judge, &["item", "claim"], "");
    }

    fn broken(judge: &mut Judge) -> Option<&'static str> {
        judge.verdict().err().map(|violation| violation.invariant)
    }

    #[test]
    fn denied_acknowledgement_is_never_applied() {
        let mut early = judge();
        goes(&mut early);
        assert_eq!(broken(&mut early), None);
        early.not_acknowledged(QUEUE, &ITEM, TAKEN_AT);
        assert_eq!(broken(&mut early), Some("X-UNKNOWN"));
        let mut late = judge();
        late.not_acknowledged(QUEUE, &ITEM, TAKEN_AT);
        assert_eq!(broken(&mut late), None);
        goes(&mut late);
        assert_eq!(broken(&mut late), Some("Q-LOST"));
        let mut too_late = judge();
        too_late.was_acknowledged(QUEUE, &ITEM, TAKEN_AT, Err(()));
        assert_eq!(broken(&mut too_late), None);
        goes(&mut too_late);
        assert_eq!(broken(&mut too_late), Some("Q-LOST"));
    }

    #[test]
    fn another_consumer_may_acknowledge_a_denied_item() {
        let mut judge = judge();
        change(&mut judge, &["claim"], "");
        change(&mut judge, &["claim"], "y");
        judge.queues.acknowledged.insert((ITEM, Revision(5)));
        goes(&mut judge);
        judge.not_acknowledged(QUEUE, &ITEM, TAKEN_AT);
        assert_eq!(broken(&mut judge), None);
    }

    #[test]
    fn returned_item_is_no_longer_claimed_by_its_taker() {
        let mut judge = judge();
        change(&mut judge, &["claim"], "");
        judge.check_returned_item(QUEUE, &ITEM, TAKEN_AT);
        change(&mut judge, &["claim"], "y");
        judge.check_returned_item(QUEUE, &ITEM, TAKEN_AT);
        assert_eq!(broken(&mut judge), None);
        judge.check_returned_item(QUEUE, &ITEM, Revision(5));
        assert_eq!(broken(&mut judge), Some("Q-ACK"));
    }
}

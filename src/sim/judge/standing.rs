//! Judges the order of a queue: a taker without competition gets the first item.
//!
//! Takers that share a handle claim items together, with one proposal at a time. Such a group is called a board. A
//! board chooses from the rows of the local replica. These rows include all changes up to the board's last proposal and
//! perhaps some later changes. The claims of a board must therefore be the first items of the queue at one of the
//! revisions after its last proposal. The order is promised only without competition: once another board has a claim or
//! waits for items, the next claims of this board are not checked.
//!
//! ```text
//!   claims of a ──▶ put ──▶ delay over ──▶ put ──▶ claims of a       first items at one of these? yes, or Q-ORDER
//!   claims of a ──▶ put ──▶ b waits ──────────────▶ claims of a       may be any: a leaves items to b
//! ```

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::model::{Event, EventKind, Revision};

/// Maximum number of items that a board claims at once.
const CLAIMS_MAX: usize = 32;

/// Sort key of an item: the lowest priority number first, then the earliest put.
type Place = (i16, Revision, Bytes);

/// A change to a row of a queue.
pub(super) struct MemberListChange<'a> {
    part: &'a [u8],
    /// The part of the key after the kind of row.
    name: Bytes,
    /// The priority with which its item was put.
    priority: i16,
    event: &'a Event,
}

impl<'a> MemberListChange<'a> {
    /// Returns the queue and the change, for an item with this priority.
    pub(super) fn of(event: &'a Event, priority: i16) -> Option<(Bytes, Self)> {
        let key = &event.kv.key;
        let mut pieces = key.rsplitn(3, |byte| *byte == b'/');
        let (name, part, queue) = (pieces.next()?, pieces.next()?, pieces.next()?);
        let (queue, name) = (key.slice_ref(queue), key.slice_ref(name));
        Some((queue, Self { part, name, priority, event }))
    }

    fn is_put(&self) -> bool {
        self.event.kind == EventKind::Put
    }

    /// Returns the board that has claimed an item or begun to wait with this change.
    fn board(&self) -> Option<&Bytes> {
        match self.part {
            b"claim" if self.is_put() => Some(&self.event.kv.value),
            b"idle" if self.is_put() => Some(&self.name),
            _ => None,
        }
    }
}

/// A board that has had no competition in its queue since its last proposal.
struct Alone {
    board: Bytes,
    /// The first items at each revision since then.
    firsts: Vec<Vec<Bytes>>,
}

/// The items of a queue and the boards that take from it.
#[derive(Default)]
pub(super) struct Standing {
    items: BTreeMap<Bytes, Place>,
    delayed: BTreeSet<Bytes>,
    /// The claimed items and the board of each.
    claimed: BTreeMap<Bytes, Bytes>,
    free: BTreeSet<Place>,
    /// The boards that wait for items.
    idle: BTreeSet<Bytes>,
    alone: Option<Alone>,
}

impl Standing {
    /// Follows a revision. Returns whether its claims could be checked.
    ///
    /// # Errors
    /// Returns a description of a claim out of order.
    pub(super) fn follow(&mut self, changes: &[MemberListChange<'_>]) -> Result<bool, String> {
        let judged = self.check(changes);
        changes.iter().for_each(|change| self.change(change));
        if let Some(board) = changes.iter().find_map(MemberListChange::board) {
            self.alone = Some(Alone { board: board.clone(), firsts: Vec::new() });
        }
        self.alone = self.alone.take().filter(|alone| self.is_alone(&alone.board));
        if let Some(alone) = &mut self.alone {
            let first = self.free.iter().take(CLAIMS_MAX).map(|(.., id)| id.clone()).collect();
            if alone.firsts.last() != Some(&first) {
                alone.firsts.push(first);
            }
        }
        judged
    }

    fn check(&self, changes: &[MemberListChange<'_>]) -> Result<bool, String> {
        let Some(Alone { board, firsts }) = &self.alone else { return Ok(false) };
        let is_claim = |change: &&MemberListChange<'_>| {
            change.part == b"claim" && change.board() == Some(board)
        };
        let claims: BTreeSet<Bytes> =
            changes.iter().filter(is_claim).map(|change| change.name.clone()).collect();
        if claims.is_empty() {
            return Ok(false);
        }
        let first = |first: &Vec<Bytes>| first.iter().take(claims.len()).cloned().collect();
        let firsts: BTreeSet<BTreeSet<Bytes>> = firsts.iter().map(first).collect();
        match firsts.contains(&claims) {
            true => Ok(true),
            false => Err(format!("{board:?} is alone, and claims {claims:?} of {firsts:?}")),
        }
    }

    fn is_alone(&self, board: &Bytes) -> bool {
        self.claimed.values().chain(&self.idle).all(|of| of == board)
    }

    fn change(&mut self, change: &MemberListChange<'_>) {
        let (name, kv) = (&change.name, &change.event.kv);
        match (change.part, change.is_put()) {
            (b"item", true) => {
                let place = || (change.priority, kv.create_revision, name.clone());
                self.items.entry(name.clone()).or_insert_with(place);
            }
            (b"item", false) => {
                if let Some(place) = self.items.remove(name) {
                    self.free.remove(&place);
                }
            }
            (b"delay", true) => drop(self.delayed.insert(name.clone())),
            (b"delay", false) => drop(self.delayed.remove(name)),
            (b"claim", true) => drop(self.claimed.insert(name.clone(), kv.value.clone())),
            (b"claim", false) => drop(self.claimed.remove(name)),
            (b"idle", true) => drop(self.idle.insert(name.clone())),
            (b"idle", false) => drop(self.idle.remove(name)),
            _ => {}
        }
        let Some(place) = self.items.get(name) else { return };
        match self.delayed.contains(name) || self.claimed.contains_key(name) {
            true => drop(self.free.remove(place)),
            false => drop(self.free.insert(place.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::KeyValue;

    /// Returns the result for the last of these revisions. `+delay b` puts a row and `-delay b` deletes one. An item
    /// is followed by its priority, and a claim by its board.
    fn told(revisions: &[&str]) -> Result<bool, ()> {
        let (mut standing, mut last) = (Standing::default(), Ok(false));
        for (at, words) in revisions.iter().enumerate() {
            let events: Vec<(Event, i16)> =
                words.split(", ").map(|words| event(words, at as u64 + 2)).collect();
            let changes = events.iter().map(|(event, priority)| {
                let (queue, change) = MemberListChange::of(event, *priority).unwrap();
                assert_eq!(queue, "queue/q");
                change
            });
            last = standing.follow(&changes.collect::<Vec<_>>());
        }
        last.map_err(drop)
    }

    fn event(words: &str, at: u64) -> (Event, i16) {
        let mut words = words.split(' ');
        let (what, name) = (words.next().unwrap(), words.next().unwrap());
        let value = words.next().unwrap_or_default();
        let (sign, part) = what.split_at(1);
        let kv = KeyValue {
            key: format!("queue/q/{part}/{name}").into(),
            value: value.to_owned().into(),
            create_revision: Revision(at),
            mod_revision: Revision(at),
            version: 1,
            lease: None,
        };
        let kind = if sign == "+" { EventKind::Put } else { EventKind::Delete };
        (Event { kind, kv, prev: None }, value.parse().unwrap_or_default())
    }

    const OUT_OF_ORDER: Result<bool, ()> = Err(());

    #[test]
    fn lone_consumer_claims_the_first_item_since_its_last_proposal() {
        let put = |rest: &[&str]| {
            let items = ["+item a", "+item b", "+item c 1", "+item d -1"];
            told(&[&["+idle x"], &items[..], rest].concat())
        };
        assert_eq!(put(&["+claim d x"]), Ok(true));
        assert_eq!(put(&["+claim d x, +claim a x"]), Ok(true));
        assert_eq!(put(&["+claim a x"]), Ok(true), "d may have come after it had chosen");
        assert_eq!(put(&["+claim b x"]), OUT_OF_ORDER);
        assert_eq!(put(&["+claim d x, +claim b x"]), OUT_OF_ORDER);
        assert_eq!(put(&["+claim d x", "+claim a x"]), Ok(true));
        assert_eq!(put(&["+claim d x", "+claim b x"]), OUT_OF_ORDER);
        assert_eq!(put(&["+claim d x", "+claim c x"]), OUT_OF_ORDER);
        assert_eq!(put(&["+claim d x", "-item d, -claim d", "+claim a x, +claim b x"]), Ok(true));
    }

    #[test]
    fn delayed_item_waits_and_returned_item_keeps_its_position() {
        let rows = ["+item a, +delay a", "+item b", "+item c", "+idle x"];
        let then = |rest: &[&str]| told(&[&rows[..], rest].concat());
        assert_eq!(then(&["+claim b x"]), Ok(true));
        assert_eq!(then(&["+claim c x"]), OUT_OF_ORDER);
        assert_eq!(then(&["-delay a", "+claim b x"]), Ok(true));
        assert_eq!(then(&["-delay a", "+idle x", "+claim a x"]), Ok(true));
        assert_eq!(then(&["-delay a", "+idle x", "+claim b x"]), OUT_OF_ORDER);
        assert_eq!(then(&["+claim b x", "-claim b", "+claim c x"]), Ok(true));
        assert_eq!(then(&["+claim b x", "-claim b", "+idle x", "+claim c x"]), OUT_OF_ORDER);
    }

    #[test]
    fn consumer_with_company_or_unknown_start_is_not_checked_for_order() {
        let then = |rest: &[&str]| told(&[&["+item a", "+item b", "+item c"], rest].concat());
        assert_eq!(then(&["+claim c x"]), Ok(false), "it may have chosen at any time before");
        assert_eq!(then(&["+idle x", "+idle y", "+claim c x"]), Ok(false));
        assert_eq!(then(&["+idle x", "+claim a y", "-claim a", "+claim c x"]), Ok(false));
        assert_eq!(then(&["+idle y", "+idle x", "-idle y", "+claim c x"]), Ok(false));
        assert_eq!(then(&["+idle y", "-idle y", "+idle x", "+claim c x"]), OUT_OF_ORDER);
    }
}

//! An index of the available items of a queue, as known to one replica. The index orders the items,
//! and decides which of them a board should claim. A board is the group of waiting takers that
//! share one taker handle (see `board.rs`). The index is built only from the rows that the caller
//! passes in.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::model::{Event, EventKind, KeyValue, LeaseId, Revision};

use super::{KeyPart, QueueKeys};

/// Sort key of an item: lower priority numbers first, then in the order of the puts, then by id.
/// Items that were put in one transaction have the same revision, and their ids are numbered in the
/// order of the puts.
type Place = (i16, Revision, Bytes);

/// An index of the available items of a queue.
#[derive(Debug, Default)]
pub(super) struct ItemIndex {
    keys: QueueKeys,
    items: BTreeMap<Bytes, IndexedItem>,
    delayed: BTreeSet<Bytes>,
    claimed: BTreeMap<Bytes, Option<LeaseId>>,
    /// Number of claims of each session.
    claims: BTreeMap<LeaseId, usize>,
    free: BTreeSet<Place>,
    /// Boards with waiting takers, with the revision since which each waits.
    idle: BTreeMap<Bytes, Revision>,
    line: BTreeSet<(Revision, Bytes)>,
}

/// State of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IndexedItem {
    since: Revision,
    /// Revision at which the item was last taken, or put if it was never taken.
    pub(super) modified: Revision,
    /// How often the item was taken.
    pub(super) attempts: u64,
}

/// The board that chooses items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chooser<'a> {
    /// Lease of the board's session.
    pub(super) lease: LeaseId,
    /// Id of the board among the waiting boards.
    pub(super) idle: &'a Bytes,
    /// Whether the board also claims items that are meant for other boards, because those boards
    /// were too slow.
    pub(super) wants_next: bool,
}

impl ItemIndex {
    pub(super) fn new(keys: QueueKeys) -> Self {
        Self { keys, ..Self::default() }
    }

    /// Adds or updates a row.
    pub(super) fn put(&mut self, row: &KeyValue) {
        let Some((part, id)) = self.keys.parse(&row.key) else { return };
        match part {
            KeyPart::Reason => return,
            KeyPart::Item => {
                let item = IndexedItem {
                    since: row.create_revision,
                    modified: row.mod_revision,
                    attempts: row.version - 1,
                };
                // If the item was deleted and put again, it has a new position.
                if let Some(before) = self.items.insert(id.clone(), item) {
                    self.free.remove(&place(&id, before));
                }
            }
            KeyPart::Delay => drop(self.delayed.insert(id.clone())),
            KeyPart::Claim => {
                self.unclaim(&id);
                self.claimed.insert(id.clone(), row.lease);
                if let Some(lease) = row.lease {
                    *self.claims.entry(lease).or_default() += 1;
                }
            }
            KeyPart::Idle => {
                self.leave_line(&id);
                self.line.insert((row.mod_revision, id.clone()));
                self.idle.insert(id, row.mod_revision);
                return;
            }
        }
        self.update_free(id);
    }

    /// Processes a change of a row.
    pub(super) fn follow(&mut self, event: &Event) {
        if event.kind == EventKind::Put {
            return self.put(&event.kv);
        }
        let Some((part, id)) = self.keys.parse(&event.kv.key) else { return };
        match part {
            KeyPart::Reason => return,
            KeyPart::Item => {
                if let Some(item) = self.items.remove(&id) {
                    self.free.remove(&place(&id, item));
                }
            }
            KeyPart::Delay => drop(self.delayed.remove(&id)),
            KeyPart::Claim => self.unclaim(&id),
            KeyPart::Idle => return self.leave_line(&id),
        }
        self.update_free(id);
    }

    fn unclaim(&mut self, id: &Bytes) {
        let Some(Some(lease)) = self.claimed.remove(id) else { return };
        let claims = self.claims.get_mut(&lease).expect("every claim is counted");
        *claims -= 1;
        if *claims == 0 {
            self.claims.remove(&lease);
        }
    }

    fn leave_line(&mut self, idle: &Bytes) {
        if let Some(since) = self.idle.remove(idle) {
            self.line.remove(&(since, idle.clone()));
        }
    }

    fn update_free(&mut self, id: Bytes) {
        let Some(item) = self.items.get(&id) else { return };
        let place = place(&id, *item);
        if self.claimed.contains_key(&id) || self.delayed.contains(&id) {
            self.free.remove(&place);
        } else {
            self.free.insert(place);
        }
    }

    /// Returns the first available item.
    pub(super) fn head(&self) -> Option<&Bytes> {
        self.free.first().map(|(_, _, id)| id)
    }

    /// Returns the state of an item.
    pub(super) fn item(&self, id: &Bytes) -> Option<IndexedItem> {
        self.items.get(id).copied()
    }

    /// Reports whether a board is among the waiting boards.
    pub(super) fn is_idle(&self, idle: &Bytes) -> bool {
        self.idle.contains_key(idle)
    }

    /// Returns the available items that a board with this many takers should claim, so that
    /// different boards claim different items. The result is empty if all available items are meant
    /// for other boards.
    ///
    /// - If there is no other board: the first items.
    /// - If this board is at position r of m waiting boards: the items r, r + m, r + 2m, ...
    /// - If this board is not among the m waiting boards: the items after the first m. The sessions
    ///   with claims share these items by a hash of the item ids.
    pub(super) fn choose(&self, takers: usize, chooser: Chooser<'_>) -> Vec<Bytes> {
        let ids = self.free.iter().map(|(_, _, id)| id);
        mutant!(B54, return ids.rev().take(takers).cloned().collect());
        if chooser.wants_next {
            return ids.take(takers).cloned().collect();
        }
        if let Some(since) = self.idle.get(chooser.idle) {
            let mine = (*since, chooser.idle.clone());
            let rank = self.line.range(..mine).count();
            return ids.skip(rank).step_by(self.line.len()).take(takers).cloned().collect();
        }
        let mut ids = ids.skip(self.line.len());
        let others: Vec<LeaseId> =
            self.claims.keys().copied().filter(|lease| *lease != chooser.lease).collect();
        if others.is_empty() {
            return ids.take(takers).cloned().collect();
        }
        let sharers = others.len() + 1;
        let rank = others.partition_point(|lease| *lease < chooser.lease);
        let near: Vec<&Bytes> = ids.by_ref().take(takers * sharers).collect();
        let mine = |id: &&&Bytes| share(id, sharers) == rank;
        let chosen: Vec<Bytes> =
            near.iter().filter(mine).take(takers).map(|id| (*id).clone()).collect();
        match chosen.is_empty() {
            true => near.into_iter().take(1).cloned().collect(),
            false => chosen,
        }
    }
}

fn place(id: &Bytes, item: IndexedItem) -> Place {
    (priority(id), item.since, id.clone())
}

/// Builds the id of an item.
pub(super) fn item_id(priority: i16, unique: u64, number: usize) -> Bytes {
    // Invert the sign bit, so that the text of the priorities sorts like the numbers.
    let priority = priority.cast_unsigned() ^ 0x8000;
    format!("{priority:04x}.{unique:016x}.{number:04x}").into()
}

/// Returns the priority in an id, or 0 for keys that were not created by Bowline.
pub(super) fn priority(id: &[u8]) -> i16 {
    let digits = id.get(..5).and_then(|head| head.strip_suffix(b"."));
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let number = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    number.map_or(0, |number| (number ^ 0x8000).cast_signed())
}

/// Returns the index of the session to which an item is assigned. All nodes compute the same index.
fn share(id: &[u8], sharers: usize) -> usize {
    // FNV-1a with the finalizer of MurmurHash3, which separates similar ids.
    let hash = id.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    ((hash ^ (hash >> 33)) % sharers as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::samples::lease;

    fn index() -> ItemIndex {
        ItemIndex::new(QueueKeys { name: "q".into() })
    }

    fn row(key: String, create: u64, version: u64, lease_id: u64) -> KeyValue {
        KeyValue {
            key: key.into(),
            value: Bytes::new(),
            create_revision: Revision(create),
            mod_revision: Revision(create + version - 1),
            version,
            lease: LeaseId::new(lease_id),
        }
    }

    fn delete(key: &str) -> Event {
        let mut kv = row(key.into(), 0, 1, 0);
        kv.version = 0;
        Event { kind: EventKind::Delete, kv, prev: None }
    }

    fn first(index: &ItemIndex, takers: usize) -> Vec<String> {
        chosen(index, takers, 1, "me", true)
    }

    fn chosen(
        index: &ItemIndex,
        takers: usize,
        who: u64,
        idle: &'static str,
        wants_next: bool,
    ) -> Vec<String> {
        let chooser = Chooser { lease: lease(who), idle: &Bytes::from(idle), wants_next };
        let ids = index.choose(takers, chooser);
        ids.into_iter().map(|id| String::from_utf8(id.to_vec()).unwrap()).collect()
    }

    #[test]
    fn items_are_ordered_by_priority_age_and_transaction_index() {
        let mut index = index();
        let id = |priority, unique, n| String::from_utf8(item_id(priority, unique, n).to_vec());
        let put = [(0, 9, 0, 5), (0, 1, 0, 6), (-3, 7, 1, 8), (-3, 7, 0, 8), (4, 2, 0, 2)];
        for (priority, unique, n, create) in put {
            index.put(&row(format!("q/item/{}", id(priority, unique, n).unwrap()), create, 1, 0));
        }
        index.put(&row("q/item/by hand".into(), 7, 1, 0));
        let expected = [
            id(-3, 7, 0),
            id(-3, 7, 1),
            id(0, 9, 0),
            id(0, 1, 0),
            Ok("by hand".into()),
            id(4, 2, 0),
        ];
        assert_eq!(first(&index, 9), expected.map(Result::unwrap));
    }

    #[test]
    fn priorities_sort_by_item_id_and_round_trip() {
        let all = [i16::MIN, -1, 0, 1, i16::MAX];
        let ids = all.map(|number| item_id(number, 0, 0));
        assert!(ids.is_sorted());
        assert_eq!(ids.map(|id| priority(&id)), all);
        for foreign in ["", "job", "zzzz.1", "8000", "800000.1"] {
            assert_eq!(priority(foreign.as_bytes()), 0, "{foreign}");
        }
    }

    #[test]
    fn claimed_or_delayed_item_is_not_free_in_any_event_order() {
        let mut index = index();
        index.put(&row("q/claim/a".into(), 5, 1, 7));
        index.put(&row("q/item/a".into(), 4, 2, 0));
        index.put(&row("q/delay/b".into(), 6, 1, 8));
        index.put(&row("q/item/b".into(), 6, 1, 0));
        assert_eq!(first(&index, 9), [""; 0]);
        index.follow(&delete("q/delay/b"));
        assert_eq!(first(&index, 9), ["b"]);
        index.follow(&delete("q/claim/a"));
        assert_eq!(first(&index, 9), ["a", "b"], "where it stood");
        assert_eq!(index.item(&"a".into()).unwrap().attempts, 1);
        index.follow(&delete("q/item/a"));
        index.follow(&delete("q/claim/a"));
        index.follow(&delete("q/item/a"));
        assert_eq!(first(&index, 9), ["b"]);
        assert_eq!(index.head(), Some(&"b".into()));
    }

    #[test]
    fn item_deleted_and_put_again_has_only_its_new_position() {
        let mut index = index();
        index.put(&row("q/item/a".into(), 4, 1, 0));
        index.put(&row("q/item/b".into(), 5, 1, 0));
        index.put(&row("q/item/a".into(), 6, 1, 0));
        assert_eq!(first(&index, 9), ["b", "a"]);
    }

    #[test]
    fn waiting_consumers_share_items_in_waiting_order() {
        let mut index = index();
        for (n, name) in ["x", "y", "z"].into_iter().enumerate() {
            index.put(&row(format!("q/idle/{name}"), 10 + n as u64, 1, 9));
        }
        for n in 0..5 {
            index.put(&row(format!("q/item/{n}"), 20 + n, 1, 0));
        }
        let all = |takers| ["x", "y", "z"].map(|idle| chosen(&index, takers, 1, idle, false));
        assert_eq!(all(1), [vec!["0"], vec!["1"], vec!["2"]]);
        assert_eq!(all(9), [vec!["0", "3"], vec!["1", "4"], vec!["2"]]);
        assert_eq!(chosen(&index, 9, 1, "late", false), ["3", "4"], "the first are for the others");
        // A board that took an item moves to the end.
        index.put(&row("q/idle/x".into(), 10, 30, 9));
        assert_eq!(chosen(&index, 1, 1, "y", false), ["0"]);
        assert_eq!(chosen(&index, 1, 1, "x", false), ["2"]);
        index.follow(&delete("q/idle/y"));
        assert_eq!(chosen(&index, 1, 1, "z", false), ["0"]);
        assert!(index.is_idle(&"z".into()) && !index.is_idle(&"y".into()));
    }

    #[test]
    fn working_sessions_choose_different_items() {
        let mut index = index();
        for n in 0..400 {
            index.put(&row(format!("q/item/{n:03}"), 20 + n, 1, 0));
        }
        assert_eq!(chosen(&index, 2, 5, "me", false), ["000", "001"], "alone: strictly in order");
        for session in [5, 6, 7] {
            index.put(&row(format!("q/item/c{session}"), 10, 2, 0));
            index.put(&row(format!("q/claim/c{session}"), 11, 1, session));
        }
        let mut seen = BTreeSet::new();
        for session in [5, 6, 7] {
            let chosen = chosen(&index, 32, session, "me", false);
            assert!(chosen.len() > 16, "{chosen:?}");
            assert!(chosen.iter().all(|id| id.as_str() < "096"), "none far from its turn");
            for id in chosen {
                assert!(seen.insert(id), "two reach for one");
            }
        }
        // When a session ends, its claims are deleted. The items that it had claimed are the first
        // ones again.
        index.follow(&delete("q/claim/c6"));
        index.follow(&delete("q/claim/c7"));
        assert_eq!(chosen(&index, 3, 5, "me", false), ["c6", "c7", "000"]);
    }
}

//! The index from keys to the live watchers of those keys.
//!
//! Watchers of single keys are in an ordered map. Watchers of ranges are in an interval tree: a
//! treap ordered by the start of the range. Each node of the tree stores its *reach*, the greatest
//! end of all ranges in its subtree.
//!
//! ```text
//!              [c, f) reach i            Looking for g: a subtree whose reach is at or before g
//!             /              \           cannot contain it; neither can the right subtree of a
//!     [a, i) reach i     [d, e) reach e  node that starts after g.
//! ```
//!
//! With n watchers, adding or removing one costs O(log n) key comparisons. A lookup costs at most
//! O(log n) for each match. If all ranges are equal, nested or disjoint, as prefixes always are,
//! each match costs O(1). The shape of the tree depends on the watchers' ids alone, so a simulated
//! run can be replayed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::inbox::WatchInbox;
use crate::model::{KeyRange, RangeEnd, SPLIT_MIX_STEP, finalize};

/// The id of a watcher within its hub. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct WatcherId(pub(super) u64);

/// The live watchers, by their ranges.
#[derive(Default)]
pub(super) struct WatcherIndex {
    singles: BTreeMap<(Bytes, WatcherId), Arc<WatchInbox>>,
    ranges: Link,
    len: usize,
}

impl WatcherIndex {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a watcher that is not in the index.
    pub(super) fn insert(&mut self, inbox: Arc<WatchInbox>) {
        let (start, id) = (inbox.range().start().clone(), inbox.id());
        let end = match inbox.range().end() {
            RangeEnd::Single => {
                let before = self.singles.insert((start, id), inbox);
                assert!(before.is_none(), "watcher {id:?} is in the index twice");
                self.len += 1;
                return;
            }
            RangeEnd::Before(end) => IntervalEnd::Before(end.clone()),
            RangeEnd::Unbounded => IntervalEnd::Never,
        };
        let node = TreeNode {
            start,
            id,
            reach: end.clone(),
            end,
            priority: priority(id),
            inbox,
            left: None,
            right: None,
        };
        insert(&mut self.ranges, Box::new(node));
        self.len += 1;
    }

    /// Removes a watcher. Returns `None` if the watcher is not in the index.
    pub(super) fn remove(&mut self, range: &KeyRange, id: WatcherId) -> Option<Arc<WatchInbox>> {
        let removed = if range.as_single().is_some() {
            self.singles.remove(&(range.start().clone(), id))
        } else {
            remove(&mut self.ranges, (range.start(), id))
        };
        self.len -= usize::from(removed.is_some());
        removed
    }

    pub(super) fn each<'a>(&'a self, key: &Bytes, mut visit: impl FnMut(&'a Arc<WatchInbox>)) {
        let span = (key.clone(), WatcherId(0))..=(key.clone(), WatcherId(u64::MAX));
        self.singles.range(span).for_each(|(_, inbox)| visit(inbox));
        stab(&self.ranges, key, &mut visit);
    }

    /// Returns all watchers in an unspecified order.
    pub(super) fn into_inboxes(self) -> Vec<Arc<WatchInbox>> {
        let mut inboxes: Vec<_> = self.singles.into_values().collect();
        collect(self.ranges, &mut inboxes);
        inboxes
    }
}

/// The end of a range. An unbounded end sorts last.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum IntervalEnd {
    Before(Bytes),
    Never,
}

impl IntervalEnd {
    fn is_after(&self, key: &[u8]) -> bool {
        match self {
            IntervalEnd::Before(end) => key < &end[..],
            IntervalEnd::Never => true,
        }
    }
}

type Link = Option<Box<TreeNode>>;

struct TreeNode {
    start: Bytes,
    id: WatcherId,
    end: IntervalEnd,
    /// The greatest end in this subtree.
    reach: IntervalEnd,
    /// Priority of this node in the treap: at least as high as the priority of every node in its
    /// subtree.
    priority: u64,
    inbox: Arc<WatchInbox>,
    left: Link,
    right: Link,
}

impl TreeNode {
    fn key(&self) -> (&Bytes, WatcherId) {
        (&self.start, self.id)
    }

    /// Recomputes `reach` after a change of the children.
    fn refresh(&mut self) {
        let children = [&self.left, &self.right].into_iter().flatten().map(|child| &child.reach);
        let reach = children.chain([&self.end]).max().expect("there is the node's own end");
        if *reach != self.reach {
            self.reach = reach.clone();
        }
    }
}

/// Distributes ids evenly, which keeps the treap balanced.
fn priority(id: WatcherId) -> u64 {
    finalize(id.0.wrapping_add(1).wrapping_mul(SPLIT_MIX_STEP))
}

fn insert(link: &mut Link, mut node: Box<TreeNode>) {
    match link {
        Some(top) if top.priority >= node.priority => {
            assert!(top.key() != node.key(), "watcher {:?} is in the index twice", node.id);
            insert(if node.key() < top.key() { &mut top.left } else { &mut top.right }, node);
            top.refresh();
        }
        _ => {
            (node.left, node.right) = split(link.take(), node.key());
            node.refresh();
            *link = Some(node);
        }
    }
}

fn remove(link: &mut Link, key: (&Bytes, WatcherId)) -> Option<Arc<WatchInbox>> {
    let top = link.as_mut()?;
    if top.key() == key {
        let top = link.take()?;
        *link = merge(top.left, top.right);
        return Some(top.inbox);
    }
    let removed = remove(if key < top.key() { &mut top.left } else { &mut top.right }, key)?;
    top.refresh();
    Some(removed)
}

/// Splits a tree into the nodes before `key` and the nodes at or after `key`.
fn split(link: Link, key: (&Bytes, WatcherId)) -> (Link, Link) {
    let Some(mut top) = link else { return (None, None) };
    if top.key() < key {
        let (low, high) = split(top.right.take(), key);
        top.right = low;
        top.refresh();
        (Some(top), high)
    } else {
        let (low, high) = split(top.left.take(), key);
        top.left = high;
        top.refresh();
        (low, Some(top))
    }
}

/// Joins two trees. Every node of `low` must be before every node of `high`.
fn merge(low: Link, high: Link) -> Link {
    match (low, high) {
        (None, other) | (other, None) => other,
        (Some(mut low), Some(mut high)) => {
            if low.priority >= high.priority {
                low.right = merge(low.right.take(), Some(high));
                low.refresh();
                Some(low)
            } else {
                high.left = merge(Some(low), high.left.take());
                high.refresh();
                Some(high)
            }
        }
    }
}

fn stab<'a>(link: &'a Link, key: &[u8], visit: &mut impl FnMut(&'a Arc<WatchInbox>)) {
    let Some(node) = link else { return };
    if !node.reach.is_after(key) {
        return;
    }
    stab(&node.left, key, visit);
    if node.start <= *key {
        if node.end.is_after(key) {
            visit(&node.inbox);
        }
        stab(&node.right, key, visit);
    }
}

fn collect(link: Link, inboxes: &mut Vec<Arc<WatchInbox>>) {
    let Some(node) = link else { return };
    collect(node.left, inboxes);
    inboxes.push(node.inbox);
    collect(node.right, inboxes);
}

#[cfg(test)]
mod tests {
    use super::super::request::Filter;
    use super::*;
    use crate::model::Revision;

    fn inbox(id: u64, range: KeyRange) -> Arc<WatchInbox> {
        Arc::new(WatchInbox::live(WatcherId(id), range, Filter::All, Revision(2)))
    }

    fn depth(link: &Link) -> usize {
        link.as_ref().map_or(0, |node| 1 + depth(&node.left).max(depth(&node.right)))
    }

    fn found(index: &WatcherIndex, key: &[u8]) -> Vec<u64> {
        let mut found = Vec::new();
        index.each(&Bytes::copy_from_slice(key), |inbox| found.push(inbox.id().0));
        found.sort_unstable();
        found
    }

    /// Returns all keys that consist of two of four letters.
    fn keys() -> impl Iterator<Item = [u8; 2]> {
        (0..16u8).map(|n| [b'a' + n / 4, b'a' + n % 4])
    }

    #[test]
    fn a_key_finds_exactly_the_ranges_that_contain_it() {
        let mut index = WatcherIndex::default();
        let mut model: BTreeMap<u64, KeyRange> = BTreeMap::new();
        let mut bits = 7u64;
        let mut random = |bound: u64| {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (bits >> 33) % bound
        };
        for id in 0..3_000 {
            let mut key = |_| {
                let n = random(16) as u8;
                let long = [b'a' + n / 4, b'a' + n % 4];
                long[..1 + random(2) as usize].to_vec()
            };
            let (a, b) = (key(0), key(1));
            let range = match random(5) {
                0 => KeyRange::key(a),
                1 => KeyRange::prefix(a),
                2 => KeyRange::starting_at(a),
                _ => KeyRange::between(a, b),
            };
            index.insert(inbox(id, range.clone()));
            model.insert(id, range);
            if model.len() > 60 || random(3) == 0 {
                let at = random(model.len() as u64) as usize;
                let id = *model.keys().nth(at).unwrap();
                let range = model.remove(&id).unwrap();
                assert_eq!(index.remove(&range, WatcherId(id)).unwrap().id(), WatcherId(id));
                assert!(index.remove(&range, WatcherId(id)).is_none());
            }
            assert_eq!(index.len(), model.len());
            if id % 8 == 0 {
                for key in keys() {
                    let contains = model.iter().filter(|(_, range)| range.contains(&key));
                    let expected: Vec<u64> = contains.map(|(id, _)| *id).collect();
                    assert_eq!(found(&index, &key), expected, "{key:?}");
                }
            }
        }
        let mut all: Vec<u64> = index.into_inboxes().iter().map(|inbox| inbox.id().0).collect();
        all.sort_unstable();
        assert_eq!(all, model.into_keys().collect::<Vec<_>>());
    }

    #[test]
    fn tree_stays_balanced_in_any_insertion_order() {
        let mut index = WatcherIndex::default();
        for id in 0..20_000 {
            index.insert(inbox(id, KeyRange::prefix(format!("{id:08}"))));
        }
        // A random tree of this size has a depth of about 33.
        assert!(depth(&index.ranges) < 60, "{}", depth(&index.ranges));
        for id in 0..19_900 {
            index.remove(&KeyRange::prefix(format!("{id:08}")), WatcherId(id)).unwrap();
        }
        assert!(depth(&index.ranges) < 30, "{}", depth(&index.ranges));
        assert_eq!(found(&index, b"00019950/x"), [19_950]);
    }
}

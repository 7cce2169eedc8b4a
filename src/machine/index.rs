//! The ordered index from keys to their versions.
//!
//! The index is a tree with three levels of pages. A leaf has up to [`PAGE_KEYS`] neighbouring
//! keys, a branch has up to as many leaves, and one root has all branches. Each leaf has a fence: a
//! lower bound of its keys. The index does not store the keys themselves, because each version of a
//! key contains the key. Therefore the index needs 24 bytes for the [`Versions`] of a key,
//! eight bytes for its hint (see [`page`](super::page)), and a share of the leaf.
//!
//! ```text
//!   root     [ branch                                     branch ... ]
//!                |
//!   branch   [ "k0001"        "k0128"         "k0256" ... ]              fences, in order
//!                |              |               |
//!   leaves   [k0001 ...]    [k0128 ...]     [k0256 ...]                  each sorted, none empty
//! ```
//!
//! The index does not deal with locks, readable revisions, or the order of compaction. Its callers
//! do.

use std::ops::Bound;

use super::page::{Keyed, RowPage};
use super::row::{RowRef, StoredRow, Versions};
use crate::model::Revision;

/// Maximum number of keys in a leaf, and of leaves in a branch.
const PAGE_KEYS: usize = 128;

/// A page with fewer items is merged with a neighbour if possible.
const PAGE_KEYS_FEW: usize = PAGE_KEYS / 8;

/// The versions of each key, in key order.
#[derive(Debug, Default)]
pub(super) struct Index {
    root: RowPage<Branch>,
    /// Number of keys.
    len: usize,
}

#[derive(Debug)]
struct Branch {
    leaves: RowPage<Leaf>,
}

#[derive(Debug)]
struct Leaf {
    fence: Box<[u8]>,
    rows: RowPage<Versions>,
}

/// The position of a leaf in the tree.
#[derive(Clone, Copy, Default)]
struct RowPlace {
    branch: usize,
    leaf: usize,
}

impl Keyed for Branch {
    fn key(&self) -> &[u8] {
        &self.leaves.items()[0].fence
    }
}

impl Keyed for Leaf {
    fn key(&self) -> &[u8] {
        &self.fence
    }
}

impl Keyed for Versions {
    fn key(&self) -> &[u8] {
        self.newest().key()
    }
}

impl Index {
    pub(super) fn get(&self, key: &[u8]) -> Option<&Versions> {
        let page = &self.leaf(self.place(key)?).rows;
        let at = page.find(key).ok()?;
        Some(&page.items()[at])
    }

    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut Versions> {
        let place = self.place(key)?;
        let page = &mut self.leaf_mut(place).rows;
        let at = page.find(key).ok()?;
        Some(page.item(at))
    }

    /// Adds the newest version of its key.
    pub(super) fn push(&mut self, row: StoredRow) {
        let key = row.view().key();
        let Some(place) = self.place(key) else {
            let leaf = Leaf::of(RowPage::one(Versions::one(row)));
            self.len += 1;
            self.root.insert(0, Branch { leaves: RowPage::one(leaf) });
            return;
        };
        let page = &mut self.leaf_mut(place).rows;
        match page.find(key) {
            Ok(at) => page.item(at).push(row),
            Err(at) => self.insert(place, at, row),
        }
    }

    /// Adds a key to a leaf.
    fn insert(&mut self, RowPlace { branch, leaf }: RowPlace, at: usize, row: StoredRow) {
        self.len += 1;
        let leaves = &mut self.root.item(branch).leaves;
        if row.view().key() < leaves.items()[leaf].key() {
            // Only the first leaf can get a key below its fence, because a key goes to the last
            // leaf whose fence is not greater.
            leaves.item(leaf).fence = row.view().key().into();
            leaves.keys_have_changed();
            self.root.keys_have_changed();
        }
        let leaves = &mut self.root.item(branch).leaves;
        let Some(upper) = leaves.item(leaf).rows.insert_within(PAGE_KEYS, at, Versions::one(row))
        else {
            return;
        };
        let Some(upper) = leaves.insert_within(PAGE_KEYS, leaf + 1, Leaf::of(upper)) else {
            return;
        };
        self.root.insert(branch + 1, Branch { leaves: upper });
    }

    /// Moves the versions of `key` that no read at or after `revision` can see to `forgotten`, so
    /// that the caller can free them outside the lock.
    pub(super) fn prune(&mut self, key: &[u8], revision: Revision, forgotten: &mut Vec<StoredRow>) {
        let Some(place) = self.place(key) else { return };
        let page = &mut self.leaf_mut(place).rows;
        let Ok(at) = page.find(key) else { return };
        if !page.item(at).prune(revision, forgotten) {
            return;
        }
        page.remove(at);
        self.len -= 1;
        if self.leaf(place).rows.len() < PAGE_KEYS_FEW {
            self.join(place);
        }
    }

    /// Handles a leaf that has become small. An empty leaf is removed. Another leaf is merged with
    /// its upper neighbour if both fit into half a page. Then the branch of the leaf is handled in
    /// the same way.
    fn join(&mut self, RowPlace { branch, leaf }: RowPlace) {
        let leaves = &mut self.root.item(branch).leaves;
        match fate(leaves.items(), leaf, |leaf| leaf.rows.len()) {
            RowFate::Stays => return,
            RowFate::Joins => {
                let upper = leaves.remove(leaf + 1);
                leaves.item(leaf).rows.append(upper.rows);
            }
            RowFate::Goes => {
                leaves.remove(leaf);
            }
        }
        let few = leaves.len() < PAGE_KEYS_FEW;
        match fate(self.root.items(), branch, |branch| branch.leaves.len()) {
            RowFate::Joins if few => {
                let upper = self.root.remove(branch + 1);
                self.root.item(branch).leaves.append(upper.leaves);
            }
            RowFate::Goes => {
                self.root.remove(branch);
            }
            _ => {}
        }
        if leaf == 0 {
            // The fence of a branch is the fence of its first leaf.
            self.root.keys_have_changed();
        }
    }

    /// Returns the number of keys, including those without a live version.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the versions of the last key.
    pub(super) fn last(&self) -> Option<&Versions> {
        self.root.items().last()?.leaves.items().last()?.rows.items().last()
    }

    /// Returns the versions of all keys, in key order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Versions> {
        self.iter_from(Bound::Unbounded)
    }

    /// Returns the versions of the keys from `from` on.
    pub(super) fn iter_from<'a>(
        &'a self,
        from: Bound<&'a [u8]>,
    ) -> impl Iterator<Item = &'a Versions> {
        let (RowPlace { branch, leaf }, skip) = self.start(from).unwrap_or_default();
        let branches = self.root.items()[branch..].iter();
        branches.enumerate().flat_map(move |(branch, Branch { leaves })| {
            let first = if branch == 0 { leaf } else { 0 };
            leaves.items()[first..].iter().enumerate().flat_map(move |(leaf, Leaf { rows, .. })| {
                let first = if (branch, leaf) == (0, 0) { skip } else { 0 };
                &rows.items()[first..]
            })
        })
    }

    /// Returns the position of the first key from `from` on: the leaf of this key, and its position
    /// in the leaf.
    fn start(&self, from: Bound<&[u8]>) -> Option<(RowPlace, usize)> {
        let (Bound::Included(key) | Bound::Excluded(key)) = from else { return None };
        let place = self.place(key)?;
        let skip = match self.leaf(place).rows.find(key) {
            Ok(at) if from == Bound::Excluded(key) => at + 1,
            Ok(at) | Err(at) => at,
        };
        Some((place, skip))
    }

    /// Returns the rows from a position on, ordered by key and then by revision.
    pub(super) fn rows_from<'a>(
        &'a self,
        key: &'a [u8],
        revision: Revision,
    ) -> impl Iterator<Item = RowRef<'a>> {
        self.iter_from(Bound::Included(key)).flat_map(move |rows| {
            let skip = match revision.get().checked_sub(1) {
                Some(before) if rows.newest().key() == key => rows.until(Revision(before)),
                _ => 0,
            };
            (skip..rows.len()).map(|at| rows.get(at))
        })
    }

    /// Returns the leaf that contains `key` if it exists. Returns `None` if the index is empty.
    fn place(&self, key: &[u8]) -> Option<RowPlace> {
        if self.root.is_empty() {
            return None;
        }
        let branch = self.root.below(key);
        Some(RowPlace { branch, leaf: self.root.items()[branch].leaves.below(key) })
    }

    fn leaf(&self, at: RowPlace) -> &Leaf {
        &self.root.items()[at.branch].leaves.items()[at.leaf]
    }

    fn leaf_mut(&mut self, at: RowPlace) -> &mut Leaf {
        self.root.item(at.branch).leaves.item(at.leaf)
    }
}

impl Leaf {
    /// Creates a leaf whose fence is its first key.
    fn of(rows: RowPage<Versions>) -> Self {
        Self { fence: rows.items()[0].key().into(), rows }
    }
}

/// The treatment of a small page.
enum RowFate {
    Stays,
    Joins,
    Goes,
}

fn fate<T>(pages: &[T], at: usize, len: impl Fn(&T) -> usize) -> RowFate {
    let few = len(&pages[at]);
    match pages.get(at + 1) {
        Some(upper) if few + len(upper) <= PAGE_KEYS / 2 => RowFate::Joins,
        _ if few == 0 => RowFate::Goes,
        _ => RowFate::Stays,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::row::Meta;
    use std::collections::BTreeSet;

    fn row(key: &[u8], revision: u64) -> StoredRow {
        let revision = Revision(revision);
        let meta = Meta { create: revision, modified: revision, version: 1, lease: None };
        StoredRow::new(&mut Vec::new(), key, b"", meta)
    }

    fn check(index: &Index, want: &BTreeSet<Vec<u8>>) {
        let keys = |from| -> Vec<Vec<u8>> {
            index.iter_from(from).map(|rows| rows.newest().key().to_vec()).collect()
        };
        assert_eq!(keys(Bound::Unbounded), want.iter().cloned().collect::<Vec<_>>());
        assert_eq!(index.len(), want.len());
        for key in want.iter().step_by(97) {
            assert_eq!(keys(Bound::Included(key)).len(), want.range(key.clone()..).count());
            assert_eq!(keys(Bound::Excluded(key)).len(), want.range(key.clone()..).count() - 1);
        }
        assert_eq!(index.last().map(Keyed::key), want.last().map(|key| &key[..]));
        let mut below: Option<&[u8]> = None;
        for Branch { leaves } in index.root.items() {
            assert!((1..=PAGE_KEYS).contains(&leaves.len()));
            for Leaf { fence, rows } in leaves.items() {
                assert!((1..=PAGE_KEYS).contains(&rows.len()));
                assert!(below < Some(fence) && fence[..] <= *rows.items()[0].key());
                below = Some(rows.items()[rows.len() - 1].key());
            }
        }
    }

    /// Returns a simple permutation of 0..count.
    fn shuffled(count: u64, step: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |i| i * step % count)
    }

    #[test]
    fn keys_stay_ordered_under_any_insert_and_remove_order() {
        const KEYS: u64 = 5003; // A prime, so that every step below yields a permutation.
        for step in [1, KEYS - 1, 1999] {
            let mut index = Index::default();
            let mut want = BTreeSet::new();
            for i in shuffled(KEYS, step) {
                let key = i.to_be_bytes();
                index.push(row(&key, 2));
                want.insert(key.to_vec());
            }
            check(&index, &want);
            for (number, i) in shuffled(KEYS, 997).enumerate() {
                let key = i.to_be_bytes();
                index.push(StoredRow::tombstone(&mut Vec::new(), &key, Revision(3)));
                index.prune(&key, Revision(3), &mut Vec::new());
                want.remove(&key[..]);
                assert!(index.get(&key).is_none());
                if number % 500 == 0 {
                    check(&index, &want);
                }
            }
            assert!(index.root.is_empty());
        }
    }

    #[test]
    fn ascending_keys_fill_their_pages() {
        let mut index = Index::default();
        for i in 0..10 * PAGE_KEYS as u64 {
            index.push(row(&i.to_be_bytes(), 2));
        }
        assert_eq!(index.root.items()[0].leaves.len(), 10);
    }

    #[test]
    fn key_that_shares_a_fence_prefix_is_found() {
        let mut index = Index::default();
        for i in 0..1000u64 {
            index.push(row(&i.to_be_bytes(), 2));
            index.push(row(&i.to_be_bytes(), 3));
        }
        for i in 0..1000u64 {
            assert_eq!(index.get(&i.to_be_bytes()).unwrap().len(), 2);
            assert!(index.get(&i.to_be_bytes()[..7]).is_none());
        }
    }
}

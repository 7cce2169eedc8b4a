//! The ordered index: from each key to its versions.
//!
//! A tree of two levels: pages of up to [`PAGE_KEYS`] neighbours, and an ordered map from the lowest
//! key that a page may hold, its fence, to the page. A key is not stored beside its versions: each
//! of them carries it. So a key costs the sixteen bytes of its [`Rows`] and its share of a page.
//!
//! ```text
//!   fences    ""            "k0128"         "k0256"
//!             |              |               |
//!   pages    [k0001 ...]    [k0128 ...]     [k0256 ...]      each sorted, none empty
//! ```
//!
//! Knows nothing of locks, revisions that may be read, or compaction's order.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::row::{Row, RowRef, Rows};
use crate::model::Revision;

/// The most keys of a page. Inserting moves half of a page at worst: two cache-resident kilobytes.
const PAGE_KEYS: usize = 128;

/// By how many keys a page grows: there are many pages, so doubling each would cost.
const PAGE_STEP_KEYS: usize = 16;

/// A page with fewer keys looks for a neighbour to join.
const PAGE_KEYS_FEW: usize = PAGE_KEYS / 8;

/// From key to versions, in key order.
#[derive(Debug, Default)]
pub(super) struct Index {
    pages: BTreeMap<Box<[u8]>, Vec<Rows>>,
}

impl Index {
    pub(super) fn get(&self, key: &[u8]) -> Option<&Rows> {
        let page = self.pages.range::<[u8], _>(until(key)).next_back()?.1;
        let at = find(page, key).ok()?;
        Some(&page[at])
    }

    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut Rows> {
        let page = self.pages.range_mut::<[u8], _>(until(key)).next_back()?.1;
        let at = find(page, key).ok()?;
        Some(&mut page[at])
    }

    /// Adds the newest version of its key.
    pub(super) fn push(&mut self, row: Row) {
        let key = row.view().key();
        let Some((_, page)) = self.pages.range_mut::<[u8], _>(until(key)).next_back() else {
            self.pages.insert(Box::default(), vec![Rows::one(row)]);
            return;
        };
        let at = match find(page, key) {
            Ok(at) => {
                page[at].push(row);
                return;
            }
            Err(at) => at,
        };
        if page.len() < PAGE_KEYS {
            if page.len() == page.capacity() {
                page.reserve_exact(PAGE_STEP_KEYS);
            }
            page.insert(at, Rows::one(row));
            return;
        }
        // Keys often come in ascending order: then leave the full page full.
        let middle = if at == page.len() { at } else { PAGE_KEYS / 2 };
        let mut upper = page.split_off(middle);
        page.shrink_to_fit();
        if at < middle {
            page.insert(at, Rows::one(row));
        } else {
            upper.insert(at - middle, Rows::one(row));
        }
        let fence = upper[0].newest().key().into();
        self.pages.insert(fence, upper);
    }

    /// Moves the versions of `key` that no read at or after `revision` can see to `forgotten`.
    pub(super) fn prune(&mut self, key: &[u8], revision: Revision, forgotten: &mut Vec<Row>) {
        let Some((fence, page)) = self.pages.range_mut::<[u8], _>(until(key)).next_back() else {
            return;
        };
        let Ok(at) = find(page, key) else { return };
        if !page[at].prune(revision, forgotten) {
            return;
        }
        page.remove(at);
        if page.len() < PAGE_KEYS_FEW {
            let fence = fence.clone();
            self.join(&fence);
        }
    }

    /// Joins a page that has become small with its upper neighbour, if both fit in half a page.
    fn join(&mut self, fence: &[u8]) {
        let few = self.pages[fence].len();
        let above = (Bound::Excluded(fence), Bound::Unbounded);
        let neighbour = self.pages.range::<[u8], _>(above).next();
        match neighbour.map(|(upper, page)| (upper.clone(), page.len())) {
            Some((upper, len)) if few + len <= PAGE_KEYS / 2 => {
                let mut keys = self.pages.remove(&upper).expect("it was just seen");
                let page = self.pages.get_mut(fence).expect("it was just seen");
                page.append(&mut keys);
            }
            Some((upper, _)) if few == 0 => {
                // The neighbour takes the empty page's place, and with it its fence.
                let keys = self.pages.remove(&upper).expect("it was just seen");
                self.pages.insert(fence.into(), keys);
            }
            None if few == 0 => {
                self.pages.remove(fence);
            }
            Some(_) | None => {}
        }
    }

    /// The last key, with its versions.
    pub(super) fn last(&self) -> Option<&Rows> {
        self.pages.last_key_value()?.1.last()
    }

    /// All keys in order, with their versions.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Rows> {
        self.pages.values().flatten()
    }

    /// The keys from `from` on, with their versions.
    pub(super) fn iter_from<'a>(&'a self, from: Bound<&'a [u8]>) -> impl Iterator<Item = &'a Rows> {
        let first = match from {
            Bound::Included(key) | Bound::Excluded(key) => {
                self.pages.range::<[u8], _>(until(key)).next_back().map_or(key, |(fence, _)| fence)
            }
            Bound::Unbounded => &[],
        };
        let pages = self.pages.range::<[u8], _>((Bound::Included(first), Bound::Unbounded));
        pages.enumerate().flat_map(move |(number, (_, page))| {
            let skip = match from {
                _ if number > 0 => 0,
                Bound::Included(key) => page.partition_point(|rows| rows.newest().key() < key),
                Bound::Excluded(key) => page.partition_point(|rows| rows.newest().key() <= key),
                Bound::Unbounded => 0,
            };
            &page[skip..]
        })
    }

    /// The first row at or after a place, in key order and then by revision.
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
}

fn until(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(key))
}

fn find(page: &[Rows], key: &[u8]) -> Result<usize, usize> {
    page.binary_search_by(|rows| rows.newest().key().cmp(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::row::Meta;
    use bytes::Bytes;
    use std::collections::BTreeSet;

    fn row(key: &[u8], revision: u64) -> Row {
        let revision = Revision(revision);
        let meta = Meta { create: revision, modified: revision, version: 1, lease: None };
        Row::new(&mut Vec::new(), key, &Bytes::new(), meta)
    }

    fn check(index: &Index, want: &BTreeSet<Vec<u8>>) {
        let keys = |from| -> Vec<Vec<u8>> {
            index.iter_from(from).map(|rows| rows.newest().key().to_vec()).collect()
        };
        assert_eq!(keys(Bound::Unbounded), want.iter().cloned().collect::<Vec<_>>());
        for key in want.iter().step_by(97) {
            assert_eq!(keys(Bound::Included(key)).len(), want.range(key.clone()..).count());
            assert_eq!(keys(Bound::Excluded(key)).len(), want.range(key.clone()..).count() - 1);
        }
        for (number, (fence, page)) in index.pages.iter().enumerate() {
            assert!(!page.is_empty() && page.len() <= PAGE_KEYS);
            assert!(page.iter().all(|rows| rows.newest().key() >= &fence[..]));
            assert_eq!(fence.is_empty(), number == 0);
        }
    }

    /// A cheap permutation of 0..count.
    fn shuffled(count: u64, step: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |i| i * step % count)
    }

    #[test]
    fn keys_stay_in_order_whatever_order_they_come_and_go_in() {
        const KEYS: u64 = 5003; // A prime, so that every step below permutes.
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
                index.push(Row::tombstone(&mut Vec::new(), &key, Revision(3)));
                index.prune(&key, Revision(3), &mut Vec::new());
                want.remove(&key[..]);
                assert!(index.get(&key).is_none());
                if number % 500 == 0 {
                    check(&index, &want);
                }
            }
            assert!(index.pages.is_empty());
        }
    }

    #[test]
    fn ascending_keys_fill_their_pages() {
        let mut index = Index::default();
        for i in 0..10 * PAGE_KEYS as u64 {
            index.push(row(&i.to_be_bytes(), 2));
        }
        assert_eq!(index.pages.len(), 10);
    }

    #[test]
    fn a_key_that_starts_like_a_fence_is_found() {
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

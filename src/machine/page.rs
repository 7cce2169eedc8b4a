//! A sorted run of neighbours, searched by a few bytes of each.
//!
//! What is sorted lies elsewhere in memory, each behind a pointer or two, so a search that compares whole
//! keys reads a cache line for every step. Neighbours begin alike; so a page knows how many bytes all of its
//! keys have in common, and keeps the eight that follow, of each, side by side: its hints. A search goes by
//! the hints, and looks at the keys of those alone that it cannot tell apart.
//!
//! ```text
//!   keys     jobs/item/0000417   jobs/item/0000418   jobs/item/00005
//!   common   jobs/item/0000
//!   hints                 417·····            418·····          5·······     · is a zero
//! ```

use std::ops::Range;

/// By how many items a page grows: there are many, so doubling each would cost.
const STEP: usize = 16;

/// What has a key.
pub(super) trait Keyed {
    fn key(&self) -> &[u8];
}

/// Items in the order of their keys, no two of which are alike.
#[derive(Debug)]
pub(super) struct Page<T> {
    /// So many bytes at the beginning all keys have in common, at least.
    common: usize,
    /// Of each item the eight bytes of its key that follow, zeros behind its end; the first is the highest.
    hints: Vec<u64>,
    items: Vec<T>,
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self { common: 0, hints: Vec::new(), items: Vec::new() }
    }
}

impl<T: Keyed> Page<T> {
    pub(super) fn one(item: T) -> Self {
        let mut page = Self::default();
        page.insert(0, item);
        page
    }

    pub(super) fn items(&self) -> &[T] {
        &self.items
    }

    /// The item there. If its key changes, [`Page::keys_have_changed`] is to follow.
    pub(super) fn item(&mut self, at: usize) -> &mut T {
        &mut self.items[at]
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Where `key` is, or else where it would be.
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        if let Some(rest) = key.get(self.common..) {
            let hint = hint(rest);
            let from = self.hints.partition_point(|other| *other < hint);
            let alike = self.hints[from..].partition_point(|other| *other == hint);
            let alike = &self.items[from..from + alike];
            match alike.binary_search_by(|item| item.key().cmp(key)) {
                Ok(at) => return Ok(from + at),
                Err(at) if self.begins(key) => return Err(from + at),
                Err(_) => {}
            }
        }
        // It does not begin as all of them do: it is before them, or behind.
        match self.items.first() {
            Some(first) if first.key() < key => Err(self.len()),
            Some(_) | None => Err(0),
        }
    }

    /// The last item whose key is not above `key`; the first, if there is none.
    pub(super) fn below(&self, key: &[u8]) -> usize {
        self.find(key).unwrap_or_else(|at| at.saturating_sub(1))
    }

    /// Whether a key that is long enough begins with what all have in common.
    fn begins(&self, key: &[u8]) -> bool {
        let first = self.items.first();
        first.is_none_or(|first| first.key()[..self.common] == key[..self.common])
    }

    /// Adds an item at its place.
    pub(super) fn insert(&mut self, at: usize, item: T) {
        let common = match self.items.first() {
            Some(first) => common(first.key(), item.key()).min(self.common),
            None => item.key().len(),
        };
        if self.items.len() == self.items.capacity() {
            self.items.reserve_exact(STEP);
            self.hints.reserve_exact(STEP);
        }
        self.items.insert(at, item);
        self.hints.insert(at, 0);
        let only = if common == self.common { at..at + 1 } else { 0..self.len() };
        self.common = common;
        self.hint(only);
    }

    /// Adds an item at its place, and splits the page if it has `max` already: what is behind is returned.
    pub(super) fn insert_within(&mut self, max: usize, at: usize, item: T) -> Option<Self> {
        if self.len() < max {
            self.insert(at, item);
            return None;
        }
        // Keys often come in ascending order: then the full page stays full.
        if at == self.len() {
            return Some(Self::one(item));
        }
        let middle = max / 2;
        let mut upper = self.split_off(middle);
        match at.checked_sub(middle) {
            Some(at) if at > 0 => upper.insert(at, item),
            _ => self.insert(at, item),
        }
        Some(upper)
    }

    /// Takes an item out.
    pub(super) fn remove(&mut self, at: usize) -> T {
        self.hints.remove(at);
        self.items.remove(at)
    }

    /// Takes out what is at `at` and behind.
    fn split_off(&mut self, at: usize) -> Self {
        let (hints, items) = (self.hints.split_off(at), self.items.split_off(at));
        let mut upper = Self { common: self.common, hints, items };
        for half in [&mut *self, &mut upper] {
            half.hints.shrink_to_fit();
            half.items.shrink_to_fit();
            half.keys_have_changed();
        }
        upper
    }

    /// Adds what is all behind what is here.
    pub(super) fn append(&mut self, mut upper: Self) {
        self.hints.append(&mut upper.hints);
        self.items.append(&mut upper.items);
        self.keys_have_changed();
    }

    /// Looks at all keys anew. Their order must be what it was.
    pub(super) fn keys_have_changed(&mut self) {
        self.common = match (self.items.first(), self.items.last()) {
            (Some(first), Some(last)) => common(first.key(), last.key()),
            _ => 0,
        };
        self.hint(0..self.len());
    }

    fn hint(&mut self, only: Range<usize>) {
        for at in only {
            self.hints[at] = hint(&self.items[at].key()[self.common..]);
        }
    }
}

/// How many bytes at their beginning two keys have in common.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The first eight bytes, as a number that sorts as they do. Keys that differ in it differ in that order; of those
/// that do not, one may have zeros where the other has ended.
fn hint(rest: &[u8]) -> u64 {
    if let Some(eight) = rest.first_chunk() {
        return u64::from_be_bytes(*eight);
    }
    let mut eight = [0; 8];
    eight[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    impl Keyed for Vec<u8> {
        fn key(&self) -> &[u8] {
            self
        }
    }

    /// Keys that are each other's beginnings, have zeros, share much or nothing.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0), Just(1), Just(b'a'), Just(0xff)];
        (0..3usize, vec(byte, 0..14)).prop_map(|(begins, rest)| {
            let begins = [&b""[..], b"registry/", b"registry/pods/"][begins];
            [begins, &rest].concat()
        })
    }

    fn check(page: &Page<Vec<u8>>, want: &[Vec<u8>]) {
        assert_eq!(page.items(), want);
        for (at, item) in page.items.iter().enumerate() {
            assert_eq!(item[..page.common], want[0][..page.common]);
            assert_eq!(page.hints[at], hint(&item[page.common..]));
        }
    }

    proptest! {
        #[test]
        fn a_page_finds_what_a_search_of_whole_keys_finds(
            keys in vec(key(), 0..60),
            others in vec(key(), 0..60),
            cut in any::<prop::sample::Index>(),
        ) {
            let (mut page, mut want) = (Page::default(), Vec::<Vec<u8>>::new());
            for key in &keys {
                let at = want.binary_search(key);
                prop_assert_eq!(page.find(key), at);
                if let Err(at) = at {
                    page.insert(at, key.clone());
                    want.insert(at, key.clone());
                }
                check(&page, &want);
            }
            for key in keys.iter().chain(&others) {
                prop_assert_eq!(page.find(key), want.binary_search(key));
            }
            if want.is_empty() {
                return Ok(());
            }
            // A lower first key, as an index gives it to the first of its pages.
            let short = want[0].len() / 2;
            want[0].truncate(short);
            page.item(0).truncate(short);
            page.keys_have_changed();
            check(&page, &want);
            let cut = cut.index(want.len());
            let upper = page.split_off(cut);
            check(&page, &want[..cut]);
            check(&upper, &want[cut..]);
            page.append(upper);
            check(&page, &want);
            while !want.is_empty() {
                let at = cut % want.len();
                prop_assert_eq!(page.remove(at), want.remove(at));
                check(&page, &want);
                for key in others.iter().take(5) {
                    prop_assert_eq!(page.find(key), want.binary_search(key));
                }
            }
        }
    }
}

//! A sorted page of neighbouring items. A search compares only a few bytes of each key.
//!
//! The keys are elsewhere in memory, behind one or two pointers. If a search compared whole keys,
//! it would load another cache line at every step. Neighbouring keys usually have a common prefix.
//! Therefore a page stores the length of this prefix, and one array with the next eight bytes of
//! each key, the hints. A search uses the hints, and reads only those keys that the hints cannot
//! distinguish.
//!
//! ```text
//!   keys     jobs/item/0000417   jobs/item/0000418   jobs/item/00005
//!   common   jobs/item/0000
//!   hints                 417·····            418·····          5·······     · is a zero
//! ```

use std::ops::Range;

/// Number of items by which the capacity of a page grows. There are many pages, so doubling the
/// capacity of each would waste memory.
const STEP: usize = 16;

/// An item with a key.
pub(super) trait Keyed {
    fn key(&self) -> &[u8];
}

/// Items in the order of their keys, without duplicates.
#[derive(Debug)]
pub(super) struct RowPage<T> {
    /// All keys have a common prefix of at least this length. The actual common prefix may be
    /// longer.
    common: usize,
    /// The eight bytes of each key after the common prefix, zero-padded, as a big-endian number.
    hints: Vec<u64>,
    items: Vec<T>,
}

impl<T> Default for RowPage<T> {
    fn default() -> Self {
        Self { common: 0, hints: Vec::new(), items: Vec::new() }
    }
}

impl<T: Keyed> RowPage<T> {
    pub(super) fn one(item: T) -> Self {
        let mut page = Self::default();
        page.insert(0, item);
        page
    }

    pub(super) fn items(&self) -> &[T] {
        &self.items
    }

    /// Returns the item at a position. If the caller changes the key of the item, it must call
    /// [`RowPage::keys_have_changed`].
    pub(super) fn item(&mut self, at: usize) -> &mut T {
        &mut self.items[at]
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the position of `key` as `Ok`, or the position where it would be inserted as `Err`.
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
        // `key` does not have the common prefix, so it is before or after all keys of the page.
        match self.items.first() {
            Some(first) if first.key() < key => Err(self.len()),
            Some(_) | None => Err(0),
        }
    }

    /// Returns the last item whose key is not greater than `key`, or the first item if there is
    /// none.
    pub(super) fn below(&self, key: &[u8]) -> usize {
        self.find(key).unwrap_or_else(|at| at.saturating_sub(1))
    }

    /// Returns whether a sufficiently long key has the common prefix.
    fn begins(&self, key: &[u8]) -> bool {
        let first = self.items.first();
        first.is_none_or(|first| first.key()[..self.common] == key[..self.common])
    }

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

    /// Inserts an item at its position. If the page has `max` items already, splits it and returns
    /// the upper part.
    pub(super) fn insert_within(&mut self, max: usize, at: usize, item: T) -> Option<Self> {
        if self.len() < max {
            self.insert(at, item);
            return None;
        }
        // Keys often arrive in ascending order. If the new key is the last one, start a new page
        // and leave this page full.
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

    pub(super) fn remove(&mut self, at: usize) -> T {
        self.hints.remove(at);
        self.items.remove(at)
    }

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

    /// Appends a page whose keys are all greater.
    pub(super) fn append(&mut self, mut upper: Self) {
        self.hints.append(&mut upper.hints);
        self.items.append(&mut upper.items);
        self.keys_have_changed();
    }

    /// Recomputes prefix and hints. The order of the keys must not have changed.
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

/// Returns the length of the common prefix of two keys.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the first eight bytes as a big-endian number. Keys with different numbers are in the
/// order of the numbers. Keys with equal numbers may still differ, because short keys are padded
/// with zero bytes.
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

    /// Returns keys of different kinds: prefixes of each other, with zero bytes, and with long,
    /// short or no common prefixes.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0), Just(1), Just(b'a'), Just(0xff)];
        (0..3usize, vec(byte, 0..14)).prop_map(|(begins, rest)| {
            let begins = [&b""[..], b"registry/", b"registry/pods/"][begins];
            [begins, &rest].concat()
        })
    }

    fn check(page: &RowPage<Vec<u8>>, want: &[Vec<u8>]) {
        assert_eq!(page.items(), want);
        for (at, item) in page.items.iter().enumerate() {
            assert_eq!(item[..page.common], want[0][..page.common]);
            assert_eq!(page.hints[at], hint(&item[page.common..]));
        }
    }

    proptest! {
        #[test]
        fn page_search_agrees_with_a_search_of_whole_keys(
            keys in vec(key(), 0..60),
            others in vec(key(), 0..60),
            cut in any::<prop::sample::Index>(),
        ) {
            let (mut page, mut want) = (RowPage::default(), Vec::<Vec<u8>>::new());
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
            // Insert a key that is lower than the first key, as the index does in its first page.
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

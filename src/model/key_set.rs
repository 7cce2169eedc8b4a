//! Sets of keys, as unions of key ranges.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

use bytes::Bytes;

use super::{KeyRange, RangeEnd};

/// The union of some key ranges: spans that neither overlap nor touch, by their first key. The keys
/// are [`Bytes`], or slices that borrow from the ranges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeySet<B>(BTreeMap<B, SpanEnd<B>>);

/// The end of a span. An unbounded end sorts last.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum SpanEnd<B> {
    /// The last key, which is in the span if the flag is set.
    At(B, bool),
    Never,
}

impl<B> Default for KeySet<B> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<B: Borrow<[u8]> + Ord + Clone> KeySet<B> {
    /// Adds the keys of a range. Spans that overlap or touch the range are merged with it.
    pub(crate) fn add<'r>(&mut self, range: &'r KeyRange, bytes: impl Fn(&'r Bytes) -> B) {
        let mut start = bytes(range.start());
        let mut end = match range.end() {
            RangeEnd::Single => SpanEnd::At(start.clone(), true),
            RangeEnd::Before(end) if end <= range.start() => return,
            RangeEnd::Before(end) => SpanEnd::At(bytes(end), false),
            RangeEnd::Unbounded => SpanEnd::Never,
        };
        if let Some((first, last)) = self.around(range.start())
            && last.reaches(range.start())
        {
            (start, end) = (first.clone(), end.max(last.clone()));
        }
        while let Some((next, last)) =
            self.0.range::<[u8], _>((Excluded(start.borrow()), Unbounded)).next()
            && end.reaches(next.borrow())
        {
            let next = next.clone();
            end = end.max(last.clone());
            self.0.remove(next.borrow());
        }
        self.0.insert(start, end);
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.around(key).is_some_and(|(_, end)| match end {
            SpanEnd::At(end, is_inside) => (end.borrow(), *is_inside) > (key, false),
            SpanEnd::Never => true,
        })
    }

    /// Returns whether all keys of a range are in the set. An empty range is treated as its start
    /// key.
    fn hold(&self, range: &KeyRange) -> bool {
        let start = &range.start()[..];
        match (range.end(), self.around(start)) {
            (RangeEnd::Before(end), around) if &end[..] > start => {
                around.is_some_and(|(_, last)| last.reaches(end))
            }
            (RangeEnd::Single | RangeEnd::Before(_), _) => self.has(start),
            (RangeEnd::Unbounded, around) => {
                around.is_some_and(|(_, last)| *last == SpanEnd::Never)
            }
        }
    }

    /// Returns the last span that begins at or before a key.
    fn around(&self, key: &[u8]) -> Option<(&B, &SpanEnd<B>)> {
        self.0.range::<[u8], _>((Unbounded, Included(key))).next_back()
    }
}

impl<B: Borrow<[u8]>> SpanEnd<B> {
    /// Returns whether a span with this end has all keys from its start up to `key`, exclusive.
    fn reaches(&self, key: &[u8]) -> bool {
        match self {
            SpanEnd::At(end, is_inside) => {
                let end = end.borrow();
                end >= key || (*is_inside && key.strip_suffix(b"\0") == Some(end))
            }
            SpanEnd::Never => true,
        }
    }
}

/// The keys that a caller may access. The ranges of all roles of the caller are merged once, so that
/// repeated checks are fast.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OpenKeys {
    /// All keys.
    All,
    /// The keys in this set.
    Some(KeySet<Bytes>),
}

impl OpenKeys {
    /// Returns the union of these ranges.
    pub(crate) fn of<'r>(ranges: impl Iterator<Item = &'r KeyRange>) -> Self {
        let mut keys = KeySet::default();
        ranges.for_each(|range| keys.add(range, Bytes::clone));
        Self::Some(keys)
    }

    /// Returns whether a key may be accessed.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Some(keys) => keys.has(key),
        }
    }

    /// Returns whether all keys of a range may be accessed. An empty range is treated as its start
    /// key.
    pub(crate) fn hold(&self, range: &KeyRange) -> bool {
        match self {
            Self::All => true,
            Self::Some(keys) => keys.hold(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every range over a few short keys.
    fn ranges() -> Vec<KeyRange> {
        let keys = ["a", "a\0", "b", "c"];
        let pairs = keys.iter().flat_map(|from| keys.iter().map(move |to| (*from, *to)));
        let between = pairs.map(|(from, to)| KeyRange::between(from, to));
        let single = keys.iter().map(|key| KeyRange::key(*key));
        let behind = keys.iter().map(|key| KeyRange::starting_at(*key));
        between.chain(single).chain(behind).collect()
    }

    #[test]
    fn open_keys_are_the_union_of_the_ranges() {
        // These sample keys are enough: if two ranges differ at all, they differ on at least one of
        // them.
        let keys = ["a", "a\0", "a\0\0", "a1", "b", "b\0", "b1", "c", "c\0", "d"];
        let held = |range: &KeyRange| -> Vec<&str> {
            keys.into_iter().filter(|key| range.contains(key.as_bytes())).collect()
        };
        let ranges = ranges();
        for (number, one) in ranges.iter().enumerate() {
            for other in &ranges[number..] {
                let granted = [one, other];
                // Empty ranges cannot be granted.
                if granted.iter().any(|range| held(range).is_empty()) {
                    continue;
                }
                let open = OpenKeys::of(granted.into_iter());
                let is_open =
                    |key: &str| granted.iter().any(|range| range.contains(key.as_bytes()));
                for key in keys {
                    assert_eq!(open.has(key.as_bytes()), is_open(key), "{granted:?}: {key:?}");
                }
                for wanted in &ranges {
                    let mut asked = held(wanted);
                    if asked.is_empty() {
                        asked.push(std::str::from_utf8(wanted.start()).unwrap());
                    }
                    let is_all = asked.iter().all(|key| is_open(key))
                        && (wanted.end() != &RangeEnd::Unbounded
                            || granted.iter().any(|range| range.end() == &RangeEnd::Unbounded));
                    assert_eq!(open.hold(wanted), is_all, "{granted:?}: {wanted:?}");
                }
            }
        }
        assert!(OpenKeys::All.hold(&KeyRange::all()) && OpenKeys::All.has(b"k"));
        let none = OpenKeys::of([].into_iter());
        assert!(!none.hold(&KeyRange::key("a")) && !none.has(b"a"));
    }
}

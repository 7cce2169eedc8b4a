//! The set of keys that a caller may access. The ranges of all roles of the caller are merged once,
//! so that repeated checks are fast.

use bytes::Bytes;

use super::{KeyRange, RangeEnd};

/// The union of some key ranges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OpenKeys {
    /// All keys.
    All,
    /// The keys in these spans. The spans are in order, and neither overlap nor touch.
    Spans(Vec<Span>),
}

/// The keys from a start key up to an exclusive end, or without an end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Span {
    start: Bytes,
    end: Option<Bytes>,
}

impl OpenKeys {
    /// Returns the union of these ranges. Adjacent ranges are merged.
    pub(crate) fn of<'r>(ranges: impl Iterator<Item = &'r KeyRange>) -> Self {
        let mut spans: Vec<Span> = ranges.map(Span::of).collect();
        spans.sort_unstable();
        spans.dedup_by(|next, here| {
            let touches = here.end.as_ref().is_none_or(|end| next.start <= *end);
            if touches && here.end.as_ref().is_some_and(|end| next.reaches_beyond(end)) {
                here.end = next.end.take();
            }
            touches
        });
        Self::Spans(spans)
    }

    /// Returns whether a key is in the set.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.around(key).is_none_or(|span| span.is_some_and(|span| span.reaches_beyond(key)))
    }

    /// Returns whether all keys of a range are in the set. An empty range is treated as its start
    /// key.
    pub(crate) fn hold(&self, range: &KeyRange) -> bool {
        let start = &range.start()[..];
        match range.end() {
            RangeEnd::Before(end) if &end[..] > start => self.around(start).is_none_or(|span| {
                span.is_some_and(|span| span.end.as_ref().is_none_or(|to| to >= end))
            }),
            RangeEnd::Single | RangeEnd::Before(_) => self.has(start),
            RangeEnd::Unbounded => {
                self.around(start).is_none_or(|span| span.is_some_and(|span| span.end.is_none()))
            }
        }
    }

    /// Returns the last span that begins at or before a key. The outer `None` means that the set
    /// contains all keys.
    fn around(&self, key: &[u8]) -> Option<Option<&Span>> {
        let Self::Spans(spans) = self else { return None };
        let behind = spans.partition_point(|span| &span.start[..] <= key);
        Some(spans[..behind].last())
    }
}

impl Span {
    fn of(range: &KeyRange) -> Self {
        let end = match range.end() {
            RangeEnd::Single => Some([range.start(), &b"\0"[..]].concat().into()),
            RangeEnd::Before(end) => Some(end.clone()),
            RangeEnd::Unbounded => None,
        };
        Self { start: range.start().clone(), end }
    }

    fn reaches_beyond(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| &end[..] > key)
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

//! Ranges of keys.

use bytes::Bytes;

/// The end of a range of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RangeEnd {
    /// Only the start key itself.
    Single,
    /// Every key from the start key up to this end key (exclusive). The range is empty if the end
    /// key is not greater than the start key.
    Before(Bytes),
    /// Every key from the start key on.
    Unbounded,
}

/// One key, a prefix, or a half-open range of keys, in byte order.
///
/// Any value that converts into bytes also converts into a range of this single key: `"a".into()`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRange {
    start: Bytes,
    end: RangeEnd,
}

impl KeyRange {
    /// Returns the range of a single key.
    pub fn key(key: impl Into<Bytes>) -> Self {
        Self { start: key.into(), end: RangeEnd::Single }
    }

    /// Returns the range of every key that starts with `prefix`. The empty prefix means every key.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        if start.is_empty() {
            return Self::all();
        }
        // The end is the first key after all keys with the prefix: the prefix up to its last byte
        // below 0xff, with this byte incremented.
        let end = match start.iter().rposition(|&byte| byte != 0xff) {
            Some(last) => {
                let mut end = start[..=last].to_vec();
                end[last] += 1;
                RangeEnd::Before(end.into())
            }
            None => RangeEnd::Unbounded,
        };
        Self { start, end }
    }

    /// Returns the range of every key from `start` (inclusive). This function is not called `from`,
    /// because `From` converts bytes into a range of a single key.
    ///
    /// ```
    /// use bowline::KeyRange;
    /// assert!(KeyRange::starting_at("k").contains(b"z"));
    /// assert_eq!(KeyRange::from("k"), KeyRange::key("k"));
    /// ```
    pub fn starting_at(start: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: RangeEnd::Unbounded }
    }

    /// Returns the range of every key from `start` (inclusive) to `end` (exclusive).
    pub fn between(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: RangeEnd::Before(end.into()) }
    }

    /// Returns the range of every key.
    pub fn all() -> Self {
        // Keys are not empty, so the smallest possible key is a single zero byte.
        Self { start: Bytes::from_static(b"\0"), end: RangeEnd::Unbounded }
    }

    /// Returns the first key that can be in the range.
    pub fn start(&self) -> &Bytes {
        &self.start
    }

    /// Returns the end of the range.
    pub fn end(&self) -> &RangeEnd {
        &self.end
    }

    /// Returns the key if the range is a single key.
    pub fn as_single(&self) -> Option<&Bytes> {
        matches!(self.end, RangeEnd::Single).then_some(&self.start)
    }

    /// Returns whether `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            RangeEnd::Single => key == self.start,
            RangeEnd::Before(end) => key >= &self.start[..] && key < &end[..],
            RangeEnd::Unbounded => key >= &self.start[..],
        }
    }

    /// Returns this range with `prefix` prepended, as
    /// [`Client::with_prefix`](crate::Client::with_prefix) does. The result contains only keys with
    /// the prefix, even if this range is unbounded.
    #[must_use]
    pub fn below_prefix(&self, prefix: &Bytes) -> Self {
        if prefix.is_empty() {
            return self.clone();
        }
        let join = |key: &Bytes| -> Bytes { [&prefix[..], &key[..]].concat().into() };
        if *self == Self::all() {
            return Self::prefix(prefix.clone());
        }
        let end = match &self.end {
            RangeEnd::Single => RangeEnd::Single,
            RangeEnd::Before(end) => RangeEnd::Before(join(end)),
            RangeEnd::Unbounded => Self::prefix(prefix.clone()).end,
        };
        Self { start: join(&self.start), end }
    }
}

impl<T: Into<Bytes>> From<T> for KeyRange {
    fn from(key: T) -> Self {
        Self::key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_sibling() {
        let cases: [(&[u8], RangeEnd); 4] = [
            (b"a", RangeEnd::Before(Bytes::from_static(b"b"))),
            (b"a/", RangeEnd::Before(Bytes::from_static(b"a0"))),
            (b"a\xff", RangeEnd::Before(Bytes::from_static(b"b"))),
            (b"\xff\xff", RangeEnd::Unbounded),
        ];
        for (prefix, end) in cases {
            assert_eq!(*KeyRange::prefix(prefix.to_vec()).end(), end, "{prefix:?}");
        }
        assert_eq!(KeyRange::prefix(""), KeyRange::all());
    }

    #[test]
    fn range_includes_its_start_and_excludes_its_end() {
        let range = KeyRange::between("b", "d");
        assert!(range.contains(b"b") && range.contains(b"c") && range.contains(b"cz"));
        assert!(!range.contains(b"a") && !range.contains(b"d"));
        assert!(!KeyRange::between("d", "b").contains(b"c"));
        assert!(KeyRange::starting_at("b").contains(b"zzz"));
        assert!(KeyRange::all().contains(b"\0"));
    }

    #[test]
    fn a_range_below_a_prefix_never_leaves_it() {
        let prefix = Bytes::from_static(b"app/");
        for range in
            [KeyRange::all(), KeyRange::starting_at("x"), KeyRange::prefix("k"), "k".into()]
        {
            let below = range.below_prefix(&prefix);
            assert!(!below.contains(b"app") && !below.contains(b"app0"), "{range:?} {below:?}");
        }
        assert!(KeyRange::all().below_prefix(&prefix).contains(b"app/x"));
        assert_eq!(KeyRange::key("k").below_prefix(&prefix), KeyRange::key("app/k"));
    }
}

//! Ranges of keys.

use std::ops;

use bytes::Bytes;

use super::IntoBytes;

/// The smallest possible key: a single zero byte, because keys are not empty.
const FIRST_KEY: Bytes = Bytes::from_static(b"\0");

/// The end of a range of keys.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
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
/// A key converts into the range of this single key, and Rust's ranges convert as well. So calls
/// accept `"a"`, `"a".."c"` and `"a"..`. Keys are not empty, so a range with an empty start begins
/// at the first key: `""..` is the range of every key.
///
/// ```
/// use bowline::KeyRange;
/// assert_eq!(KeyRange::from("a"), KeyRange::key("a"));
/// assert_eq!(KeyRange::from("a".."c"), KeyRange::between("a", "c"));
/// assert_eq!(KeyRange::from("a"..), KeyRange::starting_at("a"));
/// assert_eq!(KeyRange::from(..), KeyRange::all());
/// assert_eq!(KeyRange::from(""..), KeyRange::all());
/// assert!(KeyRange::from("a"..="c").contains(b"c"));
/// assert!(!KeyRange::from("a"..="c").contains(b"ca"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeyRange {
    start: Bytes,
    end: RangeEnd,
}

impl KeyRange {
    /// Returns the range of a single key.
    pub fn key(key: impl IntoBytes) -> Self {
        Self { start: key.into_bytes(), end: RangeEnd::Single }
    }

    /// Returns the range of every key that starts with `prefix`. The empty prefix means every key.
    pub fn prefix(prefix: impl IntoBytes) -> Self {
        let start = prefix.into_bytes();
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

    /// Returns the range of every key from `start` (inclusive). An empty `start` means every key.
    /// The name is not `from`, because `From` converts bytes into a range of a single key.
    ///
    /// ```
    /// use bowline::KeyRange;
    /// assert!(KeyRange::starting_at("k").contains(b"z"));
    /// assert_eq!(KeyRange::from("k"), KeyRange::key("k"));
    /// ```
    pub fn starting_at(start: impl IntoBytes) -> Self {
        Self { start: first_if_empty(start), end: RangeEnd::Unbounded }
    }

    /// Returns the range of every key from `start` (inclusive) to `end` (exclusive). An empty `start`
    /// means the first key.
    pub fn between(start: impl IntoBytes, end: impl IntoBytes) -> Self {
        Self { start: first_if_empty(start), end: RangeEnd::Before(end.into_bytes()) }
    }

    /// Creates a range and keeps an empty start, although every call rejects such a range. For
    /// decoders, which must not change the range that another process has encoded.
    #[doc(hidden)]
    pub fn from_parts(start: impl IntoBytes, end: RangeEnd) -> Self {
        Self { start: start.into_bytes(), end }
    }

    /// Returns the range of every key.
    pub fn all() -> Self {
        Self { start: FIRST_KEY, end: RangeEnd::Unbounded }
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

    /// Returns the keys of this range that are greater than `key`. Use this method to read a large
    /// range in pages: `key` is the last key of a page, and the result is the range of the next page.
    ///
    /// `key` need not exist, and may be outside of the range. If `key` is less than every key of
    /// the range, the result is the whole range. If `key` is greater than every key, the result is
    /// empty. Reading an empty range returns no rows.
    ///
    /// To read all pages at one revision, pass the revision of the first page to the others
    /// ([`RangeCall::revision`](crate::kv::RangeCall::revision)):
    ///
    /// ```
    /// # use bowline::{Blocking, Config, KeyRange, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// for job in 1..=5 {
    ///     kv.put(format!("jobs/{job}"), "").block()?;
    /// }
    /// let jobs = KeyRange::prefix("jobs/");
    /// let mut page = kv.range(&jobs).limit(2).skip_count().block()?;
    /// let revision = page.revision;
    /// let mut keys = Vec::new();
    /// loop {
    ///     keys.extend(page.kvs.iter().map(|row| row.key.clone()));
    ///     # kv.put("jobs/6", "").block()?; // not in the pages, because it was put later
    ///     let Some(last) = page.kvs.last().filter(|_| page.more) else { break };
    ///     let rest = jobs.after(&last.key);
    ///     page = kv.range(rest).limit(2).skip_count().revision(revision).block()?;
    /// }
    /// assert_eq!(keys, ["jobs/1", "jobs/2", "jobs/3", "jobs/4", "jobs/5"]);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "page", alias = "cursor", alias = "pagination")]
    #[must_use]
    pub fn after(&self, key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        if key < &self.start[..] {
            return self.clone();
        }
        match &self.end {
            // No key is greater than this single key, so the rest is empty.
            RangeEnd::Single => Self::from_parts(&self.start, RangeEnd::Before(self.start.clone())),
            end => Self::from_parts(successor(key), end.clone()),
        }
    }

    /// Returns this range with `prefix` prepended, as
    /// [`Client::with_prefix`](crate::Client::with_prefix) does. The result contains only keys that
    /// begin with the prefix and are longer, even if this range is unbounded.
    #[must_use]
    pub fn below_prefix(&self, prefix: &Bytes) -> Self {
        if prefix.is_empty() {
            return self.clone();
        }
        let join = |key: &Bytes| -> Bytes { [&prefix[..], &key[..]].concat().into() };
        let end = match &self.end {
            RangeEnd::Single => RangeEnd::Single,
            RangeEnd::Before(end) => RangeEnd::Before(join(end)),
            RangeEnd::Unbounded => Self::prefix(prefix.clone()).end,
        };
        Self { start: join(&self.start), end }
    }
}

impl<T: IntoBytes> From<T> for KeyRange {
    fn from(key: T) -> Self {
        Self::key(key)
    }
}

impl From<&KeyRange> for KeyRange {
    fn from(range: &KeyRange) -> Self {
        range.clone()
    }
}

impl<T: IntoBytes> From<ops::Range<T>> for KeyRange {
    fn from(range: ops::Range<T>) -> Self {
        Self::between(range.start, range.end)
    }
}

impl<T: IntoBytes> From<ops::RangeInclusive<T>> for KeyRange {
    fn from(range: ops::RangeInclusive<T>) -> Self {
        let (start, end) = range.into_inner();
        Self::between(start, successor(end.into_bytes()))
    }
}

impl<T: IntoBytes> From<ops::RangeFrom<T>> for KeyRange {
    fn from(range: ops::RangeFrom<T>) -> Self {
        Self::starting_at(range.start)
    }
}

impl<T: IntoBytes> From<ops::RangeTo<T>> for KeyRange {
    fn from(range: ops::RangeTo<T>) -> Self {
        Self::between(FIRST_KEY, range.end)
    }
}

impl<T: IntoBytes> From<ops::RangeToInclusive<T>> for KeyRange {
    fn from(range: ops::RangeToInclusive<T>) -> Self {
        Self::between(FIRST_KEY, successor(range.end.into_bytes()))
    }
}

impl From<ops::RangeFull> for KeyRange {
    fn from(_: ops::RangeFull) -> Self {
        Self::all()
    }
}

/// Returns the first key after `key`.
fn successor(key: impl AsRef<[u8]>) -> Bytes {
    [key.as_ref(), b"\0"].concat().into()
}

/// Returns the start of a range, or the first key if the start is empty.
fn first_if_empty(start: impl IntoBytes) -> Bytes {
    Some(start.into_bytes()).filter(|start| !start.is_empty()).unwrap_or(FIRST_KEY)
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
    fn ranges_of_rust_contain_the_same_keys() {
        let keys: [&[u8]; 6] = [b"\0", b"a", b"b", b"b\0", b"bz", b"\xff"];
        let contained = |range: KeyRange| keys.map(|key| range.contains(key));
        let name = String::from("b");
        assert_eq!(contained(("a"..&name).into()), [false, true, false, false, false, false]);
        assert_eq!(contained(("a"..="b").into()), [false, true, true, false, false, false]);
        assert_eq!(contained((..&name).into()), [true, true, false, false, false, false]);
        assert_eq!(contained((..="b").into()), [true, true, true, false, false, false]);
        assert_eq!(contained(("b"..).into()), [false, false, true, true, true, true]);
        assert_eq!(contained((..).into()), [true; 6]);
    }

    #[test]
    fn an_empty_start_means_the_first_key() {
        assert_eq!(KeyRange::from(""..), KeyRange::all());
        assert_eq!(KeyRange::from(vec![]..), KeyRange::all());
        assert_eq!(KeyRange::starting_at(Bytes::new()), KeyRange::all());
        assert_eq!(KeyRange::from("".."z"), KeyRange::from(.."z"));
        assert_eq!(KeyRange::from(""..="z"), KeyRange::from(..="z"));
        assert_eq!(KeyRange::between("", "z"), KeyRange::from(.."z"));
        // An empty single key and a decoded range keep their empty start.
        assert!(KeyRange::key("").start().is_empty() && KeyRange::from("").start().is_empty());
        assert!(KeyRange::from_parts("", RangeEnd::Unbounded).start().is_empty());
    }

    #[test]
    fn after_returns_the_greater_keys_of_the_range() {
        let keys: [&[u8]; 8] = [b"\0", b"a", b"b", b"b\0", b"b\0\0", b"bz", b"c", b"\xff\xff"];
        let ranges = [
            KeyRange::key("b"),
            KeyRange::prefix("b"),
            KeyRange::prefix("\u{0}"),
            KeyRange::prefix([0xff]),
            KeyRange::between("a", "bz"),
            KeyRange::between("c", "a"),
            KeyRange::from(.."b"),
            KeyRange::starting_at("b"),
            KeyRange::all(),
        ];
        let places = keys.iter().copied().chain([&b""[..], b"aa", b"bb", b"\xff\xff\xff"]);
        for last in places {
            for range in &ranges {
                for key in keys {
                    let expected = range.contains(key) && key > last;
                    assert_eq!(range.after(last).contains(key), expected, "{range:?} {last:?}");
                }
            }
        }
        assert_eq!(KeyRange::all().after(""), KeyRange::all());
        assert_eq!(KeyRange::key("b").after("b").as_single(), None);
    }

    #[test]
    fn a_range_below_a_prefix_never_leaves_it() {
        let prefix = Bytes::from_static(b"app/");
        for range in [
            KeyRange::all(),
            KeyRange::starting_at("x"),
            KeyRange::prefix("k"),
            "k".into(),
            KeyRange::all().after("k"),
            KeyRange::key("k").after("k"),
        ] {
            let below = range.below_prefix(&prefix);
            assert!(!below.contains(b"app") && !below.contains(b"app0"), "{range:?} {below:?}");
        }
        let all = KeyRange::all().below_prefix(&prefix);
        assert!(all.contains(b"app/x") && all.contains(b"app/\0"));
        assert!(!all.contains(b"app/"), "a client with the prefix cannot name this key");
        assert_eq!(KeyRange::key("k").below_prefix(&prefix), KeyRange::key("app/k"));
    }
}

//! Selects the keys to copy and maps their names to the target.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;

use crate::client::failure::Failure;
use bowline_client::prefix_end;

/// Range end that means "up to the last key" in etcd's protocol.
const END_OF_KEYS: &[u8] = b"\0";

/// A key range with an exclusive end, as in etcd's protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) first: Bytes,
    pub(crate) end: Bytes,
}

impl Span {
    /// Returns whether a key is below the end of the range.
    pub(crate) fn reaches(&self, key: &[u8]) -> bool {
        self.end == END_OF_KEYS || key < &self.end[..]
    }
}

/// Returns the key directly after `key`.
pub(crate) fn next_key(key: &[u8]) -> Bytes {
    [key, &b"\0"[..]].concat().into()
}

/// All keys with a prefix, and the prefix that they get at the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    prefix: Bytes,
    renamed: Bytes,
}

impl Part {
    /// Returns the parts for these prefixes. Overlapping prefixes are merged, so that each key is copied once.
    pub(crate) fn all(
        prefixes: Vec<OsString>,
        renamed: Option<OsString>,
    ) -> Result<Vec<Self>, Failure> {
        let mut prefixes: Vec<_> =
            prefixes.into_iter().map(|p| Bytes::from(p.into_vec())).collect();
        prefixes.sort();
        if prefixes.is_empty() {
            prefixes.push(Bytes::new());
        }
        let mut apart: Vec<Bytes> = Vec::new();
        for prefix in prefixes {
            // In sorted order, a prefix directly precedes the prefixes that it covers.
            if apart.last().is_none_or(|last| !prefix.starts_with(last)) {
                apart.push(prefix);
            }
        }
        if renamed.is_some() && apart.len() > 1 {
            let why = "--dest-prefix requires a single --prefix: import several prefixes one after the other";
            return Err(Failure::Usage(why.to_owned()));
        }
        let renamed = renamed.map(|prefix| Bytes::from(prefix.into_vec()));
        let part = |prefix: Bytes| {
            let renamed = renamed.clone().unwrap_or_else(|| prefix.clone());
            Part { prefix, renamed }
        };
        Ok(apart.into_iter().map(part).collect())
    }

    /// Returns the prefix at the target.
    pub(crate) fn renamed(&self) -> &Bytes {
        &self.renamed
    }

    /// Returns whether the key belongs to this part.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        key.starts_with(&self.prefix)
    }

    /// Maps a key, or a range boundary, to the target.
    pub(crate) fn rename(&self, key: &[u8]) -> Bytes {
        [&self.renamed[..], &key[self.prefix.len()..]].concat().into()
    }

    /// Returns the range at the source, starting at `from`.
    pub(crate) fn at_source(&self, from: Option<&Bytes>) -> Span {
        let first = from.cloned().unwrap_or_else(|| beginning(&self.prefix));
        Span { first, end: prefix_end(&self.prefix) }
    }

    /// Returns the range at the target, starting at `from`.
    pub(crate) fn at_target(&self, from: Option<&Bytes>, until: Option<&Bytes>) -> Span {
        Span {
            first: from.map_or_else(|| beginning(&self.renamed), |key| self.rename(key)),
            end: until.map_or_else(|| prefix_end(&self.renamed), |key| self.rename(key)),
        }
    }

    /// Returns whether the keys that are written to the target could overlap the keys that are read from the source,
    /// if both were the same cluster.
    pub(crate) fn overlaps(&self, other: &Part) -> bool {
        self.renamed.starts_with(&other.prefix) || other.prefix.starts_with(&self.renamed)
    }

    /// Returns whether this part covers all keys.
    pub(crate) fn is_everything(&self) -> bool {
        self.prefix.is_empty()
    }
}

fn beginning(prefix: &Bytes) -> Bytes {
    if prefix.is_empty() { Bytes::from_static(END_OF_KEYS) } else { prefix.clone() }
}

/// Returns one range that covers all parts at the source.
pub(crate) fn around(parts: &[Part]) -> Span {
    let ranges = parts.iter().map(|part| part.at_source(None));
    ranges
        .reduce(|all, span| Span {
            first: all.first.min(span.first),
            end: if all.end == END_OF_KEYS || span.end == END_OF_KEYS {
                Bytes::from_static(END_OF_KEYS)
            } else {
                all.end.max(span.end)
            },
        })
        .unwrap_or(Span {
            first: Bytes::from_static(END_OF_KEYS),
            end: Bytes::from_static(END_OF_KEYS),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(prefixes: &[&str], renamed: Option<&str>) -> Vec<Part> {
        let prefixes = prefixes.iter().map(OsString::from).collect();
        Part::all(prefixes, renamed.map(OsString::from)).unwrap()
    }

    #[test]
    fn overlapping_prefixes_are_merged() {
        let names = |parts: Vec<Part>| {
            let names = parts.iter().map(|part| String::from_utf8(part.prefix.to_vec()).unwrap());
            names.collect::<Vec<_>>().join(",")
        };
        assert_eq!(names(parts(&["b/", "a/", "b/c", "a/", "ba"], None)), "a/,b/,ba");
        assert_eq!(names(parts(&["x", ""], None)), "");
        assert_eq!(names(parts(&[], None)), "");
        let two = vec!["a".into(), "b".into()];
        assert!(matches!(Part::all(two, Some("c".into())), Err(Failure::Usage(_))));
    }

    #[test]
    fn source_and_target_spans_match() {
        let span = |first: &'static str, end: &'static str| Span {
            first: Bytes::from_static(first.as_bytes()),
            end: Bytes::from_static(end.as_bytes()),
        };
        let moved = &parts(&["a/"], Some("old/"))[0];
        assert_eq!(moved.at_source(None), span("a/", "a0"));
        assert_eq!(moved.at_target(None, None), span("old/", "old0"));
        let (from, until) = (Bytes::from("a/k"), Bytes::from("a/m"));
        assert_eq!(moved.at_target(Some(&from), Some(&until)), span("old/k", "old/m"));
        let stripped = &parts(&["a/"], Some(""))[0];
        assert_eq!(stripped.at_target(None, None), span("\0", "\0"));
        assert_eq!(&stripped.rename(b"a/k")[..], b"k");
        let all = &parts(&[], Some("old/"))[0];
        assert_eq!(
            (all.at_source(None), all.at_target(None, None)),
            (span("\0", "\0"), span("old/", "old0"))
        );
        assert!(!moved.overlaps(moved) && stripped.overlaps(stripped) && all.overlaps(all));
    }

    #[test]
    fn enclosing_range_covers_all_prefixes() {
        let around = around(&parts(&["b", "a/", "x"], None));
        assert_eq!((&around.first[..], &around.end[..]), (&b"a/"[..], &b"y"[..]));
        assert!(around.reaches(b"x9") && !around.reaches(b"y"));
    }
}

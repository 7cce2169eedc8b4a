//! Which keys are taken along, and what they are called on the other side.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;

use crate::client::failure::Failure;
use crate::client::range::prefix_end;

/// The end of a range that has none.
const TO_THE_END: &[u8] = b"\0";

/// Keys from the first one on, up to an end that is not part of it, as the protocol says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) first: Bytes,
    pub(crate) end: Bytes,
}

impl Span {
    /// Whether a key lies before the end.
    pub(crate) fn reaches(&self, key: &[u8]) -> bool {
        self.end == TO_THE_END || key < &self.end[..]
    }
}

/// The first key behind this one.
pub(crate) fn next_key(key: &[u8]) -> Bytes {
    [key, &b"\0"[..]].concat().into()
}

/// All keys with a prefix, and the prefix that they have on the other side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    prefix: Bytes,
    renamed: Bytes,
}

impl Part {
    /// What is taken along: each key once, however the prefixes overlap.
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
            // In this order what begins with another prefix comes right behind it.
            if apart.last().is_none_or(|last| !prefix.starts_with(last)) {
                apart.push(prefix);
            }
        }
        if renamed.is_some() && apart.len() > 1 {
            let why =
                "--dest-prefix stands for one --prefix: with several, import one after the other";
            return Err(Failure::Usage(why.to_owned()));
        }
        let renamed = renamed.map(|prefix| Bytes::from(prefix.into_vec()));
        let part = |prefix: Bytes| {
            let renamed = renamed.clone().unwrap_or_else(|| prefix.clone());
            Part { prefix, renamed }
        };
        Ok(apart.into_iter().map(part).collect())
    }

    /// What they begin with at the target.
    pub(crate) fn renamed(&self) -> &Bytes {
        &self.renamed
    }

    /// Whether this key is one of them.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        key.starts_with(&self.prefix)
    }

    /// What a key is called on the other side, or a place between keys.
    pub(crate) fn rename(&self, key: &[u8]) -> Bytes {
        [&self.renamed[..], &key[self.prefix.len()..]].concat().into()
    }

    /// The keys at the source, from one on.
    pub(crate) fn at_source(&self, from: Option<&Bytes>) -> Span {
        let first = from.cloned().unwrap_or_else(|| beginning(&self.prefix));
        Span { first, end: prefix_end(&self.prefix) }
    }

    /// The same stretch at the target: from a key of the source on, up to another.
    pub(crate) fn at_target(&self, from: Option<&Bytes>, until: Option<&Bytes>) -> Span {
        Span {
            first: from.map_or_else(|| beginning(&self.renamed), |key| self.rename(key)),
            end: until.map_or_else(|| prefix_end(&self.renamed), |key| self.rename(key)),
        }
    }

    /// Whether what is written could be what is read, were both one cluster.
    pub(crate) fn meets(&self, other: &Part) -> bool {
        self.renamed.starts_with(&other.prefix) || other.prefix.starts_with(&self.renamed)
    }

    /// Whether these are all keys there are.
    pub(crate) fn is_everything(&self) -> bool {
        self.prefix.is_empty()
    }
}

fn beginning(prefix: &Bytes) -> Bytes {
    if prefix.is_empty() { Bytes::from_static(TO_THE_END) } else { prefix.clone() }
}

/// One range around all of them, at the source.
pub(crate) fn around(parts: &[Part]) -> Span {
    let ranges = parts.iter().map(|part| part.at_source(None));
    ranges
        .reduce(|all, span| Span {
            first: all.first.min(span.first),
            end: if all.end == TO_THE_END || span.end == TO_THE_END {
                Bytes::from_static(TO_THE_END)
            } else {
                all.end.max(span.end)
            },
        })
        .unwrap_or(Span {
            first: Bytes::from_static(TO_THE_END),
            end: Bytes::from_static(TO_THE_END),
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
    fn overlapping_prefixes_are_one() {
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
    fn a_stretch_is_the_same_on_both_sides() {
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
        assert!(!moved.meets(moved) && stripped.meets(stripped) && all.meets(all));
    }

    #[test]
    fn the_range_around_several_begins_with_the_first_and_ends_with_the_last() {
        let around = around(&parts(&["b", "a/", "x"], None));
        assert_eq!((&around.first[..], &around.end[..]), (&b"a/"[..], &b"y"[..]));
        assert!(around.reaches(b"x9") && !around.reaches(b"y"));
    }
}

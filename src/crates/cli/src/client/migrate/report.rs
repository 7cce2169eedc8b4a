//! Output of an import: lines for people, JSON objects for programs.

use std::io::{self, IsTerminal};

use bytes::Bytes;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use super::difference::Difference;
use crate::client::print::{Object, Page, Show, base64, list};
use crate::client::quote;

/// Maximum number of keys named in a message.
const NAMED_MAX: usize = 10;

/// Maximum number of names of unaffected keys to keep in memory, because the number of such keys is unlimited.
const KEPT_MAX: usize = 1000;

/// Formats the keys after the text `before`. Returns an empty string if there are no keys.
pub(crate) fn names(keys: &[Bytes], before: &str) -> String {
    named(keys, keys.len() as u64, before)
}

fn named(keys: &[Bytes], count: u64, before: &str) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let named: Vec<_> = keys.iter().take(NAMED_MAX).map(|key| quote::go(key)).collect();
    let more = match count - named.len() as u64 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{before}{}{more}", named.join(", "))
}

/// A count of keys, with the names of some of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    pub(crate) count: u64,
    keys: Vec<Bytes>,
}

impl Keys {
    pub(crate) fn add(&mut self, keys: Vec<Bytes>) {
        self.count += keys.len() as u64;
        let room = KEPT_MAX - self.keys.len();
        self.keys.extend(keys.into_iter().take(room));
    }

    pub(crate) fn is_none(&self) -> bool {
        self.count == 0
    }

    /// Like the function `names`.
    pub(crate) fn names(&self, before: &str) -> String {
        named(&self.keys, self.count, before)
    }

    fn json(&self) -> String {
        let keys = list(self.keys.iter().map(|key| base64(key)));
        Object::default().raw("count", self.count).raw("keys", keys).end()
    }
}

/// Result of a dry run.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    revision: i64,
    puts: u64,
    equal: u64,
    deletes: Keys,
    refused: Keys,
    beside: Keys,
    left_out: Vec<(Bytes, i64)>,
}

impl Plan {
    /// Returns an empty plan for a revision of the source.
    pub(crate) fn at(revision: i64) -> Self {
        Self { revision, ..Self::default() }
    }

    /// Adds the difference of a key range.
    pub(crate) fn add(&mut self, mut difference: Difference) {
        self.puts += difference.puts.len() as u64;
        self.equal += difference.equal;
        self.deletes.add(difference.deletes);
        self.refused.add(difference.refused);
        self.beside.add(difference.beside);
        self.left_out.append(&mut difference.left_out);
    }

    /// Returns the reason for which the plan cannot be carried out, or `None` if it can.
    pub(crate) fn rejection(&self) -> Option<String> {
        let revision = self.revision;
        (!self.refused.is_none()).then(|| {
            format!(
                "{} keys at the target differ from the source{}. Nothing was written. Use --overwrite to replace \
                 them. If they come from an interrupted import of a revision before {revision}, pass that revision \
                 with --rev to continue it",
                self.refused.count,
                self.refused.names(": ")
            )
        })
    }
}

impl Show for Plan {
    fn simple(&self, page: &mut Page) {
        page.line(format!("at revision {} of the source:", self.revision));
        page.line(format!("equal      {} keys", self.equal));
        page.line(format!("to write   {} keys", self.puts));
        let some = |page: &mut Page, what: &str, keys: &Keys, words: &str| {
            if !keys.is_none() {
                page.line(format!("{what:<10} {} keys{words}{}", keys.count, keys.names(": ")));
            }
        };
        some(page, "to delete", &self.deletes, "");
        some(page, "conflict", &self.refused, " that differ at the target");
        some(page, "beside", &self.beside, " that exist only at the target");
        left_out(page, &self.left_out);
    }

    fn fields(&self, page: &mut Page) {
        page.field("Revision", self.revision);
        page.field("Equal", self.equal);
        page.field("Write", self.puts);
        page.field("Delete", self.deletes.count);
        page.field("InTheWay", self.refused.count);
        page.field("Beside", self.beside.count);
        left_out_fields(page, &self.left_out);
    }

    fn json(&self) -> String {
        Object::default()
            .raw("what", "\"plan\"")
            .raw("revision", self.revision)
            .raw("equal", self.equal)
            .raw("write", self.puts)
            .raw("delete", self.deletes.json())
            .raw("in_the_way", self.refused.json())
            .raw("beside", self.beside.json())
            .raw("left_out", left_out_json(&self.left_out))
            .end()
    }
}

/// Result of a copy.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) source_cluster: u64,
    pub(crate) target_cluster: u64,
    /// Revision of the source.
    pub(crate) revision: i64,
    /// Revision of the target at which the copy was verified.
    pub(crate) target_revision: i64,
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
    /// Number of changes written.
    pub(crate) written: u64,
    pub(crate) left_out: Vec<(Bytes, i64)>,
    /// Names at the target of the keys that were not copied.
    pub(crate) left_out_there: Vec<Bytes>,
    pub(crate) beside: Keys,
    pub(crate) digest: String,
}

impl Show for Copied {
    fn simple(&self, page: &mut Page) {
        let (source, target) = (self.source_cluster, self.target_cluster);
        page.line(format!("source     cluster {source:x}, revision {}", self.revision));
        page.line(format!("target     cluster {target:x}, revision {}", self.target_revision));
        let (keys, bytes, written) = (self.keys, HumanBytes(self.bytes), self.written);
        page.line(format!("copied     {keys} keys, {bytes}; {written} changes were made"));
        page.line(format!("verified   {keys} keys, equal on both sides, sha256 {}", self.digest));
        if !self.beside.is_none() {
            let names = self.beside.names(": ");
            page.line(format!(
                "beside     {} keys that exist only at the target{names}",
                self.beside.count
            ));
        }
        left_out(page, &self.left_out);
        if !self.left_out.is_empty() {
            page.line("           Programs register them again when they connect to the target");
        }
    }

    fn fields(&self, page: &mut Page) {
        page.field("SourceClusterID", self.source_cluster);
        page.field("TargetClusterID", self.target_cluster);
        page.field("Revision", self.revision);
        page.field("TargetRevision", self.target_revision);
        page.field("Keys", self.keys);
        page.field("Bytes", self.bytes);
        page.field("Written", self.written);
        page.field("Beside", self.beside.count);
        page.quoted("SHA256", &self.digest);
        left_out_fields(page, &self.left_out);
    }

    fn json(&self) -> String {
        Object::default()
            .raw("what", "\"copied\"")
            .raw("source_cluster_id", self.source_cluster)
            .raw("target_cluster_id", self.target_cluster)
            .raw("revision", self.revision)
            .raw("target_revision", self.target_revision)
            .raw("keys", self.keys)
            .raw("bytes", self.bytes)
            .raw("written", self.written)
            .raw("beside", self.beside.json())
            .raw("left_out", left_out_json(&self.left_out))
            .text("sha256", &self.digest)
            .end()
    }
}

fn left_out(page: &mut Page, keys: &[(Bytes, i64)]) {
    if keys.is_empty() {
        return;
    }
    page.line(format!("left out   {} keys with leases:", keys.len()));
    for (key, lease) in keys {
        page.line(format!("           {} on lease {lease:016x}", quote::go(key)));
    }
}

fn left_out_fields(page: &mut Page, keys: &[(Bytes, i64)]) {
    for (key, lease) in keys {
        page.quoted("LeftOutKey", key);
        page.field("LeftOutLease", lease);
    }
}

fn left_out_json(keys: &[(Bytes, i64)]) -> String {
    let one = |(key, lease): &(Bytes, i64)| {
        Object::default().raw("key", base64(key)).raw("lease", lease).end()
    };
    list(keys.iter().map(one))
}

/// Reports that a mirror is in sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InSync {
    pub(crate) revision: i64,
}

impl Show for InSync {
    fn simple(&self, page: &mut Page) {
        page.line(format!("in sync at revision {}", self.revision));
    }

    fn fields(&self, page: &mut Page) {
        page.field("InSync", self.revision);
    }

    fn json(&self) -> String {
        Object::default().raw("what", "\"in_sync\"").raw("revision", self.revision).end()
    }
}

/// Reports that a mirror has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mirrored {
    pub(crate) revision: i64,
    /// Newest known revision of the source.
    pub(crate) source_revision: i64,
    /// Number of revisions written.
    pub(crate) count: u64,
    /// Number of changes that were skipped because their keys have leases.
    pub(crate) left_out: u64,
}

impl Show for Mirrored {
    fn simple(&self, page: &mut Page) {
        let Mirrored { revision, source_revision, count, left_out } = self;
        let rest = match source_revision - revision {
            ..=0 => "the source had no newer revision".to_owned(),
            _ => format!("the source was at {source_revision}"),
        };
        page.line(format!("mirrored up to revision {revision}: {count} changes; {rest}"));
        if *left_out > 0 {
            page.line(format!("left out   {left_out} changes of keys with leases"));
        }
    }

    fn fields(&self, page: &mut Page) {
        page.field("Mirrored", self.revision);
        page.field("SourceRevision", self.source_revision);
        page.field("Changes", self.count);
        page.field("LeftOutChanges", self.left_out);
    }

    fn json(&self) -> String {
        Object::default()
            .raw("what", "\"mirrored\"")
            .raw("revision", self.revision)
            .raw("source_revision", self.source_revision)
            .raw("changes", self.count)
            .raw("left_out_changes", self.left_out)
            .end()
    }
}

/// A terminal line that shows the progress of a mirror.
#[derive(Debug)]
pub(crate) struct Live(ProgressBar);

impl Live {
    /// Returns a progress line, hidden if standard error is not a terminal.
    pub(crate) fn begin(is_quiet: bool) -> Self {
        if is_quiet || !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{msg}").expect("the template is valid");
        Self(ProgressBar::new_spinner().with_style(style))
    }

    /// Updates the line.
    pub(crate) fn at(&self, revision: i64, head: i64) {
        let words = match head - revision {
            ..=0 => format!("mirrored up to revision {revision}: in sync"),
            lag => format!("mirrored up to revision {revision}, {lag} behind the source"),
        };
        self.0.set_message(words);
        self.0.tick();
    }

    /// Hides the line while `print` runs.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    /// Removes the line.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_key_lists_name_the_first_keys() {
        let keys: Vec<Bytes> = (0..12).map(|at| Bytes::from(format!("k{at}"))).collect();
        assert_eq!(names(&keys[..2], ": "), ": \"k0\", \"k1\"");
        assert!(names(&keys, " ").ends_with("\"k9\" and 2 more"));
        assert_eq!(names(&[], ": "), "");
    }
}

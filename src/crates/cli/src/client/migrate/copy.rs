//! Copies all keys from one revision of the source to the target, and verifies the result.
//!
//! ```text
//!   survey    read the target's keys; fail if there are conflicts, before anything is written
//!   copy      page by page: write the keys that differ, skip the keys that are equal
//!   verify    page by page: read both clusters again and compare
//! ```
//!
//! Every step is decided from the target's contents, not from saved progress. An interrupted import can therefore be
//! started again, and skips the keys that were copied already.

use std::cell::Cell;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::Halt;
use super::change::Change;
use super::difference::{Difference, Row, Rules};
use super::parts::{Part, Span, next_key};
use super::report::{Copied, Keys, Plan, names};
use super::side::note;
use super::source::{Page, Source};
use super::target::{Target, Written};
use crate::client::failure::Failure;
use crate::data::Bar;
use bowline_proto::mvccpb::KeyValue;

/// Maximum number of restarts of a copy. A copy restarts if the source has compacted the revision that is being
/// copied.
const RESTARTS_MAX: u32 = 5;

/// Maximum number of attempts to write a key range that other clients change at the same time.
const RACES_MAX: u32 = 8;

/// The target is asked for as many rows as the source has in the range, plus this number.
const EXTRA_ROWS: usize = 16;

/// The rows of both clusters within a key range.
struct Stretch<'a> {
    span: Span,
    rows: &'a [Row],
    there: Vec<KeyValue>,
    /// Revision of the target at which its rows were read.
    known: i64,
}

/// A copy from a source to a target.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) source: Source,
    pub(crate) target: Target,
    pub(crate) rules: Rules,
    /// Whether to hide progress bars.
    pub(crate) is_quiet: bool,
    /// Revision of the source to copy.
    pub(crate) revision: Cell<i64>,
    /// Number of changes made at the target.
    pub(crate) written: Cell<u64>,
    /// Whether everything is copied and verified.
    pub(crate) is_copied: Cell<bool>,
}

/// Result of a pass over both clusters.
#[derive(Default)]
struct Found {
    keys: u64,
    bytes: u64,
    beside: Keys,
    left_out: Vec<(Bytes, i64)>,
    /// Names at the target of the keys that were not copied.
    left_out_there: Vec<Bytes>,
    wrong: Keys,
    source: Sha256,
    target: Sha256,
}

impl Import {
    /// Copies the source's state at the revision `named`, or its current state. If the source compacts the revision
    /// during the copy, the copy restarts at a newer revision. If `named` is given, the copy fails instead.
    pub(crate) async fn copy(&self, named: Option<i64>) -> Result<Copied, Halt> {
        for restart in 0.. {
            let revision = match named {
                Some(revision) => revision,
                None => self.source.header().await?.revision,
            };
            self.revision.set(revision);
            match self.copy_at(revision).await {
                Err(Halt::Forgotten) if named.is_none() && restart < RESTARTS_MAX => {
                    note(&format!(
                        "the source has compacted revision {revision} meanwhile: restarting with a newer one"
                    ));
                }
                Err(Halt::Forgotten) => {
                    let what = match named {
                        Some(_) => "omit --rev to copy the newest revision",
                        None => {
                            "let the source keep more history during the import (--auto-compaction-retention)"
                        }
                    };
                    let why = format!("the source has compacted revision {revision}: {what}");
                    return Err(Failure::Failed(why).into());
                }
                other => return other,
            }
        }
        Err(Halt::Forgotten)
    }

    async fn copy_at(&self, revision: i64) -> Result<Copied, Halt> {
        if !self.rules.overwrite && self.has_keys().await? {
            let plan = self.plan(revision).await?;
            if let Some(rejection) = plan.rejection() {
                return Err(Failure::Failed(rejection).into());
            }
        }
        self.pass("copies", revision, async |stretch: Stretch<'_>| self.settle(stretch).await)
            .await?;
        self.target.fence.take_down(&self.target.side, false).await?;
        self.verify(revision).await
    }

    /// Returns whether the target has keys in the ranges to be written.
    async fn has_keys(&self) -> Result<bool, Failure> {
        for part in &self.source.parts {
            if self.target.count(&part.at_target(None, None)).await? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns what an import would change, without changing anything.
    pub(crate) async fn plan(&self, revision: i64) -> Result<Plan, Halt> {
        let mut plan = Plan::at(revision);
        self.pass("compares", revision, async |stretch: Stretch<'_>| {
            plan.add(self.difference(stretch.rows, &stretch.there));
            Ok(())
        })
        .await?;
        Ok(plan)
    }

    fn difference(&self, rows: &[Row], there: &[KeyValue]) -> Difference {
        Difference::of(rows, there, self.rules, |revision| self.target.is_own_revision(revision))
    }

    /// Walks over both clusters in key order. Fetches the next page while the current page is processed.
    async fn pass(
        &self,
        what: &'static str,
        revision: i64,
        mut each: impl AsyncFnMut(Stretch<'_>) -> Result<(), Halt>,
    ) -> Result<(), Halt> {
        let total = self.source.count(revision).await?;
        let bar = Bar::begin(what, self.is_quiet);
        let mut done = 0;
        for part in &self.source.parts {
            let mut from = None;
            let mut page = self.source.page(part, None, revision).await?;
            loop {
                let ahead = async {
                    match &page.until {
                        Some(until) => {
                            self.source.page(part, Some(until), revision).await.map(Some)
                        }
                        None => Ok(None),
                    }
                };
                let here = self.stretches(part, from.as_ref(), &page, &mut each);
                // Writes in progress are completed even if fetching the next page fails.
                let (next, here) = tokio::join!(ahead, here);
                here?;
                done += page.rows.len() as u64;
                bar.at(done, total);
                from = page.until.clone();
                match next? {
                    Some(next) => page = next,
                    None => break,
                }
            }
        }
        bar.end();
        Ok(())
    }

    /// Pairs a page of the source with the target's rows in the same range. If the target has more rows than fit into
    /// a page, the range is split into several.
    async fn stretches(
        &self,
        part: &Part,
        from: Option<&Bytes>,
        page: &Page,
        each: &mut impl AsyncFnMut(Stretch<'_>) -> Result<(), Halt>,
    ) -> Result<(), Halt> {
        let whole = part.at_target(from, page.until.as_ref());
        let (mut first, mut rows) = (whole.first.clone(), &page.rows[..]);
        loop {
            let span = Span { first, end: whole.end.clone() };
            let there = self.target.page(&span, rows.len() + EXTRA_ROWS).await?;
            let cut = there.kvs.last().filter(|_| there.more).map(|last| next_key(&last.key));
            let end = cut.clone().unwrap_or(span.end);
            let span = Span { first: span.first, end };
            let (now, later) =
                rows.split_at(rows.partition_point(|row| span.reaches(&row.row.key)));
            let known = there.header.unwrap_or_default().revision;
            let kvs = self.without_fence(there.kvs);
            each(Stretch { span, rows: now, there: kvs, known }).await?;
            match cut {
                Some(cut) => (first, rows) = (cut, later),
                None => return Ok(()),
            }
        }
    }

    fn without_fence(&self, mut rows: Vec<KeyValue>) -> Vec<KeyValue> {
        rows.retain(|row| row.key != self.target.fence.key);
        rows
    }

    /// Writes a key range of the target until the target's rows match the copy.
    async fn settle(&self, stretch: Stretch<'_>) -> Result<(), Halt> {
        let Stretch { span, rows, mut there, mut known } = stretch;
        for _ in 0..RACES_MAX {
            let difference = self.difference(rows, &there);
            if !difference.refused.is_empty() {
                // The survey found no conflict in this range, so another client must have written since then.
                return Err(foreign_keys(&difference.refused).into());
            }
            let changes: Vec<Change> = difference
                .puts
                .into_iter()
                .map(Change::Put)
                .chain(difference.deletes.into_iter().map(Change::Delete))
                .collect();
            if self.target.write(&changes, known, &self.written).await? == Written::All {
                return Ok(());
            }
            let before = known;
            (there, known) = self.target.all(&span).await?;
            there = self.without_fence(there);
            // An attempt whose response was lost may have applied some of the changes.
            for change in &changes {
                let found = there.binary_search_by(|row| row.key.cmp(change.key()));
                let row = found.ok().map(|at| &there[at]).filter(|row| row.mod_revision > before);
                if let Some(row) = row.filter(|row| change.is_applied(Some(row))) {
                    self.target.claim(row.mod_revision);
                }
            }
        }
        let keys: Vec<_> = rows.iter().take(1).map(|row| row.row.key.clone()).collect();
        Err(foreign_keys(&keys).into())
    }

    /// Reads both clusters again and checks that their rows are equal.
    pub(crate) async fn verify(&self, revision: i64) -> Result<Copied, Halt> {
        let target = self.target.side.header(&self.target.fence.key).await?;
        let source = self.source.header().await?;
        let mut found = Found::default();
        self.pass("verifies", revision, async |stretch: Stretch<'_>| {
            self.look(&stretch, &mut found);
            Ok(())
        })
        .await?;
        // The number of keys is checked separately, because a comparison cannot notice rows that were never read.
        let count = self.source.count(revision).await?;
        let seen = found.keys + found.left_out.len() as u64;
        if count != seen {
            let why = format!(
                "the source reported {count} keys at revision {revision}, but returned {seen}"
            );
            return Err(Failure::Failed(why).into());
        }
        let digests = [found.source, found.target].map(|digest| hex(&digest.finalize()));
        let [digest, other] = digests;
        if !found.wrong.is_none() || digest != other {
            let why = format!(
                "verification failed: after the copy, {} keys at the target differ from revision {revision} of the \
                 source{}. Another client writes to the target, or the target has lost data",
                found.wrong.count,
                found.wrong.names(": ")
            );
            return Err(Failure::Failed(why).into());
        }
        Ok(Copied {
            source_cluster: source.cluster_id,
            target_cluster: target.cluster_id,
            revision,
            target_revision: target.revision,
            keys: found.keys,
            bytes: found.bytes,
            written: self.written.get(),
            left_out: found.left_out,
            left_out_there: found.left_out_there,
            beside: found.beside,
            digest,
        })
    }

    fn look(&self, stretch: &Stretch<'_>, found: &mut Found) {
        let mut difference = self.difference(stretch.rows, &stretch.there);
        let left: std::collections::BTreeSet<_> =
            difference.left_out.iter().map(|(name, _)| name.clone()).collect();
        for Row { name, row } in stretch.rows {
            if left.contains(name) {
                found.left_out_there.push(row.key.clone());
                continue;
            }
            found.keys += 1;
            found.bytes += (row.key.len() + row.value.len()) as u64;
            add(&mut found.source, row);
            if let Ok(at) = stretch.there.binary_search_by(|other| other.key.cmp(&row.key)) {
                add(&mut found.target, &stretch.there[at]);
            }
        }
        found.wrong.add(difference.puts.into_iter().map(|row| row.key).collect());
        found.wrong.add(difference.refused);
        found.wrong.add(difference.deletes);
        found.beside.add(difference.beside);
        found.left_out.append(&mut difference.left_out);
    }
}

/// Adds a row to the digest. Keys and values are length-prefixed, so that different rows never produce the same bytes.
fn add(digest: &mut Sha256, row: &KeyValue) {
    for part in [&row.key, &row.value] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn foreign_keys(keys: &[Bytes]) -> Failure {
    Failure::Failed(format!(
        "another client writes to the target{}. During the copy, no other client may write these keys",
        names(keys, ": ")
    ))
}

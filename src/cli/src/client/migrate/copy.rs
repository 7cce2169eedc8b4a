//! All keys at one revision of the source, brought to the target; and the proof that they are there.
//!
//! ```text
//!   survey    what the target has already: is anything in the way?      nothing is written before this is known
//!   copy      page by page: what differs is written, what is equal is left as it is
//!   verify    page by page, from both sides anew: is it all the same?
//! ```
//!
//! What is found and not what is remembered decides what is done. So an import that was interrupted goes on where it
//! was when it is run again.

use std::cell::Cell;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::Halt;
use super::change::Change;
use super::difference::{Difference, Row, Rules};
use super::parts::{Part, Span, next_key};
use super::side::note;
use super::source::{Page, Source};
use super::target::{Target, Written};
use super::told::{Copied, Keys, Plan, names};
use crate::client::failure::Failure;
use crate::data::Bar;
use crate::generated::mvccpb::KeyValue;

/// How often a copy is begun anew when the source forgets the revision meanwhile.
const RESTARTS_MAX: u32 = 5;

/// How often it is tried to write a stretch that somebody else changes meanwhile.
const RACES_MAX: u32 = 8;

/// How many more rows of the target are asked for than the source has, and how many at least.
const MORE_ROWS: usize = 16;

/// Rows of both sides, from a key on up to another.
struct Stretch<'a> {
    span: Span,
    rows: &'a [Row],
    there: Vec<KeyValue>,
    /// The revision of the target at which they were read.
    known: i64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) source: Source,
    pub(crate) target: Target,
    pub(crate) rules: Rules,
    /// No bars.
    pub(crate) is_quiet: bool,
    /// Which revision of the source is copied.
    pub(crate) revision: Cell<i64>,
    /// How many changes were made at the target.
    pub(crate) written: Cell<u64>,
    /// Whether all is there, and verified.
    pub(crate) is_copied: Cell<bool>,
}

/// What a pass over both sides has found.
#[derive(Default)]
struct Found {
    keys: u64,
    bytes: u64,
    beside: Keys,
    left_out: Vec<(Bytes, i64)>,
    /// The names that those would have at the target.
    left_out_there: Vec<Bytes>,
    wrong: Keys,
    source: Sha256,
    target: Sha256,
}

impl Import {
    /// Copies what the source has at a revision, or now. One that is not named may be replaced by a newer one.
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
                        "the source has compacted revision {revision} meanwhile: begins anew with a newer one"
                    ));
                }
                Err(Halt::Forgotten) => {
                    let what = match named {
                        Some(_) => "without --rev the newest is copied",
                        None => {
                            "keep more of its history while this goes on (--auto-compaction-retention)"
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
            if let Some(refusal) = plan.refusal() {
                return Err(Failure::Failed(refusal).into());
            }
        }
        self.pass("copies", revision, async |stretch: Stretch<'_>| self.settle(stretch).await)
            .await?;
        self.target.fence.take_down(&self.target.side, false).await?;
        self.verify(revision).await
    }

    /// Whether the target has anything where something is to be written.
    async fn has_keys(&self) -> Result<bool, Failure> {
        for part in &self.source.parts {
            if self.target.count(&part.at_target(None, None)).await? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What would be done, without doing it.
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
        Difference::of(rows, there, self.rules, |revision| self.target.is_ours(revision))
    }

    /// Goes over both sides, in the order of keys. The next page comes while one is worked on.
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
                // What is being written is waited for, whatever becomes of the next page.
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

    /// A page of the source beside what the target has there, in pieces where that is more.
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
            let there = self.target.page(&span, rows.len() + MORE_ROWS).await?;
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

    /// Makes a stretch of the target as it should be.
    async fn settle(&self, stretch: Stretch<'_>) -> Result<(), Halt> {
        let Stretch { span, rows, mut there, mut known } = stretch;
        for _ in 0..RACES_MAX {
            let difference = self.difference(rows, &there);
            if !difference.refused.is_empty() {
                // It was not so when it was surveyed.
                return Err(somebody_else(&difference.refused).into());
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
            // An attempt whose answer was lost may have done some of it.
            for change in &changes {
                let found = there.binary_search_by(|row| row.key.cmp(change.key()));
                let row = found.ok().map(|at| &there[at]).filter(|row| row.mod_revision > before);
                if let Some(row) = row.filter(|row| change.is_made(Some(row))) {
                    self.target.claim(row.mod_revision);
                }
            }
        }
        let keys: Vec<_> = rows.iter().take(1).map(|row| row.row.key.clone()).collect();
        Err(somebody_else(&keys).into())
    }

    /// Reads both sides again, and says whether they are the same.
    pub(crate) async fn verify(&self, revision: i64) -> Result<Copied, Halt> {
        let target = self.target.side.header(&self.target.fence.key).await?;
        let source = self.source.header().await?;
        let mut found = Found::default();
        self.pass("verifies", revision, async |stretch: Stretch<'_>| {
            self.look(&stretch, &mut found);
            Ok(())
        })
        .await?;
        // By another way: rows that were never seen are not missed by a comparison.
        let count = self.source.count(revision).await?;
        let seen = found.keys + found.left_out.len() as u64;
        if count != seen {
            let why = format!(
                "the source has {count} keys at revision {revision}, and gave {seen}: it does not read as it counts"
            );
            return Err(Failure::Failed(why).into());
        }
        let digests = [found.source, found.target].map(|digest| hex(&digest.finalize()));
        let [digest, other] = digests;
        if !found.wrong.is_none() || digest != other {
            let why = format!(
                "after the copy the target is not as the source was at revision {revision}: {} keys differ{}. Somebody \
                 else writes to the target, or it has lost something",
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

/// A row, so that no other has the same bytes.
fn add(digest: &mut Sha256, row: &KeyValue) {
    for part in [&row.key, &row.value] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn somebody_else(keys: &[Bytes]) -> Failure {
    Failure::Failed(format!(
        "somebody else writes to the target{}. It must have no other writer of these keys while they are copied",
        names(keys, ": ")
    ))
}

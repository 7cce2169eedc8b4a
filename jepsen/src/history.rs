//! The history of the crash tests: every write and its outcome. At the end of a test, the stored rows are checked
//! against the history.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::wire::{self, Row, Rows};

/// The outcome of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The write was acknowledged at this revision.
    Done(u64),
    /// The write was applied at an unknown revision, so it must be stored.
    Applied,
    /// The write was rejected, so it must never be stored.
    Refused,
    /// The outcome is unknown, so the write must be applied at most once. There was no reply, or the reply states that
    /// the outcome is unknown.
    Unknown,
}

/// Every attempted write.
#[derive(Default)]
pub struct History {
    fates: BTreeMap<String, Fate>,
    next: u64,
    /// Keys that a read has returned. These keys must be in every later read, because nothing is deleted.
    seen: BTreeSet<String>,
    /// Number of acknowledged writes.
    done: u64,
}

/// The counts of a history without violations.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Verdict {
    /// Number of acknowledged writes. The store contains all of them.
    pub done: u64,
    /// Number of writes of unknown outcome that the store contains.
    pub unknown_there: u64,
    /// Number of writes of unknown outcome that the store does not contain.
    pub unknown_absent: u64,
    /// Number of rejected writes. The store contains none of them.
    pub refused: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { done, unknown_there, unknown_absent, refused } = self;
        write!(
            f,
            "{done} acknowledged, all stored once; {} unknown, {unknown_there} of them stored; \
             {refused} rejected",
            unknown_there + unknown_absent
        )
    }
}

impl History {
    /// Returns a key for a new write by `writer`. The outcome of the write is unknown until [`end`](Self::end) is
    /// called.
    pub fn begin(&mut self, writer: usize) -> String {
        self.next += 1;
        let key = format!("w/{writer}/{:06}", self.next);
        self.fates.insert(key.clone(), Fate::Unknown);
        key
    }

    /// Records the outcome of a write.
    pub fn end(&mut self, key: &str, fate: Fate) {
        if matches!(fate, Fate::Done(_)) {
            self.done += 1;
        }
        let before = self.fates.insert(key.to_owned(), fate);
        assert_eq!(before, Some(Fate::Unknown), "{key} was begun and has ended once");
    }

    /// Returns the number of acknowledged writes.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Checks the rows of a linearizable read. Only writes that had ended before the read began must be among the
    /// rows, so the caller must take `ended` before the read.
    ///
    /// # Errors
    ///
    /// Returns all contradictions.
    pub fn judge(&mut self, ended: &Ended, rows: &Rows) -> Result<Verdict, Vec<String>> {
        let mut problems = Vec::new();
        let mut verdict = Verdict::default();
        let mut there: BTreeMap<&str, &Row> = BTreeMap::new();
        let (mut revisions, mut tallies) = (BTreeSet::new(), BTreeMap::<String, u64>::new());
        for row in rows.rows.iter().filter(|row| row.key.starts_with("w/")) {
            let key = row.key.as_str();
            there.insert(key, row);
            *tallies.entry(wire::tally_of(key)).or_default() += 1;
            if row.version != 1 {
                problems.push(format!("{key} was applied {} times", row.version));
            }
            if row.value != wire::hash(wire::value_of(key).as_bytes()) {
                problems.push(format!("{key} has an unwritten value"));
            }
            if !revisions.insert(row.revision) {
                problems.push(format!("{key} shares revision {} with another", row.revision));
            }
            match self.fates.get(key) {
                None => problems.push(format!("{key} was never written")),
                Some(Fate::Refused) => problems.push(format!("{key} was rejected but is stored")),
                Some(Fate::Done(revision)) if *revision != row.revision => {
                    let is = row.revision;
                    problems.push(format!("{key} was acknowledged at {revision} but is at {is}"));
                }
                Some(Fate::Done(_) | Fate::Applied | Fate::Unknown) => {}
            }
        }
        for (key, fate) in &ended.0 {
            match (fate, there.contains_key(key.as_str())) {
                (Fate::Done(_) | Fate::Applied, true) => verdict.done += 1,
                (Fate::Done(revision), false) => {
                    problems.push(format!("{key} was acknowledged at {revision} but is lost"));
                }
                (Fate::Applied, false) => problems.push(format!("{key} was applied but is lost")),
                (Fate::Unknown, true) => verdict.unknown_there += 1,
                (Fate::Unknown, false) => verdict.unknown_absent += 1,
                (Fate::Refused, _) => verdict.refused += 1,
            }
        }
        for key in self.seen.iter().filter(|key| !there.contains_key(key.as_str())) {
            problems.push(format!("{key} was read before but is gone"));
        }
        for row in rows.rows.iter().filter(|row| row.key.starts_with("tally/")) {
            let count = tallies.remove(&row.key).unwrap_or(0);
            if row.version != count {
                let (key, version) = (&row.key, row.version);
                problems.push(format!("{key} counts {version} writes, but {count} are stored"));
            }
        }
        for (tally, count) in tallies {
            problems.push(format!("{tally} is missing, but {count} writes are stored"));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        self.seen.extend(there.into_keys().map(str::to_owned));
        Ok(verdict)
    }

    /// Returns the outcomes known so far.
    pub fn ended(&self) -> Ended {
        Ended(self.fates.clone())
    }
}

/// The outcomes known when a read began.
pub struct Ended(BTreeMap<String, Fate>);

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, revision: u64, version: u64) -> Row {
        let value = wire::hash(wire::value_of(key).as_bytes());
        Row { key: key.to_owned(), revision, version, value }
    }

    /// Checks a history with one write acknowledged at 2, one unknown and one rejected. `with` changes the correct
    /// rows.
    fn judged(with: impl FnOnce(&mut Vec<Row>)) -> Result<Verdict, Vec<String>> {
        let mut history = History::default();
        let [done, _unknown, refused] = [(); 3].map(|()| history.begin(1));
        history.end(&done, Fate::Done(2));
        history.end(&refused, Fate::Refused);
        let mut rows = vec![row("tally/1", 2, 1), row(&done, 2, 1)];
        with(&mut rows);
        history.judge(&history.ended(), &Rows { revision: 9, rows })
    }

    #[test]
    fn consistent_history_is_counted() {
        let verdict = judged(|_| {}).unwrap();
        assert_eq!(verdict, Verdict { done: 1, unknown_there: 0, unknown_absent: 1, refused: 1 });
        let verdict = judged(|rows| {
            rows[0].version = 2;
            rows.push(row("w/1/000002", 3, 1));
        });
        assert_eq!(verdict.unwrap().unknown_there, 1);
    }

    #[test]
    fn inconsistent_history_is_reported() {
        type Change = fn(&mut Vec<Row>);
        let cases: [(Change, &str); 9] = [
            (|rows| rows.truncate(1), "is lost"),
            (|rows| rows[1].version = 2, "applied 2 times"),
            (|rows| rows[1].value = 0, "an unwritten value"),
            (|rows| rows[1].revision = 3, "acknowledged at 2 but is at 3"),
            (|rows| rows.push(row("w/1/000002", 2, 1)), "shares revision 2"),
            (|rows| rows.push(row("w/1/000003", 3, 1)), "was rejected but is stored"),
            (|rows| rows.push(row("w/1/000004", 3, 1)), "was never written"),
            (|rows| rows[0].version = 2, "counts 2 writes, but 1 are stored"),
            (|rows| drop(rows.remove(0)), "tally/1 is missing"),
        ];
        for (change, words) in cases {
            let problems = judged(change).unwrap_err().join("; ");
            assert!(problems.contains(words), "{problems:?} lacks {words:?}");
        }
    }

    #[test]
    fn applied_write_without_a_result_must_be_present() {
        let mut history = History::default();
        let key = history.begin(1);
        history.end(&key, Fate::Applied);
        let there = Rows { revision: 2, rows: vec![row("tally/1", 2, 1), row(&key, 2, 1)] };
        assert_eq!(history.judge(&history.ended(), &there).unwrap().done, 1);
        let mut history = History::default();
        let key = history.begin(1);
        history.end(&key, Fate::Applied);
        let gone = Rows { revision: 1, rows: vec![] };
        let problems = history.judge(&history.ended(), &gone).unwrap_err();
        assert_eq!(problems, [format!("{key} was applied but is lost")]);
    }

    #[test]
    fn row_read_once_must_stay_present() {
        let mut history = History::default();
        let key = history.begin(1);
        let there = Rows { revision: 2, rows: vec![row("tally/1", 2, 1), row(&key, 2, 1)] };
        assert!(history.judge(&history.ended(), &there).is_ok());
        let gone = Rows { revision: 1, rows: vec![] };
        let problems = history.judge(&history.ended(), &gone).unwrap_err();
        assert_eq!(problems, ["w/1/000001 was read before but is gone"]);
    }
}

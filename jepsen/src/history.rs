//! What was written and what was answered; and whether what is there now fits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::wire::{self, Row, Rows};

/// What is known of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Acknowledged, at this revision.
    Done(u64),
    /// Applied, nobody knows at which revision: it must be there.
    Applied,
    /// Refused: it must never be there.
    Refused,
    /// No answer, or an answer that says so: once, or not at all.
    Unknown,
}

/// Every write that was tried.
#[derive(Default)]
pub struct History {
    fates: BTreeMap<String, Fate>,
    next: u64,
    /// What has been read once must be there for ever: nothing is deleted.
    seen: BTreeSet<String>,
    /// How many were acknowledged.
    done: u64,
}

/// A history that fits, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Verdict {
    /// Writes that were acknowledged; all are there.
    pub done: u64,
    /// Writes of unknown fate that are there.
    pub unknown_there: u64,
    /// Writes of unknown fate that are not.
    pub unknown_absent: u64,
    /// Writes that were refused; none is there.
    pub refused: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { done, unknown_there, unknown_absent, refused } = self;
        write!(
            f,
            "{done} acknowledged, all there once; {} unknown, {unknown_there} of them there; \
             {refused} refused",
            unknown_there + unknown_absent
        )
    }
}

impl History {
    /// A key for a new write by `writer`. Its fate is unknown until it is told.
    pub fn begin(&mut self, writer: usize) -> String {
        self.next += 1;
        let key = format!("w/{writer}/{:06}", self.next);
        self.fates.insert(key.clone(), Fate::Unknown);
        key
    }

    /// What became of a write.
    pub fn end(&mut self, key: &str, fate: Fate) {
        if matches!(fate, Fate::Done(_)) {
            self.done += 1;
        }
        let before = self.fates.insert(key.to_owned(), fate);
        assert_eq!(before, Some(Fate::Unknown), "{key} was begun and has ended once");
    }

    /// How many writes were acknowledged.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Judges what a linearizable read has found that began after every write in this history that has
    /// an answer. It counts only writes that had ended when it began, so take `ended` before reading.
    ///
    /// # Errors
    /// Everything that does not fit.
    pub fn judge(&mut self, ended: &Ended, rows: &Rows) -> Result<Verdict, Vec<String>> {
        let mut complaints = Vec::new();
        let mut verdict = Verdict::default();
        let mut there: BTreeMap<&str, &Row> = BTreeMap::new();
        let (mut revisions, mut tallies) = (BTreeSet::new(), BTreeMap::<String, u64>::new());
        for row in rows.rows.iter().filter(|row| row.key.starts_with("w/")) {
            let key = row.key.as_str();
            there.insert(key, row);
            *tallies.entry(wire::tally_of(key)).or_default() += 1;
            if row.version != 1 {
                complaints.push(format!("{key} was applied {} times", row.version));
            }
            if row.value != wire::hash(wire::value_of(key).as_bytes()) {
                complaints.push(format!("{key} has a value that nobody wrote"));
            }
            if !revisions.insert(row.revision) {
                complaints.push(format!("{key} shares revision {} with another", row.revision));
            }
            match self.fates.get(key) {
                None => complaints.push(format!("{key} was written by nobody")),
                Some(Fate::Refused) => complaints.push(format!("{key} was refused, and is there")),
                Some(Fate::Done(revision)) if *revision != row.revision => {
                    let is = row.revision;
                    complaints
                        .push(format!("{key} was acknowledged at {revision}, and is at {is}"));
                }
                Some(Fate::Done(_) | Fate::Applied | Fate::Unknown) => {}
            }
        }
        for (key, fate) in &ended.0 {
            match (fate, there.contains_key(key.as_str())) {
                (Fate::Done(_) | Fate::Applied, true) => verdict.done += 1,
                (Fate::Done(revision), false) => {
                    complaints.push(format!("{key} was acknowledged at {revision}, and is lost"));
                }
                (Fate::Applied, false) => {
                    complaints.push(format!("{key} was applied, and is lost"))
                }
                (Fate::Unknown, true) => verdict.unknown_there += 1,
                (Fate::Unknown, false) => verdict.unknown_absent += 1,
                (Fate::Refused, _) => verdict.refused += 1,
            }
        }
        for key in self.seen.iter().filter(|key| !there.contains_key(key.as_str())) {
            complaints.push(format!("{key} was read before, and is gone"));
        }
        for row in rows.rows.iter().filter(|row| row.key.starts_with("tally/")) {
            let count = tallies.remove(&row.key).unwrap_or(0);
            if row.version != count {
                let (key, version) = (&row.key, row.version);
                complaints.push(format!("{key} counts {version} writes, {count} are there"));
            }
        }
        for (tally, count) in tallies {
            complaints.push(format!("{tally} is missing, {count} writes are there"));
        }
        if !complaints.is_empty() {
            return Err(complaints);
        }
        self.seen.extend(there.into_keys().map(str::to_owned));
        Ok(verdict)
    }

    /// What is known by now.
    pub fn ended(&self) -> Ended {
        Ended(self.fates.clone())
    }
}

/// What was known when a read began.
pub struct Ended(BTreeMap<String, Fate>);

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, revision: u64, version: u64) -> Row {
        let value = wire::hash(wire::value_of(key).as_bytes());
        Row { key: key.to_owned(), revision, version, value }
    }

    /// One acknowledged at 2, one unknown, one refused; all that should be there, changed by `with`.
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
            (|rows| rows[1].value = 0, "a value that nobody wrote"),
            (|rows| rows[1].revision = 3, "acknowledged at 2, and is at 3"),
            (|rows| rows.push(row("w/1/000002", 2, 1)), "shares revision 2"),
            (|rows| rows.push(row("w/1/000003", 3, 1)), "was refused, and is there"),
            (|rows| rows.push(row("w/1/000004", 3, 1)), "was written by nobody"),
            (|rows| rows[0].version = 2, "counts 2 writes, 1 are there"),
            (|rows| drop(rows.remove(0)), "tally/1 is missing"),
        ];
        for (change, words) in cases {
            let complaints = judged(change).unwrap_err().join("; ");
            assert!(complaints.contains(words), "{complaints:?} lacks {words:?}");
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
        let complaints = history.judge(&history.ended(), &gone).unwrap_err();
        assert_eq!(complaints, [format!("{key} was applied, and is lost")]);
    }

    #[test]
    fn row_read_once_must_stay_present() {
        let mut history = History::default();
        let key = history.begin(1);
        let there = Rows { revision: 2, rows: vec![row("tally/1", 2, 1), row(&key, 2, 1)] };
        assert!(history.judge(&history.ended(), &there).is_ok());
        let gone = Rows { revision: 1, rows: vec![] };
        let complaints = history.judge(&history.ended(), &gone).unwrap_err();
        assert_eq!(complaints, ["w/1/000001 was read before, and is gone"]);
    }
}

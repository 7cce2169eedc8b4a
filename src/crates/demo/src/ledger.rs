//! The ledger: a resource outside the store that is protected by the lock. The ledger knows nothing about locks except
//! fencing tokens: it rejects a write with a token lower than the highest token seen. Its file also records rejected
//! writes, so the file alone documents the run.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use bowline::Token;
use serde::{Deserialize, Serialize};

/// A line of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The increment.
    pub(crate) op: String,
    /// Its fencing token.
    pub(crate) token: Token,
    pub(crate) accepted: bool,
    /// Highest token seen, including this one.
    pub(crate) highest: Token,
}

/// The open ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    file: File,
    highest: Option<Token>,
}

impl Ledger {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        Ok(Self { path: path.to_owned(), file, highest: None })
    }

    /// Returns the highest token seen.
    pub(crate) fn highest(&self) -> Option<Token> {
        self.highest
    }

    /// Checks the token, records the write, and returns the record, in this order.
    pub(crate) fn append(&mut self, op: &str, token: Token) -> io::Result<Entry> {
        let highest = self.highest.map_or(token, |highest| highest.max(token));
        let entry = Entry { op: op.to_owned(), token, accepted: token >= highest, highest };
        let mut line = serde_json::to_string(&entry)?;
        line.push('\n');
        self.file.write_all(line.as_bytes())?;
        self.highest = Some(highest);
        Ok(entry)
    }

    /// Reads all entries back from the file, in order.
    pub(crate) fn read_back(&self) -> io::Result<Vec<Entry>> {
        let lines = BufReader::new(File::open(&self.path)?).lines();
        lines.map(|text| serde_json::from_str(&text?).map_err(io::Error::from)).collect()
    }
}

#[cfg(test)]
mod tests {
    use bowline::Revision;

    use super::*;
    use crate::workplace::Workplace;

    #[test]
    fn ledger_rejects_and_records_a_lower_token() {
        let place = Workplace::make(None, false).unwrap();
        let mut ledger = Ledger::create(&place.ledger()).unwrap();
        let writes = [
            ((7, 0), true),
            ((9, 1), true),
            ((9, 0), false),
            ((7, 5), false),
            ((9, 1), true),
            ((10, 0), true),
        ];
        for ((revision, handoff), accepted) in writes {
            let token = Token::new(Revision(revision), handoff);
            assert_eq!(ledger.append("op", token).unwrap().accepted, accepted, "{token}");
        }
        let entries = ledger.read_back().unwrap();
        let accepted: Vec<_> = entries.iter().map(|entry| entry.accepted).collect();
        assert_eq!(accepted, writes.map(|(_, accepted)| accepted));
        assert_eq!(entries[2].highest, Token::new(Revision(9), 1));
        assert_eq!(ledger.highest(), Some(Token::new(Revision(10), 0)));
    }
}

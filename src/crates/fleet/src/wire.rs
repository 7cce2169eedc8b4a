//! The protocol between the process of a node and the harness: one line per message, with words separated by spaces.
//! The first word is the number of the order.
//!
//! ```text
//!   to the node                 from the node
//!   7 write w/2/19              7 done 311   |  7 refused why...  |  7 unknown why...
//!                               7 applied why...         (applied, but the result is lost)
//!   7 put scrap/3               7 done 312
//!   7 delete scrap/3            7 done 313
//!   7 grant                     7 done 8812              (the id of the lease)
//!   7 revoke 8812               7 done 1                 (the number of deleted keys)
//!   7 compact 300               7 done 313
//!   8 rows                      8 rows 311 w/2/19@311#1=9f0c..  ...
//!   9 status                    9 status leader 4 2      (role, term, id of the leader or 0)
//!   10 arm LogAfterSync 3       10 armed
//!   11 look                     11 status other 4 2      (like `status`, read from local state)
//!   12 door slow-sync 20        12 armed                 (faults inside the process)
//!   13 call {"get":...}         13 came {"row":...}      (see the module `calls`)
//!                               ready                    (the node is ready)
//!                               dies LogAfterSync        (the node is about to kill itself at this point)
//!                               stopped why...           (the node has stopped by itself)
//! ```

use bowline::env::Point;

use crate::calls::{Call, Reply};

/// An order of the harness to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Writes a key with its value, and increments the tally of the writer in the same transaction.
    Write(String),
    /// Puts a key that no checker looks at.
    Put(String),
    /// Deletes a key that no checker looks at.
    Delete(String),
    /// Grants a lease with a long TTL.
    Grant,
    /// Revokes a lease.
    Revoke(u64),
    /// Discards history before a revision.
    Compact(u64),
    /// Reads all rows linearizably.
    Rows,
    /// Queries the current leader, with a linearizable read.
    Status,
    /// Arms a crash point: the process kills itself when it reaches the point for the n-th time after this order.
    Arm(Point, u64),
    /// Queries the leader that the node knows from its local state.
    Look,
    /// Starts or ends faults inside the process, if its program supports them.
    Fault(String),
    /// Runs a call of a workload client: see [`calls`](crate::calls).
    Call(Box<Call>),
}

impl Order {
    /// Formats the order as a line.
    pub fn words(&self) -> String {
        match self {
            Order::Write(key) => format!("write {key}"),
            Order::Put(key) => format!("put {key}"),
            Order::Delete(key) => format!("delete {key}"),
            Order::Grant => "grant".to_owned(),
            Order::Revoke(lease) => format!("revoke {lease}"),
            Order::Compact(revision) => format!("compact {revision}"),
            Order::Rows => "rows".to_owned(),
            Order::Status => "status".to_owned(),
            Order::Arm(point, hits) => format!("arm {point:?} {hits}"),
            Order::Look => "look".to_owned(),
            Order::Fault(words) => format!("door {}", one_line(words)),
            Order::Call(call) => format!("call {}", call.words()),
        }
    }

    /// Parses an order.
    pub fn parse(words: &str) -> Option<Self> {
        if let Some(call) = words.strip_prefix("call ") {
            return Call::parse(call).map(|call| Order::Call(Box::new(call)));
        }
        if let Some(door) = words.strip_prefix("door ") {
            return Some(Order::Fault(door.to_owned()));
        }
        let words: Vec<&str> = words.split(' ').collect();
        Some(match words[..] {
            ["look"] => Order::Look,
            ["write", key] => Order::Write(key.to_owned()),
            ["put", key] => Order::Put(key.to_owned()),
            ["delete", key] => Order::Delete(key.to_owned()),
            ["grant"] => Order::Grant,
            ["revoke", lease] => Order::Revoke(lease.parse().ok()?),
            ["compact", revision] => Order::Compact(revision.parse().ok()?),
            ["rows"] => Order::Rows,
            ["status"] => Order::Status,
            ["arm", point, hits] => Order::Arm(point_named(point)?, hits.parse().ok()?),
            _ => return None,
        })
    }
}

/// The answer of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The order was applied: the revision of the write, or another result of the order.
    Done(u64),
    /// The order was not applied and never will be.
    Refused(String),
    /// The outcome is unknown.
    Unknown(String),
    /// The order was applied, but its result is lost.
    Applied(String),
    /// All rows.
    Rows(Rows),
    /// The state of the node in the cluster.
    Status {
        /// Whether the node is the leader.
        leads: bool,
        /// The node's term.
        term: u64,
        /// The id of the leader that the node knows.
        leader: Option<u64>,
    },
    /// The point is armed, or the faults are set.
    Armed,
    /// The reply to a [`Call`].
    Came(Box<Reply>),
}

impl Answer {
    /// Formats the answer as a line.
    pub fn words(&self) -> String {
        match self {
            Answer::Done(revision) => format!("done {revision}"),
            Answer::Refused(why) => format!("refused {}", one_line(why)),
            Answer::Unknown(why) => format!("unknown {}", one_line(why)),
            Answer::Applied(why) => format!("applied {}", one_line(why)),
            Answer::Rows(rows) => rows.words(),
            Answer::Status { leads, term, leader } => {
                let role = if *leads { "leader" } else { "other" };
                format!("status {role} {term} {}", leader.unwrap_or(0))
            }
            Answer::Armed => "armed".to_owned(),
            Answer::Came(reply) => format!("came {}", reply.words()),
        }
    }

    /// Parses an answer.
    pub fn parse(words: &str) -> Option<Self> {
        let (kind, rest) = words.split_once(' ').unwrap_or((words, ""));
        Some(match kind {
            "done" => Answer::Done(rest.parse().ok()?),
            "refused" => Answer::Refused(rest.to_owned()),
            "unknown" => Answer::Unknown(rest.to_owned()),
            "applied" => Answer::Applied(rest.to_owned()),
            "rows" => Answer::Rows(Rows::parse(rest)?),
            "status" => {
                let [role, term, leader] = rest.split(' ').collect::<Vec<_>>()[..] else {
                    return None;
                };
                let leader = Some(leader.parse().ok()?).filter(|leader| *leader != 0);
                Answer::Status { leads: role == "leader", term: term.parse().ok()?, leader }
            }
            "armed" => Answer::Armed,
            "came" => Answer::Came(Box::new(Reply::parse(rest)?)),
            _ => return None,
        })
    }
}

/// A row of the store, reduced to what the checks need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The key.
    pub key: String,
    /// The revision of the last change of the row.
    pub revision: u64,
    /// Number of writes to the row.
    pub version: u64,
    /// The [`hash`] of the row's value.
    pub value: u64,
}

/// All rows of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rows {
    /// The revision of the store.
    pub revision: u64,
    /// The rows, sorted by key.
    pub rows: Vec<Row>,
}

impl Rows {
    fn words(&self) -> String {
        let mut line = format!("rows {}", self.revision);
        for Row { key, revision, version, value } in &self.rows {
            line.push_str(&format!(" {key}@{revision}#{version}={value:x}"));
        }
        line
    }

    fn parse(words: &str) -> Option<Self> {
        let mut words = words.split(' ');
        let revision = words.next()?.parse().ok()?;
        let row = |word: &str| {
            let (key, rest) = word.split_once('@')?;
            let (revision, rest) = rest.split_once('#')?;
            let (version, value) = rest.split_once('=')?;
            Some(Row {
                key: key.to_owned(),
                revision: revision.parse().ok()?,
                version: version.parse().ok()?,
                value: u64::from_str_radix(value, 16).ok()?,
            })
        };
        Some(Self { revision, rows: words.map(row).collect::<Option<_>>()? })
    }
}

/// Size of a value in bytes. About sixty of them fill a segment of the log.
const VALUE_BYTES: usize = 1000;

/// Returns the value that is written to a key. Each key has a different value.
pub fn value_of(key: &str) -> String {
    key.chars().chain(std::iter::once('.')).cycle().take(VALUE_BYTES).collect()
}

/// Returns the key of the tally of a writer.
pub fn tally_of(key: &str) -> String {
    let writer = key.split('/').nth(1).unwrap_or("");
    format!("tally/{writer}")
}

/// Returns the 64-bit FNV-1a hash.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns the crash point with this name.
pub fn point_named(name: &str) -> Option<Point> {
    Point::ALL.into_iter().find(|point| format!("{point:?}") == name)
}

fn one_line(words: &str) -> String {
    words.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_round_trip_as_lines() {
        let orders = [
            Order::Write("w/1/2".to_owned()),
            Order::Put("scrap/1".to_owned()),
            Order::Delete("scrap/1".to_owned()),
            Order::Grant,
            Order::Revoke(7),
            Order::Compact(8),
            Order::Rows,
            Order::Status,
            Order::Arm(Point::LogAfterSync, 3),
        ];
        for order in orders {
            assert_eq!(Order::parse(&order.words()), Some(order));
        }
        let row = Row { key: "w/1/2".to_owned(), revision: 5, version: 1, value: u64::MAX };
        let answers = [
            Answer::Done(7),
            Answer::Refused("too busy".to_owned()),
            Answer::Unknown("too late".to_owned()),
            Answer::Applied("the answer is lost".to_owned()),
            Answer::Rows(Rows { revision: 9, rows: vec![row.clone(), row] }),
            Answer::Rows(Rows { revision: 1, rows: vec![] }),
            Answer::Status { leads: true, term: 4, leader: Some(2) },
            Answer::Status { leads: false, term: 4, leader: None },
            Answer::Armed,
        ];
        for answer in answers {
            assert_eq!(Answer::parse(&answer.words()), Some(answer));
        }
        assert_eq!(Order::parse("arm Nowhere 3"), None);
        assert_eq!(Answer::parse("rows 5 k@1"), None);
    }
}

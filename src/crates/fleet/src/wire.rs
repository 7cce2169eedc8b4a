//! The protocol between the process of a node and the harness: one JSON value per line. An order has a number, and its
//! answer has the same number.
//!
//! ```text
//!   to the node                      from the node
//!   [7,{"write":"w/2/19"}]           {"answer":[7,{"done":311}]}
//!   [8,"rows"]                       {"answer":[8,{"rows":{"revision":311,"rows":[...]}}]}
//!   [9,{"arm":["LogAfterSync",3]}]   {"answer":[9,"armed"]}
//!   [10,{"call":{"get":...}}]        {"answer":[10,{"came":{"rows":...}}]}
//!                                    "ready"
//!                                    {"dies":"LogAfterSync"}
//!                                    {"stopped":"disk error: ..."}
//! ```

use bowline::env::Point;
use serde::{Deserialize, Serialize};

use crate::calls::{Call, Reply};

/// A line from the process of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The answer to the order with this number.
    Answer(u64, Answer),
    /// The node is ready.
    Ready,
    /// The process is about to kill itself at this crash point.
    Dies(#[serde(with = "point_name")] Point),
    /// The node has stopped by itself, or did not start, for this reason.
    Stopped(String),
}

/// An order of the harness to a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    Arm(#[serde(with = "point_name")] Point, u64),
    /// Queries the leader that the node knows from its local state.
    Look,
    /// Starts or ends faults inside the process, if its program supports them.
    Fault(String),
    /// Runs a call of a workload client: see [`calls`](crate::calls).
    Call(Box<Call>),
}

/// The answer of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// A row of the store, reduced to what the checks need.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rows {
    /// The revision of the store.
    pub revision: u64,
    /// The rows, sorted by key.
    pub rows: Vec<Row>,
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

/// Represents a crash point by its name.
mod point_name {
    use bowline::env::Point;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(point: &Point, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{point:?}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Point, D::Error> {
        let name = String::deserialize(from)?;
        super::point_named(&name).ok_or_else(|| D::Error::custom("unknown crash point"))
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{from_str, to_string};

    use super::*;

    fn round_trips<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: T) {
        let line = to_string(&value).unwrap();
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(from_str::<T>(&line).unwrap(), value);
    }

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
            round_trips((7, order));
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
            round_trips(Message::Answer(7, answer));
        }
        round_trips(Message::Ready);
        round_trips(Message::Dies(Point::LogAfterSync));
        round_trips(Message::Stopped("two\nlines".to_owned()));
        assert!(from_str::<Order>(r#"{"arm":["Nowhere",3]}"#).is_err());
        assert!(from_str::<Answer>(r#"{"rows":{"revision":5}}"#).is_err());
    }
}

//! The calls of workload clients to a node and their replies, as JSON in a line of [`wire`](crate::wire).
//!
//! A client names what it holds (a lock, leadership, an item, a watch) by a *slot*, a name that it chooses. The slot
//! lives in the process of the node and ends with it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Reads a row. The reply is [`Reply::Rows`].
    Get {
        /// Key of the row.
        key: String,
        /// Whether to read from the replica of this node, however old it is.
        local: bool,
    },
    /// Reads all rows with a prefix at one revision. The reply is [`Reply::Rows`].
    List {
        /// Prefix of the keys.
        prefix: String,
    },
    /// Writes a row. The reply is [`Reply::Done`].
    Put {
        /// Key of the row.
        key: String,
        /// The new value.
        value: String,
        /// The lease to attach.
        lease: Option<u64>,
    },
    /// Writes a row if it has the expected value, or does not exist if `expect` is `None`. The reply is
    /// [`Reply::Swapped`].
    Swap {
        /// Key of the row.
        key: String,
        /// The expected value.
        expect: Option<String>,
        /// The new value.
        value: String,
    },
    /// Writes rows if other rows were last changed at the given revisions (0 for a missing row). The reply is
    /// [`Reply::Swapped`].
    Commit {
        /// The rows that must be unchanged, with their revisions.
        when: Vec<(String, u64)>,
        /// The rows to write.
        put: Vec<(String, String)>,
    },
    /// Adds to a counter. The reply is [`Reply::Number`].
    Add {
        /// Key of the counter.
        key: String,
        /// The amount.
        by: i64,
    },
    /// Grants a lease without renewals. The reply is [`Reply::Lease`].
    Grant {
        /// Time to live, in milliseconds.
        ttl_ms: u64,
    },
    /// Acquires a lock or gives up. The reply is [`Reply::Granted`].
    Acquire {
        /// Slot for the hold.
        slot: String,
        /// Name of the lock.
        lock: String,
        /// Kind of the lock.
        kind: Kind,
        /// Maximum time to wait.
        wait_ms: u64,
    },
    /// Campaigns or gives up. The reply is [`Reply::Granted`].
    Campaign {
        /// Slot for the leadership.
        slot: String,
        /// Name of the election.
        name: String,
        /// Value that the leader publishes.
        value: String,
        /// Maximum time to wait.
        wait_ms: u64,
    },
    /// Asks whether the holder still believes in its hold. The reply is [`Reply::Held`].
    Look {
        /// Slot of the hold.
        slot: String,
    },
    /// Releases a hold. The reply is [`Reply::Held`], which states whether it was held until now.
    Release {
        /// Slot of the hold.
        slot: String,
    },
    /// Gives up a current or future hold, because the client no longer waits for it. The reply is [`Reply::Held`].
    Forget {
        /// Slot of the hold.
        slot: String,
    },
    /// Acquires a lock, reads a set, pauses, writes the set with one more element, and releases. The reply is
    /// [`Reply::Done`].
    AddUnderLock {
        /// Name of the lock.
        lock: String,
        /// Row of the set: its elements, separated by commas.
        key: String,
        /// The element to add.
        element: u64,
        /// Length of the pause, in milliseconds.
        think_ms: u64,
        /// Whether the write is a transaction of the guard.
        guarded: bool,
        /// Maximum time to wait.
        wait_ms: u64,
    },
    /// Asks for the leader of an election. The reply is [`Reply::Leader`].
    Leader {
        /// Name of the election.
        name: String,
    },
    /// Puts an item into a queue. The reply is [`Reply::Done`].
    Offer {
        /// Name of the queue.
        queue: String,
        /// The item.
        value: String,
    },
    /// Takes an item from a queue. The reply is [`Reply::Item`].
    Take {
        /// Slot for the delivery.
        slot: String,
        /// Name of the queue.
        queue: String,
        /// Maximum time to wait.
        wait_ms: u64,
    },
    /// Acknowledges a delivery and writes a row in the same log entry. The reply is [`Reply::Held`], which states
    /// whether the delivery still belonged to this taker.
    Acknowledge {
        /// Slot of the delivery.
        slot: String,
        /// Key of the row.
        key: String,
        /// The new value.
        value: String,
    },
    /// Watches a prefix. The reply is [`Reply::Done`].
    Watch {
        /// Slot for the watch.
        slot: String,
        /// Prefix of the keys.
        prefix: String,
        /// The first revision.
        from: u64,
    },
    /// Asks for the events of a watch since the last such call. The reply is [`Reply::Events`].
    Events {
        /// Slot of the watch.
        slot: String,
        /// Maximum time to wait for the first event.
        wait_ms: u64,
    },
    /// Transfers leadership to another member. The reply is [`Reply::Done`].
    Transfer,
    /// Writes a backup of the state of this node to a file. The reply is [`Reply::Done`].
    Backup {
        /// Path of the file.
        file: String,
    },
    /// Promotes a learner. The reply is [`Reply::Done`].
    Promote {
        /// Name of the learner.
        member: String,
    },
    /// Removes a member. The reply is [`Reply::Done`].
    Remove {
        /// Name of the member.
        member: String,
    },
    /// Asks for the members. The reply is [`Reply::Members`].
    Members,
}

/// A kind of lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A lock with one holder.
    Mutex,
    /// A re-entrant lock.
    Again {
        /// The owner, which is the same during the life of the process.
        owner: String,
    },
    /// A semaphore.
    Permits {
        /// Number of permits to acquire.
        want: u32,
        /// Total number of permits.
        limit: u32,
    },
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The call was applied at this revision.
    Done {
        /// Revision of the store after the call, or 0 if there is none.
        revision: u64,
    },
    /// Rows, sorted by key.
    Rows {
        /// Revision of the store.
        revision: u64,
        /// The rows.
        rows: Vec<Row>,
    },
    /// The result of a conditional write.
    Swapped {
        /// Whether the condition held and the write was applied.
        swapped: bool,
        /// Revision of the store after the call.
        revision: u64,
    },
    /// A number.
    Number(i64),
    /// The id of a lease.
    Lease(u64),
    /// The hold was granted.
    Granted {
        /// The fencing token: revision and hand-off number.
        token: (u64, u64),
    },
    /// The state of a hold.
    Held {
        /// Whether it is held, or was until now.
        held: bool,
        /// A time at which the holder believed in it, by the clock of the machine ([`moment`](crate::moment)). The
        /// time is taken before the holder is asked.
        at: Option<u64>,
    },
    /// The value of the leader, if there is one.
    Leader(Option<String>),
    /// An item, if there was one, and the token of its claim: revision and hand-off number.
    Item(Option<(String, (u64, u64))>),
    /// Events, oldest first.
    Events {
        /// The events.
        events: Vec<Change>,
        /// Revision up to which everything was reported.
        until: u64,
    },
    /// The names of the members.
    Members {
        /// Voters.
        voters: Vec<String>,
        /// Learners.
        learners: Vec<String>,
        /// Whether a member is being replaced, so that the votes of the old one still count. A server cannot report
        /// this, and no member of a server cluster is replaced this way.
        joint: bool,
    },
}

/// A row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// The revision of its last change.
    pub modified: u64,
}

/// An event of a watch.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The new value, or `None` if the row was deleted.
    pub value: Option<String>,
    /// The revision of the change.
    pub revision: u64,
}

impl Call {
    /// Returns the call as JSON.
    pub fn words(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a call.
    pub fn parse(words: &str) -> Option<Self> {
        serde_json::from_str(words).ok()
    }

    /// Returns the time that the call is told to wait, in addition to its normal duration.
    pub fn waits(&self) -> Duration {
        let millis = match self {
            Call::Acquire { wait_ms, .. }
            | Call::Campaign { wait_ms, .. }
            | Call::Take { wait_ms, .. }
            | Call::Events { wait_ms, .. } => *wait_ms,
            Call::AddUnderLock { wait_ms, think_ms, .. } => wait_ms + think_ms,
            _ => 0,
        };
        Duration::from_millis(millis)
    }
}

impl Reply {
    /// Returns the reply as JSON.
    pub fn words(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a reply.
    pub fn parse(words: &str) -> Option<Self> {
        serde_json::from_str(words).ok()
    }
}

//! The calls that workload clients make to a node, and the replies. [`wire`](crate::wire) sends them as JSON.
//!
//! When a client acquires a lock, leadership, a queue item or a watch, the client chooses a name for it, the *slot*.
//! Later calls refer to the slot. Slots are kept in the memory of the node's process and are lost when the process
//! ends.

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
        /// Whether to read from the local replica of this node, which may be outdated.
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
    /// Writes a row if its current value is `expect`. If `expect` is `None`, the row must not exist. The reply is
    /// [`Reply::Swapped`].
    Swap {
        /// Key of the row.
        key: String,
        /// The expected value.
        expect: Option<String>,
        /// The new value.
        value: String,
    },
    /// Writes rows if other rows are unchanged since the given revisions. Revision 0 means that the row does not
    /// exist. The reply is [`Reply::Swapped`].
    Commit {
        /// The rows that must be unchanged, with their revisions.
        when: Vec<(String, u64)>,
        /// The rows to write.
        put: Vec<(String, String)>,
    },
    /// Adds a number to a counter. The reply is [`Reply::Number`].
    Add {
        /// Key of the counter.
        key: String,
        /// The amount.
        by: i64,
    },
    /// Grants a lease that is never renewed. The reply is [`Reply::Lease`].
    Grant {
        /// Time to live, in milliseconds.
        ttl_ms: u64,
    },
    /// Acquires a lock, or gives up after `wait_ms`. The reply is [`Reply::Granted`].
    Acquire {
        /// Slot for the hold.
        slot: String,
        /// Name of the lock.
        lock: String,
        /// Kind of the lock.
        kind: Kind,
        /// Maximum time to wait, in milliseconds.
        wait_ms: u64,
    },
    /// Campaigns in an election, or gives up after `wait_ms`. The reply is [`Reply::Granted`].
    Campaign {
        /// Slot for the leadership.
        slot: String,
        /// Name of the election.
        name: String,
        /// Value that the leader publishes.
        value: String,
        /// Maximum time to wait, in milliseconds.
        wait_ms: u64,
    },
    /// Returns whether the holder still considers its hold valid. The reply is [`Reply::Held`].
    Look {
        /// Slot of the hold.
        slot: String,
    },
    /// Releases a hold. The reply is [`Reply::Held`], which states whether the hold was valid until the release.
    Release {
        /// Slot of the hold.
        slot: String,
    },
    /// Gives up a hold that the client has, or that it may still get but no longer waits for. The reply is
    /// [`Reply::Held`].
    Forget {
        /// Slot of the hold.
        slot: String,
    },
    /// Acquires a lock, reads a set, pauses, writes the set with one more element, and releases the lock. The reply is
    /// [`Reply::Done`].
    AddUnderLock {
        /// Name of the lock.
        lock: String,
        /// Key of the row that stores the set. The row's value lists the elements, separated by commas.
        key: String,
        /// The element to add.
        element: u64,
        /// Length of the pause, in milliseconds.
        think_ms: u64,
        /// Whether the write is a guarded transaction (`guard.txn`).
        guarded: bool,
        /// Maximum time to wait, in milliseconds.
        wait_ms: u64,
    },
    /// Writes rows if a hold is still valid and another row does not exist. The reply is [`Reply::Swapped`], or
    /// [`Reply::Held`] if the hold is no longer valid.
    CommitHeld {
        /// Slot of the hold.
        slot: String,
        /// Key of the row that must not exist.
        missing: String,
        /// The rows to write.
        put: Vec<(String, String)>,
        /// Deadline of the transaction, in milliseconds.
        limit_ms: u64,
    },
    /// Queries the leader of an election. The reply is [`Reply::Leader`].
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
        /// Slot for the taken item.
        slot: String,
        /// Name of the queue.
        queue: String,
        /// Maximum time to wait, in milliseconds.
        wait_ms: u64,
    },
    /// Acknowledges a taken item and writes a row in the same log entry. The reply is [`Reply::Held`], which states
    /// whether the item still belonged to this taker.
    Acknowledge {
        /// Slot of the taken item.
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
        /// The revision at which the watch starts.
        from: u64,
    },
    /// Returns the events of a watch since the previous call of this kind. The reply is [`Reply::Events`].
    Events {
        /// Slot of the watch.
        slot: String,
        /// Maximum time to wait for the first event, in milliseconds.
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
    /// Queries the members. The reply is [`Reply::Members`].
    Members,
}

/// A kind of lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A lock with one holder.
    Mutex,
    /// A lock that its owner can acquire several times.
    Again {
        /// The owner. All clients in one process have the same owner.
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
        /// Revision of the store after the call, or 0 if the call has no revision.
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
    /// The result of an addition, or another number.
    Number(i64),
    /// The id of a lease.
    Lease(u64),
    /// The hold was granted.
    Granted {
        /// The fencing token of the hold: its revision and its hand-off number.
        token: (u64, u64),
    },
    /// The state of a hold.
    Held {
        /// Whether the hold is valid. In the reply to a release, whether it was valid until the release.
        held: bool,
        /// A time at which the holder considered the hold valid, on the clock of the machine
        /// ([`moment`](crate::moment)). The time is read before the state of the hold.
        at: Option<u64>,
    },
    /// The value that the leader has published, or `None` if there is no leader.
    Leader(Option<String>),
    /// An item and the token of its claim (revision and hand-off number), or `None` if the queue was empty.
    Item(Option<(String, (u64, u64))>),
    /// Events, oldest first.
    Events {
        /// The events.
        events: Vec<Change>,
        /// Revision up to which all events were reported.
        until: u64,
    },
    /// The names of the members.
    Members {
        /// Voters.
        voters: Vec<String>,
        /// Learners.
        learners: Vec<String>,
        /// Whether a member is being replaced, so that the vote of the old member still counts. Always false for
        /// servers, which cannot report it; members of server clusters are never replaced in this way.
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
    /// Number of writes to the row since it was created.
    pub version: u64,
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
    /// Returns how long the call may wait, in addition to the normal duration of a call.
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

//! What a client of a workload asks a node for, and what comes of it: as JSON, in a line of [`wire`](crate::wire).
//!
//! What a client holds (a lock, leadership, an item, a watch) it names by a *slot*, a word of its own. It lives in
//! the node's process, and dies with it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Read a row. Answered by [`Reply::Rows`].
    Get {
        /// Its key.
        key: String,
        /// From this node's own replica, however old.
        local: bool,
    },
    /// Read all rows whose keys begin so, at one revision. Answered by [`Reply::Rows`].
    List {
        /// The beginning.
        prefix: String,
    },
    /// Write a row. Answered by [`Reply::Done`].
    Put {
        /// Its key.
        key: String,
        /// What it holds then.
        value: String,
        /// The lease that it lives with.
        lease: Option<u64>,
    },
    /// Write a row if it holds this; `None`: if it is not there. Answered by [`Reply::Swapped`].
    Swap {
        /// Its key.
        key: String,
        /// What it must hold.
        expect: Option<String>,
        /// What it holds then.
        value: String,
    },
    /// Write rows, if each of these rows was last changed at this revision (0: is not there). Answered by
    /// [`Reply::Swapped`].
    Commit {
        /// The rows that must be unchanged.
        when: Vec<(String, u64)>,
        /// What is written.
        put: Vec<(String, String)>,
    },
    /// Add to a counter. Answered by [`Reply::Number`].
    Add {
        /// Its key.
        key: String,
        /// How much.
        by: i64,
    },
    /// Make a lease that nobody renews. Answered by [`Reply::Lease`].
    Grant {
        /// How long it lives, in milliseconds.
        ttl_ms: u64,
    },
    /// Take a lock, or give up. Answered by [`Reply::Granted`].
    Acquire {
        /// Under which name it is held.
        slot: String,
        /// Which lock.
        lock: String,
        /// Of which kind.
        kind: Kind,
        /// How long to wait.
        wait_ms: u64,
    },
    /// Stand for election, or give up. Answered by [`Reply::Granted`].
    Campaign {
        /// Under which name it is held.
        slot: String,
        /// Which election.
        name: String,
        /// What the leader says.
        value: String,
        /// How long to wait.
        wait_ms: u64,
    },
    /// Whether what is held is held still, as its holder believes. Answered by [`Reply::Held`].
    Look {
        /// What.
        slot: String,
    },
    /// Give up what is held. Answered by [`Reply::Held`]: whether it was held until now.
    Release {
        /// What.
        slot: String,
    },
    /// Give up what is held, or what will be: the client waits for it no more. Answered by [`Reply::Held`].
    Forget {
        /// What.
        slot: String,
    },
    /// Take a lock, read a set, think, write it with one more element, release. Answered by [`Reply::Done`].
    AddUnderLock {
        /// Which lock.
        lock: String,
        /// The row of the set: elements with commas.
        key: String,
        /// What is added.
        element: u64,
        /// How long to think.
        think_ms: u64,
        /// Whether it is written by a transaction of the guard.
        guarded: bool,
        /// How long to wait.
        wait_ms: u64,
    },
    /// Who leads. Answered by [`Reply::Leader`].
    Leader {
        /// Which election.
        name: String,
    },
    /// Put an item into a queue. Answered by [`Reply::Done`].
    Offer {
        /// Which.
        queue: String,
        /// The item.
        value: String,
    },
    /// Take an item out of a queue. Answered by [`Reply::Item`].
    Take {
        /// Under which name it is held.
        slot: String,
        /// Which queue.
        queue: String,
        /// How long to wait.
        wait_ms: u64,
    },
    /// Acknowledge what was taken, and write a row in the same entry. Answered by [`Reply::Held`]: whether it still was
    /// this taker's.
    Acknowledge {
        /// What.
        slot: String,
        /// The row.
        key: String,
        /// What it holds then.
        value: String,
    },
    /// Watch what begins so. Answered by [`Reply::Done`].
    Watch {
        /// Under which name.
        slot: String,
        /// The beginning.
        prefix: String,
        /// The first revision.
        from: u64,
    },
    /// What a watch has yielded since it was asked last. Answered by [`Reply::Events`].
    Events {
        /// Which.
        slot: String,
        /// How long to wait for the first.
        wait_ms: u64,
    },
    /// Hand the leadership to another member. Answered by [`Reply::Done`].
    Transfer,
    /// Write a copy of this node's state to a file. Answered by [`Reply::Done`].
    Backup {
        /// Which.
        file: String,
    },
    /// Make a learner a voter. Answered by [`Reply::Done`].
    Promote {
        /// Its name.
        member: String,
    },
    /// Remove a member. Answered by [`Reply::Done`].
    Remove {
        /// Its name.
        member: String,
    },
    /// The names of the members, voters first. Answered by [`Reply::Members`].
    Members,
}

/// A kind of lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One holder.
    Mutex,
    /// One holder, which may be the same again.
    Again {
        /// Who: the same as long as the process lives.
        owner: String,
    },
    /// So many permits of so many.
    Permits {
        /// How many are wanted.
        want: u32,
        /// How many there are.
        limit: u32,
    },
}

/// What comes back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It was done, at this revision.
    Done {
        /// The store's, after it; 0 where there is none.
        revision: u64,
    },
    /// Rows, in the order of their keys.
    Rows {
        /// The store's revision.
        revision: u64,
        /// They.
        rows: Vec<Row>,
    },
    /// Whether the condition held and it was written.
    Swapped {
        /// Whether.
        swapped: bool,
        /// The store's revision, after it.
        revision: u64,
    },
    /// A number.
    Number(i64),
    /// A lease's id.
    Lease(u64),
    /// It is held.
    Granted {
        /// The token: the revision, and the handoff.
        token: (u64, u64),
    },
    /// Whether it is held, or was until now.
    Held {
        /// Whether.
        held: bool,
        /// A moment at which it was held, as its holder believes, by the machine's clock ([`moment`](crate::moment)): taken
        /// before the holder was asked.
        at: Option<u64>,
    },
    /// What the leader says.
    Leader(Option<String>),
    /// An item, if there was one, and the token of its taking: the revision, and the handoff.
    Item(Option<(String, (u64, u64))>),
    /// What happened, oldest first.
    Events {
        /// They.
        events: Vec<Change>,
        /// Everything up to here was yielded.
        until: u64,
    },
    /// Names.
    Members {
        /// Who votes.
        voters: Vec<String>,
        /// Who does not.
        learners: Vec<String>,
        /// Whether one takes the place of another right now, and whoever voted before counts still. A server cannot say,
        /// and none is replaced so.
        joint: bool,
    },
}

/// A row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its key.
    pub key: String,
    /// What it holds.
    pub value: String,
    /// The revision of its last change.
    pub modified: u64,
}

/// An event of a watch.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Change {
    /// The key.
    pub key: String,
    /// What it holds; `None`: it was deleted.
    pub value: Option<String>,
    /// At which revision.
    pub revision: u64,
}

impl Call {
    /// As a line says it.
    pub fn words(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What a line says.
    pub fn parse(words: &str) -> Option<Self> {
        serde_json::from_str(words).ok()
    }

    /// How long the call itself is told to wait, besides what it does.
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
    /// As a line says it.
    pub fn words(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What a line says.
    pub fn parse(words: &str) -> Option<Self> {
        serde_json::from_str(words).ok()
    }
}

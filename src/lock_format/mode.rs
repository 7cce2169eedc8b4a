//! The lock modes: the condition under which an entry of a lock queue may hold the lock.

use bytes::Bytes;

/// Lock mode: the condition under which an entry may hold the lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LockMode {
    /// Holds if the entry is first. Used for a mutex, a candidate, and requests of etcd clients.
    Mutex,
    /// A leased key that is not a lock request, such as a group member. No request may wait after
    /// such a key, because the key does not disappear when a lock is released.
    Foreign,
    /// Holds if only reads are ahead.
    Read,
    /// Holds if the entry is first. Used for writers of a read/write lock.
    Write,
    /// Holds if the read entry with this key is the only reader that holds. An upgrade overtakes
    /// waiting writers, because they wait for that reader anyway. If such a writer leaves the
    /// queue, readers after it may hold the lock. So an upgrade that holds does not exclude other
    /// holders by itself. An upgrade only allows the row of the read entry to be rewritten,
    /// provided that the queue has not changed.
    Upgrade(Bytes),
    /// Holds if the permits ahead plus the permits of this entry fit into the limit.
    Permits {
        /// Total number of permits.
        limit: u32,
        /// Number of requested permits.
        wants: u32,
    },
}

/// The kind of lock that a name is used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum LockKind {
    /// A mutex or an election, of Bowline or of etcd clients.
    Mutex,
    /// A read/write lock.
    ReadWrite,
    /// A semaphore with this number of permits.
    Semaphore(u32),
    /// Leased keys below the name that are not lock requests, such as group members or sequential
    /// keys.
    Foreign,
}

impl std::fmt::Display for LockKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LockKind::Mutex => f.write_str("a mutex or an election"),
            LockKind::ReadWrite => f.write_str("a read/write lock"),
            LockKind::Semaphore(limit) => write!(f, "a semaphore of {limit}"),
            LockKind::Foreign => f.write_str("keys that are not lock requests"),
        }
    }
}

impl LockMode {
    /// Reports whether this is an upgrade of a read.
    pub(crate) fn is_upgrade(&self) -> bool {
        matches!(self, LockMode::Upgrade(_))
    }

    /// Reports whether an entry of mode `successor` may take over a hold of this mode without
    /// excluding more than the hold did.
    pub(crate) fn covers(&self, successor: &LockMode) -> bool {
        match (self, successor) {
            (LockMode::Mutex, LockMode::Mutex)
            | (LockMode::Write, LockMode::Write | LockMode::Read)
            | (LockMode::Read, LockMode::Read) => true,
            (
                LockMode::Permits { limit, wants },
                LockMode::Permits { limit: others, wants: less },
            ) => limit == others && less <= wants,
            _ => false,
        }
    }

    pub(crate) fn kind(&self) -> LockKind {
        match self {
            LockMode::Mutex => LockKind::Mutex,
            LockMode::Read | LockMode::Write | LockMode::Upgrade(_) => LockKind::ReadWrite,
            LockMode::Permits { limit, .. } => LockKind::Semaphore(*limit),
            LockMode::Foreign => LockKind::Foreign,
        }
    }
}

//! The labels of the metrics: the kinds of requests, their outcomes, and the stages of a write.

use crate::model::Command;

/// Declares a label with the text of each of its values.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All values, in the order of the declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Returns the label value used in the Prometheus text.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
    };
}

label! {
    /// The kind of a request.
    RequestKind {
        /// Write a key.
        Put = "put",
        /// Delete keys.
        Delete = "delete",
        /// A transaction that is replicated through the log.
        Txn = "txn",
        /// Compact the history.
        Compact = "compact",
        /// Grant a lease, also for a session.
        Grant = "grant",
        /// Revoke a lease.
        Revoke = "revoke",
        /// Change users and roles.
        Access = "access",
        /// Raise or clear alarms.
        Alarm = "alarm",
        /// A member's own announcement, or a membership change.
        Member = "member",
        /// A linearizable read. Its time is measured until the read may be served from this
        /// replica.
        Read = "read",
    }
}

impl RequestKind {
    pub(crate) fn of(command: &Command) -> Self {
        match command.inner() {
            Command::Put(_) => Self::Put,
            Command::Delete(_) => Self::Delete,
            Command::Txn(_) => Self::Txn,
            Command::Compact(_) => Self::Compact,
            Command::Grant { .. } => Self::Grant,
            Command::Revoke(_) => Self::Revoke,
            Command::Announce(_) | Command::Move { .. } | Command::Raise(_) => Self::Member,
            Command::Alarm(_) => Self::Alarm,
            Command::Access(_) | Command::As(..) => Self::Access,
        }
    }
}

label! {
    /// The outcome of a request.
    Ending {
        /// The request succeeded.
        Ok = "ok",
        /// The store rejected the request.
        Refused = "refused",
        /// The request was not applied, because too many requests were waiting on this node.
        Busy = "busy",
        /// The request was not applied, because the quota is reached.
        Quota = "quota",
        /// The request was not applied, because a disk is full.
        NoSpace = "no_space",
        /// The request was not applied, because replicas differ.
        Diverged = "diverged",
        /// The request was not applied before its deadline passed.
        DeadlineExceeded = "deadline_exceeded",
        /// The deadline passed or the node stopped. The request may have been applied.
        Unknown = "unknown",
        /// The request was not applied, because the node stopped.
        Stopped = "stopped",
    }
}

label! {
    /// A stage of a write, on the node where the call was made.
    Stage {
        /// From the call until the request is sent to the leader, or appended to the log if this
        /// node is the leader.
        Waiting = "waiting",
        /// From the end of `waiting` until the entry is passed to this node's own log: the time to
        /// the leader and back. Close to zero if this node is the leader.
        Forwarding = "forwarding",
        /// From the end of `forwarding` until the entry is durable on this node's disk.
        Logging = "logging",
        /// From the end of `logging` until the entry is committed and this node knows it. Most of
        /// this time is spent by the disks of the other members.
        Replicating = "replicating",
        /// The time to apply the entry to this replica and make it visible, including the entries
        /// before it in the same batch.
        Applying = "applying",
        /// The time to notify watchers, locks and other recipes, and the callers that are notified
        /// before this one.
        Notifying = "notifying",
    }
}

label! {
    /// A thread of the node.
    NodeThread {
        /// The thread that runs the driver.
        Driver = "driver",
        /// The thread that writes and syncs the log.
        Log = "log",
    }
}

label! {
    /// The reason why a leader did not propose a request.
    Refused {
        /// The node is not the leader.
        NotLeader = "not_leader",
        /// Too many proposals are in progress.
        Busy = "busy",
        /// Replicas differ.
        Diverged = "diverged",
        /// The quota is reached.
        Quota = "quota",
        /// Too few voters have free disk space.
        NoSpace = "no_space",
        /// The request is malformed: it is too large for an entry, or names another member as its
        /// origin. No correct member sends such a request.
        Malformed = "malformed",
    }
}

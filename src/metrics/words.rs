//! The labels: what kinds of requests there are, how they end, and where their time goes.

use crate::model::Command;

/// Lists the variants of a label with their words.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every one, in the order of the table.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Its word in the text for Prometheus.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
    };
}

label! {
    /// What a request asks for.
    RequestKind {
        /// Write a key.
        Put = "put",
        /// Delete keys.
        Delete = "delete",
        /// A transaction that goes through the log.
        Txn = "txn",
        /// Forget history.
        Compact = "compact",
        /// Make a lease, also that of a session.
        Grant = "grant",
        /// End a lease.
        Revoke = "revoke",
        /// Change users and roles.
        Access = "access",
        /// Raise an alarm, or end some.
        Alarm = "alarm",
        /// What members ask for themselves, and where they are to be.
        Member = "member",
        /// A linearizable read: until it may look at this replica.
        Read = "read",
    }
}

impl RequestKind {
    /// What a command is counted as.
    pub(crate) fn of(command: &Command) -> Self {
        match command.deed() {
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
    /// How a request ended.
    Ending {
        /// It was done.
        Ok = "ok",
        /// The store said no.
        Refused = "refused",
        /// Too much was waiting on this node: not applied.
        Busy = "busy",
        /// The quota is reached: not applied.
        Quota = "quota",
        /// A disk is full: not applied.
        NoSpace = "no_space",
        /// Replicas differ: not applied.
        Diverged = "diverged",
        /// Its time was up, and it was not applied.
        DeadlineExceeded = "deadline_exceeded",
        /// Its time was up, or the node stopped, and it may have been applied.
        Unknown = "unknown",
        /// The node stopped, and it was not applied.
        Stopped = "stopped",
    }
}

label! {
    /// Where the time of a write goes, on the node of the call.
    Stage {
        /// From the call until it is handed over: to the leader, or into the leader's own log.
        Waiting = "waiting",
        /// From then on until its entry is handed to this node's own log: the way to the leader and back.
        /// Next to nothing, where this node leads.
        Forwarding = "forwarding",
        /// From then on until this node has it on its disk.
        Logging = "logging",
        /// From then on until it is committed and this node's driver has it: the logs of the others.
        Replicating = "replicating",
        /// Applied to this replica and made visible, with what stood before it in the same batch.
        Applying = "applying",
        /// Told to watchers, recipes and those who called before.
        Notifying = "notifying",
    }
}

label! {
    /// Why a leader does not propose what it was asked to.
    Refused {
        /// It does not lead.
        NotLeader = "not_leader",
        /// Too much is under way.
        Busy = "busy",
        /// Replicas differ.
        Diverged = "diverged",
        /// The quota is reached.
        Quota = "quota",
        /// Too few voters have space on their disks.
        NoSpace = "no_space",
        /// No correct member sends it: too large for an entry, or in another's name.
        Malformed = "malformed",
    }
}

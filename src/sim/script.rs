//! [`ScriptedFault`]: a fault that a scenario sets at a time.

use std::time::Duration;

/// A fault at a time that the program chooses; see [`Scenario::at`](super::Scenario::at). A fault whose target does
/// not run has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ScriptedFault {
    /// The process of a node is killed, and starts again after `down`. Its files keep all writes.
    Kill {
        /// The node.
        who: FaultTarget,
        /// Time until the next start.
        down: Duration,
    },
    /// The machine of a node loses power, and starts again after `down`. Writes that were not synced may be lost.
    PowerLoss {
        /// The node.
        who: FaultTarget,
        /// Time until the next start.
        down: Duration,
    },
    /// The process of a node is paused for `time`, as `SIGSTOP` would.
    Pause {
        /// The node.
        who: FaultTarget,
        /// Duration of the pause.
        time: Duration,
    },
    /// A node is cut off from all other nodes for `time`. If two such faults overlap, both end when the one that began last ends.
    Isolate {
        /// The node.
        who: FaultTarget,
        /// Duration of the partition.
        time: Duration,
    },
}

/// The node that a [`ScriptedFault`] affects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FaultTarget {
    /// The leader of the consensus: one of the nodes that believe to lead, or any running node if there is none. The
    /// seed decides which.
    Leader,
    /// The node with this id ([`Host::id`](super::Host::id)). Founding nodes have the ids from 1.
    Node(u64),
}

impl ScriptedFault {
    pub(super) fn target(&self) -> FaultTarget {
        match *self {
            ScriptedFault::Kill { who, .. }
            | ScriptedFault::PowerLoss { who, .. }
            | ScriptedFault::Pause { who, .. }
            | ScriptedFault::Isolate { who, .. } => who,
        }
    }

    /// Returns how long the fault lasts.
    pub(super) fn duration(&self) -> Duration {
        match *self {
            ScriptedFault::Kill { down: time, .. }
            | ScriptedFault::PowerLoss { down: time, .. }
            | ScriptedFault::Pause { time, .. }
            | ScriptedFault::Isolate { time, .. } => time,
        }
    }
}

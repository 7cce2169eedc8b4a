//! Whether a node's replica has a state, and whether linearizable reads need a query to the leader.

use std::sync::atomic::{AtomicBool, Ordering};

/// The state of a node's replica.
#[derive(Debug, Default)]
pub(in crate::node) struct ReplicaState {
    /// Whether this replica holds a state of its cluster.
    has_state: AtomicBool,
    /// Whether this node is the only member, and leads.
    alone: AtomicBool,
}

impl ReplicaState {
    /// Returns whether this replica holds a state of its cluster. Without a state, the store is
    /// empty and must not be read: before the cluster is founded, before a new member has received
    /// a state, and while a lost state is fetched.
    pub(in crate::node) fn has_state(&self) -> bool {
        self.has_state.load(Ordering::Acquire)
    }

    pub(in crate::node) fn set_has_state(&self) {
        self.has_state.store(true, Ordering::Release);
    }

    /// Returns whether linearizable reads are possible without a query to the leader.
    pub(in crate::node) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::SeqCst)
    }

    /// Enables local linearizable reads without a query to the leader. The caller guarantees that
    /// this node is the only member and leads, and that its readers see everything committed. Every
    /// later commit is acknowledged by this node, after it is visible to readers. Such reads end
    /// when [`ReplicaState::stop_local_linearizable_reads`] is called.
    pub(in crate::node) fn alone(&self) {
        self.alone.store(true, Ordering::SeqCst);
    }

    /// Disables local linearizable reads. Must be called before any message is sent to another
    /// member and before an entry is applied. From then on, a change may be visible on another
    /// node, or in part here, before readers of this node see it.
    pub(in crate::node) fn stop_local_linearizable_reads(&self) {
        mutant!(B53, return);
        self.alone.store(false, Ordering::SeqCst);
    }
}

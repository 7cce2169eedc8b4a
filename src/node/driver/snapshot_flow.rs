//! The steps in which this replica fetches and installs a snapshot of the leader.
//!
//! ```text
//!          offer            loaded           accepted by consensus      group pushed
//!   idle ────────▶ offered ───────▶ loaded ──────────────────────▶ accepted ──────▶ installing ──▶ idle
//!                     │                │                                  group durable: install
//!                     ▼ abandoned      ▼ needless: discard
//!                    idle             idle
//! ```
//!
//! [`SnapshotFlow::apply`] is the only transition function.

use crate::consensus::Taken;
use crate::model::SnapshotId;

/// The snapshot of the leader that this node needs, by its progress.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SnapshotFlow<O, M> {
    Idle,
    /// The leader offers the snapshot, and this node fetches it.
    Offered {
        id: SnapshotId,
        offer: O,
    },
    /// The snapshot was fetched and loaded, and consensus has not decided about it.
    Loaded {
        id: SnapshotId,
        offer: O,
        state: M,
    },
    /// Consensus has accepted the snapshot.
    Accepted {
        id: SnapshotId,
        state: M,
    },
    /// The snapshot is installed once the log has written the group of this number.
    Installing {
        id: SnapshotId,
        state: M,
        group: u64,
    },
}

/// An event of the fetch or installation of a snapshot.
#[derive(Debug)]
pub(super) enum SnapshotEvent<O, M> {
    /// The leader offers a snapshot that this node needs.
    Offered { id: SnapshotId, offer: O },
    /// The snapshot cannot be fetched, or is no longer needed.
    Abandoned(SnapshotId),
    /// A snapshot was fetched and loaded.
    Loaded { id: SnapshotId, state: M },
    /// Consensus has decided about the loaded snapshot.
    Decided(Taken),
    /// The group that replaces the log's entries by the snapshot was passed to the log.
    Writing { id: SnapshotId, group: u64 },
    /// All groups up to this number are durable.
    Durable(u64),
}

/// The action that the driver takes after a transition.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum SnapshotAction<M> {
    Nothing,
    /// Discard a loaded state that is not needed.
    Discard(M),
    /// Install the state.
    Install(SnapshotId, M),
    /// Stop the node: consensus installs a snapshot that this node has not loaded.
    Missing(SnapshotId),
}

impl<O, M> SnapshotFlow<O, M> {
    /// Processes an event, and returns the action that the driver must take.
    pub(super) fn apply(&mut self, event: SnapshotEvent<O, M>) -> SnapshotAction<M> {
        use {SnapshotAction as Action, SnapshotEvent as Event, SnapshotFlow as Flow};
        let (next, action) = match (std::mem::replace(self, Flow::Idle), event) {
            // A complete snapshot is installed before another fetch begins. Otherwise a snapshot that takes long to
            // load would never be installed.
            (Flow::Idle | Flow::Offered { .. }, Event::Offered { id, offer }) => {
                (Flow::Offered { id, offer }, Action::Nothing)
            }
            (state, Event::Offered { .. }) => (state, Action::Nothing),

            (Flow::Offered { id, .. }, Event::Abandoned(of)) if id == of => {
                (Flow::Idle, Action::Nothing)
            }
            (state, Event::Abandoned(_)) => (state, Action::Nothing),

            (Flow::Offered { id, offer }, Event::Loaded { id: of, state }) if id == of => {
                (Flow::Loaded { id, offer, state }, Action::Nothing)
            }
            // The loaded snapshot was abandoned. Another snapshot may be in progress.
            (flow, Event::Loaded { state, .. }) => (flow, Action::Discard(state)),

            (Flow::Loaded { id, state, .. }, Event::Decided(Taken::Installing)) => {
                (Flow::Accepted { id, state }, Action::Nothing)
            }
            (Flow::Loaded { state, .. }, Event::Decided(Taken::Needless)) => {
                (Flow::Idle, Action::Discard(state))
            }
            (flow, Event::Decided(_)) => (flow, Action::Nothing),

            (Flow::Accepted { id, state }, Event::Writing { id: of, group }) if id == of => {
                (Flow::Installing { id, state, group }, Action::Nothing)
            }
            (flow, Event::Writing { id, .. }) => (flow, Action::Missing(id)),

            (Flow::Installing { id, state, group }, Event::Durable(number)) if group <= number => {
                (Flow::Idle, Action::Install(id, state))
            }
            (flow, Event::Durable(_)) => (flow, Action::Nothing),
        };
        *self = next;
        action
    }

    /// Returns whether the node may begin to fetch another snapshot.
    pub(super) fn may_fetch(&self) -> bool {
        matches!(self, SnapshotFlow::Idle | SnapshotFlow::Offered { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LogIndex, Term};

    type Flow = SnapshotFlow<&'static str, &'static str>;
    type Event = SnapshotEvent<&'static str, &'static str>;
    type Action = SnapshotAction<&'static str>;

    fn id(index: u64) -> SnapshotId {
        SnapshotId { index: LogIndex(index), term: Term(1), bytes: 100, checksum: 0 }
    }

    fn offered(index: u64) -> Event {
        Event::Offered { id: id(index), offer: "offer" }
    }

    fn loaded(index: u64) -> Event {
        Event::Loaded { id: id(index), state: "state" }
    }

    /// Applies events to a node that needs no snapshot, and returns the flow and the last action.
    fn after(events: impl IntoIterator<Item = Event>) -> (Flow, Action) {
        let (mut flow, mut last) = (Flow::Idle, Action::Nothing);
        for event in events {
            last = flow.apply(event);
        }
        (flow, last)
    }

    #[test]
    fn accepted_snapshot_is_installed_once_its_group_is_durable() {
        let accepted = || [offered(7), loaded(7), Event::Decided(Taken::Installing)];
        let writing = || accepted().into_iter().chain([Event::Writing { id: id(7), group: 3 }]);
        assert_eq!(after(accepted()).0, Flow::Accepted { id: id(7), state: "state" });
        let early = after(writing().chain([Event::Durable(2)]));
        let waiting = Flow::Installing { id: id(7), state: "state", group: 3 };
        assert_eq!(early, (waiting, Action::Nothing));
        let done = after(writing().chain([Event::Durable(4)]));
        assert_eq!(done, (Flow::Idle, Action::Install(id(7), "state")));
    }

    #[test]
    fn loaded_snapshot_waits_while_consensus_is_busy() {
        let later = || [offered(7), loaded(7), Event::Decided(Taken::Later)];
        let (flow, action) = after(later());
        assert!(!flow.may_fetch() && action == Action::Nothing);
        // A new offer does not replace the loaded snapshot.
        let (flow, _) = after(later().into_iter().chain([offered(9)]));
        assert_eq!(flow, Flow::Loaded { id: id(7), offer: "offer", state: "state" });
        let needless = after(later().into_iter().chain([Event::Decided(Taken::Needless)]));
        assert_eq!(needless, (Flow::Idle, Action::Discard("state")));
    }

    #[test]
    fn superseded_snapshot_is_discarded_and_the_newer_offer_stays() {
        let (flow, action) = after([offered(7), offered(9), loaded(7)]);
        assert_eq!(flow, Flow::Offered { id: id(9), offer: "offer" });
        assert_eq!(action, Action::Discard("state"));
        assert_eq!(after([loaded(7)]), (Flow::Idle, Action::Discard("state")));
    }

    #[test]
    fn only_the_abandoned_offer_is_dropped() {
        assert_eq!(after([offered(7), Event::Abandoned(id(7))]).0, Flow::Idle);
        let (flow, _) = after([offered(7), Event::Abandoned(id(6))]);
        assert_eq!(flow, Flow::Offered { id: id(7), offer: "offer" });
    }

    #[test]
    fn snapshot_that_consensus_was_not_given_is_missing() {
        let events = [offered(7), loaded(7), Event::Decided(Taken::Installing)]
            .into_iter()
            .chain([Event::Writing { id: id(8), group: 3 }]);
        assert_eq!(after(events).1, Action::Missing(id(8)));
        assert_eq!(after([Event::Writing { id: id(8), group: 3 }]).1, Action::Missing(id(8)));
    }
}

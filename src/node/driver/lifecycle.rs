//! The lifecycle of a driver, from its start until it has stopped.
//!
//! ```text
//!   running ──▶ stopping ──▶ stopped      shutdown: the node ends its sessions and transfers leadership first
//!      │            ▼           ▲
//!      ├────────▶ removed ──────┤         a peer reports that this node is no longer a member
//!      ├────────▶ aborted ──────┤         killed: the node stops without a message to peers
//!      └────────────────────────┘         failed
//! ```
//!
//! [`Lifecycle::apply`] is the only transition function. A node stops only at the end of a turn, so
//! further events may arrive in the turn that ends it.

use crate::model::Moment;
use crate::node::requests::answer::StopReason;

/// The lifecycle of a driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Lifecycle {
    #[default]
    Running,
    /// The node is in an orderly shutdown.
    Stopping(Farewell),
    /// A peer has reported that this node was removed and that its vote is no longer needed. The
    /// local replica alone does not show whether the removal is settled. The field is set if the
    /// node is also shutting down.
    Removed(Option<Farewell>),
    /// The node stops at the end of this turn, without a message to peers.
    Aborted,
    Stopped,
}

/// The progress of an orderly shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Farewell {
    /// Time at which the shutdown began.
    pub(super) began: Moment,
    /// Whether the node has started to transfer its leadership.
    pub(super) transferred: bool,
}

/// An event that may change the lifecycle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LifecycleEvent {
    /// The owner of the node requests a shutdown.
    Shutdown(Moment),
    /// The shutting-down node has started to transfer its leadership.
    Transferring,
    /// A peer reports that this node was removed.
    Removed,
    /// The owner of the node kills the node.
    Abort,
    /// A turn has ended. `farewell_over` is set if an orderly shutdown has completed its steps or
    /// has waited long enough.
    TurnEnded { farewell_over: bool },
    /// The node cannot continue.
    Failed(StopReason),
}

/// The action that the driver takes after a transition.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub(super) enum LifecycleAction {
    /// Continue.
    Nothing,
    /// Close all sessions, because the shutdown has begun.
    CloseSessions,
    /// Stop for this reason.
    Stop(StopReason),
}

impl Lifecycle {
    /// Processes an event, and returns the action that the driver must take.
    pub(super) fn apply(&mut self, event: LifecycleEvent) -> LifecycleAction {
        use {Lifecycle as L, LifecycleAction as Action, LifecycleEvent as Event};
        let (next, action) = match (*self, event) {
            (L::Stopped, _) => (L::Stopped, Action::Nothing),
            (_, Event::Failed(reason)) => (L::Stopped, Action::Stop(reason)),
            (_, Event::Abort) => (L::Aborted, Action::Nothing),
            (L::Aborted, Event::TurnEnded { .. }) => (L::Stopped, Action::Stop(StopReason::Killed)),
            (L::Aborted, _) => (L::Aborted, Action::Nothing),

            (L::Running, Event::Shutdown(began)) => {
                (L::Stopping(Farewell { began, transferred: false }), Action::CloseSessions)
            }
            (L::Removed(None), Event::Shutdown(began)) => {
                (L::Removed(Some(Farewell { began, transferred: false })), Action::CloseSessions)
            }
            (state, Event::Shutdown(_)) => (state, Action::Nothing),

            (L::Stopping(farewell), Event::Transferring) => {
                (L::Stopping(Farewell { transferred: true, ..farewell }), Action::Nothing)
            }
            (state, Event::Transferring) => (state, Action::Nothing),

            (L::Running, Event::Removed) => (L::Removed(None), Action::Nothing),
            (L::Stopping(farewell), Event::Removed) => {
                (L::Removed(Some(farewell)), Action::Nothing)
            }
            (state @ L::Removed(_), Event::Removed) => (state, Action::Nothing),

            (L::Stopping(_) | L::Removed(Some(_)), Event::TurnEnded { farewell_over: true }) => {
                (L::Stopped, Action::Stop(StopReason::Shutdown))
            }
            (L::Removed(_), Event::TurnEnded { .. }) => {
                (L::Stopped, Action::Stop(StopReason::Removed))
            }
            (state @ (L::Running | L::Stopping(_)), Event::TurnEnded { .. }) => {
                (state, Action::Nothing)
            }
        };
        *self = next;
        action
    }

    /// Returns the progress of the shutdown, if the node is shutting down.
    pub(super) fn farewell(&self) -> Option<Farewell> {
        match self {
            Lifecycle::Stopping(farewell) => Some(*farewell),
            Lifecycle::Removed(farewell) => *farewell,
            Lifecycle::Running | Lifecycle::Aborted | Lifecycle::Stopped => None,
        }
    }

    pub(super) fn is_aborted(&self) -> bool {
        *self == Lifecycle::Aborted
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self == Lifecycle::Stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::at;

    const NOTHING: LifecycleAction = LifecycleAction::Nothing;

    fn ended(farewell_over: bool) -> LifecycleEvent {
        LifecycleEvent::TurnEnded { farewell_over }
    }

    fn stop(reason: StopReason) -> LifecycleAction {
        LifecycleAction::Stop(reason)
    }

    /// Applies events to a running node, and returns the lifecycle and the last action.
    fn after(events: &[LifecycleEvent]) -> (Lifecycle, LifecycleAction) {
        let mut lifecycle = Lifecycle::default();
        let mut last = NOTHING;
        for event in events {
            last = lifecycle.apply(event.clone());
        }
        (lifecycle, last)
    }

    #[test]
    fn shutdown_closes_sessions_once_and_waits_for_its_farewell() {
        use LifecycleEvent::{Shutdown, Transferring};
        assert_eq!(after(&[Shutdown(at(5))]).1, LifecycleAction::CloseSessions);
        let (waiting, action) = after(&[Shutdown(at(5)), Shutdown(at(9)), Transferring]);
        assert_eq!(action, NOTHING);
        assert_eq!(waiting.farewell(), Some(Farewell { began: at(5), transferred: true }));
        let (waiting, action) = after(&[Shutdown(at(5)), ended(false)]);
        assert!(waiting.farewell().is_some() && action == NOTHING);
        let (stopped, action) = after(&[Shutdown(at(5)), ended(false), ended(true)]);
        assert!(stopped.is_stopped() && action == stop(StopReason::Shutdown));
    }

    #[test]
    fn removal_ends_the_node_with_its_turn() {
        use LifecycleEvent::{Removed, Shutdown};
        for (events, reason) in [
            (vec![Removed, ended(false)], StopReason::Removed),
            (vec![Removed, ended(true)], StopReason::Removed),
            (vec![Shutdown(at(5)), Removed, ended(false)], StopReason::Removed),
            (vec![Shutdown(at(5)), Removed, ended(true)], StopReason::Shutdown),
            (vec![Removed, Shutdown(at(5)), ended(true)], StopReason::Shutdown),
        ] {
            assert_eq!(after(&events), (Lifecycle::Stopped, stop(reason)), "{events:?}");
        }
    }

    #[test]
    fn abort_and_failure_end_the_node_in_every_state() {
        use LifecycleEvent::{Abort, Failed, Removed, Shutdown};
        let failed = StopReason::failed("x");
        for before in [vec![], vec![Shutdown(at(5))], vec![Removed], vec![Abort]] {
            let with = |event: LifecycleEvent| [before.clone(), vec![event]].concat();
            let killed = [with(Abort), vec![Shutdown(at(6)), Removed, ended(true)]].concat();
            assert_eq!(after(&killed), (Lifecycle::Stopped, stop(StopReason::Killed)));
            assert_eq!(
                after(&with(Failed(failed.clone()))),
                (Lifecycle::Stopped, stop(failed.clone()))
            );
        }
    }

    #[test]
    fn stopped_node_ignores_every_event() {
        use LifecycleEvent::{Abort, Failed, Removed, Shutdown, Transferring};
        let mut stopped = after(&[Abort, ended(false)]).0;
        let failed = Failed(StopReason::failed("x"));
        for event in [Shutdown(at(1)), Transferring, Removed, Abort, ended(true), failed] {
            assert_eq!((stopped.apply(event), stopped), (NOTHING, Lifecycle::Stopped));
        }
    }
}

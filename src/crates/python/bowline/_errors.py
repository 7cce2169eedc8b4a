"""The exceptions. Every exception says whether the call changed anything, and whether a retry may help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ._native import LostReason

Effect = Literal["not_applied", "applied", "unknown"]


class BowlineError(Exception):
    """The base class of all exceptions of this package.

    ``effect`` is ``"not_applied"`` if the call changed nothing and will not change anything later, ``"applied"`` if the
    change was applied once, and ``"unknown"`` if it may have been applied, or may still be applied, at most once.

    ``is_transient`` is true if the same call may succeed later without intervention.
    """

    effect: Effect
    is_transient: bool

    def __init__(self, message: str = "", effect: Effect = "not_applied", is_transient: bool = False) -> None:
        super().__init__(message)
        self.effect = effect
        self.is_transient = is_transient


class StartError(BowlineError):
    """The node could not be started. A later start on the same directory is possible."""


class ConfigError(StartError, ValueError):
    """A setting is invalid."""


class DataError(StartError):
    """The data directory cannot be used.

    ``kind`` is ``"in_use"``, ``"foreign"``, ``"damaged"``, ``"newer"``, ``"state_lost"``, ``"half_restored"``,
    ``"no_space"``, ``"io"`` or ``"other"``.
    """

    kind: str


class JoinError(StartError):
    """The cluster did not add the node. ``kind`` is ``"refused"`` or ``"timed_out"``."""

    kind: str


class NotStartedError(BowlineError):
    """The node has not been started, or was shut down."""


class ForkedError(BowlineError):
    """The node belongs to the parent process. A forked process must start its own node, with its own directory."""


class StoppedError(BowlineError):
    """The node has stopped."""


class BusyError(BowlineError):
    """Too many calls of this node are in flight."""


class NoRoomError(BowlineError):
    """The quota is used up, or a disk is full. Reads and deletions still work."""


class RejectedError(BowlineError):
    """The store rejected the call, for example because a key is empty or a lease does not exist."""


class MembershipError(BowlineError):
    """The change of the members, or the transfer of leadership, was rejected."""


class DeadlineError(BowlineError, TimeoutError):
    """The deadline was exceeded. Possible causes: no leader, no quorum, or overload."""


class NotFoundedError(DeadlineError):
    """The deadline was exceeded because the cluster waits for founding members: ``waiting_for``."""

    waiting_for: list[str]


class SessionEndedError(BowlineError):
    """The session has ended while its node keeps running."""


class LostError(BowlineError):
    """The lock, leadership or queue item is not held any more.

    ``reason`` says why, or is ``None`` if the store noticed it first.
    """

    reason: LostReason | None = None


class LockError(BowlineError):
    """The lock was not acquired."""


class LockTimeoutError(LockError, TimeoutError):
    """The lock was not acquired within the timeout, because other requests are ahead."""


class LockBusyError(LockError):
    """Another request holds the lock or is ahead."""


class QueueError(BowlineError):
    """A call on a queue failed."""


class QueueFullError(QueueError):
    """The queue has reached its limit."""


class QueueEmptyError(QueueError, TimeoutError):
    """No item was taken within the timeout."""


class CompactedError(BowlineError):
    """The watch needs changes that were discarded. Read the keys again, and start a watch from ``oldest`` or later."""

    oldest: int

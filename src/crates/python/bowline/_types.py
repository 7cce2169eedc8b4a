"""Types of arguments and results."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import _native

if TYPE_CHECKING:
    from ._native import KeyValue

Data = Union[str, bytes]
"""A key or a value. A ``str`` is encoded as UTF-8."""

Path = Union[str, "os.PathLike[str]"]

Keys = Tuple[str, Data, Optional[Data]]
"""Keys for the native module: a kind, a start and an end."""


class PutReply(NamedTuple):
    """The reply to a put."""

    revision: int
    """The revision of the put."""
    prev: KeyValue | None
    """The previous row, if it was requested and existed."""


class DeleteReply(NamedTuple):
    """The reply to a delete."""

    revision: int
    """The revision of the store after the delete."""
    deleted: int
    """Number of deleted keys."""
    prev: List[KeyValue]
    """The deleted rows, if they were requested."""


@dataclass(frozen=True)
class RangeReply:
    """Rows in key order. Iterating over the reply iterates over its rows."""

    rows: list[KeyValue]
    count: int
    """Number of keys in the range, regardless of the limit."""
    more: bool
    """Whether the range contains more rows than the limit allowed."""
    revision: int
    """The revision of the store when the range was read."""

    def __iter__(self) -> Iterator[KeyValue]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> KeyValue:
        return self.rows[index]


@dataclass(frozen=True)
class TxnReply:
    """The reply to a transaction. It is true if all conditions held."""

    succeeded: bool
    revision: int
    """The revision of the store after the transaction."""
    results: list[PutReply | DeleteReply | RangeReply | TxnReply]
    """The results of the operations, in order."""

    def __bool__(self) -> bool:
        return self.succeeded


class Lease(NamedTuple):
    """A lease that the program renews itself."""

    id: int
    ttl: float
    """Time to live in seconds."""


class RevokeReply(NamedTuple):
    """The reply to a revoked lease."""

    revision: int
    deleted: int
    """Number of keys that were deleted with the lease."""


class Leader(NamedTuple):
    """The leader of an election."""

    key: bytes
    value: bytes
    since: int
    """The revision at which the key of the leader was created."""
    lease: int

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode()


class QueuedItem(NamedTuple):
    """An item of a queue, as listed."""

    id: str
    value: bytes
    priority: int
    put_at: int
    """The revision at which the item was put."""
    attempts: int
    """How often the item was taken. For a dead letter: before it became one."""
    state: str
    """``"free"``, ``"delayed"`` or ``"taken"``."""
    reason: str | None
    """Why the item is among the dead letters."""

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode()


class Health(NamedTuple):
    """The health of a node. ``str(health)`` is a sentence."""

    status: str
    """``"healthy"``, or the worst condition: ``"no_quorum"``, ``"disk_full"``, ``"stopped"`` and others."""
    is_alive: bool
    """Whether the node runs. If not, restart the process."""
    is_serving: bool
    """Whether reads and writes can be expected to succeed."""
    is_leader: bool
    """Whether the node leads the cluster."""
    leader: str | None
    """The name of the leader."""
    behind: int
    """Number of committed log entries that the node has not applied."""
    text: str

    def __str__(self) -> str:
        return self.text


class Member(NamedTuple):
    """A member of the cluster."""

    id: int
    name: str
    address: str
    endpoints: List[str]
    role: str
    """``"voter"`` or ``"learner"``."""


class NodeStatus(NamedTuple):
    """The status of a node."""

    id: int
    name: str
    role: str
    """``"leader"``, ``"follower"``, ``"candidate"``, ``"founding"``, ``"restoring"`` or ``"stopped"``."""
    term: int
    leader: int | None
    """The id of the leader."""
    revision: int
    members: List[Member]


def to_key(key: Data) -> Keys:
    return ("key", key, None)


def to_prefix(prefix: Data) -> Keys:
    return ("prefix", prefix, None)


def to_range(start: Data, end: Data | None) -> Keys:
    return ("range", start, end)


def put_reply(parts: tuple[Any, ...]) -> PutReply:
    return PutReply(*parts[1:])


def delete_reply(parts: tuple[Any, ...]) -> DeleteReply:
    return DeleteReply(*parts[1:])


def range_reply(parts: tuple[Any, ...]) -> RangeReply:
    return RangeReply(*parts[1:])


def txn_reply(parts: tuple[Any, ...]) -> TxnReply:
    _, succeeded, revision, results = parts
    return TxnReply(succeeded, revision, [_REPLIES[result[0]](result) for result in results])


_REPLIES: dict[str, Any] = {
    "put": put_reply,
    "delete": delete_reply,
    "range": range_reply,
    "txn": txn_reply,
}


def node_status(node: _native.Node) -> NodeStatus:
    *rest, members = node.status()
    return NodeStatus._make([*rest, [Member(*member) for member in members]])


def leader(parts: tuple[bytes, bytes, int, int] | None) -> Leader | None:
    return None if parts is None else Leader(*parts)

"""What the blocking and the asyncio classes have in common: the settings, and calls that never wait."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from typing import Any, Iterable, Mapping, Union

from . import _native
from ._errors import BowlineError, NotStartedError
from ._native import LostReason, Token
from ._types import Health, NodeStatus, Path, node_status

Members = Union[Mapping[str, str], str]
"""Names and addresses, as ``{"n1": "host:port", ...}`` or as ``"n1=host:port,n2=host:port"``."""

_running: weakref.WeakSet[NodeBase] = weakref.WeakSet()


# Exit functions run in reverse order, so this one runs after the nodes have stopped.
atexit.register(_native.close_interpreter)


@atexit.register
def _shut_down_all() -> None:
    """Shuts down the nodes that still run when the program ends, so that their locks become free at once."""
    for node in list(_running):
        try:
            node._native_node().shutdown().wait()
        except BowlineError:
            pass


class NodeBase:
    """The settings of a node, and the calls that never wait."""

    def __init__(
        self,
        data_dir: Path,
        name: str,
        *,
        members: Members | None = None,
        join: Iterable[str] | None = None,
        replacing: str | None = None,
        join_deadline: float | None = None,
        advertise: str | None = None,
        listen: str | None = None,
        endpoints: Iterable[str] | None = None,
        cluster_token: str | None = None,
        peer_tls: tuple[Path, Path, Path] | None = None,
        insecure_peers: bool = False,
        session_ttl: float | None = None,
        heartbeat: float | None = None,
        election_timeout: float | None = None,
        drift_percent: int | None = None,
        call_deadline: float | None = None,
        label: str | None = None,
        quota_bytes: int | None = None,
        snapshot_log_bytes: int | None = None,
    ) -> None:
        """Describes a node. It runs from ``start()``, or from the beginning of a ``with`` block.

        Without ``members`` and ``join`` the node founds a cluster of one member. Durations are in seconds.

        :param data_dir: the directory of the data, which belongs to this node alone
        :param name: the name of this member
        :param members: the members that found the cluster, this one included. All must be started once
        :param join: addresses of members of the cluster that this node joins
        :param replacing: the name of the voter that this joining node replaces
        :param join_deadline: how long a joining node tries (60)
        :param advertise: the address ``host:port`` at which other members reach this node
        :param listen: the address to listen on, if it is another
        :param endpoints: addresses at which this program serves its own clients, published to the members
        :param cluster_token: distinguishes clusters whose members have the same names
        :param peer_tls: files of the authority, the certificate and the key, for connections between members
        :param insecure_peers: allows unencrypted connections between members on different machines
        :param session_ttl: how long locks survive their holder (5)
        :param heartbeat: time between heartbeats (0.1)
        :param election_timeout: silence of a leader after which another one is elected (0.5)
        :param drift_percent: how much the clocks of members may drift (10)
        :param call_deadline: deadline of calls without a timeout (5)
        :param label: what other nodes see as the holder of a lock. Default: the name
        :param quota_bytes: maximum size of the state (2 GiB)
        :param snapshot_log_bytes: growth of the log before a snapshot is taken (32 MiB)
        """
        self.name = name
        self.data_dir = os.fspath(data_dir)
        settings: dict[str, Any] = {
            "members": list(members.items()) if isinstance(members, Mapping) else members,
            "join": None if join is None else list(join),
            "replacing": replacing,
            "join_deadline": join_deadline,
            "advertise": advertise,
            "listen": listen,
            "endpoints": None if endpoints is None else list(endpoints),
            "cluster_token": cluster_token,
            "peer_tls": peer_tls,
            "insecure_peers": insecure_peers,
            "session_ttl": session_ttl,
            "heartbeat": heartbeat,
            "election_timeout": election_timeout,
            "drift_percent": drift_percent,
            "call_deadline": call_deadline,
            "label": label,
            "quota_bytes": quota_bytes,
            "snapshot_log_bytes": snapshot_log_bytes,
        }
        self._settings = {name: value for name, value in settings.items() if value is not None}
        self._node: _native.Node | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.data_dir!r}, {self.name!r})"

    def __del__(self) -> None:
        if getattr(self, "_node", None) is not None:
            warnings.warn(f"{self!r} was not shut down", ResourceWarning, stacklevel=2)

    def _start_call(self) -> _native.Call[_native.Node]:
        if self._node is not None:
            raise NotStartedError("the node was already started")
        return _native.Node.start(self.data_dir, self.name, self._settings)

    def _started(self, node: _native.Node) -> None:
        self._node = node
        _running.add(self)

    def _shut_down(self) -> None:
        self._node = None
        _running.discard(self)

    def _native_node(self) -> _native.Node:
        if self._node is None:
            raise NotStartedError("not applied: the node is not running: call start(), or use it in a with block")
        return self._node

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the cluster. This is not leadership of an :meth:`election`."""
        return self.health().is_leader

    def health(self) -> Health:
        """Returns the health of the node. Never blocks."""
        return Health(*self._native_node().health())

    def status(self) -> NodeStatus:
        """Returns the role, the revision and the members, as known to this node. Never blocks."""
        return node_status(self._native_node())

    def metrics(self) -> str:
        """Returns the metrics in Prometheus' text format. Never blocks."""
        return self._native_node().metrics()


class SessionBase:
    """The calls of a session that never wait."""

    _session: _native.Session

    @property
    def lease(self) -> int:
        """The id of the session's lease."""
        return self._session.lease()

    @property
    def ttl(self) -> float:
        """Time in seconds that the session survives without renewal."""
        return self._session.ttl()

    @property
    def end(self) -> str | None:
        """Why the session has ended, or ``None`` while it lives. Never blocks."""
        return self._session.end()


class HoldBase:
    """The calls of a hold that never wait.

    At any time at most one of two conflicting holds in the whole cluster reports :attr:`is_held`, as long as the clocks
    drift no more than configured. After a pause of the process, the first call reports the loss.
    """

    _hold: _native.Hold

    @property
    def token(self) -> Token:
        """The fencing token, which is higher than that of every earlier holder of this lock."""
        return self._hold.token

    @property
    def is_held(self) -> bool:
        """Whether it is still held. Never blocks."""
        return self._hold.lost() is None

    def lost(self) -> LostReason | None:
        """Returns why it is not held any more, or ``None`` while it is held. Never blocks."""
        return self._hold.lost()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} token={self.token} lost={self.lost()}>"


class ItemBase:
    """The parts of a taken item."""

    _item: _native.Item

    @property
    def value(self) -> bytes:
        return self._item.value

    @property
    def text(self) -> str:
        """The value as text."""
        return self._item.text

    @property
    def id(self) -> str:
        return self._item.id

    @property
    def attempt(self) -> int:
        """How often the item has been taken, including this time."""
        return self._item.attempt

    @property
    def priority(self) -> int:
        return self._item.priority

    @property
    def token(self) -> Token:
        """The fencing token of this delivery, higher than that of every earlier delivery of the item."""
        return self._item.token

    @property
    def is_claimed(self) -> bool:
        """Whether the item still belongs to this taker. Never blocks."""
        return self._item.is_claimed()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} id={self.id} attempt={self.attempt}>"

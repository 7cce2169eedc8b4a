"""The blocking classes. Calls release the interpreter while they wait, and Ctrl-C interrupts them."""

from __future__ import annotations

import threading
from collections import defaultdict
from types import TracebackType
from typing import Callable, Iterable, Iterator

from . import _native
from ._base import HoldBase, ItemBase, NodeBase, SessionBase
from ._errors import BowlineError, LostError
from ._native import Event, KeyValue, LostReason
from ._txn import Compare, Op
from ._types import (
    Data,
    DeleteReply,
    Keys,
    Leader,
    Lease,
    Path,
    PutReply,
    QueuedItem,
    RangeReply,
    RevokeReply,
    TxnReply,
    delete_reply,
    leader,
    put_reply,
    range_reply,
    to_key,
    to_prefix,
    to_range,
    txn_reply,
)


_OpenQueue = Callable[[Data], _native.Queue]


class Node(NodeBase):
    """A member of a cluster in this process, for blocking programs. :class:`AsyncNode` is for asyncio.

    >>> with Node("data", "n1") as node:
    ...     node.kv.put("greeting", "hello")
    ...     with node.lock("locks/orders/42") as held:
    ...         print(held.token)
    """

    def start(self) -> Node:
        """Starts the node, and returns it. Does not wait for the other members: see :meth:`ready`."""
        self._started(self._start_call().wait())
        return self

    def shutdown(self) -> None:
        """Stops the node: its locks become free at once, and leadership is transferred. Takes up to a second."""
        if self._node is not None:
            self._node.shutdown().wait()
            self._shut_down()

    def __enter__(self) -> Node:
        return self.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.shutdown()

    def ready(self, timeout: float | None = None) -> None:
        """Waits until there is a leader and this node has caught up with it. Founding members must all be started."""
        self._native_node().ready(timeout).wait()

    @property
    def kv(self) -> Kv:
        """The keys of the cluster."""
        return Kv(self._native_node().kv())

    def lock(
        self, name: Data, *, timeout: float | None = None, reason: Data | None = None, max_hold: float | None = None
    ) -> Lock:
        """Returns the lock with this name, which is not acquired yet.

        :param timeout: how long to wait for the lock
        :param reason: text that operators see
        :param max_hold: time after which the lock is released automatically
        """
        return Lock(self._native_node().lock("mutex", name, 0, 0), timeout, reason, max_hold)

    def read_lock(self, name: Data, *, timeout: float | None = None) -> Lock:
        """Returns a read/write lock, to be acquired for reading."""
        return Lock(self._native_node().lock("read", name, 0, 0), timeout)

    def write_lock(self, name: Data, *, timeout: float | None = None) -> Lock:
        """Returns a read/write lock, to be acquired for writing."""
        return Lock(self._native_node().lock("write", name, 0, 0), timeout)

    def semaphore(self, name: Data, limit: int, *, permits: int = 1, timeout: float | None = None) -> Lock:
        """Returns a semaphore with ``limit`` permits, of which each acquisition takes ``permits``."""
        return Lock(self._native_node().lock("semaphore", name, limit, permits), timeout)

    def election(self, name: Data) -> Election:
        """Returns the election with this name."""
        return Election(self._native_node().election(name))

    def queue(self, name: Data, *, limit: int | None = None, attempts_max: int | None = None) -> Queue:
        """Returns the work queue with this name.

        :param limit: number of items at which puts are rejected
        :param attempts_max: number of deliveries after which an item moves to the dead letters
        """
        node = self._native_node()
        return Queue(node.queue(name, limit, attempts_max), lambda name: node.queue(name, None, None))

    def session(
        self,
        *,
        ttl: float | None = None,
        label: str | None = None,
        lock_delay: float | None = None,
        timeout: float | None = None,
    ) -> Session:
        """Opens a session, whose locks end with it. The other methods of the node use its own session.

        :param ttl: time that the session survives without renewal
        :param lock_delay: time after the end of the session during which its locks stay taken
        """
        return Session(self._native_node().open_session(ttl, label, lock_delay, timeout).wait())

    def transfer_leadership(self, to: int | None = None) -> None:
        """Transfers leadership of the cluster to another voter."""
        self._native_node().transfer_leadership(to).wait()

    def promote(self, member: int) -> None:
        """Makes a learner a voter."""
        self._native_node().promote(member).wait()

    def remove_member(self, member: int) -> None:
        """Removes a member permanently."""
        self._native_node().remove_member(member).wait()

    def backup(self, file: Path) -> None:
        """Writes a copy of the state to a file."""
        self._native_node().backup(file).wait()


class Session(SessionBase):
    """A session that the program has opened. Use it in a ``with`` block, or close it."""

    def __init__(self, session: _native.Session) -> None:
        self._session = session

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.end is None:
            self.close()

    def close(self) -> None:
        """Ends the session: its locks become free, and its keys are deleted."""
        self._session.close().wait()

    def wait_ended(self, timeout: float | None = None) -> str | None:
        """Waits until the session has ended, and returns why. Returns ``None`` after ``timeout`` seconds."""
        return self._session.wait_ended().wait(timeout)

    def lock(
        self, name: Data, *, timeout: float | None = None, reason: Data | None = None, max_hold: float | None = None
    ) -> Lock:
        """Returns a lock that ends with the session; see :meth:`Node.lock`."""
        return Lock(self._session.lock("mutex", name, 0, 0), timeout, reason, max_hold)

    def read_lock(self, name: Data, *, timeout: float | None = None) -> Lock:
        """See :meth:`Node.read_lock`."""
        return Lock(self._session.lock("read", name, 0, 0), timeout)

    def write_lock(self, name: Data, *, timeout: float | None = None) -> Lock:
        """See :meth:`Node.write_lock`."""
        return Lock(self._session.lock("write", name, 0, 0), timeout)

    def semaphore(self, name: Data, limit: int, *, permits: int = 1, timeout: float | None = None) -> Lock:
        """See :meth:`Node.semaphore`."""
        return Lock(self._session.lock("semaphore", name, limit, permits), timeout)

    def election(self, name: Data) -> Election:
        """See :meth:`Node.election`."""
        return Election(self._session.election(name))

    def queue(self, name: Data, *, limit: int | None = None, attempts_max: int | None = None) -> Queue:
        """See :meth:`Node.queue`."""
        session = self._session
        return Queue(session.queue(name, limit, attempts_max), lambda name: session.queue(name, None, None))


class Kv:
    """Reads, writes and watches. Keys and values are ``str`` or ``bytes``; results have ``bytes`` and ``text``."""

    def __init__(self, kv: _native.Kv) -> None:
        self._kv = kv

    def with_prefix(self, prefix: Data) -> Kv:
        """Returns the keys below a prefix, which is added to requests and removed from results."""
        return Kv(self._kv.with_prefix(prefix))

    @property
    def revision(self) -> int:
        """The revision that this node has applied. Never blocks."""
        return self._kv.revision()

    def get(
        self,
        key: Data,
        *,
        revision: int | None = None,
        at_least: int | None = None,
        local: bool = False,
        timeout: float | None = None,
    ) -> KeyValue | None:
        """Reads one key. Returns ``None`` if it does not exist.

        :param revision: read the key as of this earlier revision
        :param at_least: read this node's state, once it has reached this revision
        :param local: read this node's state as it is, which may lag behind. Default: linearizable
        """
        options = {"revision": revision, "at_least": at_least, "local": local, "timeout": timeout}
        return self._kv.get(key, options).wait()

    def range(
        self,
        start: Data,
        end: Data | None = None,
        *,
        limit: int | None = None,
        sort_by: str | None = None,
        descending: bool = False,
        keys_only: bool = False,
        count_only: bool = False,
        revision: int | None = None,
        at_least: int | None = None,
        local: bool = False,
        timeout: float | None = None,
    ) -> RangeReply:
        """Reads the keys from ``start`` up to ``end`` (exclusive), or without a bound if ``end`` is ``None``.

        :param sort_by: ``"key"``, ``"version"``, ``"create_revision"``, ``"mod_revision"`` or ``"value"``
        """
        rows = {
            "limit": limit,
            "sort_by": sort_by,
            "descending": descending,
            "keys_only": keys_only,
            "count_only": count_only,
        }
        options = {"revision": revision, "at_least": at_least, "local": local, "timeout": timeout}
        return range_reply(self._kv.range(to_range(start, end), rows, options).wait())

    def get_prefix(
        self,
        prefix: Data,
        *,
        limit: int | None = None,
        sort_by: str | None = None,
        descending: bool = False,
        keys_only: bool = False,
        count_only: bool = False,
        revision: int | None = None,
        at_least: int | None = None,
        local: bool = False,
        timeout: float | None = None,
    ) -> RangeReply:
        """Reads all keys that begin with a prefix; see :meth:`range`."""
        rows = {
            "limit": limit,
            "sort_by": sort_by,
            "descending": descending,
            "keys_only": keys_only,
            "count_only": count_only,
        }
        options = {"revision": revision, "at_least": at_least, "local": local, "timeout": timeout}
        return range_reply(self._kv.range(to_prefix(prefix), rows, options).wait())

    def put(
        self,
        key: Data,
        value: Data,
        *,
        lease: int | None = None,
        keep_lease: bool = False,
        ttl: float | None = None,
        prev_kv: bool = False,
        timeout: float | None = None,
    ) -> PutReply:
        """Writes a key.

        :param lease: delete the key when this lease ends
        :param keep_lease: keep the lease of the existing key
        :param ttl: delete the key after this many seconds, by a lease of its own
        :param prev_kv: return the previous row
        """
        options = {"lease": lease, "keep_lease": keep_lease, "ttl": ttl, "prev_kv": prev_kv, "timeout": timeout}
        return put_reply(self._kv.put(key, value, options).wait())

    def delete(self, key: Data, *, prev_kv: bool = False, timeout: float | None = None) -> DeleteReply:
        """Deletes one key."""
        return delete_reply(self._kv.delete(to_key(key), prev_kv, timeout).wait())

    def delete_prefix(self, prefix: Data, *, prev_kv: bool = False, timeout: float | None = None) -> DeleteReply:
        """Deletes all keys that begin with a prefix."""
        return delete_reply(self._kv.delete(to_prefix(prefix), prev_kv, timeout).wait())

    def txn(
        self,
        when: Iterable[Compare] = (),
        then: Iterable[Op] = (),
        or_else: Iterable[Op] = (),
        *,
        timeout: float | None = None,
    ) -> TxnReply:
        """Runs ``then`` if all conditions of ``when`` hold, otherwise ``or_else``, atomically."""
        return txn_reply(self._kv.txn(list(when), list(then), list(or_else), timeout).wait())

    def watch(
        self,
        key: Data,
        *,
        start_revision: int | None = None,
        prev_kv: bool = False,
        kind: str | None = None,
        timeout: float | None = None,
    ) -> Watch:
        """Starts to watch one key.

        :param start_revision: the first revision to deliver. Default: the next one
        :param prev_kv: add the row before the change
        :param kind: deliver only ``"put"`` or only ``"delete"``
        """
        return self._watch(to_key(key), start_revision, prev_kv, kind, timeout)

    def watch_prefix(
        self,
        prefix: Data,
        *,
        start_revision: int | None = None,
        prev_kv: bool = False,
        kind: str | None = None,
        timeout: float | None = None,
    ) -> Watch:
        """Starts to watch all keys that begin with a prefix; see :meth:`watch`."""
        return self._watch(to_prefix(prefix), start_revision, prev_kv, kind, timeout)

    def _watch(
        self, keys: Keys, start_revision: int | None, prev_kv: bool, kind: str | None, timeout: float | None
    ) -> Watch:
        return Watch(self._kv.watch(keys, start_revision, prev_kv, kind, timeout).wait())

    def compact(self, revision: int) -> int:
        """Discards the history before a revision. Returns the oldest revision that is left."""
        return self._kv.compact(revision).wait()

    def grant(self, ttl: float, *, timeout: float | None = None) -> Lease:
        """Grants a lease, which ends after ``ttl`` seconds unless it is renewed. Its keys are then deleted."""
        return Lease(*self._kv.grant(ttl, timeout).wait())

    def renew(self, lease: int) -> float:
        """Renews a lease once. Returns its time to live in seconds."""
        return self._kv.renew(lease).wait()

    def revoke(self, lease: int) -> RevokeReply:
        """Ends a lease and deletes its keys."""
        return RevokeReply(*self._kv.revoke(lease).wait())

    def time_to_live(self, lease: int) -> float | None:
        """Returns the time in seconds that a lease has left, or ``None`` if it does not exist."""
        return self._kv.time_to_live(lease).wait()


class Watch:
    """An iterator over the changes of keys, in order and without gaps. It waits for changes until it is closed.

    If the store has discarded changes before the program read them, the iterator raises :class:`CompactedError`.
    """

    def __init__(self, stream: _native.Stream) -> None:
        self._stream = stream

    @property
    def created_revision(self) -> int:
        """The revision at which the watch was created. Later changes are delivered."""
        revision = self._stream.created_revision
        assert revision is not None
        return revision

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def next(self, timeout: float | None = None) -> Event | None:
        """Returns the next change, or ``None`` after ``timeout`` seconds or if the watch is closed."""
        while True:
            for event in self._stream.pop():
                return event  # type: ignore[no-any-return]
            if not self._stream.fill().wait(timeout):
                return None

    def close(self) -> None:
        """Ends the watch. Another thread that waits for a change returns."""
        self._stream.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()


class Lock:
    """A lock. It is fair, it is not re-entrant, and any number of threads may use one object.

    >>> with node.lock("locks/orders/42") as held:
    ...     held.txn(then=[Op.put("orders/42/state", "paid")])

    If the lock was lost before the end of the block, the end of the block raises :class:`LostError`.
    """

    def __init__(
        self,
        lock: _native.Lock,
        timeout: float | None = None,
        reason: Data | None = None,
        max_hold: float | None = None,
    ) -> None:
        self._lock, self._timeout = lock, timeout
        self._options = {"reason": reason, "max_hold": max_hold}
        self._holds: dict[int, list[Hold]] = defaultdict(list)

    def acquire(self, *, timeout: float | None = None) -> Hold:
        """Waits for the lock. Raises :class:`LockTimeoutError` after ``timeout`` seconds."""
        timeout = self._timeout if timeout is None else timeout
        hold = self._lock.acquire({**self._options, "timeout": timeout, "only_try": False}).wait()
        assert hold is not None
        return Hold(hold)

    def try_acquire(self) -> Hold | None:
        """Acquires the lock if no other request holds it or waits for it. Waits only for the reply of the cluster."""
        hold = self._lock.acquire({**self._options, "timeout": None, "only_try": True}).wait()
        return None if hold is None else Hold(hold)

    def __enter__(self) -> Hold:
        hold = self.acquire()
        self._holds[threading.get_ident()].append(hold)
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        holds = self._holds[threading.get_ident()]
        hold = holds.pop()
        if not holds:
            del self._holds[threading.get_ident()]
        hold.__exit__(kind, error, trace)


class Hold(HoldBase):
    """A lock that is held until it is released or lost."""

    def __init__(self, hold: _native.Hold) -> None:
        self._hold = hold

    def wait_lost(self, timeout: float | None = None) -> LostReason | None:
        """Waits until the hold is lost or released, and returns why. Returns ``None`` after ``timeout`` seconds."""
        return self._hold.wait_lost().wait(timeout)

    def release(self) -> LostReason | None:
        """Ends the hold and waits until another task can acquire the lock. Returns the reason if it was lost before."""
        return self._hold.release().wait()

    def txn(
        self,
        when: Iterable[Compare] = (),
        then: Iterable[Op] = (),
        or_else: Iterable[Op] = (),
        *,
        ack: Iterable[Item] = (),
        release: bool = False,
        timeout: float | None = None,
    ) -> TxnReply:
        """Runs a transaction that the store applies only while the hold lasts. Raises :class:`LostError` after that.

        :param ack: queue items to acknowledge in the same transaction
        :param release: release the lock in the same transaction
        """
        items = [item._item for item in ack]
        call = self._hold.txn(list(when), list(then), list(or_else), items, release, timeout)
        return txn_reply(call.wait())

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = self.lost()
        if lost is None:
            try:
                lost = self.release()
            except BowlineError:
                # The node keeps trying to release the lock.
                return
        if lost is not None and lost.kind != "released" and kind is None:
            failure = LostError(f"it was lost before the end of the block: {lost}", "unknown")
            failure.reason = lost
            raise failure


class Leadership(Hold):
    """Leadership of an election, until it is resigned or lost."""

    @property
    def is_leader(self) -> bool:
        """Whether this candidate still leads. Never blocks."""
        return self.is_held

    def proclaim(self, value: Data) -> None:
        """Publishes a new value to the observers."""
        self._hold.proclaim(value).wait()

    def resign(self) -> LostReason | None:
        """Ends the leadership; the same as :meth:`release`."""
        return self.release()

    def __enter__(self) -> Leadership:
        return self


class Election:
    """An election, in which one candidate at a time leads."""

    def __init__(self, election: _native.Election) -> None:
        self._election = election

    def campaign(self, value: Data, *, timeout: float | None = None) -> Leadership:
        """Waits until this candidate leads. The value is shown to observers.

        >>> with node.election("jobs/leader").campaign("host-1") as leadership:
        ...     while leadership.is_leader: ...
        """
        return Leadership(self._election.campaign(value, timeout).wait())

    def leader(self) -> Leader | None:
        """Reads the current leader."""
        return leader(self._election.leader().wait())

    def observe(self) -> Observe:
        """Observes the leader from now on: first the current one, then every change."""
        return Observe(self._election.observe().wait())


class Observe:
    """An iterator over the leaders of an election. An element ``None`` means that there is no candidate."""

    def __init__(self, stream: _native.Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Leader | None]:
        return self

    def __next__(self) -> Leader | None:
        while True:
            for parts in self._stream.pop():
                return leader(parts)
            if not self._stream.fill().wait():
                raise StopIteration

    def close(self) -> None:
        """Ends the observation."""
        self._stream.close()

    def __enter__(self) -> Observe:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()


class Queue:
    """A work queue. Each item is delivered to one taker at a time, until that taker acknowledges it."""

    def __init__(self, queue: _native.Queue, open_queue: _OpenQueue) -> None:
        self._queue, self._open = queue, open_queue

    def put(
        self, value: Data, *, priority: int = 0, delay: float | None = None, timeout: float | None = None
    ) -> str:
        """Puts an item, and returns its id. Items with a lower priority are taken first. ``delay`` is in seconds."""
        return self._queue.put_many([value], priority, delay, timeout).wait()[0]

    def put_many(
        self, values: Iterable[Data], *, priority: int = 0, delay: float | None = None, timeout: float | None = None
    ) -> list[str]:
        """Puts items in one transaction."""
        return self._queue.put_many(list(values), priority, delay, timeout).wait()

    def take(self, *, timeout: float | None = None) -> Item:
        """Waits for an item. Raises :class:`QueueEmptyError` after ``timeout`` seconds.

        >>> with node.queue("jobs").take() as job:  # acknowledged at the end, or returned after an exception
        ...     print(job.text)
        """
        return Item(self._queue.take(timeout).wait())

    def try_take(self) -> Item | None:
        """Takes an item if there is one."""
        item = self._queue.try_take().wait()
        return None if item is None else Item(item)

    def len(self) -> int:
        """Counts the items, including taken ones."""
        return self._queue.len().wait()

    def items(self) -> list[QueuedItem]:
        """Lists the items, including taken ones."""
        return [QueuedItem(*item) for item in self._queue.items().wait()]

    def dead_letters(self) -> Queue:
        """Returns the queue of dead letters: items that were moved there, or delivered ``attempts_max`` times."""
        return Queue(self._open(self._queue.dead_letters_name()), self._open)


class Item(ItemBase):
    """A taken item, which must be acknowledged."""

    def __init__(self, item: _native.Item) -> None:
        self._item = item

    def ack(self, then: Iterable[Op] = ()) -> TxnReply | None:
        """Acknowledges the item, and applies ``then`` in the same transaction.

        Raises :class:`LostError`, and changes nothing, if the item no longer belongs to this taker.
        """
        parts = self._item.ack(list(then)).wait()
        return None if parts is None else txn_reply(parts)

    def dead_letter(self, reason: str) -> None:
        """Moves the item to the dead letters, with a reason."""
        self._item.dead_letter(reason).wait()

    def nack(self, *, delay: float | None = None) -> None:
        """Returns the item to the queue, at once or after ``delay`` seconds."""
        self._item.nack(delay).wait()

    def wait_lost(self, timeout: float | None = None) -> LostReason | None:
        """Waits until the item no longer belongs to this taker. Returns ``None`` after ``timeout`` seconds."""
        return self._item.wait_lost().wait(timeout)

    def __enter__(self) -> Item:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._item.is_open():
            # Acknowledged or returned inside the block.
            return
        if kind is None:
            self.ack()
            return
        try:
            self.nack()
        except BowlineError:
            # The exception of the block matters more. The node returns the item when the session ends.
            pass

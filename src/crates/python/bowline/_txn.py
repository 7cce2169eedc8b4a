"""Conditions and operations of transactions."""

from __future__ import annotations

from typing import Any, Iterable

from ._types import Data, Keys, to_key, to_prefix, to_range


class Compare:
    """A condition of a transaction.

    >>> Compare.value("config/rate").eq("100")
    >>> Compare.missing("jobs/1")
    """

    __slots__ = ("_parts",)

    def __init__(self, target: str, operator: str, keys: Keys, operand: Any) -> None:
        self._parts = (target, operator, keys, operand)

    def __repr__(self) -> str:
        return f"Compare{self._parts!r}"

    @staticmethod
    def value(key: Data) -> CompareValue:
        """Compares the value of a key, byte by byte."""
        return CompareValue("value", to_key(key))

    @staticmethod
    def version(key: Data) -> CompareNumber:
        """Compares the number of puts since the key was created. It is 0 for a key that does not exist."""
        return CompareNumber("version", to_key(key))

    @staticmethod
    def create_revision(key: Data) -> CompareNumber:
        """Compares the revision that created the key. It is 0 for a key that does not exist."""
        return CompareNumber("create_revision", to_key(key))

    @staticmethod
    def mod_revision(key: Data) -> CompareNumber:
        """Compares the revision of the last put. It is 0 for a key that does not exist."""
        return CompareNumber("mod_revision", to_key(key))

    @staticmethod
    def lease(key: Data) -> CompareNumber:
        """Compares the lease of the key. It is 0 for a key without a lease."""
        return CompareNumber("lease", to_key(key))

    @staticmethod
    def exists(key: Data) -> Compare:
        """Holds if the key exists."""
        return Compare.version(key).gt(0)

    @staticmethod
    def missing(key: Data) -> Compare:
        """Holds if the key does not exist."""
        return Compare.version(key).eq(0)


class CompareValue:
    """A value to compare; see :meth:`Compare.value`."""

    __slots__ = ("_keys", "_target")

    def __init__(self, target: str, keys: Keys) -> None:
        self._target, self._keys = target, keys

    def eq(self, value: Data) -> Compare:
        return Compare(self._target, "eq", self._keys, value)

    def ne(self, value: Data) -> Compare:
        return Compare(self._target, "ne", self._keys, value)

    def gt(self, value: Data) -> Compare:
        return Compare(self._target, "gt", self._keys, value)

    def lt(self, value: Data) -> Compare:
        return Compare(self._target, "lt", self._keys, value)


class CompareNumber:
    """A number to compare; see :meth:`Compare.version` and others."""

    __slots__ = ("_keys", "_target")

    def __init__(self, target: str, keys: Keys) -> None:
        self._target, self._keys = target, keys

    def eq(self, number: int) -> Compare:
        return Compare(self._target, "eq", self._keys, number)

    def ne(self, number: int) -> Compare:
        return Compare(self._target, "ne", self._keys, number)

    def gt(self, number: int) -> Compare:
        return Compare(self._target, "gt", self._keys, number)

    def lt(self, number: int) -> Compare:
        return Compare(self._target, "lt", self._keys, number)


class Op:
    """An operation of a transaction."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __repr__(self) -> str:
        return f"Op{self._parts!r}"

    @staticmethod
    def put(key: Data, value: Data, *, lease: int | None = None, prev_kv: bool = False) -> Op:
        """Writes a key."""
        return Op("put", key, value, lease, prev_kv)

    @staticmethod
    def get(key: Data) -> Op:
        """Reads one key. The result is a range with at most one row."""
        return Op("range", to_key(key), None)

    @staticmethod
    def get_prefix(prefix: Data, *, limit: int | None = None) -> Op:
        """Reads all keys that begin with a prefix."""
        return Op("range", to_prefix(prefix), limit)

    @staticmethod
    def range(start: Data, end: Data | None, *, limit: int | None = None) -> Op:
        """Reads the keys from ``start`` up to ``end`` (exclusive), or without a bound if ``end`` is ``None``."""
        return Op("range", to_range(start, end), limit)

    @staticmethod
    def delete(key: Data, *, prev_kv: bool = False) -> Op:
        """Deletes one key."""
        return Op("delete", to_key(key), prev_kv)

    @staticmethod
    def delete_prefix(prefix: Data, *, prev_kv: bool = False) -> Op:
        """Deletes all keys that begin with a prefix."""
        return Op("delete", to_prefix(prefix), prev_kv)

    @staticmethod
    def txn(when: Iterable[Compare] = (), then: Iterable[Op] = (), or_else: Iterable[Op] = ()) -> Op:
        """Runs a nested transaction."""
        return Op("txn", list(when), list(then), list(or_else))

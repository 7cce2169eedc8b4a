"""The bridge from native calls to asyncio."""

from __future__ import annotations

import asyncio
from typing import Optional, TypeVar, cast

from . import _native

_T = TypeVar("_T")


async def run(call: _native.Call[_T]) -> _T:
    """Makes a call in the background. Cancelling the task cancels the call."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(value: _T, error: BaseException | None) -> None:
        # The result of a cancelled call is dropped here, which releases a lock that arrived too late.
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def deliver(value: _T, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            # The event loop was closed meanwhile, so no task waits for the result.
            pass

    task = call.spawn(deliver)
    try:
        return await future
    finally:
        task.cancel()


async def run_for(call: _native.Call[_T], timeout: float | None) -> _T | None:
    """Like `run`, but returns `None` after `timeout` seconds."""
    task = asyncio.ensure_future(run(call))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout)
    finally:
        # A task that is done is not cancelled.
        task.cancel()
    return cast(Optional[_T], task.result()) if done else None

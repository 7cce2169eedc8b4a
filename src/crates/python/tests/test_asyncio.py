"""The asyncio API on one node."""

from __future__ import annotations

import asyncio
import tempfile
import time
import unittest
from pathlib import Path

import bowline
from bowline import AsyncNode, Compare, Op
from bowline._bridge import run


class Asyncio(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.node = await AsyncNode(Path(place.name) / "data", "solo").start()
        self.addAsyncCleanup(self.node.shutdown)

    async def test_keys(self) -> None:
        kv = self.node.kv
        await self.node.ready(timeout=30)
        await asyncio.gather(*(kv.put(f"k/{at:03}", str(at)) for at in range(100)))
        rows = await kv.get_prefix("k/", limit=10)
        self.assertEqual(([row.text for row in rows], rows.count), ([str(at) for at in range(10)], 100))
        reply = await kv.txn([Compare.exists("k/000")], then=[Op.delete("k/000", prev_kv=True)])
        self.assertTrue(reply)
        self.assertIsNone(await kv.get("k/000"))
        with self.assertRaises(bowline.RejectedError):
            await kv.put("", "")
        lease = await kv.grant(60)
        await kv.put("leased", "", lease=lease.id)
        self.assertEqual((await kv.revoke(lease.id)).deleted, 1)

    async def test_watch(self) -> None:
        kv = self.node.kv
        first = await kv.put("w/1", "a")
        seen = []
        async for event in kv.watch_prefix("w/", start_revision=first.revision):
            seen.append((event.kind, event.key_text))
            if len(seen) == 1:
                await kv.put("w/2", "b")
            elif len(seen) == 2:
                await kv.delete("w/1")
            else:
                break
        self.assertEqual(seen, [("put", "w/1"), ("put", "w/2"), ("delete", "w/1")])
        async with kv.watch("w/3") as watch:
            self.assertIsNone(await watch.next(timeout=0.05))
            await kv.put("w/3", "c")
            change = await watch.next(timeout=30)
            self.assertEqual(change and change.text, "c")

    async def test_cancelled_reader_loses_no_event(self) -> None:
        kv = self.node.kv
        watch = await kv.watch_prefix("w/")
        seen: list[str] = []

        async def read() -> None:
            async for event in watch:
                seen.append(event.text)

        for at in range(50):
            reader = asyncio.create_task(read())
            put = asyncio.create_task(kv.put("w/1", str(at)))
            # Cancels at another moment each time, mostly while the event is on its way.
            await asyncio.sleep(0.0002 * at)
            reader.cancel()
            await put
            with self.assertRaises(asyncio.CancelledError):
                await reader
        while len(seen) < 50:
            change = await watch.next(timeout=30)
            assert change is not None
            seen.append(change.text)
        self.assertEqual(seen, [str(at) for at in range(50)])
        watch.close()

    async def test_lock_has_one_holder(self) -> None:
        lock, inside, most = self.node.lock("lock"), 0, 0

        async def work() -> None:
            nonlocal inside, most
            async with lock as held:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                self.assertTrue(held.is_held)
                inside -= 1

        await asyncio.gather(*(work() for _ in range(20)))
        self.assertEqual(most, 1)

    async def test_cancelled_acquire_leaves_nothing_behind(self) -> None:
        held = await self.node.lock("lock").acquire()
        waits = [asyncio.create_task(self.node.lock("lock").acquire()) for _ in range(10)]
        await asyncio.sleep(0.1)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        self.assertIsNone(await held.release())
        # Nothing holds the lock or waits for it, and the keys of its queue are gone.
        again = await self.node.lock("lock", timeout=30).acquire()
        await again.release()
        deadline = time.monotonic() + 30
        while (await self.node.kv.get_prefix("lock/")).count:
            self.assertLess(time.monotonic(), deadline)
            await asyncio.sleep(0.01)

    async def test_acquire_that_is_cancelled_at_any_moment_releases_the_lock(self) -> None:
        for at in range(50):
            task = asyncio.create_task(self.node.lock("lock").acquire())
            await asyncio.sleep(0.0001 * at)
            task.cancel()
            try:
                await (await task).release()
            except asyncio.CancelledError:
                pass
            free = await self.node.lock("lock", timeout=30).acquire()
            await free.release()

    async def test_loss_reaches_the_holder(self) -> None:
        with self.assertRaises(bowline.LostError) as lost:
            async with self.node.lock("lock") as held:
                waiter = asyncio.create_task(held.wait_lost())
                await self.node.kv.delete_prefix("lock/")
                reason = await asyncio.wait_for(waiter, 30)
                self.assertEqual(reason and reason.kind, "key_deleted")
        self.assertEqual(lost.exception.reason and lost.exception.reason.kind, "key_deleted")

    async def test_election(self) -> None:
        election = self.node.election("leader")
        async with election.campaign("host-1") as leadership:
            self.assertTrue(leadership.is_leader)
            async for leader in election.observe():
                self.assertEqual(leader and leader.text, "host-1")
                break
            with self.assertRaises(TimeoutError):
                await election.campaign("host-2", timeout=0.1)
        self.assertFalse(leadership.is_leader)
        self.assertIsNone(await election.leader())

    async def test_queue(self) -> None:
        queue = self.node.queue("jobs")
        await queue.put_many(["1", "2"])
        with self.assertRaises(ZeroDivisionError):
            async with queue.take() as job:
                1 / 0
        async with queue.take() as job:
            self.assertEqual((job.text, job.attempt), ("1", 2))
        job = await queue.take()
        await job.ack(then=[Op.put("done", job.value)])
        self.assertEqual(await queue.len(), 0)
        # A cancelled take leaves the item to others.
        take = asyncio.create_task(queue.take().__aenter__())
        await asyncio.sleep(0.05)
        take.cancel()
        await queue.put("3")
        async with queue.take(timeout=30) as job:
            self.assertEqual(job.text, "3")

    async def test_session(self) -> None:
        async with self.node.session(ttl=60) as session:
            held = await session.lock("lock").acquire()
        self.assertEqual(getattr(held.lost(), "kind", None), "session_ended")

    async def test_event_loop_runs_while_a_call_waits(self) -> None:
        held = await self.node.lock("lock").acquire()
        wait = asyncio.create_task(self.node.lock("lock").acquire())
        ticks = 0
        for _ in range(20):
            await asyncio.sleep(0.01)
            ticks += 1
        self.assertFalse(wait.done())
        await held.release()
        await (await wait).release()
        self.assertEqual(ticks, 20)


class Loops(unittest.TestCase):
    def test_lock_for_a_closed_loop_is_released(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            with bowline.Node(Path(place) / "data", "solo") as node:
                held = node.lock("lock").acquire()
                options = {"timeout": None, "reason": None, "max_hold": None, "only_try": False}
                call = node._native_node().lock("mutex", "lock", 0, 0).acquire(options)
                loop = asyncio.new_event_loop()
                wait = loop.create_task(run(call))
                loop.run_until_complete(asyncio.sleep(0.1))
                loop.close()
                self.assertFalse(wait.done())
                held.release()
                node.lock("lock", timeout=30).acquire().release()
                # The loop does not report the task, which nothing can complete any more.
                setattr(wait, "_log_destroy_pending", False)


if __name__ == "__main__":
    unittest.main()

"""Programs that end while calls are pending, locks are held, or nodes run."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import unittest

from support import TempDirCase

SLOW_FINALIZATION = """
    import gc, time

    class Slow:
        def __init__(self):
            self.me = self

        def __del__(self, sleep=time.sleep):
            sleep(0.3)

    # The interpreter collects this cycle during its finalization, so that other threads run meanwhile.
    gc.set_threshold(0)
    Slow()
"""


class Exit(TempDirCase):
    def run_program(self, *parts: str, runs: int) -> None:
        """Runs a program several times. Every run must end by itself, with exit code 0."""
        program = "".join(textwrap.dedent(part) for part in parts)
        codes = []
        errors = ""
        for at in range(runs):
            place = self.place / str(at)
            place.mkdir()
            done = subprocess.run(
                [sys.executable, "-c", program], cwd=place, timeout=60, capture_output=True, text=True
            )
            codes.append(done.returncode)
            errors = errors or (done.stderr if done.returncode else "")
        self.assertEqual(codes, [0] * runs, errors)

    def test_watch_is_left_by_break(self) -> None:
        program = """
            import asyncio
            from bowline import AsyncNode

            async def main():
                async with AsyncNode("data", "n1") as node:
                    await node.kv.put("images/1", "resized")
                    async for event in node.kv.watch_prefix("images/", start_revision=1):
                        break

            asyncio.run(main())
        """
        self.run_program(program, runs=20)

    def test_node_runs_with_pending_calls_and_a_held_lock(self) -> None:
        program = """
            import asyncio
            from bowline import AsyncNode

            async def main():
                global node, held, watch
                node = await AsyncNode("data", "n1").start()
                held = await node.lock("lock").acquire()
                watch = await node.kv.watch_prefix("images/")
                asyncio.create_task(node.lock("lock").acquire())
                asyncio.create_task(held.wait_lost())
                await node.kv.put("images/1", "resized")

            asyncio.run(main())
        """
        self.run_program(program, runs=20)

    def test_result_is_delivered_during_the_shutdown(self) -> None:
        # The background thread is still in `call_soon_threadsafe` when the main thread ends.
        program = """
            import asyncio
            from bowline import AsyncNode

            async def main():
                loop = asyncio.get_running_loop()
                schedule = loop.call_soon_threadsafe

                def schedule_slowly(*arguments):
                    schedule(*arguments)
                    time.sleep(0.1)

                loop.call_soon_threadsafe = schedule_slowly
                async with AsyncNode("data", "n1") as node:
                    await node.ready()

            asyncio.run(main())
        """
        self.run_program(SLOW_FINALIZATION, program, runs=5)

    def test_threads_make_calls_during_the_shutdown(self) -> None:
        program = """
            import sys, threading
            from bowline import BowlineError, Node

            sys.setswitchinterval(1e-6)
            with Node("data", "n1") as node:
                node.ready()
                lock = node.lock("lock")

            def acquire():
                while True:
                    try:
                        lock.acquire()
                    except BowlineError:
                        pass

            for _ in range(8):
                threading.Thread(target=acquire, daemon=True).start()
            time.sleep(0.05)
        """
        self.run_program(SLOW_FINALIZATION, program, runs=10)

    def test_exit_cancels_calls_that_the_stopped_nodes_do_not_end(self) -> None:
        program = """
            import asyncio, atexit, threading, time

            @atexit.register
            def join():
                # This function was registered first, so it runs last.
                thread.join()
                assert isinstance(failure, RuntimeError), failure
                assert time.monotonic() - ended < 10
                try:
                    node.kv.get("a")
                except bowline.StoppedError:
                    pass
                try:
                    asyncio.run(bowline.AsyncNode("data", "n1").start())
                except RuntimeError:
                    print("done")

            import bowline

            def start():
                global failure
                try:
                    bowline.Node("n2", "n2", join=["127.0.0.1:1"], advertise="127.0.0.1:2").start()
                except Exception as error:
                    failure = error

            node = bowline.Node("data", "n1").start()
            thread = threading.Thread(target=start, daemon=True)
            thread.start()
            time.sleep(0.1)
            ended = time.monotonic()
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            cwd=self.place,
            timeout=60,
            capture_output=True,
            text=True,
        )
        self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()

"""Three processes: a held interpreter, a stopped process, and killed processes."""

from __future__ import annotations

import random
import threading
import time
import unittest

from support import ClusterCase

TTL = 3.0
PAUSE = 15.0


class Interpreter(ClusterCase):
    settings = {"session_ttl": TTL}

    def test_lease_lives_while_c_code_holds_the_interpreter(self) -> None:
        holder = self.follower()
        rival = next(worker for worker in self.workers.values() if worker is not holder)
        self.assertIsNotNone(holder.ask("acquire", name="lock", wait=30)["token"])
        holder.send("hold_interpreter", seconds=PAUSE)
        # The rival waits for nearly the whole time, and does not get the lock.
        self.assertIsNone(rival.ask("acquire", name="lock", wait=PAUSE - 2)["token"])
        result = holder.receive()
        self.assertGreaterEqual(result["slept"], PAUSE)
        self.assertTrue(result["held"])
        self.assertTrue(result["written"])
        self.assertIsNone(result["control_left"])


class Stopped(ClusterCase):
    settings = {"session_ttl": TTL}

    def test_stopped_process_sees_the_loss_before_the_next_holder_enters(self) -> None:
        holder = self.follower()
        rival = next(worker for worker in self.workers.values() if worker is not holder)
        first = holder.ask("acquire", name="lock", wait=30)
        holder.ask("look", seconds=PAUSE + 3)
        began = time.monotonic()
        rival.send("acquire", name="lock", wait=30)
        time.sleep(1)
        holder.pause()
        second = rival.receive()
        self.assertIsNotNone(second["token"])
        time.sleep(max(0.0, began + 1 + PAUSE - time.monotonic()))
        holder.resume()
        result = holder.receive()
        # No look after the pause saw the lock as held, and the last one before it was before the rival entered.
        self.assertLess(result["last_held"], second["entered"])
        self.assertLess(result["gap"], PAUSE)
        self.assertEqual(result["lost"], "session_ended")
        self.assertEqual(result["refused"], "not_applied")
        self.assertGreater(
            [int(part) for part in second["token"].split(".")], [int(part) for part in first["token"].split(".")]
        )


class Killed(ClusterCase):
    settings = {"session_ttl": TTL}
    increments = 1_000

    def test_increments_under_a_lock_are_exact_while_processes_are_killed(self) -> None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}", flush=True)
        choice = random.Random(seed)
        witness = str(self.place / "witness")
        kills = 0
        for worker in self.workers.values():
            worker.send("increment", until=self.increments, witness=witness)
        finished = threading.Event()
        until = time.monotonic() + 300
        while not finished.wait(choice.uniform(0.5, 1.5)):
            self.assertLess(time.monotonic(), until, "too slow")
            if any(not worker.lines.empty() for worker in self.workers.values()):
                break
            name = choice.choice(sorted(self.workers))
            self.workers[name].kill()
            kills += 1
            self.workers[name] = self.start(name)
            self.workers[name].receive()
            self.workers[name].send("increment", until=self.increments, witness=witness)
        for worker in self.workers.values():
            self.assertIn("done", worker.receive(timeout=120))
        result = self.workers["n1"].ask("read")
        print(f"{kills} processes killed", flush=True)
        self.assertGreater(kills, 2)
        self.assertIsNone(result["broken"])
        self.assertEqual(result["counter"], self.increments)
        self.assertEqual(result["done"], list(range(1, self.increments + 1)))


if __name__ == "__main__":
    unittest.main()

"""A process with one member. Reads commands as lines of JSON, and answers each with one line."""

from __future__ import annotations

import ctypes
import fcntl
import json
import sys
import threading
import time
import traceback
from typing import Any

import bowline
from bowline import Compare, Node, Op


def answer(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


class Program:
    """What the process does."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.hold: bowline.Hold | None = None

    def role(self) -> dict[str, Any]:
        return {"role": self.node.status().role}

    def acquire(self, name: str, wait: float) -> dict[str, Any]:
        """Acquires a lock, and says when it was entered. The clock is the same in all processes."""
        try:
            self.hold = self.node.lock(name, timeout=wait).acquire()
        except TimeoutError:
            return {"token": None}
        return {"token": str(self.hold.token), "entered": time.monotonic()}

    def hold_interpreter(self, seconds: float) -> dict[str, Any]:
        """Sleeps in C without releasing the interpreter, and says whether the lock was still held."""
        assert self.hold is not None
        # The control: a lease that a Python thread renews is lost.
        lease = self.node.kv.grant(self.node.session().ttl).id
        threading.Thread(target=self.renew, args=(lease,), daemon=True).start()
        began = time.monotonic()
        ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))
        held = self.hold.is_held
        slept = time.monotonic() - began
        reply = self.hold.txn(then=[Op.put("written", "under the lock")])
        left = self.node.kv.time_to_live(lease)
        return {"held": held, "slept": slept, "written": bool(reply), "control_left": left}

    def renew(self, lease: int) -> None:
        """Renews a lease from Python until it is lost."""
        try:
            while True:
                self.node.kv.renew(lease)
                time.sleep(0.1)
        except bowline.RejectedError:
            pass

    def look(self, seconds: float) -> dict[str, Any]:
        """Looks at the lock again and again, and says when it was last seen held."""
        assert self.hold is not None
        answer(looking=True)
        last = None
        gap = 0.0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # The time before the look: if the process is stopped between the two, the look sees it.
            now = time.monotonic()
            if self.hold.is_held:
                gap = max(gap, now - (last or now))
                last = now
            time.sleep(0.001)
        lost = self.hold.lost()
        try:
            self.hold.txn(then=[Op.put("written", "too late")])
            refused = None
        except bowline.LostError as error:
            refused = error.effect
        return {"last_held": last, "gap": gap, "lost": lost and lost.kind, "refused": refused}

    def increment(self, until: int, witness: str) -> dict[str, Any]:
        """Increments a counter under a lock until it has a value. Each value is recorded with the counter."""
        done = 0
        with open(witness, "w") as file:
            while True:
                try:
                    with self.node.lock("lock", timeout=30) as held:
                        # Fails if another living process is inside.
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        try:
                            row = self.node.kv.get("counter")
                            value = 0 if row is None else int(row.text)
                            if value >= until:
                                return {"done": done}
                            value += 1
                            ops = [Op.put("counter", str(value)), Op.put(f"done/{value}", self.node.name)]
                            held.txn([Compare.missing(f"done/{value}")], ops, [Op.put("broken", str(value))])
                            done += 1
                        finally:
                            fcntl.flock(file, fcntl.LOCK_UN)
                except bowline.BowlineError as error:
                    # Another member was killed: the call is repeated, whatever became of this increment.
                    if not isinstance(error, (bowline.LostError, TimeoutError, bowline.SessionEndedError)):
                        raise

    def read(self) -> dict[str, Any]:
        done = self.node.kv.get_prefix("done/")
        counter, broken = self.node.kv.get("counter"), self.node.kv.get("broken")
        return {
            "counter": counter and int(counter.text),
            "done": sorted(int(row.key_text.split("/")[1]) for row in done),
            "broken": broken and broken.text,
        }


def main() -> None:
    arguments = json.loads(sys.argv[1])
    node = Node(arguments["data_dir"], arguments["name"], members=arguments["members"], **arguments["settings"])
    with node:
        node.ready(timeout=60)
        program = Program(node)
        answer(ready=True)
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer(**getattr(program, command.pop("command"))(**command))
            except Exception:
                answer(failed=traceback.format_exc())


main()

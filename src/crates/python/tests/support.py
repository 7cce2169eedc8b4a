"""What the tests share: free ports, temporary directories, worker processes."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any

import bowline

WAIT = 60.0
"""Seconds after which a test gives up waiting."""


def free_ports(count: int) -> list[int]:
    """Returns ports that are free now, below the range from which the system takes ports for connections."""
    sockets: list[socket.socket] = []
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            first = int(file.read().split()[0])
    except OSError:
        first = 32768
    # Tests that run at the same time have neighboring process ids, and take ports that are far from each other.
    port = first - 1 - os.getpid() * 101 % 15_000
    while len(sockets) < count:
        port -= 1
        attempt = socket.socket()
        try:
            attempt.bind(("127.0.0.1", port))
            sockets.append(attempt)
        except OSError:
            attempt.close()
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class TempDirCase(unittest.TestCase):
    """A test with a temporary directory."""

    def setUp(self) -> None:
        self._place = tempfile.TemporaryDirectory()
        self.place = Path(self._place.name)
        self.addCleanup(self._place.cleanup)


class NodeCase(TempDirCase):
    """A test with a node that is a cluster of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.node = bowline.Node(self.place / "data", "solo").start()
        self.addCleanup(self.node.shutdown)


class Worker:
    """A Python process with one member. It runs `tests/worker.py`, which reads commands as lines of JSON."""

    def __init__(self, place: Path, name: str, members: dict[str, str], **settings: Any) -> None:
        self.place, self.name, self.members, self.settings = place, name, members, settings
        self.lines: queue.Queue[dict[str, Any]] = queue.Queue()
        script = Path(__file__).with_name("worker.py")
        arguments = json.dumps(
            {"data_dir": str(place / name), "name": name, "members": members, "settings": settings}
        )
        self.process = subprocess.Popen(
            [sys.executable, str(script), arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True).start()

    @staticmethod
    def _read(stdout: Any, lines: queue.Queue[dict[str, Any]]) -> None:
        for line in stdout:
            lines.put(json.loads(line))
        stdout.close()
        lines.put({"failed": "the process has ended"})

    def send(self, command: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self.process.stdin.flush()

    def receive(self, timeout: float = WAIT) -> dict[str, Any]:
        """Returns the next line of the worker."""
        answer = self.lines.get(timeout=timeout)
        if "failed" in answer:
            raise AssertionError(f"{self.name}: {answer['failed']}")
        return answer

    def ask(self, command: str, timeout: float = WAIT, **arguments: Any) -> dict[str, Any]:
        self.send(command, **arguments)
        return self.receive(timeout)

    def kill(self) -> None:
        """Kills the process, as by kill -9."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except OSError:
                pass

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


class ClusterCase(TempDirCase):
    """A test with three processes."""

    settings: dict[str, Any] = {}

    def setUp(self) -> None:
        super().setUp()
        self.members = {f"n{at}": f"127.0.0.1:{port}" for at, port in enumerate(free_ports(3), 1)}
        self.workers = {name: self.start(name) for name in self.members}
        self.addCleanup(self.kill_all)
        for worker in self.workers.values():
            worker.receive()

    def kill_all(self) -> None:
        for worker in self.workers.values():
            worker.kill()

    def start(self, name: str) -> Worker:
        return Worker(self.place, name, self.members, **self.settings)

    def follower(self) -> Worker:
        """Returns a worker whose node does not lead."""
        until = time.monotonic() + WAIT
        while time.monotonic() < until:
            roles = {name: worker.ask("role")["role"] for name, worker in self.workers.items()}
            if "leader" in roles.values():
                return next(self.workers[name] for name, role in roles.items() if role == "follower")
        raise AssertionError("no leader")

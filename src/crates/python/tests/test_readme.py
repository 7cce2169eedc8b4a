"""The programs of the README run as displayed."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import unittest
from pathlib import Path

from support import TempDirCase, free_ports

README = Path(os.environ["BOWLINE_PYTHON_README"])


class Readme(TempDirCase):
    def test_programs_run_as_displayed(self) -> None:
        programs = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
        self.assertEqual(len(programs), 2)
        for at, program in enumerate(programs):
            place = self.place / str(at)
            place.mkdir()
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", program], cwd=place, timeout=60, capture_output=True, text=True
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""), program)
            self.assertIn("token" if at == 0 else "resized", done.stdout)

    def test_program_for_three_members_elects_one_after_the_other(self) -> None:
        found = re.search(r"^```python no-run\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
        assert found is not None
        program = found[1]
        for at, port in enumerate(free_ports(3), 7701):
            program = program.replace(f":{at}", f":{port}")
        running: dict[int, subprocess.Popen[str]] = {}
        try:
            for name in ("n1", "n2", "n3"):
                process = subprocess.Popen(
                    [sys.executable, "-u", "-c", program, name], cwd=self.place, stdout=subprocess.PIPE, text=True
                )
                assert process.stdout is not None
                running[process.stdout.fileno()] = process
            leaders = []
            for _ in range(2):
                ready, _, _ = select.select(list(running), [], [], 60)
                self.assertEqual(len(ready), 1)
                leader = running.pop(ready[0])
                assert leader.stdout is not None
                leaders.append(leader.stdout.readline().split()[0])
                self.end(leader)
            self.assertEqual(len(set(leaders)), 2)
        finally:
            for process in running.values():
                self.end(process)

    @staticmethod
    def end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


if __name__ == "__main__":
    unittest.main()

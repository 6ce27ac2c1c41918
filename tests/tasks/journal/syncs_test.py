"""The journal of tasks is on the disk before it counts, by the calls that bring it there.

    syncs_test.py MUSTER RECORD_SYNCS_LIBRARY
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "support"))
from syncs import Syncs

MUSTER = LIBRARY = ""

# `first` and `other` end when the file is there that has their name.
SPEC = """
[[task]]
name = "first"
argv = ["sh", "-c", "until [ -e first ]; do sleep 0.02; done"]

[[task]]
name = "other"
argv = ["sh", "-c", "until [ -e other ]; do sleep 0.02; done"]

[[task]]
name = "second"
argv = ["touch", "second-ran"]
after = ["first"]
"""


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"it did not happen within {seconds} s")
        time.sleep(0.01)


class JournalSyncs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="muster-syncs-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "spec.toml").write_text(SPEC)
        self.syncs = Syncs(LIBRARY, self.folder)

    def start(self):
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", MUSTER_RUNTIME_DIR=str(self.folder / "runtime"), **self.syncs.environment)
        (self.folder / "runtime").mkdir(mode=0o700)
        process = subprocess.Popen([MUSTER, "tasks", "spec.toml", "--run-dir", "run", "--cpus", "2"], cwd=self.folder,
                                   env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def has(self, event, task):
        """The journal has the record, on the disk or not."""
        journal = self.folder / "run" / "journal"
        return journal.exists() and f'"e":"{event}","task":"{task}"' in journal.read_text()

    def let_end(self, process, task):
        (self.folder / task).touch()
        wait_for(lambda: self.has("end", task) or process.poll() is not None)

    def index_of(self, *words):
        found = [number for number, line in enumerate(self.syncs.lines()) if all(word in line for word in words)]
        self.assertTrue(found, (words, self.syncs.lines()))
        return found[0]

    def test_a_task_waits_until_the_end_of_the_one_before_it_is_on_the_disk(self):
        process = self.start()
        wait_for(lambda: self.has("start", "first") and self.has("start", "other") or process.poll() is not None)
        self.syncs.block()
        self.let_end(process, "first")
        self.let_end(process, "other")  # what ended before it has been looked at
        self.assertFalse(self.has("start", "second"))
        self.assertFalse((self.folder / "second-ran").exists())
        self.syncs.unblock()
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out)
        self.assertTrue((self.folder / "second-ran").exists())

    def test_the_tasks_and_the_names_of_their_files_are_on_the_disk_before_the_first_record(self):
        for task in ("first", "other"):
            (self.folder / task).touch()
        process = self.start()
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out)
        run = self.folder / "run"
        first_record = self.index_of("fdatasync", f"{run}/journal")
        lines = self.syncs.lines()[:first_record]
        for path in (run / "tasks.json", run, self.folder):
            self.assertIn(f"fsync {path}", lines)
        self.assertLess(lines.index(f"fsync {run}/tasks.json"), lines.index(f"fsync {run}"))


if __name__ == "__main__":
    MUSTER, LIBRARY = (str(pathlib.Path(path).resolve()) for path in (sys.argv.pop(1), sys.argv.pop(1)))
    unittest.main(verbosity=2)

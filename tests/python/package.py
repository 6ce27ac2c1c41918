"""Finds the package `muster` for tests, and a folder for each."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TORCH_PYTHON = os.environ.get("MUSTER_TEST_PYTHON")
PATH = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])


class PackageCase(unittest.TestCase):
    """A folder of its own, and scripts that run in it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="muster-python-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {**os.environ, "PYTHONPATH": PATH, "MUSTER_CPU_SLOTS": "4"}

    def write(self, text, name="script.py"):
        path = self.folder / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def start(self, text, python=sys.executable, as_module=False, stdin=subprocess.DEVNULL, **how):
        """A script, running; with as_module as `python -m` runs it."""
        path = self.write(text)
        return subprocess.Popen([python, "-B", *(["-m", path.stem] if as_module else [str(path)])], cwd=self.folder, env={**self.environment, **how},
                                stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)

    def run_script(self, text, python=sys.executable, as_module=False, **how):
        """A script to its end: exit code, standard output, standard error."""
        process = self.start(text, python, as_module, **how)
        try:
            out, err = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, out, err

    def must_print(self, text, expected, **how):
        code, out, err = self.run_script(text, **how)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(out, textwrap.dedent(expected), err)

    def read_line(self, process, stream):
        """The next one that it prints there; the bound is for what never comes, and ends the process."""
        bound = threading.Timer(120, os.killpg, (process.pid, signal.SIGKILL))
        bound.start()
        try:
            return stream.readline()
        finally:
            bound.cancel()

    def wait_for(self, condition, what):
        """An event; the bound is for what never comes."""
        until = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), until, what)
            time.sleep(0.02)

    def pids_in(self, name="pids"):
        """Those that processes have written, a file each, into a folder of that name."""
        return [int(path.name) for path in (self.folder / name).glob("*")]

    def wait_for_the_end_of(self, pids):
        self.wait_for(lambda: not any(is_alive(pid) for pid in pids), f"{pids} live on")


def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"

"""Where a row happens: a folder and an environment of its own, jobs of the real `muster` in it, and nothing left."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from hosts import wait_for

class Skip(Exception):
    """Why a row cannot be injected here."""


def expect(condition, seen):
    if not condition:
        raise AssertionError(seen)


def at_once(seconds):
    """No timeout of muster's was waited for: the shortest that could have been is 10 s."""
    expect(seconds < 8, f"{seconds:.2f} s, and the page says at once")


def sh(script):
    return ["sh", "-c", script]


class Job(subprocess.Popen):
    """A process whose place hears what it says to the end."""
    place = None

    def communicate(self, *args, **more):
        said = super().communicate(*args, **more)
        self.place.hear(*said)
        return said


class Place:
    def __init__(self, muster, probe=""):
        self.heard = []
        self.muster = muster
        self.probe_program = probe
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-fault-"))
        (self.folder / "runtime").mkdir(mode=0o700)
        self.environment = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": str(self.folder),
                            "MUSTER_RUNTIME_DIR": str(self.folder / "runtime"), "CUDA_VISIBLE_DEVICES": "",
                            "OMP_NUM_THREADS": "1"}
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            if process.poll() is None:
                process.kill()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def probe(self):
        """The program whose ranks use process groups."""
        if not self.probe_program:
            raise Skip("built without LibTorch")
        return self.probe_program

    def start(self, *args, program=None, env=None, seconds=80, **more):
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        more.setdefault("stdin", subprocess.DEVNULL)
        process = Job([program or self.muster, *args], env=dict(self.environment, **(env or {})), cwd=self.folder,
                      start_new_session=True, **more)
        process.place = self
        self.running.append(process)
        timer = threading.Timer(seconds, process.kill)  # so that no row hangs
        timer.daemon = True
        timer.start()
        return process

    def run(self, *args, timeout=60, **more):
        process = self.start(*args, **more)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace")

    def hear(self, *texts):
        """What the row's jobs have said is compared with the page at its end."""
        for text in texts:
            self.heard.append(text.decode(errors="replace") if isinstance(text, bytes) else text or "")

    def exit_codes(self):
        return {process.poll() for process in self.running}

    def left(self):
        """Processes that came from this row: by their working folder."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if str(self.folder) in os.readlink(entry / "cwd") and state_of(entry.name) != "Z":
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def gone_after(self, seconds):
        start = time.monotonic()
        wait_for(lambda: not self.left(), seconds)
        return time.monotonic() - start


def read_until(process, text, stream=None):
    """What the process prints (to `stream`: its standard output) up to the line that has `text`."""
    stream = stream or process.stdout
    seen = b""
    while text.encode() not in seen:
        line = stream.readline()
        process.place.hear(line)
        if not line:
            said = process.stderr.read().decode(errors="replace")
            raise AssertionError(f"no '{text}' but: {seen.decode(errors='replace')} {said}")
        seen += line
    return seen.decode(errors="replace")


def state_of(pid):
    """The kernel's letter: R, S, D, T, Z. Raises OSError when there is no such process."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]


def rss(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) << 10

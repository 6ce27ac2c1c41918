"""`muster tasks --serve` behind an Executor: it starts tasks on their devices, holds the leases, and ends what they leave.

Messages are JSON objects, one a line (muster/tasks/hosts/remote_message.h). Texts that may be any bytes have a character for
each byte.
"""
from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import uuid
from typing import Any, Callable, Dict, List, Optional, Sequence

from muster._forks import owned_by_this_process
from muster._leases import lease_descriptors
from muster._program import program
from muster._python_path import working_folder
from muster._version import __version__
from muster.errors import Unavailable


class TaskServer:
    """One process of the program. `on_message` is called, in a thread of this object, for each message, and with a last one
    {"muster": "gone"} when no more will come."""

    def __init__(self, run_dir: str, grace_seconds: float, lease: bool) -> None:
        self._lock = threading.Lock()
        self.environment = dict(os.environ)  # the tasks inherit it
        self._process = subprocess.Popen([program(), "tasks", "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                                         pass_fds=lease_descriptors(), start_new_session=True)
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin, open(self._process.stdout.fileno(), "rb", closefd=False)
        self._reader: Optional[threading.Thread] = None
        owned_by_this_process(self)  # the server ends when every copy of its standard input is closed
        self._say({"muster": "hello", "version": __version__, "name": "this host", "folder": "", "environment": [], "gpus": True,
                   "links": True, "cpu_topology": False, "held": True, "run_id": str(uuid.uuid4())})
        first = self._read_or_fail()
        self.inventory: Dict[str, Any] = json.loads(first["inventory"])
        self.held: List[Dict[str, Any]] = first["held"]
        self._say({"muster": "begin", "run_id": str(uuid.uuid4()), "run_dir": _bytes_text(run_dir), "mark": str(uuid.uuid4()),
                   "earlier": [], "grace": int(1000 * grace_seconds), "lease": lease, "visibility": "job"})
        while (message := self._read_or_fail())["muster"] == "held":  # then it says that it is ready
            self.held.append(message)
        # At a breakpoint, or after a Ctrl-Z, this process says nothing for as long as that takes. Its end closes the pipe, which the server sees.
        self._say({"muster": "signal", "signal": int(signal.SIGTSTP)})

    def _read_or_fail(self) -> Dict[str, Any]:
        message = self._read()
        if message["muster"] in ("gone", "cannot"):
            self.close()
            raise Unavailable(f"muster.Executor: expected the program muster to run tasks here, got: {message.get('why', 'its end')}")
        return message

    def follow(self, on_message: Callable[[Dict[str, Any]], None]) -> None:
        """From now on messages are handed over."""
        self._reader = threading.Thread(target=self._follow, args=(on_message,), name="muster-tasks", daemon=True)
        self._reader.start()

    def start(self, number: int, name: str, argv: Sequence[str], environment: Dict[str, str], ranks: int, attempt: int,
              devices: Sequence[str], units: int, memory_bytes: int, log: str) -> None:
        """Starts a task on these GPUs (UUIDs; none: on CPUs)."""
        self._say({"muster": "start", "id": number, "name": _bytes_text(name), "argv": [_bytes_text(word) for word in argv],
                   "environment": [_bytes_text(f"{key}={value}") for key, value in environment.items()],
                   "directory": _bytes_text(working_folder("muster.Executor")), "ranks": ranks, "attempt": attempt, "devices": list(devices), "units": units,
                   "memory_bytes": memory_bytes, "cpus": 0, "bound": "", "log": _bytes_text(log)})

    def end(self, number: int, grace_seconds: float) -> None:
        """SIGTERM to the task, and SIGKILL to all of it after the grace period."""
        self._say({"muster": "end", "id": number, "grace": int(1000 * grace_seconds)})

    def close(self) -> None:
        """Ends whatever still runs."""
        self._close_input()
        self._process.wait()
        if self._reader is not None:
            self._reader.join()
        self._out.close()
        assert self._process.stdout
        self._process.stdout.close()

    def let_go(self) -> None:
        self._in.close()

    def _close_input(self) -> None:
        with self._lock:
            self._in.close()

    def _say(self, message: Dict[str, Any]) -> None:
        left = memoryview((json.dumps(message) + "\n").encode())
        with self._lock:
            try:
                while left:
                    left = left[self._in.write(left):]
            except (OSError, ValueError):
                pass  # it has gone; the reader tells

    def _read(self) -> Dict[str, Any]:
        line = self._out.readline()
        if not line:
            return {"muster": "gone"}
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def _follow(self, on_message: Callable[[Dict[str, Any]], None]) -> None:
        while True:
            try:
                message = self._read()
                on_message(message)
            except BaseException as error:  # nobody else would tell the tasks' futures
                self._close_input()
                message = {"muster": "gone", "why": f"its reader has failed: {error!r}"}
                on_message(message)
            if message["muster"] in ("gone", "cannot"):
                return


def _bytes_text(text: str) -> str:
    """A character for each byte of the text."""
    return os.fsencode(text).decode("latin-1")


def text_bytes(text: str) -> bytes:
    """The bytes that such a text stands for."""
    return text.encode("latin-1")

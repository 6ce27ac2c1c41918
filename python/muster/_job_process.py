"""The process of `muster run` behind a call of `spawn`: its output, its end, and what ends it."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import IO, Any, Dict, List, Optional, Sequence

from muster._forks import owned_by_this_process
from muster._leases import lease_descriptors
from muster._program import program
from muster._streams import flush
from muster._waits import wait_for_event

END_WITH = "MUSTER_END_WITH"  # a descriptor: when its other end is closed, the program ends its job
_MOST_KEPT = 200  # lines of what the program has said


class JobProcess:
    """Ends with this process, however that ends: the program holds the other end of a pipe."""

    def __init__(self, arguments: Sequence[str], environment: Dict[str, str]) -> None:
        self.said: List[str] = []
        self._threads: List[threading.Thread] = []
        theirs, ours = os.pipe()
        self._ours: Optional[int] = ours
        owned_by_this_process(self)  # a copy that a child keeps open would keep the job alive
        try:
            flush()  # what was printed before comes before what the ranks print
            self._process = subprocess.Popen(
                [program(), *arguments], env={**environment, END_WITH: str(theirs)}, pass_fds=(theirs, *lease_descriptors()), stdin=subprocess.DEVNULL,
                stdout=_target(sys.stdout, sys.__stdout__), stderr=_target_of_errors(),
                start_new_session=True)  # a Ctrl-C at the terminal reaches it through this process, and once
        except BaseException:
            self._close()
            raise
        finally:
            os.close(theirs)
        self._forward(self._process.stdout, "stdout")
        self._forward(self._process.stderr, "stderr")
        self._ended = threading.Event()
        threading.Thread(target=self._note_end, name="muster-job", daemon=True).start()

    def _note_end(self) -> None:
        self._process.wait()
        self._ended.set()

    def _forward(self, pipe: Optional[IO[bytes]], name: str) -> None:
        if pipe is None:
            return
        thread = threading.Thread(target=self._copy, args=(pipe, getattr(sys, name)), name=f"muster-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _copy(self, pipe: IO[bytes], target: Any) -> None:
        """To its end, whatever becomes of the target: a pipe that nobody reads would stop the job."""
        with pipe:
            for line in pipe:
                text = line.decode("utf-8", "replace")
                if target is sys.stderr:
                    self.said.append(text.rstrip("\n"))
                    del self.said[:-_MOST_KEPT]
                try:
                    target.write(text)
                    target.flush()
                except Exception:  # it is closed, or None, or has no flush
                    continue

    def wait(self) -> int:
        """Its exit code. A KeyboardInterrupt asks it to stop, a second one ends it at once; both are raised when it has
        ended. So is any other exception of a signal's handler, which asks it to stop too."""
        raised: Optional[BaseException] = None
        while True:
            try:
                wait_for_event(self._ended)
                break
            except BaseException as error:
                raised = raised or error
                self._process.send_signal(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
        for thread in self._threads:
            thread.join()
        self._close()
        if raised is not None:
            raise raised
        return self._process.returncode

    def let_go(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._ours is not None:
            os.close(self._ours)
            self._ours = None


def _target(stream: Any, original: Any) -> Optional[int]:
    """Where its output goes: to this process's own, or through a pipe where Python shows it elsewhere, as in a notebook."""
    return None if stream is original and original is not None else subprocess.PIPE


def _target_of_errors() -> Optional[int]:
    """On a terminal the program draws its progress itself. Elsewhere its words are kept too, for the exception."""
    target = _target(sys.stderr, sys.__stderr__)
    return target if target is not None or sys.stderr.isatty() else subprocess.PIPE

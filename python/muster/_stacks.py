"""A rank that others wait for is asked by a signal for its stack."""
from __future__ import annotations

import faulthandler
import os
import signal
from typing import IO, Optional

from muster import _abi, spans
from muster.errors import Unavailable

_file: Optional[IO[str]] = None  # kept: faulthandler writes to its descriptor


def answer_requests() -> None:
    """From now on this process answers, unless the program has a handler for that signal, or MUSTER_BACKTRACE=0."""
    global _file
    if _file is not None or os.environ.get("MUSTER_BACKTRACE") == "0":
        return
    try:
        if not spans.is_open():
            return
    except Unavailable:
        return  # what needs the library says so when it is called
    number = _abi.library().muster_stack_signal()
    if signal.getsignal(number) != signal.SIG_DFL:
        return
    _file = open(_abi.ask_text("muster_stack_file"), "w", encoding="utf-8")
    faulthandler.register(number, file=_file, all_threads=True)
    _abi.library().muster_answers_stacks()

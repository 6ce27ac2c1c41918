"""Requests to stop: SIGTERM and SIGUSR1 from a launcher or a scheduler, SIGINT from Ctrl-C and from a notebook's stop button."""
from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Optional

from muster import _abi

_catches = False


def catch() -> None:
    """From now on the signals are remembered and no longer end the process, except a second SIGINT."""
    global _catches
    if not _catches:
        _catches = True
        _abi.library().muster_catch_stops()
    # Python handles SIGINT itself. Where this is its own handler, the first one only asks.
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def seen() -> int:
    """The signal that came; 0: none."""
    return int(_abi.library().muster_stop_signal())


def _interrupted(number: int, frame: Optional[FrameType]) -> None:
    if seen() == 0:
        _abi.library().muster_set_stop_signal(number)
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt


def forget() -> None:
    """Nobody has asked, and the signals end the process again."""
    global _catches
    if not _catches:
        return
    _catches = False
    _abi.library().muster_release_stops()
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def name_of(number: int) -> str:
    """"SIGTERM"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

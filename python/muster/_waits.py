"""Waits that a signal always ends. The kernel may hand a signal to a thread that just then starts another one. The main thread,
in which Python runs handlers, does not wake up for that, so it never sleeps for long."""
from __future__ import annotations

import threading
import time
from typing import Callable, Optional

_LOOK_EVERY = 0.25  # seconds


def wait_until(condition: threading.Condition, holds: Callable[[], bool], timeout: Optional[float] = None) -> bool:
    """As condition.wait_for(holds, timeout)."""
    end = None if timeout is None else time.monotonic() + timeout
    while not holds():
        left = _LOOK_EVERY if end is None else min(_LOOK_EVERY, end - time.monotonic())
        if left <= 0:
            return False
        condition.wait(left)
    return True


def wait_for_event(event: threading.Event) -> None:
    """As event.wait()."""
    while not event.wait(_LOOK_EVERY):
        pass

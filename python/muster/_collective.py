"""Calls in which a rank waits for all others: one that the main rank alone makes would wait in silence."""
from __future__ import annotations

import contextlib
import threading
import time
from typing import Iterator, Optional, Tuple

from muster._streams import say
from muster.rank import rank

_TELL_AFTER = 60.0  # seconds
_LOOK_EVERY = 5.0
_call: Optional[Tuple[str, float]] = None  # that which waits, and since when
_is_watched = False


@contextlib.contextmanager
def waiting_for_all(what: str) -> Iterator[None]:
    """Around the collective. The main rank says once where that takes long."""
    global _call, _is_watched
    if not _is_watched and rank() == 0:
        _is_watched = True
        with contextlib.suppress(RuntimeError):  # no thread can be had, which only costs the notice
            threading.Thread(target=_watch, name="muster-collective", daemon=True).start()
    _call = what, time.monotonic()
    try:
        yield
    finally:
        _call = None


def _watch() -> None:
    while True:
        time.sleep(_LOOK_EVERY)
        call = _call
        if call is not None and time.monotonic() - call[1] >= _TELL_AFTER:
            say(f"[rank 0] info: {call[0]}: has waited {_TELL_AFTER:g} s for other ranks: one is late, or the main rank alone calls it; call it on all")
            return

"""Threads and timers that a program's end may need. They are started before it: Python 3.12 starts no thread any more once the
main module has ended."""
from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from typing import Callable, List, Optional, Tuple


class Threads:
    """Daemon threads that take one call after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._queue: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self._all = 0
        self._free = 0  # below 0: calls that wait

    def keep(self, number: int) -> None:
        """From now on there are so many, unless Python starts none any more."""
        while self._all < number and self._start():
            pass

    def run(self, call: Callable[[], None]) -> None:
        """In a thread that is free, or in another one."""
        with self._lock:
            self._free -= 1
            is_short = self._free < 0
        self._queue.put(call)
        if is_short:
            self._start()

    def close(self) -> None:
        """They end when they have made their calls."""
        with self._lock:
            number = self._all
        for _ in range(number):
            self._queue.put(None)

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._make_calls, name=self._name, daemon=True).start()
        except RuntimeError:
            return False
        with self._lock:
            self._all += 1
            self._free += 1
        return True

    def _make_calls(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                call()
            finally:
                with self._lock:
                    self._free += 1


class Timer:
    """A call at a time to come."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Optional[Callable[[], None]] = call

    def cancel(self) -> None:
        """It is not made, unless it is being made."""
        self._call = None

    def fire(self) -> None:
        call = self._call
        if call is not None:
            call()


class Timers:
    """One thread that makes calls when it is time for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._queue: List[Tuple[float, int, Timer]] = []
        self._closed = False
        threading.Thread(target=self._fire, name="muster-timers", daemon=True).start()

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """So many seconds from now."""
        timer = Timer(call)
        with self._changed:
            heapq.heappush(self._queue, (time.monotonic() + seconds, next(self._numbers), timer))
            self._changed.notify()
        return timer

    def close(self) -> None:
        """No more calls are made."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _fire(self) -> None:
        while (timer := self._next()) is not None:
            timer.fire()

    def _next(self) -> Optional[Timer]:
        with self._changed:
            while not self._closed:
                left = self._queue[0][0] - time.monotonic() if self._queue else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._queue)[2]
                self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
        return None

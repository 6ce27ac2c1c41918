"""Futures of an Executor that are to be completed while no lock is held."""
from __future__ import annotations

import collections
import logging
import threading
from typing import Callable, Deque


class Completions:
    """Callbacks of a future may submit tasks, and let others fail: those are completed after it, and not within it."""

    def __init__(self, when_none_is_left: Callable[[], None]) -> None:
        self._when_none_is_left = when_none_is_left
        self._lock = threading.Lock()
        self._queue: Deque[Callable[[], object]] = collections.deque()
        self._open = 0  # queued, or being completed
        self._thread = threading.local()

    def __bool__(self) -> bool:
        return self._open > 0

    def is_completing(self) -> bool:
        """Whether this thread is in a callback of a future now."""
        return bool(getattr(self._thread, "is_completing", False))

    def add(self, complete: Callable[[], object]) -> None:
        with self._lock:
            self._open += 1
            self._queue.append(complete)

    def run(self) -> None:
        """Completes all. Within a callback it returns at once, and the caller of the callback goes on with them."""
        if self.is_completing():
            return
        self._thread.is_completing = True
        try:
            while self._queue:
                self._run_first()
        finally:
            self._thread.is_completing = False

    def _run_first(self) -> None:
        try:
            complete = self._queue.popleft()
        except IndexError:
            return  # another thread has taken it
        try:
            complete()
        except KeyboardInterrupt:
            raise
        except BaseException:  # sys.exit in a callback: the thread that is here by chance serves all tasks
            logging.getLogger("concurrent.futures").critical("exception calling a callback of a future", exc_info=True)
        finally:
            with self._lock:
                self._open -= 1
            self._when_none_is_left()

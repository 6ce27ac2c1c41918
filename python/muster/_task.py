"""A task of an Executor, and its future."""
from __future__ import annotations

import concurrent.futures
import re
import threading
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Union

from muster._places import Need, Share
from muster.errors import InvalidArgument

_LONGEST_PAUSE = 60.0
_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class TaskFuture(concurrent.futures.Future):  # type: ignore[type-arg]
    """A Future that also knows where its task runs.

    devices   of its last start: UUIDs of GPUs, or "cpu:0"
    log       path of what it prints
    attempts  how often it was started
    """

    def __init__(self) -> None:
        super().__init__()
        self.devices: List[str] = []
        self.log: Optional[str] = None
        self.attempts = 0


@dataclass
class Task:
    number: int
    name: str
    packed: bytes
    need: Need
    ranks: int = 1
    retries: int = 0
    time_limit: Optional[float] = None
    after: List["concurrent.futures.Future[Any]"] = field(default_factory=list)
    future: TaskFuture = field(default_factory=TaskFuture)
    share: Share = field(default_factory=Share)
    attempt: int = 0
    not_before: float = 0.0
    failures: int = 0
    answer: Optional[Dict[str, Any]] = None
    ended_by_us: str = ""
    timer: Optional[threading.Timer] = None

    def is_plain(self) -> bool:
        """Whether any process on one device will do."""
        return self.ranks == 1 and self.need == Need() and self.time_limit is None

    def is_ready(self, now: float) -> bool:
        return now >= self.not_before and all(earlier.done() for earlier in self.after)

    def failed_before(self) -> Optional[str]:
        """Why a task that this one comes after did not succeed; None while all may still."""
        for earlier in self.after:
            if earlier.cancelled():
                return "it was cancelled"
            if earlier.done() and earlier.exception() is not None:
                return str(earlier.exception())
        return None

    def begin(self, share: Share) -> None:
        self.share = share
        self.answer = None
        self.ended_by_us = ""
        self.future.attempts += 1
        self.future.devices = [place.name for place in share.places]

    def next_pause(self) -> float:
        """Seconds before another start: one, and twice as long after each further failure."""
        self.failures += 1
        return min(2.0 ** (self.failures - 1), _LONGEST_PAUSE)

    def prepare_another(self, not_before: float, costs: bool) -> None:
        self.attempt += 1
        self.not_before = not_before
        if not costs:
            self.failures = 0


def bytes_of(memory: Union[None, int, str]) -> int:
    """A size in bytes.

    >>> bytes_of("8GiB") == 8 * 2**30
    True
    """
    if memory is None:
        return 0
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(memory))
    if not match or match[2].lower() not in _UNITS:
        raise InvalidArgument(f"memory: expected a size such as 8GiB, got {memory!r}; correct it")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def seconds_of(time_limit: Union[None, float, str]) -> Optional[float]:
    """A time in seconds.

    >>> seconds_of("2h"), seconds_of(1.5)
    (7200.0, 1.5)
    """
    if time_limit is None or isinstance(time_limit, (int, float)):
        return time_limit
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", time_limit)
    unit = (match[2] or "s") if match else ""
    if not match or unit not in _SECONDS:
        raise InvalidArgument(f"time_limit: expected a time such as 90m, got {time_limit!r}; correct it")
    return float(match[1]) * _SECONDS[unit]


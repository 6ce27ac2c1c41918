"""A task of an Executor, and its future."""
from __future__ import annotations

import concurrent.futures
import contextlib
import numbers
import re
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Set, TypeVar, Union

from muster._channel import Call
from muster._flags import refuse_too_few_bytes
from muster._function import FUTURE_IS_NO_ARGUMENT
from muster._log_file import folder_beside, own_log, size_of_log
from muster._places import Need, Share
from muster._threads import Timer
from muster._unasked import Unasked
from muster._waits import wait_until
from muster.errors import FailedPrecondition, InvalidArgument, text_of

_LONGEST_PAUSE = 60.0
_LONGEST_PAUSE_WITHOUT_ROOM = 10.0
_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_TIME = r"(\d+(?:\.\d+)?)\s*(ms|min|[smhd])"


_Result = TypeVar("_Result")


class TaskFuture(concurrent.futures.Future[_Result]):
    """A Future that also knows where its task runs. `TaskFuture[int]` is one whose task returns an int.

    devices   of its last start: UUIDs of GPUs, or "cpu:0"
    log       path of what it prints
    attempts  how often it was started
    """

    unasked = Unasked()  # an executor gives its own

    def __init__(self) -> None:
        super().__init__()
        self.devices: List[str] = []
        self.log: Optional[str] = None
        self.attempts = 0
        self.is_known = False  # whether somebody has asked what came of it, or has ended it
        self.is_in_callback: Callable[[], bool] = bool  # whether this thread is in a callback of a future of the same executor

    def result(self, timeout: Optional[float] = None) -> _Result:
        """What the function returned. Raises what it raised, or TaskFailed."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """What result() raises; None where it returns."""
        self._wait(timeout)
        return super().exception(0)

    def set_exception(self, exception: Optional[BaseException]) -> None:
        super().set_exception(exception)
        self.unasked.watch(self)

    def __reduce__(self) -> Any:
        raise InvalidArgument(FUTURE_IS_NO_ARGUMENT)

    def __del__(self) -> None:
        error = self._exception
        if error is None or self.is_known:
            return
        with contextlib.suppress(Exception):  # at the end of Python names may be gone
            self.unasked.note(self, error)

    def _wait(self, timeout: Optional[float]) -> None:
        if not self.done() and self.is_in_callback():  # this thread may be the one that brings results
            raise FailedPrecondition("future.result: expected a future that is done, got a wait in a callback, which keeps the executor waiting; "
                                     "add a callback to that one, submit with after=[...], or wait in another thread")
        with self._condition:
            self.is_known = wait_until(self._condition, self.done, timeout) or self.is_known


@dataclass
class Task:
    number: int
    name: str
    packed: bytes
    need: Need
    ranks: int = 1
    retries: int = 0
    time_limit: Optional[float] = None
    environment: Dict[str, str] = field(default_factory=dict)  # in addition to the server's
    future: TaskFuture[Any] = field(default_factory=TaskFuture)
    share: Share = field(default_factory=Share)
    attempt: int = 0
    is_ready: bool = False  # waits for devices alone
    is_claimed: bool = False
    earlier_left: int = 0  # those of `after` that have not ended
    failures: int = 0
    answer: Optional[Dict[str, Any]] = None
    log_begin: int = 0  # of this start: the log has those of earlier ones before, and a warm worker's those of other tasks
    folder: str = ""  # for what it writes; empty: that of its job
    own: List[str] = field(default_factory=list)  # what was made for it
    makes_folder: bool = False  # in this start
    sources: Dict[str, int] = field(default_factory=dict)  # files of its code, and when they were written
    answered: Set[int] = field(default_factory=set)  # ranks
    arrived: Set[int] = field(default_factory=set)  # those that run
    starts_without_room: int = 0  # one after the other, which found no processes, descriptors or memory
    without_room_since: float = 0.0  # of the first of these
    ended_by_us: str = ""
    timer: Optional[Timer] = None

    def is_plain(self) -> bool:
        """Whether any process on one device will do."""
        return self.ranks == 1 and self.need == Need() and self.time_limit is None

    def claim(self) -> bool:
        """Has the future run, or tells those that wait for it that it was cancelled; then it returns False. A second call does
        nothing. The executor holds its lock."""
        if self.is_claimed:
            return not self.future.cancelled()
        self.is_claimed = True
        return self.future.set_running_or_notify_cancel()

    def take_log(self) -> None:
        """Before its first start: a log of its own, and a folder beside it."""
        if not self.own:
            log = own_log(str(self.future.log), self.ranks)
            self.folder = folder_beside(log.path) if self.ranks == 1 else ""
            self.future.log = log.path
            self.own = [log.path, *filter(None, [self.folder])] if log.is_made else []

    def take_log_of_worker(self, log: str) -> None:
        """Before a start in a process that has a log already."""
        self.folder = self.folder or folder_beside(str(self.future.log))
        self.future.log = log

    def take_folder(self) -> None:
        """Before its call goes to such a process, which makes the folder unless one of an earlier start has told that it had."""
        self.makes_folder = not self.own

    def note_folder(self, folder: str) -> None:
        self.folder, self.own = folder, [folder]

    def begin(self, share: Share) -> None:
        self.share = share
        self.answer = None
        self.answered = set()
        self.arrived = set()
        self.log_begin = size_of_log(str(self.future.log))
        self.ended_by_us = ""
        self.future.attempts += 1
        self.future.devices = [place.name for place in share.places]

    def call(self) -> Call:
        """For its process."""
        return Call(self.packed, self.attempt, self.folder, self.makes_folder)

    def has_returned(self) -> bool:
        """Whether the function has returned on every rank."""
        return self.answer is not None and self.answer["kind"] == "returned" and len(self.answered) == self.ranks

    def next_pause(self) -> float:
        """Seconds before another start: one, and twice as long after each further failure."""
        self.failures += 1
        return min(2.0 ** min(self.failures - 1, 16), _LONGEST_PAUSE)

    def forget_start(self) -> None:
        """It never began."""
        self.future.attempts -= 1

    def next_pause_without_room(self) -> float:
        """Seconds before it looks for room again: half of one, and twice as long after each further start without."""
        self.starts_without_room += 1
        return min(2.0 ** min(self.starts_without_room - 2, 8), _LONGEST_PAUSE_WITHOUT_ROOM)

    def prepare_another(self, costs: bool) -> None:
        self.attempt += 1
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
    number = float(match[1]) * _UNITS[match[2].lower()]
    refuse_too_few_bytes("memory", memory, number)
    return int(number)


def seconds_of(time_limit: Union[None, float, str, timedelta]) -> Optional[float]:
    """A time in seconds.

    >>> seconds_of("2h"), seconds_of("1h30m"), seconds_of(1.5)
    (7200.0, 5400.0, 1.5)
    """
    if time_limit is None:
        return None
    seconds = _seconds_of(time_limit)
    if seconds is None or not 0 < seconds <= threading.TIMEOUT_MAX:
        raise InvalidArgument(f"time_limit: expected a time such as 90m, got {time_limit!r}; correct it")
    return seconds


def _seconds_of(time_limit: object) -> Optional[float]:
    """None: it is no time."""
    if isinstance(time_limit, timedelta):
        return time_limit.total_seconds()
    if isinstance(time_limit, numbers.Real) and not isinstance(time_limit, bool):
        return float(time_limit)
    if not isinstance(time_limit, str):
        return None
    if re.fullmatch(r"\s*\d+(?:\.\d+)?\s*", time_limit):
        return float(time_limit)
    if not re.fullmatch(rf"\s*(?:{_TIME}\s*)+", time_limit):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_TIME, time_limit))


def why_failed(earlier: "concurrent.futures.Future[Any]") -> Optional[str]:
    """Why a future that has ended did not succeed; None: it did."""
    if earlier.cancelled():
        return "it was cancelled"
    error = earlier.exception()
    return None if error is None else text_of(error)

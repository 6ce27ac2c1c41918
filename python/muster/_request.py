"""What a call of Executor.submit asks for, checked before anything is queued."""
from __future__ import annotations

import concurrent.futures
import math
import numbers
import operator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, List, Optional, Sequence, Union

from muster._places import WHOLE, Need
from muster._plain import index_of
from muster._task import bytes_of, seconds_of
from muster.errors import InvalidArgument

Futures = Sequence["concurrent.futures.Future[Any]"]


class _LeftOut:
    """The default of a keyword whose every value may be meant for the function."""

    def __repr__(self) -> str:
        return "LEFT_OUT"


LEFT_OUT: Any = _LeftOut()


@dataclass(frozen=True)
class Request:
    """The keywords of a call."""

    need: Need
    ranks: int
    retries: int
    time_limit: Optional[float]
    after: List["concurrent.futures.Future[Any]"]
    name: Optional[str]


def request_of(gpus: Optional[float] = None, memory: Union[None, int, str] = None, ranks: int = 1, after: Futures = (), retries: int = 0,
               time_limit: Union[None, float, str, timedelta] = None, name: Optional[str] = None) -> Request:
    """Raises InvalidArgument for a value that is none of its kind."""
    return Request(need=_need(gpus, memory, ranks), ranks=operator.index(ranks),
                   retries=whole_number("muster.Executor.submit", "retries", retries, 0), time_limit=seconds_of(time_limit), after=_futures(after), name=_name(name))


def whole_number(where: str, what: str, value: Any, least: int) -> int:
    """The value as an int."""
    if not _is_whole(value, least):
        raise InvalidArgument(f"{where}: expected {what} of {least} or more, got {value!r}; correct it")
    return operator.index(value)


def _is_whole(value: Any, least: int) -> bool:
    """Whether it is an int of at least that, also one of numpy."""
    index = index_of(value)
    return index is not None and index >= least


def _need(gpus: Optional[float], memory: Union[None, int, str], ranks: int) -> Need:
    is_right = _is_whole(ranks, 1) and (gpus is None or _is_number_of_gpus(gpus))
    if not is_right:
        raise InvalidArgument(f"muster.Executor.submit: expected a whole number of GPUs or a fraction of one, and ranks of 1 or more, "
                              f"got gpus={gpus!r}, ranks={ranks!r}; correct them")
    asked = operator.index(ranks) if gpus is None else gpus
    units = WHOLE if asked >= 1 else max(1, round(float(asked) * WHOLE))
    return Need(devices=max(1, int(asked)) if asked else 0, units=units, memory=bytes_of(memory))


def _is_number_of_gpus(asked: Any) -> bool:
    is_number = isinstance(asked, numbers.Real) and not isinstance(asked, bool)
    if not is_number or not math.isfinite(asked):
        return False
    return bool(0 <= asked <= 1 or (asked > 1 and asked == int(asked)))


def _futures(after: Futures) -> List["concurrent.futures.Future[Any]"]:
    if isinstance(after, (str, bytes)) or not hasattr(after, "__iter__"):
        raise InvalidArgument(f"muster.Executor.submit: expected a list of futures, got after={after!r}; write after=[future]")
    futures = list(after)
    for future in futures:
        if not isinstance(future, concurrent.futures.Future):
            raise InvalidArgument(f"muster.Executor.submit: expected futures of submit, got {future!r} in after; give what submit returned")
    return futures


def _name(name: Optional[str]) -> Optional[str]:
    if name is not None and not isinstance(name, str):
        raise InvalidArgument(f"muster.Executor.submit: expected a text, got name={name!r}; write name={str(name)!r}")
    return name

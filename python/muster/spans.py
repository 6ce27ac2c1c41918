"""Named pieces of a rank's work, for `muster top`, `muster report` and `muster run --trace`."""
from __future__ import annotations

import ctypes
import functools
import inspect
import os
import threading
from types import TracebackType
from typing import Any, Callable, Optional, Type, TypeVar

from muster import _abi
from muster.errors import InvalidArgument

CATEGORIES = ("other", "compute", "communication", "data", "checkpoint")  # by the numbers of muster/c_api.h
_INHERITED = -1
_Function = TypeVar("_Function", bound=Callable[..., Any])

_opened: Optional[bool] = None
_opener: int = 0
_hook: Optional[Callable[[Optional[str]], None]] = None
_lock = threading.Lock()


def is_open() -> bool:
    """Whether this process is a rank of `muster run` that tells what it does. It opens its file for that at the first call.
    A forked child tells nothing."""
    global _opened, _opener
    if _opened is None:
        with _lock:
            if _opened is None:
                wanted = "MUSTER_RUN_DIR" in os.environ and "RANK" in os.environ
                _opener = os.getpid()
                _opened = bool(wanted and _abi.ask_text("muster_activity_open"))
    return _opened and _opener == os.getpid()


def category_number(category: Optional[str]) -> int:
    """Its number in the C interface."""
    if category is None:
        return _INHERITED
    if category not in CATEGORIES:
        raise InvalidArgument(f"span: expected a category of {', '.join(CATEGORIES)}, got '{category}'; correct it")
    return CATEGORIES.index(category)


def set_hook(hook: Optional[Callable[[Optional[str]], None]]) -> None:
    """`hook` is called with a span's name where it begins, and with None where it ends."""
    global _hook
    _hook = hook


class span:  # noqa: N801: it is used as a function
    """A piece of work with a name. Its time counts as `category` ("compute", "communication", "data", "checkpoint" or
    "other"), or else as that of the span around it.

    >>> with muster.span("tokenize", "data"):
    ...     tokens = tokenize(batch)
    >>> @muster.span("evaluate")
    ... def evaluate(model): ...
    """

    __slots__ = ("_name", "_category", "_entered")

    def __init__(self, name: str, category: Optional[str] = None) -> None:
        if not isinstance(name, str):
            raise InvalidArgument(f"span: expected a text as its name, got {name!r}; write span({str(name)!r})")
        self._name = name
        self._category = category_number(category)
        self._entered: list[Optional[tuple[_abi.Span, bool]]] = []  # with whether the hook was told

    def __enter__(self) -> span:
        if not is_open():
            self._entered.append(None)
            return self
        entered = _abi.Span()
        _abi.library().muster_span_begin(ctypes.byref(entered), self._name.encode("utf-8", "backslashreplace"), self._category)
        self._entered.append((entered, _hook is not None))
        if _hook is not None:
            _hook(self._name)
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 where: Optional[TracebackType]) -> None:
        begun = self._entered.pop()
        if begun is None:
            return
        entered, hooked = begun
        if hooked and _hook is not None:
            _hook(None)
        _abi.library().muster_span_end(ctypes.byref(entered))

    def __call__(self, function: _Function) -> _Function:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgument(f"span: expected a function that returns its result, got the async function or generator '{function.__name__}', "
                                  f"whose call only begins it; write `with muster.span({self._name!r}):` around what it does")
        name, category = self._name, None if self._category == _INHERITED else CATEGORIES[self._category]

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with span(name, category):
                return function(*args, **kwargs)
        return inside  # type: ignore[return-value]


def seconds() -> list[float]:
    """The main thread's seconds by category until now; all 0 in a process that tells nothing."""
    values = (ctypes.c_double * len(CATEGORIES))()
    if is_open():
        _abi.library().muster_seconds(values)
    return list(values)

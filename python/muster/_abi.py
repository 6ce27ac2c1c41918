"""The C interface, libmuster.so.0 (muster/c_api.h), by ctypes. It is loaded when it is first used."""
from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Mapping, Optional

from muster._plain import path_text, plain_value
from muster.errors import InvalidArgument, Unavailable, error_of

_NAME = "libmuster.so.0"
_VERSION = 1  # of the interface, that this package needs
_library: Optional[ctypes.CDLL] = None


def path() -> str:
    """MUSTER_LIBRARY, or the library that came with this package."""
    return os.environ.get("MUSTER_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lib", _NAME)


def library() -> ctypes.CDLL:
    """The library with the types of its functions."""
    global _library
    if _library is None:
        _library = _load(path())
    return _library


def _load(file: str) -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(file)
    except OSError as error:
        raise Unavailable(f"muster: expected the library {file}, got: {error}; install the wheel, or set MUSTER_LIBRARY") from error
    version = loaded.muster_c_api_version()
    if version < _VERSION:
        raise Unavailable(f"muster: expected {file} with version {_VERSION} of the C interface or a newer one, got {version}; "
                          "install muster again")
    for name, (result, arguments) in _functions().items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class Span(ctypes.Structure):
    """muster_span."""

    _fields_ = [("thread", ctypes.c_void_p), ("begin_ns", ctypes.c_int64), ("depth", ctypes.c_uint32), ("unused", ctypes.c_uint32)]


def _functions() -> dict[str, tuple[Any, list[Any]]]:
    """Result and arguments of each function that is used here. A pointer to pass by byref() is a void * here."""
    number, whole, text, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p
    return {
        "muster_version": (text, []), "muster_last_error": (text, []), "muster_free": (None, [pointer]),
        "muster_devices": (number, [text, pointer]), "muster_plan": (number, [text, pointer]),
        "muster_plan_table": (number, [text, pointer]), "muster_rank": (number, [pointer]),
        "muster_rank_device": (number, [text, pointer]), "muster_activity_open": (number, [pointer]),
        "muster_activity_close": (None, []), "muster_note_step": (None, [whole]), "muster_note_samples": (None, [whole]),
        "muster_note_loss": (None, [ctypes.c_double]), "muster_span_begin": (None, [pointer, text, number]),
        "muster_span_end": (None, [pointer]), "muster_count_outside_as": (None, [number]), "muster_seconds": (None, [pointer]),
        "muster_software": (None, [text, text, text]), "muster_stack_signal": (number, []),
        "muster_stack_file": (number, [pointer]), "muster_answers_stacks": (None, []), "muster_catch_stops": (None, []),
        "muster_stop_signal": (number, []), "muster_set_stop_signal": (None, [number]),
        "muster_release_stops": (None, [])}


def check(number: int) -> None:
    """Raises the error of the thread's last call where `number`, its code, is not 0."""
    if number != 0:
        raise error_of(number, library().muster_last_error().decode("utf-8", "replace"))


# Those that are given nothing.
_WITHOUT_ARGUMENT = ("muster_rank", "muster_activity_open", "muster_stack_file")


def ask_text(name: str, argument: Optional[str] = None) -> str:
    """What the function `name` answers, as text."""
    answer = ctypes.c_void_p()
    given = [] if name in _WITHOUT_ARGUMENT else [None if argument is None else argument.encode()]
    check(getattr(library(), name)(*given, ctypes.byref(answer)))
    try:
        return ctypes.string_at(answer.value or 0).decode("utf-8", "replace")
    finally:
        library().muster_free(answer)


def _sent(key: str, value: Any) -> Any:
    plain = plain_value(value)
    if key == "inventory" and isinstance(plain, str):
        return path_text(plain)
    if isinstance(plain, (str, int, float, list, dict)) and not isinstance(plain, bool):
        return plain
    raise InvalidArgument(f"{key}: expected a text or a number, got {value!r}; correct it")


def ask(name: str, argument: Optional[Mapping[str, Any]] = None) -> Any:
    """What the function `name` answers, read as JSON. Members of `argument` that are None are left out."""
    given = None if argument is None else json.dumps({key: _sent(key, value) for key, value in argument.items() if value is not None})
    return json.loads(ask_text(name, given))

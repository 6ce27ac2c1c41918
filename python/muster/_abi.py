"""The C interface, libmuster.so.0 (muster/c_api.h), by ctypes. It is loaded when it is first used."""
from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Mapping, Optional

from muster.errors import Unavailable, error_of

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
    text, place = ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)
    loaded.muster_version.restype = text
    loaded.muster_last_error.restype = text
    loaded.muster_free.argtypes = [ctypes.c_void_p]
    loaded.muster_free.restype = None
    for name in ("muster_devices", "muster_plan", "muster_plan_table"):
        getattr(loaded, name).argtypes = [text, place]
    return loaded


def check(number: int) -> None:
    """Raises the error of the thread's last call where `number`, its code, is not 0."""
    if number != 0:
        raise error_of(number, library().muster_last_error().decode("utf-8", "replace"))


def ask_text(name: str, argument: Optional[str] = None) -> str:
    """What the function `name` answers, as text."""
    answer = ctypes.c_void_p()
    given = None if argument is None else argument.encode()
    check(getattr(library(), name)(given, ctypes.byref(answer)))
    try:
        return ctypes.string_at(answer.value or 0).decode("utf-8", "replace")
    finally:
        library().muster_free(answer)


def ask(name: str, argument: Optional[Mapping[str, Any]] = None) -> Any:
    """What the function `name` answers, read as JSON. Members of `argument` that are None are left out."""
    given = None if argument is None else json.dumps({key: value for key, value in argument.items() if value is not None})
    return json.loads(ask_text(name, given))

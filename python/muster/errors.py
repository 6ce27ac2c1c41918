"""What goes wrong, as exceptions. Each has the message that the program and the C++ library have too:
`<operation>: expected <rule>, got <value> (<rank, device>); <next step>`."""
from __future__ import annotations

from typing import Type


class Error(RuntimeError):
    """The base of all of muster's errors. `code` says what to do about it, in a word: "invalid_argument",
    "failed_precondition", "unavailable", "timeout", "peer_failed", "backend_failed", "io", "internal"."""

    code = "internal"


class InvalidArgument(Error, ValueError):
    """A value is wrong: change it."""

    code = "invalid_argument"


class FailedPrecondition(Error):
    """The value is right and the moment is not: do first what the message names."""

    code = "failed_precondition"


class Unavailable(Error):
    """Something that is needed is not there now: install it, free it, or try again."""

    code = "unavailable"


class TimedOut(Error, TimeoutError):
    """Nobody answered in time."""

    code = "timeout"


class _PeerFailed(Error):
    code = "peer_failed"


class _BackendFailed(Error):
    code = "backend_failed"


class _Io(Error):
    code = "io"


# By the numbers of muster/c_api.h, from 1.
_BY_NUMBER: tuple[Type[Error], ...] = (InvalidArgument, FailedPrecondition, Unavailable, TimedOut, _PeerFailed, _BackendFailed,
                                       _Io, Error)


def error_of(number: int, message: str) -> Error:
    """The exception for a code of the C interface."""
    return (_BY_NUMBER[number - 1] if 1 <= number <= len(_BY_NUMBER) else Error)(message)


def text_of(error: BaseException) -> str:
    """Its message, also where its own __str__ raises."""
    try:
        return str(error)
    except Exception:
        return f"{type(error).__name__}, whose text cannot be made"

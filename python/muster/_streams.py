"""Standard output and standard error. A program may have closed or replaced them, and whoever reads them may be gone: what cannot
be said ends nothing."""
from __future__ import annotations

import contextlib
import sys


def say(text: str, end: str = "\n") -> None:
    """A line to standard error."""
    with contextlib.suppress(Exception):
        if sys.stderr is not None:  # else print() writes to standard output
            print(text, end=end, file=sys.stderr, flush=True)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()

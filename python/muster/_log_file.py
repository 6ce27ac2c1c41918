"""Files of what tasks print."""
from __future__ import annotations

import os
import sys

_has_warned = False


def append_to_log(path: str, output: bytes) -> None:
    """Says once where a log cannot be written, as on a full disk: the tasks go on."""
    global _has_warned
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab") as log:
            log.write(output)
    except OSError as error:
        if not _has_warned and sys.stderr is not None:
            print(f"muster.Executor: expected a log that can be written, got: {error}; free space, or give another run_dir. What tasks print "
                  "is lost until then", file=sys.stderr)
        _has_warned = True


def remove_if_empty(path: str) -> None:
    """That of a worker whose tasks have printed nothing."""
    try:
        if os.path.getsize(path) == 0:
            os.unlink(path)
    except OSError:
        pass


def size_of_log(path: str) -> int:
    """0: it is not there yet."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0

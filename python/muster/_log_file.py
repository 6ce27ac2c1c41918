"""Files of what tasks print."""
from __future__ import annotations

import itertools
import os
import re
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


def own_log(path: str) -> str:
    """This path, or another beside it where another executor has that file in the same folder. It is made now, so that nobody else
    takes it."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        for number in itertools.count(1):
            own = path if number == 1 else f"{path[:-len('.log')]}.{number}.log"
            try:
                os.close(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
                return own
            except FileExistsError:
                continue
    except OSError:  # which is said once there is something to write
        pass
    return path


def last_number_in(folder: str) -> int:
    """The highest number of a log that an earlier executor has left there."""
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    found = [re.fullmatch(r"(?:worker-)?(\d{1,8})[-.].*log", name) for name in names]
    return max((int(match[1]) for match in found if match), default=0)


def remove_if_empty(path: str) -> None:
    """Where nothing was printed."""
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

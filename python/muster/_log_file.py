"""Files of what tasks print."""
from __future__ import annotations

import contextlib
import itertools
import os
import re
from typing import Callable, Iterator, NamedTuple

from muster._streams import say

_has_warned = False


class Own(NamedTuple):
    """A file or a folder of one task's own."""

    path: str
    is_made: bool  # or could not be, as on a full disk; then it may be there and another's


def append_to_log(path: str, output: bytes) -> None:
    """Says once where a log cannot be written, as on a full disk: the tasks go on."""
    global _has_warned
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab") as log:
            log.write(output)
    except OSError as error:
        if not _has_warned:
            say(f"muster.Executor: expected a log that can be written, got: {error}; free space, or give another run_dir. What tasks print is lost "
                "until then")
        _has_warned = True


def log_path(run_dir: str, number: int, name: str, ranks: int) -> str:
    """A task of several ranks is a job, whose folder is its own: `muster run` writes its plan, its metrics and its report there."""
    base = os.path.join(run_dir, f"{number}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:100]}")
    return f"{base}.log" if ranks == 1 else os.path.join(base, "task.log")


def own_log(path: str, ranks: int = 1) -> Own:
    """This path, or another beside it where another executor has that in the same run_dir. It is made now, so that nobody else takes
    it, with the folder beside it; the log of a job is in its folder."""
    if ranks > 1:
        folder = own_folder(os.path.dirname(path))
        return Own(os.path.join(folder.path, os.path.basename(path)), folder.is_made)
    return _own(folder_beside(path), ".log", _make_log)


def own_log_of_worker(path: str) -> str:
    """The same without a folder."""
    return _own(folder_beside(path), ".log", _make_file).path


def own_folder(path: str) -> Own:
    """The same for a folder."""
    return _own(path, "", os.mkdir)


def _own(begin: str, end: str, make: Callable[[str], None]) -> Own:
    try:
        os.makedirs(os.path.dirname(begin), exist_ok=True)
        return Own(next(made for made in (f"{begin}{other}{end}" for other in _others()) if _is_made(make, made)), True)
    except OSError:  # which is said once there is something to write
        return Own(begin + end, False)


def _others() -> Iterator[str]:
    yield ""
    for number in itertools.count(2):
        yield f".{number}"


def _is_made(make: Callable[[str], None], path: str) -> bool:
    """False: it was there."""
    try:
        make(path)
    except FileExistsError:
        return False
    return True


def _make_file(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


def _make_log(path: str) -> None:
    _make_file(path)
    try:
        os.mkdir(folder_beside(path))
    except FileExistsError:
        os.unlink(path)
        raise


def last_number_in(folder: str) -> int:
    """The highest number of a task that an earlier executor has left there."""
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    found = [re.fullmatch(r"(?:worker-)?(\d{1,6})[-.].*", name) for name in names]
    return max((int(match[1]) for match in found if match), default=0)


def folder_beside(log: str) -> str:
    """Of a task of one rank, for what it writes."""
    return log[:-len(".log")]


def remove_if_empty(path: str) -> None:
    """A log to which nothing was printed, or a folder into which nothing was written."""
    with contextlib.suppress(OSError):
        if os.path.isdir(path):
            os.rmdir(path)
        elif os.path.getsize(path) == 0:
            os.unlink(path)


def size_of_log(path: str) -> int:
    """0: it is not there yet."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0

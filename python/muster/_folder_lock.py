"""The lock on a folder in which a job writes, as the C++ library takes it (muster/base/folder_lock.h): two jobs never mix
their lines. The kernel frees it when this process ends; a forked child does not have it."""
from __future__ import annotations

import atexit
import errno
import fcntl
import os
import sys
import time
from typing import List, Tuple

from muster.errors import FailedPrecondition
from muster.rank import attempt

_NOBODY = "-"  # in place of a launch that is none
_START, _PID, _HOST, _SINCE, _ATTEMPT = range(5)  # the words of the file's text


def lock_folder(folder: str, file: str, patience: float = 5.0) -> None:
    """Held until this process ends. Where the folder cannot be locked, it warns. Blocking: while another process has it."""
    path = os.path.join(folder, file)
    start, own_attempt = os.environ.get("MUSTER_LAUNCH") or _NOBODY, str(attempt())
    end = time.monotonic() + patience
    while True:
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            if _try_lock(fd, path, start, own_attempt):
                atexit.register(_remove_if_alone, fd, path, os.getpid())
                return
        except OSError as error:
            _close(fd)
            print(f"[rank 0] warning: metrics: no lock on '{folder}' ({os.strerror(error.errno or errno.EIO)}): another job that writes there "
                  "is not refused", file=sys.stderr)
            return
        holder = _holder(_note(fd))
        _close(fd)
        if time.monotonic() >= end:
            raise FailedPrecondition(f"the folder '{folder}': expected no job that still writes there, got one ({holder}); wait until it has ended "
                                     "(`muster ps`), or give this one another folder")
        time.sleep(0.005)


def _try_lock(fd: int, path: str, start: str, own_attempt: str) -> bool:
    """False where another process has it, or where the file has been removed meanwhile."""
    is_first = _set_lock(fd, fcntl.LOCK_EX)
    before = _note(fd)
    is_before_us = start != _NOBODY and before[_START] == start and before[_ATTEMPT] != own_attempt
    if not is_first and not (is_before_us and _set_lock(fd, fcntl.LOCK_SH)):
        return False
    if not _is_still_there(fd, path):
        return False
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{start} {os.getpid()} {os.uname().nodename} {int(time.time())} {own_attempt}\n".encode(), 0)
    return _set_lock(fd, fcntl.LOCK_SH)


def _set_lock(fd: int, kind: int) -> bool:
    """One of the process: a forked child does not keep it, where one of the open file would be kept."""
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _note(fd: int) -> List[str]:
    words = os.pread(fd, 512, 0).decode(errors="replace").split()
    return words + [""] * (5 - len(words))


def _holder(note: List[str]) -> str:
    since = note[_SINCE]
    when = time.strftime(", since %Y-%m-%d %H:%M:%S", time.localtime(int(since))) if since.isdigit() else ""
    return f"process {note[_PID]} on {note[_HOST]}{when}"


def _is_still_there(fd: int, path: str) -> bool:
    try:
        return _identity(os.fstat(fd)) == _identity(os.stat(path))
    except FileNotFoundError:
        return False


def _identity(status: os.stat_result) -> Tuple[int, int]:
    return status.st_dev, status.st_ino


def _remove_if_alone(fd: int, path: str, owner: int) -> None:
    """A folder that nobody writes into has no lock file."""
    try:
        if os.getpid() == owner and _set_lock(fd, fcntl.LOCK_EX):
            os.unlink(path)
    except OSError:
        pass  # the folder is gone


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)

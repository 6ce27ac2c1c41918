"""The lock on a folder in which a job writes, as the C++ library takes it (muster/base/folder_lock.h): two jobs never mix
their lines. It is a lock of the open file: it ends with this process, since a forked child closes the file."""
from __future__ import annotations

import atexit
import errno
import fcntl
import os
import struct
import time
from typing import Dict, List, Tuple

from muster._streams import say
from muster.errors import FailedPrecondition
from muster.rank import attempt

_NOBODY = "-"  # in place of a launch that is none
_START, _PID, _HOST, _SINCE, _ATTEMPT = range(5)  # the words of the file's text

_held: Dict[str, int] = {}  # descriptors by path: several writers of a process are one job


def lock_folder(folder: str, file: str, patience: float = 5.0) -> None:
    """Held until release_all(), or until this process ends. Where the folder cannot be locked, it warns. Blocking: while another process has it."""
    path = os.path.realpath(os.path.join(folder, file))
    if path in _held:
        return
    start, own_attempt = os.environ.get("MUSTER_LAUNCH") or _NOBODY, str(attempt())
    end = time.monotonic() + patience
    while True:
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            if _try_lock(fd, path, start, own_attempt):
                _held[path] = fd
                return
        except OSError as error:
            _close(fd)
            fd = _open_held(path)
            if fd < 0:
                say(f"[rank 0] warning: metrics: no lock on '{folder}' ({os.strerror(error.errno or errno.EIO)}): another job that writes "
                    "there is not refused")
                return
        holder = _holder(_note(fd))
        _close(fd)
        if time.monotonic() >= end:
            raise FailedPrecondition(f"the folder '{folder}': expected no job that still writes there, got one ({holder}); wait until it has ended "
                                     "(`muster ps`), or give this one another folder")
        time.sleep(0.005)


def _try_lock(fd: int, path: str, start: str, own_attempt: str) -> bool:
    """False where another process has it, or where the file has been removed meanwhile."""
    is_first = _set_lock(fd, fcntl.F_WRLCK)
    before = _note(fd)
    is_before_us = start != _NOBODY and before[_START] == start and before[_ATTEMPT] != own_attempt
    if not is_first and not (is_before_us and _set_lock(fd, fcntl.F_RDLCK)):
        return False
    if not _is_still_there(fd, path):
        return False
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{start} {os.getpid()} {os.uname().nodename} {int(time.time())} {own_attempt}\n".encode(), 0)
    except OSError:
        pass  # the disk is full: the lock is held, and its note says nothing
    return _set_lock(fd, fcntl.F_RDLCK)


def _whole_lock(kind: int) -> bytes:
    """The kernel's struct flock, of the whole file."""
    return struct.pack("@hhqqi0q", kind, os.SEEK_SET, 0, 0, 0)


def _set_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_lock(kind))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _open_held(path: str) -> int:
    """A file of another user that a process has locked, open for reading; else -1."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1
    found = struct.unpack("@hhqqi0q", fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole_lock(fcntl.F_WRLCK)))
    if found[0] != fcntl.F_UNLCK:
        return fd
    os.close(fd)
    return -1


def _note(fd: int) -> List[str]:
    words = os.pread(fd, 512, 0).decode(errors="replace").split()
    return words + [""] * (5 - len(words))


def _holder(note: List[str]) -> str:
    since = note[_SINCE]
    is_time = since.isascii() and since.isdigit() and len(since) < 12
    when = time.strftime(", since %Y-%m-%d %H:%M:%S", time.localtime(int(since))) if is_time else ""
    text = f"process {note[_PID]} on {note[_HOST]}{when}"
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _is_still_there(fd: int, path: str) -> bool:
    try:
        return _identity(os.fstat(fd)) == _identity(os.stat(path))
    except FileNotFoundError:
        return False


def _identity(status: os.stat_result) -> Tuple[int, int]:
    return status.st_dev, status.st_ino


def _forget_all() -> None:
    """In a forked child, whose locks they are not."""
    while _held:
        _close(_held.popitem()[1])


def release_all() -> None:
    """A folder that nobody writes into has no lock file."""
    while _held:
        path, fd = _held.popitem()
        try:
            if _set_lock(fd, fcntl.F_WRLCK):
                os.unlink(path)
        except OSError:
            pass  # the folder is gone
        _close(fd)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


os.register_at_fork(after_in_child=_forget_all)
atexit.register(release_all)

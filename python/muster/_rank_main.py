"""python -m muster._rank_main: a rank of `muster.spawn`. It asks for its call, makes it, and tells what came of it."""
from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Optional

from muster._channel import LOG, NUMBER, Call, connect, next_call
from muster._environment import unset_what_is_gone
from muster._function import call_packed, pack_exception, pack_result
from muster._log_file import own_folder, remove_if_empty
from muster._streams import flush, say
from muster.context import STOPPED, current, group_of_all
from muster.errors import text_of
from muster.metrics import close_files

_LINGERS_AFTER = 10.0  # seconds


def main() -> int:
    rank = int(os.environ.get("RANK", "0"))
    unset_what_is_gone()
    log = os.environ.pop(LOG, "")
    if log:
        _print_into(log)
    number = os.environ.pop(NUMBER, "")
    connection = connect({"rank": rank, "world_size": int(os.environ.get("WORLD_SIZE", "1")), "call": number,
                          "run_dir": _folder_of_the_job(), "attempt": int(os.environ.get("MUSTER_ATTEMPT", "0"))})
    code = 0
    while (call := next_call(connection)) is not None:
        os.environ["MUSTER_ATTEMPT"] = str(call.attempt)
        folder = _work_in(connection, call) if call.folder else ""
        code = _make_call(connection, call.packed, "the task" if number else f"rank {rank}", folder, is_warm=bool(log))
    if code == 0:
        _watch_the_end("the task" if number else "the function")
        code = _leave()
    return code


def _folder_of_the_job() -> Optional[str]:
    """Where its plan, its logs and its report are. Within a task, MUSTER_RUN_DIR is the task's folder instead."""
    plan = os.environ.get("MUSTER_PLAN")
    return os.path.dirname(plan) if plan else os.environ.get("MUSTER_RUN_DIR")


def _print_into(path: str) -> None:
    """A warm worker's result goes another way than what it prints, so it writes that itself: the log is complete before."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _work_in(connection: Connection, call: Call) -> str:
    """The task's own folder, the same in every start. The program knows of the folder of its log, which all tasks share. A warm worker makes
    the folder, and removes it: the executor has many workers, and would do that with its lock held."""
    folder, is_own = own_folder(call.folder) if call.makes_folder else (call.folder, True)
    os.environ["MUSTER_TASK_DIR"] = folder
    if call.makes_folder and is_own:
        connection.send({"kind": "folder", "folder": folder})
    elif is_own:
        with contextlib.suppress(OSError):  # a full disk costs what is written there
            os.makedirs(folder, exist_ok=True)
    return folder if is_own else ""  # one that could not be made may be another's


def _make_call(connection: Connection, packed: bytes, who: str, folder: str, is_warm: bool) -> int:
    """The folder of a task that raises stays: it may start again."""
    own = os.getpid()
    try:
        try:
            result = pack_result(call_packed(packed), who)
            _end_a_child(own)
        finally:
            if is_warm:
                close_files()  # before the answer, after which another process may write there
    except SystemExit:
        raise
    except BaseException as error:
        _end_a_child(own, error)
        _tell_failure(connection, error)
        return 1
    flush()
    if is_warm:
        remove_if_empty(folder)
    connection.send({"kind": "returned"})
    connection.send_bytes(result)
    connection.recv()  # it has been read
    return 0


def _end_a_child(own: int, error: Optional[BaseException] = None) -> None:
    """One that the function has forked comes out of it too. The answer is its parent's."""
    if os.getpid() == own:
        return
    if error is not None:
        traceback.print_exception(type(error), error, _own_frames_left_out(error))
    flush()
    os._exit(0 if error is None else 1)


def _tell_failure(connection: Connection, error: BaseException) -> None:
    """To the launcher by torchrun's error file, to the caller by the connection, and to the log unless a card shows it."""
    told = "".join(traceback.format_exception(type(error), error, _own_frames_left_out(error)))
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not os.path.exists(path):
        _write_error_file(path, error, told)
    if not os.environ.get("MUSTER_CARD"):
        say(told, end="")
    flush()
    try:
        connection.send({"kind": "raised", "traceback": told, "exception": pack_exception(error)})
        connection.recv()
    except (EOFError, OSError):
        pass  # whoever has started this rank is gone


def _own_frames_left_out(error: BaseException) -> Any:
    """The traceback from the first frame that is not this package's; None where all are, as for a result that cannot be sent."""
    package = os.path.dirname(os.path.abspath(__file__))
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(package):
        trace = trace.tb_next
    return trace


def _write_error_file(path: str, error: BaseException, told: str) -> None:
    document = {"message": {"message": _readable(f"{type(error).__name__}: {text_of(error)}"),
                            "extraInfo": {"py_callstack": _readable(told), "timestamp": str(int(time.time()))}}}
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
    except OSError:
        pass


def _readable(text: str) -> str:
    """A file's name that is no UTF-8 stands in a message as halves of characters, which no JSON may have."""
    return text.encode("utf-8", "backslashreplace").decode()


def _watch_the_end(who: str) -> None:
    """Its device, and the caller, wait for the end of the process."""
    timer = threading.Timer(_LINGERS_AFTER, _tell_what_lingers, (who,))
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:
        pass  # the system has no more threads


def _tell_what_lingers(who: str) -> None:
    names = [f"thread '{thread.name}'" for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    say(f"[muster] info: {who} has returned {_LINGERS_AFTER:.0f} s ago, and its process has not ended: it waits for "
        f"{', '.join(names) or 'what an atexit handler or a library does'}; end that, or make the thread a daemon")


def _leave() -> int:
    """Parts from the other ranks where the function has joined them. Returns the exit code: STOPPED where it was asked to stop."""
    context = current()
    if context is not None:
        context.end()
        return STOPPED if context.stops else 0
    if group_of_all() is not None:
        sys.modules["torch.distributed"].destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())

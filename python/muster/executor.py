"""Different functions on different GPUs of this machine, from one program."""
from __future__ import annotations

import atexit
import concurrent.futures
import itertools
import os
import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, TypeVar, Union

from muster._arguments import refuse_what_does_not_fit, refuse_what_two_take
from muster._flags import DeviceName, gpus_text, tell_of_one_gpu
from muster._function import EXECUTOR_IS_NO_ARGUMENT, name_of, pack, refuse_while_importing, sources_of
from muster._log_file import log_path
from muster._plain import path_text
from muster._python_path import working_folder
from muster._request import LEFT_OUT, Futures, request_of, whole_number
from muster._streams import say
from muster._task import Task, TaskFuture
from muster._task_runner import TaskRunner
from muster.errors import Error, InvalidArgument, text_of

_Result = TypeVar("_Result")


class Executor(concurrent.futures.Executor):
    """Runs functions in processes of their own, each on devices of its own.

    >>> with muster.Executor(gpus="0-3") as pool:
    ...     a = pool.submit(fine_tune, "resnet", lr=0.1)                        # one GPU of its own
    ...     b = pool.submit(evaluate, path, gpus=0.5, memory="8GiB")            # half of one, with 8 GiB
    ...     c = pool.submit(train, 3, ranks=4, gpus=4, after=[a], retries=1, time_limit="2h")
    ...     print(c.result(), c.devices, c.log)
    ...     print(list(pool.map(score, seeds)))

    `gpus` selects the devices, as `muster run --gpus` does: "0-3", [2, 4], or "free:2" for two that are free. Without GPUs, or with
    `cpu_slots`, tasks have CPU slots. Tasks start in the order of `submit`, as soon as their devices are free; no other job of
    this user gets these meanwhile. A process sees its own devices alone.

    `warm=True` keeps a process a device, which takes one plain task after the other: a start costs nothing, and what a task
    leaves in the process is there for the next. Tasks with shares, ranks, memory or a time limit have processes of their own.

    What a task prints goes into `future.log`, in `run_dir` (runs/tasks-...). At the end of the `with` block all tasks have
    ended; a KeyboardInterrupt ends them. When this process dies, they end too.

    Raises InvalidArgument for tasks that could never run here. `future.result()` raises what the function raised, or
    TaskFailed where its process died.
    """

    def __init__(self, gpus: Union[None, DeviceName, Iterable[DeviceName]] = None, *, cpu_slots: Optional[int] = None,
                 warm: bool = False, run_dir: Union[None, str, "os.PathLike[str]"] = None, lease: bool = True) -> None:
        refuse_while_importing("muster.Executor")
        if cpu_slots is not None and gpus is not None:
            raise InvalidArgument(f"muster.Executor: expected gpus or cpu_slots, got gpus={gpus!r} and cpu_slots={cpu_slots!r}: tasks on CPU slots see no "
                                  "GPU; leave one out")
        if cpu_slots is not None:
            cpu_slots = whole_number("muster.Executor", "cpu_slots", cpu_slots, 1)
        tell_of_one_gpu("muster.Executor", gpus)
        here = working_folder("muster.Executor")
        folder = os.path.abspath(os.path.join(here, path_text(run_dir or os.path.join("runs", _new_name()))))
        self._runner = TaskRunner(folder, _uuids(gpus), cpu_slots, warm, lease)
        _live[self._runner] = weakref.ref(self)

    def submit(self, fn: Callable[..., _Result], /, *args: Any, gpus: Optional[float] = LEFT_OUT, memory: Union[None, int, str] = LEFT_OUT,  # type: ignore[override]
               ranks: int = LEFT_OUT, after: Futures = LEFT_OUT, retries: int = LEFT_OUT,
               time_limit: Union[None, float, str, timedelta] = LEFT_OUT, name: Optional[str] = LEFT_OUT, **kwargs: Any) -> TaskFuture[_Result]:
        """Has `fn(*args, **kwargs)` run, and returns at once.

        gpus        devices of its own: a number, or a fraction of one (1, or `ranks`)
        memory      free memory on each: bytes, or "8GiB"
        ranks       processes of one job over these devices (1); `muster.init()` joins them, and rank 0's result is the task's
        after       futures that must have succeeded before; if one fails, so does this one
        retries     starts after a failure, in addition to the first (0)
        time_limit  of each start: seconds, "1h30m", or a timedelta
        name        in logs and tables (the function's)

        A function that has one of these names as an argument takes it through functools.partial; here it is refused, whatever its
        value is.
        """
        _end_forgotten()
        self._runner.refuse_where_it_has_ended()
        asked: Dict[str, Any] = {"gpus": gpus, "memory": memory, "ranks": ranks, "after": after, "retries": retries, "time_limit": time_limit, "name": name}
        given = {keyword: value for keyword, value in asked.items() if value is not LEFT_OUT}
        request = request_of(**given)
        refuse_what_two_take(fn, args, kwargs, given, "muster.Executor.submit")
        self._runner.refuse_what_never_fits(request.need, given.get("memory"))
        packed = pack(fn, args, kwargs, "muster.Executor.submit")
        refuse_what_does_not_fit(fn, args, kwargs, "muster.Executor.submit")

        def make(number: int) -> Task:
            task = Task(number=number, name=request.name or name_of(fn), packed=packed, need=request.need, ranks=request.ranks,
                        retries=request.retries, time_limit=request.time_limit, sources=sources_of(fn))
            task.future.log = log_path(self._runner.run_dir, number, task.name, task.ranks)
            return task

        return self._runner.add(make, request.after).future

    def map(self, fn: Callable[..., _Result], *iterables: Iterable[Any], timeout: Optional[float] = None, chunksize: int = 1,
            **keywords: Any) -> Iterator[_Result]:
        """As of every Executor, a task for each item. `keywords` are those of submit, for every task: map(score, seeds, gpus=0.5)."""
        of_python = {key: keywords.pop(key) for key in ("buffersize",) if key in keywords}  # of 3.14
        asking = self if not keywords else _Asking(self, keywords)
        return _held(asking, concurrent.futures.Executor.map(asking, fn, *iterables, timeout=timeout, chunksize=chunksize, **of_python))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """No more tasks are taken. With `wait`, returns when all have ended."""
        self._runner.take_no_more(cancel_futures)
        if not wait or self._runner.is_in_callback():
            self._shut_down_beside()
            return
        self._runner.wait_and_close()
        _live.pop(self._runner, None)

    def _shut_down_beside(self) -> None:
        try:
            threading.Thread(target=self.shutdown, name="muster-shutdown").start()
        except RuntimeError:  # at the end of Python, which waits for it itself
            pass

    def end_tasks(self, futures: Union[None, TaskFuture[Any], Iterable[TaskFuture[Any]]] = None) -> None:
        """Cancels what waits and ends what runs (SIGTERM, and SIGKILL after 30 s): of these futures, or of all. `cancel()` of a
        future ends nothing that runs."""
        self._runner.end_tasks([futures] if isinstance(futures, TaskFuture) else futures)

    def __reduce__(self) -> Any:
        raise InvalidArgument(EXECUTOR_IS_NO_ARGUMENT)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.end_tasks()
        elif kind is not None and self._runner.has_tasks():
            how = f"{kind.__name__}: {text_of(value)}".partition("\n")[0]
            say(f"muster.Executor: info: the with block waits for its tasks before it raises {how}; Ctrl-C ends them, as pool.end_tasks() does")
        self.shutdown(wait=True)


class _Asking(concurrent.futures.Executor):
    """Submits each task with these keywords."""

    def __init__(self, pool: Executor, keywords: Mapping[str, Any]) -> None:
        self._pool = pool
        self._keywords = keywords

    def submit(self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> TaskFuture[_Result]:
        return self._pool.submit(fn, *args, **self._keywords)


def _held(pool: concurrent.futures.Executor, results: Iterator[_Result]) -> Iterator[_Result]:
    """Python 3.14 submits later items only while the executor is there."""
    yield from results
    del pool


def _uuids(gpus: Union[None, DeviceName, Iterable[DeviceName]]) -> Optional[List[str]]:
    """The UUIDs of the GPUs that are selected; None: all."""
    if gpus is None:
        return None
    from muster.plan import plan
    try:
        return [rank.device.uuid for rank in plan("gpu", gpus=gpus_text(gpus))]
    except Error as error:
        told = str(error).replace('n="gpu": ', f"gpus={gpus!r}: ").partition('; n="cpu"')[0]
        raise type(error)(f"muster.Executor: {told}") from None


_numbers = itertools.count()


def _new_name() -> str:
    """Of a folder that no other executor of this second has."""
    number = next(_numbers)
    return f"tasks-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}" + (f"-{number}" if number else "")


_live: Dict[TaskRunner, "weakref.ref[Executor]"] = {}  # also of those that nobody holds any more: their tasks are waited for


def _end_forgotten() -> None:
    """The warm processes of an executor that nobody can use any more, as of a notebook's cell that is run again, would keep their devices."""
    for runner, pool in list(_live.items()):
        if pool() is not None:
            continue
        runner.take_no_more(cancel_waiting=False)
        if runner.is_idle() and _live.pop(runner, None) is not None:
            runner.wait_and_close()


def _was_interrupted() -> bool:
    """Whether a KeyboardInterrupt has ended the program. At a prompt it ends what was typed."""
    return getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1")


@atexit.register
def _wait_for_all() -> None:
    for runner in list(_live):
        if _was_interrupted():
            runner.end_tasks()
        runner.take_no_more(cancel_waiting=False)
        runner.wait_and_close()

"""Different functions on different GPUs of this machine, from one program."""
from __future__ import annotations

import atexit
import collections
import concurrent.futures
import os
import re
import sys
import threading
import time
import weakref
from multiprocessing.connection import Connection
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Sequence, Union

from muster._channel import Channel
from muster._flags import DeviceName, gpus_text
from muster._function import name_of, pack, refuse_while_importing
from muster._places import WHOLE, Need, Share, places_of
from muster._python_path import python_path
from muster._server import TaskServer, text_bytes
from muster._task import Task, TaskFuture, bytes_of, seconds_of
from muster._worker import Worker, answer_of, tell
from muster.errors import Error, FailedPrecondition, InvalidArgument, Unavailable
from muster.failed import TaskFailed

CALL = "MUSTER_CALL_ID"
_STOPPED = 75  # the task has saved, and asks to be started again
_GRACE_SECONDS = 30.0


class Executor(concurrent.futures.Executor):
    """Runs functions in processes of their own, each on devices of its own.

    >>> with muster.Executor(gpus="0-3") as pool:
    ...     a = pool.submit(fine_tune, "resnet", lr=0.1)                        # one GPU of its own
    ...     b = pool.submit(evaluate, path, gpus=0.5, memory="8GiB")            # half of one, with 8 GiB
    ...     c = pool.submit(train, 3, ranks=4, gpus=4, after=[a], retries=1, time_limit="2h")
    ...     print(c.result(), c.devices, c.log)
    ...     print(list(pool.map(score, seeds)))

    `gpus` selects the devices, as `muster run --gpus` does; without GPUs, tasks have CPU slots (`cpu_slots` of them). Tasks
    start in the order of `submit`, as soon as their devices are free; no other job of this user gets these meanwhile. A
    process sees its own devices alone.

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
        if cpu_slots is not None and cpu_slots < 1:
            raise InvalidArgument(f"muster.Executor: expected cpu_slots of 1 or more, got {cpu_slots}; correct it")
        wanted = _uuids(gpus)
        self._run_dir = os.path.abspath(run_dir or os.path.join("runs", f"tasks-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"))
        self._warm = warm
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: Deque[Task] = collections.deque()
        self._running: Dict[int, Task] = {}
        self._workers: Dict[int, Worker] = {}
        self._number = 0
        self._closing = False
        self._gone = ""
        self._channel = Channel(self._on_hello)
        try:
            self._server = TaskServer(self._run_dir, _GRACE_SECONDS, lease)
        except BaseException:
            self._channel.close()
            raise
        self._places = places_of(self._server.inventory, wanted, cpu_slots)
        for held in self._server.held:
            self._places.set_held(held["gpu"], held["units"])
        self._server.follow(self._on_message)
        _live.add(self)

    # --- what callers use ---

    def submit(self, fn: Callable[..., Any], /, *args: Any, gpus: Optional[float] = None, memory: Union[None, int, str] = None,  # type: ignore[override]
               ranks: int = 1, after: Sequence["concurrent.futures.Future[Any]"] = (), retries: int = 0,
               time_limit: Union[None, float, str] = None, name: Optional[str] = None, **kwargs: Any) -> TaskFuture:
        """Has `fn(*args, **kwargs)` run, and returns at once.

        gpus        devices of its own: a number, or a fraction of one (1, or `ranks`)
        memory      free memory on each: bytes, or "8GiB"
        ranks       processes of one job over these devices; `muster.init()` joins them, and rank 0's result is the task's
        after       futures that must have succeeded before; if one fails, so does this one
        retries     starts after a failure, in addition to the first
        time_limit  of each start: seconds, or "2h"
        name        in logs and tables (the function's)

        A function that has one of these names as an argument takes it through functools.partial.
        """
        need = self._need(gpus, memory, ranks)
        packed = pack(fn, args, kwargs, "muster.Executor.submit")
        with self._lock:
            if self._gone:
                raise Unavailable(f"muster.Executor.submit: expected an executor in use, got one that has ended: {self._gone}; make another")
            if self._closing:
                raise FailedPrecondition("muster.Executor.submit: expected an executor in use, got one that was shut down; make another")
            self._number += 1
            task = Task(number=self._number, name=name or name_of(fn), packed=packed, need=need, ranks=ranks, retries=retries,
                        time_limit=seconds_of(time_limit), after=list(after))
            task.future.log = os.path.join(self._run_dir, f"{task.number}-{re.sub(r'[^A-Za-z0-9_.-]', '_', task.name)}.log")
            self._waiting.append(task)
            for earlier in task.after:
                earlier.add_done_callback(lambda _: self._schedule())
        self._schedule()
        return task.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """No more tasks are taken. With `wait`, returns when all have ended."""
        with self._lock:
            self._closing = True
            if cancel_futures:
                for task in self._waiting:
                    task.future.cancel()
        self._schedule()
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: self._is_idle())
            self._close()
        else:
            threading.Thread(target=self.shutdown, name="muster-shutdown").start()

    def end_tasks(self) -> None:
        """Cancels what waits and ends what runs (SIGTERM, and SIGKILL after 30 s)."""
        with self._lock:
            for task in self._waiting:
                task.future.cancel()
            for task in self._running.values():
                task.ended_by_us = "it was ended with the others"
                task.retries = 0
                self._server.end(task.number, _GRACE_SECONDS)
            for worker in self._workers.values():
                if worker.task is not None:
                    worker.task.ended_by_us = "it was ended with the others"
                self._server.end(worker.number, _GRACE_SECONDS)
        self._schedule()

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.end_tasks()
        self.shutdown(wait=True)

    # --- what a task needs ---

    def _need(self, gpus: Optional[float], memory: Union[None, int, str], ranks: int) -> Need:
        asked = ranks if gpus is None else gpus
        if ranks < 1 or asked < 0 or (asked > 1 and asked != int(asked)):
            raise InvalidArgument(f"muster.Executor.submit: expected a whole number of GPUs or a fraction of one, and ranks of 1 or more, "
                                  f"got gpus={gpus!r}, ranks={ranks!r}; correct them")
        units = WHOLE if asked >= 1 else max(1, round(asked * WHOLE))
        need = Need(devices=max(1, int(asked)) if asked else 0, units=units, memory=bytes_of(memory))
        fitting = self._places.num_that_fit(need)
        if fitting < need.devices:
            raise InvalidArgument(f"muster.Executor.submit: expected at most {fitting} devices{f' with {memory} free' if need.memory else ''}, "
                                  f"got {need.devices}; ask for fewer, or give the executor more (gpus, cpu_slots)")
        return need

    # --- scheduling, under the lock ---

    def _schedule(self) -> None:
        """Starts what can start, in order. A task that must wait for devices keeps those behind it waiting."""
        with self._lock:
            blocked = False
            for task in list(self._waiting):
                if task.future.cancelled() or self._is_skipped(task):
                    self._waiting.remove(task)
                elif not blocked and task.is_ready(time.monotonic()):
                    blocked = not self._try_to_start(task)
            if self._closing and not self._waiting and not self._running:
                self._end_workers(lambda worker: True)
            self._changed.notify_all()

    def _is_skipped(self, task: Task) -> bool:
        failed = task.failed_before()
        if failed is not None and task.future.set_running_or_notify_cancel():
            task.future.set_exception(TaskFailed(f"task '{task.name}' was skipped: it comes after one that failed ({failed})"))
        return failed is not None

    def _try_to_start(self, task: Task) -> bool:
        if self._warm and task.is_plain():
            return self._try_a_worker(task)
        share = Share() if task.need.devices == 0 else self._places.take(task.need)
        if share is None:
            self._end_workers(lambda worker: worker.task is None)  # the devices of idle ones come free
            return False
        self._begin(task, share)
        return True

    def _begin(self, task: Task, share: Share) -> None:
        self._waiting.remove(task)
        if task.attempt == 0 and not task.future.set_running_or_notify_cancel():
            if share.places:
                self._places.give_back(share)
            return
        task.begin(share)
        self._running[task.number] = task
        self._start(task.number, task.name, share, task.ranks, task.attempt, str(task.future.log))
        if task.time_limit is not None:
            task.timer = threading.Timer(task.time_limit, self._on_time_limit, (task, task.attempt))
            task.timer.daemon = True
            task.timer.start()

    def _start(self, number: int, name: str, share: Share, ranks: int, attempt: int, log: str) -> None:
        environment = {**self._channel.environment(), CALL: str(number), "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1",
                       "PYTHONFAULTHANDLER": os.environ.get("PYTHONFAULTHANDLER", "1")}
        uuids = [place.uuid for place in share.places if place.uuid]
        self._server.start(number, name, [sys.executable, "-m", "muster._rank_main"], environment, ranks, attempt, uuids,
                           share.units if uuids else 0, share.memory, log)

    # --- warm workers ---

    def _try_a_worker(self, task: Task) -> bool:
        for worker in self._workers.values():
            if worker.task is None and worker.is_ready():
                self._waiting.remove(task)
                if task.future.set_running_or_notify_cancel():
                    task.begin(worker.share)
                    task.future.log = worker.log
                    worker.give(task)
                return True
        if any(worker.task is None for worker in self._workers.values()):
            return False  # one is on its way
        share = self._places.take(task.need)
        if share is not None:
            self._number += 1
            log = os.path.join(self._run_dir, f"worker-{self._number}.log")
            worker = Worker(self._number, share, log)
            self._workers[worker.number] = worker
            self._start(worker.number, f"worker {share.places[0].name}", share, 1, 0, log)
        return False

    def _end_workers(self, which: Callable[[Worker], bool]) -> None:
        for worker in self._workers.values():
            if which(worker):
                worker.end()

    # --- what comes from processes ---

    def _on_hello(self, hello: Dict[str, Any], connection: Connection) -> None:
        number = int(hello["call"])
        with self._lock:
            worker = self._workers.get(number)
            task = self._running.get(number)
        if worker is not None:
            self._serve_worker(worker, connection)
        elif task is not None:
            connection.send_bytes(task.packed)
            answer = answer_of(connection)
            if hello["rank"] == 0 or answer["kind"] == "raised":
                with self._lock:
                    task.answer = answer

    def _serve_worker(self, worker: Worker, connection: Connection) -> None:
        """A warm worker takes one call after the other, until there is none for it."""
        with self._lock:
            worker.connected = True
        self._schedule()
        while True:
            task = worker.next_task()
            if task is None:
                connection.send_bytes(b"")
                return
            connection.send_bytes(task.packed)
            answer = answer_of(connection)
            with self._lock:
                worker.task = None
            tell(task, answer)
            self._schedule()

    def _on_message(self, message: Dict[str, Any]) -> None:
        kind = message["muster"]
        if kind == "output":
            self._write_log(message["id"], text_bytes(message["bytes"]))
        elif kind == "ended":
            self._on_end(message)
        elif kind == "held":
            with self._lock:
                self._places.set_held(message["gpu"], message["units"])
            self._schedule()
        elif kind in ("gone", "cannot"):
            self._on_gone(message.get("why", "the program muster has ended"))

    def _write_log(self, number: int, output: bytes) -> None:
        with self._lock:
            path = self._log_of(number)
        if path is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "ab") as log:
                log.write(output)

    def _log_of(self, number: int) -> Optional[str]:
        if number in self._running:
            return self._running[number].future.log
        return self._workers[number].log if number in self._workers else None

    def _on_end(self, message: Dict[str, Any]) -> None:
        with self._lock:
            worker = self._workers.pop(message["id"], None)
            task = worker.task if worker is not None else self._running.pop(message["id"], None)
            share = worker.share if worker is not None else task.share if task is not None else None
            if share is not None and share.places:
                self._places.give_back(share)
            if task is not None:
                self._judge(task, message)
        self._schedule()

    def _judge(self, task: Task, message: Dict[str, Any]) -> None:
        """Decides what the end of a process is for its task: the result, another start, or a failure."""
        if task.timer is not None:
            task.timer.cancel()
        if message.get("refused") or message.get("starved"):  # it has not begun
            self._start_again(task, 0.5, costs=False)
        elif message["exit_code"] == 0 and message["signal"] == 0 and task.answer is not None and task.answer["kind"] == "returned":
            tell(task, task.answer)
        elif message["exit_code"] == _STOPPED and not task.ended_by_us:
            self._start_again(task, 0.0, costs=False)
        elif task.retries > 0:
            task.retries -= 1
            self._start_again(task, task.next_pause(), costs=True)
        elif task.answer is not None and task.answer["kind"] == "raised" and not task.ended_by_us:
            tell(task, task.answer)
        else:
            task.future.set_exception(TaskFailed.of(task, message))

    def _start_again(self, task: Task, pause: float, costs: bool) -> None:
        task.prepare_another(time.monotonic() + pause, costs)
        self._waiting.appendleft(task)
        timer = threading.Timer(pause, self._schedule)
        timer.daemon = True
        timer.start()

    def _on_time_limit(self, task: Task, attempt: int) -> None:
        with self._lock:
            if self._running.get(task.number) is task and task.attempt == attempt:
                task.ended_by_us = f"its time limit of {task.time_limit:g} s was over"
                self._server.end(task.number, _GRACE_SECONDS)

    def _on_gone(self, why: str) -> None:
        """The program behind this executor has ended, and all of its tasks with it."""
        with self._lock:
            self._gone = why
            self._closing = True
            lost = [*self._running.values(), *(worker.task for worker in self._workers.values() if worker.task), *self._waiting]
            self._running.clear()
            self._workers.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for task in lost:
            if not task.future.done() and (task.future.running() or task.future.set_running_or_notify_cancel()):
                task.future.set_exception(TaskFailed(f"task '{task.name}' was lost: {why}", log=task.future.log))

    # --- the end ---

    def _is_idle(self) -> bool:
        return bool(self._gone) or not (self._waiting or self._running or self._workers)

    def _close(self) -> None:
        self._server.close()
        self._channel.close()
        _live.discard(self)
        try:
            os.rmdir(self._run_dir)  # where nothing was printed
        except OSError:
            pass


def _uuids(gpus: Union[None, DeviceName, Iterable[DeviceName]]) -> Optional[List[str]]:
    """The UUIDs of the GPUs that are selected; None: all."""
    if gpus is None:
        return None
    from muster.plan import plan
    try:
        return [rank.device.uuid for rank in plan("gpu", gpus=gpus_text(gpus))]
    except Error as error:
        told = str(error).replace("--nproc-per-node gpu: ", f"gpus={gpus!r}: ").partition("; --nproc-per-node cpu")[0]
        raise type(error)(f"muster.Executor: {told}") from None


_live: "weakref.WeakSet[Executor]" = weakref.WeakSet()


@atexit.register
def _wait_for_all() -> None:
    for pool in list(_live):
        pool.shutdown(wait=True)

"""Starts the tasks of an Executor on their devices, and completes their futures."""
from __future__ import annotations

import concurrent.futures
import functools
import os
import sys
import threading
import time
import weakref
from multiprocessing.connection import Connection
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence, Set, Union

from muster._channel import LOG, NUMBER, Channel, answer_of, send_call
from muster._completions import Completions
from muster._environment import changes_since
from muster._forks import owned_by_this_process
from muster._function import written_at
from muster._log_file import append_to_log, last_number_in, own_log_of_worker, remove_if_empty
from muster._places import WHOLE, Need, Share, places_of, why_no_gpu
from muster._python_path import python_path, rank_command
from muster._server import TaskServer, text_bytes
from muster._streams import say
from muster._task import Task, TaskFuture, why_failed
from muster._threads import Timers
from muster._unasked import Unasked
from muster._waiting import Waiting
from muster._waits import wait_until
from muster._worker import Worker, tell
from muster.errors import Error, FailedPrecondition, InvalidArgument, Unavailable
from muster.failed import TaskFailed, tell_of_a_bad_end

_STOPPED = 75  # the task has saved, and asks to be started again
_GRACE_SECONDS = 30.0
_TELL_OF_OTHERS_AFTER = 3.0
_SHORTAGE_PATIENCE = 60.0


class TaskRunner:
    """The processes behind one Executor, from its first task to its end. Its methods may be called by any thread."""

    def __init__(self, run_dir: str, wanted: Optional[Sequence[str]], cpu_slots: Optional[int], warm: bool, lease: bool) -> None:
        self.run_dir = run_dir
        self._warm = warm
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._completions = Completions(self._notify)
        self._waiting = Waiting()
        self._running: Dict[int, Task] = {}
        self._workers: Dict[int, Worker] = {}
        self._number = last_number_in(run_dir)
        self._ranks_left = 0  # of tasks that have not ended
        self._most_ranks = 0  # at a time
        self._closing = False
        self._looks_for_others = False
        self._last_room = 0.0  # when a start found the processes, descriptors and memory for it
        self._edited: Set[str] = set()
        self._unasked = Unasked()
        self._is_parents = False  # in a child that was forked
        self._gone = ""
        self._channel = Channel(self._on_hello)
        try:
            self._server = TaskServer(self.run_dir, _GRACE_SECONDS, lease)
        except BaseException:
            self._channel.close()
            raise
        self._places = places_of(self._server.inventory, wanted, cpu_slots)
        asks_for_cpus = cpu_slots is not None or os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        hidden = why_no_gpu(self._server.inventory) if wanted is None and not asks_for_cpus else ""
        if hidden:
            say(f"muster.Executor: info: {hidden}: tasks have CPU slots; see CUDA_VISIBLE_DEVICES, or `muster doctor`")
        for held in self._server.held:
            self._places.set_held(held["gpu"], held["units"], _readable(held["by"]))
        self._timers = Timers()
        self._server.follow(self._on_message)
        owned_by_this_process(self)

    # --- what the executor uses ---

    def refuse_where_it_has_ended(self) -> None:
        """Raises where no task can be added."""
        if self._is_parents:
            raise FailedPrecondition("muster.Executor.submit: expected an executor of this process, got one of the process that this one was "
                                     "forked from; make another")
        if self._closing:
            raise FailedPrecondition("muster.Executor.submit: expected an executor in use, got one that was shut down; make another")
        if self._gone:
            raise Unavailable(f"muster.Executor.submit: expected an executor in use, got one that has ended: {self._gone}; make another")

    def refuse_what_never_fits(self, need: Need, memory: Union[None, int, str]) -> None:
        """Raises where the task would wait for ever."""
        fitting = self._places.num_that_fit(need)
        if fitting < need.devices:
            raise InvalidArgument(f"muster.Executor.submit: expected at most {fitting} devices{f' with {memory} free' if need.memory else ''}, "
                                  f"got {need.devices}; ask for fewer, or give the executor more (gpus, cpu_slots)")

    def add(self, make: Callable[[int], Task], after: Sequence["concurrent.futures.Future[Any]"]) -> Task:
        """Takes a task, which `make` makes for its number."""
        with self._lock:
            self.refuse_where_it_has_ended()
            self._number += 1
            task = make(self._number)
            task.earlier_left = len(after)
            task.future.is_in_callback = self.is_in_callback
            task.future.unasked = self._unasked
            task.environment = changes_since(self._server.environment)
            self._waiting.add(task, ready=not after)
            self._ranks_left += task.ranks
            self._most_ranks = max(self._most_ranks, self._ranks_at_a_time(task))
            connections = min(self._ranks_left, self._most_ranks)
        self._channel.expect(connections)
        task.future.add_done_callback(functools.partial(self._on_done, weakref.ref(task), task.ranks))
        for earlier in after:
            earlier.add_done_callback(functools.partial(self._on_earlier, task))
        self._schedule()
        return task

    def _ranks_at_a_time(self, task: Task) -> int:
        """How many ranks there are while all devices run tasks like this one."""
        share = task.need.devices * task.need.units
        return task.ranks * (1 + len(self._places.all) * WHOLE // share) if share else sys.maxsize

    def take_no_more(self, cancel_waiting: bool) -> None:
        """No task is added from now on. Those that have begun end as they do."""
        if self._is_parents:
            return
        with self._lock:
            self._closing = True
            cancelled = self._waiting.take(lambda task: not task.is_claimed) if cancel_waiting else []
        for task in cancelled:
            task.future.cancel()
        self._schedule()

    def end_tasks(self, futures: Optional[Iterable[TaskFuture[Any]]] = None) -> None:
        """Cancels what waits, and ends what runs, of these futures or of all."""
        if self._is_parents:
            return
        ended = None if futures is None else self._own(futures)
        reason = "it was ended with the others" if ended is None else "it was ended by end_tasks"

        def is_meant(task: Optional[Task]) -> bool:
            return ended is None or (task is not None and task.future in ended)

        with self._lock:
            waiting = self._waiting.take(is_meant)
            running = [(number, task) for number, task in self._running.items() if is_meant(task)]
            for number, task in [*running, *((worker.number, worker.task) for worker in self._workers.values() if is_meant(worker.task))]:
                self._end(number, task, reason)
        for task in waiting:
            if not task.future.cancel():  # it was to start again
                task.future.is_known = True
                self._fail(task, f"failed: {reason}")
        self._schedule()

    def has_tasks(self) -> bool:
        """Whether any has not ended."""
        with self._lock:
            return bool(self._waiting or self._running or any(worker.task for worker in self._workers.values()))

    def is_idle(self) -> bool:
        """Whether it has neither tasks nor processes."""
        with self._lock:
            return not (self._waiting or self._running or self._workers or self._completions)

    def is_in_callback(self) -> bool:
        """Whether this thread is in a callback of a task's future, which would wait for itself."""
        return self._completions.is_completing()

    def wait_and_close(self) -> None:
        """Returns when all tasks have ended, and their processes."""
        if self._is_parents:
            return
        with self._changed:
            wait_until(self._changed, self.is_idle)
        self._server.close()
        self._channel.close()
        self._timers.close()
        self._unasked.tell_of_more()
        try:
            os.rmdir(self.run_dir)  # where nothing was printed
        except OSError:
            pass

    def let_go(self) -> None:
        self._is_parents = True

    def _own(self, futures: Iterable[TaskFuture[Any]]) -> Set[TaskFuture[Any]]:
        own = set(futures)
        for future in own:
            if not isinstance(future, TaskFuture) or future.is_in_callback != self.is_in_callback:
                raise InvalidArgument(f"muster.Executor.end_tasks: expected futures of this executor, got {future!r}; give what its submit returned")
        return own

    def _end(self, number: int, task: Optional[Task], reason: str) -> None:
        if task is not None:
            task.ended_by_us = reason
            task.retries = 0
            task.future.is_known = True
        if number in self._workers:
            self._workers[number].end()
        self._server.end(number, _GRACE_SECONDS)

    def _notify(self) -> None:
        with self._lock:
            self._changed.notify_all()

    # --- scheduling, under the lock ---

    def _schedule(self) -> None:
        """Starts what can start, in order. A task that must wait for devices keeps those behind it waiting."""
        with self._lock:
            while (task := self._waiting.first()) is not None and self._try_to_start(task):
                pass
            if self._waits_for_others() and not self._looks_for_others:
                self._looks_for_others = True
                self._timers.after(_TELL_OF_OTHERS_AFTER, self._tell_of_others)
            if self._closing and not self._waiting and not self._running:
                self._end_workers(lambda worker: True)
            self._changed.notify_all()
        self._completions.run()

    def _waits_for_others(self) -> bool:
        """Whether nothing of this executor is in the way of the next task: other jobs are."""
        return not self._running and not self._workers and self._waiting.first() is not None and bool(self._places.held())

    def _tell_of_others(self) -> None:
        """Once, where they stay. Tasks that nobody starts would look like a hang."""
        with self._lock:
            told = self._places.held() if self._waits_for_others() else []
            self._looks_for_others = bool(told)
        if told:
            say(f"muster.Executor: info: tasks wait for GPUs of other jobs: {'; '.join(told)}")

    def _on_earlier(self, task: Task, earlier: "concurrent.futures.Future[Any]") -> None:
        """A future has ended that this task comes after."""
        failed = why_failed(earlier)
        with self._lock:
            task.earlier_left -= 1
            if failed is None and task.earlier_left == 0:
                self._waiting.make_ready(task)
            elif failed is not None and self._waiting.remove(task):
                self._fail(task, f"was skipped: it comes after one that failed ({failed})")
        self._schedule()

    def _on_done(self, found: "weakref.ref[Task]", ranks: int, future: "concurrent.futures.Future[Any]") -> None:
        """A future does not keep its task, which has it: it would go late, and so would its warning."""
        with self._lock:
            self._ranks_left -= ranks
        task = found()
        if task is None or not future.cancelled():
            return
        with self._lock:
            self._waiting.remove(task)
            task.claim()
            task.packed = b""
        self._schedule()

    def _fail(self, task: Task, how: str) -> None:
        """Its future is completed by the next _schedule."""
        failed = TaskFailed(f"task '{task.name}' {how}", devices=task.future.devices, log=task.future.log)
        self._complete(task, lambda: task.future.set_exception(failed))

    def _fail_to_start(self, task: Task, share: Share, error: Exception) -> None:
        self._places.give_back(share)
        self._fail(task, f"could not be started: {error if isinstance(error, Error) else repr(error)}")

    def _complete(self, task: Task, complete: Callable[[], object]) -> None:
        with self._lock:
            if task.claim():
                task.packed = b""
                for path in task.own:
                    remove_if_empty(path)
                self._completions.add(complete)

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
        try:
            if not task.claim():
                self._places.give_back(share)
                return
            task.take_log()
            task.begin(share)
            self._tell_of_edits(task)
            self._start(task.number, task.name, share, task.ranks, task.attempt, str(task.future.log), task.environment)
        except Exception as error:
            self._fail_to_start(task, share, error)
            return
        self._running[task.number] = task
        if task.time_limit is not None:
            task.timer = self._timers.after(task.time_limit, functools.partial(self._on_time_limit, task, task.attempt))

    def _tell_of_edits(self, task: Task) -> None:
        """Once for each file: tasks of one search would have run different code in silence."""
        edited = [path for path, written in task.sources.items() if path not in self._edited and written_at(path) not in (0, written)]
        self._edited.update(edited)
        for path in edited:
            say(f"muster.Executor: warning: '{path}' was written since task '{task.name}' was submitted: it and later tasks run what stands there now. To edit "
                "it meanwhile, start a copy")

    def _start(self, number: int, name: str, share: Share, ranks: int, attempt: int, log: str,
               more: Mapping[str, str]) -> None:
        environment = {**more, **self._channel.environment(), NUMBER: str(number), "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1",
                       "PYTHONFAULTHANDLER": os.environ.get("PYTHONFAULTHANDLER", "1")}
        uuids = [place.uuid for place in share.places if place.uuid]
        self._server.start(number, name, rank_command(), environment, ranks, attempt, uuids, share.units if uuids else 0, share.memory, log)

    # --- warm workers ---

    def _try_a_worker(self, task: Task) -> bool:
        for worker in self._workers.values():
            if worker.task is None and worker.is_ready():
                self._waiting.remove(task)
                if task.claim():
                    task.take_log_of_worker(worker.log)
                    task.take_folder()
                    task.begin(worker.share)
                    worker.give(task)
                return True
        while (share := self._places.take(task.need)) is not None:
            if not self._needs_another_worker():
                self._places.give_back(share)
                break
            try:
                self._start_worker(share)
            except Exception as error:
                self._waiting.remove(task)
                self._fail_to_start(task, share, error)
                return True
        return False

    def _needs_another_worker(self) -> bool:
        """Whether more tasks wait for a worker than are on their way."""
        starting = sum(worker.is_starting() for worker in self._workers.values())
        return self._waiting.num_first(Task.is_plain, starting + 1) > starting

    def _start_worker(self, share: Share) -> None:
        self._number += 1
        log = own_log_of_worker(os.path.join(self.run_dir, f"worker-{self._number}.log"))
        worker = Worker(self._number, share, log)
        self._start(worker.number, f"worker {share.places[0].name}", share, 1, 0, log,
                    {**changes_since(self._server.environment), LOG: log})
        self._workers[worker.number] = worker

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
            self._note_arrival(task, hello["rank"])
            send_call(connection, task.call())
            answer_of(connection, functools.partial(self._note_answer, task, hello["rank"]))

    def _note_arrival(self, task: Task, rank: int) -> None:
        with self._lock:
            task.arrived.add(rank)
            if len(task.arrived) == task.ranks:
                self._note_room(task)

    def _note_answer(self, task: Task, rank: int, answer: Dict[str, Any]) -> None:
        """Rank 0's is the task's, and before it the first exception of any rank. The others' say that they have come to their end."""
        with self._lock:
            task.answered.add(rank)
            has_raised = task.answer is not None and task.answer["kind"] == "raised"
            if not has_raised and (rank == 0 or answer["kind"] == "raised"):
                task.answer = answer

    def _serve_worker(self, worker: Worker, connection: Connection) -> None:
        """A warm worker takes one call after the other, until there is none for it."""
        with self._lock:
            worker.connected = True
            self._last_room = time.monotonic()
        self._schedule()
        while True:
            task = worker.next_task()
            if task is None:
                send_call(connection, None)
                return
            send_call(connection, task.call())
            answer = answer_of(connection, note_folder=task.note_folder)
            with self._lock:
                if self._workers.get(worker.number) is not worker:
                    return  # it has ended meanwhile, which is told
                worker.task = None
                if answer["kind"] == "returned":
                    task.own = []  # it has removed the folder, or the task has written there
                self._judge_answer(task, answer)
            self._schedule()

    def _on_message(self, message: Dict[str, Any]) -> None:
        kind = message["muster"]
        if kind == "output":
            with self._lock:
                log = self._log_of(message["id"])
            if log is not None:
                append_to_log(log, text_bytes(message["bytes"]))
        elif kind == "ended":
            self._on_end(message)
        elif kind == "held":
            with self._lock:
                self._places.set_held(message["gpu"], message["units"], _readable(message["by"]))
            self._schedule()
        elif kind in ("gone", "cannot"):
            self._on_gone(message.get("why", "the program muster has ended"))

    def _log_of(self, number: int) -> Optional[str]:
        if number in self._running:
            return self._running[number].future.log
        return self._workers[number].log if number in self._workers else None

    def _on_end(self, message: Dict[str, Any]) -> None:
        with self._lock:
            worker = self._workers.pop(message["id"], None)
            task = self._running.pop(message["id"], None) if worker is None else self._task_of(worker)
            share = worker.share if worker is not None else task.share if task is not None else None
            if share is not None:
                self._places.give_back(share)
            if task is not None:
                self._judge(task, message)
        if worker is not None:
            remove_if_empty(worker.log)
        self._schedule()

    def _task_of(self, worker: Worker) -> Optional[Task]:
        """The task that a worker had when it ended. One that could not even start, and was not told to end,
        fails the task that it was started for."""
        if worker.task is not None or worker.connected or worker.ending:
            return worker.task
        task = self._waiting.first_of(Task.is_plain)
        if task is None or not self._waiting.remove(task) or not task.claim():
            return None
        task.take_log_of_worker(worker.log)
        task.begin(worker.share)
        task.log_begin = 0  # all of it is of this start
        return task

    def _judge(self, task: Task, message: Dict[str, Any]) -> None:
        """Decides what the end of a process is for its task: the result, another start, or a failure."""
        if task.timer is not None:
            task.timer.cancel()
        if message.get("starved") and not task.ended_by_us:
            self._wait_for_room(task, _readable(str(message.get("why_not", ""))))
            return
        if not message.get("refused"):
            self._note_room(task)
        if message.get("refused") and not task.ended_by_us:
            self._look_again(task, 0.5)
        elif message["exit_code"] == _STOPPED and not task.ended_by_us:
            self._start_again(task, 0.0, costs=False)
        elif task.answer is not None and task.has_returned():
            tell_of_a_bad_end(task, message)
            self._judge_answer(task, task.answer)
        elif task.retries == 0 and task.answer is not None and task.answer["kind"] == "raised" and not task.ended_by_us:
            self._judge_answer(task, task.answer)
        elif task.retries > 0:
            self._retry(task)
        else:
            failed = TaskFailed.of(task, message)
            self._complete(task, lambda: task.future.set_exception(failed))

    def _note_room(self, task: Task) -> None:
        """A start has found all that it needs."""
        task.starts_without_room = 0
        self._last_room = time.monotonic()

    def _wait_for_room(self, task: Task, why: str) -> None:
        """There were no processes, descriptors or memory to start it with. Tasks that end give back some: while one runs, it waits."""
        now = time.monotonic()
        if task.starts_without_room == 0:
            task.without_room_since = now
        others_run = any(other.starts_without_room == 0 for other in self._running.values()) or any(worker.task for worker in self._workers.values())
        if now - max(task.without_room_since, self._last_room) >= _SHORTAGE_PATIENCE and not others_run:
            self._fail(task, f"could not be started: no start found room for {_SHORTAGE_PATIENCE:g} s ({why})")
            return
        if task.starts_without_room == 0:
            say(f"muster.Executor: info: task '{task.name}' could not begin ({why}), and starts again")
        self._look_again(task, task.next_pause_without_room())

    def _look_again(self, task: Task, pause: float) -> None:
        """The start was none."""
        task.forget_start()
        self._wait_and_start(task, pause)

    def _judge_answer(self, task: Task, answer: Dict[str, Any]) -> None:
        if answer["kind"] == "raised" and task.retries > 0:
            self._retry(task)
        else:
            self._complete(task, functools.partial(tell, task, answer))

    def _retry(self, task: Task) -> None:
        task.retries -= 1
        self._start_again(task, task.next_pause(), costs=True)

    def _start_again(self, task: Task, pause: float, costs: bool) -> None:
        task.prepare_another(costs)
        self._wait_and_start(task, pause)

    def _wait_and_start(self, task: Task, pause: float) -> None:
        self._waiting.add(task, ready=False)
        self._timers.after(pause, functools.partial(self._on_pause_over, task))

    def _on_pause_over(self, task: Task) -> None:
        with self._lock:
            self._waiting.make_ready(task)
        self._schedule()

    def _on_time_limit(self, task: Task, attempt: int) -> None:
        with self._lock:
            if self._running.get(task.number) is task and task.attempt == attempt:
                task.ended_by_us = f"its time limit of {task.time_limit:g} s was over"
                self._server.end(task.number, _GRACE_SECONDS)

    def _on_gone(self, why: str) -> None:
        """The program behind this executor has ended, and all of its tasks with it."""
        with self._lock:
            self._gone = why
            lost = [*self._running.values(), *(worker.task for worker in self._workers.values() if worker.task),
                    *self._waiting.take(lambda task: True)]
            self._running.clear()
            self._workers.clear()
            for task in lost:
                self._fail(task, f"was lost: {why}")
        self._schedule()


def _readable(text: str) -> str:
    return text_bytes(text).decode("utf-8", "replace")

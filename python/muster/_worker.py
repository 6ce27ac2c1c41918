"""The processes of an Executor's tasks, seen from the program: what they answer, and those that take one task after the
other."""
from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional

from muster._function import unpack_exception, unpack_result
from muster._places import Share
from muster._task import Task
from muster.failed import TaskFailed


class Worker:
    """A process that takes one task after the other."""

    def __init__(self, number: int, share: Share, log: str) -> None:
        self.number = number
        self.share = share
        self.log = log
        self.connected = False
        self.ending = False  # its process has been told to end, and takes no task from then on
        self.task: Optional[Task] = None
        self._given = threading.Condition()
        self._queue: List[Optional[Task]] = []

    def is_starting(self) -> bool:
        return not self.connected and not self.ending

    def is_ready(self) -> bool:
        return self.connected and not self.ending

    def give(self, task: Task) -> None:
        self.task = task
        with self._given:
            self._queue.append(task)
            self._given.notify()

    def end(self) -> None:
        """The process ends once it has no task."""
        self.ending = True
        with self._given:
            self._queue.append(None)
            self._given.notify()

    def next_task(self) -> Optional[Task]:
        with self._given:
            self._given.wait_for(lambda: bool(self._queue))
            return self._queue.pop(0)


def tell(task: Task, answer: Dict[str, Any]) -> None:
    """Gives the task's future what its function returned or raised."""
    if answer["kind"] == "returned":
        try:
            result = unpack_result(answer["result"], f"task '{task.name}'")
        except TypeError as unreadable:
            task.future.set_exception(unreadable)
            return
        task.future.set_result(result)
        return
    raised = unpack_exception(answer["exception"]) or _as_failure(task, answer["traceback"])
    raised.__cause__ = RemoteTraceback(answer["traceback"])
    task.future.set_exception(raised)


def _as_failure(task: Task, traceback: str) -> TaskFailed:
    """For an exception that cannot be sent, or not be made again here."""
    lines = traceback.strip().splitlines() or ["an exception"]
    return TaskFailed(f"task '{task.name}' failed: {lines[-1].removeprefix('__mp_main__.')}", devices=task.future.devices,
                      log=task.future.log)


class RemoteTraceback(Exception):
    """The traceback of an exception, as the process of the task has seen it."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])

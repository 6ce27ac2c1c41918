"""Tasks of an Executor that have not begun, or will begin again. Values only; starts nothing."""
from __future__ import annotations

import heapq
from typing import Callable, Dict, List, Optional, Tuple

from muster._task import Task


class Waiting:
    """Tasks that wait: for others, for a pause to end, or, as the ready ones, for devices alone."""

    def __init__(self) -> None:
        self._all: Dict[int, Task] = {}
        # By the order in which they start. An entry whose task is gone, or waits again, is dropped when it comes first.
        self._ready: List[Tuple[bool, int]] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def __contains__(self, task: Task) -> bool:
        return task.number in self._all

    def add(self, task: Task, ready: bool) -> None:
        """A task that is not ready yet gets so by make_ready."""
        self._all[task.number] = task
        task.is_ready = False
        if ready:
            self.make_ready(task)

    def make_ready(self, task: Task) -> None:
        if task in self:
            task.is_ready = True
            heapq.heappush(self._ready, _order(task))

    def remove(self, task: Task) -> bool:
        """Whether it was here."""
        return self._all.pop(task.number, None) is not None

    def first(self) -> Optional[Task]:
        """The ready one that starts next."""
        while self._ready and not self._is_current(self._ready[0]):
            heapq.heappop(self._ready)
        return self._all[self._ready[0][1]] if self._ready else None

    def num_first(self, which: Callable[[Task], bool], most: int) -> int:
        """How many of the ready ones that start next, up to `most`, come before the first where `which` does not hold."""
        ready = {entry[1] for entry in self._ready if self._is_current(entry)}
        first = heapq.nsmallest(most, (self._all[number] for number in ready), key=_order)
        return next((place for place, task in enumerate(first) if not which(task)), len(first))

    def first_of(self, which: Callable[[Task], bool]) -> Optional[Task]:
        """The ready one that starts next, of those where `which` holds. It looks at all of them."""
        return min((task for task in self._all.values() if task.is_ready and which(task)), key=_order, default=None)

    def take(self, which: Callable[[Task], bool]) -> List[Task]:
        """Removes those where `which` holds, and returns them."""
        taken = [task for task in self._all.values() if which(task)]
        for task in taken:
            self.remove(task)
        return taken

    def _is_current(self, entry: Tuple[bool, int]) -> bool:
        task = self._all.get(entry[1])
        return task is not None and task.is_ready


def _order(task: Task) -> Tuple[bool, int]:
    """That of `submit`; those that start again go first."""
    return task.attempt == 0, task.number

"""Tells of tasks that failed and whose results nobody has asked for. A search whose tasks have all failed would look as one that has gone well."""
from __future__ import annotations

import atexit
import concurrent.futures
import os
import weakref
from typing import TYPE_CHECKING, Any, List, Set, TypeVar

from muster._streams import say
from muster.errors import text_of

if TYPE_CHECKING:
    from muster._task import TaskFuture

_Member = TypeVar("_Member")


def _members_of(members: "weakref.WeakSet[_Member]") -> List[_Member]:
    """Of a set to which another thread, or the garbage collector, may add one meanwhile: its references are copied in one step."""
    found = [reference() for reference in list(vars(members)["data"])]
    return [member for member in found if member is not None]


class Unasked:
    """Those of one executor. The first is told once its future is gone, so that nobody can ask any more. The others, which may be
    thousands, are counted, and told together when the executor ends, or the program."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._failed: "weakref.WeakSet[TaskFuture[Any]]" = weakref.WeakSet()
        self._has_told = False
        self._more: List[str] = []  # also added to by the garbage collector, within any call: it takes no lock
        _all.add(self)

    def watch(self, future: "TaskFuture[Any]") -> None:
        """This one has failed."""
        self._failed.add(future)

    def note(self, future: "TaskFuture[Any]", error: BaseException) -> None:
        """Nobody will ask for this one."""
        if os.getpid() != self._owner:
            return
        how = f"{type(error).__name__}: {text_of(error)}".partition("\n")[0]
        if self._has_told:
            self._more.append(f"the last: {how}; call result() of their futures. See {future.log}")
            _with_more.add(self)
            return
        self._has_told = True
        say(f"muster.Executor: warning: nobody has asked for the result of a task that failed: {how}; call result() of its future. See {future.log}")

    def tell_of_more(self) -> None:
        _with_more.discard(self)
        more, self._more = self._more, []
        if more and os.getpid() == self._owner:
            say(f"muster.Executor: warning: nobody has asked for the results of {len(more)} more tasks that failed, {more[-1]}")

    def note_all(self) -> None:
        """The program ends, and with it all futures."""
        for future in _members_of(self._failed):
            error = None if future.is_known else concurrent.futures.Future.exception(future)
            future.is_known = True
            if error is not None:
                self.note(future, error)


_all: "weakref.WeakSet[Unasked]" = weakref.WeakSet()
_with_more: Set[Unasked] = set()


@atexit.register
def _tell_of_all() -> None:
    """Futures that the program still has would go one by one after this, when much of Python is gone."""
    for unasked in [*_members_of(_all), *list(_with_more)]:
        unasked.note_all()
        unasked.tell_of_more()

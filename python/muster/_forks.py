"""What belongs to this process alone: a child that it forks lets go of it."""
from __future__ import annotations

import os
import weakref
from typing import Protocol


class Owned(Protocol):
    """Something that a forked child must not use, nor keep open."""

    def let_go(self) -> None:
        """Called in the child. Other threads may have held any lock when it was forked, so this takes none."""


_owned: "weakref.WeakSet[Owned]" = weakref.WeakSet()


def owned_by_this_process(owned: Owned) -> None:
    """From now on children let go of it."""
    _owned.add(owned)


def _let_go_of_all() -> None:
    for owned in list(_owned):
        owned.let_go()


os.register_at_fork(after_in_child=_let_go_of_all)

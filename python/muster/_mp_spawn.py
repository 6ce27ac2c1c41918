"""Scripts that start their own processes with torch.multiprocessing.spawn, in ranks that a launcher has started already."""
from __future__ import annotations

import functools
import os
import sys
from typing import Any

from muster.errors import FailedPrecondition


def guard() -> None:
    """From now on mp.spawn in a rank of several is an error: each rank would start as many again, and they would meet at one
    port. Called where torch has been imported; does nothing in a world of one."""
    multiprocessing = getattr(sys.modules.get("torch"), "multiprocessing", None)
    if multiprocessing is None or int(os.environ.get("WORLD_SIZE") or 1) <= 1 or hasattr(multiprocessing.spawn, "__wrapped__"):
        return
    original = multiprocessing.spawn

    @functools.wraps(original)
    def refuse(fn: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(fn, "__name__", "main")
        raise FailedPrecondition(
            f"mp.spawn: expected a process that is not yet a rank, got rank {os.environ.get('RANK')} of {os.environ.get('WORLD_SIZE')}: the "
            f"launcher has started the ranks already; replace mp.spawn({name}, ...) by {name}(int(os.environ['LOCAL_RANK']), ...), or "
            "start this script with python")

    multiprocessing.spawn = refuse

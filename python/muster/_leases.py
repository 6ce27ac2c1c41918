"""The leases of this process's job, for what it starts in turn: what the job holds is no obstacle to that."""
from __future__ import annotations

import functools
import importlib
import os
import stat
from typing import Any, Iterable, List


def lease_descriptors() -> List[int]:
    """Those that the program looks for, to be passed on: Python closes them in its children otherwise. The variable outlives a
    descriptor that somebody has closed, and the number may be another file's."""
    told = os.environ.get("MUSTER_LEASE_FD", "").split(",")
    return [int(word) for word in told if word.isdigit() and _is_lease(f"/proc/self/fd/{word}")]


def _is_lease(descriptor: str) -> bool:
    """Whether it is open for a GPU's file of a runtime folder (lease.cc names it)."""
    try:
        folder, name = os.path.split(os.readlink(descriptor))
        is_file = stat.S_ISREG(os.stat(descriptor).st_mode)
    except OSError:
        return False
    return is_file and os.path.basename(folder) == f"muster-{os.geteuid()}" and name.startswith(("gpu-", "mig-"))


def pass_on() -> None:
    """From now on the processes of multiprocessing have them too, by "spawn" and by "forkserver": it starts both by this function."""
    util: Any = importlib.import_module("multiprocessing.util")
    original = util.spawnv_passfds

    @functools.wraps(original)
    def spawnv_passfds(path: Any, args: Any, passfds: Iterable[Any]) -> Any:
        is_tracker = any("multiprocessing.resource_tracker" in str(word) for word in args)  # it computes nothing, and outlives this process
        return original(path, args, list({*map(int, passfds), *([] if is_tracker else lease_descriptors())}))

    util.spawnv_passfds = spawnv_passfds

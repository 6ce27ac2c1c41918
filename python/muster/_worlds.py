"""Two worlds of one rank where a launcher has started one of two: what a script gets that reads its place from variables of
another launcher, such as SLURM_PROCID outside of srun."""
from __future__ import annotations

import functools
import os
import sys
from typing import Any

from muster._streams import say

_guarded = False


def guard() -> None:
    """From now on a first group that is smaller than the launcher's world is warned of. Called where torch has been imported; does
    nothing in a world of one, nor a second time."""
    global _guarded
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    started = os.environ.get("WORLD_SIZE", "")
    if _guarded or not hasattr(distributed, "init_process_group") or not started.isdigit() or int(started) <= 1:
        return
    _guarded = True
    original = distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        size = distributed.get_world_size()
        if size < int(started) and "muster" not in distributed.get_backend_config():  # that backend says it itself
            say(f"[rank {os.environ.get('RANK', '?')}] warning: process group: expected the {started} ranks that were started, got a "
                f"group of {size}; give init_process_group no rank and no world size, or those of RANK and WORLD_SIZE")
        return made

    distributed.init_process_group = init_process_group

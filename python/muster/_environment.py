"""What of this process's environment has changed since its tasks' server was started, whose environment they inherit."""
from __future__ import annotations

import os
from typing import Dict, Mapping

UNSET = "MUSTER_CALL_UNSET"  # names between "=", which no name has
# The launcher sets these for each task.
_LAUNCHERS = ("MUSTER_", "CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_VISIBLE", "GPU_DEVICE_ORDINAL")


def changes_since(earlier: Mapping[str, str]) -> Dict[str, str]:
    """Variables that a task gets in addition. Those that are gone are named in UNSET."""
    now = dict(os.environ)
    changed = {name: value for name, value in now.items() if earlier.get(name) != value and not name.startswith(_LAUNCHERS)}
    gone = [name for name in earlier if name not in now and not name.startswith(_LAUNCHERS)]
    return {**changed, UNSET: "=".join(gone)} if gone else changed


def unset_what_is_gone() -> None:
    """In the task's process."""
    for name in os.environ.pop(UNSET, "").split("="):
        os.environ.pop(name, None)

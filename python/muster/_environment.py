"""What of this process's environment has changed since its tasks' server was started, whose environment they inherit, and the
folder in which the program has begun."""
from __future__ import annotations

import os
import sys
from typing import Dict, Mapping, Optional

UNSET = "MUSTER_CALL_UNSET"  # names between "=", which no name has
# The launcher sets these for each task.
_LAUNCHERS = ("MUSTER_", "CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_VISIBLE", "GPU_DEVICE_ORDINAL")


def folder_of_now() -> Optional[str]:
    """None: it was removed, or cannot be entered."""
    try:
        return os.getcwd()
    except OSError:
        return None


# Of the import of this package, or of multiprocessing's, which remembers it too.
FIRST_FOLDER = getattr(sys.modules.get("multiprocessing.process"), "ORIGINAL_DIR", None) or folder_of_now()


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

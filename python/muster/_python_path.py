"""How a process for a function is started, and where it finds this package."""
from __future__ import annotations

import os
import subprocess
import sys


def python_path() -> str:
    """PYTHONPATH with this package first; sys.path comes with its call."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    earlier = os.environ.get("PYTHONPATH", "")
    return f"{package}{os.pathsep}{earlier}" if earlier else package


def rank_command() -> list[str]:
    """This interpreter with its own flags, as -O or -W error. Those that would hide PYTHONPATH are left out."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does it
    return [sys.executable, *(flag for flag in flags if flag not in ("-I", "-E")), "-m", "muster._rank_main"]

"""How a process for a function is started, and where it finds this package."""
from __future__ import annotations

import os
import subprocess
import sys

from muster.errors import FailedPrecondition


def python_path() -> str:
    """PYTHONPATH with this package first; sys.path comes with its call."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    earlier = os.environ.get("PYTHONPATH", "")
    return f"{package}{os.pathsep}{earlier}" if earlier else package


def rank_command() -> list[str]:
    """This interpreter with its own flags, as -O or -W error. Those that would hide PYTHONPATH are left out."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does it
    return [sys.executable, *(flag for flag in flags if flag not in ("-I", "-E")), "-m", "muster._rank_main"]


def working_folder(what: str) -> str:
    """The folder of now, in which a call is made."""
    try:
        return os.getcwd()
    except OSError as error:
        raise FailedPrecondition(f"{what}: expected a working folder, got one that was removed, or cannot be entered ({error.strerror}); change to "
                                 "another by os.chdir") from None

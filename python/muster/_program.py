"""Where the program `muster` is. What starts processes goes through it."""
from __future__ import annotations

import os
import pathlib
import shutil
import sys
import sysconfig
from typing import Iterator, Optional

from muster.errors import Unavailable

_found: Optional[str] = None


def program() -> str:
    """The path of the program: MUSTER_PROGRAM, or the one that came with this package, or the first of PATH."""
    global _found
    named = os.environ.get("MUSTER_PROGRAM")
    if named:
        if not os.access(named, os.X_OK):
            raise Unavailable(f"MUSTER_PROGRAM: expected the program muster, got '{named}', which cannot be run; correct it")
        return os.path.abspath(named)
    if _found is None:
        _found = next((path for path in _places() if path and os.access(path, os.X_OK) and not os.path.isdir(path)), None)
    if _found is None:
        raise Unavailable("muster: expected the program muster beside its Python package or in PATH, got none; "
                          "install the wheel, or set MUSTER_PROGRAM")
    return _found


def _places() -> Iterator[Optional[str]]:
    """Where pip puts it: beside the interpreter, in the user's scheme, with --target beside the packages."""
    package = pathlib.Path(__file__).resolve().parent
    target = package.parent / "bin" / "muster"
    if (package.parent / "bin").is_dir():
        yield str(target)
    schemes = [sysconfig.get_path("scripts")]
    user = f"{os.name}_user"
    if user in sysconfig.get_scheme_names():
        schemes.append(sysconfig.get_path("scripts", user))
    if str(package).startswith(sys.prefix):
        yield os.path.join(schemes[0], "muster")
        schemes.pop(0)
    for folder in schemes:
        yield os.path.join(folder, "muster")
    yield shutil.which("muster")

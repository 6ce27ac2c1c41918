"""Where the program `muster` is, and how it is called. What starts processes goes through it."""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import sysconfig
from typing import Any, Iterator, List, Mapping, Optional, Sequence

from muster.errors import Error, Unavailable

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


def lease_descriptors() -> List[int]:
    """Those of this process's job, which the program looks for: what the job holds is no obstacle to what it starts in turn. Python
    closes them in its children otherwise. The variable outlives a descriptor that somebody has closed, and the number may be another file's."""
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


def call(arguments: Sequence[str], *, environment: Optional[Mapping[str, str]] = None,
         timeout: Optional[float] = None) -> subprocess.CompletedProcess[str]:
    """Runs `muster ARGUMENTS` to its end, with its output as text."""
    return subprocess.run([program(), *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          pass_fds=lease_descriptors(), timeout=timeout, check=False)


def call_json(arguments: Sequence[str], **how: Any) -> Any:
    """What `muster ARGUMENTS` prints as JSON. Raises Error with what it said where its exit code is not 0."""
    done = call(arguments, **how)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise Error(said[-1] if said else f"muster {' '.join(arguments)}: exit code {done.returncode}")
    return json.loads(done.stdout)

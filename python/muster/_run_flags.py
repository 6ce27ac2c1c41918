"""Keywords of Python as flags of `muster run`."""
from __future__ import annotations

import json
import os
from typing import Any, Iterable, Iterator, List, Mapping

from muster._flags import gpus_text, mesh_text, scores_table
from muster.errors import InvalidArgument

SHORT = {"n": "-n"}
_LISTS = {"signals_to_handle", "local_ranks_filter", "rank_memory", "hosts"}


def run_flags(keywords: Mapping[str, Any], folder: str) -> List[str]:
    """The flags for these keywords. What the program reads from files goes into `folder`.

    >>> run_flags({"n": 2, "gpus": [2, 4], "max_restarts": 3, "quiet": True}, "/tmp")
    ['-n', '2', '--gpus', '2,4', '--max-restarts', '3', '--quiet']
    """
    flags: List[str] = []
    for name, value in keywords.items():
        if value is not None and value is not False:
            flags += _flag(name, value, folder)
    return flags


def _flag(name: str, value: Any, folder: str) -> Iterator[str]:
    flag = SHORT.get(name, "--" + name.replace("_", "-"))
    if name == "env":
        for variable, told in dict(value).items():
            yield from (flag, f"{variable}={told}")
        return
    if value is True:
        # The trace takes a word behind an equals sign; every other flag of this kind stands alone.
        yield flag
        return
    if name == "trace":
        yield f"{flag}={value}"
        return
    yield flag
    yield _text(name, value, folder)


def _text(name: str, value: Any, folder: str) -> str:
    if name == "gpus":
        return str(gpus_text(value))
    if name == "mesh":
        return str(mesh_text(value))
    if name == "scores" and isinstance(value, Mapping):
        return _file(folder, "scores.json", json.dumps(scores_table(value)))
    if name == "plan" and hasattr(value, "to_json"):
        return _file(folder, "plan.json", value.to_json())
    if name == "hosts" and isinstance(value, Mapping):
        return ",".join(f"{host}:{ranks}" for host, ranks in value.items())
    if isinstance(value, (str, int, float, os.PathLike)):
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return ",".join(str(one) for one in value)
    raise InvalidArgument(f"{name}: expected a value as `muster run --{name.replace('_', '-')}` takes it, got {value!r}; correct it")


def _file(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path

"""Keywords of Python as flags of `muster run`."""
from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any, Iterator, List, Mapping

from muster._flags import gpus_text, memory_texts, mesh_text, scores_table
from muster._keywords import SWITCHES
from muster._plain import path_text, plain_value
from muster.errors import InvalidArgument

SHORT = {"n": "-n"}
# Those that name a file or a folder, and those whose value may be left out.
_PATHS = {"config", "hostfile", "inventory", "log_dir", "plan", "run_dir", "scores", "secret_file", "topology", "workdir"}
_MAY_STAND_ALONE = {"trace", "wait"}
# Those that start no function, and what to do instead.
_OF_OTHERS = {"dry_run": "call muster.plan, which starts nothing", "json": "call muster.plan(...).to_json()", "help": "call help(muster.spawn)",
              **dict.fromkeys(("module", "run_path", "no_python"), "give the function, and leave it out")}
# Those of other launchers, and what to do instead.
_OF_OTHER_LAUNCHERS = {
    "torch.multiprocessing.spawn": {"nprocs": "write n={value!r}", "join": "leave it out: it returns when all ranks have ended (muster.Executor has futures)",
                                    "daemon": "leave it out: ranks end with this process", "start_method": "leave it out: each rank is a process of its own"},
    "Accelerate": {"num_processes": "write n={value!r}"},
    "Lightning": {"devices": "write gpus=[...] for these, or n=... for as many", "num_nodes": "write hosts={{'a': 4, 'b': 4}}"}}


def run_flags(keywords: Mapping[str, Any], folder: str) -> List[str]:
    """The flags for these keywords. What the program reads from files goes into `folder`.

    >>> run_flags({"n": 2, "gpus": [2, 4], "max_restarts": 3, "quiet": True}, "/tmp")
    ['-n', '2', '--gpus', '2,4', '--max-restarts', '3', '--quiet']
    """
    if keywords.get("n") is not None and keywords.get("nproc_per_node") is not None:
        raise InvalidArgument(f"muster.spawn: expected n or nproc_per_node, got n={keywords['n']!r} and nproc_per_node="
                              f"{keywords['nproc_per_node']!r}; leave one out")
    flags: List[str] = []
    for name, value in keywords.items():
        for whose, known in _OF_OTHER_LAUNCHERS.items():
            if name in known:
                raise InvalidArgument(f"muster.spawn: expected a keyword of muster.spawn, got {name}={value!r} of {whose}; "
                                      f"{known[name].format(value=value)}")
        if value is None or value is False:
            continue
        if name in _OF_OTHERS:
            raise InvalidArgument(f"muster.spawn: expected a flag for starting a function, got {name}={value!r}; {_OF_OTHERS[name]}")
        if isinstance(value, timedelta):
            value = value.total_seconds()
        flags += _switch(name, value) if name in SWITCHES else _flag(name, value, folder)
    return flags


def _switch(name: str, value: Any) -> List[str]:
    if value not in (0, 1):
        raise InvalidArgument(f"{name}: expected True or False, got {value!r}; correct it")
    return [_spelled(name)] if value else []


def _spelled(name: str) -> str:
    return SHORT.get(name, "--" + name.replace("_", "-"))


def _flag(name: str, value: Any, folder: str) -> Iterator[str]:
    flag = _spelled(name)
    if name == "env":
        for variable, told in _variables(value).items():
            yield from (flag, f"{variable}={told}")
    elif name in _MAY_STAND_ALONE:  # a value stands behind an equals sign
        yield flag if value is True else f"{flag}={value}"
    else:
        yield from (flag, _text(name, value, folder))


def _variables(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"env: expected a dict of variables, got {value!r}; write env={{'NAME': 'value'}}")
    for variable, told in value.items():
        if not isinstance(variable, str) or not variable or "=" in variable:
            raise InvalidArgument(f"env: expected names of variables as keys, got {variable!r}; write env={{'NAME': 'value'}}")
        if told is None:
            raise InvalidArgument(f"env: expected a text for {variable}, got None; leave it out, or write ''")
    return value


def _text(name: str, value: Any, folder: str) -> str:
    if name == "gpus":
        return str(gpus_text(value))
    if name == "rank_memory":
        return ",".join(memory_texts(value) or ())
    if name == "mesh":
        return str(mesh_text(value))
    if name == "scores" and isinstance(value, Mapping):
        return _file(folder, "scores.json", json.dumps(scores_table(value)))
    if name == "plan" and hasattr(value, "to_json"):
        return _file(folder, "plan.json", value.to_json())
    if name == "hosts" and isinstance(value, Mapping) and value:
        return ",".join(f"{host}:{ranks}" for host, ranks in value.items())
    plain = plain_value(value)
    if isinstance(plain, str) and name in _PATHS:
        return path_text(plain)
    if isinstance(plain, str) and name == "map" and plain.startswith("@"):
        return f"@{path_text(plain[1:])}"
    if isinstance(plain, (str, int, float)) and not isinstance(plain, bool):
        return str(plain)
    if isinstance(plain, list) and plain:
        return ",".join(str(one) for one in plain)
    raise InvalidArgument(f"{name}: expected a value as `muster run --{name.replace('_', '-')}` takes it, got {value!r}; correct it")


def _file(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path

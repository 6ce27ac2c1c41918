"""Starts a function as the ranks of a job."""
from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping as MappingType, Sequence as SequenceType
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, TypeVar, Union

from muster._arguments import refuse_what_does_not_fit
from muster._channel import ADDRESS, KEY, Call, Channel, answer_of, send_call
from muster._flags import DeviceName, gpus_text, scores_table, tell_of_one_gpu
from muster._function import name_of, pack, refuse_while_importing, unpack_exception, unpack_result
from muster._job_process import JobProcess
from muster._keywords import by_keywords
from muster._plain import plain_value
from muster._python_path import python_path, rank_command
from muster._run_flags import run_flags
from muster.errors import Error, FailedPrecondition, InvalidArgument, Unavailable
from muster.failed import RanksFailed, card_of, failure_of, logs_of

_SAYS = "muster run: "
_STOPS = {75: "; all ranks have saved", 124: "; its timeout was over"}


_Result = TypeVar("_Result")


def spawn(function: Callable[..., _Result], args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, *,
          n: Union[None, int, str] = None,
          gpus: Union[None, DeviceName, Iterable[DeviceName]] = None,
          policy: Optional[str] = None,
          map: Any = None,
          hosts: Union[None, str, Mapping[str, int]] = None,
          max_restarts: Optional[int] = None,
          timeout: Union[None, float, str, timedelta] = None,
          quiet: bool = False,
          **flags: Any) -> List[_Result]:
    """Runs `function(*args, **kwargs)` as every rank of a job, and returns what each rank returned, by rank.

    One rank a GPU of `gpus` ("2,4,7", [2, 4], "free:2"); without GPUs, one a CPU slot. `muster.init()` in the function joins the ranks. Every flag of
    `muster run` is a keyword, with underscores: max_restarts=3, tee=3, run_dir="runs/a", hosts={"a": 4, "b": 8}.

    >>> def train(epochs):
    ...     ctx = muster.init()
    ...     ...
    ...     return {"accuracy": 0.9}
    >>> if __name__ == "__main__":
    ...     results = muster.spawn(train, args=(3,), gpus="2,4,7", max_restarts=3)
    ...     print(results[0])

    The function is found again by its name, so it belongs into a module or the script itself; functions of notebooks and
    lambdas need cloudpickle. Each rank is a process of its own, started by `muster run`, and ends with this one.

    Raises RanksFailed when a rank fails: with the failure card, the cause, the exit code, and the exception of that rank as
    its `__cause__`. Raises InvalidArgument for what cannot be sent to a rank.
    """
    refuse_while_importing("muster.spawn")
    _refuse_in_a_rank()
    if isinstance(args, (str, bytes)) or not isinstance(args, SequenceType):
        raise InvalidArgument(f"muster.spawn: expected a tuple of arguments, got args={args!r}; write args=({args!r},)")
    if kwargs is not None and not isinstance(kwargs, MappingType):
        raise InvalidArgument(f"muster.spawn: expected a dict of arguments by name, got kwargs={kwargs!r}; write kwargs={{'name': value}}")
    keywords: Dict[str, Any] = {"n": plain_value(n), "gpus": gpus, "policy": policy, "hosts": hosts, "max_restarts": max_restarts,
                                "timeout": timeout, "quiet": quiet, **flags}
    tell_of_one_gpu("muster.spawn", gpus)
    folder = tempfile.mkdtemp(prefix="muster-spawn-")
    try:
        _add_map(keywords, map)
        packed = pack(function, args, kwargs or {}, "muster.spawn", stays=flags.get("workdir") is not None)
        refuse_what_does_not_fit(function, args, kwargs or {}, "muster.spawn", " (the function gets no rank: muster.rank() has it)")
        return _Job(packed, name_of(function), keywords, folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _refuse_in_a_rank() -> None:
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is not None and size is not None:
        raise FailedPrecondition(
            f"muster.spawn: expected a process that is not yet a rank, got rank {rank} of {size}; call the function itself, "
            "since the ranks are started already, or start this script without a launcher")


def _add_map(keywords: Dict[str, Any], map: Any) -> None:
    """A function of rank and devices is asked here; lists go to the program as they are."""
    if map is None:
        return
    if isinstance(map, str):
        keywords["map"] = map
        return
    from muster.plan import map_indices
    scores = keywords.get("scores")
    ranks = keywords.get("n") or keywords.get("nproc_per_node")
    request = {"n": ranks, "gpus": gpus_text(keywords.get("gpus")), "inventory": keywords.get("inventory"),
               "scores": scores_table(scores) if isinstance(scores, Mapping) else None}
    keywords["map"] = ",".join(str(index) for index in map_indices(map, request))


class _Job:
    """One call of `spawn`."""

    def __init__(self, packed: bytes, name: str, keywords: Dict[str, Any], folder: str) -> None:
        self._packed = packed
        self._name = name
        self._keywords = keywords
        self._folder = folder
        self._lock = threading.Lock()
        self._run_dir: Optional[str] = None
        self._world_size = 0
        self._returned: Dict[int, bytes] = {}
        self._raised: Dict[int, Dict[str, Any]] = {}

    def run(self) -> List[Any]:
        across = self._keywords.get("hosts") is not None or self._keywords.get("hostfile") is not None
        channel = Channel(self._on_hello, across_hosts=across)
        try:
            environment = {**os.environ, **channel.environment(), "PYTHONPATH": python_path()}
            if across:
                environment[ADDRESS] = _address_for(self._keywords, environment[ADDRESS])
            process = JobProcess(self._arguments(across), environment)
            code = process.wait()
        finally:
            channel.close()
        if code != 0:
            raise self._failure(code, process.said)
        return self._results()

    def _arguments(self, across: bool) -> List[str]:
        passed_on = [word for name in (ADDRESS, KEY, "PYTHONPATH") for word in ("--env", name)] if across else []
        return ["run", *run_flags(self._keywords, self._folder), *passed_on, "--no-python", *rank_command()]

    def _on_hello(self, hello: Dict[str, Any], connection: Connection) -> None:
        """A rank asks for its call, and later tells what came of it. A later attempt replaces an earlier one."""
        rank = hello["rank"]
        with self._lock:
            self._world_size = hello["world_size"]
            self._run_dir = hello["run_dir"] or self._run_dir
            self._returned.pop(rank, None)
            self._raised.pop(rank, None)
        send_call(connection, Call(self._packed, hello["attempt"]))
        answer_of(connection, functools.partial(self._note_answer, rank))

    def _note_answer(self, rank: int, answer: Dict[str, Any]) -> None:
        with self._lock:
            if answer["kind"] == "returned":
                self._returned[rank] = answer["result"]
            else:
                self._raised[rank] = answer

    def _results(self) -> List[Any]:
        missing = [rank for rank in range(self._world_size) if rank not in self._returned]
        raised = [rank for rank in missing if rank in self._raised]
        if raised:  # on_failure="continue": the others have gone on without it
            raise self._failure_beside_others(raised)
        if missing or self._world_size == 0:
            ranks = ", ".join(str(rank) for rank in missing) or "of any rank"
            raise RanksFailed(f"muster.spawn: expected a result of every rank, got none of rank {ranks}: it ended with exit code 0 "
                              f"before '{self._name}' returned (os._exit or sys.exit in it?)", run_dir=self._run_dir, exit_code=0, results=self._readable())
        return [unpack_result(self._returned[rank], f"muster.spawn: rank {rank}") for rank in range(self._world_size)]

    def _readable(self) -> Dict[int, Any]:
        """What ranks have returned, for an exception. What cannot be made again here is left out."""
        results = {}
        for rank, packed in sorted(self._returned.items()):
            with contextlib.suppress(TypeError):
                results[rank] = unpack_result(packed, f"rank {rank}")
        return results

    def _failure_beside_others(self, ranks: List[int]) -> Error:
        told = self._raised[ranks[0]]
        error = RanksFailed(f"muster.spawn: expected a result of every rank, got an exception of rank "
                            f"{', '.join(str(rank) for rank in ranks)}\n{told['traceback'].rstrip()}",
                            cause="exit code 1", rank=ranks[0], run_dir=self._run_dir, logs=logs_of(self._run_dir),
                            failure=failure_of(self._run_dir), results=self._readable())
        error.__cause__ = unpack_exception(told["exception"])
        return error

    def _failure(self, code: int, said: List[str]) -> Error:
        failure = failure_of(self._run_dir)
        if not failure:
            return self._failure_without_card(code, said)
        first = failure["first"]
        raised = self._raised.get(first["rank"], {})
        error = RanksFailed(card_of(failure, self._run_dir, raised.get("traceback", "")), cause=first["cause"], rank=first["rank"],
                            exit_code=code, run_dir=self._run_dir, logs=logs_of(self._run_dir), failure=failure, results=self._readable())
        error.__cause__ = unpack_exception(raised.get("exception"))
        return error

    def _failure_without_card(self, code: int, said: List[str]) -> Error:
        """No rank failed: the program refused the job, or was stopped."""
        if self._world_size == 0 and code in (1, 2):
            refused = InvalidArgument if code == 2 else Unavailable
            return refused(f"muster.spawn: {_told(said) or f'the job was not started (exit code {code}; the reason is above)'}")
        reason = _STOPS.get(code, "")
        return RanksFailed(f"muster.spawn: the job of '{self._name}' was stopped: exit code {code}{reason}", exit_code=code,
                           cause=f"exit code {code}", run_dir=self._run_dir, logs=logs_of(self._run_dir), results=self._readable())


def _told(said: List[str]) -> str:
    """The last thing that the program has said, which may be of several lines, with keywords for flags."""
    lines = [line for line in said if line.strip()]
    begin = next((place for place in range(len(lines) - 1, -1, -1) if lines[place].startswith(_SAYS)), len(lines) - 1)
    text = "\n".join(lines[max(0, begin):])
    return by_keywords(text[len(_SAYS):] if text.startswith(_SAYS) else text).replace("a flag of muster run", "a keyword of muster.spawn or a flag of muster run")


def _address_for(keywords: Mapping[str, Any], address: str) -> str:
    """This host's address on the route to the first of the hosts."""
    hosts = keywords.get("hosts")
    first = next(iter(hosts), "") if isinstance(hosts, Mapping) else str(hosts or "").split(",")[0].partition(":")[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((first.rpartition("@")[2] or "localhost", 9))
            own = probe.getsockname()[0]
        except OSError:
            own = socket.gethostname()
    return f"{own}:{address.rpartition(':')[2]}"

"""What is raised when ranks fail."""
from __future__ import annotations

import json
import os
import pathlib
from typing import Any, List, Mapping, Optional

from muster._stops import name_of
from muster._streams import say
from muster.errors import Error


class RanksFailed(Error):
    """A job of `muster.spawn` failed. It prints as the failure card: which rank failed first, where, when, and why.

    >>> try:
    ...     muster.spawn(train, n=2)
    ... except muster.RanksFailed as failed:
    ...     print(failed.rank, failed.cause, failed.exit_code, failed.logs)

    `__cause__` is the exception that left the function of that rank, where it could be sent. `results` has what other ranks, or
    this one before it died, have returned: {rank: value}.
    """

    code = "peer_failed"

    def __init__(self, card: str, *, cause: str = "", rank: Optional[int] = None, exit_code: int = 1,
                 run_dir: Optional[str] = None, logs: Optional[List[str]] = None,
                 failure: Optional[Mapping[str, Any]] = None, results: Optional[Mapping[int, Any]] = None) -> None:
        super().__init__(card)
        self.card = card
        self.cause = cause
        self.rank = rank
        self.exit_code = exit_code
        self.run_dir = run_dir
        self.logs = logs or []
        self.failure = failure or {}
        self.results = dict(results or {})

    def __reduce__(self) -> Any:
        return (_make, (self.card, self.cause, self.rank, self.exit_code, self.run_dir, self.logs, dict(self.failure), self.results))


def _make(card: str, cause: str, rank: Optional[int], exit_code: int, run_dir: Optional[str], logs: List[str],
          failure: Mapping[str, Any], results: Mapping[int, Any]) -> RanksFailed:
    return RanksFailed(card, cause=cause, rank=rank, exit_code=exit_code, run_dir=run_dir, logs=logs, failure=failure, results=results)


class TaskFailed(Error):
    """The process of a task of muster.Executor ended without a result: it was killed, or ended itself, or its time was over,
    or a task that it comes after failed. `exit_code`, `signal`, `devices` and `log` say more; the message has the last lines
    of the log."""

    code = "peer_failed"

    def __init__(self, message: str, *, exit_code: int = 1, signal: Optional[str] = None, devices: Optional[List[str]] = None,
                 log: Optional[str] = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal
        self.devices = devices or []
        self.log = log

    @classmethod
    def of(cls, task: Any, end: Mapping[str, Any]) -> TaskFailed:
        """For the end of its process, as the program tells it."""
        number = int(end["signal"])
        name = name_of(number) if number else None
        how = f"killed by {name}" if name else f"exit code {end['exit_code']}"
        if number == 0 and int(end["exit_code"]) == 0:
            silent = [str(rank) for rank in range(task.ranks) if rank not in task.answered] if task.answered else []
            how += f" before it returned{' on rank ' + ', '.join(silent) if silent else ''} (os._exit or sys.exit in it?)"
        reasons = [task.ended_by_us or how, end.get("why_not", "")]
        if end.get("out_of_memory"):
            reasons.append("the kernel ended it because memory ran out")
        lines = [f"task '{task.name}' failed: {'; '.join(reason for reason in reasons if reason)}",
                 f"  where     {', '.join(task.future.devices) or 'CPU'}, attempt {task.future.attempts}",
                 *(f"    {line}" for line in _last_lines(task.future.log, task.log_begin)), f"  log       {task.future.log}"]
        return cls("\n".join(lines), exit_code=128 + number if number else int(end["exit_code"]), signal=name,
                   devices=task.future.devices, log=task.future.log)


def tell_of_a_bad_end(task: Any, end: Mapping[str, Any]) -> None:
    """Of the process of a task that has its result already, as a library that crashes while Python ends. The result counts."""
    number, code = int(end["signal"]), int(end["exit_code"])
    if number or code:
        how = f"was killed by {name_of(number)}" if number else f"ended with exit code {code}"
        say(f"muster.Executor: warning: task '{task.name}' has returned, and its process {how} after that; its result counts. See {task.future.log}")


def _last_lines(path: Optional[str], begin: int, most: int = 10) -> List[str]:
    try:
        with open(path or "", "rb") as log:
            log.seek(max(begin, os.path.getsize(log.name) - 8192))
            return log.read().decode("utf-8", "replace").splitlines()[-most:]
    except OSError:
        return []


def failure_of(run_dir: Optional[str]) -> Mapping[str, Any]:
    """failure.json of a run's folder; empty where there is none."""
    if run_dir is None:
        return {}
    try:
        document = json.loads((pathlib.Path(run_dir) / "failure.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) and document.get("schema") == "muster.failure/1" else {}


def card_of(failure: Mapping[str, Any], run_dir: Optional[str], told: str = "") -> str:
    """The card as text. `told` is the traceback that the rank has sent, which says more than its last lines."""
    first = failure["first"]
    lines = [f"rank {first['rank']} failed first: {first['cause']}",
             f"  where     host {first['host']}, {first['device']}, pid {first['pid']}"]
    said = [("doubt", failure.get("doubt")), ("meaning", first.get("meaning")), ("error", first.get("message"))]
    lines += [f"  {name:<9} {text}" for name, text in said if text]
    details = told.rstrip().splitlines() or first.get("stack", "").splitlines() or first.get("last_lines", [])
    lines += [f"    {line}" for line in details]
    lines += [f"  then      rank {other['rank']}: {other['cause']}" for other in failure.get("others", ())[:8]]
    if first.get("stderr_log"):
        lines.append(f"  log       {first['stderr_log']}")
    if run_dir:
        lines.append(f"  report    {run_dir}/failure.json")
    return "\n".join(lines)


def logs_of(run_dir: Optional[str]) -> List[str]:
    """The ranks' log files, the last attempt first."""
    if run_dir is None:
        return []
    found = pathlib.Path(run_dir).glob("logs/*/*.*")
    return [str(path) for path in sorted(found, key=lambda path: (path.parent.name, path.name), reverse=True)]

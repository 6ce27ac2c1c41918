"""Numbers of a training run over all ranks: `metrics.jsonl` of the run's folder, which `muster report` draws, as the C++
library writes it (muster/train/metrics.h)."""
from __future__ import annotations

import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from muster import spans
from muster._collective import waiting_for_all
from muster._folder_lock import lock_folder, release_all
from muster._plain import path_text, plain_value
from muster._streams import say
from muster.context import group_of_all, refuse_in_a_child
from muster.errors import InvalidArgument, Unavailable
from muster.rank import attempt, rank, run_dir, world_size

if TYPE_CHECKING:
    from muster._tensorboard import EventFile

# A number or a tensor, which is a mean; or the mean and over how many samples it is.
Value = Union[float, Any, Tuple[Any, float]]

_WHOLE = 2.0**53  # up to here every whole number is a double
_TENSORBOARDS_STEPS = 2**63
_writers: Dict[str, _Writer] = {}


def metrics(step: float, *, folder: Union[None, str, "os.PathLike[str]"] = None, tensorboard: bool = False, **values: Value) -> Dict[str, float]:
    """Writes the means over all ranks as a line of `metrics.jsonl`, and gives them. All ranks call it, with the same step and
    the same names.

    A value is a number, a tensor or an array, of which each element counts as much as a number, or a pair: a mean, and over
    how many samples it is.

    >>> means = muster.metrics(step, loss=loss, accuracy=(hits / n, n))
    >>> means["loss"]
    0.31

    Rank 0 writes the line, into `folder` or else the run's; where there is neither, nothing is written. The first line takes
    the folder: it waits some seconds while another process writes there, and is refused then. The line also says
    where the time since the last one went: "time/compute" and so on. tensorboard=True writes an event file beside it, which has
    whole steps alone.

    In a later attempt of a launch, the first line moves the lines from its step on to `metrics.jsonl.replaced`. A training that
    resumes otherwise says where: `continue_metrics`.
    """
    step = _step(step)
    if tensorboard and (step != math.trunc(step) or not -_TENSORBOARDS_STEPS <= step < _TENSORBOARDS_STEPS):
        raise InvalidArgument(f"metrics: expected a whole step of 64 bits for TensorBoard, got {step}; count steps, or leave tensorboard out")
    refuse_in_a_child("metrics")
    own = {name: _mean_and_count(name, value) for name, value in values.items()}
    times = _times_since_last()
    told = _gather((step, sorted(own), own, times))
    _check_alike([f"step {_number(one[0])}" for one in told], "step")
    _check_alike([", ".join(one[1]) for one in told], "names")
    means = _means(list(own), [one[2] for one in told])
    writer = _writer_of(folder)
    if writer:
        writer.make_room(step)
        writer.write(step, {**means, **_shares([one[3] for one in told])}, tensorboard)
    return means


def continue_metrics(step: float, *, folder: Union[None, str, "os.PathLike[str]"] = None) -> int:
    """Says that the training goes on after this step, as of a checkpoint that was loaded: it takes the later ones again. Their
    lines of `metrics.jsonl` are moved to `metrics.jsonl.replaced`. How many were moved; 0 on all ranks but 0.

    >>> muster.continue_metrics(state["step"])
    12
    """
    step = _step(step)
    refuse_in_a_child("metrics")
    writer = _writer_of(folder)
    return writer.continue_after(step) if writer else 0


def _step(step: Any) -> float:
    number: Any = plain_value(step)
    if not isinstance(number, (int, float)) or not abs(number) <= sys.float_info.max:
        raise InvalidArgument(f"metrics: expected the number of a step, got {step!r}; write metrics(step, loss=loss)")
    return number


def _writer_of(folder: Union[None, str, "os.PathLike[str]"]) -> Optional[_Writer]:
    """Rank 0's; takes the folder at first."""
    where = path_text(folder) if folder else run_dir()
    if rank() != 0 or not where:
        return None
    here = os.path.realpath(where)
    if here not in _writers:
        _writers[here] = _Writer(where)
    return _writers[here]


def _mean_and_count(name: str, value: Value) -> Tuple[float, float]:
    """The mean of a metric's values on this rank, and how many they are."""
    if name == "step" or name.startswith("time/") or not name or not name.isprintable():
        raise InvalidArgument(f"metrics: expected a name of printable characters that is not 'step' or a share of the time, got {name!r}; choose "
                              "another")
    try:
        mean, count = value if isinstance(value, tuple) else (value, _elements(value))
        number, count = _mean_of(mean), 0.0 if _is_empty(mean) else float(count)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"metrics: expected a number, a tensor or an array, or a pair of a mean and a count, got {value!r} for '{name}'; "
                              "correct it") from error
    if not 0 <= count <= _WHOLE:
        raise InvalidArgument(f"metrics: expected a count of 0 to 2**53 samples for '{name}', got {count}; pass the number of "
                              "samples that the mean is over")
    return (number, count) if count else (0.0, 0.0)  # a mean over no samples is usually NaN, and counts as nothing


def _mean_of(value: Any) -> float:
    if _is_empty(value):
        return math.nan
    if isinstance(value, (str, bytes)) or "complex" in str(getattr(value, "dtype", "")):
        raise TypeError(f"{value!r} has no mean that is one number")
    if hasattr(value, "detach"):
        value = value.detach().double()
    elif hasattr(value, "astype"):
        value = value.astype(float)
    return float(value.mean() if getattr(value, "ndim", 0) > 0 else value)


def _elements(value: Any) -> float:
    return float(math.prod(value.shape)) if getattr(value, "ndim", 0) > 0 else 1.0


def _is_empty(value: Any) -> bool:
    """Whether it is a tensor or an array without elements, of which there is no mean."""
    return getattr(value, "ndim", 0) > 0 and 0 in value.shape


def _gather(own: Any) -> List[Any]:
    """Of all ranks, in their order."""
    if group_of_all() is None:
        if world_size() > 1:
            raise InvalidArgument(f"metrics: expected a process group of {world_size()} ranks, got none (rank {rank()}); "
                                  "call muster.init() first")
        return [own]
    import torch.distributed as dist
    told: List[Any] = [None] * dist.get_world_size()
    with spans.span("metrics", "communication"), waiting_for_all("metrics"):
        dist.all_gather_object(told, own)
    return told


def _check_alike(told: List[str], what: str) -> None:
    """Refuses what a rank tells otherwise than rank 0. All see all, so that all refuse or none."""
    for other, theirs in enumerate(told):
        if theirs != told[0]:
            raise InvalidArgument(f"metrics: expected the same {what} on all ranks, got '{told[0]}' on rank 0 and '{theirs}' on rank {other} "
                                  f"(rank {rank()}); pass the same on every rank, whatever each has to tell")


def _means(names: List[str], ranks: List[Mapping[str, Tuple[float, float]]]) -> Dict[str, float]:
    """In the order of the ranks, so that all have the same bits. Those without a value are left out."""
    means = {name: _joined([values[name] for values in ranks if values[name][1]]) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


def _joined(means: List[Tuple[float, float]]) -> Optional[float]:
    """The mean over all, also where their sum is more than a number can be."""
    count = sum(own for _, own in means)
    if not count:
        return None
    joined = sum(mean * own for mean, own in means) / count
    return joined if math.isfinite(joined) else sum(mean * (own / count) for mean, own in means)


_before: List[float] = [0.0] * len(spans.CATEGORIES)


def _times_since_last() -> List[float]:
    global _before
    now = spans.seconds()
    times = [after - before for after, before in zip(now, _before)]
    _before = now
    return times


def _shares(times: List[List[float]]) -> Dict[str, float]:
    """Of all ranks' time; empty where no rank has told any."""
    sums = [sum(of_category) for of_category in zip(*times)]
    whole = sum(sums)
    return {f"time/{category}": part / whole for category, part in zip(spans.CATEGORIES, sums)} if whole > 0 else {}


def close_files() -> None:
    """At the end of a task. Its process may go on, and others may write into its folders."""
    _writers.clear()
    release_all()


class _Writer:
    """The file of one folder."""

    def __init__(self, folder: str) -> None:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"metrics: expected a folder that can be made, got '{folder}': {error.strerror} (rank 0); give another") from error
        lock_folder(folder, ".metrics.jsonl.lock")
        self.folder = folder
        self.path = os.path.join(folder, "metrics.jsonl")
        self.events: Optional[EventFile] = None
        self.resumed_after: Optional[int] = None
        self.lost = 0
        self._is_new_in_attempt = attempt() > 0

    def make_room(self, step: float) -> None:
        """An attempt's first line takes the place of those from its step on: the attempt before has written them."""
        if not self._is_new_in_attempt:
            return
        self._is_new_in_attempt = False
        if _move_lines(self.path, f"from step {_number(step)} on", lambda here: here >= step, after=step - 1):
            self._resume_events(math.ceil(step) - 1)

    def continue_after(self, step: float) -> int:
        self._is_new_in_attempt = False
        lines = _move_lines(self.path, f"after step {_number(step)}", lambda here: here > step, after=step)
        self._resume_events(math.floor(step))
        return lines

    def _resume_events(self, step: int) -> None:
        if self.events is None:
            self.resumed_after = step
        else:
            self.events.continue_after(step)

    def write(self, step: float, values: Mapping[str, float], tensorboard: bool) -> None:
        """A full disk costs lines, not the training."""
        try:
            if tensorboard:
                self._events().write(int(step), values)
            append(self.path, (line_of({"step": step, **values}) + "\n").encode())
        except OSError as error:
            if self.lost == 0:
                say(f"[rank 0] warning: metrics: cannot write '{self.path}': {error}; training goes on, and metrics are lost until "
                    "they can be written again")
            self.lost += 1
            return
        if self.lost:
            say(f"[rank 0] warning: metrics: written again; {self.lost} lines were lost")
        self.lost = 0

    def _events(self) -> EventFile:
        if self.events is None:
            from muster._tensorboard import EventFile
            self.events = EventFile(self.folder)
            if self.resumed_after is not None:
                self.events.continue_after(self.resumed_after)
        return self.events


def append(path: str, data: bytes) -> None:
    """Adds to the file at once, so that no line is there in part."""
    with open(path, "ab", buffering=0) as file:
        written = file.write(data)
    if written != len(data):
        raise OSError(f"{written} of {len(data)} bytes were written")


def line_of(values: Mapping[str, float]) -> str:
    """A line as the C++ library writes it: whole numbers without a point, null for what is no number."""
    return json.dumps({name: _number(value) for name, value in values.items()}, separators=(",", ":"), ensure_ascii=False)


def _number(value: float) -> Union[None, int, float]:
    if not math.isfinite(value):
        return None
    return int(value) if value == math.trunc(value) and abs(value) <= _WHOLE else value


def _move_lines(path: str, which: str, goes: Callable[[float], bool], after: float) -> int:
    """Moves the lines from the first step that goes on to PATH.replaced, with a last line that is not whole, so that each step
    is in the file once. How many lines were moved."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return 0
    begin = _begin_of_later(text, goes, after)
    moved = text[begin:]
    if not moved:
        return 0
    with open(path + ".replaced", "ab") as aside:  # first, so that at no moment they are nowhere
        aside.write(moved if moved.endswith(b"\n") else moved + b"\n")
    os.truncate(path, begin)
    lines = moved.count(b"\n") + (not moved.endswith(b"\n"))
    say(f"[rank 0] info: metrics: {lines} line{'s' if lines > 1 else ''} {which} moved to '{path}.replaced', as the training "
        "takes these steps again")
    return lines


def _begin_of_later(text: bytes, goes: Callable[[float], bool], after: float) -> int:
    """A step that is smaller than the one before it begins another training. The lines of earlier trainings stay, unless this
    one begins from its beginning."""
    lines = text.splitlines(keepends=True)
    steps = [_step_of(line) for line in lines]
    others_stay = after > 0 or any(step is not None and step > 0 and not goes(step) for step in steps)
    at, later, before = 0, len(text), 0.0
    for line, here in zip(lines, steps):
        if not line.endswith(b"\n"):
            return min(later, at)
        if here is not None:
            if here < before and others_stay:
                later = len(text)
            before = here
            if goes(here):
                later = min(later, at)
        at += len(line)
    return later


def _step_of(line: bytes) -> Optional[float]:
    try:
        step = json.loads(line).get("step")
    except (ValueError, AttributeError):
        return None
    return step if isinstance(step, (int, float)) else None

"""A rank's place, device and process group: what `muster.init()` makes, once."""
from __future__ import annotations

import atexit
import gc
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Optional, Union, overload

from muster import _abi, _meet, _stops, spans
from muster._collective import waiting_for_all
from muster._forks import owned_by_this_process
from muster._join import Joined, join, refuse_others
from muster._streams import say
from muster.errors import FailedPrecondition, InvalidArgument
from muster.rank import attempt, batch_share, run_dir

if TYPE_CHECKING:
    import torch

# The exit code of a rank that was asked to stop and has, and of its job: start it again to go on.
STOPPED = 75

_current: Optional[Context] = None
_parents: Optional[str] = None  # in a child that was forked from a rank: which rank
_parents_group: Any = None  # in a child: the group that the program has made, at the fork


def init(backend: Optional[str] = None, *, timeout: Union[None, float, timedelta] = None,
         surplus: Optional[str] = None) -> Context:
    """Makes this rank's device current and joins the process group of all ranks, once. Later calls give the same Context, and
    refuse what it does not have.

    It works under `muster run`, torchrun, srun, mpirun and `muster.spawn`, and in a process that was started alone, also in a
    notebook: that is a world of one. A group that the program has made itself is taken as it is.

    >>> ctx = muster.init()
    >>> model = DistributedDataParallel(Net().to(ctx.device))
    >>> for step, batch in enumerate(loader):
    ...     ctx.note(step=step, samples=len(batch), loss=loss)
    ...     if ctx.should_stop():
    ...         save(model)
    ...         sys.exit(muster.STOPPED)

    backend:  "nccl", "muster", "gloo", or "cpu:…,cuda:…". Without it, GPUs of their own get NCCL, and CPU tensors the backend
              "muster" where muster-torch is installed, else Gloo. MUSTER_BACKEND overrides it.
    timeout:  of every collective, in seconds, also where the program has made the group. MUSTER_COLLECTIVE_TIMEOUT overrides it.
    surplus:  what a rank without a visible GPU gets, where the launcher assigns none: "error", "cpu" or "share".
    """
    global _current
    refuse_in_a_child("muster.init")
    if _current is None:
        _current = Context(join(backend, timeout, surplus))
        atexit.register(_at_exit)
    else:
        refuse_others(_current._joined, backend, timeout, surplus)
    return _current


def refuse_in_a_child(what: str) -> None:
    """The group is that of the rank that has forked this process, and a collective of the child would wait for ever."""
    if _parents is not None:
        raise FailedPrecondition(f"{what}: expected the process that has called muster.init, got one that was forked from {_parents}; "
                                 "call it in that one")
    if _parents_group is not None and _parents_group is group_of_all():
        raise FailedPrecondition(f"{what}: expected the process that has joined the group, got one that was forked from it; call it in that one")


def group_of_all() -> Any:
    """That of torch.distributed in this process; None where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.group.WORLD


def _note_parents_group() -> None:
    global _parents_group
    _parents_group = group_of_all()


os.register_at_fork(after_in_child=_note_parents_group)


def current() -> Optional[Context]:
    """The Context of this process; None before init()."""
    return _current


class Context:
    """What a rank knows and has: its place in the job, its device, which is current, and its process group."""

    def __init__(self, joined: Joined) -> None:
        self.rank = int(joined.facts["rank"])
        self.world_size = int(joined.facts["world_size"])
        self.local_rank = int(joined.facts["local_rank"])
        self.local_world_size = int(joined.facts["local_world_size"])
        self.device = joined.device
        self.assignment = joined.assignment
        self._joined = joined
        self._owns_group = joined.owns_group
        self._pending: Any = None  # a loss that a GPU still computes
        self._counts = False
        self._stops = False
        owned_by_this_process(self)

    def let_go(self) -> None:
        """The group is the parent's."""
        global _current, _parents
        if _current is self:
            _current, _parents = None, f"rank {self.rank}"
            self._owns_group = False

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and saves."""
        return self.rank == 0

    @property
    def run_dir(self) -> Optional[str]:
        """The folder of this run; None where there is none."""
        return run_dir()

    @property
    def attempt(self) -> int:
        """How often the ranks have been started before."""
        return attempt()

    @overload
    def batch_share(self, otherwise: int) -> int: ...
    @overload
    def batch_share(self, otherwise: None = None) -> Optional[int]: ...
    def batch_share(self, otherwise: Optional[int] = None) -> Optional[int]:
        """This rank's part of `muster run --global-batch`; `otherwise` without it."""
        return batch_share(otherwise)

    def note(self, *, step: Optional[int] = None, samples: Optional[int] = None, loss: Union[None, float, torch.Tensor] = None) -> None:
        """Tells `muster top`, `muster report` and the job's breakdown what this rank has come to. `samples` are those of this
        step. A loss on a GPU is read once it is there, so nothing waits for it."""
        if not spans.is_open():
            return
        library = _abi.library()
        if not self._counts:
            self._counts = True
            library.muster_count_outside_as(spans.category_number("compute"))
        if step is not None:
            library.muster_note_step(_told("step", step, int))
        if samples is not None:
            library.muster_note_samples(_told("samples", samples, int))
        if loss is not None:
            self._note_loss(loss)

    def _note_loss(self, loss: Any) -> None:
        library = _abi.library()
        if getattr(loss, "is_cuda", False) and loss.numel() == 1:
            import torch
            if self._pending is not None and self._pending[1].query():
                library.muster_note_loss(float(self._pending[0]))
                self._pending = None
            if self._pending is None:
                copy = loss.detach().to("cpu", non_blocking=True)
                copied = torch.cuda.Event()
                copied.record(torch.cuda.current_stream(self.device))
                self._pending = (copy, copied)
            return
        library.muster_note_loss(_told("loss", loss.detach() if hasattr(loss, "detach") else loss, float))

    def stop_requested(self) -> bool:
        """Whether this rank was asked to stop: by SIGTERM (from muster run, a scheduler or a time limit), SIGUSR1 or SIGINT.
        From the first call on, these signals no longer end the rank, except a second SIGINT."""
        _stops.catch()
        return _stops.seen() != 0

    def should_stop(self) -> bool:
        """Whether any rank was asked to stop. All ranks get the same answer, so that they can save and end together:
        `sys.exit(muster.STOPPED)`. All ranks call it, at the same place."""
        refuse_in_a_child("should_stop")
        signal = _stops.seen() if self.stop_requested() else 0
        seen = self._highest(signal)
        if seen and not self._stops and self.is_main:
            say(f"[rank 0] info: {_stops.name_of(seen)}: the ranks stop after this step")
        self._stops = self._stops or seen != 0
        return self._stops

    @property
    def stops(self) -> bool:
        """The last answer of should_stop()."""
        return self._stops

    def _highest(self, number: int) -> int:
        """Of all ranks' numbers."""
        if self.world_size == 1:
            return number
        import torch
        import torch.distributed as dist
        told = torch.tensor([number], dtype=torch.int32, device=collective_device(self.device))
        with waiting_for_all("should_stop"):
            dist.all_reduce(told, op=dist.ReduceOp.MAX)
            return int(told.item())

    def close(self) -> None:
        """Leaves the group, where init() has made it. The process may call init() again."""
        self._leave_group()
        _stops.forget()

    def end(self) -> None:
        """Closes it at the end of the process. After a stop the signals stay caught: once the first rank has stopped, the launcher
        sends SIGTERM to those that are still on their way out, and one that died of it would have failed."""
        self._leave_group()
        _meet.forget()
        if not self._stops and _stops.seen() == 0:
            _stops.forget()

    def _leave_group(self) -> None:
        global _current
        _abi.library().muster_activity_close()
        if self._owns_group:
            import torch.distributed as dist
            # A wrapped model is a cycle that holds the group. The threads of Gloo's group end with it: later they would meet an
            # interpreter that is no more, and end the process by SIGABRT.
            gc.collect()
            if dist.is_initialized():
                dist.destroy_process_group()
        self._owns_group = False
        if _current is self:
            _current = None

    def __repr__(self) -> str:
        return f"<muster.Context: rank {self.rank} of {self.world_size} on {self.device}>"


def _told(what: str, value: Any, kind: Callable[[Any], float]) -> float:
    """A number as the C interface takes it."""
    try:
        number = kind(value)
        if kind is float or -2**63 <= number < 2**63:
            return number
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch's of several elements is a RuntimeError in older ones
        pass
    raise InvalidArgument(f"ctx.note: expected one number as {what}, got {value!r}; correct it")


def collective_device(device: torch.device) -> Any:
    """Where the tensors of small collectives lie: on the CPU, where the group takes these."""
    import torch
    import torch.distributed as dist
    try:
        dist.group.WORLD._get_backend(torch.device("cpu"))
        return torch.device("cpu")
    except RuntimeError:
        return device


def _at_exit() -> None:
    """A rank that ends well leaves the group. One that fails leaves it as it is: to end a group may wait for the others."""
    if _current is None or hasattr(sys, "last_value"):
        return
    _current.end()

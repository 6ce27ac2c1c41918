"""A rank's place, device and process group: what `muster.init()` makes, once."""
from __future__ import annotations

import atexit
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Mapping, Optional, Union

from muster import _abi, _loaders, _meet, _stacks, _stops, _torch, spans
from muster.errors import FailedPrecondition, InvalidArgument, Unavailable
from muster.plan import RankPlan, rank_plan
from muster.rank import attempt, batch_share, correct, facts as rank_facts, run_dir

if TYPE_CHECKING:
    import torch

# The exit code of a rank that was asked to stop and has, and of its job: start it again to go on.
STOPPED = 75

_DEFAULT_TIMEOUT = timedelta(minutes=30)
_INIT_TIMEOUT = timedelta(minutes=5)
_current: Optional[Context] = None


def init(backend: Optional[str] = None, *, timeout: Union[None, float, timedelta] = None,
         surplus: Optional[str] = None) -> Context:
    """Makes this rank's device current and joins the process group of all ranks, once. Later calls give the same Context.

    It works under `muster run`, torchrun, srun, mpirun and `muster.spawn`, and in a process that was started alone, also in a
    notebook: that is a world of one. A group that the program has made itself is taken.

    >>> ctx = muster.init()
    >>> model = DistributedDataParallel(Net().to(ctx.device))
    >>> for step, batch in enumerate(loader):
    ...     ctx.note(step=step, samples=len(batch), loss=loss)
    ...     if ctx.should_stop():
    ...         save(model)
    ...         sys.exit(muster.STOPPED)

    backend:  "nccl", "muster", "gloo", or "cpu:…,cuda:…". Without it, GPUs of their own get NCCL, and CPU tensors the backend
              "muster" where muster-torch is installed, else Gloo. MUSTER_BACKEND overrides it.
    timeout:  of every collective, in seconds. MUSTER_COLLECTIVE_TIMEOUT overrides it.
    surplus:  what a rank without a visible GPU gets, where the launcher assigns none: "error", "cpu" or "share".
    """
    global _current
    if _current is None:
        _current = _make(backend, timeout, surplus)
        atexit.register(_at_exit)
    return _current


def current() -> Optional[Context]:
    """The Context of this process; None before init()."""
    return _current


class Context:
    """What a rank knows and has: its place in the job, its device, which is current, and its process group."""

    def __init__(self, facts: Mapping[str, Any], device: torch.device, assignment: RankPlan, owns_group: bool) -> None:
        self.rank = int(facts["rank"])
        self.world_size = int(facts["world_size"])
        self.local_rank = int(facts["local_rank"])
        self.local_world_size = int(facts["local_world_size"])
        self.device = device
        self.assignment = assignment
        self._owns_group = owns_group
        self._pending: Any = None  # a loss that a GPU still computes
        self._counts = False
        self._stops = False

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
            library.muster_note_step(int(step))
        if samples is not None:
            library.muster_note_samples(int(samples))
        if loss is not None:
            self._note_loss(loss)

    def _note_loss(self, loss: Any) -> None:
        library = _abi.library()
        if getattr(loss, "is_cuda", False):
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
        library.muster_note_loss(float(loss.detach() if hasattr(loss, "detach") else loss))

    def stop_requested(self) -> bool:
        """Whether this rank was asked to stop: by SIGTERM (from muster run, a scheduler or a time limit), SIGUSR1 or SIGINT.
        From the first call on, these signals no longer end the rank, except a second SIGINT."""
        _stops.catch()
        return _stops.seen() != 0

    def should_stop(self) -> bool:
        """Whether any rank was asked to stop. All ranks get the same answer, so that they can save and end together:
        `sys.exit(muster.STOPPED)`. All ranks call it, at the same place."""
        signal = _stops.seen() if self.stop_requested() else 0
        seen = self._highest(signal)
        if seen and not self._stops and self.is_main:
            print(f"[rank 0] info: {_stops.name_of(seen)}: the ranks stop after this step", file=sys.stderr, flush=True)
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
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return int(told.item())

    def close(self) -> None:
        """Leaves the group, where init() has made it. The process may call init() again."""
        global _current
        _abi.library().muster_activity_close()
        if self._owns_group:
            import torch.distributed as dist
            if dist.is_initialized():
                dist.destroy_process_group()
        self._owns_group = False
        _stops.forget()
        if _current is self:
            _current = None

    def __repr__(self) -> str:
        return f"<muster.Context: rank {self.rank} of {self.world_size} on {self.device}>"


def collective_device(device: torch.device) -> Any:
    """Where the tensors of small collectives lie: on the CPU, where the group takes these."""
    import torch
    import torch.distributed as dist
    try:
        dist.group.WORLD._get_backend(torch.device("cpu"))
        return torch.device("cpu")
    except RuntimeError:
        return device


def _make(backend: Optional[str], timeout: Union[None, float, timedelta], surplus: Optional[str]) -> Context:
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise Unavailable("muster.init: expected PyTorch, got none; pip install torch (muster.rank() and the like need none)") from error
    _torch.meet_torch()
    spans.is_open()
    _stacks.answer_requests()
    facts = rank_facts()
    limit = _limit(timeout, facts)
    told = surplus or os.environ.get("MUSTER_SURPLUS") or "error"
    if told not in ("error", "cpu", "share"):
        raise InvalidArgument(f"surplus: expected error, cpu or share, got '{told}'; correct it")
    joined = dist.is_available() and dist.is_initialized()
    if joined:
        _take_group(dist)
    store = None
    if not facts["local_rank_told"] and facts["world_size"] > 1 and not facts["plan"]:
        store = _meet.store_for(facts, _INIT_TIMEOUT) if not joined else dist.distributed_c10d._get_default_store()
        device = _device_by_hosts(store, facts, told)
    else:
        device = _abi.ask("muster_rank_device", {"surplus": told})
    facts = rank_facts()
    place = _current_device(device, facts)
    if not joined:
        name = _backend_name(backend, place, bool(device["all_own_gpus"]))
        _join(name, store, facts, limit, place)
    _tell_software(place, device)
    _loaders.show_waits()
    return Context(facts, place, rank_plan(device["assignment"]), owns_group=not joined)


def _limit(timeout: Union[None, float, timedelta], facts: Mapping[str, Any]) -> timedelta:
    if facts["collective_timeout"] is not None:
        return timedelta(seconds=facts["collective_timeout"])
    if timeout is None:
        return _DEFAULT_TIMEOUT
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


def _take_group(dist: Any) -> None:
    """A group that the program has made knows better than the environment who this rank is."""
    if (dist.get_rank(), dist.get_world_size()) != (rank_facts()["rank"], rank_facts()["world_size"]):
        correct(rank=dist.get_rank(), world_size=dist.get_world_size(), local_rank_told=False)


def _device_by_hosts(store: Any, facts: Mapping[str, Any], surplus: str) -> Any:
    seen = _abi.ask("muster_rank_device", {"local_rank": 0, "local_world_size": 1, "surplus": "share"})["visible"]
    places = _meet.local_places(store, facts, seen, _INIT_TIMEOUT)
    among_gpus = {"local_rank": places.pop("gpu_rank"), "local_world_size": places.pop("gpu_world_size")}
    correct(**places)
    return _abi.ask("muster_rank_device", {**among_gpus, "surplus": surplus})


def _current_device(device: Mapping[str, Any], facts: Mapping[str, Any]) -> torch.device:
    import torch
    if device["ordinal"] is None:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Unavailable(
            f"muster.init: expected a torch that can use GPUs, as {device['assignment']['device']['id']} is this rank's, got torch "
            f"{torch.__version__} without them (rank {facts['rank']}); install another, or hide the GPUs (CUDA_VISIBLE_DEVICES=)")
    torch.cuda.set_device(device["ordinal"])
    spans.set_hook(_nvtx)
    return torch.device("cuda", device["ordinal"])


def _nvtx(name: Optional[str]) -> None:
    import torch
    if name is None:
        torch.cuda.nvtx.range_pop()
    else:
        torch.cuda.nvtx.range_push(name)


def _backend_name(asked: Optional[str], device: torch.device, all_own_gpus: bool) -> str:
    """As torch.distributed names it."""
    told = os.environ.get("MUSTER_BACKEND", "auto")
    has_muster = _torch.has_backend()
    host = "muster" if has_muster else "gloo"
    if told in ("gloo", "nccl"):
        asked = told
    elif told in ("shm", "shm+gloo"):
        asked = "muster"
    elif told != "auto":
        raise InvalidArgument(f"MUSTER_BACKEND: expected auto, gloo, nccl, shm or shm+gloo for a Python program, got '{told}'; correct it")
    if asked is not None and "muster" in asked and not has_muster:
        raise _torch.missing(f'muster.init(backend="{asked}")')
    if asked is None or asked == "muster":
        if device.type == "cpu":
            return host
        return f"cpu:{host},cuda:{'nccl' if all_own_gpus else 'gloo'}"
    if asked == "nccl" and device.type == "cpu":
        raise InvalidArgument('backend: expected a GPU for nccl, got cpu; use "muster", "gloo" or none')
    return asked


def _join(name: str, store: Any, facts: Mapping[str, Any], limit: timedelta, device: torch.device) -> None:
    import torch.distributed as dist
    if not dist.is_available():
        raise Unavailable("muster.init: expected a torch with torch.distributed, got one without; install another")
    bound = {"device_id": device} if device.type == "cuda" and "nccl" in name else {}
    if store is None:
        store = _meet.store_for(facts, _INIT_TIMEOUT)
    dist.init_process_group(name, store=store, rank=facts["rank"], world_size=facts["world_size"], timeout=limit, **bound)


def _tell_software(device: torch.device, told: Mapping[str, Any]) -> None:
    if not spans.is_open():
        return
    import torch
    import torch.distributed as dist
    model = told["assignment"]["device"].get("model", "") if device.type == "cuda" else _cpu_model()
    _abi.library().muster_software(str(torch.__version__).split("+")[0].encode(), dist.get_backend().encode(), model.encode())


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(": ", 1)[-1].strip()
    except OSError:
        pass
    return "CPU"


def _at_exit() -> None:
    """A rank that ends well leaves the group. One that fails leaves it as it is: to end a group may wait for the others."""
    if _current is None or hasattr(sys, "last_value"):
        return
    _current.close()


def require(what: str) -> Context:
    """The Context. Raises FailedPrecondition where there is none."""
    if _current is None:
        raise FailedPrecondition(f"{what}: expected muster.init() before it, got no group; call it first")
    return _current

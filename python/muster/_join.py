"""How a rank gets its device and joins the process group of all ranks: the steps of `muster.init()`."""
from __future__ import annotations

import numbers
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional, Tuple, Union

from muster import _abi, _loaders, _meet, _stacks, _torch, spans
from muster.errors import FailedPrecondition, InvalidArgument, Unavailable
from muster.plan import RankPlan, rank_plan
from muster.rank import correct, facts as rank_facts, unequal_shares

if TYPE_CHECKING:
    import torch

_DEFAULT_TIMEOUT = timedelta(minutes=30)
_LONGEST_TIMEOUT = 3e9  # seconds, which C++ can count
_INIT_TIMEOUT = timedelta(minutes=5)


class Settings(NamedTuple):
    """What init() can be asked for, as it is in effect."""

    backend: Mapping[str, str]  # by type of device
    timeout: Optional[timedelta]  # None: the program has made the group itself, and nobody has told another
    surplus: str
    all_own_gpus: bool


class Joined(NamedTuple):
    """A rank that has joined the others."""

    facts: Mapping[str, Any]
    device: torch.device
    assignment: RankPlan
    owns_group: bool  # False: the program has made the group itself
    settings: Settings


def join(backend: Optional[str], timeout: Union[None, float, timedelta], surplus: Optional[str]) -> Joined:
    """Finds this rank's device, makes it current, and joins the group, unless the program has made one. Collective."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise Unavailable("muster.init: expected PyTorch, got none; pip install torch (muster.rank() and the like need none)") from error
    if not dist.is_available():
        raise Unavailable("muster.init: expected a torch with torch.distributed, got one without; install another")
    _torch.meet_torch()
    _stacks.answer_requests()
    made_before = dist.is_initialized()
    if made_before:
        _take_group(dist)
    facts = rank_facts()
    limit = _limit(timeout, facts)
    store = dist.distributed_c10d._get_default_store() if made_before else None
    found, store = _find_device(store, facts, _surplus(surplus))
    device = _make_current(found, facts)
    all_own_gpus = bool(found["all_own_gpus"])
    told = timeout is not None or facts["collective_timeout"] is not None
    if not made_before:
        _make_group(_backend_name(backend, device, all_own_gpus), store, facts, limit, device)
    _tell_software(device, found)
    _loaders.show_waits()
    _loaders.guard_shares(unequal_shares())
    settings = Settings(_by_device(dist.get_backend_config()), limit if told or not made_before else None, _surplus(surplus), all_own_gpus)
    joined = Joined(facts, device, rank_plan(found["assignment"]), not made_before, settings)
    if made_before:
        refuse_others(joined, backend, timeout, surplus)
        if told:
            _set_limit(dist, limit)
    return joined


def refuse_others(joined: Joined, backend: Optional[str], timeout: Union[None, float, timedelta], surplus: Optional[str]) -> None:
    """The group is there already: what is asked for must be what it has."""
    made, facts = joined.settings, joined.facts
    asked = _by_device(_backend_name(backend, joined.device, made.all_own_gpus)) if backend else {}
    has_backend = joined.device.type in asked and all(made.backend.get(device, name) == name for device, name in asked.items())
    for name, told, is_so, has in (("backend", backend, has_backend, ",".join(f"{device}:{one}" for device, one in made.backend.items())),
                                   ("timeout", timeout, _limit(timeout, facts) == made.timeout, made.timeout or "its own"),
                                   ("surplus", surplus, _surplus(surplus) == made.surplus, made.surplus)):
        if told is not None and not is_so:
            whose, instead = _HAS[joined.owns_group]
            raise FailedPrecondition(f"muster.init: expected {name} as {whose} ({has}), got {told!r} (rank {facts['rank']}); {instead}")


# Who has made the group, and what to do instead, by whether it was init().
_HAS = {True: ("its first call has set it", "leave it out, or call ctx.close() before"),
        False: ("the program's own group has it", "give it to init_process_group, or leave that out")}


def _by_device(backend: str) -> Mapping[str, str]:
    """"gloo" and "cpu:gloo,cuda:gloo" are one."""
    import torch.distributed as dist
    return dict(dist.distributed_c10d.BackendConfig(dist.Backend(backend)).get_device_backend_map())


def _surplus(asked: Optional[str]) -> str:
    told = asked or os.environ.get("MUSTER_SURPLUS") or "error"
    if told not in ("error", "cpu", "share"):
        raise InvalidArgument(f"surplus: expected error, cpu or share, got '{told}'; correct it")
    return told


def _find_device(store: Any, facts: Mapping[str, Any], surplus: str) -> Tuple[Any, Any]:
    """The answer of muster_rank_device(), and the store, which ranks that are told no local rank need before."""
    if facts["local_rank_told"] or facts["world_size"] == 1 or facts["plan"]:
        return _abi.ask("muster_rank_device", {"surplus": surplus}), store
    store = store or _meet.store_for(facts, _INIT_TIMEOUT)
    return _device_by_hosts(store, facts, surplus), store


def _limit(timeout: Union[None, float, timedelta], facts: Mapping[str, Any]) -> timedelta:
    if facts["collective_timeout"] is not None:
        return timedelta(seconds=facts["collective_timeout"])
    if timeout is None:
        return _DEFAULT_TIMEOUT
    seconds: Any = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if not is_number or not seconds > 0:
        raise InvalidArgument(f"muster.init: expected a timeout above 0, in seconds or as a timedelta, got {timeout!r}; correct it")
    return timedelta(seconds=float(min(seconds, _LONGEST_TIMEOUT)))


def _take_group(dist: Any) -> None:
    """A group that the program has made says who this rank is, where no launcher does. Two worlds of one rank, where the launcher
    has started one of two, are what a program gets that reads the wrong variables."""
    facts, rank, size = rank_facts(), dist.get_rank(), dist.get_world_size()
    if (rank, size) == (facts["rank"], facts["world_size"]):
        return
    if facts["source"]:
        raise InvalidArgument(
            f"muster.init: expected the program's group and its launcher to agree, got rank {rank} of {size} from the program and "
            f"rank {facts['rank']} of {facts['world_size']} from {facts['source']}; leave init_process_group out, or give it no rank "
            "and no world size")
    correct(rank=rank, world_size=size, local_rank_told=False)


def _device_by_hosts(store: Any, facts: Mapping[str, Any], surplus: str) -> Any:
    seen = _abi.ask("muster_rank_device", {"local_rank": 0, "local_world_size": 1, "surplus": "share"})["visible"]
    places = _meet.local_places(store, facts, seen, _INIT_TIMEOUT)
    among_gpus = {"local_rank": places.pop("gpu_rank"), "local_world_size": places.pop("gpu_world_size")}
    correct(**places)
    return _abi.ask("muster_rank_device", {**among_gpus, "surplus": surplus})


def _make_current(device: Mapping[str, Any], facts: Mapping[str, Any]) -> torch.device:
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


def _make_group(name: str, store: Any, facts: Mapping[str, Any], limit: timedelta, device: torch.device) -> None:
    import torch.distributed as dist
    bound = {"device_id": device} if device.type == "cuda" and "nccl" in name else {}
    if store is None:
        store = _meet.store_for(facts, _INIT_TIMEOUT)
    dist.init_process_group(name, store=store, rank=facts["rank"], world_size=facts["world_size"], timeout=limit, **bound)


def _set_limit(dist: Any, limit: timedelta) -> None:
    """What init() or the launcher tells holds for a group that the program has made, too. An older PyTorch warns of backends that
    are not its own."""
    set_timeout = dist.set_timeout if hasattr(dist, "set_timeout") else dist.distributed_c10d._set_pg_timeout
    set_timeout(limit)


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
